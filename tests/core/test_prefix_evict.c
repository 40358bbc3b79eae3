/* test_prefix_evict.c - eviction and expiry, and the explanation of misses.
 *
 * SPDX-License-Identifier: MIT */
#include "prefix_support.h"

#define PT PAGE_TOKENS

#define HOUR_US 3600000000u

/* Text number i, without common tokens with other texts. */
static void text_at(int32_t *tokens, uint32_t n, uint32_t i)
{
    test_text(tokens, n, (int32_t)(i * 10000));
}

static uint32_t found(const test_prefix *p, uint32_t i, uint32_t n_tokens)
{
    int32_t text[8 * PT];

    assert_true(n_tokens <= 8 * PT);
    text_at(text, n_tokens, i);
    return test_lookup(p, text, n_tokens).n_tokens;
}

static quire_prefix_match whole(test_prefix *p, uint32_t i, uint32_t n_tokens)
{
    int32_t text[8 * PT];

    assert_true(n_tokens <= 8 * PT);
    text_at(text, n_tokens, i);
    return test_run_whole(p, text, n_tokens);
}

/* The least recently used node goes first, the ends of texts before their beginnings. */
static void test_order(void **state)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    test_prefix p;

    (void)state;
    opts.policy = QUIRE_EVICT_LRU;
    test_prefix_create(&p, 64, &opts);
    for (uint32_t i = 0; i < 4; i++) {
        (void)whole(&p, i, 2 * PT);
    }
    (void)whole(&p, 0, 2 * PT); /* used again */
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 1), PAGE_BYTES);
    assert_int_equal(found(&p, 1, 2 * PT), PT);
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, PAGE_BYTES + 1),
                     2 * PAGE_BYTES);
    assert_int_equal(found(&p, 1, 2 * PT), 0);
    assert_int_equal(found(&p, 2, 2 * PT), PT);
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 3 * PAGE_BYTES),
                     3 * PAGE_BYTES);
    assert_int_equal(found(&p, 3, 2 * PT), 0);
    assert_int_equal(found(&p, 0, 2 * PT), 2 * PT);
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX), 2 * PAGE_BYTES);
    assert_int_equal(test_prefix_stats(&p).nodes, 0);
    assert_int_equal(test_prefix_stats(&p).roots, 0);
    assert_int_equal(test_prefix_stats(&p).gone_nodes_total[QUIRE_PREFIX_GONE_MEMORY], 8);
    assert_int_equal(test_prefix_stats(&p).gone_tokens_total[QUIRE_PREFIX_GONE_MEMORY], 8 * PT);
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 1), 0);
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGIONS_MAX, 1), 0);
    test_prefix_destroy(&p);
}

/* The cache evicts by itself; paths with refs stay, also where a ref ends inside a page. */
static void test_refs_protect(void **state)
{
    int32_t text[8 * PT];
    test_prefix p;
    test_run inside;
    test_run big;

    (void)state;
    test_prefix_create(&p, 8, NULL);
    (void)whole(&p, 0, 2 * PT);
    (void)whole(&p, 1, 3 * PT);
    text_at(text, 2 * PT, 0);
    inside = test_run_start(&p, text, PT + 1);
    text_at(text, 8 * PT, 2);
    big = test_run_start(&p, text, 8 * PT);
    test_run_extend(&p, &big, text, 6 * PT);
    assert_int_equal(found(&p, 1, 3 * PT), 0);
    assert_int_equal(found(&p, 0, 2 * PT), 2 * PT);
    assert_int_equal(quire_seq_append(p.cache, big.seq, 1), QUIRE_NOPAGES);
    assert_int_equal(found(&p, 0, 2 * PT), 2 * PT);
    test_run_end(&p, &inside);
    test_run_extend(&p, &big, text, 8 * PT);
    assert_int_equal(found(&p, 0, 2 * PT), 0);
    assert_int_equal(test_stats(p.cache).alloc_failures_total, 1);
    test_run_end(&p, &big);
    test_prefix_destroy(&p);
}

/* An append that cannot succeed evicts nothing. */
static void test_hopeless(void **state)
{
    test_prefix p;
    quire_seq_id seq;

    (void)state;
    test_prefix_create(&p, 8, NULL);
    (void)whole(&p, 0, 4 * PT);
    seq = test_open(p.cache);
    assert_int_equal(quire_seq_append(p.cache, seq, 9 * PT), QUIRE_NOPAGES);
    assert_int_equal(found(&p, 0, 4 * PT), 4 * PT);
    test_append(p.cache, seq, 8 * PT);
    assert_int_equal(found(&p, 0, 4 * PT), 0);
    test_prefix_destroy(&p);
}

