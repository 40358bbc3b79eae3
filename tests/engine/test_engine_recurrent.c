/* test_engine_recurrent.c - models with recurrent layers behind the engine: answers are those of a
 * plain loop, also of many requests side by side and with layers on a device; uses of KV without
 * states are refused.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "tier_kit.h"

#include "engine/engine_halves.h"
#include "engine/loop/loop.h"
#include "engine/overflow.h"
#include "engine/pins.h"
#include "model/recurrent.h"

#include <string.h>

static engine_bench bench_of(const char *arch, uint32_t n_seqs)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, n_seqs);

    engine.precache.is_off = true;
    return bench_recurrent(arch, &engine, &runtime);
}

/* Requests of different lengths side by side, more of them than sequences, each twice. */
static void test_many_requests(void **state)
{
    enum {
        N = 6,
        N_LONG = 300
    };
    engine_bench b = bench_of("lfm2", 3);
    int32_t texts[N][N_LONG], got[N_TOKENS], expected[N_TOKENS];
    quire_request *requests[2 * N];

    (void)state;
    for (uint32_t i = 0; i < 2 * N; i++) {
        quire_request_params params = params_greedy(texts[i % N], 50 + 40 * (i % N), N_TOKENS);

        tokens_make(texts[i % N], N_LONG, 70 + i % N);
        requests[i] = submit(&b, &params);
    }
    for (uint32_t i = 0; i < 2 * N; i++) {
        assert_int_equal(collect(requests[i], got, N_TOKENS), N_TOKENS);
        quire_request_release(requests[i]);
        if (reference(&b, texts[i % N], 50 + 40 * (i % N), expected, N_TOKENS) >
            REFERENCE_GAP_MIN) {
            assert_memory_equal(got, expected, sizeof expected);
        }
    }
    validate(b.engine);
    bench_close(&b);
}

/* Run a request, and check its answer and its number of cached tokens. */
static void expect(const engine_bench *b, const quire_request_params *params, uint32_t n_cached,
                   int32_t *got)
{
    int32_t expected[N_TOKENS];
    const float gap = reference(b, params->tokens, params->n_tokens, expected, N_TOKENS);

    assert_int_equal(tier_run(b, params, got), n_cached);
    if (gap > REFERENCE_GAP_MIN) {
        assert_memory_equal(got, expected, sizeof expected);
    }
}

/* A request, the same again, the next turn, the next turn again, and a text that parts from it. */
static void test_turns(void **state)
{
    engine_bench b = bench_of(*state, 2);
    int32_t text[N_CTX], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    const uint32_t n_turn = N_PROMPT + N_TOKENS + 90;
    quire_engine_stats stats;

    tokens_make(text, N_PROMPT, 3);
    expect(&b, &params, 0, got);
    expect(&b, &params, (N_PROMPT - 1) / PAGE * PAGE, got);
    memcpy(text + N_PROMPT, got, sizeof got);
    tokens_make(text + N_PROMPT + N_TOKENS, 90, 4);
    params = params_greedy(text, n_turn, N_TOKENS);
    expect(&b, &params, N_PROMPT + N_TOKENS - 1, got); /* its new tokens only */
    expect(&b, &params, (n_turn - 1) / PAGE * PAGE, got);
    stats = stats_now(b.engine);
    assert_true(stats.states_left_total >= 4);
    assert_int_equal(stats.states_used_total, 3);
    validate(b.engine);

    /* Two texts with 70 tokens of the first one: where the first parted, it left a state. */
    for (uint32_t i = 0; i < 2; i++) {
        tokens_make(text + 70, N_PROMPT - 70, 80 + i);
        params = params_greedy(text, N_PROMPT, N_TOKENS);
        expect(&b, &params, i == 0 ? 0 : PAGE, got);
    }
    validate(b.engine);
    bench_close(&b);
}

/* By default there is room for cached states beside a sequence, also where a state takes about as
 * much memory as the KV of the whole context: the next turn begins at the end of the text, and the
 * next request with the same prompt at that of the prompt. */
