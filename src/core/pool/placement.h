/* placement.h - which extent a page lies in; private to the pool.
 *
 * Invariants
 *   P1  an extent is in the bucket of its class for its fill (extent_bucket)
 *   P2  bucket_mask has the bits of the non-empty buckets, except the full bucket's
 *   P3  slots[0 .. n_fresh) are page ids whose pages name this extent and slot, or are on the
 *       extent's free list; n_used counts the page ids
 *   P4  n_used <= n_fresh <= n_touched <= n_slots
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_PLACEMENT_H
#define QUIRE_CORE_PLACEMENT_H

#include "core/pool/pool.h"

/* Give a class one more empty extent: a spare extent of another class, or a new extent. Spare
 * extents of other classes that do not fit go back to the OS when the mapped memory would exceed
 * all budgets, when extents_max is reached, or when the OS has no memory left.
 * Errors: QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_placement_grow(quire_pool *pool, quire_pool_class *class);

/* Return an empty extent to the OS. */
void quire_placement_unmap(quire_pool *pool, quire_extent *extent);

/* Return an extent's memory, if it has any, to where it came from. */
void quire_placement_memory_give(const quire_pool *pool, const quire_extent *extent);

/* Take a free slot of the class; there must be one. */
quire_extent *quire_placement_take(quire_pool_class *class, uint32_t *slot);

/* Take a free slot of this extent; there must be one. */
uint32_t quire_placement_take_in(quire_pool_class *class, quire_extent *extent);

void quire_placement_give(quire_pool_class *class, quire_extent *extent, uint32_t slot);

/* The bucket for an extent's n_used. */
uint8_t quire_placement_bucket(const quire_extent *extent);

#endif /* QUIRE_CORE_PLACEMENT_H */
