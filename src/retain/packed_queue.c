/* packed_queue.c - jobs of packed_device.h that a device with a queue does. See there.
 *
 *   plan     the whole batch once, so that bytes on their way to its pages come first
 *            (device/device_ahead.h)
 *   append   the plain sequences' rows, then batches of pairs
 *   run      likewise; where all pairs were one batch, and no sequence is plain, by the plan of
 *            append()
 *
 * A pair is a KV head of a sequence. A batch has as many pairs as the device has room for, in
 * sequences and rows.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/packed_device_internal.h"

#include "base/check.h"
#include "retain/kept_lanes_internal.h"

#include <stdlib.h>
#include <string.h>

#define TILE QUIRE_TILE_TOKENS

/* ---- memory ---- */

/* Floats of a row of a pair: q, k, v and out. */
static size_t row_floats(const quire_attn_layer *layer)
{
    return (size_t)(layer->n_head / layer->n_kv_head + 1) * (layer->d_k + layer->d_v);
}

uint64_t quire_packed_queue_bytes(const quire_packed_device_opts *o, uint32_t n_entries_max)
{
    const uint64_t entry = sizeof(quire_page_entry) + sizeof(quire_page_addr);
    const uint64_t pair = sizeof(quire_packed_worker) + sizeof(quire_packed_pair) +
                          sizeof(quire_attn_seq) + n_entries_max * entry;

    return sizeof(quire_packed_queue) + QUIRE_TILE_WINDOW_BYTES + o->n_pairs_max * pair +
           o->n_rows_max * row_floats(&o->packing->layers[0]) * sizeof(float);
}

static int tables_create(const quire_packed_device *d, quire_packed_queue *queue)
{
    for (uint32_t i = 0; i < queue->n_pairs_max; i++) {
        quire_packed_worker *table = &queue->tables[i];

        table->addrs = queue->addrs;
        table->first_page = i * d->n_entries_max;
        QUIRE_TRY(quire_packed_tables_init(table, d->n_entries_max, false));
    }
    return QUIRE_OK;
}

int quire_packed_queue_create(quire_packed_device *d, const quire_packed_device_opts *o)
{
    const quire_attn_layer *layer = &d->packing.layers[0];
    const size_t n_rows = o->n_rows_max, q_floats = (size_t)d->group * layer->d_k;
    quire_packed_queue *queue = d->queue = calloc(1, sizeof *queue);

    QUIRE_FAIL_IF(queue == NULL, QUIRE_NOMEM);
    QUIRE_CHECK(o->memory != NULL && !quire_packing_is_sealed(&d->packing) &&
                d->packing.window_group == 0 && d->packing.bounds_bytes == 0);
    (void)pthread_mutex_init(&queue->lock, NULL);
    queue->memory = *o->memory;
    queue->n_rows_max = o->n_rows_max;
    queue->tables = calloc(o->n_pairs_max, sizeof *queue->tables);
    QUIRE_FAIL_IF(queue->tables == NULL, QUIRE_NOMEM);
    queue->n_pairs_max = o->n_pairs_max;
    queue->addrs = calloc(1 + (size_t)o->n_pairs_max * d->n_entries_max, sizeof *queue->addrs);
    queue->pairs = calloc(o->n_pairs_max, sizeof *queue->pairs);
    queue->seqs = calloc(o->n_pairs_max, sizeof *queue->seqs);
    queue->q = malloc(n_rows * q_floats * sizeof *queue->q);
    queue->k = malloc(n_rows * layer->d_k * sizeof *queue->k);
    queue->v = malloc(n_rows * layer->d_v * sizeof *queue->v);
    queue->out = malloc(n_rows * d->group * layer->d_v * sizeof *queue->out);
    QUIRE_FAIL_IF(queue->addrs == NULL || queue->pairs == NULL || queue->seqs == NULL ||
                      queue->q == NULL || queue->k == NULL || queue->v == NULL ||
                      queue->out == NULL,
                  QUIRE_NOMEM);
    QUIRE_TRY(tables_create(d, queue));
    return quire_packed_window_init(&queue->keys, &d->packing, &queue->memory, false,
                                    &queue->status);
}

