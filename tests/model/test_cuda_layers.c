/* test_cuda_layers.c - layers of a model on the card of cuda0, between Quire's kernels: two streams
 * that wait for each other's events. The driver is that of device/fake_cuda, ggml's backend that of
 * layers_cuda.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "device/cuda/cuda_driver.h"
#include "device/fake_cuda/fake_cuda.h"
#include "layers_cuda.h"
#include "model/backend.h"
#include "model/backend_calls.h"
#include "model/backend_device.h"
#include "model/kv_identity.h"
#include "model/runtime_device.h"
#include "model/runtime_split.h"
#include "model_fixture.h"
#include "rounds.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TOKENS     3u
#define N_STEPS      4u
#define N_STEPS_MANY 400u /* of five layers */
#define N_THREADS    2u
#define N_GROWN      70 /* more than a page */

static quire_model *model;   /* with all layers on the card */
static quire_model *on_host; /* the same with none */
static float *expected;      /* the logits of a first step */

static quire_runtime *runtime_of(const quire_model *of, const char *device, quire_format format)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = 256;
    opts.n_batch = 8;
    opts.n_seqs_max = 2;
    opts.n_threads = 1;
    opts.k_format = opts.v_format = format;
    opts.device = device;
    return fixture_runtime(of, &opts);
}

static quire_runtime *runtime_new(void)
{
    return runtime_of(model, "cuda0", QUIRE_FORMAT_F16);
}

static int step_try(quire_runtime *runtime, quire_seq_id seq, const float **logits)
{
    static const int32_t tokens[N_TOKENS] = { 5, 6, 7 };
    const quire_slice slice = {
        .seq = seq, .tokens = tokens, .n_tokens = N_TOKENS, .logits = QUIRE_LOGITS_LAST
    };

    return quire_runtime_step(runtime, &slice, 1, logits);
}

static uint32_t n_vocab(void)
{
    return quire_model_desc_get(model)->n_vocab;
}

static size_t logits_bytes(void)
{
    return n_vocab() * sizeof(float);
}

/* A step of an empty sequence, which is empty again afterwards, has the bits of a first one. */
static bool step_is_right(quire_runtime *runtime, quire_seq_id seq)
{
    const float *logits;

    return step_try(runtime, seq, &logits) == QUIRE_OK &&
           memcmp(logits, expected, logits_bytes()) == 0 &&
           quire_seq_truncate(quire_runtime_cache(runtime), seq, 0) == QUIRE_OK;
}

static void check_fresh_runtime(void)
{
    quire_runtime *runtime = runtime_new();

    assert_true(step_is_right(runtime, fixture_seq(runtime)));
    quire_runtime_destroy(runtime);
}

/* Have layers pass the host's memory, or not. */
static void queue_set(quire_runtime *runtime, bool queues)
{
    static quire_attn_device both;
    quire_attn_device *device = quire_runtime_device(runtime);

    both = device->queue != NULL ? *device : both;
    device->queue = queues ? both.queue : NULL;
}

/* ---- results ---- */

/* The tokens of a text that the model goes on with. */
static void tokens_of(quire_runtime *runtime, int32_t *out)
{
    const quire_seq_id seq = fixture_seq(runtime);
    int32_t token = 1;

    for (uint32_t i = 0; i < N_GROWN; i++) {
        token = fixture_argmax(fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST), n_vocab());
        out[i] = token;
    }
    quire_runtime_destroy(runtime);
}

/* The tokens are those of the CPU, in formats that append in one kernel and in two. */
static void test_as_cpu(void **state)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q8 };
    int32_t tokens[2][N_GROWN];

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        tokens_of(runtime_of(on_host, NULL, formats[i]), tokens[0]);
        tokens_of(runtime_of(model, "cuda0", formats[i]), tokens[1]);
        assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    }
}

/* Rows that stay on the card give the bits of rows that pass the host's memory. */
static void check_ways(void)
{
    quire_runtime *runtime = runtime_new();
    const quire_seq_id seqs[2] = { fixture_seq(runtime), fixture_seq(runtime) };
    float *logits = malloc(logits_bytes());

    assert_non_null(quire_runtime_device(runtime)->queue);
    assert_non_null(logits);
    for (int32_t token = 3; token < 3 + N_GROWN; token++) {
        queue_set(runtime, false);
        memcpy(logits, fixture_step(runtime, seqs[0], &token, 1, QUIRE_LOGITS_LAST),
               logits_bytes());
        queue_set(runtime, true);
        assert_memory_equal(fixture_step(runtime, seqs[1], &token, 1, QUIRE_LOGITS_LAST), logits,
                            logits_bytes());
    }
    free(logits);
    quire_runtime_destroy(runtime);
}

