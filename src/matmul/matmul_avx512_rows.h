/* matmul_avx512_rows.h - code that the panels of the AVX-512 set share: registers, products,
 * prefetches.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MATMUL_AVX512_ROWS_H
#define QUIRE_MATMUL_AVX512_ROWS_H

#include "base/cpu.h"
#include "base/prefetch.h"
#include "matmul/matmul_avx512.h"

#include <immintrin.h>

/* Accumulators stay in registers only where the loops over them are unrolled. With sanitizers that
 * takes the compiler minutes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INLINE static
#define UNROLL
#else
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")
#endif

enum {
    ROWS = QUIRE_MATMUL_TILE_ROWS,
    QUADS = QUIRE_MATMUL_BLOCK / 4,
    REG = 64,       /* bytes of a register */
    LINE = 2 * REG, /* bytes of four inputs' codes */
    SIDES = 2,      /* registers that hold something of all outputs of a panel */
    /* The distance of prefetches from memory; the CPU's own prefetchers stop at the end of a page.
     * With half of this distance 8 rows of Q8_0 took a fifth longer. */
    AHEAD_BYTES = 8192
};

/* A side of [output] f16. */
INLINE __m512 halves_at(const unsigned char *at, uint32_t side)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const void *)(at + (size_t)side * REG / 2)));
}

/* acc plus codes times one row's quad. As assembly because gcc 12 copies and spills accumulators
 * around the intrinsic. */
INLINE __m512i dot(__m512i acc, __m512i codes, __m512i quad)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(codes), "v"(quad));
    return acc;
}

INLINE __m512i int_at(const char *x, uint32_t i)
{
    return _mm512_set1_epi32(*(const int32_t *)(const void *)(x + (size_t)4 * i));
}

INLINE __m512 float_at(const char *x, uint32_t i)
{
    return _mm512_set1_ps(*(const float *)(const void *)(x + (size_t)4 * i));
}

/* Zen 4's own prefetchers are as fast as memory if no software prefetches interfere and codes are
 * read in a short time. Prefetches into L1 disturb these prefetchers. Intel's CPUs with AMX have an
 * L2 cache of 2 MB, and prefetches into it are at least as fast as into L1. Measurements:
 * bench/results/matmul.md. */
INLINE quire_prefetch ahead_of(quire_matmul_type type, uint32_t n, const quire_matmul_panel *p)
{
    if (!p->is_first) {
        return QUIRE_PREFETCH_NONE;
    }
    if (!quire_cpu_get()->prefetch_to_l2) {
        return QUIRE_PREFETCH_L1;
    }
    return quire_cpu_get()->reads_ahead && (n == 1 || type == QUIRE_MATMUL_Q8_0)
               ? QUIRE_PREFETCH_NONE
               : QUIRE_PREFETCH_L2;
}

INLINE void prefetch(const unsigned char *at, size_t bytes, quire_prefetch to)
{
    if (to != QUIRE_PREFETCH_NONE) {
        quire_prefetch_lines(at + AHEAD_BYTES,
                             (bytes + QUIRE_PREFETCH_LINE - 1) / QUIRE_PREFETCH_LINE, to);
    }
}

INLINE void y_store(uint32_t n, const quire_matmul_panel *p, __m512 y[ROWS][SIDES])
{
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        _mm512_storeu_ps(p->y + r * p->y_stride, y[r][0]);
        _mm512_storeu_ps(p->y + r * p->y_stride + REG / sizeof(float), y[r][1]);
    }
}

/* One function for each type and number of rows: of the including file's panel_rows(). */
#define PANEL_FN(type, n)                                                                          \
    static void panel_##type##_##n(const quire_matmul_panel *p)                                    \
    {                                                                                              \
        panel_rows(QUIRE_MATMUL_##type, n, p);                                                     \
    }
#define PANEL_FNS(type)                                                                            \
    PANEL_FN(type, 1)                                                                              \
    PANEL_FN(type, 2)                                                                              \
    PANEL_FN(type, 3)                                                                              \
    PANEL_FN(type, 4)                                                                              \
    PANEL_FN(type, 5)                                                                              \
    PANEL_FN(type, 6)                                                                              \
    PANEL_FN(type, 7)                                                                              \
    PANEL_FN(type, 8)
#define PANEL_LIST(type)                                                                           \
    [QUIRE_MATMUL_##type] = { panel_##type##_1, panel_##type##_2, panel_##type##_3,                \
                              panel_##type##_4, panel_##type##_5, panel_##type##_6,                \
                              panel_##type##_7, panel_##type##_8 }

#endif /* QUIRE_MATMUL_AVX512_ROWS_H */