void quire_packed_queue_destroy(quire_packed_queue *queue)
{
    if (queue == NULL) {
        return;
    }
    quire_tile_window_end(&queue->keys.window);
    for (uint32_t i = 0; i < queue->n_pairs_max; i++) {
        quire_packed_tables_fini(&queue->tables[i]);
    }
    free(queue->out);
    free(queue->v);
    free(queue->k);
    free(queue->q);
    free(queue->seqs);
    free(queue->pairs);
    free(queue->addrs);
    free(queue->tables);
    (void)pthread_mutex_destroy(&queue->lock);
    free(queue);
}

/* ---- plans ---- */

static void failed(quire_packed_device *d, int status)
{
    atomic_store_explicit(&d->status, status, memory_order_relaxed);
}

static bool is_well(const quire_packed_device *d)
{
    return atomic_load_explicit(&d->status, memory_order_relaxed) == QUIRE_OK;
}

int quire_packed_queue_plan(quire_packed_device *d)
{
    d->queue->has_plain = d->queue->has_queued = false;
    d->queue->n_ready = 0;
    d->queue->status = QUIRE_OK;
    return d->base.plan(d->base.ctx, &d->batch);
}

/* Give the device the plan of the plain sequences. Returns whether there are some. */
static bool plain_plan(quire_packed_device *d)
{
    quire_attn_batch plain = d->batch;
    int rc;

    if (d->n_plain == 0 || !is_well(d) || d->queue->has_plain) {
        return d->n_plain > 0 && is_well(d);
    }
    plain.seqs = d->plain;
    plain.n_seqs = d->n_plain;
    rc = d->base.plan(d->base.ctx, &plain);
    if (rc < 0) {
        failed(d, rc);
    }
    d->queue->has_plain = rc == QUIRE_OK;
    return d->queue->has_plain;
}

static void pairs_plan(quire_packed_device *d)
{
    const quire_packed_queue *queue = d->queue;
    const quire_attn_batch batch = { .seqs = queue->seqs,
                                     .n_seqs = queue->n_pairs,
                                     .page_tokens = TILE,
                                     .page_addr = queue->addrs };
    const int rc = d->base.plan(d->base.ctx, &batch);

    if (rc < 0) {
        failed(d, rc);
    }
}

/* ---- a batch of pairs ---- */

/* Rows of n floats of a head behind the rows that were taken before. */
static void rows_take(const quire_packed_queue *queue, const quire_packed_pair *pair,
                      const float *from, size_t stride, size_t n, float *to)
{
    for (uint32_t i = 0; from != NULL && i < pair->seq->n_rows; i++) {
        memcpy(to + (queue->n_rows + i) * n,
               from + (pair->seq->first_row + i) * stride + pair->head * n, n * sizeof *to);
    }
}

/* The layer of one head, with the rows of all pairs. */
static quire_attn_layer layer_of(quire_packed_device *d, const quire_attn_layer *call, uint32_t l)
{
    quire_packed_queue *queue = d->queue;
    quire_attn_layer one = d->heads[l];

    one.q_stride = (size_t)d->group * one.d_k;
    one.k_new_stride = one.d_k;
    one.v_new_stride = one.d_v;
    one.out_stride = (size_t)d->group * one.d_v;
    queue->n_rows = 0;
    for (uint32_t i = 0; i < queue->n_pairs; i++) {
        const quire_packed_pair *pair = &queue->pairs[i];

        rows_take(queue, pair, call->q[0], call->q_stride, one.q_stride, queue->q);
        rows_take(queue, pair, call->k_new, call->k_new_stride, one.d_k, queue->k);
        rows_take(queue, pair, call->v_new, call->v_new_stride, one.d_v, queue->v);
        queue->n_rows += pair->seq->n_rows;
    }
    one.q[0] = call->q[0] != NULL ? queue->q : NULL;
    one.k_new = call->k_new != NULL ? queue->k : NULL;
    one.v_new = call->v_new != NULL ? queue->v : NULL;
    one.out = call->out != NULL ? queue->out : NULL;
    return one;
}

