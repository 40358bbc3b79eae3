/* region.h - byte budgets that pages are charged to.
 *
 * Invariants: cached <= charged <= budget; charged = sum of the charges of the region's pages,
 * cached that of the cached ones.
 *
 * Thread: owner, except where a counter is read (core/counter.h).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_REGION_H
#define QUIRE_CORE_REGION_H

#include "core/counter.h"
#include "quire/cache.h"

typedef struct quire_region {
    bool is_open;
    quire_counter budget_bytes;
    quire_counter charged_bytes;
    quire_counter charged_peak_bytes;
    quire_counter cached_bytes; /* charge of the pages that only the prefix tree holds */
    quire_counter pages;
} quire_region;

typedef struct quire_regions {
    quire_region items[QUIRE_REGIONS_MAX];
} quire_regions;

/* One open region, QUIRE_REGION_DYNAMIC, with this budget. */
void quire_regions_init(quire_regions *regions, uint64_t budget_bytes);

/* NULL when there is no such region. */
quire_region *quire_region_find(quire_regions *regions, quire_region_id id);

/* Sum of all budgets; saturates. */
uint64_t quire_regions_budget_bytes(const quire_regions *regions);

/* Bytes that may still be charged. */
uint64_t quire_region_headroom_bytes(const quire_region *region);

/* One page more, one page less. Charging beyond the budget is a bug of the planner. */
void quire_region_charge(quire_region *region, uint64_t charge_bytes);
void quire_region_uncharge(quire_region *region, uint64_t charge_bytes);

/* Errors: QUIRE_INVAL (below what is charged). */
int quire_region_resize(quire_region *region, uint64_t budget_bytes);

#endif /* QUIRE_CORE_REGION_H */
