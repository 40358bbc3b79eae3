/* lane_score.h - scratch for the scores of lanes, and their steps that do not depend on the pages:
 * the queries of a probe, their attention, and the queries to come. Lanes of their own
 * (kept_lanes.h) and those in packed pages (engine/condensing.h) score by it; both read K and V
 * from their own pages.
 *
 * Thread: each has its own scratch.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_LANE_SCORE_H
#define QUIRE_RETAIN_LANE_SCORE_H

#include "retain/probe.h"

/* NULL: the policy does not need it. */
typedef struct quire_lane_scratch {
    float *keys;        /* [n_max][d] */
    float *attention;   /* [group][n_probe][n_max] at most */
    float *queries;     /* [group][n_probe][d] at most */
    float *query_mean;  /* [group][d] */
    float *query_cov;   /* [group][d][d] */
    float *value_norms; /* [n_max] */
    float *logits;      /* [n_max] */
    int32_t rows_at[QUIRE_RETAIN_PROBE_MAX];
} quire_lane_scratch;

/* For lanes of up to n_max tokens with `group` query heads, and keys of d floats. Errors:
 * QUIRE_NOMEM. Memory: quire_lane_scratch_fini(), on errors too. */
int quire_lane_scratch_init(quire_lane_scratch *scratch, const quire_retain_spec *spec,
                            uint32_t group, uint32_t d, uint32_t n_probe, size_t n_max);
void quire_lane_scratch_fini(quire_lane_scratch *scratch);

/* The last n queries of a text of n_text tokens: queries, [n_heads][n][d], and their positions,
 * rows_at, [n]. ring, [n_heads][n_ring][d]: position p is at p % n_ring. */
void quire_probe_read(const float *ring, uint32_t n_ring, uint32_t n_heads, uint32_t d,
                      uint32_t n_text, uint32_t n, float *queries, int32_t *rows_at);

/* Give a lane the attention of a probe, whose queries and rows_at are the scratch's, and add it to
 * the measure of policies that weigh layers. */
void quire_lane_scratch_attend(const quire_lane_scratch *scratch, const quire_retain_spec *spec,
                               const quire_retain_probe *probe, quire_retain_lane *lane,
                               quire_retain_measure *measure);

/* Give a lane the scratch's queries to come and norms of V, which the caller has filled. */
void quire_lane_scratch_expect(const quire_lane_scratch *scratch, uint32_t group,
                               quire_retain_lane *lane);

/* The norm of a row, [d]. */
float quire_row_norm(const float *row, uint32_t d);

#endif /* QUIRE_RETAIN_LANE_SCORE_H */
