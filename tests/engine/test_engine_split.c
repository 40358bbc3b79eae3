/* test_engine_split.c - the engine with a model whose layers are on two devices: hits, windows and
 * states give the bits of one device, requests are preempted, pins hold, and a lost device fails
 * all requests by its name.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_fixture.h"

#include "device/mock_device.h"
#include "engine/pins.h"
#include "engine/views.h"

#include <stdio.h>
#include <string.h>

#define N_CTX    512u
#define N_PROMPT 200u /* tokens: three full pages and an open one */
#define N_TOKENS 200u /* of the longest answers */
#define N_SHORT  12u  /* of answers whose hits find all hot pages */
#define N_LAYERS 6u

static uint32_t n_prompt = N_PROMPT; /* tokens of each request */
static uint32_t n_answer;            /* and of each answer, at most N_TOKENS */
static quire_device *opened[2];      /* of the last runtime */
static uint32_t n_opened;

static int open_mock(quire_device **out, const char *name, const quire_device_opts *opts,
                     quire_error *err)
{
    const quire_mock_device_opts none = { 0 };
    const int rc = quire_mock_device_open(out, opts, &none, err);

    assert_int_equal(strncmp(name, "mock", 4), 0);
    opened[n_opened++ % 2] = *out;
    return rc;
}

/* n_layers: of the model, divided in two halves; 0 = one device. */
static quire_runtime_opts opts_of(uint32_t n_layers, quire_format format)
{
    quire_runtime_opts opts = bench_runtime_opts(N_CTX, 6);

    opts.n_batch = 128;
    opts.k_format = opts.v_format = format;
    opts.kv_recent = opts.kv_sinks = 64;
    opts.device = "mock0";
    opts.device_open = open_mock;
    if (n_layers > 0) {
        opts.device = "mock0,mock1";
        opts.split = (quire_runtime_split){ .n = 2, .names = { "mock0", "mock1" } };
        opts.split.end[0] = n_layers / 2;
        opts.split.end[1] = n_layers;
    }
    n_opened = 0;
    return opts;
}

typedef struct answer {
    int32_t tokens[N_TOKENS];
    float logprobs[N_TOKENS];
    uint32_t n_cached;
    uint32_t n_preemptions;
} answer;

static quire_request *ask(const engine_bench *b, uint64_t seed)
{
    int32_t text[N_PROMPT] = { 0 };
    quire_request_params params = params_greedy(text, n_prompt, n_answer);

    tokens_make(text, n_prompt, seed);
    params.has_logprobs = true;
    return submit(b, &params);
}

static answer take(quire_request *request)
{
    const quire_request_result *result;
    quire_request_token token;
    answer a = { .n_cached = 0 };

    for (uint32_t i = 0; i < n_answer; i++) {
        assert_int_equal(quire_request_wait(request, i, FIXTURE_WAIT_MS, &token), 1);
        a.tokens[i] = token.token;
        a.logprobs[i] = token.logprob;
    }
    result = finish(request);
    assert_int_equal(result->finish, QUIRE_FINISH_LENGTH);
    a.n_cached = result->n_cached_tokens;
    a.n_preemptions = result->n_preemptions;
    quire_request_release(request);
    return a;
}

static void assert_same(const answer *a, const answer *b)
{
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
    assert_memory_equal(a->logprobs, b->logprobs, sizeof a->logprobs);
}

typedef engine_bench open_fn(const quire_engine_opts *engine, const quire_runtime_opts *runtime);

static engine_bench open_plain(const quire_engine_opts *engine, const quire_runtime_opts *runtime)
{
    return bench_deep_panels(N_LAYERS, engine, runtime);
}

static engine_bench open_windows(const quire_engine_opts *engine, const quire_runtime_opts *runtime)
{
    static const int32_t windows[] = { 70, 0, 0, 70 };

    return bench_windows(windows, engine, runtime);
}

static engine_bench open_states(const quire_engine_opts *engine, const quire_runtime_opts *runtime)
{
    return bench_recurrent("qwen35", engine, runtime);
}

