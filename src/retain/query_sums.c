/* query_sums.c - see query_sums.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/query_sums.h"

#include "retain/probe.h"

#include <math.h>
#include <string.h>

void quire_query_sums_add(const quire_query_sums *sums, const quire_attn_layer *one,
                          const float *turns, const float *queries)
{
    const uint32_t d = one->d_k;
    float query[QUIRE_QUERY_SUMS_D_MAX];

    for (uint32_t h = 0; h < sums->group; h++) {
        float *of = sums->sums + (size_t)h * d;
        float *products = sums->products + (size_t)h * d * d;

        memcpy(query, queries + (size_t)h * d, d * sizeof *query);
        quire_rotation_apply(sums->rotation, turns, query);
        for (uint32_t a = 0; a < d; a++) {
            const float x = query[a] * one->scale * one->scale;

            of[a] += query[a] * one->scale;
            for (uint32_t b = 0; b <= a; b++) {
                products[(size_t)a * d + b] += x * query[b];
            }
        }
    }
}

/* ---- looking ahead ---- */

/* The average of the turns to `n` positions from `first` on: its pairs are shorter than 1. */
static void average_turns(const quire_rotation *rotation, uint32_t first, uint32_t n, float *turns)
{
    for (uint32_t i = 0; i < rotation->d / 2; i++) {
        const double angle = (double)rotation->frequencies[i];
        const double middle = (first + (n - 1) / 2.0) * angle;
        const double step = sin(angle / 2);
        const double length = fabs(step) > 1e-9 ? sin(n * angle / 2) / (n * step) : 1.0;

        turns[2 * i] = (float)(length * cos(middle));
        turns[2 * i + 1] = (float)(length * sin(middle));
    }
}

static void transform(const quire_query_sums *sums, const quire_attn_layer *one, const float *turns,
                      float *row)
{
    quire_rotation_apply(sums->rotation, turns, row);
    if (one->k[0].rotate != 0) {
        quire_hadamard(row, one->d_k, one->k[0].rotate);
    }
}

/* T C T' of a symmetric C: transform the rows, transpose, and transform the rows again. */
static void transform_cov(const quire_query_sums *sums, const quire_attn_layer *one,
                          const float *turns, float *cov)
{
    const uint32_t d = one->d_k;

    for (int side = 0; side < 2; side++) {
        for (uint32_t a = 0; a < d; a++) {
            transform(sums, one, turns, cov + (size_t)a * d);
        }
        for (uint32_t a = 0; a < d; a++) {
            for (uint32_t b = 0; b < a; b++) {
                const float x = cov[(size_t)a * d + b];

                cov[(size_t)a * d + b] = cov[(size_t)b * d + a];
                cov[(size_t)b * d + a] = x;
            }
        }
    }
}

void quire_query_sums_ahead(const quire_query_sums *sums, const quire_attn_layer *one,
                            uint64_t n_queries, uint32_t first, uint32_t n_ahead, float *mean,
                            float *cov)
{
    const uint32_t d = one->d_k;
    const double n = n_queries > 0 ? (double)n_queries : 1.0;
    float turns[QUIRE_QUERY_SUMS_D_MAX];

    average_turns(sums->rotation, first, n_ahead, turns);
    for (uint32_t h = 0; h < sums->group; h++) {
        const float *of = sums->sums + (size_t)h * d;
        const float *products = sums->products + (size_t)h * d * d;
        float *m = mean + (size_t)h * d;
        float *c = cov + (size_t)h * d * d;

        for (uint32_t a = 0; a < d; a++) {
            m[a] = (float)((double)of[a] / n);
            for (uint32_t b = 0; b <= a; b++) {
                c[(size_t)a * d + b] = c[(size_t)b * d + a] =
                    (float)((double)products[(size_t)a * d + b] / n -
                            (double)of[a] / n * ((double)of[b] / n));
            }
        }
        transform(sums, one, turns, m);
        transform_cov(sums, one, turns, c);
    }
}
