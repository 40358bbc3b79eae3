/* kernels_avx2_float.c - f32, f16 and bf16 tiles for AVX2: vector/kernels_vector_float_body.h.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/avx2/kernels_avx2.h"

#define TILE            QUIRE_TILE_TOKENS
#define LINE_BYTES      64u
#define VECTOR(name)    quire_avx2_##name
#define VECTOR_INLINE   QUIRE_AVX2_INLINE
#define VECTOR_LANES    8u
#define VECTOR_ROWS_MAX QUIRE_AVX2_ROWS_MAX
#define VECTOR_REGS_MAX 8u

typedef __m256 vector;

QUIRE_AVX2_INLINE vector vector_load(const float *at)
{
    return _mm256_load_ps(at);
}

QUIRE_AVX2_INLINE void vector_store(float *at, vector x)
{
    _mm256_store_ps(at, x);
}

QUIRE_AVX2_INLINE vector vector_zero(void)
{
    return _mm256_setzero_ps();
}

QUIRE_AVX2_INLINE vector vector_scale(vector x, const float *by)
{
    return _mm256_mul_ps(x, _mm256_broadcast_ss(by));
}

/* 8 elements of one plane. */
QUIRE_AVX2_INLINE vector widen(quire_format format, const char *at, uint32_t plane)
{
    __m256i x;

    if (format == QUIRE_FORMAT_F32) {
        return _mm256_loadu_ps((const float *)(const void *)at);
    }
    if (format == QUIRE_FORMAT_F16) {
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
    }
    x = _mm256_loadu_si256((const __m256i *)(const void *)at);
    return _mm256_castsi256_ps(plane == 0
                                   ? _mm256_slli_epi32(x, 16)
                                   : _mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000u)));
}

/* acc[n][regs] += a line's elements times the rows' weights, which are `stride` floats apart. The
 * line stays in registers, and weights are broadcast one after the other. */
QUIRE_AVX2_INLINE void add_line(quire_format format, uint32_t n, uint32_t regs, const char *line,
                                uint32_t plane, const float *weights, size_t stride,
                                vector acc[][VECTOR_REGS_MAX])
{
    const size_t unit = format == QUIRE_FORMAT_F16 ? 2 : 4;
    vector x[VECTOR_REGS_MAX];

    for (uint32_t i = 0; i < regs; i++) {
        x[i] = widen(format, line + VECTOR_LANES * unit * i, plane);
    }
    for (uint32_t r = 0; r < n; r++) {
        const vector weight = _mm256_broadcast_ss(weights + r * stride);

        for (uint32_t i = 0; i < regs; i++) {
            acc[r][i] = _mm256_fmadd_ps(x[i], weight, acc[r][i]);
        }
    }
}

/* Rows of the next block when `left` are to do. */
QUIRE_AVX2_INLINE uint32_t float_rows(uint32_t left)
{
    static const uint8_t rows[] = { 0, 1, 2, 3, 4, 2, 6, 4, 4 };

    return left < sizeof rows ? rows[left] : VECTOR_ROWS_MAX;
}

/* As many registers of the tile as fit beside the sums. */
#define FLOAT_BLOCKS(n, fn, format, args, row, ahead)                                              \
    switch (n) {                                                                                   \
    case 1:                                                                                        \
        fn(format, 1, 8, args, row, ahead);                                                        \
        break;                                                                                     \
    case 2:                                                                                        \
        fn(format, 2, 4, args, row, ahead);                                                        \
        break;                                                                                     \
    case 3:                                                                                        \
        fn(format, 3, 4, args, row, ahead);                                                        \
        break;                                                                                     \
    case 4:                                                                                        \
        fn(format, 4, 2, args, row, ahead);                                                        \
        break;                                                                                     \
    default:                                                                                       \
        fn(format, 6, 2, args, row, ahead);                                                        \
        break;                                                                                     \
    }

#include "attn/vector/kernels_vector_float_body.h"
