/* test_tier_stuck.c - an engine over a cache directory whose disk is slow, or stuck: requests end
 * with the same answers, and so does the engine, in a time that has a bound.
 *
 * Memory of calls to a stuck disk is left behind. It is kept here, where leak checkers find it.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "fault_disk.h"
#include "mem_disk.h"
#include "tier_kit.h"

#include "base/clock.h"
#include "store/file/file_store.h"

#include <stdlib.h>
#include <string.h>

#define CLOSE_MS 100u   /* each: the engine's time for copying, the store's for writing */
#define BOUND_MS 60000u /* far above these, since machines differ; a hang is longer */

/* A directory in memory, the calls that suffer, and the store that was opened last. */
typedef struct place {
    mem_disk *memory;
    fault_disk faults;
    quire_store *store;
    struct place *next;
} place;

static place *kept;

static place *place_make(void)
{
    place *p = calloc(1, sizeof *p);

    assert_non_null(p);
    p->next = kept;
    kept = p;
    p->memory = mem_disk_new();
    fault_disk_init(&p->faults, mem_disk_ops(p->memory));
    return p;
}

static engine_bench bench_at(place *p, uint64_t wait_us)
{
    quire_file_store_opts opts = QUIRE_FILE_STORE_OPTS_INIT;
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);

    opts.dir = "/disk";
    opts.ops = &p->faults.ops;
    opts.segment_bytes = (uint64_t)1 << 20;
    opts.capacity_bytes = 16 * opts.segment_bytes;
    opts.reads_kind = QUIRE_READS_POOL;
    opts.reads_max = 2;
    opts.close_ms = CLOSE_MS;
    assert_int_equal(quire_file_store_create(&p->store, &opts, NULL), QUIRE_OK);
    engine.tier = (quire_tier_opts){ .store = p->store,
                                     .copies_all = true,
                                     .wait_us = wait_us,
                                     .close_us = (uint64_t)CLOSE_MS * 1000 };
    return bench_tiny(&engine, &runtime);
}

static void suffer(place *p, fault_plan plan)
{
    plan.first = 1;
    plan.last = UINT32_MAX;
    fault_disk_set(&p->faults, plan);
}

static void close_in_time(engine_bench *b)
{
    const uint64_t from_ns = quire_clock_ns();

    bench_close(b);
    assert_true(quire_clock_ns() - from_ns < (uint64_t)BOUND_MS * 1000000u);
}

/* Fill a directory, then ask again under a plan; wait_us: as in quire_tier_opts. Returns how many
 * tokens were cached: those that were fetched. */
static uint32_t asked_again(const fault_plan *plan, uint64_t wait_us)
{
    place *p = place_make();
    int32_t text[N_PROMPT], first[N_TOKENS], again[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    engine_bench b = bench_at(p, wait_us);
    quire_engine_stats stats;
    uint32_t n_cached;

    tokens_make(text, N_PROMPT, 1);
    assert_int_equal(tier_run(&b, &params, first), 0);
    tier_wait_records(&b, N_FULL / PAGE + 1);
    close_in_time(&b);
    b = bench_at(p, wait_us);
    suffer(p, *plan);
    n_cached = tier_run(&b, &params, again);
    assert_memory_equal(first, again, sizeof first);
    stats = stats_now(b.engine);
    assert_int_equal(stats.tier.fetched_tokens_total, n_cached);
    assert_int_equal(stats.tier.slow_total, n_cached < N_PROMPT - 1);
    assert_true(fault_disk_calls(&p->faults) > 0);
    close_in_time(&b);
    suffer(p, (fault_plan){ 0 });
    return n_cached;
}

/* A call that reads does not return: the request computes. */
static void test_stuck_reading(void **state)
{
    const fault_plan plans[] = { { .calls = FAULT_BIT(FAULT_PREAD), .is_stuck = true },
                                 { .calls = FAULT_BIT(FAULT_OPEN), .is_stuck = true } };

    (void)state;
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        assert_int_equal(asked_again(&plans[i], 0), 0);
    }
}

/* A call of the writer does not return: requests go on, from memory too, and the engine ends. */
static void test_stuck_writing(void **state)
{
    static const fault_call calls[] = { FAULT_OPEN, FAULT_PWRITE, FAULT_DATASYNC, FAULT_SYNC_DIR };

    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        place *p = place_make();
        int32_t text[N_PROMPT], first[N_TOKENS], again[N_TOKENS];
        quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
        engine_bench b = bench_at(p, 0);

        suffer(p, (fault_plan){ .calls = FAULT_BIT(calls[i]), .is_stuck = true });
        tokens_make(text, N_PROMPT, 1);
        assert_int_equal(tier_run(&b, &params, first), 0);
        fault_disk_wait_stuck(&p->faults, 1);
        assert_int_equal(tier_run(&b, &params, again), N_PROMPT - 1);
        assert_memory_equal(first, again, sizeof first);
        close_in_time(&b);
        suffer(p, (fault_plan){ 0 });
    }
}

/* 100 ms for each call: a request that waits for its pages has all of them. With the default wait
 * the machine's speed decides how many come in time; the request computes the others. */
static void test_slow(void **state)
{
    const fault_plan slow = { .calls = FAULT_ALL, .delay_ms = 100 };

    (void)state;
    assert_int_equal(asked_again(&slow, QUIRE_TIER_WAIT_ALWAYS), N_PROMPT - 1);
    (void)asked_again(&slow, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stuck_reading),
        cmocka_unit_test(test_stuck_writing),
        cmocka_unit_test(test_slow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
