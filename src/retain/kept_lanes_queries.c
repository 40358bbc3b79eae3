/* kept_lanes_queries.c - sums over the queries of a text in lanes since its last condensing
 * (query_sums.h).
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/check.h"
#include "retain/query_sums.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

uint64_t quire_lanes_sums_bytes(const quire_lanes_opts *o)
{
    const uint64_t d = o->layers[0].d_k;
    const uint64_t n_head = o->layers[0].n_head;
    const uint64_t group = n_head / o->layers[0].n_kv_head;

    if (!o->spec->policy->expects_queries) {
        return 0;
    }
    return sizeof(float) * (quire_lanes_n_choosing(o) * n_head * d * (d + 1) + o->n_rows_max * d +
                            d + o->n_threads * group * d * (d + 1));
}

int quire_lanes_sums_create(quire_lanes *lanes, const quire_lanes_opts *o)
{
    const size_t d = o->layers[0].d_k;
    const size_t n_heads = (size_t)quire_lanes_n_choosing(o) * o->layers[0].n_head;

    if (!o->spec->policy->expects_queries) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(o->rotation == NULL || o->rotation->d != d || d > QUIRE_QUERY_SUMS_D_MAX,
                  QUIRE_INVAL);
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
    const size_t n_lanes = quire_lanes_n_chosen(lanes);
    const size_t d = lanes->rotation.d;

    for (size_t i = 0; lanes->query_sums != NULL && i < n_lanes; i++) {
        const size_t head = i * lanes->group;

        quire_lane_chosen(lanes, i)->n_queries = 0;
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

/* The sums of lane g of layer l, which chooses. */
static quire_query_sums sums_of(const quire_lanes *lanes, uint32_t l, uint32_t g)
{
    const size_t lane = (size_t)lanes->layers[l].number * lanes->n_kv_head + g;
    const size_t head = lane * lanes->group;
    const size_t d = lanes->rotation.d;

    return (quire_query_sums){ .rotation = &lanes->rotation,
                               .group = lanes->group,
                               .sums = lanes->query_sums + head * d,
                               .products = lanes->query_products + head * d * d };
}

void quire_lanes_sums_add(quire_lanes *lanes, const quire_attn_layer *one, uint32_t l, uint32_t g)
{
    lane_state *lane = quire_lane_at(lanes, l, g);

    for (uint32_t i = 0; lanes->query_sums != NULL && i < lanes->n_rows; i++) {
        const quire_query_sums sums = sums_of(lanes, l, g);

        if (lanes->n_text - lanes->n_rows + i < lanes->spec.sinks) {
            continue; /* the first queries are unlike all others */
        }
        quire_query_sums_add(&sums, one, lanes->turns + (size_t)i * one->d_k,
                             one->q[0] + (lanes->first_row + i) * one->q_stride);
        lane->n_queries++;
    }
}

void quire_lanes_sums_ahead(const quire_lanes *lanes, uint32_t l, uint32_t g, float *mean,
                            float *cov)
{
    const quire_query_sums sums = sums_of(lanes, l, g);

    quire_query_sums_ahead(&sums, &lanes->layers[l].one, quire_lane_at(lanes, l, g)->n_queries,
                           lanes->n_text, lanes->spec.future, mean, cov);
}
