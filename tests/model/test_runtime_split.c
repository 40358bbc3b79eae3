/* test_runtime_split.c - layers of a model on several devices: the bits of one device for plain
 * models, windows, shared KV and recurrent layers; which layers go where; memory by device;
 * identity of KV; refusals by name; a lost device.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "device/mock_device.h"
#include "gguf_gen_scheme.h"
#include "model/backend.h"
#include "model/kv_identity.h"
#include "model/memory.h"
#include "model/runtime_shift.h"
#include "model/runtime_split.h"
#include "model_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_CTX   512u
#define N_TEXT  300u /* tokens: four full tiles and an open one */
#define N_BATCH 128u

/* Memory that lavapipe keeps after its devices are closed is no leak of ours. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libvulkan_lvp.so";
}

static quire_device *opened[QUIRE_DEVICE_SPLIT_MAX]; /* of the last runtime, in order */
static uint32_t n_opened;
static uint64_t memory_bytes_max; /* of each mock; 0 = no bound */

static int open_any(quire_device **out, const char *name, const quire_device_opts *opts,
                    quire_error *err)
{
    const quire_mock_device_opts slow = { .delay_ticks = 1 };
    quire_device_opts bounded = *opts;
    int rc;

    bounded.memory_bytes_max = memory_bytes_max;
    rc = strcmp(name, "mock") == 0 ? quire_mock_device_open(out, &bounded, &slow, err)
                                   : quire_device_open(out, name, opts, err);
    if (rc == QUIRE_OK && n_opened < QUIRE_DEVICE_SPLIT_MAX) {
        opened[n_opened++] = *out;
    }
    return rc;
}

static quire_runtime_opts opts_of(quire_format k, quire_format v)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = N_CTX;
    opts.n_batch = N_BATCH;
    opts.n_seqs_max = 4;
    opts.n_threads = 2;
    opts.k_format = k;
    opts.v_format = v;
    opts.kv_recent = 64;
    opts.kv_sinks = 64;
    opts.device_open = open_any;
    return opts;
}

/* Layers in equal parts on the named devices. Fails the test. */
static void split_set(const quire_model *model, quire_runtime_opts *opts, const char *const *names,
                      uint32_t n, const double *shares)
{
    const quire_model_desc *desc = quire_model_desc_get(model);
    static const double equal[] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    static quire_kv_pair pairs[QUIRE_LAYERS_MAX];
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime_opts resolved;

    quire_kv_uniform(desc, (quire_kv_pair){ opts->k_format, opts->v_format }, pairs);
    opts->device = "some devices";
    opts->split = (quire_runtime_split){ .n = n };
    for (uint32_t i = 0; i < n; i++) {
        (void)snprintf(opts->split.names[i], sizeof opts->split.names[i], "%s", names[i]);
    }
    resolved = *opts;
    resolved.kv_pairs = pairs;
    quire_runtime_opts_resolve(desc, &resolved);
    if (quire_split_divide(desc, &resolved, shares != NULL ? shares : equal, &opts->split, &err) <
        0) {
        fail_msg("%s", err.message);
    }
}

static quire_runtime *runtime_of(const quire_model *model, const quire_runtime_opts *opts)
{
    n_opened = 0;
    return fixture_runtime(model, opts);
}

/* A text in steps, a fork in the middle of a page, both grown in the same steps. Returns the logits
 * of the last token of each step. Memory: free(). */
