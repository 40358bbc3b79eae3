/* test_runtime_device.c - a model whose pages and attention are on a device: a mock, whose results
 * are those of the CPU bit for bit, and the first Vulkan device, within a band. Options that a
 * device does not support are refused by name, and a lost device fails the step.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/rng.h"
#include "device/mock_device.h"
#include "device/validated.h"
#include "layers_card.h"
#include "model/backend_device.h"
#include "model/kv_identity.h"
#include "model/runtime_shift.h"
#include "model/text.h"
#include "model_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL  FIXTURE_STORIES
#define N_CTX  512u
#define N_TEXT 200u /* tokens: three full tiles and an open one */

/* Memory that lavapipe keeps after its devices are closed is no leak of ours. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libvulkan_lvp.so";
}

#ifdef QUIRE_TEST_HAS_VULKAN
#include "device/vulkan/vulkan_device.h"

static uint64_t vulkan_waits(void)
{
    return quire_vulkan_waits();
}
#else
static uint64_t vulkan_waits(void)
{
    return 0;
}
#endif

static quire_mock_device_opts faults;
static quire_device *mock; /* opened last */

static int open_mock(quire_device **out, const char *name, const quire_device_opts *opts,
                     quire_error *err)
{
    int rc;

    assert_string_equal(name, "mock");
    rc = quire_mock_device_open(out, opts, &faults, err);
    mock = *out;
    return rc;
}

static quire_runtime_opts opts_of(const char *device, quire_format k, quire_format v)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = N_CTX;
    opts.n_batch = 128;
    opts.n_seqs_max = 4;
    opts.n_threads = 1;
    opts.k_format = k;
    opts.v_format = v;
    opts.kv_recent = 64;
    opts.kv_sinks = 64;
    opts.device = device;
    opts.device_open = device != NULL && strcmp(device, "mock") == 0 ? open_mock : NULL;
    return opts;
}

