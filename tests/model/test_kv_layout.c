/* test_kv_layout.c - layers that read K and V of several stored layers, each in its own format:
 * where they lie, and that attention reads them as they are.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "model/runtime.h"
#include "quire/attn.h"

#define HEAD_DIM 32u
#define N_STORED 3u

/* Three stored layers; layer 3 stores nothing and reads the K of 2 and 0, the V of 1 and 2. */
static quire_model_desc desc = { .n_layer = 4,
                                 .n_stored = N_STORED,
                                 .n_head = 2,
                                 .n_kv_head = 1,
                                 .d_k = HEAD_DIM,
                                 .d_v = HEAD_DIM,
                                 .attn_scale = 0.2f };

static const quire_kv_pair pairs[N_STORED] = { { QUIRE_FORMAT_F32, QUIRE_FORMAT_F32 },
                                               { QUIRE_FORMAT_Q8, QUIRE_FORMAT_F16 },
                                               { QUIRE_FORMAT_BF16, QUIRE_FORMAT_Q4 } };

static const quire_kv_form form = { .desc = &desc, .pairs = pairs, .page_tokens = 64 };

static int set_up(void **state)
{
    (void)state;
    for (uint16_t l = 0; l < N_STORED; l++) {
        desc.kv_map[l] =
            (quire_kv_map_entry){ .stored = l, .n_k = 1, .n_v = 1, .k_src = { l }, .v_src = { l } };
    }
    desc.kv_map[3] = (quire_kv_map_entry){
        .stored = -1, .n_k = 2, .n_v = 2, .k_src = { 2, 0 }, .v_src = { 1, 2 }
    };
    return 0;
}

static void expect_source(const quire_attn_source *source, quire_side side, quire_format format)
{
    assert_int_equal(source->format, format);
    assert_int_equal(source->lane.tile_stride, quire_tile_bytes(format, side, HEAD_DIM));
    if (quire_format_is_sealed(format)) {
        assert_int_equal(source->hot_group, QUIRE_KV_GROUP_HOT);
        assert_int_equal(source->hot_lane.tile_stride,
                         quire_tile_bytes(QUIRE_FORMAT_HOT, side, HEAD_DIM));
    }
}

/* Every source has the format, the rotation and the place of its own stored layer. */
static void test_sources(void **state)
{
    quire_attn_layer own[N_STORED];
    quire_attn_layer layer;

    (void)state;
    for (uint32_t l = 0; l < N_STORED; l++) {
        (void)quire_kv_layout(&form, l, &own[l]);
        expect_source(&own[l].k[0], QUIRE_SIDE_K, pairs[l].k);
        expect_source(&own[l].v[0], QUIRE_SIDE_V, pairs[l].v);
        assert_memory_equal(&own[l].k_store, &own[l].k[0], sizeof(own[l].k_store));
        assert_memory_equal(&own[l].v_store, &own[l].v[0], sizeof(own[l].v_store));
    }
    (void)quire_kv_layout(&form, 3, &layer);
    assert_int_equal(layer.n_k, 2);
    assert_int_equal(layer.n_v, 2);
    assert_memory_equal(&layer.k[0], &own[2].k[0], sizeof(layer.k[0]));
    assert_memory_equal(&layer.k[1], &own[0].k[0], sizeof(layer.k[1]));
    assert_memory_equal(&layer.v[0], &own[1].v[0], sizeof(layer.v[0]));
    assert_memory_equal(&layer.v[1], &own[2].v[0], sizeof(layer.v[1]));
    assert_int_equal(own[1].k[0].rotate, quire_hadamard_block(HEAD_DIM));
    assert_int_equal(own[0].k[0].rotate, 0);
    assert_int_equal(own[2].v[0].rotate, quire_hadamard_block(HEAD_DIM));
}

