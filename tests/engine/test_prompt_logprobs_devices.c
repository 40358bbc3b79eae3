/* test_prompt_logprobs_devices.c - log-probabilities of a prompt with several devices: a request
 * whose device is lost goes on elsewhere with the values that it has.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "replicas_kit.h"

#include "engine/engine_halves.h"
#include "engine/loop/loop_object.h"

#include <string.h>

/* The values of a prompt, and the answer. */
typedef struct values {
    float logprobs[N_PROMPT];
    uint32_t ranks[N_PROMPT];
    int32_t answer[N_TOKENS];
} values;

/* The device is lost when so many tokens are computed; 0 = never. */
static values values_with(uint32_t n_computed)
{
    static int32_t text[N_PROMPT];
    const quire_mock_device_opts faults = { .loss = 1.0 };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    quire_request *request;
    values v = { 0 };
    replicas r;
    gate *g;

    engine.chunk_tokens = 48;
    r = replicas_open("mock", &engine);
    tokens_make(text, N_PROMPT, 5);
    params.has_prompt_logprobs = true;
    g = gate_close(r.b.engine);
    request = submit(&r.b, &params);
    while (r.b.engine->loop->set.n_running == 0 ||
           r.b.engine->loop->set.running[0]->kv.n_computed < n_computed) {
        gate_step(g);
    }
    if (n_computed > 0) {
        quire_mock_device_set(replica_mocks[0], &faults);
    }
    gate_open(g);
    assert_int_equal(collect(request, v.answer, N_TOKENS), N_TOKENS);
    assert_int_equal(finish(request)->n_cached_tokens, 0);
    for (uint32_t i = 1; i < N_PROMPT; i++) {
        quire_prompt_logprob value;

        assert_true(quire_request_prompt_logprob(request, i, &value));
        v.logprobs[i] = value.logprob;
        v.ranks[i] = value.rank;
    }
    quire_request_release(request);
    assert_int_equal(quire_loop_is_lost(r.b.engine->loop), n_computed > 0);
    replicas_close(&r);
    return v;
}

static void test_lost_device(void **state)
{
    const values whole = values_with(0);

    (void)state;
    for (uint32_t n = 48; n <= N_PROMPT + 4; n += 78) { /* in the prompt, and in the answer */
        const values moved = values_with(n);

        assert_memory_equal(&whole, &moved, sizeof whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
