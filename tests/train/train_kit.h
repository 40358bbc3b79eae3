/* train_kit.h - gradients against central finite differences, for the tests of training.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_TRAIN_KIT_H
#define QUIRE_TESTS_TRAIN_KIT_H

#include "base/rng.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

/* A number that depends on values a test changes one at a time. */
typedef double train_value_fn(void *ctx);

/* The error of a central difference is O(step^2) from the third derivative plus O(1e-16 / step)
 * from rounding; both are near 1e-10 at this step. */
#define TRAIN_STEP      1e-5
#define TRAIN_TOLERANCE 1e-7

static inline void train_fill(quire_rng *rng, double *x, size_t n, double scale)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = scale * quire_rng_normal(rng);
    }
}

static inline double train_slope(train_value_fn *value, void *ctx, double *at, double step)
{
    double was = *at, above, below;

    *at = was + step;
    above = value(ctx);
    *at = was - step;
    below = value(ctx);
    *at = was;
    return (above - below) / (2 * step);
}

static inline bool train_is_near(double slope, double gradient)
{
    return fabs(slope - gradient) <= TRAIN_TOLERANCE * (1 + fabs(slope));
}

/* How many of n gradients differ from the central difference by more than the tolerance, relative
 * to 1 + |gradient|; the first is printed. Every stride-th element is looked at. Where a function
 * bends much, the difference of twice the step takes its error of O(step^2) away. */
static inline size_t train_wrong_gradients(const char *name, train_value_fn *value, void *ctx,
                                           double *at, const double *gradient, size_t n,
                                           size_t stride)
{
    size_t n_wrong = 0;

    for (size_t i = 0; i < n; i += stride) {
        double slope = train_slope(value, ctx, &at[i], TRAIN_STEP);

        if (!train_is_near(slope, gradient[i])) {
            slope = (4 * slope - train_slope(value, ctx, &at[i], 2 * TRAIN_STEP)) / 3;
        }
        if (!train_is_near(slope, gradient[i])) {
            if (n_wrong++ == 0) {
                (void)printf("%s[%zu]: gradient %.12g, finite difference %.12g\n", name, i,
                             gradient[i], slope);
            }
        }
    }
    return n_wrong;
}

#endif /* QUIRE_TESTS_TRAIN_KIT_H */
