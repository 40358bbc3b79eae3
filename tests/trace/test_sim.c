/* test_sim.c - the simulator against an LRU by hand, Belady's bound against all choices there are,
 * virtual time against figures reckoned by hand.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/read/read.h"
#include "trace/sim/sim.h"

#include "base/check.h"
#include "rounds.h"
#include "seed.h"
#include "trace/sim_support.h"
#include "trace/workload.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROUNDS TEST_ROUNDS(30, 4)

static quire_sim_result run_hits(const quire_trace *trace, quire_evict_policy policy,
                                 uint64_t capacity)
{
    quire_sim_opts opts = { .policy = policy, .capacity_blocks = capacity, .seed = 5 };

    return simulate(trace, &opts);
}

/* ---- hits ---- */

/* A list of blocks, the one that goes next first. A request's blocks go to the end, its first block
 * last. */
typedef struct lru_list {
    uint32_t *ids;
    uint32_t n;
} lru_list;

static bool lru_remove(lru_list *list, uint32_t id)
{
    for (uint32_t i = 0; i < list->n; i++) {
        if (list->ids[i] == id) {
            memmove(&list->ids[i], &list->ids[i + 1], (list->n - i - 1) * sizeof(id));
            list->n--;
            return true;
        }
    }
    return false;
}

static uint64_t lru_by_hand(const quire_trace *trace, uint32_t capacity)
{
    lru_list list = { test_calloc(trace->n_ids + 1u, sizeof(uint32_t)), 0 };
    uint64_t hits = 0;

    for (uint32_t r = 0; r < trace->n_requests; r++) {
        const uint32_t *ids = quire_trace_blocks(trace, &trace->requests[r]);
        bool is_whole = true;

        for (uint32_t i = 0; i < trace->requests[r].n_blocks; i++) {
            is_whole = lru_remove(&list, ids[i]) && is_whole;
            hits += is_whole;
        }
        for (uint32_t i = trace->requests[r].n_blocks; i-- > 0;) {
            list.ids[list.n++] = ids[i];
        }
        if (list.n > capacity) {
            memmove(list.ids, list.ids + list.n - capacity, capacity * sizeof(uint32_t));
            list.n = capacity;
        }
    }
    test_free(list.ids);
    return hits;
}

static void test_lru(void **state)
{
    quire_rng rng = test_rng(11);

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        quire_trace trace;

        random_trace(&trace, 1 + quire_rng_below(&rng, 300), &rng);
        for (uint32_t capacity = 1; capacity < 2 * trace.n_ids; capacity = capacity * 3 + 1) {
            quire_sim_result result = run_hits(&trace, QUIRE_EVICT_LRU, capacity);

            assert_int_equal(result.hit_blocks, lru_by_hand(&trace, capacity));
            assert_int_equal(result.blocks, trace.n_blocks);
            assert_int_equal(result.requests, trace.n_requests);
            assert_int_equal(result.pages_touched, trace.n_blocks);
            assert_true(result.hit_tokens <= result.hit_blocks * trace.block_tokens);
            assert_true(result.regret_blocks + result.hit_blocks <= result.blocks);
            quire_sim_result_fini(&result);
        }
        quire_trace_fini(&trace);
    }
}

/* Every policy has no more hits than the bound, hits everything when there is room, and gives the
 * same result twice.
 */
static void test_all_policies(void **state)
{
    quire_rng rng = test_rng(12);

    (void)state;
    for (int round = 0; round < ROUNDS / 4; round++) {
        quire_trace trace;
        quire_sim_result whole;

        random_trace(&trace, 200, &rng);
        whole = run_belady(&trace, trace.n_ids);
        assert_int_equal(whole.hit_blocks, trace.n_blocks - trace.n_ids);
        for (int p = 0; p < (int)QUIRE_EVICT_POLICY_COUNT; p++) {
            const uint32_t capacity = 1 + quire_rng_below(&rng, trace.n_ids);
            quire_sim_result bound = run_belady(&trace, capacity);
            quire_sim_result a = run_hits(&trace, (quire_evict_policy)p, capacity);
            quire_sim_result b = run_hits(&trace, (quire_evict_policy)p, capacity);
            quire_sim_result all = run_hits(&trace, (quire_evict_policy)p, trace.n_ids);

            assert_true(a.hit_blocks <= bound.hit_blocks);
            assert_int_equal(a.hit_blocks, b.hit_blocks);
            assert_int_equal(a.evictions, b.evictions);
            assert_int_equal(all.hit_blocks, whole.hit_blocks);
            assert_int_equal(all.evictions, 0);
            assert_int_equal(all.regret_blocks, 0);
        }
        quire_trace_fini(&trace);
    }
}

