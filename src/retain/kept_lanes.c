/* kept_lanes.c - creating lanes, their contents, and figures.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define TILE QUIRE_TILE_TOKENS

/* ---- creating ---- */

static bool is_same_place(const quire_attn_source *a, const quire_attn_source *b)
{
    return a->format == b->format && a->group == b->group && a->lane.offset == b->lane.offset;
}

static int check_layers(const quire_lanes_opts *o, quire_error *err)
{
    const size_t page_bytes = quire_lane_page_bytes(&o->layers[0]);

    if (quire_lanes_n_choosing(o) == 0) {
        return quire_error_set(err, QUIRE_UNSUPP, "%s",
                               o->keeps_all ? "--attend cannot go with a model whose layers all "
                                              "have windows: these read nothing else"
                                            : "--retain cannot go with a model whose layers all "
                                              "have windows: these drop tokens already");
    }
    for (uint32_t l = 0; l < o->n_layers; l++) {
        const quire_attn_layer *layer = &o->layers[l];

        if (layer->n_k != 1 || layer->n_v != 1 || !is_same_place(&layer->k[0], &layer->k_store) ||
            !is_same_place(&layer->v[0], &layer->v_store)) {
            return quire_error_set(err, QUIRE_UNSUPP,
                                   "layer %u reads K or V that it does not store: --retain works "
                                   "with models whose layers have their own",
                                   l);
        }
        if (quire_lane_page_bytes(layer) != page_bytes ||
            layer->k_store.format != o->layers[0].k_store.format ||
            layer->v_store.format != o->layers[0].v_store.format) {
            return quire_error_set(err, QUIRE_UNSUPP,
                                   "--retain works with one KV format for all layers: layer %u has "
                                   "another than layer 0",
                                   l);
        }
    }
    return QUIRE_OK;
}

static int create_cache(quire_lanes *lanes, const quire_lanes_opts *o)
{
    quire_cache_opts opts = QUIRE_CACHE_OPTS_INIT;

    lanes->page_bytes = quire_lane_page_bytes(&o->layers[0]);
    lanes->hot_bytes = quire_lane_hot_bytes(o);
    lanes->budget_bytes = quire_lanes_bytes_max(o);
    opts.page_tokens = TILE;
    opts.page_bytes[QUIRE_LANES_MAIN] = lanes->page_bytes;
    opts.page_bytes[QUIRE_LANES_HOT] = lanes->hot_bytes;
    opts.n_groups = lanes->hot_bytes > 0 ? 2 : 1;
    opts.budget_bytes = lanes->budget_bytes;
    opts.seqs_max = o->n_layers * lanes->n_kv_head;
    opts.seq_tokens_max = quire_lanes_text_max(o);
    opts.history_events = 0;
    opts.lock_memory = o->lock_memory;
    opts.memory = o->is_on_device ? &lanes->memory : NULL;
    QUIRE_TRY(quire_cache_create(&lanes->cache, &opts));
    for (uint32_t i = 0; i < opts.seqs_max; i++) {
        QUIRE_TRY(quire_seq_open(lanes->cache, QUIRE_REGION_DYNAMIC, &lanes->lanes[i].seq));
    }
    return QUIRE_OK;
}

/* Where a side's tile is in a hot page. */
static void make_hot(const quire_lanes *lanes, quire_attn_source *source, size_t offset)
{
    source->group = QUIRE_LANES_MAIN;
    source->hot_group = QUIRE_LANES_HOT;
    source->hot_lane = (quire_attn_lane){ .offset = offset, .page_stride = lanes->hot_bytes };
}

