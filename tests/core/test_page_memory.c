/* test_page_memory.c - pages in memory that the host does not see: the cache moves them by the
 * memory's copies alone.
 *
 * SPDX-License-Identifier: MIT */
#include "core_support.h"

#include <string.h>

#define P       PAGE_TOKENS
#define N_PARTS 70u /* more than go into one call */

/* An address of the memory is that of its bytes, moved by so much: nothing is mapped there. */
#define HIDDEN ((uintptr_t)1 << 60)

typedef struct hidden {
    quire_page_memory memory;
    uint64_t n_live;
    uint64_t n_maps;
    uint64_t n_within;      /* calls of the kind */
    uint64_t n_of_group[2]; /* calls of map_extent() */
    uint64_t fail_at;       /* map() number fail_at, from 0, finds no memory */
    int status;             /* of all copies */
} hidden;

static void *hidden_map(void *ctx, size_t bytes)
{
    hidden *h = ctx;
    const quire_extent_source *os = quire_extent_source_os();

    if (h->n_maps++ == h->fail_at) {
        return NULL;
    }
    h->n_live++;
    return (void *)((uintptr_t)os->map(os->ctx, bytes) + HIDDEN);
}

static void *hidden_map_extent(void *ctx, quire_group_id group, size_t bytes)
{
    hidden *h = ctx;

    assert_true(group < 2);
    h->n_of_group[group]++;
    return hidden_map(ctx, bytes);
}

static void hidden_unmap(void *ctx, void *base, size_t bytes)
{
    hidden *h = ctx;
    const quire_extent_source *os = quire_extent_source_os();

    h->n_live--;
    os->unmap(os->ctx, (void *)((uintptr_t)base - HIDDEN), bytes);
}

static int hidden_copy(void *ctx, quire_page_copy kind, const quire_page_piece *pieces,
                       uint32_t n_pieces)
{
    hidden *h = ctx;

    assert_true(n_pieces > 0);
    h->n_within += kind == QUIRE_PAGE_COPY_WITHIN;
    for (uint32_t i = 0; h->status == QUIRE_OK && i < n_pieces; i++) {
        const uintptr_t to = (uintptr_t)pieces[i].to;
        const uintptr_t from = (uintptr_t)pieces[i].from;

        assert_true(pieces[i].bytes > 0);
        memcpy((void *)(kind == QUIRE_PAGE_COPY_OUT ? to : to - HIDDEN),
               (const void *)(kind == QUIRE_PAGE_COPY_IN ? from : from - HIDDEN), pieces[i].bytes);
    }
    return h->status;
}

static void hidden_init(hidden *h)
{
    *h = (hidden){ .memory = { .memory = QUIRE_MEMORY_DEVICE,
                               .map = hidden_map,
                               .unmap = hidden_unmap,
                               .copy = hidden_copy,
                               .ctx = h },
                   .fail_at = NEVER };
}

static void hidden_open(hidden *h, quire_cache **cache, uint32_t n_pages, uint32_t n_parts)
{
    size_t parts[N_PARTS];
    quire_cache_opts opts = test_opts(n_pages);

    hidden_init(h);
    for (uint32_t p = 0; p < n_parts; p++) {
        parts[p] = p + 1 < n_parts ? 64 : PAGE_BYTES - 64 * (n_parts - 1);
    }
    opts.n_parts[0] = n_parts;
    opts.part_bytes[0] = parts;
    opts.memory = &h->memory;
    assert_int_equal(quire_cache_create(cache, &opts), QUIRE_OK);
}

static void hidden_close(hidden *h, quire_cache *cache)
{
    quire_cache_validate(cache);
    quire_cache_destroy(cache);
    assert_int_equal(h->n_live, 0);
}

static void page_fill(quire_cache *cache, quire_page_id page, unsigned char stamp)
{
    unsigned char bytes[PAGE_BYTES];

    for (size_t i = 0; i < PAGE_BYTES; i++) {
        bytes[i] = (unsigned char)(stamp + i + i / 251u);
    }
    assert_int_equal(quire_cache_page_addrs(cache)[page].memory, QUIRE_MEMORY_DEVICE);
    assert_int_equal(quire_cache_page_scatter(cache, page, bytes, PAGE_BYTES), QUIRE_OK);
}

static void page_check(quire_cache *cache, quire_page_id page, unsigned char stamp)
{
    unsigned char bytes[PAGE_BYTES];

    assert_int_equal(quire_cache_page_gather(cache, page, bytes, PAGE_BYTES), QUIRE_OK);
    for (size_t i = 0; i < PAGE_BYTES; i++) {
        assert_int_equal(bytes[i], (unsigned char)(stamp + i + i / 251u));
    }
}

