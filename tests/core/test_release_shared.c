/* test_release_shared.c - holes in tables that sequences share: forks, copies, the order of
 * releases.
 *
 * SPDX-License-Identifier: MIT */
#include "release_support.h"

typedef struct tally {
    uint64_t n[9];
    quire_group_id group; /* of the last event */
    quire_seq_id seq;
} tally;

static int count(void *ctx, const quire_history_event *event)
{
    tally *counts = ctx;

    counts->n[event->kind]++;
    counts->group = event->group;
    counts->seq = event->seq;
    return 0;
}

static tally history(const quire_cache *cache)
{
    tally counts = { 0 };

    assert_int_equal(quire_cache_history_visit(cache, count, &counts), 0);
    return counts;
}

/* Release skips a shared leaf; after the other sequence is closed, the same call releases its
 * pages. */
static void test_shared_leaves(void **state)
{
    quire_cache_opts opts = test_two_groups(QUIRE_LEAF_ENTRIES * 12);
    const uint32_t n_shared = LEAF_TOKENS * 2;
    const uint32_t n_all = LEAF_TOKENS * 3;
    quire_seq_id a;
    quire_seq_id b;
    quire_seq_id c;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    a = test_open(t.cache);
    test_append_stamped(t.cache, a, LEAF_TOKENS, 0);
    b = test_fork(t.cache, a);
    test_append_stamped(t.cache, a, LEAF_TOKENS, LEAF_TOKENS);
    c = test_fork(t.cache, a); /* a, b and c share the first leaf, a and c the second */
    test_append_stamped(t.cache, a, LEAF_TOKENS, n_shared);
    assert_int_equal(test_release(t.cache, a, PAGE_TOKENS, n_all - PAGE_TOKENS),
                     QUIRE_LEAF_ENTRIES - 1);
    test_check_holes(t.cache, a, QUIRE_LEAF_ENTRIES * 2, QUIRE_LEAF_ENTRIES * 3 - 1);
    assert_int_equal(test_release(t.cache, c, 0, UINT32_MAX), 0);
    test_check_holes(t.cache, c, 0, 0);
    test_check_stamps(t.cache, c, n_shared, 0);

    assert_int_equal(quire_seq_close(t.cache, c), QUIRE_OK);
    assert_int_equal(test_release(t.cache, a, PAGE_TOKENS, n_all - PAGE_TOKENS),
                     QUIRE_LEAF_ENTRIES);
    test_check_holes(t.cache, a, QUIRE_LEAF_ENTRIES, QUIRE_LEAF_ENTRIES * 3 - 1);
    test_check_stamps(t.cache, b, LEAF_TOKENS, 0);
    assert_int_equal(quire_seq_close(t.cache, b), QUIRE_OK);
    assert_int_equal(test_release(t.cache, a, PAGE_TOKENS, n_all - PAGE_TOKENS),
                     QUIRE_LEAF_ENTRIES - 1);
    test_check_holes(t.cache, a, 1, QUIRE_LEAF_ENTRIES * 3 - 1);
    test_check_stamps(t.cache, a, n_all, 0);
    test_cache_destroy(&t);
}

/* Copy-on-write makes the tail's leaf private: its pages can be released then, and stay with the
 * other holder. */
static void test_leaf_copied_by_append(void **state)
{
    quire_cache_opts opts = test_two_groups(100);
    const uint32_t n = PAGE_TOKENS + 1;
    quire_seq_id a;
    quire_seq_id b;
    tally before;
    tally after;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    a = test_open(t.cache);
    test_append_stamped(t.cache, a, n, 0);
    b = test_fork(t.cache, a);
    assert_int_equal(test_release(t.cache, b, 0, PAGE_TOKENS), 0);
    test_append_stamped(t.cache, b, 1, n);
    before = history(t.cache);
    assert_int_equal(test_release(t.cache, b, 0, PAGE_TOKENS), 1);
    after = history(t.cache);
    assert_int_equal(after.n[QUIRE_HISTORY_UNREF], before.n[QUIRE_HISTORY_UNREF] + 1);
    assert_int_equal(after.n[QUIRE_HISTORY_FREE], before.n[QUIRE_HISTORY_FREE]);
    assert_int_equal(after.seq, b);
    assert_int_equal(after.group, HOT);
    test_check_holes(t.cache, a, 0, 0);
    test_check_holes(t.cache, b, 0, 1);
    test_check_stamps(t.cache, a, n, 0);
    test_check_stamps(t.cache, b, n + 1, 0);

    /* a is the page's last holder. */
    assert_int_equal(test_release(t.cache, a, 0, PAGE_TOKENS), 1);
    assert_int_equal(history(t.cache).n[QUIRE_HISTORY_FREE], after.n[QUIRE_HISTORY_FREE] + 1);
    assert_int_equal(history(t.cache).seq, a);
    test_check_stamps(t.cache, a, n, 0);
    test_cache_destroy(&t);
}

