/* test_regions.c - several budgets over one pool and one tree: charges of pages, regions that run
 * short, transfers.
 *
 * SPDX-License-Identifier: MIT */
#include "prefix_support.h"

#define P PAGE_TOKENS

typedef struct regions {
    test_prefix p;
    quire_region_id high; /* the pinned region */
} regions;

static quire_region_stats stats_of(const regions *r, quire_region_id region)
{
    return test_region_stats(r->p.cache, region);
}

/* Pages charged to a region. */
static uint64_t charged(const regions *r, quire_region_id region)
{
    return stats_of(r, region).charged_bytes / PAGE_BYTES;
}

static void begin(regions *r, uint32_t n_pages, uint32_t n_pinned, bool spills)
{
    test_prefix_create(&r->p, n_pages, NULL);
    r->high = test_region_open(r->p.cache, n_pinned * PAGE_BYTES, spills);
    assert_int_equal(r->high, 1);
}

/* After the last sequence and node are gone, nothing is charged. */
static void end(regions *r)
{
    quire_prefix_validate(r->p.tree);
    quire_cache_validate(r->p.cache);
    (void)quire_prefix_drop_all(r->p.tree, r->p.now_us);
    for (uint32_t i = 0; i < QUIRE_REGIONS_MAX; i++) {
        quire_region_stats stats;

        if (quire_region_stats_get(r->p.cache, (quire_region_id)i, &stats) == QUIRE_OK) {
            assert_int_equal(stats.charged_bytes, 0);
            assert_int_equal(stats.cached_bytes, 0);
            assert_int_equal(stats.pinned_bytes, 0);
            assert_int_equal(stats.spilled_bytes, 0);
        }
    }
    assert_int_equal(quire_region_close(r->p.cache, r->high), QUIRE_OK);
    test_prefix_destroy(&r->p);
}

static test_run start(regions *r, quire_region_id region, const int32_t *tokens, uint32_t n)
{
    quire_prefix_key key = test_key();
    quire_prefix_acquire_opts opts = { .tokens_max = UINT32_MAX,
                                       .now_us = r->p.now_us,
                                       .rank = region != 0 ? 2 : 0 };
    test_run run;

    run.seq = test_open_in(r->p.cache, region);
    assert_int_equal(
        quire_prefix_acquire(r->p.tree, &key, run.seq, tokens, n, &opts, &run.match, &run.ref),
        QUIRE_OK);
    return run;
}

static test_run whole(regions *r, quire_region_id region, const int32_t *tokens, uint32_t n)
{
    test_run run = start(r, region, tokens, n);

    test_run_extend(&r->p, &run, tokens, n);
    return run;
}

/* ---- open, close, transfer ---- */

static void test_open_close(void **state)
{
    regions r;
    quire_region_opts opts = QUIRE_REGION_OPTS_INIT;
    quire_region_id ids[QUIRE_REGIONS_MAX];
    quire_region_id more;
    quire_seq_id seq;

    (void)state;
    begin(&r, 20, 4, true);
    assert_int_equal(stats_of(&r, 0).budget_bytes, 16 * PAGE_BYTES);
    assert_int_equal(stats_of(&r, 1).budget_bytes, 4 * PAGE_BYTES);
    assert_true(stats_of(&r, 1).spills_to_dynamic && !stats_of(&r, 0).spills_to_dynamic);
    opts.budget_bytes = 17 * PAGE_BYTES;
    assert_int_equal(quire_region_open(r.p.cache, &opts, &more), QUIRE_NOPAGES);
    opts.struct_bytes = 1;
    assert_int_equal(quire_region_open(r.p.cache, &opts, &more), QUIRE_INVAL);
    opts = (quire_region_opts)QUIRE_REGION_OPTS_INIT;
    for (uint32_t i = 2; i < QUIRE_REGIONS_MAX; i++) {
        assert_int_equal(quire_region_open(r.p.cache, &opts, &ids[i]), QUIRE_OK);
        assert_int_equal(ids[i], i);
    }
    assert_int_equal(quire_region_open(r.p.cache, &opts, &more), QUIRE_LIMIT);
    for (uint32_t i = 2; i < QUIRE_REGIONS_MAX; i++) {
        assert_int_equal(quire_region_close(r.p.cache, ids[i]), QUIRE_OK);
        assert_int_equal(quire_region_close(r.p.cache, ids[i]), QUIRE_NOTFOUND);
        assert_int_equal(quire_seq_open(r.p.cache, ids[i], &seq), QUIRE_INVAL);
    }
    assert_int_equal(quire_region_close(r.p.cache, QUIRE_REGION_DYNAMIC), QUIRE_INVAL);
    seq = test_open_in(r.p.cache, 1);
    assert_int_equal(stats_of(&r, 1).seqs, 1);
    assert_int_equal(quire_region_close(r.p.cache, 1), QUIRE_AGAIN);
    assert_int_equal(quire_seq_close(r.p.cache, seq), QUIRE_OK);
    end(&r);
}

