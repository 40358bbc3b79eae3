/* cost_fit.h - what every format costs a side of a layer, from measurements of some formats.
 *
 * A side's divergence grows with the mean squared error that its format makes, which is known:
 * relative to the variance it is the same for all layers, because rotation makes the values about
 * normal. So a side has one sensitivity, best measured in a coarse format, where it stands out of
 * the noise, and finer formats follow by the ratio of the errors (docs/calibrate.md has the
 * comparison with measuring them all).
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_COST_FIT_H
#define QUIRE_CLI_COST_FIT_H

#include <stdbool.h>
#include <stdint.h>

#include "quire/codec.h"

/* Divergence that one format in one side adds, by measurement. */
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

/* Costs of q8, q6, q5, q4 and q3; other entries of cost stay as they are. Measurements that do not
 * reach two standard errors are replaced by what coarser ones imply; the coarsest counts for at
 * least one standard error, since less cannot be told from noise. Costs never fall with fewer bits.
 * At least one format must have been measured, and what was is finite. All arrays:
 * [QUIRE_FORMAT_COUNT]. */
void quire_cost_fit(const quire_cost_sample *samples, const double *errors, double *cost);

#endif /* QUIRE_CLI_COST_FIT_H */
