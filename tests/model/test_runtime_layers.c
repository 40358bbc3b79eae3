/* test_runtime_layers.c - models whose last layers lie on a device of ggml. The device is a second
 * backend of the CPU's, so results have the bits of a model that the CPU computes by the same
 * products, also with a queue in front of it that works as late as it may (device_queue.h).
 * Operations that a device lacks are computed by the host, or refused by name. Exceptions of ggml's
 * calls are a loss of the device.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "arch_cases.h"
#include "base/rng.h"
#include "device_queue.h"
#include "model/archs.h"
#include "model/backend.h"
#include "model/backend_calls.h"
#include "model/graph_split.h"
#include "model/kv_identity.h"
#include "model/model_internal.h"
#include "model_fixture.h"
#include "rounds.h"
#include "seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_CTX    256u
#define N_TEXT   150u
#define N_GROWN  3u
#define ALL      UINT32_MAX /* layers */
#define N_LAYERS 5u         /* of the stories */

/* Set by tests: the type of products, or the operation, that the device does not support. */
static enum ggml_type lacks_type = GGML_TYPE_COUNT;
static enum ggml_op lacks_op = GGML_OP_NONE;
static uint32_t n_asked;
static bool is_hidden; /* the device's weights */
static bool is_queued; /* append and attention of layers on the device */

bool __real_ggml_backend_dev_supports_op(ggml_backend_dev_t device, const struct ggml_tensor *op);
bool __wrap_ggml_backend_dev_supports_op(ggml_backend_dev_t device, const struct ggml_tensor *op);
bool __wrap_ggml_backend_dev_supports_op(ggml_backend_dev_t device, const struct ggml_tensor *op)
{
    n_asked++;
    if (op->op == lacks_op || (op->src[0] != NULL && op->src[0]->type == lacks_type)) {
        return false;
    }
    return __real_ggml_backend_dev_supports_op(device, op);
}

/* A model with so many layers on the device, the others with ggml's products. */
static int open_with(quire_model **out, const char *path, uint32_t n_layers, quire_error *err)
{
    quire_model_opts opts = { .no_repack = true, .n_device_layers = n_layers };

    assert_int_equal(quire_backend_init(err), QUIRE_OK);
    opts.devices[0] = quire_backend_cpu();
    return quire_model_open(out, path, &opts, err);
}

static quire_runtime_opts runtime_opts(void)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = N_CTX;
    opts.n_batch = N_TEXT;
    opts.n_seqs_max = 2;
    opts.n_threads = 1;
    opts.kv_budget_bytes = UINT64_C(16) << 20; /* a fork has states of its own */
    opts.k_format = opts.v_format = QUIRE_FORMAT_F32;
    return opts;
}

/* A runtime, with attention in the device's queue if that is wanted. */
static quire_runtime *runtime_open(const quire_model *model)
{
    const quire_runtime_opts opts = runtime_opts();
    quire_runtime *runtime = fixture_runtime(model, &opts);

    if (is_queued) {
        device_queue_attend(runtime);
    }
    return runtime;
}

static void copy_rows(float **to, const float *from, size_t n)
{
    memcpy(*to, from, n * sizeof **to);
    *to += n;
}

/* A prompt without and with logits, a fork, and both grown in the same steps: the logits and the
 * last hidden states. Memory: free(). */
