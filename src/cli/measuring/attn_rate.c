/* attn_rate.c - see attn_rate.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/attn_rate.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/num.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>

#define HEADS    32u
#define KV_HEADS 8u
#define DIM      128u
#define RECENT   2u  /* tiles that a row reads in 8 bit, with sealed formats; and the first */
#define RANDOM   16u /* different pages */
#define ROUNDS   3u

/* Pages of one group: page i of layer l in slot i, behind the pages of the layers before. */
typedef struct group {
    quire_attn_lane k;
    quire_attn_lane v;
    size_t page_bytes; /* of one layer */
    uint32_t n_pages;
    quire_device_memory memory;
    quire_page_entry *entries;
    const quire_page_entry **leaves;
} group;

typedef struct bench {
    const quire_attn_work *b;
    quire_device *device;
    uint32_t n_entries;
    group groups[2]; /* main, hot */
    quire_page_addr *addrs;
    quire_attn_seq seq;
    quire_attn_batch batch;
    quire_attn_layer layer;
    float *rows; /* q and out */
} bench;

/* ---- pages ---- */

size_t quire_attn_work_page_bytes(quire_format format, uint32_t page_tokens)
{
    return (size_t)KV_HEADS * (page_tokens / QUIRE_TILE_TOKENS) *
           (quire_tile_bytes(format, QUIRE_SIDE_K, DIM) +
            quire_tile_bytes(format, QUIRE_SIDE_V, DIM));
}

static void lay(quire_format format, uint32_t page_tokens, group *g)
{
    const size_t n_tiles = page_tokens / QUIRE_TILE_TOKENS;
    const size_t k = quire_tile_bytes(format, QUIRE_SIDE_K, DIM);
    const size_t v = quire_tile_bytes(format, QUIRE_SIDE_V, DIM);

    g->page_bytes = quire_attn_work_page_bytes(format, page_tokens);
    g->k = (quire_attn_lane){ 0, g->page_bytes, n_tiles * k, k };
    g->v = (quire_attn_lane){ KV_HEADS * n_tiles * k, g->page_bytes, n_tiles * v, v };
}

/* Whether the row reads tiles of this entry hot. */
static bool is_near(const bench *w, uint32_t entry)
{
    return quire_format_is_sealed(w->b->format) &&
           (entry == 0 ||
            (w->n_entries - 1 - entry) * (w->b->page_tokens / QUIRE_TILE_TOKENS) <= RECENT);
}

/* Encoded tiles of random numbers, as pages of a group. */
static int pages_fill(unsigned char *to, quire_format format, const group *g, float *tile)
{
    const quire_tile_rows rows = { .d = DIM, .n_tokens = QUIRE_TILE_TOKENS, .stride = DIM };
    const quire_codec *codec = quire_codec_get();
    quire_rng rng = { 1 };

    const uint32_t n_tiles = (uint32_t)(g->k.head_stride / g->k.tile_stride);

    for (uint32_t i = 0; i < RANDOM * KV_HEADS * n_tiles; i++) {
        unsigned char *page = to + i / (KV_HEADS * n_tiles) * g->page_bytes;
        const uint32_t h = i % (KV_HEADS * n_tiles); /* tiles of a head follow each other */

        for (uint32_t j = 0; j < QUIRE_TILE_TOKENS * DIM; j++) {
            tile[j] = (float)quire_rng_normal(&rng);
        }
        codec->encode_k(format, &rows, tile, page + g->k.offset + h * g->k.tile_stride);
        codec->encode_v(format, &rows, tile, page + g->v.offset + h * g->v.tile_stride);
    }
    return QUIRE_OK;
}

/* The memory of a group, filled by copies of the random pages. */
static int group_fill(bench *w, group *g, quire_format format)
{
    const uint64_t random_bytes = RANDOM * g->page_bytes;
    const uint64_t bytes = (uint64_t)w->b->n_layers * g->n_pages * g->page_bytes;
    float *tile = malloc(QUIRE_TILE_TOKENS * DIM * sizeof *tile);
    quire_device_memory pinned = { 0 };
    int rc = tile != NULL ? QUIRE_OK : QUIRE_NOMEM;

    if (rc == QUIRE_OK) {
        rc = quire_device_alloc(w->device, QUIRE_DEVICE_PINNED, random_bytes, &pinned);
    }
    if (rc == QUIRE_OK) {
        rc = quire_device_alloc(w->device, QUIRE_DEVICE_PAGES, bytes, &g->memory);
    }
    if (rc == QUIRE_OK) {
        rc = pages_fill(pinned.host, format, g, tile);
    }
    for (uint64_t at = 0; rc == QUIRE_OK && at < bytes; at += random_bytes) {
        const quire_device_piece piece = { .to = &g->memory,
                                           .to_offset = at,
                                           .from = &pinned,
                                           .bytes = bytes - at < random_bytes ? bytes - at
                                                                              : random_bytes };

        rc = quire_device_copy(w->device, &piece, 1);
    }
    rc = rc == QUIRE_OK ? quire_device_sync(w->device) : rc;
    quire_device_free(w->device, &pinned);
    free(tile);
    return rc;
}

