/* test_tier_ahead.c - sessions that are expected to continue are read from the store in idle time.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "doze.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop.h"
#include "tier_kit.h"

#include <stdatomic.h>

#define SECOND ((uint64_t)1000000)
#define N_KEPT (N_PROMPT + 1u) /* of a turn: the last token is not computed */

static _Atomic uint64_t the_clock = 1000 * SECOND;

static void pass(uint64_t us)
{
    atomic_fetch_add(&the_clock, us);
}

static engine_bench bench_with(quire_store *store, bool is_off, uint32_t n_seqs)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, n_seqs);

    runtime.kv_budget_bytes = (uint64_t)64 << 20; /* room for the pages of many texts */
    engine.tier = (quire_tier_opts){ .store = store, .wait_us = 3600 * SECOND };
    engine.precache = (quire_precache_opts){ .is_off = is_off, .idle_us = 1 };
    engine.clock_us = hands_of;
    engine.clock_ctx = &the_clock;
    engine.sessions.ttl_us = 0;
    return bench_tiny(&engine, &runtime);
}

static engine_bench bench_of(quire_store *store, bool is_off)
{
    return bench_with(store, is_off, 8);
}

/* A turn of a session with the text of a seed. Returns the number of cached tokens. */
static uint32_t turn(const engine_bench *b, const char *id, uint64_t seed)
{
    const quire_chat_message message = { "user", "hello", NULL };
    quire_sessions *sessions = quire_engine_sessions(b->engine);
    quire_error err = QUIRE_ERROR_INIT;
    int32_t text[N_PROMPT];
    quire_request_params params;
    quire_request *request;
    uint32_t n_tokens, n_cached;
    int32_t *tokens;

    tokens_make(text, N_PROMPT, seed);
    params = params_greedy(text, N_PROMPT, 2);
    assert_int_equal(
        quire_sessions_enter(sessions, NULL, 0, id, atomic_load(&the_clock), &params.session, &err),
        QUIRE_OK);
    request = submit(b, &params);
    n_cached = finish(request)->n_cached_tokens;
    tokens = quire_request_tokens_take(request, &n_tokens);
    assert_int_equal(n_tokens, N_KEPT);
    assert_int_equal(quire_sessions_commit(sessions, params.session, &message, 1, tokens, n_tokens,
                                           atomic_load(&the_clock)),
                     QUIRE_OK);
    finish_as(request, QUIRE_FINISH_LENGTH);
    quire_sessions_leave(sessions, params.session, atomic_load(&the_clock));
    return n_cached;
}

/* Two turns of a session, gap_us apart: it is expected back after such a gap. All pages are stored.
 */
static void turn_twice(const engine_bench *b, uint64_t gap_us)
{
    (void)turn(b, "a", 1);
    pass(gap_us);
    (void)turn(b, "a", 1);
    pass(2 * SECOND);
    tier_wait_records(b, 5);
}

static quire_tier_stats tier_of(const engine_bench *b)
{
    quire_engine_stats stats;

    quire_engine_stats_get(b->engine, &stats);
    return stats.tier;
}

/* Wait for the n-th session to be read, and for its end. */
static void wait_ahead(const engine_bench *b, uint64_t n)
{
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && tier_of(b).fetched_tokens_total < n * N_KEPT; i++) {
        test_doze_ms();
    }
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && tier_of(b).fetching > 0; i++) {
        test_doze_ms();
    }
    assert_int_equal(tier_of(b).fetching, 0);
    assert_int_equal(tier_of(b).ahead_total, n);
    assert_int_equal(tier_of(b).fetched_tokens_total, n * N_KEPT);
}

