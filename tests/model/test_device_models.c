/* test_device_models.c - whole models on the first Vulkan device, beside the CPU: small models with
 * windows, experts, latent attention and recurrent layers, and the default model, if it has been
 * fetched; with weights on the CPU and, where the build has ggml's backend, on the card. The
 * perplexity of a text is the CPU's, within a band.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "arch_cases.h"
#include "base/rng.h"
#include "device/validated.h"
#include "layers_card.h"
#include "model/text.h"
#include "model_fixture.h"
#include "seed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Lavapipe compiles the products of more than 32 rows four times as long as those of fewer. */
#define N_TEXT   76u /* tokens: more than a page and three windows */
#define N_PROMPT 64u /* of them, in two steps; the others one by one */

/* Memory that lavapipe keeps after its devices are closed is no leak of ours. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libvulkan_lvp.so";
}

static quire_runtime_opts opts_of(const char *device, quire_format format)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = 256;
    opts.n_batch = 64;
    opts.n_seqs_max = 2;
    opts.n_threads = 1;
    opts.k_format = opts.v_format = format;
    opts.device = device;
    return opts;
}

static bool has_vulkan;
static ggml_backend_dev_t card; /* of ggml's; NULL: there is none */

static void need_vulkan(void)
{
    if (!has_vulkan) {
        print_message("no Vulkan device\n");
        skip();
    }
}

/* The negative logarithm of a token's probability. */
static double loss_of(const float *logits, int32_t token, uint32_t n_vocab)
{
    double z = 0.0;

    for (uint32_t i = 0; i < n_vocab; i++) {
        z += exp((double)logits[i] - (double)logits[token]);
    }
    return log(z);
}

typedef struct scored {
    float *logits; /* [n - 1][n_vocab] */
    double perplexity;
} scored;

/* A text of n tokens, of which n_prompt come in two steps. Memory: free(logits). */
static scored score(const quire_model *model, const quire_runtime_opts *opts, const int32_t *text,
                    uint32_t n, uint32_t n_prompt)
{
    const uint32_t n_vocab = quire_model_desc_get(model)->n_vocab;
    quire_runtime *runtime = fixture_runtime(model, opts);
    const quire_seq_id seq = fixture_seq(runtime);
    scored out = { .logits = calloc((size_t)n * n_vocab, sizeof(float)) };
    double sum = 0.0;
    uint32_t at = 0;

    assert_non_null(out.logits);
    while (at < n - 1) {
        const uint32_t n_step = at < n_prompt ? n_prompt / 2 : 1;
        const float *logits = fixture_step(runtime, seq, text + at, n_step, QUIRE_LOGITS_ALL);

        memcpy(out.logits + (size_t)at * n_vocab, logits,
               (size_t)n_step * n_vocab * sizeof *logits);
        for (uint32_t i = 0; i < n_step; i++, at++) {
            sum += loss_of(logits + (size_t)i * n_vocab, text[at + 1], n_vocab);
        }
    }
    quire_cache_validate(quire_runtime_cache(runtime));
    quire_runtime_destroy(runtime);
    out.perplexity = exp(sum / (n - 1));
    return out;
}

/* The largest logit of some. */
static double largest(const float *logits, size_t n)
{
    double most = 0.0;

    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)logits[i]));
    }
    return most;
}

/* Whether logits differ by less than a share of the largest one, and perplexities by less than a
 * share. on_card: the model with layers on the card, or the same. */
static bool is_in_bands(const quire_model *model, const quire_model *on_card, quire_format format,
                        const int32_t *text, uint32_t n, double logits_band, double perplexity_band,
                        const char *what)
{
    const uint32_t n_prompt = n > N_PROMPT ? N_PROMPT : n - n % 2 - 4;
    const size_t n_logits = (size_t)(n - 1) * quire_model_desc_get(model)->n_vocab;
    const quire_runtime_opts cpu = opts_of("cpu", format), vulkan = opts_of("vulkan0", format);
    const scored by_cpu = score(model, &cpu, text, n, n_prompt);
    const scored by_vulkan = score(on_card, &vulkan, text, n, n_prompt);
    const double ratio = by_vulkan.perplexity / by_cpu.perplexity - 1.0;
    const double diff = fixture_diff_max(by_cpu.logits, by_vulkan.logits, n_logits) /
                        largest(by_cpu.logits, n_logits);

    (void)printf("%s, %s, %s: perplexity %.4f by the CPU, and by vulkan0 times 1 %+.6f; logits "
                 "differ by %.6f of the largest\n",
                 what, quire_format_name(format), model == on_card ? "pages" : "pages and weights",
                 by_cpu.perplexity, ratio, diff);
    free(by_cpu.logits);
    free(by_vulkan.logits);
    return fabs(ratio) < perplexity_band && diff > 0.0 && diff < logits_band; /* other bits */
}

