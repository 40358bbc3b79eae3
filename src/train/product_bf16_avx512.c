/* product_bf16_avx512.c - products of bf16 numbers with AVX-512 BF16; see product_bf16.h.
 *
 * VDPBF16PS multiplies pairs of terms. So a and b are packed as pairs, a word for each: a block of
 * rows of a, and a panel of columns of b that stays in the first cache while all tiles of the block
 * read it. A tile of c stays in registers while the terms run.
 *
 * SPDX-License-Identifier: MIT */
#include "train/product_bf16.h"

#include "base/num.h"

#include <immintrin.h>

#define LANES        16u
#define TILE_ROWS    8u
#define TILE_VECTORS 2u
#define TILE_COLUMNS (LANES * TILE_VECTORS)
#define PAIRS        (QUIRE_PRODUCT_K / 2)
#define BLOCK_ROWS   256u
#define ROW_WORDS    (PAIRS + LANES) /* rows of a tile begin in other sets of the cache */

/* Rows [first_row, + n_rows) of a, or columns of b, with the terms [first, + n_k). */
typedef struct pair_block {
    const quire_f32_product *p;
    uint32_t first;
    uint32_t n_k;
    uint32_t n_pairs;
    uint32_t row;
    uint32_t n_rows;
} pair_block;

/* Where a pair of a lies: row i, pair k at words[i * row + k * pair]. */
typedef struct packed_a {
    const uint32_t *words;
    size_t row;
    size_t pair;
} packed_a;

static inline __mmask16 lanes_of(uint32_t n)
{
    return n >= LANES ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}

#define PAIR(i) ((i) | ((LANES + (i)) << 16))

/* Up to 16 pairs from two rows in memory; odd NULL: zeros. */
static inline __m512i pairs_of_rows(const float *even, const float *odd, uint32_t n)
{
    const __mmask16 mask = lanes_of(n);
    const __m512 low = _mm512_maskz_loadu_ps(mask, even);
    const __m512 high = odd != NULL ? _mm512_maskz_loadu_ps(mask, odd) : _mm512_setzero_ps();
    /* Places of the two numbers of each pair among the 32 that are rounded at once. */
    const __m512i order = _mm512_setr_epi32(PAIR(0), PAIR(1), PAIR(2), PAIR(3), PAIR(4), PAIR(5),
                                            PAIR(6), PAIR(7), PAIR(8), PAIR(9), PAIR(10), PAIR(11),
                                            PAIR(12), PAIR(13), PAIR(14), PAIR(15));

    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/* 16 pairs from up to 32 neighbours in memory, zeros behind the last. */
static inline __m512i pairs_of_terms(const float *from, uint32_t n)
{
    const uint32_t more = n > LANES ? n - LANES : 0;
    const __m512 low = _mm512_maskz_loadu_ps(lanes_of(n), from);
    const __m512 high =
        more > 0 ? _mm512_maskz_loadu_ps(lanes_of(more), from + LANES) : _mm512_setzero_ps();

    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* to[pair][BLOCK_ROWS] */
static void pack_a_transposed(const pair_block *b, uint32_t *to)
{
    for (uint32_t k = 0; k < b->n_pairs; k++, to += BLOCK_ROWS) {
        const float *even = b->p->a + (size_t)(b->first + 2 * k) * b->p->lda + b->row;
        const float *odd = 2 * k + 1 < b->n_k ? even + b->p->lda : NULL;

        for (uint32_t i = 0; i < b->n_rows; i += LANES) {
            _mm512_storeu_si512(
                to + i, pairs_of_rows(even + i, odd != NULL ? odd + i : NULL, b->n_rows - i));
        }
    }
}

/* to[row][ROW_WORDS]; the last row is repeated to a whole tile. */
static void pack_a(const pair_block *b, uint32_t *to)
{
    const uint32_t n = (b->n_rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;

    for (uint32_t i = 0; i < n; i++, to += ROW_WORDS) {
        const uint32_t row = b->row + (i < b->n_rows ? i : b->n_rows - 1);
        const float *from = b->p->a + (size_t)row * b->p->lda + b->first;

        for (uint32_t k = 0; k < b->n_k; k += 2 * LANES) {
            _mm512_storeu_si512(to + k / 2, pairs_of_terms(from + k, b->n_k - k));
        }
    }
}

/* Columns of 16 words become rows. */
static void transpose_16(const __m512i in[16], __m512i out[16])
{
    __m512i four[16];

    for (uint32_t g = 0; g < 16; g += 4) {
        const __m512i low01 = _mm512_unpacklo_epi32(in[g], in[g + 1]);
        const __m512i high01 = _mm512_unpackhi_epi32(in[g], in[g + 1]);
        const __m512i low23 = _mm512_unpacklo_epi32(in[g + 2], in[g + 3]);
        const __m512i high23 = _mm512_unpackhi_epi32(in[g + 2], in[g + 3]);

        four[g] = _mm512_unpacklo_epi64(low01, low23);
        four[g + 1] = _mm512_unpackhi_epi64(low01, low23);
        four[g + 2] = _mm512_unpacklo_epi64(high01, high23);
        four[g + 3] = _mm512_unpackhi_epi64(high01, high23);
    }
    for (uint32_t c = 0; c < 4; c++) {
        const __m512i even_low = _mm512_shuffle_i32x4(four[c], four[4 + c], 0x88);
        const __m512i odd_low = _mm512_shuffle_i32x4(four[c], four[4 + c], 0xdd);
        const __m512i even_high = _mm512_shuffle_i32x4(four[8 + c], four[12 + c], 0x88);
        const __m512i odd_high = _mm512_shuffle_i32x4(four[8 + c], four[12 + c], 0xdd);

        out[c] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
        out[4 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
        out[8 + c] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
        out[12 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
    }
}

/* to[pair][TILE_COLUMNS], zeros behind the last column. */
static void pack_b(const pair_block *b, uint32_t *to)
{
    for (uint32_t k = 0; k < b->n_pairs; k++, to += TILE_COLUMNS) {
        const float *even = b->p->b + (size_t)(b->first + 2 * k) * b->p->ldb + b->row;
        const float *odd = 2 * k + 1 < b->n_k ? even + b->p->ldb : NULL;

        for (uint32_t j = 0; j < TILE_COLUMNS; j += LANES) {
            const bool has_any = j < b->n_rows;

            _mm512_storeu_si512(
                to + j, has_any
                            ? pairs_of_rows(even + j, odd != NULL ? odd + j : NULL, b->n_rows - j)
                            : _mm512_setzero_si512());
        }
    }
}

static void pack_b_transposed(const pair_block *b, uint32_t *to)
{
    const float *from = b->p->b + (size_t)b->row * b->p->ldb + b->first;

    for (uint32_t k = 0; k < b->n_k; k += 2 * LANES, to += (size_t)LANES * TILE_COLUMNS) {
        for (uint32_t j = 0; j < TILE_COLUMNS; j += LANES) {
            __m512i columns[LANES], pairs[LANES];

            for (uint32_t i = 0; i < LANES; i++) {
                columns[i] =
                    j + i < b->n_rows
                        ? pairs_of_terms(from + (size_t)(j + i) * b->p->ldb + k, b->n_k - k)
                        : _mm512_setzero_si512();
            }
            transpose_16(columns, pairs);
            for (uint32_t i = 0; i < LANES; i++) {
                _mm512_storeu_si512(to + (size_t)i * TILE_COLUMNS + j, pairs[i]);
            }
        }
    }
}

/* A tile of c: n_rows and n_columns of it are written. */
typedef struct tile_place {
    float *c;
    size_t ldc;
    uint32_t n_rows;
    uint32_t n_columns;
    bool is_added;
} tile_place;

/* A vector of a row goes to c. */
static inline void vector_write(float *c, __mmask16 mask, __m512 sum, bool is_added)
{
    if (is_added) {
        sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c), sum);
    }
    _mm512_mask_storeu_ps(c, mask, sum);
}

/* Sums stay in registers from the first term to c: a copy of them in memory costs as much as
 * several pairs. */
static inline void tile_run(const packed_a *a, const uint32_t *panel, uint32_t n_pairs,
                            const tile_place *to)
{
    const __mmask16 first = lanes_of(to->n_columns);
    const __mmask16 second = to->n_columns > LANES ? lanes_of(to->n_columns - LANES) : 0;
    __m512 sum[TILE_ROWS][TILE_VECTORS];
    const uint32_t *x = a->words;

#pragma GCC unroll 8
    for (uint32_t i = 0; i < TILE_ROWS; i++) {
        sum[i][0] = _mm512_setzero_ps();
        sum[i][1] = _mm512_setzero_ps();
    }
    for (uint32_t k = 0; k < n_pairs; k++, x += a->pair, panel += TILE_COLUMNS) {
        const __m512bh b0 = (__m512bh)_mm512_loadu_si512(panel);
        const __m512bh b1 = (__m512bh)_mm512_loadu_si512(panel + LANES);

#pragma GCC unroll 8
        for (uint32_t i = 0; i < TILE_ROWS; i++) {
            const __m512bh one = (__m512bh)_mm512_set1_epi32((int)x[i * a->row]);

            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], one, b0);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], one, b1);
        }
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < TILE_ROWS; i++) {
        if (i < to->n_rows) {
            float *c = to->c + i * to->ldc;

            vector_write(c, first, sum[i][0], to->is_added);
            vector_write(c + LANES, second, sum[i][1], to->is_added);
        }
    }
}

