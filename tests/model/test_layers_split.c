/* test_layers_split.c - a model whose last layers lie on several devices of ggml, some on each. The
 * devices are the backend of the CPU, so results have the bits of a model that the CPU computes,
 * also with a queue in front of them that works as late as it may (device_queue.h).
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "arch_cases.h"
#include "device_queue.h"
#include "model/backend.h"
#include "model/kv_identity.h"
#include "model/model_internal.h"
#include "model_fixture.h"
#include "rounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TEXT   70u
#define N_GROWN  3u
#define ALL      UINT32_MAX /* layers */
#define N_LAYERS 5u         /* of the stories */

/* A device adds the products and the sum of experts in another order than Quire. Once in many
 * thousands of rows that changes a choice: then another text shows the same. */
#define OF_EXPERTS 2e-4
#define N_TEXTS    3u

/* Devices that have these layers, in equal parts. */
static int split_evenly(void *ctx, const quire_model_desc *desc, quire_model_split *out,
                        quire_error *err)
{
    const uint32_t n = *(const uint32_t *)ctx;

    (void)err;
    assert_true(desc->resident_bytes > 0);
    out->n = n;
    for (uint32_t i = 0; i < n; i++) {
        out->devices[i] = quire_backend_cpu();
    }
    for (uint32_t il = 0; il <= desc->n_layer; il++) {
        out->of[il] = (uint8_t)(il * n / (desc->n_layer + 1));
    }
    return QUIRE_OK;
}

static quire_model *model_open(const char *path, uint32_t n_layers, uint32_t n_devices)
{
    quire_model_opts opts = { .no_repack = true, .n_device_layers = n_layers };

    opts.split = n_devices > 0 ? split_evenly : NULL;
    opts.split_ctx = &n_devices;
    return fixture_open_as(path, &opts);
}

static quire_runtime_opts runtime_opts(void)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = 128;
    opts.n_batch = N_TEXT;
    opts.n_seqs_max = 2;
    opts.n_threads = 1;
    opts.k_format = opts.v_format = QUIRE_FORMAT_F32;
    return opts;
}

/* The logits of a prompt in two steps and of further tokens. Memory: free(). */
static float *work(const char *path, uint32_t n_layers, uint32_t n_devices, uint32_t text_number,
                   size_t *n_floats)
{
    quire_model *model = model_open(path, n_layers, n_devices);
    const uint32_t n_vocab = quire_model_desc_get(model)->n_vocab;
    const quire_runtime_opts opts = runtime_opts();
    quire_runtime *runtime = fixture_runtime(model, &opts);
    const quire_seq_id seq = fixture_seq(runtime);
    float *all = calloc((size_t)(N_TEXT + N_GROWN) * n_vocab, sizeof *all);
    int32_t text[N_TEXT + N_GROWN];

    assert_non_null(all);
    for (uint32_t i = 0; i < N_TEXT + N_GROWN; i++) {
        text[i] = (int32_t)((i * (31 + 2 * text_number) + 7) % n_vocab);
    }
    (void)fixture_step(runtime, seq, text, 30, QUIRE_LOGITS_NONE);
    memcpy(all + (size_t)30 * n_vocab,
           fixture_step(runtime, seq, text + 30, N_TEXT - 30, QUIRE_LOGITS_ALL),
           (size_t)(N_TEXT - 30) * n_vocab * sizeof *all);
    for (uint32_t i = N_TEXT; i < N_TEXT + N_GROWN; i++) {
        memcpy(all + (size_t)i * n_vocab,
               fixture_step(runtime, seq, text + i, 1, QUIRE_LOGITS_LAST), n_vocab * sizeof *all);
    }
    quire_runtime_destroy(runtime);
    quire_model_close(model);
    *n_floats = (size_t)(N_TEXT + N_GROWN) * n_vocab;
    return all;
}

static double error_of(const char *path, uint32_t n_layers, uint32_t n_devices,
                       uint32_t text_number)
{
    size_t n;
    float *by_host = work(path, 0, 0, text_number, &n);
    float *by_devices = work(path, n_layers, n_devices, text_number, &n);
    const double error = fixture_diff_max(by_host, by_devices, n);

    free(by_devices);
    free(by_host);
    return error;
}

static void assert_same(const char *path, uint32_t n_layers, uint32_t n_devices, double tolerance,
                        const char *what)
{
    double error = error_of(path, n_layers, n_devices, 0);

    for (uint32_t i = 1; tolerance >= OF_EXPERTS && !(error <= tolerance) && i < N_TEXTS; i++) {
        error = error_of(path, n_layers, n_devices, i);
    }
    if (!(error <= tolerance)) {
        fail_msg("%s, %u layers: logits differ by %g", what, n_layers, error);
    }
}