static float *work(const quire_model *model, size_t *n_floats)
{
    const quire_model_desc *desc = quire_model_desc_get(model);
    quire_runtime *runtime = runtime_open(model);
    const quire_seq_id seq = fixture_seq(runtime);
    const size_t n_max = (size_t)(N_TEXT + 2 * N_GROWN) * desc->n_vocab + 2 * desc->n_embd;
    float *all = calloc(n_max, sizeof *all), *to = all;
    quire_rng rng = test_rng(25);
    int32_t text[N_TEXT];
    const float *logits;
    quire_seq_id fork;

    assert_non_null(all);
    for (uint32_t i = 0; i < N_TEXT; i++) {
        text[i] = (int32_t)quire_rng_below(&rng, desc->n_vocab);
    }
    (void)fixture_step(runtime, seq, text, 40, QUIRE_LOGITS_NONE);
    copy_rows(&to, fixture_step(runtime, seq, text + 40, 30, QUIRE_LOGITS_ALL),
              (size_t)30 * desc->n_vocab);
    copy_rows(&to, fixture_step(runtime, seq, text + 70, N_TEXT - 70, QUIRE_LOGITS_LAST),
              desc->n_vocab);
    assert_int_equal(quire_runtime_fork(runtime, seq, &fork), QUIRE_OK);
    for (uint32_t i = 0; i < N_GROWN; i++) {
        const quire_slice slices[2] = {
            { .seq = seq, .tokens = text + i, .n_tokens = 1, .logits = QUIRE_LOGITS_LAST },
            { .seq = fork, .tokens = text + 9 + i, .n_tokens = 2, .logits = QUIRE_LOGITS_LAST }
        };

        assert_int_equal(quire_runtime_step(runtime, slices, 2, &logits), QUIRE_OK);
        copy_rows(&to, logits, (size_t)2 * desc->n_vocab);
    }
    copy_rows(&to, quire_runtime_hidden(runtime), (size_t)2 * desc->n_embd);
    *n_floats = (size_t)(to - all);
    quire_runtime_destroy(runtime);
    return all;
}

/* The work of the file's model with so many layers on the device. */
static float *work_of(const char *path, uint32_t n_layers, size_t *n_floats)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *model;
    float *all;

    if (open_with(&model, path, n_layers, &err) < 0) {
        fail_msg("%s", err.message);
    }
    device_queue_hide(is_hidden && n_layers > 0 ? model->weights->output->buffer : NULL);
    all = work(model, n_floats);
    device_queue_hide(NULL);
    quire_model_close(model);
    return all;
}

/* Logits with layers on the device are those of the host alone: to the bit, or within a tolerance.
 */
static void assert_same(const char *path, uint32_t n_layers, double tolerance, const char *what)
{
    size_t n_host, n_device;
    float *by_host = work_of(path, 0, &n_host);
    float *by_device = work_of(path, n_layers, &n_device);
    const double error = fixture_diff_max(by_host, by_device, n_host);

    assert_int_equal(n_host, n_device);
    if (!(error <= tolerance)) {
        fail_msg("%s, %u layers: logits differ by %g", what, n_layers, error);
    }
    free(by_device);
    free(by_host);
}

/* Any number of layers changes no bit. */
static void test_layers(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= N_LAYERS + 1; n += 2) {
        assert_same(fixture_model_path(FIXTURE_STORIES), n, 0.0, FIXTURE_STORIES);
    }
}

/* The weights lie where they should, and a step changes sides twice a layer. */
static void test_places(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *all, *two;
    const quire_runtime_opts opts = runtime_opts();
    const int32_t token = 5;
    device_queue_counts counts;
    quire_runtime *runtime;
    quire_seq_id seq;

    (void)state;
    assert_int_equal(open_with(&all, fixture_model_path(FIXTURE_STORIES), ALL, &err), QUIRE_OK);
    assert_int_equal(open_with(&two, fixture_model_path(FIXTURE_STORIES), 2, &err), QUIRE_OK);
    for (uint32_t il = 0; il < N_LAYERS; il++) {
        assert_true(quire_weights_device_holds(all->weights, all->weights->layers[il].wq));
        assert_int_equal(quire_weights_device_holds(two->weights, two->weights->layers[il].down),
                         il + 1 == N_LAYERS);
    }
    assert_true(quire_weights_device_holds(two->weights, two->weights->output));
    assert_false(quire_weights_device_holds(all->weights, all->weights->tok_embd));
    assert_int_equal(all->weights->device_bytes, all->desc.device_weight_bytes[0]);
    assert_true(two->desc.device_weight_bytes[0] < all->desc.device_weight_bytes[0]);
    assert_true(two->desc.resident_bytes > all->desc.resident_bytes);

    runtime = fixture_runtime(two, &opts);
    seq = fixture_seq(runtime);
    (void)device_queue_counts_take();
    (void)fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
    counts = device_queue_counts_take();
    /* The host's layers, attention; Q K V, the rest with the logits. */
    assert_int_equal(counts.hosts, 2);
    assert_int_equal(counts.graphs, 2);
    quire_runtime_destroy(runtime);
    quire_model_close(two);
    quire_model_close(all);
}

