/* kernels_neon_float.c - f32, f16 and bf16 tiles, widened to f32 in registers.
 *
 * A tile is a sequence of lines: in K one per dimension with 64 tokens, in V one per token with d
 * dimensions. bf16 has two values of neighbouring lines in each 32 bits ("planes"): a shift and a
 * mask widen them.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/neon/kernels_neon.h"

#define TILE QUIRE_TILE_TOKENS

QUIRE_NEON_INLINE uint32_t planes_of(quire_format format)
{
    return format == QUIRE_FORMAT_BF16 ? 2 : 1;
}

/* Bytes of one element of a line, all its planes together. */
QUIRE_NEON_INLINE size_t unit_of(quire_format format)
{
    return format == QUIRE_FORMAT_F16 ? 2 : 4;
}

/* 4 elements of one plane. */
QUIRE_NEON_INLINE float32x4_t widen(quire_format format, const char *at, uint32_t plane)
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

/* ---- q . K ---- */

QUIRE_NEON_INLINE void qk_block(quire_format format, uint32_t n, uint32_t regs,
                                const quire_attn_qk *args, uint32_t row, uint32_t token,
                                ptrdiff_t ahead)
{
    const uint32_t planes = planes_of(format);
    const size_t unit = unit_of(format);
    const size_t stride = quire_neon_q_bytes(format, args->d) / sizeof(float);
    const float *q = (const float *)args->packed + row * stride;
    const char *k = (const char *)args->k_tile + token * unit;
    float *s = args->s + (size_t)row * TILE + token;
    float32x4_t acc[QUIRE_NEON_ROWS_MAX][16];

    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < regs; i++) {
            acc[r][i] = args->accumulate ? vld1q_f32(s + r * TILE + 4 * i) : vdupq_n_f32(0.0f);
        }
    }
    for (uint32_t c = 0; c < args->d; c += planes, k += TILE * unit) {
        for (uint32_t at = 0; at < regs * 4 * unit; at += QUIRE_NEON_LINE) {
            quire_neon_prefetch(k + at, ahead);
        }
        for (uint32_t plane = 0; plane < planes; plane++) {
            float32x4_t weight[QUIRE_NEON_ROWS_MAX];

            for (uint32_t r = 0; r < n; r++) {
                weight[r] = vld1q_dup_f32(q + r * stride + c + plane);
            }
            for (uint32_t i = 0; i < regs; i++) {
                float32x4_t x = widen(format, k + 4 * unit * i, plane);

                for (uint32_t r = 0; r < n; r++) {
                    acc[r][i] = vfmaq_f32(acc[r][i], x, weight[r]);
                }
            }
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < regs; i++) {
            vst1q_f32(s + r * TILE + 4 * i, acc[r][i]);
        }
    }
}

QUIRE_NEON_INLINE void qk_rows(quire_format format, uint32_t n, uint32_t regs,
                               const quire_attn_qk *args, uint32_t row, ptrdiff_t ahead)
{
    for (uint32_t token = 0; token < TILE; token += 4 * regs) {
        qk_block(format, n, regs, args, row, token, ahead);
    }
}

QUIRE_NEON_INLINE void qk_format(quire_format format, const quire_attn_qk *args)
{
    ptrdiff_t ahead = quire_neon_ahead(args->k_tile, args->next);
    uint32_t n;

    for (uint32_t row = 0; row < args->n_rows; row += n, ahead = 0) {
        n = quire_neon_block_rows(args->n_rows - row);
        switch (n) {
        case 1:
            qk_rows(format, 1, 16, args, row, ahead);
            break;
        case 2:
            qk_rows(format, 2, 8, args, row, ahead);
            break;
        case 3:
            qk_rows(format, 3, 4, args, row, ahead);
            break;
        default:
            qk_rows(format, 4, 4, args, row, ahead);
            break;
        }
    }
}

void quire_neon_qk_float(const quire_attn_qk *args)
{
    if (args->format == QUIRE_FORMAT_F32) {
        qk_format(QUIRE_FORMAT_F32, args);
    } else if (args->format == QUIRE_FORMAT_F16) {
        qk_format(QUIRE_FORMAT_F16, args);
    } else {
        qk_format(QUIRE_FORMAT_BF16, args);
    }
}