static void test_default_budget(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = bench_runtime_opts(7 * PAGE, 1);
    int32_t text[N_CTX], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    engine_bench b;

    (void)state;
    engine.precache.is_off = true;
    b = bench_family("qwen35", 0, &engine, &runtime);
    assert_true(
        3 * quire_runtime_state_bytes(b.runtime) >
        quire_runtime_kv_bytes(quire_model_desc_get(b.model), quire_runtime_opts_get(b.runtime)) *
            9 / 10);
    tokens_make(text, N_PROMPT, 3);
    expect(&b, &params, 0, got);
    expect(&b, &params, (N_PROMPT - 1) / PAGE * PAGE, got);
    memcpy(text + N_PROMPT, got, sizeof got);
    tokens_make(text + N_PROMPT + N_TOKENS, 90, 4);
    params = params_greedy(text, N_PROMPT + N_TOKENS + 90, N_TOKENS);
    expect(&b, &params, N_PROMPT + N_TOKENS - 1, got);
    validate(b.engine);
    bench_close(&b);
}

/* The cached tokens of a request, and why they are not more. */
static quire_explanation explained(const engine_bench *b, quire_request_params *params,
                                   const char *id)
{
    int32_t got[N_TOKENS];
    quire_explanation e;

    params->id = id;
    (void)tier_run(b, params, got);
    assert_int_equal(quire_engine_explain(b->engine, id, NULL, 0, &e), QUIRE_OK);
    return e;
}

/* Where no state is, explanations say so, whether the prompt ends, parts or goes on there. */
static void test_explanations(void **state)
{
    engine_bench b = bench_of("lfm2", 2);
    int32_t text[N_CTX];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    quire_explanation e;

    (void)state;
    tokens_make(text, N_PROMPT, 3);
    e = explained(&b, &params, "new");
    assert_int_equal(e.end, QUIRE_PREFIX_END_NEW);
    assert_int_equal(e.cut, QUIRE_PREFIX_CUT_NONE);
    e = explained(&b, &params, "same");
    assert_int_equal(e.end, QUIRE_PREFIX_END_ROUNDED);
    assert_int_equal(e.cut, QUIRE_PREFIX_CUT_STATE);
    assert_int_equal(e.n_same_tokens, N_PROMPT);
    assert_int_equal(e.n_cached_tokens, N_FULL);
    tokens_make(text + 150, N_PROMPT - 150, 80);
    e = explained(&b, &params, "parts");
    assert_int_equal(e.end, QUIRE_PREFIX_END_DIVERGED);
    assert_int_equal(e.cut, QUIRE_PREFIX_CUT_STATE);
    assert_int_equal(e.n_same_tokens, 150);
    assert_int_equal(e.n_cached_tokens, 0);
    tokens_make(text + N_PROMPT, 90, 4); /* another answer's beginning */
    params.n_tokens = N_PROMPT + 90;
    e = explained(&b, &params, "goes on");
    assert_int_equal(e.end, QUIRE_PREFIX_END_DIVERGED);
    assert_int_equal(e.cut, QUIRE_PREFIX_CUT_STATE);
    assert_int_equal(e.n_same_tokens, N_PROMPT);
    assert_int_equal(e.n_cached_tokens, N_FULL);
    bench_close(&b);
}

/* Turns with the last layers of the model, or all, on a device of ggml: states are found there as
 * well. */
static void test_turns_on_device(void **state)
{
    bench_device_layers = strcmp(*state, "lfm2") == 0 ? 3 : UINT32_MAX;
    test_turns(state);
    bench_device_layers = 0;
}

/* Formats of which hits end at full pages: so do states. */
static void test_sealed_formats(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 2);
    int32_t text[N_CTX], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    engine_bench b;

    (void)state;
    runtime.k_format = runtime.v_format = QUIRE_FORMAT_Q4;
    runtime.kv_recent = 64;
    engine.state_every_tokens = 100; /* 128: a multiple of a page */
    b = bench_recurrent("lfm2", &engine, &runtime);
    tokens_make(text, N_PROMPT, 3);
    expect(&b, &params, 0, got);
    expect(&b, &params, N_FULL, got);
    params.n_tokens = 2 * 128 + 1;
    expect(&b, &params, 2 * 128, got);
    params.n_tokens = 2 * 128;
    expect(&b, &params, 128, got);
    validate(b.engine);
    bench_close(&b);
}

