/* test_engine_windows.c - models whose layers have windows, behind the engine: hits, restarts from
 * the store, pins and admission know that such layers keep a window, and answers are those of a
 * plain loop.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "doze.h"
#include "tier_kit.h"

#include "engine/pins.h"

#include <string.h>

#define WINDOW 70

static const int32_t some_windows[4] = { WINDOW, WINDOW, 0, 40 };
static const int32_t all_windows[4] = { WINDOW, 33, WINDOW, 40 };

static engine_bench bench_of(const int32_t *windows, quire_store *store, quire_format format)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);

    runtime.k_format = runtime.v_format = format;
    runtime.kv_recent = 64;
    engine.tier =
        (quire_tier_opts){ .store = store, .copies_all = true, .wait_us = QUIRE_TIER_WAIT_ALWAYS };
    engine.pins_max = 4;
    engine.precache.is_off = true;
    return bench_windows(windows, &engine, &runtime);
}

static quire_kv_price price_of(const engine_bench *b)
{
    return quire_kv_price_make(quire_model_desc_get(b->model), quire_runtime_opts_get(b->runtime));
}

/* ---- hits and restarts ---- */

static void evict_everything(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)ctx;
    (void)cache;
    (void)quire_prefix_evict(tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
}

/* Evict until nothing is left: pages on their way to the store are not evicted. */
static void forget(const engine_bench *b)
{
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS; i++) {
        assert_int_equal(engine_call(b->engine, evict_everything, NULL), QUIRE_OK);
        if (stats_now(b->engine).prefix.nodes == 0) {
            return;
        }
        test_doze_ms();
    }
    fail_msg("%u nodes are not evicted", (unsigned)stats_now(b->engine).prefix.nodes);
}

/* A request, the same again, the next turn; all of it after a restart, and after an eviction; and a
 * text that parts from it early. */
static void serve(const int32_t *windows, quire_format format)
{
    const bool is_sealed = quire_format_is_sealed(format); /* hits end at full pages */
    quire_store *store = tier_store_new();
    engine_bench b = bench_of(windows, store, format);
    int32_t text[N_CTX], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    uint32_t n_all;

    tokens_make(text, N_PROMPT, 3);
    tier_expect(&b, &params, 0, got);
    tier_expect(&b, &params, is_sealed ? N_FULL : N_PROMPT - 1, got);
    memcpy(text + N_PROMPT, got, sizeof got);
    tokens_make(text + N_PROMPT + N_TOKENS, 90, 4);
    params = params_greedy(text, N_PROMPT + N_TOKENS + 90, N_TOKENS);
    tier_expect(&b, &params, is_sealed ? N_FULL : N_PROMPT + N_TOKENS - 1, got);
    validate(b.engine);
    bench_close(&b);

    n_all = is_sealed ? params.n_tokens / PAGE * PAGE : params.n_tokens - 1;
    b = bench_of(windows, store, format);
    tier_expect(&b, &params, n_all, got); /* from below */
    assert_true(stats_now(b.engine).tier.fetched_tokens_total >= n_all);
    tier_expect(&b, &params, n_all, got);
    validate(b.engine);
    forget(&b);
    tier_expect(&b, &params, n_all, got);
    /* The first turn's end was kept, too; its last page is a full one by now. */
    params = params_greedy(text, N_PROMPT, N_TOKENS);
    forget(&b);
    tier_expect(&b, &params, N_FULL, got);
    validate(b.engine);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

static void test_turns_and_restart(void **state)
{
    (void)state;
    serve(some_windows, QUIRE_FORMAT_F32);
    serve(some_windows, QUIRE_FORMAT_Q8);
    serve(some_windows, QUIRE_FORMAT_Q4);
    serve(all_windows, QUIRE_FORMAT_F16);
}

/* ---- explanations ---- */

static void windows_evict(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)cache;
    (void)quire_prefix_evict(tree, QUIRE_REGION_DYNAMIC, *(const uint64_t *)ctx);
}

/* The explanation of a text that parts from the cached one at 150 tokens. */
static quire_explanation parting(const engine_bench *b, int32_t *text)
{
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    int32_t got[N_TOKENS];
    quire_explanation e;

    params.id = "parts";
    tokens_make(text + 150, N_PROMPT - 150, 80);
    (void)tier_run(b, &params, got);
    assert_int_equal(quire_engine_explain(b->engine, "parts", NULL, 0, &e), QUIRE_OK);
    assert_int_equal(e.end, QUIRE_PREFIX_END_DIVERGED);
    assert_int_equal(e.n_same_tokens, 150);
    return e;
}

/* Why a hit ends before the place where texts part: pages of the window are gone, or a format is
 * used by whole pages. */
static void test_explanations(void **state)
{
    const quire_format formats[] = { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16, QUIRE_FORMAT_Q4 };
    const quire_prefix_cut cuts[] = { QUIRE_PREFIX_CUT_NONE, QUIRE_PREFIX_CUT_WINDOW,
                                      QUIRE_PREFIX_CUT_PAGE };
    const uint32_t n_cached[] = { 150, 0, 128 };

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        engine_bench b = bench_of(some_windows, NULL, formats[i]);
        int32_t text[600], got[N_TOKENS];
        const quire_request_params params = params_greedy(text, 600, N_TOKENS);
        uint64_t bytes = 3 * price_of(&b).window_page_bytes; /* the first ones of the text */
        quire_explanation e;

        tokens_make(text, 600, 3);
        (void)tier_run(&b, &params, got);
        if (cuts[i] == QUIRE_PREFIX_CUT_WINDOW) {
            assert_int_equal(engine_call(b.engine, windows_evict, &bytes), QUIRE_OK);
        }
        e = parting(&b, text);
        assert_int_equal(e.cut, cuts[i]);
        assert_int_equal(e.n_cached_tokens, n_cached[i]);
        validate(b.engine);
        bench_close(&b);
    }
}

