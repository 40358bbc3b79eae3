/* test_cache_evict.c - the cache's side of the prefix tree: calls of the keeper when pages run
 * short, sequences filled from existing pages, appends to kept pages.
 *
 * SPDX-License-Identifier: MIT */
#include "core/cache/charge.h"
#include "core_support.h"

#include <string.h>

/* A keeper that evicts a list of pages, the last first. */
typedef struct evictor {
    quire_cache *cache;
    quire_page_id pages[64];
    uint32_t n_pages;
    uint32_t n_calls;
    uint64_t need_bytes; /* of the last call */
    uint32_t n_leaves;   /* calls of leave ... */
    uint32_t n_returns;  /* ... of give_back ... */
    uint32_t n_trades;   /* ... and of trade, */
    uint32_t trades_max; /* the number of calls of trade that succeed */
    quire_seq_id greedy; /* if not 0, evict appends to it: must fail without recursion */
} evictor;

static uint64_t evict(void *ctx, quire_region_id region, uint64_t need_bytes)
{
    evictor *e = ctx;
    uint64_t freed_bytes = 0;

    assert_int_equal(region, QUIRE_REGION_DYNAMIC);
    e->n_calls++;
    e->need_bytes = need_bytes;
    if (e->greedy != QUIRE_SEQ_NULL) {
        assert_int_equal(quire_seq_append(e->cache, e->greedy, PAGE_TOKENS), QUIRE_NOPAGES);
        assert_int_equal(e->n_calls, 1);
    }
    while (freed_bytes < need_bytes && e->n_pages > 0) {
        freed_bytes += quire_pool_evict(&e->cache->pool, e->pages[--e->n_pages]);
    }
    return freed_bytes;
}

static void keep(evictor *e, quire_page_id page, uint32_t n_tokens)
{
    quire_pool_keep(&e->cache->pool, page, n_tokens);
    e->pages[e->n_pages++] = page;
}

/* n cached pages, each of one closed sequence. */
static void fill_cached(evictor *e, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        quire_seq_id seq = test_open(e->cache);

        test_append(e->cache, seq, PAGE_TOKENS);
        keep(e, test_page_of(e->cache, seq, 0, 0), PAGE_TOKENS);
        assert_int_equal(quire_seq_close(e->cache, seq), QUIRE_OK);
    }
}

static void leave(void *ctx, quire_charge_move *move)
{
    evictor *e = ctx;

    assert_ptr_equal(move->cache, e->cache);
    e->n_leaves++;
}

static void give_back(void *ctx, quire_charge_move *move)
{
    evictor *e = ctx;

    assert_int_equal(move->from, QUIRE_REGION_DYNAMIC);
    e->n_returns++;
}

static bool trade(void *ctx)
{
    evictor *e = ctx;

    return ++e->n_trades <= e->trades_max;
}

static void evictor_init(evictor *e, test_cache *t)
{
    const quire_cache_keeper keeper = {
        .evict = evict, .leave = leave, .give_back = give_back, .trade = trade, .ctx = e
    };

    memset(e, 0, sizeof(*e));
    e->cache = t->cache;
    quire_cache_keeper_set(t->cache, &keeper);
}

/* A pinned region with two sequences, in a cache with the keeper above. */
typedef struct crowded {
    test_cache t;
    evictor e;
    quire_region_id region;
    quire_seq_id seq;
    quire_seq_id other;
} crowded;

static void crowded_init(crowded *c, uint64_t budget_bytes, bool spills)
{
    const quire_cache_opts opts = test_opts(8);

    test_cache_create(&c->t, &opts, 0, 0);
    evictor_init(&c->e, &c->t);
    c->region = test_region_open(c->t.cache, budget_bytes, spills);
    c->seq = test_open_in(c->t.cache, c->region);
    c->other = test_open_in(c->t.cache, c->region);
}

static void crowded_fini(crowded *c)
{
    quire_cache_keeper_set(c->t.cache, NULL);
    test_cache_destroy(&c->t);
}

