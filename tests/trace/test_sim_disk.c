/* test_sim_disk.c - the simulator's disk: rules of copying, the log, against the bound, windows and
 * states.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/sim/sim.h"

#include "base/check.h"
#include "rounds.h"
#include "seed.h"
#include "trace/sim_support.h"
#include "trace/workload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROUNDS TEST_ROUNDS(30, 4)

static quire_sim_opts disk_opts(uint64_t capacity, uint64_t disk_blocks, quire_sim_copy copy)
{
    return (quire_sim_opts){
        .policy = QUIRE_EVICT_LRU,
        .capacity_blocks = capacity,
        .seed = 5,
        .disk = { .capacity_blocks = disk_blocks, .segment_blocks = 1, .copy = copy, .carry = 0.3 }
    };
}

/* Which blocks the disk has, by rule: "ab" is hit once before "cd" drives it out. */
static void test_disk_rules(void **state)
{
    static const struct {
        quire_sim_copy copy;
        uint32_t session;
        uint64_t disk_hits;
        uint64_t written;
    } cases[] = {
        { QUIRE_SIM_COPY_WORTH, 0, 2, 2 },   /* "ab" once hit, and not "cd" */
        { QUIRE_SIM_COPY_WORTH, 7, 4, 4 },   /* sessions' at once */
        { QUIRE_SIM_COPY_ALL, 0, 4, 4 },     /* all */
        { QUIRE_SIM_COPY_EVICTED, 0, 4, 4 }, /* "ab", then "cd" */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        quire_sim_opts opts = disk_opts(2, 100, cases[i].copy);
        const quire_trace_request request = { .session = cases[i].session };
        quire_sim_result result;
        quire_trace trace;

        workload_begin(&trace, 16);
        workload_add_as(&trace, request, "ab");
        workload_add_as(&trace, request, "ab"); /* from memory */
        workload_add_as(&trace, request, "cd");
        workload_add_as(&trace, request, "ab"); /* from disk */
        workload_add_as(&trace, request, "cd"); /* from disk, if it is there */
        quire_trace_finish(&trace);
        result = simulate(&trace, &opts);
        assert_int_equal(result.disk_hit_blocks, cases[i].disk_hits);
        assert_int_equal(result.hit_blocks, 2 + cases[i].disk_hits);
        assert_int_equal(result.disk_written_blocks, cases[i].written);
        assert_int_equal(result.disk_carried_blocks, 0);
        quire_trace_fini(&trace);
    }
}

/* A disk of five segments of ten blocks keeps three full ones at most beside the open one. When a
 * segment goes, blocks that were read are carried forward, 30 % of a segment at most. Other blocks
 * go.
 */
static void test_disk_log(void **state)
{
    quire_sim_opts opts = disk_opts(1, 50, QUIRE_SIM_COPY_ALL);

    (void)state;
    opts.disk.segment_blocks = 10;
    for (int is_read = 0; is_read < 2; is_read++) {
        quire_sim_result result;
        quire_trace trace;
        char text[2] = "A";

        workload_begin(&trace, 16);
        workload_add(&trace, 0, "abcd");
        workload_add(&trace, 0, "z");
        if (is_read) {
            workload_add(&trace, 0, "abcd"); /* "a" from memory or disk, the rest from disk */
        }
        for (uint32_t i = 0; i < 36; i++) { /* 41 different blocks: the fifth segment begins */
            text[0] = (char)(i < 26 ? 'A' + (int)i : '0' + (int)(i - 26));
            workload_add(&trace, 0, text);
        }
        workload_add(&trace, 0, "abcd");
        quire_trace_finish(&trace);
        result = simulate(&trace, &opts);
        assert_int_equal(result.disk_carried_blocks, is_read ? 3 : 0);
        assert_int_equal(result.disk_hit_blocks, is_read ? 4 + 3 : 0); /* three of four again */
        assert_int_equal(result.hit_blocks, result.disk_hit_blocks);
        quire_trace_fini(&trace);
    }
}

