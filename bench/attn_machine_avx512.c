/* attn_machine_avx512.c - bench_attn's comparisons with 512-bit registers.
 *
 * SPDX-License-Identifier: MIT */
#include <immintrin.h>

#define MACHINE_NAME    attn_machine_avx512
#define MACHINE_ISA     "avx512"
#define VEC             __m512
#define VEC_LANES       16
#define VEC_SET         _mm512_set1_ps
#define VEC_LOAD        _mm512_load_ps
#define VEC_STORE       _mm512_store_ps
#define VEC_ADD         _mm512_add_ps
#define VEC_MUL         _mm512_mul_ps
#define VEC_FMA         _mm512_fmadd_ps
#define VEC_REDUCE      _mm512_reduce_add_ps
#define VEC_LOAD_F16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(p)))
#include "attn_machine_body.h"
