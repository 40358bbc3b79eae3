/* kernels_avx512_q8_weights_body.h - P against the scales of a q8 V tile, as integers of 15 bits
 * (kernels.h has the formula), and as the two bytes of each.
 *
 * Include only from files compiled for AVX-512.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_AVX512_Q8_WEIGHTS_H
#define QUIRE_ATTN_KERNELS_AVX512_Q8_WEIGHTS_H

#include "attn/avx512/kernels_avx512.h"

#define REGS   QUIRE_AVX512_REGS
#define UNROLL _Pragma("GCC unroll 24")

enum {
    SCALES_BYTES = QUIRE_TILE_TOKENS * 2,
    GROUP = 4,        /* values that share 32 bits of codes */
    ROWS_PACKED = 24, /* rows whose weights are packed together */
    PLANES = 2,
    LOW_BITS = 8
};

/* Weight times V scale of each token. Scales outside the tile's slots are zero here. */
QUIRE_AVX512_INLINE void weigh(const float *p, const __m512 v_scale[REGS], __m512 w[REGS])
{
    for (uint32_t i = 0; i < REGS; i++) {
        w[i] = _mm512_mul_ps(_mm512_load_ps(p + 16 * i), v_scale[i]);
    }
}

/* The largest magnitude in each lane, as bits: NaN and Inf come out on top. */
QUIRE_AVX512_INLINE __m512i top_of(const __m512 w[REGS])
{
    __m512i top = _mm512_castps_si512(_mm512_abs_ps(w[0]));

    for (uint32_t i = 1; i < REGS; i++) {
        top = _mm512_max_epu32(top, _mm512_castps_si512(_mm512_abs_ps(w[i])));
    }
    return top;
}

/* For each of n <= 4 rows: the weight of one integer unit, and the factor from weights to units.
 * Rows share the horizontal maxima and the divisions. */
QUIRE_AVX512_INLINE void find_units(uint32_t n, const float *p, const __m512 v_scale[REGS],
                                    float *unit, float *inverse)
{
    const __m512i rows = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    const __m128 most = _mm_set1_ps(QUIRE_ATTN_Q8_P_MAX);
    __m512i top[4];
    __m128i bits;
    __m128 max;
    __mmask8 is_some;

    for (uint32_t r = 0; r < 4; r++) {
        __m512 w[REGS];

        if (r < n) {
            weigh(p + r * QUIRE_TILE_TOKENS, v_scale, w);
            top[r] = top_of(w);
        } else {
            top[r] = top[0];
        }
    }
    bits = _mm512_castsi512_si128(_mm512_permutexvar_epi32(rows, quire_avx512_max_4(top)));
    max = _mm_mask_mov_ps(_mm_castsi128_ps(bits),
                          _mm_cmpge_epu32_mask(bits, _mm_set1_epi32(0x7f800000)), _mm_set1_ps(NAN));
    is_some = _mm_cmp_ps_mask(max, _mm_set1_ps(QUIRE_ATTN_Q8_TINY), _CMP_NLT_UQ);
    _mm_store_ps(unit, _mm_maskz_div_ps(is_some, max, most));
    _mm_store_ps(inverse, _mm_maskz_div_ps(is_some, most, max));
}

/* The same for up to ROWS_PACKED rows. */
QUIRE_AVX512_INLINE void find_units_of_many(uint32_t n_rows, const float *p,
                                            const __m512 v_scale[REGS], float *unit, float *inverse)
{
    for (uint32_t r = 0; r < n_rows; r += 4) {
        QUIRE_AVX512_UP_TO_4(n_rows - r, find_units, p + r * (size_t)QUIRE_TILE_TOKENS, v_scale,
                             unit + r, inverse + r);
    }
}

QUIRE_AVX512_INLINE void planes_store(const __m512 w[REGS], __m512 inverse,
                                      uint8_t to[PLANES][QUIRE_TILE_TOKENS])
{
    const __m512i quads = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    const __m512i is_low = _mm512_set1_epi16(255);
    __m512i n[REGS];

    UNROLL
    for (uint32_t i = 0; i < REGS; i++) {
        n[i] = _mm512_cvtps_epi32(_mm512_mul_ps(w[i], inverse));
    }
    n[0] = _mm512_packs_epi32(n[0], n[1]);
    n[1] = _mm512_packs_epi32(n[2], n[3]);
    n[2] = _mm512_packus_epi16(_mm512_and_si512(n[0], is_low), _mm512_and_si512(n[1], is_low));
    n[3] =
        _mm512_packus_epi16(_mm512_srli_epi16(n[0], LOW_BITS), _mm512_srli_epi16(n[1], LOW_BITS));
    _mm512_store_si512(to[0], _mm512_permutexvar_epi32(quads, n[2]));
    _mm512_store_si512(to[1], _mm512_permutexvar_epi32(quads, n[3]));
}

/* Whether a scale is negative, which only damage makes: then weights have a sign, for which there
 * is no place in two bytes. */
QUIRE_AVX512_INLINE bool quire_avx512_q8_has_sign(const __m512 v_scale[REGS])
{
    uint32_t negative = 0;

    for (uint32_t i = 0; i < REGS; i++) {
        negative |= _mm512_movepi32_mask(_mm512_castps_si512(v_scale[i]));
    }
    return negative != 0;
}

/* Weights of up to ROWS_PACKED rows as bytes, low then high, and the value of one unit. No weight
 * is negative. */
static inline void quire_avx512_q8_planes(uint32_t n_rows, const float *p,
                                          const __m512 v_scale[REGS], float *unit,
                                          uint8_t weights[][PLANES][QUIRE_TILE_TOKENS])
{
    _Alignas(16) float inverse[ROWS_PACKED];

    find_units_of_many(n_rows, p, v_scale, unit, inverse);
    for (uint32_t r = 0; r < n_rows; r++) {
        __m512 w[REGS];

        weigh(p + r * (size_t)QUIRE_TILE_TOKENS, v_scale, w);
        planes_store(w, _mm512_set1_ps(inverse[r]), weights[r]);
    }
}

#endif /* QUIRE_ATTN_KERNELS_AVX512_Q8_WEIGHTS_H */
