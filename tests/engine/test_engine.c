/* test_engine.c - requests alone and together against the plain loop; limits; endings; life.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/engine_halves.h"
#include "engine/loop/loop_object.h"
#include "engine_fixture.h"
#include "model/text.h"
#include "seed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_CTX     512u
#define N_PROMPT  150u
#define N_TOKENS  40u
#define N_MANY    24u
#define EOS_BIAS  1000.0f
#define TEXT_MAX  4096u
#define TOP_COUNT 5u

static engine_bench bench_default(void)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);

    engine.chunk_tokens = 64;
    return bench_tiny(&engine, &runtime);
}

/* ---- tokens ---- */

static void test_one_equals_the_plain_loop(void **state)
{
    engine_bench b = bench_default();
    int32_t prompt[N_PROMPT], expected[N_TOKENS], got[N_TOKENS];
    quire_request_params params = params_greedy(prompt, N_PROMPT, N_TOKENS);
    const quire_request_result *result;
    quire_request *request;
    quire_engine_stats stats;

    (void)state;
    tokens_make(prompt, N_PROMPT, 1);
    reference(&b, prompt, N_PROMPT, expected, N_TOKENS);
    request = submit(&b, &params);
    assert_int_equal(collect(request, got, N_TOKENS), N_TOKENS);
    assert_memory_equal(got, expected, sizeof got);

    result = quire_request_result_get(request);
    assert_int_equal(result->finish, QUIRE_FINISH_LENGTH);
    assert_int_equal(result->status, QUIRE_OK);
    assert_int_equal(result->stop_index, -1);
    assert_int_equal(result->n_prompt_tokens, N_PROMPT);
    assert_int_equal(result->n_cached_tokens, 0);
    assert_int_equal(result->n_generated_tokens, N_TOKENS);
    assert_int_equal(result->n_preemptions, 0);
    assert_true(result->ttft_us == result->queue_us + result->prefill_us);
    assert_true(result->total_us >= result->ttft_us + result->decode_us);
    quire_request_release(request);

    stats = stats_now(b.engine);
    assert_int_equal(stats.requests_total, 1);
    assert_int_equal(stats.finished_length_total, 1);
    assert_int_equal(stats.prompt_tokens_total, N_PROMPT);
    assert_int_equal(stats.computed_prompt_tokens_total, N_PROMPT);
    assert_int_equal(stats.generated_tokens_total, N_TOKENS);
    assert_int_equal(stats.step_rows_total, N_PROMPT + N_TOKENS - 1);
    assert_int_equal(stats.steps_total, 3 + N_TOKENS - 1); /* chunks of 64 */
    assert_int_equal(stats.ttft.n, 1);
    assert_int_equal(stats.inter_token.n, N_TOKENS - 1);
    assert_int_equal(stats.queue.n, 1);
    assert_int_equal(stats.e2e.n, 1);
    assert_true(stats.prefill_token_seconds > 0.0);
    assert_true(quire_engine_is_idle(b.engine));
    bench_close(&b);
}

/* More requests than run at once, of all lengths, each as if it were alone. */
static void test_many_equal_the_plain_loop(void **state)
{
    engine_bench b = bench_default();
    quire_rng rng = test_rng(2);
    int32_t prompts[N_MANY][N_PROMPT], expected[N_TOKENS], got[N_TOKENS];
    uint32_t n_prompt[N_MANY], n_tokens[N_MANY];
    quire_request *requests[N_MANY];

    (void)state;
    for (uint32_t i = 0; i < N_MANY; i++) {
        quire_request_params params;

        n_prompt[i] = 1 + quire_rng_below(&rng, N_PROMPT);
        n_tokens[i] = 1 + quire_rng_below(&rng, N_TOKENS);
        tokens_make(prompts[i], n_prompt[i], 100 + i);
        params = params_greedy(prompts[i], n_prompt[i], n_tokens[i]);
        params.priority = (int32_t)quire_rng_below(&rng, 3);
        requests[i] = submit(&b, &params);
    }
    for (uint32_t i = 0; i < N_MANY; i++) {
        assert_int_equal(collect(requests[i], got, N_TOKENS), n_tokens[i]);
        reference(&b, prompts[i], n_prompt[i], expected, n_tokens[i]);
        assert_memory_equal(got, expected, n_tokens[i] * sizeof *got);
        finish_as(requests[i], QUIRE_FINISH_LENGTH);
    }
    bench_close(&b);
}

