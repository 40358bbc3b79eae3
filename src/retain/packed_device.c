/* packed_device.c - see packed_device.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/packed_device.h"

#include "base/check.h"
#include "base/num.h"
#include "retain/kept_lanes_internal.h"
#include "retain/packed_device_internal.h"

#include <stdlib.h>
#include <string.h>

#define TILE QUIRE_TILE_TOKENS

/* ---- plan ---- */

/* The rows of the step follow those that were seen, or begin anew. A step that failed is made
 * again. */
static void expect_rows(const quire_attn_seq *seq)
{
    quire_packed_text *text = quire_packed_text_of(seq);
    const uint32_t end = text->n_gone + seq->n_tokens;
    const uint32_t begin = end - seq->n_rows;

    if (begin < text->seen_begin || begin > text->seen_end) {
        text->seen_begin = begin;
    }
    text->seen_end = end;
    quire_packed_sums_expect(&text->sums, begin, end);
}

static void divide(quire_packed_device *d, const quire_attn_batch *batch)
{
    d->batch = *batch;
    d->n_plain = d->n_packed = d->n_probed = d->n_predicted = d->n_repeated = d->n_summed = 0;
    d->n_filled = 0;
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        const quire_attn_seq *seq = &batch->seqs[i];
        const quire_packed_text *text = quire_packed_text_of(seq);

        if (text != NULL && (text->lanes.n_pages > 0 || quire_packed_attends(seq))) {
            d->packed[d->n_packed++] = seq;
        } else {
            d->plain[d->n_plain++] = *seq;
            if (d->packing.bounds_bytes > 0 && quire_packed_fills(seq)) {
                d->filled[d->n_filled++] = seq;
            }
        }
        if (text != NULL && text->queries != NULL) {
            d->probed[d->n_probed++] = seq;
        }
        if (text != NULL && text->predictor != NULL) {
            d->predicted[d->n_predicted++] = seq;
        }
        if (text != NULL && text->repeat_end > text->repeat_begin) {
            d->repeated[d->n_repeated++] = seq;
        } else if (text != NULL) {
            expect_rows(seq);
            if (text->sums.ends != NULL) {
                d->summed[d->n_summed++] = seq;
            }
        }
    }
}

static int plan(void *ctx, const quire_attn_batch *batch)
{
    quire_packed_device *d = ctx;
    quire_attn_batch plain = *batch;

    QUIRE_FAIL_IF(batch->n_seqs > d->n_seqs_max, QUIRE_LIMIT);
    divide(d, batch);
    for (uint32_t i = 0; i < d->n_summed; i++) {
        quire_packed_sums_turns(d, d->summed[i]);
    }
    for (uint32_t l = 0; l < d->packing.n_layers; l++) {
        atomic_store_explicit(&d->jobs[l].next_append, 0, memory_order_relaxed);
        atomic_store_explicit(&d->jobs[l].next_run, 0, memory_order_relaxed);
        atomic_store_explicit(&d->jobs[l].hidden, NULL, memory_order_relaxed);
    }
    atomic_store_explicit(&d->status, QUIRE_OK, memory_order_relaxed);
    quire_packed_cascades_plan(d);
    if (d->queue != NULL) {
        return quire_packed_queue_plan(d);
    }
    if (d->n_packed > 0) {
        plain.seqs = d->plain;
        plain.n_seqs = d->n_plain;
        if (d->windows != NULL) {
            QUIRE_TRY(quire_attn_begin(d->windows, batch));
        }
    }
    return d->n_plain > 0 ? d->base.plan(d->base.ctx, &plain) : QUIRE_OK;
}

/* ---- a layer ---- */

/* Whether a layer has a window, and pages that are not packed. */
static bool is_windowed(const quire_packed_device *d, const quire_attn_layer *call)
{
    return d->packing.window_group != 0 && call->k_store.group == d->packing.window_group;
}

static uint32_t layer_of(const quire_packed_device *d, const quire_attn_layer *call)
{
    uint32_t l = 0;

    while (d->packing.layers[l].k_store.lane.offset != call->k_store.lane.offset) {
        l++;
        QUIRE_CHECK(l < d->packing.n_layers);
    }
    return l;
}