/* Layer l as one head of it is computed on its lane's pages. */
static void make_layer(quire_lanes *lanes, const quire_attn_layer *layer, uint32_t l)
{
    const size_t k_bytes = quire_tile_bytes(layer->k_store.format, QUIRE_SIDE_K, layer->d_k);
    quire_attn_layer *one = &lanes->layers[l].one;

    *one = *layer;
    one->n_head = lanes->group;
    one->n_kv_head = 1;
    one->k[0].lane = (quire_attn_lane){ .page_stride = lanes->page_bytes };
    one->v[0].lane = (quire_attn_lane){ .offset = k_bytes, .page_stride = lanes->page_bytes };
    if (quire_format_is_sealed(one->k[0].format)) {
        make_hot(lanes, &one->k[0], 0);
    }
    if (quire_format_is_sealed(one->v[0].format)) {
        make_hot(lanes, &one->v[0],
                 quire_format_is_sealed(one->k[0].format)
                     ? quire_tile_bytes(QUIRE_FORMAT_HOT, QUIRE_SIDE_K, layer->d_k)
                     : 0);
    }
    lanes->layers[l].is_windowed = layer->window != 0;
    if (!lanes->keeps_all && layer->window == 0) {
        one->recent_tiles = UINT32_MAX; /* hot where a hot page is */
        one->sink_tiles = 0;
    }
    /* V's offset counts from the start of the extent, and so do the strides of both. */
    one->k_store = one->k[0];
    one->v_store = one->v[0];
    lanes->layers[l].key = layer->k_store.lane.offset;
}

static int create_heads(quire_lanes *lanes, const quire_lanes_opts *o)
{
    const quire_attn_workspace_opts opts = quire_lanes_head_opts(o);

    lanes->n_members = opts.n_threads_max;
    for (uint32_t g = 0; g < lanes->n_kv_head; g++) {
        lane_head *head = &lanes->heads[g];
        const uint32_t n = quire_lanes_entries_max(o);
        const uint32_t n_leaves = (n + QUIRE_LEAF_ENTRIES - 1) / QUIRE_LEAF_ENTRIES;

        head->entries = calloc((size_t)n_leaves * QUIRE_LEAF_ENTRIES, sizeof *head->entries);
        head->leaves = calloc(n_leaves, sizeof *head->leaves);
        head->hot_entries =
            calloc((size_t)n_leaves * QUIRE_LEAF_ENTRIES, sizeof *head->hot_entries);
        head->hot_leaves = calloc(n_leaves, sizeof *head->hot_leaves);
        QUIRE_FAIL_IF(head->entries == NULL || head->leaves == NULL, QUIRE_NOMEM);
        QUIRE_FAIL_IF(head->hot_entries == NULL || head->hot_leaves == NULL, QUIRE_NOMEM);
        for (uint32_t i = 0; i < n_leaves; i++) {
            head->leaves[i] = head->entries + (size_t)i * QUIRE_LEAF_ENTRIES;
            head->hot_leaves[i] = head->hot_entries + (size_t)i * QUIRE_LEAF_ENTRIES;
        }
        if (!o->is_on_device) {
            QUIRE_TRY(quire_attn_workspace_create(&head->workspace, &opts));
        }
    }
    for (uint32_t l = 0; l < o->n_layers; l++) {
        const quire_attn_layer *one = &lanes->layers[l].one;

        QUIRE_TRY(o->is_on_device ? lanes->base.check(lanes->base.ctx, one)
                                  : quire_attn_layer_check(lanes->heads[0].workspace, one));
    }
    return QUIRE_OK;
}

static int create_parts(quire_lanes *lanes, const quire_lanes_opts *o, bool *is_full)
{
    const uint64_t n_floats = quire_lanes_queries_floats(o);

    lanes->layers = calloc(o->n_layers, sizeof *lanes->layers);
    lanes->choosing = calloc(o->n_layers, sizeof *lanes->choosing);
    lanes->lanes = calloc((size_t)o->n_layers * lanes->n_kv_head, sizeof *lanes->lanes);
    lanes->heads = calloc(lanes->n_kv_head, sizeof *lanes->heads);
    lanes->queries = n_floats > 0 ? calloc(n_floats, sizeof *lanes->queries) : NULL;
    QUIRE_FAIL_IF(lanes->layers == NULL || lanes->lanes == NULL || lanes->heads == NULL ||
                      lanes->choosing == NULL,
                  QUIRE_NOMEM);
    QUIRE_FAIL_IF(n_floats > 0 && lanes->queries == NULL, QUIRE_NOMEM);
    QUIRE_TRY(quire_lanes_device_create(lanes, o));
    QUIRE_TRY(create_cache(lanes, o));
    QUIRE_TRY(quire_lanes_windows_create(lanes));
    QUIRE_TRY(quire_lanes_watch_create(lanes, o));
    QUIRE_TRY(quire_lanes_sums_create(lanes, o));
    QUIRE_TRY(quire_lanes_seal_create(lanes, o));
    QUIRE_TRY(quire_lanes_attend_create(lanes, o, quire_lanes_entries_max(o)));
    for (uint32_t l = 0; l < o->n_layers; l++) {
        make_layer(lanes, &o->layers[l], l);
        lanes->layers[l].is_full = is_full[l];
        lanes->layers[l].number = lanes->n_choosing;
        for (uint32_t g = 0; g < lanes->n_kv_head; g++) {
            quire_lane_at(lanes, l, g)->is_windowed = lanes->layers[l].is_windowed;
        }
        if (!lanes->layers[l].is_windowed) {
            lanes->choosing[lanes->n_choosing++] = l;
        }
    }
    return create_heads(lanes, o);
}

