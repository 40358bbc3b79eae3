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

/* How many of n gradients differ from the central difference by more than the tolerance, relative
 * to 1 + |gradient|; the first is printed. Every stride-th element is looked at. */
static inline size_t train_wrong_gradients(const char *name, train_value_fn *value, void *ctx,
                                           double *at, const double *gradient, size_t n,
                                           size_t stride)
{
    size_t n_wrong = 0;

    for (size_t i = 0; i < n; i += stride) {
        double was = at[i], above, below, slope;

        at[i] = was + TRAIN_STEP;
        above = value(ctx);
        at[i] = was - TRAIN_STEP;
        below = value(ctx);
        at[i] = was;
        slope = (above - below) / (2 * TRAIN_STEP);
        if (!(fabs(slope - gradient[i]) <= TRAIN_TOLERANCE * (1 + fabs(slope)))) {
            if (n_wrong++ == 0) {
                (void)printf("%s[%zu]: gradient %.12g, finite difference %.12g\n", name, i,
                             gradient[i], slope);
            }
        }
    }
    return n_wrong;
}

#endif /* QUIRE_TESTS_TRAIN_KIT_H */
