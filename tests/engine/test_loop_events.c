/* test_loop_events.c - the loop serves without adaptation, reports requests and rounds to its
 * listener, and takes settings between rounds.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/loop/loop.h"
#include "engine_fixture.h"

#include <stdio.h>
#include <string.h>

#define N_CTX    512u
#define N_PROMPT 70u
#define N_TOKENS 9u

/* Written by the engine's thread, read when it has stopped. */
typedef struct heard {
    quire_loop *loop;
    char requests[16]; /* a = admitted, f = first token, e = ended; in this order */
    uint32_t n_rows;
    uint32_t n_rounds;
    uint32_t n_over;
    uint32_t n_running_most;
    quire_finish finish;       /* of the last that ended */
    quire_request_state state; /* likewise, when it did */
    uint32_t n_ended_computed; /* likewise: tokens of its sequence */
} heard;

static void note(heard *h, char what)
{
    const size_t n = strlen(h->requests);

    if (n + 1 < sizeof h->requests) {
        h->requests[n] = what;
    }
}

static void admitted(void *ctx, const quire_request *request, const quire_prefix_match *match)
{
    (void)request;
    (void)match;
    note(ctx, 'a');
}

static void first_token(void *ctx, const quire_request *request)
{
    (void)request;
    note(ctx, 'f');
}

static void step(void *ctx, const quire_loop_step *now)
{
    heard *h = ctx;
    const uint32_t n_running = quire_loop_running_of(h->loop)[0];

    h->n_rounds++;
    h->n_rows += now->n_rows;
    h->n_running_most = n_running > h->n_running_most ? n_running : h->n_running_most;
}

static void ended(void *ctx, const quire_request *request, const quire_ending *ending)
{
    heard *h = ctx;

    note(h, 'e');
    h->finish = ending->finish;
    h->state = request->state;
    h->n_ended_computed = request->kv.n_computed;
}

static uint32_t idle(void *ctx, const quire_loop_idle *now)
{
    heard *h = ctx;

    h->n_over += now->is_over;
    return now->again_ms;
}

static void lost(void *ctx)
{
    (void)ctx;
    fail();
}

static void dropped(void *ctx, const quire_invalidate *what)
{
    (void)ctx;
    (void)what;
    fail();
}

static engine_bench loop_begin(heard *h)
{
    const quire_engine_opts none = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);
    engine_bench b = bench_tiny(&none, &runtime);
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;

    quire_engine_destroy(b.engine); /* its loop is not needed */
    b.engine = NULL;
    opts.model = b.model;
    opts.runtime = b.runtime;
    *h = (heard){ 0 };
    assert_int_equal(quire_loop_create(&h->loop, &opts, &err), QUIRE_OK);
    return b;
}

static void loop_start(heard *h)
{
    const quire_loop_events events = { .ctx = h,
                                       .admitted = admitted,
                                       .first_token = first_token,
                                       .step = step,
                                       .ended = ended,
                                       .idle = idle,
                                       .lost = lost,
                                       .dropped = dropped };
    quire_error err = QUIRE_ERROR_INIT;

    assert_int_equal(quire_loop_start(h->loop, &events, &err), QUIRE_OK);
}

static void loop_end(heard *h, engine_bench *b)
{
    quire_loop_stop(h->loop);
    quire_loop_destroy(h->loop);
    bench_close(b);
}

static quire_request *loop_submit(heard *h, const int32_t *prompt)
{
    const quire_request_params params = params_greedy(prompt, N_PROMPT, N_TOKENS);
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *request;

    assert_int_equal(quire_loop_submit(h->loop, &params, 0, &request, &err), QUIRE_OK);
    return request;
}

static void test_a_request_is_told(void **state)
{
    int32_t prompt[N_PROMPT];
    quire_request *request;
    engine_bench b;
    heard h;

    (void)state;
    b = loop_begin(&h);
    tokens_make(prompt, N_PROMPT, 1);
    loop_start(&h);
    request = loop_submit(&h, prompt);
    finish_as(request, QUIRE_FINISH_LENGTH);
    quire_loop_stop(h.loop);
    assert_string_equal(h.requests, "afe");
    assert_int_equal(h.n_rows, N_PROMPT + N_TOKENS - 1); /* the last one is not computed */
    assert_int_equal(h.finish, QUIRE_FINISH_LENGTH);
    assert_int_equal(h.n_ended_computed, N_PROMPT + N_TOKENS - 1); /* its pages are still its own */
    assert_true(h.n_over > 0);
    assert_true(h.n_rounds >= N_TOKENS);
    loop_end(&h, &b);
}

static void test_one_that_never_ran_is_told_of_too(void **state)
{
    int32_t prompt[N_PROMPT];
    quire_request *request;
    engine_bench b;
    heard h;

    (void)state;
    b = loop_begin(&h);
    tokens_make(prompt, N_PROMPT, 2);
    request = loop_submit(&h, prompt);
    quire_request_cancel(request);
    loop_start(&h);
    finish_as(request, QUIRE_FINISH_CANCEL);
    quire_loop_stop(h.loop);
    assert_string_equal(h.requests, "e");
    assert_int_equal(h.finish, QUIRE_FINISH_CANCEL);
    assert_int_equal(h.state, QUIRE_REQUEST_WAITING);
    assert_int_equal(h.n_rows, 0);
    loop_end(&h, &b);
}

static void test_a_limit_holds(void **state)
{
    int32_t prompts[3][N_PROMPT];
    quire_request *requests[3];
    quire_engine_stats stats;
    engine_bench b;
    heard h;

    (void)state;
    b = loop_begin(&h);
    for (uint32_t i = 0; i < 3; i++) {
        tokens_make(prompts[i], N_PROMPT, 3 + i);
        requests[i] = loop_submit(&h, prompts[i]);
    }
    quire_loop_limit_set(h.loop, 0, 1); /* nothing runs yet: this thread may */
    loop_start(&h);
    for (uint32_t i = 0; i < 3; i++) {
        finish_as(requests[i], QUIRE_FINISH_LENGTH);
    }
    quire_loop_stop(h.loop);
    assert_string_equal(h.requests, "afeafeafe");
    assert_int_equal(h.n_running_most, 1);
    quire_loop_stats_get(h.loop, &stats);
    assert_int_equal(stats.classes[0].cuts_total, 1);
    assert_int_equal(stats.classes[0].running_limit, 1);
    loop_end(&h, &b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_request_is_told),
        cmocka_unit_test(test_one_that_never_ran_is_told_of_too),
        cmocka_unit_test(test_a_limit_holds),
    };

    return cmocka_run_group_tests_name("loop_events", tests, NULL, NULL);
}
