/* charge.c - moves of charges; see the header.
 *
 * SPDX-License-Identifier: MIT */
#include "core/cache/charge.h"

static quire_region *region_at(quire_cache *cache, quire_region_id region)
{
    return &cache->regions.items[region];
}

bool quire_charge_may_move(const quire_charge_move *move, uint64_t bytes)
{
    return move->moved_bytes < move->need_bytes && (bytes > 0 || move->takes_offloaded) &&
           (move->is_dry || quire_region_headroom_bytes(region_at(move->cache, move->to)) >= bytes);
}

/* ---- pages of sequences ---- */

typedef void (*page_fn)(quire_charge_move *move, quire_page_id id);

/* Call visit for every page that a sequence holds, once per leaf entry. */
static void seq_pages_visit(quire_charge_move *move, const quire_seq *seq, page_fn visit)
{
    for (uint32_t g = 0; g < move->cache->opts.n_groups; g++) {
        for (uint32_t i = 0; i < seq->tables[g].n_held; i++) {
            quire_page_id page = quire_table_entry(&seq->tables[g], i)->page;

            if (page != QUIRE_PAGE_NULL) {
                visit(move, page);
            }
        }
    }
    for (uint32_t i = 0; i < 2 && seq->states[i] != QUIRE_PAGE_NULL; i++) {
        visit(move, seq->states[i]);
    }
}

/* The pages of the open sequences of a region, or of all others. */
static void pages_visit(quire_charge_move *move, quire_region_id region, bool is_of_region,
                        page_fn visit)
{
    for (uint32_t i = 0; i < move->cache->seqs.n_items; i++) {
        const quire_seq *seq = move->cache->seqs.items[i];

        if (seq->id != QUIRE_SEQ_NULL && (seq->region == region) == is_of_region) {
            seq_pages_visit(move, seq, visit);
        }
    }
}

static void page_mark(quire_charge_move *move, quire_page_id id)
{
    move->cache->pool.pages[id].is_marked = 1;
}

static void page_unmark(quire_charge_move *move, quire_page_id id)
{
    move->cache->pool.pages[id].is_marked = 0;
}

/* Move a page that no node holds. In a dry run the page's mark records that it was counted. */
static void page_move(quire_charge_move *move, quire_page_id id)
{
    quire_page *page = &move->cache->pool.pages[id];
    uint64_t bytes = quire_pool_memory_bytes(&move->cache->pool, id);

    if (page->is_marked || page->n_kept > 0 || page->region != move->from ||
        !quire_charge_may_move(move, bytes)) {
        return;
    }
    move->moved_bytes += bytes;
    move->moved_pages++;
    if (move->is_dry) {
        page->is_marked = 1;
    } else {
        quire_pool_recharge(&move->cache->pool, id, move->to);
    }
}

/* The same for a spilled page. */
static void page_return(quire_charge_move *move, quire_page_id id)
{
    if (move->cache->pool.pages[id].home == move->to) {
        page_move(move, id);
    }
}

/* ---- both ways ---- */

void quire_charge_leave(quire_charge_move *move)
{
    quire_cache *cache = move->cache;

    pages_visit(move, move->from, true, page_mark);
    if (cache->keeper.leave != NULL) {
        cache->keeper.leave(cache->keeper.ctx, move);
    }
    pages_visit(move, move->from, false, page_move);
    pages_visit(move, move->from, true, page_unmark);
    if (move->is_dry) {
        pages_visit(move, move->from, false, page_unmark);
    } else {
        quire_counter_add(&region_at(cache, move->from)->reclaimed_pages, move->moved_pages);
    }
}

void quire_charge_return(quire_charge_move *move)
{
    quire_cache *cache = move->cache;

    if (quire_counter_get(&region_at(cache, move->to)->spilled_bytes) == 0) {
        return;
    }
    if (cache->keeper.give_back != NULL) {
        cache->keeper.give_back(cache->keeper.ctx, move);
    }
    pages_visit(move, move->to, true, page_return);
    if (move->is_dry) {
        pages_visit(move, move->to, true, page_unmark);
    }
}

/* ---- room for new pages ---- */

/* Evict in a region until it has room for bytes, as far as possible. */
static void make_headroom(quire_cache *cache, quire_region_id region, uint64_t bytes)
{
    const quire_region *found = region_at(cache, region);
    uint64_t headroom_bytes = quire_region_headroom_bytes(found);
    uint64_t cached_bytes = quire_counter_get(&found->cached_bytes);

    if (headroom_bytes < bytes) {
        bytes -= headroom_bytes;
        (void)quire_cache_evict(cache, region, bytes < cached_bytes ? bytes : cached_bytes);
    }
}

/* Returns whether anything has changed. Eviction may end the node of the sequence's tail, which
 * then need not be copied: the needs shrink even if no charge moves. Eviction runs between the dry
 * run and the move, and may take any expired node. */