/* A disk with room for all: nothing is ever computed twice. No disk beats the bound. */
static void test_disk_random(void **state)
{
    quire_rng rng = test_rng(16);

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t capacity = 1 + quire_rng_below(&rng, 60);
        quire_sim_opts opts = disk_opts(capacity, 1u << 20, QUIRE_SIM_COPY_ALL);
        quire_sim_result whole;
        quire_sim_result some;
        quire_sim_result bound;
        quire_trace trace;

        random_trace(&trace, 200, &rng);
        whole = simulate(&trace, &opts);
        assert_int_equal(whole.hit_blocks, trace.n_blocks - trace.n_ids);
        assert_int_equal(whole.disk_written_blocks, trace.n_ids);
        opts.disk.capacity_blocks = 30 + quire_rng_below(&rng, 300);
        opts.disk.segment_blocks = 1 + quire_rng_below(&rng, 10);
        opts.disk.copy = (quire_sim_copy)quire_rng_below(&rng, 3);
        opts.disk.is_touching = quire_rng_below(&rng, 2) == 1;
        opts.policy = (quire_evict_policy)quire_rng_below(&rng, QUIRE_EVICT_POLICY_COUNT);
        some = simulate(&trace, &opts);
        bound = run_belady(&trace, capacity + opts.disk.capacity_blocks);
        assert_true(some.hit_blocks <= bound.hit_blocks);
        assert_true(some.disk_hit_blocks <= some.hit_blocks);
        quire_trace_fini(&trace);
    }
}

static void test_disk_options(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_sim_opts opts = disk_opts(5, 2, QUIRE_SIM_COPY_ALL); /* two segments */
    quire_sim_result result;
    quire_trace trace;

    (void)state;
    workload_begin(&trace, 16);
    workload_add(&trace, 0, "ab");
    quire_trace_finish(&trace);
    assert_int_equal(quire_sim_run(&trace, &opts, &result, &err), QUIRE_INVAL);
    opts.disk.capacity_blocks = 3;
    opts.disk.carry = 1.0;
    assert_int_equal(quire_sim_run(&trace, &opts, &result, &err), QUIRE_INVAL);
    opts.disk.carry = 0.0;
    assert_int_equal(quire_sim_run(&trace, &opts, &result, &err), QUIRE_OK);
    opts.mode = QUIRE_SIM_TIME;
    assert_int_equal(quire_sim_run(&trace, &opts, &result, &err), QUIRE_UNSUPP);
    opts = disk_opts(5, 100, QUIRE_SIM_COPY_EVICTED);
    opts.kv = (quire_sim_kv){ .block_bytes = 1, .window_bytes = 1, .window_tokens = 16 };
    opts.capacity_bytes = 5;
    assert_int_equal(quire_sim_run(&trace, &opts, &result, &err), QUIRE_UNSUPP);
    assert_non_null(strstr(err.message, "what memory evicts"));
    quire_trace_fini(&trace);
}

/* Blocks are read only if that takes less time than computing them. */
static void test_disk_time(void **state)
{
    quire_sim_opts opts = disk_opts(2, 100, QUIRE_SIM_COPY_ALL);

    (void)state;
    /* Two blocks of 16 tokens: 32 us, and 15.5 us for each token on average. */
    opts.cost.prefill_token_us = 1.0;
    opts.cost.prefill_token_depth_us = 1.0;
    for (int is_slow = 0; is_slow < 2; is_slow++) {
        quire_sim_result result;
        quire_trace trace;

        opts.disk.block_us = (32.0 + 32.0 * 15.5) / 2.0 + (is_slow ? 0.01 : -0.01);
        workload_begin(&trace, 16);
        workload_add(&trace, 0, "ab");
        workload_add(&trace, 0, "cd");
        workload_add(&trace, 0, "ab");
        quire_trace_finish(&trace);
        result = simulate(&trace, &opts);
        assert_int_equal(result.disk_hit_blocks, is_slow ? 0 : 2);
        assert_int_equal(result.hit_blocks, is_slow ? 0 : 2);
        assert_int_equal(result.disk_skipped_blocks, is_slow ? 2 : 0);
        quire_trace_fini(&trace);
    }
}

/* Memory for a block or two, and all on disk. */
static quire_sim_opts parts_opts(const quire_sim_kv *kv)
{
    quire_sim_opts opts = disk_opts(1, 1000, QUIRE_SIM_COPY_ALL);

    opts.kv = *kv;
    opts.capacity_bytes = 2 * kv->block_bytes;
    opts.disk.segment_blocks = 10;
    return opts;
}

