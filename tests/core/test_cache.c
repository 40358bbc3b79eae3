/* test_cache.c - options, limits, regions and figures of a cache.
 *
 * SPDX-License-Identifier: MIT */
#include "core_support.h"

#include <math.h>
#include <string.h>

static void check_refused(const quire_cache_opts *opts)
{
    quire_cache *cache = (quire_cache *)(void *)&cache;

    assert_int_equal(quire_cache_create(&cache, opts), QUIRE_INVAL);
    assert_null(cache);
}

static void test_defaults(void **state)
{
    quire_cache_opts opts = QUIRE_CACHE_OPTS_INIT;
    quire_cache *cache;

    (void)state;
    assert_int_equal(quire_cache_create(&cache, &opts), QUIRE_OK); /* nothing but defaults */
    quire_cache_validate(cache);
    assert_int_equal(test_stats(cache).budget_bytes, 0);
    quire_cache_destroy(cache);
    quire_cache_destroy(NULL);
}

/* Parts are whole cache lines, few enough, and add up to the page. */
static void test_parts_options(void **state)
{
    static size_t many[QUIRE_PARTS_MAX + 1];
    size_t parts[] = { PAGE_BYTES - 128, 64, 64 };
    quire_cache_opts opts = test_opts(10);
    quire_cache *cache;

    (void)state;
    opts.n_parts[0] = 3;
    check_refused(&opts); /* not given */
    opts.part_bytes[0] = parts;
    assert_int_equal(quire_cache_create(&cache, &opts), QUIRE_OK);
    quire_cache_destroy(cache);
    opts.n_parts[0] = 2;
    check_refused(&opts); /* too little */
    opts.n_parts[0] = 3;
    parts[2] = 128;
    check_refused(&opts); /* too much */
    parts[1] = 32;
    parts[2] = 96;
    check_refused(&opts);
    parts[1] = (size_t)-64;
    parts[2] = 192;
    check_refused(&opts);
    many[0] = PAGE_BYTES;
    opts.part_bytes[0] = many;
    opts.n_parts[0] = QUIRE_PARTS_MAX;
    assert_int_equal(quire_cache_create(&cache, &opts), QUIRE_OK);
    quire_cache_destroy(cache);
    opts.n_parts[0]++;
    check_refused(&opts);
    opts.n_parts[0] = 1; /* one part: part_bytes is not read */
    opts.part_bytes[0] = NULL;
    assert_int_equal(quire_cache_create(&cache, &opts), QUIRE_OK);
    quire_cache_destroy(cache);
}

static void test_options(void **state)
{
    const uint32_t bad_tokens[] = { 0,
                                    1,
                                    QUIRE_PAGE_TOKENS_MIN - 1,
                                    QUIRE_PAGE_TOKENS_MIN + 1,
                                    QUIRE_PAGE_TOKENS_MAX + QUIRE_PAGE_TOKENS_MIN,
                                    UINT32_MAX };
    const quire_cache_opts good = test_opts(10);
    quire_cache_opts opts = good;

    (void)state;
    opts.struct_bytes--;
    check_refused(&opts);
    for (size_t i = 0; i < sizeof(bad_tokens) / sizeof(bad_tokens[0]); i++) {
        opts = good;
        opts.page_tokens = bad_tokens[i];
        check_refused(&opts);
    }
    opts = good;
    opts.n_groups = 0;
    check_refused(&opts);
    opts.n_groups = QUIRE_GROUPS_MAX + 1;
    check_refused(&opts);
    opts = good;
    opts.page_bytes[0] = 65;
    check_refused(&opts);
    opts.page_bytes[0] = QUIRE_PAGE_BYTES_MAX + 64;
    check_refused(&opts);
    opts = good;
    opts.charge_bytes[0] = QUIRE_PAGE_BYTES_MAX + 1;
    check_refused(&opts);
    opts = good;
    opts.seqs_max = 0;
    check_refused(&opts);
    opts.seqs_max = QUIRE_SEQS_MAX + 1;
    check_refused(&opts);
    opts = good;
    opts.seq_tokens_max = 0;
    check_refused(&opts);
    opts.seq_tokens_max = QUIRE_SEQ_TOKENS_MAX + 1;
    check_refused(&opts);
    opts = good;
    opts.history_events = QUIRE_HISTORY_EVENTS_MAX + 1;
    check_refused(&opts);
}

