/* test_device_vulkan_faults.c - the first Vulkan device, whose driver refuses calls: memory that is
 * used up, submissions that fail, a lost card. The functions of its context are replaced by ones
 * that fail when they are told to. Skipped where there is no device.
 *
 * A second program (QUIRE_TEST_SHARED) does the same on the VkDevice of ggml's Vulkan backend.
 *
 * SPDX-License-Identifier: MIT */
#include "device/device_work.h"
#include "device/validated.h"
#include "device/vulkan/vulkan_context.h"
#include "device/vulkan/vulkan_device.h"
#include "rounds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#ifdef QUIRE_TEST_SHARED
#include "layers_card.h"
#endif

#define SKIPPED 77

/* Memory that lavapipe keeps after its devices are closed is no leak of ours. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libvulkan_lvp.so";
}

static quire_vulkan_context *context;
static PFN_vkDeviceWaitIdle wait_idle;

/* ---- the driver ---- */

/* Calls with a result, and the objects that they make, if they make any. */
#define CALLS(X)                                                                                   \
    X(AllocateMemory)                                                                              \
    X(MapMemory)                                                                                   \
    X(CreateBuffer)                                                                                \
    X(BindBufferMemory)                                                                            \
    X(CreateCommandPool)                                                                           \
    X(AllocateCommandBuffers)                                                                      \
    X(BeginCommandBuffer)                                                                          \
    X(EndCommandBuffer)                                                                            \
    X(CreateSemaphore)                                                                             \
    X(WaitSemaphores)                                                                              \
    X(QueueSubmit)                                                                                 \
    X(CreateComputePipelines)

#include "device/vulkan_refusals.h" /* of CALLS */

#define X(name) static PFN_vk##name real_##name;
X(FreeMemory)
X(DestroyBuffer)
X(DestroyCommandPool)
X(DestroySemaphore)
#undef X

static int64_t n_objects; /* memory, buffers, pools and semaphores that are alive */

/* The result of a call that does not reach the driver; VK_SUCCESS: it does. */
static VkResult refused(call which)
{
    if (!is_refused(which)) {
        return VK_SUCCESS;
    }
    /* A lost card does nothing more. This one would, and the memory of its work is released. */
    if (fault.result == VK_ERROR_DEVICE_LOST) {
        (void)wait_idle(context->device);
    }
    return fault.result;
}

