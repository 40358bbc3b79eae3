/* matmul_avx512.c - the set of matrix products with AVX-512 VNNI, and its packing of x.
 *
 * A block of up to 8 rows is packed at once. A figure of each row (largest input, scale, sum) is a
 * register with one row per lane. Quads are transposed into their order in memory, so that stores
 * are whole.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/matmul_avx512.h"

#include "base/cpu.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

enum {
    ROWS = 8,
    QUADS = QUIRE_MATMUL_BLOCK / 4,
    HALF = QUIRE_MATMUL_BLOCK / 2
};

_Static_assert(ROWS == QUIRE_MATMUL_TILE_ROWS, "a tile is as many rows as a register has lanes");

/* Pairs of 32 and of 64 bits from both, those of each lane of 128 together. */
INLINE __m256i low_32(__m256i a, __m256i b)
{
    return _mm256_unpacklo_epi32(a, b);
}

INLINE __m256i high_32(__m256i a, __m256i b)
{
    return _mm256_unpackhi_epi32(a, b);
}

INLINE __m256i low_64(__m256i a, __m256i b)
{
    return _mm256_unpacklo_epi64(a, b);
}

INLINE __m256i high_64(__m256i a, __m256i b)
{
    return _mm256_unpackhi_epi64(a, b);
}

INLINE __m256i low_128(__m256i a, __m256i b)
{
    return _mm256_permute2x128_si256(a, b, 0x20);
}

INLINE __m256i high_128(__m256i a, __m256i b)
{
    return _mm256_permute2x128_si256(a, b, 0x31);
}

/* Lane r: the largest |x| of 32 inputs of row r, as bits, so that NaN and Inf come out on top. */
INLINE __m256i max_bits(const float *x, size_t stride, uint32_t n_rows)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m256i rows[ROWS], pairs[ROWS / 2], fours[ROWS / 4];

    UNROLL
    for (uint32_t r = 0; r < ROWS; r++) {
        rows[r] = _mm256_setzero_si256();
        if (r < n_rows) {
            const __m512i low = _mm512_loadu_si512(x + r * stride);
            const __m512i high = _mm512_loadu_si512(x + r * stride + HALF);
            const __m512i both = _mm512_max_epu32(_mm512_and_si512(low, magnitude),
                                                  _mm512_and_si512(high, magnitude));

            rows[r] =
                _mm256_max_epu32(_mm512_castsi512_si256(both), _mm512_extracti64x4_epi64(both, 1));
        }
    }
    UNROLL
    for (uint32_t i = 0; i < ROWS / 2; i++) {
        pairs[i] = _mm256_max_epu32(low_32(rows[2 * i], rows[2 * i + 1]),
                                    high_32(rows[2 * i], rows[2 * i + 1]));
    }
    UNROLL
    for (uint32_t i = 0; i < ROWS / 4; i++) {
        fours[i] = _mm256_max_epu32(low_64(pairs[2 * i], pairs[2 * i + 1]),
                                    high_64(pairs[2 * i], pairs[2 * i + 1]));
    }
    return _mm256_max_epu32(low_128(fours[0], fours[1]), high_128(fours[0], fours[1]));
}

/* 16 floats as integers of 8 bits. */
INLINE __m128i round_16(const float *x, __m512 inverse)
{
    return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), inverse)));
}

/* quads[r] = quad k of row r in lane k, to quads[k] = quad k of row r in lane r. */
INLINE void transpose(__m256i quads[ROWS])
{
    __m256i pairs[ROWS], fours[ROWS];

    UNROLL
    for (uint32_t i = 0; i < ROWS; i += 2) {
        pairs[i] = low_32(quads[i], quads[i + 1]);
        pairs[i + 1] = high_32(quads[i], quads[i + 1]);
    }
    UNROLL
    for (uint32_t i = 0; i < ROWS; i += 4) {
        fours[i] = low_64(pairs[i], pairs[i + 2]);
        fours[i + 1] = high_64(pairs[i], pairs[i + 2]);
        fours[i + 2] = low_64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = high_64(pairs[i + 1], pairs[i + 3]);
    }
    UNROLL
    for (uint32_t i = 0; i < ROWS / 2; i++) {
        quads[i] = low_128(fours[i], fours[i + 4]);
        quads[i + 4] = high_128(fours[i], fours[i + 4]);
    }
}

/* The sum of four quads of each row. */
INLINE __m256i sum_of(const __m256i quads[QUADS / 2])
{
    __m256i sum = _mm256_setzero_si256();

    UNROLL
    for (uint32_t k = 0; k < QUADS / 2; k++) {
        sum = _mm256_dpbusd_epi32(sum, _mm256_set1_epi8(1), quads[k]);
    }
    return sum;
}

