/* test_tier_states.c - states of recurrent layers below memory: a restart hits as deep as memory
 * did, with the same answers; and nothing that a store does wrong changes an answer.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "tier_kit.h"

#include <string.h>

#define HALVES_GAP_MIN 0.01f /* of logits: states in f16 change them by less */
#define N_FLOOR        ((N_PROMPT - 1) / PAGE * PAGE) /* where a prompt leaves its state */

typedef struct spec {
    const char *arch;
    quire_format format;
    bool has_halves; /* states are cached in f16 */
    uint32_t state_every;
    bool copies_all;
} spec;

static engine_bench bench_of(const spec *s, quire_store *store)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);

    runtime.k_format = runtime.v_format = s->format;
    runtime.state_format = s->has_halves ? QUIRE_FORMAT_F16 : QUIRE_FORMAT_F32;
    engine.precache.is_off = true;
    engine.state_every_tokens = s->state_every;
    engine.tier = (quire_tier_opts){ .store = store,
                                     .copies_all = s->copies_all,
                                     .wait_us = QUIRE_TIER_WAIT_ALWAYS };
    return bench_recurrent(s->arch, &engine, &runtime);
}

/* Run a request, and check its number of cached tokens. The answer must be that of a miss, unless
 * the choice of a token was nearer than gap_min. */
static void expect_near(const engine_bench *b, const quire_request_params *params,
                        uint32_t n_cached, int32_t *got, float gap_min)
{
    int32_t expected[N_TOKENS];
    const float gap = reference(b, params->tokens, params->n_tokens, expected, N_TOKENS);

    assert_int_equal(tier_run(b, params, got), n_cached);
    if (gap >= gap_min) {
        assert_memory_equal(got, expected, params->max_tokens * sizeof got[0]);
    }
}

/* The first token is bit for bit the same logits' choice, and so on. */
static void expect(const engine_bench *b, const quire_request_params *params, uint32_t n_cached,
                   int32_t *got)
{
    expect_near(b, params, n_cached, got, 0.0f);
}

static const spec archs[] = {
    { .arch = "lfm2", .format = QUIRE_FORMAT_F32 },
    { .arch = "qwen35", .format = QUIRE_FORMAT_F32 },
    { .arch = "granitehybrid", .format = QUIRE_FORMAT_F32 },
    { .arch = "nemotron_h", .format = QUIRE_FORMAT_F32 },
    { .arch = "falcon-h1", .format = QUIRE_FORMAT_F32 },
    { .arch = "qwen35", .format = QUIRE_FORMAT_F32, .has_halves = true },
};

