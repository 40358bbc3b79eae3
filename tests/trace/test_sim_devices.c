/* test_sim_devices.c - several devices in the simulator: the choice of a device, the common disk,
 * and virtual time against figures reckoned by hand.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/sim/sim.h"
#include "trace/sim/sim_disk.h"

#include "rounds.h"
#include "seed.h"
#include "trace/sim_support.h"
#include "trace/workload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define ROUNDS TEST_ROUNDS(30, 4)

/* ---- one after the other ---- */

/* Two sets of texts in turn, each as large as a cache: on one device they drive each other out; two
 * devices share them out, and hit all that comes again. */
static void test_hits(void **state)
{
    static const char *const texts[] = { "abc", "uvw", "def", "xyz" };
    quire_sim_opts opts = { .policy = QUIRE_EVICT_LRU, .capacity_blocks = 6, .seed = 5 };
    quire_error err = QUIRE_ERROR_INIT;
    quire_sim_result one, two;
    quire_trace trace;

    (void)state;
    workload_begin(&trace, 16);
    for (uint32_t i = 0; i < 40; i++) {
        workload_add(&trace, i, texts[i % 4]);
    }
    quire_trace_finish(&trace);
    one = simulate(&trace, &opts);
    opts.n_devices = 2;
    opts.timeline_points = 4;
    two = simulate(&trace, &opts);
    assert_int_equal(one.hit_blocks, 0);
    assert_int_equal(two.hit_blocks, two.blocks - 12);
    assert_int_equal(two.busiest_blocks, 6);
    assert_int_equal(two.evictions, 0);
    assert_int_equal(one.busiest_blocks, one.blocks);
    assert_int_equal(two.timeline[two.n_points - 1].cached_blocks, 12);
    quire_sim_result_fini(&two);
    opts.n_devices = QUIRE_SIM_DEVICES_MAX + 1;
    assert_int_equal(quire_sim_run(&trace, &opts, &two, &err), QUIRE_INVAL);
    quire_trace_fini(&trace);
}

/* An expired prefix draws no request to its device: the other one has computed less. */
static void test_ttl(void **state)
{
    const quire_sim_class class = { .name = "a", .ttl_us = 1000 };
    quire_sim_opts opts = { .policy = QUIRE_EVICT_LRU,
                            .capacity_blocks = 100,
                            .seed = 5,
                            .classes = &class,
                            .n_classes = 1,
                            .n_devices = 2 };
    quire_sim_result result;
    quire_trace trace;

    (void)state;
    workload_begin(&trace, 16);
    workload_add(&trace, 0, "abcd");
    workload_add(&trace, 500, "uv");
    workload_add(&trace, 2000, "abcd");
    quire_trace_finish(&trace);
    result = simulate(&trace, &opts);
    assert_int_equal(result.hit_blocks, 0);
    assert_int_equal(result.busiest_blocks, 6);
    quire_trace_fini(&trace);
}

/* ---- a disk below all ---- */

static quire_sim_opts disk_opts(uint64_t capacity, uint64_t disk_blocks)
{
    return (quire_sim_opts){ .policy = QUIRE_EVICT_LRU,
                             .capacity_blocks = capacity,
                             .seed = 5,
                             .n_devices = 2,
                             .disk = { .capacity_blocks = disk_blocks,
                                       .segment_blocks = 1,
                                       .copy = QUIRE_SIM_COPY_ALL,
                                       .carry = 0.3 } };
}

/* "ab" and "ef" are the first device's, and "ef" drives "ab" out. The second device has computed
 * less then, and reads "ab" from the disk; or computes it, where that is faster. Nothing is written
 * twice. */
static void test_disk(void **state)
{
    (void)state;
    for (int is_slow = 0; is_slow < 2; is_slow++) {
        quire_sim_opts opts = disk_opts(2, 100);
        quire_sim_result result;
        quire_trace trace;

        opts.cost.prefill_token_us = 1.0;
        opts.disk.block_us = is_slow ? 17.0 : 15.0; /* a block has 16 tokens */
        workload_begin(&trace, 16);
        workload_add(&trace, 0, "ab");
        workload_add(&trace, 1, "cd");
        workload_add(&trace, 2, "ef");
        workload_add(&trace, 3, "ab");
        quire_trace_finish(&trace);
        result = simulate(&trace, &opts);
        assert_int_equal(result.disk_hit_blocks, is_slow ? 0 : 2);
        assert_int_equal(result.hit_blocks, is_slow ? 0 : 2);
        assert_int_equal(result.disk_skipped_blocks, is_slow ? 2 : 0);
        assert_int_equal(result.disk_written_blocks, 6);
        assert_int_equal(result.busiest_blocks, 4);
        assert_int_equal(result.evictions, 4); /* two on each device */
        quire_trace_fini(&trace);
    }
}

