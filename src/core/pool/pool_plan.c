/* pool_plan.c - whether pages can be taken: budget, page ids, slots. See pool.h, "Plan, then
 * apply".
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "core/pool/placement.h"
#include "core/pool/pool.h"

uint64_t quire_pool_spill_bytes(const quire_pool *pool, quire_region_id region,
                                const uint32_t *n_pages)
{
    uint64_t left_bytes = quire_region_headroom_bytes(&pool->regions->items[region]);
    uint64_t sum = 0;

    for (uint32_t g = 0; g < pool->n_groups; g++) {
        uint64_t charge_bytes = pool->groups[g].charge_bytes;
        uint64_t n_own = left_bytes / charge_bytes;
        uint64_t bytes;

        n_own = n_own < n_pages[g] ? n_own : n_pages[g];
        left_bytes -= n_own * charge_bytes;
        if (__builtin_mul_overflow(n_pages[g] - n_own, charge_bytes, &bytes) ||
            __builtin_add_overflow(sum, bytes, &sum)) {
            return UINT64_MAX;
        }
    }
    return sum;
}

static int plan_budget(const quire_pool *pool, quire_region_id region, const uint32_t *n_pages)
{
    const quire_region *budget = quire_region_find(pool->regions, region);
    uint64_t over_bytes;

    QUIRE_CHECK(budget != NULL);
    over_bytes = quire_pool_spill_bytes(pool, region, n_pages);
    if (over_bytes == 0) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(quire_counter_get(&budget->spills) == 0, QUIRE_NOPAGES);
    QUIRE_FAIL_IF(over_bytes >
                      quire_region_headroom_bytes(&pool->regions->items[QUIRE_REGION_DYNAMIC]),
                  QUIRE_NOPAGES);
    return QUIRE_OK;
}

uint64_t quire_pool_charge_bytes(const quire_pool *pool, const uint32_t *n_pages)
{
    uint64_t sum = 0;

    for (uint32_t g = 0; g < pool->n_groups; g++) {
        uint64_t bytes;

        if (__builtin_mul_overflow(n_pages[g], pool->groups[g].charge_bytes, &bytes) ||
            __builtin_add_overflow(sum, bytes, &sum)) {
            return UINT64_MAX;
        }
    }
    return sum;
}

uint64_t quire_pool_shortage_bytes(const quire_pool *pool, quire_region_id region,
                                   const uint32_t *n_pages)
{
    const quire_region *budget = quire_region_find(pool->regions, region);
    uint64_t wanted_bytes = quire_pool_charge_bytes(pool, n_pages);
    uint64_t left_bytes;

    QUIRE_CHECK(budget != NULL);
    left_bytes = quire_region_headroom_bytes(budget);
    return wanted_bytes > left_bytes ? wanted_bytes - left_bytes : 0;
}

static int plan_ids(quire_pool *pool, uint64_t n)
{
    uint64_t capacity = pool->ids_capacity;
    uint64_t wanted;

    if (n <= pool->n_ids_free) {
        return QUIRE_OK;
    }
    wanted = pool->id_end + (n - pool->n_ids_free);
    if (wanted <= capacity) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(wanted - 1 > pool->pages_max, QUIRE_LIMIT);
    while (capacity < wanted) {
        capacity *= 2;
    }
    /* Never beyond the limit, so that the limit is exact. */
    if (capacity > (uint64_t)pool->pages_max + 1) {
        capacity = (uint64_t)pool->pages_max + 1;
    }
    return quire_pool_ids_resize(pool, (uint32_t)capacity);
}

static int plan_slots(quire_pool *pool, const uint32_t *n_pages)
{
    int rc = QUIRE_OK;

    for (uint32_t g = 0; g < pool->n_groups; g++) {
        pool->classes[pool->groups[g].class_index].plan_pages += n_pages[g];
    }
    for (uint32_t c = 0; c < pool->n_classes && rc == QUIRE_OK; c++) {
        quire_pool_class *class = &pool->classes[c];

        while (rc == QUIRE_OK && quire_counter_get(&class->free_pages) < class->plan_pages) {
            rc = quire_placement_grow(pool, class);
        }
    }
    for (uint32_t c = 0; c < pool->n_classes; c++) {
        pool->classes[c].plan_pages = 0;
    }
    return rc;
}

int quire_pool_plan(quire_pool *pool, quire_region_id region, const uint32_t *n_pages)
{
    uint64_t total = 0;
    int rc;

    for (uint32_t g = 0; g < pool->n_groups; g++) {
        total += n_pages[g];
    }
    pool->plan_serial = pool->next_serial;
    rc = plan_budget(pool, region, n_pages);
    if (rc == QUIRE_OK) {
        rc = plan_ids(pool, total);
    }
    if (rc == QUIRE_OK) {
        rc = plan_slots(pool, n_pages);
    }
    if (rc < 0) {
        quire_pool_cancel(pool);
    }
    return rc;
}

void quire_pool_cancel(quire_pool *pool)
{
    for (uint32_t c = 0; c < pool->n_classes; c++) {
        quire_extent *extent = pool->classes[c].buckets[QUIRE_EXTENT_BUCKET_EMPTY];

        while (extent != NULL) {
            quire_extent *next = extent->next;

            if (extent->serial >= pool->plan_serial) {
                quire_placement_unmap(pool, extent);
            }
            extent = next;
        }
    }
    quire_counter_add(&pool->alloc_failures_total, 1);
}
