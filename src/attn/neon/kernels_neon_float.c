/* kernels_neon_float.c - f32, f16 and bf16 tiles for NEON: vector/kernels_vector_float_body.h.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/neon/kernels_neon.h"

#define TILE            QUIRE_TILE_TOKENS
#define LINE_BYTES      QUIRE_NEON_LINE
#define VECTOR(name)    quire_neon_##name
#define VECTOR_INLINE   QUIRE_NEON_INLINE
#define VECTOR_LANES    4u
#define VECTOR_ROWS_MAX QUIRE_NEON_ROWS_MAX
#define VECTOR_REGS_MAX 16u

typedef float32x4_t vector;

QUIRE_NEON_INLINE vector vector_load(const float *at)
{
    return vld1q_f32(at);
}

QUIRE_NEON_INLINE void vector_store(float *at, vector x)
{
    vst1q_f32(at, x);
}

QUIRE_NEON_INLINE vector vector_zero(void)
{
    return vdupq_n_f32(0.0f);
}

QUIRE_NEON_INLINE vector vector_scale(vector x, const float *by)
{
    return vmulq_n_f32(x, *by);
}

/* 4 elements of one plane. */
QUIRE_NEON_INLINE vector widen(quire_format format, const char *at, uint32_t plane)
{
    uint32x4_t x;

    if (format == QUIRE_FORMAT_F32) {
        return vld1q_f32((const float *)(const void *)at);
    }
    if (format == QUIRE_FORMAT_F16) {
        return quire_neon_load_f16((const uint16_t *)(const void *)at);
    }
    x = vld1q_u32((const uint32_t *)(const void *)at);
    return vreinterpretq_f32_u32(plane == 0 ? vshlq_n_u32(x, 16)
                                            : vandq_u32(x, vdupq_n_u32(0xffff0000u)));
}

/* acc[n][regs] += a line's elements times the rows' weights, which are `stride` floats apart. The
 * weights stay in registers, and the line is loaded one register after the other. */
QUIRE_NEON_INLINE void add_line(quire_format format, uint32_t n, uint32_t regs, const char *line,
                                uint32_t plane, const float *weights, size_t stride,
                                vector acc[][VECTOR_REGS_MAX])
{
    const size_t unit = format == QUIRE_FORMAT_F16 ? 2 : 4;
    vector weight[VECTOR_ROWS_MAX];

    for (uint32_t r = 0; r < n; r++) {
        weight[r] = vld1q_dup_f32(weights + r * stride);
    }
    for (uint32_t i = 0; i < regs; i++) {
        const vector x = widen(format, line + VECTOR_LANES * unit * i, plane);

        for (uint32_t r = 0; r < n; r++) {
            acc[r][i] = vfmaq_f32(acc[r][i], x, weight[r]);
        }
    }
}

/* Rows of the next block when `left` are to do. */
QUIRE_NEON_INLINE uint32_t float_rows(uint32_t left)
{
    return quire_neon_block_rows(left);
}

/* As many registers of the tile as make 16 sums, 12 for 3 rows. */
#define FLOAT_BLOCKS(n, fn, format, args, row, ahead)                                              \
    switch (n) {                                                                                   \
    case 1:                                                                                        \
        fn(format, 1, 16, args, row, ahead);                                                       \
        break;                                                                                     \
    case 2:                                                                                        \
        fn(format, 2, 8, args, row, ahead);                                                        \
        break;                                                                                     \
    case 3:                                                                                        \
        fn(format, 3, 4, args, row, ahead);                                                        \
        break;                                                                                     \
    default:                                                                                       \
        fn(format, 4, 4, args, row, ahead);                                                        \
        break;                                                                                     \
    }

#include "attn/vector/kernels_vector_float_body.h"