static float *work(const quire_model *model, const quire_runtime_opts *opts, size_t *n_floats)
{
    const quire_model_desc *desc = quire_model_desc_get(model);
    const uint32_t n_vocab = desc->n_vocab;
    quire_runtime *runtime = runtime_of(model, opts);
    float *all = calloc((size_t)32 * n_vocab, sizeof(*all));
    const quire_seq_id seq = fixture_seq(runtime);
    int32_t text[N_TEXT];
    const float *logits;
    quire_seq_id fork;
    float *to = all;

    assert_non_null(all);
    for (uint32_t i = 0; i < N_TEXT; i++) {
        text[i] = (int32_t)(i * 7919u % (n_vocab < 256 ? n_vocab : 256));
    }
    for (uint32_t i = 0; i < N_TEXT; i += 100, to += n_vocab) {
        logits = fixture_step(runtime, seq, text + i, 100, QUIRE_LOGITS_LAST);
        memcpy(to, logits, n_vocab * sizeof(*to));
    }
    assert_int_equal(quire_runtime_fork(runtime, seq, &fork), QUIRE_OK);
    for (uint32_t i = 0; i < 4; i++, to += (size_t)2 * n_vocab) {
        const quire_slice slices[2] = {
            { .seq = seq, .tokens = text + i, .n_tokens = 1, .logits = QUIRE_LOGITS_LAST },
            { .seq = fork, .tokens = text + 9 + i, .n_tokens = 1, .logits = QUIRE_LOGITS_LAST }
        };

        assert_int_equal(quire_runtime_step(runtime, slices, 2, &logits), QUIRE_OK);
        memcpy(to, logits, (size_t)2 * n_vocab * sizeof(*to));
    }
    assert_int_equal(quire_seq_close(quire_runtime_cache(runtime), seq), QUIRE_OK);
    if (quire_runtime_shift_check(runtime) == QUIRE_OK) { /* tokens leave the middle */
        bool is_torn;

        assert_int_equal(quire_runtime_shift(runtime, fork, 64, 128, &is_torn), QUIRE_OK);
        memcpy(to, fixture_step(runtime, fork, text, 1, QUIRE_LOGITS_LAST), n_vocab * sizeof(*to));
        to += n_vocab;
    }
    (void)quire_cache_coalesce(quire_runtime_cache(runtime), UINT32_MAX);
    quire_cache_validate(quire_runtime_cache(runtime));
    quire_runtime_destroy(runtime);
    *n_floats = (size_t)(to - all);
    return all;
}

/* Layers on these devices give the bits of `device` alone (NULL: the CPU without one). */
static void check_bits(const quire_model *model, quire_runtime_opts opts, const char *device,
                       const char *const *names, uint32_t n)
{
    quire_runtime_opts split = opts;
    float *one, *several;
    size_t n_one, n_several;

    opts.device = device;
    split_set(model, &split, names, n, NULL);
    one = work(model, &opts, &n_one);
    several = work(model, &split, &n_several);
    assert_int_equal(n_one, n_several);
    assert_memory_equal(one, several, n_one * sizeof(*one));
    free(one);
    free(several);
}

static const char *const cpus[] = { "cpu", "cpu" };
static const char *const mocks[] = { "mock", "mock" };
static const char *const mixed[] = { "mock", "cpu", "mock" };
static const char *const vulkans[] = { "vulkan0", "vulkan0" };

static const quire_format formats[][2] = { { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 },
                                           { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8 },
                                           { QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q5 } };

static void test_bits(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(FIXTURE_STORIES));

    (void)state;
    for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++) {
        const quire_runtime_opts opts = opts_of(formats[f][0], formats[f][1]);

        check_bits(model, opts, NULL, cpus, 2);
        check_bits(model, opts, "mock", mocks, 2);
        check_bits(model, opts, NULL, mixed, 3);
    }
    quire_model_close(model);
}

/* The same card twice: memory and queues of their own. */
static void test_vulkan_bits(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(FIXTURE_STORIES));
    quire_runtime_opts opts = opts_of(QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8);
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime *runtime;

    (void)state;
    opts.device = "vulkan0";
    if (quire_runtime_create(&runtime, model, &opts, &err) < 0) {
        (void)printf("vulkan: skipped: %s\n", err.message);
        quire_model_close(model);
        skip();
    }
    quire_runtime_destroy(runtime);
    check_bits(model, opts, "vulkan0", vulkans, 2);
    opts = opts_of(QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q5);
    check_bits(model, opts, "vulkan0", vulkans, 2);
    quire_model_close(model);
}

