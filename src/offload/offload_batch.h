/* offload_batch.h - the offloaded pages of a step's batch, and the parts that its layers read, for
 * the two devices in front.
 *
 * Thread: that of the step.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_BATCH_H
#define QUIRE_OFFLOAD_OFFLOAD_BATCH_H

#include "offload/offload_stops.h"
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
    quire_group_id group; /* of the pages */
} quire_offload_parts;

/* The parts that a layer's run() reads; none in a layer that reads other groups alone. Errors:
 * QUIRE_UNSUPP (more than QUIRE_OFFLOAD_READS_MAX). Cost: O(log parts). */
int quire_offload_stop_of(const quire_offload_parts *parts, const quire_attn_layer *layer,
                          quire_offload_stop *out);

/* Whether the layer stores K and V, and so has an append() in each step. */
bool quire_offload_layer_stores(const quire_attn_layer *layer);

/* Whether a list of stops has one for the layer, if it needs one. Errors: QUIRE_UNSUPP. */
int quire_offload_layer_check(const quire_offload_parts *parts, const quire_offload_stops *stops,
                              const quire_attn_layer *layer);

/* The layer for run(), with sources of the stop's second part at the batch's second addresses. */
quire_attn_layer quire_offload_layer_at(const quire_offload_parts *parts,
                                        const quire_attn_layer *layer,
                                        const quire_offload_stop *stop);

#endif /* QUIRE_OFFLOAD_OFFLOAD_BATCH_H */
