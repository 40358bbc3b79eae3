/* test_runtime_bits.c - with weights in panels a token's logits have the same bits for any shape of
 * the steps: one prompt, pieces of it, single tokens, in company, with any number of threads.
 *
 * This is what makes reuse exact for a whole model: a prefix from the cache was computed in other
 * steps than the ones that would compute it now.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "matmul/matmul.h"
#include "model_fixture.h"
#include "rounds.h"
#include "seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TOKENS 210u /* ends in the middle of a tile */
#define N_VOCAB  320u
#define N_OTHERS 3u

static int32_t tokens[N_TOKENS];
static int32_t other_tokens[N_OTHERS][N_TOKENS];

typedef struct world {
    quire_model *model;
    quire_format k_format, v_format;
} world;

static quire_runtime *runtime_of(const world *w, uint32_t n_threads)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = 256;
    opts.n_seqs_max = 1 + N_OTHERS;
    opts.kv_budget_bytes = 64u << 20;
    opts.n_threads = n_threads;
    opts.k_format = w->k_format;
    opts.v_format = w->v_format;
    return fixture_runtime(w->model, &opts);
}

/* All logits, the tokens coming in steps of n. */
static float *in_steps_of(const world *w, uint32_t n, uint32_t n_threads)
{
    quire_runtime *runtime = runtime_of(w, n_threads);
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

/* The last token's logits as a server asks for them: pieces for which nobody wants any, and a last
 * one that ends with them. */
static void check_last(const world *w, uint32_t n, const float *want)
{
    quire_runtime *runtime = runtime_of(w, 2);
    quire_seq_id seq = fixture_seq(runtime);
    uint32_t at = 0;

    for (; at + n < N_TOKENS; at += n) {
        assert_null(fixture_step(runtime, seq, tokens + at, n, QUIRE_LOGITS_NONE));
    }
    assert_memory_equal(fixture_step(runtime, seq, tokens + at, N_TOKENS - at, QUIRE_LOGITS_LAST),
                        want + (size_t)(N_TOKENS - 1) * N_VOCAB, N_VOCAB * sizeof *want);
    quire_runtime_destroy(runtime);
}

/* The same, one token in a step with more tokens of other sequences, of which one wants logits. */
static float *in_company(const world *w)
{
    quire_runtime *runtime = runtime_of(w, 2);
    quire_slice slices[1 + N_OTHERS] = { { 0 } };
    float *out = malloc((size_t)N_TOKENS * N_VOCAB * sizeof *out);

    assert_non_null(out);
    slices[1] = (quire_slice){
        .seq = fixture_seq(runtime), .tokens = NULL, .n_tokens = 1, .logits = QUIRE_LOGITS_LAST
    };
    for (uint32_t i = 0; i < N_OTHERS; i++) {
        const uint32_t at = i == 0 ? 0 : i + 1; /* ours is the second */

        slices[at] = (quire_slice){ .seq = fixture_seq(runtime),
                                    .tokens = NULL,
                                    .n_tokens = 1 + i % 2,
                                    .logits = QUIRE_LOGITS_NONE };
    }
    slices[N_OTHERS].logits = QUIRE_LOGITS_LAST;
    for (uint32_t t = 0; t < N_TOKENS; t++) {
        const uint32_t n_slices = t < N_TOKENS / 2 ? 1 + N_OTHERS : 2;
        const float *logits = NULL;

        slices[0].tokens = other_tokens[0] + t;
        slices[1].tokens = tokens + t;
        for (uint32_t i = 1; i < N_OTHERS; i++) {
            slices[i + 1].tokens = other_tokens[i] + (size_t)t * slices[i + 1].n_tokens % N_TOKENS;
        }
        assert_int_equal(quire_runtime_step(runtime, slices, n_slices, &logits), QUIRE_OK);
        memcpy(out + (size_t)t * N_VOCAB, logits, N_VOCAB * sizeof *out);
    }
    quire_runtime_destroy(runtime);
    return out;
}

static void assert_same(float *got, const float *want)
{
    for (uint32_t t = 0; t < N_TOKENS; t++) {
        assert_memory_equal(got + (size_t)t * N_VOCAB, want + (size_t)t * N_VOCAB,
                            N_VOCAB * sizeof *got);
    }
    free(got);
}

static gguf_gen_opts options_of(const char *arch, enum ggml_type type)
{
    const bool is_streams = strcmp(arch, "gemma3n") == 0;
    const bool has_window = strcmp(arch, "gemma3") == 0 || strcmp(arch, "cohere2") == 0 ||
                            strcmp(arch, "gpt-oss") == 0 || is_streams;
    const bool is_latent = strcmp(arch, "deepseek2") == 0;
    const bool has_experts = strstr(arch, "moe") != NULL || strcmp(arch, "gpt-oss") == 0 ||
                             is_latent || strcmp(arch, "llama4") == 0;
    gguf_gen_opts gen = { .name = "bits",
                          .n_layer = is_streams ? 22 : 3,
                          .n_shared_kv = is_streams ? 2 : 0,
                          .has_spare_kv = is_streams,
                          .n_embd_layer = is_streams ? 256 : 0,
                          .n_embd = 256,
                          .n_ff = 512,
                          .n_head = 4,
                          .n_kv_head = 2,
                          .d_head = 64,
                          .n_vocab = N_VOCAB,
                          .n_ctx = 256,
                          .rope_base = 10000.0f,
                          .is_tied = true,
                          .has_qkv_bias = strcmp(arch, "qwen2") == 0,
                          .sliding_window = has_window ? 24 : 0,
                          .window_pattern = has_window && !is_streams ? 2 : 0,
                          .is_fused = strcmp(arch, "phi3") == 0,
                          .has_qk_norm = strncmp(arch, "qwen3", 5) == 0,
                          .n_experts = has_experts ? 8 : 0,
                          .n_experts_used = 3,
                          .n_experts_dense = strcmp(arch, "glm4moe") == 0 ? 1 : 0,
                          .n_ff_expert = 256,
                          .n_ff_shared = strcmp(arch, "glm4moe") == 0 || is_latent ? 256 : 0,
                          .n_rot = is_latent ? 32 : 0,
                          .n_latent = is_latent ? 256 : 0,
                          .n_latent_q = is_latent ? 256 : 0,
                          .d_value = is_latent ? 64 : 0,
                          .has_expert_type = strcmp(arch, "gpt-oss") == 0,
                          .expert_type = GGML_TYPE_MXFP4,
                          .vocab =
                              strcmp(arch, "llama") == 0 ? GGUF_GEN_VOCAB_SPM : GGUF_GEN_VOCAB_BPE,
                          .type = type,
                          .seed = 23 };

    (void)snprintf(gen.arch, sizeof gen.arch, "%s", arch);
    return gen;
}

static void check_options(const gguf_gen_opts *gen, quire_format k_format, quire_format v_format)
{
    static const uint32_t batches[] = { 2, 7, 32 };
    world w = { .k_format = k_format, .v_format = v_format };
    float *want;

    w.model = fixture_open(fixture_generate(gen));
    want = in_steps_of(&w, N_TOKENS, 1);
    assert_same(in_steps_of(&w, N_TOKENS, 3), want);
    assert_same(in_steps_of(&w, 1, 1), want);
    assert_same(in_steps_of(&w, 13, 2), want);
    assert_same(in_steps_of(&w, 64, 2), want);
    for (size_t i = 0; gen->has_shared_type && i < sizeof batches / sizeof batches[0]; i++) {
        assert_same(in_steps_of(&w, batches[i], 2), want);
    }
    assert_same(in_company(&w), want);
    check_last(&w, 64, want);
    check_last(&w, 50, want);
    free(want);
    quire_model_close(w.model);
    fixture_generated_remove();
}

static void check(const char *arch, enum ggml_type type, quire_format k_format,
                  quire_format v_format)
{
    const gguf_gen_opts gen = options_of(arch, type);

    check_options(&gen, k_format, v_format);
}

/* Experts and the network that all rows pass through, of a type of their own. */
static void check_experts(const char *arch, enum ggml_type expert_type)
{
    gguf_gen_opts gen = options_of(arch, GGML_TYPE_Q8_0);

    gen.has_expert_type = gen.has_shared_type = true;
    gen.expert_type = expert_type;
    check_options(&gen, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
}

/* Experts of floats between quantised matrices. */
static void test_float_experts(void **state)
{
    static const char *const archs[] = { "qwen3moe", "glm4moe", "deepseek2", "gpt-oss" };
    static const enum ggml_type types[] = { GGML_TYPE_F16, GGML_TYPE_F32, GGML_TYPE_BF16 };

    (void)state;
    if (quire_matmul_kernels_find(NULL) == NULL) {
        print_message("skipped: products are left to ggml (an old CPU, or QUIRE_ISA)\n");
        skip();
    }
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
            if ((i + k) % TEST_STRIDE(3u) == 0) {
                check_experts(archs[i], types[k]);
            }
        }
    }
}

