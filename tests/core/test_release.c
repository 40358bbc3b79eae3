/* test_release.c - holes: pages of tokens that one group no longer needs.
 *
 * SPDX-License-Identifier: MIT */
#include "release_support.h"

/* ---- released pages ---- */

/* Pages, charges and payload go; entries, tokens and the other group stay. */
static void test_holes(void **state)
{
    quire_cache_opts opts = test_two_groups(100);
    quire_cache_stats before;
    quire_cache_stats after;
    quire_seq_table table;
    quire_seq_id seq;
    test_cache t;

    (void)state;
    opts.charge_bytes[HOT] = 100;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    test_append_stamped(t.cache, seq, PAGE_TOKENS * 5 + 1, 0);
    before = test_stats(t.cache);
    assert_int_equal(test_release(t.cache, seq, 0, PAGE_TOKENS * 3), 3);
    after = test_stats(t.cache);
    assert_int_equal(after.pages_live, before.pages_live - 3);
    assert_int_equal(after.live_bytes, before.live_bytes - 3 * PAGE_BYTES);
    assert_int_equal(after.charged_bytes, before.charged_bytes - 300);
    assert_int_equal(after.frees_total, 3);
    assert_int_equal(after.slack_bytes, before.slack_bytes); /* a hole has no empty slots */

    assert_int_equal(quire_seq_table_get(t.cache, seq, HOT, &table), QUIRE_OK);
    assert_int_equal(table.n_tokens, PAGE_TOKENS * 5 + 1);
    assert_int_equal(table.n_entries, 6);
    for (uint32_t i = 0; i < 6; i++) {
        const quire_page_entry *e = &table.leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES];

        assert_int_equal(e->page == QUIRE_PAGE_NULL, i < 3);
        assert_int_equal(e->first_slot, 0);
        assert_int_equal(e->n_tokens, i < 5 ? PAGE_TOKENS : 1);
        assert_int_equal(e->first_pos, i * PAGE_TOKENS);
    }
    test_check_stamps(t.cache, seq, PAGE_TOKENS * 5 + 1, 0);
    test_append_stamped(t.cache, seq, PAGE_TOKENS, PAGE_TOKENS * 5 + 1);
    test_check_stamps(t.cache, seq, PAGE_TOKENS * 6 + 1, 0);
    assert_int_equal(quire_seq_close(t.cache, seq), QUIRE_OK);
    assert_int_equal(test_stats(t.cache).pages_live, 0);
    assert_int_equal(test_stats(t.cache).charged_bytes, 0);
    test_cache_destroy(&t);
}

/* An entry's page goes when all its tokens lie in the range; ranges may end anywhere. */
static void test_ranges(void **state)
{
    const struct {
        uint32_t begin;
        uint32_t end;
        uint32_t n;
    } cases[] = {
        { 0, 0, 0 },
        { PAGE_TOKENS, PAGE_TOKENS, 0 },
        { 0, PAGE_TOKENS - 1, 0 },
        { 1, PAGE_TOKENS * 2 - 1, 0 },
        { 1, PAGE_TOKENS * 2, 1 },
        { PAGE_TOKENS, PAGE_TOKENS * 2, 1 },
        { PAGE_TOKENS - 1, PAGE_TOKENS * 3 + 1, 2 },
        { 0, PAGE_TOKENS * 4, 4 },
        { 0, UINT32_MAX, 4 },
        { PAGE_TOKENS * 4, UINT32_MAX, 0 },
        { UINT32_MAX, UINT32_MAX, 0 },
        { UINT32_MAX - 1, UINT32_MAX, 0 },
    };
    quire_cache_opts opts = test_two_groups(100);

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t first = cases[i].begin / PAGE_TOKENS + (cases[i].begin % PAGE_TOKENS != 0);
        quire_seq_id seq;
        test_cache t;

        test_cache_create(&t, &opts, 0, 0);
        seq = test_open(t.cache);
        test_append_stamped(t.cache, seq, PAGE_TOKENS * 4 + 1, 0);
        assert_int_equal(test_release(t.cache, seq, cases[i].begin, cases[i].end), cases[i].n);
        test_check_holes(t.cache, seq, first, first + cases[i].n);
        assert_int_equal(test_release(t.cache, seq, cases[i].begin, cases[i].end), 0); /* done */
        test_check_stamps(t.cache, seq, PAGE_TOKENS * 4 + 1, 0);
        test_cache_destroy(&t);
    }
}

