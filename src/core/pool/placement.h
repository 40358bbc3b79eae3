/* placement.h - which extent a page lies in; private to the pool.
 *
 * Invariants
 *   P1  an extent is in the bucket of its class that its fill belongs to (extent_bucket)
 *   P2  bucket_mask has the bit of every bucket but the full one that is not empty
 *   P3  slots[0 .. n_fresh) are a page id whose page names this extent and slot, or are on the
 *       extent's free list; n_used counts the former
 *   P4  n_used <= n_fresh <= n_touched <= n_slots
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_PLACEMENT_H
#define QUIRE_CORE_PLACEMENT_H

#include "core/pool/pool.h"

/* Give a class one more empty extent: one that another class can spare, or a new one. Extents that
 * other classes can spare but that do not fit go back to the OS when the memory taken would exceed
 * all budgets, when extents_max is reached, or when the OS has no more.
 * Errors: QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_placement_grow(quire_pool *pool, quire_pool_class *class);

/* Return an empty extent to the OS. */
void quire_placement_unmap(quire_pool *pool, quire_extent *extent);

/* A free slot of the class; there must be one. */
quire_extent *quire_placement_take(quire_pool_class *class, uint32_t *slot);

/* Same, but in this extent, which must have one. */
uint32_t quire_placement_take_in(quire_pool_class *class, quire_extent *extent);

void quire_placement_give(quire_pool_class *class, quire_extent *extent, uint32_t slot);

/* The bucket for an extent's n_used. */
uint8_t quire_placement_bucket(const quire_extent *extent);

#endif /* QUIRE_CORE_PLACEMENT_H */
