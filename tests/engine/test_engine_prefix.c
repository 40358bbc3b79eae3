/* test_engine_prefix.c - reuse through the engine: hits, requests that wait for another's prefix,
 * tenants, explanations, invalidation, expiry; the same tokens with and without a hit.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_fixture.h"

#include <stdatomic.h>
#include <string.h>

#define N_CTX    1024u
#define N_PROMPT 300u
#define N_TOKENS 20u
#define N_MANY   8u
#define PAGE     64u

static engine_bench bench_default(void)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, N_MANY);

    return bench_tiny(&engine, &runtime);
}

/* Run a request to its end. Returns how much of its prompt was cached. */
static uint32_t run(const engine_bench *b, const quire_request_params *params, int32_t *got)
{
    quire_request *request = submit(b, params);
    const quire_request_result *result;
    uint32_t n_cached;

    (void)collect(request, got, N_TOKENS);
    result = quire_request_result_get(request);
    assert_int_equal(result->finish, QUIRE_FINISH_LENGTH);
    n_cached = result->n_cached_tokens;
    quire_request_release(request);
    return n_cached;
}

/* ---- hits ---- */

/* A prompt is sent again, then with its answer and a new turn: only new tokens are computed. */
static void test_turns(void **state)
{
    engine_bench b = bench_default();
    int32_t text[N_CTX], got[N_TOKENS], again[N_TOKENS], expected[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    quire_engine_stats stats;

    (void)state;
    tokens_make(text, N_PROMPT, 1);
    reference(&b, text, N_PROMPT, expected, N_TOKENS);
    assert_int_equal(run(&b, &params, got), 0);
    assert_memory_equal(got, expected, sizeof got);
    assert_int_equal(run(&b, &params, again), N_PROMPT - 1);
    assert_memory_equal(got, again, sizeof got);

    memcpy(text + N_PROMPT, got, sizeof got);
    tokens_make(text + N_PROMPT + N_TOKENS, 50, 2);
    params.n_tokens = N_PROMPT + N_TOKENS + 50;
    reference(&b, text, params.n_tokens, expected, N_TOKENS);
    assert_int_equal(run(&b, &params, got), N_PROMPT + N_TOKENS - 1); /* the last is not computed */
    assert_memory_equal(got, expected, sizeof got);

    stats = stats_now(b.engine);
    assert_int_equal(stats.computed_prompt_tokens_total, N_PROMPT + 1 + 51);
    assert_int_equal(stats.cached_tokens_prefix_total, 2 * N_PROMPT + N_TOKENS - 2);
    assert_int_equal(stats.cached_tokens_session_total, 0);
    assert_int_equal(stats.prefix.hit_tokens_total, 2 * N_PROMPT + N_TOKENS - 2);
    validate(b.engine);
    bench_close(&b);
}

static void test_tenants_share_nothing(void **state)
{
    engine_bench b = bench_default();
    int32_t text[N_PROMPT], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, 1);

    (void)state;
    tokens_make(text, N_PROMPT, 3);
    params.tenant = "anna";
    params.tenant_bytes = 4;
    assert_int_equal(run(&b, &params, got), 0);
    assert_int_equal(run(&b, &params, got), N_PROMPT - 1);
    params.tenant = "anno";
    assert_int_equal(run(&b, &params, got), 0);
    params.tenant_bytes = 3;
    assert_int_equal(run(&b, &params, got), 0);
    bench_close(&b);
}

/* cache_prompt: false uses hits and publishes nothing; without the cache there are no hits
 * either. */