/* ---- models whose groups are divided elsewhere ---- */

static quire_model *scheme_model(const char *scheme, const int32_t *windows)
{
    quire_error err = QUIRE_ERROR_INIT;
    gguf_gen_opts gen;
    quire_model *model;

    assert_true(gguf_gen_shape("tiny-quire", &gen));
    gen.n_layer = 6;
    gen.n_vocab = 320;
    gen.seed = 43;
    assert_int_equal(gguf_gen_scheme_apply(&gen, scheme, &err), QUIRE_OK);
    if (windows != NULL) {
        memcpy(gen.windows, windows, 6 * sizeof(*windows));
    }
    model = fixture_open(fixture_generate(&gen));
    fixture_generated_remove();
    return model;
}

static void check_model(quire_model *model)
{
    for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++) {
        const quire_runtime_opts opts = opts_of(formats[f][0], formats[f][1]);

        check_bits(model, opts, "mock", mocks, 2);
        check_bits(model, opts, NULL, cpus, 2);
    }
    quire_model_close(model);
}

static void test_windows(void **state)
{
    static const int32_t some[] = { 77, 64, 0, 5, 130, 0 };
    static const int32_t all[] = { 77, 64, 77, 1, 130, 77 };
    static const int32_t last[] = { 0, 0, 0, 0, 77, 77 }; /* the first device has no window */

    (void)state;
    check_model(scheme_model("gqa", some));
    check_model(scheme_model("gqa", all)); /* main pages count tokens alone */
    check_model(scheme_model("gqa", last));
}

/* Layers that read the KV of an earlier layer are attended where it lies. */
static void test_shared_layers(void **state)
{
    gguf_gen_opts gen;
    quire_model *model;

    (void)state;
    check_model(scheme_model("yoco", NULL));
    check_model(scheme_model("cla2", NULL));
    assert_true(gguf_gen_shape("tiny-gemma4", &gen));
    model = fixture_open(fixture_generate(&gen));
    fixture_generated_remove();
    check_model(model);
}

/* Layers with states in between, which are the host's. */
static void test_recurrent(void **state)
{
    gguf_gen_opts gen = fixture_llama("split", 6, 320, 512, 31);
    quire_model *model;

    (void)state;
    (void)snprintf(gen.arch, sizeof gen.arch, "lfm2");
    gen.vocab = GGUF_GEN_VOCAB_BPE;
    gen.is_tied = true;
    gen.attention_every = 2;
    gen.conv_taps = 4;
    model = fixture_open(fixture_generate(&gen));
    fixture_generated_remove();
    check_model(model);
}

/* Weights of the last layers on a device of ggml, whichever device has their KV. */
static void test_weights(void **state)
{
    quire_model_opts on_device = { .n_device_layers = 3 };
    const char *path = fixture_model_path(FIXTURE_STORIES);
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    assert_int_equal(quire_backend_init(&err), QUIRE_OK);
    on_device.devices[0] = quire_backend_cpu();
    check_model(fixture_open_as(path, &on_device));
}

/* ---- which layers go where ---- */

static void divided(const quire_model *model, uint32_t n, const double *shares,
                    const uint32_t *wanted)
{
    static const char *const names[] = { "cpu", "cpu", "cpu", "cpu" };
    quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);

    split_set(model, &opts, names, n, shares);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(opts.split.end[i], wanted[i]);
    }
}

