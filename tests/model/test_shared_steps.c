/* test_shared_steps.c - steps of a model with all layers on the card of vulkan0, where Quire's
 * kernels and ggml's backend share a queue: the driver refuses calls of Quire's, ggml's calls throw
 * exceptions, several runtimes use the queue at once. Skipped where the build has no backend of
 * ggml's for it, or there is no vulkan0.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "device/validated.h"
#include "device/vulkan/vulkan_context.h"
#include "device/vulkan/vulkan_device.h"
#include "device_queue.h"
#include "layers_card.h"
#include "model/model.h"
#include "model/runtime.h"
#include "model/vulkan_loader.h"
#include "model_fixture.h"
#include "rounds.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SKIPPED    77
#define N_TOKENS   3u
#define N_STEPS    4u
#define N_THREADS  2u
#define N_GROWN    48
#define N_BARRIERS 64u

/* Memory that lavapipe keeps after its devices are closed is no leak of ours. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libvulkan_lvp.so";
}

static quire_vulkan_context *context;
static quire_model *model;
static float *expected; /* the logits of a first step */

/* ---- the driver ---- */

#define CALLS(X)                                                                                   \
    X(AllocateMemory)                                                                              \
    X(CreateBuffer)                                                                                \
    X(AllocateCommandBuffers)                                                                      \
    X(BeginCommandBuffer)                                                                          \
    X(EndCommandBuffer)                                                                            \
    X(QueueSubmit)                                                                                 \
    X(WaitSemaphores)

#include "device/vulkan_refusals.h" /* of CALLS */

static VkResult refused(call which)
{
    return is_refused(which) ? fault.result : VK_SUCCESS;
}

#define REPLACE(name, parameters, arguments)                                                       \
    static VKAPI_ATTR VkResult VKAPI_CALL test_##name parameters                                   \
    {                                                                                              \
        const VkResult r = refused(CALL_##name);                                                   \
                                                                                                   \
        return r == VK_SUCCESS ? real_##name arguments : r;                                        \
    }

REPLACE(AllocateMemory,
        (VkDevice d, const VkMemoryAllocateInfo *info, const VkAllocationCallbacks *by,
         VkDeviceMemory *out),
        (d, info, by, out))
REPLACE(CreateBuffer,
        (VkDevice d, const VkBufferCreateInfo *info, const VkAllocationCallbacks *by,
         VkBuffer *out),
        (d, info, by, out))
REPLACE(AllocateCommandBuffers,
        (VkDevice d, const VkCommandBufferAllocateInfo *info, VkCommandBuffer *out), (d, info, out))
REPLACE(BeginCommandBuffer, (VkCommandBuffer commands, const VkCommandBufferBeginInfo *info),
        (commands, info))

/* The commands end in any case. */
static VKAPI_ATTR VkResult VKAPI_CALL test_EndCommandBuffer(VkCommandBuffer commands)
{
    const VkResult r = real_EndCommandBuffer(commands);
    const VkResult refusal = refused(CALL_EndCommandBuffer);

    return refusal == VK_SUCCESS ? r : refusal;
}

REPLACE(QueueSubmit, (VkQueue queue, uint32_t n, const VkSubmitInfo *info, VkFence fence),
        (queue, n, info, fence))
REPLACE(WaitSemaphores, (VkDevice d, const VkSemaphoreWaitInfo *info, uint64_t ns), (d, info, ns))

static void driver_replace(void)
{
#define X(name)                                                                                    \
    real_##name = context->name;                                                                   \
    context->name = test_##name;
    CALLS(X)
#undef X
}

/* ---- an integrated card ---- */

/* Where this variable is set, ggml takes lavapipe for an integrated card, whose memory is the
 * host's. */
#define INTEGRATED "QUIRE_TEST_INTEGRATED"

static PFN_vkGetInstanceProcAddr loader_get;
static PFN_vkGetPhysicalDeviceProperties2 properties_get;
static PFN_vkCmdPipelineBarrier barrier_record;

static VKAPI_ATTR void VKAPI_CALL integrated_properties(VkPhysicalDevice card,
                                                        VkPhysicalDeviceProperties2 *out)
{
    properties_get(card, out);
    if (out->properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU) {
        out->properties.deviceType = VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
    }
}

/* Between an operation of ggml's and the next one that reads its result. Many barriers in place of
 * one: without a delay the host would rarely disturb them. */
static VKAPI_ATTR void VKAPI_CALL slow_barrier(VkCommandBuffer commands, VkPipelineStageFlags from,
                                               VkPipelineStageFlags to, VkDependencyFlags flags,
                                               uint32_t n_memories, const VkMemoryBarrier *memories,
                                               uint32_t n_buffers,
                                               const VkBufferMemoryBarrier *buffers,
                                               uint32_t n_images,
                                               const VkImageMemoryBarrier *images)
{
    for (uint32_t i = 0; i < N_BARRIERS; i++) {
        barrier_record(commands, from, to, flags, n_memories, memories, n_buffers, buffers,
                       n_images, images);
    }
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL integrated_get(VkInstance instance,
                                                               const char *name)
{
    const PFN_vkVoidFunction function = loader_get(instance, name);

    if (function != NULL && strcmp(name, "vkGetPhysicalDeviceProperties2") == 0) {
        properties_get = (PFN_vkGetPhysicalDeviceProperties2)function;
        return (PFN_vkVoidFunction)integrated_properties;
    }
    if (function != NULL && strcmp(name, "vkCmdPipelineBarrier") == 0) {
        barrier_record = (PFN_vkCmdPipelineBarrier)function;
        return (PFN_vkVoidFunction)slow_barrier;
    }
    return function;
}

/* In the place of dlsym(). Functions travel as bytes: ISO C has no conversion. */
void *__real_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name)
{
    const PFN_vkGetInstanceProcAddr ours = integrated_get;
    void *function = __real_dlsym(library, name);

    if (function != NULL && getenv(INTEGRATED) != NULL &&
        strcmp(name, "vkGetInstanceProcAddr") == 0) {
        memcpy(&loader_get, &function, sizeof function);
        memcpy(&function, &ours, sizeof function);
    }
    return function;
}

/* ---- steps ---- */

static quire_runtime *runtime_new(void)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = 128;
    opts.n_batch = 8;
    opts.n_seqs_max = 2;
    opts.n_threads = 1;
    opts.k_format = opts.v_format = QUIRE_FORMAT_F16;
    opts.device = "vulkan0";
    return fixture_runtime(model, &opts);
}