/* Two texts, one after the other on one device; on two devices in one step, then as hits. */
static void check_hits(open_fn *open, uint32_t n_layers, quire_format format)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = opts_of(0, format);
    quire_request *requests[2];
    answer wanted[2];
    engine_bench b;

    runtime.kv_budget_bytes = UINT64_C(32) << 20;
    b = open(&engine, &runtime);
    for (uint32_t i = 0; i < 2; i++) {
        wanted[i] = take(ask(&b, i));
    }
    bench_close(&b);
    runtime = opts_of(n_layers, format);
    runtime.kv_budget_bytes = UINT64_C(32) << 20;
    b = open(&engine, &runtime);
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 2; i++) {
            requests[i] = ask(&b, i);
        }
        for (uint32_t i = 0; i < 2; i++) {
            const answer got = take(requests[i]);

            assert_int_equal(got.n_cached >= N_PROMPT / 64 * 64, round == 1);
            assert_same(&wanted[i], &got);
        }
    }
    validate(b.engine);
    bench_close(&b);
}

static void test_hits(void **state)
{
    (void)state;
    n_answer = N_SHORT;
    check_hits(open_plain, N_LAYERS, QUIRE_FORMAT_F16);
    check_hits(open_plain, N_LAYERS, QUIRE_FORMAT_Q8);
    check_hits(open_plain, N_LAYERS, QUIRE_FORMAT_Q4);
    check_hits(open_windows, 4, QUIRE_FORMAT_Q8);
    check_hits(open_states, 5, QUIRE_FORMAT_F16);
}

#define VECTOR_MAX 1024u

/* What a prompt without an answer gives: values of its tokens, or a vector. */
typedef struct scores {
    float logprobs[N_PROMPT];
    float vector[VECTOR_MAX];
} scores;

static void scores_get(uint32_t n_layers, scores *out)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = opts_of(n_layers, QUIRE_FORMAT_Q8);
    engine_bench b = open_plain(&engine, &runtime);
    const quire_request_result *result;
    quire_request_params params;
    quire_request *request;
    int32_t text[N_PROMPT];

    *out = (scores){ .vector = { 0 } };
    tokens_make(text, N_PROMPT, 7);
    params = params_greedy(text, N_PROMPT, 1);
    params.is_prompt_only = params.has_prompt_logprobs = true;
    request = submit(&b, &params);
    assert_int_equal(finish(request)->finish, QUIRE_FINISH_LENGTH);
    for (uint32_t i = 1; i < N_PROMPT; i++) {
        quire_prompt_logprob value;

        assert_true(quire_request_prompt_logprob(request, i, &value));
        out->logprobs[i] = value.logprob;
    }
    quire_request_release(request);
    params = params_greedy(text, N_PROMPT, 1);
    params.pooling = QUIRE_POOLING_MEAN;
    request = submit(&b, &params);
    result = finish(request);
    assert_int_equal(result->finish, QUIRE_FINISH_LENGTH);
    assert_true(result->n_vector > 0 && result->n_vector <= VECTOR_MAX);
    memcpy(out->vector, result->vector, result->n_vector * sizeof *out->vector);
    quire_request_release(request);
    validate(b.engine);
    bench_close(&b);
}

static void test_scores(void **state)
{
    scores one, two;

    (void)state;
    scores_get(0, &one);
    scores_get(N_LAYERS, &two);
    assert_memory_equal(&one, &two, sizeof one);
}

/* Requests that all begin: some give their pages up and go on later, with the answers that they get
 * alone. */
static void test_preemption(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = opts_of(N_LAYERS, QUIRE_FORMAT_F32);
    quire_request *requests[4];
    uint32_t n_preemptions = 0;
    answer got[4];
    engine_bench b;
    gate *g;

    (void)state;
    n_answer = N_TOKENS;
    n_prompt = 100; /* of which several fit at first */
    engine.admit = QUIRE_ADMIT_GROW;
    runtime.kv_budget_bytes = 9 * N_LAYERS * tiny_page_bytes(64); /* of 20 that all need */
    b = open_plain(&engine, &runtime);
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < 4; i++) {
        requests[i] = ask(&b, i);
    }
    gate_open(g);
    for (uint32_t i = 0; i < 4; i++) {
        got[i] = take(requests[i]);
        n_preemptions += got[i].n_preemptions;
    }
    assert_true(n_preemptions > 0);
    for (uint32_t i = 0; i < 4; i++) {
        const answer alone = take(ask(&b, i));

        assert_same(&alone, &got[i]);
    }
    n_prompt = N_PROMPT;
    validate(b.engine);
    bench_close(&b);
}

