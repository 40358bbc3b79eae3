/* bf16.h - parameters that are numbers of bf16: the upper half of a float.
 *
 * A step of AdamW is often smaller than the distance of two such numbers, so rounding to the
 * nearest would drop it. Stochastic rounding takes the upper neighbour with a probability that is
 * the distance from the lower one: the expected value is exact. Source: Gupta et al., "Deep
 * learning with limited numerical precision", ICML 2015.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_BF16_H
#define QUIRE_TRAIN_BF16_H

#include <stddef.h>
#include <stdint.h>

/* Each x[n] to the nearest number, of two as near to the even one. Infinite numbers and NaN stay.
 */
void quire_bf16_round(float *x, size_t n);

/* Each x[n] to a neighbour by chance. The chance of x[i] depends on seed and first + i alone, so
 * that an array can be rounded in parts. */
void quire_bf16_round_by_chance(float *x, size_t n, uint64_t seed, uint64_t first);

#endif /* QUIRE_TRAIN_BF16_H */
