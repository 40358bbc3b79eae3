/* packed_create.c - memory of packed_device.h.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "retain/packed_device_internal.h"

#include <stdlib.h>

#define TILE QUIRE_TILE_TOKENS

/* Partials of a job of several sequences: mostly of their rests, the splits that one sequence has
 * by itself. */
#define CASCADE_BYTES_MAX (2u << 20)

static uint32_t group_of(const quire_packing *p)
{
    return p->layers[0].n_head / p->n_kv_head;
}

static uint32_t entries_max(const quire_packed_device_opts *o)
{
    return o->n_text_max / TILE + 2;
}

static quire_attn_workspace_opts worker_opts(const quire_packed_device_opts *o)
{
    const quire_attn_layer *layer = &o->packing->layers[0];
    const bool is_sealed = quire_packing_is_sealed(o->packing);
    quire_attn_workspace_opts opts = QUIRE_ATTN_WORKSPACE_OPTS_INIT;

    opts.n_threads_max = 1;
    opts.n_seqs_max = quire_packed_cascade_tables(o);
    opts.no_cascade = o->no_cascade;
    opts.cascade_bytes_max = CASCADE_BYTES_MAX;
    opts.n_rows_max = o->n_rows_max;
    opts.n_head_max = group_of(o->packing);
    opts.head_dim_max = layer->d_k > layer->d_v ? layer->d_k : layer->d_v;
    opts.n_entries_max = entries_max(o);
    opts.page_tokens = TILE;
    opts.n_layers_max = 1;
    opts.n_groups = is_sealed ? 2 : 1;
    opts.groups[QUIRE_PACKED_HOT] = (quire_attn_group){ .like = 0, .is_hot = is_sealed };
    return opts;
}

static int worker_init(quire_packed_worker *w, const quire_packed_device *d,
                       const quire_packed_device_opts *o)
{
    const quire_attn_workspace_opts opts = worker_opts(o);

    QUIRE_TRY(quire_packed_bounder_init(w, &d->packing, d->n_entries_max, o->is_on_device));
    if (o->is_on_device) {
        return QUIRE_OK;
    }
    w->seqs = calloc(d->n_tables, sizeof *w->seqs);
    QUIRE_FAIL_IF(w->seqs == NULL, QUIRE_NOMEM);
    QUIRE_TRY(quire_packed_tables_create(d, d->n_tables, &w->tables, &w->addrs));
    return quire_attn_workspace_create(&w->workspace, &opts);
}

static uint64_t worker_bytes(const quire_packed_device_opts *o)
{
    const quire_attn_workspace_opts opts = worker_opts(o);
    const uint32_t n = entries_max(o), n_tables = quire_packed_cascade_tables(o);
    const uint64_t bytes =
        sizeof(quire_packed_worker) + quire_packed_bounder_bytes(o->packing, n, o->is_on_device);

    return o->is_on_device
               ? bytes
               : bytes + quire_attn_workspace_bytes(&opts) + n_tables * sizeof(quire_attn_seq) +
                     quire_packed_tables_bytes(o->packing, n, n_tables);
}

uint64_t quire_packed_device_bytes(const quire_packed_device_opts *o)
{
    const uint64_t d = o->rotation != NULL ? o->rotation->d : 0;
    const uint64_t windows = o->packing->window_group != 0 && !o->is_on_device
                                 ? quire_attn_workspace_bytes(o->window_opts)
                                 : 0;

    return sizeof(quire_packed_device) + o->n_threads * worker_bytes(o) + windows +
           (o->is_on_device ? quire_packed_queue_bytes(o, entries_max(o)) : 0) +
           o->n_rows_max * d * sizeof(float) +
           o->packing->n_layers * (sizeof(quire_attn_layer) + sizeof(quire_packed_jobs)) +
           o->n_seqs_max * (2 * sizeof(quire_attn_seq) + sizeof(quire_packed_cascade) +
                            sizeof(quire_packed_set) + 6 * sizeof(quire_attn_seq *));
}

/* Layer l as one head of it is computed: an entry's address is a part and a place in it. No token
 * in full pages is near the beginning of a text that was condensed, so no tile is hot for that. */
static quire_attn_layer head_layer(const quire_packed_device *d, uint32_t l, uint32_t recent_tiles)
{
    const quire_packing *p = &d->packing;
    const uint32_t lane = l * p->n_kv_head;
    quire_attn_layer one = p->layers[l];

    one.n_head = d->group;
    one.n_kv_head = 1;
    one.recent_tiles = recent_tiles;
    one.sink_tiles = 0;
    one.k[0].group = one.v[0].group = 0;
    one.k[0].lane = (quire_attn_lane){ .page_stride = p->k_bytes };
    one.v[0].lane =
        (quire_attn_lane){ .offset = quire_packing_v_offset(p), .page_stride = p->v_bytes };
    if (quire_format_is_sealed(one.k[0].format)) {
        one.k[0].hot_group = QUIRE_PACKED_HOT;
        one.k[0].hot_lane = quire_hot_lane(p, lane, QUIRE_SIDE_K);
    }
    if (quire_format_is_sealed(one.v[0].format)) {
        one.v[0].hot_group = QUIRE_PACKED_HOT;
        one.v[0].hot_lane = quire_hot_lane(p, lane, QUIRE_SIDE_V);
    }
    one.k_store = one.k[0];
    one.v_store = one.v[0];
    return one;
}