/* Pages of a model with other layers on the device are never taken for this one's. */
static void test_identity(void **state)
{
    static const uint32_t counts[3] = { 0, 2, ALL };
    const quire_runtime_opts opts = runtime_opts();
    uint64_t identities[3][2];

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        quire_error err = QUIRE_ERROR_INIT;
        quire_runtime *runtime;
        quire_model *model;

        assert_int_equal(open_with(&model, fixture_model_path(FIXTURE_STORIES), counts[i], &err),
                         QUIRE_OK);
        runtime = fixture_runtime(model, &opts);
        quire_kv_identity_get(runtime, identities[i]);
        quire_runtime_destroy(runtime);
        quire_model_close(model);
    }
    assert_memory_not_equal(identities[0], identities[1], sizeof identities[0]);
    assert_memory_not_equal(identities[0], identities[2], sizeof identities[0]);
    assert_memory_not_equal(identities[1], identities[2], sizeof identities[0]);
}

/* Every architecture without experts (those: test_layers_experts.c), whole or in part, on every
 * kind of queue, by turns, with attention at the host or in the queue; in a slow build a fifth of
 * them, still with each queue. */
static void test_architectures(void **state)
{
    const arch_case *c;
    size_t i;

    (void)state;
    for (i = 0; (c = arch_case_get(i)) != NULL; i += TEST_STRIDE(5u)) {
        const gguf_gen_opts gen = arch_case_options(c);
        char what[96];

        if (c->n_experts > 0) {
            continue;
        }
        is_queued = (i + i / DEVICE_QUEUE_MODES) % 2 == 0;
        (void)snprintf(what, sizeof what, "%s, %s, queue %zu%s", c->arch, c->what,
                       i % DEVICE_QUEUE_MODES, is_queued ? " with attention" : "");
        device_queue_set((device_queue_mode)(i % DEVICE_QUEUE_MODES));
        /* The matrices of heads of latent attention are not in panels there. */
        assert_same(fixture_generate(&gen), i % 3 == 0 ? 2 : ALL, c->n_latent != 0 ? 2e-5 : 0.0,
                    what);
        fixture_generated_remove();
    }
    is_queued = false;
    device_queue_set(DEVICE_QUEUE_NONE);
    (void)printf("%zu architectures and variants\n", i);
}

/* Layers of many kinds on every kind of queue, in memory that the host cannot read. There products
 * of floats are ggml's, which add in another order than Quire's; GELU of Gemma 3n is a table of
 * f16, in which the next number is far. */
static void test_hidden_memory(void **state)
{
    const char *archs[] = { "llama",      "command-r",     "lfm2",      "qwen35",
                            "nemotron_h", "granitehybrid", "falcon-h1", "gemma3n" };
    const arch_case *c;
    uint32_t n = 0;

    (void)state;
    is_hidden = true;
    for (size_t i = 0; (c = arch_case_get(i)) != NULL; i++) {
        const gguf_gen_opts gen = arch_case_options(c);
        const double tolerance = strcmp(c->arch, "gemma3n") == 0 ? 2e-2 : 2e-4;

        for (size_t k = 0; k < sizeof archs / sizeof archs[0]; k++) {
            if (archs[k] != NULL && strcmp(c->arch, archs[k]) == 0) {
                device_queue_set((device_queue_mode)(1 + n++ % (DEVICE_QUEUE_MODES - 1)));
                is_queued = true;
                assert_same(fixture_generate(&gen), ALL, tolerance, c->arch);
                is_queued = false;
                assert_same(fixture_generate(&gen), ALL, tolerance, c->arch);
                fixture_generated_remove();
                archs[k] = NULL;
            }
        }
    }
    is_hidden = false;
    device_queue_set(DEVICE_QUEUE_NONE);
    assert_int_equal(n, sizeof archs / sizeof archs[0]);
}

