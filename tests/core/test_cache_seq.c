/* test_cache_seq.c - sequences: append, fork, copy-on-write, reserve, truncate, the decode path.
 *
 * SPDX-License-Identifier: MIT */
#include "core_support.h"

#include <string.h>

#define LEAF_TOKENS (QUIRE_LEAF_ENTRIES * PAGE_TOKENS)

static void check_stamps(const quire_cache *cache, quire_seq_id seq, uint32_t at, uint32_t n,
                         uint32_t first)
{
    for (uint32_t i = 0; i < n; i++) {
        test_slot_check(cache, seq, at + i, first + i);
    }
}

static uint64_t pages_live(const quire_cache *cache)
{
    return test_stats(cache).pages_live;
}

static void test_empty(void **state)
{
    quire_cache_opts opts = test_opts(10);
    quire_seq_table table;
    quire_seq_id seq;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    assert_int_equal(quire_seq_table_get(t.cache, seq, 0, &table), QUIRE_OK);
    assert_int_equal(table.n_entries, 0);
    assert_int_equal(table.n_tokens, 0);
    assert_int_equal(quire_seq_append(t.cache, seq, 0), QUIRE_OK);
    assert_int_equal(quire_seq_reserve(t.cache, seq, 0), QUIRE_OK);
    assert_int_equal(quire_seq_truncate(t.cache, seq, 0), QUIRE_OK);
    assert_int_equal(quire_seq_truncate(t.cache, seq, 1), QUIRE_RANGE);
    assert_int_equal(pages_live(t.cache), 0);
    test_fork(t.cache, seq);
    test_cache_destroy(&t);
}

/* The table that a kernel sees, over several leaves. */
static void test_table(void **state)
{
    quire_cache_opts opts = test_opts(QUIRE_LEAF_ENTRIES * 4);
    const uint32_t n_tokens = LEAF_TOKENS * 2 + PAGE_TOKENS + 1;
    quire_seq_table table;
    quire_seq_id seq;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    test_append(t.cache, seq, 1);
    test_append(t.cache, seq, n_tokens - 1);
    assert_int_equal(quire_seq_table_get(t.cache, seq, 0, &table), QUIRE_OK);
    assert_int_equal(table.n_tokens, n_tokens);
    assert_int_equal(table.n_entries, QUIRE_LEAF_ENTRIES * 2 + 2);
    for (uint32_t i = 0; i < table.n_entries; i++) {
        const quire_page_entry *e = &table.leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES];

        assert_int_not_equal(e->page, QUIRE_PAGE_NULL);
        assert_int_equal(e->first_slot, 0);
        assert_int_equal(e->n_tokens, i + 1 < table.n_entries ? PAGE_TOKENS : 1);
        assert_int_equal(e->first_pos, i * PAGE_TOKENS);
        assert_int_equal(e->positions, 0);
    }
    test_cache_destroy(&t);
}

/* Tokens one at a time lie where tokens all at once would. */
static void test_one_at_a_time(void **state)
{
    quire_cache_opts opts = test_opts(10);
    quire_seq_id seq;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    for (uint32_t i = 0; i < PAGE_TOKENS * 3; i++) {
        test_append_stamped(t.cache, seq, 1, i);
        assert_int_equal(pages_live(t.cache), i / PAGE_TOKENS + 1);
    }
    check_stamps(t.cache, seq, 0, PAGE_TOKENS * 3, 0);
    test_cache_destroy(&t);
}

