/* test_device_split.c - layers of one model on several devices: steps of a cache whose pages are
 * split give the bits of one device; memory, copies, refusals and loss.
 *
 * The model has six layers. Those with even numbers lie in group 0, the others have a window and
 * lie in group 1; pages of both groups have the same parts.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "device/mock_device.h"
#include "quire/cache.h"
#include "quire/device.h"

#include <stdlib.h>
#include <string.h>

#define N_LAYERS  6u
#define N_GROUPS  2u
#define N_PARTS   (N_LAYERS / N_GROUPS)
#define N_HEAD    2u
#define D         64u
#define PAGE      64u
#define WINDOW    100u
#define ROWS_MAX  192u
#define N_ENTRIES 16u
#define BUDGET    ((uint64_t)256 << 20)

static size_t tile_bytes(void)
{
    return quire_tile_bytes(QUIRE_FORMAT_F16, QUIRE_SIDE_K, D);
}

static size_t part_bytes(void)
{
    return tile_bytes() + quire_tile_bytes(QUIRE_FORMAT_F16, QUIRE_SIDE_V, D);
}

static size_t extent_pages(void)
{
    return quire_cache_extent_pages(N_PARTS * part_bytes(), N_PARTS);
}

static quire_attn_workspace_opts attn_opts(void)
{
    quire_attn_workspace_opts opts = QUIRE_ATTN_WORKSPACE_OPTS_INIT;

    opts.n_threads_max = 1;
    opts.n_seqs_max = 4;
    opts.n_rows_max = ROWS_MAX;
    opts.n_head_max = N_HEAD;
    opts.head_dim_max = D;
    opts.n_entries_max = N_ENTRIES;
    opts.page_tokens = PAGE;
    opts.n_layers_max = N_LAYERS;
    opts.n_groups = N_GROUPS;
    opts.groups[1].window = WINDOW;
    return opts;
}

/* A cache on one device, or on the devices of a split. */
typedef struct rig {
    quire_device *devices[QUIRE_DEVICE_SPLIT_MAX];
    quire_device_split *split; /* NULL: one device, without a split */
    quire_page_memory memory;
    quire_attn_device attention;
    quire_cache *cache;
} rig;

/* A device by a letter: c the CPU, m a mock whose work waits. */
static quire_device *device_open(char kind, uint64_t memory_bytes_max)
{
    const quire_mock_device_opts slow = { .delay_ticks = 2 };
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_device *device;

    opts.attn = attn_opts();
    opts.memory_bytes_max = memory_bytes_max;
    assert_int_equal(kind == 'c' ? quire_device_open(&device, "cpu", &opts, NULL)
                                 : quire_mock_device_open(&device, &opts, &slow, NULL),
                     QUIRE_OK);
    return device;
}

/* Layers first[i - 1] to first[i] - 1 on device i. */
static quire_device_split_opts split_opts(const rig *r, uint32_t n, const uint32_t *last)
{
    quire_device_split_opts opts = QUIRE_DEVICE_SPLIT_OPTS_INIT;

    opts.n_devices = n;
    opts.n_groups = N_GROUPS;
    memcpy(opts.devices, r->devices, sizeof(opts.devices));
    for (uint32_t i = 0; i < n; i++) {
        opts.end[0][i] = extent_pages() * part_bytes() * ((last[i] + 1) / 2);
        opts.end[1][i] = extent_pages() * part_bytes() * (last[i] / 2);
    }
    return opts;
}

static void cache_open(rig *r)
{
    size_t parts[N_PARTS];
    quire_cache_opts opts = QUIRE_CACHE_OPTS_INIT;

    for (uint32_t p = 0; p < N_PARTS; p++) {
        parts[p] = part_bytes();
    }
    opts.n_groups = N_GROUPS;
    for (uint32_t g = 0; g < N_GROUPS; g++) {
        opts.page_bytes[g] = N_PARTS * part_bytes();
        opts.n_parts[g] = N_PARTS;
        opts.part_bytes[g] = parts;
    }
    opts.needs_last_tokens[1] = WINDOW;
    opts.budget_bytes = BUDGET;
    opts.memory = &r->memory;
    assert_int_equal(quire_cache_create(&r->cache, &opts), QUIRE_OK);
}

