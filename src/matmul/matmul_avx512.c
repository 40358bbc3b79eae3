/* matmul_avx512.c - the matrix products with AVX-512 VNNI.
 *
 * A register of codes holds 4 inputs of 16 outputs, and vpdpbusd multiplies it with 4 inputs of one
 * row, broadcast from packed x, into that row's 16 sums: 64 products an instruction, two of which
 * issue per cycle on Zen 5. A tile of 12 rows keeps 12 sums of integers and 12 of floats in
 * registers and reads each code once.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/matmul_kernels.h"

#include "base/cpu.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
/* Accumulators stay in registers only where the loops over them are unrolled. */
#define UNROLL _Pragma("GCC unroll 32")

enum {
    ROWS = QUIRE_MATMUL_TILE_ROWS,
    QUADS = QUIRE_MATMUL_BLOCK / 4,
    AHEAD_BYTES = 4096 /* the CPU's own prefetchers stop at the end of a page */
};

/* ---- x ---- */

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
    const __m128i four =
        _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    const int32_t sum = _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
    _Alignas(32) int32_t quads[QUADS];

    _mm256_store_si256((__m256i *)(void *)quads, n);
    UNROLL
    for (uint32_t k = 0; k < QUADS; k++) {
        to[k * n_rows] = quads[k];
    }
    to[QUADS * n_rows] = -128 * sum;
    *(float *)(void *)&to[(QUADS + 1) * n_rows] = is_some ? max / 127.0f : 0.0f;
}

static void row_pack(const float *row, uint32_t n_in, uint32_t n_rows, void *at)
{
    int32_t *to = at;

    for (uint32_t i = 0; i < n_in; i += QUIRE_MATMUL_BLOCK) {
        block_pack(row + i, n_rows, to);
        to += n_rows * (QUIRE_MATMUL_BLOCK_BYTES / 4);
    }
}

/* ---- products ---- */

/* acc plus codes times one row's quad. As assembly because gcc 12 copies and spills accumulators
 * around the intrinsic. */
INLINE __m512i dot(__m512i acc, __m512i codes, const char *quad)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(acc)
            : "v"(codes), "m"(*(const int32_t *)(const void *)quad));
    return acc;
}

/* The sums of n rows over a block of Q8_0. */
INLINE void sums_q8_0(uint32_t n, const unsigned char *codes, const char *x, __m512i acc[ROWS])
{
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        acc[r] = _mm512_set1_epi32(*(const int32_t *)(const void *)(x + 4 * (QUADS * n + r)));
    }
    UNROLL
    for (uint32_t k = 0; k < QUADS; k++) {
        const __m512i c = _mm512_load_si512(codes + (size_t)64 * k);

        UNROLL
        for (uint32_t r = 0; r < n; r++) {
            acc[r] = dot(acc[r], c, x + 4 * (k * n + r));
        }
    }
}

/* The same of Q4_0. Packed x has -128 sum(n), of which -8 sum(n) is a 16th. */
INLINE void sums_q4_0(uint32_t n, const unsigned char *codes, const char *x, __m512i acc[ROWS])
{
    const __m512i nibble = _mm512_set1_epi8(15);

    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        acc[r] = _mm512_srai_epi32(
            _mm512_set1_epi32(*(const int32_t *)(const void *)(x + 4 * (QUADS * n + r))), 4);
    }
    UNROLL
    for (uint32_t k = 0; k < QUADS / 2; k++) {
        const __m512i c = _mm512_load_si512(codes + (size_t)64 * k);
        const __m512i low = _mm512_and_si512(c, nibble);
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(c, 4), nibble);

        UNROLL
        for (uint32_t r = 0; r < n; r++) {
            acc[r] = dot(acc[r], low, x + 4 * (k * n + r));
        }
        UNROLL
        for (uint32_t r = 0; r < n; r++) {
            acc[r] = dot(acc[r], high, x + 4 * ((k + QUADS / 2) * n + r));
        }
    }
}