static void test_uncached(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, N_MANY);
    engine_bench b = bench_default();
    int32_t text[N_PROMPT], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, 1);

    (void)state;
    tokens_make(text, N_PROMPT, 4);
    params.is_uncached = true;
    assert_int_equal(run(&b, &params, got), 0);
    assert_int_equal(run(&b, &params, got), 0);
    assert_int_equal(stats_now(b.engine).prefix.nodes, 0);
    params.is_uncached = false;
    assert_int_equal(run(&b, &params, got), 0);
    params.is_uncached = true;
    assert_int_equal(run(&b, &params, got), N_PROMPT - 1);
    bench_close(&b);

    engine.no_prefix_cache = true;
    b = bench_tiny(&engine, &runtime);
    params.is_uncached = false;
    assert_int_equal(run(&b, &params, got), 0);
    assert_int_equal(run(&b, &params, got), 0);
    assert_int_equal(stats_now(b.engine).prefix.nodes, 0);
    bench_close(&b);
}

/* The tokens that a cancelled request computed are cached for the next one. */
static void test_cancelled_half_way(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, N_MANY);
    engine_bench b;
    int32_t text[N_PROMPT], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, 1);
    quire_request *request;
    gate *g;

    (void)state;
    tokens_make(text, N_PROMPT, 5);
    engine.chunk_tokens = 100;
    b = bench_tiny(&engine, &runtime);
    g = gate_close(b.engine);
    request = submit(&b, &params);
    gate_step(g);
    gate_step(g);
    quire_request_cancel(request);
    gate_open(g);
    finish_as(request, QUIRE_FINISH_CANCEL);
    assert_int_equal(run(&b, &params, got), 200);
    bench_close(&b);
}

/* ---- one computes, the others wait ---- */

/* N_MANY requests at once, the first n_same tokens of which are the same. Returns the number of
 * prompt tokens computed. */
static uint64_t at_once(engine_bench *b, uint32_t n_same, uint64_t seed)
{
    int32_t text[N_MANY][N_PROMPT], got[N_TOKENS], expected[N_TOKENS];
    quire_request *requests[N_MANY];
    quire_explanation e;
    const uint64_t before = stats_now(b->engine).computed_prompt_tokens_total;
    gate *g = gate_close(b->engine);

    for (uint32_t i = 0; i < N_MANY; i++) {
        const quire_request_params params = params_greedy(text[i], N_PROMPT, N_TOKENS);

        tokens_make(text[i], N_PROMPT, seed + i);
        tokens_make(text[i], n_same, seed);
        if (n_same < N_PROMPT) {
            text[i][n_same] = (int32_t)(262 + i); /* no two go on alike */
        }
        requests[i] = submit(b, &params);
    }
    gate_open(g);
    for (uint32_t i = 0; i < N_MANY; i++) {
        assert_int_equal(collect(requests[i], got, N_TOKENS), N_TOKENS);
        reference(b, text[i], N_PROMPT, expected, N_TOKENS);
        assert_memory_equal(got, expected, sizeof got);
        assert_int_equal(quire_request_explain(requests[i], &e), QUIRE_OK);
        assert_int_equal(e.has_waited, i > 0 && n_same >= PAGE);
        finish_as(requests[i], QUIRE_FINISH_LENGTH);
    }
    validate(b->engine);
    return stats_now(b->engine).computed_prompt_tokens_total - before;
}

static void test_identical_prompts_at_once(void **state)
{
    engine_bench b = bench_default();

    (void)state;
    assert_int_equal(at_once(&b, N_PROMPT, 10), N_PROMPT + (N_MANY - 1));
    assert_int_equal(stats_now(b.engine).prefix_waits_total, N_MANY - 1);
    bench_close(&b);
}

static void test_shared_beginning_at_once(void **state)
{
    engine_bench b = bench_default();

    (void)state;
    assert_int_equal(at_once(&b, 200, 20), N_PROMPT + (N_MANY - 1) * (N_PROMPT - 200));
    assert_int_equal(stats_now(b.engine).prefix_waits_total, N_MANY - 1);
    /* Less than a page is not worth the wait. */
    assert_true(at_once(&b, 30, 40) > N_MANY * (N_PROMPT - 30));
    assert_int_equal(stats_now(b.engine).prefix_waits_total, N_MANY - 1);
    bench_close(&b);
}