static void test_fork_copies_nothing(void **state)
{
    quire_cache_opts opts = test_opts(QUIRE_LEAF_ENTRIES * 4);
    quire_cache_stats before;
    quire_seq_id a;
    quire_seq_id b;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    a = test_open(t.cache);
    test_append(t.cache, a, LEAF_TOKENS * 3 + 1);
    before = test_stats(t.cache);
    b = test_fork(t.cache, a);
    assert_int_equal(test_stats(t.cache).pages_live, before.pages_live);
    assert_int_equal(test_stats(t.cache).charged_bytes, before.charged_bytes);
    assert_int_equal(test_stats(t.cache).allocs_total, before.allocs_total);
    for (uint32_t i = 0; i < LEAF_TOKENS * 3; i += PAGE_TOKENS) {
        assert_int_equal(test_page_of(t.cache, a, 0, i), test_page_of(t.cache, b, 0, i));
    }
    /* Either sequence may be closed first. */
    assert_int_equal(quire_seq_close(t.cache, a), QUIRE_OK);
    assert_int_equal(test_stats(t.cache).pages_live, before.pages_live);
    assert_int_equal(quire_seq_close(t.cache, b), QUIRE_OK);
    assert_int_equal(test_stats(t.cache).pages_live, 0);
    test_cache_destroy(&t);
}

/* The first of two appending sequences gets a copy of the whole tail page; the other keeps the
 * page. */
static void test_copy_on_write(void **state)
{
    quire_cache_opts opts = test_opts(10);
    quire_page_id shared;
    unsigned char *old;
    quire_seq_id a;
    quire_seq_id b;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    a = test_open(t.cache);
    test_append_stamped(t.cache, a, PAGE_TOKENS + 1, 100);
    shared = test_page_of(t.cache, a, 0, PAGE_TOKENS);
    old = test_payload(t.cache, shared, 0);
    memset(old + SLOT_BYTES, 0x77, PAGE_BYTES - SLOT_BYTES); /* slots without tokens */
    b = test_fork(t.cache, a);
    test_append(t.cache, b, 1);
    assert_int_equal(test_stats(t.cache).page_copies_total, 1);
    assert_int_equal(pages_live(t.cache), 3);
    assert_int_equal(test_page_of(t.cache, a, 0, PAGE_TOKENS), shared);
    assert_int_not_equal(test_page_of(t.cache, b, 0, PAGE_TOKENS), shared);
    assert_int_equal(test_page_of(t.cache, a, 0, 0), test_page_of(t.cache, b, 0, 0));
    assert_memory_equal(test_slot(t.cache, b, 0, PAGE_TOKENS), old, PAGE_BYTES);
    test_slot_write(t.cache, b, PAGE_TOKENS + 1, 200);

    test_append_stamped(t.cache, a, 1, 300);
    assert_int_equal(test_stats(t.cache).page_copies_total, 1); /* a is the only holder by now */
    assert_int_equal(test_page_of(t.cache, a, 0, PAGE_TOKENS), shared);
    check_stamps(t.cache, a, 0, PAGE_TOKENS + 1, 100);
    check_stamps(t.cache, b, 0, PAGE_TOKENS + 1, 100);
    test_slot_check(t.cache, a, PAGE_TOKENS + 1, 300);
    test_slot_check(t.cache, b, PAGE_TOKENS + 1, 200);
    test_cache_destroy(&t);
}

/* A full tail page is never copied. */
static void test_full_tail_is_not_copied(void **state)
{
    quire_cache_opts opts = test_opts(10);
    quire_seq_id a;
    quire_seq_id b;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    a = test_open(t.cache);
    test_append_stamped(t.cache, a, PAGE_TOKENS, 0);
    b = test_fork(t.cache, a);
    test_append_stamped(t.cache, a, 1, 1000);
    test_append_stamped(t.cache, b, 1, 2000);
    assert_int_equal(test_stats(t.cache).page_copies_total, 0);
    assert_int_equal(pages_live(t.cache), 3);
    test_slot_check(t.cache, a, PAGE_TOKENS, 1000);
    test_slot_check(t.cache, b, PAGE_TOKENS, 2000);
    check_stamps(t.cache, b, 0, PAGE_TOKENS, 0);
    test_cache_destroy(&t);
}

