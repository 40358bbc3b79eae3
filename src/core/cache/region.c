/* region.c - byte budgets.
 *
 * SPDX-License-Identifier: MIT */
#include "core/cache/region.h"

#include "base/check.h"

#include <string.h>

void quire_regions_init(quire_regions *regions, uint64_t budget_bytes)
{
    memset(regions, 0, sizeof(*regions));
    quire_region_changed(regions, QUIRE_REGION_DYNAMIC); /* no generation is 0 */
    quire_counter_set(&regions->items[QUIRE_REGION_DYNAMIC].is_open, 1);
    quire_counter_set(&regions->items[QUIRE_REGION_DYNAMIC].budget_bytes, budget_bytes);
}

void quire_region_changed(quire_regions *regions, quire_region_id id)
{
    regions->items[id].generation++;
    regions->generation++;
}

void quire_region_begin(quire_regions *regions, quire_region_id id, bool spills)
{
    quire_region *region = &regions->items[id];

    QUIRE_CHECK(quire_counter_get(&region->charged_bytes) == 0);
    quire_counter_set(&region->spills, spills);
    quire_counter_set(&region->charged_peak_bytes, 0);
    quire_counter_set(&region->spilled_pages, 0);
    quire_counter_set(&region->returned_pages, 0);
    quire_counter_set(&region->reclaimed_pages, 0);
    quire_counter_set(&region->adopted_pages, 0);
    quire_counter_set(&region->refused, 0);
    quire_counter_set(&region->is_open, 1);
    quire_region_changed(regions, id);
}

quire_region *quire_region_find(quire_regions *regions, quire_region_id id)
{
    if (id >= QUIRE_REGIONS_MAX || quire_counter_get(&regions->items[id].is_open) == 0) {
        return NULL;
    }
    return &regions->items[id];
}

uint64_t quire_regions_budget_bytes(const quire_regions *regions)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < QUIRE_REGIONS_MAX; i++) {
        uint64_t budget = quire_counter_get(&regions->items[i].budget_bytes);

        sum = budget > UINT64_MAX - sum ? UINT64_MAX : sum + budget;
    }
    return sum;
}

static void charged_add(quire_region *region, uint64_t charge_bytes)
{
    uint64_t charged = quire_counter_get(&region->charged_bytes) + charge_bytes;

    QUIRE_ASSERT(charge_bytes <= quire_region_headroom_bytes(region));
    quire_counter_set(&region->charged_bytes, charged);
    quire_counter_peak(&region->charged_peak_bytes, charged);
}

static void bytes_sub(quire_counter *counter, uint64_t bytes)
{
    QUIRE_ASSERT(bytes <= quire_counter_get(counter));
    quire_counter_sub(counter, bytes);
}

void quire_region_charge(quire_region *region, uint64_t charge_bytes, bool is_offloaded)
{
    if (is_offloaded) {
        quire_counter_add(&region->offloaded_bytes, charge_bytes);
    } else {
        charged_add(region, charge_bytes);
    }
    quire_counter_add(&region->pages, 1);
}

void quire_region_uncharge(quire_region *region, uint64_t charge_bytes, bool is_offloaded)
{
    bytes_sub(is_offloaded ? &region->offloaded_bytes : &region->charged_bytes, charge_bytes);
    bytes_sub(&region->pages, 1);
}

void quire_region_offload(quire_region *region, uint64_t charge_bytes)
{
    bytes_sub(&region->charged_bytes, charge_bytes);
    quire_counter_add(&region->offloaded_bytes, charge_bytes);
}

void quire_region_onload(quire_region *region, uint64_t charge_bytes)
{
    bytes_sub(&region->offloaded_bytes, charge_bytes);
    charged_add(region, charge_bytes);
}

int quire_region_resize(quire_regions *regions, quire_region_id id, uint64_t budget_bytes)
{
    quire_region *region = &regions->items[id];

    QUIRE_FAIL_IF(budget_bytes < quire_counter_get(&region->charged_bytes), QUIRE_INVAL);
    QUIRE_FAIL_IF(budget_bytes < quire_region_promised_bytes(region), QUIRE_INVAL);
    quire_counter_set(&region->budget_bytes, budget_bytes);
    quire_region_changed(regions, id);
    return QUIRE_OK;
}