static int table_alloc(const bench *w, group *g)
{
    const uint32_t n_leaves = (w->n_entries + QUIRE_LEAF_ENTRIES - 1) / QUIRE_LEAF_ENTRIES;

    g->entries = calloc((size_t)n_leaves * QUIRE_LEAF_ENTRIES, sizeof *g->entries);
    g->leaves = calloc(n_leaves, sizeof *g->leaves);
    QUIRE_FAIL_IF(g->entries == NULL || g->leaves == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < n_leaves; i++) {
        g->leaves[i] = g->entries + (size_t)i * QUIRE_LEAF_ENTRIES;
    }
    return QUIRE_OK;
}

/* Page ids: 1 .. n of the main group, then the hot ones. */
static void tables_fill(bench *w)
{
    const unsigned char *hot = w->groups[1].memory.addr;
    uint32_t n_hot = 0;

    for (uint32_t i = 0; i < w->n_entries; i++) {
        quire_page_entry *entry = &w->groups[0].entries[i];

        *entry = (quire_page_entry){ .page = i + 1,
                                     .n_tokens = (uint16_t)w->b->page_tokens,
                                     .first_pos = (int32_t)(i * w->b->page_tokens) };
        w->addrs[i + 1] = (quire_page_addr){ .extent = w->groups[0].memory.addr,
                                             .slot = i,
                                             .memory = QUIRE_MEMORY_DEVICE };
        w->groups[1].entries[i] = *entry;
        w->groups[1].entries[i].page = QUIRE_PAGE_NULL;
        if (hot != NULL && is_near(w, i)) {
            w->groups[1].entries[i].page = w->n_entries + 1 + n_hot;
            w->addrs[w->n_entries + 1 + n_hot] = (quire_page_addr){
                .extent = w->groups[1].memory.addr, .slot = n_hot, .memory = QUIRE_MEMORY_DEVICE
            };
            n_hot++;
        }
    }
}

/* ---- attention ---- */

static int work_open(bench *w, quire_error *err)
{
    const uint32_t n_groups = quire_format_is_sealed(w->b->format) ? 2 : 1;
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_device_info info;

    w->n_entries = (w->b->n_tokens + w->b->page_tokens - 1) / w->b->page_tokens;
    opts.attn.n_threads_max = opts.attn.n_seqs_max = opts.attn.n_rows_max = 1;
    opts.attn.n_head_max = HEADS;
    opts.attn.head_dim_max = DIM;
    opts.attn.n_entries_max = w->n_entries;
    opts.attn.page_tokens = w->b->page_tokens;
    opts.attn.n_layers_max = w->b->n_layers;
    opts.attn.n_groups = n_groups;
    opts.attn.groups[1] = (quire_attn_group){ .is_hot = true };
    QUIRE_TRY(quire_device_open(&w->device, w->b->device, &opts, err));
    quire_device_info_get(w->device, &info);
    w->rows = calloc((size_t)2 * HEADS * DIM, sizeof *w->rows);
    w->addrs = calloc(2 * (size_t)w->n_entries + 1, sizeof *w->addrs);
    QUIRE_FAIL_IF(w->rows == NULL || w->addrs == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < 2; i++) {
        QUIRE_TRY(table_alloc(w, &w->groups[i]));
    }
    lay(w->b->format, w->b->page_tokens, &w->groups[0]);
    lay(QUIRE_FORMAT_HOT, w->b->page_tokens, &w->groups[1]);
    w->groups[0].n_pages = w->n_entries;
    QUIRE_TRY(group_fill(w, &w->groups[0], w->b->format));
    for (uint32_t i = 0; i < w->n_entries; i++) {
        w->groups[1].n_pages += is_near(w, i);
    }
    if (w->groups[1].n_pages > 0) {
        QUIRE_TRY(group_fill(w, &w->groups[1], QUIRE_FORMAT_HOT));
    }
    tables_fill(w);
    for (uint32_t i = 0; info.memory == QUIRE_MEMORY_HOST && i <= 2 * w->n_entries; i++) {
        w->addrs[i].memory = QUIRE_MEMORY_HOST;
    }
    return QUIRE_OK;
}

static void work_close(bench *w)
{
    if (w->device == NULL) {
        return;
    }
    (void)quire_device_sync(w->device);
    for (uint32_t i = 0; i < 2; i++) {
        quire_device_free(w->device, &w->groups[i].memory);
        free(w->groups[i].entries);
        free(w->groups[i].leaves);
    }
    quire_device_close(w->device);
    free(w->addrs);
    free(w->rows);
}