void quire_packed_device_hidden_put(void *ctx, uint32_t layer, const float *hidden, size_t stride)
{
    quire_packed_device *d = ctx;

    for (uint32_t l = 0; l < d->packing.n_layers; l++) {
        if (quire_packing_model_layer(&d->packing, l) == layer) {
            atomic_store_explicit(&d->jobs[l].hidden_stride, stride, memory_order_relaxed);
            atomic_store_explicit(&d->jobs[l].hidden, hidden, memory_order_relaxed);
        }
    }
}

/* The worth of a KV head's rows. */
static void predict(quire_packed_device *d, uint32_t l, const quire_attn_seq *seq, uint32_t g)
{
    const float *hidden = atomic_load_explicit(&d->jobs[l].hidden, memory_order_relaxed);
    const size_t stride = atomic_load_explicit(&d->jobs[l].hidden_stride, memory_order_relaxed);
    const quire_packed_text *text = quire_packed_text_of(seq);
    float *worth = text->worth + (size_t)(l * d->packing.n_kv_head + g) * text->n_worth;
    const uint32_t begin = text->n_gone + seq->n_tokens - seq->n_rows;
    quire_predictor_rows rows = { .stride = stride };

    if (hidden == NULL) {
        atomic_store_explicit(&d->status, QUIRE_INVAL, memory_order_relaxed);
        return;
    }
    for (uint32_t i = 0, at; i < seq->n_rows; i += rows.n) { /* the worth begins again at its end */
        at = (begin + i) % text->n_worth;
        rows.hidden = hidden + (seq->first_row + i) * stride;
        rows.n = quire_min_u32(seq->n_rows - i, text->n_worth - at);
        quire_predictor_apply(text->predictor, quire_packing_model_layer(&d->packing, l), g, &rows,
                              worth + at);
    }
}

/* Whether the device has the jobs of packed sequences in its queue, and the plain ones between. */
static bool is_queued(const quire_packed_device *d)
{
    return d->queue != NULL && d->n_packed > 0;
}

static bool is_last(const quire_packed_device *d, uint32_t l)
{
    return l + 1 == d->packing.n_layers;
}

/* A step without logits appends to the last layer and does not run it: sync() makes its bounds. */
static void fill_last(quire_packed_device *d)
{
    d->n_filled_last = d->n_filled;
    for (uint32_t i = 0; i < d->n_filled; i++) {
        d->filled_last[i] = *d->filled[i];
    }
}

/* A layer with a window, of all sequences. */
static void window_append(quire_packed_device *d, const quire_attn_layer *call, uint32_t thread,
                          uint32_t n_threads)
{
    if (d->queue == NULL) {
        quire_attn_append(d->windows, call, thread, n_threads);
    } else if (thread == 0 && quire_packed_queue_all(d)) {
        d->base.append(d->base.ctx, call, 0, n_threads);
    }
}

static void window_run(quire_packed_device *d, const quire_attn_layer *call, uint32_t index,
                       uint32_t thread, uint32_t n_threads)
{
    if (d->queue == NULL) {
        quire_attn_run(d->windows, call, index, thread, n_threads);
    } else if (thread == 0 && quire_packed_queue_all(d)) {
        d->base.run(d->base.ctx, call, index, 0, n_threads);
    }
}

