/* test_prompt_logprobs.c - log-probabilities of prompts: the values of a plain loop's logits, with
 * chunks, neighbours, cached text and preemptions; models whose layers share K and V, have windows,
 * or are recurrent; refusals.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_fixture.h"

#include "engine/engine_halves.h"
#include "engine/loop/loop_object.h"

#include <stdlib.h>
#include <string.h>

#define N_CTX    320u
#define N_PROMPT 200u
#define N_TOPS   3u
#define N_ANSWER 4u

/* The values of a prompt, token by token. */
typedef struct values {
    uint32_t n; /* tokens */
    float logprobs[N_CTX];
    uint32_t ranks[N_CTX];
    quire_top_logit tops[N_CTX][N_TOPS];
} values;

static values expected, got;
static uint32_t n_threads = 1; /* of the next engine */

static engine_bench bench_by(const char *name, uint32_t chunk_tokens)
{
    static const int32_t windows[4] = { 64, 0, 64, 0 };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);

    runtime.n_threads = n_threads;
    engine.chunk_tokens = chunk_tokens;
    engine.precache.is_off = true;
    if (strcmp(name, "panels") == 0) {
        return bench_deep_panels(3, &engine, &runtime);
    }
    if (strcmp(name, "windows") == 0) {
        return bench_windows(windows, &engine, &runtime);
    }
    if (strcmp(name, "lfm2") == 0) {
        return bench_recurrent(name, &engine, &runtime);
    }
    return bench_scheme(name, &engine, &runtime);
}

/* The logits of `quire perplexity`: a sequence of its own, in steps of n_batch rows that all want
 * their logits. */
static void values_by_loop(const engine_bench *b, const int32_t *tokens, uint32_t n, values *out)
{
    quire_runtime_opts opts = *quire_runtime_opts_get(b->runtime);
    quire_runtime *runtime;
    quire_seq_id seq;

    opts.n_seqs_max = 1;
    opts.kv_budget_bytes = 0;
    runtime = fixture_runtime(b->model, &opts);
    seq = fixture_seq(runtime);
    out->n = n;
    for (uint32_t first = 0; first < n; first += opts.n_batch) {
        const uint32_t n_now = n - first < opts.n_batch ? n - first : opts.n_batch;
        const float *logits = fixture_step(runtime, seq, tokens + first, n_now, QUIRE_LOGITS_ALL);

        for (uint32_t i = first + 1; i <= first + n_now && i < n; i++, logits += b->n_vocab) {
            out->logprobs[i] =
                quire_logits_logprob(logits, b->n_vocab, tokens[i], out->tops[i], N_TOPS);
            out->ranks[i] = 1;
            for (uint32_t t = 0; t < b->n_vocab; t++) {
                out->ranks[i] += logits[t] > logits[tokens[i]];
            }
        }
    }
    quire_runtime_destroy(runtime);
}

static quire_request_params params_of(const int32_t *tokens, uint32_t n)
{
    quire_request_params params = params_greedy(tokens, n, N_ANSWER);

    params.has_prompt_logprobs = true;
    params.n_prompt_top_logprobs = N_TOPS;
    return params;
}

static void values_take(const quire_request *request, uint32_t n, values *out)
{
    quire_prompt_logprob value;

    assert_false(quire_request_prompt_logprob(request, 0, &value));
    assert_false(quire_request_prompt_logprob(request, n, &value));
    out->n = n;
    for (uint32_t i = 1; i < n; i++) {
        assert_true(quire_request_prompt_logprob(request, i, &value));
        assert_int_equal(value.n_tops, N_TOPS);
        out->logprobs[i] = value.logprob;
        out->ranks[i] = value.rank;
        memcpy(out->tops[i], value.tops, sizeof out->tops[i]);
    }
}

