/* test_engine_samplers.c - samplers with a state in requests: the same tokens after a preemption,
 * and DRY sees the prompt.
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

#include <string.h>

#define N_CTX    512u
#define N_PROMPT 150u
#define N_TOKENS 40u

/* Bits that do not depend on the steps: see docs/architecture.md. */
static engine_bench bench_exact(void)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);

    engine.chunk_tokens = 64;
    return bench_panels(32, &engine, &runtime);
}

/* The engine stands still. */
static void preempt(quire_loop *loop)
{
    quire_request *r = loop->set.running[0];

    quire_loop_preempt(loop, r);
    r->wait.blocked_at = 0; /* as if pages had been released since */
}

static void sampling(uint32_t i, quire_sampler_opts *s)
{
    s->temperature = 0.9f;
    s->seed = 3 + i;
    s->dry_multiplier = 1.5f;
    s->dry_allowed_length = 1;
    s->repetition_penalty = 1.1f;
    s->mirostat = i % 3;
    s->xtc_probability = 0.5f;
    s->xtc_threshold = 0.01f;
    s->grammar = i > 2 ? "root ::= [a-z ]*" : NULL;
    s->forbids_eog = true;
}

static void test_preempted(void **state)
{
    engine_bench b = bench_exact();
    int32_t prompt[N_PROMPT], plain[N_TOKENS], got[N_TOKENS];
    quire_request_params params = params_greedy(prompt, N_PROMPT, N_TOKENS);

    (void)state;
    tokens_make(prompt, N_PROMPT, 7);
    for (uint32_t i = 0; i < 6; i++) {
        quire_request *request;
        gate *g;

        sampling(i, &params.sampler);
        request = submit(&b, &params);
        assert_int_equal(collect(request, plain, N_TOKENS), N_TOKENS);
        finish_as(request, QUIRE_FINISH_LENGTH);
        g = gate_close(b.engine);
        request = submit(&b, &params);
        while (b.engine->loop->set.n_running == 0 ||
               b.engine->loop->set.running[0]->n_tokens < N_PROMPT + 15) {
            gate_step(g);
        }
        preempt(b.engine->loop);
        gate_open(g);
        assert_int_equal(collect(request, got, N_TOKENS), N_TOKENS);
        finish_as(request, QUIRE_FINISH_LENGTH);
        assert_memory_equal(got, plain, sizeof got);
        assert_int_equal(stats_now(b.engine).preemptions_total, i + 1);
    }
    bench_close(&b);
}

/* The prompt ends as it has already gone on once: DRY takes another token. */
static void test_dry_sees_the_prompt(void **state)
{
    engine_bench b = bench_exact();
    int32_t prompt[N_PROMPT], got[1];
    quire_request_params params = params_greedy(prompt, N_PROMPT, 1);
    const quire_logit_bias bias = { 77, 100.0f };

    (void)state;
    tokens_make(prompt, N_PROMPT, 8);
    for (uint32_t i = 0; i < 4; i++) {
        prompt[N_PROMPT - 30 + i] = i < 3 ? 70 + (int32_t)i : bias.token;
        prompt[N_PROMPT - 3 + i % 3] = 70 + (int32_t)(i % 3);
    }
    params.sampler.bias = &bias;
    params.sampler.n_bias = 1;
    params.sampler.n_dry_breakers = 0;
    for (int dry = 0; dry < 3; dry++) {
        quire_request *request;

        params.sampler.dry_multiplier = dry > 0 ? 100.0f : 0.0f;
        params.sampler.dry_tokens = dry == 2 ? 20 : 64; /* not back to the first time */
        request = submit(&b, &params);
        assert_int_equal(collect(request, got, 1), 1);
        finish_as(request, QUIRE_FINISH_LENGTH);
        if (dry == 1) {
            assert_int_not_equal(got[0], bias.token);
        } else {
            assert_int_equal(got[0], bias.token);
        }
    }
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_preempted),
        cmocka_unit_test(test_dry_sees_the_prompt),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