INLINE void block_pack(const float *x, size_t stride, uint32_t n_rows, int32_t *to)
{
    const __mmask8 there = (__mmask8)((1u << n_rows) - 1);
    const __m256 max = _mm256_castsi256_ps(max_bits(x, stride, n_rows));
    const __mmask8 is_some =
        _mm256_cmp_ps_mask(max, _mm256_set1_ps(QUIRE_MATMUL_TINY), _CMP_NLT_UQ);
    const __m256 d = _mm256_maskz_div_ps(is_some, max, _mm256_set1_ps(127.0f));
    _Alignas(32) float inverses[ROWS];
    __m256i quads[ROWS], first, sum;

    _mm256_store_ps(inverses, _mm256_maskz_div_ps(is_some, _mm256_set1_ps(127.0f), max));
    UNROLL
    for (uint32_t r = 0; r < ROWS; r++) {
        quads[r] = _mm256_setzero_si256();
        if (r < n_rows) {
            const __m512 inverse = _mm512_set1_ps(inverses[r]);

            quads[r] = _mm256_set_m128i(round_16(x + r * stride + HALF, inverse),
                                        round_16(x + r * stride, inverse));
        }
    }
    transpose(quads);
    first = sum_of(quads);
    sum = _mm256_add_epi32(first, sum_of(quads + QUADS / 2));
    UNROLL
    for (uint32_t k = 0; k < QUADS; k++) {
        _mm256_mask_storeu_epi32(to + k * n_rows, there, quads[k]);
    }
    _mm256_mask_storeu_epi32(to + QUIRE_MATMUL_X_SUM * n_rows, there,
                             _mm256_mullo_epi32(sum, _mm256_set1_epi32(-128)));
    _mm256_mask_storeu_epi32(to + QUIRE_MATMUL_X_HALF * n_rows, there,
                             _mm256_mullo_epi32(first, _mm256_set1_epi32(-32)));
    _mm256_mask_storeu_ps(to + QUIRE_MATMUL_X_D * n_rows, there, d);
    _mm256_mask_storeu_ps(to + QUIRE_MATMUL_X_DSUM * n_rows, there,
                          _mm256_mul_ps(d, _mm256_cvtepi32_ps(sum)));
}

/* With the number of rows known, there are no tests of it. */
#define TILE_CASE(n)                                                                               \
    case n:                                                                                        \
        tile_rows(tile, n);                                                                        \
        break

INLINE void tile_rows(const quire_matmul_tile *tile, uint32_t n_rows)
{
    int32_t *to = tile->at;

    for (uint32_t b = tile->begin; b < tile->end; b++) {
        block_pack(tile->rows + (size_t)b * QUIRE_MATMUL_BLOCK, tile->stride, n_rows,
                   to + (size_t)b * n_rows * (QUIRE_MATMUL_BLOCK_BYTES / 4));
    }
}

static void tile_pack(const quire_matmul_tile *tile)
{
    switch (tile->n_rows) {
        TILE_CASE(1);
        TILE_CASE(2);
        TILE_CASE(3);
        TILE_CASE(4);
        TILE_CASE(5);
        TILE_CASE(6);
        TILE_CASE(7);
    default:
        tile_rows(tile, ROWS);
    }
}

static void panel_with_vbmi(const quire_matmul_panel *panel)
{
    if (quire_matmul_has_grid(panel->weight->type)) {
        quire_matmul_avx512_grid_panel(panel);
    } else {
        quire_matmul_avx512_panel(panel);
    }
}

/* Without VBMI look-ups in grids are AVX2's: the sets have one layout of x. */
static void panel_without_vbmi(const quire_matmul_panel *panel)
{
    if (quire_matmul_has_grid(panel->weight->type)) {
        quire_matmul_kernels_avx2()->panel(panel);
    } else {
        quire_matmul_avx512_panel(panel);
    }
}

static void grid_without_vbmi(const quire_matmul_panel *panels, uint32_t n)
{
    quire_matmul_kernels_avx2()->grid_tiles(panels, n);
}

const quire_matmul_kernels *quire_matmul_kernels_avx512(void)
{
    static const quire_matmul_kernels without = { "avx512+vnni", tile_pack, panel_without_vbmi,
                                                  grid_without_vbmi };
    static const quire_matmul_kernels with = { "avx512+vnni", tile_pack, panel_with_vbmi,
                                               quire_matmul_avx512_grid_tiles };

    if (!quire_cpu_get()->has_avx512_vnni || quire_matmul_kernels_avx2() == NULL) {
        return NULL;
    }
    return quire_cpu_get()->has_avx512_vbmi ? &with : &without;
}