/* A prompt of which one device has less in memory, and the disk has the rest: blocks in memory
 * count more than blocks on disk. The answer is the hits from disk. */
static void test_disk_choice(void **state)
{
    quire_sim_opts opts = disk_opts(4, 100);
    quire_sim_result result;
    quire_trace trace;

    (void)state;
    workload_begin(&trace, 16);
    workload_add(&trace, 0, "abcd");   /* the first device */
    workload_add(&trace, 1, "uvwxyz"); /* the second one, which keeps four of the six */
    workload_add(&trace, 2, "uvwxyz"); /* the second one: four from memory, two from disk */
    quire_trace_finish(&trace);
    result = simulate(&trace, &opts);
    assert_int_equal(result.hit_blocks, 6);
    assert_int_equal(result.disk_hit_blocks, 2);
    assert_int_equal(result.busiest_blocks, 6);
    assert_int_equal(result.disk_written_blocks, 10);
    quire_trace_fini(&trace);
}

/* Marks belong to a memory. A block with a copy is not written for another memory; one whose copy
 * is gone is written for a memory without its mark alone. */
static void test_disk_marks(void **state)
{
    const quire_sim_disk_opts opts = { .capacity_blocks = 3, .segment_blocks = 1 };
    const quire_sim_kv kv = { .block_bytes = 0 };
    quire_sim_above above[3];
    quire_sim_disk disk;

    (void)state;
    assert_int_equal(quire_sim_disk_init(&disk, &opts, &kv, 10), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(quire_sim_above_init(&above[i], 10), 0);
    }
    quire_sim_disk_copy(&disk, &above[0], 0);
    quire_sim_disk_copy(&disk, &above[1], 0);
    assert_int_equal(disk.written_blocks, 1);
    for (uint32_t id = 1; id < 5; id++) {
        quire_sim_disk_copy(&disk, &above[0], id);
    }
    assert_false(quire_sim_disk_has(&disk, 0));
    quire_sim_disk_copy(&disk, &above[0], 0);
    quire_sim_disk_copy(&disk, &above[1], 0);
    assert_int_equal(disk.written_blocks, 5);
    quire_sim_disk_copy(&disk, &above[2], 0);
    assert_int_equal(disk.written_blocks, 6);
    assert_true(quire_sim_disk_has(&disk, 0));
    for (int i = 0; i < 3; i++) {
        quire_sim_above_fini(&above[i]);
    }
    quire_sim_disk_fini(&disk);
}

/* Any number of devices below which a disk has room for all: nothing is computed twice, and nothing
 * is written twice. The same without a disk, where each memory has room for all. A smaller disk
 * does not beat the bound. */
static void test_disk_random(void **state)
{
    quire_rng rng = test_rng(18);

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t capacity = 1 + quire_rng_below(&rng, 60);
        quire_sim_opts opts = disk_opts(capacity, 1u << 20);
        quire_sim_result result;
        quire_sim_result bound;
        quire_trace trace;

        random_trace(&trace, 200, &rng);
        opts.n_devices = 1 + quire_rng_below(&rng, QUIRE_SIM_DEVICES_MAX);
        result = simulate(&trace, &opts);
        assert_int_equal(result.hit_blocks, trace.n_blocks - trace.n_ids);
        assert_int_equal(result.disk_written_blocks, trace.n_ids);
        opts.disk.capacity_blocks = 30 + quire_rng_below(&rng, 300);
        opts.disk.segment_blocks = 1 + quire_rng_below(&rng, 10);
        opts.disk.copy = (quire_sim_copy)quire_rng_below(&rng, 3);
        opts.policy = (quire_evict_policy)quire_rng_below(&rng, QUIRE_EVICT_POLICY_COUNT);
        result = simulate(&trace, &opts);
        bound = run_belady(&trace, opts.n_devices * capacity + opts.disk.capacity_blocks);
        assert_true(result.hit_blocks <= bound.hit_blocks);
        assert_true(result.disk_hit_blocks <= result.hit_blocks);
        opts.disk.capacity_blocks = 0;
        opts.capacity_blocks = trace.n_ids;
        result = simulate(&trace, &opts);
        assert_int_equal(result.hit_blocks, trace.n_blocks - trace.n_ids);
        quire_trace_fini(&trace);
    }
}

