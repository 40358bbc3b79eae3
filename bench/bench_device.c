/* bench_device.c - a device's memory, its copies of pages, and attention on its pages, for
 * scripts/gpu-check.sh.
 *
 *   bench_device [--device vulkan0] [--tokens 32768] [--layers 8] [--seconds 0.5]
 *
 * The workload of attention is a row of a model of 8B: 32 query heads, 8 KV heads of 128. One layer
 * after the other is entered and attended, as in a step, without a wait between them; with enough
 * layers no cache holds the KV of one. The time is the best of several rounds.
 *
 * Output, one line each: a name, bytes per second, and the share of the rate that is its bound.
 *
 *   copy within|in|out            as quire devices measures them
 *   pages in|out                  a cache's pages, to the device and from it; bound: copy in, out
 *   attention f16|q8|q4           bytes of KV that are read; bound: copy within
 *   pages are of page_tokens 64, and of one layer each, so that a piece is small.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/clock.h"
#include "base/parse.h"
#include "base/rng.h"
#include "cli/measuring/device_rates.h"
#include "quire/cache.h"
#include "quire/device.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADS       32u
#define KV_HEADS    8u
#define DIM         128u
#define PAGE_TOKENS 64u
#define RECENT      2u  /* tiles that a row reads in 8 bit, with sealed formats; and the first */
#define RANDOM      16u /* different pages */
#define ROUNDS      3u
#define PAGES_BYTES ((uint64_t)64 << 20) /* of a round of page copies, about */

typedef struct bench {
    const char *name;
    uint32_t n_tokens;
    uint32_t n_layers;
    double seconds; /* of a round, about */
} bench;

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

typedef struct work {
    const bench *b;
    quire_device *device;
    quire_format format;
    uint32_t n_entries;
    group groups[2]; /* main, hot */
    quire_page_addr *addrs;
    quire_attn_seq seq;
    quire_attn_batch batch;
    quire_attn_layer layer;
    float *rows; /* q and out */
} work;

static int failed(const char *what, int rc)
{
    (void)fprintf(stderr, "bench_device: %s: %s\n", what, quire_status_text(rc));
    return rc;
}

/* ---- pages ---- */

static size_t lay(quire_format format, group *g)
{
    const size_t k = quire_tile_bytes(format, QUIRE_SIDE_K, DIM);
    const size_t v = quire_tile_bytes(format, QUIRE_SIDE_V, DIM);

    g->page_bytes = KV_HEADS * (k + v);
    g->k = (quire_attn_lane){ 0, g->page_bytes, k, k };
    g->v = (quire_attn_lane){ KV_HEADS * k, g->page_bytes, v, v };
    return g->page_bytes;
}

/* Whether the row reads this entry hot. */
static bool is_near(const work *w, uint32_t entry)
{
    return quire_format_is_sealed(w->format) && (entry == 0 || entry + RECENT + 1 >= w->n_entries);
}

/* Encoded tiles of random numbers, as pages of a group. */
static int pages_fill(unsigned char *to, quire_format format, const group *g, float *tile)
{
    const quire_tile_rows rows = { .d = DIM, .n_tokens = QUIRE_TILE_TOKENS, .stride = DIM };
    const quire_codec *codec = quire_codec_get();
    quire_rng rng = { 1 };

    for (uint32_t i = 0; i < RANDOM * KV_HEADS; i++) {
        unsigned char *page = to + i / KV_HEADS * g->page_bytes;
        const uint32_t h = i % KV_HEADS;

        for (uint32_t j = 0; j < QUIRE_TILE_TOKENS * DIM; j++) {
            tile[j] = (float)quire_rng_normal(&rng);
        }
        codec->encode_k(format, &rows, tile, page + g->k.offset + h * g->k.head_stride);
        codec->encode_v(format, &rows, tile, page + g->v.offset + h * g->v.head_stride);
    }
    return QUIRE_OK;
}

/* The memory of a group, filled by copies of the random pages. */
static int group_fill(work *w, group *g, quire_format format)
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

