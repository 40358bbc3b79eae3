/* kept_lanes_queries.c - mean and covariance of a text's queries, as they will be at later
 * positions. Method: Expected Attention (arXiv 2510.00636): a query is a random vector that RoPE
 * turns by its position, so its mean and covariance ahead are those of the text's queries, turned
 * back and averaged over the turns to come.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define D_MAX 1024u /* QUIRE_HEAD_DIM_MAX */

/* ---- memory ---- */

uint64_t quire_lanes_sums_bytes(const quire_lanes_opts *o)
{
    const uint64_t d = o->layers[0].d_k;
    const uint64_t n_head = o->layers[0].n_head;
    const uint64_t group = n_head / o->layers[0].n_kv_head;

    if (!o->spec->policy->expects_queries) {
        return 0;
    }
    return sizeof(float) * (o->n_layers * n_head * d * (d + 1) + o->n_rows_max * d + d +
                            o->n_threads * group * d * (d + 1));
}

int quire_lanes_sums_create(quire_lanes *lanes, const quire_lanes_opts *o)
{
    const size_t d = o->layers[0].d_k;
    const size_t n_heads = (size_t)o->n_layers * o->layers[0].n_head;

    if (!o->spec->policy->expects_queries) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(o->rotation == NULL || o->rotation->d != d || d > D_MAX, QUIRE_INVAL);
    lanes->frequencies = malloc(d / 2 * sizeof *lanes->frequencies);
    lanes->turns = malloc(o->n_rows_max * d * sizeof *lanes->turns);
    lanes->query_sums = calloc(n_heads * d, sizeof *lanes->query_sums);
    lanes->query_products = calloc(n_heads * d * d, sizeof *lanes->query_products);
    QUIRE_FAIL_IF(lanes->frequencies == NULL || lanes->turns == NULL || lanes->query_sums == NULL ||
                      lanes->query_products == NULL,
                  QUIRE_NOMEM);
    memcpy(lanes->frequencies, o->rotation->frequencies, d / 2 * sizeof *lanes->frequencies);
    lanes->rotation = *o->rotation;
    lanes->rotation.frequencies = lanes->frequencies;
    return QUIRE_OK;
}

void quire_lanes_sums_destroy(quire_lanes *lanes)
{
    free(lanes->query_products);
    free(lanes->query_sums);
    free(lanes->turns);
    free(lanes->frequencies);
}

void quire_lanes_sums_clear(quire_lanes *lanes)
{
    const size_t n_lanes = (size_t)lanes->n_layers * lanes->n_kv_head;
    const size_t d = lanes->rotation.d;

    for (size_t i = 0; lanes->query_sums != NULL && i < n_lanes; i++) {
        const size_t head = i * lanes->group;

        lanes->lanes[i].n_queries = 0;
        memset(lanes->query_sums + head * d, 0, lanes->group * d * sizeof(float));
        memset(lanes->query_products + head * d * d, 0, lanes->group * d * d * sizeof(float));
    }
}

/* ---- adding ---- */

void quire_lanes_sums_plan(quire_lanes *lanes)
{
    for (uint32_t i = 0; lanes->query_sums != NULL && i < lanes->n_rows; i++) {
        const double position = lanes->n_text - lanes->n_rows + i;

        quire_rotation_turns(&lanes->rotation, -position,
                             lanes->turns + (size_t)i * lanes->rotation.d);
    }
}

void quire_lanes_sums_add(quire_lanes *lanes, const quire_attn_layer *one, uint32_t l, uint32_t g)
{
    const uint32_t d = one->d_k;
    lane_state *lane = quire_lane_at(lanes, l, g);
    const size_t head = ((size_t)l * lanes->n_kv_head + g) * lanes->group;
    float query[D_MAX];

    for (uint32_t i = 0; lanes->query_sums != NULL && i < lanes->n_rows; i++) {
        if (lanes->n_text - lanes->n_rows + i < lanes->spec.sinks) {
            continue; /* the first queries are unlike all others */
        }
        for (uint32_t h = 0; h < lanes->group; h++) {
            float *sums = lanes->query_sums + (head + h) * d;
            float *products = lanes->query_products + (head + h) * d * d;

            memcpy(query, one->q[0] + (lanes->first_row + i) * one->q_stride + (size_t)h * d,
                   d * sizeof *query);
            quire_rotation_apply(&lanes->rotation, lanes->turns + (size_t)i * d, query);
            for (uint32_t a = 0; a < d; a++) {
                const float x = query[a] * one->scale * one->scale;

                sums[a] += query[a] * one->scale;
                for (uint32_t b = 0; b <= a; b++) {
                    products[(size_t)a * d + b] += x * query[b];
                }
            }
        }
        lane->n_queries++;
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

static void transform(const quire_lanes *lanes, const quire_attn_layer *one, const float *turns,
                      float *row)
{
    quire_rotation_apply(&lanes->rotation, turns, row);
    if (one->k[0].rotate != 0) {
        quire_hadamard(row, one->d_k, one->k[0].rotate);
    }
}

/* T C T' of a symmetric C: transform the rows, transpose, and transform the rows again. */
static void transform_cov(const quire_lanes *lanes, const quire_attn_layer *one, const float *turns,
                          float *cov)
{
    const uint32_t d = one->d_k;

    for (int side = 0; side < 2; side++) {
        for (uint32_t a = 0; a < d; a++) {
            transform(lanes, one, turns, cov + (size_t)a * d);
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

void quire_lanes_sums_ahead(const quire_lanes *lanes, uint32_t l, uint32_t g, float *mean,
                            float *cov)
{
    const quire_attn_layer *one = &lanes->layers[l].one;
    const uint32_t d = one->d_k;
    const lane_state *lane = quire_lane_at(lanes, l, g);
    const size_t head = ((size_t)l * lanes->n_kv_head + g) * lanes->group;
    const double n = lane->n_queries > 0 ? (double)lane->n_queries : 1.0;
    float turns[D_MAX];

    average_turns(&lanes->rotation, lanes->n_text, lanes->spec.future, turns);
    for (uint32_t h = 0; h < lanes->group; h++) {
        const float *sums = lanes->query_sums + (head + h) * d;
        const float *products = lanes->query_products + (head + h) * d * d;
        float *m = mean + (size_t)h * d;
        float *c = cov + (size_t)h * d * d;

        for (uint32_t a = 0; a < d; a++) {
            m[a] = (float)((double)sums[a] / n);
            for (uint32_t b = 0; b <= a; b++) {
                c[(size_t)a * d + b] = c[(size_t)b * d + a] =
                    (float)((double)products[(size_t)a * d + b] / n -
                            (double)sums[a] / n * ((double)sums[b] / n));
            }
        }
        transform(lanes, one, turns, m);
        transform_cov(lanes, one, turns, c);
    }
}
