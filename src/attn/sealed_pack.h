/* sealed_pack.h - the integers that kernels of sealed formats multiply with, in plain C (kernels.h
 * has the scheme).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_SEALED_PACK_H
#define QUIRE_ATTN_SEALED_PACK_H

#include "attn/kernels.h"
#include "codec/half.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* n[i] of one query row; returns s. */
static inline float quire_sealed_pack_q(uint32_t d, float scale, const float *q, int8_t *n)
{
    uint32_t max_bits = 0;
    float max;
    float inverse;

    memset(n, 0, d);
    for (uint32_t i = 0; i < d; i++) {
        uint32_t magnitude = quire_f32_bits(scale * q[i]) & 0x7fffffffu;

        max_bits = magnitude > max_bits ? magnitude : max_bits;
    }
    if (max_bits >= QUIRE_F32_INF_BITS) {
        return NAN;
    }
    max = quire_f32_from_bits(max_bits);
    if (max < QUIRE_ATTN_Q8_TINY) {
        return 0.0f;
    }
    inverse = QUIRE_ATTN_SEALED_Q_MAX / max;
    for (uint32_t i = 0; i < d; i++) {
        n[i] = (int8_t)lrintf(scale * q[i] * inverse);
    }
    return max / QUIRE_ATTN_SEALED_Q_MAX;
}

/* n[0..63] of one row of P over the scales at the head of a V tile; returns u. No encoder writes a
 * negative scale: one that is seen counts as damage, like NaN. */
static inline float quire_sealed_pack_p(const float *p, const void *v_tile, uint32_t slot_begin,
                                        uint32_t slot_end, uint8_t *n)
{
    const uint16_t *v_scale = v_tile;
    float w[QUIRE_TILE_TOKENS] = { 0 };
    uint32_t max_bits = 0;
    float max;
    float inverse;

    memset(n, 0, QUIRE_TILE_TOKENS);
    for (uint32_t t = slot_begin; t < slot_end; t++) {
        uint32_t bits;

        w[t] = p[t] == 0.0f ? 0.0f : p[t] * quire_f16_to_f32(v_scale[t]);
        bits = quire_f32_bits(w[t]); /* a sign makes it larger than any number */
        max_bits = bits > max_bits ? bits : max_bits;
    }
    if (max_bits >= QUIRE_F32_INF_BITS) {
        return NAN;
    }
    max = quire_f32_from_bits(max_bits);
    if (max < QUIRE_ATTN_Q8_TINY) {
        return 0.0f;
    }
    inverse = QUIRE_ATTN_SEALED_P_MAX / max;
    for (uint32_t t = 0; t < QUIRE_TILE_TOKENS; t++) {
        n[t] = (uint8_t)lrintf(w[t] * inverse);
    }
    return max / QUIRE_ATTN_SEALED_P_MAX;
}

#endif /* QUIRE_ATTN_SEALED_PACK_H */