/* Every architecture, whole or in part, on two devices or three, on every kind of queue by turns.
 */
static void test_architectures(void **state)
{
    const arch_case *c;

    (void)state;
    for (size_t i = 0; (c = arch_case_get(i)) != NULL; i += TEST_STRIDE(5u)) {
        const gguf_gen_opts gen = arch_case_options(c);
        const uint32_t n_devices = 2 + (uint32_t)(i % 2);
        char what[96];

        (void)snprintf(what, sizeof what, "%s, %s, %u devices, queue %zu", c->arch, c->what,
                       n_devices, i % DEVICE_QUEUE_MODES);
        device_queue_set((device_queue_mode)(i % DEVICE_QUEUE_MODES));
        /* The matrices of heads of latent attention are not in panels there. */
        assert_same(fixture_generate(&gen), i % 3 == 0 ? 3 : ALL, n_devices,
                    c->n_experts != 0  ? OF_EXPERTS
                    : c->n_latent != 0 ? 2e-5
                                       : 0.0,
                    what);
        fixture_generated_remove();
    }
    device_queue_set(DEVICE_QUEUE_NONE);
}

/* Each device has the weights of its layers, and a step goes from one to the next. */
static void test_places(void **state)
{
    quire_model *model = model_open(fixture_model_path(FIXTURE_STORIES), ALL, 3);
    const quire_runtime_opts opts = runtime_opts();
    quire_runtime *runtime = fixture_runtime(model, &opts);
    const quire_seq_id seq = fixture_seq(runtime);
    const int32_t token = 5;
    uint64_t bytes = 0;

    (void)state;
    for (uint32_t il = 0; il < N_LAYERS; il++) { /* two layers each, of six with the output */
        assert_int_equal(quire_weights_side(model->weights, model->weights->layers[il].wq),
                         1 + il / 2);
    }
    assert_int_equal(quire_weights_side(model->weights, model->weights->output), 3);
    assert_int_equal(quire_weights_side(model->weights, model->weights->tok_embd), 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(model->desc.device_weight_bytes[i] > 0);
        bytes += model->desc.device_weight_bytes[i];
    }
    assert_int_equal(model->weights->device_bytes, bytes);
    (void)device_queue_counts_take();
    (void)fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
    /* Where a device ends, so does a graph: the rest of its last layer. */
    assert_int_equal(device_queue_counts_take().graphs, N_LAYERS + 1 + 2);
    assert_int_equal(quire_runtime_n_device_layers(runtime), N_LAYERS + 1);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

/* Pages of a model on other devices, in other parts, are never taken for this one's. */
static void test_identity(void **state)
{
    const quire_runtime_opts opts = runtime_opts();
    uint64_t identities[4][2];

    (void)state;
    for (uint32_t n = 0; n < 4; n++) {
        quire_model *model = model_open(fixture_model_path(FIXTURE_STORIES), n > 0 ? ALL : 0, n);
        quire_runtime *runtime = fixture_runtime(model, &opts);

        quire_kv_identity_get(runtime, identities[n]);
        quire_runtime_destroy(runtime);
        quire_model_close(model);
        for (uint32_t i = 0; i < n; i++) {
            assert_memory_not_equal(identities[i], identities[n], sizeof identities[n]);
        }
    }
}

/* One of several devices is lost at a call: the step fails, and so do all later ones. */
static void test_thrown(void **state)
{
    const quire_runtime_opts opts = runtime_opts();
    const int32_t token = 5;
    uint32_t n_lost = 0;
    bool goes_on = true;

    (void)state;
    for (uint32_t at = 1; goes_on; at += 3) {
        quire_model *model = model_open(fixture_model_path(FIXTURE_STORIES), ALL, 3);
        quire_runtime *runtime = fixture_runtime(model, &opts);
        const quire_slice slice = { .seq = fixture_seq(runtime),
                                    .tokens = &token,
                                    .n_tokens = 1,
                                    .logits = QUIRE_LOGITS_LAST };
        const float *logits;

        (void)fixture_step(runtime, slice.seq, &token, 1, QUIRE_LOGITS_LAST); /* makes the graph */
        device_queue_fail(at);
        goes_on = quire_runtime_step(runtime, &slice, 1, &logits) == QUIRE_LOST;
        assert_int_equal(quire_runtime_is_lost(runtime), goes_on);
        if (goes_on) {
            assert_int_equal(quire_runtime_step(runtime, &slice, 1, &logits), QUIRE_LOST);
        }
        device_queue_fail(0);
        quire_runtime_destroy(runtime);
        quire_model_close(model);
        n_lost += goes_on;
    }
    assert_true(n_lost > 5);
}

static int setup(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    return quire_backend_init(&err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_architectures),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_thrown),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
