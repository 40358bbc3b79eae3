/* attn_case.c - see attn_case.h.
 *
 * SPDX-License-Identifier: MIT */
#include "attn_case.h"

#include "attn_tools.h"
#include "base/check.h"
#include "base/rng.h"
#include "quire/cache.h"
#include "quire/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TILES_RANDOM 32u /* distinct tiles of values */
#define RECENT_TILES 2u  /* the runtime's defaults for sealed formats */
#define SINK_TILES   1u

enum {
    SEED_K = 1,
    SEED_V = 2,
    SEED_Q = 3
};

/* ---- values ---- */

static float *random_floats(size_t n, uint64_t seed, float scale)
{
    quire_rng rng = { seed };
    float *x = quire_allocator_default()->alloc(NULL, n * sizeof(float));

    for (size_t i = 0; x != NULL && i < n; i++) {
        x[i] = scale * (float)quire_rng_normal(&rng);
    }
    return x;
}

static float *random_queries(const attn_shape *shape, float scale)
{
    return random_floats((size_t)shape->n_rows * shape->group * shape->n_kv_head * shape->d, SEED_Q,
                         scale);
}

/* TILES_RANDOM encoded tiles. */
static unsigned char *random_tiles(uint32_t d, quire_side side, quire_format format, uint64_t seed)
{
    const quire_tile_rows rows = { .d = d, .n_tokens = QUIRE_TILE_TOKENS, .stride = d };
    const quire_codec *codec = quire_codec_get();
    size_t tile_bytes = quire_tile_bytes(format, side, d);
    size_t tile_floats = (size_t)QUIRE_TILE_TOKENS * d;
    float *x = random_floats(TILES_RANDOM * tile_floats, seed, 1.0f);
    unsigned char *tiles = quire_allocator_default()->alloc(NULL, TILES_RANDOM * tile_bytes);

    for (uint32_t i = 0; x != NULL && tiles != NULL && i < TILES_RANDOM; i++) {
        (side == QUIRE_SIDE_K ? codec->encode_k : codec->encode_v)(
            format, &rows, x + i * tile_floats, tiles + i * tile_bytes);
    }
    if (x == NULL) {
        free(tiles);
        tiles = NULL;
    }
    free(x);
    return tiles;
}

/* ---- paged ---- */

/* K or V of a case. */
typedef struct paged_side {
    quire_side side;
    const quire_attn_source *source;
} paged_side;

/* Pages of one group, in extents as a cache has them; a part is a layer: the tiles of each K head,
 * then of each V head. */
typedef struct paged_group {
    size_t layer_bytes; /* of a page */
    size_t page_bytes;
    uint32_t n_pages;
    uint32_t extent_pages;
    unsigned char *store;
    quire_page_entry *entries;
    const quire_page_entry **leaves;
} paged_group;

typedef struct paged {
    attn_shape shape;
    attn_format format;
    quire_attn_workspace *ws;
    quire_attn_batch batch;
    quire_attn_seq seq;
    quire_attn_layer base;  /* layer 0 */
    quire_attn_layer layer; /* the one to run next */
    uint32_t layer_index;
    uint32_t n_entries;
    paged_group main;
    paged_group hot; /* n_pages == 0: nothing is sealed */
    quire_page_addr *page_addr;
} paged;

static uint32_t page_tiles(const attn_shape *shape)
{
    return shape->page_tokens / QUIRE_TILE_TOKENS;
}

/* Whether a tile is hot, as after append() and the owner's release: only tiles that the rows read
 * hot are there. */
static bool is_hot_tile(const paged *p, uint32_t tile)
{
    uint32_t first_row = (p->shape.n_tokens - p->shape.n_rows) / QUIRE_TILE_TOKENS;

    return tile < p->base.sink_tiles || tile + p->base.recent_tiles >= first_row;
}

