/* test_cache_torture.c - every allocation and every extent of every operation fails once.
 *
 * A scenario builds a state and names one operation. For N = 0, 1, 2, ... the Nth allocation within
 * the operation fails, until the operation succeeds without reaching the failure; likewise the Nth
 * extent map. A failed operation returns QUIRE_NOMEM, changes no token, page or charge, and
 * succeeds when repeated. At the end nothing has leaked.
 *
 * SPDX-License-Identifier: MIT */
#include "core_support.h"

#include <string.h>

#define LEAF_TOKENS (QUIRE_LEAF_ENTRIES * PAGE_TOKENS)
#define SEQS_MAX    4u

typedef struct scene {
    test_cache t;
    quire_seq_id seqs[SEQS_MAX];
    uint32_t n_seqs;
} scene;

/* State that a failing operation must not change. */
typedef struct snapshot {
    uint32_t tokens[SEQS_MAX];
    quire_page_id first_page[SEQS_MAX];
    quire_page_id last_page[SEQS_MAX];
    uint32_t n_holes[SEQS_MAX]; /* in all groups */
    quire_cache_stats stats;
} snapshot;

typedef struct scenario {
    const char *name;
    void (*build)(scene *s);
    int (*run)(scene *s);
} scenario;

static uint32_t count_holes(const scene *s, quire_seq_id seq)
{
    uint32_t n = 0;

    for (uint32_t g = 0; g < s->t.cache->opts.n_groups; g++) {
        for (uint32_t i = 0; i < quire_seq_tokens(s->t.cache, seq); i += PAGE_TOKENS) {
            n += test_page_of(s->t.cache, seq, (quire_group_id)g, i) == QUIRE_PAGE_NULL;
        }
    }
    return n;
}

static snapshot take_snapshot(const scene *s)
{
    snapshot shot;

    memset(&shot, 0, sizeof(shot));
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        shot.tokens[i] = quire_seq_tokens(s->t.cache, s->seqs[i]);
        if (shot.tokens[i] > 0) {
            shot.first_page[i] = test_page_of(s->t.cache, s->seqs[i], 0, 0);
            shot.last_page[i] = test_page_of(s->t.cache, s->seqs[i], 0, shot.tokens[i] - 1);
        }
        shot.n_holes[i] = count_holes(s, s->seqs[i]);
    }
    shot.stats = test_stats(s->t.cache);
    shot.stats.alloc_failures_total = 0; /* may change */
    shot.stats.extent_peak_bytes = 0;
    return shot;
}

static void check_contents(const scene *s)
{
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        uint32_t n = quire_seq_tokens(s->t.cache, s->seqs[i]);

        if (n > 0) { /* the build steps stamp the first token of each sequence */
            test_slot_check(s->t.cache, s->seqs[i], 0, 4711);
        }
    }
}

static void add_seq(scene *s, quire_seq_id seq)
{
    assert_true(s->n_seqs < SEQS_MAX);
    s->seqs[s->n_seqs++] = seq;
}

static void open_with(scene *s, uint32_t n_tokens)
{
    quire_seq_id seq = test_open(s->t.cache);

    test_append(s->t.cache, seq, n_tokens);
    if (n_tokens > 0) {
        test_slot_write(s->t.cache, seq, 0, 4711);
    }
    add_seq(s, seq);
}

/* ---- states ---- */

static void build_nothing(scene *s)
{
    (void)s;
}

static void build_one(scene *s)
{
    open_with(s, PAGE_TOKENS + 1);
}

static void build_full_leaf(scene *s)
{
    open_with(s, LEAF_TOKENS);
}

static void build_fork(scene *s)
{
    open_with(s, LEAF_TOKENS + PAGE_TOKENS + 1);
    add_seq(s, test_fork(s->t.cache, s->seqs[0]));
}

static void build_fork_at_full_page(scene *s)
{
    open_with(s, LEAF_TOKENS + PAGE_TOKENS);
    add_seq(s, test_fork(s->t.cache, s->seqs[0]));
}

static void build_reserved(scene *s)
{
    open_with(s, 1);
    assert_int_equal(quire_seq_reserve(s->t.cache, s->seqs[0], LEAF_TOKENS * 2), QUIRE_OK);
}