/* Bounds of K come behind V, in main pages alone, and are counted. */
static void test_bounds(void **state)
{
    const uint32_t n_pages = 3;
    quire_runtime_opts opts = {
        .n_ctx = n_pages * 128, .n_batch = 128, .page_tokens = 128, .kv_pairs = pairs
    };
    quire_kv_form with;
    size_t parts[N_STORED], parts_with[N_STORED];
    uint64_t bytes;

    (void)state;
    bytes = quire_runtime_kv_bytes(&desc, &opts);
    opts.has_bounds = true;
    with = quire_kv_form_of(&desc, &opts);
    (void)quire_kv_parts(&(quire_kv_form){ .desc = &desc, .pairs = pairs, .page_tokens = 128 },
                         QUIRE_KV_GROUP_MAIN, parts, NULL);
    (void)quire_kv_parts(&with, QUIRE_KV_GROUP_MAIN, parts_with, NULL);
    for (uint32_t l = 0; l < N_STORED; l++) { /* one head, two tiles */
        quire_attn_layer layer;

        (void)quire_kv_layout(&with, l, &layer);
        assert_int_equal(parts_with[l], parts[l] + 2 * 2 * HEAD_DIM * sizeof(uint16_t));
        assert_int_equal(layer.k_store.lane.page_stride, parts_with[l]);
    }
    assert_int_equal(quire_runtime_kv_bytes(&desc, &opts) - bytes,
                     n_pages * N_STORED * 2 * 2 * HEAD_DIM * sizeof(uint16_t));
}

/* Latent attention: a page holds K alone, and no block of its rotation reaches past V. */
static void test_latent_source(void **state)
{
    static const quire_kv_pair q4 = { QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4 };
    quire_model_desc latent = { .n_layer = 1,
                                .n_stored = 1,
                                .n_head = 16,
                                .n_kv_head = 1,
                                .d_k = 576,
                                .d_v = 512,
                                .latent = { .is_there = true } };
    const quire_kv_form one = { .desc = &latent, .pairs = &q4, .page_tokens = 128 };
    quire_kv_page_bytes bytes;
    quire_attn_layer layer;

    (void)state;
    latent.kv_map[0] = (quire_kv_map_entry){ .n_k = 1, .n_v = 1 };
    bytes = quire_kv_layout(&one, 0, &layer);
    assert_true(layer.v_prefix_of_k);
    assert_int_equal(layer.n_v, 0);
    assert_int_equal(layer.k[0].rotate, 64);
    assert_int_equal(bytes.main, 2 * quire_tile_bytes(QUIRE_FORMAT_Q4, QUIRE_SIDE_K, 576));
    assert_int_equal(bytes.hot, 2 * quire_tile_bytes(QUIRE_FORMAT_HOT, QUIRE_SIDE_K, 576));
    latent.d_k = 32;
    latent.d_v = 24;
    (void)quire_kv_layout(&one, 0, &layer);
    assert_int_equal(layer.k[0].rotate, 8);
}

/* Layers of different sizes: a page's parts are as large as their layers, and those of the window
 * group lie in pages of their own. Layer 3 reads layer 1. */