/* All columns of c for a block of rows and terms. */
static void block_run(const pair_block *a, const packed_a *packed)
{
    const quire_f32_product *p = a->p;
    uint32_t panel[PAIRS * TILE_COLUMNS] __attribute__((aligned(64)));
    pair_block b = *a;

    for (b.row = 0; b.row < p->n; b.row += TILE_COLUMNS) {
        b.n_rows = quire_min_u32(p->n - b.row, TILE_COLUMNS);
        (p->is_b_transposed ? pack_b_transposed : pack_b)(&b, panel);
        for (uint32_t i = 0; i < a->n_rows; i += TILE_ROWS) {
            const packed_a tile = { packed->words + i * packed->row, packed->row, packed->pair };
            const tile_place to = { p->c + (size_t)(a->row + i) * p->ldc + b.row, p->ldc,
                                    a->n_rows - i, b.n_rows, p->is_added || a->first > 0 };

            tile_run(&tile, panel, a->n_pairs, &to);
        }
    }
}

void quire_bf16_product_avx512(const quire_f32_product *p)
{
    uint32_t words[BLOCK_ROWS * ROW_WORDS] __attribute__((aligned(64)));
    const packed_a packed = { words, p->is_a_transposed ? 1 : ROW_WORDS,
                              p->is_a_transposed ? BLOCK_ROWS : 1 };
    pair_block a = { .p = p };

    for (a.first = 0; a.first < p->k; a.first += QUIRE_PRODUCT_K) {
        a.n_k = quire_min_u32(p->k - a.first, QUIRE_PRODUCT_K);
        a.n_pairs = (a.n_k + 1) / 2;
        for (a.row = 0; a.row < p->m; a.row += BLOCK_ROWS) {
            a.n_rows = quire_min_u32(p->m - a.row, BLOCK_ROWS);
            (p->is_a_transposed ? pack_a_transposed : pack_a)(&a, words);
            block_run(&a, &packed);
        }
    }
}
