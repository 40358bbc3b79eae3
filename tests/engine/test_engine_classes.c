/* test_engine_classes.c - service classes in the engine: which class takes rows, places and pages
 * from which; no class starves; displacement does not change a request's tokens.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/adapt/degrade.h"
#include "engine/loop/schedule.h"
#include "engine_fixture.h"
#include "seed.h"

#include <stdatomic.h>
#include <string.h>

#define N_CTX        512u
#define N_PROMPT     100u
#define N_TOKENS     40u
#define N_LONG       300u
#define CHUNK        64u
#define REALTIME     0u
#define STANDARD     QUIRE_CLASS_STANDARD
#define BATCH        2u
#define AGING_US     1000000u
#define TURN_TICK_US 10000u
#define ROOMY_BYTES  ((uint64_t)64 << 20)

/* A clock that tests move; each read adds `tick`. An armed clock calls a function of the test at
 * its next read, so tests can act between the admissions of two steps. */
typedef struct test_clock {
    atomic_ullong us;
    atomic_ullong tick;
    atomic_bool is_armed;
    void (*fire)(void);
} test_clock;

static uint64_t clock_us(void *ctx)
{
    test_clock *c = ctx;

    if (atomic_exchange(&c->is_armed, false)) {
        c->fire();
    }
    return atomic_fetch_add(&c->us, atomic_load(&c->tick));
}

static test_clock clock_now;

/* Default classes, room for n_running requests at once and as many parked ones as n_seqs leaves,
 * and a clock that stands still: nothing becomes known about costs. */
static quire_engine_opts opts_default(uint32_t n_running)
{
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;

    atomic_store(&clock_now.us, 1000);
    atomic_store(&clock_now.tick, 0);
    opts.n_running_max = n_running;
    opts.chunk_tokens = CHUNK;
    opts.aging_us = AGING_US;
    opts.clock_us = clock_us;
    opts.clock_ctx = &clock_now;
    quire_classes_default(&opts.classes);
    return opts;
}

static engine_bench bench_with(const quire_engine_opts *opts, uint32_t n_seqs, bool is_tight)
{
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, n_seqs);

    runtime.kv_budget_bytes = is_tight ? 0 : ROOMY_BYTES; /* 0: of one context */
    return bench_tiny(opts, &runtime);
}

/* Sealed formats, two threads; nothing is found in a cache, or tokens would depend on it. */
static engine_bench bench_sealed(quire_engine_opts *opts, uint32_t n_seqs)
{
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, n_seqs);

    opts->no_prefix_cache = true;
    runtime.kv_budget_bytes = ROOMY_BYTES;
    runtime.k_format = runtime.v_format = QUIRE_FORMAT_Q4;
    runtime.n_threads = 2;
    return bench_tiny(opts, &runtime);
}

typedef struct job {
    int32_t prompt[N_CTX];
    uint32_t n_prompt;
    uint32_t n_tokens;
    quire_request *request;
} job;

static void job_begin(const engine_bench *b, job *j, uint32_t class_index, uint64_t seed)
{
    quire_request_params params;

    tokens_make(j->prompt, j->n_prompt, seed);
    params = params_greedy(j->prompt, j->n_prompt, j->n_tokens);
    params.class_index = class_index;
    j->request = submit(b, &params);
}

static void job_start(const engine_bench *b, job *j, uint32_t class_index, uint64_t seed)
{
    j->n_prompt = N_PROMPT;
    j->n_tokens = N_TOKENS;
    job_begin(b, j, class_index, seed);
}

/* The job ended with the tokens of the plain loop. */
static void job_check(const engine_bench *b, job *j)
{
    int32_t expected[N_CTX], got[N_CTX];

    assert_int_equal(collect(j->request, got, N_CTX), j->n_tokens);
    reference(b, j->prompt, j->n_prompt, expected, j->n_tokens);
    assert_memory_equal(got, expected, j->n_tokens * sizeof *got);
    finish_as(j->request, QUIRE_FINISH_LENGTH);
}