static void test_layer_sizes(void **state)
{
    static const quire_kv_pair f16[N_STORED] = { { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 },
                                                 { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 },
                                                 { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 } };
    static const quire_layer_sizes small = { 2, 32, 32, 0 }, large = { 1, 128, 128, 0 };
    const quire_layer_sizes by_layer[] = { small, large, small, large };
    quire_model_desc sized = desc;
    const quire_kv_form sized_form = { .desc = &sized, .pairs = f16, .page_tokens = 64 };
    quire_kv_page_bytes bytes;
    quire_attn_layer layers[4];
    size_t parts[N_STORED];
    uint32_t n_parts;

    (void)state;
    sized.n_kv_head = 2;
    sized.d_k = sized.d_v = 128;
    sized.has_layer_sizes = true;
    sized.kv_map[3] =
        (quire_kv_map_entry){ .stored = -1, .n_k = 1, .n_v = 1, .k_src = { 1 }, .v_src = { 1 } };
    for (uint16_t l = 0; l < 4; l++) {
        sized.layer_sizes[l] = by_layer[l];
        sized.window[l] = l == 1 || l == 3 ? 0 : 16;
        sized.stored_by[l] = l;
    }
    for (uint32_t l = 0; l < 4; l++) {
        bytes = quire_kv_layout(&sized_form, l, &layers[l]);
        assert_int_equal(layers[l].n_kv_head, by_layer[l].n_kv_head);
        assert_int_equal(layers[l].d_k, by_layer[l].d_k);
        assert_int_equal(layers[l].d_v, by_layer[l].d_v);
    }
    assert_int_equal(bytes.main, 64 * 2 * 1 * 128 * 2);
    assert_int_equal(bytes.window, 2 * 64 * 2 * 2 * 32 * 2);
    assert_int_equal(
        quire_kv_parts(&sized_form, (quire_group_id)layers[0].k[0].group, parts, &n_parts),
        bytes.window);
    assert_int_equal(n_parts, 2);
    assert_int_equal(parts[0], bytes.window / 2);
    assert_memory_equal(&layers[3].k[0], &layers[1].k[0], sizeof(layers[3].k[0]));
    assert_int_equal(layers[2].v[0].lane.offset - layers[2].k[0].lane.offset, 2 * 64 * 32 * 2);
    assert_int_equal(quire_kv_bytes_per_token(&sized, f16), 2 * 2 * (128 + 2 * 2 * 32));
    assert_int_equal(quire_kv_values_per_token(&sized), 2 * (128 + 2 * 2 * 32));
    assert_float_equal(quire_kv_bits(&sized, f16), 16.0, 1e-9);
    assert_float_equal(quire_kv_uniform_bits(&sized, f16[0]), 16.0, 1e-9);
}

/* ---- through attention ---- */

typedef struct cache {
    quire_attn_workspace *workspace;
    unsigned char *stores[2]; /* of the groups, an extent each */
    quire_page_entry entries[2];
    const quire_page_entry *leaves[2];
    quire_page_addr addr[3];
    quire_attn_seq seq;
    quire_attn_batch batch;
    float k[N_STORED][QUIRE_TILE_TOKENS * HEAD_DIM];
    float v[N_STORED][QUIRE_TILE_TOKENS * HEAD_DIM];
    float q[2][QUIRE_TILE_TOKENS * 2 * HEAD_DIM];
    float out[QUIRE_TILE_TOKENS * 2 * HEAD_DIM];
} cache;

static void fill(quire_rng *rng, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)quire_rng_normal(rng);
    }
}

static void cache_init(cache *c)
{
    quire_attn_workspace_opts opts = QUIRE_ATTN_WORKSPACE_OPTS_INIT;
    quire_attn_layer layer;
    const quire_kv_page_bytes bytes = quire_kv_layout(&form, 0, &layer);
    const size_t page_bytes[2] = { bytes.main, bytes.hot };
    quire_rng rng = { 5 };

    opts.n_threads_max = opts.n_seqs_max = opts.n_entries_max = opts.n_layers_max = 1;
    opts.n_rows_max = opts.page_tokens = 64;
    opts.n_head_max = 2;
    opts.head_dim_max = HEAD_DIM;
    opts.n_groups = 2;
    opts.groups[QUIRE_KV_GROUP_HOT].is_hot = true;
    assert_int_equal(quire_attn_workspace_create(&c->workspace, &opts), QUIRE_OK);
    c->seq = (quire_attn_seq){ .n_tokens = 60, .n_rows = 60 };
    for (uint32_t g = 0; g < 2; g++) {
        const size_t n_pages = quire_cache_extent_pages(page_bytes[g], N_STORED);

        c->stores[g] = quire_allocator_default()->alloc(NULL, n_pages * page_bytes[g]);
        assert_non_null(c->stores[g]);
        c->entries[g] = (quire_page_entry){ .page = 1 + g, .n_tokens = 60 };
        c->leaves[g] = &c->entries[g];
        c->addr[1 + g] = (quire_page_addr){ .extent = c->stores[g] };
        c->seq.tables[g] = (quire_attn_table){ &c->leaves[g], 1 };
    }
    c->batch =
        (quire_attn_batch){ .seqs = &c->seq, .n_seqs = 1, .page_tokens = 64, .page_addr = c->addr };
    for (uint32_t l = 0; l < N_STORED; l++) {
        fill(&rng, c->k[l], 60 * HEAD_DIM);
        fill(&rng, c->v[l], 60 * HEAD_DIM);
    }
    fill(&rng, c->q[0], 60 * 2 * HEAD_DIM);
    fill(&rng, c->q[1], 60 * 2 * HEAD_DIM);
    assert_int_equal(quire_attn_begin(c->workspace, &c->batch), QUIRE_OK);
}

