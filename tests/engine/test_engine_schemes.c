/* test_engine_schemes.c - models whose layers share K and V behind the engine: the prefix tree,
 * sessions, pins and the store below memory keep the stored layers alone, and answers are those of
 * a plain loop.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "tier_kit.h"

#include "engine/overflow.h"
#include "engine/pins.h"
#include "engine/views.h"

#include <stdlib.h>
#include <string.h>

/* The bytes that a text takes, by place. */
typedef struct bytes_of_text {
    uint64_t cached; /* in the prefix tree */
    uint64_t pinned;
    uint64_t of_session;
    uint64_t stored; /* records below memory: payloads, and headers of some hundred bytes */
} bytes_of_text;

static engine_bench bench_of(const char *scheme, quire_store *store, quire_format format)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);

    runtime.k_format = runtime.v_format = format;
    engine.tier =
        (quire_tier_opts){ .store = store, .copies_all = true, .wait_us = QUIRE_TIER_WAIT_ALWAYS };
    engine.pins_max = 4;
    engine.precache.is_off = true;
    return strcmp(scheme, "latent") == 0 ? bench_latent(&engine, &runtime)
                                         : bench_scheme(scheme, &engine, &runtime);
}

static uint64_t pin_bytes(const engine_bench *b, const int32_t *text)
{
    const quire_engine_pin_params params = {
        .name = "pin", .tokens = text, .n_tokens = N_FULL, .ttl_s = 60
    };
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin pin;

    if (quire_engine_pin_create(b->engine, &params, &pin, NULL, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return pin.bytes;
}

/* The bytes of a session whose turn the text is. */
static uint64_t session_bytes(const engine_bench *b, const int32_t *text)
{
    const quire_chat_message message = { "user", "hello", NULL };
    quire_sessions *sessions = quire_engine_sessions(b->engine);
    quire_session_kv kv = { "", 0, "s", 0, 0 };
    int32_t *tokens = malloc(N_FULL * sizeof *tokens);
    quire_session_ref ref;

    assert_non_null(tokens);
    memcpy(tokens, text, N_FULL * sizeof *tokens);
    assert_int_equal(quire_sessions_enter(sessions, "", 0, "s", 1, &ref, NULL), QUIRE_OK);
    assert_int_equal(quire_sessions_commit(sessions, ref, &message, 1, tokens, N_FULL, 2),
                     QUIRE_OK);
    quire_sessions_leave(sessions, ref, 2);
    assert_int_equal(quire_engine_sessions_kv(b->engine, &kv, 1), QUIRE_OK);
    return kv.bytes;
}

static uint64_t cached_bytes(const engine_bench *b)
{
    quire_cache_stats stats;

    quire_cache_stats_get(quire_runtime_cache(b->runtime), &stats);
    return stats.cached_bytes;
}

/* A request, the same again, the next turn, and all of it after a restart. */
static bytes_of_text serve(const char *scheme, quire_format format)
{
    quire_store *store = tier_store_new();
    engine_bench b = bench_of(scheme, store, format);
    int32_t text[N_CTX], expected[N_TOKENS], got[N_TOKENS];
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    const bool is_sealed = quire_format_is_sealed(format); /* hits end at full pages */
    bytes_of_text bytes;

    tokens_make(text, N_PROMPT, 3);
    assert_true(reference(&b, text, N_PROMPT, expected, N_TOKENS) > REFERENCE_GAP_MIN);
    assert_int_equal(tier_run(&b, &params, got), 0);
    assert_memory_equal(got, expected, sizeof got);
    assert_int_equal(tier_run(&b, &params, got), is_sealed ? N_FULL : N_PROMPT - 1);
    assert_memory_equal(got, expected, sizeof got);
    bytes.of_session = session_bytes(&b, text);
    bytes.pinned = pin_bytes(&b, text);

    memcpy(text + N_PROMPT, got, sizeof got);
    tokens_make(text + N_PROMPT + N_TOKENS, 20, 4);
    params.n_tokens = N_PROMPT + N_TOKENS + 20;
    assert_true(reference(&b, text, params.n_tokens, expected, N_TOKENS) > REFERENCE_GAP_MIN);
    assert_int_equal(tier_run(&b, &params, got), is_sealed ? N_FULL : N_PROMPT + N_TOKENS - 1);
    assert_memory_equal(got, expected, sizeof got);
    validate(b.engine);
    bytes.cached = cached_bytes(&b);
    bench_close(&b);

    b = bench_of(scheme, store, format);
    assert_int_equal(tier_run(&b, &params, got),
                     is_sealed ? params.n_tokens / PAGE * PAGE : params.n_tokens - 1);
    assert_memory_equal(got, expected, sizeof got);
    bytes.stored = stats_now(b.engine).tier.fetched_bytes_total;
    bench_close(&b);
    quire_memory_store_destroy(store);
    return bytes;
}

/* Two of four layers store: half the bytes in every place. */
static void test_half_the_bytes_everywhere(void **state)
{
    static const char *const schemes[] = {
        "cla2", "yoco", "fusedkv", "fusedkv-lite", "fusedkv-lite-learnable", "yoco++"
    };
    static const quire_format formats[] = { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 };

    (void)state;
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        const bytes_of_text plain = serve("gqa", formats[f]);

        assert_true(plain.pinned > 0 && plain.cached > 0 && plain.stored > 0);
        assert_true(plain.of_session > 0);
        for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
            const bytes_of_text half = serve(schemes[i], formats[f]);

            assert_int_equal(2 * half.pinned, plain.pinned);
            assert_int_equal(2 * half.of_session, plain.of_session);
            assert_int_equal(2 * half.cached, plain.cached);
            assert_in_range(2 * half.stored, plain.stored, plain.stored + plain.stored / 4);
        }
    }
}

