/* probe.c - see probe.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/probe.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

#define BLOCK 64u   /* tokens whose products are summed side by side */
#define D_MAX 1024u /* QUIRE_HEAD_DIM_MAX */

/* Products of all rows with tokens [first, first + n) of the lane, n <= BLOCK. The keys are turned
 * round first, so that the compiler sums over tokens in registers. */
static void products(const quire_retain_probe *probe, const quire_retain_lane *lane, uint32_t first,
                     uint32_t n, float *attention)
{
    const uint32_t d = lane->d;
    float turned[32][BLOCK];

    for (uint32_t begin = 0; begin < d; begin += 32) {
        const uint32_t n_dims = d - begin < 32 ? d - begin : 32;

        memset(turned, 0, sizeof turned);
        for (uint32_t t = 0; t < n; t++) {
            for (uint32_t i = 0; i < n_dims; i++) {
                turned[i][t] = lane->keys[(size_t)(first + t) * d + begin + i];
            }
        }
        for (uint32_t r = 0; r < probe->n_heads * probe->n_queries; r++) {
            const float *q = probe->queries + (size_t)r * d + begin;
            float *out = attention + (size_t)r * lane->n_tokens + first;
            float sum[BLOCK] = { 0 };

            for (uint32_t i = 0; i < n_dims; i++) {
                for (uint32_t t = 0; t < BLOCK; t++) {
                    sum[t] += q[i] * turned[i][t];
                }
            }
            for (uint32_t t = 0; t < n; t++) {
                out[t] = begin == 0 ? sum[t] : out[t] + sum[t];
            }
        }
    }
}

/* Logits to probabilities, of the tokens that the row sees. */
static void soften(const quire_retain_probe *probe, const quire_retain_lane *lane, uint32_t r,
                   float *row)
{
    const int64_t at = probe->rows_at[r % probe->n_queries];
    const float *sink = probe->sinks != NULL ? &probe->sinks[r / probe->n_queries] : NULL;
    float max = sink != NULL ? *sink : -INFINITY;
    double sum = 0.0;

    for (uint32_t t = 0; t < lane->n_tokens; t++) {
        const int64_t position = lane->positions[t];
        const bool is_seen = position <= at;
        float logit = row[t] * probe->scale;

        logit = probe->softcap != 0.0f ? probe->softcap * tanhf(logit / probe->softcap) : logit;
        row[t] = is_seen ? logit : -INFINITY;
        max = row[t] > max ? row[t] : max;
    }
    for (uint32_t t = 0; t < lane->n_tokens; t++) {
        row[t] = row[t] > -INFINITY ? expf(row[t] - max) : 0.0f;
        sum += (double)row[t];
    }
    sum += sink != NULL ? exp((double)(*sink - max)) : 0.0;
    for (uint32_t t = 0; t < lane->n_tokens && sum > 0.0; t++) {
        row[t] = (float)((double)row[t] / sum);
    }
}

void quire_retain_attend(const quire_retain_probe *probe, const quire_retain_lane *lane,
                         float *attention)
{
    QUIRE_CHECK(lane->d <= D_MAX);
    for (uint32_t t = 0; t < lane->n_tokens; t += BLOCK) {
        products(probe, lane, t, lane->n_tokens - t < BLOCK ? lane->n_tokens - t : BLOCK,
                 attention);
    }
    for (uint32_t r = 0; r < probe->n_heads * probe->n_queries; r++) {
        soften(probe, lane, r, attention + (size_t)r * lane->n_tokens);
    }
}