/* The counts of a token of a model with so many layers on the device, behind another token. */
static device_queue_counts token_counts(const char *path, uint32_t n_layers, uint64_t *n_waits)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime_stats before, after;
    const int32_t token = 5;
    device_queue_counts counts;
    quire_runtime *runtime;
    quire_model *model;
    quire_seq_id seq;

    assert_int_equal(open_with(&model, path, n_layers, &err), QUIRE_OK);
    runtime = runtime_open(model);
    seq = fixture_seq(runtime);
    (void)fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
    quire_runtime_stats_get(runtime, &before);
    (void)device_queue_counts_take();
    (void)fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
    counts = device_queue_counts_take();
    quire_runtime_stats_get(runtime, &after);
    *n_waits = after.layers_waits_total - before.layers_waits_total;
    assert_int_equal(counts.waits, *n_waits);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
    return counts;
}

/* A step waits once for each turn of the device, and once at its end; no copy waits. */
static void test_waits(void **state)
{
    uint64_t n_waits;

    (void)state;
    for (device_queue_mode mode = DEVICE_QUEUE_PLAIN; mode < DEVICE_QUEUE_MODES; mode++) {
        device_queue_counts counts;

        device_queue_set(mode);
        counts = token_counts(fixture_model_path(FIXTURE_STORIES), ALL, &n_waits);
        assert_int_equal(counts.waits, N_LAYERS + 1);
        assert_int_equal(counts.events, mode == DEVICE_QUEUE_PLAIN ? 0 : N_LAYERS);
        assert_int_equal(counts.graphs, N_LAYERS + 1);
        assert_int_equal(counts.beside, 0);
        assert_int_equal(counts.blocking, 0);
        assert_int_equal(counts.layers, 0);
        /* The embedding and positions down; Q, K and V up and the result down; two results up. */
        assert_int_equal(counts.copies, 2 + 4 * N_LAYERS + 2);
    }
    device_queue_set(DEVICE_QUEUE_NONE);
}

/* With attention in the device's queue a token waits once, for its logits, with any number of
 * layers there. */
static void test_waits_queued(void **state)
{
    uint64_t n_waits;

    (void)state;
    is_queued = true;
    for (device_queue_mode mode = DEVICE_QUEUE_PLAIN; mode < DEVICE_QUEUE_MODES; mode++) {
        for (uint32_t n = 2; n <= N_LAYERS + 1; n++) {
            device_queue_counts counts;

            device_queue_set(mode);
            counts = token_counts(fixture_model_path(FIXTURE_STORIES), n, &n_waits);
            assert_int_equal(counts.waits, 1);
            assert_int_equal(counts.layers, n - 1);
            assert_int_equal(counts.graphs, n);
            assert_int_equal(counts.hosts, 1);
            assert_int_equal(counts.blocking, 0);
            /* The embedding or the rows of the layer before, positions; two results. */
            assert_int_equal(counts.copies, 2 + 2);
        }
    }
    is_queued = false;
    device_queue_set(DEVICE_QUEUE_NONE);
}

/* Where attention and the network read the same rows, the device computes the network beside
 * attention, if the host can wait for a part of the queue. */