/* The one they wait for goes away: the next takes its place, and nothing is computed twice. */
static void test_leader_cancelled(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, N_MANY);
    engine_bench b;
    int32_t text[N_PROMPT];
    const quire_request_params params = params_greedy(text, N_PROMPT, 1);
    quire_request *requests[3];
    quire_engine_stats stats;
    gate *g;

    (void)state;
    tokens_make(text, N_PROMPT, 60);
    engine.chunk_tokens = 100;
    b = bench_tiny(&engine, &runtime);
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < 3; i++) {
        requests[i] = submit(&b, &params);
    }
    gate_step(g);
    quire_request_cancel(requests[0]);
    gate_step(g);
    quire_engine_stats_get(b.engine, &stats);
    assert_int_equal(stats.requests_prefilling, 1);
    assert_int_equal(stats.requests_waiting, 1);
    gate_open(g);
    finish_as(requests[0], QUIRE_FINISH_CANCEL);
    finish_as(requests[1], QUIRE_FINISH_LENGTH);
    finish_as(requests[2], QUIRE_FINISH_LENGTH);
    assert_int_equal(stats_now(b.engine).computed_prompt_tokens_total, N_PROMPT + 1);
    bench_close(&b);
}

/* A request that waits for the beginning of a long prompt lends it its priority, and does not wait
 * for all requests ahead of that prompt. */
static void test_leader_comes_first(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, N_MANY);
    int32_t other[N_PROMPT], leading[N_PROMPT], waiting[N_PROMPT];
    quire_request_params params = params_greedy(other, 250, 1);
    quire_request *requests[3];
    quire_explanation e;
    quire_engine_stats stats;
    engine_bench b;
    gate *g;

    (void)state;
    tokens_make(other, N_PROMPT, 61);
    tokens_make(leading, N_PROMPT, 62);
    tokens_make(waiting, N_PROMPT, 63);
    memcpy(waiting, leading, PAGE * sizeof *waiting);
    engine.chunk_tokens = 64;
    b = bench_tiny(&engine, &runtime);
    g = gate_close(b.engine);
    params.priority = 1;
    requests[0] = submit(&b, &params);
    params.priority = 0;
    params.tokens = leading;
    params.n_tokens = N_PROMPT;
    requests[1] = submit(&b, &params);
    gate_step(g); /* all of it the first one's */
    params.priority = 2;
    params.tokens = waiting;
    params.n_tokens = PAGE + 10;
    requests[2] = submit(&b, &params);
    for (int i = 0; i < 2; i++) {
        gate_step(g);
        quire_engine_stats_get(b.engine, &stats);
        assert_int_equal(stats.requests_waiting, 1);
    }
    gate_step(g);
    quire_engine_stats_get(b.engine, &stats);
    assert_int_equal(stats.requests_waiting, 0);
    gate_open(g);
    assert_int_equal(finish(requests[2])->n_cached_tokens, PAGE);
    assert_int_equal(quire_request_explain(requests[2], &e), QUIRE_OK);
    assert_true(e.has_waited);
    for (int i = 0; i < 3; i++) {
        finish_as(requests[i], QUIRE_FINISH_LENGTH);
    }
    bench_close(&b);
}

/* ---- explanations ---- */

static void explained(const engine_bench *b, const quire_request_params *params,
                      quire_explanation *e)
{
    int32_t got[N_TOKENS];

    (void)run(b, params, got);
    assert_int_equal(quire_engine_explain(b->engine, params->id, NULL, 0, e), QUIRE_OK);
    assert_string_equal(e->request_id, params->id);
    assert_int_equal(e->n_prompt_tokens, params->n_tokens);
    assert_int_equal(e->n_computed_tokens, params->n_tokens - e->n_cached_tokens);
    assert_true(e->computed_ms > 0.0);
}