/* Equal seeds give equal texts and other seeds other texts, with or without requests beside. */
static void test_seeds(void **state)
{
    engine_bench b = bench_default();
    int32_t prompt[N_PROMPT], got[3][N_TOKENS];
    quire_request *requests[3];

    (void)state;
    tokens_make(prompt, N_PROMPT, 3);
    for (uint32_t i = 0; i < 3; i++) {
        quire_request_params params = params_greedy(prompt, N_PROMPT, N_TOKENS);

        params.sampler.temperature = 1.0f;
        params.sampler.top_k = 0;
        params.sampler.top_p = 1.0f;
        params.sampler.min_p = 0.0f;
        params.sampler.seed = i == 2 ? 6 : 5;
        requests[i] = submit(&b, &params);
    }
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(collect(requests[i], got[i], N_TOKENS), N_TOKENS);
        quire_request_release(requests[i]);
    }
    assert_memory_equal(got[0], got[1], sizeof got[0]);
    assert_memory_not_equal(got[0], got[2], sizeof got[0]);
    bench_close(&b);
}

static void test_logprobs(void **state)
{
    engine_bench b = bench_default();
    int32_t prompt[N_PROMPT];
    quire_request_params params = params_greedy(prompt, N_PROMPT, 4);
    quire_request_token token;
    quire_request *request;

    (void)state;
    tokens_make(prompt, N_PROMPT, 4);
    params.has_logprobs = true;
    params.n_top_logprobs = TOP_COUNT;
    request = submit(&b, &params);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(quire_request_wait(request, i, FIXTURE_WAIT_MS, &token), 1);
        assert_int_equal(token.n_tops, TOP_COUNT);
        assert_int_equal(token.tops[0].token, token.token); /* greedy */
        assert_true(token.tops[0].logprob == token.logprob && token.logprob < 0.0f);
        for (uint32_t j = 1; j < TOP_COUNT; j++) {
            assert_true(token.tops[j].logprob <= token.tops[j - 1].logprob);
        }
    }
    finish_as(request, QUIRE_FINISH_LENGTH);
    bench_close(&b);
}

/* ---- endings ---- */

static int32_t eog_find(const engine_bench *b)
{
    for (int32_t i = 0; i < (int32_t)b->n_vocab; i++) {
        if (quire_model_is_eog(b->model, i)) {
            return i;
        }
    }
    fail_msg("no token ends a text");
    return -1;
}

static void test_the_end_of_generation(void **state)
{
    engine_bench b = bench_default();
    int32_t prompt[N_PROMPT], got[N_TOKENS];
    quire_request_params params = params_greedy(prompt, N_PROMPT, 3);
    const quire_logit_bias bias = { eog_find(&b), EOS_BIAS };
    quire_request *request;

    (void)state;
    tokens_make(prompt, N_PROMPT, 5);
    params.sampler.bias = &bias;
    params.sampler.n_bias = 1;
    params.ignores_eos = false;
    request = submit(&b, &params);
    assert_int_equal(collect(request, got, N_TOKENS), 0);
    assert_true(quire_request_result_get(request)->ttft_us > 0);
    finish_as(request, QUIRE_FINISH_STOP);

    params.ignores_eos = true;
    request = submit(&b, &params);
    assert_int_equal(collect(request, got, N_TOKENS), 3);
    assert_int_equal(got[2], bias.token);
    finish_as(request, QUIRE_FINISH_LENGTH);
    bench_close(&b);
}

/* Biases for all tokens with this letter as their text, which make a text of this letter likely.
 * Returns their number. */
static uint32_t biases_of(const engine_bench *b, char letter, quire_logit_bias *biases, uint32_t n)
{
    uint32_t n_found = 0;

    for (int32_t token = 0; token < (int32_t)b->n_vocab; token++) {
        char piece[16];

        if (quire_model_token_text(b->model, token, false, piece, sizeof piece) == 1 &&
            piece[0] == letter) {
            assert_true(n_found < n);
            biases[n_found++] = (quire_logit_bias){ token, EOS_BIAS };
        }
    }
    assert_true(n_found > 0);
    return n_found;
}