static void test_options(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_sim_opts opts = { .capacity_blocks = 0 };
    quire_sim_result result;
    quire_trace trace;

    (void)state;
    workload_begin(&trace, 16);
    quire_trace_finish(&trace);
    opts.capacity_blocks = 5;
    assert_int_equal(quire_sim_run(&trace, &opts, &result, &err), QUIRE_INVAL);
    quire_trace_fini(&trace);

    workload_begin(&trace, 16);
    workload_add(&trace, 0, "ab");
    quire_trace_finish(&trace);
    opts.capacity_blocks = 0;
    assert_int_equal(quire_sim_run(&trace, &opts, &result, &err), QUIRE_INVAL);
    opts.capacity_blocks = 5;
    opts.mode = QUIRE_SIM_TIME; /* a cost model of zeros */
    assert_int_equal(quire_sim_run(&trace, &opts, &result, &err), QUIRE_INVAL);
    quire_trace_fini(&trace);
}

static bool ends_at_third(void *ctx)
{
    uint32_t *n = ctx;

    return ++*n >= 3;
}

/* A simulation is asked whether it is to end, and ends, long before its trace does. */
static void test_cancel(void **state)
{
    uint32_t n_asked = 0;
    quire_error err = QUIRE_ERROR_INIT;
    quire_sim_opts opts = { .capacity_blocks = 6,
                            .cost = QUIRE_SIM_COST_INIT,
                            .cancel = { ends_at_third, &n_asked } };
    quire_sim_result result;
    quire_trace trace;

    (void)state;
    workload_begin(&trace, 16);
    for (uint32_t i = 0; i < 100; i++) {
        workload_add(&trace, i, "abcd");
    }
    quire_trace_finish(&trace);
    for (int mode = QUIRE_SIM_HITS; mode <= QUIRE_SIM_TIME; mode++) {
        n_asked = 0;
        opts.mode = (quire_sim_mode)mode;
        assert_int_equal(quire_sim_run(&trace, &opts, &result, &err), QUIRE_CANCELED);
        assert_string_equal(err.message, "interrupted");
        assert_int_equal(n_asked, 3);
        quire_sim_result_fini(&result);
    }
    n_asked = 0;
    assert_int_equal(quire_belady(&trace, 6, &opts.cancel, &result), QUIRE_CANCELED);
    assert_int_equal(n_asked, 3);
    quire_trace_fini(&trace);
}

/* Blocks that the requests of a point asked for; every: requests of a point. */
static uint64_t blocks_of_point(const quire_trace *trace, uint32_t point, uint32_t every)
{
    uint64_t n = 0;

    for (uint32_t i = point * every; i < (point + 1) * every; i++) {
        n += trace->requests[i].n_blocks;
    }
    return n;
}

/* The points of 20 requests each have the hits of all together. 7 points are too many for 100
 * requests: each has 15 then, and the last requests have none. */