static void test_explanations(void **state)
{
    engine_bench b = bench_default();
    int32_t text[N_PROMPT], other[N_PROMPT];
    quire_request_params params = params_greedy(text, 200, 1);
    const quire_invalidate all = { .what = QUIRE_INVALIDATE_ALL };
    quire_prefix_dropped dropped;
    quire_explanation e;

    (void)state;
    tokens_make(text, N_PROMPT, 70);
    memcpy(other, text, sizeof other);
    other[150] = text[150] == 300 ? 301 : 300;

    params.id = "new";
    explained(&b, &params, &e);
    assert_int_equal(e.end, QUIRE_PREFIX_END_NEW);
    assert_int_equal(e.n_same_tokens, 0);
    assert_int_equal(e.prompt_token, text[0]);
    assert_int_equal(e.cached_token, -1);

    params.id = "diverged";
    params.tokens = other;
    explained(&b, &params, &e);
    assert_int_equal(e.end, QUIRE_PREFIX_END_DIVERGED);
    assert_int_equal(e.n_same_tokens, 150);
    assert_int_equal(e.n_cached_tokens, 150);
    assert_int_equal(e.prompt_token, other[150]);
    assert_int_equal(e.cached_token, text[150]);

    params.id = "longer";
    params.tokens = text;
    params.n_tokens = N_PROMPT;
    explained(&b, &params, &e);
    assert_int_equal(e.end, QUIRE_PREFIX_END_ENDED);
    assert_int_equal(e.n_cached_tokens, 200);
    assert_int_equal(e.prompt_token, text[200]);

    params.id = "whole";
    explained(&b, &params, &e);
    assert_int_equal(e.end, QUIRE_PREFIX_END_WHOLE);
    assert_int_equal(e.n_same_tokens, N_PROMPT);
    assert_int_equal(e.n_cached_tokens, N_PROMPT - 1);
    assert_int_equal(e.prompt_token, -1);

    assert_int_equal(quire_engine_invalidate(b.engine, &all, &dropped), QUIRE_OK);
    assert_true(dropped.nodes >= 5 && dropped.freed_bytes > 0);
    params.id = "gone";
    explained(&b, &params, &e);
    assert_int_equal(e.end, QUIRE_PREFIX_END_EVICTED);
    assert_int_equal(e.gone, QUIRE_PREFIX_GONE_INVALIDATED);
    assert_true(e.n_gone_tokens > 0 && e.gone_ms > 0.0);
    bench_close(&b);
}

/* Explanations are found by id and tenant; the last explain_max of them are kept. */
static void test_explanations_are_bounded(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, N_MANY);
    const char *const ids[] = { "a", "b", "c", "d" };
    int32_t text[8], got[N_TOKENS];
    quire_request_params params = params_greedy(text, 8, 1);
    quire_explanation e, last[8];
    engine_bench b;

    (void)state;
    engine.explain_max = 3;
    b = bench_tiny(&engine, &runtime);
    tokens_make(text, 8, 80);
    assert_int_equal(quire_engine_explain_last(b.engine, last, 8), 0);
    for (int i = 0; i < 4; i++) {
        params.id = ids[i];
        params.tenant = ids[i];
        params.tenant_bytes = 1;
        (void)run(&b, &params, got);
    }
    assert_int_equal(quire_engine_explain(b.engine, "a", NULL, 0, &e), QUIRE_NOTFOUND);
    assert_int_equal(quire_engine_explain(b.engine, "b", NULL, 0, &e), QUIRE_OK);
    assert_int_equal(quire_engine_explain(b.engine, "b", "b", 1, &e), QUIRE_OK);
    assert_int_equal(quire_engine_explain(b.engine, "b", "c", 1, &e), QUIRE_NOTFOUND);
    assert_int_equal(quire_engine_explain(b.engine, "b", "", 0, &e), QUIRE_NOTFOUND);
    assert_int_equal(quire_engine_explain_last(b.engine, last, 8), 3);
    assert_string_equal(last[0].request_id, "d");
    assert_string_equal(last[2].request_id, "b");
    assert_int_equal(quire_engine_explain_last(b.engine, last, 1), 1);
    bench_close(&b);
}

