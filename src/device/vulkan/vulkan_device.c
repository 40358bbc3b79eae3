/* vulkan_device.c - see vulkan_device.h.
 *
 * SPDX-License-Identifier: MIT */
#include "device/vulkan/vulkan_device.h"

#include "base/check.h"
#include "device/vulkan/vulkan_internal.h"

#include <stdio.h>

#define KERNELS 3u /* another number when kernels round in another way */

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

static void vulkan_info(const quire_card *card, quire_device_info *out)
{
    const quire_vulkan_context *c = ((const quire_vulkan *)card)->context;
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

static const void *vulkan_queue_owner(const quire_card *card)
{
    const quire_vulkan_share *share = ((const quire_vulkan *)card)->context->share;

    return share != NULL ? share->owner : NULL;
}

static const quire_card_calls vulkan_calls = {
    .name = "vulkan",
    .card_bytes = sizeof(quire_vulkan),
    .piece_bytes = sizeof(quire_vulkan_piece),
    .info = vulkan_info,
    .queue_owner = vulkan_queue_owner,
    .queue_open = quire_vulkan_queue_open,
    .close = quire_vulkan_close,
    .piece_make = quire_vulkan_piece_make,
    .piece_end = quire_vulkan_piece_end,
    .copy = quire_vulkan_copy,
    .wait = quire_vulkan_wait,
    .copy_beside = quire_vulkan_copy_beside,
    .join = quire_vulkan_join,
    .wait_beside = quire_vulkan_wait_beside,
    .begin = quire_vulkan_begin,
    .write = quire_vulkan_write,
    .dispatch = quire_vulkan_dispatch,
    .barrier = quire_vulkan_barrier,
    .end = quire_vulkan_end,
};

int quire_vulkan_device_open(quire_device **out, uint32_t index, bool validates,
                             const quire_device_opts *opts, quire_error *err)
{
    quire_vulkan init = { .card = { .calls = &vulkan_calls } };

    *out = NULL;
    QUIRE_TRY(quire_vulkan_context_get(&init.context, index, validates, err));
    return quire_card_open(out, &init.card, index, opts, err);
}
