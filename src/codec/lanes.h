/* lanes.h - sums and maxima of a row of floats, with the same bits on every ISA: the loops suit the
 * vectoriser, sums are added in one order, products are not fused (-ffp-contract=off).
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CODEC_LANES_H
#define QUIRE_CODEC_LANES_H

#include "codec/half.h"

#include <stdint.h>
#include <string.h>

#define LANES 16u

/* The largest magnitude as f32 bits, so that NaN and Inf sort on top. */
static inline uint32_t max_bits(const float *x, uint32_t d)
{
    uint32_t max = 0;

    for (uint32_t i = 0; i < d; i++) {
        uint32_t magnitude = quire_f32_bits(x[i]) & 0x7fffffffu;

        max = magnitude > max ? magnitude : max;
    }
    return max;
}

/* Lane l adds the products of dimensions l, l + LANES, l + 2 * LANES .. in order; then the upper
 * half of the lanes is added to the lower until one is left. d: a multiple of 8. */
static inline float dot(const float *a, const float *b, uint32_t d)
{
    typedef float half_lanes __attribute__((vector_size(LANES / 2 * sizeof(float))));
    half_lanes low = { 0 };
    half_lanes high = { 0 };
    half_lanes x;
    half_lanes y;

    for (uint32_t i = 0; i < d; i += LANES) {
        memcpy(&x, a + i, sizeof(x));
        memcpy(&y, b + i, sizeof(y));
        low += x * y;
        if (i + LANES / 2 < d) {
            memcpy(&x, a + i + LANES / 2, sizeof(x));
            memcpy(&y, b + i + LANES / 2, sizeof(y));
            high += x * y;
        }
    }
    low += high;
    return ((low[0] + low[4]) + (low[2] + low[6])) + ((low[1] + low[5]) + (low[3] + low[7]));
}

#endif /* QUIRE_CODEC_LANES_H */