static void test_ways(void **state)
{
    (void)state;
    check_ways();
}

/* Kernels that run as early as they may see the rows that ggml computes. */
static void test_early_kernels(void **state)
{
    (void)state;
    fake_cuda_hurry(true);
    check_ways();
    fake_cuda_hurry(false);
}

/* This test sees when ggml does not wait for Quire's work. */
static void test_order_is_seen(void **state)
{
    quire_runtime *runtime = runtime_new();
    const quire_seq_id seq = fixture_seq(runtime);

    (void)state;
    layers_cuda_ignore_waits(true);
    assert_false(step_is_right(runtime, seq));
    layers_cuda_ignore_waits(false);
    quire_runtime_destroy(runtime);
}

/* Parameters of more layers than the ring of pinned memory holds. */
static void test_many(void **state)
{
    quire_runtime *runtime = runtime_new();
    const quire_seq_id seq = fixture_seq(runtime);

    (void)state;
    for (uint32_t i = 0; i < TEST_ROUNDS(N_STEPS_MANY, 8u); i++) {
        assert_true(step_is_right(runtime, seq));
    }
    quire_runtime_destroy(runtime);
}

/* A device without events: rows pass the host's memory. */
static void test_no_events(void **state)
{
    quire_runtime *runtime;

    (void)state;
    layers_cuda_offer_events(false);
    runtime = runtime_new();
    assert_null(quire_runtime_device(runtime)->queue);
    assert_true(step_is_right(runtime, fixture_seq(runtime)));
    quire_runtime_destroy(runtime);
    layers_cuda_offer_events(true);
}

/* ---- identity ---- */

/* Whether KV that cuda0 computes stands for KV of cuda1, another card. */
static bool is_shared(const quire_model *of)
{
    static const char *const devices[] = { "cuda0", "cuda1" };
    uint64_t identities[2][2];

    for (size_t i = 0; i < 2; i++) {
        quire_runtime *runtime = runtime_of(of, devices[i], QUIRE_FORMAT_F16);

        quire_kv_identity_get(runtime, identities[i]);
        quire_runtime_destroy(runtime);
    }
    return memcmp(identities[0], identities[1], sizeof identities[0]) == 0;
}

/* Quire's kernels round alike on all cards, ggml's need not. */
static void test_identity(void **state)
{
    (void)state;
    assert_true(is_shared(on_host));
    assert_false(is_shared(model));
}

static quire_device *device_of(const quire_runtime *runtime, const char *name)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_device *device;

    opts.attn =
        quire_runtime_attn_opts(quire_model_desc_get(model), quire_runtime_opts_get(runtime));
    assert_int_equal(quire_device_open(&device, name, &opts, NULL), QUIRE_OK);
    return device;
}

/* Two cards are one for KV without layers of ggml's, and two with them. */
static void test_identity_split(void **state)
{
    const quire_runtime_split ends = { .n = 2, .names = { "cuda0", "cuda1" }, .end = { 1, 5 } };
    quire_device_split_opts opts = QUIRE_DEVICE_SPLIT_OPTS_INIT;
    quire_runtime *runtime = runtime_new();
    quire_device_split *split;
    char *text;

    (void)state;
    opts.n_devices = 2;
    opts.n_groups = 1;
    for (uint32_t i = 0; i < 2; i++) {
        opts.devices[i] = device_of(runtime, ends.names[i]);
        opts.end[0][i] = (i + 1) * (size_t)4096;
    }
    assert_int_equal(quire_device_split_open(&split, &opts, NULL), QUIRE_OK);
    text = quire_split_rounding(split, &ends, false);
    assert_null(strstr(text, "split"));
    free(text);
    text = quire_split_rounding(split, &ends, true);
    assert_non_null(strstr(text, "emulated card 0, 9.0, driver 12040"));
    assert_non_null(strstr(text, "emulated card 2, 9.0, driver 12040"));
    free(text);
    quire_device_split_close(split);
    quire_runtime_destroy(runtime);
}