#define REPLACE(name, parameters, arguments, n_made)                                               \
    static VKAPI_ATTR VkResult VKAPI_CALL test_##name parameters                                   \
    {                                                                                              \
        VkResult r = refused(CALL_##name);                                                         \
                                                                                                   \
        r = r == VK_SUCCESS ? real_##name arguments : r;                                           \
        n_objects += r == VK_SUCCESS ? n_made : 0;                                                 \
        return r;                                                                                  \
    }

REPLACE(AllocateMemory,
        (VkDevice d, const VkMemoryAllocateInfo *info, const VkAllocationCallbacks *by,
         VkDeviceMemory *out),
        (d, info, by, out), 1)
REPLACE(MapMemory,
        (VkDevice d, VkDeviceMemory memory, VkDeviceSize at, VkDeviceSize n, VkMemoryMapFlags flags,
         void **out),
        (d, memory, at, n, flags, out), 0)
REPLACE(CreateBuffer,
        (VkDevice d, const VkBufferCreateInfo *info, const VkAllocationCallbacks *by,
         VkBuffer *out),
        (d, info, by, out), 1)
REPLACE(BindBufferMemory, (VkDevice d, VkBuffer buffer, VkDeviceMemory memory, VkDeviceSize at),
        (d, buffer, memory, at), 0)
REPLACE(CreateCommandPool,
        (VkDevice d, const VkCommandPoolCreateInfo *info, const VkAllocationCallbacks *by,
         VkCommandPool *out),
        (d, info, by, out), 1)
REPLACE(AllocateCommandBuffers,
        (VkDevice d, const VkCommandBufferAllocateInfo *info, VkCommandBuffer *out), (d, info, out),
        0)
REPLACE(BeginCommandBuffer, (VkCommandBuffer commands, const VkCommandBufferBeginInfo *info),
        (commands, info), 0)

/* The commands end in any case. */
static VKAPI_ATTR VkResult VKAPI_CALL test_EndCommandBuffer(VkCommandBuffer commands)
{
    const VkResult r = real_EndCommandBuffer(commands);
    const VkResult refusal = refused(CALL_EndCommandBuffer);

    return refusal == VK_SUCCESS ? r : refusal;
}

REPLACE(CreateSemaphore,
        (VkDevice d, const VkSemaphoreCreateInfo *info, const VkAllocationCallbacks *by,
         VkSemaphore *out),
        (d, info, by, out), 1)

/* The timelines of a device: work that was submitted, and work that was waited for. */
static struct {
    VkSemaphore semaphore;
    uint64_t submitted, waited;
} lines[2];

static void line_note(VkSemaphore semaphore, uint64_t submitted, uint64_t waited)
{
    size_t i = 0;

    while (lines[i].semaphore != semaphore && lines[i].semaphore != VK_NULL_HANDLE) {
        assert_true(++i < 2);
    }
    lines[i].semaphore = semaphore;
    lines[i].submitted = submitted > 0 ? submitted : lines[i].submitted;
    lines[i].waited = waited > lines[i].waited ? waited : lines[i].waited;
}

static bool is_all_waited(void)
{
    return lines[0].waited >= lines[0].submitted && lines[1].waited >= lines[1].submitted;
}

static VKAPI_ATTR VkResult VKAPI_CALL test_WaitSemaphores(VkDevice d,
                                                          const VkSemaphoreWaitInfo *info,
                                                          uint64_t ns)
{
    VkResult r = refused(CALL_WaitSemaphores);

    r = r == VK_SUCCESS ? real_WaitSemaphores(d, info, ns) : r;
    if (r == VK_SUCCESS) {
        line_note(info->pSemaphores[0], 0, info->pValues[0]);
    }
    return r;
}

static VKAPI_ATTR VkResult VKAPI_CALL test_QueueSubmit(VkQueue queue, uint32_t n,
                                                       const VkSubmitInfo *info, VkFence fence)
{
    const VkTimelineSemaphoreSubmitInfo *timeline = info->pNext;
    VkResult r = refused(CALL_QueueSubmit);

    r = r == VK_SUCCESS ? real_QueueSubmit(queue, n, info, fence) : r;
    if (r == VK_SUCCESS) {
        line_note(info->pSignalSemaphores[0], timeline->pSignalSemaphoreValues[0], 0);
    }
    return r;
}

REPLACE(CreateComputePipelines,
        (VkDevice d, VkPipelineCache cache, uint32_t n, const VkComputePipelineCreateInfo *info,
         const VkAllocationCallbacks *by, VkPipeline *out),
        (d, cache, n, info, by, out), 0)

#define COUNT_ENDS(name, type)                                                                     \
    static VKAPI_ATTR void VKAPI_CALL test_##name(VkDevice d, type object,                         \
                                                  const VkAllocationCallbacks *by)                 \
    {                                                                                              \
        n_objects -= object != VK_NULL_HANDLE;                                                     \
        real_##name(d, object, by);                                                                \
    }

COUNT_ENDS(FreeMemory, VkDeviceMemory)
COUNT_ENDS(DestroyBuffer, VkBuffer)
COUNT_ENDS(DestroyCommandPool, VkCommandPool)

static VKAPI_ATTR void VKAPI_CALL test_DestroySemaphore(VkDevice d, VkSemaphore object,
                                                        const VkAllocationCallbacks *by)
{
    memset(lines, 0, sizeof lines);
    n_objects -= object != VK_NULL_HANDLE;
    real_DestroySemaphore(d, object, by);
}

static void driver_replace(void)
{
    wait_idle =
        (PFN_vkDeviceWaitIdle)context->GetDeviceProcAddr(context->device, "vkDeviceWaitIdle");
#define X(name)                                                                                    \
    real_##name = context->name;                                                                   \
    context->name = test_##name;
    CALLS(X)
    X(FreeMemory)
    X(DestroyBuffer)
    X(DestroyCommandPool)
    X(DestroySemaphore)
#undef X
}