/* After the other holders are closed, the last holder appends in place. */
static void test_last_holder_appends_in_place(void **state)
{
    quire_cache_opts opts = test_opts(10);
    quire_seq_id a;
    quire_seq_id b;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    a = test_open(t.cache);
    test_append_stamped(t.cache, a, 1, 7);
    b = test_fork(t.cache, a);
    assert_int_equal(quire_seq_close(t.cache, a), QUIRE_OK);
    test_append_stamped(t.cache, b, 1, 8);
    assert_int_equal(test_stats(t.cache).page_copies_total, 0);
    check_stamps(t.cache, b, 0, 2, 7);
    test_cache_destroy(&t);
}

/* A page shared by two leaves, each held once: the leaf is private, the page is not. */
static void test_copy_in_a_private_leaf(void **state)
{
    quire_cache_opts opts = test_opts(10);
    quire_seq_id a;
    quire_seq_id b;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    a = test_open(t.cache);
    test_append_stamped(t.cache, a, PAGE_TOKENS, 0);
    b = test_fork(t.cache, a);
    assert_int_equal(quire_seq_truncate(t.cache, b, 1), QUIRE_OK); /* b's leaf is a copy now */
    assert_int_equal(pages_live(t.cache), 1);
    test_append_stamped(t.cache, b, 1, 500);
    assert_int_equal(test_stats(t.cache).page_copies_total, 1);
    check_stamps(t.cache, a, 0, PAGE_TOKENS, 0);
    test_slot_check(t.cache, b, 0, 0);
    test_slot_check(t.cache, b, 1, 500);
    test_cache_destroy(&t);
}

/* Slots that the prefix tree keeps are not written again, even by the only holder after a
 * truncation into the page. */
static void test_kept_page_is_copied(void **state)
{
    quire_cache_opts opts = test_opts(10);
    quire_page_id kept;
    quire_seq_id a;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    a = test_open(t.cache);
    test_append_stamped(t.cache, a, PAGE_TOKENS, 0);
    kept = test_page_of(t.cache, a, 0, 0);
    quire_pool_keep(&t.cache->pool, kept, PAGE_TOKENS);
    assert_int_equal(quire_seq_truncate(t.cache, a, 1), QUIRE_OK);
    test_append_stamped(t.cache, a, 1, 500);
    assert_int_not_equal(test_page_of(t.cache, a, 0, 0), kept);
    assert_int_equal(quire_pool_state(&t.cache->pool, kept), QUIRE_PAGE_CACHED);
    assert_int_equal(test_stats(t.cache).page_copies_total, 1);
    test_slot_check(t.cache, a, 0, 0);
    test_slot_check(t.cache, a, 1, 500);

    /* Evicted before the append, it is written in place. */
    quire_pool_evict(&t.cache->pool, kept);
    kept = test_page_of(t.cache, a, 0, 0);
    quire_pool_keep(&t.cache->pool, kept, 2);
    assert_int_equal(quire_seq_truncate(t.cache, a, 1), QUIRE_OK);
    quire_pool_evict(&t.cache->pool, kept);
    test_append_stamped(t.cache, a, 1, 600);
    assert_int_equal(test_page_of(t.cache, a, 0, 0), kept);
    assert_int_equal(test_stats(t.cache).page_copies_total, 1);
    test_slot_check(t.cache, a, 1, 600);
    test_cache_destroy(&t);
}

static void test_reserve(void **state)
{
    quire_cache_opts opts = test_opts(4);
    quire_seq_table table;
    quire_seq_id a;
    quire_seq_id b;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    a = test_open(t.cache);
    b = test_open(t.cache);
    test_append(t.cache, a, 1);
    assert_int_equal(quire_seq_reserve(t.cache, a, PAGE_TOKENS * 3), QUIRE_OK);
    assert_int_equal(quire_seq_reserve(t.cache, a, PAGE_TOKENS), QUIRE_OK); /* is there already */
    assert_int_equal(pages_live(t.cache), 4);
    assert_int_equal(quire_seq_tokens(t.cache, a), 1);
    assert_int_equal(quire_seq_table_get(t.cache, a, 0, &table), QUIRE_OK);
    assert_int_equal(table.n_entries, 1); /* reserved entries are not counted */
    assert_int_equal(quire_seq_append(t.cache, b, 1), QUIRE_NOPAGES);
    assert_int_equal(quire_seq_reserve(t.cache, b, 1), QUIRE_NOPAGES);

    /* The append cannot fail without memory, extents and budget. */
    t.memory.fail_at = t.memory.n_calls;
    t.extents.fail_from = 0;
    for (uint32_t i = 0; i < PAGE_TOKENS * 3; i++) {
        test_append_stamped(t.cache, a, 1, i);
    }
    assert_false(t.memory.has_failed);
    check_stamps(t.cache, a, 1, PAGE_TOKENS * 3, 0);

    /* Truncation gives reserved room back. */
    assert_int_equal(quire_seq_truncate(t.cache, a, 1), QUIRE_OK);
    assert_int_equal(pages_live(t.cache), 1);
    test_cache_destroy(&t);
}

