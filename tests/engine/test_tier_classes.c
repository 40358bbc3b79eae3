/* test_tier_classes.c - fetches of high classes come first: buffers and places are theirs.
 *
 * The store holds back its answers until a test lets a tick pass; then all of them come at once.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "doze.h"
#include "tier_kit.h"

#define N_LONG     963u /* 15 full pages, and an open one */
#define N_PAGES    16u  /* of them */
#define N_SEQS     26u
#define BUFFERS    4u
#define HIGH       0u /* classes of quire_classes_default() */
#define LOW        2u
#define RECORD_MAX 16384u /* a record beside its page */

/* Texts with the seeds 1 .. n are in the store, which is slow from now on. */
static quire_store *store_with(uint32_t n, uint32_t n_tokens)
{
    const quire_memory_store_opts slow = { .outlives = true, .delay_ticks = 1 };
    quire_store *store = tier_store_new();
    engine_bench b = tier_bench(store, QUIRE_FORMAT_F32, true);
    int32_t text[N_CTX], got[N_TOKENS];

    for (uint32_t seed = 1; seed <= n; seed++) {
        quire_request_params params;

        tokens_make(text, n_tokens, seed);
        params = params_greedy(text, n_tokens, 1);
        (void)tier_run(&b, &params, got);
        tier_wait_records(&b, (uint64_t)seed * (n_tokens / PAGE + 1));
    }
    bench_close(&b);
    quire_memory_store_set(store, &slow);
    return store;
}

static engine_bench bench_with(quire_engine_opts engine)
{
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, N_SEQS);

    runtime.kv_budget_bytes = (uint64_t)64 << 20; /* room for all pages fetched at once */
    quire_classes_default(&engine.classes);
    engine.tier.wait_us = (uint64_t)FIXTURE_WAIT_MS * 1000u;
    return bench_tiny(&engine, &runtime);
}

static engine_bench bench_of(quire_store *store, size_t buffer_bytes)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;

    engine.n_running_max = 2;
    engine.tier = (quire_tier_opts){ .store = store, .buffer_bytes = buffer_bytes };
    return bench_with(engine);
}

static quire_request *ask(const engine_bench *b, uint32_t seed, uint32_t n, uint32_t class_index)
{
    int32_t text[N_CTX];
    quire_request_params params;

    tokens_make(text, n, seed);
    params = params_greedy(text, n, 1);
    params.class_index = class_index;
    return submit(b, &params);
}

static quire_engine_stats stats_of(const engine_bench *b)
{
    quire_engine_stats stats;

    quire_engine_stats_get(b->engine, &stats);
    return stats;
}

static uint32_t gets_now(const quire_store *store)
{
    quire_store_stats stats;

    store->ops->stats(store, &stats);
    return stats.gets_now;
}

/* Pages that the store has answered. */
static uint64_t answers_of(const quire_store *store)
{
    quire_store_stats stats;
    uint64_t n = 0;

    store->ops->stats(store, &stats);
    for (uint32_t i = 0; i < QUIRE_STORE_RESULT_COUNT; i++) {
        n += stats.results_total[i];
    }
    return n;
}

static void wait_fetching(const engine_bench *b, uint32_t n)
{
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && stats_of(b).tier.fetching != n; i++) {
        test_doze_ms();
    }
    assert_int_equal(stats_of(b).tier.fetching, n);
}

static bool is_admitted(const quire_request *r)
{
    quire_explanation e;

    return quire_request_explain(r, &e) == QUIRE_OK;
}

/* Let ticks pass until the request is admitted; the engine answers each with new questions. */
static void tick_until(quire_store *store, const quire_request *r)
{
    while (!is_admitted(r)) {
        if (gets_now(store) > 0) {
            quire_memory_store_tick(store);
        }
        test_doze_ms();
    }
}

static void finish_all(quire_store *store, quire_request **requests, uint32_t n, uint32_t n_cached)
{
    for (uint32_t i = 0; i < n; i++) {
        tick_until(store, requests[i]);
        assert_int_equal(finish(requests[i])->n_cached_tokens, n_cached);
        finish_as(requests[i], QUIRE_FINISH_LENGTH);
    }
}

