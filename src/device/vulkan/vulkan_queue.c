/* vulkan_queue.c - the queue of a card: command buffers in turn, a timeline behind them, copies.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "device/vulkan/vulkan_device.h"
#include "device/vulkan/vulkan_internal.h"

#include <stdatomic.h>
#include <string.h>

#define WRITE_BYTES_MAX 65536u /* of one command */

static atomic_uint_fast64_t n_host_waits;

uint64_t quire_vulkan_waits(void)
{
    return atomic_load(&n_host_waits);
}

int quire_vulkan_status(quire_vulkan *v, VkResult result)
{
    switch (result) {
    case VK_SUCCESS:
        return QUIRE_OK;
    case VK_ERROR_DEVICE_LOST:
        return quire_device_lose(&v->card.base);
    case VK_ERROR_OUT_OF_HOST_MEMORY:
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
    case VK_ERROR_TOO_MANY_OBJECTS:
        return QUIRE_NOMEM;
    default:
        return QUIRE_IO;
    }
}

int quire_vulkan_line_open(quire_vulkan *v, uint32_t family, VkSemaphore *timeline,
                           VkCommandPool *pool, VkCommandBuffer *commands)
{
    const quire_vulkan_context *c = v->context;
    const VkSemaphoreTypeCreateInfo type = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                             .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE };
    const VkSemaphoreCreateInfo semaphore = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
                                              .pNext = &type };
    const VkCommandPoolCreateInfo create = { .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                             .flags =
                                                 VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                             .queueFamilyIndex = family };
    VkCommandBufferAllocateInfo take = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                         .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                         .commandBufferCount = QUIRE_VULKAN_COMMANDS };

    QUIRE_TRY(quire_vulkan_status(v, c->CreateSemaphore(c->device, &semaphore, NULL, timeline)));
    QUIRE_TRY(quire_vulkan_status(v, c->CreateCommandPool(c->device, &create, NULL, pool)));
    take.commandPool = *pool;
    return quire_vulkan_status(v, c->AllocateCommandBuffers(c->device, &take, commands));
}

int quire_vulkan_queue_open(quire_card *card)
{
    quire_vulkan *v = (quire_vulkan *)card;

    QUIRE_TRY(quire_vulkan_line_open(v, v->context->family, &v->timeline, &v->pool, v->commands));
    v->n_commands = QUIRE_VULKAN_COMMANDS;
    return quire_vulkan_beside_open(v);
}

void quire_vulkan_close(quire_card *card)
{
    quire_vulkan *v = (quire_vulkan *)card;
    const quire_vulkan_context *c = v->context;

    quire_vulkan_beside_close(v);
    c->DestroyCommandPool(c->device, v->pool, NULL);
    c->DestroySemaphore(c->device, v->timeline, NULL);
    quire_vulkan_context_release(v->context);
}

static VkResult wait_for(const quire_vulkan *v, uint64_t value, uint64_t ns)
{
    const VkSemaphoreWaitInfo info = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                       .semaphoreCount = 1,
                                       .pSemaphores = &v->timeline,
                                       .pValues = &value };

    return v->context->WaitSemaphores(v->context->device, &info, ns);
}

int quire_vulkan_wait(quire_card *card, uint64_t value)
{
    quire_vulkan *v = (quire_vulkan *)card;
    VkResult r = wait_for(v, value, 0);

    if (r == VK_TIMEOUT) {
        atomic_fetch_add(&n_host_waits, 1);
        r = wait_for(v, value, UINT64_MAX);
    }
    return quire_vulkan_status(v, r);
}

/* The command buffer of the piece of work at hand. */
static VkCommandBuffer commands_of(const quire_vulkan *v)
{
    return v->commands[v->command];
}

/* As many command buffers again, in the ring's place at hand: layers are queued without a wait, and
 * each has one until it is done. */
static int commands_grow(quire_vulkan *v)
{
    const quire_vulkan_context *c = v->context;
    const uint32_t n = v->n_commands;
    const VkCommandBufferAllocateInfo take = { .sType =
                                                   VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                               .commandPool = v->pool,
                                               .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                               .commandBufferCount = n };
    VkCommandBuffer more[QUIRE_VULKAN_COMMANDS_MAX / 2];

    QUIRE_TRY(quire_vulkan_status(v, c->AllocateCommandBuffers(c->device, &take, more)));
    memmove(v->commands + v->command + n, v->commands + v->command,
            (n - v->command) * sizeof(v->commands[0]));
    memmove(v->command_value + v->command + n, v->command_value + v->command,
            (n - v->command) * sizeof(v->command_value[0]));
    memcpy(v->commands + v->command, more, n * sizeof(more[0]));
    memset(v->command_value + v->command, 0, n * sizeof(v->command_value[0]));
    v->n_commands += n;
    return QUIRE_OK;
}

/* A command buffer that no work uses any more. */
static int commands_take(quire_vulkan *v)
{
    const bool may_grow = v->context->share != NULL && v->n_commands < QUIRE_VULKAN_COMMANDS_MAX;
    const uint64_t value = v->command_value[v->command];
    const VkResult r = may_grow ? wait_for(v, value, 0) : VK_TIMEOUT;

    if (r != VK_TIMEOUT) {
        return quire_vulkan_status(v, r);
    }
    return may_grow && commands_grow(v) == QUIRE_OK ? QUIRE_OK : quire_vulkan_wait(&v->card, value);
}