/* Reserve copies a shared tail, so that appending needs nothing. */
static void test_reserve_copies_the_tail(void **state)
{
    quire_cache_opts opts = test_opts(10);
    quire_seq_id a;
    quire_seq_id b;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    a = test_open(t.cache);
    test_append_stamped(t.cache, a, 1, 40);
    b = test_fork(t.cache, a);
    assert_int_equal(quire_seq_reserve(t.cache, b, 1), QUIRE_OK);
    assert_int_equal(test_stats(t.cache).page_copies_total, 1);
    t.memory.fail_at = t.memory.n_calls;
    test_append_stamped(t.cache, b, 1, 41);
    assert_int_equal(test_stats(t.cache).page_copies_total, 1);
    check_stamps(t.cache, b, 0, 2, 40);
    test_cache_destroy(&t);
}

/* Reserved room stays with the sequence that reserved it, for every shape of the leaf. */
static void test_fork_with_reserved_room(void **state)
{
    const uint32_t counts[] = { 1,
                                PAGE_TOKENS,
                                PAGE_TOKENS + 1,
                                LEAF_TOKENS - PAGE_TOKENS,
                                LEAF_TOKENS,
                                LEAF_TOKENS + PAGE_TOKENS };
    quire_cache_opts opts = test_opts(QUIRE_LEAF_ENTRIES * 8);

    (void)state;
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        test_cache t;
        quire_seq_id a;
        quire_seq_id b;
        uint64_t held;

        test_cache_create(&t, &opts, 0, 0);
        a = test_open(t.cache);
        test_append_stamped(t.cache, a, counts[i], 0);
        assert_int_equal(quire_seq_reserve(t.cache, a, LEAF_TOKENS * 2), QUIRE_OK);
        held = pages_live(t.cache);
        b = test_fork(t.cache, a);
        assert_int_equal(pages_live(t.cache), held);
        quire_cache_validate(t.cache);
        test_append_stamped(t.cache, a, LEAF_TOKENS, 10000);
        assert_int_equal(pages_live(t.cache), held + (counts[i] % PAGE_TOKENS != 0));
        assert_int_equal(quire_seq_reserve(t.cache, a, LEAF_TOKENS * 2), QUIRE_OK);
        quire_cache_validate(t.cache);
        test_append_stamped(t.cache, b, PAGE_TOKENS, 20000);
        check_stamps(t.cache, a, 0, counts[i], 0);
        check_stamps(t.cache, b, 0, counts[i], 0);
        check_stamps(t.cache, a, counts[i], LEAF_TOKENS, 10000);
        check_stamps(t.cache, b, counts[i], PAGE_TOKENS, 20000);
        test_cache_destroy(&t);
    }
}

