/* test_prefix_torture.c - every allocation of every operation of the prefix tree fails once.
 *
 * A scenario builds a tree and names one operation. For N = 0, 1, 2, ... the Nth allocation within
 * the operation fails, until the operation succeeds without reaching the failure. A failed
 * operation returns QUIRE_NOMEM, leaves the tree intact with all nodes cached before, and succeeds
 * when repeated. At the end nothing has leaked.
 *
 * SPDX-License-Identifier: MIT */
#include "prefix_support.h"

#include <string.h>

#define PT     PAGE_TOKENS
#define N_TEXT (QUIRE_LEAF_ENTRIES * PT * 2 + PT / 2)

typedef struct scene {
    test_prefix p;
    test_run run;
    int32_t text[N_TEXT];
    quire_prefix_key key;
} scene;

typedef struct scenario {
    const char *name;
    void (*build)(scene *s);
    int (*run)(scene *s);
    bool is_acquire; /* a failure changes nothing at all */
} scenario;

/* ---- states ---- */

static void build_open(scene *s)
{
    s->run.seq = test_open(s->p.cache);
}

static void build_cached(scene *s)
{
    (void)test_run_whole(&s->p, s->text, N_TEXT);
    build_open(s);
}

/* Add other texts, so that the next node begins a new chunk, table or heap. */
static void build_crowd(scene *s)
{
    int32_t text[3 * PT];

    for (int32_t i = 1; i < 40; i++) {
        test_text(text, 3 * PT, i * 100000);
        (void)test_run_whole(&s->p, text, (uint32_t)i % (3 * PT) + 1);
    }
    build_open(s);
}

static void build_computed(scene *s)
{
    s->run = test_run_start(&s->p, s->text, N_TEXT);
    test_append(s->p.cache, s->run.seq, N_TEXT - s->run.match.n_tokens);
    test_stamp_text(&s->p, s->run.seq, s->text, s->run.match.n_tokens);
}

static void build_computed_in_crowd(scene *s)
{
    build_crowd(s);
    assert_int_equal(quire_seq_close(s->p.cache, s->run.seq), QUIRE_OK);
    build_computed(s);
}

/* Its open page is known and grows. */
static void build_half_published(scene *s)
{
    build_computed(s);
    assert_int_equal(quire_prefix_publish(s->p.tree, s->run.ref, s->text, PT + 1, 1000), QUIRE_OK);
}

/* ---- operations ---- */

static int run_acquire(scene *s)
{
    quire_prefix_acquire_opts opts = { .tokens_max = UINT32_MAX, .now_us = 2000 };
    int rc = quire_prefix_acquire(s->p.tree, &s->key, s->run.seq, s->text, N_TEXT, &opts,
                                  &s->run.match, &s->run.ref);

    if (rc < 0) { /* nothing that could be taken for a hit */
        assert_int_equal(s->run.ref, QUIRE_PREFIX_REF_NULL);
        assert_int_equal(s->run.match.n_tokens, 0);
        assert_int_equal(s->run.match.n_same_tokens, 0);
    }
    return rc;
}

static int run_acquire_new_key(scene *s)
{
    s->key.identity[0] = 99;
    return run_acquire(s);
}

static int run_publish(scene *s)
{
    return quire_prefix_publish(s->p.tree, s->run.ref, s->text, N_TEXT, 2000);
}