/* kinds: a letter per device; last: the layer behind the last one of each. max: most memory of
 * each; NULL = no bound. */
static void rig_open_bounded(rig *r, const char *kinds, const uint32_t *last, const uint64_t *max)
{
    const uint32_t n = (uint32_t)strlen(kinds);
    quire_device_split_opts opts;

    *r = (rig){ .split = NULL };
    for (uint32_t i = 0; i < n; i++) {
        r->devices[i] = device_open(kinds[i], max != NULL ? max[i] : 0);
    }
    if (last == NULL) {
        r->memory = quire_device_page_memory(r->devices[0]);
        r->attention = quire_device_attention(r->devices[0]);
    } else {
        opts = split_opts(r, n, last);
        assert_int_equal(quire_device_split_open(&r->split, &opts, NULL), QUIRE_OK);
        r->memory = quire_device_split_page_memory(r->split);
        r->attention = quire_device_split_attention(r->split);
    }
    cache_open(r);
}

static void rig_open(rig *r, const char *kinds, const uint32_t *last)
{
    rig_open_bounded(r, kinds, last, NULL);
}

static void rig_close(rig *r)
{
    quire_cache_validate(r->cache);
    quire_cache_destroy(r->cache);
    if (r->split != NULL) {
        quire_device_split_close(r->split);
    } else {
        quire_device_close(r->devices[0]);
    }
}

static uint64_t used_bytes(const rig *r, uint32_t i)
{
    quire_device_info info;

    quire_device_info_get(r->devices[i], &info);
    return info.used_bytes;
}

/* ---- steps ---- */

static quire_attn_layer layer_of(uint32_t il)
{
    const quire_attn_lane k = { .offset = extent_pages() * part_bytes() * (il / 2),
                                .page_stride = part_bytes(),
                                .head_stride = tile_bytes(),
                                .tile_stride = tile_bytes() };
    quire_attn_layer layer = {
        .n_head = N_HEAD, .n_kv_head = 1, .d_k = D, .d_v = D, .n_k = 1, .n_v = 1, .scale = 0.125f
    };

    layer.window = il % 2 == 1 ? WINDOW : 0;
    layer.k[0] = (quire_attn_source){ .format = QUIRE_FORMAT_F16, .group = il % 2, .lane = k };
    layer.v[0] = layer.k[0];
    layer.v[0].lane.offset += tile_bytes();
    layer.k_store = layer.k[0];
    layer.v_store = layer.v[0];
    return layer;
}

typedef struct rows {
    float q[ROWS_MAX * N_HEAD * D];
    float k[ROWS_MAX * D];
    float v[ROWS_MAX * D];
    float out[ROWS_MAX * N_HEAD * D];
} rows;

/* Rows that depend on the layer and the place in the text alone. */
static void rows_make(rows *to, uint32_t il, uint32_t first, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++) {
        quire_rng rng = { .state = il * 1000003u + first + r };

        for (uint32_t i = 0; i < N_HEAD * D; i++) {
            to->q[r * N_HEAD * D + i] = (float)quire_rng_normal(&rng);
        }
        for (uint32_t i = 0; i < D; i++) {
            to->k[r * D + i] = (float)quire_rng_normal(&rng);
            to->v[r * D + i] = (float)quire_rng_normal(&rng);
        }
    }
}

static quire_attn_layer layer_with(uint32_t il, rows *data)
{
    quire_attn_layer layer = layer_of(il);

    layer.q[0] = data->q;
    layer.q_stride = (size_t)N_HEAD * D;
    layer.k_new = data->k;
    layer.v_new = data->v;
    layer.k_new_stride = layer.v_new_stride = D;
    layer.out = data->out;
    layer.out_stride = (size_t)N_HEAD * D;
    return layer;
}