/* ---- waits ---- */

/* Of the host for the card, in a step of one token that has its graph. */
static uint64_t waits_of_token(quire_runtime *runtime)
{
    const quire_seq_id seq = fixture_seq(runtime);
    const int32_t token = 5;
    uint64_t n;

    (void)fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
    n = fake_cuda_seen().n_waits;
    (void)fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
    return fake_cuda_seen().n_waits - n;
}

static void test_waits(void **state)
{
    const uint32_t n_layer = quire_model_desc_get(model)->n_layer;
    quire_runtime *runtime = runtime_new();
    uint64_t n;

    (void)state;
    assert_ptr_equal(quire_device_queue_owner(quire_runtime_memory_device(runtime)),
                     quire_backend_cpu());
    assert_int_equal(waits_of_token(runtime), 1);
    queue_set(runtime, false);
    n = waits_of_token(runtime);
    (void)printf("%u layers: %u waits where rows pass the host\n", n_layer, (uint32_t)n);
    assert_true(n >= 2 * (uint64_t)n_layer);
    quire_runtime_destroy(runtime);
}

/* ---- failures ---- */

/* A step whose n-th call of the driver fails: an error, or the result is right. The next one is
 * right, unless the device was lost. Returns whether there was an n-th call. */
static bool check_refused(const char *call, uint32_t n, int result)
{
    quire_runtime *runtime = runtime_new();
    const quire_seq_id seq = fixture_seq(runtime);
    const float *logits;
    bool has_failed;
    int rc;

    fake_cuda_fail(call, n, result);
    rc = step_try(runtime, seq, &logits);
    has_failed = fake_cuda_has_failed();
    fake_cuda_repair();
    if (rc == QUIRE_OK) {
        assert_memory_equal(logits, expected, logits_bytes());
    } else {
        char why[QUIRE_RUNTIME_WHY_BYTES];

        assert_true(has_failed);
        assert_int_equal(quire_seq_tokens(quire_runtime_cache(runtime), seq), 0);
        assert_true(rc != QUIRE_LOST || quire_runtime_is_lost(runtime));
        assert_true(quire_runtime_is_lost(runtime) || step_is_right(runtime, seq));
        if (quire_runtime_is_lost(runtime)) { /* ggml knows no other end */
            assert_string_equal(quire_runtime_lost_name(runtime), "cuda0");
            assert_string_equal(quire_runtime_lost_why(runtime, why, sizeof why),
                                " (ggml: CUDA error: an error of a test)");
        }
    }
    quire_runtime_destroy(runtime);
    return has_failed;
}

static void test_refused(void **state)
{
    static const char *const calls[] = { "cuStreamWaitEvent",  "cuEventRecord",
                                         "cuEventSynchronize", "cuStreamSynchronize",
                                         "cuLaunchHostFunc",   "cuLaunchKernel",
                                         "cuMemcpyAsync",      "cuMemHostAlloc",
                                         "cuMemAlloc_v2",      "cuModuleLoadData" };
    static const int results[] = { QUIRE_CUDA_OUT_OF_MEMORY, QUIRE_CUDA_INVALID_VALUE };
    uint32_t n_failures = 0;

    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        for (size_t r = 0; r < sizeof results / sizeof results[0]; r++) {
            for (uint32_t n = 0; check_refused(calls[i], n, results[r]); n += TEST_STRIDE(3u)) {
                assert_true(++n_failures < 1000);
            }
        }
    }
    check_fresh_runtime();
    (void)printf("%u failures\n", n_failures);
    assert_true(n_failures > 40);
    assert_int_equal(fake_cuda_seen().n_errors, 0);
}