/* The model of a file with so many layers on the card. */
static quire_model *open_on_card(const char *path, uint32_t n_layers)
{
    const quire_model_opts opts = { .devices = { card }, .n_device_layers = n_layers };
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *model;

    if (quire_model_open(&model, path, &opts, &err) < 0) {
        fail_msg("%s: %s", path, err.message);
    }
    return model;
}

/* A rounding may change the choice of an expert, and then a row; of other models it changes less.
 * With weights on the card products round activations to f16, and more choices change:
 * weights_band 0 leaves that to a model that uses all of its experts (test_types_on_card). waits:
 * of a token, with all layers on the card; 0: not known. */
typedef struct kind {
    const char *arch, *what;
    double band, weights_band;
    uint32_t waits;
} kind;

static const kind kinds[] = {
    { "llama", "a plain model", 0.002, 0.02, 1 },
    { "gemma3", "windows", 0.002, 0.02, 1 },
    { "qwen3moe", "experts", 0.05, 0.0, 0 },
    { "gpt-oss", "windows, experts and sinks", 0.05, 0.05, 1 },
    { "deepseek2", "latent attention", 0.002, 0.02, 1 },
    { "qwen35", "recurrent layers", 0.002, 0.05, 0 },
    { "lfm2", "convolutions", 0.002, 0.02, 0 },
    { "granitehybrid", "Mamba's layers", 0.002, 0.02, 0 },
    { "gemma3n", "streams", 0.01, 0.3, 0 }, /* GELU is a table of f16 */
};

/* The file of the plain form of a kind. Memory: static; it ends with fixture_generated_remove(). */
static const char *generate(const kind *plain)
{
    const arch_case *c = NULL;
    gguf_gen_opts gen;
    size_t i = 0;

    while ((c = arch_case_get(i)) != NULL && strcmp(c->arch, plain->arch) != 0) {
        i++;
    }
    assert_non_null(c);
    gen = arch_case_options(c);
    return fixture_generate(&gen);
}

static void text_make(int32_t *text, uint32_t n, uint32_t n_vocab)
{
    quire_rng rng = test_rng(25);

    for (uint32_t i = 0; i < n; i++) {
        text[i] = (int32_t)quire_rng_below(&rng, n_vocab);
    }
}

static void test_kinds(void **state)
{
    int32_t text[N_TEXT];
    uint32_t n_out = 0;

    (void)state;
    need_vulkan();
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        quire_model *model = fixture_open(generate(&kinds[k]));

        text_make(text, N_TEXT, quire_model_desc_get(model)->n_vocab);
        n_out += !is_in_bands(model, model, QUIRE_FORMAT_F16, text, N_TEXT, kinds[k].band,
                              kinds[k].band / 10, kinds[k].what);
        quire_model_close(model);
        fixture_generated_remove();
    }
    assert_int_equal(n_out, 0);
}

static void need_card(void)
{
    need_vulkan();
    if (card == NULL) {
        skip();
    }
}

/* The waits of the host for ggml's queue, for a token behind another one. */
static uint32_t token_waits(const quire_model *on_card)
{
    const quire_runtime_opts opts = opts_of("vulkan0", QUIRE_FORMAT_F16);
    quire_runtime *runtime = fixture_runtime(on_card, &opts);
    const quire_seq_id seq = fixture_seq(runtime);
    quire_runtime_stats before, after;
    const int32_t token = 5;

    (void)fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
    quire_runtime_stats_get(runtime, &before);
    (void)fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
    quire_runtime_stats_get(runtime, &after);
    quire_runtime_destroy(runtime);
    return (uint32_t)(after.layers_waits_total - before.layers_waits_total);
}

/* The same models with all layers and the output on the card. */
static void test_kinds_on_card(void **state)
{
    int32_t text[N_TEXT];
    uint32_t n_out = 0;

    (void)state;
    need_card();
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        quire_model *model, *on_card;
        const char *path;

        if (kinds[k].weights_band == 0.0) {
            continue;
        }
        path = generate(&kinds[k]);
        model = fixture_open(path);
        on_card = open_on_card(path, UINT32_MAX);
        text_make(text, N_TEXT, quire_model_desc_get(model)->n_vocab);
        n_out += !is_in_bands(model, on_card, QUIRE_FORMAT_F16, text, N_TEXT, kinds[k].weights_band,
                              kinds[k].weights_band / 10, kinds[k].what);
        if (kinds[k].waits > 0) {
            assert_int_equal(token_waits(on_card), kinds[k].waits);
        }
        quire_model_close(on_card);
        quire_model_close(model);
        fixture_generated_remove();
    }
    assert_int_equal(n_out, 0);
}