/* Latent attention: a token takes a row of K alone, and answers after a hit, after a restart and in
 * the next turn are those of a plain loop. */
static void test_latent_rows(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F32, QUIRE_FORMAT_F16, QUIRE_FORMAT_BF16,
                                            QUIRE_FORMAT_Q8,  QUIRE_FORMAT_Q6,  QUIRE_FORMAT_Q5,
                                            QUIRE_FORMAT_Q4,  QUIRE_FORMAT_Q3 };

    (void)state;
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        const bytes_of_text bytes = serve("latent", formats[f]);
        const size_t tile_bytes = quire_tile_bytes(formats[f], QUIRE_SIDE_K, 40);

        if (!quire_format_is_sealed(formats[f])) {
            assert_int_equal(bytes.pinned, 2 * N_FULL / QUIRE_TILE_TOKENS * tile_bytes);
        }
        assert_true(bytes.cached > 0 && bytes.stored > 0);
    }
}

/* Pages can be offloaded with all schemes, but not if a layer reads four stored layers. */
static void test_which_models_offload(void **state)
{
    static const char *const schemes[] = { "gqa", "cla2", "yoco", "fusedkv", "fusedkv-lite" };
    quire_error err = QUIRE_ERROR_INIT;
    quire_model_desc *desc;

    (void)state;
    desc = malloc(sizeof *desc);
    assert_non_null(desc);
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        engine_bench b = bench_of(schemes[i], NULL, QUIRE_FORMAT_F16);

        *desc = *quire_model_desc_get(b.model);
        assert_int_equal(quire_overflow_check(desc, NULL), QUIRE_OK);
        bench_close(&b);
    }
    desc->kv_map[3].k_src[0] = 1;
    desc->kv_map[3].v_src[0] = 2;
    desc->kv_map[3].n_v = 2;
    desc->kv_map[3].v_src[1] = 3;
    assert_int_equal(quire_overflow_check(desc, &err), QUIRE_UNSUPP);
    assert_non_null(strstr(err.message, "layer 3 reads K and V of more than 2 layers"));
    free(desc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_half_the_bytes_everywhere),
        cmocka_unit_test(test_latent_rows),
        cmocka_unit_test(test_which_models_offload),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
