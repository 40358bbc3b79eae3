/* test_tier_families.c - families whose layers keep different things, over a directory: heads of
 * two sizes, layers that read other layers' K and V, sinks beside windows, windows in chunks,
 * latent rows, states. A hit has the answer of a miss, and after a restart hits are as deep as in
 * memory.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "file_kit.h"
#include "tier_kit.h"

#include <string.h>

#define WINDOW 70u /* a page and a part of one */

typedef struct spec {
    const char *family;
    quire_format format;
    bool is_recurrent;
} spec;

static const spec specs[] = {
    { "gemma4", QUIRE_FORMAT_F32, false },
    { "gemma4", QUIRE_FORMAT_Q4, false }, /* sealed: both forms of heads of both sizes */
    { "gemma3n", QUIRE_FORMAT_Q8, false },
    { "gpt-oss", QUIRE_FORMAT_F32, false },
    { "llama4", QUIRE_FORMAT_F16, false }, /* windows in chunks */
    { "deepseek2", QUIRE_FORMAT_F16, false },
    { "deepseek2", QUIRE_FORMAT_Q4, false },
    { "qwen35", QUIRE_FORMAT_F16, true },
};

static char dir[256];

static engine_bench bench_of(const spec *s)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 2);
    quire_file_store_opts files = kit_opts(dir, QUIRE_READS_AUTO);

    files.capacity_bytes = (uint64_t)64 << 20;
    files.segment_bytes = (uint64_t)4 << 20;
    engine.precache.is_off = true;
    engine.tier = (quire_tier_opts){ .store = kit_open(&files),
                                     .copies_all = true,
                                     .wait_us = QUIRE_TIER_WAIT_ALWAYS };
    runtime.kv_budget_bytes = UINT64_C(64) << 20; /* has room for states */
    runtime.k_format = runtime.v_format = s->format;
    runtime.kv_recent = 64;
    return bench_family(s->family, WINDOW, &engine, &runtime);
}

/* Where a hit ends whose text has n tokens that are cached, and maybe more. */
static uint32_t hit_of(const spec *s, uint32_t n, bool is_end)
{
    const bool is_whole = quire_format_is_sealed(s->format) || (s->is_recurrent && !is_end);

    return is_whole ? n / PAGE * PAGE : n;
}

/* A prompt, the same again, the next turn; after a restart the next turn again, from the
 * directory, and again, from memory. */
static void test_restart(void **state)
{
    const spec *s = *state;
    const uint32_t n_turn = N_PROMPT + N_TOKENS + 90;
    int32_t text[N_CTX], got[N_TOKENS];
    quire_request_params params;
    engine_bench b;
    uint32_t n;

    kit_dir_make(dir);
    tokens_make(text, N_PROMPT, 3);
    params = params_greedy(text, N_PROMPT, N_TOKENS);
    b = bench_of(s);
    tier_expect(&b, &params, 0, got);
    tier_expect(&b, &params, hit_of(s, N_PROMPT - 1, false), got);
    memcpy(text + N_PROMPT, got, sizeof got);
    tokens_make(text + N_PROMPT + N_TOKENS, 90, 4);
    params.n_tokens = n_turn;
    tier_expect(&b, &params, hit_of(s, N_PROMPT + N_TOKENS - 1, true), got);
    validate(b.engine);
    bench_close(&b);

    n = hit_of(s, n_turn - 1, false);
    b = bench_of(s);
    tier_expect(&b, &params, n, got);
    assert_true(stats_now(b.engine).tier.fetched_tokens_total >= n);
    assert_int_equal(stats_now(b.engine).states_fetched_total > 0, s->is_recurrent);
    tier_expect(&b, &params, n, got);
    validate(b.engine);
    bench_close(&b);
    kit_dir_remove(dir);
}

int main(void)
{
    struct CMUnitTest tests[sizeof specs / sizeof specs[0]];

    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        tests[i] = (struct CMUnitTest)cmocka_unit_test_prestate(test_restart,
                                                                (void *)(uintptr_t)&specs[i]);
        tests[i].name = specs[i].family;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
