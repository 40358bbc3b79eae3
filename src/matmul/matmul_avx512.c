/* matmul_avx512.c - the set of matrix products with AVX-512 VNNI, and its packing of x.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/matmul_avx512.h"

#include "base/cpu.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

enum {
    QUADS = QUIRE_MATMUL_BLOCK / 4
};

/* 16 floats as integers. */
INLINE __m512i round_16(__m512 x, __m512 inverse)
{
    return _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
}

/* A block into a tile of n_rows rows. */
INLINE void block_pack(const float *x, uint32_t n_rows, int32_t *to)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512 low = _mm512_loadu_ps(x);
    const __m512 high = _mm512_loadu_ps(x + 16);
    const uint32_t top = _mm512_reduce_max_epu32(
        _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                         _mm512_and_si512(_mm512_castps_si512(high), magnitude)));
    const float max = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int32_t)top)));
    const bool is_some = !(max < QUIRE_MATMUL_TINY);
    const __m512 inverse = _mm512_set1_ps(is_some ? 127.0f / max : 0.0f);
    const __m256i n = _mm256_set_m128i(_mm512_cvtepi32_epi8(round_16(high, inverse)),
                                       _mm512_cvtepi32_epi8(round_16(low, inverse)));
    const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), n);
    const __m128i halves =
        _mm_hadd_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    const __m128i both = _mm_hadd_epi32(halves, halves);
    const int32_t first = _mm_cvtsi128_si32(both);
    const int32_t sum = first + _mm_extract_epi32(both, 1);
    const float d = is_some ? max / 127.0f : 0.0f;
    _Alignas(32) int32_t quads[QUADS];

    _mm256_store_si256((__m256i *)(void *)quads, n);
    UNROLL
    for (uint32_t k = 0; k < QUADS; k++) {
        to[k * n_rows] = quads[k];
    }
    to[QUIRE_MATMUL_X_SUM * n_rows] = -128 * sum;
    to[QUIRE_MATMUL_X_HALF * n_rows] = -32 * first;
    *(float *)(void *)&to[QUIRE_MATMUL_X_D * n_rows] = d;
    *(float *)(void *)&to[QUIRE_MATMUL_X_DSUM * n_rows] = d * (float)sum;
}

static void row_pack(const float *row, uint32_t n_in, uint32_t n_rows, void *at)
{
    int32_t *to = at;

    for (uint32_t i = 0; i < n_in; i += QUIRE_MATMUL_BLOCK) {
        block_pack(row + i, n_rows, to);
        to += n_rows * (QUIRE_MATMUL_BLOCK_BYTES / 4);
    }
}

const quire_matmul_kernels *quire_matmul_kernels_avx512(void)
{
    static const quire_matmul_kernels kernels = { "avx512+vnni", row_pack,
                                                  quire_matmul_avx512_panel };

    return quire_cpu_get()->has_avx512_vnni ? &kernels : NULL;
}
