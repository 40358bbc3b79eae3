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
    const uint64_t pair = sizeof(quire_packed_pair) + sizeof(quire_attn_seq);

    return sizeof(quire_packed_queue) + QUIRE_TILE_WINDOW_BYTES + o->n_pairs_max * pair +
           quire_packed_tables_bytes(o->packing, n_entries_max, o->n_pairs_max) +
           o->n_rows_max * row_floats(&o->packing->layers[0]) * sizeof(float);
}

int quire_packed_queue_create(quire_packed_device *d, const quire_packed_device_opts *o)
{
    const quire_attn_layer *layer = &d->packing.layers[0];
    const size_t n_rows = o->n_rows_max, q_floats = (size_t)d->group * layer->d_k;
    quire_packed_queue *queue = d->queue = calloc(1, sizeof *queue);

    QUIRE_FAIL_IF(queue == NULL, QUIRE_NOMEM);
    QUIRE_CHECK(o->memory != NULL && d->packing.page_tokens == TILE);
    (void)pthread_mutex_init(&queue->lock, NULL);
    queue->memory = *o->memory;
    queue->n_rows_max = o->n_rows_max;
    queue->n_pairs_max = o->n_pairs_max;
    QUIRE_TRY(quire_packed_tables_create(d, o->n_pairs_max, &queue->tables, &queue->addrs));
    queue->pairs = calloc(o->n_pairs_max, sizeof *queue->pairs);
    queue->seqs = calloc(o->n_pairs_max, sizeof *queue->seqs);
    queue->q = malloc(n_rows * q_floats * sizeof *queue->q);
    queue->k = malloc(n_rows * layer->d_k * sizeof *queue->k);
    queue->v = malloc(n_rows * layer->d_v * sizeof *queue->v);
    queue->out = malloc(n_rows * d->group * layer->d_v * sizeof *queue->out);
    QUIRE_FAIL_IF(queue->pairs == NULL || queue->seqs == NULL || queue->q == NULL ||
                      queue->k == NULL || queue->v == NULL || queue->out == NULL,
                  QUIRE_NOMEM);
    return quire_packed_window_init(&queue->keys, &d->packing, &queue->memory, false,
                                    &queue->status);
}

void quire_packed_queue_destroy(quire_packed_queue *queue)
{
    if (queue == NULL) {
        return;
    }
    quire_tile_window_end(&queue->keys.window);
    quire_packed_tables_destroy(queue->tables, queue->n_pairs_max, queue->addrs);
    free(queue->out);
    free(queue->v);
    free(queue->k);
    free(queue->q);
    free(queue->seqs);
    free(queue->pairs);
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
    d->queue->planned = QUIRE_PACKED_ALL;
    d->queue->has_queued = false;
    d->queue->n_ready = 0;
    d->queue->status = QUIRE_OK;
    return d->base.plan(d->base.ctx, &d->batch);
}

/* Give the device a plan of sequences as they came. Returns whether it has it. */
static bool seqs_plan(quire_packed_device *d, quire_packed_planned what, const quire_attn_seq *seqs,
                      uint32_t n)
{
    quire_attn_batch batch = d->batch;
    int rc;

    if (!is_well(d) || d->queue->planned == what) {
        return is_well(d);
    }
    batch.seqs = seqs;
    batch.n_seqs = n;
    rc = d->base.plan(d->base.ctx, &batch);
    if (rc < 0) {
        failed(d, rc);
    }
    d->queue->planned = what;
    return rc == QUIRE_OK;
}

/* Returns whether there are plain sequences. */
static bool plain_plan(quire_packed_device *d)
{
    return d->n_plain > 0 && seqs_plan(d, QUIRE_PACKED_PLAIN, d->plain, d->n_plain);
}

bool quire_packed_queue_all(quire_packed_device *d)
{
    return seqs_plan(d, QUIRE_PACKED_ALL, d->batch.seqs, d->batch.n_seqs);
}

static void pairs_plan(quire_packed_device *d)
{
    const quire_packed_queue *queue = d->queue;
    const quire_attn_batch batch = { .seqs = queue->seqs,
                                     .n_seqs = queue->n_pairs,
                                     .page_tokens = TILE,
                                     .page_addr = queue->addrs };
    const int rc = d->base.plan(d->base.ctx, &batch);

    d->queue->planned = QUIRE_PACKED_PAIRS;
    if (rc < 0) {
        failed(d, rc);
    }
}

