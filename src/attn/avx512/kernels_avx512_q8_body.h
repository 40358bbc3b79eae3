/* kernels_avx512_q8_body.h - the q8 kernels, once with and once without VNNI.
 *
 * The including file defines Q8_DOT(acc, a, b): acc plus the sums of neighbouring int16 products.
 * Both are exact modulo 2^32, so both give the same bits.
 *
 * A register of codes holds groups of 4 (dimensions for K, tokens for V). Its even and its odd
 * bytes are spread to int16 by a mask and a shift, so the int16 operands come as the pairs (0, 2)
 * and (1, 3) of each group. K codes stay unsigned: accumulators start at -128 * sum(n). No sum
 * leaves 32 bits (kernels.h has the scheme).
 *
 * SPDX-License-Identifier: MIT */
#include "attn/avx512/kernels_avx512_q8_weights_body.h"

#define ROWS 4
#define WIDE (2 * REGS) /* registers of V for up to 2 rows */

enum {
    P_PAIRS = QUIRE_TILE_TOKENS / 2 /* int16 pairs of one row's weights */
};

/* ---- q . K ---- */

typedef struct qk_block {
    const quire_attn_qk *args;
    uint32_t row;
    quire_avx512_ahead ahead;
    __m512 k_scale[REGS];
} qk_block;

QUIRE_AVX512_INLINE void qk_rows(uint32_t n, qk_block *block)
{
    const quire_attn_qk *args = block->args;
    const size_t q_bytes = quire_avx512_q_bytes(QUIRE_FORMAT_Q8, args->d);
    const char *q = (const char *)args->packed + block->row * q_bytes;
    __m512i acc[ROWS][REGS];

    for (uint32_t r = 0; r < n; r++) {
        const quire_avx512_q8_header *header = (const void *)(q + r * q_bytes);

        for (uint32_t i = 0; i < REGS; i++) {
            acc[r][i] = _mm512_set1_epi32(header->start);
        }
    }
    for (uint32_t c = 0; c < args->d; c += GROUP) {
        const char *codes = (const char *)args->k_tile + SCALES_BYTES + c * QUIRE_TILE_TOKENS;
        const char *pairs = q + sizeof(quire_avx512_q8_header) + c * sizeof(int16_t);

        quire_avx512_prefetch(&block->ahead, 64 * REGS);
        for (uint32_t odd = 0; odd < 2; odd++) {
            __m512i k[REGS];

            for (uint32_t i = 0; i < REGS; i++) {
                __m512i x = _mm512_load_si512(codes + 64 * i);

                k[i] = odd ? _mm512_srli_epi16(x, 8) : _mm512_and_si512(x, _mm512_set1_epi16(255));
            }
            for (uint32_t r = 0; r < n; r++) {
                __m512i x = _mm512_set1_epi32(*(const int32_t *)(pairs + r * q_bytes + 4 * odd));

                for (uint32_t i = 0; i < REGS; i++) {
                    acc[r][i] = Q8_DOT(acc[r][i], k[i], x);
                }
            }
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        const quire_avx512_q8_header *header = (const void *)(q + r * q_bytes);

        for (uint32_t i = 0; i < REGS; i++) {
            float *s = args->s + (block->row + r) * QUIRE_TILE_TOKENS + 16 * i;
            __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][i]), _mm512_set1_ps(header->scale));

            x = _mm512_mul_ps(x, block->k_scale[i]);
            _mm512_store_ps(s, args->accumulate ? _mm512_add_ps(_mm512_load_ps(s), x) : x);
        }
    }
}

/* q . K; the including file makes its entry of it. */
static void qk_words(const quire_attn_qk *args)
{
    qk_block block = { .args = args,
                       .ahead = quire_avx512_ahead_of_qk(args, (args->n_rows + 3) / 4) };

    quire_avx512_load_scales(args->k_tile, block.k_scale);
    quire_avx512_prefetch_lines(&block.ahead, SCALES_BYTES / 64);
    while (block.row < args->n_rows) {
        uint32_t n = quire_avx512_next_4(args->n_rows - block.row);

        QUIRE_AVX512_UP_TO_4(n, qk_rows, &block);
        block.row += n;
        quire_avx512_ahead_advance(&block.ahead, args->k_tile);
    }
}

/* ---- P . V ---- */

/* Rows whose weights are integers, and the block of them in work. */
typedef struct pv_block {
    const quire_attn_pv *args;
    uint32_t row;
    uint32_t dim;
    quire_avx512_ahead ahead;
    uint32_t first;                       /* the row of unit[0] and pairs[0] */
    _Alignas(16) float unit[ROWS_PACKED]; /* the value of one unit of a row's integers */
    _Alignas(64) int32_t pairs[ROWS_PACKED][P_PAIRS];
} pv_block;

/* Integers in the order that the codes want. */
QUIRE_AVX512_INLINE void store_pairs(const __m512 w[REGS], __m512 inverse, int32_t *pairs)
{
    for (uint32_t i = 0; i < REGS; i += 2) {
        __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(w[i], inverse));
        __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(w[i + 1], inverse));

        _mm512_store_si512(pairs + 8 * i, quire_avx512_pairs(low, high));
    }
}

/* The weights of one row; returns their unit. */
QUIRE_AVX512_INLINE float pack_row(const float *p, const __m512 v_scale[REGS], int32_t *pairs)
{
    __m512 w[REGS];
    float max;

    weigh(p, v_scale, w);
    max = quire_avx512_max_abs(top_of(w));
    store_pairs(w, _mm512_set1_ps(max < QUIRE_ATTN_Q8_TINY ? 0.0f : QUIRE_ATTN_Q8_P_MAX / max),
                pairs);
    return max < QUIRE_ATTN_Q8_TINY ? 0.0f : max / QUIRE_ATTN_Q8_P_MAX;
}

