/* vulkan_internal.h - the object behind vulkan_device.h.
 *
 * Each piece of work is a command buffer of its own, which begins with a barrier behind all work
 * before it. The timeline semaphore counts them: an event is the number of the last one.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_VULKAN_INTERNAL_H
#define QUIRE_DEVICE_VULKAN_INTERNAL_H

#include "attn/attn_internal.h"
#include "device/device_internal.h"
#include "device/device_rows.h"
#include "device/vulkan/vulkan_context.h"
#include "device/vulkan/vulkan_params.h"

#define QUIRE_VULKAN_COMMANDS 8u
#define QUIRE_VULKAN_AREAS    2u

/* A piece of memory: quire_device_memory.ctx. */
typedef struct quire_vulkan_piece {
    struct quire_vulkan_piece *next; /* of those that the device gave */
    struct quire_vulkan_piece *previous;
    VkBuffer buffer;
    VkDeviceMemory memory;
} quire_vulkan_piece;

/* The same bytes at the host and on the card, for the data of a step. */
typedef struct quire_vulkan_twin {
    quire_device_memory pinned;
    quire_device_memory own;
} quire_vulkan_twin;

/* Params, then rows (device_rows.h). */
typedef struct quire_vulkan_area {
    quire_vulkan_twin twin;
    quire_device_rows rows;
    uint64_t last; /* the last work that uses it */
} quire_vulkan_area;

typedef struct quire_vulkan {
    quire_device base;
    quire_vulkan_context *context;
    quire_vulkan_piece *pieces;
    VkSemaphore timeline;
    uint64_t n_submitted;
    VkCommandPool pool;
    VkCommandBuffer commands[QUIRE_VULKAN_COMMANDS];
    uint64_t command_value[QUIRE_VULKAN_COMMANDS]; /* the work that used it last */
    int failure;                                   /* of append() or attn(), not reported yet */

    quire_attn_workspace *workspace; /* checks layers and batches, and lists segments */
    quire_attn_batch batch;
    quire_vulkan_twin plan;
    uint64_t at_entries, at_seqs, at_rows, at_positions; /* addresses, in the plan */
    uint64_t at_segments[QUIRE_GROUPS_MAX];
    uint64_t at_cascades, at_cascade_rows;
    const quire_vulkan_cascade *cascades; /* of group 0, in the plan at the host */
    uint32_t n_cascades;
    uint32_t n_cascade_splits;               /* the most of one */
    uint32_t n_splits_max[QUIRE_GROUPS_MAX]; /* of a sequence */
    uint32_t n_rows;
    quire_vulkan_twin levels;
    quire_device_memory partials;
    quire_vulkan_area areas[QUIRE_VULKAN_AREAS];
    uint32_t area; /* the last one that enter() took */
} quire_vulkan;

/* vulkan_memory.c */
int quire_vulkan_alloc(quire_vulkan *v, quire_device_kind kind, uint64_t bytes,
                       quire_device_memory *out);
void quire_vulkan_free(quire_vulkan *v, quire_device_memory *memory);
/* Memory of at least so many bytes; none of its work is under way. Its former contents are lost. */
int quire_vulkan_reserve(quire_vulkan *v, quire_device_kind kind, uint64_t bytes,
                         quire_device_memory *memory);
int quire_vulkan_twin_reserve(quire_vulkan *v, uint64_t bytes, quire_vulkan_twin *twin);

/* vulkan_queue.c. Errors: QUIRE_LOST, QUIRE_NOMEM, QUIRE_IO. */
int quire_vulkan_queue_open(quire_vulkan *v);
void quire_vulkan_queue_close(quire_vulkan *v);
int quire_vulkan_begin(quire_vulkan *v, VkCommandBuffer *out);
/* status: of the recording. A failure is returned, and nothing is submitted. */
int quire_vulkan_end(quire_vulkan *v, VkCommandBuffer commands, int status);
int quire_vulkan_wait(quire_vulkan *v, uint64_t value);
/* Within one command buffer: commands behind the barrier see the writes of those before. */
void quire_vulkan_barrier(const quire_vulkan *v, VkCommandBuffer commands);
/* The first n bytes of a twin to the card, as work of its own. */
int quire_vulkan_twin_send(quire_vulkan *v, const quire_vulkan_twin *twin, uint64_t bytes);
int quire_vulkan_copy(quire_vulkan *v, const quire_device_piece *pieces, uint32_t n_pieces);
/* The status for a result of Vulkan; notes the loss of the device. */
int quire_vulkan_status(quire_vulkan *v, VkResult result);

/* vulkan_plan.c */
int quire_vulkan_plan(quire_vulkan *v, const quire_attn_batch *batch);

/* vulkan_step.c */
int quire_vulkan_levels_make(quire_vulkan *v);
int quire_vulkan_enter(quire_vulkan *v, const quire_attn_layer *layer, quire_attn_layer *own);
int quire_vulkan_append(quire_vulkan *v, const quire_attn_layer *own);
int quire_vulkan_attn(quire_vulkan *v, const quire_attn_layer *own);
int quire_vulkan_leave(quire_vulkan *v, const quire_attn_layer *layer, const quire_attn_layer *own);

#endif /* QUIRE_DEVICE_VULKAN_INTERNAL_H */