/* n answers of 3 tokens have 3 intervals each, since the token that ends an answer counts: the mean
 * time between tokens divides by 3. */
static void assert_mean_intervals(const engine_bench *b, uint32_t n)
{
    const quire_engine_stats stats = stats_now(b->engine);
    const quire_histogram *tpot = &stats.classes[0].tpot;

    assert_int_equal(stats.inter_token.n, 3 * n);
    assert_int_equal(tpot->n, n);
    assert_true(fabs(tpot->sum - stats.inter_token.sum / 3) <= 1e-9 * stats.inter_token.sum);
}

/* Tokens behind a grammar's end are no part of the answer, also with ignore_eos. */
static void test_a_grammar_ends(void **state)
{
    engine_bench b = bench_default();
    int32_t prompt[N_PROMPT], got[N_TOKENS];
    quire_request_params params = params_greedy(prompt, N_PROMPT, N_TOKENS);

    (void)state;
    tokens_make(prompt, N_PROMPT, 15);
    params.sampler.grammar = "root ::= [0-9]{3}";
    for (int i = 0; i < 3; i++) {
        quire_request *request;

        params.ignores_eos = i > 0;
        params.sampler.forbids_eog = i > 1;
        request = submit(&b, &params);
        assert_int_equal(collect(request, got, N_TOKENS), 3);
        finish_as(request, QUIRE_FINISH_STOP);
    }
    assert_mean_intervals(&b, 3);
    bench_close(&b);
}

/* A sampler that gives up ends its own request with an error, and no other request. */
static void test_a_grammar_too_ambiguous(void **state)
{
    engine_bench b = bench_default();
    int32_t prompt[N_PROMPT], got[N_TOKENS], expected[N_TOKENS];
    quire_request_params params = params_greedy(prompt, N_PROMPT, N_TOKENS);
    const quire_request_params other = params;
    quire_logit_bias biases[8];
    quire_request *request, *beside;
    const quire_request_result *result;

    (void)state;
    tokens_make(prompt, N_PROMPT, 16);
    reference(&b, prompt, N_PROMPT, expected, N_TOKENS);
    params.sampler.grammar = "root ::= s\ns ::= \"a\" s{100} |";
    params.sampler.bias = biases;
    params.sampler.n_bias = biases_of(&b, 'a', biases, 8);
    request = submit(&b, &params);
    beside = submit(&b, &other);
    result = finish(request);
    assert_int_equal(result->status, QUIRE_LIMIT);
    assert_non_null(strstr(result->message, "grammar"));
    assert_in_range(result->n_generated_tokens, 4, N_TOKENS - 1);
    finish_as(request, QUIRE_FINISH_ERROR);
    assert_int_equal(collect(beside, got, N_TOKENS), N_TOKENS);
    assert_memory_equal(got, expected, sizeof got);
    finish_as(beside, QUIRE_FINISH_LENGTH);
    bench_close(&b);
}

/* Text of all tokens and the tail. */
static size_t text_of(quire_request *request, char *text, size_t cap)
{
    const quire_request_result *result;
    quire_request_token token;
    size_t n = 0;

    for (uint32_t i = 0; quire_request_wait(request, i, FIXTURE_WAIT_MS, &token) == 1; i++) {
        assert_true(n + token.text_bytes < cap);
        memcpy(text + n, token.text, token.text_bytes);
        n += token.text_bytes;
    }
    result = quire_request_result_get(request);
    assert_true(n + result->tail_bytes < cap);
    memcpy(text + n, result->tail, result->tail_bytes);
    n += result->tail_bytes;
    text[n] = '\0';
    return n;
}