static void test_timeline(void **state)
{
    quire_rng rng = test_rng(13);
    quire_sim_opts opts = {
        .policy = QUIRE_EVICT_LRU, .capacity_blocks = 40, .seed = 5, .timeline_points = 5
    };
    quire_sim_result result;
    quire_trace trace;
    double hits = 0.0;

    (void)state;
    random_trace(&trace, 100, &rng);
    result = simulate(&trace, &opts);
    assert_int_equal(result.n_points, 5);
    for (uint32_t i = 0; i < result.n_points; i++) {
        assert_int_equal(result.timeline[i].time_us, trace.requests[20 * i + 19].time_us);
        assert_true(result.timeline[i].cached_blocks <= 40);
        assert_int_equal(result.timeline[i].live_blocks, 0);
        hits += result.timeline[i].hit_rate * (double)blocks_of_point(&trace, i, 20);
    }
    assert_true(result.hit_blocks > 0);
    assert_true(fabs(hits - (double)result.hit_blocks) < 1e-6);
    quire_sim_result_fini(&result);
    opts.timeline_points = 7;
    result = simulate(&trace, &opts);
    assert_int_equal(result.n_points, 6);
    quire_sim_result_fini(&result);
    quire_trace_fini(&trace);
}

/* Requests that come at the same time give one point, with the hits of all these requests. */
static void test_timeline_of_groups(void **state)
{
    quire_rng rng = test_rng(14);
    quire_sim_opts opts = {
        .policy = QUIRE_EVICT_LRU, .capacity_blocks = 40, .seed = 5, .timeline_points = 100
    };
    quire_sim_result result;
    quire_trace trace;
    double hits = 0.0;

    (void)state;
    random_trace(&trace, 100, &rng);
    for (uint32_t i = 0; i < 100; i++) {
        trace.requests[i].time_us = 1000 * (i / 10);
    }
    result = simulate(&trace, &opts);
    assert_int_equal(result.n_points, 10);
    for (uint32_t i = 0; i < result.n_points; i++) {
        assert_int_equal(result.timeline[i].time_us, 1000 * i);
        hits += result.timeline[i].hit_rate * (double)blocks_of_point(&trace, i, 10);
    }
    assert_true(result.hit_blocks > 0);
    assert_true(fabs(hits - (double)result.hit_blocks) < 1e-6);
    quire_sim_result_fini(&result);
    quire_trace_fini(&trace);
}

/* ---- Belady ---- */

#define IDS_MAX 9u

static uint32_t hits_of(const quire_trace *trace, const quire_trace_request *request, uint32_t mask)
{
    const uint32_t *ids = quire_trace_blocks(trace, request);
    uint32_t n = 0;

    while (n < request->n_blocks && (mask >> ids[n] & 1) != 0) {
        n++;
    }
    return n;
}

/* The most hits that any choice of blocks to keep after each request can give. */
static uint64_t best_of_all(const quire_trace *trace, int capacity)
{
    static int64_t best[1u << IDS_MAX]; /* hits by set of cached blocks; -1 = impossible */
    static int64_t next[1u << IDS_MAX];
    const uint32_t n_masks = 1u << trace->n_ids;
    int64_t most = 0;

    memset(best, 0xff, sizeof(best));
    best[0] = 0;
    for (uint32_t r = 0; r < trace->n_requests; r++) {
        const quire_trace_request *request = &trace->requests[r];
        const uint32_t *ids = quire_trace_blocks(trace, request);
        uint32_t asked = 0;

        for (uint32_t i = 0; i < request->n_blocks; i++) {
            asked |= 1u << ids[i];
        }
        memset(next, 0xff, sizeof(next));
        for (uint32_t mask = 0; mask < n_masks; mask++) {
            int64_t hits = best[mask] + hits_of(trace, request, mask);
            uint32_t kept = mask | asked;

            if (best[mask] < 0) {
                continue;
            }
            for (uint32_t sub = kept;; sub = (sub - 1) & kept) {
                if (__builtin_popcount(sub) <= capacity && next[sub] < hits) {
                    next[sub] = hits;
                }
                if (sub == 0) {
                    break;
                }
            }
        }
        memcpy(best, next, sizeof(best));
    }
    for (uint32_t mask = 0; mask < n_masks; mask++) {
        most = best[mask] > most ? best[mask] : most;
    }
    return (uint64_t)most;
}

static void tiny_trace(quire_trace *trace, quire_rng *rng)
{
    /* Prefixes of a tree of at most IDS_MAX nodes. */
    static const char *const texts[] = { "a", "ab", "abc", "abd", "abde", "f", "fg", "fh", "fhi" };

    workload_begin(trace, 16);
    for (uint32_t i = 0; i < 12; i++) {
        workload_add(trace, i, texts[quire_rng_below(rng, sizeof(texts) / sizeof(texts[0]))]);
    }
    quire_trace_finish(trace);
}