/* In two groups the first leaf is holes but for the first page. */
static void build_holes(scene *s)
{
    open_with(s, LEAF_TOKENS + PAGE_TOKENS + 1);
    for (quire_group_id g = 1; g <= 2; g++) {
        assert_int_equal(
            quire_seq_release(s->t.cache, s->seqs[0], g, PAGE_TOKENS, LEAF_TOKENS, NULL), QUIRE_OK);
    }
    assert_int_equal(count_holes(s, s->seqs[0]), (QUIRE_LEAF_ENTRIES - 1) * 2);
}

static void build_fork_with_holes(scene *s)
{
    build_holes(s);
    add_seq(s, test_fork(s->t.cache, s->seqs[0]));
}

static void build_holes_and_room(scene *s)
{
    build_holes(s);
    assert_int_equal(quire_seq_reserve(s->t.cache, s->seqs[0], LEAF_TOKENS * 2), QUIRE_OK);
}

/* ---- operations ---- */

static int run_open(scene *s)
{
    quire_seq_id seq;
    int rc = quire_seq_open(s->t.cache, QUIRE_REGION_DYNAMIC, &seq);

    assert_true((rc == QUIRE_OK) == (seq != QUIRE_SEQ_NULL));
    return rc;
}

static int run_fork(scene *s)
{
    quire_seq_id seq;
    int rc = quire_seq_fork(s->t.cache, s->seqs[0], &seq);

    assert_true((rc == QUIRE_OK) == (seq != QUIRE_SEQ_NULL));
    return rc;
}

static int run_append_page(scene *s)
{
    return quire_seq_append(s->t.cache, s->seqs[0], PAGE_TOKENS);
}

static int run_append_many(scene *s)
{
    return quire_seq_append(s->t.cache, s->seqs[0], LEAF_TOKENS * 3);
}

static int run_append_to_fork(scene *s)
{
    return quire_seq_append(s->t.cache, s->seqs[1], 1);
}

static int run_reserve_many(scene *s)
{
    return quire_seq_reserve(s->t.cache, s->seqs[0], LEAF_TOKENS * 3);
}

static int run_truncate_fork(scene *s)
{
    return quire_seq_truncate(s->t.cache, s->seqs[1], LEAF_TOKENS + 1);
}

static int run_truncate_fork_far(scene *s)
{
    return quire_seq_truncate(s->t.cache, s->seqs[1], 1);
}

/* The new tail is full, and a hole in two groups. */
static int run_truncate_fork_to_hole(scene *s)
{
    return quire_seq_truncate(s->t.cache, s->seqs[1], PAGE_TOKENS * 2);
}

/* Cannot fail: succeeds without reaching a failure. */
static int run_release(scene *s)
{
    return quire_seq_release(s->t.cache, s->seqs[0], 0, PAGE_TOKENS, UINT32_MAX, NULL);
}

static const scenario scenarios[] = {
    { "open the first", build_nothing, run_open },
    { "open another", build_one, run_open },
    { "fork", build_one, run_fork },
    { "fork of several leaves", build_fork, run_fork },
    { "fork beside reserved room", build_reserved, run_fork },
    { "append a page", build_one, run_append_page },
    { "append a leaf", build_full_leaf, run_append_page },
    { "append many leaves", build_one, run_append_many },
    { "append to a shared tail", build_fork, run_append_to_fork },
    { "append to a shared leaf", build_fork_at_full_page, run_append_to_fork },
    { "append many to a shared tail", build_fork, run_append_many },
    { "reserve", build_one, run_reserve_many },
    { "reserve behind a shared tail", build_fork, run_reserve_many },
    { "truncate a fork", build_fork, run_truncate_fork },
    { "truncate a fork far back", build_fork, run_truncate_fork_far },
    { "release", build_one, run_release },
    { "release beside a fork", build_fork, run_release },
    { "fork with holes", build_holes, run_fork },
    { "fork with holes beside reserved room", build_holes_and_room, run_fork },
    { "append many behind holes", build_holes, run_append_many },
    { "append behind shared holes", build_fork_with_holes, run_append_to_fork },
    { "truncate a fork with holes", build_fork_with_holes, run_truncate_fork },
    { "truncate a fork to a hole", build_fork_with_holes, run_truncate_fork_to_hole },
    { "truncate a fork with holes far back", build_fork_with_holes, run_truncate_fork_far },
};

