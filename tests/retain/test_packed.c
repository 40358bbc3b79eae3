/* test_packed.c - packed pages: places and lists over several layers and pages, lists that are
 * damaged, numbers of pages, and sums over the rows between two condensings.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "retain/packed_device_internal.h"

#include <stdlib.h>
#include <string.h>

#define N_LAYERS  3u
#define N_HEADS   2u
#define N_LANES   (N_LAYERS * N_HEADS)
#define D         32u
#define N_PAGES   4u
#define PAGE      128u /* two tiles of each lane */
#define TILE_SIZE (64u * D * 2u)
#define PART_SIZE (2u * N_HEADS * 2u * TILE_SIZE)

typedef struct fixture {
    quire_attn_layer layers[N_LAYERS];
    quire_packing packing;
    unsigned char *memory; /* an extent: layer after layer, all pages of each */
    quire_page_addr addrs[N_PAGES + 1];
    quire_page_entry entries[QUIRE_LEAF_ENTRIES * N_PAGES];
    const quire_page_entry *leaves[N_PAGES];
    quire_packed_pages pages;
} fixture;

static void layer_init(quire_attn_layer *layer, uint32_t l)
{
    const quire_attn_lane k = { .offset = (size_t)l * N_PAGES * PART_SIZE,
                                .page_stride = PART_SIZE,
                                .head_stride = 2 * TILE_SIZE,
                                .tile_stride = TILE_SIZE };

    *layer = (quire_attn_layer){
        .n_head = N_HEADS, .n_kv_head = N_HEADS, .d_k = D, .d_v = D, .n_k = 1, .n_v = 1
    };
    layer->k[0] = (quire_attn_source){ .format = QUIRE_FORMAT_F16, .lane = k };
    layer->v[0] = layer->k[0];
    layer->v[0].lane.offset += N_HEADS * 2 * TILE_SIZE;
    layer->k_store = layer->k[0];
    layer->v_store = layer->v[0];
}

static fixture *fixture_open(void)
{
    fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    f->memory = calloc(N_LAYERS * N_PAGES, PART_SIZE);
    assert_non_null(f->memory);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        layer_init(&f->layers[l], l);
    }
    for (uint32_t i = 0; i < N_PAGES; i++) { /* pages of the sequence in other slots */
        const uint32_t at = i / QUIRE_LEAF_ENTRIES;

        f->addrs[i + 1] = (quire_page_addr){ .extent = f->memory, .slot = N_PAGES - 1 - i };
        f->entries[at * QUIRE_LEAF_ENTRIES + i % QUIRE_LEAF_ENTRIES].page = i + 1;
        f->leaves[at] = &f->entries[(size_t)at * QUIRE_LEAF_ENTRIES];
    }
    assert_int_equal(quire_packing_init(&f->packing, f->layers, N_LAYERS, PAGE), QUIRE_OK);
    f->pages = (quire_packed_pages){ .leaves = f->leaves, .addrs = f->addrs, .n = N_PAGES };
    return f;
}

static void fixture_close(fixture *f)
{
    free(f->memory);
    free(f);
}

/* Fill the places and the list of assigned lanes, in pages that hold anything. */
static void contents_put(fixture *f, const quire_packed_lanes *lanes, int garbage)
{
    int32_t positions[17 * 64];

    memset(f->memory, garbage, (size_t)N_LAYERS * N_PAGES * PART_SIZE);
    for (uint32_t i = 0; i < lanes->first[N_LANES]; i++) {
        unsigned char *k = quire_packed_tile(&f->packing, &f->pages, lanes, i, QUIRE_SIDE_K);
        unsigned char *v = quire_packed_tile(&f->packing, &f->pages, lanes, i, QUIRE_SIDE_V);

        assert_true(v == k + quire_packing_v_offset(&f->packing));
        memset(k, (int)(1 + i), TILE_SIZE);
        memset(v, (int)(101 + i), TILE_SIZE);
    }
    quire_packed_list_begin(&f->packing, &f->pages, lanes);
    for (uint32_t lane = 0; lane < N_LANES; lane++) {
        for (uint32_t t = 0; t < (lanes->first[lane + 1] - lanes->first[lane]) * 64; t++) {
            positions[t] = (int32_t)(t * 3 + lane);
        }
        quire_packed_positions_put(&f->packing, &f->pages, lanes, lane, positions);
    }
}