static void test_divide(void **state)
{
    quire_model *model = scheme_model("gqa", NULL);
    const quire_model_desc *desc = quire_model_desc_get(model);
    quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    quire_kv_pair pairs[QUIRE_LAYERS_MAX];
    quire_error err = QUIRE_ERROR_INIT;
    char text[QUIRE_SPLIT_TEXT_MAX];

    (void)state;
    divided(model, 2, (const double[]){ 1, 1 }, (const uint32_t[]){ 3, 6 });
    divided(model, 2, (const double[]){ 2e9, 1e9 }, (const uint32_t[]){ 4, 6 });
    divided(model, 2, (const double[]){ 1, 5 }, (const uint32_t[]){ 1, 6 });
    divided(model, 3, (const double[]){ 1, 1, 1 }, (const uint32_t[]){ 2, 4, 6 });
    divided(model, 3, (const double[]){ 3, 1, 2 }, (const uint32_t[]){ 3, 4, 6 });
    opts.device = "two";
    opts.split = (quire_runtime_split){ .n = 2, .names = { "vulkan0", "cpu" } };
    quire_kv_uniform(desc, (quire_kv_pair){ QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 }, pairs);
    opts.kv_pairs = pairs;
    assert_int_equal(quire_split_divide(desc, &opts, (const double[]){ 1, 100 }, &opts.split, &err),
                     QUIRE_INVAL);
    assert_non_null(strstr(err.message, "device vulkan0 gets no layer with KV of its own"));
    assert_int_equal(quire_split_divide(desc, &opts, (const double[]){ 2, 1 }, &opts.split, &err),
                     QUIRE_OK);
    assert_string_equal(quire_split_text(&opts.split, text, sizeof text),
                        "vulkan0: layers 0-3; cpu: layers 4-5");
    for (uint32_t il = 0; il < 6; il++) {
        assert_int_equal(quire_split_device_of(desc, &opts.split, il), il >= 4);
    }
    assert_true(quire_split_share(desc, &opts, 0) > 0.666 &&
                quire_split_share(desc, &opts, 0) < 0.667);
    opts.split.end[0] = 7;
    assert_int_equal(quire_split_check(desc, &opts, &err), QUIRE_INVAL);
    quire_model_close(model);
}

/* ---- refusals ---- */

static void refused(const quire_model *model, quire_runtime_opts opts, int status,
                    const char *words)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime *runtime;

    assert_int_equal(quire_runtime_create(&runtime, model, &opts, &err), status);
    assert_null(runtime);
    if (strstr(err.message, words) == NULL) {
        fail_msg("'%s' does not say '%s'", err.message, words);
    }
}

static void test_refusals(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(FIXTURE_STORIES));
    quire_runtime_opts base = opts_of(QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    quire_runtime_opts opts;

    (void)state;
    split_set(model, &base, mocks, 2, NULL);
    opts = base;
    opts.lock_memory = true;
    refused(model, opts, QUIRE_UNSUPP, "--lock-memory");
    opts = base;
    opts.kv_elsewhere_bytes = 1 << 20;
    refused(model, opts, QUIRE_UNSUPP, "(--retain)");
    opts = base;
    opts.has_bounds = true;
    refused(model, opts, QUIRE_UNSUPP, "(--attend)");
    opts = base;
    opts.kv_overflows = true;
    refused(model, opts, QUIRE_UNSUPP, "--kv-overflow tier");
    opts = base;
    opts.attends_host = true;
    refused(model, opts, QUIRE_UNSUPP, "--kv-overflow-attend");
    opts = base;
    (void)snprintf(opts.split.names[1], sizeof opts.split.names[1], "tpu0");
    refused(model, opts, QUIRE_NOTFOUND, "there is no device 'tpu0'"); /* behind one that is */
    quire_model_close(model);
}

/* FusedKV: a layer mixes the K and V of two others. */
static void test_two_devices_read(void **state)
{
    quire_model *model = scheme_model("fusedkv", NULL);
    const quire_model_desc *desc = quire_model_desc_get(model);
    quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);

    (void)state;
    opts.device = "two";
    opts.split = (quire_runtime_split){ .n = 2, .names = { "mock", "mock" } };
    opts.split.end[0] = desc->stored_by[desc->n_stored - 1];
    opts.split.end[1] = desc->n_layer;
    refused(model, opts, QUIRE_UNSUPP, "which lie on two devices (mock, mock)");
    quire_model_close(model);
}

