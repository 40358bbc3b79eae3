/* kept_lanes_device.c - lanes whose pages lie in the memory of a device.
 *
 *   step         layer by layer the device below gets a batch of its own: a sequence for each KV
 *                head, with the table of its lane. Rows come to it head by head
 *   watching     of policies that look at the attention of rows: thread 0 brings the keys of one
 *                head after the other, and the other threads compute meanwhile
 *   condensing   tiles pass the host's memory through windows (core/pool/tile_window.h), as keys
 *                that are watched do
 *
 * The kernels see one head of a lane as the CPU's workspaces do, so a device with the CPU's kernels
 * gives the same bits.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define TILE QUIRE_TILE_TOKENS

/* The rows of a step as the device below gets them: of one KV head after the other. */
struct lane_rows {
    quire_attn_seq *seqs; /* [n_kv_head] */
    float *q;             /* [n_kv_head][n_rows_max][group][d_k] */
    float *k;             /* [n_kv_head][n_rows_max][d_k] */
    float *v;             /* [n_kv_head][n_rows_max][d_v] */
    float *out;           /* [n_kv_head][n_rows_max][group][d_v] */
    int32_t *positions;   /* [1 + capacity] lists of the layer at hand */
    float *biases;        /* [1 + capacity] beside them; NULL: nothing is fitted */
    size_t capacity;
    pthread_mutex_t lock; /* of n_gathered of the layers */
    pthread_cond_t has_gathered;
};

/* ---- memory ---- */

static uint64_t row_floats(const quire_attn_layer *layer)
{
    return (uint64_t)layer->n_head * (layer->d_k + layer->d_v) +
           (uint64_t)layer->n_kv_head * (layer->d_k + layer->d_v);
}

uint64_t quire_lanes_device_bytes(const quire_lanes_opts *o)
{
    return o->is_on_device ? sizeof(struct lane_rows) + sizeof(lane_windows) +
                                 N_LANE_USES * QUIRE_TILE_WINDOW_BYTES +
                                 o->n_rows_max * row_floats(&o->layers[0]) * sizeof(float)
                           : 0;
}

int quire_lanes_device_create(quire_lanes *lanes, const quire_lanes_opts *o)
{
    const quire_attn_layer *layer = &o->layers[0];
    const size_t n_rows = (size_t)layer->n_kv_head * o->n_rows_max;
    struct lane_rows *rows;

    if (!o->is_on_device) {
        return QUIRE_OK;
    }
    QUIRE_CHECK(o->memory != NULL && o->base != NULL);
    lanes->memory = *o->memory;
    lanes->base = *o->base;
    rows = lanes->rows = calloc(1, sizeof *rows);
    QUIRE_FAIL_IF(rows == NULL, QUIRE_NOMEM);
    (void)pthread_mutex_init(&rows->lock, NULL);
    (void)pthread_cond_init(&rows->has_gathered, NULL);
    lanes->windows = calloc(1, sizeof *lanes->windows);
    rows->seqs = calloc(layer->n_kv_head, sizeof *rows->seqs);
    rows->q = malloc(n_rows * lanes->group * layer->d_k * sizeof *rows->q);
    rows->k = malloc(n_rows * layer->d_k * sizeof *rows->k);
    rows->v = malloc(n_rows * layer->d_v * sizeof *rows->v);
    rows->out = calloc(n_rows * lanes->group * layer->d_v, sizeof *rows->out);
    return lanes->windows != NULL && rows->seqs != NULL && rows->q != NULL && rows->k != NULL &&
                   rows->v != NULL && rows->out != NULL
               ? QUIRE_OK
               : QUIRE_NOMEM;
}

void quire_lanes_device_destroy(quire_lanes *lanes)
{
    struct lane_rows *rows = lanes->rows;

    for (uint32_t i = 0; lanes->windows != NULL && i < N_LANE_USES; i++) {
        quire_tile_window_end(&lanes->windows->of[i].window);
    }
    if (rows != NULL) {
        (void)pthread_cond_destroy(&rows->has_gathered);
        (void)pthread_mutex_destroy(&rows->lock);
        free(rows->biases);
        free(rows->positions);
        free(rows->out);
        free(rows->v);
        free(rows->k);
        free(rows->q);
        free(rows->seqs);
    }
    free(rows);
    free(lanes->windows);
    lanes->rows = NULL;
}

/* ---- a step ---- */