static void test_belady(void **state)
{
    quire_rng rng = test_rng(14);

    (void)state;
    for (int round = 0; round < 200; round++) {
        quire_trace trace;

        tiny_trace(&trace, &rng);
        assert_true(trace.n_ids <= IDS_MAX);
        for (uint32_t capacity = 1; capacity <= trace.n_ids; capacity++) {
            quire_sim_result bound = run_belady(&trace, capacity);

            assert_int_equal(bound.hit_blocks, best_of_all(&trace, (int)capacity));
        }
        quire_trace_fini(&trace);
    }
}

/* ---- time ---- */

static quire_sim_opts time_opts(uint64_t capacity)
{
    return (quire_sim_opts){ .mode = QUIRE_SIM_TIME,
                             .policy = QUIRE_EVICT_LRU,
                             .capacity_blocks = capacity,
                             .seed = 5,
                             .cost = { .prefill_token_us = 1.0,
                                       .decode_step_us = 10.0,
                                       .decode_row_us = 3.0,
                                       .chunk_tokens = 64,
                                       .n_running_max = 8 } };
}

static void near(double a, double b)
{
    if (!(a > b - 1e-6 && a < b + 1e-6)) {
        fail_msg("%.9g is not %.9g", a, b);
    }
}

static void test_time_by_hand(void **state)
{
    quire_sim_opts opts = time_opts(100);
    quire_sim_result result;
    quire_trace trace;

    (void)state;
    workload_begin(&trace, 16);
    /* Six blocks, 96 tokens: steps of 64 and 32 rows, then two of one. */
    workload_add_as(&trace, (quire_trace_request){ .time_us = 100, .n_output_tokens = 3 },
                    "abcdef");
    /* Later: all is there, the last token is computed again. */
    workload_add_as(&trace, (quire_trace_request){ .time_us = 1100, .n_output_tokens = 1 },
                    "abcdef");
    quire_trace_finish(&trace);
    result = simulate(&trace, &opts);
    assert_int_equal(result.requests, 2);
    assert_int_equal(result.hit_blocks, 6);
    assert_int_equal(result.blocks, 12);
    near(result.ttft.p99_us, 10 + 64 + 10 + 32);
    near(result.ttft.p50_us, 10 + 64 + 10 + 32);
    near(result.ttft.mean_us, (116 + 11) / 2.0);
    near(result.queued.p99_us, 0);
    near(result.makespan_us, 1000 + 11);
    assert_int_equal(result.preemptions, 0);
    quire_trace_fini(&trace);

    /* The answer's steps: 116, then two of 10 + 3. */
    workload_begin(&trace, 16);
    workload_add_as(&trace, (quire_trace_request){ .n_output_tokens = 3 }, "abcdef");
    quire_trace_finish(&trace);
    result = simulate(&trace, &opts);
    near(result.makespan_us, 116 + 2 * 13);
    quire_trace_fini(&trace);
}

/* Two that do not fit together wait for each other; one that fits nowhere is refused. */
static void test_time_queue(void **state)
{
    quire_sim_opts opts = time_opts(5);
    quire_sim_result result;
    quire_trace trace;

    (void)state;
    workload_begin(&trace, 16);
    workload_add_as(&trace, (quire_trace_request){ .n_output_tokens = 1 }, "abc");
    workload_add_as(&trace, (quire_trace_request){ .n_output_tokens = 1 }, "xyz");
    workload_add_as(&trace, (quire_trace_request){ .n_output_tokens = 1 }, "ABCDEF");
    quire_trace_finish(&trace);
    result = simulate(&trace, &opts);
    assert_int_equal(result.requests, 2);
    assert_int_equal(result.refused, 1);
    near(result.queued.p99_us, 58); /* 10 + 48 */
    near(result.ttft.p99_us, 116);
    near(result.makespan_us, 116);
    quire_trace_fini(&trace);
}