static bool is_hot_page(const paged *p, uint32_t entry)
{
    bool is_hot = false;

    for (uint32_t t = 0; t < page_tiles(&p->shape); t++) {
        is_hot = is_hot || is_hot_tile(p, entry * page_tiles(&p->shape) + t);
    }
    return is_hot;
}

/* Of a layer's part of slot 0, from the start of an extent. */
static size_t layer_offset(const paged_group *group, uint32_t layer)
{
    return (size_t)layer * group->extent_pages * group->layer_bytes;
}

static quire_page_addr page_addr(const paged_group *group, uint32_t i)
{
    const uint32_t slot = i % group->extent_pages;

    return (quire_page_addr){ .extent = group->store + (i - slot) * group->page_bytes,
                              .slot = slot };
}

/* Take the next layer, so that no CPU cache holds the data of a run. */
static void paged_prepare(void *ctx)
{
    paged *p = ctx;

    (void)quire_attn_begin(p->ws, &p->batch);
    p->layer_index = (p->layer_index + 1) % p->shape.n_layers;
    p->layer = p->base;
    p->layer.k[0].lane.offset += layer_offset(&p->main, p->layer_index);
    p->layer.v[0].lane.offset += layer_offset(&p->main, p->layer_index);
    p->layer.k[0].hot_lane.offset += layer_offset(&p->hot, p->layer_index);
    p->layer.v[0].hot_lane.offset += layer_offset(&p->hot, p->layer_index);
}

static void paged_run(void *ctx, uint32_t thread, uint32_t n_threads)
{
    const paged *p = ctx;

    quire_attn_run(p->ws, &p->layer, 0, thread, n_threads);
}

static void lay(const attn_shape *shape, quire_side side, quire_format format, paged_group *group,
                quire_attn_lane *lane)
{
    size_t tile_bytes = quire_tile_bytes(format, side, shape->d);

    *lane = (quire_attn_lane){ .offset = group->layer_bytes,
                               .head_stride = page_tiles(shape) * tile_bytes,
                               .tile_stride = tile_bytes };
    group->layer_bytes += shape->n_kv_head * lane->head_stride;
    group->page_bytes = shape->n_layers * group->layer_bytes;
}

/* Place the pages in extents, once the bytes of a page of the group are known. */
static void place(const attn_shape *shape, paged_group *group, quire_attn_lane *k,
                  quire_attn_lane *v)
{
    group->extent_pages =
        group->page_bytes > 0 ? quire_cache_extent_pages(group->page_bytes, shape->n_layers) : 0;
    k->page_stride = group->layer_bytes;
    v->page_stride = group->layer_bytes;
}

static void paged_layer(paged *p, const float *q, float *out)
{
    const attn_shape *shape = &p->shape;
    uint32_t n_head = shape->group * shape->n_kv_head;

    p->base = (quire_attn_layer){
        .n_head = n_head,
        .n_kv_head = shape->n_kv_head,
        .d_k = shape->d,
        .d_v = shape->d,
        .k[0] = { .format = p->format.k, .hot_group = 1 },
        .v[0] = { .format = p->format.v, .hot_group = 1 },
        .n_k = 1,
        .n_v = 1,
        .scale = 1.0f / sqrtf((float)shape->d),
        .recent_tiles = RECENT_TILES,
        .sink_tiles = SINK_TILES,
        .q[0] = q,
        .q_stride = (size_t)n_head * shape->d,
        .k_new = q, /* queries are rounded with these K: any values take equally long */
        .k_new_stride = (size_t)n_head * shape->d,
        .out = out,
        .out_stride = (size_t)n_head * shape->d,
    };
    lay(shape, QUIRE_SIDE_K, p->format.k, &p->main, &p->base.k[0].lane);
    lay(shape, QUIRE_SIDE_V, p->format.v, &p->main, &p->base.v[0].lane);
    if (quire_format_is_sealed(p->format.k)) {
        lay(shape, QUIRE_SIDE_K, QUIRE_FORMAT_HOT, &p->hot, &p->base.k[0].hot_lane);
    }
    if (quire_format_is_sealed(p->format.v)) {
        lay(shape, QUIRE_SIDE_V, QUIRE_FORMAT_HOT, &p->hot, &p->base.v[0].hot_lane);
    }
    place(shape, &p->main, &p->base.k[0].lane, &p->base.v[0].lane);
    place(shape, &p->hot, &p->base.k[0].hot_lane, &p->base.v[0].hot_lane);
    p->main.n_pages = p->n_entries;
    for (uint32_t i = 0; p->hot.layer_bytes > 0 && i < p->n_entries; i++) {
        p->hot.n_pages += is_hot_page(p, i);
    }
}