/* The batch of a sequence's last n tokens. */
static quire_attn_batch batch_of(const rig *r, quire_seq_id id, uint32_t n, quire_attn_seq *seq)
{
    *seq = (quire_attn_seq){ .n_tokens = quire_seq_tokens(r->cache, id), .n_rows = n };
    for (quire_group_id g = 0; g < N_GROUPS; g++) {
        quire_seq_table table;

        assert_int_equal(quire_seq_table_get(r->cache, id, g, &table), QUIRE_OK);
        seq->tables[g] = (quire_attn_table){ table.leaves, table.n_entries };
    }
    return (quire_attn_batch){
        .seqs = seq, .n_seqs = 1, .page_tokens = PAGE, .page_addr = quire_cache_page_addrs(r->cache)
    };
}

/* Append n tokens and compute all layers. *sums: the result, [n_layers][n][n_head][d], or NULL. */
static int step(rig *r, quire_seq_id id, uint32_t n, float *result)
{
    const uint32_t first = quire_seq_tokens(r->cache, id);
    rows *data = malloc(sizeof(*data));
    quire_attn_batch batch;
    quire_attn_seq seq;
    int rc;

    assert_non_null(data);
    rc = quire_seq_append(r->cache, id, n);
    if (rc == QUIRE_OK) {
        batch = batch_of(r, id, n, &seq);
        rc = r->attention.plan(r->attention.ctx, &batch);
        for (uint32_t il = 0; il < N_LAYERS && rc == QUIRE_OK; il++) {
            const quire_attn_layer layer = layer_with(il, data);

            rows_make(data, il, first, n);
            r->attention.append(r->attention.ctx, &layer, 0, 1);
            r->attention.run(r->attention.ctx, &layer, il, 0, 1);
            memcpy(result + (size_t)il * n * N_HEAD * D, data->out, (size_t)n * N_HEAD * D * 4);
        }
        rc = rc < 0 ? rc : r->attention.sync(r->attention.ctx);
    }
    free(data);
    return rc;
}

typedef struct text {
    float results[6][N_LAYERS * ROWS_MAX * N_HEAD * D];
    uint32_t n;
} text;

static void text_step(text *t, rig *r, quire_seq_id id, uint32_t n)
{
    assert_int_equal(step(r, id, n, t->results[t->n++]), QUIRE_OK);
}

/* Steps of a text, of a fork that copies the last page, and behind moved pages. */
static text *text_run(rig *r)
{
    text *t = calloc(1, sizeof(*t));
    quire_seq_id id, fork, other;

    assert_non_null(t);
    assert_int_equal(quire_seq_open(r->cache, QUIRE_REGION_DYNAMIC, &other), QUIRE_OK);
    assert_int_equal(quire_seq_append(r->cache, other, 4 * PAGE), QUIRE_OK);
    assert_int_equal(quire_seq_open(r->cache, QUIRE_REGION_DYNAMIC, &id), QUIRE_OK);
    text_step(t, r, id, 180);
    text_step(t, r, id, 1);
    assert_int_equal(quire_seq_fork(r->cache, id, &fork), QUIRE_OK);
    text_step(t, r, fork, 70);
    text_step(t, r, id, 1);
    assert_int_equal(quire_seq_release(r->cache, id, 1, 0, PAGE, NULL), QUIRE_OK);
    assert_int_equal(quire_seq_close(r->cache, other), QUIRE_OK);
    (void)quire_cache_coalesce(r->cache, UINT32_MAX);
    quire_cache_maintain(r->cache);
    text_step(t, r, id, 130);
    text_step(t, r, fork, 1);
    return t;
}

static void check_same(const char *kinds, const uint32_t *last, const text *wanted)
{
    text *t;
    rig r;

    rig_open(&r, kinds, last);
    t = text_run(&r);
    assert_memory_equal(t, wanted, sizeof(*t));
    free(t);
    rig_close(&r);
}

/* Copy the first n full pages of a text into those of another one, by the host. */
static void pages_copy(rig *r, quire_seq_id from, quire_seq_id to, uint32_t n)
{
    const size_t bytes = N_PARTS * part_bytes();
    unsigned char *buffer = malloc(bytes);

    assert_non_null(buffer);
    for (uint32_t i = 0; i < n * N_GROUPS; i++) {
        const quire_group_id g = (quire_group_id)(i % N_GROUPS);
        quire_seq_table tables[2];

        assert_int_equal(quire_seq_table_get(r->cache, from, g, &tables[0]), QUIRE_OK);
        assert_int_equal(quire_seq_table_get(r->cache, to, g, &tables[1]), QUIRE_OK);
        assert_int_equal(quire_cache_page_gather(r->cache, tables[0].leaves[0][i / N_GROUPS].page,
                                                 buffer, bytes),
                         QUIRE_OK);
        assert_int_equal(quire_cache_page_scatter(r->cache, tables[1].leaves[0][i / N_GROUPS].page,
                                                  buffer, bytes),
                         QUIRE_OK);
    }
    free(buffer);
}