static void test_transfer_errors(void **state)
{
    regions r;

    (void)state;
    begin(&r, 20, 4, true);
    assert_int_equal(quire_region_transfer(r.p.cache, 1, 1, 0), QUIRE_INVAL);
    assert_int_equal(quire_region_transfer(r.p.cache, 1, 2, 0), QUIRE_NOTFOUND);
    assert_int_equal(quire_region_transfer(r.p.cache, 2, 1, 0), QUIRE_NOTFOUND);
    assert_int_equal(quire_region_transfer(r.p.cache, 1, 0, 4 * PAGE_BYTES + 1), QUIRE_RANGE);
    assert_int_equal(quire_region_transfer(r.p.cache, 1, 0, 4 * PAGE_BYTES), QUIRE_OK);
    assert_int_equal(quire_region_transfer(r.p.cache, 0, 1, 20 * PAGE_BYTES), QUIRE_OK);
    assert_int_equal(stats_of(&r, 0).budget_bytes, 0);
    assert_int_equal(stats_of(&r, 1).budget_bytes, 20 * PAGE_BYTES);
    end(&r);
}

/* Cached pages of a pinned region leave with the budget instead of being evicted; live pages
 * stay. */
static void test_transfer_keeps_cached(void **state)
{
    regions r;
    int32_t a[4 * P];
    int32_t b[3 * P];
    test_run run;

    (void)state;
    begin(&r, 20, 8, true);
    test_text(a, 4 * P, 1000);
    test_text(b, 3 * P, 2000);
    run = whole(&r, r.high, a, 4 * P);
    test_run_end(&r.p, &run);
    run = whole(&r, r.high, b, 3 * P);
    assert_int_equal(charged(&r, r.high), 7);
    assert_int_equal(quire_region_transfer(r.p.cache, r.high, 0, 6 * PAGE_BYTES), QUIRE_NOPAGES);
    assert_int_equal(stats_of(&r, r.high).budget_bytes, 8 * PAGE_BYTES);
    assert_int_equal(quire_region_transfer(r.p.cache, r.high, 0, 5 * PAGE_BYTES), QUIRE_OK);
    assert_int_equal(charged(&r, r.high), 3);
    assert_int_equal(charged(&r, 0), 4);
    assert_int_equal(test_lookup(&r.p, a, 4 * P).n_tokens, 4 * P);
    test_run_end(&r.p, &run);
    end(&r);
}

static void test_transfer_evicts_dynamic(void **state)
{
    regions r;
    int32_t a[6 * P];
    int32_t b[6 * P];
    test_run run;

    (void)state;
    begin(&r, 16, 2, true);
    test_text(a, 6 * P, 1000);
    test_text(b, 6 * P, 2000);
    run = whole(&r, 0, a, 6 * P);
    test_run_end(&r.p, &run);
    run = whole(&r, 0, b, 6 * P);
    assert_int_equal(quire_region_transfer(r.p.cache, 0, r.high, 9 * PAGE_BYTES), QUIRE_NOPAGES);
    assert_int_equal(stats_of(&r, 0).budget_bytes, 14 * PAGE_BYTES);
    assert_int_equal(quire_region_transfer(r.p.cache, 0, r.high, 5 * PAGE_BYTES), QUIRE_OK);
    assert_true(charged(&r, 0) <= 9);
    assert_int_equal(quire_seq_tokens(r.p.cache, run.seq), 6 * P);
    test_run_end(&r.p, &run);
    end(&r);
}

/* ---- hits ---- */