/* Requests that begin alike compute the beginning once. */
static void test_common_beginning(void **state)
{
    enum {
        N = 4,
        N_SAME = 200
    };
    engine_bench b = bench_of("lfm2", N);
    int32_t texts[N][N_PROMPT], got[N_TOKENS], expected[N_TOKENS];
    quire_request *requests[N];
    uint32_t n_cached = 0;
    gate *g;

    (void)state;
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < N; i++) {
        quire_request_params params = params_greedy(texts[i], N_PROMPT, N_TOKENS);

        tokens_make(texts[i], N_SAME, 5);
        tokens_make(texts[i] + N_SAME, N_PROMPT - N_SAME, 90 + i);
        requests[i] = submit(&b, &params);
    }
    gate_open(g);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(collect(requests[i], got, N_TOKENS), N_TOKENS);
        n_cached += finish(requests[i])->n_cached_tokens;
        quire_request_release(requests[i]);
        assert_true(reference(&b, texts[i], N_PROMPT, expected, N_TOKENS) > REFERENCE_GAP_MIN);
        assert_memory_equal(got, expected, sizeof expected);
    }
    assert_int_equal(n_cached, (N - 1) * (N_SAME / PAGE * PAGE));
    validate(b.engine);
    bench_close(&b);
}

/* Many texts in a budget for little more than one: requests take turns and begin at states of
 * others, nothing fails, and answers are right. test_engine_preempted.c has preemption. */
static void test_tight(void **state)
{
    enum {
        N = 6,
        N_LONG = 500,
        N_MORE = 40
    };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);
    int32_t texts[N][N_LONG], got[N_MORE], expected[N_MORE];
    quire_request *requests[2 * N];
    quire_engine_stats stats;
    engine_bench b;

    (void)state;
    runtime.n_batch = 64;
    b = bench_recurrent("lfm2", &engine, &runtime);
    runtime.kv_budget_bytes =
        quire_runtime_kv_bytes(quire_model_desc_get(b.model), quire_runtime_opts_get(b.runtime)) *
        5 / 4;
    bench_close(&b);
    b = bench_recurrent("lfm2", &engine, &runtime);
    for (uint32_t i = 0; i < 2 * N; i++) {
        quire_request_params params = params_greedy(texts[i % N], N_LONG, N_MORE);

        tokens_make(texts[i % N], 200, 9); /* in common */
        tokens_make(texts[i % N] + 200, N_LONG - 200, 60 + i % N);
        requests[i] = submit(&b, &params);
    }
    for (uint32_t i = 0; i < 2 * N; i++) {
        assert_int_equal(collect(requests[i], got, N_MORE), N_MORE);
        quire_request_release(requests[i]);
        if (reference(&b, texts[i % N], N_LONG, expected, N_MORE) > REFERENCE_GAP_MIN) {
            assert_memory_equal(got, expected, sizeof expected);
        }
    }
    stats = stats_now(b.engine);
    assert_true(stats.states_used_total > 0);
    validate(b.engine);
    bench_close(&b);
}

/* A budget for the states of few requests, and places for many: requests take turns. */
static void test_many_places(void **state)
{
    enum {
        N = 12,
        N_SHORT = 20
    };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(2 * PAGE, N);
    int32_t texts[N][N_SHORT], got[N_TOKENS], expected[N_TOKENS];
    quire_request *requests[N];
    const quire_model_desc *desc;
    engine_bench b;

    runtime.n_batch = 64;
    b = bench_recurrent(*state, &engine, &runtime);
    desc = quire_model_desc_get(b.model);
    runtime.kv_budget_bytes = quire_runtime_kv_bytes(desc, quire_runtime_opts_get(b.runtime)) +
                              2 * quire_state_seq_bytes(desc);
    bench_close(&b);
    b = bench_recurrent(*state, &engine, &runtime);
    desc = quire_model_desc_get(b.model);
    assert_true(N * quire_state_seq_bytes(desc) > runtime.kv_budget_bytes);
    for (uint32_t i = 0; i < N; i++) {
        quire_request_params params = params_greedy(texts[i], N_SHORT, N_TOKENS);

        tokens_make(texts[i], N_SHORT, 120 + i);
        requests[i] = submit(&b, &params);
    }
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(collect(requests[i], got, N_TOKENS), N_TOKENS);
        quire_request_release(requests[i]);
        if (reference(&b, texts[i], N_SHORT, expected, N_TOKENS) > REFERENCE_GAP_MIN) {
            assert_memory_equal(got, expected, sizeof expected);
        }
    }
    validate(b.engine);
    bench_close(&b);
}