/* Any order of ranges, touching, apart and one over another. */
static void test_several_ranges(void **state)
{
    quire_cache_opts opts = test_two_groups(100);
    quire_seq_id seq;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    test_append_stamped(t.cache, seq, PAGE_TOKENS * 12, 0);
    assert_int_equal(test_release(t.cache, seq, PAGE_TOKENS * 2, PAGE_TOKENS * 4), 2);
    assert_int_equal(test_release(t.cache, seq, PAGE_TOKENS * 7, PAGE_TOKENS * 9), 2);
    assert_int_equal(test_release(t.cache, seq, PAGE_TOKENS * 3, PAGE_TOKENS * 6), 2);
    assert_int_equal(test_release(t.cache, seq, PAGE_TOKENS * 1, PAGE_TOKENS * 2), 1);
    assert_false(test_is_hole(t.cache, seq, 0));
    assert_false(test_is_hole(t.cache, seq, 6));
    assert_int_equal(test_release(t.cache, seq, 0, PAGE_TOKENS * 11), 4);
    test_check_holes(t.cache, seq, 0, 11);
    test_check_stamps(t.cache, seq, PAGE_TOKENS * 12, 0);
    test_cache_destroy(&t);
}

static void test_tail(void **state)
{
    quire_cache_opts opts = test_two_groups(100);
    quire_seq_id seq;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    assert_int_equal(test_release(t.cache, seq, 0, UINT32_MAX), 0); /* empty */
    test_append_stamped(t.cache, seq, PAGE_TOKENS - 1, 0);
    assert_int_equal(test_release(t.cache, seq, 0, PAGE_TOKENS), 0); /* partly filled */
    test_append_stamped(t.cache, seq, 1, PAGE_TOKENS - 1);
    assert_int_equal(test_release(t.cache, seq, 0, PAGE_TOKENS),
                     1); /* full: a tail like any page */
    assert_int_equal(quire_seq_truncate(t.cache, seq, PAGE_TOKENS), QUIRE_OK);
    test_append_stamped(t.cache, seq, 1, PAGE_TOKENS);
    test_check_holes(t.cache, seq, 0, 1);
    test_check_stamps(t.cache, seq, PAGE_TOKENS + 1, 0);
    test_cache_destroy(&t);
}

/* Room that is reserved stays reserved. */
static void test_reserved_room(void **state)
{
    quire_cache_opts opts = test_two_groups(QUIRE_LEAF_ENTRIES * 8);
    quire_seq_id seq;
    uint64_t live;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    test_append_stamped(t.cache, seq, PAGE_TOKENS, 0);
    assert_int_equal(quire_seq_reserve(t.cache, seq, LEAF_TOKENS), QUIRE_OK);
    live = test_stats(t.cache).pages_live;
    assert_int_equal(test_release(t.cache, seq, 0, UINT32_MAX), 1);
    assert_int_equal(test_stats(t.cache).pages_live, live - 1);
    t.memory.fail_at = t.memory.n_calls;
    t.extents.fail_from = 0;
    test_append_stamped(t.cache, seq, LEAF_TOKENS, PAGE_TOKENS);
    assert_false(t.memory.has_failed);
    assert_false(t.extents.has_failed);
    test_check_holes(t.cache, seq, 0, 1);
    test_check_stamps(t.cache, seq, PAGE_TOKENS + LEAF_TOKENS, 0);
    test_cache_destroy(&t);
}

static void test_errors(void **state)
{
    quire_cache_opts opts = test_two_groups(100);
    quire_seq_id seq;
    uint32_t n = 17;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    test_append(t.cache, seq, PAGE_TOKENS * 3);
    assert_int_equal(quire_seq_release(t.cache, seq, 2, 0, 1, &n), QUIRE_INVAL);
    assert_int_equal(quire_seq_release(t.cache, seq, HOT, 2, 1, &n), QUIRE_INVAL);
    assert_int_equal(quire_seq_release(t.cache, seq + 1, HOT, 0, 1, &n), QUIRE_NOTFOUND);
    assert_int_equal(quire_seq_release(t.cache, QUIRE_SEQ_NULL, HOT, 0, 1, &n), QUIRE_NOTFOUND);
    assert_int_equal(n, 17);
    assert_int_equal(quire_seq_truncatable(t.cache, seq + 1, 5), 0);
    test_check_holes(t.cache, seq, 0, 0);
    assert_int_equal(quire_seq_release(t.cache, seq, HOT, 0, PAGE_TOKENS, NULL), QUIRE_OK);
    test_check_holes(t.cache, seq, 0, 1);
    test_cache_destroy(&t);
}