/* A pinned text stays while others take all other memory. */
static void test_pin(void **state)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = opts_of(N_LAYERS, QUIRE_FORMAT_F32);
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin_params params = { .name = "p", .n_tokens = N_PROMPT };
    int32_t text[N_PROMPT];
    quire_engine_pin pin;
    engine_bench b;
    answer first;

    (void)state;
    n_answer = N_SHORT;
    runtime.kv_budget_bytes = 10 * N_LAYERS * tiny_page_bytes(64);
    b = open_plain(&engine, &runtime);
    tokens_make(text, N_PROMPT, 0);
    params.tokens = text;
    assert_int_equal(quire_engine_pin_create(b.engine, &params, &pin, NULL, &err), QUIRE_OK);
    assert_int_equal(pin.state, QUIRE_ENGINE_PIN_HELD);
    for (uint64_t seed = 1; seed < 5; seed++) {
        (void)take(ask(&b, seed));
    }
    assert_true(stats_now(b.engine).prefix.gone_nodes_total[QUIRE_PREFIX_GONE_MEMORY] > 0);
    first = take(ask(&b, 0));
    assert_true(first.n_cached >= N_PROMPT - 1);
    validate(b.engine);
    bench_close(&b);
}

/* What each device has, of an engine with a split and of one without. */
static void test_layers(void **state)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_layers_view layers[QUIRE_DEVICE_SPLIT_MAX];

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        quire_runtime_opts runtime = opts_of(i * N_LAYERS, QUIRE_FORMAT_F16);
        engine_bench b;

        runtime.kv_budget_bytes = UINT64_C(4) << 20;
        b = open_plain(&engine, &runtime);
        assert_int_equal(quire_engine_layers(b.engine, layers), 2 * i);
        if (i == 1) {
            assert_string_equal(layers[0].name, "mock0");
            assert_int_equal(layers[0].first_layer, 0);
            assert_int_equal(layers[0].last_layer, N_LAYERS / 2 - 1);
            assert_int_equal(layers[1].first_layer, N_LAYERS / 2);
            assert_int_equal(layers[1].last_layer, N_LAYERS - 1);
            assert_true(layers[1].kv_share == 0.5);
            assert_int_equal(layers[0].budget_bytes, UINT64_C(2) << 20);
        }
        bench_close(&b);
    }
}

/* Running, waiting and later requests fail, and the message names the device. */
static void test_loss(void **state)
{
    const quire_mock_device_opts faults = { .loss = 1.0 };
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = opts_of(N_LAYERS, QUIRE_FORMAT_F16);
    const int32_t tokens[] = { 270, 271 };
    const quire_request_params params = params_greedy(tokens, 2, 1);
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *requests[3];
    engine_bench b = open_plain(&engine, &runtime);
    gate *g;

    (void)state;
    n_answer = N_SHORT;
    assert_null(quire_engine_lost_name(b.engine));
    (void)take(ask(&b, 0)); /* pages that the cache has */
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < 3; i++) {
        requests[i] = ask(&b, i);
    }
    gate_step(g);
    quire_mock_device_set(opened[1], &faults); /* its thread waits at the gate */
    gate_open(g);
    for (uint32_t i = 0; i < 3; i++) {
        const quire_request_result *result = finish(requests[i]);

        assert_int_equal(result->status, QUIRE_LOST);
        assert_string_equal(result->message, "device mock1 was lost, and the KV on it");
        quire_request_release(requests[i]);
    }
    assert_true(quire_engine_is_lost(b.engine));
    assert_string_equal(quire_engine_lost_name(b.engine), "mock1");
    assert_int_equal(quire_engine_submit(b.engine, &params, &requests[0], &err), QUIRE_LOST);
    assert_string_equal(err.message, "device mock1 was lost, and the KV on it");
    validate(b.engine);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hits),       cmocka_unit_test(test_scores),
        cmocka_unit_test(test_preemption), cmocka_unit_test(test_pin),
        cmocka_unit_test(test_layers),     cmocka_unit_test(test_loss),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