/* With weights in panels a row has the same bits in any step. */
static void values_check(const values *a, const values *b)
{
    assert_int_equal(a->n, b->n);
    for (uint32_t i = 1; i < a->n; i++) {
        assert_memory_equal(&a->logprobs[i], &b->logprobs[i], sizeof a->logprobs[i]);
        assert_int_equal(a->ranks[i], b->ranks[i]);
        assert_memory_equal(a->tops[i], b->tops[i], sizeof a->tops[i]);
    }
}

/* Of a request that has ended: its values are the expected ones, and it used no cached token. */
static void request_check(quire_request *request, const values *want)
{
    const quire_request_result *result = finish(request);

    assert_int_equal(result->finish, QUIRE_FINISH_LENGTH);
    assert_int_equal(result->n_cached_tokens, 0);
    values_take(request, want->n, &got);
    values_check(&got, want);
    quire_request_release(request);
}

static void refused(const engine_bench *b, const quire_request_params *params, int status,
                    const char *words)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *request;

    assert_int_equal(quire_engine_submit(b->engine, params, &request, &err), status);
    assert_null(request);
    if (strstr(err.message, words) == NULL) {
        fail_msg("%s", err.message);
    }
}

/* ---- values ---- */

/* One text by chunks of several sizes, again when it is cached, and as a prefix of itself. */
static void model_gives_the_loops_values(const char *name)
{
    static const uint32_t chunks[] = { 16, 96, 512 };
    static int32_t tokens[N_PROMPT], plain[N_ANSWER], answer[N_ANSWER];

    tokens_make(tokens, N_PROMPT, 5);
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        const uint64_t n_values = 2 * (N_PROMPT - 1) + N_PROMPT - 34;
        engine_bench b = bench_by(name, chunks[i]);
        quire_request_params params = params_of(tokens, N_PROMPT);
        quire_request *request;

        values_by_loop(&b, tokens, N_PROMPT, &expected);
        for (int again = 0; again < 2; again++) {
            request = submit(&b, &params);
            assert_int_equal(collect(request, answer, N_ANSWER), N_ANSWER);
            request_check(request, &expected);
        }
        /* Its pages are cached; the answer is that of a plain request. */
        params.has_prompt_logprobs = false;
        request = submit(&b, &params);
        assert_int_equal(collect(request, plain, N_ANSWER), N_ANSWER);
        assert_memory_equal(plain, answer, sizeof plain);
        assert_true(finish(request)->n_cached_tokens > 0);
        quire_request_release(request);
        /* Chunks of the prefix end elsewhere. */
        params = params_of(tokens, N_PROMPT - 33);
        params.is_prompt_only = true;
        request = submit(&b, &params);
        assert_int_equal(finish(request)->n_generated_tokens, 0);
        expected.n = N_PROMPT - 33;
        request_check(request, &expected);
        assert_int_equal(stats_now(b.engine).scored_prompt_tokens_total, n_values);
        validate(b.engine);
        bench_close(&b);
    }
}

static void test_panels(void **state)
{
    (void)state;
    model_gives_the_loops_values("panels");
}

static void test_threads(void **state)
{
    (void)state;
    n_threads = 3;
    model_gives_the_loops_values("panels");
    n_threads = 1;
}

/* Only the first layers store K and V: the others compute the wanted rows alone. */
static void test_shared_kv(void **state)
{
    (void)state;
    model_gives_the_loops_values("yoco");
    model_gives_the_loops_values("fusedkv");
}

static void test_windows(void **state)
{
    (void)state;
    model_gives_the_loops_values("windows");
}

static void test_recurrent(void **state)
{
    (void)state;
    model_gives_the_loops_values("lfm2");
}

static void test_short_prompts(void **state)
{
    engine_bench b = bench_by("panels", 16);
    int32_t tokens[17];

    (void)state;
    tokens_make(tokens, 17, 6);
    values_by_loop(&b, tokens, 17, &expected);
    for (uint32_t n = 1; n <= 17; n += n == 2 ? 14 : 1) {
        quire_request_params params = params_of(tokens, n);

        params.is_prompt_only = n % 2 == 1;
        expected.n = n;
        request_check(submit(&b, &params), &expected);
    }
    bench_close(&b);
}

