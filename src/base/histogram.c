/* histogram.c - counts of values in fixed buckets.
 *
 * SPDX-License-Identifier: MIT */
#include "base/histogram.h"

#include "base/check.h"

void quire_histogram_init(quire_histogram *histogram, const double *bounds, uint32_t n_bounds)
{
    QUIRE_CHECK(n_bounds > 0 && n_bounds <= QUIRE_HISTOGRAM_BUCKETS_MAX);
    *histogram = (quire_histogram){ .bounds = bounds, .n_bounds = n_bounds };
}

void quire_histogram_add(quire_histogram *histogram, double value)
{
    uint32_t i = 0;

    while (i < histogram->n_bounds && value > histogram->bounds[i]) {
        i++;
    }
    histogram->counts[i]++;
    histogram->n++;
    histogram->sum += value;
}

double quire_histogram_quantile(const quire_histogram *histogram, double q)
{
    const double rank = q * (double)histogram->n;
    double below = 0.0;

    if (histogram->n == 0) {
        return 0.0;
    }
    for (uint32_t i = 0; i < histogram->n_bounds; i++) {
        const double n = (double)histogram->counts[i];

        if (n > 0.0 && below + n >= rank) {
            const double low = i > 0 ? histogram->bounds[i - 1] : 0.0;

            return low + (histogram->bounds[i] - low) * ((rank - below) / n);
        }
        below += n;
    }
    return histogram->bounds[histogram->n_bounds - 1];
}
