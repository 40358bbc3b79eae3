/* charge.h - moves charges between budgets when a pinned region runs short, shrinks or grows.
 *
 * A region uses a page when one of its sequences or pins holds the page. A page charged to region R
 * but not used by R may leave for another budget: a page that is only cached, or held only by
 * others. A spilled page of one of R's sequences may return. The charges of a node's pages move
 * together (P9 of prefix_internal.h); payloads never move.
 *
 * A search for such pages walks all sequences: O(open sequences x their pages + nodes charged to
 * R). The search runs under pressure only, and is not repeated after a failure before something has
 * changed (quire_region_changed()).
 *
 * Thread: owner. Nothing here allocates.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_CHARGE_H
#define QUIRE_CORE_CHARGE_H

#include "core/cache/cache_internal.h"

/* One move of charges: from a region that does not use the pages, or back to a region that does. */
typedef struct quire_charge_move {
    quire_cache *cache;
    quire_region_id from;
    quire_region_id to;
    uint64_t need_bytes;  /* stop after this number has moved */
    uint64_t moved_bytes; /* with is_dry: would have moved */
    uint64_t moved_pages;
    bool is_dry;           /* count only, ignoring the room in `to` */
    bool takes_candidates; /* move eviction candidates of `from` too */
    bool takes_offloaded;  /* move offloaded pages too, which take no memory: `from` ends */
} quire_charge_move;

/* Whether the move may continue with an item of these bytes of memory, 0 if it is offloaded. */
bool quire_charge_may_move(const quire_charge_move *move, uint64_t bytes);

/* Move the charge of pages unused by `from` to `to`, until need_bytes have moved. */
void quire_charge_leave(quire_charge_move *move);

/* Move the charge of pages that spilled to `from` and that `to`'s sequences hold back to `to`. */
void quire_charge_return(quire_charge_move *move);

/* Make room for n_pages more pages for sequences of a region, by evicting, reclaiming and spilling
 * (quire/cache.h, regions). Returns whether anything was freed or moved. If so, the needs may have
 * shrunk: the caller computes them again. */
bool quire_charge_make_room(quire_cache *cache, quire_region_id region, const uint32_t *n_pages);

/* Evict and reclaim until a region's charge has dropped by `bytes`, as far as possible. */
void quire_charge_shed(quire_cache *cache, quire_region_id region, uint64_t bytes);

/* Evict and reclaim until a region has room for `bytes`. Returns whether it has. */
bool quire_charge_headroom(quire_cache *cache, quire_region_id region, uint64_t bytes);

/* Let spilled pages go home to regions that have room. */
void quire_charge_settle(quire_cache *cache);

#endif /* QUIRE_CORE_CHARGE_H */