static quire_engine_stats stats_of(const engine_bench *b)
{
    quire_engine_stats stats;

    quire_engine_stats_get(b->engine, &stats);
    return stats;
}

/* ---- within one step ---- */

/* Two batch requests have both places. A realtime one comes: in the next step it has a place, all
 * rows, and they have none; one is parked with its pages. */
static void test_displaced_within_one_step(void **state)
{
    const quire_engine_opts opts = opts_default(2);
    engine_bench b = bench_with(&opts, 4, false);
    job low[2], high;
    quire_engine_stats before, after;
    gate *g = gate_close(b.engine);

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        job_start(&b, &low[i], BATCH, 10 + i);
    }
    for (int i = 0; i < 8; i++) {
        gate_step(g);
    }
    before = stats_of(&b);
    assert_int_equal(before.classes[BATCH].running, 2);
    assert_int_equal(before.requests_decoding, 2);

    job_start(&b, &high, REALTIME, 12);
    gate_step(g);
    after = stats_of(&b);
    assert_int_equal(after.classes[REALTIME].running, 1);
    assert_int_equal(after.classes[REALTIME].prefill_rows_total, CHUNK);
    assert_int_equal(after.classes[BATCH].running, 1);
    assert_int_equal(after.classes[BATCH].parked, 1);
    assert_int_equal(after.classes[BATCH].waiting, 0);
    assert_int_equal(after.classes[BATCH].displaced_total, 1);
    assert_int_equal(after.classes[BATCH].parked_total, 1);
    assert_int_equal(after.classes[BATCH].decode_rows_total,
                     before.classes[BATCH].decode_rows_total);
    assert_int_equal(after.requests_parked, 1);
    assert_int_equal(after.requests_waiting, 0);
    assert_int_equal(after.preemptions_total, 0);
    assert_int_equal(after.cache.pages_live, before.cache.pages_live + 1);
    gate_open(g);

    job_check(&b, &high);
    assert_int_equal(finish(low[0].request)->n_parkings, 0); /* the younger one is parked */
    assert_int_equal(finish(low[1].request)->n_parkings, 1);
    assert_int_equal(finish(low[1].request)->n_recomputed_tokens, 0);
    job_check(&b, &low[0]);
    job_check(&b, &low[1]);
    after = stats_now(b.engine);
    assert_int_equal(after.classes[BATCH].resumed_total, 1);
    assert_int_equal(after.classes[BATCH].finished_total, 2);
    assert_int_equal(after.classes[REALTIME].ttft.n, 1);
    assert_int_equal(after.classes[BATCH].tpot.n, 2);
    bench_close(&b);
}

/* Not the other way round: a low one waits for a place. */
static void test_a_low_one_waits(void **state)
{
    const quire_engine_opts opts = opts_default(1);
    engine_bench b = bench_with(&opts, 3, false);
    job high, low;
    quire_engine_stats stats;
    gate *g = gate_close(b.engine);

    (void)state;
    job_start(&b, &high, STANDARD, 20);
    gate_step(g);
    job_start(&b, &low, BATCH, 21);
    for (int i = 0; i < 5; i++) {
        gate_step(g);
        stats = stats_of(&b);
        assert_int_equal(stats.classes[STANDARD].running, 1);
        assert_int_equal(stats.classes[BATCH].waiting, 1);
    }
    gate_open(g);
    assert_int_equal(finish(high.request)->n_parkings, 0);
    job_check(&b, &high);
    job_check(&b, &low);
    bench_close(&b);
}