/* Lists and tiles do not overlap, and come back. All bytes of the pages follow from them. */
static void test_contents(void **state)
{
    static const uint32_t n_tiles[N_LANES] = { 9, 0, 1, 17, 4, 2 };
    static unsigned char bytes[N_LAYERS * N_PAGES * PART_SIZE];
    fixture *f = fixture_open();
    quire_packed_lanes lanes, again;
    int32_t back[17 * 64];
    uint32_t n_places = 0;

    (void)state;
    assert_int_equal(quire_packed_lanes_init(&lanes, &f->packing), QUIRE_OK);
    assert_int_equal(quire_packed_lanes_init(&again, &f->packing), QUIRE_OK);
    assert_int_equal(quire_packed_assign(&f->packing, N_PAGES, n_tiles, &lanes), QUIRE_OK);
    for (uint32_t lane = 0; lane < N_LANES; lane++) {
        n_places += n_tiles[lane];
    }
    assert_int_equal(lanes.first[N_LANES], n_places);
    /* A part of the list before the places. */
    assert_int_equal(quire_packed_number(&f->packing, &lanes, 5), 4 + 5);
    contents_put(f, &lanes, 0);
    memcpy(bytes, f->memory, sizeof bytes);
    contents_put(f, &lanes, 0xee);
    assert_memory_equal(bytes, f->memory, sizeof bytes);
    assert_int_equal(quire_packed_read(&f->packing, &f->pages, &again), QUIRE_OK);
    assert_memory_equal(again.first, lanes.first, (N_LANES + 1) * sizeof *lanes.first);
    assert_int_equal(again.n_list_parts, lanes.n_list_parts);
    for (uint32_t i = 0; i < n_places; i++) {
        const unsigned char *k = quire_packed_tile(&f->packing, &f->pages, &again, i, QUIRE_SIDE_K);
        const unsigned char *v = quire_packed_tile(&f->packing, &f->pages, &again, i, QUIRE_SIDE_V);

        assert_true(k[0] == 1 + i && k[TILE_SIZE - 1] == 1 + i);
        assert_true(v[0] == 101 + i && v[TILE_SIZE - 1] == 101 + i);
    }
    for (uint32_t lane = 0; lane < N_LANES; lane++) {
        quire_packed_positions(&f->packing, &f->pages, &again, lane, back);
        for (uint32_t t = 0; t < n_tiles[lane] * 64; t++) {
            assert_int_equal(back[t], t * 3 + lane);
        }
    }
    quire_packed_lanes_fini(&again);
    quire_packed_lanes_fini(&lanes);
    fixture_close(f);
}

/* Lists that no condensing wrote are refused, and name no place. */
static void test_damage(void **state)
{
    static const uint32_t n_tiles[N_LANES] = { 1, 1, 1, 1, 1, 1 };
    static const uint32_t too_many[N_LANES] = { 40, 1, 1, 1, 1, 1 };
    fixture *f = fixture_open();
    uint32_t *list = (uint32_t *)(void *)(f->memory + (N_PAGES - 1) * PART_SIZE);
    quire_packed_lanes lanes;

    (void)state;
    assert_int_equal(quire_packed_lanes_init(&lanes, &f->packing), QUIRE_OK);
    assert_int_equal(quire_packed_read(&f->packing, &f->pages, &lanes), QUIRE_CORRUPT);
    assert_int_equal(quire_packed_assign(&f->packing, N_PAGES, too_many, &lanes), QUIRE_LIMIT);
    assert_int_equal(quire_packed_assign(&f->packing, N_PAGES, n_tiles, &lanes), QUIRE_OK);
    quire_packed_list_begin(&f->packing, &f->pages, &lanes);
    assert_int_equal(list[0], N_LANES);
    list[3] = UINT32_MAX;
    assert_int_equal(quire_packed_read(&f->packing, &f->pages, &lanes), QUIRE_CORRUPT);
    assert_int_equal(lanes.n_pages, 0);
    assert_int_equal(lanes.first[N_LANES], 0);
    list[3] = 1;
    assert_int_equal(quire_packed_read(&f->packing, &f->pages, &lanes), QUIRE_OK);
    list[0] = N_LANES + 1;
    assert_int_equal(quire_packed_read(&f->packing, &f->pages, &lanes), QUIRE_CORRUPT);
    f->pages.n = 0;
    assert_int_equal(quire_packed_read(&f->packing, &f->pages, &lanes), QUIRE_CORRUPT);
    quire_packed_lanes_fini(&lanes);
    fixture_close(f);
}

