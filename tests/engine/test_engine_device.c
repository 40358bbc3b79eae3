/* test_engine_device.c - the engine with its KV on a device, a mock and the first Vulkan device:
 * hits give the bits of a miss, also where states are in the host's memory, requests do not change
 * each other's bits, and a lost device fails all requests by name.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_fixture.h"

#include "device/mock_device.h"
#include "device/validated.h"
#include "device_queue.h"
#include "doze.h"
#include "engine/pins.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define N_CTX    512u
#define N_PROMPT 200u /* tokens: three full pages and an open one */
#define N_TOKENS 12u
#define N_SEQS   6u

/* Memory that lavapipe keeps after its devices are closed is no leak of ours. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libvulkan_lvp.so";
}

static quire_device *mock; /* opened last */

static int open_mock(quire_device **out, const char *name, const quire_device_opts *opts,
                     quire_error *err)
{
    const quire_mock_device_opts none = { 0 };
    const int rc = quire_mock_device_open(out, opts, &none, err);

    assert_string_equal(name, "mock");
    mock = *out;
    return rc;
}

static quire_runtime_opts opts_of(const char *device, quire_format format)
{
    quire_runtime_opts opts = bench_runtime_opts(N_CTX, N_SEQS);

    opts.n_batch = 128;
    opts.k_format = opts.v_format = format;
    opts.kv_recent = opts.kv_sinks = 64;
    opts.device = device;
    opts.device_open = strcmp(device, "mock") == 0 ? open_mock : NULL;
    return opts;
}

/* Whether a device of this name is there. */
static bool is_there(const char *name)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_device *device;

    if (strcmp(name, "mock") == 0) {
        return true;
    }
    opts.attn.n_threads_max = opts.attn.n_seqs_max = opts.attn.n_rows_max = 1;
    opts.attn.n_head_max = opts.attn.n_layers_max = 1;
    opts.attn.head_dim_max = opts.attn.page_tokens = 64;
    opts.attn.n_entries_max = 16;
    if (quire_device_open(&device, name, &opts, &err) < 0) {
        (void)printf("%s: skipped: %s\n", name, err.message);
        return false;
    }
    quire_device_close(device);
    return true;
}

/* An answer: its tokens and the logarithms of their probabilities. */
typedef struct answer {
    int32_t tokens[N_TOKENS];
    float logprobs[N_TOKENS];
    uint32_t n_cached;
} answer;

static quire_request *ask(const engine_bench *b, uint64_t seed)
{
    int32_t text[N_PROMPT] = { 0 };
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);

    tokens_make(text, N_PROMPT, seed);
    params.has_logprobs = true;
    return submit(b, &params);
}

static answer take(quire_request *request)
{
    const quire_request_result *result;
    quire_request_token token;
    answer a = { .n_cached = 0 };

    for (uint32_t i = 0; i < N_TOKENS; i++) {
        assert_int_equal(quire_request_wait(request, i, FIXTURE_WAIT_MS, &token), 1);
        a.tokens[i] = token.token;
        a.logprobs[i] = token.logprob;
    }
    result = finish(request);
    assert_int_equal(result->finish, QUIRE_FINISH_LENGTH);
    a.n_cached = result->n_cached_tokens;
    quire_request_release(request);
    return a;
}

static void assert_same(const answer *a, const answer *b)
{
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
    assert_memory_equal(a->logprobs, b->logprobs, sizeof a->logprobs);
}

/* arch: with recurrent layers, whose states are in the host's memory; or NULL. */
static engine_bench bench_of(const char *arch, const quire_runtime_opts *runtime)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;

    return arch != NULL ? bench_recurrent(arch, &engine, runtime)
                        : bench_panels(32, &engine, runtime);
}

static void check_hits(const char *arch, const char *device, quire_format format)
{
    quire_runtime_opts runtime = opts_of(device, format);
    engine_bench b;
    quire_request *requests[2];
    answer first[2];

    runtime.kv_budget_bytes = arch != NULL ? UINT64_C(16) << 20 : 0; /* states of both texts */
    b = bench_of(arch, &runtime);
    for (uint32_t i = 0; i < 2; i++) {
        first[i] = take(ask(&b, i));
        assert_int_equal(first[i].n_cached, 0);
    }
    for (uint32_t i = 0; i < 2; i++) { /* both at once, with prefixes of the cache */
        requests[i] = ask(&b, i);
    }
    for (uint32_t i = 0; i < 2; i++) {
        const answer again = take(requests[i]);

        assert_true(again.n_cached >= N_PROMPT / 64 * 64);
        assert_same(&first[i], &again);
    }
    bench_close(&b);

    b = bench_of(arch, &runtime); /* both at once, computed */
    for (uint32_t i = 0; i < 2; i++) {
        requests[i] = ask(&b, i);
    }
    for (uint32_t i = 0; i < 2; i++) {
        const answer again = take(requests[i]);

        assert_same(&first[i], &again);
    }
    validate(b.engine);
    bench_close(&b);
}