/* No place among the parked: preempted, and computed again. */
static void test_displaced_without_a_place_to_park(void **state)
{
    const quire_engine_opts opts = opts_default(2);
    engine_bench b = bench_with(&opts, 2, false);
    job low[2], high;
    quire_engine_stats stats;
    gate *g = gate_close(b.engine);

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        job_start(&b, &low[i], BATCH, 30 + i);
    }
    for (int i = 0; i < 8; i++) {
        gate_step(g);
    }
    job_start(&b, &high, REALTIME, 32);
    gate_step(g);
    stats = stats_of(&b);
    assert_int_equal(stats.classes[REALTIME].running, 1);
    assert_int_equal(stats.classes[BATCH].parked, 0);
    assert_int_equal(stats.classes[BATCH].waiting, 1);
    assert_int_equal(stats.classes[BATCH].displaced_total, 1);
    assert_int_equal(stats.classes[BATCH].preempted_total, 1);
    gate_open(g);
    job_check(&b, &high);
    job_check(&b, &low[0]);
    job_check(&b, &low[1]);
    bench_close(&b);
}

static engine_bench *late_bench;
static job late;

static void late_begin(void)
{
    job_start(late_bench, &late, REALTIME, 36);
}

/* A high request arrives during a step of a lower class, or after admission: the step is given up,
 * and the next step is the high request's. The tokens do not change. */
static void step_is_given_up(bool is_sealed)
{
    quire_engine_opts opts = opts_default(4);
    engine_bench b = is_sealed ? bench_sealed(&opts, 6) : bench_with(&opts, 6, false);
    job low[2];
    quire_engine_stats before, after;
    gate *g = gate_close(b.engine);

    late_bench = &b;
    clock_now.fire = late_begin;
    job_start(&b, &low[0], BATCH, 34);
    for (int i = 0; i < 4; i++) {
        gate_step(g);
    }
    job_start(&b, &low[1], BATCH, 35);
    gate_step(g);
    before = stats_of(&b);
    assert_int_equal(before.requests_prefilling, 1);
    assert_int_equal(before.requests_decoding, 1);
    atomic_store(&clock_now.is_armed, true);
    gate_step(g);
    after = stats_of(&b);
    assert_int_equal(after.steps_total, before.steps_total);
    assert_int_equal(after.classes[BATCH].interrupted_total, 1);
    assert_int_equal(after.classes[BATCH].prefill_rows_total,
                     before.classes[BATCH].prefill_rows_total);
    gate_step(g);
    after = stats_of(&b);
    assert_int_equal(after.classes[REALTIME].prefill_rows_total, CHUNK);
    assert_int_equal(after.classes[BATCH].prefill_rows_total,
                     before.classes[BATCH].prefill_rows_total);
    gate_open(g);
    validate(b.engine);
    job_check(&b, &late);
    job_check(&b, &low[0]);
    job_check(&b, &low[1]);
    bench_close(&b);
}

static void test_a_step_is_given_up(void **state)
{
    (void)state;
    step_is_given_up(false);
    step_is_given_up(true);
}

/* ---- pages ---- */

/* The budget holds one context, and a batch request has nearly filled it. A realtime request that
 * does not fit beside it takes its pages at once, those of a parked request first. */
static void test_pages_are_taken(void **state)
{
    const quire_engine_opts opts = opts_default(2);
    engine_bench b = bench_with(&opts, 4, true);
    job low[2], high[2];
    quire_engine_stats stats;
    gate *g = gate_close(b.engine);

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        job_start(&b, &low[i], BATCH, 40 + i);
    }
    for (int i = 0; i < 8; i++) {
        gate_step(g);
    }
    assert_int_equal(stats_of(&b).classes[BATCH].running, 2);
    high[0].n_prompt = 10; /* fits: parks one */
    high[0].n_tokens = N_TOKENS;
    job_begin(&b, &high[0], REALTIME, 42);
    gate_step(g);
    stats = stats_of(&b);
    assert_int_equal(stats.classes[BATCH].parked, 1);
    assert_int_equal(stats.classes[BATCH].preempted_total, 0);

    high[1].n_prompt = 200; /* does not: takes the pages of the parked one, and the other's place */
    high[1].n_tokens = N_TOKENS;
    job_begin(&b, &high[1], REALTIME, 43);
    gate_step(g);
    stats = stats_of(&b);
    assert_int_equal(stats.classes[REALTIME].running, 2);
    assert_int_equal(stats.classes[BATCH].preempted_total, 2);
    assert_int_equal(stats.classes[BATCH].parked, 0);
    gate_open(g);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(finish(high[i].request)->n_preemptions, 0);
        job_check(&b, &high[i]);
        job_check(&b, &low[i]);
    }
    validate(b.engine);
    bench_close(&b);
}