/* Room for the lists of a layer's lanes. */
static int lists_reserve(struct lane_rows *rows, size_t n, bool has_biases)
{
    int32_t *positions;
    float *biases;

    if (n <= rows->capacity) {
        return QUIRE_OK;
    }
    n += n / 4;
    positions = realloc(rows->positions, (1 + n) * sizeof *positions);
    QUIRE_FAIL_IF(positions == NULL, QUIRE_NOMEM);
    rows->positions = positions;
    if (has_biases) {
        biases = realloc(rows->biases, (1 + n) * sizeof *biases);
        QUIRE_FAIL_IF(biases == NULL, QUIRE_NOMEM);
        rows->biases = biases;
    }
    rows->capacity = n;
    return QUIRE_OK;
}

/* The lists of the entries of head g, behind the first `at` places. Returns the places taken. */
static size_t lists_put(quire_lanes *lanes, const lane_state *lane, uint32_t g, uint32_t n_entries,
                        size_t at)
{
    lane_head *head = &lanes->heads[g];

    for (uint32_t i = 0; i < n_entries; i++) {
        quire_page_entry *entry = &head->entries[i];

        if (entry->positions != 0) {
            memcpy(lanes->rows->positions + at, lane->positions + entry->positions,
                   entry->n_tokens * sizeof(int32_t));
            if (lane->biases != NULL) {
                memcpy(lanes->rows->biases + at, lane->biases + entry->positions,
                       entry->n_tokens * sizeof(float));
            }
            entry->positions = (uint32_t)at;
            at += entry->n_tokens;
        }
        if (lanes->hot_bytes > 0) {
            head->hot_entries[i].positions = entry->positions;
        }
    }
    return at;
}

/* Choose the entries that a part's rows read of head g; returns their number. call: NULL: all. */
static uint32_t part_entries(quire_lanes *lanes, const quire_attn_layer *call, uint32_t l,
                             uint32_t g, lane_part *part)
{
    const lane_state *lane = quire_lane_at(lanes, l, g);

    if (call == NULL) {
        part->n_entries = quire_lane_entries_until(lanes, lane, g, part->end);
    } else {
        const quire_attn_layer one = quire_lane_call(&lanes->layers[l].one, call, lanes->group, g);

        part->n_entries = quire_lane_entries_choose(lanes, &one, lane, g, part->first);
    }
    return part->n_entries;
}

/* The batch of a layer: rows of a part, which choose pages by their queries where a call is given.
 */
static int plan_part(quire_lanes *lanes, const quire_attn_layer *call, uint32_t l, lane_part *part)
{
    struct lane_rows *rows = lanes->rows;
    quire_attn_batch batch = { .seqs = rows->seqs,
                               .n_seqs = lanes->n_kv_head,
                               .page_tokens = TILE,
                               .page_addr = quire_cache_page_addrs(lanes->cache) };
    size_t n = 0, at = 1; /* no list begins at 0 */

    for (uint32_t g = 0; g < lanes->n_kv_head; g++) {
        n += lanes->layers[l].is_windowed ? 0 : quire_lane_at(lanes, l, g)->n;
    }
    QUIRE_TRY(lists_reserve(rows, n, lanes->spec.merges));
    for (uint32_t g = 0; g < lanes->n_kv_head; g++) {
        const uint32_t n_entries = part_entries(lanes, call, l, g, part);

        at = lists_put(lanes, quire_lane_at(lanes, l, g), g, n_entries, at);
        rows->seqs[g] = quire_lane_seq_of(lanes, g, part);
        rows->seqs[g].first_row = g * (part->end - part->first);
    }
    batch.positions = at > 1 ? rows->positions : NULL;
    batch.biases = at > 1 ? rows->biases : NULL;
    return lanes->base.plan(lanes->base.ctx, &batch);
}

/* A part's rows of n floats, of one head after those of the other. */
static void gather(const quire_lanes *lanes, const lane_part *part, const float *from,
                   size_t stride, size_t n, float *to)
{
    for (uint32_t g = 0; g < lanes->n_kv_head; g++) {
        for (uint32_t i = part->first; i < part->end; i++, to += n) {
            memcpy(to, from + (lanes->first_row + i) * stride + g * n, n * sizeof *to);
        }
    }
}