static void cache_fini(cache *c)
{
    quire_attn_workspace_destroy(c->workspace);
    quire_allocator_default()->free(NULL, c->stores[0]);
    quire_allocator_default()->free(NULL, c->stores[1]);
}

/* The output of layer 3 for a row, head and dimension, computed from K and V before rounding. */
static double by_formula(const cache *c, uint32_t row, uint32_t h, uint32_t dim)
{
    const float *const k[2] = { c->k[2], c->k[0] };
    double sum = 0.0, out = 0.0;

    for (uint32_t t = 0; t <= row; t++) {
        double logit = 0.0;

        for (uint32_t s = 0; s < 2; s++) {
            for (uint32_t i = 0; i < HEAD_DIM; i++) {
                logit +=
                    (double)c->q[s][(row * 2 + h) * HEAD_DIM + i] * (double)k[s][t * HEAD_DIM + i];
            }
        }
        sum += exp(logit * (double)desc.attn_scale);
        out += exp(logit * (double)desc.attn_scale) *
               ((double)c->v[1][t * HEAD_DIM + dim] + (double)c->v[2][t * HEAD_DIM + dim]);
    }
    return out / sum;
}

/* Two K in f32 and bf16, two V in f16 and q4 (8 bit while recent): a source read in the other's
 * format would be far off. */
static void test_attention_reads_each_as_it_is(void **state)
{
    static cache c;
    quire_attn_layer layer;
    double error = 0.0, norm = 0.0;

    (void)state;
    cache_init(&c);
    for (uint32_t l = 0; l < N_STORED; l++) {
        (void)quire_kv_layout(&form, l, &layer);
        assert_int_equal(quire_attn_layer_check(c.workspace, &layer), QUIRE_OK);
        layer.k_new = c.k[l];
        layer.v_new = c.v[l];
        layer.k_new_stride = layer.v_new_stride = HEAD_DIM;
        quire_attn_append(c.workspace, &layer, 0, 1);
    }
    (void)quire_kv_layout(&form, 3, &layer);
    assert_int_equal(quire_attn_layer_check(c.workspace, &layer), QUIRE_OK);
    layer.q[0] = c.q[0];
    layer.q[1] = c.q[1];
    layer.q_stride = layer.out_stride = 2 * HEAD_DIM;
    layer.out = c.out;
    quire_attn_run(c.workspace, &layer, 0, 0, 1);
    for (uint32_t row = 0; row < 60; row++) {
        for (uint32_t i = 0; i < 2 * HEAD_DIM; i++) {
            const double expected = by_formula(&c, row, i / HEAD_DIM, i % HEAD_DIM);
            const double got = (double)c.out[row * 2 * HEAD_DIM + i];

            error += (got - expected) * (got - expected);
            norm += expected * expected;
        }
    }
    assert_true(norm > 0.0 && error <= 1e-4 * norm);
    cache_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sources),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_latent_source),
        cmocka_unit_test(test_layer_sizes),
        cmocka_unit_test(test_attention_reads_each_as_it_is),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
