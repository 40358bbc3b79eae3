/* test_runtime_schemes.c - models whose layers share K and V: against a plain forward in double
 * precision, in every format, with and without the early exit.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "double_model.h"
#include "gguf_gen_scheme.h"
#include "matmul/matmul.h"
#include "model_fixture.h"
#include "rounds.h"
#include "seed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TOKENS 210u /* ends in the middle of a tile */
#define N_VOCAB  320u
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static int32_t tokens[N_TOKENS];

/* Six layers, so that both halves have an inner layer. */
static gguf_gen_opts options_of(const char *scheme, enum ggml_type type)
{
    gguf_gen_opts gen;
    quire_error err = QUIRE_ERROR_INIT;

    assert_true(gguf_gen_shape("tiny-quire", &gen));
    gen.n_layer = 6;
    gen.n_vocab = N_VOCAB;
    gen.type = type;
    gen.seed = 41;
    assert_int_equal(gguf_gen_scheme_apply(&gen, scheme, &err), QUIRE_OK);
    return gen;
}

static quire_runtime *runtime_of(const quire_model *model, quire_format k, quire_format v,
                                 uint32_t n_threads)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = 256;
    opts.n_seqs_max = 4;
    opts.kv_budget_bytes = 64u << 20;
    opts.n_threads = n_threads;
    opts.k_format = k;
    opts.v_format = v;
    opts.kv_recent = 64;
    opts.kv_sinks = 0;
    return fixture_runtime(model, &opts);
}

/* Logits of all tokens that come in steps of n; release with free(). */
static float *in_steps_of(const quire_model *model, quire_format k, quire_format v, uint32_t n)
{
    quire_runtime *runtime = runtime_of(model, k, v, 2);
    quire_seq_id seq = fixture_seq(runtime);
    float *out = malloc((size_t)N_TOKENS * N_VOCAB * sizeof *out);

    assert_non_null(out);
    for (uint32_t at = 0; at < N_TOKENS; at += n) {
        const uint32_t now = n < N_TOKENS - at ? n : N_TOKENS - at;

        memcpy(out + (size_t)at * N_VOCAB,
               fixture_step(runtime, seq, tokens + at, now, QUIRE_LOGITS_ALL),
               (size_t)now * N_VOCAB * sizeof *out);
    }
    quire_runtime_destroy(runtime);
    return out;
}