static quire_cache_opts scene_opts(void)
{
    quire_cache_opts opts = test_opts(0);

    opts.n_groups = 3;
    opts.page_bytes[1] = PAGE_BYTES / 2;
    opts.page_bytes[2] = 0;
    opts.budget_bytes = (uint64_t)QUIRE_LEAF_ENTRIES * 64 * PAGE_BYTES;
    return opts;
}

/* Returns whether the failure was reached. */
static bool fail_once(const scenario *sc, uint64_t n, bool is_extent)
{
    quire_cache_opts opts = scene_opts();
    scene s;
    snapshot before;
    snapshot after;
    bool is_met;
    int rc;

    memset(&s, 0, sizeof(s));
    test_cache_create(&s.t, &opts, 0, 0);
    sc->build(&s);
    before = take_snapshot(&s);
    if (is_extent) {
        s.t.extents.fail_at = s.t.extents.n_calls + n;
    } else {
        s.t.memory.fail_at = s.t.memory.n_calls + n;
    }
    rc = sc->run(&s);
    is_met = s.t.extents.has_failed || s.t.memory.has_failed;
    quire_cache_validate(s.t.cache);
    check_contents(&s);
    if (is_met) {
        if (rc != QUIRE_NOMEM) {
            fail_msg("%s, %s %u: status %d", sc->name, is_extent ? "extent" : "allocation",
                     (unsigned)n, rc);
        }
        after = take_snapshot(&s);
        assert_memory_equal(&before, &after, sizeof(before));
        rc = sc->run(&s);
        quire_cache_validate(s.t.cache);
        check_contents(&s);
    }
    assert_int_equal(rc, QUIRE_OK);
    test_cache_destroy(&s.t);
    return is_met;
}

static void torture(bool is_extent, uint64_t *n_met)
{
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        uint64_t n = 0;

        while (fail_once(&scenarios[i], n, is_extent)) {
            n++;
            assert_true(n < 10000);
        }
        *n_met += n;
    }
}

static void test_allocations(void **state)
{
    uint64_t n_met = 0;

    (void)state;
    torture(false, &n_met);
    assert_true(n_met >= 20);
}

static void test_extent_maps(void **state)
{
    uint64_t n_met = 0;

    (void)state;
    torture(true, &n_met);
    assert_true(n_met >= 5);
}

static void test_create(void **state)
{
    quire_cache_opts opts = scene_opts();
    test_memory memory;
    quire_cache *cache = NULL;
    uint64_t n = 0;

    (void)state;
    for (;; n++) {
        int rc;

        test_memory_init(&memory);
        memory.fail_at = n;
        opts.allocator = &memory.allocator;
        rc = quire_cache_create(&cache, &opts);
        if (rc == QUIRE_OK) {
            break;
        }
        assert_int_equal(rc, QUIRE_NOMEM);
        assert_null(cache);
        assert_int_equal(memory.n_live, 0);
    }
    assert_true(n >= 3);
    quire_cache_destroy(cache);
    assert_int_equal(memory.n_live, 0);
}

/* Every allocation fails for a while: upkeep continues, nothing is lost. */
static void test_upkeep_without_memory(void **state)
{
    quire_cache_opts opts = scene_opts();
    scene s;

    (void)state;
    memset(&s, 0, sizeof(s));
    test_cache_create(&s.t, &opts, 0, 0);
    build_fork(&s);
    s.t.extents.fail_from = 0;
    quire_cache_maintain(s.t.cache);
    (void)quire_cache_coalesce(s.t.cache, UINT32_MAX);
    (void)quire_cache_trim(s.t.cache, 0);
    quire_cache_validate(s.t.cache);
    check_contents(&s);
    test_cache_destroy(&s.t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_extent_maps),
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_upkeep_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