/* Lower requests keep their pages if all of these pages together would not suffice. */
static void test_not_in_vain(void **state)
{
    const quire_engine_opts opts = opts_default(3);
    engine_bench b = bench_with(&opts, 4, true);
    job low, same, large;
    quire_engine_stats stats;
    gate *g = gate_close(b.engine);

    (void)state;
    same.n_prompt = 220;
    same.n_tokens = N_TOKENS;
    job_begin(&b, &same, REALTIME, 50);
    gate_step(g);
    job_start(&b, &low, BATCH, 51);
    for (int i = 0; i < 8; i++) {
        gate_step(g);
    }
    assert_int_equal(stats_of(&b).classes[BATCH].running, 1);
    large.n_prompt = 400;
    large.n_tokens = N_TOKENS;
    job_begin(&b, &large, REALTIME, 52);
    gate_step(g);
    stats = stats_of(&b);
    assert_int_equal(stats.classes[REALTIME].waiting, 1);
    assert_int_equal(stats.classes[BATCH].running, 1);
    assert_int_equal(stats.preemptions_total, 0);
    gate_open(g);
    job_check(&b, &same);
    job_check(&b, &large);
    job_check(&b, &low);
    bench_close(&b);
}

/* A step finds no pages: a parked request gives up its pages before a running one. */
static void test_growth_takes_from_the_parked(void **state)
{
    const quire_engine_opts opts = opts_default(1);
    engine_bench b = bench_with(&opts, 3, true);
    job low, high;
    gate *g = gate_close(b.engine);

    (void)state;
    low.n_prompt = 250;
    low.n_tokens = N_TOKENS;
    job_begin(&b, &low, BATCH, 60);
    for (int i = 0; i < 6; i++) {
        gate_step(g);
    }
    high.n_prompt = 60;
    high.n_tokens = N_LONG; /* grows until it needs the parked request's memory */
    job_begin(&b, &high, REALTIME, 61);
    gate_step(g);
    assert_int_equal(stats_of(&b).classes[BATCH].parked, 1);
    gate_open(g);
    assert_int_equal(finish(high.request)->n_preemptions, 0);
    job_check(&b, &high);
    assert_int_equal(finish(low.request)->n_preemptions, 1);
    job_check(&b, &low);
    bench_close(&b);
}

/* Parked requests alone hold pages, and none could go on beside the others: they do, one by one. */
static void test_parked_ones_go_on(void **state)
{
    quire_engine_opts opts = opts_default(2);
    engine_bench b;
    job low[2], high[2];
    gate *g;

    (void)state;
    opts.admit = QUIRE_ADMIT_GROW;
    b = bench_with(&opts, 4, true);
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < 2; i++) {
        low[i].n_prompt = 170;
        low[i].n_tokens = 300;
        job_begin(&b, &low[i], BATCH, 70 + i);
    }
    for (int i = 0; i < 10; i++) {
        gate_step(g);
    }
    for (uint32_t i = 0; i < 2; i++) {
        high[i].n_prompt = 10;
        high[i].n_tokens = 5;
        job_begin(&b, &high[i], REALTIME, 72 + i);
    }
    gate_step(g);
    assert_int_equal(stats_of(&b).classes[REALTIME].running, 2);
    gate_open(g);
    for (uint32_t i = 0; i < 2; i++) {
        job_check(&b, &high[i]);
        job_check(&b, &low[i]);
    }
    bench_close(&b);
}