static void test_stop_texts(void **state)
{
    engine_bench b = bench_default();
    int32_t prompt[N_PROMPT];
    quire_request_params params = params_greedy(prompt, N_PROMPT, N_TOKENS);
    char whole[TEXT_MAX], cut[TEXT_MAX], stop[8];
    const char *stops[2] = { "not in the text, surely", stop };
    quire_request *request;
    size_t n;

    (void)state;
    tokens_make(prompt, N_PROMPT, 6);
    request = submit(&b, &params);
    n = text_of(request, whole, sizeof whole);
    assert_true(n > 12);
    quire_request_release(request);

    (void)snprintf(stop, sizeof stop, "%.6s", whole + n / 2);
    params.stops = stops;
    params.n_stops = 2;
    request = submit(&b, &params);
    n = text_of(request, cut, sizeof cut);
    assert_int_equal(n, strstr(whole, stop) - whole);
    assert_memory_equal(cut, whole, n);
    assert_int_equal(quire_request_result_get(request)->stop_index, 1);
    finish_as(request, QUIRE_FINISH_STOP);
    bench_close(&b);
}

static void test_lengths(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(128, 4);
    int32_t prompt[N_PROMPT], got[128];
    engine_bench b;
    quire_request_params params = params_greedy(prompt, 100, 0);
    quire_request *request;

    (void)state;
    tokens_make(prompt, N_PROMPT, 7);
    b = bench_tiny(&engine, &runtime);
    assert_int_equal(quire_engine_n_ctx(b.engine), 128);
    request = submit(&b, &params); /* up to the context */
    assert_int_equal(collect(request, got, 128), 28);
    finish_as(request, QUIRE_FINISH_LENGTH);
    params.n_tokens = 127;
    params.max_tokens = 9;
    request = submit(&b, &params);
    assert_int_equal(collect(request, got, 128), 1);
    finish_as(request, QUIRE_FINISH_LENGTH);
    bench_close(&b);

    engine.tokens_max = 5;
    b = bench_tiny(&engine, &runtime);
    params.n_tokens = 10;
    request = submit(&b, &params);
    assert_int_equal(collect(request, got, 128), 5);
    finish_as(request, QUIRE_FINISH_LENGTH);
    bench_close(&b);
}

/* ---- refusals ---- */

static void refused(const engine_bench *b, const quire_request_params *params, int status,
                    const char *word)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *request = (void *)(uintptr_t)1;

    assert_int_equal(quire_engine_submit(b->engine, params, &request, &err), status);
    assert_null(request);
    if (strstr(err.message, word) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.message, word);
    }
}

static void test_refusals(void **state)
{
    engine_bench b = bench_default();
    int32_t prompt[N_CTX], bad[2] = { 270, 320 };
    const quire_request_params good = params_greedy(prompt, 10, 1);
    quire_request_params params = good;
    char long_text[QUIRE_STOP_BYTES_MAX + 2];
    const char *stops[QUIRE_STOPS_MAX + 1] = { "" };
    char tenant[QUIRE_PREFIX_SALT_MAX + 1] = { 0 };

    (void)state;
    tokens_make(prompt, N_CTX, 8);
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    params.n_tokens = 0;
    refused(&b, &params, QUIRE_INVAL, "prompt");
    params.n_tokens = N_CTX;
    refused(&b, &params, QUIRE_RANGE, "512");
    params = good;
    params.tokens = bad;
    params.n_tokens = 2;
    refused(&b, &params, QUIRE_INVAL, "320");
    bad[1] = -1;
    refused(&b, &params, QUIRE_INVAL, "-1");
    params = good;
    params.stops = stops;
    params.n_stops = 1;
    refused(&b, &params, QUIRE_INVAL, "stop");
    stops[0] = long_text;
    refused(&b, &params, QUIRE_INVAL, "stop");
    params.n_stops = QUIRE_STOPS_MAX + 1;
    refused(&b, &params, QUIRE_INVAL, "stop");
    params = good;
    params.n_top_logprobs = QUIRE_LOGPROBS_MAX + 1;
    refused(&b, &params, QUIRE_INVAL, "top_logprobs");
    params = good;
    params.id = long_text;
    refused(&b, &params, QUIRE_INVAL, "id");
    params = good;
    params.tenant = tenant;
    params.tenant_bytes = sizeof tenant;
    refused(&b, &params, QUIRE_INVAL, "tenant");
    params = good;
    params.sampler.grammar = "root ::= (";
    refused(&b, &params, QUIRE_INVAL, "rammar");
    assert_int_equal(stats_now(b.engine).rejected_invalid_total, 11);
    assert_true(quire_engine_is_idle(b.engine));
    finish_as(submit(&b, &good), QUIRE_FINISH_LENGTH);
    bench_close(&b);
}

