/* vulkan_device.c - see vulkan_device.h.
 *
 * SPDX-License-Identifier: MIT */
#include "device/vulkan/vulkan_device.h"

#include "base/check.h"
#include "device/vulkan/vulkan_internal.h"

#include <stdio.h>

#define KERNELS 2u /* another number when kernels round in another way */

/* The part of a heap that this process can still have. The budget of a heap is never 0. */
static uint64_t free_bytes_of(const VkPhysicalDeviceMemoryBudgetPropertiesEXT *budget, uint32_t i)
{
    if (budget->heapBudget[i] == 0) {
        return UINT64_MAX;
    }
    return budget->heapBudget[i] > budget->heapUsage[i]
               ? budget->heapBudget[i] - budget->heapUsage[i]
               : 0;
}

/* The card's largest heap, and the part of it that this process can still have. */
static void memory_info(const quire_vulkan_context *c, quire_device_info *out)
{
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT
    };
    VkPhysicalDeviceMemoryProperties2 now = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, .pNext = &budget
    };

    if (c->tells_budget) {
        c->GetPhysicalDeviceMemoryProperties2(c->card, &now);
    }
    for (uint32_t i = 0; i < c->memory.memoryHeapCount; i++) {
        const VkMemoryHeap *heap = &c->memory.memoryHeaps[i];

        if ((heap->flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) != 0 &&
            heap->size > out->memory_bytes) {
            out->memory_bytes = heap->size;
            out->free_bytes = free_bytes_of(&budget, i);
        }
    }
}

static void vulkan_info(const quire_device *device, quire_device_info *out)
{
    const quire_vulkan_context *c = ((const quire_vulkan *)device)->context;
    int n;

    (void)snprintf(out->name, sizeof(out->name), "vulkan%u", c->index);
    (void)snprintf(out->description, sizeof(out->description), "%.127s", c->properties.deviceName);
    out->card = c->place;
    out->isa = "vulkan";
    out->is_software = c->properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    n = snprintf(out->rounding, sizeof(out->rounding), "vulkan %u ", KERNELS);
    for (uint32_t i = 0; i < VK_UUID_SIZE; i++) { /* one for each card and driver */
        n += snprintf(out->rounding + n, sizeof(out->rounding) - (size_t)n, "%02x",
                      c->properties.pipelineCacheUUID[i]);
    }
    out->memory = QUIRE_MEMORY_DEVICE;
    memory_info(c, out);
}

static int vulkan_alloc(quire_device *device, quire_device_kind kind, uint64_t bytes,
                        quire_device_memory *out)
{
    return quire_vulkan_alloc((quire_vulkan *)device, kind, bytes, out);
}

static void vulkan_free(quire_device *device, quire_device_memory *memory)
{
    quire_vulkan_free((quire_vulkan *)device, memory);
}

static int vulkan_copy(quire_device *device, const quire_device_piece *pieces, uint32_t n_pieces)
{
    return quire_vulkan_copy((quire_vulkan *)device, pieces, n_pieces);
}

static int vulkan_record(quire_device *device, quire_device_event *out)
{
    *out = ((const quire_vulkan *)device)->n_submitted;
    return QUIRE_OK;
}

static int failure_take(quire_vulkan *v, int rc)
{
    const int failure = v->failure;

    QUIRE_TRY(rc);
    v->failure = QUIRE_OK;
    return failure;
}

static int vulkan_wait(quire_device *device, quire_device_event event)
{
    quire_vulkan *v = (quire_vulkan *)device;

    return failure_take(v, quire_vulkan_wait(v, event));
}

static int vulkan_check(const quire_device *device, const quire_attn_layer *layer)
{
    return quire_attn_layer_check(((const quire_vulkan *)device)->workspace, layer);
}

static int vulkan_plan(quire_device *device, const quire_attn_batch *batch)
{
    return quire_vulkan_plan((quire_vulkan *)device, batch);
}