/* With few buffers, a request of a high class is served before one that began earlier and one that
 * came later. */
static void test_buffers(void **state)
{
    quire_store *store = store_with(3, N_LONG);
    engine_bench b = bench_of(store, BUFFERS * (tiny_page_bytes(PAGE) + RECORD_MAX));
    quire_request *r[3];

    (void)state;
    r[1] = ask(&b, 1, N_LONG, LOW);
    wait_fetching(&b, 1);
    r[0] = ask(&b, 2, N_LONG, HIGH);
    wait_fetching(&b, 2);
    r[2] = ask(&b, 3, N_LONG, LOW);
    wait_fetching(&b, 3);
    tick_until(store, r[0]);
    assert_false(is_admitted(r[1]));
    assert_false(is_admitted(r[2]));
    finish_all(store, r, 3, N_LONG - 1);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* When as many requests fetch as may, one of a high class takes the place of one of a low class,
 * which fetches later and loses nothing; one of a low class waits. */
static void test_places(void **state)
{
    enum {
        N = QUIRE_TIER_FETCHES_MAX + 2
    };
    quire_store *store = store_with(N, N_PROMPT);
    engine_bench b = bench_of(store, 0);
    quire_request *r[N];

    (void)state;
    for (uint32_t i = 1; i < N; i++) {
        r[i] = ask(&b, i, N_PROMPT, LOW);
    }
    wait_fetching(&b, QUIRE_TIER_FETCHES_MAX);
    assert_int_equal(stats_of(&b).tier.fetches_total, QUIRE_TIER_FETCHES_MAX);
    r[0] = ask(&b, N, N_PROMPT, HIGH);
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && stats_of(&b).tier.fetches_total < N - 1; i++) {
        test_doze_ms();
    }
    assert_int_equal(stats_of(&b).tier.fetches_total, N - 1);
    assert_int_equal(stats_of(&b).tier.fetching, QUIRE_TIER_FETCHES_MAX);
    finish_all(store, r, N, N_PROMPT - 1);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* Ahead of time the pages of the class that begins first are fetched, whatever the order in which
 * the classes were named. */
static void test_prefetch(void **state)
{
    quire_store *store = store_with(2, N_LONG);
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_request *running, *low, *high;
    quire_request_params params;
    int32_t text[N_CTX];
    uint64_t n_before, n_answers;
    engine_bench b;
    gate *g;

    (void)state;
    engine.n_running_max = 1;
    engine.tier = (quire_tier_opts){ .store = store, .prefetch_steps = N_CTX, .close_us = 1 };
    b = bench_with(engine);
    g = gate_close(b.engine);
    tokens_make(text, PAGE / 2, 3);
    params = params_greedy(text, PAGE / 2, N_CTX - PAGE);
    params.class_index = HIGH;
    running = submit(&b, &params);
    while (!is_admitted(running)) { /* the store does not have its text */
        quire_memory_store_tick(store);
        gate_step(g);
    }
    n_before = stats_of(&b).tier.fetches_total;
    n_answers = answers_of(store) + N_PAGES;
    low = ask(&b, 1, N_LONG, LOW);
    high = ask(&b, 2, N_LONG, HIGH);
    gate_step(g);
    assert_int_equal(stats_of(&b).tier.fetches_total, n_before + 1);
    /* A step writes as many of the pages as a share of its time allows, and idle time the rest. */
    for (uint32_t i = 0; i < N_CTX / 2 && answers_of(store) < n_answers; i++) {
        quire_memory_store_tick(store);
        gate_step(g);
    }
    assert_int_equal(answers_of(store), n_answers);
    quire_request_cancel(running);
    gate_open(g);
    finish_as(running, QUIRE_FINISH_CANCEL);
    assert_int_equal(finish(high)->n_cached_tokens, N_LONG - 1); /* without a tick */
    finish_as(high, QUIRE_FINISH_LENGTH);
    finish_all(store, &low, 1, N_LONG - 1);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buffers),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_prefetch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
