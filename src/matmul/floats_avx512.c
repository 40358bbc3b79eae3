/* floats_avx512.c - products with floats on AVX-512: tiles of 4 rows and 4 outputs.
 *
 * SPDX-License-Identifier: MIT */
#include "base/cpu.h"

#include <immintrin.h>
#include <stddef.h>

#define ROWS  4
#define OUTS  4
#define PARTS 1

typedef __m512 vec;

static inline vec vec_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vec vec_fma(vec sum, vec a, vec b)
{
    return _mm512_fmadd_ps(a, b, sum);
}

static inline vec vec_f32(const char *at)
{
    return _mm512_loadu_ps(at);
}

static inline __m256i halves(const char *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

static inline vec vec_f16(const char *at)
{
    return _mm512_cvtph_ps(halves(at));
}

static inline vec vec_bf16(const char *at)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves(at)), 16));
}

static inline float vec_sum(vec v, vec last)
{
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

    (void)last; /* v itself */
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#include "matmul/floats_body.h"

const quire_floats_kernels *quire_floats_kernels_avx512(void)
{
    static const quire_floats_kernels kernels = { "avx512", ROWS, OUTS, tile_run };

    return quire_cpu_get()->has_avx512 ? &kernels : NULL;
}