/* Without an answer the prompt may fill the context. */
static void test_whole_context(void **state)
{
    static int32_t tokens[N_CTX + 1];
    engine_bench b = bench_by("panels", 64);
    quire_request_params params = params_of(tokens, N_CTX);
    quire_request *request;

    (void)state;
    tokens_make(tokens, N_CTX + 1, 7);
    values_by_loop(&b, tokens, N_CTX, &expected);
    refused(&b, &params, QUIRE_RANGE, "320 tokens and one to generate do not fit the context");
    params.is_prompt_only = true;
    for (int again = 0; again < 2; again++) {
        request = submit(&b, &params);
        assert_int_equal(finish(request)->n_generated_tokens, 0);
        request_check(request, &expected);
    }
    params.n_tokens = N_CTX + 1;
    refused(&b, &params, QUIRE_RANGE, "321 tokens do not fit the context of 320");
    validate(b.engine);
    bench_close(&b);
}

/* ---- in company ---- */

/* Steps have rows of requests with values, of others, and of generated tokens. */
static void test_neighbours(void **state)
{
    static int32_t tokens[6][N_PROMPT], plain[40], answer[40];
    static values of[6];
    engine_bench b = bench_by("yoco", 64);
    quire_request *requests[6];
    gate *g;

    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        tokens_make(tokens[i], N_PROMPT, 20 + i / 2);
        values_by_loop(&b, tokens[i], N_PROMPT, &of[i]);
    }
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < 6; i++) {
        quire_request_params params = params_of(tokens[i], N_PROMPT);

        params.has_prompt_logprobs = i % 3 != 0;
        params.max_tokens = 40;
        requests[i] = submit(&b, &params);
    }
    gate_open(g);
    for (uint32_t i = 0; i < 6; i++) {
        quire_prompt_logprob value;

        if (i % 3 != 0) {
            request_check(requests[i], &of[i]);
            continue;
        }
        assert_int_equal(collect(requests[i], answer, 40), 40);
        (void)reference(&b, tokens[i], N_PROMPT, plain, 40);
        assert_memory_equal(answer, plain, sizeof plain);
        assert_false(quire_request_prompt_logprob(requests[i], 1, &value));
        quire_request_release(requests[i]);
    }
    validate(b.engine);
    bench_close(&b);
}

/* The engine stands still. */
static void preempt(quire_loop *loop)
{
    quire_request *r = loop->set.running[0];

    quire_loop_preempt(loop, r);
    r->wait.blocked_at = 0; /* as if pages had been released since */
}

/* A request that was preempted in its prompt goes on behind its known values. A request that was
 * preempted in its answer uses its whole cached text. */
static void preempted_at(const char *name, uint32_t n_tokens, bool loses_pages)
{
    static int32_t tokens[N_PROMPT];
    engine_bench b = bench_by(name, 48);
    quire_request_params params = params_of(tokens, N_PROMPT);
    quire_engine_stats stats;
    quire_request *request;
    quire_loop *loop = b.engine->loop;
    gate *g;

    tokens_make(tokens, N_PROMPT, 30);
    values_by_loop(&b, tokens, N_PROMPT, &expected);
    params.max_tokens = 8;
    params.is_uncached = loses_pages;
    g = gate_close(b.engine);
    request = submit(&b, &params);
    while (loop->set.n_running == 0 || loop->set.running[0]->kv.n_computed < n_tokens) {
        gate_step(g);
    }
    preempt(loop);
    gate_open(g);
    request_check(request, &expected);
    stats = stats_now(b.engine);
    assert_int_equal(stats.preemptions_total, 1);
    if (loses_pages) {
        assert_true(stats.recomputed_tokens_total >= n_tokens);
    } else {
        assert_true(stats.recomputed_tokens_total < 64);
    }
    validate(b.engine);
    bench_close(&b);
}