static void test_allocates_nothing(void **state)
{
    quire_cache_opts opts = test_two_groups(QUIRE_LEAF_ENTRIES * 10);
    quire_seq_id seq;
    uint64_t calls;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    test_append(t.cache, seq, LEAF_TOKENS * 3);
    calls = t.memory.n_calls;
    t.memory.fail_at = calls;
    t.extents.fail_from = 0;
    assert_int_equal(test_release(t.cache, seq, 0, UINT32_MAX), QUIRE_LEAF_ENTRIES * 3);
    assert_int_equal(t.memory.n_calls, calls);
    test_cache_destroy(&t);
}

/* Another sequence can take the pages that one group releases. */
static void test_budget(void **state)
{
    quire_cache_opts opts = test_two_groups(8);
    quire_seq_id a;
    quire_seq_id b;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    a = test_open(t.cache);
    b = test_open(t.cache);
    test_append_stamped(t.cache, a, PAGE_TOKENS * 4, 0);
    assert_int_equal(quire_seq_append(t.cache, b, 1), QUIRE_NOPAGES);
    assert_int_equal(test_release(t.cache, a, 0, PAGE_TOKENS * 2), 2);
    test_append_stamped(t.cache, b, PAGE_TOKENS, 7000);
    assert_int_equal(quire_seq_append(t.cache, b, 1), QUIRE_NOPAGES);
    test_check_stamps(t.cache, a, PAGE_TOKENS * 4, 0);
    test_check_stamps(t.cache, b, PAGE_TOKENS, 7000);
    test_cache_destroy(&t);
}

/* A page that the prefix tree keeps stays cached after its release. */
static void test_kept_page(void **state)
{
    quire_cache_opts opts = test_two_groups(100);
    quire_page_id kept;
    quire_seq_id seq;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    test_append_stamped(t.cache, seq, PAGE_TOKENS * 2, 0);
    kept = test_page_of(t.cache, seq, HOT, 0);
    quire_pool_keep(&t.cache->pool, kept, PAGE_TOKENS);
    assert_int_equal(test_release(t.cache, seq, 0, PAGE_TOKENS), 1);
    assert_int_equal(quire_pool_state(&t.cache->pool, kept), QUIRE_PAGE_CACHED);
    assert_int_equal(test_stats(t.cache).cached_bytes, PAGE_BYTES);
    quire_pool_evict(&t.cache->pool, kept);
    assert_int_equal(test_stats(t.cache).cached_bytes, 0);
    test_cache_destroy(&t);
}

/* ---- truncation ---- */

static void test_truncatable(void **state)
{
    quire_cache_opts opts = test_two_groups(100);
    const uint32_t n = PAGE_TOKENS * 6 + 1;
    quire_seq_id seq;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    test_append_stamped(t.cache, seq, n, 0);
    assert_int_equal(test_release(t.cache, seq, PAGE_TOKENS, PAGE_TOKENS * 4), 3);
    for (uint32_t i = 0; i <= n; i++) {
        bool is_cut = i > PAGE_TOKENS && i < PAGE_TOKENS * 4 && i % PAGE_TOKENS != 0;

        assert_int_equal(quire_seq_truncatable(t.cache, seq, i),
                         is_cut ? i / PAGE_TOKENS * PAGE_TOKENS : i);
    }
    assert_int_equal(quire_seq_truncatable(t.cache, seq, UINT32_MAX), n);

    /* A cut inside a hole is refused, also when other groups could; nothing changes. */
    assert_int_equal(quire_seq_truncate(t.cache, seq, PAGE_TOKENS * 2 + 1), QUIRE_RANGE);
    assert_int_equal(quire_seq_tokens(t.cache, seq), n);
    test_check_holes(t.cache, seq, 1, 4);
    test_check_stamps(t.cache, seq, n, 0);

    /* A cut at the start of the hole's entry is allowed, and tokens appended there have pages in
     * every group. */
    assert_int_equal(quire_seq_truncate(t.cache, seq, PAGE_TOKENS * 2), QUIRE_OK);
    quire_cache_validate(t.cache);
    test_append_stamped(t.cache, seq, PAGE_TOKENS + 1, PAGE_TOKENS * 2);
    test_check_holes(t.cache, seq, 1, 2);
    test_check_stamps(t.cache, seq, PAGE_TOKENS * 3 + 1, 0);

    /* The new pages can be released in turn, although they lie where holes were before. */
    assert_int_equal(test_release(t.cache, seq, 0, UINT32_MAX), 2);
    test_check_holes(t.cache, seq, 0, 3);
    assert_int_equal(quire_seq_truncate(t.cache, seq, 0), QUIRE_OK);
    assert_int_equal(test_stats(t.cache).pages_live, 0);
    test_append_stamped(t.cache, seq, PAGE_TOKENS, 500);
    test_check_holes(t.cache, seq, 0, 0);
    test_check_stamps(t.cache, seq, PAGE_TOKENS, 500);
    test_cache_destroy(&t);
}

