/* kernels_avx512_weights.h - P against the scales of a sealed V tile, as the bytes that pv
 * multiplies (kernels.h has the formula).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_AVX512_WEIGHTS_H
#define QUIRE_ATTN_KERNELS_AVX512_WEIGHTS_H

#include "attn/avx512/kernels_avx512.h"

#include <math.h>

/* Rows and registers stay in registers. */
#define UNROLL_ALL _Pragma("GCC unroll 32")

/* NaN, infinite or negative scales among the visible ones: then 0 * scale is not 0. */
QUIRE_AVX512_INLINE bool quire_avx512_is_damaged(const void *v_tile, uint64_t visible)
{
    const __m512i worst = _mm512_set1_epi16(0x7c00);
    uint64_t low = _mm512_cmpge_epu16_mask(_mm512_load_si512(v_tile), worst);
    uint64_t high = _mm512_cmpge_epu16_mask(_mm512_load_si512((const char *)v_tile + 64), worst);

    return ((low | high << 32) & visible) != 0;
}

/* The scales of the tokens that have weight in a row; zero for all other tokens. */
QUIRE_AVX512_INLINE void quire_avx512_scales_of_row(const float *p,
                                                    const __m512 v_scale[QUIRE_AVX512_REGS],
                                                    __m512 of_row[QUIRE_AVX512_REGS])
{
    for (uint32_t i = 0; i < QUIRE_AVX512_REGS; i++) {
        __m512i bits = _mm512_load_si512(p + 16 * i);

        of_row[i] = _mm512_maskz_mov_ps(_mm512_test_epi32_mask(bits, bits), v_scale[i]);
    }
}

/* Weight times V scale of each token as integers, for n <= 4 rows. Scales outside the tile's slots
 * are zero here. Weights are not negative: the sign of a damaged scale makes them look larger than
 * infinity, like NaN. */
QUIRE_AVX512_INLINE void quire_avx512_weights_of_4(uint32_t n, const float *p,
                                                   const __m512 v_scale[QUIRE_AVX512_REGS],
                                                   quire_attn_weights *weights)
{
    const __m512i quads = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    const __m512 most = _mm512_set1_ps(QUIRE_ATTN_SEALED_P_MAX);
    __m512 w[4][QUIRE_AVX512_REGS];
    __m512i top[4];
    __m512 max;
    __m512 inverse;
    __m512 u;
    __mmask16 is_some;

    UNROLL_ALL
    for (uint32_t r = 0; r < n; r++) {
        top[r] = _mm512_setzero_si512();
        UNROLL_ALL
        for (uint32_t i = 0; i < QUIRE_AVX512_REGS; i++) {
            const float *from = p + r * (size_t)QUIRE_TILE_TOKENS + 16 * i;

            w[r][i] = _mm512_mul_ps(_mm512_load_ps(from), v_scale[i]);
            top[r] = _mm512_max_epu32(top[r], _mm512_castps_si512(w[r][i]));
        }
    }
    for (uint32_t r = n; r < 4; r++) {
        top[r] = top[0];
    }
    top[0] = quire_avx512_max_4(top);
    max = _mm512_castsi512_ps(top[0]);
    is_some = _mm512_cmp_ps_mask(max, _mm512_set1_ps(QUIRE_ATTN_Q8_TINY), _CMP_NLT_UQ);
    inverse = _mm512_maskz_div_ps(is_some, most, max);
    u = _mm512_maskz_div_ps(is_some, max, most);
    u = _mm512_mask_mov_ps(u, _mm512_cmpge_epu32_mask(top[0], _mm512_set1_epi32(0x7f800000)),
                           _mm512_set1_ps(NAN));
    UNROLL_ALL
    for (uint32_t r = 0; r < n; r++) {
        __m512 factor = quire_avx512_row_of_4(inverse, r);
        __m512i x[QUIRE_AVX512_REGS];

        UNROLL_ALL
        for (uint32_t i = 0; i < QUIRE_AVX512_REGS; i++) {
            x[i] = _mm512_cvtps_epi32(_mm512_mul_ps(w[r][i], factor));
        }
        x[0] = _mm512_packus_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3]));
        _mm512_store_si512(weights[r].n, _mm512_permutexvar_epi32(quads, x[0]));
        weights[r].unit = _mm512_cvtss_f32(quire_avx512_row_of_4(u, r));
    }
}

/* The same for n <= 6 rows. */
QUIRE_AVX512_INLINE void quire_avx512_weights(uint32_t n, const float *p,
                                              const __m512 v_scale[QUIRE_AVX512_REGS],
                                              quire_attn_weights *weights)
{
    quire_avx512_weights_of_4(n < 4 ? n : 4, p, v_scale, weights);
    if (n > 4) {
        quire_avx512_weights_of_4(n - 4, p + (size_t)4 * QUIRE_TILE_TOKENS, v_scale, weights + 4);
    }
}

#endif /* QUIRE_ATTN_KERNELS_AVX512_WEIGHTS_H */