/* A hit of the pinned region's sequence moves charges; payloads and ids stay. */
static void test_hit_moves_charge(void **state)
{
    regions r;
    int32_t a[3 * P + 1];
    quire_page_id pages[3];
    test_run run;
    test_run high;

    (void)state;
    begin(&r, 20, 6, true);
    test_text(a, 3 * P + 1, 1000);
    run = whole(&r, 0, a, 3 * P + 1);
    for (uint32_t i = 0; i < 3; i++) {
        pages[i] = test_page_of(r.p.cache, run.seq, 0, i * P);
    }
    test_run_end(&r.p, &run);
    assert_int_equal(charged(&r, r.high), 0);
    high = start(&r, r.high, a, 3 * P);
    assert_int_equal(high.match.n_tokens, 3 * P);
    assert_int_equal(charged(&r, r.high), 3);
    assert_int_equal(stats_of(&r, r.high).adopted_pages_total, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(test_page_of(r.p.cache, high.seq, 0, i * P), pages[i]);
    }
    /* A hit of the dynamic region's sequence: charges stay. */
    run = start(&r, 0, a, 3 * P);
    assert_int_equal(charged(&r, r.high), 3);
    test_run_end(&r.p, &high);
    test_run_end(&r.p, &run);
    assert_int_equal(charged(&r, r.high), 3);
    end(&r);
}

/* Room for two of four pages: the first two move, as they are shared most. */
static void test_hit_moves_what_fits(void **state)
{
    regions r;
    int32_t a[4 * P];
    int32_t b[2 * P];
    test_run run;

    (void)state;
    begin(&r, 20, 4, true);
    test_text(a, 4 * P, 1000);
    test_text(b, 2 * P, 2000);
    run = whole(&r, 0, a, 4 * P);
    test_run_end(&r.p, &run);
    run = whole(&r, r.high, b, 2 * P); /* live: stays */
    {
        test_run high = start(&r, r.high, a, 4 * P);

        assert_int_equal(charged(&r, r.high), 4);
        assert_int_equal(charged(&r, 0), 2);
        test_run_end(&r.p, &high);
    }
    test_run_end(&r.p, &run);
    end(&r);
}

/* ---- short of room ---- */

/* Sequences of the dynamic region read and extend pages of the pinned region. When the pinned
 * region needs its room, it gets the room in every case. */
static void test_reclaim_live(void **state)
{
    regions r;
    int32_t a[4 * P];
    int32_t low[6 * P];
    int32_t b[4 * P];
    test_run first;
    test_run reader;
    test_run second;

    (void)state;
    begin(&r, 20, 4, false);
    test_text(a, 4 * P, 1000);
    test_text(low, 6 * P, 1000);
    test_text(b, 4 * P, 5000);
    first = whole(&r, r.high, a, 4 * P);
    test_run_end(&r.p, &first);
    reader = whole(&r, 0, low, 6 * P);
    assert_int_equal(charged(&r, r.high), 4); /* it did not make it grow */
    assert_int_equal(charged(&r, 0), 2);
    second = whole(&r, r.high, b, 4 * P);
    assert_int_equal(charged(&r, r.high), 4);
    assert_int_equal(charged(&r, 0), 6);
    assert_int_equal(stats_of(&r, r.high).reclaimed_pages_total, 4);
    test_check_text(&r.p, reader.seq, low);
    assert_int_equal(quire_seq_append(r.p.cache, second.seq, 1), QUIRE_NOPAGES); /* its own */
    assert_int_equal(stats_of(&r, r.high).refused_total, 1);
    test_run_end(&r.p, &second);
    test_run_end(&r.p, &reader);
    end(&r);
}

/* A fork of a reader has no ref; its pages are found in its table. */
static void test_reclaim_fork(void **state)
{
    regions r;
    int32_t a[4 * P];
    test_run run;
    test_run reader;
    quire_seq_id fork;

    (void)state;
    begin(&r, 20, 4, false);
    test_text(a, 4 * P, 1000);
    run = whole(&r, r.high, a, 4 * P);
    test_run_end(&r.p, &run);
    reader = start(&r, 0, a, 4 * P);
    fork = test_fork(r.p.cache, reader.seq);
    test_run_end(&r.p, &reader);
    (void)quire_prefix_drop_all(r.p.tree, r.p.now_us); /* no node holds them either */
    assert_int_equal(charged(&r, r.high), 4);
    test_text(a, 4 * P, 7000);
    run = whole(&r, r.high, a, 4 * P);
    assert_int_equal(charged(&r, r.high), 4);
    assert_int_equal(charged(&r, 0), 4);
    test_run_end(&r.p, &run);
    assert_int_equal(quire_seq_close(r.p.cache, fork), QUIRE_OK);
    end(&r);
}