/* Cached pages are evicted only when needed, and only as many as needed. */
static void test_budget(void **state)
{
    quire_cache_opts opts = test_opts(8);
    test_cache t;
    quire_seq_id seq;
    evictor e;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    evictor_init(&e, &t);
    fill_cached(&e, 6);
    assert_int_equal(test_stats(t.cache).pages_cached, 6);
    assert_int_equal(test_stats(t.cache).cached_bytes, 6 * PAGE_BYTES);
    assert_int_equal(test_region_stats(t.cache, QUIRE_REGION_DYNAMIC).cached_bytes, 6 * PAGE_BYTES);
    seq = test_open(t.cache);
    test_append(t.cache, seq, 2 * PAGE_TOKENS);
    assert_int_equal(e.n_calls, 0);
    test_append(t.cache, seq, 3 * PAGE_TOKENS);
    assert_int_equal(e.n_calls, 1);
    assert_int_equal(e.need_bytes, 3 * PAGE_BYTES);
    assert_int_equal(test_stats(t.cache).pages_cached, 3);
    assert_int_equal(test_stats(t.cache).alloc_failures_total, 0);

    /* More pages than exist: refused, and cached pages stay. */
    assert_int_equal(quire_seq_append(t.cache, seq, 4 * PAGE_TOKENS), QUIRE_NOPAGES);
    assert_int_equal(e.n_calls, 1);
    assert_int_equal(test_stats(t.cache).pages_cached, 3);
    assert_int_equal(quire_seq_reserve(t.cache, seq, 3 * PAGE_TOKENS), QUIRE_OK);
    assert_int_equal(test_stats(t.cache).pages_cached, 0);

    /* Without a keeper. */
    quire_cache_keeper_set(t.cache, NULL);
    test_append(t.cache, seq, 3 * PAGE_TOKENS);
    assert_int_equal(quire_seq_append(t.cache, seq, 1), QUIRE_NOPAGES);
    test_cache_destroy(&t);
}

/* When the keeper cannot free enough in the dynamic region, cached pages of a pinned region may be
 * in the way: the cache calls trade until it finds no pair. */
static void test_trades(void **state)
{
    quire_cache_opts opts = test_opts(8);
    test_cache t;
    quire_seq_id seq;
    evictor e;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    evictor_init(&e, &t);
    fill_cached(&e, 4);
    e.n_pages = 3; /* one page is out of reach */
    e.trades_max = 2;
    seq = test_open(t.cache);
    test_append(t.cache, seq, 4 * PAGE_TOKENS);
    assert_int_equal(e.n_trades, 0);
    assert_int_equal(quire_seq_append(t.cache, seq, 4 * PAGE_TOKENS), QUIRE_NOPAGES);
    /* The evictor is called once, once after each trade, and once for the pages still missing then.
     */
    assert_int_equal(e.n_calls, 1 + 2 + 1);
    assert_int_equal(e.n_trades, 3 + 1);
    quire_cache_keeper_set(t.cache, NULL);
    test_cache_destroy(&t);
}

/* A pinned region without room calls leave once, and not again before something has changed. (At
 * debug level 2 every search runs, to check this.) */
static void test_leaving_is_not_asked_twice(void **state)
{
    crowded c;

    (void)state;
    crowded_init(&c, 2 * PAGE_BYTES, false);
    test_append(c.t.cache, c.other, 1);
    assert_int_equal(quire_seq_append(c.t.cache, c.seq, 2 * PAGE_TOKENS), QUIRE_NOPAGES);
    assert_int_equal(c.e.n_leaves, 1);
    assert_int_equal(quire_seq_append(c.t.cache, c.seq, 2 * PAGE_TOKENS), QUIRE_NOPAGES);
    test_append(c.t.cache, c.seq, 1); /* taking room does not count as a change */
    assert_int_equal(quire_seq_append(c.t.cache, c.seq, 2 * PAGE_TOKENS), QUIRE_NOPAGES);
    assert_int_equal(c.e.n_leaves, QUIRE_DEBUG < 2 ? 1 : 3);
    c.e.n_leaves = 0;
    assert_int_equal(quire_seq_truncate(c.t.cache, c.seq, 0), QUIRE_OK);
    assert_int_equal(quire_seq_append(c.t.cache, c.seq, 2 * PAGE_TOKENS), QUIRE_NOPAGES);
    assert_int_equal(c.e.n_leaves, 1);
    crowded_fini(&c);
}

/* Spilled pages go home in maintain(), kept pages through the keeper. A failed search is not
 * repeated before a change either. */
