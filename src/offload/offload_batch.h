/* offload_batch.h - the offloaded pages of a step's batch, and the parts that its layers read, for
 * the two devices in front.
 *
 * Thread: that of the step.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_BATCH_H
#define QUIRE_OFFLOAD_OFFLOAD_BATCH_H

#include "quire/attn.h"
#include "quire/cache.h"

/* Addresses of all pages, as the inner device sees them. */
typedef struct quire_offload_addrs {
    quire_page_addr *of_pages; /* [n_max], by page; owned, free() */
    uint32_t n_max;
} quire_offload_addrs;

/* Take the batch's addresses. Errors: QUIRE_NOMEM. */
int quire_offload_addrs_copy(quire_offload_addrs *addrs, const quire_cache *cache,
                             const quire_attn_batch *batch);

/* Call add() for each offloaded page in the batch's tables of a group, in their order. A page in
 * several tables comes as often. Errors: those of add(), which end the walk. */
typedef int (*quire_offload_add)(void *ctx, quire_page_id page, uint32_t slot);
int quire_offload_pages_each(const quire_attn_batch *batch, quire_group_id group,
                             quire_offload_add add, void *ctx);

/* The parts of pages where a medium keeps them. */
typedef struct quire_offload_parts {
    const void *medium;
    size_t (*offset)(const void *medium, uint32_t part); /* of the part in an extent; grows */
    uint32_t n;
} quire_offload_parts;

/* The part that has a layer's K. */
uint32_t quire_offload_part_of(const quire_offload_parts *parts, const quire_attn_layer *layer);

/* Whether a layer reads K and V of the one part that it also stores. Errors: QUIRE_UNSUPP. */
int quire_offload_layer_check(const quire_offload_parts *parts, const quire_attn_layer *layer);

#endif /* QUIRE_OFFLOAD_OFFLOAD_BATCH_H */