static void test_bad_options(void **state)
{
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;
    engine_bench b = bench_default();
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine *engine;

    (void)state;
    quire_engine_destroy(b.engine);
    opts.model = b.model;
    opts.runtime = b.runtime;
    opts.queue_max = QUIRE_ENGINE_QUEUE_MAX + 1;
    assert_int_equal(quire_engine_create(&engine, &opts, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "65536"));
    opts.queue_max = 0;
    opts.explain_max = UINT32_MAX;
    assert_int_equal(quire_engine_create(&engine, &opts, &err), QUIRE_INVAL);
    assert_null(engine);
    opts.explain_max = 0;
    opts.n_running_max = 0;
    opts.chunk_tokens = 0;
    assert_int_equal(quire_engine_create(&b.engine, &opts, &err), QUIRE_OK);
    assert_ptr_equal(quire_engine_model(b.engine), b.model);
    assert_non_null(quire_engine_sessions(b.engine));
    bench_close(&b);
    quire_engine_destroy(NULL);
}

static void test_full_queue(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    int32_t prompt[8];
    quire_request_params params = params_greedy(prompt, 8, 2);
    quire_request *requests[5], *one_more = NULL;
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_stats stats;
    engine_bench b;
    gate *g;

    (void)state;
    tokens_make(prompt, 8, 9);
    engine.n_running_max = 2;
    engine.queue_max = 3;
    b = bench_tiny(&engine, &runtime);
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < 5; i++) {
        requests[i] = submit(&b, &params);
    }
    assert_int_equal(quire_engine_submit(b.engine, &params, &one_more, &err), QUIRE_LIMIT);
    assert_non_null(strstr(err.message, "full"));
    gate_step(g);
    quire_engine_stats_get(b.engine, &stats);
    assert_int_equal(stats.requests_decoding, 2); /* no more run at once */
    assert_int_equal(stats.requests_waiting, 3);
    gate_open(g);
    for (uint32_t i = 0; i < 5; i++) {
        finish_as(requests[i], QUIRE_FINISH_LENGTH);
    }
    finish_as(submit(&b, &params), QUIRE_FINISH_LENGTH);
    assert_int_equal(stats_now(b.engine).rejected_queue_full_total, 1);
    bench_close(&b);
}

/* ---- cancel, life ---- */

static void test_waiting_has_an_end(void **state)
{
    engine_bench b = bench_default();
    int32_t prompt[N_PROMPT];
    quire_request_params params = params_greedy(prompt, N_PROMPT, 2);
    quire_explanation explanation;
    quire_request_token token;
    quire_request *request;
    gate *g;

    (void)state;
    tokens_make(prompt, N_PROMPT, 11);
    g = gate_close(b.engine);
    request = submit(&b, &params);
    assert_int_equal(quire_request_wait(request, 0, 0, &token), QUIRE_AGAIN);
    assert_int_equal(quire_request_wait(request, 0, 1, &token), QUIRE_AGAIN);
    assert_int_equal(quire_request_explain(request, &explanation), QUIRE_AGAIN);
    gate_open(g);
    assert_int_equal(quire_request_wait(request, 1, FIXTURE_WAIT_MS, &token), 1);
    assert_int_equal(quire_request_wait(request, 0, 0, &token), 1); /* again, and earlier ones */
    finish_as(request, QUIRE_FINISH_LENGTH);
    bench_close(&b);
}

