/* test_cuda_ends.c - what ends with a card of CUDA's, and what does not: the process goes on when
 * the card was lost, or when ggml's backend has no code for it. ggml's backend is that of
 * layers_cuda.h, under the name "CUDA". Since a card is lost once in a process, each test is a
 * child.
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
#include "model/runtime_device.h"
#include "model_fixture.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ggml.h>

/* A child ends here: memory that stays on a lost card is no leak. */
static void run_in_child(void (*body)(void))
{
    const struct rlimit no_core = { 0, 0 };
    const pid_t pid = fork();
    int status = 0;

    assert_true(pid >= 0);
    if (pid == 0) {
        (void)setrlimit(RLIMIT_CORE, &no_core);
        body();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* ggml's backend is there from now on. Returns a model with all layers on the card. */
static quire_model *begin(void)
{
    quire_model_opts opts = { .n_device_layers = UINT32_MAX };
    quire_error err = QUIRE_ERROR_INIT;

    assert_int_equal(quire_backend_init(&err), QUIRE_OK);
    assert_true(quire_backend_cuda_begin());
    opts.devices[0] = quire_backend_cpu();
    layers_cuda_begin();
    layers_cuda_name(true);
    return fixture_open_as(fixture_model_path(FIXTURE_STORIES), &opts);
}

static quire_runtime *runtime_new(const quire_model *model)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = 64;
    opts.n_batch = 8;
    opts.n_seqs_max = 1;
    opts.n_threads = 1;
    opts.device = "cuda0";
    return fixture_runtime(model, &opts);
}

/* ---- losses ---- */

/* Quire's device notices the loss, which ggml does not hear of. */
static void lose_between_steps(void)
{
    static const int32_t token = 5;
    quire_model *model = begin();
    quire_runtime *runtime = runtime_new(model);
    const quire_slice slice = {
        .seq = fixture_seq(runtime), .tokens = &token, .n_tokens = 1, .logits = QUIRE_LOGITS_LAST
    };
    char why[QUIRE_RUNTIME_WHY_BYTES];
    const float *logits;

    assert_int_equal(quire_runtime_step(runtime, &slice, 1, &logits), QUIRE_OK);
    layers_cuda_lose();
    assert_int_equal(quire_runtime_step(runtime, &slice, 1, &logits), QUIRE_LOST);
    assert_string_equal(quire_runtime_lost_name(runtime), "cuda0");
    assert_string_equal(quire_runtime_lost_why(runtime, why, sizeof why), "");
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

static void test_between_steps(void **state)
{
    (void)state;
    run_in_child(lose_between_steps);
}

/* Nobody has noticed it. */
static void lose_at_rest(void)
{
    quire_model *model = begin();
    quire_runtime *runtime = runtime_new(model);

    layers_cuda_lose();
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

static void test_at_rest(void **state)
{
    (void)state;
    run_in_child(lose_at_rest);
}

/* Nor has anybody a backend that could notice it. */
static void lose_weights(void)
{
    quire_model *model = begin();

    layers_cuda_lose();
    quire_model_close(model);
}

static void test_weights(void **state)
{
    (void)state;
    run_in_child(lose_weights);
}

/* The card faults at work that is queued when the backend is closed: it is waited for first. */
static void lose_in_queue(void)
{
    const struct ggml_init_params params = { .mem_size = ggml_tensor_overhead(), .no_alloc = true };
    struct ggml_context *ctx = ggml_init(params);
    struct ggml_tensor *x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    const float floats[4] = { 0 };
    quire_backend_device backend;

    quire_model_close(begin());
    assert_non_null(
        quire_backend_buffer_new(ctx, ggml_backend_dev_buffer_type(quire_backend_cpu())));
    assert_int_equal(quire_backend_device_open(&backend, quire_backend_cpu()), QUIRE_OK);
    quire_backend_device_set(&backend, x, floats);
    fake_cuda_fault(0, QUIRE_CUDA_ILLEGAL_ADDRESS);
    quire_backend_device_close(&backend);
    assert_true(fake_cuda_seen().n_pieces > 0); /* what ggml has there is kept */
}

static void test_in_queue(void **state)
{
    (void)state;
    run_in_child(lose_in_queue);
}

/* Of a card that works nothing is kept. */
static void lose_nothing(void)
{
    quire_model *model = begin();

    quire_runtime_destroy(runtime_new(model));
    quire_model_close(model);
    assert_int_equal(fake_cuda_seen().n_pieces, 0);
}

static void test_nothing(void **state)
{
    (void)state;
    run_in_child(lose_nothing);
}

/* ---- settings of ggml's ---- */

/* ggml's graphs of CUDA's would write to memory that ggml has freed. */
static void begin_without_graphs(void)
{
    assert_int_equal(unsetenv("GGML_CUDA_DISABLE_GRAPHS"), 0);
    quire_model_close(begin());
    assert_non_null(getenv("GGML_CUDA_DISABLE_GRAPHS"));
}

static void test_no_graphs(void **state)
{
    (void)state;
    run_in_child(begin_without_graphs);
}

/* ---- pinned memory ---- */

/* The host's part of a graph is pinned beside a card that is not ggml's first, too. */
static void pin_beside_second(void)
{
    quire_model *model = begin();
    quire_runtime *runtime = runtime_new(model);

    assert_true(layers_cuda_pinned() > 0);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

static void test_pinned(void **state)
{
    (void)state;
    run_in_child(pin_beside_second);
}

/* ---- cards without code in the build ---- */

#define NO_BINARY_FOR_GPU 209 /* CUDA_ERROR_NO_BINARY_FOR_GPU */

/* The card is refused, with the reason, and is whole: nothing is kept on it. */
static void refuse_card(void)
{
    quire_model *model = begin();
    char why[QUIRE_BACKEND_WHY_BYTES];

    assert_true(quire_backend_device_computes(quire_backend_cpu()));
    quire_backend_log_clear();
    fake_cuda_fail("cuLaunchHostFunc", 0, NO_BINARY_FOR_GPU);
    assert_false(quire_backend_device_computes(quire_backend_cpu()));
    quire_backend_log_first(why, sizeof why);
    assert_string_equal(why, "CUDA error: an error of a test");
    assert_true(quire_backend_device_computes(quire_backend_cpu()));
    quire_runtime_destroy(runtime_new(model));
    quire_model_close(model);
    assert_int_equal(fake_cuda_seen().n_pieces, 0);
}

static void test_no_code(void **state)
{
    (void)state;
    run_in_child(refuse_card);
}

/* A card that is lost meanwhile is. */
static void refuse_lost_card(void)
{
    quire_model *model = begin();

    fake_cuda_fault(0, QUIRE_CUDA_ILLEGAL_ADDRESS);
    assert_false(quire_backend_device_computes(quire_backend_cpu()));
    assert_true(fake_cuda_seen().n_pieces > 0);
    quire_model_close(model);
}

static void test_lost_meanwhile(void **state)
{
    (void)state;
    run_in_child(refuse_lost_card);
}

/* Before a test the process has no threads, or a child could start none under tsan. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_between_steps),  cmocka_unit_test(test_at_rest),
        cmocka_unit_test(test_weights),        cmocka_unit_test(test_in_queue),
        cmocka_unit_test(test_nothing),        cmocka_unit_test(test_no_graphs),
        cmocka_unit_test(test_pinned),         cmocka_unit_test(test_no_code),
        cmocka_unit_test(test_lost_meanwhile),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