/* ||a - b|| / ||b|| */
static double difference(const float *a, const float *b)
{
    double error = 0.0, norm = 0.0;

    for (size_t i = 0; i < (size_t)N_TOKENS * N_VOCAB; i++) {
        error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(error / norm);
}

/* In f32 the results differ by the order of additions alone. Tolerances of the other formats, and
 * of two mixed ones, are about three times the rounding error of the scheme gqa, where each layer
 * stores its own K and V. */
typedef struct format_pair {
    quire_format k, v;
    double tolerance;
} format_pair;

static const format_pair formats[] = {
    { QUIRE_FORMAT_F32, QUIRE_FORMAT_F32, 2e-5 },   { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16, 1e-3 },
    { QUIRE_FORMAT_BF16, QUIRE_FORMAT_BF16, 1e-2 }, { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8, 3e-2 },
    { QUIRE_FORMAT_Q6, QUIRE_FORMAT_Q6, 4e-2 },     { QUIRE_FORMAT_Q5, QUIRE_FORMAT_Q5, 6e-2 },
    { QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4, 0.1 },      { QUIRE_FORMAT_Q3, QUIRE_FORMAT_Q3, 0.2 },
    { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4, 0.1 },      { QUIRE_FORMAT_Q6, QUIRE_FORMAT_F16, 4e-2 },
};

/* The next format, or every third one in a slow build; their number is no multiple of it. */
static bool takes_format(void)
{
    static uint32_t n_formats;

    return n_formats++ % TEST_STRIDE(3u) == 0;
}

static void check_numbers(const gguf_gen_opts *gen)
{
    const char *path = fixture_generate(gen);
    float *want = double_model_logits(path, gen, tokens, N_TOKENS);
    quire_model *model = fixture_open(path);

    for (size_t i = 0; i < COUNT(formats); i++) {
        const uint32_t n = i % 2 == 0 ? N_TOKENS : 37; /* in one step, and in pieces */
        double error;
        float *got;

        if (!takes_format()) {
            continue;
        }
        got = in_steps_of(model, formats[i].k, formats[i].v, n);
        error = difference(got, want);
        (void)printf("%s, K %s, V %s: %.2g\n", gen->scheme, quire_format_name(formats[i].k),
                     quire_format_name(formats[i].v), error);
        assert_true(error < formats[i].tolerance);
        free(got);
    }
    free(want);
    quire_model_close(model);
    fixture_generated_remove();
}

static void test_schemes_equal_plain_forward(void **state)
{
    (void)state;
    for (unsigned i = 0; gguf_gen_scheme_name(i) != NULL; i++) {
        gguf_gen_opts gen = options_of(gguf_gen_scheme_name(i), GGML_TYPE_F32);

        check_numbers(&gen);
    }
}

/* A map that no scheme has: a storing layer fuses its own with another's, a reading layer lies
 * between storing ones, K and V have other numbers of sources; gates in their other shapes. */
static void test_map_by_hand(void **state)
{
    static const int32_t k[6][2] = {
        { 0, -1 }, { 1, 0 }, { 0, -1 }, { 3, -1 }, { 3, 1 }, { 1, -1 }
    };
    static const int32_t v[6][2] = {
        { 0, -1 }, { 1, -1 }, { 1, 0 }, { 0, 3 }, { 0, -1 }, { 3, 0 }
    };
    static const gguf_gen_gates shapes[] = { GGUF_GEN_GATES_NONE, GGUF_GEN_GATES_HALF,
                                             GGUF_GEN_GATES_HEAD, GGUF_GEN_GATES_HEADS };

    (void)state;
    for (size_t i = 0; i < COUNT(shapes); i++) {
        gguf_gen_opts gen = options_of("gqa", GGML_TYPE_F32);

        (void)snprintf(gen.scheme, sizeof gen.scheme, "by hand %zu", i);
        gen.gates = shapes[i];
        gen.has_qk_norm = i % 2 == 0;
        memcpy(gen.k_sources, k, sizeof k);
        memcpy(gen.v_sources, v, sizeof v);
        check_numbers(&gen);
    }
}

/* Biases of Q, K and V, and factors of rope: alone, with norms of heads, with gates and mixes. */
static void test_biases(void **state)
{
    static const char *const schemes[] = { "gqa", "fusedkv", "fusedkv-lite", "yoco++" };

    (void)state;
    for (size_t i = 0; i < COUNT(schemes); i++) {
        gguf_gen_opts gen = options_of(schemes[i], GGML_TYPE_F32);

        gen.has_qkv_bias = true;
        gen.has_qk_norm = i % 2 == 0;
        (void)snprintf(gen.rope_scaling, sizeof gen.rope_scaling, i == 0 ? "" : "llama3");
        gen.rope_factor = 8.0f;
        gen.rope_ctx_orig = 100; /* factors change the text's angles */
        check_numbers(&gen);
    }
}

/* Layers with windows of other lengths than a tile's and a page's. One of these layers reads the KV
 * of another layer, and one window is longer than the text. */
static void test_windows(void **state)
{
    static const int32_t windows[6] = { 1, 64, 0, 77, 130, 1000 };
    gguf_gen_opts gen = options_of("fusedkv", GGML_TYPE_F32);

    (void)state;
    memcpy(gen.windows, windows, sizeof windows);
    check_numbers(&gen);
    gen = options_of("yoco", GGML_TYPE_F32);
    gen.window = 50;
    assert_int_equal(gguf_gen_scheme_apply(&gen, "yoco", NULL), QUIRE_OK);
    assert_int_equal(gen.windows[1], 50);
    assert_int_equal(gen.windows[2], 0);
    check_numbers(&gen);
}

/* Every kernel set of this CPU, in every format. */
static void test_kernel_sets(void **state)
{
    static const char *const isas[] = { "portable",    "avx2",       "avx512",
                                        "avx512+bf16", "avx512+amx", "neon" };
    const gguf_gen_opts gen = options_of("fusedkv", GGML_TYPE_F32);
    const char *path = fixture_generate(&gen);
    float *want = double_model_logits(path, &gen, tokens, N_TOKENS);
    const char *chosen = getenv("QUIRE_ISA");
    uint32_t n_sets = 0;

    (void)state;
    for (size_t i = 0; i < COUNT(isas); i++) {
        quire_model *model;

        assert_int_equal(setenv("QUIRE_ISA", isas[i], 1), 0);
        if (strcmp(quire_attn_isa(), isas[i]) != 0) {
            continue;
        }
        n_sets++;
        model = fixture_open(path);
        for (size_t f = 0; f < COUNT(formats); f++) {
            float *got = in_steps_of(model, formats[f].k, formats[f].v, N_TOKENS);
            const double error = difference(got, want);

            (void)printf("%s, K %s, V %s: %.2g\n", isas[i], quire_format_name(formats[f].k),
                         quire_format_name(formats[f].v), error);
            assert_true(error < formats[f].tolerance);
            free(got);
        }
        quire_model_close(model);
    }
    assert_int_equal(chosen != NULL ? setenv("QUIRE_ISA", chosen, 1) : unsetenv("QUIRE_ISA"), 0);
    assert_true(n_sets >= 1);
    free(want);
    fixture_generated_remove();
}

/* ---- cascade ---- */

#define N_COMMON 2100u /* two whole splits */
#define N_FORKS  3u

/* Logits of one more token of each of three forks of a long text; release with free(). */
static float *forks_step(const quire_model *model, const format_pair *format, bool no_cascade)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    quire_slice slices[N_FORKS] = { { 0 } };
    float *out = malloc((size_t)N_FORKS * N_VOCAB * sizeof *out);
    const float *logits = NULL;
    quire_runtime *runtime;

    assert_non_null(out);
    opts.n_ctx = 4096;
    opts.kv_budget_bytes = 64u << 20;
    opts.n_threads = 2;
    opts.k_format = format->k;
    opts.v_format = format->v;
    opts.no_cascade = no_cascade;
    runtime = fixture_runtime(model, &opts);
    slices[0].seq = fixture_seq(runtime);
    assert_int_equal(quire_runtime_fill(runtime, slices[0].seq, N_COMMON, 5), QUIRE_OK);
    for (uint32_t i = 0; i < N_FORKS; i++) {
        if (i > 0) {
            assert_int_equal(
                quire_seq_fork(quire_runtime_cache(runtime), slices[0].seq, &slices[i].seq),
                QUIRE_OK);
        }
        slices[i].tokens = tokens + i;
        slices[i].n_tokens = 1;
        slices[i].logits = QUIRE_LOGITS_LAST;
    }
    assert_int_equal(quire_runtime_step(runtime, slices, N_FORKS, &logits), QUIRE_OK);
    memcpy(out, logits, (size_t)N_FORKS * N_VOCAB * sizeof *out);
    quire_runtime_destroy(runtime);
    return out;
}