/* ---- nobody starves ---- */

/* There is one place, and two realtime requests always wait for it. A batch request that has waited
 * for two ranks gets the place when the running request ends, and keeps it to its end. */
static void test_waiting_counts(void **state)
{
    const quire_engine_opts opts = opts_default(1);
    engine_bench b = bench_with(&opts, 3, false);
    job low, high[12];
    uint32_t n_begun = 0, n_done = 0, n_before = 0;
    quire_engine_stats stats;
    gate *g = gate_close(b.engine);

    (void)state;
    job_start(&b, &low, BATCH, 80);
    for (uint32_t step = 0; step < 2000; step++) {
        while (n_begun < n_done + 2) {
            assert_true(n_begun < 12);
            high[n_begun].n_prompt = 10;
            high[n_begun].n_tokens = 6;
            job_begin(&b, &high[n_begun], REALTIME, 81 + n_begun);
            n_begun++;
        }
        if (step == 20) { /* one rank is not enough */
            atomic_fetch_add(&clock_now.us, AGING_US);
        } else if (step == 30) {
            atomic_fetch_add(&clock_now.us, AGING_US);
            n_before = (uint32_t)stats_of(&b).classes[REALTIME].finished_total;
        }
        gate_step(g);
        stats = stats_of(&b);
        n_done = (uint32_t)stats.classes[REALTIME].finished_total;
        if (stats.classes[BATCH].running > 0) {
            break;
        }
    }
    assert_true(n_before > 0);
    assert_int_equal(stats.classes[BATCH].promoted_total, 1);
    assert_true(n_done <= n_before + 1);
    while (stats.classes[BATCH].finished_total == 0) {
        assert_int_equal(stats.classes[BATCH].running, 1); /* not displaced again */
        gate_step(g);
        stats = stats_of(&b);
    }
    assert_int_equal(stats.classes[BATCH].parked_total, 0);
    gate_open(g);
    job_check(&b, &low);
    for (uint32_t i = 0; i < n_begun; i++) {
        job_check(&b, &high[i]);
    }
    bench_close(&b);
}

/* Realtime prefill fills every step; batch rows come all the same, in turns. */
static void test_turns(void **state)
{
    const uint32_t n_idle_max = (uint32_t)(QUIRE_TURN_US * 21 / TURN_TICK_US) + 2;
    const quire_engine_opts opts = opts_default(4);
    engine_bench b = bench_with(&opts, 6, false);
    job low, high;
    quire_engine_stats stats;
    uint64_t rows = 0;
    uint32_t n_idle = 0;
    gate *g = gate_close(b.engine);

    (void)state;
    job_start(&b, &low, BATCH, 90);
    gate_step(g);
    gate_step(g);
    assert_int_equal(stats_of(&b).classes[BATCH].prefill_rows_total, N_PROMPT);
    atomic_store(&clock_now.tick, TURN_TICK_US); /* a step takes several of these */
    for (uint32_t i = 0; rows < 4; i++) {
        if (i % 6 == 0) { /* before it is computed, another takes its place */
            if (i > 0) {
                quire_request_cancel(high.request);
                quire_request_release(high.request);
            }
            high.n_prompt = 450;
            high.n_tokens = 1;
            job_begin(&b, &high, REALTIME, 91 + i);
        }
        gate_step(g);
        stats = stats_of(&b);
        n_idle = stats.classes[BATCH].decode_rows_total > rows ? 0 : n_idle + 1;
        rows = stats.classes[BATCH].decode_rows_total;
        assert_true(n_idle <= n_idle_max);
        assert_true(stats.classes[REALTIME].steps_total == i + 1);
    }
    assert_int_equal(stats.classes[BATCH].turns_total, rows);
    quire_request_cancel(high.request);
    gate_open(g);
    (void)finish(high.request);
    quire_request_release(high.request);
    job_check(&b, &low);
    bench_close(&b);
}

