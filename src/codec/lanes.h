/* lanes.h - sums over a row of floats that come out the same on every ISA: written for the
 * vectoriser, added in one order, products not fused (-ffp-contract=off).
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CODEC_LANES_H
#define QUIRE_CODEC_LANES_H

#include <stdint.h>
#include <string.h>

#define LANES 16u

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
