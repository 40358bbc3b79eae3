/* rng.h - a small deterministic generator (splitmix64) for tests, benchmarks and synthetic data.
 *
 * Not for secrets. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
 * OOPSLA 2014.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_RNG_H
#define QUIRE_BASE_RNG_H

#include <math.h>
#include <stdint.h>

typedef struct quire_rng {
    uint64_t state; /* any value is a fine seed */
} quire_rng;

static inline uint64_t quire_rng_next(quire_rng *rng)
{
    uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* 0 <= result < n, n > 0; the bias is below n / 2^32 and irrelevant here. */
static inline uint32_t quire_rng_below(quire_rng *rng, uint32_t n)
{
    return (uint32_t)(((quire_rng_next(rng) >> 32) * n) >> 32);
}

/* 0 <= result < 1. */
static inline double quire_rng_unit(quire_rng *rng)
{
    return (double)(quire_rng_next(rng) >> 11) * 0x1.0p-53;
}

/* Standard normal (Box-Muller). */
static inline double quire_rng_normal(quire_rng *rng)
{
    double u = 1.0 - quire_rng_unit(rng);

    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * quire_rng_unit(rng));
}

#endif /* QUIRE_BASE_RNG_H */