/* Two answers outgrow the cache: the later one lets go, comes back and ends. */
static void test_time_preemption(void **state)
{
    quire_sim_opts opts = time_opts(6);
    quire_sim_result result;
    quire_trace trace;

    (void)state;
    workload_begin(&trace, 16);
    workload_add_as(&trace, (quire_trace_request){ .n_output_tokens = 40 }, "ab");
    workload_add_as(&trace, (quire_trace_request){ .n_output_tokens = 40 }, "cd");
    quire_trace_finish(&trace);
    result = simulate(&trace, &opts);
    assert_int_equal(result.requests, 2);
    assert_true(result.preemptions > 0);
    assert_int_equal(result.refused, 0);
    quire_trace_fini(&trace);
}

/* Of two waiting requests the one of higher rank runs first. */
static void test_time_rank(void **state)
{
    static const quire_sim_class classes[] = { { .name = "low", .rank = 0 },
                                               { .name = "high", .rank = 2 } };
    quire_sim_opts opts = time_opts(100);
    quire_sim_result result;
    quire_trace trace;

    (void)state;
    opts.cost.n_running_max = 1;
    opts.classes = classes;
    opts.n_classes = 2;
    workload_begin(&trace, 16);
    trace.n_classes = 2;
    workload_add_as(&trace, (quire_trace_request){ .n_output_tokens = 1 }, "ab");     /* 42 us */
    workload_add_as(&trace, (quire_trace_request){ .n_output_tokens = 1 }, "cdefgh"); /* 116 us */
    workload_add_as(&trace, (quire_trace_request){ .n_output_tokens = 1, .class_index = 1 }, "j");
    quire_trace_finish(&trace);
    result = simulate(&trace, &opts);
    /* high waits for one of 42 us at most, or for nothing; never for the long one. */
    near(result.makespan_us, 42 + 116 + 26);
    near(result.queued.p99_us, 42 + 26);
    quire_trace_fini(&trace);
}

static void test_time_random(void **state)
{
    quire_rng rng = test_rng(15);

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        const quire_sim_class classes[] = {
            { .rank = (uint8_t)quire_rng_below(&rng, 3),
              .ttl_us = quire_rng_below(&rng, 2) * 100000u },
            { .rank = 2, .pinned_share = 0.3 * quire_rng_below(&rng, 3) },
        };
        quire_sim_opts opts = time_opts(1 + quire_rng_below(&rng, 300));
        quire_sim_result a;
        quire_sim_result b;
        quire_trace trace;

        random_trace(&trace, 100, &rng);
        for (uint32_t i = 0; i < trace.n_requests; i++) {
            trace.requests[i].class_index = (uint8_t)quire_rng_below(&rng, 2);
        }
        opts.classes = classes;
        opts.n_classes = 2;
        opts.policy = (quire_evict_policy)quire_rng_below(&rng, QUIRE_EVICT_POLICY_COUNT);
        opts.cost.n_running_max = 1 + quire_rng_below(&rng, 12);
        opts.timeline_points = 10;
        a = simulate(&trace, &opts);
        b = simulate(&trace, &opts);
        assert_int_equal(a.requests + a.refused, 100);
        assert_true(a.hit_blocks <= trace.n_blocks - trace.n_ids);
        assert_int_equal(a.hit_blocks, b.hit_blocks);
        assert_int_equal(a.preemptions, b.preemptions);
        near(a.makespan_us, b.makespan_us);
        near(a.ttft.mean_us, b.ttft.mean_us);
        assert_true(a.ttft.p50_us <= a.ttft.p95_us && a.ttft.p95_us <= a.ttft.p99_us);
        quire_sim_result_fini(&a);
        quire_sim_result_fini(&b);
        quire_trace_fini(&trace);
    }
}

/* ---- classes ---- */

/* No other class takes the room that a class has reserved, even under high demand. A share of 0 is
 * no region. */
