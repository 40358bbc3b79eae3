/* kernels_neon_sealed_planes_body.h - from the code planes of a sealed tile to levels in registers.
 *
 * K and V tiles differ only in the values side by side: 64 tokens, with sums over dimensions, or d
 * dimensions, with sums over tokens. Both are lines of lanes here: a register of codes has 4 lanes
 * with 4 neighbouring terms each (a group), and two groups (a unit) share the bytes of a plane of
 * 4 bits. Levels come out as signed bytes.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_NEON_SEALED_PLANES_H
#define QUIRE_ATTN_KERNELS_NEON_SEALED_PLANES_H

#include "attn/neon/kernels_neon.h"
#include "codec/sealed.h"

/* The planes of a tile from some lane on. */
typedef struct quire_neon_planes {
    const uint8_t *low;
    const uint8_t *high;
    size_t line_bytes;
    ptrdiff_t ahead; /* distance of the line to prefetch, see quire_neon_ahead() */
    int8x16x4_t levels;
} quire_neon_planes;

QUIRE_NEON_INLINE quire_neon_planes quire_neon_planes_of(quire_format format, quire_side side,
                                                         uint32_t d, const void *tile)
{
    const uint8_t *bytes = tile;
    const int8_t *levels = quire_sealed_levels(format, side);
    quire_neon_planes x = { .low = bytes + quire_sealed_low_offset(format, side, d),
                            .high = bytes + quire_sealed_high_offset(format, side, d),
                            .line_bytes =
                                (size_t)4 * (side == QUIRE_SIDE_K ? QUIRE_TILE_TOKENS : d) };

    for (uint32_t i = 0; i < 4; i++) {
        x.levels.val[i] = vld1q_s8(levels + (size_t)16 * i);
    }
    return x;
}

/* Go on by some registers of lanes. */
QUIRE_NEON_INLINE void quire_neon_planes_move(quire_neon_planes *x, uint32_t regs)
{
    x->low += (size_t)16 * regs;
    x->high += (size_t)16 * regs;
}

/* Units after which the planes' bits are all used. */
QUIRE_NEON_INLINE uint32_t quire_neon_period(quire_format format)
{
    return format == QUIRE_FORMAT_Q4 ? 1 : format == QUIRE_FORMAT_Q6 ? 2 : 4;
}

QUIRE_NEON_INLINE uint8x16_t quire_neon_shift_right(uint8x16_t x, uint32_t bits)
{
    return bits == 0 ? x : vshlq_u8(x, vdupq_n_s8((int8_t) - (int32_t)bits));
}

/* Levels of codes that may have anything in the bits beyond their own. */
QUIRE_NEON_INLINE int8x16_t quire_neon_levels(quire_format format, const int8x16x4_t *levels,
                                              uint8x16_t codes)
{
    switch (format) {
    case QUIRE_FORMAT_Q6:
        return vqtbl4q_s8(*levels, vandq_u8(codes, vdupq_n_u8(0x3f)));
    case QUIRE_FORMAT_Q5:
        return vqtbl2q_s8((int8x16x2_t){ { levels->val[0], levels->val[1] } },
                          vandq_u8(codes, vdupq_n_u8(0x1f)));
    default: /* q3's levels are there twice */
        return vqtbl1q_s8(levels->val[0], vandq_u8(codes, vdupq_n_u8(0x0f)));
    }
}

/* 4 lanes of group `half` of a unit, u = m modulo the period. */
QUIRE_NEON_INLINE int8x16_t quire_neon_look_up(quire_format format, const quire_neon_planes *x,
                                               uint32_t u, uint32_t m, uint32_t half, uint32_t i)
{
    const uint8_t *low_at = x->low + (size_t)16 * i;
    const uint8_t *high_at = x->high + (size_t)16 * i;
    uint8x16_t low;
    uint8x16_t high;

    if (format == QUIRE_FORMAT_Q3) {
        low = vld1q_u8(low_at + u / 2 * x->line_bytes);
        low = quire_neon_shift_right(low, m % 2 * 4 + 2 * half);
        high = vld1q_u8(high_at + u / 4 * x->line_bytes);
        high = quire_neon_shift_right(high, 2 * m + half);
        return quire_neon_levels(format, &x->levels, vsliq_n_u8(low, high, 2));
    }
    low = vld1q_u8(low_at + u * x->line_bytes);
    low = quire_neon_shift_right(low, 4 * half);
    if (format == QUIRE_FORMAT_Q4) {
        return quire_neon_levels(format, &x->levels, low);
    }
    if (format == QUIRE_FORMAT_Q5) {
        high = vld1q_u8(high_at + u / 4 * x->line_bytes);
        high = quire_neon_shift_right(high, 2 * m + half);
    } else {
        high = vld1q_u8(high_at + u / 2 * x->line_bytes);
        high = quire_neon_shift_right(high, 4 * m + 2 * half);
    }
    return quire_neon_levels(format, &x->levels, vsliq_n_u8(low, high, 4));
}

/* The lines that a unit is the first to touch. */
QUIRE_NEON_INLINE void quire_neon_prefetch_unit(quire_format format, uint32_t regs,
                                                const quire_neon_planes *x, uint32_t u, uint32_t m)
{
    uint32_t low_units = format == QUIRE_FORMAT_Q3 ? 2 : 1;
    uint32_t high_units = quire_neon_period(format);

    for (uint32_t at = 0; at < 16 * regs; at += QUIRE_NEON_LINE) {
        if (m % low_units == 0) {
            quire_neon_prefetch(x->low + u / low_units * x->line_bytes + at, x->ahead);
        }
        if (format != QUIRE_FORMAT_Q4 && m == 0) {
            quire_neon_prefetch(x->high + u / high_units * x->line_bytes + at, x->ahead);
        }
    }
}

#endif /* QUIRE_ATTN_KERNELS_NEON_SEALED_PLANES_H */