/* Experts of few bits between matrices of more: ggml's products of these have another arithmetic
 * for many rows. */
static void test_coarse_experts(void **state)
{
    static const char *const archs[] = { "qwen3moe", "glm4moe" };
    static const enum ggml_type types[] = { GGML_TYPE_IQ1_S, GGML_TYPE_IQ1_M, GGML_TYPE_IQ2_XS };

    (void)state;
    if (quire_matmul_kernels_find(NULL) == NULL) {
        print_message("skipped: products are left to ggml (an old CPU, or QUIRE_ISA)\n");
        skip();
    }
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
            if ((i + k) % TEST_STRIDE(2u) == 0) {
                check_experts(archs[i], types[k]);
            }
        }
    }
}

/* Some of a layer's experts' matrices are floats, the others are in panels. */
static void test_mixed_experts(void **state)
{
    static const char *const archs[] = { "qwen3moe", "gpt-oss", "llama4" };
    static const enum ggml_type types[] = { GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F16 };

    (void)state;
    if (quire_matmul_kernels_find(NULL) == NULL) {
        print_message("skipped: products are left to ggml (an old CPU, or QUIRE_ISA)\n");
        skip();
    }
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        gguf_gen_opts gen = options_of(archs[i], GGML_TYPE_Q8_0);

        gen.has_expert_type = true;
        gen.expert_type = GGML_TYPE_IQ2_XS;
        gen.expert_type_more = types[i];
        check_options(&gen, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    }
}

