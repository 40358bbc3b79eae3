/* kept_lanes_worth.c - the worth of tokens: attention that rows pay to them, or a prediction.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/check.h"
#include "retain/probe.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

/* The most tokens whose keys a head reads at once; 0: the policy watches no rows. */
static uint32_t watched_max(const quire_lanes_opts *o)
{
    const uint64_t n_all = (uint64_t)o->n_text_max + o->n_repeat_max;
    const uint64_t n_part = (uint64_t)o->spec->sinks + 2 * (uint64_t)o->n_repeat_max;

    switch (o->spec->policy->worth) {
    case QUIRE_RETAIN_WORTH_SUM:
        return (uint32_t)n_all;
    case QUIRE_RETAIN_WORTH_REPEATED:
        return (uint32_t)(n_part < n_all ? n_part : n_all);
    case QUIRE_RETAIN_WORTH_NONE:
    case QUIRE_RETAIN_WORTH_PREDICTED:
        break;
    }
    return 0;
}

static size_t attention_floats(const quire_lanes_opts *o)
{
    return (size_t)(o->layers[0].n_head / o->layers[0].n_kv_head) * QUIRE_WATCH_ROWS *
           watched_max(o);
}

static size_t query_floats(const quire_lanes_opts *o)
{
    return (size_t)(o->layers[0].n_head / o->layers[0].n_kv_head) * QUIRE_WATCH_ROWS *
           o->layers[0].d_k;
}

static size_t hidden_floats(const quire_lanes_opts *o)
{
    return (size_t)o->n_layers * o->n_full_max * o->n_hidden;
}

uint64_t quire_lanes_watch_bytes(const quire_lanes_opts *o)
{
    const uint64_t n = watched_max(o);
    const uint64_t head = n * (o->layers[0].d_k + 1) + attention_floats(o) + query_floats(o);

    return (n > 0 ? o->layers[0].n_kv_head * head : 0) * sizeof(float) +
           hidden_floats(o) * sizeof(float);
}

