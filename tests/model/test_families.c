/* test_families.c - quantised models of several architectures predict a random text as libllama
 * does: perplexity, and the divergence of the predictions. `make compare ARGS="--only
 * perplexity-families"` has all architectures and all quantisations.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "arch_cases.h"
#include "model_fixture.h"
#include "seed.h"

#include <math.h>
#include <stdio.h>

#define N_TOKENS 200u
#define N_SCORED (N_TOKENS - 1)

/* Both sides round activations to 8 bits, in blocks of other sizes: logits move by some percent. */
#define NLL_MAX 0.02 /* nats by token; perplexity differs by this share */
#define KLD_MAX 0.02 /* nats by token, several times the cost of rounding */

static double log_sum(const float *row, uint32_t n)
{
    double sum = 0.0;

    for (uint32_t v = 0; v < n; v++) {
        sum += exp((double)row[v]);
    }
    return log(sum);
}

static double kld_of(const float *base, const float *row, uint32_t n)
{
    const double base_log = log_sum(base, n), row_log = log_sum(row, n);
    double kld = 0.0;

    for (uint32_t v = 0; v < n; v++) {
        const double p = (double)base[v] - base_log;

        kld += exp(p) * (p - ((double)row[v] - row_log));
    }
    return kld;
}

/* Means over the rows of a text. */
static void rows_compare(const float *ours, const float *theirs, uint32_t n_vocab,
                         const int32_t *tokens)
{
    double difference = 0.0, kld = 0.0, other = 0.0;

    for (uint32_t t = 0; t < N_SCORED; t++) {
        const float *row = ours + (size_t)t * n_vocab, *base = theirs + (size_t)t * n_vocab;

        difference += (log_sum(row, n_vocab) - (double)row[tokens[t + 1]]) -
                      (log_sum(base, n_vocab) - (double)base[tokens[t + 1]]);
        kld += kld_of(base, row, n_vocab);
        other += kld_of(base, ours + (size_t)((t + 1) % N_SCORED) * n_vocab, n_vocab);
    }
    (void)printf("difference of nll %.2g, KLD %.2g, of neighbours %.2g\n", difference / N_SCORED,
                 kld / N_SCORED, other / N_SCORED);
    assert_true(fabs(difference / N_SCORED) <= NLL_MAX);
    assert_true(kld / N_SCORED <= KLD_MAX);
    /* Predictions differ from token to token, so a wrong one would show. */
    assert_true(other / N_SCORED > 5 * KLD_MAX);
}

/* type_more: of the output, V and ffn_down in part; MXFP4: of experts. */
static void check(const char *name, enum ggml_type type, enum ggml_type type_more)
{
    const bool is_of_experts = type_more == GGML_TYPE_MXFP4;
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    quire_rng rng = test_rng(41);
    int32_t tokens[N_TOKENS];
    quire_runtime *runtime;
    fixture_peer *peer;
    quire_model *model;
    arch_family family;
    const char *path;
    uint32_t n_vocab;

    assert_true(arch_family_find(name, &family));
    family.options.type = type;
    family.options.type_more = is_of_experts ? GGML_TYPE_F32 : type_more;
    family.options.has_expert_type = is_of_experts;
    family.options.expert_type = type_more;
    path = fixture_generate(&family.options);
    model = fixture_open(path);
    n_vocab = quire_model_desc_get(model)->n_vocab;
    for (uint32_t t = 0; t < N_TOKENS; t++) {
        tokens[t] = (int32_t)quire_rng_below(&rng, n_vocab);
    }
    opts.n_ctx = ARCH_CASE_CTX;
    opts.kv_budget_bytes = UINT64_C(256) << 20;
    opts.n_threads = 1;
    opts.k_format = opts.v_format = QUIRE_FORMAT_F32;
    runtime = fixture_runtime(model, &opts);
    peer = fixture_peer_open(path, ARCH_CASE_CTX);
    (void)printf("%s, %s: ", name, ggml_type_name(type));
    rows_compare(fixture_step(runtime, fixture_seq(runtime), tokens, N_TOKENS, QUIRE_LOGITS_ALL),
                 fixture_peer_decode(peer, tokens, N_TOKENS), n_vocab, tokens);
    quire_runtime_destroy(runtime);
    fixture_peer_close(peer);
    quire_model_close(model);
    fixture_generated_remove();
}

static void predictions_are_those_of_libllama(void **state)
{
    static const char *const families[] = { "llama", "gemma3", "qwen3moe", "deepseek2", "qwen35" };

    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        check(families[i], GGML_TYPE_Q4_K, GGML_TYPE_Q6_K);
        check(families[i], GGML_TYPE_IQ2_XXS, GGML_TYPE_Q2_K);
    }
    check("gpt-oss", GGML_TYPE_Q8_0, GGML_TYPE_MXFP4);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(predictions_are_those_of_libllama) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
