/* test_layers_experts.c - models with experts whose last layers lie on a device of ggml: router,
 * choice, experts and their sum are the device's, so a token waits for the device once. The device
 * is a second backend of the CPU's, behind a queue that works as late as it may (device_queue.h).
 * Operations that it lacks are the host's.
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
#include "model/graph_split.h"
#include "model/model_internal.h"
#include "model/runtime_internal.h"
#include "model/step_sizes.h"
#include "model_fixture.h"
#include "rounds.h"
#include "seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_PART  30u
#define N_TEXT  (3 * N_PART)
#define N_GROWN 3u
#define ALL     UINT32_MAX /* layers */

/* ggml's products of floats add in another order than Quire's. GELU is a table of f16, in which the
 * next number is far. */
#define TOLERANCE      2e-4
#define TOLERANCE_GELU 2e-3
/* Such a difference changes the choice of a row once in many thousands: then another text shows the
 * same. */
#define N_TEXTS 3u

static enum ggml_op lacks_op = GGML_OP_NONE; /* of the device */
static bool is_hidden;                       /* the device's weights */
static bool is_queued;                       /* attention */

bool __real_ggml_backend_dev_supports_op(ggml_backend_dev_t device, const struct ggml_tensor *op);
bool __wrap_ggml_backend_dev_supports_op(ggml_backend_dev_t device, const struct ggml_tensor *op);
bool __wrap_ggml_backend_dev_supports_op(ggml_backend_dev_t device, const struct ggml_tensor *op)
{
    return op->op != lacks_op && __real_ggml_backend_dev_supports_op(device, op);
}

static quire_model *model_open(const char *path, uint32_t n_layers)
{
    const quire_model_opts opts = { .no_repack = true,
                                    .n_device_layers = n_layers,
                                    .devices = { quire_backend_cpu() } };
    quire_model *model = fixture_open_as(path, &opts);

    device_queue_hide(is_hidden && n_layers > 0 ? model->weights->output->buffer : NULL);
    return model;
}

static void model_close(quire_model *model)
{
    device_queue_hide(NULL);
    quire_model_close(model);
}

static quire_runtime *runtime_open(const quire_model *model)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    quire_runtime *runtime;

    opts.n_ctx = 128;
    opts.n_batch = N_TEXT;
    opts.n_seqs_max = 2;
    opts.n_threads = 1;
    opts.kv_budget_bytes = UINT64_C(16) << 20;
    opts.k_format = opts.v_format = QUIRE_FORMAT_F32;
    runtime = fixture_runtime(model, &opts);
    if (is_queued) {
        device_queue_attend(runtime);
    }
    return runtime;
}

/* The logits of a prompt in parts, and of two sequences that grow in the same steps. Memory:
 * free(). */
static float *work(const char *path, uint32_t n_layers, uint64_t seed, size_t *n_floats)
{
    quire_model *model = model_open(path, n_layers);
    const uint32_t n_vocab = quire_model_desc_get(model)->n_vocab;
    quire_runtime *runtime = runtime_open(model);
    const quire_seq_id seqs[2] = { fixture_seq(runtime), fixture_seq(runtime) };
    float *all = calloc((size_t)(N_PART + 1 + 2 * N_GROWN) * n_vocab, sizeof *all), *to = all;
    quire_rng rng = test_rng(seed);
    int32_t text[N_TEXT];

    assert_non_null(all);
    for (uint32_t i = 0; i < N_TEXT; i++) {
        text[i] = (int32_t)quire_rng_below(&rng, n_vocab);
    }
    (void)fixture_step(runtime, seqs[0], text, N_PART, QUIRE_LOGITS_NONE);
    memcpy(to, fixture_step(runtime, seqs[0], text + N_PART, N_PART, QUIRE_LOGITS_ALL),
           (size_t)N_PART * n_vocab * sizeof *to);
    to += (size_t)N_PART * n_vocab;
    memcpy(to, fixture_step(runtime, seqs[0], text + 2 * N_PART, N_PART, QUIRE_LOGITS_LAST),
           n_vocab * sizeof *to);
    to += n_vocab;
    for (uint32_t i = 0; i < N_GROWN; i++) {
        const quire_slice slices[2] = {
            { .seq = seqs[0], .tokens = text + i, .n_tokens = 1, .logits = QUIRE_LOGITS_LAST },
            { .seq = seqs[1], .tokens = text + 9 + i, .n_tokens = 2, .logits = QUIRE_LOGITS_LAST }
        };
        const float *logits;

        assert_int_equal(quire_runtime_step(runtime, slices, 2, &logits), QUIRE_OK);
        memcpy(to, logits, (size_t)2 * n_vocab * sizeof *to);
        to += (size_t)2 * n_vocab;
    }
    *n_floats = (size_t)(to - all);
    quire_runtime_destroy(runtime);
    model_close(model);
    return all;
}