void quire_vulkan_barrier(quire_card *card)
{
    const quire_vulkan *v = (const quire_vulkan *)card;
    const VkMemoryBarrier barrier = { .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                      .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
                                      .dstAccessMask =
                                          VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT };

    v->context->CmdPipelineBarrier(commands_of(v), VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                                   VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, 0, 1, &barrier, 0, NULL, 0,
                                   NULL);
}

int quire_vulkan_begin(quire_card *card)
{
    quire_vulkan *v = (quire_vulkan *)card;
    const VkCommandBufferBeginInfo info = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT };

    QUIRE_TRY(commands_take(v));
    QUIRE_TRY(quire_vulkan_status(v, v->context->BeginCommandBuffer(commands_of(v), &info)));
    quire_vulkan_barrier(card);
    return QUIRE_OK;
}

int quire_vulkan_write(quire_card *card, const quire_device_memory *to, const void *from,
                       uint64_t bytes)
{
    const quire_vulkan *v = (const quire_vulkan *)card;
    const quire_vulkan_piece *piece = to->ctx;

    for (uint64_t at = 0; at < bytes; at += WRITE_BYTES_MAX) {
        const uint64_t n = bytes - at < WRITE_BYTES_MAX ? bytes - at : WRITE_BYTES_MAX;

        v->context->CmdUpdateBuffer(commands_of(v), piece->buffer, at, n,
                                    (const unsigned char *)from + at);
    }
    return QUIRE_OK;
}

int quire_vulkan_dispatch(quire_card *card, const quire_card_dispatch *dispatch)
{
    const quire_vulkan *v = (const quire_vulkan *)card;
    quire_vulkan_context *c = v->context;
    const VkCommandBuffer commands = commands_of(v);
    VkPipeline pipeline;

    QUIRE_TRY(quire_vulkan_pipeline_get(c, dispatch->kernel, dispatch->constants.at, &pipeline));
    c->CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    c->CmdPushConstants(commands, c->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(dispatch->push),
                        &dispatch->push);
    c->CmdDispatch(commands, dispatch->groups[0], dispatch->groups[1], dispatch->groups[2]);
    return QUIRE_OK;
}

/* The host can read the bytes that the work wrote when the timeline has come so far. So can all
 * work behind it in the queue, which may be another's. */
int quire_vulkan_end(quire_card *card, int status)
{
    quire_vulkan *v = (quire_vulkan *)card;
    quire_vulkan_context *c = v->context;
    const VkCommandBuffer commands = commands_of(v);
    const uint64_t value = card->n_submitted + 1;
    const VkMemoryBarrier to_all = { .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                     .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
                                     .dstAccessMask = VK_ACCESS_HOST_READ_BIT |
                                                      VK_ACCESS_MEMORY_READ_BIT |
                                                      VK_ACCESS_MEMORY_WRITE_BIT };
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    const uint32_t n_waits = v->beside.joined > 0 ? 1 : 0; /* for copies beside */
    const VkTimelineSemaphoreSubmitInfo timeline = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .waitSemaphoreValueCount = n_waits,
        .pWaitSemaphoreValues = &v->beside.joined,
        .signalSemaphoreValueCount = 1,
        .pSignalSemaphoreValues = &value
    };
    const VkSubmitInfo submit = { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                  .pNext = &timeline,
                                  .waitSemaphoreCount = n_waits,
                                  .pWaitSemaphores = &v->beside.timeline,
                                  .pWaitDstStageMask = &stage,
                                  .commandBufferCount = 1,
                                  .pCommandBuffers = &commands,
                                  .signalSemaphoreCount = 1,
                                  .pSignalSemaphores = &v->timeline };
    VkResult r;

    c->CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                          VK_PIPELINE_STAGE_HOST_BIT | VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, 0, 1,
                          &to_all, 0, NULL, 0, NULL);
    QUIRE_TRY(quire_vulkan_status(v, c->EndCommandBuffer(commands)));
    QUIRE_TRY(status);
    (void)pthread_mutex_lock(c->submits);
    r = c->QueueSubmit(c->queue, 1, &submit, VK_NULL_HANDLE);
    (void)pthread_mutex_unlock(c->submits);
    QUIRE_TRY(quire_vulkan_status(v, r));
    v->beside.joined = 0;
    v->command_value[v->command] = value;
    v->command = (v->command + 1) % v->n_commands;
    card->n_submitted = value;
    return QUIRE_OK;
}

int quire_vulkan_copy(quire_card *card, const quire_device_piece *pieces, uint32_t n_pieces)
{
    const quire_vulkan *v = (const quire_vulkan *)card;

    QUIRE_TRY(quire_vulkan_begin(card));
    for (uint32_t i = 0; i < n_pieces; i++) {
        const VkBufferCopy region = { pieces[i].from_offset, pieces[i].to_offset, pieces[i].bytes };
        const quire_vulkan_piece *from = pieces[i].from->ctx;
        const quire_vulkan_piece *to = pieces[i].to->ctx;

        v->context->CmdCopyBuffer(commands_of(v), from->buffer, to->buffer, 1, &region);
    }
    return quire_vulkan_end(card, QUIRE_OK);
}
