/* test_tier.c - pages below memory: computed pages are fetched after a restart, with the same
 * answers; and no fault of a store changes an answer or stops a request.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "tier_kit.h"

#include "base/clock.h"
#include "device/mock_device.h"
#include "doze.h"
#include "engine/loop/loop_object.h"
#include "engine/pins.h"
#include "store/memory_store.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- stores that work ---- */

/* A restart costs nothing but the last token: full pages, the open page, the same answer. */
static void restart(quire_format format, bool has_open)
{
    quire_store *store = tier_store_new();
    engine_bench b = tier_bench(store, format, false);
    int32_t text[N_CTX], first[N_TOKENS], again[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    quire_engine_stats stats;

    tokens_make(text, N_PROMPT, 1);
    assert_int_equal(tier_run(&b, &params, first), 0);
    bench_close(&b);

    b = tier_bench(store, format, false);
    assert_int_equal(tier_run(&b, &params, again), has_open ? N_PROMPT - 1 : N_FULL);
    assert_memory_equal(first, again, sizeof first);
    stats = stats_now(b.engine);
    assert_int_equal(stats.tier.fetches_total, 1);
    assert_int_equal(stats.tier.fetched_tokens_total, has_open ? N_PROMPT - 1 : N_FULL);
    assert_int_equal(stats.tier.fetching, 0);
    /* The fetched pages are in memory now. */
    assert_int_equal(tier_run(&b, &params, again), has_open ? N_PROMPT - 1 : N_FULL);
    stats = stats_now(b.engine);
    assert_int_equal(stats.tier.fetches_total, 1);

    /* For a text of whole pages only the last token is computed. */
    tier_forget(&b);
    params.n_tokens = N_FULL;
    assert_int_equal(tier_run(&b, &params, again), has_open ? N_FULL - 1 : N_FULL - PAGE);
    params.n_tokens = N_PROMPT;

    /* Another text with the same begin uses the pages up to the one where it parts. */
    tokens_make(text + 200, 100, 2);
    tier_forget(&b);
    assert_int_equal(tier_run(&b, &params, again), 192);
    validate(b.engine);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

static void test_restart(void **state)
{
    (void)state;
    restart(QUIRE_FORMAT_F32, true);
    restart(QUIRE_FORMAT_Q8, true);
    restart(QUIRE_FORMAT_Q4, false); /* hits end at full pages */
}

/* While it serves, a page is copied when it was hit, or all pages when that is asked for. */
static void test_rule(void **state)
{
    quire_store *store = tier_store_new();
    engine_bench b = tier_bench(store, QUIRE_FORMAT_F32, false);
    int32_t text[N_PROMPT], other[N_PROMPT], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, 1);
    quire_request_params once = params_greedy(other, N_PROMPT, 1);

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    tokens_make(other, N_PROMPT, 2);
    (void)tier_run(&b, &params, got);
    (void)tier_run(&b, &once, got);
    (void)tier_run(&b, &params, got);
    tier_wait_records(&b, 5); /* 4 full pages of text; its open page after a rest */
    bench_close(&b);
    quire_memory_store_destroy(store);

    store = tier_store_new();
    b = tier_bench(store, QUIRE_FORMAT_F32, true);
    (void)tier_run(&b, &once, got);
    tier_wait_records(&b, 5);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* The open page's copy follows its growth: the next turn begins where the last one ended. */
static void test_turns(void **state)
{
    quire_store *store = tier_store_new();
    int32_t text[N_CTX], got[N_TOKENS], expected[N_TOKENS];
    quire_request_params params = params_greedy(text, 70, N_TOKENS);
    uint32_t n_had = 0;

    (void)state;
    tokens_make(text, N_CTX, 5);
    for (uint32_t turn = 0; turn < 6; turn++) {
        engine_bench b = tier_bench(store, QUIRE_FORMAT_F32, false);

        (void)reference(&b, text, params.n_tokens, expected, N_TOKENS);
        assert_int_equal(tier_run(&b, &params, got), n_had);
        assert_memory_equal(got, expected, sizeof got);
        bench_close(&b);
        /* The answer's last token has no KV. */
        n_had = params.n_tokens + N_TOKENS - 1;
        memcpy(text + params.n_tokens, got, sizeof got);
        params.n_tokens += N_TOKENS + 9;
    }
    quire_memory_store_destroy(store);
}

/* A page whose copy has gone is copied again when the page is used. */
static void test_copies_return(void **state)
{
    const quire_store_drop all = { .what = QUIRE_STORE_DROP_ALL };
    quire_store *store = tier_store_new();
    engine_bench b = tier_bench(store, QUIRE_FORMAT_F32, true);
    int32_t text[N_PROMPT], got[N_TOKENS];
    quire_request_params params;
    quire_engine_stats stats;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    params = params_greedy(text, N_PROMPT, 1);
    (void)tier_run(&b, &params, got);
    tier_wait_records(&b, 5);
    assert_int_equal(store->ops->drop(store, &all), QUIRE_OK);
    assert_int_equal(tier_run(&b, &params, got), N_PROMPT - 1); /* from memory */
    do {
        test_doze_ms();
        quire_engine_stats_get(b.engine, &stats);
    } while (stats.tier.store.records < 4); /* the full pages */
    tier_forget(&b);
    assert_int_equal(tier_run(&b, &params, got), N_FULL);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* Requests with one prefix at once: it is fetched once. */
static void test_together(void **state)
{
    quire_memory_store_opts slow = { .delay_ticks = 1 };
    quire_store *store = tier_store_new();
    engine_bench b = tier_bench(store, QUIRE_FORMAT_F32, true);
    int32_t text[4][N_PROMPT], got[N_TOKENS];
    quire_request_params params = params_greedy(text[0], N_PROMPT, 1);
    quire_request *requests[4];
    quire_engine_stats stats;
    uint32_t n_open = 4;

    (void)state;
    tokens_make(text[0], N_PROMPT, 1);
    (void)tier_run(&b, &params, got);
    tier_wait_records(&b, 5);
    tier_forget(&b);
    slow.outlives = true;
    quire_memory_store_set(store, &slow);
    for (uint32_t i = 0; i < 4; i++) {
        memcpy(text[i], text[0], sizeof text[0]);
        text[i][280] = (int32_t)(262 + i); /* in the open page */
        params.tokens = text[i];
        requests[i] = submit(&b, &params);
    }
    while (n_open > 0) {
        quire_request_token token;

        quire_memory_store_tick(store);
        test_doze_ms();
        n_open -= quire_request_wait(requests[4 - n_open], 0, 0, &token) == 1;
    }
    for (uint32_t i = 0; i < 4; i++) {
        const quire_request_result *result = finish(requests[i]);

        assert_true(result->n_cached_tokens >= N_FULL);
        quire_request_release(requests[i]);
    }
    stats = stats_now(b.engine);
    /* Full pages once; the others ask for their open page at most. */
    assert_true(stats.tier.fetched_tokens_total < N_FULL + 4 * PAGE);
    slow.delay_ticks = 0;
    quire_memory_store_set(store, &slow);
    quire_memory_store_tick(store);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* ---- stores with faults ---- */

/* With any fault of the store, answers equal the computed ones. */
static void test_faults(void **state)
{
    static const quire_memory_store_opts faults[] = {
        { .flip = 0.3 },       { .swap = 0.3 },
        { .failure = 1 },      { .failure = 0.2, .flip = 0.2, .swap = 0.2 },
        { .loss = 0.5 },       { .capacity_bytes = 60000 },
        { .transfers_max = 1 }
    };
    int32_t text[N_PROMPT], got[N_TOKENS], expected[N_TOKENS];
    quire_request_params params;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    params = params_greedy(text, N_PROMPT, N_TOKENS);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        quire_store *store = tier_store_new();
        engine_bench b = tier_bench(store, QUIRE_FORMAT_F32, true);
        quire_memory_store_opts opts = faults[i];

        opts.outlives = true;
        opts.seed = i;
        (void)reference(&b, text, N_PROMPT, expected, N_TOKENS);
        quire_memory_store_set(store, &opts);
        for (uint32_t k = 0; k < 8; k++) {
            assert_true(tier_run(&b, &params, got) < N_PROMPT);
            assert_memory_equal(got, expected, sizeof got);
            tier_forget(&b);
        }
        validate(b.engine);
        bench_close(&b);
        quire_memory_store_destroy(store);
    }
}

/* A store that answers nothing any more costs a bounded wait, and only once. */
static void test_hung(void **state)
{
    const quire_memory_store_opts hung = { .outlives = true, .delay_ticks = 1u << 30 };
    quire_store *store = tier_store_new();
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    engine_bench b;
    int32_t text[N_PROMPT], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, 1);
    quire_engine_stats stats;

    (void)state;
    engine.tier = (quire_tier_opts){ .store = store, .copies_all = true };
    b = bench_tiny(&engine, &runtime);
    tokens_make(text, N_PROMPT, 1);
    (void)tier_run(&b, &params, got);
    tier_wait_records(&b, 5);
    quire_memory_store_set(store, &hung);
    tier_forget(&b);
    assert_int_equal(tier_run(&b, &params, got), 0);
    stats = stats_now(b.engine);
    assert_int_equal(stats.tier.slow_total, 1);
    tier_forget(&b);
    assert_int_equal(tier_run(&b, &params, got), 0);
    stats = stats_now(b.engine);
    assert_int_equal(stats.tier.slow_total, 1);
    assert_int_equal(stats.tier.skipped_total, 1);
    bench_close(&b); /* returns the stuck transfers */
    quire_memory_store_destroy(store);
}

static void test_cancel(void **state)
{
    const quire_memory_store_opts hung = { .outlives = true, .delay_ticks = 1u << 30 };
    quire_store *store = tier_store_new();
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    engine_bench b;
    int32_t text[N_PROMPT], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, 1);
    quire_engine_stats stats;
    quire_request *request;

    (void)state;
    engine.tier =
        (quire_tier_opts){ .store = store, .copies_all = true, .wait_us = QUIRE_TIER_WAIT_ALWAYS };
    b = bench_tiny(&engine, &runtime);
    tokens_make(text, N_PROMPT, 1);
    (void)tier_run(&b, &params, got);
    tier_wait_records(&b, 5);
    quire_memory_store_set(store, &hung);
    tier_forget(&b);
    request = submit(&b, &params);
    do {
        test_doze_ms();
        stats = stats_now(b.engine);
    } while (stats.tier.fetches_total == 0);
    quire_request_cancel(request);
    finish_as(request, QUIRE_FINISH_CANCEL);
    validate(b.engine);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* Tenants share nothing below memory either, and invalidation also removes pages below memory. */
static void test_tenants_and_invalidation(void **state)
{
    static const quire_invalidate whats[] = {
        { .what = QUIRE_INVALIDATE_ALL },
        { .what = QUIRE_INVALIDATE_TENANT, .tenant = "anna", .tenant_bytes = 4 },
        { .what = QUIRE_INVALIDATE_TENANTS, .tenant = "an", .tenant_bytes = 2 },
        { .what = QUIRE_INVALIDATE_PREFIX, .tenant = "anna", .tenant_bytes = 4, .n_tokens = 128 },
        { .what = QUIRE_INVALIDATE_PREFIX, .tenant = "anna", .tenant_bytes = 4, .n_tokens = 140 }
    };
    static const uint32_t left[] = { 0, 0, 0, 64, 128 };
    int32_t text[N_PROMPT], got[N_TOKENS];
    quire_request_params params;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    params = params_greedy(text, N_PROMPT, 1);
    params.tenant = "anna";
    params.tenant_bytes = 4;
    for (size_t i = 0; i < sizeof whats / sizeof whats[0]; i++) {
        quire_store *store = tier_store_new();
        engine_bench b = tier_bench(store, QUIRE_FORMAT_F32, true);
        quire_invalidate what = whats[i];
        quire_prefix_dropped dropped;

        (void)tier_run(&b, &params, got);
        tier_wait_records(&b, 5);
        tier_forget(&b);
        params.tenant = "bert";
        assert_int_equal(tier_run(&b, &params, got), 0);
        params.tenant = "anna";
        assert_int_equal(tier_run(&b, &params, got), N_PROMPT - 1);
        what.tokens = text;
        assert_int_equal(quire_engine_invalidate(b.engine, &what, &dropped), QUIRE_OK);
        tier_forget(&b);
        assert_int_equal(tier_run(&b, &params, got), left[i]);
        bench_close(&b);
        quire_memory_store_destroy(store);
    }
}

/* ---- drops of other machines ---- */

static void pages_evict(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)ctx;
    (void)cache;
    (void)quire_prefix_evict(tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
}

static quire_store_ops deaf_ops; /* of the store, which is this machine's alone */
static quire_store_drop news;
static atomic_bool has_news;

static bool news_heard(quire_store *store, quire_store_drop *out)
{
    if (!atomic_exchange(&has_news, false)) {
        return false;
    }
    *out = news;
    assert_int_equal(deaf_ops.drop(store, out), QUIRE_OK); /* the records are gone as well */
    return true;
}

/* A store that hears of drops. */
static quire_store *hearing_store_new(quire_store_ops *ops)
{
    quire_store *store = tier_store_new();

    deaf_ops = *store->ops;
    *ops = deaf_ops;
    ops->heard = news_heard;
    store->ops = ops;
    return store;
}

/* Another machine drops a tenant. On return this one has heard of it. */
static void drop_elsewhere(const engine_bench *b, quire_store *store, const char *tenant)
{
    news = (quire_store_drop){ .what = QUIRE_STORE_DROP_SALT,
                               .salt = tenant,
                               .salt_bytes = (uint32_t)strlen(tenant) };
    atomic_store(&has_news, true);
    quire_store_wake(store);
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && atomic_load(&has_news); i++) {
        test_doze_ms();
    }
    validate(b->engine);
    assert_false(atomic_load(&has_news));
}

static int pin_make(const engine_bench *b, const char *tenant, const int32_t *text)
{
    const quire_engine_pin_params params = { .name = "pin",
                                             .tokens = text,
                                             .n_tokens = 3 * PAGE,
                                             .tenant = tenant,
                                             .tenant_bytes = (uint32_t)strlen(tenant) };
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin pin;

    return quire_engine_pin_create(b->engine, &params, &pin, NULL, &err);
}

static int pin_get(const engine_bench *b, const char *tenant, quire_engine_pin *pin)
{
    const quire_engine_pin_name name = { tenant, (uint32_t)strlen(tenant), "pin" };

    return quire_engine_pin_get(b->engine, &name, pin);
}

/* The pins of a tenant that another machine dropped end, as after an invalidation here. */
static void test_pins_dropped_elsewhere(void **state)
{
    quire_store_ops ops;
    quire_store *store = hearing_store_new(&ops);
    engine_bench b = tier_bench(store, QUIRE_FORMAT_F32, true);
    int32_t text[3 * PAGE];
    quire_engine_pin pin;

    (void)state;
    tokens_make(text, 3 * PAGE, 1);
    assert_int_equal(pin_make(&b, "anna", text), QUIRE_OK);
    assert_int_equal(pin_make(&b, "bert", text), QUIRE_OK);
    drop_elsewhere(&b, store, "anna");
    assert_int_equal(pin_get(&b, "anna", &pin), QUIRE_NOTFOUND);
    assert_int_equal(events_of(&b, QUIRE_EVENT_PIN_DROPPED, "pin 'pin' was lost"), 1);
    assert_int_equal(pin_get(&b, "bert", &pin), QUIRE_OK);
    assert_int_equal(pin.state, QUIRE_ENGINE_PIN_HELD);
    assert_int_equal(pin_make(&b, "anna", text), QUIRE_OK);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* Pages that had copies are copied again when they are computed after a drop by another machine. */
static void test_copies_dropped_elsewhere(void **state)
{
    quire_store_ops ops;
    quire_store *store = hearing_store_new(&ops);
    engine_bench b = tier_bench(store, QUIRE_FORMAT_F32, true);
    int32_t text[N_PROMPT], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_FULL, 1);

    (void)state;
    tokens_make(text, N_FULL, 1);
    params.tenant = "anna";
    params.tenant_bytes = 4;
    assert_int_equal(tier_run(&b, &params, got), 0);
    tier_wait_records(&b, 4);
    assert_int_equal(engine_call(b.engine, pages_evict, NULL), QUIRE_OK);
    assert_int_equal(tier_run(&b, &params, got), N_FULL - 1); /* so the pages are known as stored */
    assert_int_equal(engine_call(b.engine, pages_evict, NULL), QUIRE_OK);
    drop_elsewhere(&b, store, "anna");
    assert_int_equal(tier_run(&b, &params, got), 0);
    tier_wait_records(&b, 4);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* Rounds at most until a fetch lacks memory. One is enough, unless the thread rests so long that
 * the first request ends before the fetch of the second one begins. */
#define SHORT_ROUNDS_MAX 100u

/* Memory holds less than the stored texts: the pages that fit are fetched, and the requests run. */
static void test_short_of_pages(void **state)
{
    quire_store *store = tier_store_new();
    engine_bench b = tier_bench(store, QUIRE_FORMAT_F32, true);
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    int32_t text[2][N_CTX], got[2][N_TOKENS], expected[2][N_TOKENS];
    quire_request *requests[2];
    quire_engine_stats stats = { 0 };
    quire_request_params params = params_greedy(text[0], 600, N_TOKENS);

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        tokens_make(text[i], 600, i);
        params.tokens = text[i];
        (void)tier_run(&b, &params, expected[i]);
    }
    bench_close(&b);

    runtime.kv_budget_bytes = 17 * tiny_page_bytes(PAGE); /* N_CTX tokens and a page */
    engine.tier = (quire_tier_opts){ .store = store, .wait_us = QUIRE_TIER_WAIT_ALWAYS };
    b = bench_tiny(&engine, &runtime);
    for (uint32_t round = 0; round < 3 || stats.tier.short_total == 0; round++) {
        gate *g = gate_close(b.engine); /* both fetch at once, 10 pages each */

        assert_true(round < SHORT_ROUNDS_MAX);
        for (uint32_t i = 0; i < 2; i++) {
            params.tokens = text[i];
            requests[i] = submit(&b, &params);
        }
        gate_open(g);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(collect(requests[i], got[i], N_TOKENS), N_TOKENS);
            assert_memory_equal(got[i], expected[i], sizeof got[i]);
            quire_request_release(requests[i]);
        }
        stats = stats_now(b.engine);
    }
    assert_true(stats.tier.fetched_tokens_total >= 600 / PAGE * PAGE);
    validate(b.engine);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* A device whose copies and kernels take two ticks each. */
static int open_mock(quire_device **out, const char *name, const quire_device_opts *opts,
                     quire_error *err)
{
    const quire_mock_device_opts mock = { .delay_ticks = 2 };

    assert_string_equal(name, "mock");
    return quire_mock_device_open(out, opts, &mock, err);
}

typedef struct prefetched {
    int32_t tokens[2][N_TOKENS]; /* of the running and of the waiting request */
} prefetched;

/* A request runs, and another one waits whose pages are in the store: they come while the first one
 * is computed, or not before its end. device: NULL for the CPU. */
static prefetched prefetch(const char *device, uint32_t prefetch_steps)
{
    quire_store *store = tier_store_new();
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    int32_t text[2][N_PROMPT], got[N_TOKENS];
    quire_request *requests[2];
    quire_request_params params;
    quire_engine_stats stats;
    prefetched answers;
    engine_bench b;
    gate *g;

    engine.n_running_max = 1;
    engine.tier = (quire_tier_opts){ .store = store,
                                     .copies_all = true,
                                     .wait_us = QUIRE_TIER_WAIT_ALWAYS,
                                     .prefetch_steps = prefetch_steps };
    runtime.device = device;
    runtime.device_open = device != NULL ? open_mock : NULL;
    b = bench_tiny(&engine, &runtime);
    tokens_make(text[0], N_PROMPT, 1);
    tokens_make(text[1], N_PROMPT, 2);
    params = params_greedy(text[0], N_PROMPT, 1);
    (void)tier_run(&b, &params, got);
    tier_wait_records(&b, 5);
    tier_forget(&b);
    g = gate_close(b.engine);
    params = params_greedy(text[1], N_PROMPT, N_TOKENS);
    requests[0] = submit(&b, &params);
    gate_step(g);
    params = params_greedy(text[0], N_PROMPT, N_TOKENS);
    requests[1] = submit(&b, &params);
    for (uint32_t i = 0; i < 4; i++) {
        gate_step(g);
    }
    quire_engine_stats_get(b.engine, &stats);
    assert_int_equal(stats.requests_waiting, 1);
    /* Each of the two requests looks once; only the second one's text is in the store. */
    assert_int_equal(stats.tier.fetched_tokens_total > 0, prefetch_steps > 0);
    gate_open(g);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(collect(requests[i], answers.tokens[i], N_TOKENS), N_TOKENS);
        assert_int_equal(finish(requests[i])->n_cached_tokens, i == 0 ? 0 : N_PROMPT - 1);
        quire_request_release(requests[i]);
    }
    validate(b.engine);
    bench_close(&b);
    quire_memory_store_destroy(store);
    return answers;
}

