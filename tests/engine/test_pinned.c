/* test_pinned.c - the engine's pinned region: low classes never use it, it follows the need of the
 * high classes, and excess need spills.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_fixture.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define N_CTX    1024u /* and the budget: 16 pages */
#define PAGE     64u
#define N_PAGES  (N_CTX / PAGE)
#define SECOND   1000000u
#define REALTIME 0u
#define BATCH    2u

static _Atomic uint64_t now_us;

static quire_engine_opts opts_pinned(uint32_t n_pages)
{
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;

    quire_classes_default(&opts.classes);
    opts.classes.items[REALTIME].is_pinned = true;
    opts.pinned_bytes = n_pages * tiny_page_bytes(PAGE);
    opts.precache.is_off = true;
    opts.clock_us = hands_of;
    opts.clock_ctx = &now_us;
    atomic_store(&now_us, 1000u * (uint64_t)SECOND);
    return opts;
}

static engine_bench bench_begin(const quire_engine_opts *opts)
{
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);

    return bench_tiny(opts, &runtime);
}

static quire_request *ask_begin(const engine_bench *b, uint32_t class_index, uint64_t seed,
                                uint32_t n, uint32_t max_tokens)
{
    int32_t tokens[N_CTX] = { 0 };
    quire_request_params params = params_greedy(tokens, n, max_tokens);

    tokens_make(tokens, n, seed);
    params.class_index = class_index;
    return submit(b, &params);
}

/* A prompt of n tokens and one more. Returns how many were cached. */
static uint32_t ask(const engine_bench *b, uint32_t class_index, uint64_t seed, uint32_t n)
{
    quire_request *request = ask_begin(b, class_index, seed, n, 1);
    const uint32_t n_cached = finish(request)->n_cached_tokens;

    finish_as(request, QUIRE_FINISH_LENGTH);
    return n_cached;
}

/* So many seconds, each with its upkeep. */
static quire_memory_stats seconds_pass(const engine_bench *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        atomic_fetch_add(&now_us, SECOND);
        (void)stats_now(b->engine);
    }
    return stats_now(b->engine).memory;
}

static void test_a_flood_of_batch_takes_nothing_of_it(void **state)
{
    const quire_engine_opts opts = opts_pinned(6);
    engine_bench b = bench_begin(&opts);
    quire_memory_stats m;

    (void)state;
    assert_int_equal(ask(&b, REALTIME, 1, 5 * PAGE + 10), 0);
    for (uint64_t i = 0; i < 8; i++) {
        assert_true(ask(&b, BATCH, 100 + i, 7 * PAGE) < 8); /* a few tokens may be the same */
    }
    m = seconds_pass(&b, 1);
    assert_int_equal(m.pinned_budget_bytes, 6 * tiny_page_bytes(PAGE));
    assert_int_equal(m.dynamic_budget_bytes, (N_PAGES - 6) * tiny_page_bytes(PAGE));
    assert_true(m.dynamic_charged_bytes <= m.dynamic_budget_bytes);
    assert_int_equal(m.pinned_charged_bytes, 6 * tiny_page_bytes(PAGE));
    assert_int_equal(m.spilled_pages_total, 0);
    assert_int_equal(ask(&b, REALTIME, 1, 5 * PAGE + 10), 5 * PAGE + 9);
    validate(b.engine);
    bench_close(&b);
}

/* A request of a high class runs on pages that a low one runs on, though they are many more than
 * its region has: they cost it nothing where they are. */