/* A hit whose state goes before it is copied. */
typedef struct gone_state {
    quire_loop *loop;
    const int32_t *text;
    uint32_t n_tokens;
    uint32_t n_found;
    int rc;
} gone_state;

/* A quire_loop_fn. */
static void begin_without_state(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    gone_state *g = ctx;
    const quire_prefix_key key = quire_loop_key(g->loop, NULL, 0);
    const quire_prefix_acquire_opts opts = { .tokens_max = UINT32_MAX };
    quire_loop_text_at at = { .n_tokens = g->n_tokens };
    quire_prefix_match match = { .n_tokens = 0 };

    (void)quire_seq_open(cache, QUIRE_REGION_DYNAMIC, &at.seq);
    (void)quire_prefix_acquire(tree, &key, at.seq, g->text, g->n_tokens, &opts, &match, &at.ref);
    g->n_found = match.n_tokens;
    (void)quire_prefix_evict(tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
    g->rc = quire_loop_text_states_begin(g->loop, &at, match.n_tokens);
    (void)quire_prefix_release(tree, at.ref, 0);
    (void)quire_seq_close(cache, at.seq);
}

/* No sequence holds the state at which a hit ends: room for the sequence's own states may cost it.
 * Then the hit is given up; before, this was a bug that ended the server. */
static void test_state_gone(void **state)
{
    engine_bench b = bench_of(*state, 2);
    int32_t text[3 * PAGE], got[N_TOKENS];
    quire_request_params params = params_greedy(text, 3 * PAGE, N_TOKENS);
    gone_state g = { .loop = b.engine->loop, .text = text, .n_tokens = 3 * PAGE };
    quire_request *request;

    tokens_make(text, 3 * PAGE, 3);
    request = submit(&b, &params);
    assert_int_equal(collect(request, got, N_TOKENS), N_TOKENS);
    quire_request_release(request);
    assert_int_equal(engine_call(b.engine, begin_without_state, &g), QUIRE_OK);
    assert_true(g.n_found > 0);
    assert_int_equal(g.rc, QUIRE_NOPAGES);
    validate(b.engine);
    bench_close(&b);
}

/* A request that is parked goes on from its state. */
static void test_parked(void **state)
{
    enum {
        LOW = 2, /* classes */
        HIGH = 0
    };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 3);
    int32_t texts[2][100], got[N_TOKENS], expected[N_TOKENS];
    quire_request *requests[2];
    engine_bench b;
    gate *g;

    engine.n_running_max = 1;
    quire_classes_default(&engine.classes);
    runtime.kv_budget_bytes = UINT64_C(64) << 20;
    b = bench_recurrent(*state, &engine, &runtime);
    g = gate_close(b.engine);
    for (uint32_t i = 0; i < 2; i++) {
        quire_request_params params = params_greedy(texts[i], 100, N_TOKENS);

        params.class_index = i == 0 ? LOW : HIGH;
        tokens_make(texts[i], 100, 95 + i);
        requests[i] = submit(&b, &params);
        for (uint32_t k = 0; i == 0 && k < 5; k++) { /* it has a token or two */
            gate_step(g);
        }
    }
    gate_open(g);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(collect(requests[i], got, N_TOKENS), N_TOKENS);
        assert_int_equal(finish(requests[i])->n_parkings, i == 0 ? 1 : 0);
        assert_int_equal(finish(requests[i])->n_recomputed_tokens, 0);
        quire_request_release(requests[i]);
        assert_true(reference(&b, texts[i], 100, expected, N_TOKENS) > REFERENCE_GAP_MIN);
        assert_memory_equal(got, expected, sizeof expected);
    }
    validate(b.engine);
    bench_close(&b);
}