/* Nodes whose pages a sequence without a ref holds free nothing, and are skipped. */
static void test_held_without_ref(void **state)
{
    int32_t text[2 * PT];
    quire_seq_id fork;
    test_prefix p;
    test_run run;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    text_at(text, 2 * PT, 0);
    run = test_run_start(&p, text, 2 * PT);
    test_run_extend(&p, &run, text, 2 * PT);
    fork = test_fork(p.cache, run.seq);
    test_run_end(&p, &run);
    (void)whole(&p, 1, 2 * PT);
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX), 2 * PAGE_BYTES);
    assert_int_equal(found(&p, 0, 2 * PT), 2 * PT);
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 1), 0);
    assert_int_equal(quire_seq_close(p.cache, fork), QUIRE_OK);
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX), 2 * PAGE_BYTES);
    test_prefix_destroy(&p);
}

/* ---- time ---- */

static void test_ttl(void **state)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    int32_t text[2 * PT];
    quire_prefix_match match;
    test_prefix p;
    test_run run;

    (void)state;
    opts.ttl_us = 100;
    test_prefix_create(&p, 64, &opts);
    p.now_us = 1000;
    (void)whole(&p, 0, 2 * PT);
    p.now_us = 1050;
    (void)whole(&p, 1, 2 * PT);
    text_at(text, 2 * PT, 2);
    run = test_run_start(&p, text, 2 * PT);
    test_run_extend(&p, &run, text, 2 * PT);
    assert_int_equal(quire_prefix_expire(p.tree, 1099, 100), 0);
    assert_int_equal(quire_prefix_expire(p.tree, 1100, 1), 1); /* at most one */
    assert_int_equal(found(&p, 0, 2 * PT), PT);
    assert_int_equal(quire_prefix_expire(p.tree, 900, 100), 1); /* time does not go back */
    assert_int_equal(quire_prefix_expire(p.tree, 1150, 100), 2);
    assert_int_equal(quire_prefix_expire(p.tree, 9999, 100), 0); /* in use */
    text_at(text, 2 * PT, 0);
    match = test_lookup(&p, text, 2 * PT);
    assert_int_equal(match.end, QUIRE_PREFIX_END_EVICTED);
    assert_int_equal(match.gone, QUIRE_PREFIX_GONE_TTL);
    assert_int_equal(match.gone_us, 1100);
    assert_int_equal(match.n_gone_tokens, 2 * PT);
    p.now_us = 20000;
    test_run_end(&p, &run); /* its use ends now */
    assert_int_equal(quire_prefix_expire(p.tree, 20099, 100), 0);
    assert_int_equal(quire_prefix_expire(p.tree, 20100, 100), 2);
    assert_int_equal(test_prefix_stats(&p).gone_nodes_total[QUIRE_PREFIX_GONE_TTL], 6);
    test_prefix_destroy(&p);
}

/* Old prefixes with few hits go before others that were used longer ago. */
static void test_low_traffic(void **state)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    test_prefix p;

    (void)state;
    opts.policy = QUIRE_EVICT_LRU;
    opts.low_traffic_after_us = HOUR_US;
    opts.low_traffic_hits_per_hour = 1.0;
    test_prefix_create(&p, 64, &opts);
    p.now_us = 0;
    (void)whole(&p, 0, PT);
    (void)whole(&p, 1, PT);
    for (uint32_t i = 0; i < 3; i++) {
        (void)whole(&p, 0, PT); /* three hits: enough for three hours */
    }
    p.now_us = HOUR_US / 2;
    (void)whole(&p, 2, PT);
    (void)whole(&p, 1, PT);                        /* one hit, the latest used */
    (void)quire_prefix_expire(p.tree, HOUR_US, 0); /* tells the time */
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 1), PAGE_BYTES);
    assert_int_equal(found(&p, 0, PT), 0); /* no node is low traffic yet: the oldest goes */
    (void)whole(&p, 0, PT);
    (void)quire_prefix_expire(p.tree, HOUR_US + 1, 0);
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 1), PAGE_BYTES);
    assert_int_equal(found(&p, 1, PT), 0);
    assert_int_equal(test_prefix_stats(&p).gone_nodes_total[QUIRE_PREFIX_GONE_LOW_TRAFFIC], 1);
    assert_int_equal(test_prefix_stats(&p).gone_nodes_total[QUIRE_PREFIX_GONE_MEMORY], 1);
    test_prefix_destroy(&p);
}

