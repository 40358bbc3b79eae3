/* region.h - byte budgets that pages are charged to.
 *
 * Invariants: cached + pinned <= charged <= budget; charged = sum of the charges of the region's
 * pages, cached that of the cached ones that no pin holds, pinned that of those that one holds;
 * spilled = sum over the pages of other regions that are at home here.
 *
 * Thread: owner, except where a counter is read (core/cache/counter.h).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_REGION_H
#define QUIRE_CORE_REGION_H

#include "core/cache/counter.h"
#include "quire/cache.h"

typedef struct quire_region {
    quire_counter is_open; /* 0 or 1 */
    quire_counter spills;  /* likewise; never of the dynamic region */
    quire_counter budget_bytes;
    quire_counter charged_bytes;
    quire_counter charged_peak_bytes;
    quire_counter cached_bytes;
    quire_counter pinned_bytes;
    quire_counter reserved_bytes; /* set aside for pins that hold nothing yet */
    quire_counter spilled_bytes;
    quire_counter pages;
    quire_counter n_seqs; /* open */
    quire_counter spilled_pages;
    quire_counter returned_pages;
    quire_counter reclaimed_pages;
    quire_counter adopted_pages;
    quire_counter refused;
    /* Counts what may have left a page of the region without a user of its own, or given it room.
     * What looked for such and found none need not look again before it has moved on. */
    uint64_t n_changes;
    uint64_t reclaimed_at; /* n_changes + 1 when there was nothing to reclaim; 0 = not known */
    uint64_t returned_at;  /* likewise of spilled pages that could come home ... */
    uint64_t returned_headroom_bytes; /* ... with so much room left */
} quire_region;

typedef struct quire_regions {
    quire_region items[QUIRE_REGIONS_MAX];
} quire_regions;

/* One open region, QUIRE_REGION_DYNAMIC, with this budget. */
void quire_regions_init(quire_regions *regions, uint64_t budget_bytes);

/* A region that is not open begins, empty and without a budget. */
void quire_region_begin(quire_region *region, bool spills);

/* NULL when there is no such region. */
quire_region *quire_region_find(quire_regions *regions, quire_region_id id);

/* Sum of all budgets; saturates. */
uint64_t quire_regions_budget_bytes(const quire_regions *regions);

/* Bytes that may still be charged. */
static inline uint64_t quire_region_headroom_bytes(const quire_region *region)
{
    return quire_counter_get(&region->budget_bytes) - quire_counter_get(&region->charged_bytes);
}

/* What pins hold and were promised: the budget is never below it. */
static inline uint64_t quire_region_promised_bytes(const quire_region *region)
{
    return quire_counter_get(&region->pinned_bytes) + quire_counter_get(&region->reserved_bytes);
}

/* Whether any of the region's pages may have lost their users, or any room come up, since the last
 * search that ended with *searched_at = n_changes + 1. */
static inline bool quire_region_has_changed(const quire_region *region, uint64_t searched_at)
{
    return searched_at != region->n_changes + 1;
}

/* One page more, one page less. Charging beyond the budget is a bug of the planner. */
void quire_region_charge(quire_region *region, uint64_t charge_bytes);
void quire_region_uncharge(quire_region *region, uint64_t charge_bytes);

/* Errors: QUIRE_INVAL (below what is charged, or what is pinned and reserved). */
int quire_region_resize(quire_region *region, uint64_t budget_bytes);

#endif /* QUIRE_CORE_REGION_H */
