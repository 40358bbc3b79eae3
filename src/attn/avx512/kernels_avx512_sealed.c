/* kernels_avx512_sealed.c - sealed formats for AVX-512 with neither VNNI nor VBMI, and the packing
 * of queries for all.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/avx512/kernels_avx512_shuffle.h"

/* Even and odd bytes apart, as int16: the instruction that multiplies bytes saturates. */
static inline __attribute__((always_inline)) __m512i dot_add(__m512i acc, __m512i a, __m512i b)
{
    __m512i even = _mm512_madd_epi16(_mm512_and_si512(a, _mm512_set1_epi16(255)),
                                     _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8));
    __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(a, 8), _mm512_srai_epi16(b, 8));

    return _mm512_add_epi32(acc, _mm512_add_epi32(even, odd));
}

#define SEALED_SUFFIX
#define SEALED_DOT(acc, a, b) dot_add((acc), (a), (b))
#include "attn/avx512/kernels_avx512_sealed_body.h"

/* 16 values of the scaled row, 0 beyond its end; d is a multiple of 8. */
static inline __m512 load_scaled(const float *q, uint32_t d, uint32_t c, float scale)
{
    __mmask16 mask = d - c >= 16 ? 0xffff : 0xff;

    return _mm512_mul_ps(_mm512_set1_ps(scale), _mm512_maskz_loadu_ps(mask, q + c));
}

void quire_avx512_sealed_pack(uint32_t d, float scale, const float *q, void *packed)
{
    quire_avx512_sealed_header *header = packed;
    int8_t *n = (int8_t *)(header + 1);
    float *x = (void *)((char *)packed + quire_avx512_sealed_x_offset(d));
    __m512i top = _mm512_setzero_si512();
    __m512i sum = _mm512_setzero_si512();
    __mmask16 finite; /* all or none: a row with NaN or Inf has no integers */
    float max;
    float inverse;

    for (uint32_t c = 0; c < d; c += 16) {
        __m512 value = load_scaled(q, d, c, scale);

        _mm512_store_ps(x + c, value);
        top = _mm512_max_epi32(top, _mm512_castps_si512(_mm512_abs_ps(value)));
    }
    max = quire_avx512_max_abs(top);
    finite = isnan(max) ? 0 : 0xffff;
    inverse = max < QUIRE_ATTN_Q8_TINY ? 0.0f : QUIRE_ATTN_SEALED_Q_MAX / max;
    header->scale = max < QUIRE_ATTN_Q8_TINY ? 0.0f : max / QUIRE_ATTN_SEALED_Q_MAX;
    for (uint32_t c = 0; c < d; c += 16) {
        __m512i i = _mm512_maskz_cvtps_epi32(
            finite, _mm512_mul_ps(_mm512_load_ps(x + c), _mm512_set1_ps(inverse)));

        _mm_store_si128((__m128i *)(void *)(n + c), _mm512_cvtsepi32_epi8(i));
        sum = _mm512_add_epi32(sum, i);
    }
    header->start = (int32_t)(-128u * (uint32_t)_mm512_reduce_add_epi32(sum));
}