/* Waiting ones never run; running ones get no step more and their pages are free. */
static void test_cancel(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    int32_t prompt[N_PROMPT];
    quire_request_params params = params_greedy(prompt, N_PROMPT, 300);
    quire_request *requests[4];
    quire_request_token token;
    quire_explanation explanation;
    quire_engine_stats before, after;
    engine_bench b;
    gate *g;

    (void)state;
    tokens_make(prompt, N_PROMPT, 12);
    engine.n_running_max = 2;
    engine.no_prefix_cache = true; /* pages that nobody holds are free, not cached */
    b = bench_tiny(&engine, &runtime);
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < 4; i++) {
        requests[i] = submit(&b, &params);
    }
    gate_step(g);
    gate_step(g);
    assert_int_equal(quire_request_wait(requests[0], 0, 0, &token), 1);
    quire_engine_stats_get(b.engine, &before);
    assert_int_equal(before.cache.pages_live, 2 * 3);
    assert_int_equal(before.steps_total, 2);
    for (uint32_t i = 0; i < 4; i++) {
        quire_request_cancel(requests[i]);
        quire_request_cancel(requests[i]);
    }
    gate_step(g);
    quire_engine_stats_get(b.engine, &after);
    assert_int_equal(after.cache.pages_live, 0);
    assert_int_equal(after.steps_total, 2);
    gate_open(g);
    for (uint32_t i = 0; i < 4; i++) {
        (void)finish(requests[i]);
    }
    assert_int_equal(after.finished_cancelled_total, 4);
    assert_int_equal(quire_request_explain(requests[0], &explanation), QUIRE_OK);
    assert_int_equal(quire_request_explain(requests[3], &explanation), QUIRE_NOTFOUND);
    for (uint32_t i = 0; i < 4; i++) {
        finish_as(requests[i], QUIRE_FINISH_CANCEL);
    }
    bench_close(&b);
}

/* A request in the inbox is cancelled after the engine fetched the inbox and before it looks for
 * cancelled requests. The engine finds none, and the next fetch must still see the cancel. */
static void test_cancel_in_the_inbox(void **state)
{
    engine_bench b = bench_default();
    int32_t prompt[N_PROMPT];
    const quire_request_params params = params_greedy(prompt, N_PROMPT, 0);
    quire_request *request;
    gate *g = gate_close(b.engine);

    (void)state;
    tokens_make(prompt, N_PROMPT, 17);
    request = submit(&b, &params);
    quire_request_cancel(request);
    (void)pthread_mutex_lock(&b.engine->loop->inbox.lock);
    assert_true(b.engine->loop->inbox.has_cancels);
    b.engine->loop->inbox.has_cancels = false;
    (void)pthread_mutex_unlock(&b.engine->loop->inbox.lock);
    gate_open(g);
    assert_int_equal(finish(request)->n_generated_tokens, 0);
    finish_as(request, QUIRE_FINISH_CANCEL);
    bench_close(&b);
}

/* A step of two that cannot be computed, which is the fault of the first: the other goes on. */
static void test_who_is_not_to_blame_goes_on(void **state)
{
    engine_bench b = bench_default();
    int32_t prompts[2][N_PROMPT], expected[N_TOKENS], got[N_TOKENS];
    quire_request *requests[2];
    const quire_request_result *result;
    gate *g = gate_close(b.engine);

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        const quire_request_params params = params_greedy(prompts[i], N_PROMPT, N_TOKENS);

        tokens_make(prompts[i], N_PROMPT, 18 + i);
        requests[i] = submit(&b, &params);
    }
    reference(&b, prompts[1], N_PROMPT, expected, N_TOKENS);
    for (int i = 0; i < 6; i++) { /* both have tokens by then */
        gate_step(g);
    }
    assert_int_equal(b.engine->loop->set.n_running, 2); /* which stands still */
    assert_int_equal(
        quire_seq_close(quire_runtime_cache(b.runtime), b.engine->loop->set.running[0]->kv.seq),
        QUIRE_OK);
    gate_open(g);
    result = finish(requests[0]);
    assert_int_equal(result->status, QUIRE_NOTFOUND);
    finish_as(requests[0], QUIRE_FINISH_ERROR);
    assert_int_equal(collect(requests[1], got, N_TOKENS), N_TOKENS);
    assert_memory_equal(got, expected, sizeof got);
    assert_int_equal(quire_request_result_get(requests[1])->n_preemptions, 1);
    finish_as(requests[1], QUIRE_FINISH_LENGTH);
    bench_close(&b);
}

