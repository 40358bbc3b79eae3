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

/* The page in memory begins or ceases to count in its class and, when cached, in its region. */
static void counted_sub(quire_pool *pool, const quire_page *page)
{
    quire_pool_class *class = class_of(pool, page);

    if (page->refs > 0) {
        quire_counter_sub(&class->live_pages, 1);
        return;
    }
    quire_counter_sub(&class->cached_pages, 1);
    quire_counter_sub(&pool->regions->items[page->region].cached_bytes,
                      pool->groups[page->group].charge_bytes);
}

static void counted_add(quire_pool *pool, const quire_page *page)
{
    quire_pool_class *class = class_of(pool, page);

    if (page->refs > 0) {
        quire_counter_add(&class->live_pages, 1);
        return;
    }
    quire_counter_add(&class->cached_pages, 1);
    quire_counter_add(&pool->regions->items[page->region].cached_bytes,
                      pool->groups[page->group].charge_bytes);
}

int quire_pool_offload(quire_pool *pool, quire_page_id id, uint32_t slot)
{
    quire_page *page = &pool->pages[id];

    QUIRE_FAIL_IF(quire_pool_state(pool, id) == QUIRE_PAGE_FREE, QUIRE_NOTFOUND);
    QUIRE_FAIL_IF(pool->offload.release == NULL || pool->addrs[id].extent == NULL ||
                      page->n_filled < pool->page_tokens,
                  QUIRE_INVAL);
    QUIRE_FAIL_IF(page->is_pinned || page->refs > 1, QUIRE_AGAIN);
    counted_sub(pool, page);
    quire_region_changed(pool->regions, page->region);
    quire_region_offloaded_add(&pool->regions->items[page->region],
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

void quire_pool_offloaded_end(quire_pool *pool, const quire_page *page)
{
    quire_region_offloaded_sub(&pool->regions->items[page->region],
                               pool->groups[page->group].charge_bytes);
    quire_counter_sub(&pool->offloaded_pages, 1);
    pool->offload.release(pool->offload.ctx, page->extent);
}

int quire_pool_onload(quire_pool *pool, quire_page_id id, const unsigned char *payload)
{
    quire_page *page = &pool->pages[id];
    quire_pool_class *class = class_of(pool, page);
    uint32_t slot;
    quire_extent *extent;

    QUIRE_FAIL_IF(!page->is_offloaded, QUIRE_NOTFOUND);
    QUIRE_FAIL_IF(quire_region_headroom_bytes(&pool->regions->items[page->region]) <
                      pool->groups[page->group].charge_bytes,
                  QUIRE_NOPAGES);
    if (quire_counter_get(&class->free_pages) == 0) {
        QUIRE_TRY(quire_placement_grow(pool, class));
    }
    quire_pool_offloaded_end(pool, page);
    extent = quire_placement_take(class, &slot);
    extent->slots[slot] = id;
    page->is_offloaded = 0;
    page->extent = extent->number;
    page->slot = (uint16_t)slot;
    pool->addrs[id] = quire_payload_addr(extent, slot);
    quire_payload_scatter(class, pool->addrs[id], payload);
    counted_add(pool, page);
    quire_counter_add(&pool->onloads_total, 1);
    quire_pool_history(pool, QUIRE_HISTORY_ONLOAD, id, QUIRE_SEQ_NULL);
    return QUIRE_OK;
}