/* ---- identity ---- */

static void identity_of(const quire_model *model, const quire_runtime_opts *opts, uint64_t id[2])
{
    quire_runtime *runtime = runtime_of(model, opts);

    quire_kv_identity_get(runtime, id);
    quire_runtime_destroy(runtime);
}

/* Devices of one rounding share pages with one device; others with nobody, at each other end. */
static void test_identity(void **state)
{
    static const char *const both[] = { "mock", "cpu" };
    quire_model *model = fixture_open(fixture_model_path(FIXTURE_STORIES));
    const quire_runtime_opts base = opts_of(QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8);
    quire_runtime_opts opts[7];
    uint64_t ids[7][2];

    (void)state;
    for (uint32_t i = 0; i < 7; i++) {
        opts[i] = base;
    }
    opts[1].device = "mock";
    split_set(model, &opts[2], cpus, 2, NULL);
    split_set(model, &opts[3], mocks, 2, NULL);
    split_set(model, &opts[4], both, 2, NULL);
    split_set(model, &opts[5], both, 2, (const double[]){ 1, 4 });
    split_set(model, &opts[6], mixed, 3, NULL);
    for (uint32_t i = 0; i < 7; i++) {
        identity_of(model, &opts[i], ids[i]);
        for (uint32_t j = 0; j < i; j++) {
            const bool is_same = ids[i][0] == ids[j][0] && ids[i][1] == ids[j][1];

            assert_int_equal(is_same, (i == 2 && j == 0) || (i == 3 && j == 1));
        }
    }
    quire_model_close(model);
}

/* ---- memory ---- */

/* No device gives more than its share of the budget, and an extent's pages beyond it. */
static void test_shares(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(FIXTURE_STORIES));
    const quire_model_desc *desc = quire_model_desc_get(model);
    quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    quire_runtime *runtime;
    quire_cache_stats stats;
    double sum = 0.0;

    (void)state;
    opts.kv_budget_bytes = 8u << 20;
    split_set(model, &opts, mocks, 2, (const double[]){ 3, 2 });
    memory_bytes_max = 8u << 20; /* pinned memory takes a sixteenth at most */
    runtime = runtime_of(model, &opts);
    memory_bytes_max = 0;
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(quire_runtime_fill(runtime, fixture_seq(runtime), N_CTX - 1, i), QUIRE_OK);
    }
    quire_cache_stats_get(quire_runtime_cache(runtime), &stats);
    for (uint32_t i = 0; i < 2; i++) {
        const double share = quire_split_share(desc, quire_runtime_opts_get(runtime), i);
        quire_device_info info;

        quire_device_info_get(opened[i], &info);
        assert_true(info.used_bytes > 0);
        /* Beside the pinned memory of copies, both ways. */
        assert_true((double)info.used_bytes <= share * (double)stats.extent_bytes + (3 << 19));
        sum += share;
    }
    assert_true(sum > 0.999 && sum < 1.001);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

static quire_memory_place place_of(uint64_t first, uint64_t second)
{
    return (quire_memory_place){ .name = "vulkan0,vulkan1",
                                 .bytes = UINT64_MAX,
                                 .n_parts = 2,
                                 .parts = { { .name = "vulkan0", .bytes = first },
                                            { .name = "vulkan1", .bytes = second } } };
}