/* Weights of other types, which the card's products take as they are, in a plain model and in
 * one with experts. */
static void test_types_on_card(void **state)
{
    static const enum ggml_type types[] = { GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K,
                                            GGML_TYPE_Q6_K };
    static const char *const families[] = { "llama", "qwen3moe" };
    int32_t text[N_TEXT];
    uint32_t n_out = 0;

    (void)state;
    need_card();
    for (size_t i = 0; i < 2 * (sizeof types / sizeof types[0]); i++) {
        arch_family family;
        quire_model *model, *on_card;
        const char *path;
        char what[96];

        assert_true(arch_family_find(families[i % 2], &family));
        family.options.type = types[i / 2];
        path = fixture_generate(&family.options);
        model = fixture_open(path);
        on_card = open_on_card(path, UINT32_MAX);
        (void)snprintf(what, sizeof what, "%s in %s", families[i % 2],
                       ggml_type_name(types[i / 2]));
        text_make(text, N_TEXT, quire_model_desc_get(model)->n_vocab);
        n_out += !is_in_bands(model, on_card, QUIRE_FORMAT_Q8, text, N_TEXT, 0.1, 0.02, what);
        quire_model_close(on_card);
        quire_model_close(model);
        fixture_generated_remove();
    }
    assert_int_equal(n_out, 0);
}

/* Path of the default model; NULL: it has not been fetched. Memory: free(). */
static char *default_model(void)
{
    glob_t models = fixture_models();
    char *path = NULL;

    for (size_t i = 0; i < models.gl_pathc && path == NULL; i++) {
        if (strstr(models.gl_pathv[i], "/quire/models/tinyllama-") != NULL) {
            path = strdup(models.gl_pathv[i]);
            assert_non_null(path);
        }
    }
    globfree(&models);
    return path;
}

/* TinyLlama, all of its layers, for a short text, with so many of them on the card. */
static void check_default_model(const char *story, uint32_t n_layers, double perplexity_band)
{
    char *path = default_model();
    quire_model *model, *on_card;
    int32_t text[64];
    int64_t n;

    if (path == NULL) {
        print_message("the default model has not been fetched\n");
        skip();
    }
    model = fixture_open(path);
    on_card = n_layers > 0 ? open_on_card(path, n_layers) : model;
    n = quire_model_tokenize(model, story, strlen(story), true, false, text, 64);
    assert_true(n > 6 && n <= 64);
    assert_true(is_in_bands(model, on_card, QUIRE_FORMAT_Q8, text, (uint32_t)n, 0.1,
                            perplexity_band, "TinyLlama"));
    if (on_card != model) {
        quire_model_close(on_card);
    }
    quire_model_close(model);
    free(path);
}

/* Its products are the CPU's, and slow here. */
static void test_default_model(void **state)
{
    (void)state;
    need_vulkan();
    check_default_model(
        "The capital of France is Paris. The capital of Italy is Rome, and the capital of Spain", 0,
        0.01);
}

/* The CPU rounds activations to 8 bits for its products, and the card does not. The text is short,
 * since the CPU computes for the card, so few tokens make its perplexity. */
static void test_default_model_on_card(void **state)
{
    (void)state;
    need_card();
    check_default_model("The capital of France is Paris, and", UINT32_MAX, 0.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_kinds_on_card),
        cmocka_unit_test(test_types_on_card),
        cmocka_unit_test(test_default_model),
        cmocka_unit_test(test_default_model_on_card),
        cmocka_unit_test(validated_end),
    };
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_device *device;

    validated_begin();
    opts.attn.n_threads_max = opts.attn.n_seqs_max = opts.attn.n_rows_max = 1;
    opts.attn.n_head_max = opts.attn.n_layers_max = 1;
    opts.attn.head_dim_max = opts.attn.page_tokens = 64;
    opts.attn.n_entries_max = 16;
    has_vulkan = quire_device_open(&device, "vulkan0", &opts, &err) == QUIRE_OK;
    if (has_vulkan) {
        quire_device_close(device);
        card = card_of_vulkan0();
    } else {
        (void)printf("vulkan0: %s\n", err.message);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