static int step_try(quire_runtime *runtime, quire_seq_id seq, const float **logits)
{
    static const int32_t tokens[N_TOKENS] = { 5, 6, 7 };
    const quire_slice slice = {
        .seq = seq, .tokens = tokens, .n_tokens = N_TOKENS, .logits = QUIRE_LOGITS_LAST
    };

    return quire_runtime_step(runtime, &slice, 1, logits);
}

static size_t logits_bytes(void)
{
    return quire_model_desc_get(model)->n_vocab * sizeof(float);
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

/* A step whose n-th call of a kind has a result: it fails, or it does not need the call. The next
 * one is right, unless the device was lost. Returns whether there was an n-th call. */
static bool check_refused(call which, uint32_t n, VkResult result, bool is_first)
{
    quire_runtime *runtime = runtime_new();
    const quire_seq_id seq = fixture_seq(runtime);
    const float *logits;
    int rc;

    assert_true(is_first || step_is_right(runtime, seq));
    fail_next(which, n, result);
    rc = step_try(runtime, seq, &logits);
    fault.is_set = false;
    if (fault.has_failed && rc == QUIRE_OK && which != CALL_AllocateCommandBuffers) {
        fail_msg("%s, call %u, result %d: the step succeeds", call_names[which], n, (int)result);
    }
    if (rc == QUIRE_OK) {
        assert_memory_equal(logits, expected, logits_bytes());
    } else {
        assert_int_equal(quire_seq_tokens(quire_runtime_cache(runtime), seq), 0);
        assert_true(rc != QUIRE_LOST || quire_runtime_is_lost(runtime));
        assert_true(quire_runtime_is_lost(runtime) || step_is_right(runtime, seq));
    }
    quire_runtime_destroy(runtime);
    return fault.has_failed;
}

static void test_refused(void **state)
{
    static const VkResult results[] = { VK_ERROR_OUT_OF_DEVICE_MEMORY,
                                        VK_ERROR_INITIALIZATION_FAILED, VK_ERROR_DEVICE_LOST };
    uint32_t n_failures = 0;

    (void)state;
    for (call which = 0; which < N_CALLS; which++) {
        for (size_t r = 0; r < sizeof results / sizeof results[0]; r++) {
            const bool is_first = which <= CALL_AllocateCommandBuffers; /* later steps make none */

            for (uint32_t n = 0; check_refused(which, n, results[r], is_first);
                 n += TEST_STRIDE(3u)) {
                assert_true(++n_failures < 1000);
            }
        }
    }
    check_fresh_runtime();
    (void)printf("%u failures\n", n_failures);
    assert_true(n_failures > 20);
}

/* ggml throws an exception in any call of a step: the device is lost, and another runtime on it is
 * right. */
static void test_thrown(void **state)
{
    quire_runtime *runtime = runtime_new();
    const quire_seq_id first = fixture_seq(runtime);
    uint32_t n_calls;

    (void)state;
    assert_true(step_is_right(runtime, first));
    device_queue_fail(0); /* counts from here on */
    assert_true(step_is_right(runtime, first));
    n_calls = device_queue_calls();
    quire_runtime_destroy(runtime);
    assert_true(n_calls > 5);
    for (uint32_t at = 1; at <= n_calls; at += TEST_STRIDE(3u)) {
        const float *logits;
        quire_seq_id seq;

        runtime = runtime_new();
        seq = fixture_seq(runtime);
        assert_true(step_is_right(runtime, seq));
        device_queue_fail(at);
        assert_int_equal(step_try(runtime, seq, &logits), QUIRE_LOST);
        assert_int_equal(step_try(runtime, seq, &logits), QUIRE_LOST);
        assert_true(quire_runtime_is_lost(runtime));
        assert_int_equal(quire_seq_tokens(quire_runtime_cache(runtime), seq), 0);
        device_queue_fail(0);
        quire_runtime_destroy(runtime);
    }
    check_fresh_runtime();
}

/* Layers whose rows pass the host's memory give the same bits, before and after steps of the other
 * kind. */
static void test_ways(void **state)
{
    quire_runtime *runtime = runtime_new();
    quire_attn_device *device = quire_runtime_device(runtime);
    const quire_attn_device both = *device;
    const quire_seq_id seq = fixture_seq(runtime);

    (void)state;
    assert_non_null(both.queue);
    for (uint32_t i = 0; i < 4; i++) {
        device->queue = i % 2 == 0 ? NULL : both.queue;
        assert_true(step_is_right(runtime, seq));
    }
    quire_runtime_destroy(runtime);
}

/* So do tokens one by one: layers that are queued do not disturb each other. */
static void test_tokens(void **state)
{
    quire_runtime *runtime = runtime_new();
    quire_attn_device *device = quire_runtime_device(runtime);
    const quire_attn_device both = *device;
    const quire_seq_id seqs[2] = { fixture_seq(runtime), fixture_seq(runtime) };
    float *logits = malloc(logits_bytes());

    (void)state;
    assert_non_null(both.queue);
    assert_non_null(logits);
    for (int32_t token = 3; token < 3 + N_GROWN; token++) {
        device->queue = NULL;
        memcpy(logits, fixture_step(runtime, seqs[0], &token, 1, QUIRE_LOGITS_LAST),
               logits_bytes());
        device->queue = both.queue;
        assert_memory_equal(fixture_step(runtime, seqs[1], &token, 1, QUIRE_LOGITS_LAST), logits,
                            logits_bytes());
    }
    free(logits);
    quire_runtime_destroy(runtime);
}

/* With fusion test_tokens() fails on most runs, not on all. */
static void test_no_fusion(void **state)
{
    (void)state;
    assert_non_null(properties_get); /* ggml has asked */
    assert_non_null(getenv("GGML_VK_DISABLE_FUSION"));
}

/* A token of L layers is submitted by ggml in L + 1 graphs, the first of which comes in parts, and
 * with its copies to the host. */
#define N_PARTS_MAX 12u

static void test_submissions(void **state)
{
    static const int32_t token = 5;
    quire_runtime *runtime = runtime_new();
    const quire_seq_id seq = fixture_seq(runtime);
    const uint32_t n_layer = quire_model_desc_get(model)->n_layer;
    uint64_t n;

    (void)state;
    (void)fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
    n = quire_vulkan_loader_submissions();
    (void)fixture_step(runtime, seq, &token, 1, QUIRE_LOGITS_LAST);
    n = quire_vulkan_loader_submissions() - n;
    (void)printf("%u layers: %u submissions of ggml's\n", n_layer, (uint32_t)n);
    assert_in_range(n, n_layer + 1, n_layer + N_PARTS_MAX);
    quire_runtime_destroy(runtime);
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

/* Runtimes of several threads use the queue at once. */
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

static bool open_all(void)
{
    const quire_model_opts opts = { .devices = { card_of_vulkan0() },
                                    .n_device_layers = UINT32_MAX };
    quire_error err = QUIRE_ERROR_INIT;

    if (opts.devices[0] == NULL) {
        return false;
    }
    if (quire_vulkan_context_get(&context, 0, quire_vulkan_validates(), &err) < 0 ||
        quire_model_open(&model, fixture_model_path(FIXTURE_STORIES), &opts, &err) < 0) {
        fail_msg("%s", err.message);
    }
    return true;
}

static int expect(void **state)
{
    quire_runtime *runtime = runtime_new();
    const float *logits;

    (void)state;
    assert_non_null(context->share);
    expected = malloc(logits_bytes());
    assert_non_null(expected);
    assert_int_equal(step_try(runtime, fixture_seq(runtime), &logits), QUIRE_OK);
    memcpy(expected, logits, logits_bytes());
    quire_runtime_destroy(runtime);
    driver_replace();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_thrown),
        cmocka_unit_test(test_given_up),    cmocka_unit_test(test_threads),
        cmocka_unit_test(test_submissions), cmocka_unit_test(test_ways),
        cmocka_unit_test(test_tokens),      cmocka_unit_test(validated_end),
    };
    const struct CMUnitTest of_integrated[] = { cmocka_unit_test(test_tokens),
                                                cmocka_unit_test(test_no_fusion) };
    const bool is_integrated = getenv(INTEGRATED) != NULL;
    int rc;

    if (!is_integrated) {
        validated_begin();
    }
    if (!open_all()) {
        return SKIPPED;
    }
    rc = is_integrated ? cmocka_run_group_tests(of_integrated, expect, NULL)
                       : cmocka_run_group_tests(tests, expect, NULL);
    free(expected);
    quire_model_close(model);
    quire_vulkan_context_release(context);
    return rc;
}
