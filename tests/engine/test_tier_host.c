/* test_tier_host.c - KV on a device, a mock, with the host's memory below it: pages that leave the
 * device come back with their bits.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "tier_kit.h"

#include "device/mock_device.h"
#include "doze.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop_object.h"
#include "engine/loop/tier_object.h"
#include "store/chain_store.h"
#include "store/host_store.h"

#include <string.h>

#define N_PAGES (N_PROMPT / PAGE + 1) /* with the open one */

static quire_mock_device_opts mock_opts; /* of devices that are opened next */
static quire_device *mock;               /* opened last */
static bool copies_some;                 /* engines copy only the pages worth it */
static size_t buffer_bytes;              /* of engines; 0 = the default */

static int open_mock(quire_device **out, const char *name, const quire_device_opts *opts,
                     quire_error *err)
{
    const int rc = quire_mock_device_open(out, opts, &mock_opts, err);

    (void)name;
    mock = *out;
    return rc;
}

static engine_bench bench_with(quire_store *store, const quire_engine_opts *opts)
{
    quire_engine_opts engine = *opts;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);

    runtime.k_format = runtime.v_format = QUIRE_FORMAT_Q8;
    runtime.device = "mock";
    runtime.device_open = open_mock;
    engine.tier = (quire_tier_opts){ .store = store,
                                     .copies_all = !copies_some,
                                     .buffer_bytes = buffer_bytes,
                                     .wait_us = QUIRE_TIER_WAIT_ALWAYS };
    return bench_panels(32, &engine, &runtime);
}

static engine_bench bench_over(quire_store *store)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;

    return bench_with(store, &engine);
}