/* Each step gives a decoding request a token, even while a long prompt is computed. */
static void test_decode_goes_on_beside_a_long_prompt(void **state)
{
    engine_bench b = bench_default();
    int32_t prompt[N_CTX];
    quire_request_params params = params_greedy(prompt, 8, 100);
    quire_request *decoding, *prefilling;
    quire_engine_stats stats;
    quire_request_token token;
    uint32_t n_steps = 0;
    gate *g = gate_close(b.engine);

    (void)state;
    tokens_make(prompt, N_CTX, 20);
    decoding = submit(&b, &params);
    gate_step(g);
    params.tokens = prompt + 8;
    params.n_tokens = 300;
    params.max_tokens = 1;
    prefilling = submit(&b, &params);
    do {
        gate_step(g);
        n_steps++;
        assert_int_equal(quire_request_wait(decoding, n_steps, 0, &token), 1);
        assert_int_equal(quire_request_wait(decoding, n_steps + 1, 0, &token), QUIRE_AGAIN);
        quire_engine_stats_get(b.engine, &stats);
        assert_true(stats.step_rows_total <= 8 + 64 * (uint64_t)n_steps); /* a chunk at most */
    } while (quire_request_wait(prefilling, 0, 0, &token) == QUIRE_AGAIN);
    assert_int_equal(n_steps, 5); /* 63 rows of a chunk */
    gate_open(g);
    finish_as(prefilling, QUIRE_FINISH_LENGTH);
    finish_as(decoding, QUIRE_FINISH_LENGTH);
    bench_close(&b);
}

/* A client that lets go without waiting; and an engine that ends under its requests. */
static void test_destroy_and_release(void **state)
{
    engine_bench b = bench_default();
    int32_t prompt[N_PROMPT];
    quire_request_params params = params_greedy(prompt, N_PROMPT, 300);
    quire_request *requests[N_MANY];
    quire_request_token token;

    (void)state;
    tokens_make(prompt, N_PROMPT, 13);
    for (uint32_t i = 0; i < N_MANY; i++) {
        requests[i] = submit(&b, &params);
    }
    assert_int_equal(quire_request_wait(requests[0], 0, FIXTURE_WAIT_MS, &token), 1);
    for (uint32_t i = 0; i < N_MANY; i += 2) {
        quire_request_release(requests[i]);
    }
    assert_false(quire_engine_is_idle(b.engine));
    bench_close(&b);
    for (uint32_t i = 1; i < N_MANY; i += 2) {
        quire_request_cancel(requests[i]); /* of no effect any more */
        finish_as(requests[i], QUIRE_FINISH_CANCEL);
    }
    quire_request_release(NULL);
}

static void test_higher_priority_first(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);
    int32_t prompt[8];
    quire_request_params params = params_greedy(prompt, 8, 2);
    quire_explanation last[3];
    quire_request *requests[3];
    engine_bench b;
    gate *g;

    (void)state;
    tokens_make(prompt, 8, 14);
    engine.n_running_max = 1;
    b = bench_tiny(&engine, &runtime);
    g = gate_close(b.engine);
    for (int i = 0; i < 3; i++) {
        const char *ids[] = { "low", "mid", "high" };

        params.priority = i;
        params.id = ids[i];
        requests[i] = submit(&b, &params);
    }
    gate_open(g);
    for (int i = 0; i < 3; i++) {
        finish_as(requests[i], QUIRE_FINISH_LENGTH);
    }
    assert_int_equal(quire_engine_explain_last(b.engine, last, 3), 3); /* newest first */
    assert_string_equal(last[2].request_id, "high");
    assert_string_equal(last[1].request_id, "mid");
    assert_string_equal(last[0].request_id, "low");
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_equals_the_plain_loop),
        cmocka_unit_test(test_many_equal_the_plain_loop),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_the_end_of_generation),
        cmocka_unit_test(test_a_grammar_ends),
        cmocka_unit_test(test_a_grammar_too_ambiguous),
        cmocka_unit_test(test_stop_texts),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_waiting_has_an_end),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_cancel_in_the_inbox),
        cmocka_unit_test(test_who_is_not_to_blame_goes_on),
        cmocka_unit_test(test_decode_goes_on_beside_a_long_prompt),
        cmocka_unit_test(test_destroy_and_release),
        cmocka_unit_test(test_higher_priority_first),
    };

    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