static void test_hits(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 };
    static const char *const devices[] = { "mock", "vulkan0" };

    (void)state;
    for (size_t d = 0; d < 2; d++) {
        for (size_t f = 0; is_there(devices[d]) && f < 3; f++) {
            check_hits(NULL, devices[d], formats[f]);
        }
    }
    check_hits("qwen35", "mock", QUIRE_FORMAT_F16);
    check_hits("falcon-h1", "mock", QUIRE_FORMAT_Q4);
}

/* A request fails with a message of the engine's. */
static void fails_by_name(quire_request *request)
{
    const quire_request_result *result = finish(request);

    assert_int_equal(result->finish, QUIRE_FINISH_ERROR);
    assert_int_equal(result->status, QUIRE_LOST);
    assert_string_equal(result->message, "device mock was lost, and the KV on it");
    quire_request_release(request);
}

/* Sessions expire beside a lost device, too. */
static void test_loss_and_upkeep(void **state)
{
    _Atomic uint64_t now_us = 1000000;
    const quire_runtime_opts runtime = opts_of("mock", QUIRE_FORMAT_F16);
    const quire_mock_device_opts faults = { .loss = 1.0 };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_session_ref session;
    quire_sessions *sessions;
    quire_request *request;
    engine_bench b;
    gate *g;

    (void)state;
    engine.clock_us = hands_of;
    engine.clock_ctx = &now_us;
    engine.sessions.ttl_us = 10000000;
    b = bench_panels(32, &engine, &runtime);
    sessions = quire_engine_sessions(b.engine);
    assert_int_equal(quire_sessions_enter(sessions, "", 0, "s", now_us, &session, &err), QUIRE_OK);
    quire_sessions_leave(sessions, session, now_us);
    g = gate_close(b.engine);
    request = ask(&b, 0);
    quire_mock_device_set(mock, &faults); /* its thread waits at the gate */
    gate_open(g);
    fails_by_name(request);
    assert_int_equal(quire_sessions_count(sessions), 1);
    atomic_store(&now_us, 30000000);
    while (quire_sessions_count(sessions) > 0) { /* nothing wakes the engine */
        test_doze_ms();
    }
    bench_close(&b);
}

/* Two requests run and others wait: all fail, and so does one that comes later. The engine ends in
 * order. */
static void test_loss(void **state)
{
    const quire_runtime_opts runtime = opts_of("mock", QUIRE_FORMAT_F16);
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    const quire_mock_device_opts faults = { .loss = 1.0 };
    const int32_t tokens[] = { 270, 271 };
    const quire_request_params params = params_greedy(tokens, 2, 1);
    quire_request *requests[5];
    engine_bench b;
    gate *g;

    (void)state;
    engine.n_running_max = 2;
    b = bench_panels(32, &engine, &runtime);
    (void)take(ask(&b, 0)); /* pages that the cache has */
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < 5; i++) {
        requests[i] = ask(&b, i);
    }
    gate_step(g);
    assert_false(quire_engine_is_lost(b.engine));
    quire_mock_device_set(mock, &faults); /* its thread waits at the gate */
    gate_open(g);
    for (uint32_t i = 0; i < 5; i++) {
        fails_by_name(requests[i]);
    }
    assert_true(quire_engine_is_lost(b.engine));
    assert_int_equal(quire_engine_submit(b.engine, &params, &requests[0], &err), QUIRE_LOST);
    assert_null(requests[0]);
    assert_string_equal(err.message, "device mock was lost, and the KV on it");
    assert_true(quire_engine_is_idle(b.engine));
    validate(b.engine);
    bench_close(&b);
}

typedef struct waiting {
    quire_engine *engine;
    bool is_background;
    int status;
    quire_error err;
} waiting;

static void *wait_for_pin(void *arg)
{
    waiting *w = arg;
    int32_t text[N_PROMPT] = { 0 };
    const quire_engine_pin_params params = { .name = "pin",
                                             .tokens = text,
                                             .n_tokens = N_PROMPT,
                                             .class_index = 0,
                                             .is_background = w->is_background };
    quire_engine_pin pin;

    tokens_make(text, N_PROMPT, 1);
    w->status = quire_engine_pin_create(w->engine, &params, &pin, NULL, &w->err);
    return NULL;
}

/* The text of a pin is cached, but a request has the room of its region. The client that waits for
 * the pin hears that the device was lost. */
