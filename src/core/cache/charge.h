/* charge.h - whose budget a page counts against when a pinned region runs short, shrinks or grows.
 *
 * A page is in use by a region when a sequence that was opened in it holds the page, or when a pin
 * does. A page that is charged to region R and not in use by R may leave for another budget: what
 * is only cached there, and what others hold. A page of a sequence of R that spilled may return.
 * Charges of a node's pages move together (P9 of prefix_internal.h); bytes never move.
 *
 * Finding them means to walk all sequences: O(open sequences x their pages + nodes charged to R).
 * That is done under pressure only, and a search that found nothing is not repeated before
 * something has changed (quire_region_changed()).
 *
 * Thread: owner. Nothing here allocates.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_CHARGE_H
#define QUIRE_CORE_CHARGE_H

#include "core/cache/cache_internal.h"

/* One move of charges from a region that does not use the pages, or back to one that does. */
typedef struct quire_charge_move {
    quire_cache *cache;
    quire_region_id from;
    quire_region_id to;
    uint64_t need_bytes;  /* stop when so many have moved */
    uint64_t moved_bytes; /* or would have, when is_dry */
    uint64_t moved_pages;
    bool is_dry;           /* only find out; room in `to` is not looked at */
    bool takes_candidates; /* also what eviction could take from `from` */
} quire_charge_move;

/* Whether the move goes on with something of these bytes. */
bool quire_charge_may_move(const quire_charge_move *move, uint64_t bytes);

/* Move the charge of pages that `from` does not use to `to`, until need_bytes have moved. */
void quire_charge_leave(quire_charge_move *move);

/* Move the charge of pages that `to`'s sequences hold, and that spilled to `from`, to `to`. */
void quire_charge_return(quire_charge_move *move);

/* Work towards n_pages more pages for sequences of a region, by evicting, reclaiming and spilling
 * (quire/cache.h, regions). Returns whether anything was freed or moved: then what is needed may be
 * less, and the caller asks again. */
bool quire_charge_make_room(quire_cache *cache, quire_region_id region, const uint32_t *n_pages);

/* Evict and reclaim until a region's charge is down by so many bytes, as far as it goes. */
void quire_charge_shed(quire_cache *cache, quire_region_id region, uint64_t bytes);

/* The same until it has room for bytes. Returns whether it has. */
bool quire_charge_headroom(quire_cache *cache, quire_region_id region, uint64_t bytes);

/* Let spilled pages go home to regions that have room. */
void quire_charge_settle(quire_cache *cache);

#endif /* QUIRE_CORE_CHARGE_H */