/* Leaves with holes are shared, and copied on write, with their holes. */
static void test_fork_with_holes(void **state)
{
    const uint32_t counts[] = { PAGE_TOKENS + 1,
                                LEAF_TOKENS,
                                LEAF_TOKENS + 1,
                                LEAF_TOKENS + PAGE_TOKENS,
                                LEAF_TOKENS * 2 - 1,
                                LEAF_TOKENS * 2 + PAGE_TOKENS - 1,
                                LEAF_TOKENS * 2 + PAGE_TOKENS };
    quire_cache_opts opts = test_two_groups(QUIRE_LEAF_ENTRIES * 20);

    (void)state;
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]) * 2; i++) {
        uint32_t n = counts[i / 2];
        uint32_t n_holes = n / PAGE_TOKENS;
        quire_seq_id a;
        quire_seq_id b;
        uint64_t live;
        test_cache t;

        test_cache_create(&t, &opts, 0, 0);
        a = test_open(t.cache);
        test_append_stamped(t.cache, a, n, 0);
        assert_int_equal(test_release(t.cache, a, 0, n), n_holes);
        if (i % 2 == 1) { /* the last leaf is copied by the fork */
            assert_int_equal(quire_seq_reserve(t.cache, a, LEAF_TOKENS), QUIRE_OK);
        }
        live = test_stats(t.cache).pages_live;
        b = test_fork(t.cache, a);
        quire_cache_validate(t.cache);
        assert_int_equal(test_stats(t.cache).pages_live, live);
        test_check_holes(t.cache, b, 0, n_holes);
        /* The fork inherits the known run of holes: its releases need not search it. */
        assert_int_equal(quire_seqs_find(&t.cache->seqs, b)->tables[HOT].holes_begin, 0);
        assert_int_equal(quire_seqs_find(&t.cache->seqs, b)->tables[HOT].holes_end, n_holes);
        test_append_stamped(t.cache, b, PAGE_TOKENS, n);
        test_append_stamped(t.cache, a, PAGE_TOKENS, n);
        quire_cache_validate(t.cache);
        test_check_holes(t.cache, a, 0, n_holes);
        test_check_holes(t.cache, b, 0, n_holes);
        assert_int_equal(test_release(t.cache, b, 0, n), 0);
        assert_int_equal(test_release(t.cache, b, 0, n + PAGE_TOKENS),
                         (n + PAGE_TOKENS) / PAGE_TOKENS - n_holes);
        test_check_stamps(t.cache, a, n + PAGE_TOKENS, 0);
        test_check_stamps(t.cache, b, n + PAGE_TOKENS, 0);
        assert_int_equal(quire_seq_close(t.cache, a), QUIRE_OK);
        test_check_stamps(t.cache, b, n + PAGE_TOKENS, 0);
        assert_int_equal(quire_seq_close(t.cache, b), QUIRE_OK);
        assert_int_equal(test_stats(t.cache).pages_live, 0);
        test_cache_destroy(&t);
    }
}

/* Truncate a fork of a table with holes to every length, and append there: leaves with holes are
 * copied. */
static void test_truncate_a_fork(void **state)
{
    quire_cache_opts opts = test_two_groups(QUIRE_LEAF_ENTRIES * 12);
    const uint32_t n_all = LEAF_TOKENS * 2 + 1;
    const uint32_t n_holes = QUIRE_LEAF_ENTRIES + 1;

    (void)state;
    for (uint32_t n = 0; n <= n_all; n += 1 + n / 7) {
        quire_seq_id a;
        quire_seq_id b;
        uint32_t kept;
        test_cache t;

        test_cache_create(&t, &opts, 0, 0);
        a = test_open(t.cache);
        test_append_stamped(t.cache, a, n_all, 0);
        assert_int_equal(test_release(t.cache, a, 0, n_holes * PAGE_TOKENS), n_holes);
        b = test_fork(t.cache, a);
        test_check_holes(t.cache, b, 0, n_holes);
        kept = quire_seq_truncatable(t.cache, b, n);
        assert_int_equal(quire_seq_truncate(t.cache, b, n), kept == n ? QUIRE_OK : QUIRE_RANGE);
        assert_int_equal(quire_seq_truncate(t.cache, b, kept), QUIRE_OK);
        quire_cache_validate(t.cache);
        test_append_stamped(t.cache, b, PAGE_TOKENS + 1, kept);
        test_check_holes(t.cache, a, 0, n_holes);
        test_check_holes(t.cache, b, 0,
                         kept / PAGE_TOKENS < n_holes ? kept / PAGE_TOKENS : n_holes);
        test_check_stamps(t.cache, a, n_all, 0);
        test_check_stamps(t.cache, b, kept + PAGE_TOKENS + 1, 0);
        test_cache_destroy(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_leaves),
        cmocka_unit_test(test_leaf_copied_by_append),
        cmocka_unit_test(test_fork_with_holes),
        cmocka_unit_test(test_truncate_a_fork),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
