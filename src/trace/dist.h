/* dist.h - a distribution of whole numbers of any size, in constant memory.
 *
 * Buckets are spaced as in a floating-point number: one per value below 64, and 32 per doubling
 * above, so a quantile is off by at most 1.6 %. Least, most, sum and count are exact.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_DIST_H
#define QUIRE_TRACE_DIST_H

#include <stdint.h>

#define QUIRE_DIST_EXACT   64u /* values below this have a bucket of their own */
#define QUIRE_DIST_STEPS   32u /* buckets per doubling above */
#define QUIRE_DIST_BUCKETS (QUIRE_DIST_EXACT + 58u * QUIRE_DIST_STEPS)

typedef struct quire_dist {
    uint64_t n; /* sum of the weights */
    uint64_t min, max;
    double sum;
    uint64_t counts[QUIRE_DIST_BUCKETS];
} quire_dist; /* all zero = empty */

void quire_dist_add(quire_dist *dist, uint64_t value);
/* Add the value `weight` times. */
void quire_dist_add_n(quire_dist *dist, uint64_t value, uint64_t weight);

/* The value that a share q (0..1) does not exceed; 0 when empty. */
uint64_t quire_dist_quantile(const quire_dist *dist, double q);
double quire_dist_mean(const quire_dist *dist); /* 0 when empty */

/* Bars for a plot: [low, high) and the number of values in it. */
typedef struct quire_dist_bar {
    uint64_t low, high;
    uint64_t n;
} quire_dist_bar;

/* At most max bars that cover least to most: one value per bar if possible, else several bars per
 * doubling. Returns the number of bars. */
uint32_t quire_dist_bars(const quire_dist *dist, quire_dist_bar *bars, uint32_t max);

#endif /* QUIRE_TRACE_DIST_H */