/* ---- pressure ---- */

/* A target that cannot be kept: fewer batch requests run, in the end one; all of them again when
 * realtime is gone. */
static void test_degradation(void **state)
{
    quire_engine_opts opts = opts_default(8);
    engine_bench b;
    job low[4], high;
    quire_engine_stats stats;
    gate *g;

    (void)state;
    opts.classes.items[REALTIME].tpot_target_ms = 0.001;
    b = bench_with(&opts, 16, false);
    atomic_store(&clock_now.tick, 10000);
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < 4; i++) {
        low[i].n_prompt = 10;
        low[i].n_tokens = N_LONG;
        job_begin(&b, &low[i], BATCH, 100 + i);
    }
    high.n_prompt = 10;
    high.n_tokens = N_LONG;
    job_begin(&b, &high, REALTIME, 104);
    for (int i = 0; i < 150; i++) {
        gate_step(g);
    }
    stats = stats_of(&b);
    assert_true(stats.classes[BATCH].cuts_total >= 2);
    assert_int_equal(stats.classes[BATCH].running_limit, 1);
    assert_int_equal(stats.classes[BATCH].running, 1);
    assert_int_equal(stats.classes[BATCH].parked, 3);
    assert_int_equal(stats.classes[REALTIME].running_limit, 8);
    assert_true(stats.classes[REALTIME].late_steps_total > 0);
    gate_open(g);
    job_check(&b, &high);
    for (uint32_t i = 0; i < 4; i++) {
        job_check(&b, &low[i]);
    }
    atomic_fetch_add(&clock_now.us, 20 * QUIRE_DEGRADE_WINDOW_US);
    for (int i = 0; i < 20; i++) {
        job_start(&b, &high, STANDARD, 110);
        job_check(&b, &high);
    }
    assert_int_equal(stats_now(b.engine).classes[BATCH].running_limit, 8);
    bench_close(&b);
}

/* Each class has its own queue, and refuses requests when it is full. */
static void test_refused_by_class(void **state)
{
    quire_engine_opts opts = opts_default(4);
    engine_bench b;
    job low[3], high;
    quire_request_params params;
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *refused;
    quire_engine_stats stats;
    gate *g;

    (void)state;
    opts.classes.items[BATCH].running_max = 1;
    opts.classes.items[BATCH].queue_max = 2;
    b = bench_with(&opts, 8, false);
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < 3; i++) {
        job_start(&b, &low[i], BATCH, 120 + i);
    }
    params = params_greedy(low[0].prompt, N_PROMPT, 1);
    params.class_index = BATCH;
    assert_int_equal(quire_engine_submit(b.engine, &params, &refused, &err), QUIRE_LIMIT);
    assert_non_null(strstr(err.message, "batch"));
    assert_null(refused);
    params.class_index = 3;
    assert_int_equal(quire_engine_submit(b.engine, &params, &refused, &err), QUIRE_INVAL);
    job_start(&b, &high, REALTIME, 123);
    gate_step(g);
    gate_step(g);
    stats = stats_of(&b);
    assert_int_equal(stats.classes[BATCH].running, 1);
    assert_int_equal(stats.classes[BATCH].waiting, 2);
    assert_int_equal(stats.classes[BATCH].refused_total, 1);
    assert_int_equal(stats.classes[BATCH].requests_total, 3);
    assert_int_equal(stats.classes[REALTIME].refused_total, 0);
    assert_int_equal(stats.rejected_queue_full_total, 1);
    gate_open(g);
    job_check(&b, &high);
    for (uint32_t i = 0; i < 3; i++) {
        job_check(&b, &low[i]);
    }
    bench_close(&b);
}

/* ---- a prefix that two classes share ---- */