static void test_largest_options(void **state)
{
    quire_cache_opts opts = test_opts(0);
    test_cache t;
    quire_seq_id seq;

    (void)state;
    opts.page_tokens = QUIRE_PAGE_TOKENS_MAX;
    opts.n_groups = QUIRE_GROUPS_MAX;
    for (uint32_t g = 0; g < QUIRE_GROUPS_MAX; g++) {
        opts.page_bytes[g] = 64 * (1 + g);
    }
    opts.budget_bytes = UINT64_MAX;
    opts.seqs_max = QUIRE_SEQS_MAX;
    opts.seq_tokens_max = QUIRE_SEQ_TOKENS_MAX;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    t.extents.fail_from = QUIRE_GROUPS_MAX; /* one extent for each class */
    test_append(t.cache, seq, QUIRE_PAGE_TOKENS_MAX);
    assert_int_equal(test_stats(t.cache).pages_live, QUIRE_GROUPS_MAX);
    assert_int_equal(test_stats(t.cache).live_bytes, 64 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8));
    /* More pages than the budget, the machine or a page number allows. */
    assert_int_not_equal(quire_seq_append(t.cache, seq, QUIRE_SEQ_TOKENS_MAX / 2), QUIRE_OK);
    assert_int_equal(quire_seq_append(t.cache, seq, UINT32_MAX), QUIRE_LIMIT);
    assert_int_equal(quire_seq_tokens(t.cache, seq), QUIRE_PAGE_TOKENS_MAX);
    test_cache_destroy(&t);
}

static void test_seqs_max(void **state)
{
    quire_cache_opts opts = test_opts(10);
    test_cache t;
    quire_seq_id seqs[3];
    quire_seq_id more = 77;

    (void)state;
    opts.seqs_max = 3;
    test_cache_create(&t, &opts, 0, 0);
    for (int i = 0; i < 3; i++) {
        seqs[i] = test_open(t.cache);
    }
    assert_int_equal(quire_seq_open(t.cache, QUIRE_REGION_DYNAMIC, &more), QUIRE_LIMIT);
    assert_int_equal(more, QUIRE_SEQ_NULL);
    assert_int_equal(quire_seq_fork(t.cache, seqs[0], &more), QUIRE_LIMIT);
    assert_int_equal(quire_seq_close(t.cache, seqs[1]), QUIRE_OK);
    more = test_fork(t.cache, seqs[0]);
    assert_int_equal(test_stats(t.cache).seqs_open, 3);
    test_cache_destroy(&t);
}

static void test_seq_tokens_max(void **state)
{
    quire_cache_opts opts = test_opts(10);
    test_cache t;
    quire_seq_id seq;

    (void)state;
    opts.seq_tokens_max = PAGE_TOKENS + 1;
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    assert_int_equal(quire_seq_append(t.cache, seq, PAGE_TOKENS + 2), QUIRE_LIMIT);
    test_append(t.cache, seq, PAGE_TOKENS + 1);
    assert_int_equal(quire_seq_append(t.cache, seq, 0), QUIRE_OK);
    assert_int_equal(quire_seq_append(t.cache, seq, 1), QUIRE_LIMIT);
    assert_int_equal(quire_seq_reserve(t.cache, seq, 1), QUIRE_LIMIT);
    assert_int_equal(quire_seq_append(t.cache, seq, UINT32_MAX), QUIRE_LIMIT);
    test_cache_destroy(&t);
}

static void test_pages_and_extents_max(void **state)
{
    quire_cache_opts opts = test_opts(1000);
    test_cache t;
    quire_seq_id seq;

    (void)state;
    test_cache_create(&t, &opts, 3, 0);
    seq = test_open(t.cache);
    test_append(t.cache, seq, PAGE_TOKENS * 3);
    assert_int_equal(quire_seq_append(t.cache, seq, 1), QUIRE_LIMIT);
    assert_int_equal(test_stats(t.cache).alloc_failures_total, 1);
    test_cache_destroy(&t);

    test_cache_create(&t, &opts, 0, 1);
    seq = test_open(t.cache);
    assert_int_equal(quire_seq_append(t.cache, seq, PAGE_TOKENS * EXTENT_PAGES + 1), QUIRE_LIMIT);
    assert_int_equal(quire_seq_tokens(t.cache, seq), 0);
    test_append(t.cache, seq, PAGE_TOKENS * EXTENT_PAGES);
    test_cache_destroy(&t);
}