/* The hits of the last request of two; others drive the first one out of memory. */
static uint64_t second_hits(const quire_sim_opts *opts, const char *first, const char *second,
                            bool is_from_disk)
{
    quire_sim_result result;
    quire_trace trace;

    workload_begin(&trace, 16);
    workload_add(&trace, 0, first);
    workload_add(&trace, 1, "stuvwxyz");
    workload_add(&trace, 2, second);
    quire_trace_finish(&trace);
    result = simulate(&trace, opts);
    assert_int_equal(result.disk_hit_blocks, is_from_disk ? result.hit_blocks : 0);
    quire_trace_fini(&trace);
    return result.hit_blocks;
}

/* Records have windows where hits are likely to end: where a text ended. */
static void test_disk_windows(void **state)
{
    const quire_sim_kv kv = { .block_bytes = 100, .window_bytes = 300, .window_tokens = 33 };
    quire_sim_opts opts = parts_opts(&kv);

    (void)state;
    assert_int_equal(second_hits(&opts, "abcdefghij", "abcdefghijkl", true), 10);
    assert_int_equal(second_hits(&opts, "abcdefghij", "abcdkl", true),
                     0);          /* no window ends there */
    opts.capacity_bytes = 100000; /* memory has the windows of all */
    assert_int_equal(second_hits(&opts, "abcdefghij", "abcdkl", false), 4);
}

/* A hit from disk ends at a state, as in memory: before the last token of the prompt, or behind it.
 */
static void test_disk_states(void **state)
{
    const quire_sim_kv kv = { .block_bytes = 100, .state_bytes = 250, .state_every_tokens = 1000 };
    quire_sim_opts opts = parts_opts(&kv);

    (void)state;
    assert_int_equal(second_hits(&opts, "abcdef", "abcdefgh", true), 6);
    assert_int_equal(second_hits(&opts, "abcdef", "abcdegh", true), 5);
    assert_int_equal(second_hits(&opts, "abcdef", "abcdgh", true), 0);
    opts.kv.state_every_tokens = 32;
    assert_int_equal(second_hits(&opts, "abcdef", "abcdgh", true), 4);
    opts.disk.copy = QUIRE_SIM_COPY_WORTH; /* nothing was hit */
    assert_int_equal(second_hits(&opts, "abcdef", "abcdgh", false), 0);
}

/* A disk with room for everything hits as much as a memory with room for everything; with windows,
 * of which a disk has fewer, no more. A small disk hits no more than a large one with the same
 * memory. */
static void test_disk_parts_random(void **state)
{
    quire_rng rng = test_rng(17);

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        const quire_sim_kv kv = { .block_bytes = 100,
                                  .window_bytes = round % 2 == 0 ? 50 : 0,
                                  .window_tokens = 40,
                                  .state_bytes = round % 2 != 0 ? 70 : 0,
                                  .state_every_tokens = 64 };
        quire_sim_opts opts = parts_opts(&kv);
        quire_sim_result small, large, all, none;
        quire_trace trace;

        random_trace(&trace, 150, &rng);
        opts.disk.capacity_blocks = 1u << 18;
        large = simulate(&trace, &opts);
        opts.disk.capacity_blocks = 100 + quire_rng_below(&rng, 300);
        small = simulate(&trace, &opts);
        opts.disk.capacity_blocks = 0;
        none = simulate(&trace, &opts);
        opts.capacity_bytes = 1u << 28;
        all = simulate(&trace, &opts);
        assert_true(large.hit_blocks <= all.hit_blocks);
        if (kv.state_bytes != 0) {
            assert_int_equal(large.hit_blocks, all.hit_blocks);
        }
        assert_true(large.hit_blocks > none.hit_blocks);
        assert_true(small.disk_hit_blocks <= small.hit_blocks);
        assert_true(small.hit_blocks <= large.hit_blocks);
        quire_trace_fini(&trace);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_disk_rules),  cmocka_unit_test(test_disk_log),
        cmocka_unit_test(test_disk_random), cmocka_unit_test(test_disk_options),
        cmocka_unit_test(test_disk_time),   cmocka_unit_test(test_disk_windows),
        cmocka_unit_test(test_disk_states), cmocka_unit_test(test_disk_parts_random),
    };

    return cmocka_run_group_tests_name("sim_disk", tests, NULL, NULL);
}