/* Records with windows and states, of devices whose memories have few blocks. */
static void test_disk_parts(void **state)
{
    quire_rng rng = test_rng(19);

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        quire_sim_opts opts = disk_opts(1, 1u << 18);
        quire_sim_result with, without;
        quire_trace trace;

        opts.kv = (quire_sim_kv){ .block_bytes = 100,
                                  .window_bytes = round % 2 == 0 ? 50 : 0,
                                  .window_tokens = 40,
                                  .state_bytes = round % 2 != 0 ? 70 : 0,
                                  .state_every_tokens = 64 };
        opts.capacity_bytes = 200;
        opts.disk.segment_blocks = 10;
        random_trace(&trace, 150, &rng);
        with = simulate(&trace, &opts);
        opts.disk.capacity_blocks = 0;
        without = simulate(&trace, &opts);
        assert_true(with.hit_blocks > without.hit_blocks);
        assert_true(with.hit_blocks <= trace.n_blocks - trace.n_ids);
        assert_true(with.disk_hit_blocks <= with.hit_blocks);
        quire_trace_fini(&trace);
    }
}

/* ---- time ---- */

static quire_sim_opts time_opts(uint64_t capacity, uint32_t n_devices)
{
    return (quire_sim_opts){ .mode = QUIRE_SIM_TIME,
                             .policy = QUIRE_EVICT_LRU,
                             .capacity_blocks = capacity,
                             .n_devices = n_devices,
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

/* Two requests that do not fit together compute at the same time on two devices. */
static void test_time_apart(void **state)
{
    quire_sim_result result;
    quire_trace trace;

    (void)state;
    workload_begin(&trace, 16);
    workload_add_as(&trace, (quire_trace_request){ .n_output_tokens = 1 }, "abc");
    workload_add_as(&trace, (quire_trace_request){ .n_output_tokens = 1 }, "xyz");
    workload_add_as(&trace, (quire_trace_request){ .n_output_tokens = 1 }, "ABCDEF");
    quire_trace_finish(&trace);
    for (uint32_t n = 1; n <= 2; n++) {
        const quire_sim_opts opts = time_opts(5, n);

        result = simulate(&trace, &opts);
        assert_int_equal(result.requests, 2);
        assert_int_equal(result.refused, 1);
        near(result.queued.p99_us, n == 1 ? 58 : 0); /* 10 + 48 */
        near(result.ttft.p99_us, n == 1 ? 116 : 58);
        near(result.makespan_us, n == 1 ? 116 : 58);
        near(result.busy_us, 116);
        near(result.busiest_us, n == 1 ? 116 : 58);
        assert_int_equal(result.busiest_blocks, n == 1 ? 6 : 3);
    }
    quire_trace_fini(&trace);
}

/* A prefix of 96 tokens draws requests to its device until that has two others, which weigh 64
 * tokens each. */
static void test_time_choice(void **state)
{
    const quire_sim_opts opts = time_opts(100, 2);
    quire_sim_result result;
    quire_trace trace;

    (void)state;
    workload_begin(&trace, 16);
    workload_add_as(&trace, (quire_trace_request){ .n_output_tokens = 1 }, "abcdef");
    for (uint32_t i = 0; i < 3; i++) {
        workload_add_as(&trace,
                        (quire_trace_request){ .time_us = 200 + 10 * i, .n_output_tokens = 2 },
                        "abcdef");
    }
    quire_trace_finish(&trace);
    result = simulate(&trace, &opts);
    assert_int_equal(result.hit_blocks, 12); /* of the second and the third */
    assert_int_equal(result.busiest_blocks, 6);
    /* The first and the fourth: steps of 64 and 32 tokens. The second: one token. The third waits
     * for the end of this step, and has its token in a step with a row of the second. */
    near(result.ttft.mean_us, (116 + 11 + (1 + 14) + 116) / 4.0);
    near(result.ttft.p99_us, 116);
    near(result.queued.p99_us, 1);
    near(result.makespan_us, 220 + 116 + 13);
    /* The first device: 116, 11, 14 and the last token of the third. */
    near(result.busy_us, (116 + 11 + 14 + 13) + (116 + 13));
    near(result.busiest_us, 116 + 11 + 14 + 13);
    quire_trace_fini(&trace);
}

/* Tokens that a device has still to compute count in the choice, and no longer when they are
 * computed. */
static void test_time_work(void **state)
{
    const quire_sim_opts opts = time_opts(100, 2);
    quire_sim_result result;
    quire_trace trace;

    (void)state;
    workload_begin(&trace, 16);
    workload_add_as(&trace, (quire_trace_request){ .n_output_tokens = 9 }, "abcdefghijkl");
    workload_add_as(&trace, (quire_trace_request){ .time_us = 1, .n_output_tokens = 40 }, "m");
    /* The first device has 192 tokens and a request, the second one 16 and a request. */
    workload_add_as(&trace, (quire_trace_request){ .time_us = 2, .n_output_tokens = 1 }, "nop");
    /* Both have a request that writes; the first device has the prefix. */
    workload_add_as(&trace, (quire_trace_request){ .time_us = 225, .n_output_tokens = 1 }, "abc");
    quire_trace_finish(&trace);
    result = simulate(&trace, &opts);
    assert_int_equal(result.hit_blocks, 3);
    assert_int_equal(result.busiest_blocks, 12); /* the other one has computed 4 */
    /* "nop" waits for the step of "m", 26 us from 1 on, and computes beside its second token. */
    near(result.queued.p99_us, 25);
    quire_trace_fini(&trace);
}

/* Requests that never meet: each goes to its longest prefix. One device is as none said. Figures
 * agree with each other on any trace, and come again. */
static void test_time_random(void **state)
{
    quire_rng rng = test_rng(20);

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        quire_sim_opts opts = time_opts(1 + quire_rng_below(&rng, 300), 0);
        quire_sim_result a, b;
        quire_trace trace;

        random_trace(&trace, 100, &rng);
        opts.policy = (quire_evict_policy)quire_rng_below(&rng, QUIRE_EVICT_POLICY_COUNT);
        opts.cost.n_running_max = 1 + quire_rng_below(&rng, 12);
        opts.cost.decode_row_us = quire_rng_below(&rng, 2) * 20000.0;
        for (uint32_t n = 1; n <= 4; n++) {
            a = simulate(&trace, &opts); /* 0, 1, 2, 3 devices */
            opts.n_devices = n;
            b = simulate(&trace, &opts);
            assert_int_equal(b.requests + b.refused, 100);
            near(n == 1 ? a.makespan_us : 0.0, n == 1 ? b.makespan_us : 0.0);
            assert_true(n != 1 || (a.hit_blocks == b.hit_blocks && a.evictions == b.evictions));
            assert_true(b.busy_us <= n * b.makespan_us && b.busiest_us <= b.makespan_us);
            assert_true(b.busiest_us * n >= b.busy_us - 1e-6);
            assert_true(b.hit_blocks <= trace.n_blocks - trace.n_ids);
            a = simulate(&trace, &opts);
            near(a.ttft.mean_us, b.ttft.mean_us);
        }
        for (uint32_t i = 0; i < trace.n_requests; i++) {
            trace.requests[i].time_us = i * 1000000000ull;
        }
        opts.capacity_blocks = 1u << 20;
        a = simulate(&trace, &opts);
        assert_int_equal(a.hit_blocks, trace.n_blocks - trace.n_ids);
        near(a.queued.p99_us, 0.0);
        quire_trace_fini(&trace);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hits),        cmocka_unit_test(test_ttl),
        cmocka_unit_test(test_disk),        cmocka_unit_test(test_disk_choice),
        cmocka_unit_test(test_disk_marks),  cmocka_unit_test(test_disk_random),
        cmocka_unit_test(test_disk_parts),  cmocka_unit_test(test_time_apart),
        cmocka_unit_test(test_time_choice), cmocka_unit_test(test_time_work),
        cmocka_unit_test(test_time_random),
    };

    return cmocka_run_group_tests_name("sim_devices", tests, NULL, NULL);
}
