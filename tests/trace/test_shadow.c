/* test_shadow.c - hit rates of other sizes: equal to LRU caches of those sizes, near them when
 * sampled, never lower with more memory.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "rounds.h"
#include "seed.h"
#include "trace/online/shadow.h"
#include "trace/sim/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK      QUIRE_SHADOW_BLOCK_TOKENS
#define BLOCKS_MAX 64u
/* A tenth of the requests is less near. */
#define SCALE    TEST_ROUNDS(10u, 1u)
#define DISTANCE TEST_ROUNDS(0.06, 0.15)

/* A workload of conversations that take turns: a beginning that all share, then their own. */
typedef struct workload {
    uint32_t n_shared;   /* blocks */
    uint32_t n_families; /* conversations, popular ones first */
    uint32_t n_requests;
} workload;

static int32_t text[BLOCKS_MAX * BLOCK + 1];

/* Block k of a family's text: its ids must agree between the trace and the tokens. */
static uint32_t block_id(const workload *w, uint32_t family, uint32_t k)
{
    return k < w->n_shared ? k : BLOCKS_MAX * (family + 1) + k;
}

/* The next request: which family, and how many blocks. Popularity falls as a power law. */
static uint32_t next_request(const workload *w, quire_rng *rng, uint32_t *n_blocks)
{
    const double u = quire_rng_unit(rng);
    const uint32_t family = (uint32_t)((double)w->n_families * u * u * u);

    *n_blocks = w->n_shared + 1 + quire_rng_below(rng, 12);
    return family;
}

static void feed(quire_shadow *shadow, const workload *w, quire_rng rng)
{
    for (uint32_t i = 0; i < w->n_requests; i++) {
        uint32_t n;
        const uint32_t family = next_request(w, &rng, &n);
        const quire_shadow_text t = {
            .salt = "tenant",
            .salt_bytes = 6,
            .tokens = text,
            .n_tokens = n * BLOCK + 1,
            .n_prompt = n * BLOCK + 1,
        };

        for (uint32_t k = 0; k < n; k++) {
            for (uint32_t j = 0; j < BLOCK; j++) {
                text[k * BLOCK + j] = (int32_t)block_id(w, family, k);
            }
        }
        text[n * BLOCK] = 7;
        quire_shadow_feed(shadow, &t);
    }
}

/* Run the same workload through the simulator, at one capacity. */
static quire_sim_result simulate(const workload *w, quire_rng rng, uint64_t capacity_blocks,
                                 quire_evict_policy policy)
{
    const quire_sim_opts opts = {
        .mode = QUIRE_SIM_HITS, .policy = policy, .capacity_blocks = capacity_blocks, .seed = 1
    };
    quire_error err = QUIRE_ERROR_INIT;
    quire_sim_result result, kept;
    quire_trace trace;

    quire_trace_init(&trace, NULL);
    trace.block_tokens = BLOCK;
    trace.has_contents = true;
    trace.n_ids = BLOCKS_MAX * (w->n_families + 1);
    for (uint32_t i = 0; i < w->n_requests; i++) {
        uint64_t keys[BLOCKS_MAX];
        quire_trace_request request = { .time_us = i };
        const uint32_t family = next_request(w, &rng, &request.n_blocks);

        for (uint32_t k = 0; k < request.n_blocks; k++) {
            keys[k] = block_id(w, family, k);
        }
        request.n_input_tokens = request.n_blocks * BLOCK;
        assert_int_equal(quire_trace_add_keys(&trace, &request, keys), QUIRE_OK);
    }
    if (quire_sim_run(&trace, &opts, &result, &err) < 0) {
        fail_msg("%s", err.message);
    }
    kept = result; /* without a timeline there is nothing but figures in it */
    quire_sim_result_fini(&result);
    quire_trace_fini(&trace);
    return kept;
}

static quire_shadow *shadow_open(uint64_t capacity_blocks, uint32_t nodes_max)
{
    quire_shadow_opts opts = QUIRE_SHADOW_OPTS_INIT;
    quire_shadow *shadow;

    opts.capacity_blocks = capacity_blocks;
    opts.nodes_max = nodes_max;
    opts.blocks_max = BLOCKS_MAX;
    opts.seed = 1;
    assert_int_equal(quire_shadow_create(&shadow, &opts), QUIRE_OK);
    return shadow;
}

static quire_shadow_stats stats_of(const quire_shadow *shadow)
{
    quire_shadow_stats stats;

    quire_shadow_stats_get(shadow, &stats);
    return stats;
}