static void test_unknown_names(void **state)
{
    quire_cache_opts opts = test_opts(10);
    quire_region_stats stats;
    quire_seq_table table;
    quire_seq_id out = 5;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    for (quire_seq_id seq = 0; seq < 4; seq++) {
        assert_int_equal(quire_seq_append(t.cache, seq, 1), QUIRE_NOTFOUND);
        assert_int_equal(quire_seq_reserve(t.cache, seq, 1), QUIRE_NOTFOUND);
        assert_int_equal(quire_seq_truncate(t.cache, seq, 0), QUIRE_NOTFOUND);
        assert_int_equal(quire_seq_close(t.cache, seq), QUIRE_NOTFOUND);
        assert_int_equal(quire_seq_fork(t.cache, seq, &out), QUIRE_NOTFOUND);
        assert_int_equal(out, QUIRE_SEQ_NULL);
        assert_int_equal(quire_seq_tokens(t.cache, seq), 0);
        assert_int_equal(quire_seq_table_get(t.cache, seq, 0, &table), QUIRE_NOTFOUND);
    }
    assert_int_equal(quire_seq_table_get(t.cache, test_open(t.cache), 1, &table), QUIRE_INVAL);
    assert_int_equal(quire_seq_open(t.cache, 1, &out), QUIRE_INVAL);
    assert_int_equal(quire_region_stats_get(t.cache, 1, &stats), QUIRE_NOTFOUND);
    assert_int_equal(quire_region_stats_get(t.cache, QUIRE_REGIONS_MAX, &stats), QUIRE_NOTFOUND);
    assert_int_equal(quire_region_budget_set(t.cache, 1, 1), QUIRE_NOTFOUND);
    test_cache_destroy(&t);
}

/* The id of a closed sequence stays invalid, although its slot is reused. */
static void test_stale_ids(void **state)
{
    quire_cache_opts opts = test_opts(10);
    quire_seq_id last;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    last = test_open(t.cache);
    assert_int_equal(last, 1);
    for (int i = 0; i < 100; i++) {
        quire_seq_id next;

        assert_int_equal(quire_seq_close(t.cache, last), QUIRE_OK);
        next = test_open(t.cache);
        assert_int_not_equal(next, last);
        assert_int_equal(quire_seq_append(t.cache, last, 1), QUIRE_NOTFOUND);
        last = next;
    }
    assert_int_equal(t.cache->seqs.n_items, 1);
    test_cache_destroy(&t);
}

static void test_region(void **state)
{
    quire_cache_opts opts = test_opts(10);
    quire_region_stats stats;
    quire_seq_id seq;
    test_cache t;

    (void)state;
    opts.n_groups = 2;
    opts.page_bytes[1] = PAGE_BYTES;
    opts.charge_bytes[1] = 100; /* the charge differs from the size */
    test_cache_create(&t, &opts, 0, 0);
    seq = test_open(t.cache);
    test_append(t.cache, seq, PAGE_TOKENS * 2 + 1);
    assert_int_equal(quire_region_stats_get(t.cache, QUIRE_REGION_DYNAMIC, &stats), QUIRE_OK);
    assert_int_equal(stats.budget_bytes, PAGE_BYTES * 10);
    assert_int_equal(stats.charged_bytes, 3 * (PAGE_BYTES + 100));
    assert_int_equal(stats.pages, 6);
    assert_int_equal(quire_seq_truncate(t.cache, seq, 1), QUIRE_OK);
    assert_int_equal(quire_region_budget_set(t.cache, QUIRE_REGION_DYNAMIC, PAGE_BYTES + 99),
                     QUIRE_INVAL);
    assert_int_equal(quire_region_budget_set(t.cache, QUIRE_REGION_DYNAMIC, PAGE_BYTES + 100),
                     QUIRE_OK);
    assert_int_equal(quire_seq_append(t.cache, seq, PAGE_TOKENS), QUIRE_NOPAGES);
    test_append(t.cache, seq, PAGE_TOKENS - 1);
    assert_int_equal(quire_region_stats_get(t.cache, QUIRE_REGION_DYNAMIC, &stats), QUIRE_OK);
    assert_int_equal(stats.charged_bytes, PAGE_BYTES + 100);
    assert_int_equal(stats.charged_peak_bytes, 3 * (PAGE_BYTES + 100));
    test_cache_destroy(&t);
}

