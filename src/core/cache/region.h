/* region.h - byte budgets that pages are charged to.
 *
 * Invariants: cached <= charged <= budget; pinned + reserved <= budget; charged = the sum of the
 * charges of the region's pages in memory; cached = the sum for cached pages without a pin that are
 * in memory; pinned = the sum for pages with a pin, in memory or not; offloaded = the sum for
 * offloaded pages; spilled = the sum for pages of other regions whose home is this region.
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
    quire_counter reserved_bytes; /* set aside for pins that are not held yet */
    quire_counter spilled_bytes;
    quire_counter offloaded_bytes; /* not charged */
    quire_counter pages;
    quire_counter n_seqs; /* open */
    quire_counter spilled_pages;
    quire_counter returned_pages;
    quire_counter reclaimed_pages;
    quire_counter adopted_pages;
    quire_counter refused;
    uint64_t generation;   /* see quire_region_changed() */
    uint64_t reclaimed_at; /* the generation in which nothing could be reclaimed; 0 = not known */
    uint64_t returned_at;  /* the generation in which no spilled page could come home ... */
    uint64_t returned_headroom_bytes; /* ... with this much room left */
} quire_region;

typedef struct quire_regions {
    quire_region items[QUIRE_REGIONS_MAX];
    uint64_t generation; /* of all: see quire_cache_generation() */
} quire_regions;

/* One open region, QUIRE_REGION_DYNAMIC, with this budget. */
void quire_regions_init(quire_regions *regions, uint64_t budget_bytes);

/* Open a region that is not open, empty and without a budget. */
void quire_region_begin(quire_regions *regions, quire_region_id id, bool spills);

/* NULL when there is no such region. */
quire_region *quire_region_find(quire_regions *regions, quire_region_id id);

/* Sum of all budgets; saturates. */
uint64_t quire_regions_budget_bytes(const quire_regions *regions);

/* Bytes that may still be charged. */
static inline uint64_t quire_region_headroom_bytes(const quire_region *region)
{
    return quire_counter_get(&region->budget_bytes) - quire_counter_get(&region->charged_bytes);
}

/* Pinned plus reserved bytes. The budget is never below this sum. */
static inline uint64_t quire_region_promised_bytes(const quire_region *region)
{
    return quire_counter_get(&region->pinned_bytes) + quire_counter_get(&region->reserved_bytes);
}

/* Report a change after which a failed search in this region, or a failed request for room, may
 * succeed: a page of the region gained or lost a holder, or its charge moved; a node of the region
 * became a candidate for eviction, or ceased to be a candidate; a pin was dropped; the budget or
 * the reserved bytes changed. The functions that make these changes report them; their callers need
 * not. Taking a page and appending a token are not reported. */
void quire_region_changed(quire_regions *regions, quire_region_id id);

/* Add or remove the charge of one page. Charging beyond the budget is a bug of the planner. */
/* A page in memory, or an offloaded one, begins or ceases to belong to the region. */
void quire_region_charge(quire_region *region, uint64_t charge_bytes, bool is_offloaded);
void quire_region_uncharge(quire_region *region, uint64_t charge_bytes, bool is_offloaded);

/* A page of the region is offloaded, or takes memory again, for which there is room. */
void quire_region_offload(quire_region *region, uint64_t charge_bytes);
void quire_region_onload(quire_region *region, uint64_t charge_bytes);

/* Set a budget. Errors: QUIRE_INVAL (below the charged bytes, or below the pinned plus reserved
 * bytes). */
int quire_region_resize(quire_regions *regions, quire_region_id id, uint64_t budget_bytes);

#endif /* QUIRE_CORE_REGION_H */