/* A realtime request waits for a batch request that computes its prefix; the batch request becomes
 * as urgent. */
static void test_a_leader_of_a_lower_class(void **state)
{
    const quire_engine_opts opts = opts_default(4);
    engine_bench b = bench_with(&opts, 8, false);
    job low, other, high;
    quire_request_params params;
    quire_engine_stats stats;
    gate *g = gate_close(b.engine);

    (void)state;
    low.n_prompt = 400;
    low.n_tokens = 4;
    job_begin(&b, &low, BATCH, 130);
    gate_step(g);
    other.n_prompt = 300; /* would have all rows */
    other.n_tokens = 4;
    job_begin(&b, &other, STANDARD, 131);
    memcpy(&high, &low, sizeof high);
    params = params_greedy(high.prompt, high.n_prompt, high.n_tokens);
    params.class_index = REALTIME;
    high.request = submit(&b, &params);
    for (int i = 0; i < 5; i++) {
        gate_step(g);
        stats = stats_of(&b);
        assert_int_equal(stats.classes[STANDARD].prefill_rows_total, 0);
    }
    assert_int_equal(stats.classes[BATCH].prefill_rows_total, 6 * CHUNK);
    assert_int_equal(stats.prefix_waits_total, 1);
    gate_open(g);
    job_check(&b, &high);
    job_check(&b, &low);
    job_check(&b, &other);
    bench_close(&b);
}

/* ---- all together ---- */

/* Requests of all classes and lengths under tight memory, with the clock of the machine, so that
 * costs are learned and steps follow them: each gets the tokens it would have alone. */
static void test_tokens_stay_the_same(void **state)
{
    quire_rng rng = test_rng(140);

    (void)state;
    for (int round = 0; round < 8; round++) {
        quire_engine_opts opts = opts_default(2 + quire_rng_below(&rng, 6));
        engine_bench b;
        job jobs[24];

        opts.clock_us = NULL;
        opts.aging_us = 20000;
        opts.n_parked_max = 1 + quire_rng_below(&rng, 6);
        b = round % 4 == 3 ? bench_sealed(&opts, 12)
                           : bench_with(&opts, 12, quire_rng_below(&rng, 2) == 0);
        for (uint32_t i = 0; i < 24; i++) {
            jobs[i].n_prompt = 1 + quire_rng_below(&rng, 250);
            jobs[i].n_tokens = 1 + quire_rng_below(&rng, 100);
            job_begin(&b, &jobs[i], quire_rng_below(&rng, 3), 150 + i % 20);
            if (quire_rng_below(&rng, 3) == 0) {
                quire_request_token token;

                (void)quire_request_wait(jobs[quire_rng_below(&rng, i + 1)].request, 0, 20, &token);
            }
        }
        for (uint32_t i = 0; i < 24; i++) {
            if (quire_rng_below(&rng, 6) == 0) {
                quire_request_cancel(jobs[i].request);
                (void)finish(jobs[i].request);
                quire_request_release(jobs[i].request);
            } else {
                job_check(&b, &jobs[i]);
            }
        }
        validate(b.engine);
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_displaced_within_one_step),
        cmocka_unit_test(test_a_low_one_waits),
        cmocka_unit_test(test_displaced_without_a_place_to_park),
        cmocka_unit_test(test_a_step_is_given_up),
        cmocka_unit_test(test_pages_are_taken),
        cmocka_unit_test(test_not_in_vain),
        cmocka_unit_test(test_growth_takes_from_the_parked),
        cmocka_unit_test(test_parked_ones_go_on),
        cmocka_unit_test(test_waiting_counts),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_degradation),
        cmocka_unit_test(test_refused_by_class),
        cmocka_unit_test(test_a_leader_of_a_lower_class),
        cmocka_unit_test(test_tokens_stay_the_same),
    };

    return cmocka_run_group_tests_name("engine_classes", tests, NULL, NULL);
}
