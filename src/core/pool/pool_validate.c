/* pool_validate.c - checks every invariant of the pool.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "core/pool/placement.h"
#include "core/pool/pool.h"

static void extent_validate(const quire_pool *pool, const quire_extent *extent)
{
    const quire_pool_class *class = &pool->classes[extent->class_index];
    uint32_t n_pages = 0;
    uint32_t n_listed = 0;

    QUIRE_CHECK(extent->class_index < pool->n_classes);
    QUIRE_CHECK(extent->n_used <= extent->n_fresh && extent->n_fresh <= extent->n_touched);
    QUIRE_CHECK(extent->n_touched <= extent->n_slots && extent->n_slots <= extent->n_slots_max);
    QUIRE_CHECK(extent->bucket == quire_placement_bucket(extent));
    QUIRE_CHECK(extent->used_min <= extent->n_used && extent->n_used < extent->used_end);
    QUIRE_CHECK(extent->n_slots * class->page_bytes <= extent->size_bytes);
    QUIRE_CHECK(class->n_parts == 1 || extent->n_slots == class->shape.n_slots);
    QUIRE_CHECK(class->n_parts == 1 ? extent->touched_bytes == 0
                                    : extent->touched_bytes <= extent->n_slots * class->page_bytes);
    QUIRE_CHECK((extent->base == NULL) == (class->page_bytes == 0));
    for (uint32_t s = 0; s < extent->n_fresh; s++) {
        quire_page_id id = extent->slots[s];

        if ((id & QUIRE_SLOT_FREE) == 0) {
            QUIRE_CHECK(id != QUIRE_PAGE_NULL && id < pool->id_end);
            QUIRE_CHECK(quire_pool_state(pool, id) != QUIRE_PAGE_FREE);
            QUIRE_CHECK(pool->pages[id].extent == extent->number && pool->pages[id].slot == s);
            n_pages++;
        }
    }
    QUIRE_CHECK(n_pages == extent->n_used);
    for (uint32_t s = extent->free_head; s != QUIRE_SLOT_NONE;
         s = extent->slots[s] & ~QUIRE_SLOT_FREE) {
        QUIRE_CHECK(s < extent->n_fresh && (extent->slots[s] & QUIRE_SLOT_FREE) != 0);
        QUIRE_CHECK(++n_listed <= extent->n_fresh);
    }
    QUIRE_CHECK(n_listed == extent->n_fresh - extent->n_used);
}

/* Check the lists and counters of a class against its extents. Returns the number of extents. */
static uint32_t class_validate(const quire_pool *pool, const quire_pool_class *class)
{
    uint64_t free_pages = 0;
    uint64_t free_empty_pages = 0;
    uint64_t ready_pages = 0;
    uint64_t tail_bytes = 0;
    uint32_t n_empty = 0;
    uint32_t n = 0;

    for (uint32_t b = 0; b < QUIRE_EXTENT_BUCKETS; b++) {
        bool has_bit = (class->bucket_mask & 1u << b) != 0;

        QUIRE_CHECK(has_bit == (class->buckets[b] != NULL && b != QUIRE_EXTENT_BUCKET_FULL));
        for (const quire_extent *e = class->buckets[b], *prev = NULL; e != NULL;
             prev = e, e = e->next) {
            QUIRE_CHECK(e->prev == prev && e->bucket == b);
            QUIRE_CHECK(&pool->classes[e->class_index] == class);
            QUIRE_CHECK(e->number < pool->extents_capacity && pool->extents[e->number] == e);
            free_pages += e->n_slots - e->n_used;
            free_empty_pages += b == QUIRE_EXTENT_BUCKET_EMPTY ? e->n_slots : 0;
            n_empty += b == QUIRE_EXTENT_BUCKET_EMPTY;
            ready_pages += e->n_touched - e->n_used;
            tail_bytes += e->size_bytes - e->n_slots * class->page_bytes;
            n++;
        }
    }
    QUIRE_CHECK(class->plan_pages == 0);
    QUIRE_CHECK(ready_pages == class->ready_pages);
    QUIRE_CHECK(free_pages == quire_counter_get(&class->free_pages));
    QUIRE_CHECK(free_empty_pages == quire_counter_get(&class->free_empty_pages));
    QUIRE_CHECK(tail_bytes == quire_counter_get(&class->tail_bytes));
    QUIRE_CHECK(n_empty == quire_counter_get(&class->extents_empty));
    return n;
}