static bool is_telling(const quire_shadow *shadow)
{
    const quire_shadow_stats stats = stats_of(shadow);

    return quire_shadow_is_telling(&stats);
}

static void test_sizes_are_lru_caches(void **state)
{
    const workload w = { .n_shared = 3, .n_families = 300, .n_requests = 300 * SCALE };
    const quire_rng rng = test_rng(1);
    quire_shadow *shadow = shadow_open(600, 4096);
    quire_shadow_stats stats;

    (void)state;
    feed(shadow, &w, rng);
    stats = stats_of(shadow);
    assert_int_equal(stats.requests_total, w.n_requests);
    assert_int_equal(stats.asking_total, w.n_requests);
    assert_true(stats.sample_rate >= 1.0);
    for (uint32_t i = 0; i < QUIRE_SHADOW_SIZES; i++) {
        const quire_shadow_size_stats *size = &stats.sizes[i];
        const quire_sim_result sim = simulate(&w, rng, size->capacity_blocks, QUIRE_EVICT_LRU);

        assert_int_equal(size->capacity_blocks, 300u << i);
        assert_int_equal(stats.blocks_total, sim.blocks);
        assert_int_equal(stats.expected_blocks_total, sim.blocks);
        assert_int_equal(size->hit_blocks_total, sim.hit_blocks);
        assert_true(fabs(quire_shadow_hit_rate(&stats, i) -
                         (double)sim.hit_blocks / (double)sim.blocks) < 1e-9);
    }
    assert_true(stats.sizes[0].hit_blocks_total < stats.sizes[2].hit_blocks_total);
    quire_shadow_destroy(shadow);
}

static void test_samples_come_near(void **state)
{
    const workload w = { .n_shared = 2,
                         .n_families = 400 * SCALE,
                         .n_requests = 1000 * SCALE * SCALE / 2 };
    const quire_rng rng = test_rng(2);
    quire_shadow *shadow = shadow_open(800 * SCALE, 200 * SCALE);
    quire_shadow_stats stats;

    (void)state;
    feed(shadow, &w, rng);
    stats = stats_of(shadow);
    assert_true(fabs(stats.sample_rate - 0.125) < 1e-6);
    assert_true(fabs((double)stats.blocks_total / (double)stats.expected_blocks_total - 1) < 0.5);
    for (uint32_t i = 0; i < QUIRE_SHADOW_SIZES; i++) {
        const quire_shadow_size_stats *size = &stats.sizes[i];
        const quire_sim_result sim = simulate(&w, rng, size->capacity_blocks, QUIRE_EVICT_LRU);
        const double rate = quire_shadow_hit_rate(&stats, i);
        const double expected = (double)sim.hit_blocks / (double)sim.blocks;

        (void)printf("%.1fx: sampled %.3f, whole %.3f, R %.4f\n", size->factor, rate, expected,
                     stats.sample_rate);
        assert_true(fabs(rate - expected) < DISTANCE);
    }
    quire_shadow_destroy(shadow);
}

/* Few blocks in a sample of a few percent: each size had a sample of its own once, and then a fifth
 * of such runs showed a larger size as worse. Between any two moments a larger size has no fewer
 * hits, either. */
static void test_more_memory_is_never_worse(void **state)
{
    const workload w = { .n_shared = 1, .n_families = 120, .n_requests = 20 };

    (void)state;
    for (uint32_t run = 0; run < 50; run++) {
        quire_shadow *shadow = shadow_open(512, 64);
        quire_shadow_stats before = { 0 };

        for (uint32_t part = 0; part < 20; part++) {
            const quire_rng rng = test_rng(100 * run + part);
            quire_shadow_stats now;

            feed(shadow, &w, rng);
            now = stats_of(shadow);
            for (uint32_t i = 1; i < QUIRE_SHADOW_SIZES; i++) {
                assert_true(now.sizes[i].hit_blocks_total - before.sizes[i].hit_blocks_total >=
                            now.sizes[i - 1].hit_blocks_total -
                                before.sizes[i - 1].hit_blocks_total);
                assert_true(quire_shadow_hit_rate(&now, i) >= quire_shadow_hit_rate(&now, i - 1));
            }
            before = now;
        }
        assert_true(before.sizes[2].hit_blocks_total > before.sizes[0].hit_blocks_total);
        quire_shadow_destroy(shadow);
    }
}

/* Rates mean something from QUIRE_SHADOW_REQUESTS_MIN and QUIRE_SHADOW_BLOCKS_MIN on, not before.
 */