static void test_beside(void **state)
{
    const arch_case parallel = { .arch = "command-r" };
    const gguf_gen_opts gen = arch_case_options(&parallel);
    const char *path = fixture_generate(&gen);
    const quire_runtime_opts opts = runtime_opts();
    const int32_t token = 5;

    (void)state;
    for (device_queue_mode mode = DEVICE_QUEUE_PLAIN; mode < DEVICE_QUEUE_MODES; mode++) {
        quire_error err = QUIRE_ERROR_INIT;
        device_queue_counts counts;
        quire_runtime *runtime;
        quire_model *model;

        device_queue_set(mode);
        assert_int_equal(open_with(&model, path, ALL, &err), QUIRE_OK);
        runtime = fixture_runtime(model, &opts);
        (void)device_queue_counts_take();
        (void)fixture_step(runtime, fixture_seq(runtime), &token, 1, QUIRE_LOGITS_LAST);
        counts = device_queue_counts_take();
        assert_int_equal(counts.waits, quire_model_desc_get(model)->n_layer + 1);
        assert_int_equal(counts.beside, device_queue_has_two_memories()
                                            ? quire_model_desc_get(model)->n_layer
                                            : 0);
        quire_runtime_destroy(runtime);
        quire_model_close(model);
    }
    device_queue_set(DEVICE_QUEUE_NONE);
    fixture_generated_remove();
}

static uint32_t n_questions; /* before a step is given up */

static bool gives_up(void *ctx)
{
    (void)ctx;
    return n_questions > 0 && --n_questions == 0;
}

/* A step that is given up leaves nothing queued, and the next one has the bits of a first one. */
static void check_given_up(void)
{
    const int32_t tokens[3] = { 5, 6, 7 };
    quire_error err = QUIRE_ERROR_INIT;
    uint32_t n_given_up = 0;
    quire_runtime *runtime;
    quire_model *model;
    float *whole;
    size_t bytes;

    device_queue_set(DEVICE_QUEUE_EVENTS);
    assert_int_equal(open_with(&model, fixture_model_path(FIXTURE_STORIES), ALL, &err), QUIRE_OK);
    bytes = quire_model_desc_get(model)->n_vocab * sizeof *whole;
    whole = malloc(bytes);
    assert_non_null(whole);
    runtime = runtime_open(model);
    memcpy(whole, fixture_step(runtime, fixture_seq(runtime), tokens, 3, QUIRE_LOGITS_LAST), bytes);
    assert_true(quire_runtime_canceler_set(runtime, gives_up, NULL));
    for (uint32_t at = 1; at < 12; at += 2) {
        quire_slice slice = { .tokens = tokens, .n_tokens = 3, .logits = QUIRE_LOGITS_LAST };
        const float *logits;

        slice.seq = fixture_seq(runtime);
        n_questions = at;
        n_given_up += quire_runtime_step(runtime, &slice, 1, &logits) == QUIRE_CANCELED;
        n_questions = 0;
        assert_int_equal(device_queue_length(), 0);
        assert_int_equal(quire_seq_truncate(quire_runtime_cache(runtime), slice.seq, 0), QUIRE_OK);
        assert_memory_equal(fixture_step(runtime, slice.seq, tokens, 3, QUIRE_LOGITS_LAST), whole,
                            bytes);
        assert_int_equal(quire_seq_close(quire_runtime_cache(runtime), slice.seq), QUIRE_OK);
    }
    assert_true(n_given_up > 1);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
    free(whole);
    device_queue_set(DEVICE_QUEUE_NONE);
}

static void test_given_up(void **state)
{
    (void)state;
    check_given_up();
    is_queued = true;
    check_given_up();
    is_queued = false;
}

/* Operations that the device lacks are the host's; a type of weights is refused. */
static void test_lacks(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *model;

    (void)state;
    lacks_op = GGML_OP_ROPE;
    n_asked = 0;
    assert_same(fixture_model_path(FIXTURE_STORIES), ALL, 0.0, "without ropes");
    assert_true(n_asked > 0);
    lacks_op = GGML_OP_NONE;

    lacks_type = GGML_TYPE_F32;
    assert_int_equal(open_with(&model, fixture_model_path(FIXTURE_STORIES), 3, &err), QUIRE_UNSUPP);
    lacks_type = GGML_TYPE_COUNT;
    assert_non_null(strstr(err.message, "token_embd.weight")); /* the output matrix */
    assert_non_null(strstr(err.message, "f32"));
    assert_non_null(strstr(err.message, "-ngl"));
}

/* ---- exceptions ---- */

