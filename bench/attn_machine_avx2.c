/* attn_machine_avx2.c - bench_attn's comparisons with 256-bit registers.
 *
 * SPDX-License-Identifier: MIT */
#include <immintrin.h>

static inline float reduce(__m256 x)
{
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

#define MACHINE_NAME    attn_machine_avx2
#define MACHINE_ISA     "avx2"
#define VEC             __m256
#define VEC_LANES       8
#define VEC_SET         _mm256_set1_ps
#define VEC_LOAD        _mm256_load_ps
#define VEC_STORE       _mm256_store_ps
#define VEC_ADD         _mm256_add_ps
#define VEC_MUL         _mm256_mul_ps
#define VEC_FMA         _mm256_fmadd_ps
#define VEC_REDUCE      reduce
#define VEC_LOAD_F16(p) _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p)))
#include "attn_machine_body.h"