static double tolerance_of(const char *arch)
{
    return strcmp(arch, "gemma4") == 0 ? TOLERANCE_GELU : TOLERANCE;
}

static double error_of(const char *path, uint32_t n_layers, uint64_t seed)
{
    size_t n_host, n_device;
    float *by_host = work(path, 0, seed, &n_host);
    float *by_device = work(path, n_layers, seed, &n_device);
    const double error = fixture_diff_max(by_host, by_device, n_host);

    assert_int_equal(n_host, n_device);
    free(by_device);
    free(by_host);
    return error;
}

/* Logits with layers on the device are near those of the host alone. Returns the error. */
static double assert_near(const char *path, uint32_t n_layers, double tolerance, const char *what)
{
    double error = error_of(path, n_layers, 1);

    for (uint64_t seed = 2; !(error <= tolerance) && seed <= N_TEXTS; seed++) {
        (void)printf("%s: text %u differs by %g\n", what, (uint32_t)seed - 1, error);
        error = error_of(path, n_layers, seed);
    }
    if (!(error <= tolerance)) {
        fail_msg("%s, %u layers: logits differ by %g", what, n_layers, error);
    }
    return error;
}

/* The counts of a token with all layers on the device, behind another token. */
static device_queue_counts token_counts(const char *path)
{
    quire_model *model = model_open(path, ALL);
    quire_runtime *runtime = runtime_open(model);
    const quire_seq_id seq = fixture_seq(runtime);
    const int32_t token = 5;
    device_queue_counts counts;

    (void)fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
    (void)device_queue_counts_take();
    (void)fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
    counts = device_queue_counts_take();
    quire_runtime_destroy(runtime);
    model_close(model);
    return counts;
}

/* Whether a layer of the model needs the host for another reason than its experts. */
static bool needs_host(const char *path)
{
    quire_model *model = model_open(path, 0);
    const quire_model_desc *desc = quire_model_desc_get(model);
    bool needs = false;

    for (uint32_t il = 0; il < desc->n_layer; il++) {
        needs = needs || quire_mixer_recurs(desc->mixer[il]) ||
                model->weights->layers[il].wkv_b != NULL;
    }
    model_close(model);
    return needs;
}

/* Every architecture with experts, whole or in part, on every kind of queue, in memory of both
 * kinds, with attention at the host or in the queue. */
static void test_architectures(void **state)
{
    const arch_case *c;
    uint32_t n = 0;
    double worst = 0.0;

    (void)state;
    for (size_t i = 0; (c = arch_case_get(i)) != NULL; i++) {
        const gguf_gen_opts gen = arch_case_options(c);
        double error;
        char what[128];

        if (c->n_experts == 0 || n++ % TEST_STRIDE(5u) != 0) {
            continue;
        }
        is_queued = n % 2 == 0;
        is_hidden = n / 2 % 2 == 0 && n % DEVICE_QUEUE_MODES != DEVICE_QUEUE_NONE;
        (void)snprintf(what, sizeof what, "%s, %s, queue %u%s%s", c->arch, c->what,
                       n % DEVICE_QUEUE_MODES, is_queued ? " with attention" : "",
                       is_hidden ? ", hidden" : "");
        device_queue_set((device_queue_mode)(n % DEVICE_QUEUE_MODES));
        error =
            assert_near(fixture_generate(&gen), n % 3 == 0 ? 2 : ALL, tolerance_of(c->arch), what);
        worst = error > worst ? error : worst;
        fixture_generated_remove();
    }
    is_queued = is_hidden = false;
    device_queue_set(DEVICE_QUEUE_NONE);
    (void)printf("%u architectures and variants, logits within %g\n", n, worst);
}