static int table_alloc(const work *w, group *g)
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
static void tables_fill(work *w)
{
    const unsigned char *hot = w->groups[1].memory.addr;
    uint32_t n_hot = 0;

    for (uint32_t i = 0; i < w->n_entries; i++) {
        quire_page_entry *entry = &w->groups[0].entries[i];

        *entry = (quire_page_entry){ .page = i + 1,
                                     .n_tokens = PAGE_TOKENS,
                                     .first_pos = (int32_t)(i * PAGE_TOKENS) };
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

static int work_open(work *w)
{
    const uint32_t n_groups = quire_format_is_sealed(w->format) ? 2 : 1;
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_device_info info;

    w->n_entries = (w->b->n_tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
    opts.attn.n_threads_max = opts.attn.n_seqs_max = opts.attn.n_rows_max = 1;
    opts.attn.n_head_max = HEADS;
    opts.attn.head_dim_max = DIM;
    opts.attn.n_entries_max = w->n_entries;
    opts.attn.page_tokens = PAGE_TOKENS;
    opts.attn.n_layers_max = w->b->n_layers;
    opts.attn.n_groups = n_groups;
    opts.attn.groups[1] = (quire_attn_group){ .is_hot = true };
    if (quire_device_open(&w->device, w->b->name, &opts, &err) < 0) {
        (void)fprintf(stderr, "bench_device: %s\n", err.message);
        return err.status;
    }
    quire_device_info_get(w->device, &info);
    w->rows = calloc((size_t)2 * HEADS * DIM, sizeof *w->rows);
    w->addrs = calloc(2 * (size_t)w->n_entries + 1, sizeof *w->addrs);
    QUIRE_FAIL_IF(w->rows == NULL || w->addrs == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < 2; i++) {
        QUIRE_TRY(table_alloc(w, &w->groups[i]));
    }
    (void)lay(w->format, &w->groups[0]);
    (void)lay(QUIRE_FORMAT_HOT, &w->groups[1]);
    w->groups[0].n_pages = w->n_entries;
    QUIRE_TRY(group_fill(w, &w->groups[0], w->format));
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

static void work_close(work *w)
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

static void layer_fill(work *w)
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
        .k[0] = { .format = w->format, .hot_group = 1 },
        .v[0] = { .format = w->format, .hot_group = 1 },
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
    w->seq = (quire_attn_seq){ .n_tokens = w->n_entries * PAGE_TOKENS, .n_rows = 1 };
    for (uint32_t i = 0; i < 2; i++) {
        w->seq.tables[i] = (quire_attn_table){ w->groups[i].leaves, w->n_entries };
    }
    w->batch = (quire_attn_batch){
        .seqs = &w->seq, .n_seqs = 1, .page_tokens = PAGE_TOKENS, .page_addr = w->addrs
    };
}

/* n steps of all layers, and the time. */
static int steps_do(work *w, uint32_t n, double *seconds)
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
        if (l == 0) {
            QUIRE_TRY(quire_device_plan(w->device, &w->batch));
        }
        QUIRE_TRY(quire_device_enter(w->device, &layer, &own));
        quire_device_attn(w->device, &own, l, 0, 1);
    }
    QUIRE_TRY(quire_device_sync(w->device));
    *seconds = (double)(quire_clock_ns() - begin_ns) * 1e-9;
    return QUIRE_OK;
}

static double bytes_of_layer(const work *w)
{
    double bytes = 0.0;

    for (uint32_t i = 0; i < w->n_entries; i++) {
        bytes += (double)w->groups[is_near(w, i)].page_bytes;
    }
    return bytes;
}

static int attention_measure(work *w, double *rate)
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

/* ---- a cache's pages on their way ---- */

static int pages_measure(quire_device *device, double rate[2])
{
    const quire_page_memory memory = quire_device_page_memory(device);
    const size_t page_bytes = KV_HEADS * (quire_tile_bytes(QUIRE_FORMAT_Q8, QUIRE_SIDE_K, DIM) +
                                          quire_tile_bytes(QUIRE_FORMAT_Q8, QUIRE_SIDE_V, DIM));
    const uint32_t n = (uint32_t)(PAGES_BYTES / page_bytes);
    unsigned char *host = malloc(n * page_bytes);
    unsigned char *extent = memory.map(memory.ctx, n * page_bytes);
    quire_page_piece *pieces = calloc(n, sizeof *pieces);
    int rc = host != NULL && extent != NULL && pieces != NULL ? QUIRE_OK : QUIRE_NOMEM;

    if (rc == QUIRE_OK) {
        memset(host, 1, n * page_bytes);
    }
    for (uint32_t round = 0; rc == QUIRE_OK && round < 2 * (ROUNDS + 1); round++) {
        const bool is_in = round % 2 == 0;
        uint64_t ns;

        for (uint32_t i = 0; i < n; i++) {
            unsigned char *at[2] = { host + i * page_bytes, extent + i * page_bytes };

            pieces[i] = (quire_page_piece){ at[is_in], at[!is_in], page_bytes };
        }
        ns = quire_clock_ns();
        rc = memory.copy(memory.ctx, is_in ? QUIRE_PAGE_COPY_IN : QUIRE_PAGE_COPY_OUT, pieces, n);
        rc = rc == QUIRE_OK ? quire_device_sync(device) : rc;
        ns = quire_clock_ns() - ns;
        if (round >= 2) {
            rate[!is_in] = fmax(rate[!is_in], (double)(n * page_bytes) / ((double)ns * 1e-9));
        }
    }
    if (extent != NULL) {
        memory.unmap(memory.ctx, extent, n * page_bytes);
    }
    free(pieces);
    free(host);
    return rc;
}

/* ---- the program ---- */

static int formats_measure(const bench *b, double within)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 };

    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        work w = { .b = b, .format = formats[i] };
        double rate = 0.0;
        int rc = work_open(&w);

        rc = rc == QUIRE_OK ? attention_measure(&w, &rate) : rc;
        work_close(&w);
        if (rc < 0) {
            return failed(quire_format_name(formats[i]), rc);
        }
        printf("attention %s %.6g %.4f\n", quire_format_name(formats[i]), rate, rate / within);
        (void)fflush(stdout);
    }
    return QUIRE_OK;
}