static void append(void *ctx, const quire_attn_layer *call, uint32_t thread, uint32_t n_threads)
{
    quire_packed_device *d = ctx;
    const uint32_t n_heads = d->packing.n_kv_head;
    const uint32_t n_seqs = d->n_packed + d->n_predicted;
    uint32_t l, job;

    if (d->n_packed > 0 && is_windowed(d, call)) {
        window_append(d, call, thread, n_threads);
        return;
    }
    if (is_queued(d) && thread == 0) {
        quire_packed_queue_append(d, call, layer_of(d, call));
    } else if (!is_queued(d) && d->n_plain > 0) {
        d->base.append(d->base.ctx, call, thread, n_threads);
    }
    if (is_windowed(d, call)) {
        return;
    }
    if (thread == 0 && d->packing.bounds_bytes > 0 && is_last(d, layer_of(d, call))) {
        fill_last(d);
    }
    if (n_seqs == 0 || thread >= d->n_threads) {
        return;
    }
    l = layer_of(d, call);
    while ((job = atomic_fetch_add_explicit(&d->jobs[l].next_append, 1, memory_order_relaxed)) <
           n_seqs * n_heads) {
        const uint32_t i = job / n_heads, g = job % n_heads;
        const quire_attn_layer one = quire_lane_call(&d->heads[l], call, d->group, g);
        quire_packed_worker *w = &d->workers[thread];

        if (i >= d->n_packed) {
            predict(d, l, d->predicted[i - d->n_packed], g);
        } else if (d->queue == NULL &&
                   quire_packed_job_begin(d, w, &d->packed[i], 1, l * n_heads + g, true)) {
            quire_attn_append(w->workspace, &one, 0, 1);
            quire_packed_bound(d, w, d->packed[i], l * n_heads + g);
        }
    }
}

/* Keep the queries of a head's last rows. */
static void keep_queries(const quire_attn_layer *call, uint32_t l, const quire_attn_seq *seq,
                         uint32_t head)
{
    const quire_packed_text *text = quire_packed_text_of(seq);
    const uint32_t n = seq->n_rows < text->probe ? seq->n_rows : text->probe;

    for (uint32_t i = seq->n_rows - n; i < seq->n_rows; i++) {
        const uint32_t position = text->n_gone + seq->n_tokens - seq->n_rows + i;
        const size_t place = ((size_t)l * call->n_head + head) * text->probe;
        float *to = text->queries + (place + position % text->probe) * call->d_k;

        memcpy(to, call->q[0] + (seq->first_row + i) * call->q_stride + (size_t)head * call->d_k,
               call->d_k * sizeof *to);
        if (call->k[0].rotate != 0) {
            quire_hadamard(to, call->d_k, call->k[0].rotate);
        }
    }
}

/* A job of a KV head: attention of cascades first, then rows that repeat, sums, bounds. */
static void head_job(quire_packed_device *d, quire_packed_worker *w, const quire_attn_layer *call,
                     uint32_t l, uint32_t job)
{
    const uint32_t i = job / d->packing.n_kv_head, g = job % d->packing.n_kv_head;
    const uint32_t lane = l * d->packing.n_kv_head + g;
    const quire_attn_layer one = quire_lane_call(&d->heads[l], call, d->group, g);
    const uint32_t n_watched = d->n_cascades + d->n_repeated;

    if (i >= n_watched + d->n_summed) {
        quire_packed_bound(d, w, d->filled[i - n_watched - d->n_summed], lane);
    } else if (i >= n_watched) {
        quire_packed_sums_add(d, w, d->summed[i - n_watched], &one, lane);
    } else if (i >= d->n_cascades) {
        quire_packed_repeat(d, w, d->repeated[i - d->n_cascades], &one, lane);
    } else if (d->queue == NULL) { /* or else quire_packed_queue_run() has it */
        quire_packed_cascade_run(d, w, &d->cascades[i], &one, lane);
    }
}

/* Attention of the plain sequences, and of a device's queue. Other threads may copy keys. */
static void base_run(quire_packed_device *d, const quire_attn_layer *call, uint32_t index,
                     uint32_t thread, uint32_t n_threads)
{
    if (d->queue == NULL && d->n_plain > 0) {
        d->base.run(d->base.ctx, call, index, thread, n_threads);
    }
    if (d->queue == NULL || thread != 0) {
        return;
    }
    (void)pthread_mutex_lock(&d->queue->lock);
    if (d->n_packed > 0) {
        quire_packed_queue_run(d, call, index, layer_of(d, call));
    } else if (d->n_plain > 0) {
        d->base.run(d->base.ctx, call, index, 0, n_threads);
    }
    (void)pthread_mutex_unlock(&d->queue->lock);
}