/* The layer of one head, on the rows as the device gets them. */
static quire_attn_layer layer_of(const quire_lanes *lanes, uint32_t l, const quire_attn_layer *call,
                                 const lane_part *part)
{
    const struct lane_rows *rows = lanes->rows;
    quire_attn_layer one = lanes->layers[l].one;

    one.q_stride = (size_t)lanes->group * one.d_k;
    one.k_new_stride = one.d_k;
    one.v_new_stride = one.d_v;
    one.out_stride = (size_t)lanes->group * one.d_v;
    one.q[0] = call->q[0] != NULL ? rows->q : NULL;
    one.k_new = call->k_new != NULL ? rows->k : NULL;
    one.v_new = call->v_new != NULL ? rows->v : NULL;
    one.out = call->out != NULL ? rows->out : NULL;
    if (call->q[0] != NULL) {
        gather(lanes, part, call->q[0], call->q_stride, one.q_stride, rows->q);
    }
    if (call->k_new != NULL) {
        gather(lanes, part, call->k_new, call->k_new_stride, one.d_k, rows->k);
    }
    if (call->v_new != NULL) {
        gather(lanes, part, call->v_new, call->v_new_stride, one.d_v, rows->v);
    }
    return one;
}

/* Of a layer's heads alike: a batch has no other ones. */
static bool has_own(const quire_attn_layer *call)
{
    return call->sinks != NULL || call->v_gate[0] != NULL;
}

/* Bounds of the pages that the rows of the step have filled. */
static int bound_layer(quire_lanes *lanes, uint32_t l)
{
    if (!quire_lanes_attends(lanes) || lanes->layers[l].is_windowed) {
        return QUIRE_OK;
    }
    quire_lanes_windows_begin(lanes);
    for (uint32_t g = 0; g < lanes->n_kv_head; g++) {
        lane_state *lane = quire_lane_at(lanes, l, g);

        quire_lane_bound(lanes, lane, lane->n - lanes->n_rows);
    }
    quire_lanes_windows_end(lanes);
    return quire_lanes_windows_status(lanes);
}

void quire_lanes_device_append(quire_lanes *lanes, const quire_attn_layer *call, uint32_t l)
{
    lane_part all = { 0, lanes->n_rows, 0 };
    int rc = has_own(call) ? QUIRE_UNSUPP : atomic_load(&lanes->status);

    rc = rc == QUIRE_OK ? plan_part(lanes, NULL, l, &all) : rc;
    if (rc == QUIRE_OK) {
        const quire_attn_layer one = layer_of(lanes, l, call, &all);

        lanes->base.append(lanes->base.ctx, &one, 0, 1);
        rc = bound_layer(lanes, l);
    }
    if (rc < 0) {
        atomic_store(&lanes->status, rc);
    }
}

/* Attention of a part's rows, which are planned. */
static void run_part(quire_lanes *lanes, const quire_attn_layer *call, uint32_t l,
                     const lane_part *part)
{
    const quire_attn_layer one = layer_of(lanes, l, call, part);
    const size_t n = one.out_stride;
    const float *from = lanes->rows->out;

    lanes->base.run(lanes->base.ctx, &one, 0, 0, 1);
    for (uint32_t g = 0; g < lanes->n_kv_head; g++) {
        for (uint32_t i = part->first; i < part->end; i++, from += n) {
            memcpy(call->out + (lanes->first_row + i) * call->out_stride + g * n, from,
                   n * sizeof *from);
        }
    }
}

/* First the rows that read all pages; then row by row the others, each with its chosen pages. */
static int run_choosing(quire_lanes *lanes, const quire_attn_layer *call, uint32_t l)
{
    lane_part part = { 0, quire_lanes_n_dense(lanes, l), 0 };

    QUIRE_TRY(lanes->base.sync(lanes->base.ctx)); /* append() has the tables that change now */
    if (part.end > 0) {
        QUIRE_TRY(plan_part(lanes, NULL, l, &part));
        run_part(lanes, call, l, &part);
    }
    while (part.end < lanes->n_rows) {
        part.first = part.end++;
        QUIRE_TRY(plan_part(lanes, call, l, &part));
        run_part(lanes, call, l, &part);
    }
    return QUIRE_OK;
}

/* Bring the keys that the heads of a layer watch, head by head. */
static void gather_watched(quire_lanes *lanes, uint32_t l)
{
    struct lane_rows *rows = lanes->rows;

    quire_lanes_windows_begin(lanes);
    for (uint32_t g = 0; g < lanes->n_kv_head; g++) {
        int rc = atomic_load(&lanes->status);

        if (rc == QUIRE_OK) {
            quire_lanes_watch_gather(lanes, l, g);
            rc = quire_lanes_windows_status(lanes);
            if (rc < 0) {
                atomic_store(&lanes->status, rc);
            }
        }
        (void)pthread_mutex_lock(&rows->lock);
        lanes->layers[l].n_gathered = g + 1;
        (void)pthread_cond_broadcast(&rows->has_gathered);
        (void)pthread_mutex_unlock(&rows->lock);
    }
    quire_lanes_windows_end(lanes);
}