static void test_device_host(void **state)
{
    quire_store *store;
    engine_bench b;
    int32_t text[N_PROMPT] = { 0 }, first[N_TOKENS], again[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    quire_tier_stats tier;

    (void)state;
    assert_int_equal(quire_host_store_create(
                         &store, &(quire_host_store_opts){ .capacity_bytes = (uint64_t)64 << 20 }),
                     QUIRE_OK);
    b = bench_over(store);
    tokens_make(text, N_PROMPT, 1);
    assert_int_equal(tier_run(&b, &params, first), 0);
    tier_wait_records(&b, N_PAGES);
    tier_forget(&b);
    assert_int_equal(tier_run(&b, &params, again), N_PROMPT - 1);
    assert_memory_equal(first, again, sizeof first);
    tier = stats_now(b.engine).tier;
    assert_string_equal(tier.name, "host");
    assert_int_equal(tier.store.results_total[QUIRE_STORE_OK], N_PAGES);
    validate(b.engine);
    bench_close(&b);
}

/* In front of a directory, for which another store stands, one that refuses every second page,
 * and without copies: both get all pages, and the host's memory gives them back. */
static void test_device_host_disk(void **state)
{
    const quire_memory_store_opts fails = { .failure = 0.5, .outlives = true };
    quire_store *disk = tier_store_new();
    quire_store *host, *store;
    engine_bench b;
    int32_t text[N_PROMPT] = { 0 }, first[N_TOKENS], again[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    quire_tier_stats tier;
    quire_store_stats below;

    (void)state;
    assert_int_equal(quire_host_store_create(
                         &host, &(quire_host_store_opts){ .capacity_bytes = (uint64_t)64 << 20 }),
                     QUIRE_OK);
    assert_int_equal(
        quire_chain_store_create(&store, &(quire_chain_store_opts){ .near = host,
                                                                    .far = disk,
                                                                    .copy_bytes = 1,
                                                                    .is_near_volatile = true }),
        QUIRE_OK);
    quire_memory_store_set(disk, &fails);
    b = bench_over(store);
    tokens_make(text, N_PROMPT, 1);
    assert_int_equal(tier_run(&b, &params, first), 0);
    tier_wait_records(&b, 2 * N_PAGES);
    tier_forget(&b);
    assert_int_equal(tier_run(&b, &params, again), N_PROMPT - 1);
    assert_memory_equal(first, again, sizeof first);
    tier = stats_now(b.engine).tier;
    assert_int_equal(tier.n_parts, 2);
    assert_int_equal(tier.parts[0].stats.results_total[QUIRE_STORE_OK], N_PAGES);
    assert_int_equal(tier.parts[1].stats.results_total[QUIRE_STORE_OK], 0);
    bench_close(&b);
    disk->ops->stats(disk, &below);
    assert_int_equal(below.records, N_PAGES);
    quire_memory_store_destroy(disk);
}

/* Nothing is copied at the end: no copy would outlive it. */
static void test_device_end(void **state)
{
    quire_store *store, *other;
    engine_bench b;
    int32_t text[N_PROMPT] = { 0 }, got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    quire_store_stats stats;

    (void)state;
    assert_int_equal(
        quire_host_store_create(&store, &(quire_host_store_opts){ .capacity_bytes = 64u << 20 }),
        QUIRE_OK);
    assert_int_equal(quire_host_store_share(&other, store), QUIRE_OK);
    copies_some = true;
    b = bench_over(store);
    copies_some = false;
    tokens_make(text, N_PROMPT, 1);
    assert_int_equal(tier_run(&b, &params, got), 0);
    bench_close(&b);
    other->ops->stats(other, &stats);
    assert_int_equal(stats.records, 0);
    other->ops->close(other, NULL, NULL);
}

#define N_ROOM   24u   /* pages that the host's memory has room for */
#define N_FLOOD  8u    /* texts of another class */
#define PINNED   2u    /* class of the lowest rank, pinned here */
#define RESERVED 0.375 /* share for more pages than the text has, above and below */

/* The answer to a text of a class, whose pages below memory are then n in all. */
static uint32_t run_copied(const engine_bench *b, uint32_t class_index, uint64_t seed, uint64_t n)
{
    int32_t text[N_PROMPT] = { 0 }, got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    uint32_t n_cached;

    tokens_make(text, N_PROMPT, seed);
    params.class_index = class_index;
    n_cached = tier_run(b, &params, got);
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && stats_now(b->engine).tier.copied_pages_total < n;
         i++) {
        test_doze_ms();
    }
    assert_true(stats_now(b->engine).tier.copied_pages_total >= n);
    return n_cached;
}

/* A text of a pinned class stays in the host's memory while texts of another class, of higher rank,
 * go through it. */
static void test_device_pinned(void **state)
{
    quire_host_store_opts opts = { .capacity_bytes = 64u << 20, .policy = QUIRE_EVICT_LRU };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_tier_stats tier;
    quire_store *store;
    engine_bench b;

    (void)state;
    assert_int_equal(quire_host_store_create(&store, &opts), QUIRE_OK);
    b = bench_over(store);
    (void)run_copied(&b, 0, 1, N_PAGES);
    tier = stats_now(b.engine).tier;
    opts.capacity_bytes = N_ROOM * tier.store.record_bytes / tier.store.records;
    engine.pinned_bytes =
        (uint64_t)(RESERVED * (double)stats_now(b.engine).memory.dynamic_budget_bytes);
    bench_close(&b);

    quire_classes_default(&engine.classes);
    engine.classes.items[PINNED].is_pinned = true;
    assert_int_equal(quire_host_store_create(&store, &opts), QUIRE_OK);
    b = bench_with(store, &engine);
    (void)run_copied(&b, PINNED, 1, N_PAGES);
    for (uint32_t i = 0; i < N_FLOOD; i++) {
        (void)run_copied(&b, QUIRE_CLASS_STANDARD, 2 + i,
                         N_PAGES + (1 + i) * (N_PAGES - 1)); /* open pages may follow */
    }
    assert_true(stats_now(b.engine).tier.store.evicted_total > 0);
    tier_forget(&b);
    assert_int_equal(run_copied(&b, PINNED, 1, 0), N_PROMPT - 1);
    assert_true(run_copied(&b, QUIRE_CLASS_STANDARD, 2, 0) < N_FULL);
    validate(b.engine);
    bench_close(&b);
}

#define N_LONG 200u /* tokens of an answer */

/* All pages in memory are free then, and none has the bytes that it had. */
static void wipe(const engine_bench *b)
{
    int32_t filler[N_CTX - 1] = { 0 }, got[1];
    const quire_request_params params = params_greedy(filler, N_CTX - 1, 1);
    quire_request *request;

    tier_forget(b);
    tokens_make(filler, N_CTX - 1, 3);
    request = submit(b, &params);
    assert_int_equal(collect(request, got, 1), 1);
    quire_request_release(request);
    tier_forget(b);
}

/* On a slow device a text comes up from the host's memory, alone, then while another request
 * computes: both have the bits that they have alone. */
static void test_device_beside(void **state)
{
    int32_t text[N_PROMPT] = { 0 }, other[PAGE] = { 0 };
    int32_t first[N_TOKENS], again[N_TOKENS], alone[N_LONG], beside[N_LONG];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    const quire_request_params long_params = params_greedy(other, PAGE, N_LONG);
    quire_request *requests[2];
    quire_store *store;
    engine_bench b;
    gate *g;

    (void)state;
    mock_opts = (quire_mock_device_opts){ .delay_ticks = 1000 };
    assert_int_equal(quire_host_store_create(
                         &store, &(quire_host_store_opts){ .capacity_bytes = (uint64_t)64 << 20 }),
                     QUIRE_OK);
    b = bench_over(store);
    tokens_make(text, N_PROMPT, 1);
    tokens_make(other, PAGE, 2);
    assert_int_equal(tier_run(&b, &params, first), 0);
    requests[0] = submit(&b, &long_params);
    assert_int_equal(collect(requests[0], alone, N_LONG), N_LONG);
    quire_request_release(requests[0]);
    tier_wait_records(&b, N_PAGES + (PAGE + N_LONG - 1) / PAGE + 1);
    wipe(&b);
    assert_int_equal(tier_run(&b, &params, again), N_PROMPT - 1);
    assert_memory_equal(first, again, sizeof first);
    wipe(&b);
    g = gate_close(b.engine);
    requests[0] = submit(&b, &long_params);
    gate_step(g);
    requests[1] = submit(&b, &params);
    gate_open(g);
    assert_int_equal(collect(requests[1], again, N_TOKENS), N_TOKENS);
    assert_int_equal(quire_request_result_get(requests[1])->n_cached_tokens, N_PROMPT - 1);
    assert_memory_equal(first, again, sizeof first);
    assert_int_equal(collect(requests[0], beside, N_LONG), N_LONG);
    assert_memory_equal(alone, beside, sizeof alone);
    quire_request_release(requests[0]);
    quire_request_release(requests[1]);
    validate(b.engine);
    bench_close(&b);
    mock_opts = (quire_mock_device_opts){ 0 };
}

/* Two requests on a slow device, one of which was preempted: it waits for pages that the other one
 * releases. The engine stands still. */
typedef struct preempted {
    engine_bench b;
    gate *g;
    quire_request *other;
    quire_request *victim;
    uint32_t n_down; /* pages that wait for their copies */
} preempted;

static void preempted_begin(preempted *p, const quire_request_params *params,
                            const quire_request_params *other)
{
    quire_store *store;
    quire_loop *loop;

    mock_opts = (quire_mock_device_opts){ .delay_ticks = 2 };
    copies_some = true;
    buffer_bytes = 1; /* two pages at a time */
    assert_int_equal(quire_host_store_create(
                         &store, &(quire_host_store_opts){ .capacity_bytes = (uint64_t)64 << 20 }),
                     QUIRE_OK);
    p->b = bench_over(store);
    copies_some = false;
    buffer_bytes = 0;
    loop = p->b.engine->loop;
    p->g = gate_close(p->b.engine);
    p->other = submit(&p->b, other);
    p->victim = submit(&p->b, params);
    while (loop->set.n_running < 2 || p->victim->n_tokens < N_PROMPT + 2 ||
           p->other->n_tokens < PAGE + 2) {
        gate_step(p->g);
    }
    quire_loop_preempt(loop, p->victim);
    /* No copy yet: the steps of the other one would wait for all of them. */
    assert_int_equal(loop->tier->n_puts_away, 0);
    p->n_down = loop->tier->down.n;
    assert_true(p->n_down >= N_FULL / PAGE);
}

/* Their answers without a preemption. */
static void answers_alone(const quire_request_params *params, const quire_request_params *other,
                          int32_t *want, int32_t *want_other)
{
    const quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;
    engine_bench b = bench_with(NULL, &opts);
    quire_request *request;

    (void)tier_run(&b, params, want);
    request = submit(&b, other);
    assert_int_equal(collect(request, want_other, N_LONG), N_LONG);
    quire_request_release(request);
    bench_close(&b);
}

static void preempted_end(preempted *p)
{
    validate(p->b.engine);
    bench_close(&p->b);
    mock_opts = (quire_mock_device_opts){ 0 };
}

/* The pages go down between the steps of the other request, and come back from there. */
static void test_device_preempted(void **state)
{
    int32_t text[N_PROMPT] = { 0 }, other[PAGE] = { 0 };
    int32_t want[N_TOKENS], want_other[N_LONG], got[N_TOKENS], got_other[N_LONG];
    const quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    const quire_request_params long_params = params_greedy(other, PAGE, N_LONG);
    const quire_loop *loop;
    preempted p;
    uint32_t n_before;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    tokens_make(other, PAGE, 2);
    answers_alone(&params, &long_params, want, want_other);
    preempted_begin(&p, &params, &long_params);
    loop = p.b.engine->loop;
    n_before = p.other->n_tokens;
    gate_step(p.g);
    assert_true(loop->tier->down.n > 0 && loop->tier->down.n < p.n_down);
    assert_true(p.other->n_tokens > n_before);
    gate_open(p.g);
    assert_int_equal(collect(p.other, got_other, N_LONG), N_LONG);
    assert_memory_equal(got_other, want_other, sizeof want_other);
    assert_int_equal(collect(p.victim, got, N_TOKENS), N_TOKENS);
    assert_memory_equal(got, want, sizeof want);
    quire_request_release(p.other);
    quire_request_release(p.victim);
    for (uint32_t i = 0;
         i < FIXTURE_WAIT_MS && stats_now(p.b.engine).tier.copied_pages_total < p.n_down; i++) {
        test_doze_ms();
    }
    wipe(&p.b);
    assert_true(tier_run(&p.b, &params, got) >= N_FULL);
    assert_memory_equal(got, want, sizeof want);
    preempted_end(&p);
}

/* A request ends with an error, or with its answer if it was done before. */
static void expect_or_error(quire_request *request, const int32_t *want, uint32_t n_want)
{
    int32_t got[N_LONG];
    const uint32_t n = collect(request, got, n_want);
    const quire_finish ending = quire_request_result_get(request)->finish;

    assert_true(ending == QUIRE_FINISH_ERROR || (ending == QUIRE_FINISH_LENGTH && n == n_want));
    assert_memory_equal(got, want, n * sizeof got[0]);
    quire_request_release(request);
}

/* The device is lost when some of the pages have gone down, before requests have ended or after. */
static void test_device_preempted_lost(void **state)
{
    const quire_mock_device_opts bad = { .copy_failure = 1.0 };
    int32_t text[N_PROMPT] = { 0 }, other[PAGE] = { 0 };
    int32_t want[N_TOKENS], want_other[N_LONG];
    const quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    const quire_request_params long_params = params_greedy(other, PAGE, N_LONG);
    preempted p;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    tokens_make(other, PAGE, 2);
    answers_alone(&params, &long_params, want, want_other);
    preempted_begin(&p, &params, &long_params);
    gate_step(p.g);
    assert_true(p.b.engine->loop->tier->down.n > 0);
    quire_mock_device_set(mock, &bad); /* its thread waits at the gate */
    gate_open(p.g);
    expect_or_error(p.other, want_other, N_LONG);
    expect_or_error(p.victim, want, N_TOKENS);
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && !quire_engine_is_lost(p.b.engine); i++) {
        test_doze_ms();
    }
    assert_true(quire_engine_is_lost(p.b.engine));
    preempted_end(&p);
}