static bool reclaim(quire_cache *cache, quire_region_id region, uint64_t need_bytes)
{
    const uint64_t generation = cache->regions.generation;
    quire_charge_move move = { .cache = cache,
                               .from = region,
                               .to = QUIRE_REGION_DYNAMIC,
                               .need_bytes = need_bytes,
                               .is_dry = true };
    quire_region *found = region_at(cache, region);
    const bool is_known = found->reclaimed_at == found->generation;

    if (is_known && QUIRE_DEBUG < 2) {
        return false;
    }
    quire_charge_leave(&move);
    if (move.moved_bytes == 0) {
        found->reclaimed_at = found->generation;
        return false;
    }
    QUIRE_ASSERT(!is_known); /* else some change was not reported */
    make_headroom(cache, QUIRE_REGION_DYNAMIC, move.moved_bytes);
    move.moved_bytes = 0;
    move.moved_pages = 0;
    move.is_dry = false;
    move.takes_candidates = true; /* the parent of a node evicted just now is a candidate */
    quire_charge_leave(&move);
    return cache->regions.generation != generation;
}

void quire_charge_shed(quire_cache *cache, quire_region_id region, uint64_t bytes)
{
    const quire_region *found = region_at(cache, region);
    uint64_t end_bytes = quire_counter_get(&found->charged_bytes);
    uint64_t charged_bytes;

    end_bytes = end_bytes > bytes ? end_bytes - bytes : 0;
    for (uint32_t i = 0; i < 2; i++) {
        charged_bytes = quire_counter_get(&found->charged_bytes);
        if (charged_bytes > end_bytes) {
            uint64_t cached_bytes = quire_counter_get(&found->cached_bytes);

            bytes = charged_bytes - end_bytes;
            (void)quire_cache_evict(cache, region, bytes < cached_bytes ? bytes : cached_bytes);
        }
        charged_bytes = quire_counter_get(&found->charged_bytes);
        if (charged_bytes <= end_bytes || region == QUIRE_REGION_DYNAMIC || i > 0) {
            return;
        }
        (void)reclaim(cache, region, charged_bytes - end_bytes);
        /* The parents of these nodes may be movable now: repeat. */
    }
}

bool quire_charge_headroom(quire_cache *cache, quire_region_id region, uint64_t bytes)
{
    const quire_region *found = region_at(cache, region);
    uint64_t headroom_bytes = quire_region_headroom_bytes(found);

    if (headroom_bytes < bytes) {
        quire_charge_shed(cache, region, bytes - headroom_bytes);
    }
    return quire_region_headroom_bytes(found) >= bytes;
}

/* Charge pages that do not fit the region to the dynamic region. Evict the region's cached pages
 * first, but only when they and the dynamic region together suffice. */
static bool spill(quire_cache *cache, quire_region_id region, const uint32_t *n_pages)
{
    const quire_region *dynamic = region_at(cache, QUIRE_REGION_DYNAMIC);
    uint64_t own_bytes = quire_counter_get(&region_at(cache, region)->cached_bytes);
    uint64_t over_bytes = quire_pool_spill_bytes(&cache->pool, region, n_pages);
    uint64_t headroom_bytes = quire_region_headroom_bytes(dynamic);
    uint64_t missing_bytes = over_bytes > headroom_bytes ? over_bytes - headroom_bytes : 0;
    uint64_t cached_bytes = quire_counter_get(&dynamic->cached_bytes);

    if (missing_bytes > cached_bytes && missing_bytes - cached_bytes > own_bytes) {
        return false;
    }
    if (own_bytes > 0 && quire_cache_evict(cache, region, own_bytes) > 0) {
        return true;
    }
    return missing_bytes > 0 && quire_cache_evict(cache, QUIRE_REGION_DYNAMIC, missing_bytes) > 0;
}

bool quire_charge_make_room(quire_cache *cache, quire_region_id region, const uint32_t *n_pages)
{
    uint64_t need_bytes = quire_pool_shortage_bytes(&cache->pool, region, n_pages);

    if (need_bytes == 0) {
        return false;
    }
    if (quire_cache_evict(cache, region, need_bytes) > 0) {
        return true;
    }
    if (region == QUIRE_REGION_DYNAMIC) {
        return false;
    }
    if (reclaim(cache, region, need_bytes)) {
        return true;
    }
    return quire_counter_get(&region_at(cache, region)->spills) != 0 &&
           spill(cache, region, n_pages);
}

void quire_charge_settle(quire_cache *cache)
{
    for (uint32_t r = 1; r < QUIRE_REGIONS_MAX; r++) {
        quire_region *region = &cache->regions.items[r];
        quire_charge_move move = { .cache = cache,
                                   .from = QUIRE_REGION_DYNAMIC,
                                   .to = (quire_region_id)r,
                                   .need_bytes = quire_region_headroom_bytes(region) };
        const bool is_known = region->returned_at == region->generation &&
                              move.need_bytes <= region->returned_headroom_bytes;

        if (quire_counter_get(&region->spilled_bytes) == 0 || move.need_bytes == 0 ||
            (is_known && QUIRE_DEBUG < 2)) {
            continue;
        }
        quire_charge_return(&move);
        QUIRE_ASSERT(!is_known || move.moved_bytes == 0);
        region->returned_at = region->generation;
        region->returned_headroom_bytes = quire_region_headroom_bytes(region);
    }
}