/* Pages that come from the host while no step runs: the next step that reads them has their bytes,
 * on each device. */
static void test_pages_in(void **state)
{
    static const char *const kinds[] = { "m", "mm", "cm" };
    float *results[2];

    (void)state;
    for (uint32_t k = 0; k < 3; k++) {
        quire_seq_id ids[2];
        rig r;

        rig_open(&r, kinds[k], k > 0 ? (const uint32_t[]){ 3, 6 } : NULL);
        for (uint32_t i = 0; i < 2; i++) {
            results[i] = calloc(N_LAYERS * 2 * PAGE * N_HEAD * D, sizeof(float));
            assert_non_null(results[i]);
            assert_int_equal(quire_seq_open(r.cache, QUIRE_REGION_DYNAMIC, &ids[i]), QUIRE_OK);
        }
        assert_int_equal(step(&r, ids[0], 2 * PAGE, results[0]), QUIRE_OK);
        assert_int_equal(quire_seq_append(r.cache, ids[1], 2 * PAGE), QUIRE_OK);
        pages_copy(&r, ids[0], ids[1], 2);
        for (uint32_t i = 2; i-- > 0;) {
            assert_int_equal(step(&r, ids[i], 1, results[i]), QUIRE_OK);
        }
        assert_memory_equal(results[0], results[1], N_LAYERS * N_HEAD * D * sizeof(float));
        free(results[0]);
        free(results[1]);
        rig_close(&r);
    }
}

static void test_bits(void **state)
{
    text *wanted;
    rig one;

    (void)state;
    rig_open(&one, "c", NULL);
    wanted = text_run(&one);
    rig_close(&one);
    check_same("m", NULL, wanted);
    check_same("c", (const uint32_t[]){ 6 }, wanted);
    check_same("cc", (const uint32_t[]){ 3, 6 }, wanted);
    check_same("mm", (const uint32_t[]){ 3, 6 }, wanted);
    check_same("mc", (const uint32_t[]){ 1, 6 }, wanted); /* no part of group 1 on the first */
    check_same("cm", (const uint32_t[]){ 5, 6 }, wanted); /* no part of group 0 on the second */
    check_same("mcm", (const uint32_t[]){ 2, 3, 6 }, wanted);
    check_same("cmcmcm", (const uint32_t[]){ 1, 2, 3, 4, 5, 6 }, wanted);
    free(wanted);
}

/* ---- memory ---- */

static void bytes_check(rig *r, quire_page_id page, unsigned char stamp)
{
    const size_t bytes = N_PARTS * part_bytes();
    unsigned char *in = malloc(bytes), *out = calloc(1, bytes);

    assert_true(in != NULL && out != NULL);
    for (size_t i = 0; i < bytes; i++) {
        in[i] = (unsigned char)(stamp + i + i / 251u);
    }
    assert_int_equal(quire_cache_page_scatter(r->cache, page, in, bytes), QUIRE_OK);
    assert_int_equal(quire_cache_page_gather(r->cache, page, out, bytes), QUIRE_OK);
    assert_memory_equal(in, out, bytes);
    free(in);
    free(out);
}

/* Each device gives the memory of its parts alone, and nothing for the tail; a group's extents
 * serve no other group. */