static void test_pinned_share(void **state)
{
    quire_sim_class classes[] = { { .name = "batch", .rank = 0 },
                                  { .name = "realtime", .rank = 0, .pinned_share = 0.5 } };
    quire_sim_opts opts = { .policy = QUIRE_EVICT_LRU,
                            .capacity_blocks = 8,
                            .seed = 5,
                            .timeline_points = 50,
                            .classes = classes,
                            .n_classes = 2 };
    quire_sim_result result;
    quire_trace trace;

    (void)state;
    for (int pass = 0; pass < 2; pass++) {
        workload_begin(&trace, 16);
        trace.n_classes = 2;
        for (uint32_t round = 0; round < 10; round++) {
            char batch[10] = "ABCDEFGHI";

            batch[0] = (char)('0' + round); /* nine blocks that never return */
            workload_add_as(&trace, (quire_trace_request){ .class_index = 1 }, "abcd");
            workload_add(&trace, 0, batch);
        }
        quire_trace_finish(&trace);
        result = simulate(&trace, &opts);
        assert_int_equal(result.hit_blocks, pass == 0 ? 9 * 4 : 0);
        for (uint32_t i = 0; i < result.n_points; i++) {
            assert_int_equal(result.timeline[i].pinned_blocks, pass == 0 ? 4 : 0);
            assert_true(result.timeline[i].cached_blocks <= 8);
        }
        quire_sim_result_fini(&result);
        quire_trace_fini(&trace);
        classes[1].pinned_share = 0.0;
    }
}

static void test_class_ttl(void **state)
{
    const quire_sim_class class = { .name = "a", .ttl_us = 1000 };
    quire_sim_opts opts = { .policy = QUIRE_EVICT_LRU,
                            .capacity_blocks = 100,
                            .seed = 5,
                            .classes = &class,
                            .n_classes = 1 };
    quire_sim_result result;
    quire_trace trace;

    (void)state;
    workload_begin(&trace, 16);
    workload_add(&trace, 0, "ab");
    workload_add(&trace, 500, "ab");
    workload_add(&trace, 2000, "ab");
    quire_trace_finish(&trace);
    result = simulate(&trace, &opts);
    assert_int_equal(result.hit_blocks, 2);
    quire_trace_fini(&trace);
}

/* ---- a published trace ---- */

static void test_mooncake(void **state)
{
    static const uint32_t capacities[] = { 300, 1000, 3000, 8000 };
    const size_t n = TEST_ROUNDS(sizeof(capacities) / sizeof(capacities[0]), 1);
    quire_error err = QUIRE_ERROR_INIT;
    quire_trace trace;
    uint64_t before = 0;

    (void)state;
    if (quire_trace_read(QUIRE_SOURCE_DIR "/tests/data/mooncake.jsonl", NULL, &trace, NULL, &err) <
        0) {
        fail_msg("%s", err.message);
    }
    for (size_t i = 0; i < n; i++) {
        const uint64_t by_hand = lru_by_hand(&trace, capacities[i]);
        quire_sim_result lru = run_hits(&trace, QUIRE_EVICT_LRU, capacities[i]);
        quire_sim_result bound = run_belady(&trace, capacities[i]);

        assert_int_equal(lru.hit_blocks, by_hand);
        assert_true(bound.hit_blocks >= by_hand && bound.hit_blocks >= before);
        assert_true(bound.hit_blocks <= trace.n_blocks - trace.n_ids);
        before = bound.hit_blocks;
        quire_sim_result_fini(&lru);
        quire_sim_result_fini(&bound);
    }
    quire_trace_fini(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lru),
        cmocka_unit_test(test_all_policies),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_timeline),
        cmocka_unit_test(test_timeline_of_groups),
        cmocka_unit_test(test_belady),
        cmocka_unit_test(test_time_by_hand),
        cmocka_unit_test(test_time_queue),
        cmocka_unit_test(test_time_preemption),
        cmocka_unit_test(test_time_rank),
        cmocka_unit_test(test_time_random),
        cmocka_unit_test(test_pinned_share),
        cmocka_unit_test(test_class_ttl),
        cmocka_unit_test(test_mooncake),
        cmocka_unit_test(test_cancel),
    };

    return cmocka_run_group_tests_name("sim", tests, NULL, NULL);
}