/* The card faults at a piece of work, Quire's or ggml's: the step fails, and all later ones. */
static void test_fault(void **state)
{
    uint32_t n_lost = 0;

    (void)state;
    for (uint32_t n = 0; n < 24; n += TEST_STRIDE(3u)) {
        quire_runtime *runtime = runtime_new();
        const quire_seq_id seq = fixture_seq(runtime);
        const float *logits;

        fake_cuda_fault(n, QUIRE_CUDA_ILLEGAL_ADDRESS);
        if (step_try(runtime, seq, &logits) != QUIRE_OK) {
            n_lost++;
            assert_true(quire_runtime_is_lost(runtime));
            assert_string_equal(quire_runtime_lost_name(runtime), "cuda0");
            assert_int_equal(step_try(runtime, seq, &logits), QUIRE_LOST);
            assert_int_equal(quire_seq_tokens(quire_runtime_cache(runtime), seq), 0);
        }
        fake_cuda_repair(); /* or the driver releases nothing */
        quire_runtime_destroy(runtime);
    }
    assert_true(n_lost > 5);
    check_fresh_runtime();
}

static uint32_t n_questions; /* before a step is given up */

static bool gives_up(void *ctx)
{
    (void)ctx;
    return n_questions > 0 && --n_questions == 0;
}

static void test_given_up(void **state)
{
    quire_runtime *runtime = runtime_new();
    const quire_seq_id seq = fixture_seq(runtime);
    uint32_t n_given_up = 0;

    (void)state;
    assert_true(quire_runtime_canceler_set(runtime, gives_up, NULL));
    for (uint32_t at = 1; at < 8; at++) {
        const float *logits;
        int rc;

        n_questions = at;
        rc = step_try(runtime, seq, &logits);
        n_questions = 0;
        assert_true(rc == QUIRE_OK || rc == QUIRE_CANCELED);
        n_given_up += rc == QUIRE_CANCELED;
        assert_int_equal(quire_seq_truncate(quire_runtime_cache(runtime), seq, 0), QUIRE_OK);
        assert_true(step_is_right(runtime, seq));
    }
    assert_true(n_given_up > 4);
    quire_runtime_destroy(runtime);
}

/* ---- several runtimes ---- */

static void *steps_run(void *ctx)
{
    quire_runtime *runtime = ctx;
    const quire_seq_id seq = fixture_seq(runtime);
    bool is_right = true;

    for (uint32_t i = 0; i < N_STEPS; i++) {
        is_right = is_right && step_is_right(runtime, seq);
    }
    return is_right ? runtime : NULL;
}

/* Each has two streams of its own. */
static void test_threads(void **state)
{
    quire_runtime *runtimes[N_THREADS];
    pthread_t threads[N_THREADS];

    (void)state;
    for (uint32_t i = 0; i < N_THREADS; i++) {
        runtimes[i] = runtime_new();
    }
    for (uint32_t i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, steps_run, runtimes[i]), 0);
    }
    for (uint32_t i = 0; i < N_THREADS; i++) {
        void *result;

        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_non_null(result);
        quire_runtime_destroy(runtimes[i]);
    }
}

/* ---- the group ---- */

static int begin(void **state)
{
    quire_model_opts opts = { .n_device_layers = UINT32_MAX };
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime *runtime;
    const float *logits;

    (void)state;
    assert_int_equal(quire_backend_init(&err), QUIRE_OK);
    assert_true(quire_backend_cuda_begin());
    opts.devices[0] = quire_backend_cpu();
    model = fixture_open_as(fixture_model_path(FIXTURE_STORIES), &opts);
    on_host = fixture_open(fixture_model_path(FIXTURE_STORIES));
    layers_cuda_begin();
    expected = malloc(logits_bytes());
    assert_non_null(expected);
    runtime = runtime_new();
    queue_set(runtime, false);
    assert_int_equal(step_try(runtime, fixture_seq(runtime), &logits), QUIRE_OK);
    memcpy(expected, logits, logits_bytes());
    quire_runtime_destroy(runtime);
    return 0;
}

/* Nothing is left on the card. */
static int end(void **state)
{
    (void)state;
    layers_cuda_end();
    free(expected);
    quire_model_close(model);
    quire_model_close(on_host);
    assert_int_equal(fake_cuda_seen().n_pieces, 0);
    assert_int_equal(fake_cuda_seen().n_errors, 0);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_cpu),        cmocka_unit_test(test_ways),
        cmocka_unit_test(test_early_kernels), cmocka_unit_test(test_order_is_seen),
        cmocka_unit_test(test_no_events),     cmocka_unit_test(test_waits),
        cmocka_unit_test(test_many),          cmocka_unit_test(test_refused),
        cmocka_unit_test(test_fault),         cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_identity),      cmocka_unit_test(test_identity_split),
        cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