/* The need of each device before anything is loaded. */
static void test_memory_need(void **state)
{
    quire_model *model = scheme_model("gqa", NULL);
    const quire_model_desc *desc = quire_model_desc_get(model);
    quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    quire_error err = QUIRE_ERROR_INIT;
    quire_memory_place place;
    quire_memory_need need;
    uint64_t third, fixed;
    uint32_t tokens;

    (void)state;
    split_set(model, &opts, (const char *const[]){ "vulkan0", "vulkan1" }, 2,
              (const double[]){ 2, 1 });
    quire_memory_need_get(desc, &opts, &need);
    third = need.kv_bytes / 3;
    fixed = need.device_bytes;
    place = place_of(fixed + 2 * third + 8, fixed + third + 8);
    assert_int_equal(quire_memory_check(desc, &opts, UINT64_MAX, &place, &err), QUIRE_OK);
    assert_true(quire_memory_device_room(&need, &place) >= need.kv_bytes);
    assert_true(quire_memory_host_share(&need, &place) == 0.0);
    assert_int_equal(quire_memory_host_bytes(&need, &place), need.total_bytes - need.kv_bytes);
    tokens = quire_memory_tokens_max(desc, &opts, UINT64_MAX, &place, 1u << 20);
    assert_true(tokens >= N_CTX / 2);
    /* One of them is too small. */
    place = place_of(fixed + 2 * third + 8, fixed + third / 2);
    assert_int_equal(quire_memory_check(desc, &opts, UINT64_MAX, &place, &err), QUIRE_NOMEM);
    assert_non_null(strstr(err.message, "more than device vulkan1 has for its layers"));
    assert_true(quire_memory_tokens_max(desc, &opts, UINT64_MAX, &place, 1u << 20) < tokens);
    place = place_of(fixed, UINT64_MAX);
    assert_int_equal(quire_memory_device_room(&need, &place), 0);
    /* A bound of KV itself. */
    place = place_of(UINT64_MAX, UINT64_MAX);
    assert_int_equal(quire_memory_device_room(&need, &place), UINT64_MAX);
    place.kv_bytes_max = need.kv_bytes - 1;
    assert_int_equal(quire_memory_check(desc, &opts, UINT64_MAX, &place, &err), QUIRE_NOMEM);
    /* Room for KV, but not for weights, too. */
    need.layers_weights_bytes[1] = 600;
    need.layers_buffers_bytes[1] = 400;
    place = place_of(fixed + 2 * third + 8, fixed + third + 8);
    place.parts[1].layers = 2;
    assert_true(quire_memory_device_room(&need, &place) < need.kv_bytes);
    place = place_of(fixed + 2 * third + 8, fixed + third + 1008);
    place.parts[1].layers = 2;
    assert_true(quire_memory_device_room(&need, &place) >= need.kv_bytes);
    quire_model_close(model);
}

/* The CPU's share is the host's; devices of one name are one memory. */
static void test_memory_of_host(void **state)
{
    quire_model *model = scheme_model("gqa", NULL);
    const quire_model_desc *desc = quire_model_desc_get(model);
    quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    quire_memory_place place = place_of(UINT64_MAX, UINT64_MAX);
    quire_error err = QUIRE_ERROR_INIT;
    quire_memory_need need;
    uint64_t host;

    (void)state;
    split_set(model, &opts, (const char *const[]){ "vulkan0", "cpu" }, 2, (const double[]){ 2, 1 });
    quire_memory_need_get(desc, &opts, &need);
    place.parts[1] =
        (quire_memory_part){ .name = "cpu", .bytes = UINT64_MAX, .is_hosts = true, .is_cpu = true };
    assert_true(quire_memory_kv_is_hosts(&need, &place));
    host = quire_memory_host_bytes(&need, &place);
    assert_int_equal(host / 64, (need.total_bytes - need.kv_bytes + need.kv_bytes / 3) / 64);
    assert_int_equal(quire_memory_check(desc, &opts, host, &place, &err), QUIRE_OK);
    assert_int_equal(quire_memory_check(desc, &opts, host - 1, &place, &err), QUIRE_NOMEM);
    assert_non_null(strstr(err.message, "the limit is"));
    /* One card for both. */
    place = place_of(2 * need.device_bytes + need.kv_bytes, 0);
    place.parts[1] = place.parts[0];
    assert_int_equal(quire_memory_check(desc, &opts, UINT64_MAX, &place, &err), QUIRE_OK);
    place.parts[0].bytes = place.parts[1].bytes -= 64;
    assert_int_equal(quire_memory_check(desc, &opts, UINT64_MAX, &place, &err), QUIRE_NOMEM);
    quire_model_close(model);
}

