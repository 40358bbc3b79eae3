/* cache_region.c - regions open and close, and budget moves between them.
 *
 * SPDX-License-Identifier: MIT */
#include "core/cache/cache_internal.h"
#include "core/cache/charge.h"

/* Set a budget that is known to cover the charged and the promised bytes. */
static void budget_set(quire_cache *cache, quire_region_id region, uint64_t bytes)
{
    QUIRE_CHECK(quire_region_resize(&cache->regions, region, bytes) == QUIRE_OK);
}

static void budget_give(quire_cache *cache, quire_region_id region, uint64_t bytes)
{
    budget_set(cache, region,
               quire_counter_get(&cache->regions.items[region].budget_bytes) + bytes);
}

static uint64_t over_bytes_of(const quire_region *region, uint64_t left_bytes)
{
    uint64_t charged_bytes = quire_counter_get(&region->charged_bytes);

    return charged_bytes > left_bytes ? charged_bytes - left_bytes : 0;
}

/* The move of charges to `to` that lets the budget of `from` shrink to left_bytes. */
static quire_charge_move leaving(quire_cache *cache, quire_region_id from, quire_region_id to,
                                 uint64_t left_bytes)
{
    return (quire_charge_move){ .cache = cache,
                                .from = from,
                                .to = to,
                                .need_bytes =
                                    over_bytes_of(&cache->regions.items[from], left_bytes),
                                .takes_candidates = true };
}

/* Shrink a pinned region to left_bytes: unused pages leave with the budget. Pages are whole, so
 * more charge than budget may have to leave. When `to` has no room for the excess, evict or reclaim
 * part of it. */
static int shrink_pinned(quire_cache *cache, quire_region_id from, quire_region_id to,
                         uint64_t left_bytes)
{
    quire_region *region = &cache->regions.items[from];
    quire_region *taker = &cache->regions.items[to];
    uint64_t bytes = quire_counter_get(&region->budget_bytes) - left_bytes;
    quire_charge_move move;

    for (uint32_t i = 0; i < 3; i++) {
        move = leaving(cache, from, to, left_bytes);
        move.is_dry = true;
        if (move.need_bytes == 0) {
            break;
        }
        quire_charge_leave(&move);
        QUIRE_FAIL_IF(move.moved_bytes < move.need_bytes, QUIRE_NOPAGES);
        if (move.moved_bytes <= bytes + quire_region_headroom_bytes(taker)) {
            break;
        }
        QUIRE_FAIL_IF(i == 2, QUIRE_NOPAGES);
        if (i > 0 || !quire_charge_headroom(cache, to, move.moved_bytes - bytes)) {
            quire_charge_shed(cache, from, move.need_bytes);
        }
    }
    budget_give(cache, to, bytes);
    move = leaving(cache, from, to, left_bytes);
    if (move.need_bytes > 0) {
        quire_charge_leave(&move);
    }
    budget_set(cache, from, left_bytes);
    return QUIRE_OK;
}

/* Shrink the dynamic region in favour of a pinned region. The pinned region's spilled pages go
 * home. */
static int shrink_dynamic(quire_cache *cache, quire_region_id to, uint64_t left_bytes)
{
    quire_region *region = &cache->regions.items[QUIRE_REGION_DYNAMIC];
    uint64_t bytes = quire_counter_get(&region->budget_bytes) - left_bytes;
    quire_charge_move move = { .cache = cache, .from = QUIRE_REGION_DYNAMIC, .to = to };
    uint64_t home_bytes;

    /* Eviction may move or end pages that would go home: count them again after each eviction. */
    while ((move.need_bytes = over_bytes_of(region, left_bytes)) > 0) {
        move.is_dry = true;
        move.moved_bytes = 0;
        quire_charge_return(&move);
        /* The bytes that would go home may exceed the transferred budget. */
        home_bytes = move.moved_bytes <= bytes ? move.moved_bytes : 0;
        if (home_bytes >= move.need_bytes) {
            break;
        }
        QUIRE_FAIL_IF(
            quire_cache_evict(cache, QUIRE_REGION_DYNAMIC, move.need_bytes - home_bytes) == 0,
            QUIRE_NOPAGES);
    }
    budget_give(cache, to, bytes);
    if (move.need_bytes > 0) {
        move.is_dry = false;
        move.moved_bytes = 0;
        quire_charge_return(&move);
    }
    budget_set(cache, QUIRE_REGION_DYNAMIC, left_bytes);
    return QUIRE_OK;
}