/* Cached pages of the pinned region cannot be evicted while cached pages of the dynamic region are
 * below them, but they can be charged elsewhere. */
static void test_reclaim_cached(void **state)
{
    regions r;
    int32_t a[4 * P];
    int32_t low[6 * P];
    int32_t b[4 * P];
    test_run run;

    (void)state;
    begin(&r, 10, 4, false);
    test_text(a, 4 * P, 1000);
    test_text(low, 6 * P, 1000);
    test_text(b, 4 * P, 5000);
    run = whole(&r, r.high, a, 4 * P);
    test_run_end(&r.p, &run);
    run = whole(&r, 0, low, 6 * P);
    test_run_end(&r.p, &run);
    run = whole(&r, r.high, b, 4 * P);
    assert_int_equal(charged(&r, r.high), 4);
    assert_int_equal(charged(&r, 0), 6);
    assert_int_equal(test_lookup(&r.p, low, 6 * P).n_tokens, 6 * P); /* there was room for all */
    test_run_end(&r.p, &run);
    end(&r);
}

/* The dynamic region is full of live pages: nothing can go there, and nothing does. */
static void test_reclaim_refused(void **state)
{
    regions r;
    int32_t a[4 * P];
    int32_t low[10 * P];
    int32_t b[P];
    test_run run;
    test_run reader;

    (void)state;
    begin(&r, 10, 4, true);
    test_text(a, 4 * P, 1000);
    test_text(low, 10 * P, 1000);
    test_text(b, P, 5000);
    run = whole(&r, r.high, a, 4 * P);
    test_run_end(&r.p, &run);
    reader = whole(&r, 0, low, 10 * P);
    run = start(&r, r.high, b, P);
    assert_int_equal(quire_seq_append(r.p.cache, run.seq, P), QUIRE_NOPAGES);
    test_run_end(&r.p, &reader);
    test_run_extend(&r.p, &run, b, P);
    assert_true(charged(&r, r.high) <= 4);
    test_run_end(&r.p, &run);
    end(&r);
}

static void test_spill(void **state)
{
    regions r;
    int32_t a[6 * P];
    int32_t low[8 * P];
    test_run run;
    test_run other;

    (void)state;
    begin(&r, 12, 4, true);
    test_text(a, 6 * P, 1000);
    test_text(low, 8 * P, 3000);
    other = whole(&r, 0, low, 8 * P); /* fills the dynamic region */
    test_run_end(&r.p, &other);
    run = whole(&r, r.high, a, 6 * P);
    assert_int_equal(charged(&r, r.high), 4);
    assert_int_equal(stats_of(&r, r.high).spilled_bytes, 2 * PAGE_BYTES);
    assert_int_equal(stats_of(&r, r.high).spilled_pages_total, 2);
    assert_int_equal(charged(&r, 0), 8); /* two of the others' went */
    assert_int_equal(test_lookup(&r.p, low, 8 * P).n_tokens, 6 * P);
    /* More budget: they go home. */
    assert_int_equal(quire_region_transfer(r.p.cache, 0, r.high, 2 * PAGE_BYTES), QUIRE_OK);
    quire_cache_maintain(r.p.cache);
    assert_int_equal(charged(&r, r.high), 6);
    assert_int_equal(stats_of(&r, r.high).spilled_bytes, 0);
    assert_int_equal(stats_of(&r, r.high).returned_pages_total, 2);
    assert_int_equal(test_lookup(&r.p, low, 8 * P).n_tokens, 6 * P); /* and nothing else went */
    test_run_end(&r.p, &run);
    end(&r);
}

