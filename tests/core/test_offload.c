/* test_offload.c - offloaded pages: they take no memory and are not charged, and keep their place
 * and their holders.
 *
 * SPDX-License-Identifier: MIT */
#include "core_support.h"

#include <stdlib.h>
#include <string.h>

#define P       PAGE_TOKENS
#define N_PAGES 8u
#define N_SLOTS 16u

/* The owner's slots. */
typedef struct slots {
    unsigned char bytes[N_SLOTS][PAGE_BYTES];
    uint32_t n_released;
    uint32_t last_released;
} slots;

static int slots_read(void *ctx, uint32_t slot, void *buffer, size_t bytes)
{
    const slots *s = ctx;

    memcpy(buffer, s->bytes[slot], bytes);
    return QUIRE_OK;
}

static void slots_release(void *ctx, uint32_t slot)
{
    slots *s = ctx;

    s->n_released++;
    s->last_released = slot;
}

static void open_on(test_cache *t, slots *s, uint32_t n_pages)
{
    const quire_cache_opts opts = test_opts(n_pages);

    memset(s, 0, sizeof *s);
    test_cache_create(t, &opts, 0, 0);
    quire_cache_offload_set(
        t->cache, &(quire_offload_ops){ .read = slots_read, .release = slots_release, .ctx = s });
}

/* Offload a page as its owner does: gather its bytes, write them, offload. */
static int offload(test_cache *t, slots *s, quire_page_id page, uint32_t slot)
{
    int rc = quire_cache_page_gather(t->cache, page, s->bytes[slot], PAGE_BYTES);

    return rc < 0 ? rc : quire_cache_page_offload(t->cache, page, slot);
}

/* A page that leaves makes room for another, and comes back with its bytes. */
static void test_down_and_up(void **state)
{
    slots *s = calloc(1, sizeof *s);
    unsigned char buffer[PAGE_BYTES];
    quire_region_stats region;
    quire_cache_stats stats;
    quire_page_id page;
    quire_seq_id seq;
    test_cache t;

    (void)state;
    assert_non_null(s);
    open_on(&t, s, N_PAGES);
    seq = test_open(t.cache);
    test_append_stamped(t.cache, seq, N_PAGES * P, 1);
    assert_int_equal(quire_seq_reserve(t.cache, seq, 1), QUIRE_NOPAGES);
    page = test_page_of(t.cache, seq, 0, 0);
    assert_int_equal(offload(&t, s, page, 3), QUIRE_OK);
    assert_int_equal(quire_cache_page_offload(t.cache, page, 4), QUIRE_INVAL);
    assert_int_equal(quire_cache_page_addrs(t.cache)[page].memory, QUIRE_MEMORY_OFFLOADED);
    assert_int_equal(quire_cache_page_addrs(t.cache)[page].slot, 3);
    assert_int_equal(test_page_of(t.cache, seq, 0, 0), page); /* the table is unchanged */
    region = test_region_stats(t.cache, QUIRE_REGION_DYNAMIC);
    assert_int_equal(region.budget_bytes, N_PAGES * PAGE_BYTES);
    assert_int_equal(region.offloaded_bytes, PAGE_BYTES);
    assert_int_equal(region.charged_bytes, (N_PAGES - 1) * PAGE_BYTES);
    stats = test_stats(t.cache);
    assert_int_equal(stats.live_bytes, (N_PAGES - 1) * PAGE_BYTES);
    assert_int_equal(stats.offloaded_bytes, PAGE_BYTES);

    test_append_stamped(t.cache, seq, P, N_PAGES * P + 1);
    assert_int_equal(quire_seq_reserve(t.cache, seq, 1), QUIRE_NOPAGES);
    assert_int_equal(quire_cache_page_gather(t.cache, page, buffer, PAGE_BYTES), QUIRE_OK);
    assert_memory_equal(buffer, s->bytes[3], PAGE_BYTES);
    assert_int_equal(quire_cache_page_onload(t.cache, page, buffer, PAGE_BYTES), QUIRE_NOPAGES);
    assert_int_equal(quire_seq_truncate(t.cache, seq, N_PAGES * P), QUIRE_OK);
    assert_int_equal(quire_cache_page_onload(t.cache, page, buffer, PAGE_BYTES), QUIRE_OK);
    assert_int_equal(s->n_released, 1);
    assert_int_equal(s->last_released, 3);
    for (uint32_t i = 0; i < N_PAGES * P; i++) {
        test_slot_check(t.cache, seq, i, i + 1);
    }
    assert_int_equal(test_stats(t.cache).pages_offloaded, 0);
    test_cache_destroy(&t);
    free(s);
}

