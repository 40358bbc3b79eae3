/* matmul_machine_avx512.c - see matmul_machine.h.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul_machine.h"

#include "base/cpu.h"

#include <immintrin.h>

enum {
    SUMS = 16,
    DOT_PRODUCTS = 64
};

uint32_t matmul_machine_dots(uint64_t n)
{
    const __m512i factor = _mm512_set1_epi32(1);
    __m512i sums[SUMS];

    if (!quire_cpu_get()->has_avx512_vnni) {
        return 0;
    }
#pragma GCC unroll 16
    for (int i = 0; i < SUMS; i++) {
        sums[i] = _mm512_set1_epi32(i);
    }
    for (uint64_t round = 0; round < n; round++) {
#pragma GCC unroll 16
        for (int i = 0; i < SUMS; i++) {
            /* Assembly, so that the compiler cannot remove the products. */
            __asm__ volatile("vpdpbusd %1, %1, %0" : "+v"(sums[i]) : "v"(factor));
        }
    }
    return SUMS * DOT_PRODUCTS;
}