/* Whether there is a Vulkan device. */
static bool has_vulkan(const quire_model *model)
{
    const quire_runtime_opts opts = opts_of("vulkan0", QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime *runtime;

    if (quire_runtime_create(&runtime, model, &opts, &err) < 0) {
        (void)printf("vulkan: skipped: %s\n", err.message);
        return false;
    }
    quire_runtime_destroy(runtime);
    return true;
}

/* The first tokens of a story of the kind that the model was trained on. */
static void text_make(const quire_model *model, int32_t *tokens)
{
    static const char story[] =
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
        "park with her friends. One day, she saw a big dog with a red ball. The dog was very "
        "happy and wanted to play with Lily. Lily was scared at first, but her mom said that the "
        "dog was nice. So Lily threw the ball and the dog ran to get it. They played all day and "
        "had a lot of fun. When it was time to go home, Lily said goodbye to the dog. She was "
        "sad, but her mom told her that they could come back the next day. Lily smiled and "
        "hugged her mom. That night she dreamed of the dog, the ball and the park. ";
    static int32_t all[1024];
    const int64_t n = quire_model_tokenize(model, story, strlen(story), true, false, all, 1024);

    assert_true(n >= N_TEXT && n <= 1024);
    memcpy(tokens, all, N_TEXT * sizeof(*tokens));
}

/* The mean negative log-likelihood of a text, of the logits of its tokens. */
static double nll_of(const float *logits, const int32_t *text, uint32_t n_vocab)
{
    double sum = 0.0;

    for (uint32_t t = 0; t + 1 < N_TEXT; t++) {
        const float *row = logits + (size_t)t * n_vocab;
        double z = 0.0;

        for (uint32_t i = 0; i < n_vocab; i++) {
            z += exp((double)row[i] - (double)row[text[t + 1]]);
        }
        sum += log(z);
    }
    return sum / (N_TEXT - 1);
}

/* The work of a server: a prompt in two steps, a fork in the middle of a page, both grown in the
 * same steps, a part given up. Returns the logits of all these steps. Memory: free(). */
static float *work(const quire_model *model, const quire_runtime_opts *opts, size_t *n_floats)
{
    const uint32_t n_vocab = quire_model_desc_get(model)->n_vocab;
    quire_runtime *runtime = fixture_runtime(model, opts);
    quire_cache *cache = quire_runtime_cache(runtime);
    float *all = calloc((size_t)(N_TEXT + 8) * n_vocab, sizeof(*all));
    const quire_seq_id seq = fixture_seq(runtime);
    int32_t text[N_TEXT];
    const float *logits;
    quire_seq_id fork;
    float *to = all;

    assert_non_null(all);
    text_make(model, text);
    for (uint32_t i = 0; i < N_TEXT; i += 100) {
        logits = fixture_step(runtime, seq, text + i, 100, QUIRE_LOGITS_ALL);
        memcpy(to, logits, (size_t)100 * n_vocab * sizeof(*to));
        to += (size_t)100 * n_vocab;
    }
    assert_int_equal(quire_runtime_fork(runtime, seq, &fork), QUIRE_OK);
    for (uint32_t i = 0; i < 4; i++) {
        const quire_slice slices[2] = {
            { .seq = seq, .tokens = text + i, .n_tokens = 1, .logits = QUIRE_LOGITS_LAST },
            { .seq = fork, .tokens = text + 9 + i, .n_tokens = 1, .logits = QUIRE_LOGITS_LAST }
        };

        assert_int_equal(quire_runtime_step(runtime, slices, 2, &logits), QUIRE_OK);
        memcpy(to, logits, (size_t)2 * n_vocab * sizeof(*to));
        to += (size_t)2 * n_vocab;
    }
    assert_int_equal(quire_seq_close(cache, seq), QUIRE_OK);
    (void)quire_cache_coalesce(cache, UINT32_MAX);
    *n_floats = (size_t)(to - all);
    quire_cache_validate(cache);
    quire_runtime_destroy(runtime);
    return all;
}

static const quire_format formats[][2] = { { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 },
                                           { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8 },
                                           { QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q5 } };
#define N_FORMATS (sizeof(formats) / sizeof(formats[0]))

/* Pages in memory that the host does not see change no bit. */
static void test_mock_bits(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(MODEL));

    (void)state;
    for (size_t f = 0; f < N_FORMATS; f++) {
        const quire_runtime_opts cpu = opts_of("cpu", formats[f][0], formats[f][1]);
        const quire_runtime_opts other = opts_of("mock", formats[f][0], formats[f][1]);
        size_t n_cpu, n_mock;
        float *by_cpu = work(model, &cpu, &n_cpu);
        float *by_mock = work(model, &other, &n_mock);

        assert_int_equal(n_cpu, n_mock);
        assert_memory_equal(by_cpu, by_mock, n_cpu * sizeof(*by_cpu));
        free(by_cpu);
        free(by_mock);
    }
    quire_model_close(model);
}

/* The perplexity of a text is the CPU's, within a band: the band of f16 is that of float additions
 * in another order. With fewer bits a sum in another order can move a code, and the CPU rounds
 * queries, which the card does not. */
static void perplexity_compare(const quire_model *model, const quire_model *on_card)
{
    static const double bands[N_FORMATS] = { 0.001, 0.01, 0.03 };
    const uint32_t n_vocab = quire_model_desc_get(model)->n_vocab;
    int32_t text[N_TEXT];

    text_make(model, text);
    for (size_t f = 0; f < N_FORMATS; f++) {
        const quire_runtime_opts cpu = opts_of(NULL, formats[f][0], formats[f][1]);
        const quire_runtime_opts other = opts_of("vulkan0", formats[f][0], formats[f][1]);
        size_t n_cpu, n_vulkan;
        float *by_cpu = work(model, &cpu, &n_cpu);
        float *by_vulkan = work(on_card, &other, &n_vulkan);
        const double nll = nll_of(by_cpu, text, n_vocab);
        const double diff = nll_of(by_vulkan, text, n_vocab) - nll;

        (void)printf("%s:%s: perplexity %.4f by the CPU, and by vulkan0 times 1 %+.5f\n",
                     quire_format_name(formats[f][0]), quire_format_name(formats[f][1]), exp(nll),
                     expm1(diff));
        assert_int_equal(n_cpu, n_vulkan);
        assert_true(exp(nll) < 20.0); /* it is a text that the model knows */
        assert_true(fabs(expm1(diff)) < bands[f]);
        assert_true(fixture_diff_max(by_cpu, by_vulkan, n_cpu) > 0); /* another ISA's bits */
        free(by_cpu);
        free(by_vulkan);
    }
}