static int check_merge(const quire_lanes_opts *o, quire_error *err)
{
    if (o->spec->merges && quire_lane_hot_bytes(o) > 0) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "merge=fit changes V of kept tokens, and tokens in %s stay as they "
                               "are: use f32, f16, bf16 or q8",
                               quire_format_name(quire_format_is_sealed(o->layers[0].k_store.format)
                                                     ? o->layers[0].k_store.format
                                                     : o->layers[0].v_store.format));
    }
    if (o->spec->merges && quire_attends(o->attend_share)) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "merge=fit and --attend: the bounds of pages know no biases of "
                               "fitted tokens");
    }
    return QUIRE_OK;
}

/* is_full: [2][n_layers], of which the second half is scratch */
static int check_all(const quire_lanes_opts *o, bool *is_full, quire_error *err)
{
    bool *chooses;

    if (is_full == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the lanes of --retain");
    }
    chooses = is_full + o->n_layers;
    for (uint32_t l = 0; l < o->n_layers; l++) {
        chooses[l] = o->layers[l].window == 0;
    }
    QUIRE_TRY(check_layers(o, err));
    QUIRE_TRY(check_merge(o, err));
    if (quire_lane_hot_bytes(o) > 0 && o->spec->policy->drops_kept && !o->keeps_all) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s drops tokens that it has kept before, and tokens in %s stay in "
                               "their tile: use f32, f16, bf16 or q8",
                               o->spec->policy->name,
                               quire_format_name(quire_format_is_sealed(o->layers[0].k_store.format)
                                                     ? o->layers[0].k_store.format
                                                     : o->layers[0].v_store.format));
    }
    if (o->spec->policy->worth == QUIRE_RETAIN_WORTH_PREDICTED && o->predictor == NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s has learned nothing about this model: quire calibrate --retain "
                               "-m MODEL -f TEXT comes first",
                               o->spec->policy->name);
    }
    return quire_retain_full_layers(o->spec, o->n_layers, chooses, is_full, err);
}

int quire_lanes_check(const quire_lanes_opts *o, quire_error *err)
{
    bool *is_full = calloc(2 * (size_t)o->n_layers, sizeof *is_full);
    int rc = check_all(o, is_full, err);

    free(is_full);
    return rc;
}

int quire_lanes_create(quire_lanes **out, const quire_lanes_opts *o, quire_error *err)
{
    bool *is_full = calloc(2 * (size_t)o->n_layers, sizeof *is_full);
    quire_lanes *lanes = NULL;
    int rc = check_all(o, is_full, err);

    *out = NULL;
    if (rc == QUIRE_OK) {
        lanes = calloc(1, sizeof *lanes);
        rc = QUIRE_NOMEM;
        if (lanes != NULL) {
            lanes->spec = *o->spec;
            lanes->n_layers = o->n_layers;
            lanes->n_kv_head = o->layers[0].n_kv_head;
            lanes->group = o->layers[0].n_head / lanes->n_kv_head;
            lanes->n_text_max = quire_lanes_text_max(o);
            lanes->n_full_max = o->n_full_max;
            lanes->n_repeat_max = o->n_repeat_max;
            lanes->keeps_all = o->keeps_all;
            lanes->n_hidden = o->n_hidden;
            lanes->predictor = o->predictor;
            lanes->n_threads = o->n_threads;
            lanes->parallel = o->parallel;
            lanes->codec = quire_codec_get();
            rc = create_parts(lanes, o, is_full);
        }
        if (rc < 0) {
            quire_error_set(err, rc, "cannot set up the lanes of --retain: %s",
                            quire_status_text(rc));
        }
    }
    free(is_full);
    if (rc < 0) {
        quire_lanes_destroy(lanes);
        return rc;
    }
    *out = lanes;
    return QUIRE_OK;
}