/* ---- a batch of pairs ---- */

/* Rows of n floats of a head behind the rows that were taken before. */
static void rows_take(const quire_packed_queue *queue, const quire_packed_pair *pair,
                      const float *from, size_t stride, size_t n, float *to)
{
    for (uint32_t i = 0; from != NULL && i < pair->seq.n_rows; i++) {
        memcpy(to + (queue->n_rows + i) * n,
               from + (pair->seq.first_row + i) * stride + pair->head * n, n * sizeof *to);
    }
}

/* The layer of one head, with the rows of all pairs. */
static quire_attn_layer layer_of(quire_packed_device *d, const quire_attn_layer *call, uint32_t l)
{
    quire_packed_queue *queue = d->queue;
    quire_attn_layer one = d->heads[l];

    one.sink_tiles = queue->sink_tiles;
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
        queue->n_rows += pair->seq.n_rows;
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

        for (uint32_t i = 0; i < pair->seq.n_rows; i++, from += n) {
            memcpy(call->out + (pair->seq.first_row + i) * call->out_stride + pair->head * n, from,
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
    d->queue->lead = UINT32_MAX;
    if (d->queue->n_pairs > 0 && is_well(d)) {
        pairs_plan(d);
        pairs_do(d, call, l, is_run);
    }
    pairs_begin(d);
}

/* A layer at hand. */
typedef struct layer_work {
    const quire_attn_layer *call;
    uint32_t l;
    bool is_run; /* else append */
} layer_work;

/* The table of the next pair, whose rows are those of a sequence; a batch that is full goes first.
 */
static quire_packed_table *pair_begin(quire_packed_device *d, const layer_work *work,
                                      const quire_attn_seq *seq)
{
    const quire_packed_queue *queue = d->queue;

    if (queue->n_pairs == queue->n_pairs_max || queue->n_rows + seq->n_rows > queue->n_rows_max) {
        pairs_flush(d, work->call, work->l, work->is_run);
        d->queue->is_one = false;
    }
    return &queue->tables[queue->n_pairs];
}

static void pair_end(quire_packed_queue *queue, const quire_attn_seq *seq, uint32_t head)
{
    quire_packed_table *table = &queue->tables[queue->n_pairs];

    table->seq.first_row = queue->n_rows;
    queue->seqs[queue->n_pairs] = table->seq;
    queue->pairs[queue->n_pairs++] = (quire_packed_pair){ *seq, head };
    queue->n_rows += seq->n_rows;
}

/* Rows that read all tiles of a KV head. The device knows tiles by their pages: those of the
 * cascade's first sequence have the same ones. */
static void pair_add(quire_packed_device *d, const layer_work *work, const quire_attn_seq *seq,
                     uint32_t head)
{
    quire_packed_table *table = pair_begin(d, work, seq);
    const uint32_t lead = d->queue->lead;
    const bool has_lead = lead != UINT32_MAX && lead + head < d->queue->n_pairs;

    quire_packed_tiles_fill(d, table, has_lead ? &d->queue->tables[lead + head] : NULL, seq,
                            work->l * d->packing.n_kv_head + head, false);
    pair_end(d->queue, seq, head);
}

/* Rows from n_dense on of a sequence, each with the tiles of a KV head that it chooses. Thread 0
 * has no other use for the ranks of its worker now. */
static void choosing_add(quire_packed_device *d, const layer_work *work, const quire_attn_seq *seq,
                         uint32_t n_dense, uint32_t head)
{
    const uint32_t lane = work->l * d->packing.n_kv_head + head;
    const quire_attn_layer one = quire_lane_call(&d->heads[work->l], work->call, d->group, head);
    quire_packed_worker *chooser = &d->workers[0];

    for (uint32_t i = n_dense; i < seq->n_rows; i++) {
        const quire_attn_seq row = quire_packed_rows_of(seq, i, 1);
        const uint32_t n = quire_packed_row_choose(d, chooser, &row, &one, lane);
        quire_packed_table *table = pair_begin(d, work, &row);

        quire_packed_tiles_fill_on(d, table, &row, lane, chooser->ranks, n);
        pair_end(d->queue, &row, head);
    }
}

/* Whether some rows of a sequence choose pages now. */
static bool is_choosing(const quire_packed_device *d, const layer_work *work,
                        const quire_attn_seq *seq, uint32_t *n_dense)
{
    *n_dense = quire_packed_n_dense(d, seq, work->l * d->packing.n_kv_head);
    return work->is_run && *n_dense < seq->n_rows;
}

/* The first tiles of a text that attends to a share may be read hot, those of packed ones not: a
 * batch has one of both. */
static void form_begin(quire_packed_device *d, const layer_work *work, const quire_attn_seq *seq)
{
    const uint32_t sink_tiles =
        quire_packed_attends(seq) && quire_packing_is_sealed(&d->packing) ? d->sink_tiles : 0;

    if (d->queue->n_pairs > 0 && sink_tiles != d->queue->sink_tiles) {
        pairs_flush(d, work->call, work->l, work->is_run);
        d->queue->is_one = false;
    }
    d->queue->sink_tiles = sink_tiles;
}

static void seq_add(quire_packed_device *d, const layer_work *work, const quire_attn_seq *seq)
{
    uint32_t n_dense;
    int rc;

    form_begin(d, work, seq);
    if (!is_choosing(d, work, seq, &n_dense)) {
        d->queue->lead = d->queue->lead == UINT32_MAX ? d->queue->n_pairs : d->queue->lead;
        for (uint32_t g = 0; g < d->packing.n_kv_head; g++) {
            pair_add(d, work, seq, g);
        }
        return;
    }
    rc = is_well(d) ? quire_packed_mirror_fetch(d, seq, work->l) : QUIRE_OK;
    if (rc < 0) {
        failed(d, rc);
    }
    for (uint32_t g = 0; g < d->packing.n_kv_head && is_well(d); g++) {
        if (n_dense > 0) {
            const quire_attn_seq dense = quire_packed_rows_of(seq, 0, n_dense);

            pair_add(d, work, &dense, g);
        }
        choosing_add(d, work, seq, n_dense, g);
    }
}

static void pairs_all(quire_packed_device *d, const layer_work *work)
{
    quire_packed_queue *queue = d->queue;

    queue->is_one = d->n_plain == 0;
    pairs_begin(d);
    for (uint32_t i = 0; i < d->n_cascades; i++) {
        const quire_packed_cascade *cascade = &d->cascades[i];

        queue->lead = UINT32_MAX;
        for (uint32_t k = 0; k < cascade->n_seqs; k++) {
            seq_add(d, work, d->packed[cascade->first + k]);
        }
    }
    if (is_well(d)) {
        pairs_plan(d);
        pairs_do(d, work->call, work->l, work->is_run);
    }
}

/* Whether run() of a layer can go by the plan of its append(). */
static bool is_ready(const quire_packed_device *d, uint32_t l)
{
    const layer_work work = { .l = l, .is_run = true };
    uint32_t n_dense;

    for (uint32_t i = 0; i < d->n_packed; i++) {
        if (is_choosing(d, &work, d->packed[i], &n_dense)) {
            return false;
        }
    }
    return d->queue->is_one && is_well(d);
}

void quire_packed_queue_append(quire_packed_device *d, const quire_attn_layer *call, uint32_t l)
{
    const layer_work work = { call, l, false };

    if (plain_plan(d)) {
        d->base.append(d->base.ctx, call, 0, 1);
    }
    pairs_all(d, &work);
    d->queue->n_ready = is_ready(d, l) ? l + 1 : 0;
    for (uint32_t i = 0; i < d->n_packed; i++) {
        for (uint32_t g = 0; g < d->packing.n_kv_head; g++) {
            quire_packed_bound(d, &d->workers[0], d->packed[i], l * d->packing.n_kv_head + g);
        }
    }
}

void quire_packed_queue_run(quire_packed_device *d, const quire_attn_layer *call, uint32_t index,
                            uint32_t l)
{
    const layer_work work = { call, l, true };

    if (plain_plan(d)) {
        d->base.run(d->base.ctx, call, index, 0, 1);
    }
    if (d->queue->n_ready == l + 1) {
        pairs_do(d, call, l, true);
    } else {
        pairs_all(d, &work);
    }
    d->queue->n_ready = 0;
}