/* The results of all pairs to their rows. */
static void rows_give(const quire_packed_device *d, const quire_attn_layer *call, size_t n)
{
    const float *from = d->queue->out;

    for (uint32_t p = 0; p < d->queue->n_pairs; p++) {
        const quire_packed_pair *pair = &d->queue->pairs[p];

        for (uint32_t i = 0; i < pair->seq->n_rows; i++, from += n) {
            memcpy(call->out + (pair->seq->first_row + i) * call->out_stride + pair->head * n, from,
                   n * sizeof *from);
        }
    }
}

/* Do the planned pairs. */
static void pairs_do(quire_packed_device *d, const quire_attn_layer *call, uint32_t l, bool is_run)
{
    const quire_attn_layer one = layer_of(d, call, l);

    if (!is_well(d)) {
        return;
    }
    if (is_run) {
        d->base.run(d->base.ctx, &one, 0, 0, 1);
        rows_give(d, call, one.out_stride);
        d->queue->has_queued = false;
    } else {
        d->base.append(d->base.ctx, &one, 0, 1);
        d->queue->has_queued = true;
    }
}

/* The first pair of a batch: the device has done with the tables of the one before. */
static void pairs_begin(quire_packed_device *d)
{
    const int rc = d->queue->has_queued ? d->base.sync(d->base.ctx) : QUIRE_OK;

    if (rc < 0) {
        failed(d, rc);
    }
    d->queue->has_queued = false;
    d->queue->n_pairs = d->queue->n_rows = 0;
}

/* Do the pairs so far, and begin a batch anew. */
static void pairs_flush(quire_packed_device *d, const quire_attn_layer *call, uint32_t l,
                        bool is_run)
{
    if (d->queue->n_pairs > 0 && is_well(d)) {
        pairs_plan(d);
        pairs_do(d, call, l, is_run);
    }
    pairs_begin(d);
}

static void pair_add(quire_packed_device *d, const quire_attn_seq *seq, uint32_t l, uint32_t head)
{
    quire_packed_queue *queue = d->queue;
    quire_packed_worker *table = &queue->tables[queue->n_pairs];

    quire_packed_tiles_fill(d, table, seq, l * d->packing.n_kv_head + head, false);
    table->seq.first_row = queue->n_rows;
    queue->seqs[queue->n_pairs] = table->seq;
    queue->pairs[queue->n_pairs++] = (quire_packed_pair){ seq, head };
    queue->n_rows += seq->n_rows;
}

static void pairs_all(quire_packed_device *d, const quire_attn_layer *call, uint32_t l, bool is_run)
{
    quire_packed_queue *queue = d->queue;
    bool is_one = d->n_plain == 0;

    queue->has_plain = false;
    pairs_begin(d);
    for (uint32_t i = 0; i < d->n_packed * d->packing.n_kv_head; i++) {
        const quire_attn_seq *seq = d->packed[i / d->packing.n_kv_head];

        if (queue->n_pairs == queue->n_pairs_max ||
            queue->n_rows + seq->n_rows > queue->n_rows_max) {
            pairs_flush(d, call, l, is_run);
            is_one = false;
        }
        pair_add(d, seq, l, i % d->packing.n_kv_head);
    }
    if (is_well(d)) {
        pairs_plan(d);
        pairs_do(d, call, l, is_run);
    }
    queue->n_ready = is_one && is_well(d) ? l + 1 : 0;
}

void quire_packed_queue_append(quire_packed_device *d, const quire_attn_layer *call, uint32_t l)
{
    if (plain_plan(d)) {
        d->base.append(d->base.ctx, call, 0, 1);
    }
    pairs_all(d, call, l, false);
}

void quire_packed_queue_run(quire_packed_device *d, const quire_attn_layer *call, uint32_t index,
                            uint32_t l)
{
    if (plain_plan(d)) {
        d->base.run(d->base.ctx, call, index, 0, 1);
    }
    if (d->queue->n_ready == l + 1) {
        pairs_do(d, call, l, true);
        d->queue->n_ready = 0;
    } else {
        pairs_all(d, call, l, true);
    }
}
