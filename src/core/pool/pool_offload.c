/* pool_offload.c - pages whose payload lies outside of the pool: see quire/cache.h, "offloaded
 * pages".
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "core/pool/payload.h"
#include "core/pool/placement.h"
#include "core/pool/pool.h"

static quire_pool_class *class_of(quire_pool *pool, const quire_page *page)
{
    return &pool->classes[pool->groups[page->group].class_index];
}

/* The page counts in its class and, when cached without a pin, in its region, or no longer. */
static void counted(quire_pool *pool, const quire_page *page, bool is_counted)
{
    quire_pool_class *class = class_of(pool, page);
    quire_region *region = &pool->regions->items[page->region];
    const uint64_t charge_bytes = pool->groups[page->group].charge_bytes;
    const uint64_t unheld_bytes = page->refs == 0 && !page->is_pinned ? charge_bytes : 0;
    quire_counter *pages = page->refs > 0 ? &class->live_pages : &class->cached_pages;

    if (is_counted) {
        quire_counter_add(pages, 1);
        quire_counter_add(&region->cached_bytes, unheld_bytes);
    } else {
        quire_counter_sub(pages, 1);
        quire_counter_sub(&region->cached_bytes, unheld_bytes);
    }
}

int quire_pool_offload(quire_pool *pool, quire_page_id id, uint32_t slot)
{
    quire_page *page = &pool->pages[id];

    QUIRE_FAIL_IF(quire_pool_state(pool, id) == QUIRE_PAGE_FREE, QUIRE_NOTFOUND);
    QUIRE_FAIL_IF(pool->offload.release == NULL || pool->addrs[id].extent == NULL ||
                      page->n_filled < pool->page_tokens,
                  QUIRE_INVAL);
    QUIRE_FAIL_IF(page->is_pinned || page->refs > 1, QUIRE_AGAIN);
    counted(pool, page, false);
    quire_region_changed(pool->regions, page->region);
    quire_region_offload(&pool->regions->items[page->region],
                         pool->groups[page->group].charge_bytes);
    quire_pool_history(pool, QUIRE_HISTORY_OFFLOAD, id, QUIRE_SEQ_NULL);
    quire_placement_give(class_of(pool, page), pool->extents[page->extent], page->slot);
    page->is_offloaded = 1;
    page->extent = slot;
    page->slot = 0;
    pool->addrs[id] = (quire_page_addr){ .slot = slot, .memory = QUIRE_MEMORY_OFFLOADED };
    quire_counter_add(&pool->offloaded_pages, 1);
    quire_counter_add(&pool->offloads_total, 1);
    return QUIRE_OK;
}

void quire_pool_slot_release(quire_pool *pool, const quire_page *page)
{
    quire_counter_sub(&pool->offloaded_pages, 1);
    pool->offload.release(pool->offload.ctx, page->extent);
}

int quire_pool_onload(quire_pool *pool, quire_page_id id, const unsigned char *payload)
{
    quire_page *page = &pool->pages[id];
    quire_pool_class *class = class_of(pool, page);
    uint32_t slot;
    quire_extent *extent;
    quire_page_addr addr;
    int rc;

    QUIRE_FAIL_IF(!page->is_offloaded, QUIRE_NOTFOUND);
    QUIRE_FAIL_IF(quire_region_headroom_bytes(&pool->regions->items[page->region]) <
                      pool->groups[page->group].charge_bytes,
                  QUIRE_NOPAGES);
    if (quire_counter_get(&class->free_pages) == 0) {
        QUIRE_TRY(quire_placement_grow(pool, class));
    }
    extent = quire_placement_take(class, &slot);
    addr = quire_payload_addr(pool, extent, slot);
    rc = quire_payload_scatter(pool, class, addr, payload);
    if (rc < 0) {
        quire_placement_give(class, extent, slot);
        return rc;
    }
    quire_pool_slot_release(pool, page);
    quire_region_onload(&pool->regions->items[page->region],
                        pool->groups[page->group].charge_bytes);
    extent->slots[slot] = id;
    page->is_offloaded = 0;
    page->extent = extent->number;
    page->slot = (uint16_t)slot;
    pool->addrs[id] = addr;
    counted(pool, page, true);
    quire_counter_add(&pool->onloads_total, 1);
    quire_pool_history(pool, QUIRE_HISTORY_ONLOAD, id, QUIRE_SEQ_NULL);
    return QUIRE_OK;
}