/* A token waits once, for its logits, as without experts. */
static void test_waits(void **state)
{
    const arch_case *c;
    uint32_t n = 0;

    (void)state;
    is_queued = is_hidden = true;
    for (size_t i = 0; (c = arch_case_get(i)) != NULL; i++) {
        const gguf_gen_opts gen = arch_case_options(c);
        device_queue_counts counts;
        const char *path;

        if (c->n_experts == 0) {
            continue;
        }
        path = fixture_generate(&gen);
        if (!needs_host(path)) {
            device_queue_set((device_queue_mode)(1 + n++ % (DEVICE_QUEUE_MODES - 1)));
            counts = token_counts(path);
            if (counts.waits != 1 || counts.blocking != 0 || counts.hosts != 1) {
                fail_msg("%s, %s: %u waits, %u copies that wait, %u graphs of the host", c->arch,
                         c->what, counts.waits, counts.blocking, counts.hosts);
            }
            assert_true(counts.layers > 0);
        }
        device_queue_set(DEVICE_QUEUE_NONE);
        fixture_generated_remove();
    }
    is_queued = is_hidden = false;
    (void)printf("%u architectures and variants\n", n);
    assert_true(n > 20);
}

/* The case of an architecture with a word in its description. */
static const arch_case *case_find(const char *arch, const char *word)
{
    const arch_case *c;

    for (size_t i = 0; (c = arch_case_get(i)) != NULL; i++) {
        if (c->n_experts > 0 && strcmp(c->arch, arch) == 0 && strstr(c->what, word) != NULL) {
            return c;
        }
    }
    fail_msg("%s has no case with %s", arch, word);
    return NULL;
}

/* A router of every kind. */
static const char *const kinds[][2] = {
    { "qwen3moe", "4 used" },        { "qwen2moe", "shared" }, { "gpt-oss", "biases" },
    { "deepseek2", "groups" },       { "gemma4", "26B-A4B" },  { "llama4", "every other layer" },
    { "nemotron_h_moe", "(Super)" },
};

/* What the device lacks is the host's, and the result is the same. */
static void test_lacks(void **state)
{
    static const enum ggml_op ops[] = {
        GGML_OP_ARGSORT, GGML_OP_SOFT_MAX, GGML_OP_GET_ROWS, GGML_OP_SUM_ROWS, GGML_OP_CLAMP,
        GGML_OP_DIV,     GGML_OP_UNARY,    GGML_OP_REPEAT,   GGML_OP_ADD_ID,   GGML_OP_ADD,
        GGML_OP_GLU,     GGML_OP_SCALE,    GGML_OP_SUB,      GGML_OP_MUL,
    };

    (void)state;
    is_queued = true;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        const gguf_gen_opts gen = arch_case_options(case_find(kinds[k][0], kinds[k][1]));
        const char *path = fixture_generate(&gen);

        for (size_t i = k % TEST_STRIDE(5u); i < sizeof ops / sizeof ops[0]; i += TEST_STRIDE(5u)) {
            char what[96];

            (void)snprintf(what, sizeof what, "%s without %s", kinds[k][0], ggml_op_name(ops[i]));
            device_queue_set((device_queue_mode)(1 + i % (DEVICE_QUEUE_MODES - 1)));
            lacks_op = ops[i];
            (void)assert_near(path, ALL, tolerance_of(kinds[k][0]), what);
            lacks_op = GGML_OP_NONE;
        }
        device_queue_set(DEVICE_QUEUE_NONE);
        fixture_generated_remove();
    }
    is_queued = false;
}

/* The check before loading knows what the device has to hold. */
static void assert_sizes(const quire_model *model, const char *what)
{
    quire_runtime *runtime = runtime_open(model);
    const quire_graphs_size size = quire_step_sizes_get(model->desc.step_sizes, &runtime->opts);
    const uint64_t on_device = quire_graphs_device_bytes(&runtime->graphs, 0);
    const uint64_t on_host = quire_graphs_buffer_bytes(&runtime->graphs);

    if (device_queue_has_two_memories() &&
        (size.device_bytes[0] != on_device || size.buffer_bytes != on_host)) {
        fail_msg("%s: %llu bytes of the device, and %llu, were computed; they are %llu and %llu",
                 what, (unsigned long long)size.device_bytes[0],
                 (unsigned long long)size.buffer_bytes, (unsigned long long)on_device,
                 (unsigned long long)on_host);
    }
    assert_int_equal(model->desc.device_weight_bytes[0], model->weights->device_bytes);
    quire_runtime_destroy(runtime);
}