/* Every tile of one side, in the pages that a group's entries name. */
static int group_fill(paged *p, const paged_group *group, const paged_side *s, bool is_hot)
{
    const attn_shape *shape = &p->shape;
    const quire_attn_lane *lane = is_hot ? &s->source->hot_lane : &s->source->lane;
    quire_format format = is_hot ? QUIRE_FORMAT_HOT : s->source->format;
    unsigned char *tiles =
        random_tiles(shape->d, s->side, format, s->side == QUIRE_SIDE_K ? SEED_K : SEED_V);

    for (size_t i = 0; tiles != NULL && i < (size_t)p->n_entries * page_tiles(shape); i++) {
        quire_page_addr page = p->page_addr[group->entries[i / page_tiles(shape)].page];

        for (uint32_t l = 0; page.extent != NULL && l < shape->n_layers * shape->n_kv_head; l++) {
            memcpy(page.extent + layer_offset(group, l / shape->n_kv_head) + lane->offset +
                       page.slot * lane->page_stride + l % shape->n_kv_head * lane->head_stride +
                       i % page_tiles(shape) * lane->tile_stride,
                   tiles + i % TILES_RANDOM * lane->tile_stride, lane->tile_stride);
        }
    }
    free(tiles);
    return tiles != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

static int paged_fill(paged *p)
{
    const paged_side sides[] = {
        { QUIRE_SIDE_K, &p->base.k[0] },
        { QUIRE_SIDE_V, &p->base.v[0] },
    };
    int rc = QUIRE_OK;

    for (size_t i = 0; i < 2 && rc == QUIRE_OK; i++) {
        rc = group_fill(p, &p->main, &sides[i], false);
        if (rc == QUIRE_OK && quire_format_is_sealed(sides[i].source->format)) {
            rc = group_fill(p, &p->hot, &sides[i], true);
        }
    }
    return rc;
}

/* Bytes that one layer's run reads: of the last row, where rows differ. */
static double paged_bytes(const paged *p)
{
    const quire_attn_source *sources[] = { &p->base.k[0], &p->base.v[0] };
    double bytes = 0;

    for (uint32_t t = 0; t < p->n_entries * page_tiles(&p->shape); t++) {
        for (size_t i = 0; i < 2; i++) {
            bool is_hot = sources[i]->hot_lane.tile_stride > 0 && is_hot_tile(p, t);

            bytes += (double)(is_hot ? sources[i]->hot_lane : sources[i]->lane).tile_stride;
        }
    }
    return bytes * p->shape.n_kv_head;
}

/* Of whole extents. */
static size_t store_bytes(const paged_group *group)
{
    const size_t n = group->extent_pages;

    return n > 0 ? (group->n_pages + n - 1) / n * n * group->page_bytes : 0;
}

static int group_alloc(const paged *p, paged_group *group)
{
    uint32_t n_leaves = (p->n_entries + QUIRE_LEAF_ENTRIES - 1) / QUIRE_LEAF_ENTRIES;

    group->store = attn_map(store_bytes(group));
    group->entries = calloc((size_t)n_leaves * QUIRE_LEAF_ENTRIES, sizeof(*group->entries));
    group->leaves = calloc(n_leaves, sizeof(*group->leaves));
    QUIRE_FAIL_IF(group->store == NULL || group->entries == NULL || group->leaves == NULL,
                  QUIRE_NOMEM);
    for (uint32_t i = 0; i < n_leaves; i++) {
        group->leaves[i] = group->entries + (size_t)i * QUIRE_LEAF_ENTRIES;
    }
    return QUIRE_OK;
}

static void group_free(paged_group *group)
{
    free(group->leaves);
    free(group->entries);
    attn_unmap(group->store, store_bytes(group));
}

/* Page ids: 1 .. n of the main group, then those of the hot one; its other entries are holes. */
static void paged_tables(paged *p)
{
    const uint32_t page_tokens = p->shape.page_tokens;
    uint32_t n_hot = 0;

    for (uint32_t i = 0; i < p->n_entries; i++) {
        uint32_t rest = p->shape.n_tokens - i * page_tokens;

        p->page_addr[i + 1] = page_addr(&p->main, i);
        p->main.entries[i] = (quire_page_entry){
            .page = i + 1,
            .n_tokens = (uint16_t)(rest < page_tokens ? rest : page_tokens),
            .first_pos = (int32_t)(i * page_tokens),
        };
        if (p->hot.n_pages > 0) {
            p->hot.entries[i] = p->main.entries[i];
            p->hot.entries[i].page = QUIRE_PAGE_NULL;
            if (is_hot_page(p, i)) {
                p->hot.entries[i].page = p->n_entries + 1 + n_hot;
                p->page_addr[p->n_entries + 1 + n_hot] = page_addr(&p->hot, n_hot);
                n_hot++;
            }
        }
    }
    p->seq = (quire_attn_seq){ .tables = { { p->main.leaves, p->n_entries },
                                           { p->hot.leaves, p->n_entries } },
                               .n_tokens = p->shape.n_tokens,
                               .n_rows = p->shape.n_rows };
    p->batch = (quire_attn_batch){
        .seqs = &p->seq, .n_seqs = 1, .page_tokens = page_tokens, .page_addr = p->page_addr
    };
}

static int paged_alloc(paged *p)
{
    p->page_addr = calloc(p->main.n_pages + p->hot.n_pages + 1, sizeof(*p->page_addr));
    QUIRE_FAIL_IF(p->page_addr == NULL, QUIRE_NOMEM);
    QUIRE_TRY(group_alloc(p, &p->main));
    if (p->hot.n_pages > 0) {
        QUIRE_TRY(group_alloc(p, &p->hot));
    }
    paged_tables(p);
    return QUIRE_OK;
}

static int paged_workspace(paged *p, const char *isa)
{
    quire_attn_workspace_opts opts = QUIRE_ATTN_WORKSPACE_OPTS_INIT;

    opts.n_threads_max = p->shape.n_threads;
    opts.n_seqs_max = 1;
    opts.n_rows_max = p->shape.n_rows;
    opts.n_head_max = p->base.n_head;
    opts.head_dim_max = p->shape.d;
    opts.n_entries_max = p->n_entries;
    opts.page_tokens = p->shape.page_tokens;
    opts.n_layers_max = 1;
    opts.n_groups = p->hot.n_pages > 0 ? 2 : 1;
    opts.groups[1] = (quire_attn_group){ .like = 0, .is_hot = true };
    opts.isa = isa;
    return quire_attn_workspace_create(&p->ws, &opts);
}

int attn_case_paged(const attn_shape *shape, attn_format format, const char *isa, float *out,
                    attn_timing *timing)
{
    float *q = random_queries(shape, 1.0f);
    paged p = { .shape = *shape,
                .format = format,
                .n_entries = (shape->n_tokens + shape->page_tokens - 1) / shape->page_tokens };
    attn_job j = { .prepare = paged_prepare,
                   .run = paged_run,
                   .ctx = &p,
                   .n_threads = shape->n_threads,
                   .repeats = shape->repeats };
    int rc = q != NULL ? QUIRE_OK : QUIRE_NOMEM;

    paged_layer(&p, q, out);
    if (rc < 0 || (rc = paged_workspace(&p, isa)) < 0 ||
        (rc = quire_attn_layer_check(p.ws, &p.base)) < 0 || (rc = paged_alloc(&p)) < 0 ||
        (rc = paged_fill(&p)) < 0) {
        goto out;
    }
    timing->seconds = attn_job_measure(&j);
    timing->kv_bytes = paged_bytes(&p);
out:
    quire_attn_workspace_destroy(p.ws);
    group_free(&p.hot);
    group_free(&p.main);
    free(p.page_addr);
    free(q);
    return rc;
}

/* ---- row-major ---- */

typedef struct row_major {
    const attn_machine *machine;
    attn_shape shape;
    uint16_t *kv; /* by layer, by kv head: K [n_tokens][d], then V */
    uint32_t layer;
    const float *q;
    float *out;
} row_major;

static void row_major_prepare(void *ctx)
{
    row_major *c = ctx;

    c->layer = (c->layer + 1) % c->shape.n_layers;
}

static void row_major_run(void *ctx, uint32_t thread, uint32_t n_threads)
{
    const row_major *c = ctx;
    const attn_shape *shape = &c->shape;
    uint32_t n_head = shape->group * shape->n_kv_head;
    size_t lane = (size_t)shape->n_tokens * shape->d;

    for (uint32_t h = n_head * thread / n_threads; h < n_head * (thread + 1) / n_threads; h++) {
        const uint16_t *k = c->kv + (c->layer * shape->n_kv_head + h / shape->group) * 2 * lane;
        attn_row_major args = { .k = k,
                                .v = k + lane,
                                .q = c->q + (size_t)h * shape->d,
                                .out = c->out + (size_t)h * shape->d,
                                .d = shape->d,
                                .n_tokens = shape->n_tokens };

        c->machine->row_major(&args);
    }
}

/* Every lane gets the same values. K is encoded as a V tile, because f16 V tiles are row-major. */
static int row_major_fill(const attn_shape *shape, uint16_t *kv)
{
    size_t lane = (size_t)shape->n_tokens * shape->d;

    for (uint32_t which = 0; which < 2; which++) {
        unsigned char *tiles =
            random_tiles(shape->d, QUIRE_SIDE_V, QUIRE_FORMAT_F16, which == 0 ? SEED_K : SEED_V);

        if (tiles == NULL) {
            return QUIRE_NOMEM;
        }
        for (uint32_t g = 0; g < shape->n_layers * shape->n_kv_head; g++) {
            uint16_t *to = kv + (2 * g + which) * lane;

            for (size_t t = 0; t < shape->n_tokens; t++) {
                memcpy(to + t * shape->d,
                       tiles + t % (TILES_RANDOM * QUIRE_TILE_TOKENS) * shape->d * sizeof(*to),
                       shape->d * sizeof(*to));
            }
        }
        free(tiles);
    }
    return QUIRE_OK;
}

int attn_case_row_major(const attn_shape *shape, const attn_machine *machine, float *out,
                        attn_timing *timing)
{
    size_t kv_bytes = 2 * sizeof(uint16_t) * shape->n_tokens * shape->n_kv_head * shape->d;
    uint16_t *kv = attn_map(kv_bytes * shape->n_layers);
    float *q = random_queries(shape, 1.0f / sqrtf((float)shape->d));
    row_major c = { .machine = machine, .shape = *shape, .kv = kv, .q = q, .out = out };
    attn_job j = { .prepare = row_major_prepare,
                   .run = row_major_run,
                   .ctx = &c,
                   .n_threads = shape->n_threads,
                   .repeats = shape->repeats };
    int rc = kv != NULL && q != NULL ? row_major_fill(shape, kv) : QUIRE_NOMEM;

    if (rc == QUIRE_OK) {
        timing->seconds = attn_job_measure(&j);
        timing->kv_bytes = (double)kv_bytes;
    }
    attn_unmap(kv, kv_bytes * shape->n_layers);
    free(q);
    return rc;
}