/* A waiting request fetches ahead of time when it should begin soon, else when it begins. No answer
 * depends on it, also where the pages go to a device while that computes a step. */
static void test_prefetch(void **state)
{
    const prefetched expected = prefetch(NULL, 0);

    (void)state;
    for (uint32_t i = 1; i < 4; i++) {
        const prefetched got = prefetch(i >= 2 ? "mock" : NULL, i % 2 == 1 ? 64 : 0);

        assert_memory_equal(&got, &expected, sizeof got);
    }
}

/* A turn of a session. */
static void turn(const engine_bench *b, const char *id, const int32_t *text, uint32_t n)
{
    const quire_chat_message message = { "user", "a", NULL };
    const uint64_t now_us = quire_clock_ns() / 1000;
    quire_sessions *sessions = quire_engine_sessions(b->engine);
    quire_request_params params = params_greedy(text, n, 1);
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *request;
    int32_t *tokens;
    uint32_t n_tokens;

    assert_int_equal(quire_sessions_enter(sessions, NULL, 0, id, now_us, &params.session, &err),
                     QUIRE_OK);
    request = submit(b, &params);
    (void)finish(request);
    tokens = quire_request_tokens_take(request, &n_tokens);
    assert_int_equal(
        quire_sessions_commit(sessions, params.session, &message, 1, tokens, n_tokens, now_us),
        QUIRE_OK);
    quire_request_release(request);
    quire_sessions_leave(sessions, params.session, now_us);
}

