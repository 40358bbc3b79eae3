/* kernels_avx512_q8.c - q8 for AVX-512 without VNNI, and the packing of queries for both.
 *
 * SPDX-License-Identifier: MIT */
#define Q8_DOT(acc, a, b) _mm512_add_epi32((acc), _mm512_madd_epi16((a), (b)))
#include "attn/avx512/kernels_avx512_q8_body.h"

void quire_avx512_qk_q8(const quire_attn_qk *args)
{
    qk_words(args);
}

void quire_avx512_pv_q8(const quire_attn_pv *args)
{
    pv_words(args);
}

/* Of the 16 values from c on; d is a multiple of 8. */
static inline __mmask16 lanes_of(uint32_t d, uint32_t c)
{
    return d - c >= 16 ? 0xffff : 0xff;
}

static inline __m512 load_scaled(const float *q, uint32_t d, uint32_t c, float scale)
{
    return _mm512_mul_ps(_mm512_set1_ps(scale), _mm512_maskz_loadu_ps(lanes_of(d, c), q + c));
}

void quire_avx512_q8_pack(uint32_t d, float scale, const float *q, void *packed)
{
    quire_avx512_q8_header *header = packed;
    int32_t *pairs = (int32_t *)(void *)(header + 1);
    int8_t *bytes = (int8_t *)packed + quire_avx512_q8_bytes_offset(d);
    __m512i top = _mm512_setzero_si512();
    __m512i sum = _mm512_setzero_si512();
    float max;
    float inverse;

    for (uint32_t c = 0; c < d; c += 16) {
        top =
            _mm512_max_epi32(top, _mm512_castps_si512(_mm512_abs_ps(load_scaled(q, d, c, scale))));
    }
    max = quire_avx512_max_abs(top);
    inverse = max < QUIRE_ATTN_Q8_TINY ? 0.0f : QUIRE_ATTN_Q8_Q_MAX / max;
    header->scale = max < QUIRE_ATTN_Q8_TINY ? 0.0f : max / QUIRE_ATTN_Q8_Q_MAX;
    for (uint32_t c = 0; c < d; c += 32) {
        __m512i n[2] = { _mm512_setzero_si512(), _mm512_setzero_si512() };

        for (uint32_t i = 0; i < 2 && c + 16 * i < d; i++) {
            __m512 x = load_scaled(q, d, c + 16 * i, scale);

            n[i] = _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(inverse)));
            sum = _mm512_add_epi32(sum, n[i]);
        }
        _mm512_store_si512(pairs + c / 2, quire_avx512_pairs(n[0], n[1]));
        for (uint32_t i = 0; i < 2 && c + 16 * i < d; i++) {
            _mm512_mask_cvtepi32_storeu_epi8(bytes + c + 16 * i, lanes_of(d, c + 16 * i), n[i]);
        }
    }
    header->start = (int32_t)(-128u * (uint32_t)_mm512_reduce_add_epi32(sum));
}