/* Gather, scatter, a fork's own copy of a partly filled page, a move; the watermark touches
 * nothing. */
static void pages_live(uint32_t n_parts)
{
    quire_seq_id seqs[3];
    quire_seq_id fork;
    quire_cache *cache;
    hidden h;

    hidden_open(&h, &cache, 4 * EXTENT_PAGES, n_parts);
    for (uint32_t i = 0; i < 3; i++) {
        seqs[i] = test_open(cache);
        test_append(cache, seqs[i], 2 * P - 1);
        page_fill(cache, test_page_of(cache, seqs[i], 0, 0), (unsigned char)(10 * i));
        page_fill(cache, test_page_of(cache, seqs[i], 0, P), (unsigned char)(10 * i + 5));
        quire_cache_maintain(cache);
    }
    fork = test_fork(cache, seqs[0]);
    test_append(cache, fork, 1);
    test_append(cache, seqs[0], 1);
    assert_true(h.n_within > 0);
    assert_int_not_equal(test_page_of(cache, fork, 0, P), test_page_of(cache, seqs[0], 0, P));
    page_check(cache, test_page_of(cache, fork, 0, P), 5);
    page_check(cache, test_page_of(cache, seqs[0], 0, P), 5);
    page_check(cache, test_page_of(cache, seqs[2], 0, P), 25);
    hidden_close(&h, cache);
}

static void test_pages(void **state)
{
    (void)state;
    pages_live(1);
    pages_live(3);
    pages_live(PAGE_BYTES / 64 < N_PARTS ? PAGE_BYTES / 64 : N_PARTS);
}

static void test_coalescing(void **state)
{
    quire_seq_id *seqs = test_calloc(2 * EXTENT_PAGES, sizeof(*seqs));
    quire_cache *cache;
    uint64_t n_within;
    hidden h;

    (void)state;
    hidden_open(&h, &cache, 4 * EXTENT_PAGES, 1);
    for (uint32_t i = 0; i < 2 * EXTENT_PAGES; i++) {
        seqs[i] = test_open(cache);
        test_append(cache, seqs[i], P);
        page_fill(cache, test_page_of(cache, seqs[i], 0, 0), (unsigned char)i);
    }
    for (uint32_t i = 0; i < 2 * EXTENT_PAGES; i++) {
        if (i % 4 != 0) {
            assert_int_equal(quire_seq_close(cache, seqs[i]), QUIRE_OK);
        }
    }
    n_within = h.n_within;
    assert_true(quire_cache_coalesce(cache, UINT32_MAX) > 0);
    assert_true(h.n_within > n_within);
    for (uint32_t i = 0; i < 2 * EXTENT_PAGES; i += 4) {
        page_check(cache, test_page_of(cache, seqs[i], 0, 0), (unsigned char)i);
    }
    test_free(seqs);
    hidden_close(&h, cache);
}

/* Memory that is used up, and copies that fail. */
static void test_failures(void **state)
{
    unsigned char bytes[PAGE_BYTES] = { 0 };
    quire_cache *cache;
    quire_page_id page;
    quire_seq_id seq;
    hidden h;

    (void)state;
    hidden_open(&h, &cache, 4 * EXTENT_PAGES, 1);
    h.fail_at = 0;
    seq = test_open(cache);
    assert_int_equal(quire_seq_append(cache, seq, P), QUIRE_NOMEM);
    test_append(cache, seq, P);
    page = test_page_of(cache, seq, 0, 0);
    h.status = QUIRE_LOST;
    assert_int_equal(quire_cache_page_scatter(cache, page, bytes, PAGE_BYTES), QUIRE_LOST);
    assert_int_equal(quire_cache_page_gather(cache, page, bytes, PAGE_BYTES), QUIRE_LOST);
    assert_int_equal(quire_seq_close(cache, seq), QUIRE_OK);
    hidden_close(&h, cache);
}

/* States are in the host's memory, also where their pages have the size of the others. */
static void test_states(void **state)
{
    quire_cache_opts opts = test_opts(4 * EXTENT_PAGES);
    quire_page_id states[2];
    quire_cache *cache;
    quire_seq_id seq;
    uint64_t n_maps;
    hidden h;

    (void)state;
    hidden_init(&h);
    opts.memory = &h.memory;
    opts.state_bytes = PAGE_BYTES;
    assert_int_equal(quire_cache_create(&cache, &opts), QUIRE_OK);
    seq = test_open(cache);
    test_append(cache, seq, P);
    page_fill(cache, test_page_of(cache, seq, 0, 0), 3);
    n_maps = h.n_maps;
    assert_int_equal(quire_seq_states(cache, seq, states), QUIRE_OK);
    assert_int_equal(h.n_maps, n_maps);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(quire_cache_page_addrs(cache)[states[i]].memory, QUIRE_MEMORY_HOST);
        memset(quire_cache_state(cache, states[i]), (int)i + 1, PAGE_BYTES);
    }
    quire_cache_maintain(cache);
    page_check(cache, test_page_of(cache, seq, 0, 0), 3);
    assert_int_equal(*(unsigned char *)quire_cache_state(cache, states[1]), 2);
    assert_int_equal(quire_seq_close(cache, seq), QUIRE_OK);

    /* An empty extent of states gives no room to pages of the device, nor the other way. */
    seq = test_open(cache);
    n_maps = h.n_maps;
    test_append(cache, seq, 2 * EXTENT_PAGES * P);
    assert_int_equal(h.n_maps, n_maps + 1);
    assert_int_equal(quire_seq_close(cache, seq), QUIRE_OK);
    hidden_close(&h, cache);
}