/* Matrices of heads of latent attention: of floats, or turned copies of quantised ones. */
static void test_latent_heads(void **state)
{
    static const enum ggml_type types[] = { GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_IQ4_XS,
                                            GGML_TYPE_IQ2_XS };

    (void)state;
    if (quire_matmul_kernels_find(NULL) == NULL) {
        print_message("skipped: products are left to ggml (an old CPU, or QUIRE_ISA)\n");
        skip();
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        for (uint32_t is_joint = 0; is_joint < 2; is_joint++) {
            gguf_gen_opts gen = options_of("deepseek2", types[i]);

            gen.has_joint_latent = is_joint != 0;
            if ((i + is_joint) % TEST_STRIDE(2u) == 0) {
                check_options(&gen, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
            }
        }
    }
}

static void test_bits_do_not_depend_on_steps(void **state)
{
    static const enum ggml_type types[] = { GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_K,
                                            GGML_TYPE_Q5_1, GGML_TYPE_Q6_K };
    static const quire_format formats[][2] = { { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 },
                                               { QUIRE_FORMAT_BF16, QUIRE_FORMAT_BF16 },
                                               { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8 },
                                               { QUIRE_FORMAT_Q6, QUIRE_FORMAT_Q4 } };

    (void)state;
    if (quire_matmul_kernels_find(NULL) == NULL) {
        print_message("skipped: products are left to ggml (an old CPU, or QUIRE_ISA)\n");
        skip();
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        for (size_t k = 0; k < sizeof formats / sizeof formats[0]; k++) {
            if ((i + k) % TEST_STRIDE(4u) == 0) { /* each type and each format */
                check("llama", types[i], formats[k][0], formats[k][1]);
            }
        }
    }
    /* Q, K and V apart: biases, norms of heads. */
    check("qwen2", GGML_TYPE_Q8_0, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    check("qwen3", GGML_TYPE_Q4_K, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8);
    /* Windows and norms of results; tensors that were cut; a parallel block; norms with means. */
    check("gemma3", GGML_TYPE_Q8_0, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8);
    check("phi3", GGML_TYPE_Q4_K, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    check("cohere2", GGML_TYPE_Q8_0, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8);
    check("starcoder2", GGML_TYPE_Q8_0, QUIRE_FORMAT_Q6, QUIRE_FORMAT_Q4);
    /* Experts: a row's result does not depend on other rows with the same experts. */
    check("qwen3moe", GGML_TYPE_Q4_K, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    check("gpt-oss", GGML_TYPE_Q8_0, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8);
    check("glm4moe", GGML_TYPE_Q5_1, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    /* Streams with matrices of floats; layers that read the KV of earlier ones. */
    check("gemma3n", GGML_TYPE_Q8_0, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8);
    /* Latent attention, with a matrix for each head. */
    check("deepseek2", GGML_TYPE_Q8_0, QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    check("deepseek2", GGML_TYPE_Q4_0, QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_do_not_depend_on_steps),
        cmocka_unit_test(test_float_experts),
        cmocka_unit_test(test_coarse_experts),
        cmocka_unit_test(test_mixed_experts),
        cmocka_unit_test(test_latent_heads),
    };
    quire_rng rng = test_rng(31);

    for (uint32_t t = 0; t < N_TOKENS; t++) {
        tokens[t] = (int32_t)quire_rng_below(&rng, N_VOCAB);
        for (uint32_t i = 0; i < N_OTHERS; i++) {
            other_tokens[i][t] = (int32_t)quire_rng_below(&rng, N_VOCAB);
        }
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