static void run(void *ctx, const quire_attn_layer *call, uint32_t index, uint32_t thread,
                uint32_t n_threads)
{
    quire_packed_device *d = ctx;
    uint32_t n_by_head = d->n_cascades + d->n_repeated + d->n_summed + d->n_filled;
    uint32_t n_jobs, l, job;

    if (d->n_packed > 0 && is_windowed(d, call)) {
        window_run(d, call, index, thread, n_threads);
        return;
    }
    base_run(d, call, index, thread, n_threads);
    if (is_windowed(d, call)) {
        return;
    }
    if (n_by_head + d->n_probed == 0 || thread >= d->n_threads) {
        return;
    }
    l = layer_of(d, call);
    n_by_head -= is_last(d, l) ? d->n_filled : 0; /* sync() */
    n_by_head *= d->packing.n_kv_head;
    n_jobs = n_by_head + d->n_probed * call->n_head;
    while ((job = atomic_fetch_add_explicit(&d->jobs[l].next_run, 1, memory_order_relaxed)) <
           n_jobs) {
        if (job < n_by_head) {
            head_job(d, &d->workers[thread], call, l, job);
        } else {
            const uint32_t i = job - n_by_head;

            keep_queries(call, l, d->probed[i / call->n_head], i % call->n_head);
        }
    }
}

/* A step of plain sequences alone, whose rows the host does not look at, is the base's. */
static bool queues(void *ctx)
{
    const quire_packed_device *d = ctx;
    const uint32_t n_looked_at =
        d->n_packed + d->n_probed + d->n_predicted + d->n_repeated + d->n_summed + d->n_filled;

    return n_looked_at == 0 && d->base.queues(d->base.ctx);
}

static void queue(void *ctx, const quire_attn_layer *call, uint32_t index, unsigned what)
{
    const quire_packed_device *d = ctx;

    d->base.queue(d->base.ctx, call, index, what);
}

static int sync_step(void *ctx)
{
    quire_packed_device *d = ctx;
    const uint32_t n_lanes = quire_packing_n_lanes(&d->packing);
    int rc = d->n_plain > 0 || is_queued(d) ? d->base.sync(d->base.ctx) : QUIRE_OK;

    for (uint32_t i = 0; rc == QUIRE_OK && i < d->n_filled_last; i++) {
        for (uint32_t lane = n_lanes - d->packing.n_kv_head; lane < n_lanes; lane++) {
            quire_packed_bound(d, &d->workers[0], &d->filled_last[i], lane);
        }
    }
    d->n_filled_last = 0;
    return rc < 0 ? rc : atomic_load_explicit(&d->status, memory_order_relaxed);
}

static int check(void *ctx, const quire_attn_layer *layer)
{
    const quire_packed_device *d = ctx;

    return d->base.check(d->base.ctx, layer);
}

/* ---- between two steps ---- */

void quire_packed_device_elsewhere_set(quire_packed_device *d,
                                       const quire_packed_elsewhere *elsewhere)
{
    d->elsewhere = elsewhere != NULL ? *elsewhere : (quire_packed_elsewhere){ 0 };
}

size_t quire_packed_device_bounds_bytes(const quire_packed_device *d)
{
    return (size_t)d->packing.n_kv_head * (d->packing.page_tokens / TILE) * d->packing.bounds_bytes;
}

quire_packed_reads quire_packed_device_reads(const quire_packed_device *d)
{
    quire_packed_reads reads = { 0 };

    for (uint32_t i = 0; i < d->n_threads; i++) {
        reads.n_read += d->workers[i].n_read;
        reads.n_held += d->workers[i].n_held;
        reads.n_saved += d->queue == NULL ? quire_attn_saved_splits(d->workers[i].workspace) : 0;
    }
    return reads;
}

quire_attn_device quire_packed_device_get(quire_packed_device *d)
{
    return (quire_attn_device){ .name = d->base.name,
                                .memory = d->base.memory,
                                .ctx = d,
                                .check = check,
                                .plan = plan,
                                .append = append,
                                .run = run,
                                .sync = sync_step,
                                .queues = d->base.queue != NULL ? queues : NULL,
                                .queue = d->base.queue != NULL ? queue : NULL };
}

quire_attn_device quire_packed_device_base(const quire_packed_device *d)
{
    return d->base;
}