/* Pages are read when half of the usual time has passed, or a minute is left of it; once. */
static void test_due(void **state)
{
    quire_store *store = tier_store_new();
    engine_bench b = bench_of(store, false);
    uint64_t n_fetches;

    (void)state;
    (void)turn(&b, "far", 1);
    pass(900 * SECOND);
    (void)turn(&b, "near", 2);
    pass(100 * SECOND);
    (void)turn(&b, "near", 2);
    (void)turn(&b, "far", 1); /* after 1000 seconds */
    (void)turn(&b, "once", 3);
    pass(2 * SECOND); /* open pages are copied when they have rested */
    tier_wait_records(&b, 15);
    tier_forget(&b);
    pass(50 * SECOND);
    wait_ahead(&b, 1);
    n_fetches = tier_of(&b).fetches_total;
    assert_int_equal(turn(&b, "near", 2), N_PROMPT - 1);
    assert_int_equal(tier_of(&b).fetches_total, n_fetches); /* by then it was in memory */
    pass(400 * SECOND);
    test_doze_ms();
    assert_int_equal(tier_of(&b).ahead_total, 1);
    pass(60 * SECOND);
    wait_ahead(&b, 2);
    assert_int_equal(turn(&b, "far", 1), N_PROMPT - 1);
    assert_int_equal(tier_of(&b).fetches_total, n_fetches + 1);
    validate(b.engine);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

static void open_page_forget(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    quire_loop *loop = ctx;
    const quire_prefix_key key = quire_loop_key(loop, NULL, 0);
    int32_t text[N_PROMPT];

    (void)cache;
    tokens_make(text, N_PROMPT, 1);
    assert_int_equal(
        quire_prefix_drop_prefix(tree, &key, text, N_FULL + 1, quire_loop_now_us(loop)).nodes, 1);
}

/* A session that lacks its open page alone is not read, and counts as not tried: when its full
 * pages have gone as well, they are read. */
static void test_open_page(void **state)
{
    quire_store *store = tier_store_new();
    engine_bench b = bench_of(store, false);

    (void)state;
    turn_twice(&b, 100 * SECOND);
    assert_int_equal(engine_call(b.engine, open_page_forget, b.engine->loop), QUIRE_OK);
    pass(60 * SECOND);
    for (uint32_t i = 0; i < 20; i++) {
        test_doze_ms();
    }
    assert_int_equal(tier_of(&b).ahead_total, 0);
    tier_forget(&b);
    wait_ahead(&b, 1);
    assert_int_equal(turn(&b, "a", 1), N_PROMPT - 1);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* A request that arrives ends the reading. */
static void test_cancelled(void **state)
{
    const quire_memory_store_opts slow = { .outlives = true, .delay_ticks = 1 };
    quire_store *store = tier_store_new();
    engine_bench b = bench_of(store, false);
    int32_t text[N_PROMPT];
    quire_request_params params;
    quire_request *request;
    quire_request_token token;
    uint64_t n_fetches;

    (void)state;
    turn_twice(&b, 100 * SECOND);
    quire_memory_store_set(store, &slow);
    tier_forget(&b);
    pass(60 * SECOND);
    while (tier_of(&b).fetching == 0) {
        test_doze_ms();
    }
    n_fetches = tier_of(&b).fetches_total;
    tokens_make(text, N_PROMPT, 7); /* which the store does not have */
    params = params_greedy(text, N_PROMPT, 1);
    request = submit(&b, &params);
    while (tier_of(&b).fetches_total == n_fetches) {
        test_doze_ms();
    }
    assert_int_equal(tier_of(&b).fetching, 1); /* its own */
    while (quire_request_wait(request, 0, 1, &token) == QUIRE_AGAIN) {
        quire_memory_store_tick(store);
    }
    finish_as(request, QUIRE_FINISH_LENGTH);
    assert_int_equal(tier_of(&b).ahead_total, 1);
    assert_int_equal(tier_of(&b).fetched_tokens_total, 0);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

static void evict_all(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)ctx;
    (void)cache;
    (void)quire_prefix_evict(tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
}

/* Of more texts than sessions are considered none can be read: each is tried once, and then they
 * are computed. */
static void test_many_fail(void **state)
{
    enum {
        N_TEXTS = 70
    };
    const quire_memory_store_opts broken = { .outlives = true, .failure = 1.0 };
    quire_store *store = tier_store_new();
    engine_bench b = bench_of(store, false);
    int32_t text[PAGE + 1], got[N_TOKENS];
    quire_engine_stats stats;
    quire_request_params params;
    uint64_t n_fetches;

    (void)state;
    for (uint64_t i = 0; i < (uint64_t)3 * N_TEXTS; i++) {
        tokens_make(text, PAGE + 1, 1 + i % N_TEXTS);
        params = params_greedy(text, PAGE + 1, 1);
        (void)tier_run(&b, &params, got);
        pass(SECOND / 10);
    }
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && tier_of(&b).copied_pages_total < N_TEXTS; i++) {
        test_doze_ms();
    }
    quire_memory_store_set(store, &broken);
    n_fetches = tier_of(&b).ahead_total;
    assert_int_equal(engine_call(b.engine, evict_all, NULL), QUIRE_OK);
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS; i++) {
        quire_engine_stats_get(b.engine, &stats);
        if (stats.memory.precache.runs_total > 0 || stats.tier.ahead_total > n_fetches + N_TEXTS) {
            break;
        }
        test_doze_ms();
    }
    assert_int_equal(stats.tier.ahead_total, n_fetches + N_TEXTS);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* What is not asked for counts as skipped alone: here no sequence is left for a request. */
static void test_skipped(void **state)
{
    quire_store *store = tier_store_new();
    engine_bench b = bench_with(store, false, 1);
    uint64_t n_skipped;

    (void)state;
    turn_twice(&b, 100 * SECOND);
    n_skipped = tier_of(&b).skipped_total;
    tier_forget(&b);
    pass(60 * SECOND);
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && tier_of(&b).skipped_total == n_skipped; i++) {
        test_doze_ms();
    }
    assert_int_equal(tier_of(&b).skipped_total, n_skipped + 1);
    assert_int_equal(tier_of(&b).ahead_total, 0);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* Without pre-caching nothing is read ahead of time. */
static void test_off(void **state)
{
    quire_store *store = tier_store_new();
    engine_bench b = bench_of(store, true);
    uint64_t n_fetches;

    (void)state;
    turn_twice(&b, 10 * SECOND);
    tier_forget(&b);
    pass(10 * SECOND);
    n_fetches = tier_of(&b).fetches_total;
    assert_int_equal(turn(&b, "a", 1), N_PROMPT - 1);
    assert_int_equal(tier_of(&b).ahead_total, 0);
    assert_int_equal(tier_of(&b).fetches_total, n_fetches + 1);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* Pages of a kind that returned each time are copied before they return; at first they are not. */
static void test_predicted(void **state)
{
    enum {
        N_TEXTS = 60
    };
    quire_store *store = tier_store_new();
    engine_bench b = bench_of(store, true);
    int32_t text[2 * PAGE], got[N_TOKENS];
    quire_request_params params;
    uint64_t n_records;

    (void)state;
    for (uint64_t seed = 1; seed <= N_TEXTS; seed++) {
        tokens_make(text, 2 * PAGE, seed);
        params = params_greedy(text, 2 * PAGE, 1);
        (void)tier_run(&b, &params, got);
        pass(5 * SECOND);
        (void)tier_run(&b, &params, got);
        pass(5 * SECOND);
    }
    n_records = 2 * N_TEXTS; /* pages of texts that were used again */
    tier_wait_records(&b, n_records);
    tokens_make(text, 2 * PAGE, N_TEXTS + 1);
    (void)tier_run(&b, &params, got);
    pass(5 * SECOND);
    tier_wait_records(&b, n_records + 2); /* used once */
    bench_close(&b);
    quire_memory_store_destroy(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_due),       cmocka_unit_test(test_open_page),
        cmocka_unit_test(test_cancelled), cmocka_unit_test(test_off),
        cmocka_unit_test(test_predicted), cmocka_unit_test(test_many_fail),
        cmocka_unit_test(test_skipped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