static void test_giving_back_is_not_asked_twice(void **state)
{
    crowded c;

    (void)state;
    crowded_init(&c, 2 * PAGE_BYTES + PAGE_BYTES / 2, true);
    test_append(c.t.cache, c.other, PAGE_TOKENS);
    test_append(c.t.cache, c.seq, 2 * PAGE_TOKENS);
    assert_int_equal(test_region_stats(c.t.cache, c.region).spilled_bytes, PAGE_BYTES);
    for (uint32_t i = 0; i < 3; i++) {
        quire_cache_maintain(c.t.cache); /* half a page of room takes none home */
    }
    assert_int_equal(c.e.n_returns, QUIRE_DEBUG < 2 ? 1 : 3);
    c.e.n_returns = 0;
    assert_int_equal(quire_seq_close(c.t.cache, c.other), QUIRE_OK);
    quire_cache_maintain(c.t.cache);
    assert_int_equal(c.e.n_returns, 1);
    assert_int_equal(test_region_stats(c.t.cache, c.region).spilled_bytes, 0);
    crowded_fini(&c);
}

static void test_budget_set(void **state)
{
    quire_cache_opts opts = test_opts(8);
    test_cache t;
    evictor e;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    evictor_init(&e, &t);
    fill_cached(&e, 6);
    test_append(t.cache, test_open(t.cache), 1);
    assert_int_equal(quire_region_budget_set(t.cache, QUIRE_REGION_DYNAMIC, 3 * PAGE_BYTES),
                     QUIRE_OK);
    assert_int_equal(test_stats(t.cache).pages_cached, 2);
    assert_int_equal(quire_region_budget_set(t.cache, QUIRE_REGION_DYNAMIC, PAGE_BYTES - 1),
                     QUIRE_INVAL);
    test_cache_destroy(&t);
}

/* When the OS has no more memory, or ids run out, cached pages are evicted although the budget has
 * room. */
static void test_other_limits(void **state)
{
    quire_cache_opts opts = test_opts(4 * EXTENT_PAGES);
    test_cache t;
    quire_seq_id seq;
    evictor e;

    (void)state;
    test_cache_create(&t, &opts, 4, 0);
    evictor_init(&e, &t);
    fill_cached(&e, 4);
    seq = test_open(t.cache);
    test_append(t.cache, seq, 2 * PAGE_TOKENS);
    assert_int_equal(test_stats(t.cache).pages_cached, 2);
    test_cache_destroy(&t);

    test_cache_create(&t, &opts, 0, 0);
    evictor_init(&e, &t);
    seq = test_open(t.cache);
    test_append(t.cache, seq, (EXTENT_PAGES - 4) * PAGE_TOKENS);
    fill_cached(&e, 2);
    t.extents.fail_from = 0;
    test_append(t.cache, seq, 3 * PAGE_TOKENS); /* more than is cached, but some are free */
    assert_int_equal(test_stats(t.cache).pages_cached, 0);
    test_append(t.cache, seq, PAGE_TOKENS);
    assert_int_equal(quire_seq_append(t.cache, seq, 1), QUIRE_NOMEM);
    test_cache_destroy(&t);
}

static void test_no_recursion(void **state)
{
    quire_cache_opts opts = test_opts(4);
    test_cache t;
    quire_seq_id seq;
    evictor e;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    evictor_init(&e, &t);
    fill_cached(&e, 4);
    seq = test_open(t.cache);
    e.greedy = test_open(t.cache);
    test_append(t.cache, seq, PAGE_TOKENS);
    assert_int_equal(e.n_calls, 1);
    test_cache_destroy(&t);
}

/* A sequence appends in place behind the kept slots of its tail page. After a truncation into the
 * kept slots it gets a copy. */
static void test_append_behind_kept(void **state)
{
    quire_cache_opts opts = test_opts(8);
    quire_page_id page;
    test_cache t;
    quire_seq_id seq;
    evictor e;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    evictor_init(&e, &t);
    seq = test_open(t.cache);
    test_append_stamped(t.cache, seq, 1, 0);
    page = test_page_of(t.cache, seq, 0, 0);
    keep(&e, page, 1);
    test_append_stamped(t.cache, seq, PAGE_TOKENS - 1, 1);
    assert_int_equal(test_page_of(t.cache, seq, 0, 0), page);
    assert_int_equal(test_stats(t.cache).page_copies_total, 0);
    quire_pool_keep(&t.cache->pool, page, PAGE_TOKENS);
    assert_int_equal(quire_seq_truncate(t.cache, seq, 1), QUIRE_OK);
    test_append_stamped(t.cache, seq, 1, 77);
    assert_int_not_equal(test_page_of(t.cache, seq, 0, 0), page);
    assert_int_equal(test_stats(t.cache).page_copies_total, 1);
    test_slot_check(t.cache, seq, 0, 0);
    test_slot_check(t.cache, seq, 1, 77);
    test_cache_destroy(&t);
}