INLINE void prefetch(const unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *)at + i, _MM_HINT_T0);
    }
}

INLINE void panel_rows(quire_matmul_type type, uint32_t n, const quire_matmul_panel *p)
{
    const uint32_t n_blocks = p->weight->n_in / QUIRE_MATMUL_BLOCK;
    const size_t block_bytes = (size_t)QUIRE_MATMUL_PANEL * (type == QUIRE_MATMUL_Q8_0 ? 32u : 16u);
    const unsigned char *codes = p->at + quire_matmul_scales_bytes(p->weight->n_in);
    const unsigned char *scales = p->at;
    const char *x = p->tile;
    const bool is_first = p->is_first;
    __m512 y[ROWS];

    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        y[r] = _mm512_setzero_ps();
    }
    for (uint32_t b = 0; b < n_blocks; b++) {
        __m512i acc[ROWS];
        __m512 scale;

        if (is_first) {
            prefetch(codes + AHEAD_BYTES, block_bytes);
        }
        if (type == QUIRE_MATMUL_Q8_0) {
            sums_q8_0(n, codes, x, acc);
        } else {
            sums_q4_0(n, codes, x, acc);
        }
        scale = _mm512_cvtph_ps(_mm256_load_si256((const void *)scales));
        UNROLL
        for (uint32_t r = 0; r < n; r++) {
            const __m512 d =
                _mm512_set1_ps(*(const float *)(const void *)(x + 4 * ((QUADS + 1) * n + r)));

            y[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r]), _mm512_mul_ps(scale, d), y[r]);
        }
        codes += block_bytes;
        scales += QUIRE_MATMUL_PANEL * sizeof(uint16_t);
        x += (size_t)n * QUIRE_MATMUL_BLOCK_BYTES;
    }
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        _mm512_storeu_ps(p->y + r * p->y_stride, y[r]);
    }
}

/* One function for each type and number of rows. */
#define PANEL_FN(name, type, n)                                                                    \
    static void name##_##n(const quire_matmul_panel *p)                                            \
    {                                                                                              \
        panel_rows(type, n, p);                                                                    \
    }
#define PANEL_FNS(name, type)                                                                      \
    PANEL_FN(name, type, 1)                                                                        \
    PANEL_FN(name, type, 2)                                                                        \
    PANEL_FN(name, type, 3)                                                                        \
    PANEL_FN(name, type, 4)                                                                        \
    PANEL_FN(name, type, 5)                                                                        \
    PANEL_FN(name, type, 6)                                                                        \
    PANEL_FN(name, type, 7)                                                                        \
    PANEL_FN(name, type, 8)                                                                        \
    PANEL_FN(name, type, 9)                                                                        \
    PANEL_FN(name, type, 10)                                                                       \
    PANEL_FN(name, type, 11)                                                                       \
    PANEL_FN(name, type, 12)
#define PANEL_LIST(name)                                                                           \
    {                                                                                              \
        name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8, name##_9,  \
            name##_10, name##_11, name##_12                                                        \
    }

PANEL_FNS(panel_q8_0, QUIRE_MATMUL_Q8_0)
PANEL_FNS(panel_q4_0, QUIRE_MATMUL_Q4_0)

static void panel_run(const quire_matmul_panel *p)
{
    static void (*const runs[][ROWS])(const quire_matmul_panel *) = {
        [QUIRE_MATMUL_Q8_0] = PANEL_LIST(panel_q8_0),
        [QUIRE_MATMUL_Q4_0] = PANEL_LIST(panel_q4_0),
    };

    runs[p->weight->type][p->n_rows - 1](p);
}

const quire_matmul_kernels *quire_matmul_kernels_avx512(void)
{
    static const quire_matmul_kernels kernels = { "avx512+vnni", row_pack, panel_run };

    return quire_cpu_get()->has_avx512_vnni ? &kernels : NULL;
}