int quire_lanes_watch_create(quire_lanes *lanes, const quire_lanes_opts *o)
{
    const uint32_t n = watched_max(o);

    lanes->n_watched_max = n;
    if (o->n_hidden > 0) {
        lanes->hidden = malloc(hidden_floats(o) * sizeof *lanes->hidden);
        QUIRE_FAIL_IF(lanes->hidden == NULL, QUIRE_NOMEM);
    }
    for (uint32_t g = 0; n > 0 && g < lanes->n_kv_head; g++) {
        lane_head *head = &lanes->heads[g];

        head->keys = malloc((size_t)n * o->layers[0].d_k * sizeof *head->keys);
        head->positions = malloc(n * sizeof *head->positions);
        head->queries = malloc(query_floats(o) * sizeof *head->queries);
        head->attention = malloc(attention_floats(o) * sizeof *head->attention);
        QUIRE_FAIL_IF(head->keys == NULL || head->positions == NULL || head->queries == NULL ||
                          head->attention == NULL,
                      QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

void quire_lanes_watch_destroy(quire_lanes *lanes)
{
    for (uint32_t g = 0; lanes->heads != NULL && g < lanes->n_kv_head; g++) {
        free(lanes->heads[g].attention);
        free(lanes->heads[g].queries);
        free(lanes->heads[g].positions);
        free(lanes->heads[g].keys);
    }
    free(lanes->hidden);
}

/* ---- predicting ---- */

static void keep_hidden(quire_lanes *lanes, const float *hidden, size_t stride, uint32_t l)
{
    const uint32_t first = lanes->n_text - lanes->n_rows - lanes->n_condensed;
    float *to = lanes->hidden + ((size_t)l * lanes->n_full_max + first) * lanes->n_hidden;

    for (uint32_t i = 0; i < lanes->n_rows; i++) {
        memcpy(to + (size_t)i * lanes->n_hidden, hidden + (lanes->first_row + i) * stride,
               lanes->n_hidden * sizeof *to);
    }
}

void quire_lanes_hidden_put(void *ctx, uint32_t layer, const float *hidden, size_t stride)
{
    quire_lanes *lanes = ctx;

    atomic_store_explicit(&lanes->layers[layer].hidden_stride, stride, memory_order_relaxed);
    atomic_store_explicit(&lanes->layers[layer].hidden, hidden, memory_order_relaxed);
}

void quire_lanes_predict(quire_lanes *lanes, uint32_t l, uint32_t g)
{
    lane_layer *layer = &lanes->layers[l];
    const float *hidden = atomic_load_explicit(&layer->hidden, memory_order_relaxed);
    const size_t stride = atomic_load_explicit(&layer->hidden_stride, memory_order_relaxed);
    const bool is_predicted = lanes->spec.policy->worth == QUIRE_RETAIN_WORTH_PREDICTED;
    lane_state *lane = quire_lane_at(lanes, l, g);

    if (!is_predicted && lanes->hidden == NULL) {
        return;
    }
    if (hidden == NULL) {
        atomic_store_explicit(&lanes->status, QUIRE_INVAL, memory_order_relaxed);
        return;
    }
    for (uint32_t i = 0; is_predicted && i < lanes->n_rows; i++) {
        lane->worth[lane->n - lanes->n_rows + i] =
            quire_predictor_apply(lanes->predictor, l, g, hidden + (lanes->first_row + i) * stride);
    }
    if (g == 0 && lanes->hidden != NULL && !quire_lanes_repeats(lanes)) {
        keep_hidden(lanes, hidden, stride, l);
    }
}

/* ---- watching ---- */

/* Tokens of a lane whose attention is computed, in up to three pieces; one gets a worth. */
typedef struct watched {
    uint32_t n;
    uint32_t first; /* in the lane, of the tokens that get a worth */
    uint32_t n_worth;
    uint32_t at; /* of these among the n */
} watched;

static void gather(const quire_lanes *lanes, const quire_attn_layer *one, const lane_state *lane,
                   lane_head *head, uint32_t from, uint32_t to, watched *w)
{
    if (from < to) {
        quire_lane_keys(lanes, one, lane, from, to, head->keys + (size_t)w->n * one->d_k);
        memcpy(head->positions + w->n, lane->positions + 1 + from,
               (to - from) * sizeof *head->positions);
        w->n += to - from;
    }
}

static watched gather_all(const quire_lanes *lanes, const quire_attn_layer *one,
                          const lane_state *lane, lane_head *head)
{
    watched w = { 0 };

    if (!quire_lanes_repeats(lanes)) {
        gather(lanes, one, lane, head, 0, lane->n, &w);
        w.n_worth = w.n;
        return w;
    }
    /* Tokens held in full are the last ones. */
    w.first = lane->n - (lanes->n_text - lanes->repeat_begin);
    w.n_worth = lanes->repeat_end - lanes->repeat_begin;
    w.at = lanes->spec.sinks < w.first ? lanes->spec.sinks : w.first;
    gather(lanes, one, lane, head, 0, w.at, &w);
    gather(lanes, one, lane, head, w.first, w.first + w.n_worth, &w);
    gather(lanes, one, lane, head, lane->n - (lanes->n_text - lanes->repeat_at), lane->n, &w);
    return w;
}

/* Queries of rows [first, first + n), transformed as K is: [group][n][d_k]. */
static void gather_rows(const quire_lanes *lanes, const quire_attn_layer *one, uint32_t first,
                        uint32_t n, float *queries)
{
    for (uint32_t h = 0; h < lanes->group; h++) {
        for (uint32_t i = 0; i < n; i++) {
            float *to = queries + ((size_t)h * n + i) * one->d_k;

            memcpy(to,
                   one->q[0] + (lanes->first_row + first + i) * one->q_stride +
                       (size_t)h * one->d_k,
                   one->d_k * sizeof *to);
            if (one->k[0].rotate != 0) {
                quire_hadamard(to, one->d_k, one->k[0].rotate);
            }
        }
    }
}

static void add_worth(const quire_lanes *lanes, const watched *w, const float *attention,
                      uint32_t n_rows, float *worth)
{
    const bool is_sum = lanes->spec.policy->worth == QUIRE_RETAIN_WORTH_SUM;

    for (uint32_t r = 0; r < n_rows; r++) {
        const float *row = attention + (size_t)r * w->n + w->at;

        for (uint32_t t = 0; t < w->n_worth; t++) {
            worth[t] = is_sum ? worth[t] + row[t] : (worth[t] > row[t] ? worth[t] : row[t]);
        }
    }
}

void quire_lanes_watch(quire_lanes *lanes, const quire_attn_layer *one, uint32_t l, uint32_t g)
{
    const quire_retain_worth kind = lanes->spec.policy->worth;
    lane_state *lane = quire_lane_at(lanes, l, g);
    lane_head *head = &lanes->heads[g];
    int32_t rows_at[QUIRE_WATCH_ROWS];
    watched w;

    if (kind != QUIRE_RETAIN_WORTH_SUM &&
        (kind != QUIRE_RETAIN_WORTH_REPEATED || !quire_lanes_repeats(lanes))) {
        return;
    }
    w = gather_all(lanes, one, lane, head);
    for (uint32_t first = 0; first < lanes->n_rows; first += QUIRE_WATCH_ROWS) {
        const uint32_t n =
            lanes->n_rows - first < QUIRE_WATCH_ROWS ? lanes->n_rows - first : QUIRE_WATCH_ROWS;
        const quire_retain_lane part = {
            .n_tokens = w.n, .positions = head->positions, .keys = head->keys, .d = one->d_k
        };
        const quire_retain_probe probe = { .queries = head->queries,
                                           .rows_at = rows_at,
                                           .n_heads = lanes->group,
                                           .n_queries = n,
                                           .scale = one->scale,
                                           .softcap = one->softcap,
                                           .window = one->window,
                                           .sinks = one->sinks };

        for (uint32_t i = 0; i < n; i++) {
            rows_at[i] = (int32_t)(lanes->n_text - lanes->n_rows + first + i);
        }
        gather_rows(lanes, one, first, n, head->queries);
        quire_retain_attend(&probe, &part, head->attention);
        add_worth(lanes, &w, head->attention, lanes->group * n, lane->worth + w.first);
    }
}