static void test_pages_of_a_low_one_are_shared(void **state)
{
    const quire_engine_opts opts = opts_pinned(3);
    engine_bench b = bench_begin(&opts);
    int32_t low[10 * PAGE + 10], high[10 * PAGE + 10];
    quire_request_params params = params_greedy(low, 10 * PAGE + 10, 40);
    quire_request *requests[2];
    quire_engine_stats stats;
    gate *g = gate_close(b.engine);

    (void)state;
    tokens_make(low, 10 * PAGE + 10, 1);
    memcpy(high, low, 10 * PAGE * sizeof *low);
    tokens_make(high + 10 * PAGE, 10, 2);
    params.class_index = BATCH;
    requests[0] = submit(&b, &params);
    do { /* until all of its prompt is published */
        gate_step(g);
        quire_engine_stats_get(b.engine, &stats);
    } while (stats.requests_decoding == 0);
    params = params_greedy(high, 10 * PAGE + 10, 1);
    params.class_index = REALTIME;
    requests[1] = submit(&b, &params);
    gate_step(g);
    gate_step(g);
    quire_engine_stats_get(b.engine, &stats);
    assert_int_equal(stats.classes[REALTIME].waiting, 0);
    assert_int_equal(stats.classes[BATCH].preempted_total, 0);
    gate_open(g);
    assert_true(finish(requests[1])->n_cached_tokens >= 10 * PAGE);
    finish_as(requests[1], QUIRE_FINISH_LENGTH);
    finish_as(requests[0], QUIRE_FINISH_LENGTH);
    validate(b.engine);
    bench_close(&b);
}

static void test_a_burst_spills_and_says_so(void **state)
{
    const quire_engine_opts opts = opts_pinned(4);
    engine_bench b = bench_begin(&opts);
    quire_request *requests[3];
    quire_memory_stats m;
    char said[96];

    (void)state;
    assert_int_equal(ask(&b, BATCH, 100, 10 * PAGE), 0);
    for (uint64_t i = 0; i < 3; i++) {
        requests[i] = ask_begin(&b, REALTIME, i, 4 * PAGE, 20);
    }
    for (uint32_t i = 0; i < 3; i++) {
        finish_as(requests[i], QUIRE_FINISH_LENGTH);
    }
    m = seconds_pass(&b, 2);
    assert_true(m.spilled_pages_total > 0);
    /* Four pages have 131,072 bytes: less than a unit of MB shows. */
    (void)snprintf(said, sizeof said,
                   "high classes took %llu pages beyond the pinned region's 131 kB; ",
                   (unsigned long long)m.spilled_pages_total);
    assert_int_equal(events_of(&b, QUIRE_EVENT_SPILLED, said), 1);
    assert_int_equal(events_of(&b, QUIRE_EVENT_SPILLED, ""), 1);
    assert_int_equal(m.events_total[QUIRE_EVENT_SPILLED], 1);
    validate(b.engine);
    bench_close(&b);
}

static void test_without_spilling_a_request_must_fit(void **state)
{
    quire_engine_opts opts = opts_pinned(4);
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *request;
    quire_request_params params;
    int32_t tokens[N_CTX];
    engine_bench b;

    (void)state;
    opts.pinned_stays = true;
    b = bench_begin(&opts);
    tokens_make(tokens, N_CTX, 1);
    params = params_greedy(tokens, 4 * PAGE, 1);
    params.class_index = REALTIME;
    assert_int_equal(quire_engine_submit(b.engine, &params, &request, &err), QUIRE_RANGE);
    assert_int_equal(ask(&b, REALTIME, 1, 4 * PAGE - 1), 0);
    assert_int_equal(ask(&b, REALTIME, 2, 4 * PAGE - 1), 0);
    assert_int_equal(seconds_pass(&b, 1).spilled_pages_total, 0);
    assert_int_equal(ask(&b, BATCH, 3, 11 * PAGE), 0);
    bench_close(&b);
}