/* Pages that sequences share are read once for all of them, by layers with two sources too, also
 * where these layers have windows. */
static void check_cascade(const gguf_gen_opts *gen)
{
    quire_model *model = fixture_open(fixture_generate(gen));

    for (size_t i = 0; i < COUNT(formats); i++) {
        float *with = forks_step(model, &formats[i], false);
        float *without = forks_step(model, &formats[i], true);

        assert_memory_equal(with, without, (size_t)N_FORKS * N_VOCAB * sizeof *with);
        assert_memory_not_equal(with, with + N_VOCAB, N_VOCAB * sizeof *with);
        free(without);
        free(with);
    }
    quire_model_close(model);
    fixture_generated_remove();
}

static void test_cascade_changes_no_bit(void **state)
{
    static const int32_t windows[6] = { 0, 0, 0, 77, 1500, 0 };
    gguf_gen_opts gen = options_of("fusedkv", GGML_TYPE_Q8_0);

    (void)state;
    check_cascade(&gen);
    memcpy(gen.windows, windows, sizeof windows);
    check_cascade(&gen);
}

/* ---- early exit ---- */

typedef struct exit_case {
    const char *scheme;
    uint32_t last_stored; /* of six layers */
} exit_case;

static const exit_case exit_cases[] = { { "gqa", 5 },          { "cla2", 4 },
                                        { "yoco", 2 },         { "fusedkv", 2 },
                                        { "fusedkv-lite", 2 }, { "fusedkv-lite-learnable", 2 },
                                        { "yoco++", 2 } };

static uint64_t rows_of(const quire_runtime *runtime)
{
    quire_runtime_stats stats;

    quire_runtime_stats_get(runtime, &stats);
    return stats.attn_rows_total;
}