static void page_validate(const quire_pool *pool, quire_page_id id)
{
    const quire_page *page = &pool->pages[id];
    const quire_extent *extent;
    quire_memory memory;

    if (quire_page_state_of(page) == QUIRE_PAGE_FREE) {
        QUIRE_CHECK(pool->addrs[id].extent == NULL);
        return;
    }
    QUIRE_CHECK(page->group < pool->n_groups && page->region < QUIRE_REGIONS_MAX);
    QUIRE_CHECK(page->n_filled <= pool->page_tokens && page->n_kept <= page->n_filled);
    QUIRE_CHECK(!page->is_marked && (!page->is_pinned || page->n_kept > 0));
    QUIRE_CHECK(page->home == 0 || (page->refs > 0 && page->home != page->region));
    if (page->is_offloaded) {
        QUIRE_CHECK(pool->addrs[id].extent == NULL && pool->addrs[id].slot == page->extent &&
                    pool->addrs[id].memory == QUIRE_MEMORY_OFFLOADED);
        QUIRE_CHECK(page->n_filled == pool->page_tokens);
        return;
    }
    QUIRE_CHECK(page->extent < pool->extents_capacity && pool->extents[page->extent] != NULL);
    extent = pool->extents[page->extent];
    QUIRE_CHECK(extent->class_index == pool->groups[page->group].class_index);
    QUIRE_CHECK(page->slot < extent->n_fresh && extent->slots[page->slot] == id);
    QUIRE_CHECK(pool->addrs[id].extent == extent->base);
    memory = pool->classes[extent->class_index].is_hosts ? QUIRE_MEMORY_HOST : pool->memory.memory;
    QUIRE_CHECK(extent->base == NULL ||
                (pool->addrs[id].slot == page->slot && pool->addrs[id].memory == memory));
}

/* Check sums over pages against the counters of classes and regions. */
static void sums_validate(const quire_pool *pool)
{
    uint64_t live[QUIRE_GROUPS_MAX] = { 0 };
    uint64_t cached[QUIRE_GROUPS_MAX] = { 0 };
    uint64_t slack[QUIRE_GROUPS_MAX] = { 0 };
    uint64_t charged[QUIRE_REGIONS_MAX] = { 0 };
    uint64_t unheld[QUIRE_REGIONS_MAX] = { 0 };
    uint64_t pinned[QUIRE_REGIONS_MAX] = { 0 };
    uint64_t spilled[QUIRE_REGIONS_MAX] = { 0 };
    uint64_t offloaded[QUIRE_REGIONS_MAX] = { 0 };
    uint64_t pages[QUIRE_REGIONS_MAX] = { 0 };
    uint64_t n_offloaded = 0;
    uint64_t total = 0;

    for (quire_page_id id = 1; id < pool->id_end; id++) {
        const quire_page *page = &pool->pages[id];
        uint32_t c = pool->groups[page->group].class_index;
        quire_page_state state = quire_page_state_of(page);

        page_validate(pool, id);
        if (state != QUIRE_PAGE_FREE) {
            uint64_t charge_bytes = pool->groups[page->group].charge_bytes;

            live[c] += state == QUIRE_PAGE_LIVE && !page->is_offloaded;
            cached[c] += state == QUIRE_PAGE_CACHED && !page->is_offloaded;
            offloaded[page->region] += page->is_offloaded ? charge_bytes : 0;
            n_offloaded += page->is_offloaded;
            slack[c] += state == QUIRE_PAGE_LIVE ? pool->page_tokens - page->n_filled : 0;
            charged[page->region] += quire_pool_memory_bytes(pool, id);
            unheld[page->region] +=
                state == QUIRE_PAGE_CACHED && !page->is_pinned && !page->is_offloaded ? charge_bytes
                                                                                      : 0;
            pinned[page->region] += page->is_pinned ? charge_bytes : 0;
            spilled[page->home] += page->home != 0 ? charge_bytes : 0;
            pages[page->region]++;
            total++;
        }
    }
    for (uint32_t c = 0; c < pool->n_classes; c++) {
        QUIRE_CHECK(live[c] == quire_counter_get(&pool->classes[c].live_pages));
        QUIRE_CHECK(cached[c] == quire_counter_get(&pool->classes[c].cached_pages));
        QUIRE_CHECK(slack[c] == quire_counter_get(&pool->classes[c].slack_slots));
    }
    for (uint32_t r = 0; r < QUIRE_REGIONS_MAX; r++) {
        const quire_region *region = &pool->regions->items[r];

        QUIRE_CHECK(charged[r] == quire_counter_get(&region->charged_bytes));
        QUIRE_CHECK(unheld[r] == quire_counter_get(&region->cached_bytes));
        QUIRE_CHECK(pinned[r] == quire_counter_get(&region->pinned_bytes));
        QUIRE_CHECK(spilled[r] == quire_counter_get(&region->spilled_bytes));
        QUIRE_CHECK(offloaded[r] == quire_counter_get(&region->offloaded_bytes));
        QUIRE_CHECK(pages[r] == quire_counter_get(&region->pages));
        QUIRE_CHECK(quire_region_promised_bytes(region) <=
                    quire_counter_get(&region->budget_bytes));
        QUIRE_CHECK(pages[r] == 0 || quire_counter_get(&region->is_open) != 0);
        QUIRE_CHECK(charged[r] <= quire_counter_get(&region->budget_bytes));
        QUIRE_CHECK(charged[r] <= quire_counter_get(&region->charged_peak_bytes));
    }
    QUIRE_CHECK(n_offloaded == quire_counter_get(&pool->offloaded_pages));
    QUIRE_CHECK(total == quire_counter_get(&pool->pages_now));
    QUIRE_CHECK(total <= quire_counter_get(&pool->pages_peak));
    QUIRE_CHECK(total ==
                quire_counter_get(&pool->allocs_total) - quire_counter_get(&pool->frees_total));
    QUIRE_CHECK(total + pool->n_ids_free == pool->id_end - 1);
}