/* Spilled pages also return to their region when expiring pages make the room. */
static void test_spill_ends_by_expiry(void **state)
{
    regions r;
    int32_t a[4 * P];
    int32_t b[2 * P];
    test_run run;
    test_run spilled;

    (void)state;
    begin(&r, 20, 4, true);
    assert_int_equal(quire_prefix_ttl_set(r.p.tree, 2, 1000), QUIRE_OK);
    test_text(a, 4 * P, 1000);
    test_text(b, 2 * P, 5000);
    run = start(&r, r.high, a, 4 * P);
    test_run_extend(&r.p, &run, a, 3 * P);
    assert_int_equal(quire_seq_reserve(r.p.cache, run.seq, P), QUIRE_OK);
    spilled = whole(&r, r.high, b, 2 * P);
    assert_int_equal(stats_of(&r, r.high).spilled_bytes, 2 * PAGE_BYTES);
    test_run_end(&r.p, &run); /* three are cached, one is free */
    quire_cache_maintain(r.p.cache);
    assert_int_equal(stats_of(&r, r.high).spilled_bytes, PAGE_BYTES);
    quire_cache_maintain(r.p.cache);
    assert_int_equal(quire_prefix_expire(r.p.tree, 5000, UINT32_MAX), 3);
    quire_cache_maintain(r.p.cache);
    assert_int_equal(stats_of(&r, r.high).spilled_bytes, 0);
    assert_int_equal(charged(&r, 0), 0);
    test_run_end(&r.p, &spilled);
    end(&r);
}

static void test_no_spill(void **state)
{
    regions r;
    int32_t a[6 * P];
    test_run run;

    (void)state;
    begin(&r, 12, 4, false);
    test_text(a, 6 * P, 1000);
    run = start(&r, r.high, a, 6 * P);
    assert_int_equal(quire_seq_append(r.p.cache, run.seq, 4 * P), QUIRE_OK);
    assert_int_equal(quire_seq_append(r.p.cache, run.seq, 1), QUIRE_NOPAGES);
    assert_int_equal(charged(&r, 0), 0);
    test_run_end(&r.p, &run);
    end(&r);
}

/* Sequences of the dynamic region cannot take a pinned region's budget, for any number of pages. */
static void test_low_is_kept_out(void **state)
{
    regions r;
    int32_t low[8 * P];
    test_run run;

    (void)state;
    begin(&r, 12, 4, true);
    test_text(low, 8 * P, 3000);
    run = whole(&r, 0, low, 8 * P);
    assert_int_equal(quire_seq_append(r.p.cache, run.seq, 1), QUIRE_NOPAGES);
    assert_int_equal(charged(&r, r.high), 0);
    test_run_end(&r.p, &run);
    end(&r);
}

/* A closing region hands its pages over. */
static void test_close_hands_over(void **state)
{
    regions r;
    int32_t a[6 * P];
    int32_t low[6 * P];
    test_run run;
    test_run reader;

    (void)state;
    begin(&r, 20, 4, true);
    test_text(a, 6 * P, 1000);
    test_text(low, 6 * P, 1000);
    run = whole(&r, r.high, a, 6 * P);
    reader = start(&r, 0, low, 6 * P);
    test_run_end(&r.p, &run);
    assert_int_equal(quire_region_close(r.p.cache, r.high), QUIRE_OK);
    assert_int_equal(charged(&r, 0), 6);
    assert_int_equal(stats_of(&r, 0).budget_bytes, 20 * PAGE_BYTES);
    test_check_text(&r.p, reader.seq, low);
    test_run_end(&r.p, &reader);
    {
        quire_region_opts opts = QUIRE_REGION_OPTS_INIT;

        assert_int_equal(quire_region_open(r.p.cache, &opts, &r.high), QUIRE_OK);
    }
    end(&r);
}

/* ---- two pinned regions ---- */