/* Cannot fail: succeeds without reaching a failure. */
static int run_evict(scene *s)
{
    (void)quire_prefix_evict(s->p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
    (void)quire_prefix_expire(s->p.tree, 3000, 100);
    (void)quire_prefix_drop_all(s->p.tree, 3000);
    return QUIRE_OK;
}

static const scenario scenarios[] = {
    { "acquire, the first", build_open, run_acquire, true },
    { "acquire a hit", build_cached, run_acquire, true },
    { "acquire under a new key", build_cached, run_acquire_new_key, true },
    { "acquire in a crowd", build_crowd, run_acquire, true },
    { "publish, the first", build_computed, run_publish, false },
    { "publish in a crowd", build_computed_in_crowd, run_publish, false },
    { "publish more", build_half_published, run_publish, false },
    { "evict, expire, drop", build_cached, run_evict, false },
};

static void scene_create(scene *s)
{
    quire_cache_opts cache_opts = test_opts(0);
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;

    memset(s, 0, sizeof(*s));
    cache_opts.n_groups = 2;
    cache_opts.page_bytes[1] = 0;
    cache_opts.budget_bytes = (uint64_t)QUIRE_LEAF_ENTRIES * 64 * PAGE_BYTES;
    opts.low_traffic_after_us = 1; /* two heaps */
    opts.low_traffic_hits_per_hour = 1.0;
    opts.ghosts_max = 100;
    opts.policy = QUIRE_EVICT_LRU; /* the default goes on where its own memory is short */
    test_prefix_create_in(&s->p, &cache_opts, &opts);
    test_text(s->text, N_TEXT, 0);
    s->key = test_key();
}

static void check_after_failure(scene *s, const scenario *sc, const quire_prefix_stats *before,
                                uint32_t n_found)
{
    quire_prefix_stats after = test_prefix_stats(&s->p);

    quire_prefix_validate(s->p.tree);
    quire_cache_validate(s->p.cache);
    assert_true(test_lookup(&s->p, s->text, N_TEXT).n_tokens >= n_found);
    if (sc->is_acquire) {
        assert_memory_equal(before, &after, sizeof(after));
        assert_int_equal(quire_seq_tokens(s->p.cache, s->run.seq), 0);
        assert_int_equal(s->run.ref, QUIRE_PREFIX_REF_NULL);
    } else {
        test_check_text(&s->p, s->run.seq, s->text);
    }
}

/* Returns whether the failure was reached. */
static bool fail_once(const scenario *sc, uint64_t n)
{
    scene *s = test_malloc(sizeof(*s));
    quire_prefix_stats before;
    uint32_t n_found;
    bool is_met;
    int rc;

    scene_create(s);
    sc->build(s);
    before = test_prefix_stats(&s->p);
    n_found = test_lookup(&s->p, s->text, N_TEXT).n_tokens;
    s->p.t.memory.fail_at = s->p.t.memory.n_calls + n;
    rc = sc->run(s);
    is_met = s->p.t.memory.has_failed;
    if (is_met) {
        if (rc != QUIRE_NOMEM) {
            fail_msg("%s, allocation %u: status %d", sc->name, (unsigned)n, rc);
        }
        check_after_failure(s, sc, &before, n_found);
        rc = sc->run(s);
    }
    assert_int_equal(rc, QUIRE_OK);
    quire_prefix_validate(s->p.tree);
    if (sc->run == run_publish) {
        assert_int_equal(test_lookup(&s->p, s->text, N_TEXT).n_tokens, N_TEXT);
    }
    test_prefix_destroy(&s->p);
    test_free(s);
    return is_met;
}

static void test_allocations(void **state)
{
    uint64_t n_met = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        uint64_t n = 0;

        while (fail_once(&scenarios[i], n)) {
            n++;
            assert_true(n < 1000);
        }
        n_met += n;
    }
    assert_true(n_met >= 8);
}

static void test_create(void **state)
{
    quire_cache_opts cache_opts = test_opts(4);
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    quire_prefix *tree = NULL;
    test_memory memory;
    uint64_t n = 0;
    test_cache t;

    (void)state;
    test_cache_create(&t, &cache_opts, 0, 0);
    opts.cache = t.cache;
    for (;; n++) {
        int rc;

        test_memory_init(&memory);
        memory.fail_at = n;
        opts.allocator = &memory.allocator;
        rc = quire_prefix_create(&tree, &opts);
        if (rc == QUIRE_OK) {
            break;
        }
        assert_int_equal(rc, QUIRE_NOMEM);
        assert_null(tree);
        assert_int_equal(memory.n_live, 0);
    }
    assert_true(n >= 3);
    quire_prefix_destroy(tree);
    assert_int_equal(memory.n_live, 0);
    test_cache_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_create),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