/* Statistics of a layout computed by hand: two extents of EXTENT_PAGES pages.
 *   a: EXTENT_PAGES pages, the last holds one token; b: 1 page, full. */
static void test_figures(void **state)
{
    quire_cache_opts opts = test_opts(EXTENT_PAGES * 4);
    const uint64_t extent_bytes = QUIRE_EXTENT_UNIT_BYTES;
    quire_cache_stats s;
    quire_seq_id a;
    quire_seq_id b;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    a = test_open(t.cache);
    b = test_open(t.cache);
    test_append(t.cache, a, (EXTENT_PAGES - 1) * PAGE_TOKENS + 1);
    s = test_stats(t.cache);
    assert_int_equal(s.extents, 1);
    assert_int_equal(s.free_bytes, 0);
    assert_int_equal(s.slack_bytes, (PAGE_TOKENS - 1) * SLOT_BYTES);
    assert_true(s.external_fragmentation == 0.0);

    test_append(t.cache, b, PAGE_TOKENS);
    s = test_stats(t.cache);
    assert_int_equal(s.extents, 2);
    assert_int_equal(s.extents_empty, 0);
    assert_int_equal(s.extent_bytes, 2 * extent_bytes);
    assert_int_equal(s.tail_bytes, 0);
    assert_int_equal(s.pages_live, EXTENT_PAGES + 1);
    assert_int_equal(s.pages_free, EXTENT_PAGES - 1);
    assert_int_equal(s.live_bytes, (EXTENT_PAGES + 1) * PAGE_BYTES);
    assert_int_equal(s.free_bytes, (EXTENT_PAGES - 1) * PAGE_BYTES);
    assert_int_equal(s.slack_bytes, (PAGE_TOKENS - 1) * SLOT_BYTES);
    assert_true(s.external_fragmentation == 1.0); /* all free pages are in b's extent */

    /* a's extent becomes empty. Free: one empty extent and EXTENT_PAGES - 1 pages in b's extent. */
    assert_int_equal(quire_seq_close(t.cache, a), QUIRE_OK);
    s = test_stats(t.cache);
    assert_int_equal(s.extents_empty, 1);
    assert_int_equal(s.slack_bytes, 0);
    assert_true(fabs(s.external_fragmentation - (EXTENT_PAGES - 1.0) / (2.0 * EXTENT_PAGES - 1.0)) <
                1e-12);
    assert_int_equal(s.pages_peak, EXTENT_PAGES + 1);
    assert_int_equal(s.extent_peak_bytes, 2 * extent_bytes);
    assert_int_equal(s.charged_peak_bytes, (EXTENT_PAGES + 1) * PAGE_BYTES);
    assert_int_equal(s.allocs_total, EXTENT_PAGES + 1);
    assert_int_equal(s.frees_total, EXTENT_PAGES);
    assert_int_equal(quire_cache_trim(t.cache, 0), extent_bytes);
    assert_int_equal(test_stats(t.cache).extent_bytes, extent_bytes);
    test_cache_destroy(&t);
}

/* Shared pages count once; a slot stays filled while any sharer may have it. */
static void test_slack_of_shared_pages(void **state)
{
    quire_cache_opts opts = test_opts(10);
    quire_seq_id a;
    quire_seq_id b;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    a = test_open(t.cache);
    test_append(t.cache, a, PAGE_TOKENS);
    b = test_fork(t.cache, a);
    assert_int_equal(test_stats(t.cache).slack_bytes, 0);
    assert_int_equal(quire_seq_truncate(t.cache, b, 1), QUIRE_OK);
    assert_int_equal(test_stats(t.cache).slack_bytes, 0); /* a has filled all slots */
    assert_int_equal(quire_seq_close(t.cache, a), QUIRE_OK);
    assert_int_equal(test_stats(t.cache).slack_bytes, 0); /* b has not updated the number yet */
    assert_int_equal(quire_seq_truncate(t.cache, b, 1), QUIRE_OK);
    assert_int_equal(test_stats(t.cache).slack_bytes, (PAGE_TOKENS - 1) * SLOT_BYTES);
    test_cache_destroy(&t);
}