static void test_between_pinned(void **state)
{
    regions r;
    quire_region_opts opts = QUIRE_REGION_OPTS_INIT;
    quire_prefix_key key = test_key();
    quire_prefix_acquire_opts ask = { .tokens_max = UINT32_MAX, .rank = 2 };
    quire_region_id other;
    int32_t a[3 * P];
    test_run run;

    (void)state;
    begin(&r, 20, 4, true);
    opts.budget_bytes = 4 * PAGE_BYTES;
    assert_int_equal(quire_region_open(r.p.cache, &opts, &other), QUIRE_OK);
    test_text(a, 3 * P, 1000);
    run = whole(&r, r.high, a, 3 * P);
    test_run_end(&r.p, &run);
    for (uint8_t rank = 2; rank <= 3; rank++) { /* only a higher rank takes the charge over */
        ask.rank = rank;
        run.seq = test_open_in(r.p.cache, other);
        assert_int_equal(
            quire_prefix_acquire(r.p.tree, &key, run.seq, a, 3 * P, &ask, &run.match, &run.ref),
            QUIRE_OK);
        test_run_end(&r.p, &run);
        assert_int_equal(charged(&r, other), rank == 3 ? 3 : 0);
    }
    assert_int_equal(quire_region_close(r.p.cache, other), QUIRE_OK);
    end(&r);
}

/* ---- memory ---- */

/* Appending within reserved room takes nothing, spilled or not. */
static void test_decode_allocates_nothing(void **state)
{
    regions r;
    quire_seq_id seq;
    uint64_t n_calls;
    uint64_t n_maps;

    (void)state;
    begin(&r, 12, 2, true);
    seq = test_open_in(r.p.cache, r.high);
    assert_int_equal(quire_seq_reserve(r.p.cache, seq, 5 * P), QUIRE_OK);
    assert_int_equal(stats_of(&r, r.high).spilled_pages_total, 3);
    n_calls = r.p.t.memory.n_calls;
    n_maps = r.p.t.extents.n_calls;
    for (uint32_t i = 0; i < 5 * P; i++) {
        assert_int_equal(quire_seq_append(r.p.cache, seq, 1), QUIRE_OK);
    }
    assert_int_equal(r.p.t.memory.n_calls, n_calls);
    assert_int_equal(r.p.t.extents.n_calls, n_maps);
    assert_int_equal(stats_of(&r, r.high).spilled_bytes, 3 * PAGE_BYTES);
    assert_int_equal(quire_seq_close(r.p.cache, seq), QUIRE_OK);
    end(&r);
}

/* Operations on a full region while call number fail_at of the allocator fails. Returns whether the
 * failure was reached. */
static bool torture(uint64_t fail_at)
{
    regions r;
    int32_t a[4 * P];
    int32_t b[4 * P];
    test_run run;
    bool has_failed;

    begin(&r, 10, 4, true);
    test_text(a, 4 * P, 1000);
    test_text(b, 4 * P, 2000);
    run = whole(&r, 0, a, 4 * P);
    test_run_end(&r.p, &run);
    r.p.t.memory.n_calls = 0;
    r.p.t.memory.fail_at = fail_at;
    for (uint32_t i = 0; i < 3; i++) {
        const int32_t *text = i == 1 ? b : a;
        quire_prefix_key key = test_key();
        quire_prefix_acquire_opts opts = { .tokens_max = 2 * P, .rank = 2, .account = 40 };
        quire_prefix_match match;
        quire_prefix_ref ref;
        quire_seq_id seq;
        int rc;

        key.salt_bytes = 1 + i;
        if (quire_seq_open(r.p.cache, r.high, &seq) < 0) {
            continue;
        }
        rc = quire_prefix_acquire(r.p.tree, &key, seq, text, 4 * P, &opts, &match, &ref);
        if (rc == QUIRE_OK) {
            rc = quire_seq_append(r.p.cache, seq, 4 * P - match.n_tokens);
            if (rc == QUIRE_OK) {
                rc = quire_prefix_publish(r.p.tree, ref, text, 4 * P, 5);
            }
            assert_int_equal(quire_prefix_release(r.p.tree, ref, 5), QUIRE_OK);
        }
        assert_true(rc == QUIRE_OK || rc == QUIRE_NOMEM);
        quire_cache_validate(r.p.cache);
        quire_prefix_validate(r.p.tree);
        assert_int_equal(quire_seq_close(r.p.cache, seq), QUIRE_OK);
        assert_int_equal(quire_region_transfer(r.p.cache, 0, r.high, PAGE_BYTES), QUIRE_OK);
        assert_int_equal(quire_region_transfer(r.p.cache, r.high, 0, PAGE_BYTES), QUIRE_OK);
    }
    has_failed = r.p.t.memory.has_failed;
    r.p.t.memory.fail_at = NEVER;
    end(&r);
    return has_failed;
}