/* A prompt, the same after a restart, the next turn after another one, the same again. */
static void test_restart(void **state)
{
    const spec *s = *state;
    const float gap_min = s->has_halves ? HALVES_GAP_MIN : 0.0f;
    quire_store *store = tier_store_new();
    engine_bench b = bench_of(s, store);
    int32_t text[N_CTX], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    const uint32_t n_turn = N_PROMPT + N_TOKENS + 90;
    quire_engine_stats stats;

    tokens_make(text, N_PROMPT, 3);
    expect(&b, &params, 0, got);
    bench_close(&b);

    b = bench_of(s, store);
    expect_near(&b, &params, N_FLOOR, got, gap_min);
    stats = stats_now(b.engine);
    assert_int_equal(stats.tier.fetches_total, 1);
    assert_int_equal(stats.states_fetched_total, 1);
    expect_near(&b, &params, N_FLOOR, got, gap_min); /* from memory */
    assert_int_equal(stats_now(b.engine).tier.fetches_total, 1);
    validate(b.engine);
    bench_close(&b);

    memcpy(text + N_PROMPT, got, sizeof got);
    tokens_make(text + N_PROMPT + N_TOKENS, 90, 4);
    params.n_tokens = n_turn;
    b = bench_of(s, store);
    expect_near(&b, &params, N_PROMPT + N_TOKENS - 1, got, gap_min); /* its new tokens only */
    validate(b.engine);
    bench_close(&b);

    b = bench_of(s, store);
    expect_near(&b, &params, (n_turn - 1) / PAGE * PAGE, got, gap_min);
    validate(b.engine);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

/* States within a text are stored too: a text that parts from a stored one begins at the last of
 * them, as it would have in memory. With sealed formats states are at ends of pages. */
static void test_inner_states(void **state)
{
    const spec s = { .arch = "lfm2", .format = QUIRE_FORMAT_Q4, .state_every = 128 };
    quire_store *store = tier_store_new();
    engine_bench b = bench_of(&s, store);
    int32_t text[N_CTX], got[N_TOKENS];
    quire_request_params params = params_greedy(text, 500, N_TOKENS);
    const uint32_t parts_at[] = { 500, 400, 300, 100 };

    (void)state;
    tokens_make(text, 500, 3);
    expect(&b, &params, 0, got);
    bench_close(&b);
    for (uint32_t i = 0; i < sizeof parts_at / sizeof parts_at[0]; i++) {
        const uint32_t n = parts_at[i];

        b = bench_of(&s, store);
        if (n < 500) {
            tokens_make(text + n, 500 - n, 50 + i);
        }
        expect(&b, &params, i == 0 ? 448 : n / 128 * 128, got);
        validate(b.engine);
        bench_close(&b);
    }
    quire_memory_store_destroy(store);
}

/* Evicted pages come back from the store, whether all of them or only the states were evicted. */
static void test_eviction(void **state)
{
    const spec s = { .arch = "qwen35", .format = QUIRE_FORMAT_F32, .copies_all = true };
    quire_store *store = tier_store_new();
    engine_bench b = bench_of(&s, store);
    int32_t text[N_CTX], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);

    (void)state;
    tokens_make(text, N_PROMPT, 3);
    expect(&b, &params, 0, got);
    tier_wait_records(&b, 5); /* 4 full pages, and the open one with the state of the end */
    tier_forget(&b);
    expect(&b, &params, N_FLOOR, got);
    tier_forget(&b);
    memcpy(text + N_PROMPT, got, sizeof got);
    params.n_tokens = N_PROMPT + N_TOKENS;
    expect(&b, &params, N_PROMPT + N_TOKENS - 1, got);
    validate(b.engine);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

static void test_faults(void **state)
{
    static const quire_memory_store_opts faults[] = {
        { .flip = 0.3 }, { .swap = 0.3 },  { .failure = 0.2, .flip = 0.2, .swap = 0.2 },
        { .loss = 0.5 }, { .failure = 1 }, { .transfers_max = 1 },
    };
    const spec s = { .arch = "qwen35", .format = QUIRE_FORMAT_F32, .copies_all = true };
    int32_t text[N_PROMPT], got[N_TOKENS], expected[N_TOKENS];
    quire_request_params params;

    (void)state;
    tokens_make(text, N_PROMPT, 3);
    params = params_greedy(text, N_PROMPT, N_TOKENS);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        quire_store *store = tier_store_new();
        engine_bench b = bench_of(&s, store);
        quire_memory_store_opts opts = faults[i];

        opts.outlives = true;
        opts.seed = i;
        (void)reference(&b, text, N_PROMPT, expected, N_TOKENS);
        quire_memory_store_set(store, &opts);
        for (uint32_t k = 0; k < 8; k++) {
            assert_true(tier_run(&b, &params, got) < N_PROMPT);
            assert_memory_equal(got, expected, sizeof got);
            tier_forget(&b);
        }
        validate(b.engine);
        bench_close(&b);
        quire_memory_store_destroy(store);
    }
}

/* States in f16 are of no use to a server that keeps them in f32. */
static void test_formats_are_apart(void **state)
{
    quire_store *store = tier_store_new();
    int32_t text[N_CTX], got[N_TOKENS];
    const quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    engine_bench b;

    (void)state;
    tokens_make(text, N_PROMPT, 3);
    for (uint32_t i = 0; i < 2; i++) { /* f16, then f32 */
        b = bench_of(&archs[i == 0 ? 5 : 1], store);
        expect(&b, &params, 0, got);
        bench_close(&b);
    }
    b = bench_of(&archs[5], store);
    expect_near(&b, &params, N_FLOOR, got, HALVES_GAP_MIN);
    bench_close(&b);
    quire_memory_store_destroy(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_restart, (void *)(uintptr_t)&archs[0]),
        cmocka_unit_test_prestate(test_restart, (void *)(uintptr_t)&archs[1]),
        cmocka_unit_test_prestate(test_restart, (void *)(uintptr_t)&archs[2]),
        cmocka_unit_test_prestate(test_restart, (void *)(uintptr_t)&archs[3]),
        cmocka_unit_test_prestate(test_restart, (void *)(uintptr_t)&archs[4]),
        cmocka_unit_test_prestate(test_restart, (void *)(uintptr_t)&archs[5]),
        cmocka_unit_test(test_formats_are_apart),
        cmocka_unit_test(test_inner_states),
        cmocka_unit_test(test_eviction),
        cmocka_unit_test(test_faults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