/* ---- tests ---- */

static int open_vulkan(quire_device **out, const quire_device_opts *opts, quire_error *err)
{
    return quire_device_open(out, "vulkan0", opts, err);
}

static const struct {
    VkResult result;
    int status;
} results[] = {
    { VK_ERROR_OUT_OF_DEVICE_MEMORY, QUIRE_NOMEM },
    { VK_ERROR_INITIALIZATION_FAILED, QUIRE_IO },
    { VK_ERROR_DEVICE_LOST, QUIRE_LOST },
};

/* Each call of the driver fails once, wherever work makes it: the work ends with the status for the
 * result, nothing is left, and the next work is right. Returns the number of failures. */
static uint32_t check_call(call which, size_t r)
{
    for (uint32_t n = 0; n < 200; n += TEST_STRIDE(5u)) {
        int rc;

        fail_next(which, n, results[r].result);
        rc = device_work_do();
        if (!fault.has_failed) {
            fault.is_set = false;
            assert_int_equal(rc, QUIRE_OK);
            return n;
        }
        /* A failed wait in front of the release of memory is repeated. */
        if (rc != results[r].status && !(rc == QUIRE_OK && which == CALL_WaitSemaphores)) {
            fail_msg("%s, call %u, result %d: %s", call_names[which], n, (int)results[r].result,
                     quire_status_text(rc));
        }
        if (n_objects != 0) {
            fail_msg("%s, call %u, result %d: %d objects are left", call_names[which], n,
                     (int)results[r].result, (int)n_objects);
        }
    }
    fail_msg("%s: the calls do not end", call_names[which]);
    return 0;
}

static void test_calls(void **state)
{
    uint32_t n = 0;

    (void)state;
    for (call which = 0; which < CALL_CreateComputePipelines; which++) {
        for (size_t r = 0; r < sizeof results / sizeof results[0]; r++) {
            n += check_call(which, r);
        }
        assert_int_equal(device_work_do(), QUIRE_OK);
    }
    assert_true(n > 0);
    (void)printf("%u failures\n", n);
}

/* Pipelines are made once for a card: here, before any other work. The next work makes them. */
static void test_pipelines(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 2; n++) {
        fail_next(CALL_CreateComputePipelines, 0,
                  n == 0 ? VK_ERROR_OUT_OF_HOST_MEMORY : VK_ERROR_INVALID_SHADER_NV);
        assert_int_equal(device_work_do(), n == 0 ? QUIRE_NOMEM : QUIRE_IO);
        assert_true(fault.has_failed);
        assert_int_equal(n_objects, 0);
    }
    device_work_expect();
    assert_int_equal(device_work_do(), QUIRE_OK);
}

/* A device that cannot be opened says which, and why. */
static void test_messages(void **state)
{
    static const struct {
        call which;
        VkResult result;
        int status;
        const char *message;
    } cases[] = {
        { CALL_CreateSemaphore, VK_ERROR_OUT_OF_HOST_MEMORY, QUIRE_NOMEM,
          "device vulkan0: attention cannot be set up: out of memory" },
        { CALL_CreateCommandPool, VK_ERROR_DEVICE_LOST, QUIRE_LOST,
          "device vulkan0: attention cannot be set up: the device was lost" },
    };
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;

    (void)state;
    opts.attn = fixture_small_opts();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        quire_error err = QUIRE_ERROR_INIT;
        quire_device *device;

        fail_next(cases[i].which, 0, cases[i].result);
        assert_int_equal(open_vulkan(&device, &opts, &err), cases[i].status);
        assert_null(device);
        assert_string_equal(err.message, cases[i].message);
        assert_int_equal(n_objects, 0);
    }
}