void quire_lanes_destroy(quire_lanes *lanes)
{
    if (lanes == NULL) {
        return;
    }
    quire_lanes_sums_destroy(lanes);
    quire_lanes_watch_destroy(lanes);
    for (uint32_t g = 0; lanes->heads != NULL && g < lanes->n_kv_head; g++) {
        quire_attn_workspace_destroy(lanes->heads[g].workspace);
        free(lanes->heads[g].ranks);
        free(lanes->heads[g].hot_leaves);
        free(lanes->heads[g].hot_entries);
        free(lanes->heads[g].leaves);
        free(lanes->heads[g].entries);
    }
    for (size_t i = 0; lanes->lanes != NULL && i < (size_t)lanes->n_layers * lanes->n_kv_head;
         i++) {
        free(lanes->lanes[i].positions);
        free(lanes->lanes[i].biases);
        free(lanes->lanes[i].worth);
        free(lanes->lanes[i].bounds);
    }
    quire_cache_destroy(lanes->cache);
    quire_lanes_device_destroy(lanes);
    free(lanes->seal_room);
    free(lanes->queries);
    free(lanes->heads);
    free(lanes->lanes);
    free(lanes->choosing);
    free(lanes->layers);
    free(lanes);
}

/* ---- contents ---- */

/* Whether the positions of all of a lane's tokens follow each other, and none may have a bias. They
 * ascend, so the first and the last say it. */
static bool is_run(const lane_state *lane)
{
    return lane->is_windowed ||
           (lane->n > 0 && lane->biases == NULL &&
            lane->positions[lane->n] - lane->positions[1] == (int32_t)lane->n - 1);
}

lane_tables quire_lane_tables(const quire_lanes *lanes, const lane_state *lane)
{
    lane_tables tables = { .is_run = is_run(lane) };
    int rc = quire_seq_table_get(lanes->cache, lane->seq, QUIRE_LANES_MAIN, &tables.main);

    QUIRE_CHECK(rc == QUIRE_OK);
    if (lanes->hot_bytes > 0) {
        rc = quire_seq_table_get(lanes->cache, lane->seq, QUIRE_LANES_HOT, &tables.hot);
        QUIRE_CHECK(rc == QUIRE_OK);
    }
    return tables;
}

unsigned char *quire_lane_page_of(const quire_lanes *lanes, const quire_seq_table *table,
                                  uint32_t i, size_t page_bytes)
{
    const quire_page_id id = table->leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES].page;
    const quire_page_addr *addr = &quire_cache_page_addrs(lanes->cache)[id];

    return id != QUIRE_PAGE_NULL ? addr->extent + addr->slot * page_bytes : NULL;
}

unsigned char *quire_lane_page(const quire_lanes *lanes, const lane_tables *tables, uint32_t i)
{
    return quire_lane_page_of(lanes, &tables->main, i, lanes->page_bytes);
}

unsigned char *quire_lane_hot_page(const quire_lanes *lanes, const lane_tables *tables, uint32_t i)
{
    return lanes->hot_bytes > 0 ? quire_lane_page_of(lanes, &tables->hot, i, lanes->hot_bytes)
                                : NULL;
}

void quire_lane_rows(const quire_lanes *lanes, const quire_attn_layer *one,
                     const lane_tables *tables, quire_side side, uint32_t i, uint32_t slot,
                     uint32_t n_tokens, float *out)
{
    const bool is_k = side == QUIRE_SIDE_K;
    const quire_attn_source *source = is_k ? &one->k[0] : &one->v[0];
    const uint32_t d = is_k ? one->d_k : one->d_v;
    const quire_tile_rows rows = { .d = d, .first_slot = slot, .n_tokens = n_tokens, .stride = d };
    const bool is_hot =
        quire_format_is_sealed(source->format) && quire_lane_hot_page(lanes, tables, i) != NULL;
    const lane_tiles tiles = is_hot ? quire_lane_hot_tiles(lanes, one, tables, side)
                                    : quire_lane_tiles(lanes, one, tables, side);
    const unsigned char *tile =
        quire_lane_tile_at(lanes, &tiles, is_hot ? LANE_READ_HOT : LANE_READ, i);

    (is_k ? lanes->codec->decode_k
          : lanes->codec->decode_v)(is_hot ? QUIRE_FORMAT_HOT : source->format, &rows, tile, out);
}

