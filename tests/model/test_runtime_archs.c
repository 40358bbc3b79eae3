/* test_runtime_archs.c - every architecture and rope variant on generated models, against libllama.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model_fixture.h"
#include "seed.h"

#include <stdio.h>
#include <string.h>

#define N_TOKENS 96u

typedef struct variant {
    const char *what;
    const char *arch;
    const char *scaling;
    bool is_tied, has_qkv_bias;
    uint32_t d_head, n_head, n_kv_head;
    enum ggml_type type;
    double tolerance; /* of a logit; theirs are of order 1 */
} variant;

/* f32 differs by the order of additions. Quantised products round activations to 8 bits, so that
 * the last bit of an attention output can move a logit by a step of that (0.06 seen). */
static const variant variants[] = {
    { "llama", "llama", "", false, false, 32, 4, 2, GGML_TYPE_F32, 1e-3 },
    { "llama, one head per kv head, head of 48", "llama", "", true, false, 48, 3, 3, GGML_TYPE_F32,
      1e-3 },
    { "llama, linear", "llama", "linear", true, false, 32, 4, 1, GGML_TYPE_F32, 1e-3 },
    { "llama, yarn", "llama", "yarn", false, false, 32, 4, 2, GGML_TYPE_F32, 1e-3 },
    { "llama, llama3 factors", "llama", "llama3", true, false, 64, 2, 1, GGML_TYPE_F32, 1e-3 },
    { "llama with biases", "llama", "", false, true, 32, 4, 2, GGML_TYPE_F32, 1e-3 },
    { "qwen2", "qwen2", "", true, true, 32, 4, 2, GGML_TYPE_F32, 1e-3 },
    { "qwen2, yarn, untied", "qwen2", "yarn", false, true, 32, 4, 2, GGML_TYPE_F32, 1e-3 },
    { "qwen3", "qwen3", "", true, false, 32, 4, 2, GGML_TYPE_F32, 1e-3 },
    { "qwen3, head not embd / heads", "qwen3", "", false, false, 64, 4, 2, GGML_TYPE_F32, 1e-3 },
    { "llama, f16", "llama", "", false, false, 32, 4, 2, GGML_TYPE_F16, 2e-2 },
    { "llama, q8_0", "llama", "", false, false, 32, 4, 2, GGML_TYPE_Q8_0, 0.3 },
    { "llama, q4_0 (repacked)", "llama", "", true, false, 32, 4, 2, GGML_TYPE_Q4_0, 0.3 },
    { "llama, q4_K (repacked)", "llama", "", true, false, 64, 4, 2, GGML_TYPE_Q4_K, 0.3 },
    { "llama, q6_K", "llama", "", false, false, 64, 4, 1, GGML_TYPE_Q6_K, 0.3 },
};

static gguf_gen_opts options_of(const variant *v)
{
    gguf_gen_opts o = {
        .n_layer = 3,
        .n_embd = ggml_blck_size(v->type) > 128 ? 256 : 128, /* whole blocks */
        .n_ff = 256,
        .n_head = v->n_head,
        .n_kv_head = v->n_kv_head,
        .d_head = v->d_head,
        .n_vocab = 320,
        .n_ctx = 512,
        .rope_base = 10000.0f,
        .rope_factor = 4.0f,
        .rope_ctx_orig = 64,
        .is_tied = v->is_tied,
        .has_qkv_bias = v->has_qkv_bias,
        .has_qk_norm = strcmp(v->arch, "qwen3") == 0,
        .vocab = strcmp(v->arch, "llama") == 0 ? GGUF_GEN_VOCAB_SPM : GGUF_GEN_VOCAB_BPE,
        .type = v->type,
        .seed = 17,
    };

    (void)snprintf(o.arch, sizeof o.arch, "%s", v->arch);
    (void)snprintf(o.name, sizeof o.name, "variant");
    (void)snprintf(o.rope_scaling, sizeof o.rope_scaling, "%s", v->scaling);
    return o;
}

/* Prefill in one step, then a few single tokens, all positions compared. */
static void variant_check(const variant *v)
{
    const gguf_gen_opts gen = options_of(v);
    const char *path = fixture_generate(&gen);
    quire_model *model = fixture_open(path);
    const uint32_t n_vocab = quire_model_desc_get(model)->n_vocab;
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    fixture_peer *peer = fixture_peer_open(path, 256);
    quire_rng rng = test_rng(21);
    int32_t tokens[N_TOKENS];
    quire_runtime *runtime;
    quire_seq_id seq;
    double worst;

    opts.n_ctx = 256;
    opts.n_threads = 1;
    opts.k_format = opts.v_format = QUIRE_FORMAT_F32;
    runtime = fixture_runtime(model, &opts);
    seq = fixture_seq(runtime);
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        tokens[i] = (int32_t)quire_rng_below(&rng, n_vocab);
    }
    worst = fixture_diff_max(fixture_step(runtime, seq, tokens, N_TOKENS - 8, QUIRE_LOGITS_ALL),
                             fixture_peer_decode(peer, tokens, N_TOKENS - 8),
                             (size_t)(N_TOKENS - 8) * n_vocab);
    for (uint32_t i = N_TOKENS - 8; i < N_TOKENS; i++) {
        const double diff =
            fixture_diff_max(fixture_step(runtime, seq, tokens + i, 1, QUIRE_LOGITS_LAST),
                             fixture_peer_decode(peer, tokens + i, 1), n_vocab);

        worst = diff <= worst ? worst : diff;
    }
    (void)printf("%s: worst logit difference %g\n", v->what, worst);
    assert_true(worst < v->tolerance);
    quire_runtime_destroy(runtime);
    fixture_peer_close(peer);
    quire_model_close(model);
    fixture_generated_remove();
}

static void test_variants_equal_libllama(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        variant_check(&variants[i]);
    }
}

/* The scaling must matter at all, or the comparison above would prove nothing. */
static void test_scalings_differ(void **state)
{
    static const char *const scalings[] = { "", "linear", "yarn", "llama3" };
    float kept[4][320];
    int32_t tokens[N_TOKENS];
    quire_rng rng = test_rng(22);

    (void)state;
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        tokens[i] = (int32_t)quire_rng_below(&rng, 320);
    }
    for (size_t i = 0; i < 4; i++) {
        variant v = variants[0];
        gguf_gen_opts gen;
        quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
        quire_runtime *runtime;
        quire_model *model;

        v.scaling = scalings[i];
        gen = options_of(&v);
        model = fixture_open(fixture_generate(&gen));
        opts.n_ctx = 256;
        runtime = fixture_runtime(model, &opts);
        memcpy(kept[i],
               fixture_step(runtime, fixture_seq(runtime), tokens, N_TOKENS, QUIRE_LOGITS_LAST),
               sizeof kept[i]);
        for (size_t j = 0; j < i; j++) {
            assert_true(fixture_diff_max(kept[i], kept[j], 320) > 1e-2);
        }
        quire_runtime_destroy(runtime);
        quire_model_close(model);
        fixture_generated_remove();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variants_equal_libllama),
        cmocka_unit_test(test_scalings_differ),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
