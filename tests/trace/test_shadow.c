/* test_shadow.c - ghost caches: equal to caches of those sizes, near them when sampled.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "seed.h"
#include "trace/online/shadow.h"
#include "trace/sim/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK      QUIRE_SHADOW_BLOCK_TOKENS
#define BLOCKS_MAX 64u
#if QUIRE_DEBUG > 1 /* all invariants are checked after each call: a tenth of it, and less near */
#define SCALE    1u
#define DISTANCE 0.15
#else
#define SCALE    10u
#define DISTANCE 0.06
#endif

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
            .now_us = i,
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

/* The same workload through the simulator, at one capacity. */
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
        uint32_t ids[BLOCKS_MAX];
        quire_trace_request request = { .time_us = i };
        const uint32_t family = next_request(w, &rng, &request.n_blocks);

        for (uint32_t k = 0; k < request.n_blocks; k++) {
            ids[k] = block_id(w, family, k);
        }
        request.n_input_tokens = request.n_blocks * BLOCK;
        assert_int_equal(quire_trace_add(&trace, &request, ids), QUIRE_OK);
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

    opts.policy = QUIRE_EVICT_LRU;
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

static void test_ghosts_are_caches_of_their_sizes(void **state)
{
    const workload w = { .n_shared = 3, .n_families = 300, .n_requests = 300 * SCALE };
    const quire_rng rng = test_rng(1);
    quire_shadow *shadow = shadow_open(600, 4096);
    quire_shadow_stats stats;

    (void)state;
    feed(shadow, &w, rng);
    stats = stats_of(shadow);
    assert_int_equal(stats.requests_total, w.n_requests);
    assert_int_equal(stats.sampled_total, w.n_requests);
    assert_int_equal(stats.errors_total, 0);
    for (uint32_t i = 0; i < QUIRE_SHADOW_SIZES; i++) {
        const quire_shadow_size_stats *size = &stats.sizes[i];
        const quire_sim_result sim = simulate(&w, rng, size->capacity_blocks, QUIRE_EVICT_LRU);

        assert_int_equal(size->capacity_blocks, 300u << i);
        assert_true(size->sample_rate >= 1.0);
        assert_int_equal(size->blocks_total, sim.blocks);
        assert_int_equal(size->hit_blocks_total, sim.hit_blocks);
        assert_int_equal(size->share_blocks_total, sim.blocks);
        assert_true(fabs(quire_shadow_hit_rate(size, NULL) -
                         (double)sim.hit_blocks / (double)sim.blocks) < 1e-9);
        assert_true(quire_shadow_hit_rate(size, size) <= 0.0);
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
    quire_shadow *shadow = shadow_open(800 * SCALE, 100 * SCALE);
    quire_shadow_stats stats;

    (void)state;
    feed(shadow, &w, rng);
    stats = stats_of(shadow);
    assert_int_equal(stats.errors_total, 0);
    assert_true(stats.sampled_total < w.n_requests / 4);
    for (uint32_t i = 0; i < QUIRE_SHADOW_SIZES; i++) {
        const quire_shadow_size_stats *size = &stats.sizes[i];
        const quire_sim_result sim = simulate(&w, rng, size->capacity_blocks, QUIRE_EVICT_LRU);
        const double rate = quire_shadow_hit_rate(size, NULL);
        const double expected = (double)sim.hit_blocks / (double)sim.blocks;

        (void)printf("%.1fx: sampled %.3f, whole %.3f, R %.4f\n", size->factor, rate, expected,
                     size->sample_rate);
        assert_true(fabs(rate - expected) < DISTANCE);
    }
    quire_shadow_destroy(shadow);
}

static void test_tenants_share_nothing_and_answers_stay(void **state)
{
    quire_shadow *shadow = shadow_open(100, 4096);
    quire_shadow_text t = { .salt = "a", .salt_bytes = 1, .tokens = text, .now_us = 1 };

    (void)state;
    memset(text, 0, sizeof text);
    t.n_prompt = 2 * BLOCK; /* its last token is computed again: one block is looked up */
    t.n_tokens = 4 * BLOCK;
    quire_shadow_feed(shadow, &t);
    assert_int_equal(stats_of(shadow).sizes[1].blocks_total, 1);
    assert_int_equal(stats_of(shadow).sizes[1].hit_blocks_total, 0);
    t.salt = "b";
    quire_shadow_feed(shadow, &t);
    assert_int_equal(stats_of(shadow).sizes[1].hit_blocks_total, 0);
    t.n_prompt = 4 * BLOCK; /* the answer became part of the prompt */
    quire_shadow_feed(shadow, &t);
    assert_int_equal(stats_of(shadow).sizes[1].blocks_total, 1 + 1 + 3);
    assert_int_equal(stats_of(shadow).sizes[1].hit_blocks_total, 3);
    t.n_tokens = BLOCK - 1; /* no whole block: seen, and nothing to count */
    t.n_prompt = BLOCK - 1;
    quire_shadow_feed(shadow, &t);
    assert_int_equal(stats_of(shadow).requests_total, 4);
    assert_int_equal(stats_of(shadow).sizes[1].blocks_total, 5);
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
    assert_int_equal(quire_shadow_create(&shadow, &opts), QUIRE_OK);
    quire_shadow_feed(shadow, &t);
    assert_int_equal(stats_of(shadow).sizes[0].blocks_total, 4);
    assert_int_equal(stats_of(shadow).errors_total, 0);
    quire_shadow_destroy(shadow);
    quire_shadow_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ghosts_are_caches_of_their_sizes),
        cmocka_unit_test(test_samples_come_near),
        cmocka_unit_test(test_tenants_share_nothing_and_answers_stay),
        cmocka_unit_test(test_longer_texts_are_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