/* ---- letting go ---- */

static void test_invalidation(void **state)
{
    engine_bench b = bench_default();
    int32_t text[N_PROMPT], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, 1);
    quire_invalidate what = { .tenant = "t", .tenant_bytes = 1, .tokens = text, .n_tokens = 100 };
    quire_prefix_dropped dropped;

    (void)state;
    tokens_make(text, N_PROMPT, 90);
    params.tenant = "t";
    params.tenant_bytes = 1;
    (void)run(&b, &params, got);

    what.what = QUIRE_INVALIDATE_PREFIX;
    what.tenant = "u"; /* another's */
    assert_int_equal(quire_engine_invalidate(b.engine, &what, &dropped), QUIRE_OK);
    assert_int_equal(dropped.nodes, 0);
    what.tenant = "t";
    assert_int_equal(quire_engine_invalidate(b.engine, &what, &dropped), QUIRE_OK);
    assert_true(dropped.nodes > 0);
    assert_true(run(&b, &params, got) < 100);

    what.what = QUIRE_INVALIDATE_TENANT;
    what.tenant = "u";
    assert_int_equal(quire_engine_invalidate(b.engine, &what, &dropped), QUIRE_OK);
    assert_int_equal(dropped.nodes, 0);
    what.tenant = "t";
    assert_int_equal(quire_engine_invalidate(b.engine, &what, &dropped), QUIRE_OK);
    assert_true(dropped.nodes > 0);
    assert_int_equal(run(&b, &params, got), 0);

    what.what = QUIRE_INVALIDATE_TENANTS;
    what.tenant_bytes = 0; /* tenants with any name */
    assert_int_equal(quire_engine_invalidate(b.engine, &what, &dropped), QUIRE_OK);
    assert_true(dropped.nodes > 0);
    assert_int_equal(run(&b, &params, got), 0);

    what.what = QUIRE_INVALIDATE_SESSION;
    what.tenant_bytes = 1;
    what.session_id = "nobody's";
    assert_int_equal(quire_engine_invalidate(b.engine, &what, &dropped), QUIRE_NOTFOUND);
    bench_close(&b);
}

/* A session's pages go with it: closed, or idle for too long. */
static void test_sessions(void **state)
{
    _Atomic uint64_t now_us = 1000000;
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, N_MANY);
    quire_invalidate what = { .what = QUIRE_INVALIDATE_SESSION, .session_id = "s" };
    int32_t text[N_PROMPT], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, 1);
    quire_error err = QUIRE_ERROR_INIT;
    quire_prefix_dropped dropped;
    quire_engine_stats stats;
    quire_sessions *sessions;
    engine_bench b;

    (void)state;
    tokens_make(text, N_PROMPT, 95);
    engine.clock_us = hands_of;
    engine.clock_ctx = &now_us;
    engine.sessions.ttl_us = 10000000;
    b = bench_tiny(&engine, &runtime);
    sessions = quire_engine_sessions(b.engine);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(quire_sessions_enter(sessions, "", 0, "s", now_us, &params.session, &err),
                         QUIRE_OK);
        assert_int_equal(run(&b, &params, got), 0);
        assert_int_equal(run(&b, &params, got), N_PROMPT - 1);
        quire_sessions_leave(sessions, params.session, now_us);
        if (i == 0) {
            what.tenant = "";
            assert_int_equal(quire_engine_invalidate(b.engine, &what, &dropped), QUIRE_OK);
            assert_true(dropped.nodes > 0);
        }
    }
    stats = stats_now(b.engine);
    assert_int_equal(stats.cached_tokens_session_total, 2 * (N_PROMPT - 1));
    assert_int_equal(stats.sessions, 1);
    assert_true(stats.prefix.nodes > 0);
    atomic_store(&now_us, 30000000);
    stats = stats_now(b.engine);
    assert_int_equal(stats.sessions, 0);
    assert_int_equal(stats.prefix.nodes, 0);
    bench_close(&b);
}