/* Memory that is used up is an ordinary error: the device goes on. */
static void test_memory(void **state)
{
    quire_device_memory more;
    device_work w;

    (void)state;
    assert_int_equal(device_work_open(&w), QUIRE_OK);
    fail_next(CALL_AllocateMemory, 0, VK_ERROR_OUT_OF_DEVICE_MEMORY);
    assert_int_equal(quire_device_alloc(w.device, QUIRE_DEVICE_PAGES, 1 << 20, &more), QUIRE_NOMEM);
    assert_false(quire_device_is_lost(w.device));
    assert_int_equal(device_work_pages_take(&w), QUIRE_OK);
    assert_int_equal(device_work_step(&w), QUIRE_OK);
    device_work_check(&w);
    device_work_close(&w);
    assert_int_equal(n_objects, 0);
}

/* A submission that fails is reported once, and the next step is right; but a loss stays. */
static void test_submissions(void **state)
{
    device_work w;

    (void)state;
    assert_int_equal(device_work_open(&w), QUIRE_OK);
    assert_int_equal(device_work_pages_take(&w), QUIRE_OK);
    for (uint32_t n = 0; n < 4; n++) {
        fail_next(CALL_QueueSubmit, n, VK_ERROR_OUT_OF_DEVICE_MEMORY);
        assert_int_equal(device_work_step(&w), QUIRE_NOMEM);
        assert_int_equal(device_work_step(&w), QUIRE_OK);
        device_work_check(&w);
    }
    fail_next(CALL_QueueSubmit, 1, VK_ERROR_DEVICE_LOST);
    for (uint32_t n = 0; n < 2; n++) {
        quire_device_memory more;
        quire_device_event event;

        assert_int_equal(device_work_step(&w), QUIRE_LOST);
        assert_true(quire_device_is_lost(w.device));
        assert_int_equal(quire_device_record(w.device, &event), QUIRE_LOST);
        assert_int_equal(quire_device_alloc(w.device, QUIRE_DEVICE_PAGES, 64, &more), QUIRE_LOST);
    }
    device_work_close(&w);
    assert_int_equal(n_objects, 0);
    assert_int_equal(device_work_do(), QUIRE_OK);
}

/* A copy to a page is under way beside a step, and a wait fails: the device is lost for its owner,
 * but the card goes on. Its memory is released when the card is done with it. */
static void test_late_copy(void **state)
{
    quire_page_memory memory;
    unsigned char *page;
    device_work w;

    (void)state;
    device_work_late_copy(&w, &memory, &page);
    fail_next(CALL_WaitSemaphores, 0, VK_ERROR_INITIALIZATION_FAILED);
    assert_int_equal(device_work_step(&w), QUIRE_LOST);
    assert_true(fault.has_failed);
    assert_true(quire_device_is_lost(w.device));
    assert_false(is_all_waited());
    memory.unmap(memory.ctx, page, DEVICE_WORK_LATE_BYTES);
    assert_true(is_all_waited());
    device_work_close(&w);
    assert_int_equal(n_objects, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipelines),   cmocka_unit_test(test_calls),
        cmocka_unit_test(test_messages),    cmocka_unit_test(test_memory),
        cmocka_unit_test(test_submissions), cmocka_unit_test(test_late_copy),
    };
    const struct CMUnitTest last[] = { cmocka_unit_test(validated_end) };
    const conformance_device device = { .name = "vulkan", .open = open_vulkan };
    quire_error err = QUIRE_ERROR_INIT;
    int rc;

    validated_begin();
#ifdef QUIRE_TEST_SHARED
    if (card_of_vulkan0() == NULL) {
        return SKIPPED;
    }
#endif
    if (quire_vulkan_context_get(&context, 0, quire_vulkan_validates(), &err) < 0) {
        (void)printf("skipped: %s\n", err.message);
        return SKIPPED;
    }
#ifdef QUIRE_TEST_SHARED
    if (context->share == NULL) {
        (void)printf("vulkan0 does not use ggml's VkDevice\n");
        return 1;
    }
#endif
    device_work_make(&device);
    driver_replace();
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    device_work_unmake();
    quire_vulkan_context_release(context);
    return rc + cmocka_run_group_tests(last, NULL, NULL);
}