/* Rows block->first .. end - 1. Few rows are packed one by one: the latency of the work that rows
 * share is hidden behind the work of other rows, and few rows have too little of it. */
QUIRE_AVX512_INLINE void pack_weights(pv_block *block, uint32_t end, const __m512 v_scale[REGS])
{
    const uint32_t n_rows = end - block->first;
    const float *p = block->args->p + block->first * (size_t)QUIRE_TILE_TOKENS;
    _Alignas(16) float inverse[ROWS_PACKED];

    for (uint32_t r = 0; n_rows <= 4 && r < n_rows; r++) {
        block->unit[r] = pack_row(p + r * QUIRE_TILE_TOKENS, v_scale, block->pairs[r]);
    }
    if (n_rows <= 4) {
        return;
    }
    find_units_of_many(n_rows, p, v_scale, block->unit, inverse);
    for (uint32_t r = 0; r < n_rows; r++) {
        __m512 w[REGS];

        weigh(p + r * (size_t)QUIRE_TILE_TOKENS, v_scale, w);
        store_pairs(w, _mm512_set1_ps(inverse[r]), block->pairs[r]);
    }
}

/* One register of dimensions at a time would do; regs of them share the broadcast weights. */
QUIRE_AVX512_INLINE void pv_cols(uint32_t n, uint32_t regs, bool half, pv_block *block)
{
    const quire_attn_pv *args = block->args;
    const char *codes = (const char *)args->v_tile + SCALES_BYTES + (size_t)GROUP * block->dim;
    float *o = args->o + block->row * args->o_stride + block->dim;
    int32_t(*pairs)[P_PAIRS] = block->pairs + (block->row - block->first);
    const float *unit = block->unit + (block->row - block->first);
    uint32_t group_end = (args->slot_end + GROUP - 1) / GROUP;
    __m512i acc[ROWS][WIDE];

    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < regs; i++) {
            acc[r][i] = _mm512_setzero_si512();
        }
    }
    for (uint32_t g = args->slot_begin / GROUP; g < group_end; g++) {
        const char *at = codes + (size_t)g * GROUP * args->d;

        quire_avx512_prefetch(&block->ahead, 64 * regs);
        for (uint32_t odd = 0; odd < 2; odd++) {
            __m512i v[WIDE];

            for (uint32_t i = 0; i < regs; i++) {
                __m512i x =
                    half ? _mm512_maskz_loadu_epi32(0xff, at) : _mm512_loadu_si512(at + 64 * i);

                v[i] = _mm512_srai_epi16(odd ? x : _mm512_slli_epi16(x, 8), 8);
            }
            for (uint32_t r = 0; r < n; r++) {
                __m512i x = _mm512_set1_epi32(pairs[r][2 * g + odd]);

                for (uint32_t i = 0; i < regs; i++) {
                    acc[r][i] = Q8_DOT(acc[r][i], v[i], x);
                }
            }
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        __m512 rescale = _mm512_set1_ps(args->rescale[block->row + r]);

        for (uint32_t i = 0; i < regs; i++) {
            float *to = o + r * args->o_stride + 16 * i;
            __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][i]), _mm512_set1_ps(unit[r]));

            x = _mm512_fmadd_ps(_mm512_load_ps(to), rescale, x);
            _mm512_store_ps(to, x);
        }
    }
}

QUIRE_AVX512_INLINE void pv_rows(uint32_t n, pv_block *block)
{
    uint32_t d = block->args->d;

    block->dim = 0;
    if (n <= 2) {
        for (; block->dim + 128 <= d; block->dim += 128) {
            pv_cols(n, WIDE, false, block);
        }
    }
    for (; block->dim + 64 <= d; block->dim += 64) {
        pv_cols(n, 4, false, block);
    }
    if ((d & 32) != 0) {
        pv_cols(n, 2, false, block);
        block->dim += 32;
    }
    if ((d & 16) != 0) {
        pv_cols(n, 1, false, block);
        block->dim += 16;
    }
    if ((d & 8) != 0) {
        pv_cols(n, 1, true, block);
    }
}

/* P . V; the including file makes its entry of it. */
static void pv_words(const quire_attn_pv *args)
{
    const uint64_t visible = quire_avx512_slot_mask(args->slot_begin, args->slot_end);
    __m512 v_scale[REGS];
    pv_block block;
    uint32_t end;

    block.args = args;
    block.ahead = quire_avx512_ahead_of_pv(args, (args->n_rows + 3) / 4);
    quire_avx512_load_visible(args->v_tile, visible, v_scale);
    quire_avx512_prefetch_lines(&block.ahead, SCALES_BYTES / 64);
    for (block.first = 0; block.first < args->n_rows; block.first = end) {
        const uint32_t n_left = args->n_rows - block.first;

        end = n_left <= ROWS_PACKED ? args->n_rows : block.first + ROWS_PACKED;
        pack_weights(&block, end, v_scale);
        for (block.row = block.first; block.row < end;) {
            uint32_t n = quire_avx512_next_4(end - block.row);

            QUIRE_AVX512_UP_TO_4(n, pv_rows, &block);
            block.row += n;
            quire_avx512_ahead_advance(&block.ahead, args->v_tile);
        }
    }
}