static void test_preemption(void **state)
{
    static const char *const names[] = { "panels", "yoco" };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        preempted_at(names[i], 48, false);
        preempted_at(names[i], 144, false);
        preempted_at(names[i], N_PROMPT + 3, false);
        preempted_at(names[i], 96, true);
        preempted_at(names[i], N_PROMPT + 3, true);
    }
}

/* Requests that preempt each other for want of memory. */
static void test_short_memory(void **state)
{
    static int32_t tokens[6][N_PROMPT];
    static values of[6];
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(512, 6); /* room for one context */
    engine_bench b;
    quire_request *requests[6];
    gate *g;

    (void)state;
    engine.chunk_tokens = 64;
    b = bench_deep_panels(3, &engine, &runtime);
    for (uint32_t i = 0; i < 6; i++) {
        tokens_make(tokens[i], N_PROMPT, 40 + i);
        values_by_loop(&b, tokens[i], N_PROMPT / 2, &of[i]);
    }
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < 6; i++) {
        quire_request_params params = params_of(tokens[i], N_PROMPT / 2);

        params.max_tokens = 200;
        requests[i] = submit(&b, &params);
    }
    gate_open(g);
    for (uint32_t i = 0; i < 6; i++) {
        request_check(requests[i], &of[i]);
    }
    assert_true(stats_now(b.engine).preemptions_total > 0);
    validate(b.engine);
    bench_close(&b);
}

/* After a cancel in the prompt the values of all computed tokens are there. */
static void test_cancel(void **state)
{
    static int32_t tokens[N_PROMPT];
    engine_bench b = bench_by("panels", 32);
    const quire_request_params params = params_of(tokens, N_PROMPT);
    quire_prompt_logprob value;
    quire_request *request;
    gate *g;

    (void)state;
    tokens_make(tokens, N_PROMPT, 50);
    g = gate_close(b.engine);
    request = submit(&b, &params);
    while (b.engine->loop->set.n_running == 0 ||
           b.engine->loop->set.running[0]->kv.n_computed < 64) {
        gate_step(g);
    }
    quire_request_cancel(request);
    gate_open(g);
    assert_int_equal(finish(request)->finish, QUIRE_FINISH_CANCEL);
    assert_true(quire_request_prompt_logprob(request, 64, &value));
    assert_false(quire_request_prompt_logprob(request, N_PROMPT - 1, &value));
    quire_request_release(request);
    bench_close(&b);
}

/* ---- refusals ---- */

static void test_refusals(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const uint32_t n_ctx = 120000;
    const quire_runtime_opts runtime = bench_runtime_opts(n_ctx, 2);
    engine_bench b = bench_tiny(&engine, &runtime);
    int32_t *tokens = malloc(n_ctx * sizeof *tokens);
    quire_request_params params = params_of(tokens, 20);

    (void)state;
    assert_non_null(tokens);
    tokens_make(tokens, n_ctx, 60);
    params.context_overflow = QUIRE_CONTEXT_SHIFT;
    refused(&b, &params, QUIRE_UNSUPP, "context_overflow: ");
    params = params_of(tokens, 20);
    params.pooling = QUIRE_POOLING_MEAN;
    refused(&b, &params, QUIRE_INVAL, "prompt_logprobs: ");
    params = params_of(tokens, n_ctx - 1);
    params.n_prompt_top_logprobs = QUIRE_LOGPROBS_MAX;
    refused(&b, &params, QUIRE_LIMIT, "prompt_logprobs: ");
    free(tokens);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_panels),        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_shared_kv),     cmocka_unit_test(test_windows),
        cmocka_unit_test(test_recurrent),     cmocka_unit_test(test_short_prompts),
        cmocka_unit_test(test_whole_context), cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_preemption),    cmocka_unit_test(test_short_memory),
        cmocka_unit_test(test_cancel),        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