/* A device that has less than was announced: a step fails for want of memory, and goes on when a
 * sequence has ended. */
static void test_no_memory(void **state)
{
    quire_model *model = fixture_open(fixture_model_path(FIXTURE_STORIES));
    quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    const int32_t tokens[] = { 1, 2, 3 };
    quire_slice slice = { .tokens = tokens, .n_tokens = 3, .logits = QUIRE_LOGITS_LAST };
    quire_runtime *runtime;
    const float *logits;
    int rc = QUIRE_OK;

    (void)state;
    opts.n_seqs_max = 16;
    opts.kv_budget_bytes = 64u << 20;
    split_set(model, &opts, mocks, 2, NULL);
    memory_bytes_max = 4u << 20;
    runtime = runtime_of(model, &opts);
    memory_bytes_max = 0;
    for (uint32_t i = 0; i < 15 && rc == QUIRE_OK; i++) {
        rc = quire_runtime_fill(runtime, fixture_seq(runtime), N_CTX - 1, i);
    }
    assert_int_equal(rc, QUIRE_NOMEM);
    slice.seq = 1; /* the first one is full; it makes room */
    assert_int_equal(quire_seq_close(quire_runtime_cache(runtime), slice.seq), QUIRE_OK);
    slice.seq = fixture_seq(runtime);
    assert_int_equal(quire_runtime_step(runtime, &slice, 1, &logits), QUIRE_OK);
    quire_cache_validate(quire_runtime_cache(runtime));
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

/* ---- loss ---- */

static void test_loss(void **state)
{
    const quire_mock_device_opts loses = { .loss = 1.0 };
    quire_model *model = fixture_open(fixture_model_path(FIXTURE_STORIES));
    quire_runtime_opts opts = opts_of(QUIRE_FORMAT_F16, QUIRE_FORMAT_F16);
    const int32_t tokens[] = { 1, 2, 3 };
    quire_slice slice = { .tokens = tokens, .n_tokens = 3, .logits = QUIRE_LOGITS_LAST };
    const float *logits;

    (void)state;
    split_set(model, &opts, mixed, 3, NULL);
    for (uint32_t lost = 0; lost < 3; lost += 2) { /* each mock */
        quire_runtime *runtime = runtime_of(model, &opts);
        const quire_device_split *split = quire_runtime_split_devices(runtime);

        slice.seq = fixture_seq(runtime);
        (void)fixture_step(runtime, slice.seq, tokens, 3, QUIRE_LOGITS_LAST);
        assert_false(quire_runtime_is_lost(runtime));
        quire_mock_device_set(opened[lost], &loses);
        assert_int_equal(quire_runtime_step(runtime, &slice, 1, &logits), QUIRE_LOST);
        assert_int_equal(quire_seq_tokens(quire_runtime_cache(runtime), slice.seq), 3);
        assert_int_equal(quire_runtime_step(runtime, &slice, 1, &logits), QUIRE_LOST);
        assert_true(quire_runtime_is_lost(runtime));
        assert_ptr_equal(quire_device_split_lost(split), opened[lost]);
        assert_string_equal(quire_runtime_lost_name(runtime), mixed[lost]);
        assert_null(quire_runtime_memory_device(runtime));
        quire_cache_validate(quire_runtime_cache(runtime));
        quire_runtime_destroy(runtime);
    }
    quire_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_vulkan_bits),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_shared_layers),
        cmocka_unit_test(test_recurrent),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_divide),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_two_devices_read),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_memory_need),
        cmocka_unit_test(test_memory_of_host),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_loss),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
