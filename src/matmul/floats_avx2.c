/* floats_avx2.c - products with floats on AVX2: tiles of 3 rows and 4 outputs. A vector has half of
 * the lanes: 12 sums, 3 vectors of x and one of weights fill the registers.
 *
 * SPDX-License-Identifier: MIT */
#include "base/cpu.h"

#include <immintrin.h>
#include <stddef.h>

#define ROWS  3
#define OUTS  4
#define PARTS 2

typedef __m256 vec;

static inline vec vec_zero(void)
{
    return _mm256_setzero_ps();
}

static inline vec vec_fma(vec sum, vec a, vec b)
{
    return _mm256_fmadd_ps(a, b, sum);
}

static inline vec vec_f32(const char *at)
{
    return _mm256_loadu_ps((const float *)(const void *)at);
}

static inline __m128i halves(const char *at)
{
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}

static inline vec vec_f16(const char *at)
{
    return _mm256_cvtph_ps(halves(at));
}

static inline vec vec_bf16(const char *at)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves(at)), 16));
}

static inline float vec_sum(vec first, vec last)
{
    const __m256 eight = _mm256_add_ps(first, last);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#include "matmul/floats_body.h"

const quire_floats_kernels *quire_floats_kernels_avx2(void)
{
    static const quire_floats_kernels kernels = { "avx2", ROWS, OUTS, tile_run };

    return quire_cpu_get()->has_avx2 ? &kernels : NULL;
}