static quire_seq_id adopt(test_cache *t, const quire_page_id *pages, uint32_t n_tokens)
{
    quire_seq_id id = test_open(t->cache);

    assert_int_equal(
        quire_seq_adopt(t->cache, quire_seqs_find(&t->cache->seqs, id), pages, n_tokens), QUIRE_OK);
    assert_int_equal(quire_seq_tokens(t->cache, id), n_tokens);
    quire_cache_validate(t->cache);
    return id;
}

/* Readers of a running sequence's open page: the sequence appends in place, an appending reader
 * gets a copy, and no sequence sees another's tokens. */
static void test_adopt_open_page(void **state)
{
    quire_cache_opts opts = test_opts(64);
    quire_page_id pages[2];
    quire_seq_id writer;
    quire_seq_id readers[2];
    test_cache t;
    evictor e;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    evictor_init(&e, &t);
    writer = test_open(t.cache);
    test_append_stamped(t.cache, writer, PAGE_TOKENS + 1, 0);
    pages[0] = test_page_of(t.cache, writer, 0, 0);
    pages[1] = test_page_of(t.cache, writer, 0, PAGE_TOKENS);
    keep(&e, pages[0], PAGE_TOKENS);
    keep(&e, pages[1], 1);
    for (uint32_t i = 0; i < 2; i++) {
        readers[i] = adopt(&t, pages, PAGE_TOKENS + 1);
        assert_int_equal(test_page_of(t.cache, readers[i], 0, PAGE_TOKENS), pages[1]);
    }
    test_append_stamped(t.cache, writer, 1, 1000);
    assert_int_equal(test_page_of(t.cache, writer, 0, PAGE_TOKENS), pages[1]);
    test_append_stamped(t.cache, readers[0], 1, 2000);
    assert_int_not_equal(test_page_of(t.cache, readers[0], 0, PAGE_TOKENS), pages[1]);

    /* After the writer is closed, the last reader appends in place. */
    assert_int_equal(quire_seq_close(t.cache, writer), QUIRE_OK);
    test_append_stamped(t.cache, readers[1], PAGE_TOKENS, 3000);
    assert_int_equal(test_page_of(t.cache, readers[1], 0, PAGE_TOKENS), pages[1]);
    for (uint32_t i = 0; i < 2; i++) {
        test_slot_check(t.cache, readers[i], PAGE_TOKENS, PAGE_TOKENS);
        test_slot_check(t.cache, readers[i], PAGE_TOKENS + 1, (i + 2) * 1000);
    }
    quire_cache_validate(t.cache);
    test_cache_destroy(&t);
}

/* Many leaves, two groups, holes in the second. */
static void test_adopt_holes(void **state)
{
    enum {
        N = QUIRE_LEAF_ENTRIES * 2 + 1
    };
    quire_cache_opts opts = test_opts(N * 4);
    quire_page_id pages[N * 2];
    quire_seq_id a;
    quire_seq_id b;
    test_cache t;

    (void)state;
    opts.n_groups = 2;
    opts.page_bytes[1] = PAGE_BYTES;
    test_cache_create(&t, &opts, 0, 0);
    a = test_open(t.cache);
    test_append_stamped(t.cache, a, N * PAGE_TOKENS, 0);
    assert_int_equal(quire_seq_release(t.cache, a, 1, PAGE_TOKENS, (N - 1) * PAGE_TOKENS, NULL),
                     QUIRE_OK);
    for (uint32_t i = 0; i < N * 2; i++) {
        pages[i] = test_page_of(t.cache, a, (quire_group_id)(i % 2), i / 2 * PAGE_TOKENS);
    }
    b = adopt(&t, pages, N * PAGE_TOKENS);
    assert_int_equal(quire_seq_close(t.cache, a), QUIRE_OK);
    test_append_stamped(t.cache, b, 1, N * PAGE_TOKENS);
    for (uint32_t i = 0; i < N * PAGE_TOKENS; i++) {
        test_slot_check_in(t.cache, b, 0, i, i);
    }
    assert_int_equal(test_page_of(t.cache, b, 1, PAGE_TOKENS), QUIRE_PAGE_NULL);
    test_slot_check_in(t.cache, b, 1, N * PAGE_TOKENS, N * PAGE_TOKENS);
    test_cache_destroy(&t);
}