/* Rows of attention of a step. A model without layers that only read computes the attention of its
 * last layer for all rows. */
static uint64_t rows_expected(const exit_case *c, uint32_t n_rows, uint32_t n_logits)
{
    if (n_logits == 0) {
        return (uint64_t)c->last_stored * n_rows;
    }
    if (c->last_stored == 5) {
        return (uint64_t)6 * n_rows;
    }
    return (uint64_t)c->last_stored * n_rows + (uint64_t)(6 - c->last_stored) * n_logits;
}

/* A prompt in pieces of n as a server computes it: the logits are those of all tokens' steps, and
 * the layers above the last one that stores have run for one row. */
static void check_exit(const quire_model *model, const exit_case *c, quire_format format,
                       uint32_t n, const float *want)
{
    quire_runtime *runtime = runtime_of(model, format, format, 2);
    quire_seq_id seq = fixture_seq(runtime);
    uint64_t rows = 0;
    uint32_t at = 0;

    for (; at + n < N_TOKENS; at += n) {
        assert_null(fixture_step(runtime, seq, tokens + at, n, QUIRE_LOGITS_NONE));
        rows += rows_expected(c, n, 0);
    }
    assert_memory_equal(fixture_step(runtime, seq, tokens + at, N_TOKENS - at, QUIRE_LOGITS_LAST),
                        want + (size_t)(N_TOKENS - 1) * N_VOCAB, N_VOCAB * sizeof *want);
    rows += rows_expected(c, N_TOKENS - at, 1);
    assert_int_equal(rows_of(runtime), rows);
    quire_runtime_destroy(runtime);
}

/* Sequences that want all, no and the last logits in one step. */
static void check_mixed_step(const quire_model *model, const exit_case *c, quire_format format,
                             const float *want)
{
    quire_runtime *runtime = runtime_of(model, format, format, 2);
    const quire_slice slices[] = { { .seq = fixture_seq(runtime),
                                     .tokens = tokens,
                                     .n_tokens = 70,
                                     .logits = QUIRE_LOGITS_LAST },
                                   { .seq = fixture_seq(runtime),
                                     .tokens = tokens,
                                     .n_tokens = 100,
                                     .logits = QUIRE_LOGITS_NONE },
                                   { .seq = fixture_seq(runtime),
                                     .tokens = tokens,
                                     .n_tokens = 5,
                                     .logits = QUIRE_LOGITS_ALL },
                                   { .seq = fixture_seq(runtime),
                                     .tokens = tokens,
                                     .n_tokens = 1,
                                     .logits = QUIRE_LOGITS_LAST } };
    const quire_slice next[] = {
        { .seq = slices[1].seq,
          .tokens = tokens + 100,
          .n_tokens = 1,
          .logits = QUIRE_LOGITS_LAST },
        { .seq = slices[0].seq, .tokens = tokens + 70, .n_tokens = 66, .logits = QUIRE_LOGITS_LAST }
    };
    const float *logits = NULL;

    assert_int_equal(quire_runtime_step(runtime, slices, COUNT(slices), &logits), QUIRE_OK);
    assert_memory_equal(logits, want + 69u * N_VOCAB, N_VOCAB * sizeof *want);
    assert_memory_equal(logits + N_VOCAB, want, 5u * N_VOCAB * sizeof *want);
    assert_memory_equal(logits + 6u * N_VOCAB, want, N_VOCAB * sizeof *want);
    assert_int_equal(rows_of(runtime), rows_expected(c, 176, 7));
    assert_int_equal(quire_runtime_step(runtime, next, COUNT(next), &logits), QUIRE_OK);
    assert_memory_equal(logits, want + 100u * N_VOCAB, N_VOCAB * sizeof *want);
    assert_memory_equal(logits + N_VOCAB, want + 135u * N_VOCAB, N_VOCAB * sizeof *want);
    assert_int_equal(rows_of(runtime), rows_expected(c, 176, 7) + rows_expected(c, 67, 2));
    quire_runtime_destroy(runtime);
}