static void test_loss_under_a_pin(void **state)
{
    quire_runtime_opts runtime = opts_of("mock", QUIRE_FORMAT_F32);
    const quire_mock_device_opts faults = { .loss = 1.0 };
    const quire_engine_pin_name name = { NULL, 0, "pin" };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    waiting w = { .status = QUIRE_OK, .err = QUIRE_ERROR_INIT };
    int32_t text[N_PROMPT] = { 0 };
    quire_request_params params = params_greedy(text, N_PROMPT, 300);
    quire_request *request;
    quire_engine_pin pin;
    pthread_t thread;
    engine_bench b;
    gate *g;

    (void)state;
    runtime.kv_budget_bytes = 16 * tiny_page_bytes(64);
    quire_classes_default(&engine.classes);
    engine.classes.items[0].is_pinned = true;
    engine.pinned_bytes = 4 * tiny_page_bytes(64);
    engine.pins_max = 4;
    b = bench_tiny(&engine, &runtime);
    tokens_make(text, N_PROMPT, 1);
    params.class_index = 1;
    params.max_tokens = 1;
    finish_as(submit(&b, &params), QUIRE_FINISH_LENGTH); /* cached in the dynamic region */
    tokens_make(text, N_PROMPT, 2);
    params.class_index = 0;
    params.max_tokens = 300;
    g = gate_close(b.engine);
    request = submit(&b, &params);
    gate_step(g);
    gate_step(g);
    w.engine = b.engine;
    assert_int_equal(pthread_create(&thread, NULL, wait_for_pin, &w), 0);
    while (quire_engine_pin_get(b.engine, &name, &pin) != QUIRE_OK) {
        gate_step(g);
        test_doze();
    }
    assert_int_equal(pin.state, QUIRE_ENGINE_PIN_COMPUTING);
    quire_mock_device_set(mock, &faults);
    gate_open(g);
    (void)pthread_join(thread, NULL);
    assert_int_equal(w.status, QUIRE_LOST);
    assert_string_equal(w.err.message, "device mock was lost, and the KV on it");
    fails_by_name(request);
    assert_true(quire_engine_is_idle(b.engine));
    while (quire_engine_pin_get(b.engine, &name, &pin) != QUIRE_NOTFOUND) {
        test_doze(); /* it goes behind the client */
    }
    validate(b.engine);
    bench_close(&b);
}

/* The device is lost while a pin is computed for which no client waits. The pin stays: the next
 * process begins with the saved items, and this pin is one of them. */
static void test_loss_under_a_pin_alone(void **state)
{
    quire_runtime_opts runtime = opts_of("mock", QUIRE_FORMAT_F32);
    const quire_mock_device_opts faults = { .loss = 1.0 };
    const quire_engine_pin_name name = { NULL, 0, "pin" };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    waiting w = { .is_background = true, .status = QUIRE_AGAIN, .err = QUIRE_ERROR_INIT };
    quire_engine_pin pin;
    pthread_t thread;
    engine_bench b;
    gate *g;

    (void)state;
    runtime.kv_budget_bytes = 16 * tiny_page_bytes(64);
    engine.pins_max = 4;
    b = bench_tiny(&engine, &runtime);
    g = gate_close(b.engine);
    quire_mock_device_set(mock, &faults);
    w.engine = b.engine;
    assert_int_equal(pthread_create(&thread, NULL, wait_for_pin, &w), 0);
    gate_open(g);
    (void)pthread_join(thread, NULL);
    assert_int_equal(w.status, QUIRE_OK);
    while (!quire_engine_is_lost(b.engine)) {
        test_doze();
    }
    validate(b.engine);
    assert_int_equal(quire_engine_pin_get(b.engine, &name, &pin), QUIRE_OK);
    assert_int_equal(pin.state, QUIRE_ENGINE_PIN_COMPUTING);
    assert_true(quire_engine_is_idle(b.engine));
    bench_close(&b);
}

/* Layers on a device of ggml, which throws an exception in a step: the same, though the device with
 * the KV goes on. */
static void test_loss_of_layers(void **state)
{
    const quire_runtime_opts runtime = opts_of("mock", QUIRE_FORMAT_F16);
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const int32_t tokens[] = { 270, 271 };
    const quire_request_params params = params_greedy(tokens, 2, 1);
    quire_error err = QUIRE_ERROR_INIT;
    char why[QUIRE_RUNTIME_WHY_BYTES];
    quire_request *requests[3];
    engine_bench b;
    gate *g;

    (void)state;
    bench_device_layers = UINT32_MAX;
    b = bench_panels(32, &engine, &runtime);
    bench_device_layers = 0;
    (void)take(ask(&b, 0));
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < 3; i++) {
        requests[i] = ask(&b, i);
    }
    gate_step(g);
    assert_false(quire_engine_is_lost(b.engine));
    device_queue_fail(5);
    gate_open(g);
    for (uint32_t i = 0; i < 3; i++) {
        fails_by_name(requests[i]);
    }
    assert_true(quire_engine_is_lost(b.engine));
    assert_string_equal(quire_engine_lost_name(b.engine), "mock");
    assert_string_equal(quire_runtime_lost_why(b.runtime, why, sizeof why),
                        " (ggml: " DEVICE_QUEUE_THROWN ")");
    assert_false(quire_device_is_lost(mock));
    assert_int_equal(quire_engine_submit(b.engine, &params, &requests[0], &err), QUIRE_LOST);
    assert_true(quire_engine_is_idle(b.engine));
    validate(b.engine);
    bench_close(&b);
    device_queue_fail(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hits),
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_loss_and_upkeep),
        cmocka_unit_test(test_loss_under_a_pin),
        cmocka_unit_test(test_loss_under_a_pin_alone),
        cmocka_unit_test(test_loss_of_layers),
        cmocka_unit_test(validated_end),
    };

    validated_begin();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
