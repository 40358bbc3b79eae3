/* histogram.h - counts of values in fixed buckets, as Prometheus wants them, with percentiles.
 *
 * Buckets are upper bounds, ascending; values above the last go to one more. Not synchronised.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_HISTOGRAM_H
#define QUIRE_BASE_HISTOGRAM_H

#include <stdint.h>

#define QUIRE_HISTOGRAM_BUCKETS_MAX 24u

typedef struct quire_histogram {
    const double *bounds; /* [n_bounds], borrowed, ascending */
    uint32_t n_bounds;    /* <= QUIRE_HISTOGRAM_BUCKETS_MAX */
    uint64_t counts[QUIRE_HISTOGRAM_BUCKETS_MAX + 1];
    uint64_t n;
    double sum;
} quire_histogram;

void quire_histogram_init(quire_histogram *histogram, const double *bounds, uint32_t n_bounds);
void quire_histogram_add(quire_histogram *histogram, double value);

/* The value below which a share q (0..1) lies, interpolated inside its bucket; 0 when empty, the
 * last bound when it lies beyond. */
double quire_histogram_quantile(const quire_histogram *histogram, double q);

#endif /* QUIRE_BASE_HISTOGRAM_H */