static void test_numbers(void **state)
{
    fixture *f = fixture_open();
    quire_attn_layer layers[N_LAYERS];

    (void)state;
    /* A page has 12 places in 3 parts of 4; a short list takes a part. */
    assert_int_equal(quire_packing_pages(&f->packing, 0), 1);
    assert_int_equal(quire_packing_pages(&f->packing, 8 * 64), 1);
    assert_int_equal(quire_packing_pages(&f->packing, 8 * 64 + 1), 2);
    assert_int_equal(quire_packing_pages(&f->packing, 20 * 64), 2);
    memcpy(layers, f->layers, sizeof layers);
    layers[1].v_store.format = layers[1].v[0].format = QUIRE_FORMAT_BF16;
    assert_int_equal(quire_packing_init(&f->packing, layers, N_LAYERS, PAGE), QUIRE_UNSUPP);
    memcpy(layers, f->layers, sizeof layers);
    layers[2].k[0].lane.offset = 0; /* reads layer 0's K */
    assert_int_equal(quire_packing_init(&f->packing, layers, N_LAYERS, PAGE), QUIRE_UNSUPP);
    fixture_close(f);
}

/* Sums know whether rows are missing, and begin anew at a place. Attention that packed tokens got
 * before goes on. */
static void test_sums(void **state)
{
    fixture *f = fixture_open();
    const uint32_t n_tiles[N_LANES] = { 0, 2, 1, 0, 3, 1 };
    const quire_packed_text_opts opts = { .packing = &f->packing, .n_summed = PAGE };
    quire_packed_text *text;
    float worth[2 * QUIRE_TILE_TOKENS];

    (void)state;
    assert_int_equal(quire_packed_text_create(&text, &opts), QUIRE_OK);
    assert_int_equal(quire_packed_sums_begin(text, &f->packing, NULL, 0), QUIRE_OK);
    quire_packed_sums_expect(&text->sums, 0, 10);
    quire_packed_sums_expect(&text->sums, 0, 10); /* the step failed */
    quire_packed_sums_expect(&text->sums, 10, 64);
    assert_true(quire_packed_sums_are(&text->sums, 0, 64));
    assert_false(quire_packed_sums_are(&text->sums, 0, 63));
    quire_packed_sums_expect(&text->sums, 65, 70);
    assert_false(quire_packed_sums_are(&text->sums, 0, 70));

    f->packing.has_worth = true;
    assert_int_equal(quire_packed_assign(&f->packing, N_PAGES, n_tiles, &text->lanes), QUIRE_OK);
    quire_packed_list_begin(&f->packing, &f->pages, &text->lanes);
    for (uint32_t t = 0; t < 2 * QUIRE_TILE_TOKENS; t++) {
        worth[t] = (float)t;
    }
    quire_packed_worth_put(&f->packing, &f->pages, &text->lanes, 1, worth);
    assert_int_equal(quire_packed_sums_begin(text, &f->packing, &f->pages, 70), QUIRE_OK);
    assert_memory_equal(quire_packed_sums_attention(text, 1), worth, sizeof worth);
    assert_true(quire_packed_sums_attention(text, 1)[2 * QUIRE_TILE_TOKENS] == 0.0f);
    assert_int_equal(quire_packed_sums_attention(text, 2) - quire_packed_sums_attention(text, 1),
                     2 * QUIRE_TILE_TOKENS + PAGE);
    quire_packed_sums_expect(&text->sums, 70, 80);
    assert_true(quire_packed_sums_are(&text->sums, 70, 80));
    quire_packed_text_destroy(text);
    fixture_close(f);
}

static bool base_queues(void *ctx)
{
    return ctx != NULL;
}

static void base_queue(void *ctx, const quire_attn_layer *layer, uint32_t call, unsigned what)
{
    (void)layer;
    (void)call;
    (void)what;
    ++*(uint32_t *)ctx;
}

/* Layers are queued on the base in steps of plain sequences alone, at whose rows nobody looks. */
static void test_queued_steps(void **state)
{
    uint32_t n_calls = 0;
    quire_packed_device d = { .base = {
                                  .ctx = &n_calls, .queues = base_queues, .queue = base_queue } };
    uint32_t *const looked_at[] = { &d.n_packed,   &d.n_probed, &d.n_predicted,
                                    &d.n_repeated, &d.n_summed, &d.n_filled };
    const quire_attn_layer layer = { 0 };
    quire_attn_device device = quire_packed_device_get(&d);

    (void)state;
    assert_true(device.queues(device.ctx));
    device.queue(device.ctx, &layer, 0, QUIRE_ATTN_QUEUE_RUN);
    assert_int_equal(n_calls, 1);
    for (size_t i = 0; i < sizeof looked_at / sizeof looked_at[0]; i++) {
        *looked_at[i] = 1;
        assert_false(device.queues(device.ctx));
        *looked_at[i] = 0;
    }
    d.base.ctx = NULL;
    assert_false(device.queues(device.ctx));
    d.base.queue = NULL;
    device = quire_packed_device_get(&d);
    assert_null(device.queue);
    assert_null(device.queues);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contents),     cmocka_unit_test(test_damage),
        cmocka_unit_test(test_numbers),      cmocka_unit_test(test_sums),
        cmocka_unit_test(test_queued_steps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
