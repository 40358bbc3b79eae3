/* test_inherit.c - a sequence that takes over the pages of another one, and the tree that lets go
 * of them.
 *
 * SPDX-License-Identifier: MIT */
#include "prefix_support.h"

#include <string.h>

#define PT PAGE_TOKENS

/* Pages that both sequences hold at the same place of a group, by bits. */
static uint32_t same_pages(const quire_cache *cache, quire_seq_id a, quire_seq_id b,
                           quire_group_id group)
{
    uint32_t bits = 0;

    for (uint32_t i = 0; i < quire_seq_tokens(cache, b) / PT; i++) {
        const quire_page_id page = test_page_of(cache, b, group, i * PT);

        bits |= (uint32_t)(page != QUIRE_PAGE_NULL && page == test_page_of(cache, a, group, i * PT))
                << i;
    }
    return bits;
}

/* Pages that a sequence has in a group, by bits. */
static uint32_t own_pages(const quire_cache *cache, quire_seq_id seq, quire_group_id group)
{
    return same_pages(cache, seq, seq, group);
}

/* Pages of the first tokens are shared, the rest are new; other groups have no pages, but for those
 * of the last window. */
static void test_pages(void **state)
{
    quire_cache_opts opts = test_opts(16);
    quire_seq_id from, to;
    test_cache t;

    (void)state;
    opts.n_groups = 3;
    opts.page_bytes[1] = opts.page_bytes[2] = PAGE_BYTES;
    opts.needs_last_tokens[2] = PT + 1;
    test_cache_create(&t, &opts, 0, 0);
    from = test_open(t.cache);
    test_append_stamped(t.cache, from, 4 * PT, 7);
    to = test_open(t.cache);
    assert_int_equal(quire_seq_inherit(t.cache, from, 2 * PT, to, 3 * PT), QUIRE_OK);
    assert_int_equal(quire_seq_tokens(t.cache, to), 3 * PT);
    assert_int_equal(same_pages(t.cache, from, to, 0), 3);
    assert_int_equal(own_pages(t.cache, to, 0), 7);
    assert_int_equal(own_pages(t.cache, to, 1), 0);
    assert_int_equal(same_pages(t.cache, from, to, 2), 0);
    assert_int_equal(own_pages(t.cache, to, 2), 4);
    assert_int_equal(test_stats(t.cache).pages_live, 3 * 4 + 2);
    assert_int_equal(test_stats(t.cache).slack_bytes, 0);
    quire_cache_validate(t.cache);
    for (uint32_t i = 0; i < 4 * PT; i++) {
        test_slot_check(t.cache, from, i, 7 + i);
    }
    assert_int_equal(quire_seq_close(t.cache, from), QUIRE_OK);
    assert_int_equal(test_stats(t.cache).pages_live, 3 + 1);
    test_slot_check_in(t.cache, to, 0, 2 * PT - 1, 7 + 2 * PT - 1);
    test_append(t.cache, to, PT);
    assert_int_equal(quire_seq_close(t.cache, to), QUIRE_OK);
    test_cache_destroy(&t);
}

/* No page is short of memory when all are shared; else nothing changes. */
static void test_without_memory(void **state)
{
    quire_cache_opts opts = test_opts(4);
    quire_seq_id from, to;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    from = test_open(t.cache);
    to = test_open(t.cache);
    test_append(t.cache, from, 4 * PT);
    assert_int_equal(quire_seq_inherit(t.cache, from, PT, to, 3 * PT), QUIRE_NOPAGES);
    assert_int_equal(quire_seq_tokens(t.cache, to), 0);
    assert_int_equal(test_stats(t.cache).pages_live, 4);
    quire_cache_validate(t.cache);
    assert_int_equal(quire_seq_inherit(t.cache, from, 4 * PT, to, 3 * PT), QUIRE_OK);
    assert_int_equal(same_pages(t.cache, from, to, 0), 7);
    assert_int_equal(test_stats(t.cache).charged_peak_bytes, 4 * PAGE_BYTES);
    test_cache_destroy(&t);
}

