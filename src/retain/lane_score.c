/* lane_score.c - see lane_score.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/lane_score.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int expect_init(quire_lane_scratch *s, size_t group, size_t d, size_t n_max)
{
    s->query_mean = malloc(group * d * sizeof *s->query_mean);
    s->query_cov = malloc(group * d * d * sizeof *s->query_cov);
    s->value_norms = malloc(n_max * sizeof *s->value_norms);
    s->logits = malloc(n_max * sizeof *s->logits);
    QUIRE_FAIL_IF(s->query_mean == NULL || s->query_cov == NULL || s->value_norms == NULL ||
                      s->logits == NULL,
                  QUIRE_NOMEM);
    return QUIRE_OK;
}

int quire_lane_scratch_init(quire_lane_scratch *scratch, const quire_retain_spec *spec,
                            uint32_t group, uint32_t d, uint32_t n_probe, size_t n_max)
{
    const quire_retain_policy *policy = spec->policy;
    const size_t n_rows = (size_t)group * n_probe;

    *scratch = (quire_lane_scratch){ .keys = NULL };
    if (policy->needs_keys || policy->needs_attention) {
        scratch->keys = malloc(n_max * d * sizeof *scratch->keys);
        QUIRE_FAIL_IF(scratch->keys == NULL, QUIRE_NOMEM);
    }
    if (policy->needs_attention) {
        scratch->attention = malloc(n_max * n_rows * sizeof *scratch->attention);
        scratch->queries = malloc(n_rows * d * sizeof *scratch->queries);
        QUIRE_FAIL_IF(scratch->attention == NULL || scratch->queries == NULL, QUIRE_NOMEM);
    }
    return policy->expects_queries ? expect_init(scratch, group, d, n_max) : QUIRE_OK;
}

void quire_lane_scratch_fini(quire_lane_scratch *scratch)
{
    free(scratch->logits);
    free(scratch->value_norms);
    free(scratch->query_cov);
    free(scratch->query_mean);
    free(scratch->queries);
    free(scratch->attention);
    free(scratch->keys);
}

void quire_probe_read(const float *ring, uint32_t n_ring, uint32_t n_heads, uint32_t d,
                      uint32_t n_text, uint32_t n, float *queries, int32_t *rows_at)
{
    for (uint32_t h = 0; h < n_heads; h++) {
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t position = n_text - n + i;

            rows_at[i] = (int32_t)position;
            memcpy(queries + ((size_t)h * n + i) * d,
                   ring + ((size_t)h * n_ring + position % n_ring) * d, d * sizeof *queries);
        }
    }
}

void quire_lane_scratch_attend(const quire_lane_scratch *scratch, const quire_retain_spec *spec,
                               const quire_retain_probe *probe, quire_retain_lane *lane,
                               quire_retain_measure *measure)
{
    quire_retain_attend(probe, lane, scratch->attention);
    lane->attention = scratch->attention;
    lane->n_rows = probe->n_heads * probe->n_queries;
    if (spec->policy->weighs_layers) {
        quire_retain_measure_add(measure, lane, probe->n_queries);
    }
}

void quire_lane_scratch_expect(const quire_lane_scratch *scratch, uint32_t group,
                               quire_retain_lane *lane)
{
    lane->query_mean = scratch->query_mean;
    lane->query_cov = scratch->query_cov;
    lane->n_heads = group;
    lane->value_norms = scratch->value_norms;
    lane->scratch = scratch->logits;
}

float quire_row_norm(const float *row, uint32_t d)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < d; i++) {
        sum += (double)row[i] * (double)row[i];
    }
    return (float)sqrt(sum);
}