/* Many high requests at once make it grow, quiet makes it shrink; each step is an event. */
static void test_it_follows_the_need(void **state)
{
    quire_engine_opts opts = opts_pinned(3);
    quire_memory_stats m;
    engine_bench b;

    (void)state;
    opts.pinned.floor_bytes = 2 * tiny_page_bytes(PAGE);
    opts.pinned.ceiling_bytes = 8 * tiny_page_bytes(PAGE);
    opts.pinned.window_us = 60u * SECOND;
    opts.pinned.recent_us = 20u * SECOND;
    b = bench_begin(&opts);
    for (uint64_t i = 0; i < 3; i++) { /* nine pages, at most eight are to be had */
        (void)ask(&b, REALTIME, i, 3 * PAGE);
    }
    m = seconds_pass(&b, 10);
    assert_int_equal(m.pinned_budget_bytes, 8 * tiny_page_bytes(PAGE));
    assert_int_equal(m.dynamic_budget_bytes, (N_PAGES - 8) * tiny_page_bytes(PAGE));
    assert_int_equal(m.pinned_need_bytes, 9 * tiny_page_bytes(PAGE));
    assert_int_equal(m.pinned_grown_total, 5);
    assert_int_equal(events_of(&b, QUIRE_EVENT_REGION_GROWN, ""), 5);
    assert_int_equal(events_of(&b, QUIRE_EVENT_REGION_HELD, ""), 1); /* more is needed */
    m = seconds_pass(&b, 60 + 6 * 31);
    assert_int_equal(m.pinned_need_p99_bytes, 0);
    assert_int_equal(m.pinned_budget_bytes, 2 * tiny_page_bytes(PAGE));
    assert_int_equal(m.pinned_shrunk_total, 6);
    assert_int_equal(events_of(&b, QUIRE_EVENT_REGION_SHRUNK, ""), 6);
    m = seconds_pass(&b, 100);
    assert_int_equal(m.pinned_grown_total + m.pinned_shrunk_total, 11);
    validate(b.engine);
    bench_close(&b);
}

/* The dynamic region keeps its floor however much the high classes want. */
static void test_it_locks_no_more_than_it_may(void **state)
{
    quire_engine_opts opts = opts_pinned(3);
    quire_memory_stats m;
    engine_bench b;

    (void)state;
    opts.pinned.ceiling_bytes = N_PAGES * tiny_page_bytes(PAGE);
    opts.pinned.dynamic_floor_bytes = 11 * tiny_page_bytes(PAGE);
    b = bench_begin(&opts);
    for (uint64_t i = 0; i < 4; i++) {
        (void)ask(&b, REALTIME, i, 4 * PAGE);
    }
    m = seconds_pass(&b, 20);
    assert_int_equal(m.dynamic_budget_bytes, 11 * tiny_page_bytes(PAGE));
    assert_int_equal(m.pinned_budget_bytes, 5 * tiny_page_bytes(PAGE));
    assert_int_equal(events_of(&b, QUIRE_EVENT_REGION_HELD, ""), 1);
    bench_close(&b);
}

static void test_options(void **state)
{
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);
    quire_engine_opts opts = opts_pinned(0);
    engine_bench b = bench_tiny(&opts, &runtime);
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine *engine;

    (void)state;
    assert_int_equal(seconds_pass(&b, 1).pinned_budget_bytes, 0);
    assert_int_equal(ask(&b, REALTIME, 1, 4 * PAGE), 0); /* a pinned class without a region */
    quire_engine_destroy(b.engine);
    opts.model = b.model;
    opts.runtime = b.runtime;
    opts.pinned_bytes = N_PAGES * tiny_page_bytes(PAGE);
    assert_int_equal(quire_engine_create(&engine, &opts, &err), QUIRE_INVAL);
    opts.pinned_bytes = tiny_page_bytes(PAGE);
    opts.pinned.floor_bytes = 3 * tiny_page_bytes(PAGE);
    opts.pinned.ceiling_bytes = 2 * tiny_page_bytes(PAGE);
    assert_int_equal(quire_engine_create(&engine, &opts, &err), QUIRE_INVAL);
    opts.pinned.floor_bytes = 0;
    assert_int_equal(quire_engine_create(&b.engine, &opts, &err), QUIRE_OK);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_flood_of_batch_takes_nothing_of_it),
        cmocka_unit_test(test_pages_of_a_low_one_are_shared),
        cmocka_unit_test(test_a_burst_spills_and_says_so),
        cmocka_unit_test(test_without_spilling_a_request_must_fit),
        cmocka_unit_test(test_it_follows_the_need),
        cmocka_unit_test(test_it_locks_no_more_than_it_may),
        cmocka_unit_test(test_options),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