static void test_truncate(void **state)
{
    quire_cache_opts opts = test_opts(QUIRE_LEAF_ENTRIES * 4);
    const uint32_t lengths[] = { LEAF_TOKENS * 2 + 1,
                                 LEAF_TOKENS * 2,
                                 LEAF_TOKENS + 1,
                                 LEAF_TOKENS,
                                 PAGE_TOKENS + 1,
                                 PAGE_TOKENS,
                                 1,
                                 0 };
    quire_seq_id seq;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    test_append_stamped(t.cache, seq, LEAF_TOKENS * 2 + 2, 0);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint32_t n = lengths[i];

        assert_int_equal(quire_seq_truncate(t.cache, seq, n), QUIRE_OK);
        assert_int_equal(quire_seq_tokens(t.cache, seq), n);
        assert_int_equal(pages_live(t.cache), (n + PAGE_TOKENS - 1) / PAGE_TOKENS);
        assert_int_equal(test_stats(t.cache).slack_bytes,
                         (PAGE_TOKENS - n % PAGE_TOKENS) % PAGE_TOKENS * SLOT_BYTES);
        check_stamps(t.cache, seq, 0, n, 0);
    }
    test_append_stamped(t.cache, seq, 3, 900); /* and on from there */
    check_stamps(t.cache, seq, 0, 3, 900);
    test_cache_destroy(&t);
}

static void test_truncate_a_fork(void **state)
{
    quire_cache_opts opts = test_opts(QUIRE_LEAF_ENTRIES * 8);
    const uint32_t n_all = LEAF_TOKENS * 2 + 1;

    (void)state;
    for (uint32_t n = 0; n <= n_all; n += 1 + n / 7) {
        test_cache t;
        quire_seq_id a;
        quire_seq_id b;

        test_cache_create(&t, &opts, 0, 0);
        a = test_open(t.cache);
        test_append_stamped(t.cache, a, n_all, 0);
        b = test_fork(t.cache, a);
        assert_int_equal(quire_seq_truncate(t.cache, b, n), QUIRE_OK);
        assert_int_equal(quire_seq_tokens(t.cache, a), n_all);
        test_append_stamped(t.cache, b, PAGE_TOKENS + 1, 70000);
        check_stamps(t.cache, a, 0, n_all, 0);
        check_stamps(t.cache, b, 0, n, 0);
        check_stamps(t.cache, b, n, PAGE_TOKENS + 1, 70000);
        test_cache_destroy(&t);
    }
}

/* Many forks of one prompt, each going its own way. */
static void test_fan_out(void **state)
{
    enum {
        FORKS = 20
    };
    quire_cache_opts opts = test_opts(FORKS * 2 + 4);
    quire_seq_id root;
    quire_seq_id forks[FORKS];
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    root = test_open(t.cache);
    test_append_stamped(t.cache, root, PAGE_TOKENS * 3 + 1, 0);
    for (uint32_t i = 0; i < FORKS; i++) {
        forks[i] = test_fork(t.cache, i % 2 == 0 ? root : forks[i - 1]);
    }
    assert_int_equal(pages_live(t.cache), 4);
    for (uint32_t i = 0; i < FORKS; i++) {
        test_append_stamped(t.cache, forks[i], 1, 1000 * (i + 1));
    }
    assert_int_equal(pages_live(t.cache), 4 + FORKS);
    for (uint32_t i = 0; i < FORKS; i++) {
        check_stamps(t.cache, forks[i], 0, PAGE_TOKENS * 3 + 1, 0);
        test_slot_check(t.cache, forks[i], PAGE_TOKENS * 3 + 1, 1000 * (i + 1));
        assert_int_equal(quire_seq_close(t.cache, forks[i]), QUIRE_OK);
    }
    assert_int_equal(pages_live(t.cache), 4);
    test_cache_destroy(&t);
}

/* Lack of pages in one group changes none. */
static void test_groups_grow_together(void **state)
{
    quire_cache_opts opts = test_opts(0);
    quire_seq_id seq;
    test_cache t;

    (void)state;
    opts.n_groups = 3;
    opts.page_bytes[1] = PAGE_BYTES * 2;
    opts.page_bytes[2] = 0;
    opts.budget_bytes = PAGE_BYTES * 6 + 1; /* two pages each, but for the last group only one */
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    test_append_stamped(t.cache, seq, PAGE_TOKENS, 0);
    assert_int_equal(test_stats(t.cache).pages_live, 3);
    assert_int_equal(quire_seq_append(t.cache, seq, 1), QUIRE_NOPAGES);
    assert_int_equal(test_stats(t.cache).pages_live, 3);
    assert_int_equal(quire_seq_tokens(t.cache, seq), PAGE_TOKENS);
    check_stamps(t.cache, seq, 0, PAGE_TOKENS, 0);
    test_cache_destroy(&t);
}