/* ---- ghosts ---- */

static void test_explained(void **state)
{
    int32_t text[4 * PT];
    quire_prefix_match match;
    test_prefix p;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    p.now_us = 500;
    (void)whole(&p, 0, 2 * PT + 1);
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 2 * PAGE_BYTES),
                     2 * PAGE_BYTES);
    text_at(text, 4 * PT, 0);
    match = test_lookup(&p, text, 4 * PT);
    assert_int_equal(match.n_tokens, PT);
    assert_int_equal(match.end, QUIRE_PREFIX_END_EVICTED);
    assert_int_equal(match.gone, QUIRE_PREFIX_GONE_MEMORY);
    assert_int_equal(match.gone_us, 500);
    assert_int_equal(match.n_gone_tokens, PT + 1);
    assert_int_equal(test_prefix_stats(&p).regret_tokens_total, 0); /* a lookup counts nothing */

    text[PT] = -1; /* another text was not there */
    match = test_lookup(&p, text, 4 * PT);
    assert_int_equal(match.end, QUIRE_PREFIX_END_ENDED);
    assert_int_equal(match.n_gone_tokens, 0);

    assert_int_equal(whole(&p, 0, 2 * PT + 1).end, QUIRE_PREFIX_END_EVICTED);
    assert_int_equal(test_prefix_stats(&p).regret_tokens_total, PT + 1);
    assert_int_equal(whole(&p, 0, 2 * PT + 1).end, QUIRE_PREFIX_END_WHOLE);
    assert_int_equal(test_prefix_stats(&p).regret_tokens_total, PT + 1);

    /* Also when not even the root is left. */
    assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX), 3 * PAGE_BYTES);
    text_at(text, 4 * PT, 0);
    match = test_lookup(&p, text, 4 * PT);
    assert_int_equal(match.n_tokens, 0);
    assert_int_equal(match.end, QUIRE_PREFIX_END_EVICTED);
    assert_int_equal(match.n_gone_tokens, 2 * PT + 1);
    test_prefix_destroy(&p);
}

/* The ring forgets the oldest; without a ring everything is new. */
static void test_forgotten(void **state)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    int32_t text[PT];
    test_prefix p;

    (void)state;
    for (uint32_t capacity = 0; capacity < 4; capacity++) {
        opts.ghosts_max = capacity;
        test_prefix_create(&p, 64, &opts);
        for (uint32_t i = 0; i < 8; i++) {
            (void)whole(&p, i, PT);
            assert_int_equal(quire_prefix_evict(p.tree, QUIRE_REGION_DYNAMIC, 1), PAGE_BYTES);
            quire_prefix_validate(p.tree);
        }
        for (uint32_t i = 0; i < 8; i++) {
            text_at(text, PT, i);
            assert_int_equal(test_lookup(&p, text, PT).end,
                             i + capacity >= 8 ? QUIRE_PREFIX_END_EVICTED : QUIRE_PREFIX_END_NEW);
        }
        test_prefix_destroy(&p);
    }
}

/* ---- the same text, computed twice ---- */

/* The second publisher takes over the pages of the first, but keeps its own tail. */
static void test_copies_are_given_up(void **state)
{
    quire_cache_opts cache_opts = test_opts(64);
    int32_t text[4 * PT];
    test_prefix p;
    test_run x, y;

    (void)state;
    cache_opts.n_groups = 2;
    cache_opts.page_bytes[1] = cache_opts.page_bytes[0];
    test_prefix_create_in(&p, &cache_opts, NULL);
    test_text(text, 4 * PT, 0);
    x = test_run_start(&p, text, 4 * PT);
    y = test_run_start(&p, text, 4 * PT);
    test_run_extend(&p, &x, text, 3 * PT + 1);
    test_append(p.cache, y.seq, 3 * PT + 1);
    test_stamp_text(&p, y.seq, text, 0);
    /* A page that one sequence has released is neither taken from nor given to the other. */
    assert_int_equal(quire_seq_release(p.cache, y.seq, 1, 0, PT, NULL), QUIRE_OK);
    assert_int_equal(test_stats(p.cache).pages_live, 2 * 4 + 2 * 4 - 1);
    test_run_extend(&p, &y, text, 3 * PT + 1);
    assert_int_equal(test_stats(p.cache).pages_live, 2 * 4 + 2);
    for (uint32_t i = 0; i < 4; i++) {
        for (quire_group_id g = 0; g < 2; g++) {
            quire_page_id mine = test_page_of(p.cache, y.seq, g, i * PT);
            bool is_hole = g == 1 && i == 0;

            assert_int_equal(mine == QUIRE_PAGE_NULL, is_hole);
            assert_int_equal(mine == test_page_of(p.cache, x.seq, g, i * PT), i < 3 && !is_hole);
        }
    }
    /* Shared pages are not written: each sequence continues alone after truncation. */
    assert_int_equal(quire_seq_truncate(p.cache, y.seq, 2 * PT + 1), QUIRE_OK);
    text[2 * PT + 1] = -5;
    test_run_extend(&p, &y, text, 4 * PT);
    text[2 * PT + 1] = 2 * PT + 1;
    test_check_text(&p, x.seq, text);
    test_run_end(&p, &x);
    test_run_end(&p, &y);
    assert_int_equal(test_lookup(&p, text, 4 * PT).n_tokens, 3 * PT + 1);
    test_prefix_destroy(&p);
}