static void test_early_exit_changes_no_bit(void **state)
{
    static const quire_format some[] = { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 };
    static const int32_t windows[6] = { 0, 64, 0, 77, 130, 20 };

    (void)state;
    if (quire_matmul_kernels_find(NULL) == NULL) {
        print_message("skipped: products are left to ggml (an old CPU, or QUIRE_ISA)\n");
        skip();
    }
    for (size_t i = 0; i < COUNT(exit_cases) * COUNT(some); i++) {
        const exit_case *c = &exit_cases[i / COUNT(some)];
        const quire_format format = some[i % COUNT(some)];
        gguf_gen_opts gen = options_of(c->scheme, GGML_TYPE_Q8_0);
        quire_model *model;
        float *want, *again;

        gen.has_qk_norm = i % 2 == 0; /* without: Q, K and V jointly */
        if (format == QUIRE_FORMAT_Q8) {
            memcpy(gen.windows, windows, sizeof windows);
        }
        model = fixture_open(fixture_generate(&gen));
        want = in_steps_of(model, format, format, N_TOKENS);
        again = in_steps_of(model, format, format, 1);
        assert_memory_equal(again, want, (size_t)N_TOKENS * N_VOCAB * sizeof *want);
        check_exit(model, c, format, N_TOKENS, want);
        check_exit(model, c, format, 64, want);
        check_exit(model, c, format, 50, want);
        check_mixed_step(model, c, format, want);
        free(again);
        free(want);
        quire_model_close(model);
        fixture_generated_remove();
    }
}

/* All logits: every layer runs for every token. */
static void test_all_logits_run_all_rows(void **state)
{
    gguf_gen_opts gen = options_of("fusedkv-lite", GGML_TYPE_Q8_0);
    quire_model *model = fixture_open(fixture_generate(&gen));
    quire_runtime *runtime = runtime_of(model, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16, 2);

    (void)state;
    (void)fixture_step(runtime, fixture_seq(runtime), tokens, N_TOKENS, QUIRE_LOGITS_ALL);
    assert_int_equal(rows_of(runtime), 6u * N_TOKENS);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
    fixture_generated_remove();
}

/* ---- bytes ---- */

static uint64_t kv_bytes_of(const char *scheme, quire_format format, uint64_t *page_bytes)
{
    gguf_gen_opts gen = options_of(scheme, GGML_TYPE_Q8_0);
    quire_model *model = fixture_open(fixture_generate(&gen));
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    quire_runtime *runtime = runtime_of(model, format, format, 1);
    quire_seq_id seq = fixture_seq(runtime);
    quire_cache_stats stats;
    uint64_t bytes;

    opts.n_ctx = 192;
    opts.k_format = opts.v_format = format;
    bytes = quire_runtime_kv_bytes(quire_model_desc_get(model), &opts);
    assert_int_equal(quire_runtime_fill(runtime, seq, 100, 7), QUIRE_OK);
    (void)fixture_step(runtime, seq, tokens, 10, QUIRE_LOGITS_LAST);
    quire_cache_stats_get(quire_runtime_cache(runtime), &stats);
    *page_bytes = stats.live_bytes;
    quire_runtime_destroy(runtime);
    quire_model_close(model);
    fixture_generated_remove();
    return bytes;
}

/* Half the layers store: half the bytes, in the price of a context and in the pages of a cache. */
static void test_half_the_bytes(void **state)
{
    static const char *const schemes[] = { "cla2", "yoco", "fusedkv", "fusedkv-lite" };
    static const quire_format some[] = { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q4 };

    (void)state;
    for (size_t f = 0; f < COUNT(some); f++) {
        uint64_t plain_pages, pages;
        const uint64_t plain = kv_bytes_of("gqa", some[f], &plain_pages);

        for (size_t i = 0; i < COUNT(schemes); i++) {
            assert_int_equal(2 * kv_bytes_of(schemes[i], some[f], &pages), plain);
            assert_int_equal(2 * pages, plain_pages);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemes_equal_plain_forward),
        cmocka_unit_test(test_map_by_hand),
        cmocka_unit_test(test_biases),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_kernel_sets),
        cmocka_unit_test(test_cascade_changes_no_bit),
        cmocka_unit_test(test_early_exit_changes_no_bit),
        cmocka_unit_test(test_all_logits_run_all_rows),
        cmocka_unit_test(test_half_the_bytes),
    };
    quire_rng rng = test_rng(43);

    for (uint32_t t = 0; t < N_TOKENS; t++) {
        tokens[t] = (int32_t)quire_rng_below(&rng, N_VOCAB);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