static void test_vulkan_perplexity(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(MODEL));

    (void)state;
    if (!has_vulkan(model)) {
        quire_model_close(model);
        skip();
    }
    perplexity_compare(model, model);
    quire_model_close(model);
}

/* Weights lie on a device that has memory of its own. */
static void test_host_is_no_card(void **state)
{
    const quire_device_info info = { .name = "cpu", .memory = QUIRE_MEMORY_HOST };
    quire_error err = QUIRE_ERROR_INIT;
    ggml_backend_dev_t card;

    (void)state;
    assert_int_equal(quire_backend_devices_find(&card, &info, 1, &err), QUIRE_INVAL);
    assert_null(card);
    assert_non_null(strstr(err.message, "-ngl puts weights on a device, and cpu is none"));
}

/* The backend that is built for tests lacks the shaders of cards. */
static void test_part_of_backend(void **state)
{
    (void)state;
#ifdef QUIRE_GGML_VULKAN_OF_TESTS
    const quire_device_info info = { .name = "vulkan0",
                                     .isa = "vulkan",
                                     .memory = QUIRE_MEMORY_DEVICE };
    quire_error err = QUIRE_ERROR_INIT;
    ggml_backend_dev_t card;

    assert_int_equal(quire_backend_devices_find(&card, &info, 1, &err), QUIRE_UNSUPP);
    assert_null(card);
    assert_string_equal(err.message,
                        "device vulkan0: this build has no backend of ggml's for weights there "
                        "(scripts/setup.sh vulkan builds it); leave out -ngl");
#else
    (void)printf("skipped: this build has no part of ggml's backend, but the whole or none\n");
    skip();
#endif
}

/* How often the host waits in a step of one token, for ggml's backend and for Quire's device. The
 * first step of a shape makes its graph. */
static uint64_t waits_of_token(const quire_model *on_card)
{
    const quire_runtime_opts opts = opts_of("vulkan0", QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    quire_runtime *runtime = fixture_runtime(on_card, &opts);
    const quire_seq_id seq = fixture_seq(runtime);
    quire_runtime_stats before, after;
    const int32_t token = 5;
    uint64_t n_waits;

    (void)fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
    quire_runtime_stats_get(runtime, &before);
    n_waits = vulkan_waits();
    (void)fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
    n_waits = vulkan_waits() - n_waits;
    quire_runtime_stats_get(runtime, &after);
    assert_ptr_equal(quire_device_queue_owner(quire_runtime_memory_device(runtime)),
                     card_of_vulkan0());
    quire_runtime_destroy(runtime);
    return n_waits + after.layers_waits_total - before.layers_waits_total;
}

/* The layers that are not on the card: each waits once for its attention there, or finds it done.
 */
static uint32_t n_host_layers(const quire_model *model, uint32_t n_on_card)
{
    const uint32_t n_layer = quire_model_desc_get(model)->n_layer;

    return n_on_card > n_layer ? 0 : n_layer + 1 - n_on_card;
}

/* Layers of the model on the card, by ggml's backend: all layers and the output, and the last
 * layers alone. */
static void test_vulkan_layers(void **state)
{
    static const uint32_t counts[] = { UINT32_MAX, 3 };
    const char *path = fixture_model_path(MODEL);
    const ggml_backend_dev_t card = card_of_vulkan0();

    (void)state;
    if (card == NULL) {
        skip();
    }
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        const quire_model_opts opts = { .devices = { card }, .n_device_layers = counts[i] };
        quire_error err = QUIRE_ERROR_INIT;
        quire_model *model = fixture_open(path), *on_card;

        if (quire_model_open(&on_card, path, &opts, &err) < 0) {
            fail_msg("%s", err.message);
        }
        (void)printf("%u layers on the card\n", counts[i]);
        perplexity_compare(model, on_card);
        assert_in_range(waits_of_token(on_card), 1, n_host_layers(model, counts[i]) + 1);
        quire_model_close(on_card);
        quire_model_close(model);
    }
}

