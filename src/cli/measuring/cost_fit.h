/* cost_fit.h - costs of all formats in a side of a layer, from measurements of some formats.
 *
 * A side's divergence grows with the mean squared error of its format. Relative to the variance,
 * this error is known and equal for all layers, because rotation makes the values nearly normal. So
 * a side has one sensitivity. A coarse format measures the sensitivity best, because its cost
 * stands out of the noise. Costs of finer formats follow by the ratio of the errors
 * (bench/results/calibrate.md compares both ways).
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_COST_FIT_H
#define QUIRE_CLI_COST_FIT_H

#include <stdbool.h>
#include <stdint.h>

#include "quire/codec.h"

/* The measured divergence that one format in one side adds. */
typedef struct quire_cost_sample {
    bool is_measured;
    double mean;    /* may be negative: noise */
    double std_err; /* of the mean */
} quire_cost_sample;

/* Whether a diverges more than b, by more than both standard errors together. */
bool quire_cost_is_behind(quire_cost_sample a, quire_cost_sample b);

/* Mean squared error of a format for normal values, relative to their variance: encodes a tile of
 * them. d: a valid head size. Errors: QUIRE_NOMEM. */
int quire_format_error(quire_format format, quire_side side, uint32_t d, double *out);

/* Draw the measurements of one format in the same side of all layers towards their mean, by the
 * share of their spread that is noise (empirical Bayes): choosing the best of many noisy figures
 * would otherwise mostly choose noise. Standard errors become those of the results. */
void quire_cost_shrink(quire_cost_sample *samples, uint32_t n);

/* Costs of q8, q6, q5, q4 and q3; other entries of cost stay as they are. A measurement below two
 * standard errors is replaced by the value that coarser formats imply. The coarsest format counts
 * for at least one standard error, the limit of the noise. Costs never fall with fewer bits. At
 * least one format must be measured, and measurements must be finite. All arrays:
 * [QUIRE_FORMAT_COUNT]. */
void quire_cost_fit(const quire_cost_sample *samples, const double *errors, double *cost);

#endif /* QUIRE_CLI_COST_FIT_H */