/* ---- admission ---- */

static uint32_t n_running(const engine_bench *b)
{
    quire_engine_stats stats;
    uint32_t n = 0;

    quire_engine_stats_get(b->engine, &stats);
    for (uint32_t c = 0; c < QUIRE_CLASSES_MAX; c++) {
        n += stats.classes[c].running;
    }
    return n;
}

/* A budget for three texts of which each would take more than half of it, if layers with windows
 * kept all tokens: all three run side by side, and none loses its pages. */
static void test_admission(void **state)
{
    enum {
        N = 3,
        N_LONG = 900
    };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, N);
    int32_t texts[N][N_LONG], got[N][N_TOKENS], expected[N_TOKENS];
    quire_request *requests[N];
    quire_kv_price price;
    uint64_t whole_bytes;
    engine_bench b;
    gate *g;

    (void)state;
    runtime.n_batch = 64;
    engine.precache.is_off = true;
    b = bench_windows(some_windows, &engine, &runtime);
    price = price_of(&b);
    bench_close(&b);
    runtime.kv_budget_bytes = N * (quire_kv_price_bytes(&price, N_LONG + N_TOKENS) +
                                   price.main_page_bytes + price.window_page_bytes);
    whole_bytes = (N_LONG + N_TOKENS) / PAGE * (price.main_page_bytes + price.window_page_bytes);
    assert_true(whole_bytes > runtime.kv_budget_bytes / 2);
    b = bench_windows(some_windows, &engine, &runtime);
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < N; i++) {
        quire_request_params params = params_greedy(texts[i], N_LONG, N_TOKENS);

        tokens_make(texts[i], N_LONG, 50 + i);
        requests[i] = submit(&b, &params);
    }
    gate_step(g);
    assert_int_equal(n_running(&b), N);
    gate_open(g);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(collect(requests[i], got[i], N_TOKENS), N_TOKENS);
        quire_request_release(requests[i]);
    }
    assert_int_equal(stats_now(b.engine).preemptions_total, 0);
    for (uint32_t i = 0; i < N; i++) {
        (void)reference(&b, texts[i], N_LONG, expected, N_TOKENS);
        assert_memory_equal(got[i], expected, sizeof expected);
    }
    validate(b.engine);
    bench_close(&b);
}

/* Many texts in a budget for little more than one: requests take turns, nothing fails, and answers
 * are right. test_engine_preempted.c has preemption. */
static void test_tight(void **state)
{
    enum {
        N = 6,
        N_LONG = 500
    };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);
    int32_t texts[N][N_LONG], got[N_TOKENS], expected[N_TOKENS];
    quire_request *requests[2 * N];
    quire_kv_price price;
    engine_bench b;

    (void)state;
    runtime.n_batch = 64;
    engine.precache.is_off = true;
    b = bench_windows(some_windows, &engine, &runtime);
    price = price_of(&b);
    bench_close(&b);
    runtime.kv_budget_bytes = quire_kv_price_bytes(&price, N_CTX) + 2 * price.main_page_bytes;
    b = bench_windows(some_windows, &engine, &runtime);
    for (uint32_t i = 0; i < 2 * N; i++) {
        quire_request_params params = params_greedy(texts[i % N], N_LONG, N_TOKENS);

        tokens_make(texts[i % N], 200, 9); /* in common */
        tokens_make(texts[i % N] + 200, N_LONG - 200, 60 + i % N);
        requests[i] = submit(&b, &params);
    }
    for (uint32_t i = 0; i < 2 * N; i++) {
        assert_int_equal(collect(requests[i], got, N_TOKENS), N_TOKENS);
        quire_request_release(requests[i]);
        if (reference(&b, texts[i % N], N_LONG, expected, N_TOKENS) > REFERENCE_GAP_MIN) {
            assert_memory_equal(got, expected, sizeof expected);
        }
    }
    validate(b.engine);
    bench_close(&b);
}

/* ---- pins ---- */

static void test_pin(void **state)
{
    engine_bench b = bench_of(some_windows, NULL, QUIRE_FORMAT_F16);
    const quire_kv_price price = price_of(&b);
    int32_t text[N_CTX], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    const quire_engine_pin_params pin_params = {
        .name = "pin", .tokens = text, .n_tokens = N_FULL, .ttl_s = 60
    };
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin pin;

    (void)state;
    tokens_make(text, N_PROMPT, 3);
    (void)tier_run(&b, &params, got);
    assert_int_equal(quire_engine_pin_create(b.engine, &pin_params, &pin, NULL, &err), QUIRE_OK);
    /* All pages of layers without windows; of the other layers the last two pages and the two
     * before, which these see. */
    assert_int_equal(pin.bytes,
                     N_FULL / PAGE * price.main_page_bytes + 4 * price.window_page_bytes);
    assert_int_equal(engine_call(b.engine, evict_everything, NULL), QUIRE_OK);
    tier_expect(&b, &params, N_FULL, got);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns_and_restart),
        cmocka_unit_test(test_explanations),
        cmocka_unit_test(test_admission),
        cmocka_unit_test(test_tight),
        cmocka_unit_test(test_pin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