/* Each allocation fails once. */
static void test_without_allocation(void **state)
{
    bool has_failed = true;

    (void)state;
    for (uint64_t at = 0; has_failed; at++) {
        quire_cache_opts opts = test_opts(64);
        quire_seq_id from, to;
        test_cache t;
        int rc;

        test_cache_create(&t, &opts, 0, 0);
        from = test_open(t.cache);
        to = test_open(t.cache);
        test_append(t.cache, from, 3 * PT);
        t.memory.fail_at = t.memory.n_calls + at;
        rc = quire_seq_inherit(t.cache, from, 2 * PT, to, 40 * PT);
        has_failed = t.memory.has_failed;
        assert_int_equal(rc, has_failed ? QUIRE_NOMEM : QUIRE_OK);
        assert_int_equal(quire_seq_tokens(t.cache, to), has_failed ? 0 : 40 * PT);
        assert_int_equal(test_stats(t.cache).pages_live, has_failed ? 3 : 41);
        assert_true(at > 0 || has_failed);
        test_cache_destroy(&t);
    }
}

static void test_refusals(void **state)
{
    quire_cache_opts opts = test_opts(16);
    quire_seq_id from, to;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    from = test_open(t.cache);
    to = test_open(t.cache);
    test_append(t.cache, from, 3 * PT);
    assert_int_equal(quire_seq_inherit(t.cache, from, PT, to + 1, PT), QUIRE_NOTFOUND);
    assert_int_equal(quire_seq_inherit(t.cache, from, PT, to, 0), QUIRE_INVAL);
    assert_int_equal(quire_seq_inherit(t.cache, from, PT, to, PT + 1), QUIRE_INVAL);
    assert_int_equal(quire_seq_inherit(t.cache, from, PT + 1, to, PT), QUIRE_INVAL);
    assert_int_equal(quire_seq_inherit(t.cache, from, 4 * PT, to, PT), QUIRE_INVAL);
    assert_int_equal(quire_seq_reserve(t.cache, to, 1), QUIRE_OK);
    assert_int_equal(quire_seq_inherit(t.cache, from, PT, to, PT), QUIRE_INVAL);
    test_cache_destroy(&t);
}

/* Pages that another sequence or a pin holds are not shared. */
static void test_other_holders(void **state)
{
    test_prefix p;
    const quire_prefix_key key = test_key();
    int32_t text[4 * PT];
    quire_seq_id fork, to;
    quire_pins *pins;
    test_run run, other;
    const quire_pin_spec spec = { .name = "p", .key = key, .tokens = text, .n_tokens = 2 * PT };
    quire_pin_id pin;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    pins = test_pins_create(&p, 0);
    test_text(text, 4 * PT, 0);
    run = test_run_start(&p, text, 4 * PT);
    test_run_extend(&p, &run, text, 4 * PT);
    /* A hit of the first page. */
    other = test_run_start(&p, text, PT);
    to = test_open(p.cache);
    assert_int_equal(quire_seq_inherit(p.cache, run.seq, 4 * PT, to, 3 * PT), QUIRE_OK);
    assert_int_equal(same_pages(p.cache, run.seq, to, 0), 6);
    assert_int_equal(quire_seq_close(p.cache, to), QUIRE_OK);
    test_run_end(&p, &other);
    /* A fork, which shares the leaf. */
    fork = test_fork(p.cache, run.seq);
    to = test_open(p.cache);
    assert_int_equal(quire_seq_inherit(p.cache, run.seq, 4 * PT, to, 3 * PT), QUIRE_OK);
    assert_int_equal(same_pages(p.cache, run.seq, to, 0), 0);
    assert_int_equal(quire_seq_close(p.cache, to), QUIRE_OK);
    assert_int_equal(quire_seq_close(p.cache, fork), QUIRE_OK);
    /* A pin of two pages. */
    assert_int_equal(quire_pins_reserve(pins, &spec, 0, &pin, NULL), QUIRE_OK);
    assert_int_equal(quire_pins_hold(pins, pin, 0, NULL), QUIRE_OK);
    to = test_open(p.cache);
    assert_int_equal(quire_seq_inherit(p.cache, run.seq, 4 * PT, to, 3 * PT), QUIRE_OK);
    assert_int_equal(same_pages(p.cache, run.seq, to, 0), 4);
    assert_int_equal(quire_seq_close(p.cache, to), QUIRE_OK);
    quire_pins_destroy(pins);
    test_run_end(&p, &run);
    test_prefix_destroy(&p);
}