static void ids_validate(const quire_pool *pool)
{
    uint32_t n = 0;

    QUIRE_CHECK(pool->id_end >= 1 && pool->id_end <= pool->ids_capacity);
    QUIRE_CHECK(pool->id_end - 1 <= pool->pages_max);
    QUIRE_CHECK(pool->pages[QUIRE_PAGE_NULL].refs == 0 &&
                pool->addrs[QUIRE_PAGE_NULL].extent == NULL);
    for (quire_page_id id = pool->id_free; id != QUIRE_PAGE_NULL; id = pool->pages[id].extent) {
        QUIRE_CHECK(id < pool->id_end && quire_pool_state(pool, id) == QUIRE_PAGE_FREE);
        QUIRE_CHECK(++n <= pool->n_ids_free);
    }
    QUIRE_CHECK(n == pool->n_ids_free);
}

void quire_pool_validate(const quire_pool *pool)
{
    uint64_t extent_bytes = 0;
    uint64_t locked_bytes = 0;
    uint32_t n_extents = 0;
    uint32_t n_listed = 0;

    ids_validate(pool);
    for (uint32_t i = 0; i < pool->extents_capacity; i++) {
        const quire_extent *extent = pool->extents[i];

        if (extent == NULL) {
            QUIRE_CHECK(i >= pool->extent_hint);
            continue;
        }
        QUIRE_CHECK(extent->number == i);
        extent_validate(pool, extent);
        extent_bytes += extent->size_bytes;
        locked_bytes += extent->is_locked ? extent->size_bytes : 0;
        n_extents++;
    }
    QUIRE_CHECK(n_extents <= pool->extents_max);
    QUIRE_CHECK(n_extents == quire_counter_get(&pool->extents_now));
    QUIRE_CHECK(extent_bytes == quire_counter_get(&pool->extent_bytes));
    QUIRE_CHECK(extent_bytes <= quire_counter_get(&pool->extent_peak_bytes));
    QUIRE_CHECK(locked_bytes == quire_counter_get(&pool->locked_bytes));
    for (uint32_t c = 0; c < pool->n_classes; c++) {
        n_listed += class_validate(pool, &pool->classes[c]);
    }
    QUIRE_CHECK(n_listed == n_extents);
    sums_validate(pool);
}