static void test_torture(void **state)
{
    uint64_t fail_at = 0;

    (void)state;
    while (torture(fail_at)) {
        fail_at++;
    }
    assert_true(fail_at > 0);
}

/* ---- pages in the way ---- */

/* A hit does not evict nodes of a higher rank from its region. */
static void test_hit_spares_higher_ranks(void **state)
{
    regions r;
    quire_prefix_key key = test_key();
    quire_prefix_acquire_opts opts = { .tokens_max = UINT32_MAX, .rank = 1 };
    int32_t a[2 * P];
    int32_t b[2 * P];
    test_run run;

    (void)state;
    begin(&r, 20, 2, true);
    test_text(a, 2 * P, 1000);
    test_text(b, 2 * P, 5000);
    run = whole(&r, 0, b, 2 * P);
    test_run_end(&r.p, &run);
    run = whole(&r, r.high, a, 2 * P); /* of rank 2 */
    test_run_end(&r.p, &run);
    for (opts.rank = 1; opts.rank <= 2; opts.rank++) {
        run.seq = test_open_in(r.p.cache, r.high);
        assert_int_equal(
            quire_prefix_acquire(r.p.tree, &key, run.seq, b, 2 * P, &opts, &run.match, &run.ref),
            QUIRE_OK);
        assert_int_equal(run.match.n_tokens, 2 * P);
        test_run_end(&r.p, &run);
        assert_int_equal(test_lookup(&r.p, a, 2 * P).n_tokens, opts.rank == 1 ? 2 * P : 0);
        assert_int_equal(charged(&r, 0), opts.rank == 1 ? 2 : 0);
    }
    end(&r);
}

/* The dynamic region can use its cached pages although a pinned region has cached pages below
 * them. */
static void test_dynamic_is_not_stuck(void **state)
{
    regions r;
    int32_t a[4 * P];
    int32_t low[8 * P];
    int32_t fill[2 * P];
    test_run run;
    test_run other;

    (void)state;
    begin(&r, 10, 2, true);
    test_text(a, 4 * P, 1000);
    test_text(low, 8 * P, 3000);
    test_text(fill, 2 * P, 7000);
    run = whole(&r, 0, a, 2 * P);
    test_run_end(&r.p, &run);
    other = whole(&r, r.high, fill, 2 * P); /* the pinned region is full: charges stay */
    run = start(&r, r.high, a, 4 * P);
    assert_int_equal(charged(&r, 0), 2);
    test_run_end(&r.p, &other);
    test_run_extend(&r.p, &run, a, 4 * P); /* below, charged to the pinned region */
    test_run_end(&r.p, &run);
    assert_int_equal(charged(&r, 0), 2);
    assert_int_equal(charged(&r, r.high), 2);
    run = whole(&r, 0, low, 8 * P);
    assert_int_equal(charged(&r, 0), 8);
    assert_int_equal(charged(&r, r.high), 2);
    assert_int_equal(test_lookup(&r.p, a, 4 * P).n_tokens, 2 * P);
    test_run_end(&r.p, &run);
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_close),
        cmocka_unit_test(test_transfer_errors),
        cmocka_unit_test(test_transfer_keeps_cached),
        cmocka_unit_test(test_transfer_evicts_dynamic),
        cmocka_unit_test(test_hit_moves_charge),
        cmocka_unit_test(test_hit_moves_what_fits),
        cmocka_unit_test(test_reclaim_live),
        cmocka_unit_test(test_reclaim_fork),
        cmocka_unit_test(test_reclaim_cached),
        cmocka_unit_test(test_reclaim_refused),
        cmocka_unit_test(test_spill),
        cmocka_unit_test(test_spill_ends_by_expiry),
        cmocka_unit_test(test_no_spill),
        cmocka_unit_test(test_low_is_kept_out),
        cmocka_unit_test(test_close_hands_over),
        cmocka_unit_test(test_between_pinned),
        cmocka_unit_test(test_hit_spares_higher_ranks),
        cmocka_unit_test(test_dynamic_is_not_stuck),
        cmocka_unit_test(test_decode_allocates_nothing),
        cmocka_unit_test(test_torture),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