static void test_few_requests_tell_nothing(void **state)
{
    quire_shadow *shadow = shadow_open(100, 4096);
    quire_shadow_text t = { .salt = "a", .salt_bytes = 1, .tokens = text };

    (void)state;
    memset(text, 0, sizeof text);
    t.n_tokens = t.n_prompt = 3 * BLOCK + 1;
    for (uint32_t i = 0; i < QUIRE_SHADOW_REQUESTS_MIN; i++) { /* enough requests, few blocks */
        assert_false(is_telling(shadow));
        quire_shadow_feed(shadow, &t);
    }
    assert_true(stats_of(shadow).asking_total == QUIRE_SHADOW_REQUESTS_MIN);
    while (stats_of(shadow).blocks_total < QUIRE_SHADOW_BLOCKS_MIN) {
        assert_false(is_telling(shadow));
        quire_shadow_feed(shadow, &t);
    }
    assert_true(is_telling(shadow));
    quire_shadow_destroy(shadow);
    shadow = shadow_open(100, 4096);
    t.n_tokens = t.n_prompt = 60 * BLOCK + 1;
    for (uint32_t i = 0; i < QUIRE_SHADOW_REQUESTS_MIN; i++) { /* enough blocks, few requests */
        assert_false(is_telling(shadow));
        quire_shadow_feed(shadow, &t);
    }
    assert_true(is_telling(shadow));
    quire_shadow_destroy(shadow);
}

static void test_tenants_share_nothing_and_answers_stay(void **state)
{
    quire_shadow *shadow = shadow_open(100, 4096);
    quire_shadow_text t = { .salt = "a", .salt_bytes = 1, .tokens = text };

    (void)state;
    memset(text, 0, sizeof text);
    t.n_prompt = 2 * BLOCK; /* its last token is computed again: one block is looked up */
    t.n_tokens = 4 * BLOCK;
    quire_shadow_feed(shadow, &t);
    assert_int_equal(stats_of(shadow).blocks_total, 1);
    assert_int_equal(stats_of(shadow).sizes[1].hit_blocks_total, 0);
    t.salt = "b";
    quire_shadow_feed(shadow, &t);
    assert_int_equal(stats_of(shadow).sizes[1].hit_blocks_total, 0);
    t.n_prompt = 4 * BLOCK; /* the answer became part of the prompt */
    quire_shadow_feed(shadow, &t);
    assert_int_equal(stats_of(shadow).blocks_total, 1 + 1 + 3);
    assert_int_equal(stats_of(shadow).sizes[1].hit_blocks_total, 3);
    t.n_tokens = BLOCK - 1; /* no whole block: seen, and nothing to count */
    t.n_prompt = BLOCK - 1;
    quire_shadow_feed(shadow, &t);
    assert_int_equal(stats_of(shadow).requests_total, 4);
    assert_int_equal(stats_of(shadow).asking_total, 3);
    assert_int_equal(stats_of(shadow).blocks_total, 5);
    quire_shadow_destroy(shadow);
}

static void test_longer_texts_are_cut(void **state)
{
    quire_shadow_opts opts = QUIRE_SHADOW_OPTS_INIT;
    quire_shadow_text t = { .tokens = text, .n_tokens = 9 * BLOCK, .n_prompt = 9 * BLOCK };
    quire_shadow *shadow;

    (void)state;
    opts.capacity_blocks = 100;
    opts.blocks_max = 4;
    opts.nodes_max = 1;
    assert_int_equal(quire_shadow_create(&shadow, &opts), QUIRE_INVAL);
    opts.nodes_max = 64;
    opts.capacity_blocks = 1; /* half of it is one block, too */
    assert_int_equal(quire_shadow_create(&shadow, &opts), QUIRE_OK);
    quire_shadow_feed(shadow, &t);
    quire_shadow_feed(shadow, &t);
    assert_int_equal(stats_of(shadow).blocks_total, 4 + 4);
    assert_int_equal(stats_of(shadow).sizes[0].capacity_blocks, 1);
    assert_int_equal(stats_of(shadow).sizes[0].hit_blocks_total, 1);
    assert_int_equal(stats_of(shadow).sizes[1].hit_blocks_total, 1);
    assert_int_equal(stats_of(shadow).sizes[2].hit_blocks_total, 2);
    quire_shadow_destroy(shadow);
    quire_shadow_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_are_lru_caches),
        cmocka_unit_test(test_samples_come_near),
        cmocka_unit_test(test_more_memory_is_never_worse),
        cmocka_unit_test(test_few_requests_tell_nothing),
        cmocka_unit_test(test_tenants_share_nothing_and_answers_stay),
        cmocka_unit_test(test_longer_texts_are_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