/* Slots of a page on which the tree relies. */
static uint32_t n_kept(const test_prefix *p, quire_seq_id seq, uint32_t token)
{
    quire_page_info info;

    assert_int_equal(
        quire_cache_page_info_get(p->cache, test_page_of(p->cache, seq, 0, token), &info),
        QUIRE_OK);
    return info.n_kept;
}

/* The tree lets go of a path and of the cached texts beside it, but of no page that another ref
 * needs. */
static void test_leave(void **state)
{
    int32_t text[4 * PT], beside[4 * PT], running[4 * PT];
    test_run run, other;
    test_prefix p;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, 4 * PT, 0);
    memcpy(beside, text, sizeof text);
    test_text(beside + 2 * PT, 2 * PT, 1000);
    memcpy(running, text, sizeof text);
    test_text(running + PT, 3 * PT, 2000);
    run = test_run_start(&p, text, 4 * PT);
    test_run_extend(&p, &run, text, 4 * PT - 1);
    (void)test_run_whole(&p, beside, 4 * PT);
    other = test_run_start(&p, running, 2 * PT);
    test_run_extend(&p, &other, running, 2 * PT);
    assert_int_equal(quire_prefix_leave(p.tree, run.ref, 1), QUIRE_OK);
    assert_int_equal(quire_prefix_leave(p.tree, run.ref, 1), QUIRE_NOTFOUND);
    assert_int_equal(test_lookup(&p, text, 4 * PT).n_tokens, PT);
    assert_int_equal(test_lookup(&p, beside, 4 * PT).n_tokens, PT);
    assert_int_equal(test_lookup(&p, running, 4 * PT).n_tokens, 2 * PT);
    assert_int_equal(test_lookup(&p, text, 4 * PT).gone, QUIRE_PREFIX_GONE_MEMORY);
    assert_int_equal(n_kept(&p, run.seq, 0), PT);
    for (uint32_t i = 1; i < 4; i++) {
        assert_int_equal(n_kept(&p, run.seq, i * PT), 0);
    }
    assert_int_equal(test_stats(p.cache).pages_cached, 0);
    assert_int_equal(quire_seq_close(p.cache, run.seq), QUIRE_OK);
    /* The last path takes its root along. */
    assert_int_equal(quire_prefix_leave(p.tree, other.ref, 2), QUIRE_OK);
    assert_int_equal(test_prefix_stats(&p).roots, 0);
    assert_int_equal(test_prefix_stats(&p).nodes, 0);
    assert_int_equal(test_stats(p.cache).pages_live, 2);
    assert_int_equal(quire_seq_close(p.cache, other.seq), QUIRE_OK);
    test_prefix_destroy(&p);
}

/* A ref that published nothing, or whose path was dropped, is released. */
static void test_leave_nothing(void **state)
{
    int32_t text[2 * PT];
    test_prefix p;
    test_run run;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, 2 * PT, 0);
    for (uint32_t i = 0; i < 2; i++) {
        run = test_run_start(&p, text, 2 * PT);
        if (i == 1) {
            test_run_extend(&p, &run, text, 2 * PT);
            (void)quire_prefix_drop_all(p.tree, 0);
        }
        assert_int_equal(quire_prefix_leave(p.tree, run.ref, 0), QUIRE_OK);
        assert_int_equal(test_prefix_stats(&p).roots, 0);
        assert_int_equal(test_prefix_stats(&p).refs, 0);
        assert_int_equal(quire_seq_close(p.cache, run.seq), QUIRE_OK);
    }
    test_prefix_destroy(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_without_memory),
        cmocka_unit_test(test_without_allocation),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_other_holders),
        cmocka_unit_test(test_leave),
        cmocka_unit_test(test_leave_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