/* Leaves that a fork holds are not touched. */
static void test_copies_in_a_fork_stay(void **state)
{
    int32_t text[2 * PT];
    quire_seq_id fork;
    quire_page_id page;
    test_prefix p;
    test_run x, y;

    (void)state;
    test_prefix_create(&p, 64, NULL);
    test_text(text, 2 * PT, 0);
    x = test_run_start(&p, text, 2 * PT);
    y = test_run_start(&p, text, 2 * PT);
    test_run_extend(&p, &x, text, 2 * PT);
    test_append(p.cache, y.seq, 2 * PT);
    test_stamp_text(&p, y.seq, text, 0);
    page = test_page_of(p.cache, y.seq, 0, 0);
    assert_int_equal(quire_seq_fork(p.cache, y.seq, &fork), QUIRE_OK);
    test_run_extend(&p, &y, text, 2 * PT);
    assert_int_equal(test_page_of(p.cache, y.seq, 0, 0), page);
    assert_int_equal(test_page_of(p.cache, fork, 0, 0), page);
    assert_int_equal(quire_seq_close(p.cache, fork), QUIRE_OK);
    test_run_end(&p, &x);
    test_run_end(&p, &y);
    test_prefix_destroy(&p);
}

/* Cached pages under a running ref do not count as evictable. Otherwise all other cached pages
 * would be evicted without making enough room. */
static void test_nothing_goes_in_vain(void **state)
{
    int32_t a[4 * PT];
    int32_t b[4 * PT];
    quire_seq_id seq;
    test_prefix p;
    test_run x, y;

    (void)state;
    test_prefix_create(&p, 12, NULL);
    test_text(a, 4 * PT, 0);
    test_text(b, 4 * PT, 5000);
    x = test_run_start(&p, a, 4 * PT);
    y = test_run_start(&p, a, 4 * PT);
    test_run_extend(&p, &x, a, 4 * PT);
    test_run_extend(&p, &y, a, 4 * PT);
    test_run_end(&p, &x);
    (void)test_run_whole(&p, b, 3 * PT);
    assert_int_equal(test_stats(p.cache).pages_live, 4);
    assert_int_equal(test_stats(p.cache).pages_cached, 3);
    seq = test_open(p.cache);
    assert_int_equal(quire_seq_reserve(p.cache, seq, 9 * PT), QUIRE_NOPAGES);
    assert_int_equal(test_lookup(&p, b, 4 * PT).n_tokens, 3 * PT);
    assert_int_equal(quire_seq_reserve(p.cache, seq, 6 * PT), QUIRE_OK);
    assert_int_equal(test_lookup(&p, b, 4 * PT).n_tokens, 2 * PT);
    assert_int_equal(quire_seq_close(p.cache, seq), QUIRE_OK);
    test_run_end(&p, &y);
    test_prefix_destroy(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_refs_protect),
        cmocka_unit_test(test_hopeless),
        cmocka_unit_test(test_held_without_ref),
        cmocka_unit_test(test_ttl),
        cmocka_unit_test(test_low_traffic),
        cmocka_unit_test(test_explained),
        cmocka_unit_test(test_forgotten),
        cmocka_unit_test(test_copies_are_given_up),
        cmocka_unit_test(test_copies_in_a_fork_stay),
        cmocka_unit_test(test_nothing_goes_in_vain),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