/* A session that is closed while the prompt of its request is tokenized: the same. */
static void test_session_closed_before_submit(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, N_MANY);
    const quire_invalidate what = { .what = QUIRE_INVALIDATE_SESSION,
                                    .tenant = "",
                                    .session_id = "s" };
    int32_t text[N_PROMPT], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, 1);
    quire_error err = QUIRE_ERROR_INIT;
    quire_prefix_dropped dropped;
    quire_sessions *sessions;
    engine_bench b;

    (void)state;
    b = bench_tiny(&engine, &runtime);
    sessions = quire_engine_sessions(b.engine);
    tokens_make(text, N_PROMPT, 99);
    assert_int_equal(quire_sessions_enter(sessions, "", 0, "s", 0, &params.session, &err),
                     QUIRE_OK);
    assert_int_equal(quire_engine_invalidate(b.engine, &what, &dropped), QUIRE_OK);
    assert_int_equal(run(&b, &params, got), 0);
    quire_sessions_leave(sessions, params.session, 0);
    params.session = 0;
    assert_int_equal(run(&b, &params, got), 0);
    bench_close(&b);
}

/* A session that is closed while a request of it waits: the request runs, and leaves nothing. */
static void test_session_closed_while_waiting(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, N_MANY);
    const quire_invalidate what = { .what = QUIRE_INVALIDATE_SESSION,
                                    .tenant = "",
                                    .session_id = "s" };
    int32_t first[N_PROMPT], text[N_PROMPT], got[N_TOKENS];
    const quire_request_params blocks = params_greedy(first, N_PROMPT, N_CTX - N_PROMPT);
    quire_request_params params = params_greedy(text, N_PROMPT, 1);
    quire_error err = QUIRE_ERROR_INIT;
    quire_prefix_dropped dropped;
    quire_sessions *sessions;
    quire_request *running, *waiting;
    engine_bench b;

    (void)state;
    engine.n_running_max = 1;
    b = bench_tiny(&engine, &runtime);
    sessions = quire_engine_sessions(b.engine);
    tokens_make(first, N_PROMPT, 97);
    tokens_make(text, N_PROMPT, 98);
    assert_int_equal(quire_sessions_enter(sessions, "", 0, "s", 0, &params.session, &err),
                     QUIRE_OK);
    running = submit(&b, &blocks);
    waiting = submit(&b, &params);
    assert_int_equal(quire_engine_invalidate(b.engine, &what, &dropped), QUIRE_OK);
    quire_request_cancel(running);
    (void)finish(running);
    quire_request_release(running);
    finish_as(waiting, QUIRE_FINISH_LENGTH);
    quire_sessions_leave(sessions, params.session, 0);
    params.session = 0;
    assert_int_equal(run(&b, &params, got), 0);
    bench_close(&b);
}

static void test_expiry(void **state)
{
    _Atomic uint64_t now_us = 1000000;
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, N_MANY);
    int32_t text[N_PROMPT], got[N_TOKENS];
    const quire_request_params params = params_greedy(text, N_PROMPT, 1);
    engine_bench b;

    (void)state;
    tokens_make(text, N_PROMPT, 96);
    engine.clock_us = hands_of;
    engine.clock_ctx = &now_us;
    engine.cache_ttl_us = 5000000;
    b = bench_tiny(&engine, &runtime);
    (void)run(&b, &params, got);
    atomic_store(&now_us, 5000000);
    assert_int_equal(run(&b, &params, got), N_PROMPT - 1);
    atomic_store(&now_us, 20000000);
    assert_int_equal(stats_now(b.engine).prefix.nodes, 0);
    bench_close(&b);
}