static void test_adopt_limit(void **state)
{
    quire_cache_opts opts = test_opts(8);
    quire_page_id pages[2];
    quire_seq_id a;
    quire_seq_id b;
    test_cache t;

    (void)state;
    opts.seq_tokens_max = PAGE_TOKENS;
    test_cache_create(&t, &opts, 0, 0);
    a = test_open(t.cache);
    test_append(t.cache, a, PAGE_TOKENS);
    pages[0] = test_page_of(t.cache, a, 0, 0);
    pages[1] = pages[0];
    b = test_open(t.cache);
    assert_int_equal(
        quire_seq_adopt(t.cache, quire_seqs_find(&t.cache->seqs, b), pages, PAGE_TOKENS + 1),
        QUIRE_LIMIT);
    assert_int_equal(quire_seq_tokens(t.cache, b), 0);
    test_cache_destroy(&t);
}

typedef struct census {
    uint32_t n_live;
    uint32_t n_cached;
    uint32_t n_filled;
    uint32_t n_kept;
    quire_page_id last;
    uint32_t stop_at; /* pages */
} census;

static int count_page(void *ctx, const quire_page_info *page)
{
    census *c = ctx;

    assert_true(page->page > c->last);
    assert_int_equal(page->group, 0);
    assert_int_equal(page->region, QUIRE_REGION_DYNAMIC);
    c->last = page->page;
    c->n_live += page->refs > 0;
    c->n_cached += page->refs == 0;
    c->n_filled += page->n_filled;
    c->n_kept += page->n_kept;
    return c->n_live + c->n_cached == c->stop_at ? 7 : 0;
}

static void test_pages_visit(void **state)
{
    quire_cache_opts opts = test_opts(8);
    census c = { 0 };
    test_cache t;
    evictor e;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    evictor_init(&e, &t);
    assert_int_equal(quire_cache_pages_visit(t.cache, count_page, &c), 0);
    assert_int_equal(c.n_live + c.n_cached, 0);
    fill_cached(&e, 3);
    test_append(t.cache, test_open(t.cache), PAGE_TOKENS + 1);
    assert_int_equal(quire_cache_pages_visit(t.cache, count_page, &c), 0);
    assert_int_equal(c.n_live, 2);
    assert_int_equal(c.n_cached, 3);
    assert_int_equal(c.n_filled, 4 * PAGE_TOKENS + 1);
    assert_int_equal(c.n_kept, 3 * PAGE_TOKENS);
    c = (census){ .stop_at = 2 };
    assert_int_equal(quire_cache_pages_visit(t.cache, count_page, &c), 7);
    test_cache_destroy(&t);
}

/* Cached pages move like others, and their bytes with them. */
static void test_cached_pages_move(void **state)
{
    quire_cache_opts opts = test_opts(4 * EXTENT_PAGES);
    quire_page_id pages[1];
    quire_seq_id big;
    quire_seq_id small;
    test_cache t;
    evictor e;

    (void)state;
    test_cache_create(&t, &opts, 0, 0);
    evictor_init(&e, &t);
    big = test_open(t.cache);
    test_append(t.cache, big, EXTENT_PAGES * PAGE_TOKENS);
    small = test_open(t.cache);
    test_append_stamped(t.cache, small, PAGE_TOKENS, 5);
    pages[0] = test_page_of(t.cache, small, 0, 0);
    keep(&e, pages[0], PAGE_TOKENS);
    assert_int_equal(quire_seq_close(t.cache, small), QUIRE_OK);
    assert_int_equal(quire_seq_truncate(t.cache, big, (EXTENT_PAGES - 1) * PAGE_TOKENS), QUIRE_OK);
    assert_int_equal(quire_cache_coalesce(t.cache, UINT32_MAX), 1);
    small = adopt(&t, pages, PAGE_TOKENS);
    for (uint32_t i = 0; i < PAGE_TOKENS; i++) {
        test_slot_check(t.cache, small, i, 5 + i);
    }
    test_cache_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_trades),
        cmocka_unit_test(test_leaving_is_not_asked_twice),
        cmocka_unit_test(test_giving_back_is_not_asked_twice),
        cmocka_unit_test(test_budget_set),
        cmocka_unit_test(test_other_limits),
        cmocka_unit_test(test_no_recursion),
        cmocka_unit_test(test_append_behind_kept),
        cmocka_unit_test(test_adopt_open_page),
        cmocka_unit_test(test_adopt_holes),
        cmocka_unit_test(test_adopt_limit),
        cmocka_unit_test(test_pages_visit),
        cmocka_unit_test(test_cached_pages_move),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