/* ---- P . V ---- */

QUIRE_NEON_INLINE void pv_block(quire_format format, uint32_t n, uint32_t regs,
                                const quire_attn_pv *args, uint32_t row, uint32_t dim,
                                ptrdiff_t ahead)
{
    const uint32_t planes = planes_of(format);
    const size_t unit = unit_of(format);
    const float *p = args->p + (size_t)row * TILE;
    float *o = args->o + row * args->o_stride + dim;
    uint32_t line = args->slot_begin / planes;
    const char *v = (const char *)args->v_tile + (line * (size_t)args->d + dim) * unit;
    float32x4_t acc[QUIRE_NEON_ROWS_MAX][16];

    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < regs; i++) {
            acc[r][i] =
                vmulq_n_f32(vld1q_f32(o + r * args->o_stride + 4 * i), args->rescale[row + r]);
        }
    }
    for (; line * planes < args->slot_end; line++, v += args->d * unit) {
        for (uint32_t at = 0; at < regs * 4 * unit; at += QUIRE_NEON_LINE) {
            quire_neon_prefetch(v + at, ahead);
        }
        for (uint32_t plane = 0; plane < planes; plane++) {
            uint32_t t = line * planes + plane;
            float32x4_t weight[QUIRE_NEON_ROWS_MAX];

            if (planes > 1 && (t < args->slot_begin || t >= args->slot_end)) {
                continue; /* the neighbour in a pair may be anything, NaN too */
            }
            for (uint32_t r = 0; r < n; r++) {
                weight[r] = vld1q_dup_f32(p + r * TILE + t);
            }
            for (uint32_t i = 0; i < regs; i++) {
                float32x4_t x = widen(format, v + 4 * unit * i, plane);

                for (uint32_t r = 0; r < n; r++) {
                    acc[r][i] = vfmaq_f32(acc[r][i], x, weight[r]);
                }
            }
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < regs; i++) {
            vst1q_f32(o + r * args->o_stride + 4 * i, acc[r][i]);
        }
    }
}

/* All dimensions, `regs` registers at a time, then what is left by halves. */
QUIRE_NEON_INLINE void pv_rows(quire_format format, uint32_t n, uint32_t regs,
                               const quire_attn_pv *args, uint32_t row, ptrdiff_t ahead)
{
    uint32_t dim = 0;

    for (; dim + 4 * regs <= args->d; dim += 4 * regs) {
        pv_block(format, n, regs, args, row, dim, ahead);
    }
    if (regs > 8 && dim + 32 <= args->d) {
        pv_block(format, n, 8, args, row, dim, ahead);
        dim += 32;
    }
    if (regs > 4 && dim + 16 <= args->d) {
        pv_block(format, n, 4, args, row, dim, ahead);
        dim += 16;
    }
    if (dim < args->d) {
        pv_block(format, n, 2, args, row, dim, ahead);
    }
}

QUIRE_NEON_INLINE void pv_format(quire_format format, const quire_attn_pv *args)
{
    ptrdiff_t ahead = quire_neon_ahead(args->v_tile, args->next);
    uint32_t n;

    for (uint32_t row = 0; row < args->n_rows; row += n, ahead = 0) {
        n = quire_neon_block_rows(args->n_rows - row);
        switch (n) {
        case 1:
            pv_rows(format, 1, 16, args, row, ahead);
            break;
        case 2:
            pv_rows(format, 2, 8, args, row, ahead);
            break;
        case 3:
            pv_rows(format, 3, 4, args, row, ahead);
            break;
        default:
            pv_rows(format, 4, 4, args, row, ahead);
            break;
        }
    }
}

void quire_neon_pv_float(const quire_attn_pv *args)
{
    if (args->format == QUIRE_FORMAT_F32) {
        pv_format(QUIRE_FORMAT_F32, args);
    } else if (args->format == QUIRE_FORMAT_F16) {
        pv_format(QUIRE_FORMAT_F16, args);
    } else {
        pv_format(QUIRE_FORMAT_BF16, args);
    }
}
