/* vulkan_internal.h - the object behind vulkan_device.h.
 *
 * Each piece of work is a command buffer of its own, which begins with a barrier behind all work
 * before it, and ends with one in front of all work behind it: the queue may be another's, too. The
 * timeline semaphore counts them: an event is the number of the last one. Copies
 * beside steps have a queue, a pool and a timeline of their own (vulkan_beside.c). Each queue waits
 * for the other one's timeline.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_VULKAN_INTERNAL_H
#define QUIRE_DEVICE_VULKAN_INTERNAL_H

#include "device/card/card.h"
#include "device/vulkan/vulkan_context.h"

#define QUIRE_VULKAN_COMMANDS     8u
#define QUIRE_VULKAN_COMMANDS_MAX 1024u /* of the first queue, where it is shared */

typedef struct quire_vulkan_piece {
    quire_card_piece base;
    VkBuffer buffer;
    VkDeviceMemory memory;
} quire_vulkan_piece;

typedef struct quire_vulkan_beside {
    VkSemaphore timeline;
    VkCommandPool pool;
    VkCommandBuffer commands[QUIRE_VULKAN_COMMANDS]; /* of call n: [n % COMMANDS] */
    uint64_t joined; /* that the next submission of the first queue waits for */
} quire_vulkan_beside;

typedef struct quire_vulkan {
    quire_card card;
    quire_vulkan_context *context;
    VkSemaphore timeline;
    VkCommandPool pool;
    VkCommandBuffer commands[QUIRE_VULKAN_COMMANDS_MAX]; /* [n_commands], a ring */
    uint64_t command_value[QUIRE_VULKAN_COMMANDS_MAX];   /* the work that used it last */
    uint32_t n_commands;
    uint32_t command; /* of the piece of work at hand, or the next one */
    quire_vulkan_beside beside;
} quire_vulkan;

/* vulkan_memory.c: of quire_card_calls. */
int quire_vulkan_piece_make(quire_card *card, quire_device_kind kind, uint64_t bytes,
                            quire_card_piece *piece, quire_device_memory *out);
void quire_vulkan_piece_end(quire_card *card, quire_card_piece *piece);

/* vulkan_queue.c. Errors: QUIRE_LOST, QUIRE_NOMEM, QUIRE_IO. */
/* The status for a result of Vulkan; notes the loss of the device. */
int quire_vulkan_status(quire_vulkan *v, VkResult result);
/* What a queue of the family needs: a timeline at 0, a pool, commands[QUIRE_VULKAN_COMMANDS] of it.
 * After an error the caller destroys the parts that are not NULL. */
int quire_vulkan_line_open(quire_vulkan *v, uint32_t family, VkSemaphore *timeline,
                           VkCommandPool *pool, VkCommandBuffer *commands);
/* Of quire_card_calls. */
int quire_vulkan_queue_open(quire_card *card);
void quire_vulkan_close(quire_card *card);
int quire_vulkan_copy(quire_card *card, const quire_device_piece *pieces, uint32_t n_pieces);
int quire_vulkan_wait(quire_card *card, uint64_t value);
int quire_vulkan_begin(quire_card *card);
int quire_vulkan_write(quire_card *card, const quire_device_memory *to, const void *from,
                       uint64_t bytes);
int quire_vulkan_dispatch(quire_card *card, const quire_card_dispatch *dispatch);
void quire_vulkan_barrier(quire_card *card);
int quire_vulkan_end(quire_card *card, int status);

/* vulkan_beside.c */
int quire_vulkan_beside_open(quire_vulkan *v);
void quire_vulkan_beside_close(quire_vulkan *v);
/* Of quire_card_calls. */
int quire_vulkan_copy_beside(quire_card *card, const quire_device_piece *pieces, uint32_t n_pieces);
int quire_vulkan_join(quire_card *card, uint64_t value);
int quire_vulkan_wait_beside(quire_card *card, uint64_t value);

#endif /* QUIRE_DEVICE_VULKAN_INTERNAL_H */
