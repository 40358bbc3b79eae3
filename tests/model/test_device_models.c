/* test_device_models.c - whole models on the first Vulkan device, beside the CPU: small models with
 * windows, experts, latent attention and recurrent layers, and the default model, if it has been
 * fetched. The perplexity of a text is the CPU's, within a band.
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
#include "model/text.h"
#include "model_fixture.h"
#include "seed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TEXT   76u /* tokens: more than a page and three windows */
#define N_PROMPT 70u /* of them, in two steps; the others one by one */

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

/* Logits may differ by a share of the largest one, perplexities by a tenth of it. */
static void check_band(const quire_model *model, quire_format format, const int32_t *text,
                       uint32_t n, double band, const char *what)
{
    const uint32_t n_prompt = n > N_PROMPT ? N_PROMPT : n - n % 2 - 4;
    const size_t n_logits = (size_t)(n - 1) * quire_model_desc_get(model)->n_vocab;
    const quire_runtime_opts cpu = opts_of("cpu", format), vulkan = opts_of("vulkan0", format);
    const scored by_cpu = score(model, &cpu, text, n, n_prompt);
    const scored by_vulkan = score(model, &vulkan, text, n, n_prompt);
    const double ratio = by_vulkan.perplexity / by_cpu.perplexity - 1.0;
    const double diff = fixture_diff_max(by_cpu.logits, by_vulkan.logits, n_logits) /
                        largest(by_cpu.logits, n_logits);

    (void)printf("%s, %s: perplexity %.4f by the CPU, and by vulkan0 times 1 %+.6f; logits differ "
                 "by %.6f of the largest\n",
                 what, quire_format_name(format), by_cpu.perplexity, ratio, diff);
    free(by_cpu.logits);
    free(by_vulkan.logits);
    assert_true(fabs(ratio) < band / 10.0);
    assert_true(diff > 0.0 && diff < band); /* other bits */
}

/* A rounding may change the choice of an expert, and then a row; of other models it changes less.
 */
static void test_kinds(void **state)
{
    static const struct {
        const char *arch, *what;
        double band;
    } kinds[] = {
        { "gemma3", "windows", 0.002 },
        { "qwen3moe", "experts", 0.05 },
        { "gpt-oss", "windows, experts and sinks", 0.05 },
        { "deepseek2", "latent attention", 0.002 },
        { "qwen35", "recurrent layers", 0.002 },
        { "lfm2", "convolutions", 0.002 },
    };
    quire_rng rng = test_rng(25);
    int32_t text[N_TEXT];

    (void)state;
    need_vulkan();
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        const arch_case *c = NULL;
        quire_model *model;
        gguf_gen_opts gen;
        size_t i = 0;

        while ((c = arch_case_get(i)) != NULL && strcmp(c->arch, kinds[k].arch) != 0) {
            i++;
        }
        assert_non_null(c);
        gen = arch_case_options(c);
        model = fixture_open(fixture_generate(&gen));
        for (i = 0; i < N_TEXT; i++) {
            text[i] = (int32_t)quire_rng_below(&rng, quire_model_desc_get(model)->n_vocab);
        }
        check_band(model, QUIRE_FORMAT_F16, text, N_TEXT, kinds[k].band, kinds[k].what);
        quire_model_close(model);
        fixture_generated_remove();
    }
}

static quire_model *default_model(void)
{
    glob_t models = fixture_models();
    quire_model *model = NULL;

    for (size_t i = 0; i < models.gl_pathc && model == NULL; i++) {
        const char *path = models.gl_pathv[i];

        if (strstr(path, "/quire/models/tinyllama-") != NULL) {
            model = fixture_open(path);
        }
    }
    globfree(&models);
    return model;
}

/* TinyLlama, all of its layers, for a short text: its products are the CPU's, and slow here. */
static void test_default_model(void **state)
{
    static const char story[] =
        "The capital of France is Paris. The capital of Italy is Rome, and the capital of Spain";
    quire_model *model;
    int32_t text[64];
    int64_t n;

    (void)state;
    need_vulkan();
    model = default_model();
    if (model == NULL) {
        print_message("the default model has not been fetched\n");
        skip();
    }
    n = quire_model_tokenize(model, story, strlen(story), true, false, text, 64);
    assert_true(n > 12 && n <= 64);
    check_band(model, QUIRE_FORMAT_Q8, text, (uint32_t)n, 0.1, "TinyLlama");
    quire_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_default_model),
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
    } else {
        (void)printf("vulkan0: %s\n", err.message);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
