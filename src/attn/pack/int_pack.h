/* int_pack.h - the common part of packing queries and weights to integers, in plain C (kernels.h
 * has the schemes; q8_pack.h and sealed_pack.h the widths).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_INT_PACK_H
#define QUIRE_ATTN_INT_PACK_H

#include "attn/kernels.h"
#include "codec/half.h"

#include <math.h>
#include <stdint.h>

#define QUIRE_PACK_MAGNITUDE 0x7fffffffu

/* The largest |scale * q[i]| as f32 bits, so that NaN and Inf sort on top. */
static inline uint32_t quire_pack_q_max_bits(uint32_t d, float scale, const float *q)
{
    uint32_t max_bits = 0;

    for (uint32_t i = 0; i < d; i++) {
        uint32_t magnitude = quire_f32_bits(scale * q[i]) & QUIRE_PACK_MAGNITUDE;

        max_bits = magnitude > max_bits ? magnitude : max_bits;
    }
    return max_bits;
}

/* w[0..63] = P times the scales at the head of a V tile, 0 outside the slots; returns the largest
 * of their bits under mask (with the sign bit in it, a negative weight is larger than any
 * number). */
static inline uint32_t quire_pack_weights(const float *p, const void *v_tile, uint32_t slot_begin,
                                          uint32_t slot_end, uint32_t mask,
                                          float w[QUIRE_TILE_TOKENS])
{
    const uint16_t *v_scale = v_tile;
    uint32_t max_bits = 0;

    for (uint32_t t = 0; t < QUIRE_TILE_TOKENS; t++) {
        w[t] = 0.0f;
    }
    for (uint32_t t = slot_begin; t < slot_end; t++) {
        uint32_t bits;

        w[t] = p[t] == 0.0f ? 0.0f : p[t] * quire_f16_to_f32(v_scale[t]);
        bits = quire_f32_bits(w[t]) & mask;
        max_bits = bits > max_bits ? bits : max_bits;
    }
    return max_bits;
}

/* The value of the integer 1 when the largest value becomes top: NaN for damage, 0 for values next
 * to zero. *inverse is the factor of values, 0 in those cases (then all integers are 0). */
static inline float quire_pack_unit(uint32_t max_bits, float top, float *inverse)
{
    float max = quire_f32_from_bits(max_bits);

    *inverse = 0.0f;
    if (max_bits >= QUIRE_F32_INF_BITS) {
        return NAN;
    }
    if (max < QUIRE_ATTN_Q8_TINY) {
        return 0.0f;
    }
    *inverse = top / max;
    return max / top;
}

#endif /* QUIRE_ATTN_INT_PACK_H */
