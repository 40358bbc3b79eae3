/* kernels_avx512_dot.h - VNNI's instructions: multiply and add to 32-bit sums.
 *
 * They are written as assembly because gcc 12 allocates registers badly around their intrinsics
 * (the accumulator is input and output): it copies and spills accumulators in the inner loops.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_AVX512_DOT_H
#define QUIRE_ATTN_KERNELS_AVX512_DOT_H

#include <immintrin.h>

/* Pairs of int16. */
static inline __attribute__((always_inline)) __m512i quire_avx512_dot_words(__m512i acc, __m512i a,
                                                                            __m512i b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}

/* Quads of uint8 (a) and int8 (b). */
static inline __attribute__((always_inline)) __m512i quire_avx512_dot_bytes(__m512i acc, __m512i a,
                                                                            __m512i b)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}

#endif /* QUIRE_ATTN_KERNELS_AVX512_DOT_H */
