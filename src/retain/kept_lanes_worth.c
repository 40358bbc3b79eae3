/* kept_lanes_worth.c - the worth of tokens: attention that rows pay to them, or a prediction.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/check.h"

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

static size_t hidden_floats(const quire_lanes_opts *o)
{
    return (size_t)quire_lanes_n_choosing(o) * o->n_full_max * o->n_hidden;
}

static uint32_t group_of(const quire_lanes_opts *o)
{
    return o->layers[0].n_head / o->layers[0].n_kv_head;
}

uint64_t quire_lanes_watch_bytes(const quire_lanes_opts *o)
{
    return o->layers[0].n_kv_head *
               quire_watch_room_bytes(watched_max(o), group_of(o), o->layers[0].d_k) +
           hidden_floats(o) * sizeof(float);
}

int quire_lanes_watch_create(quire_lanes *lanes, const quire_lanes_opts *o)
{
    const uint32_t n = watched_max(o);

    if (o->n_hidden > 0) {
        lanes->hidden = malloc(hidden_floats(o) * sizeof *lanes->hidden);
        QUIRE_FAIL_IF(lanes->hidden == NULL, QUIRE_NOMEM);
    }
    for (uint32_t g = 0; n > 0 && g < lanes->n_kv_head; g++) {
        QUIRE_TRY(
            quire_watch_room_init(&lanes->heads[g].watched, n, group_of(o), o->layers[0].d_k));
    }
    return QUIRE_OK;
}

void quire_lanes_watch_destroy(quire_lanes *lanes)
{
    for (uint32_t g = 0; lanes->heads != NULL && g < lanes->n_kv_head; g++) {
        quire_watch_room_fini(&lanes->heads[g].watched);
    }
    free(lanes->hidden);
}

/* ---- predicting ---- */

static void keep_hidden(quire_lanes *lanes, const float *hidden, size_t stride, uint32_t l)
{
    const uint32_t first = lanes->n_text - lanes->n_rows - lanes->n_condensed;
    const size_t number = lanes->layers[l].number;
    float *to = lanes->hidden + (number * lanes->n_full_max + first) * lanes->n_hidden;

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

    if (layer->is_windowed || (!is_predicted && lanes->hidden == NULL)) {
        return;
    }
    if (hidden == NULL) {
        atomic_store_explicit(&lanes->status, QUIRE_INVAL, memory_order_relaxed);
        return;
    }
    if (is_predicted) {
        const quire_predictor_rows rows = { .hidden = hidden + lanes->first_row * stride,
                                            .stride = stride,
                                            .n = lanes->n_rows };

        quire_predictor_apply(lanes->predictor, l, g, &rows, lane->worth + lane->n - lanes->n_rows);
    }
    if (g == 0 && lanes->hidden != NULL && !quire_lanes_repeats(lanes)) {
        keep_hidden(lanes, hidden, stride, l);
    }
}

/* ---- watching ---- */

bool quire_lanes_watches(const quire_lanes *lanes)
{
    const quire_retain_worth kind = lanes->spec.policy->worth;

    return kind == QUIRE_RETAIN_WORTH_SUM ||
           (kind == QUIRE_RETAIN_WORTH_REPEATED && quire_lanes_repeats(lanes));
}

/* Add tokens [from, to) of a layer's lane to those that its head watches. */
static void gather(quire_lanes *lanes, uint32_t l, uint32_t g, uint32_t from, uint32_t to)
{
    const quire_attn_layer *one = &lanes->layers[l].one;
    const quire_watch_room *room = &lanes->heads[g].watched;
    const lane_state *lane = quire_lane_at(lanes, l, g);
    quire_watch *w = &lanes->heads[g].watch;

    if (from < to) {
        quire_lane_keys(lanes, one, lane, from, to, room->keys + (size_t)w->n * one->d_k);
        memcpy(room->positions + w->n, lane->positions + 1 + from,
               (to - from) * sizeof *room->positions);
        w->n += to - from;
    }
}

void quire_lanes_watch_gather(quire_lanes *lanes, uint32_t l, uint32_t g)
{
    const lane_state *lane = quire_lane_at(lanes, l, g);
    lane_head *head = &lanes->heads[g];
    uint32_t first;

    head->watch = (quire_watch){ .n = 0 };
    head->watch_first = 0;
    if (!quire_lanes_repeats(lanes)) {
        gather(lanes, l, g, 0, lane->n);
        head->watch.n_worth = lane->n;
        return;
    }
    /* Tokens held in full are the last ones. */
    first = lane->n - (lanes->n_text - lanes->repeat_begin);
    head->watch_first = first;
    head->watch.n_worth = lanes->repeat_end - lanes->repeat_begin;
    head->watch.at = lanes->spec.sinks < first ? lanes->spec.sinks : first;
    gather(lanes, l, g, 0, head->watch.at);
    gather(lanes, l, g, first, first + head->watch.n_worth);
    gather(lanes, l, g, lane->n - (lanes->n_text - lanes->repeat_at), lane->n);
}

void quire_lanes_watch(quire_lanes *lanes, const quire_attn_layer *one, uint32_t l, uint32_t g)
{
    const lane_head *head = &lanes->heads[g];
    quire_watch w = head->watch;

    w.one = one;
    w.group = lanes->group;
    w.first_row = lanes->first_row;
    w.n_rows = lanes->n_rows;
    w.first_at = lanes->n_text - lanes->n_rows;
    w.is_sum = lanes->spec.policy->worth == QUIRE_RETAIN_WORTH_SUM;
    quire_watch_rows(&w, &head->watched, quire_lane_at(lanes, l, g)->worth + head->watch_first);
}