/* Offloaded pages, which take no memory, leave a region that is about to close. */
static void leave_offloaded(quire_cache *cache, quire_region_id from)
{
    quire_charge_move move = leaving(cache, from, QUIRE_REGION_DYNAMIC, 0);

    move.need_bytes = UINT64_MAX;
    move.takes_offloaded = true;
    quire_charge_leave(&move);
}

int quire_region_transfer(quire_cache *cache, quire_region_id from, quire_region_id to,
                          uint64_t bytes)
{
    quire_region *giver = quire_region_find(&cache->regions, from);
    quire_region *taker = quire_region_find(&cache->regions, to);
    uint64_t left_bytes;

    QUIRE_FAIL_IF(giver == NULL || taker == NULL, QUIRE_NOTFOUND);
    QUIRE_FAIL_IF(giver == taker, QUIRE_INVAL);
    QUIRE_FAIL_IF(bytes > quire_counter_get(&giver->budget_bytes), QUIRE_RANGE);
    left_bytes = quire_counter_get(&giver->budget_bytes) - bytes;
    QUIRE_FAIL_IF(left_bytes < quire_region_promised_bytes(giver), QUIRE_NOPAGES);
    QUIRE_TRY(from == QUIRE_REGION_DYNAMIC ? shrink_dynamic(cache, to, left_bytes)
                                           : shrink_pinned(cache, from, to, left_bytes));
    QUIRE_CACHE_CHECKED(cache);
    return QUIRE_OK;
}

int quire_region_open(quire_cache *cache, const quire_region_opts *opts, quire_region_id *out)
{
    uint32_t id = 0;
    int rc;

    *out = QUIRE_REGION_DYNAMIC;
    QUIRE_FAIL_IF(opts->struct_bytes != sizeof(*opts), QUIRE_INVAL);
    while (id < QUIRE_REGIONS_MAX && quire_counter_get(&cache->regions.items[id].is_open) != 0) {
        id++;
    }
    QUIRE_FAIL_IF(id == QUIRE_REGIONS_MAX, QUIRE_LIMIT);
    quire_region_begin(&cache->regions, (quire_region_id)id, opts->spills_to_dynamic);
    rc =
        quire_region_transfer(cache, QUIRE_REGION_DYNAMIC, (quire_region_id)id, opts->budget_bytes);
    if (rc < 0) {
        quire_counter_set(&cache->regions.items[id].is_open, 0);
        return rc == QUIRE_RANGE ? QUIRE_NOPAGES : rc;
    }
    *out = (quire_region_id)id;
    return QUIRE_OK;
}

int quire_region_close(quire_cache *cache, quire_region_id region)
{
    quire_region *found = quire_region_find(&cache->regions, region);

    QUIRE_FAIL_IF(found == NULL, QUIRE_NOTFOUND);
    QUIRE_FAIL_IF(region == QUIRE_REGION_DYNAMIC, QUIRE_INVAL);
    QUIRE_FAIL_IF(quire_counter_get(&found->n_seqs) > 0 || quire_region_promised_bytes(found) > 0,
                  QUIRE_AGAIN);
    /* A region without sequences and pins uses nothing: every page may leave. */
    QUIRE_TRY(quire_region_transfer(cache, region, QUIRE_REGION_DYNAMIC,
                                    quire_counter_get(&found->budget_bytes)));
    if (quire_counter_get(&found->offloaded_bytes) > 0) {
        leave_offloaded(cache, region);
    }
    quire_pool_home_forget(&cache->pool, region);
    quire_counter_set(&found->is_open, 0);
    QUIRE_CACHE_CHECKED(cache);
    return QUIRE_OK;
}

int quire_region_budget_set(quire_cache *cache, quire_region_id region, uint64_t budget_bytes)
{
    quire_region *found = quire_region_find(&cache->regions, region);
    uint64_t charged_bytes;

    QUIRE_FAIL_IF(found == NULL, QUIRE_NOTFOUND);
    charged_bytes = quire_counter_get(&found->charged_bytes);
    if (budget_bytes < charged_bytes) {
        (void)quire_cache_evict(cache, region, charged_bytes - budget_bytes);
    }
    return quire_region_resize(&cache->regions, region, budget_bytes);
}