/* The end of a page gives its slot back. */
static void test_end(void **state)
{
    slots *s = calloc(1, sizeof *s);
    quire_seq_id seq;
    test_cache t;

    (void)state;
    assert_non_null(s);
    open_on(&t, s, N_PAGES);
    seq = test_open(t.cache);
    test_append(t.cache, seq, 3 * P);
    assert_int_equal(offload(&t, s, test_page_of(t.cache, seq, 0, 0), 0), QUIRE_OK);
    assert_int_equal(offload(&t, s, test_page_of(t.cache, seq, 0, P), 1), QUIRE_OK);
    assert_int_equal(quire_seq_close(t.cache, seq), QUIRE_OK);
    assert_int_equal(s->n_released, 2);
    assert_int_equal(test_region_stats(t.cache, QUIRE_REGION_DYNAMIC).budget_bytes,
                     N_PAGES * PAGE_BYTES);
    assert_int_equal(test_stats(t.cache).offloaded_bytes, 0);
    test_cache_destroy(&t);
    free(s);
}

/* Which pages cannot leave, and where a sequence cannot be cut. */
static void test_refusals(void **state)
{
    slots *s = calloc(1, sizeof *s);
    quire_page_id page;
    quire_seq_id seq, fork;
    test_cache t;

    (void)state;
    assert_non_null(s);
    open_on(&t, s, N_PAGES);
    seq = test_open(t.cache);
    test_append(t.cache, seq, 3 * P + 1);
    page = test_page_of(t.cache, seq, 0, 0);
    assert_int_equal(quire_cache_page_offload(t.cache, QUIRE_PAGE_NULL, 0), QUIRE_NOTFOUND);
    assert_int_equal(quire_cache_page_offload(t.cache, 100, 0), QUIRE_NOTFOUND);
    assert_int_equal(offload(&t, s, test_page_of(t.cache, seq, 0, 3 * P), 0), QUIRE_INVAL);
    assert_int_equal(quire_cache_page_onload(t.cache, page, s->bytes[0], PAGE_BYTES),
                     QUIRE_NOTFOUND);
    assert_int_equal(quire_cache_page_onload(t.cache, page, s->bytes[0], 1), QUIRE_INVAL);

    fork = test_fork(t.cache, seq);
    test_append(t.cache, fork, 1); /* copies the last leaf: two leaves hold its pages now */
    assert_int_equal(offload(&t, s, test_page_of(t.cache, seq, 0, 2 * P), 0), QUIRE_AGAIN);
    assert_int_equal(quire_seq_close(t.cache, fork), QUIRE_OK);
    assert_int_equal(offload(&t, s, page, 0), QUIRE_OK);
    assert_int_equal(quire_seq_truncatable(t.cache, seq, P / 2), 0);
    assert_int_equal(quire_seq_truncatable(t.cache, seq, P + 1), P + 1);
    assert_int_equal(quire_seq_truncate(t.cache, seq, P / 2), QUIRE_RANGE);
    assert_int_equal(quire_seq_truncate(t.cache, seq, P), QUIRE_OK);
    assert_int_equal(quire_cache_page_scatter(t.cache, page, s->bytes[0], PAGE_BYTES), QUIRE_AGAIN);
    test_append(t.cache, seq, 1); /* behind the offloaded page, in a page of its own */
    test_cache_destroy(&t);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_down_and_up),
                                        cmocka_unit_test(test_end),
                                        cmocka_unit_test(test_refusals) };

    return cmocka_run_group_tests_name("offload", tests, NULL, NULL);
}