static void test_memory(void **state)
{
    const uint64_t part = extent_pages() * part_bytes();
    quire_seq_table table;
    quire_seq_id id;
    rig r;

    (void)state;
    rig_open(&r, "mm", (const uint32_t[]){ 3, 6 });
    assert_int_equal(quire_seq_open(r.cache, QUIRE_REGION_DYNAMIC, &id), QUIRE_OK);
    assert_int_equal(quire_seq_append(r.cache, id, 2 * PAGE), QUIRE_OK);
    assert_int_equal(used_bytes(&r, 0), 3 * part);
    assert_int_equal(used_bytes(&r, 1), 3 * part);
    for (quire_group_id g = 0; g < N_GROUPS; g++) {
        assert_int_equal(quire_seq_table_get(r.cache, id, g, &table), QUIRE_OK);
        bytes_check(&r, table.leaves[0][0].page, (unsigned char)(7 * g));
        bytes_check(&r, table.leaves[0][1].page, (unsigned char)(7 * g + 3));
    }
    assert_int_equal(quire_seq_close(r.cache, id), QUIRE_OK);
    assert_true(quire_cache_trim(r.cache, 0) > 0);
    rig_close(&r);
}

/* A device without room for its part: the others keep nothing of the extent. */
static void test_capacity(void **state)
{
    const uint64_t part = extent_pages() * part_bytes();
    /* Copies pass a stage of 1 MiB, which no page is copied by here. */
    const uint64_t max[] = { 0, 3 * part };
    quire_seq_id id, more;
    rig r;

    (void)state;
    rig_open_bounded(&r, "mm", (const uint32_t[]){ 3, 6 }, max);
    assert_int_equal(quire_seq_open(r.cache, QUIRE_REGION_DYNAMIC, &id), QUIRE_OK);
    assert_int_equal(quire_seq_append(r.cache, id, 1), QUIRE_OK);
    assert_int_equal(used_bytes(&r, 0), 3 * part);
    assert_int_equal(used_bytes(&r, 1), 3 * part);
    assert_int_equal(quire_seq_open(r.cache, QUIRE_REGION_DYNAMIC, &more), QUIRE_OK);
    assert_int_equal(quire_seq_append(r.cache, more, (uint32_t)extent_pages() * PAGE), QUIRE_NOMEM);
    assert_int_equal(used_bytes(&r, 0), 3 * part);
    assert_int_equal(quire_seq_append(r.cache, more, PAGE), QUIRE_OK); /* room as before */
    rig_close(&r);
}

/* ---- refusals, loss ---- */

static void test_refusals(void **state)
{
    quire_device_split_opts opts;
    quire_device_split *split;
    quire_attn_layer layer;
    quire_attn_batch batch;
    quire_page_piece piece = { .bytes = 64 };
    quire_page_addr *host;
    quire_attn_seq seq;
    quire_seq_id id;
    rig r;

    (void)state;
    rig_open(&r, "mc", (const uint32_t[]){ 3, 6 });
    assert_string_equal(r.attention.name, quire_attn_isa()); /* of both */
    for (uint32_t il = 0; il < N_LAYERS; il++) {
        layer = layer_of(il);
        assert_int_equal(r.attention.check(r.attention.ctx, &layer), QUIRE_OK);
    }
    layer = layer_of(4);
    layer.v[0] = layer_of(0).v[0]; /* K of one device, V of the other */
    assert_int_equal(r.attention.check(r.attention.ctx, &layer), QUIRE_UNSUPP);
    layer = layer_of(4);
    layer.k_store = layer_of(0).k_store; /* it may store where it does not read */
    layer.v_store = layer_of(0).v_store;
    assert_int_equal(r.attention.check(r.attention.ctx, &layer), QUIRE_OK);
    layer.k[0].group = N_GROUPS;
    assert_int_equal(r.attention.check(r.attention.ctx, &layer), QUIRE_INVAL);
    assert_int_equal(r.memory.copy(r.memory.ctx, QUIRE_PAGE_COPY_FETCH, &piece, 1), QUIRE_UNSUPP);
    assert_null(r.memory.pin);
    /* A page in the host's memory. */
    assert_int_equal(quire_seq_open(r.cache, QUIRE_REGION_DYNAMIC, &id), QUIRE_OK);
    assert_int_equal(quire_seq_append(r.cache, id, 1), QUIRE_OK);
    batch = batch_of(&r, id, 1, &seq);
    host = calloc(quire_cache_page_id_end(r.cache), sizeof(*host));
    assert_non_null(host);
    memcpy(host, batch.page_addr, quire_cache_page_id_end(r.cache) * sizeof(*host));
    host[seq.tables[0].leaves[0][0].page].memory = QUIRE_MEMORY_HOST;
    batch.page_addr = host;
    assert_int_equal(r.attention.plan(r.attention.ctx, &batch), QUIRE_UNSUPP);
    free(host);
    /* Options. */
    opts = split_opts(&r, 2, (const uint32_t[]){ 3, 6 });
    opts.end[1][1] = 0;
    assert_int_equal(quire_device_split_open(&split, &opts, NULL), QUIRE_INVAL);
    assert_null(split);
    opts = split_opts(&r, 2, (const uint32_t[]){ 3, 6 });
    opts.n_devices = 0;
    assert_int_equal(quire_device_split_open(&split, &opts, NULL), QUIRE_INVAL);
    opts.n_devices = QUIRE_DEVICE_SPLIT_MAX + 1;
    assert_int_equal(quire_device_split_open(&split, &opts, NULL), QUIRE_INVAL);
    rig_close(&r);
}