/* ---- the owner's loop ---- */

/* A moving window: after each step all pages go but the first and those of the last WINDOW tokens.
 * The group keeps this size, and each call finds the holes of the calls before as one run. Forks
 * come and go meanwhile. */
static void test_moving_window(void **state)
{
    const uint32_t window = PAGE_TOKENS * 2;
    const uint32_t n_all = LEAF_TOKENS * 3 + 1;
    quire_cache_opts opts = test_two_groups(QUIRE_LEAF_ENTRIES * 12);
    quire_seq_id fork = QUIRE_SEQ_NULL;
    quire_seq_id seq;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    for (uint32_t n = 1; n <= n_all; n++) {
        const quire_table *table;
        uint32_t end = n > window ? n - window : 0;

        test_append_stamped(t.cache, seq, 1, n - 1);
        if (n == LEAF_TOKENS / 2 + 1 || n == LEAF_TOKENS * 2) {
            fork = test_fork(t.cache, seq);
        } else if (n == LEAF_TOKENS + 1 || n == LEAF_TOKENS * 2 + PAGE_TOKENS * 2 + 1) {
            test_check_stamps(t.cache, fork, quire_seq_tokens(t.cache, fork), 0);
            assert_int_equal(quire_seq_close(t.cache, fork), QUIRE_OK);
            fork = QUIRE_SEQ_NULL;
        }
        if (end > PAGE_TOKENS) {
            (void)test_release(t.cache, seq, PAGE_TOKENS, end);
        }
        if (fork == QUIRE_SEQ_NULL && end / PAGE_TOKENS > 1) {
            test_check_holes(t.cache, seq, 1, end / PAGE_TOKENS);
            table = &quire_seqs_find(&t.cache->seqs, seq)->tables[HOT];
            assert_int_equal(table->holes_begin, 1);
            assert_int_equal(table->holes_end, end / PAGE_TOKENS);
        }
    }
    test_check_stamps(t.cache, seq, n_all, 0);
    assert_int_equal(test_stats(t.cache).pages_live,
                     n_all / PAGE_TOKENS + 1 + 1 + window / PAGE_TOKENS + 1);
    test_cache_destroy(&t);
}

/* Extents that became sparse through holes are emptied and returned like any others. */
static void test_upkeep(void **state)
{
    enum {
        SEQS = 4
    };
    const uint32_t n = PAGE_TOKENS * EXTENT_PAGES;
    quire_cache_opts opts = test_two_groups(EXTENT_PAGES * SEQS * 2);
    quire_seq_id seqs[SEQS];
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    for (uint32_t i = 0; i < SEQS; i++) {
        seqs[i] = test_open(t.cache);
        test_append_stamped(t.cache, seqs[i], n, i * 100000);
        assert_true(test_release(t.cache, seqs[i], PAGE_TOKENS, n - PAGE_TOKENS) > 0);
    }
    assert_true(quire_cache_coalesce(t.cache, UINT32_MAX) > 0);
    quire_cache_maintain(t.cache);
    assert_true(quire_cache_trim(t.cache, 0) > 0);
    quire_cache_validate(t.cache);
    for (uint32_t i = 0; i < SEQS; i++) {
        test_check_holes(t.cache, seqs[i], 1, EXTENT_PAGES - 1);
        test_check_stamps(t.cache, seqs[i], n, i * 100000);
    }
    test_cache_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_holes),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_several_ranges),
        cmocka_unit_test(test_tail),
        cmocka_unit_test(test_reserved_room),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_allocates_nothing),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_kept_page),
        cmocka_unit_test(test_truncatable),
        cmocka_unit_test(test_moving_window),
        cmocka_unit_test(test_upkeep),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