void quire_lanes_device_keys_wait(const quire_lanes *lanes, uint32_t l, uint32_t g)
{
    struct lane_rows *rows = lanes->rows;

    (void)pthread_mutex_lock(&rows->lock);
    while (lanes->layers[l].n_gathered <= g) {
        (void)pthread_cond_wait(&rows->has_gathered, &rows->lock);
    }
    (void)pthread_mutex_unlock(&rows->lock);
}

void quire_lanes_device_run(quire_lanes *lanes, const quire_attn_layer *call, uint32_t l)
{
    const lane_part all = { 0, lanes->n_rows, 0 };
    int rc = atomic_load(&lanes->status);

    if (rc == QUIRE_OK && quire_lanes_chooses(lanes, l)) {
        rc = run_choosing(lanes, call, l);
    } else if (rc == QUIRE_OK) {
        run_part(lanes, call, l, &all);
    }
    if (rc < 0) {
        atomic_store(&lanes->status, rc);
    }
    if (quire_lanes_watches(lanes) && !lanes->layers[l].is_windowed) {
        gather_watched(lanes, l);
    }
}

int quire_lanes_device_sync(const quire_lanes *lanes)
{
    return lanes->base.sync(lanes->base.ctx);
}

/* ---- tiles ---- */

/* A quire_tile_run.at: the tile of an entry. A window that reads ahead may pass hot pages that were
 * given back: it reads another page there. */
static unsigned char *tile_at(const void *ctx, uint32_t i)
{
    const lane_window *w = ctx;
    unsigned char *page = quire_lane_page_of(w->lanes, &w->table, i, w->page_bytes);

    if (page == NULL) {
        page = quire_lane_page_of(w->lanes, &w->table, w->table.n_entries - 1, w->page_bytes);
    }
    return page + w->offset;
}

static void window_put(lane_window *w, const lane_tiles *tiles)
{
    const quire_tile_run run = {
        .at = tile_at, .ctx = w, .bytes = tiles->bytes, .n_heads = 1, .n = tiles->table->n_entries
    };

    w->table = *tiles->table;
    w->page_bytes = tiles->page_bytes;
    w->offset = tiles->offset;
    quire_tile_window_put(&w->window, &run);
}

static bool is_on(const lane_window *w, const lane_tiles *tiles)
{
    return w->table.leaves == tiles->table->leaves &&
           w->table.n_entries == tiles->table->n_entries && w->offset == tiles->offset &&
           w->page_bytes == tiles->page_bytes && w->window.run.bytes == tiles->bytes;
}

unsigned char *quire_lane_tile_at(const quire_lanes *lanes, const lane_tiles *tiles, lane_use use,
                                  uint32_t i)
{
    lane_window *w;

    if (lanes->rows == NULL) {
        return quire_lane_page_of(lanes, tiles->table, i, tiles->page_bytes) + tiles->offset;
    }
    w = &lanes->windows->of[use];
    if (!is_on(w, tiles)) {
        window_put(w, tiles);
    }
    return quire_tile_window_at(&w->window, i, 0);
}

int quire_lanes_windows_create(quire_lanes *lanes)
{
    lane_windows *windows = lanes->windows;

    for (uint32_t i = 0; lanes->rows != NULL && i < N_LANE_USES; i++) {
        const quire_tile_window_opts opts = { .memory = &lanes->memory,
                                              .tile_bytes = lanes->page_bytes + lanes->hot_bytes,
                                              .writes = i == LANE_WRITE,
                                              .status = &windows->status };

        windows->of[i].lanes = lanes;
        QUIRE_TRY(quire_tile_window_init(&windows->of[i].window, &opts));
    }
    return QUIRE_OK;
}

void quire_lanes_windows_flush(const quire_lanes *lanes)
{
    for (uint32_t i = 0; lanes->rows != NULL && i < N_LANE_USES; i++) {
        quire_tile_window_flush(&lanes->windows->of[i].window);
        lanes->windows->of[i].table = (quire_seq_table){ 0 }; /* no run */
    }
}

void quire_lanes_windows_begin(const quire_lanes *lanes)
{
    quire_lanes_windows_flush(lanes);
    if (lanes->rows != NULL) {
        lanes->windows->status = QUIRE_OK;
    }
}

void quire_lanes_windows_end(const quire_lanes *lanes)
{
    quire_lanes_windows_flush(lanes);
}

int quire_lanes_windows_status(const quire_lanes *lanes)
{
    return lanes->rows != NULL ? lanes->windows->status : QUIRE_OK;
}