static void layer_fill(bench *w)
{
    quire_rng rng = { 2 };

    for (uint32_t i = 0; i < HEADS * DIM; i++) {
        w->rows[i] = (float)quire_rng_normal(&rng);
    }
    w->layer = (quire_attn_layer){
        .n_head = HEADS,
        .n_kv_head = KV_HEADS,
        .d_k = DIM,
        .d_v = DIM,
        .n_k = 1,
        .n_v = 1,
        .scale = 1.0f / sqrtf((float)DIM),
        .k[0] = { .format = w->b->format, .hot_group = 1 },
        .v[0] = { .format = w->b->format, .hot_group = 1 },
        .recent_tiles = RECENT,
        .sink_tiles = 1,
        .q[0] = w->rows,
        .q_stride = (size_t)HEADS * DIM,
        .out = w->rows + (size_t)HEADS * DIM,
        .out_stride = (size_t)HEADS * DIM,
    };
    w->layer.k[0].lane = w->groups[0].k;
    w->layer.v[0].lane = w->groups[0].v;
    w->layer.k[0].hot_lane = w->groups[1].k;
    w->layer.v[0].hot_lane = w->groups[1].v;
    w->seq = (quire_attn_seq){ .n_tokens = w->n_entries * w->b->page_tokens, .n_rows = 1 };
    for (uint32_t i = 0; i < 2; i++) {
        w->seq.tables[i] = (quire_attn_table){ w->groups[i].leaves, w->n_entries };
    }
    w->batch = (quire_attn_batch){
        .seqs = &w->seq, .n_seqs = 1, .page_tokens = w->b->page_tokens, .page_addr = w->addrs
    };
}

/* n steps of all layers, and the time. */
static int steps_do(bench *w, uint32_t n, double *seconds)
{
    const uint64_t begin_ns = quire_clock_ns();

    for (uint32_t i = 0; i < n * w->b->n_layers; i++) {
        const uint32_t l = i % w->b->n_layers;
        quire_attn_layer layer = w->layer;
        quire_attn_layer own;

        for (uint32_t g = 0; g < 2; g++) {
            const size_t offset = (size_t)l * w->groups[g].n_pages * w->groups[g].page_bytes;

            *(g == 0 ? &layer.k[0].lane.offset : &layer.k[0].hot_lane.offset) += offset;
            *(g == 0 ? &layer.v[0].lane.offset : &layer.v[0].hot_lane.offset) += offset;
        }
        if (l == 0 && w->b->before_step != NULL) {
            QUIRE_TRY(w->b->before_step(w->b->ctx, w->device));
        }
        if (l == 0) {
            QUIRE_TRY(quire_device_plan(w->device, &w->batch));
        }
        QUIRE_TRY(quire_device_enter(w->device, &layer, &own));
        quire_device_attn(w->device, &own, l, 0, 1);
        if (w->b->has_results) {
            QUIRE_TRY(quire_device_leave(w->device, &layer, &own));
        }
    }
    QUIRE_TRY(quire_device_sync(w->device));
    *seconds = (double)(quire_clock_ns() - begin_ns) * 1e-9;
    return QUIRE_OK;
}

/* Each tile once, of the group that it is read from. */
static double bytes_of_layer(const bench *w)
{
    const uint32_t tiles_per_page = w->b->page_tokens / QUIRE_TILE_TOKENS;
    const uint32_t n_tiles = w->n_entries * tiles_per_page;
    const uint32_t n_hot =
        quire_format_is_sealed(w->b->format) ? quire_min_u32(n_tiles, RECENT + 2) : 0;

    return ((double)(n_tiles - n_hot) * (double)w->groups[0].page_bytes +
            (double)n_hot * (double)w->groups[1].page_bytes) /
           tiles_per_page;
}

static int attention_measure(bench *w, double *rate)
{
    const double bytes = bytes_of_layer(w) * w->b->n_layers;
    double seconds;
    uint32_t n = 1;

    layer_fill(w);
    QUIRE_TRY(quire_device_check(w->device, &w->layer));
    QUIRE_TRY(steps_do(w, 1, &seconds)); /* pipelines are made */
    QUIRE_TRY(steps_do(w, 1, &seconds));
    if (seconds < w->b->seconds) {
        n = (uint32_t)(w->b->seconds / (seconds + 1e-9)) + 1;
    }
    *rate = 0.0;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        QUIRE_TRY(steps_do(w, n, &seconds));
        *rate = fmax(*rate, bytes * n / seconds);
    }
    return QUIRE_OK;
}

int quire_attn_rate_get(const quire_attn_work *work, double *rate, quire_error *err)
{
    bench w = { .b = work };
    int rc = work_open(&w, err);

    *rate = 0.0;
    rc = rc == QUIRE_OK ? attention_measure(&w, rate) : rc;
    if (rc < 0 && w.device != NULL) {
        (void)quire_error_set(err, rc, "device %s: attention on pages of %u tokens: %s",
                              work->device, work->page_tokens, quire_status_text(rc));
    }
    work_close(&w);
    return rc;
}