static void evict_everything(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)ctx;
    (void)cache;
    (void)quire_prefix_evict(tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
}

/* A pinned text keeps its state: texts that begin with it compute only the rest, also after an
 * eviction of everything else. The pin computes its text, or holds the cached pages. */
static void test_pin(void **state)
{
    const uint32_t ends[] = { N_FULL, N_PROMPT, N_FULL + 1 }; /* the last one in a step alone */

    for (uint32_t i = 0; i < 6; i++) {
        engine_bench b = bench_of(*state, 3);
        int32_t text[N_CTX], got[N_TOKENS];
        const uint32_t n = ends[i % 3];
        quire_request_params params = params_greedy(text, N_PROMPT + 90, N_TOKENS);
        const quire_engine_pin_params pin_params = {
            .name = "pin", .tokens = text, .n_tokens = n, .ttl_s = 60
        };
        quire_error err = QUIRE_ERROR_INIT;
        quire_engine_pin pin;

        tokens_make(text, N_CTX, 3);
        if (i >= 3) {
            expect(&b, &params, 0, got);
        }
        assert_int_equal(quire_engine_pin_create(b.engine, &pin_params, &pin, NULL, &err),
                         QUIRE_OK);
        assert_int_equal(pin.state, QUIRE_ENGINE_PIN_HELD);
        assert_int_equal(engine_call(b.engine, evict_everything, NULL), QUIRE_OK);
        /* The full page of the cached text has no room for a state inside. */
        expect(&b, &params, i < 3 ? n : N_FULL, got);
        assert_int_equal(engine_call(b.engine, evict_everything, NULL), QUIRE_OK);
        tokens_make(text + n, N_CTX - n, 50); /* another text behind the pin */
        expect(&b, &params, N_FULL, got);
        validate(b.engine);
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_requests),
        cmocka_unit_test_prestate(test_turns, (void *)(uintptr_t) "lfm2"),
        cmocka_unit_test_prestate(test_turns, (void *)(uintptr_t) "qwen35"),
        cmocka_unit_test_prestate(test_turns, (void *)(uintptr_t) "granitehybrid"),
        cmocka_unit_test_prestate(test_turns, (void *)(uintptr_t) "nemotron_h"),
        cmocka_unit_test_prestate(test_turns, (void *)(uintptr_t) "nemotron_h_moe"),
        cmocka_unit_test_prestate(test_turns, (void *)(uintptr_t) "falcon-h1"),
        cmocka_unit_test(test_explanations),
        cmocka_unit_test_prestate(test_turns_on_device, (void *)(uintptr_t) "lfm2"),
        cmocka_unit_test_prestate(test_turns_on_device, (void *)(uintptr_t) "qwen35"),
        cmocka_unit_test_prestate(test_turns_on_device, (void *)(uintptr_t) "falcon-h1"),
        cmocka_unit_test(test_sealed_formats),
        cmocka_unit_test(test_common_beginning),
        cmocka_unit_test(test_default_budget),
        cmocka_unit_test(test_tight),
        cmocka_unit_test_prestate(test_many_places, (void *)(uintptr_t) "qwen35"),
        cmocka_unit_test_prestate(test_state_gone, (void *)(uintptr_t) "lfm2"),
        cmocka_unit_test_prestate(test_state_gone, (void *)(uintptr_t) "qwen35"),
        cmocka_unit_test_prestate(test_parked, (void *)(uintptr_t) "lfm2"),
        cmocka_unit_test_prestate(test_parked, (void *)(uintptr_t) "qwen35"),
        cmocka_unit_test_prestate(test_pin, (void *)(uintptr_t) "lfm2"),
        cmocka_unit_test_prestate(test_pin, (void *)(uintptr_t) "qwen35"),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