static int step_try(quire_runtime *runtime, quire_seq_id seq, const float **logits)
{
    const int32_t tokens[3] = { 5, 6, 7 };
    const quire_slice slice = {
        .seq = seq, .tokens = tokens, .n_tokens = 3, .logits = QUIRE_LOGITS_LAST
    };

    return quire_runtime_step(runtime, &slice, 1, logits);
}

/* A runtime that has done a step, whose sequence is empty again; logits: of the step, or NULL. */
static quire_runtime *runtime_begun(const quire_model *model, quire_seq_id *seq, float *logits)
{
    quire_runtime *runtime = runtime_open(model);
    const float *first;

    *seq = fixture_seq(runtime);
    assert_int_equal(step_try(runtime, *seq, &first), QUIRE_OK);
    if (logits != NULL) {
        memcpy(logits, first, quire_model_desc_get(model)->n_vocab * sizeof *logits);
    }
    assert_int_equal(quire_seq_truncate(quire_runtime_cache(runtime), *seq, 0), QUIRE_OK);
    return runtime;
}

/* The call `at` of a step throws: the device is lost, the step leaves no token, and no later step
 * calls ggml. */
static void check_thrown(const quire_model *model, uint32_t at)
{
    char why[QUIRE_RUNTIME_WHY_BYTES];
    const float *logits;
    quire_seq_id seq;
    quire_runtime *runtime = runtime_begun(model, &seq, NULL);

    assert_string_equal(quire_runtime_lost_why(runtime, why, sizeof why), "");
    device_queue_fail(at);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(step_try(runtime, seq, &logits), QUIRE_LOST);
        assert_null(logits);
        assert_true(quire_runtime_is_lost(runtime));
        assert_int_equal(device_queue_calls(), at);
    }
    assert_string_equal(quire_runtime_lost_why(runtime, why, sizeof why),
                        " (ggml: " DEVICE_QUEUE_THROWN ")");
    assert_int_equal(quire_seq_tokens(quire_runtime_cache(runtime), seq), 0);
    quire_runtime_destroy(runtime);
    device_queue_fail(0);
}

/* ggml throws an exception in any call of a step. Another runtime has the bits of a first one. */
static void test_thrown_steps(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime *runtime;
    uint32_t n_lost = 0;
    quire_model *model;
    quire_seq_id seq;
    float *whole, *again;
    size_t bytes;

    (void)state;
    assert_int_equal(open_with(&model, fixture_model_path(FIXTURE_STORIES), ALL, &err), QUIRE_OK);
    bytes = quire_model_desc_get(model)->n_vocab * sizeof *whole;
    whole = malloc(bytes);
    again = malloc(bytes);
    assert_true(whole != NULL && again != NULL);
    for (device_queue_mode mode = DEVICE_QUEUE_NONE; mode < DEVICE_QUEUE_MODES; mode++) {
        const float *logits;
        uint32_t n_calls;

        device_queue_set(mode);
        is_queued = mode % 2 == 0;
        runtime = runtime_begun(model, &seq, whole);
        device_queue_fail(0); /* counts from here on */
        assert_int_equal(step_try(runtime, seq, &logits), QUIRE_OK);
        n_calls = device_queue_calls();
        assert_memory_equal(logits, whole, bytes);
        quire_runtime_destroy(runtime);
        for (uint32_t at = 1; at <= n_calls; at += TEST_STRIDE(7u), n_lost++) {
            check_thrown(model, at);
        }
        check_thrown(model, n_calls);
        runtime = runtime_begun(model, &seq, again);
        assert_memory_equal(again, whole, bytes);
        quire_runtime_destroy(runtime);
    }
    assert_true(n_lost > 2 * DEVICE_QUEUE_MODES);
    (void)printf("%u steps on a lost device\n", n_lost);
    is_queued = false;
    device_queue_set(DEVICE_QUEUE_NONE);
    free(again);
    free(whole);
    quire_model_close(model);
}

/* Exceptions while weights are put on the device, and while a runtime is made. Messages say what
 * was wanted. */