/* Appending within a page allocates nothing. Taking a free page allocates nothing once the tables
 * are large enough. */
static void test_decode_path_does_not_allocate(void **state)
{
    quire_cache_opts opts = test_opts(400);
    quire_seq_id seqs[3];
    uint64_t calls;
    test_cache t;

    (void)state;
    opts.n_groups = 2;
    test_cache_create(&t, &opts, 0, 0);
    for (int i = 0; i < 3; i++) {
        seqs[i] = test_open(t.cache);
        test_append(t.cache, seqs[i], 1);
    }
    calls = t.memory.n_calls;
    for (uint32_t n = 1; n < PAGE_TOKENS; n++) {
        for (int i = 0; i < 3; i++) {
            test_append(t.cache, seqs[i], 1);
        }
    }
    assert_int_equal(t.memory.n_calls, calls);

    for (int i = 0; i < 3; i++) {
        test_append(t.cache, seqs[i], LEAF_TOKENS);
        assert_int_equal(quire_seq_truncate(t.cache, seqs[i], 1), QUIRE_OK);
    }
    test_append(t.cache, seqs[0], PAGE_TOKENS - 1);
    calls = t.memory.n_calls;
    test_append(t.cache, seqs[0], 1); /* the second page, in a leaf and an extent that are there */
    assert_int_equal(t.memory.n_calls, calls);
    test_cache_destroy(&t);
}

/* Payload survives whole, wherever coalescing puts it. */
static void test_payload_survives_upkeep(void **state)
{
    enum {
        SEQS = 12
    };
    quire_cache_opts opts = test_opts(EXTENT_PAGES * SEQS);
    quire_seq_id seqs[SEQS];
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    for (uint32_t i = 0; i < SEQS; i++) {
        seqs[i] = test_open(t.cache);
        test_append_stamped(t.cache, seqs[i], PAGE_TOKENS * EXTENT_PAGES / 2, i * 100000);
    }
    for (uint32_t i = 0; i < SEQS; i += 2) {
        assert_int_equal(quire_seq_truncate(t.cache, seqs[i], PAGE_TOKENS), QUIRE_OK);
    }
    for (uint32_t i = 1; i < SEQS; i += 4) {
        assert_int_equal(quire_seq_close(t.cache, seqs[i]), QUIRE_OK);
    }
    assert_true(quire_cache_coalesce(t.cache, UINT32_MAX) > 0);
    quire_cache_maintain(t.cache);
    assert_true(quire_cache_trim(t.cache, 0) > 0);
    quire_cache_validate(t.cache);
    for (uint32_t i = 0; i < SEQS; i++) {
        check_stamps(t.cache, seqs[i], 0, quire_seq_tokens(t.cache, seqs[i]), i * 100000);
    }
    test_cache_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_one_at_a_time),
        cmocka_unit_test(test_fork_copies_nothing),
        cmocka_unit_test(test_copy_on_write),
        cmocka_unit_test(test_full_tail_is_not_copied),
        cmocka_unit_test(test_last_holder_appends_in_place),
        cmocka_unit_test(test_copy_in_a_private_leaf),
        cmocka_unit_test(test_kept_page_is_copied),
        cmocka_unit_test(test_reserve),
        cmocka_unit_test(test_reserve_copies_the_tail),
        cmocka_unit_test(test_fork_with_reserved_room),
        cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_truncate_a_fork),
        cmocka_unit_test(test_fan_out),
        cmocka_unit_test(test_groups_grow_together),
        cmocka_unit_test(test_decode_path_does_not_allocate),
        cmocka_unit_test(test_payload_survives_upkeep),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