/* The device has all tensors of a layer's network. */
static void test_places(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        const gguf_gen_opts gen = arch_case_options(case_find(kinds[k][0], kinds[k][1]));
        quire_model *model = model_open(fixture_generate(&gen), ALL);
        uint32_t n_layers = 0;

        for (uint32_t il = 0; il < model->weights->n_layer; il++) {
            const quire_expert_weights *e = &model->weights->layers[il].experts;
            const struct ggml_tensor *tensors[] = { e->router,     e->router_b,      e->choice_b,
                                                    e->gate,       e->gate_b,        e->up,
                                                    e->up_b,       e->gate_up,       e->down,
                                                    e->down_b,     e->narrow,        e->widen,
                                                    e->down_scale, e->shared_router, e->shared_up };

            n_layers += e->router != NULL;
            for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
                assert_true(tensors[i] == NULL ||
                            quire_weights_device_holds(model->weights, tensors[i]));
            }
        }
        assert_true(n_layers > 0);
        if (model->weights->rope_freqs == NULL) { /* which the check leaves out: a few bytes */
            device_queue_set(DEVICE_QUEUE_EVENTS);
            assert_sizes(model, kinds[k][0]);
            device_queue_set(DEVICE_QUEUE_NONE);
        }
        model_close(model);
        fixture_generated_remove();
    }
}

/* So it has a quantised router. */
static void test_router_type(void **state)
{
    const arch_case c = { .arch = "qwen3moe",
                          .n_experts = 32,
                          .n_experts_used = 32, /* rounding changes no choice */
                          .type = GGML_TYPE_Q8_0 };
    gguf_gen_opts gen = arch_case_options(&c);
    const struct ggml_tensor *router;
    const char *path;
    quire_model *model;

    (void)state;
    gen.has_router_type = true;
    path = fixture_generate(&gen);
    model = model_open(path, 2);
    router = model->weights->layers[2].experts.router;
    assert_int_equal(router->type, GGML_TYPE_Q8_0);
    assert_true(quire_weights_device_holds(model->weights, router));
    model_close(model);
    (void)assert_near(path, 2, TOLERANCE, "a quantised router");
    (void)assert_near(path, ALL, TOLERANCE, "quantised routers");
    fixture_generated_remove();
}

/* Products of the experts of a layer of Qwen3-30B-A3B: those of many rows are no one submission. */
static void test_submissions(void **state)
{
    static const struct {
        int64_t n_rows;
        bool is_small;
    } cases[] = { { 1, true }, { 64, true }, { 512, false } };
    const struct ggml_init_params params = { .mem_size = 32 * ggml_tensor_overhead(),
                                             .no_alloc = true };
    struct ggml_context *ctx = ggml_init(params);

    (void)state;
    assert_non_null(ctx);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int64_t n = cases[i].n_rows;
        struct ggml_tensor *up = ggml_new_tensor_3d(ctx, GGML_TYPE_Q4_K, 2048, 2 * 768, 128);
        struct ggml_tensor *down = ggml_new_tensor_3d(ctx, GGML_TYPE_Q4_K, 768, 2048, 128);
        struct ggml_tensor *ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 8, n);
        struct ggml_tensor *x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 2048, 1, n);
        struct ggml_tensor *y = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 768, 8, n);
        struct ggml_tensor *ops[2] = { ggml_mul_mat_id(ctx, up, x, ids),
                                       ggml_mul_mat_id(ctx, down, y, ids) };

        assert_int_equal(quire_split_is_small(ops, 2), cases[i].is_small);
    }
    ggml_free(ctx);
}

static int setup(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    return quire_backend_init(&err);
}

/* Also behind a test that failed. */
static int reset(void **state)
{
    (void)state;
    lacks_op = GGML_OP_NONE;
    is_queued = is_hidden = false;
    device_queue_hide(NULL);
    device_queue_set(DEVICE_QUEUE_NONE);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_architectures, reset),
        cmocka_unit_test_setup(test_waits, reset),
        cmocka_unit_test_setup(test_lacks, reset),
        cmocka_unit_test_setup(test_places, reset),
        cmocka_unit_test_setup(test_router_type, reset),
        cmocka_unit_test_setup(test_submissions, reset),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