/* A closed session is forgotten below as well, an expired one is not. */
static void test_sessions(void **state)
{
    quire_store *store = tier_store_new();
    engine_bench b = tier_bench(store, QUIRE_FORMAT_F32, false);
    const quire_invalidate what = { .what = QUIRE_INVALIDATE_SESSION, .session_id = "s" };
    int32_t text[N_PROMPT], got[N_TOKENS];
    quire_request_params params;
    quire_prefix_dropped dropped;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    params = params_greedy(text, N_PROMPT, 1);
    turn(&b, "s", text, N_PROMPT);
    tier_wait_records(&b, 5); /* used once, but a session's */
    tier_forget(&b);
    assert_int_equal(tier_run(&b, &params, got), N_PROMPT - 1);
    tier_forget(&b);
    assert_int_equal(quire_engine_invalidate(b.engine, &what, &dropped), QUIRE_OK);
    assert_int_equal(tier_run(&b, &params, got), 0);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* Closing a session that memory has nothing of, and one whose text is less than a page, leaves what
 * is stored of other texts: of one that begins in another way, and of a session that begins in the
 * same way. */
static void test_session_alone(void **state)
{
    enum {
        PLAIN,
        OTHER,
        WHOLE, /* begins as OTHER does */
        SHORT,
        N_TEXTS
    };
    static const uint32_t n_tokens[N_TEXTS] = { N_PROMPT, N_PROMPT, N_PROMPT, PAGE / 2 };
    quire_store *store = tier_store_new();
    engine_bench b = tier_bench(store, QUIRE_FORMAT_F32, true);
    quire_invalidate what = { .what = QUIRE_INVALIDATE_SESSION };
    int32_t texts[N_TEXTS][N_PROMPT], got[N_TOKENS];
    quire_request_params params[N_TEXTS];
    quire_prefix_dropped dropped;

    (void)state;
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        tokens_make(texts[i], N_PROMPT, 1 + i);
        params[i] = params_greedy(texts[i], n_tokens[i], 1);
    }
    memcpy(texts[WHOLE], texts[OTHER], 2 * PAGE * sizeof texts[0][0]);
    (void)tier_run(&b, &params[PLAIN], got);
    turn(&b, "other", texts[OTHER], N_PROMPT);
    turn(&b, "whole", texts[WHOLE], N_PROMPT);
    turn(&b, "short", texts[SHORT], n_tokens[SHORT]);
    tier_wait_records(&b, 5 + 5 + 3 + 1); /* two pages are common */
    for (uint32_t gone = SHORT; gone >= WHOLE; gone--) {
        tier_forget(&b);
        what.session_id = gone == SHORT ? "short" : "whole";
        assert_int_equal(quire_engine_invalidate(b.engine, &what, &dropped), QUIRE_OK);
        for (uint32_t i = PLAIN; i <= gone; i++) {
            const uint32_t n_own = i == SHORT ? 0 : 2 * PAGE; /* what is left of a closed one */

            tier_forget(&b);
            assert_int_equal(tier_run(&b, &params[i], got), i == gone ? n_own : n_tokens[i] - 1);
        }
    }
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* A store that fails is reported once, and once more when it works again; pages wait for that. */
static void test_degraded(void **state)
{
    quire_memory_store_opts opts = { .outlives = true, .is_degraded = true };
    quire_store *store = tier_store_new();
    engine_bench b;
    int32_t text[N_PROMPT], got[N_TOKENS];
    quire_request_params params;

    (void)state;
    quire_memory_store_set(store, &opts);
    b = tier_bench(store, QUIRE_FORMAT_F32, true);
    tokens_make(text, N_PROMPT, 1);
    params = params_greedy(text, N_PROMPT, 1);
    (void)tier_run(&b, &params, got);
    while (events_of(&b, QUIRE_EVENT_STORE_DEGRADED,
                     "memory store: no pages are written now: a test says so") == 0) {
        test_doze_ms();
    }
    assert_int_equal(stats_now(b.engine).tier.store.records, 0);
    opts.is_degraded = false;
    quire_memory_store_set(store, &opts);
    tier_wait_records(&b, 5);
    while (events_of(&b, QUIRE_EVENT_STORE_READY, "memory store: pages are written again") == 0) {
        test_doze_ms();
    }
    assert_int_equal(events_of(&b, QUIRE_EVENT_STORE_DEGRADED, ""), 1);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* An engine that cannot be created leaves the store to its owner. */
static void test_creation_fails(void **state)
{
    quire_store *store = tier_store_new();
    engine_bench b = tier_bench(store, QUIRE_FORMAT_F32, true);
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_store *second = tier_store_new();
    quire_loop *loop;

    (void)state;
    opts.model = b.model;
    opts.runtime = b.runtime;
    opts.tier.store = second;
    quire_engine_destroy(b.engine); /* its tree goes */
    b.engine = NULL;
    assert_int_equal(quire_loop_create(&loop, &opts, &err), QUIRE_OK);
    assert_non_null(second->waker.wake);
    assert_true(loop->inbox.has_transfers); /* the loop looks what the store has heard by now */
    quire_loop_stop(loop);                  /* never started */
    quire_loop_destroy(loop);
    assert_null(second->waker.wake);
    quire_memory_store_destroy(second);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_rule),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_copies_return),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_hung),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_tenants_and_invalidation),
        cmocka_unit_test(test_pins_dropped_elsewhere),
        cmocka_unit_test(test_copies_dropped_elsewhere),
        cmocka_unit_test(test_short_of_pages),
        cmocka_unit_test(test_creation_fails),
        cmocka_unit_test(test_degraded),
        cmocka_unit_test(test_prefetch),
        cmocka_unit_test(test_sessions),
        cmocka_unit_test(test_session_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