/* One lost device loses the split, and memory goes back all the same. */
static void test_loss(void **state)
{
    const quire_mock_device_opts loses = { .loss = 1.0 };
    float *result = calloc(1, sizeof(text));
    quire_seq_id id;
    rig r;

    (void)state;
    assert_non_null(result);
    rig_open(&r, "cmm", (const uint32_t[]){ 2, 4, 6 });
    assert_int_equal(quire_seq_open(r.cache, QUIRE_REGION_DYNAMIC, &id), QUIRE_OK);
    assert_int_equal(step(&r, id, 10, result), QUIRE_OK);
    assert_null(quire_device_split_lost(r.split));
    quire_mock_device_set(r.devices[1], &loses);
    assert_int_equal(step(&r, id, 10, result), QUIRE_LOST);
    assert_ptr_equal(quire_device_split_lost(r.split), r.devices[1]);
    assert_int_equal(step(&r, id, 10, result), QUIRE_LOST);
    assert_int_equal(quire_device_split_count(r.split), 3);
    assert_ptr_equal(quire_device_split_device(r.split, 2), r.devices[2]);
    free(result);
    rig_close(&r);
}

/* ---- memory that ends ---- */

static void *counted_alloc(void *ctx, size_t bytes)
{
    const quire_allocator *inner = quire_allocator_default();
    int *left = ctx;

    return (*left)-- > 0 ? inner->alloc(inner->ctx, bytes) : NULL;
}

static void counted_free(void *ctx, void *base)
{
    const quire_allocator *inner = quire_allocator_default();

    (void)ctx;
    inner->free(inner->ctx, base);
}

/* Each allocation of the split's own fails once: open, extents, the devices' addresses. */
static void test_no_memory(void **state)
{
    int left = 0;
    const quire_allocator allocator = { counted_alloc, counted_free, &left };
    float *result = calloc(1, sizeof(text));
    int rc = QUIRE_NOMEM;

    (void)state;
    assert_non_null(result);
    for (int n = 0; rc == QUIRE_NOMEM; n++) {
        quire_device_split_opts opts;
        quire_seq_id id;
        rig r = { .split = NULL };

        r.devices[0] = device_open('c', 0);
        r.devices[1] = device_open('m', 0);
        opts = split_opts(&r, 2, (const uint32_t[]){ 3, 6 });
        opts.allocator = &allocator;
        left = n;
        rc = quire_device_split_open(&r.split, &opts, NULL);
        if (rc < 0) {
            assert_int_equal(rc, QUIRE_NOMEM);
            quire_device_close(r.devices[0]);
            quire_device_close(r.devices[1]);
            continue;
        }
        r.memory = quire_device_split_page_memory(r.split);
        r.attention = quire_device_split_attention(r.split);
        cache_open(&r);
        assert_int_equal(quire_seq_open(r.cache, QUIRE_REGION_DYNAMIC, &id), QUIRE_OK);
        rc = step(&r, id, 3, result);
        assert_true(rc == QUIRE_OK || rc == QUIRE_NOMEM);
        assert_true(rc == QUIRE_NOMEM || n >= 4);
        rig_close(&r);
    }
    free(result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),      cmocka_unit_test(test_pages_in),
        cmocka_unit_test(test_memory),    cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_loss),
        cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