/* ---- the same steps give the same tokens ---- */

/* The prompt is cached up to a multiple of the chunk, so the rest is computed in the same steps as
 * in the run that found nothing. Then it does not matter that products may depend on the batch
 * size. */
static void hit_equals_miss(uint32_t d_head, quire_format format, uint32_t kv_recent)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(512, 4);
    int32_t text[N_PROMPT], miss[N_TOKENS], hit[N_TOKENS];
    quire_request_params params = params_greedy(text, 250, N_TOKENS);
    engine_bench b;

    tokens_make(text, N_PROMPT, 97);
    engine.chunk_tokens = PAGE;
    runtime.k_format = runtime.v_format = format;
    runtime.kv_recent = kv_recent;
    runtime.kv_sinks = kv_recent != 0 ? QUIRE_KV_SINKS_DEFAULT : 0;
    b = bench_panels(d_head, &engine, &runtime);
    assert_int_equal(run(&b, &params, miss), 0);
    bench_close(&b);

    b = bench_panels(d_head, &engine, &runtime);
    params.n_tokens = 2 * PAGE;
    params.max_tokens = 1;
    (void)run(&b, &params, hit);
    params.n_tokens = 250;
    params.max_tokens = N_TOKENS;
    assert_int_equal(run(&b, &params, hit), 2 * PAGE);
    assert_memory_equal(hit, miss, sizeof hit);
    bench_close(&b);
}

static void test_hit_equals_miss_f16(void **state)
{
    (void)state;
    hit_equals_miss(48, QUIRE_FORMAT_F16, QUIRE_KV_RECENT_DEFAULT);
}

static void test_hit_equals_miss_q8(void **state)
{
    (void)state;
    hit_equals_miss(64, QUIRE_FORMAT_Q8, QUIRE_KV_RECENT_DEFAULT);
}

static void test_hit_equals_miss_q4(void **state)
{
    (void)state;
    hit_equals_miss(48, QUIRE_FORMAT_Q4, 0);
}

/* Sealed formats share full pages only. */
static void test_sealed_formats_share_pages(void **state)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, N_MANY);
    int32_t text[N_PROMPT], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    quire_explanation e;
    engine_bench b;

    (void)state;
    tokens_make(text, N_PROMPT, 98);
    runtime.k_format = runtime.v_format = QUIRE_FORMAT_Q4;
    b = bench_tiny(&engine, &runtime);
    params.id = "x";
    assert_int_equal(run(&b, &params, got), 0);
    assert_int_equal(run(&b, &params, got), N_PROMPT / PAGE * PAGE);
    assert_int_equal(quire_engine_explain(b.engine, "x", NULL, 0, &e), QUIRE_OK);
    assert_int_equal(e.n_cached_tokens, N_PROMPT / PAGE * PAGE);
    validate(b.engine);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_tenants_share_nothing),
        cmocka_unit_test(test_uncached),
        cmocka_unit_test(test_cancelled_half_way),
        cmocka_unit_test(test_identical_prompts_at_once),
        cmocka_unit_test(test_shared_beginning_at_once),
        cmocka_unit_test(test_leader_cancelled),
        cmocka_unit_test(test_leader_comes_first),
        cmocka_unit_test(test_explanations),
        cmocka_unit_test(test_explanations_are_bounded),
        cmocka_unit_test(test_invalidation),
        cmocka_unit_test(test_sessions),
        cmocka_unit_test(test_session_closed_before_submit),
        cmocka_unit_test(test_session_closed_while_waiting),
        cmocka_unit_test(test_expiry),
        cmocka_unit_test(test_hit_equals_miss_f16),
        cmocka_unit_test(test_hit_equals_miss_q8),
        cmocka_unit_test(test_hit_equals_miss_q4),
        cmocka_unit_test(test_sealed_formats_share_pages),
    };

    return cmocka_run_group_tests_name("engine_prefix", tests, NULL, NULL);
}