void quire_lanes_read(const quire_lanes *lanes, uint32_t layer, uint32_t kv_head, uint32_t i,
                      float *k, float *v)
{
    const lane_state *lane = quire_lane_at(lanes, layer, kv_head);
    const quire_attn_layer *one = &lanes->layers[layer].one;
    const lane_tables tables = quire_lane_tables(lanes, lane);

    QUIRE_CHECK(i < quire_lane_n_held(lanes, lane));
    i += lanes->layers[layer].n_past;
    quire_lanes_windows_begin(lanes);
    quire_lane_rows(lanes, one, &tables, QUIRE_SIDE_K, i / TILE, i % TILE, 1, k);
    quire_lane_rows(lanes, one, &tables, QUIRE_SIDE_V, i / TILE, i % TILE, 1, v);
    quire_lanes_windows_end(lanes);
}

void quire_lane_keys(const quire_lanes *lanes, const quire_attn_layer *one, const lane_state *lane,
                     uint32_t from, uint32_t to, float *keys)
{
    const uint32_t n_tiles = (to + TILE - 1) / TILE;
    lane_tables tables = quire_lane_tables(lanes, lane);

    tables.main.n_entries = tables.hot.n_entries = n_tiles; /* a window reads ahead up to there */
    while (from < to) {
        const uint32_t slot = from % TILE;
        const uint32_t n = to - from < TILE - slot ? to - from : TILE - slot;

        quire_lane_rows(lanes, one, &tables, QUIRE_SIDE_K, from / TILE, slot, n, keys);
        keys += (size_t)n * one->d_k;
        from += n;
    }
}

/* ---- figures ---- */

uint32_t quire_lanes_n_full(const quire_lanes *lanes)
{
    return lanes->n_text - lanes->n_condensed;
}

const int32_t *quire_lanes_positions(const quire_lanes *lanes, uint32_t layer, uint32_t kv_head,
                                     uint32_t *n)
{
    const lane_state *lane = quire_lane_at(lanes, layer, kv_head);

    *n = quire_lane_n_held(lanes, lane);
    return lane->positions != NULL ? lane->positions + 1 : NULL;
}

const float *quire_lanes_biases(const quire_lanes *lanes, uint32_t layer, uint32_t kv_head)
{
    const lane_state *lane = quire_lane_at(lanes, layer, kv_head);

    return lane->biases != NULL ? lane->biases + 1 : NULL;
}

const float *quire_lanes_worth(const quire_lanes *lanes, uint32_t layer, uint32_t kv_head)
{
    return quire_lane_at(lanes, layer, kv_head)->worth;
}

const float *quire_lanes_hidden(const quire_lanes *lanes, uint32_t layer)
{
    const lane_layer *of = &lanes->layers[layer];

    return !of->is_windowed
               ? lanes->hidden + (size_t)of->number * lanes->n_full_max * lanes->n_hidden
               : NULL;
}

const quire_cache *quire_lanes_cache(const quire_lanes *lanes)
{
    return lanes->cache;
}

void quire_lanes_stats_get(const quire_lanes *lanes, quire_lanes_stats *out)
{
    quire_cache_stats cache;

    quire_cache_stats_get(lanes->cache, &cache);
    *out = (quire_lanes_stats){ .n_text = lanes->n_text,
                                .n_lanes = (uint32_t)quire_lanes_n_chosen(lanes),
                                .generations = lanes->generations,
                                .live_bytes = cache.live_bytes,
                                .peak_bytes = cache.charged_peak_bytes,
                                .budget_bytes = lanes->budget_bytes,
                                .condense_us = lanes->condense_ns / 1000 };
    out->n_windowed = lanes->n_layers * lanes->n_kv_head - out->n_lanes;
    for (uint32_t i = 0; i < out->n_lanes; i++) {
        out->n_held += quire_lane_chosen(lanes, i)->n;
    }
    for (uint32_t g = 0; g < lanes->n_kv_head; g++) {
        out->pages_read_total += lanes->heads[g].n_pages_read;
        out->pages_held_total += lanes->heads[g].n_pages_held;
    }
}
