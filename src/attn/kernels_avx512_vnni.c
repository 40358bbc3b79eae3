/* kernels_avx512_vnni.c - q8 with VNNI: multiply and add in one instruction.
 *
 * The instruction is written as assembly because gcc 12 allocates registers badly around its
 * intrinsic (the accumulator is input and output): it copied and spilled accumulators in the inner
 * loops, a third of the speed.
 *
 * SPDX-License-Identifier: MIT */
#include <immintrin.h>

static inline __attribute__((always_inline)) __m512i dot_add(__m512i acc, __m512i a, __m512i b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}

#define Q8_SUFFIX         _vnni
#define Q8_DOT(acc, a, b) dot_add((acc), (a), (b))
#include "attn/kernels_avx512_q8.h"