/* An extent that is cut anew for larger pages is not touched either, although its last page reaches
 * into the tail of the old cut. */
static void test_recut(void **state)
{
    const size_t small = 10048; /* bytes, with a tail behind the last page of an extent */
    const uint32_t n_small = (uint32_t)(QUIRE_EXTENT_UNIT_BYTES / small);
    const uint32_t n_pages = (n_small + EXTENT_PAGES) / EXTENT_PAGES * EXTENT_PAGES;
    quire_cache_opts opts = test_opts(4 * n_pages);
    quire_cache *cache;
    quire_seq_id seq;
    uint64_t n_maps;
    hidden h;

    (void)state;
    if (n_small == 0) {
        print_message("skipped: with small constants no extent has a tail\n");
        skip();
    }
    hidden_init(&h);
    opts.memory = &h.memory;
    opts.n_groups = 2;
    opts.page_bytes[1] = small;
    assert_int_equal(quire_cache_create(&cache, &opts), QUIRE_OK);
    seq = test_open(cache);
    test_append(cache, seq, n_pages * P);
    assert_int_equal(quire_seq_release(cache, seq, 1, 0, n_small * P, NULL), QUIRE_OK);
    n_maps = h.n_maps;
    test_append(cache, seq, (EXTENT_PAGES - 1) * P);
    assert_int_equal(h.n_maps, n_maps); /* it was cut anew */
    quire_cache_maintain(cache);
    hidden_close(&h, cache);
}

/* Where the memory has extents for each group, groups of equal pages share none, and an empty one
 * goes back before another group gets its budget. */
static void test_own_extents(void **state)
{
    quire_cache_opts opts = test_opts(4 * EXTENT_PAGES);
    quire_cache *cache;
    quire_seq_id seq;
    hidden h;

    (void)state;
    hidden_init(&h);
    h.memory.map = NULL;
    h.memory.map_extent = hidden_map_extent;
    opts.memory = &h.memory;
    opts.n_groups = 2;
    opts.page_bytes[1] = opts.page_bytes[0];
    assert_int_equal(quire_cache_create(&cache, &opts), QUIRE_OK);
    seq = test_open(cache);
    test_append(cache, seq, EXTENT_PAGES * P);
    assert_int_equal(h.n_of_group[0], 1);
    assert_int_equal(h.n_of_group[1], 1);
    page_fill(cache, test_page_of(cache, seq, 0, 0), 3);
    page_fill(cache, test_page_of(cache, seq, 1, 0), 4);
    page_check(cache, test_page_of(cache, seq, 0, 0), 3);
    assert_int_equal(quire_seq_release(cache, seq, 1, 0, EXTENT_PAGES * P, NULL), QUIRE_OK);
    test_append(cache, seq, P); /* the empty extent serves its own group */
    assert_int_equal(h.n_of_group[0], 2);
    assert_int_equal(h.n_of_group[1], 1);
    assert_int_equal(h.n_live, 3);
    page_check(cache, test_page_of(cache, seq, 0, 0), 3);
    assert_int_equal(quire_seq_close(cache, seq), QUIRE_OK);
    hidden_close(&h, cache);
}

/* Options that need the host's memory are refused. */
static void test_refusals(void **state)
{
    const quire_page_memory memory = {
        .memory = QUIRE_MEMORY_DEVICE, .map = hidden_map, .unmap = hidden_unmap, .copy = hidden_copy
    };
    quire_cache_opts opts = test_opts(4);
    quire_cache *cache;

    (void)state;
    opts.memory = &memory;
    opts.lock_memory = true;
    assert_int_equal(quire_cache_create(&cache, &opts), QUIRE_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages),    cmocka_unit_test(test_coalescing),
        cmocka_unit_test(test_failures), cmocka_unit_test(test_states),
        cmocka_unit_test(test_recut),    cmocka_unit_test(test_own_extents),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