static int vulkan_enter(quire_device *device, const quire_attn_layer *layer, quire_attn_layer *own)
{
    return quire_vulkan_enter((quire_vulkan *)device, layer, own);
}

static void failure_note(quire_vulkan *v, int rc)
{
    v->failure = rc < 0 && v->failure == QUIRE_OK ? rc : v->failure;
}

static void vulkan_append(quire_device *device, const quire_attn_layer *own, uint32_t thread,
                          uint32_t n_threads)
{
    (void)thread;
    (void)n_threads;
    failure_note((quire_vulkan *)device, quire_vulkan_append((quire_vulkan *)device, own));
}

static void vulkan_attn(quire_device *device, const quire_attn_layer *own, uint32_t call,
                        uint32_t thread, uint32_t n_threads)
{
    (void)call;
    (void)thread;
    (void)n_threads;
    failure_note((quire_vulkan *)device, quire_vulkan_attn((quire_vulkan *)device, own));
}

static int vulkan_leave(quire_device *device, const quire_attn_layer *layer,
                        const quire_attn_layer *own)
{
    quire_vulkan *v = (quire_vulkan *)device;

    return failure_take(v, quire_vulkan_leave(v, layer, own));
}

static void vulkan_end(quire_vulkan *v)
{
    const quire_allocator allocator = v->base.allocator;

    if (v->n_submitted > 0) {
        (void)quire_vulkan_wait(v, v->n_submitted);
    }
    while (v->pieces != NULL) {
        quire_device_memory memory = { .ctx = v->pieces };

        quire_vulkan_free(v, &memory);
    }
    quire_vulkan_queue_close(v);
    quire_attn_workspace_destroy(v->workspace);
    quire_vulkan_context_release(v->context);
    allocator.free(allocator.ctx, v);
}

static void vulkan_close(quire_device *device)
{
    vulkan_end((quire_vulkan *)device);
}

static const quire_device_ops vulkan_ops = {
    .close = vulkan_close,
    .info = vulkan_info,
    .alloc = vulkan_alloc,
    .free = vulkan_free,
    .copy = vulkan_copy,
    .record = vulkan_record,
    .wait = vulkan_wait,
    .check = vulkan_check,
    .plan = vulkan_plan,
    .enter = vulkan_enter,
    .append = vulkan_append,
    .attn = vulkan_attn,
    .leave = vulkan_leave,
};

/* The queue, the workspace that plans, the tables: of a device that has its context. */
static int vulkan_make(quire_vulkan *v, const quire_device_opts *opts)
{
    quire_attn_workspace_opts attn = opts->attn;

    attn.memory = QUIRE_MEMORY_DEVICE;
    attn.n_threads_max = attn.n_threads_max > 1 ? 1 : attn.n_threads_max;
    attn.isa = NULL;
    QUIRE_TRY(quire_attn_workspace_create(&v->workspace, &attn));
    QUIRE_TRY(quire_vulkan_queue_open(v));
    return quire_vulkan_levels_make(v);
}

int quire_vulkan_device_open(quire_device **out, uint32_t index, bool validates,
                             const quire_device_opts *opts, quire_error *err)
{
    quire_vulkan init = { .area = 0 };
    quire_vulkan *v;
    int rc;

    *out = NULL;
    quire_device_init(&init.base, &vulkan_ops, opts);
    QUIRE_TRY(quire_vulkan_context_get(&init.context, index, validates, err));
    v = init.base.allocator.alloc(init.base.allocator.ctx, sizeof(*v));
    if (v == NULL) {
        quire_vulkan_context_release(init.context);
        return quire_error_set(err, QUIRE_NOMEM, "device vulkan%u: no memory", index);
    }
    *v = init;
    rc = vulkan_make(v, opts);
    if (rc < 0) {
        vulkan_end(v);
        return quire_error_set(err, rc, "device vulkan%u: attention cannot be set up: %s", index,
                               quire_status_text(rc));
    }
    *out = &v->base;
    return QUIRE_OK;
}