static void test_thrown_loads(void **state)
{
    const quire_runtime_opts opts = runtime_opts();
    const char *path = fixture_model_path(FIXTURE_STORIES);
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime *runtime;
    quire_model *model;

    (void)state;
    device_queue_fail(1);
    assert_int_equal(open_with(&model, path, ALL, &err), QUIRE_NOMEM);
    assert_non_null(strstr(err.message, "ggml's device CPU has no memory for "));
    assert_non_null(strstr(err.message, " of weights ("));
    assert_non_null(strstr(err.message, " are free): leave more layers to the CPU"));
    device_queue_fail(2);
    assert_int_equal(open_with(&model, path, ALL, &err), QUIRE_IO);
    assert_non_null(strstr(err.message, ".weight: "));
    assert_non_null(strstr(err.message, "ggml cannot write it to CPU: " DEVICE_QUEUE_THROWN));
    device_queue_fail(0);
    assert_int_equal(open_with(&model, path, ALL, &err), QUIRE_OK);

    device_queue_fail(2); /* behind the host's backend */
    assert_int_equal(quire_runtime_create(&runtime, model, &opts, &err), QUIRE_IO);
    assert_string_equal(err.message, "ggml's device CPU cannot be opened (" DEVICE_QUEUE_THROWN
                                     "): leave out -ngl");
    device_queue_fail(3);
    assert_int_equal(quire_runtime_create(&runtime, model, &opts, &err), QUIRE_NOMEM);
    assert_string_equal(err.message, "out of memory for steps of 150 tokens (" DEVICE_QUEUE_THROWN
                                     "): choose a smaller batch (-b)");
    device_queue_fail(0);
    assert_int_equal(quire_runtime_create(&runtime, model, &opts, &err), QUIRE_OK);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

static ggml_backend_reg_t cpu_reg(void)
{
    return ggml_backend_dev_backend_reg(quire_backend_cpu());
}

/* A backend whose device cannot be opened has none. */
static void test_thrown_opening(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    char why[64];

    (void)state;
    assert_int_equal(quire_backend_init(&err), QUIRE_OK);
    assert_ptr_equal(quire_backend_device_at(cpu_reg, 0), quire_backend_cpu());
    device_queue_fail(1);
    quire_backend_log_clear();
    assert_null(quire_backend_device_at(cpu_reg, 0));
    quire_backend_log_first(why, sizeof why);
    assert_string_equal(why, DEVICE_QUEUE_THROWN);
    device_queue_fail(0);
}

/* Products of a layer of an 8B model, about: those of a token are one submission, those of a
 * prompt come in parts. */
static void test_submissions(void **state)
{
    static const struct {
        int64_t n_rows;
        bool is_small;
    } cases[] = { { 1, true }, { 32, true }, { 64, false }, { 512, false } };
    const struct ggml_init_params params = { .mem_size = 32 * ggml_tensor_overhead(),
                                             .no_alloc = true };
    struct ggml_context *ctx = ggml_init(params);

    (void)state;
    assert_non_null(ctx);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ggml_tensor *w = ggml_new_tensor_2d(ctx, GGML_TYPE_Q4_K, 4096, 25600);
        struct ggml_tensor *down = ggml_new_tensor_2d(ctx, GGML_TYPE_Q4_K, 25600, 4096);
        struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 4096, cases[i].n_rows);
        struct ggml_tensor *up = ggml_mul_mat(ctx, w, x);
        struct ggml_tensor *ops[3] = { up, ggml_mul_mat(ctx, down, up), x };

        assert_int_equal(quire_split_is_small(ops, 3), cases[i].is_small);
    }
    ggml_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers),         cmocka_unit_test(test_places),
        cmocka_unit_test(test_identity),       cmocka_unit_test(test_architectures),
        cmocka_unit_test(test_lacks),          cmocka_unit_test(test_hidden_memory),
        cmocka_unit_test(test_waits),          cmocka_unit_test(test_waits_queued),
        cmocka_unit_test(test_beside),         cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_thrown_steps),   cmocka_unit_test(test_thrown_loads),
        cmocka_unit_test(test_thrown_opening), cmocka_unit_test(test_submissions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
