/* vulkan_beside.c - copies beside steps: the second queue of a device, or of one queue the second
 * timeline.
 *
 * A copy waits for all work that the first queue has so far, since that work may use the memory. A
 * timeline that a queue waits for makes all writes of the other one visible.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "device/vulkan/vulkan_internal.h"

int quire_vulkan_beside_open(quire_vulkan *v)
{
    return quire_vulkan_line_open(v, v->context->copy_family, &v->beside.timeline, &v->beside.pool,
                                  v->beside.commands);
}

void quire_vulkan_beside_close(quire_vulkan *v)
{
    const quire_vulkan_context *c = v->context;

    c->DestroyCommandPool(c->device, v->beside.pool, NULL);
    c->DestroySemaphore(c->device, v->beside.timeline, NULL);
}

int quire_vulkan_wait_beside(quire_card *card, uint64_t value)
{
    quire_vulkan *v = (quire_vulkan *)card;
    const VkSemaphoreWaitInfo info = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                       .semaphoreCount = 1,
                                       .pSemaphores = &v->beside.timeline,
                                       .pValues = &value };

    return quire_vulkan_status(v,
                               v->context->WaitSemaphores(v->context->device, &info, UINT64_MAX));
}

int quire_vulkan_join(quire_card *card, uint64_t value)
{
    quire_vulkan *v = (quire_vulkan *)card;

    v->beside.joined = value > v->beside.joined ? value : v->beside.joined;
    return QUIRE_OK;
}

/* Submit a command buffer behind the first queue's work so far. */
static int submit_behind(quire_vulkan *v, VkCommandBuffer commands)
{
    quire_vulkan_context *c = v->context;
    const uint64_t value = v->card.n_beside + 1;
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    const VkTimelineSemaphoreSubmitInfo timeline = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .waitSemaphoreValueCount = 1,
        .pWaitSemaphoreValues = &v->card.n_submitted,
        .signalSemaphoreValueCount = 1,
        .pSignalSemaphoreValues = &value
    };
    const VkSubmitInfo submit = { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                  .pNext = &timeline,
                                  .waitSemaphoreCount = 1,
                                  .pWaitSemaphores = &v->timeline,
                                  .pWaitDstStageMask = &stage,
                                  .commandBufferCount = 1,
                                  .pCommandBuffers = &commands,
                                  .signalSemaphoreCount = 1,
                                  .pSignalSemaphores = &v->beside.timeline };
    VkResult r;

    (void)pthread_mutex_lock(c->submits);
    r = c->QueueSubmit(c->copy_queue, 1, &submit, VK_NULL_HANDLE);
    (void)pthread_mutex_unlock(c->submits);
    QUIRE_TRY(quire_vulkan_status(v, r));
    v->card.n_beside = value;
    return QUIRE_OK;
}

int quire_vulkan_copy_beside(quire_card *card, const quire_device_piece *pieces, uint32_t n_pieces)
{
    quire_vulkan *v = (quire_vulkan *)card;
    const quire_vulkan_context *c = v->context;
    const VkCommandBuffer commands = v->beside.commands[card->n_beside % QUIRE_VULKAN_COMMANDS];
    const VkCommandBufferBeginInfo info = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT };
    /* Copies to the same page are done in the order of their calls. */
    const VkMemoryBarrier barrier = { .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                      .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                      .dstAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT };

    if (card->n_beside >= QUIRE_VULKAN_COMMANDS) {
        QUIRE_TRY(quire_vulkan_wait_beside(card, card->n_beside - QUIRE_VULKAN_COMMANDS + 1));
    }
    QUIRE_TRY(quire_vulkan_status(v, c->BeginCommandBuffer(commands, &info)));
    c->CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT,
                          0, 1, &barrier, 0, NULL, 0, NULL);
    for (uint32_t i = 0; i < n_pieces; i++) {
        const VkBufferCopy region = { pieces[i].from_offset, pieces[i].to_offset, pieces[i].bytes };
        const quire_vulkan_piece *from = pieces[i].from->ctx;
        const quire_vulkan_piece *to = pieces[i].to->ctx;

        c->CmdCopyBuffer(commands, from->buffer, to->buffer, 1, &region);
    }
    QUIRE_TRY(quire_vulkan_status(v, c->EndCommandBuffer(commands)));
    return submit_behind(v, commands);
}