static int device_fill(quire_packed_device *d, const quire_packed_device_opts *o)
{
    const uint32_t n_layers = d->packing.n_layers;

    d->workers = calloc(d->n_threads, sizeof *d->workers);
    d->heads = calloc(n_layers, sizeof *d->heads);
    d->jobs = calloc(n_layers, sizeof *d->jobs);
    d->plain = calloc(d->n_seqs_max, sizeof *d->plain);
    d->packed = calloc(d->n_seqs_max, sizeof *d->packed);
    d->cascades = calloc(d->n_seqs_max, sizeof *d->cascades);
    d->sets = calloc(d->n_seqs_max, sizeof *d->sets);
    d->probed = calloc(d->n_seqs_max, sizeof *d->probed);
    d->predicted = calloc(d->n_seqs_max, sizeof *d->predicted);
    d->summed = calloc(d->n_seqs_max, sizeof *d->summed);
    d->turns = calloc((size_t)o->n_rows_max * d->rotation.d + 1, sizeof *d->turns);
    d->repeated = calloc(d->n_seqs_max, sizeof *d->repeated);
    d->filled = calloc(d->n_seqs_max, sizeof *d->filled);
    d->filled_last = calloc(d->n_seqs_max, sizeof *d->filled_last);
    QUIRE_FAIL_IF(d->workers == NULL || d->heads == NULL || d->jobs == NULL || d->plain == NULL ||
                      d->packed == NULL || d->cascades == NULL || d->sets == NULL ||
                      d->probed == NULL || d->predicted == NULL || d->repeated == NULL ||
                      d->summed == NULL || d->turns == NULL || d->filled == NULL ||
                      d->filled_last == NULL,
                  QUIRE_NOMEM);
    for (uint32_t i = 0; i < d->n_threads; i++) {
        QUIRE_TRY(worker_init(&d->workers[i], d, o));
    }
    if (d->packing.window_group != 0 && !o->is_on_device) {
        QUIRE_TRY(quire_attn_workspace_create(&d->windows, o->window_opts));
    }
    for (uint32_t l = 0; l < n_layers; l++) {
        d->heads[l] = head_layer(d, l, o->recent_tiles);
        QUIRE_TRY(o->is_on_device ? d->base.check(d->base.ctx, &d->heads[l])
                                  : quire_attn_layer_check(d->workers[0].workspace, &d->heads[l]));
    }
    return o->is_on_device ? quire_packed_queue_create(d, o) : QUIRE_OK;
}

int quire_packed_device_create(quire_packed_device **out, const quire_packed_device_opts *o)
{
    quire_packed_device *d = calloc(1, sizeof *d);
    int rc;

    *out = NULL;
    QUIRE_FAIL_IF(d == NULL, QUIRE_NOMEM);
    d->base = o->base;
    d->packing = *o->packing;
    d->rotation = o->rotation != NULL ? *o->rotation : (quire_rotation){ 0 };
    d->group = group_of(&d->packing);
    d->n_entries_max = entries_max(o);
    d->n_threads = o->n_threads;
    d->n_seqs_max = o->n_seqs_max;
    d->n_tables = quire_packed_cascade_tables(o);
    d->sink_tiles = o->sink_tiles;
    d->no_cascade = o->no_cascade;
    rc = o->is_on_device || o->base.memory == QUIRE_MEMORY_HOST ? device_fill(d, o) : QUIRE_UNSUPP;
    if (rc < 0) {
        quire_packed_device_destroy(d);
        return rc;
    }
    *out = d;
    return QUIRE_OK;
}

void quire_packed_device_destroy(quire_packed_device *d)
{
    if (d == NULL) {
        return;
    }
    for (uint32_t i = 0; d->workers != NULL && i < d->n_threads; i++) {
        quire_attn_workspace_destroy(d->workers[i].workspace);
        quire_watch_room_fini(&d->workers[i].watched);
        quire_packed_bounder_fini(&d->workers[i]);
        quire_packed_tables_destroy(d->workers[i].tables, d->n_tables, d->workers[i].addrs);
        free(d->workers[i].seqs);
    }
    quire_packed_queue_destroy(d->queue);
    quire_attn_workspace_destroy(d->windows);
    free(d->turns);
    free(d->filled_last);
    free(d->filled);
    free(d->summed);
    free(d->repeated);
    free(d->predicted);
    free(d->probed);
    free(d->sets);
    free(d->cascades);
    free(d->packed);
    free(d->plain);
    free(d->jobs);
    free(d->heads);
    free(d->workers);
    free(d);
}
