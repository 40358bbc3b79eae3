/* bf16.c - see bf16.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/bf16.h"

#include "base/rng.h"

#include <string.h>

#define LOWER    0xffffu     /* bits that bf16 does not have */
#define EXPONENT 0x7f800000u /* all set: infinite, or NaN */

/* The number plus some units of the lower bits, without them. A carry into the exponent is right:
 * the next number is the next power of two. */
static float add_and_cut(float x, uint32_t units)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    if ((bits & EXPONENT) != EXPONENT) {
        bits = (bits + units) & ~LOWER;
        memcpy(&x, &bits, sizeof(x));
    }
    return x;
}

void quire_bf16_round(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, &x[i], sizeof(bits));
        x[i] = add_and_cut(x[i], LOWER / 2 + (bits >> 16 & 1u));
    }
}

void quire_bf16_round_by_chance(float *x, size_t n, uint64_t seed, uint64_t first)
{
    for (size_t i = 0; i < n; i++) {
        quire_rng rng = { seed + (first + i) * 0x9e3779b97f4a7c15u };

        x[i] = add_and_cut(x[i], (uint32_t)(quire_rng_next(&rng) >> 48));
    }
}