/* Pages come up by copies that fail late: the device is lost, and no request gets an answer from
 * them. */
static void test_device_late_failure(void **state)
{
    const quire_mock_device_opts bad = { .delay_ticks = 1000, .copy_failure = 1.0 };
    int32_t text[N_PROMPT] = { 0 }, first[N_TOKENS], again[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    quire_request *request;
    quire_store *store;
    engine_bench b;
    gate *g;

    (void)state;
    assert_int_equal(quire_host_store_create(
                         &store, &(quire_host_store_opts){ .capacity_bytes = (uint64_t)64 << 20 }),
                     QUIRE_OK);
    b = bench_over(store);
    tokens_make(text, N_PROMPT, 1);
    assert_int_equal(tier_run(&b, &params, first), 0);
    tier_wait_records(&b, N_PAGES);
    tier_forget(&b);
    g = gate_close(b.engine);
    quire_mock_device_set(mock, &bad); /* its thread waits at the gate */
    request = submit(&b, &params);
    gate_open(g);
    assert_int_equal(collect(request, again, N_TOKENS), 0);
    finish_as(request, QUIRE_FINISH_ERROR);
    assert_true(quire_device_is_lost(mock));
    assert_true(stats_now(b.engine).tier.fetched_tokens_total > 0);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_host),
        cmocka_unit_test(test_device_host_disk),
        cmocka_unit_test(test_device_end),
        cmocka_unit_test(test_device_pinned),
        cmocka_unit_test(test_device_beside),
        cmocka_unit_test(test_device_preempted),
        cmocka_unit_test(test_device_preempted_lost),
        cmocka_unit_test(test_device_late_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
