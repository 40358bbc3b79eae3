/* retain_score.h - the score functions of the table in policy.c; for src/retain only. Each fills
 * scores[n_tokens]. Formulas and sources: docs/retention.md.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_RETAIN_SCORE_H
#define QUIRE_RETAIN_RETAIN_SCORE_H

#include "retain/policy.h"

/* Mean over rows of attention, plus gamma times its variance, averaged over `pool` neighbours. */
void quire_retain_score_entropy(const quire_retain_spec *spec, const quire_retain_lane *lane,
                                float *scores);
/* Mean over rows of attention, averaged over `pool` neighbours. */
void quire_retain_score_snap(const quire_retain_spec *spec, const quire_retain_lane *lane,
                             float *scores);
/* Minus the cosine between a key and the mean of all normalised keys. */
void quire_retain_score_keydiff(const quire_retain_spec *spec, const quire_retain_lane *lane,
                                float *scores);
/* The lane's worth. */
void quire_retain_score_worth(const quire_retain_spec *spec, const quire_retain_lane *lane,
                              float *scores);
void quire_retain_score_predicted(const quire_retain_spec *spec, const quire_retain_lane *lane,
                                  float *scores);
/* The attention that queries of the lane's mean and covariance pay on average, for normal ones,
 * softmax(m . k + k . C k / 2), averaged over heads, times the norm of V. */
void quire_retain_score_expected(const quire_retain_spec *spec, const quire_retain_lane *lane,
                                 float *scores);
/* The position. */
void quire_retain_score_last(const quire_retain_spec *spec, const quire_retain_lane *lane,
                             float *scores);
/* Minus the position with its bits reversed, so that the best n positions lie about evenly for any
 * n, and the best of fewer are among them. */
void quire_retain_score_stride(const quire_retain_spec *spec, const quire_retain_lane *lane,
                               float *scores);
/* A hash of seed, lane and position. */
void quire_retain_score_random(const quire_retain_spec *spec, const quire_retain_lane *lane,
                               float *scores);

#endif /* QUIRE_RETAIN_RETAIN_SCORE_H */
