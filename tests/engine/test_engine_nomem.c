/* test_engine_nomem.c - each allocation of the engine fails once. The request is refused or ends,
 * other requests are unaffected, and nothing leaks.
 *
 * The link wraps malloc, calloc, realloc and aligned_alloc. Allocations fail only on the thread
 * that requested it; those of libstdc++ are not wrapped.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/pins.h"
#include "engine_fixture.h"
#include "failing_alloc.h"

#include <stdlib.h>

#define N_CTX      512u
#define N_PROMPT   100u
#define N_TOKENS   200u
#define ROUNDS_MAX 500u

static engine_bench bench_default(void)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);

    return bench_tiny(&engine, &runtime);
}

static quire_request_params params_full(const int32_t *prompt)
{
    quire_request_params params = params_greedy(prompt, N_PROMPT, N_TOKENS);

    params.has_logprobs = true;
    params.n_top_logprobs = QUIRE_LOGPROBS_MAX;
    params.has_prompt_logprobs = true;
    params.n_prompt_top_logprobs = 2;
    params.id = "x";
    return params;
}

static void test_create(void **state)
{
    engine_bench b = bench_default();
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;
    unsigned k = 0;
    int rc;

    (void)state;
    quire_engine_destroy(b.engine);
    opts.model = b.model;
    opts.runtime = b.runtime;
    opts.pinned_bytes = (uint64_t)1 << 16;
    do {
        quire_error err = QUIRE_ERROR_INIT;

        fail_in = ++k;
        rc = quire_engine_create(&b.engine, &opts, &err);
        fail_in = 0;
        if (rc != QUIRE_OK) {
            assert_int_equal(rc, QUIRE_NOMEM);
            assert_int_equal(err.status, QUIRE_NOMEM);
            assert_null(b.engine);
        }
    } while (rc != QUIRE_OK && k < ROUNDS_MAX);
    assert_int_equal(rc, QUIRE_OK);
    assert_true(k > 5);
    bench_close(&b);
}

static void test_submit(void **state)
{
    engine_bench b = bench_default();
    const char *const stops[] = { "never" };
    int32_t prompt[N_PROMPT];
    quire_request_params params = params_full(prompt);
    quire_request *request = NULL;
    unsigned k = 0;
    int rc;

    (void)state;
    tokens_make(prompt, N_PROMPT, 1);
    params.stops = stops;
    params.n_stops = 1;
    do {
        quire_error err = QUIRE_ERROR_INIT;

        fail_in = ++k;
        rc = quire_engine_submit(b.engine, &params, &request, &err);
        fail_in = 0;
        if (rc != QUIRE_OK) {
            assert_int_equal(rc, QUIRE_NOMEM);
            assert_true(quire_engine_is_idle(b.engine));
        }
    } while (rc != QUIRE_OK && k < ROUNDS_MAX);
    assert_int_equal(rc, QUIRE_OK);
    assert_true(k > 3);
    finish_as(request, QUIRE_FINISH_LENGTH);
    assert_int_equal(stats_now(b.engine).rejected_invalid_total, 0);
    bench_close(&b);
}

static void arm_all(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)cache;
    (void)tree;
    fail_in = *(const unsigned *)ctx;
}

static void look_all(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)cache;
    (void)tree;
    *(unsigned *)ctx = fail_in;
    fail_in = 0;
}

/* A pin of a cached text is held or there is none, wherever memory runs out. (Nothing is computed:
 * ggml ends the program when it has no memory.) */
static void test_pin(void **state)
{
    engine_bench b = bench_default();
    const quire_engine_pin_name name = { "", 0, "x" };
    int32_t prompt[N_PROMPT];
    quire_request_params request;
    unsigned n_failed = 0, left = 0;

    (void)state;
    tokens_make(prompt, N_PROMPT, 1);
    request = params_greedy(prompt, N_PROMPT,
                            2); /* the first of them is computed, and so all of the prompt cached */
    finish_as(submit(&b, &request), QUIRE_FINISH_LENGTH);
    for (unsigned k = 1; left == 0 && k < ROUNDS_MAX; k++) {
        const quire_engine_pin_params params = {
            .name = "x", .tokens = prompt, .n_tokens = N_PROMPT, .ttl_s = 60
        };
        quire_error err = QUIRE_ERROR_INIT;
        quire_engine_pin pin;
        int rc;

        assert_int_equal(engine_call(b.engine, arm_all, &k), QUIRE_OK);
        rc = quire_engine_pin_create(b.engine, &params, &pin, NULL, &err);
        assert_int_equal(engine_call(b.engine, look_all, &left), QUIRE_OK);
        if (rc == QUIRE_OK) {
            assert_int_equal(pin.state, QUIRE_ENGINE_PIN_HELD);
            assert_int_equal(quire_engine_pin_drop(b.engine, &name), QUIRE_OK);
        } else {
            assert_int_equal(rc, QUIRE_NOMEM);
            assert_int_equal(quire_engine_pin_get(b.engine, &name, &pin), QUIRE_NOTFOUND);
            n_failed++;
        }
        assert_int_equal(stats_now(b.engine).memory.pin_bytes, 0);
        validate(b.engine);
    }
    assert_true(left > 0); /* every one of them has failed */
    assert_true(n_failed > 0);
    bench_close(&b);
}

static void arm(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)cache;
    (void)tree;
    fail_realloc_in = *(const unsigned *)ctx;
}

/* The number of reallocations left before the failure; 0: it has happened. */
static void look(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)cache;
    (void)tree;
    *(unsigned *)ctx = fail_realloc_in;
}

/* On the engine's thread, with two requests: the request that needs the memory ends, the other
 * continues. */
static void test_running(void **state)
{
    engine_bench b = bench_default();
    int32_t prompts[2][N_PROMPT];
    unsigned n_failed = 0;
    unsigned left = 0;

    (void)state;
    for (unsigned k = 1; left == 0 && k < ROUNDS_MAX; k++) {
        quire_request *requests[2];
        unsigned n_now = 0;

        assert_int_equal(engine_call(b.engine, arm, &k), QUIRE_OK);
        for (unsigned i = 0; i < 2; i++) {
            const quire_request_params params = params_full(prompts[i]);

            tokens_make(prompts[i], N_PROMPT, 100 * k + i);
            requests[i] = submit(&b, &params);
        }
        for (unsigned i = 0; i < 2; i++) {
            const quire_request_result *result = finish(requests[i]);

            if (result->finish == QUIRE_FINISH_ERROR) {
                assert_int_equal(result->status, QUIRE_NOMEM);
                n_now++;
            } else {
                assert_int_equal(result->finish, QUIRE_FINISH_LENGTH);
                assert_int_equal(result->n_generated_tokens, N_TOKENS);
            }
            quire_request_release(requests[i]);
        }
        assert_true(n_now <= 1);
        n_failed += n_now;
        assert_int_equal(engine_call(b.engine, look, &left), QUIRE_OK);
        validate(b.engine);
    }
    assert_true(left > 0);     /* every one of them has failed */
    assert_true(n_failed > 2); /* list of events, tokens, text */
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_submit),
        cmocka_unit_test(test_running),
        cmocka_unit_test(test_pin),
    };

    return cmocka_run_group_tests_name("engine_nomem", tests, NULL, NULL);
}
