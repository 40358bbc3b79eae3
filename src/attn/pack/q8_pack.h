/* q8_pack.h - the integers that q8 kernels multiply with, in plain C (kernels.h has the scheme).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_Q8_PACK_H
#define QUIRE_ATTN_Q8_PACK_H

#include "attn/pack/int_pack.h"

#include <string.h>

/* n[i] of one query row; returns s. */
static inline float quire_q8_pack_q(uint32_t d, float scale, const float *q, int16_t *n)
{
    float inverse;
    float unit = quire_pack_unit(quire_pack_q_max_bits(d, scale, q), QUIRE_ATTN_Q8_Q_MAX, &inverse);

    memset(n, 0, d * sizeof(*n));
    for (uint32_t i = 0; inverse != 0.0f && i < d; i++) {
        n[i] = (int16_t)lrintf(scale * q[i] * inverse);
    }
    return unit;
}

/* n[0..63] of one row of P over the scales at the head of a V tile; returns u. */
static inline float quire_q8_pack_p(const float *p, const void *v_tile, uint32_t slot_begin,
                                    uint32_t slot_end, int16_t *n)
{
    float w[QUIRE_TILE_TOKENS];
    uint32_t max_bits =
        quire_pack_weights(p, v_tile, slot_begin, slot_end, QUIRE_PACK_MAGNITUDE, w);
    float inverse;
    float unit = quire_pack_unit(max_bits, QUIRE_ATTN_Q8_P_MAX, &inverse);

    memset(n, 0, QUIRE_TILE_TOKENS * sizeof(*n));
    for (uint32_t t = 0; inverse != 0.0f && t < QUIRE_TILE_TOKENS; t++) {
        n[t] = (int16_t)lrintf(w[t] * inverse);
    }
    return unit;
}

#endif /* QUIRE_ATTN_Q8_PACK_H */