/* Greedy decoding goes on as on the CPU. */
static void test_vulkan_text(void **state)
{
    static const char prompt[] = "Once upon a time, there was";
    const quire_runtime_opts opts = opts_of("vulkan0", QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8);
    quire_model *model = fixture_open(fixture_model_path(MODEL));
    const uint32_t n_vocab = quire_model_desc_get(model)->n_vocab;
    quire_runtime *runtime;
    int32_t tokens[64];
    char text[256];
    const float *logits;
    size_t n_text = 0;
    quire_seq_id seq;
    int64_t n;

    (void)state;
    if (!has_vulkan(model)) {
        quire_model_close(model);
        skip();
    }
    runtime = fixture_runtime(model, &opts);
    seq = fixture_seq(runtime);
    n = quire_model_tokenize(model, prompt, strlen(prompt), true, false, tokens, 64);
    assert_true(n > 1);
    logits = fixture_step(runtime, seq, tokens, (uint32_t)n, QUIRE_LOGITS_LAST);
    for (uint32_t i = 0; i < 20; i++) {
        const int32_t next = fixture_argmax(logits, n_vocab);

        n_text += (size_t)quire_model_token_text(model, next, false, text + n_text, 8);
        logits = fixture_step(runtime, seq, &next, 1, QUIRE_LOGITS_LAST);
    }
    text[n_text] = '\0';
    assert_non_null(strstr(text, " a little girl named"));
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

/* Deep contexts of benchmarks: the same tiles as in the host's memory, at odd places too. */
static void test_fill(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(MODEL));
    const uint32_t n_vocab = quire_model_desc_get(model)->n_vocab;
    const int32_t token = 5;

    (void)state;
    for (size_t f = 0; f < N_FORMATS; f++) {
        float *logits[2];

        for (uint32_t i = 0; i < 2; i++) {
            const quire_runtime_opts opts =
                opts_of(i == 0 ? NULL : "mock", formats[f][0], formats[f][1]);
            quire_runtime *runtime = fixture_runtime(model, &opts);
            const quire_seq_id seq = fixture_seq(runtime);

            assert_int_equal(quire_runtime_fill(runtime, seq, 90, 3), QUIRE_OK);
            assert_int_equal(quire_runtime_fill(runtime, seq, 200, 4), QUIRE_OK);
            logits[i] = malloc(n_vocab * sizeof(float));
            assert_non_null(logits[i]);
            memcpy(logits[i], fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST),
                   n_vocab * sizeof(float));
            quire_runtime_destroy(runtime);
        }
        assert_memory_equal(logits[0], logits[1], n_vocab * sizeof(float));
        free(logits[0]);
        free(logits[1]);
    }
    quire_model_close(model);
}

static void refused(const quire_model *model, quire_runtime_opts opts, const char *words)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime *runtime;

    assert_int_equal(quire_runtime_create(&runtime, model, &opts, &err), QUIRE_UNSUPP);
    assert_null(runtime);
    if (strstr(err.message, words) == NULL) {
        fail_msg("'%s' does not say '%s'", err.message, words);
    }
}