/* A page size that leaves a tail in the extent. */
static void test_tail_bytes(void **state)
{
    quire_cache_opts opts = test_opts(0);
    quire_extent_shape shape;
    quire_cache_stats s;
    test_cache t;

    (void)state;
    opts.page_bytes[0] = QUIRE_EXTENT_UNIT_BYTES * 2 - 64;
    opts.budget_bytes = opts.page_bytes[0] * 4;
    shape = quire_extent_shape_for(opts.page_bytes[0], 1);
    test_cache_create(&t, &opts, 0, 0);
    test_append(t.cache, test_open(t.cache), 1);
    s = test_stats(t.cache);
    assert_int_equal(s.extent_bytes, shape.size_bytes);
    assert_int_equal(s.tail_bytes, shape.size_bytes - shape.n_slots * opts.page_bytes[0]);
    assert_true(s.tail_bytes > 0 && s.tail_bytes * 100 < s.extent_bytes);
    assert_int_equal(s.extent_bytes, s.live_bytes + s.free_bytes + s.tail_bytes);
    test_cache_destroy(&t);
}

typedef struct tally {
    uint64_t n[9];
    uint64_t last_number;
    quire_seq_id seq;
} tally;

static int count(void *ctx, const quire_history_event *event)
{
    tally *counts = ctx;

    assert_true(event->kind >= QUIRE_HISTORY_ALLOC && event->kind <= QUIRE_HISTORY_UNMAP);
    counts->n[event->kind]++;
    counts->last_number = event->number;
    if (event->kind == QUIRE_HISTORY_COPY) {
        counts->seq = event->seq;
    }
    return 0;
}

/* The history records the events of each sequence; see the kinds in quire/cache.h. */
static void test_history_of_a_fork(void **state)
{
    quire_cache_opts opts = test_opts(100);
    tally counts = { 0 };
    quire_seq_id a;
    quire_seq_id b;
    test_cache t;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    a = test_open(t.cache);
    test_append(t.cache, a, PAGE_TOKENS + 1); /* MAP, 2 ALLOC */
    b = test_fork(t.cache, a);
    test_append(t.cache, b, 1); /* leaf copied: REF of the full page; ALLOC and COPY of the tail */
    assert_int_equal(quire_seq_close(t.cache, b), QUIRE_OK); /* UNREF, FREE of the copy */
    assert_int_equal(quire_seq_close(t.cache, a), QUIRE_OK); /* 2 FREE */
    (void)quire_cache_trim(t.cache, 0);                      /* UNMAP */
    assert_int_equal(quire_cache_history_visit(t.cache, count, &counts), 0);
    assert_int_equal(counts.n[QUIRE_HISTORY_MAP], 1);
    assert_int_equal(counts.n[QUIRE_HISTORY_UNMAP], 1);
    assert_int_equal(counts.n[QUIRE_HISTORY_ALLOC], 3);
    assert_int_equal(counts.n[QUIRE_HISTORY_REF], 1);
    assert_int_equal(counts.n[QUIRE_HISTORY_COPY], 1);
    assert_int_equal(counts.n[QUIRE_HISTORY_UNREF], 1);
    assert_int_equal(counts.n[QUIRE_HISTORY_FREE], 3);
    assert_int_equal(counts.n[QUIRE_HISTORY_MOVE], 0);
    assert_int_equal(counts.seq, b);
    assert_int_equal(counts.last_number, 10);
    test_cache_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_parts_options),
        cmocka_unit_test(test_largest_options),
        cmocka_unit_test(test_seqs_max),
        cmocka_unit_test(test_seq_tokens_max),
        cmocka_unit_test(test_pages_and_extents_max),
        cmocka_unit_test(test_unknown_names),
        cmocka_unit_test(test_stale_ids),
        cmocka_unit_test(test_region),
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_slack_of_shared_pages),
        cmocka_unit_test(test_tail_bytes),
        cmocka_unit_test(test_history_of_a_fork),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
