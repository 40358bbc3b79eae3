/* cache_offload.c - offloaded pages: see quire/cache.h.
 *
 * SPDX-License-Identifier: MIT */
#include "core/cache/cache_internal.h"

#include "base/check.h"

void quire_cache_offload_set(quire_cache *cache, const quire_offload_ops *ops)
{
    QUIRE_CHECK(quire_counter_get(&cache->pool.offloaded_pages) == 0);
    cache->pool.offload = *ops;
}

uint32_t quire_cache_pages_offloaded(const quire_cache *cache)
{
    return (uint32_t)quire_counter_get(&cache->pool.offloaded_pages);
}

static bool is_known(const quire_cache *cache, quire_page_id page)
{
    return page != QUIRE_PAGE_NULL && page < cache->pool.id_end;
}

int quire_cache_page_offload(quire_cache *cache, quire_page_id page, uint32_t slot)
{
    QUIRE_FAIL_IF(!is_known(cache, page), QUIRE_NOTFOUND);
    QUIRE_TRY(quire_pool_offload(&cache->pool, page, slot));
    QUIRE_CACHE_CHECKED(cache);
    return QUIRE_OK;
}

int quire_cache_page_onload(quire_cache *cache, quire_page_id page, const void *buffer,
                            size_t buffer_bytes)
{
    QUIRE_FAIL_IF(!is_known(cache, page), QUIRE_NOTFOUND);
    QUIRE_FAIL_IF(buffer_bytes !=
                      quire_cache_payload_bytes(cache, cache->pool.pages[page].group & 0xfu),
                  QUIRE_INVAL);
    QUIRE_TRY(quire_pool_onload(&cache->pool, page, buffer));
    QUIRE_CACHE_CHECKED(cache);
    return QUIRE_OK;
}