static int run(const bench *b)
{
    work w = { .b = b, .format = QUIRE_FORMAT_F16 };
    bench small = *b;
    quire_device_rates rates;
    quire_device_info info;
    double pages[2] = { 0 };
    int rc;

    small.n_tokens = PAGE_TOKENS;
    small.n_layers = 1;
    w.b = &small;
    rc = work_open(&w);
    if (rc == QUIRE_OK) {
        quire_device_info_get(w.device, &info);
        printf("device %s (%s)\n", info.name, info.description);
        rc = quire_device_rates_get(w.device, &rates);
    }
    if (rc == QUIRE_OK) {
        rc = pages_measure(w.device, pages);
    }
    work_close(&w);
    if (rc < 0) {
        return failed("copies", rc);
    }
    printf("copy within %.6g 1\ncopy in %.6g 1\ncopy out %.6g 1\n", rates.within, rates.in,
           rates.out);
    printf("pages in %.6g %.4f\npages out %.6g %.4f\n", pages[0], pages[0] / rates.in, pages[1],
           pages[1] / rates.out);
    (void)fflush(stdout);
    return formats_measure(b, rates.within);
}

int main(int argc, char **argv)
{
    static const struct option longs[] = { { "device", required_argument, NULL, 'd' },
                                           { "tokens", required_argument, NULL, 't' },
                                           { "layers", required_argument, NULL, 'l' },
                                           { "seconds", required_argument, NULL, 's' },
                                           { NULL, 0, NULL, 0 } };
    bench b = { .name = "vulkan0", .n_tokens = 32768, .n_layers = 8, .seconds = 0.5 };
    int option;

    while ((option = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (option) {
        case 'd':
            b.name = optarg;
            break;
        case 't':
            b.n_tokens = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'l':
            b.n_layers = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 's':
            b.seconds = strtod(optarg, NULL);
            break;
        default:
            return 2;
        }
    }
    if (b.n_tokens < PAGE_TOKENS || b.n_tokens > 1u << 20 || b.n_layers < 1 || b.n_layers > 64) {
        (void)fprintf(stderr, "bench_device: 64 to 1048576 tokens, 1 to 64 layers\n");
        return 2;
    }
    return run(&b) == QUIRE_OK ? 0 : 1;
}