static void test_refusals(void **state)
{
    const quire_runtime_opts base = opts_of("mock", QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    quire_model *model = fixture_open(fixture_model_path(MODEL));
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime_opts opts = base;
    quire_runtime *runtime;

    (void)state;
    opts.lock_memory = true;
    refused(model, opts, "device mock: locked memory (--lock-memory)");
    opts = base;
    opts.kv_elsewhere_bytes = 1 << 20;
    refused(model, opts, "--retain");
    opts = base;
    opts.device = "tpu0";
    opts.device_open = NULL;
    assert_int_equal(quire_runtime_create(&runtime, model, &opts, &err), QUIRE_NOTFOUND);
    assert_non_null(strstr(err.message, "there is no device 'tpu0'"));

    runtime = fixture_runtime(model, &base);
    assert_int_equal(quire_runtime_shift_check(runtime), QUIRE_OK);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

/* QUIRE_ISA that names no kernels of this machine: the runtime refuses, also with a device, since
 * the host's kernels may attend its pages. */
static void test_wrong_isa(void **state)
{
    static const char *const devices[] = { NULL, "mock", "mock" };
    const char *before = getenv("QUIRE_ISA");
    char *saved = before != NULL ? strdup(before) : NULL;
    quire_model *model = fixture_open(fixture_model_path(MODEL));

    (void)state;
    assert_int_equal(setenv("QUIRE_ISA", "z80", 1), 0);
    for (uint32_t i = 0; i < 3; i++) {
        quire_runtime_opts opts = opts_of(devices[i], QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);

        opts.attends_host = i == 2;
        refused(model, opts, "QUIRE_ISA is 'z80': this machine has the kernels portable");
    }
    assert_int_equal(saved != NULL ? setenv("QUIRE_ISA", saved, 1) : unsetenv("QUIRE_ISA"), 0);
    free(saved);
    quire_model_close(model);
}

/* Pages of the CPU and of devices are never taken for each other's. */
static void test_identity(void **state)
{
    static const char *const devices[] = { NULL, "cpu", "mock", "vulkan0" };
    quire_model *model = fixture_open(fixture_model_path(MODEL));
    const uint32_t n = has_vulkan(model) ? 4 : 3;
    uint64_t ids[4][2];

    (void)state;
    for (uint32_t i = 0; i < n; i++) {
        const quire_runtime_opts opts = opts_of(devices[i], QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8);
        quire_runtime *runtime = fixture_runtime(model, &opts);

        quire_kv_identity_get(runtime, ids[i]);
        for (uint32_t j = 0; j < i; j++) {
            const bool is_same = ids[i][0] == ids[j][0] && ids[i][1] == ids[j][1];

            assert_int_equal(is_same, i == 1 && j == 0);
        }
        quire_runtime_destroy(runtime);
    }
    quire_model_close(model);
}

/* The device is lost while a step is computed: the step says so, its tokens are gone, and so is
 * every later step. */
static void test_loss(void **state)
{
    const quire_runtime_opts opts = opts_of("mock", QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    quire_model *model = fixture_open(fixture_model_path(MODEL));
    const int32_t tokens[] = { 1, 2, 3 };
    quire_slice slice = { .tokens = tokens, .n_tokens = 3, .logits = QUIRE_LOGITS_LAST };
    quire_runtime *runtime = fixture_runtime(model, &opts);
    quire_device_info info;
    const float *logits;

    (void)state;
    slice.seq = fixture_seq(runtime);
    (void)fixture_step(runtime, slice.seq, tokens, 3, QUIRE_LOGITS_LAST);
    faults.loss = 1.0;
    quire_mock_device_set(mock, &faults);
    assert_int_equal(quire_runtime_step(runtime, &slice, 1, &logits), QUIRE_LOST);
    assert_int_equal(quire_seq_tokens(quire_runtime_cache(runtime), slice.seq), 3);
    assert_int_equal(quire_runtime_step(runtime, &slice, 1, &logits), QUIRE_LOST);
    quire_device_info_get(quire_runtime_memory_device(runtime), &info);
    assert_true(info.is_lost);
    quire_cache_validate(quire_runtime_cache(runtime));
    quire_runtime_destroy(runtime);
    quire_model_close(model);
    faults = (quire_mock_device_opts){ 0 };
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mock_bits),
        cmocka_unit_test(test_vulkan_perplexity),
        cmocka_unit_test(test_host_is_no_card),
        cmocka_unit_test(test_part_of_backend),
        cmocka_unit_test(test_vulkan_layers),
        cmocka_unit_test(test_vulkan_text),
        cmocka_unit_test(test_fill),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_wrong_isa),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_loss),
        cmocka_unit_test(validated_end),
    };

    validated_begin();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
