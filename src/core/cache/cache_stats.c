/* cache_stats.c - statistics, computed from the owner's counters.
 *
 * quire_cache_stats_get() reads only constants of the cache (opts, classes' page sizes) and
 * counters, because the caller may be on any thread.
 *
 * SPDX-License-Identifier: MIT */
#include "core/cache/cache_internal.h"

#include <string.h>

/* slots * page_bytes / page_tokens without intermediate overflow. */
static uint64_t slots_to_bytes(uint64_t n_slots, size_t page_bytes, uint32_t page_tokens)
{
    return n_slots / page_tokens * page_bytes + n_slots % page_tokens * page_bytes / page_tokens;
}

void quire_cache_stats_get(const quire_cache *cache, quire_cache_stats *out)
{
    const quire_pool *pool = &cache->pool;
    const quire_region *dynamic = &cache->regions.items[QUIRE_REGION_DYNAMIC];
    uint64_t free_partial_bytes = 0;

    memset(out, 0, sizeof(*out));
    for (uint32_t c = 0; c < pool->n_classes; c++) {
        const quire_pool_class *class = &pool->classes[c];
        uint64_t live = quire_counter_get(&class->live_pages);
        uint64_t n_free = quire_counter_get(&class->free_pages);
        uint64_t n_free_empty = quire_counter_get(&class->free_empty_pages);

        out->live_bytes += live * class->page_bytes;
        out->cached_bytes += quire_counter_get(&class->cached_pages) * class->page_bytes;
        out->free_bytes += n_free * class->page_bytes;
        /* Both counters move between the two reads: clamp. */
        free_partial_bytes +=
            (n_free > n_free_empty ? n_free - n_free_empty : 0) * class->page_bytes;
        out->tail_bytes += quire_counter_get(&class->tail_bytes);
        out->slack_bytes += slots_to_bytes(quire_counter_get(&class->slack_slots),
                                           class->page_bytes, pool->page_tokens);
        out->pages_live += live;
        out->pages_cached += quire_counter_get(&class->cached_pages);
        out->pages_free += n_free;
        out->extents_empty += (uint32_t)quire_counter_get(&class->extents_empty);
    }
    if (out->free_bytes > 0) {
        out->external_fragmentation = (double)free_partial_bytes / (double)out->free_bytes;
    }
    for (uint32_t r = 0; r < QUIRE_REGIONS_MAX; r++) {
        out->offloaded_bytes += quire_counter_get(&cache->regions.items[r].offloaded_bytes);
    }
    out->pages_offloaded = quire_counter_get(&pool->offloaded_pages);
    out->offloads_total = quire_counter_get(&pool->offloads_total);
    out->onloads_total = quire_counter_get(&pool->onloads_total);
    out->budget_bytes = quire_counter_get(&dynamic->budget_bytes);
    out->charged_bytes = quire_counter_get(&dynamic->charged_bytes);
    out->charged_peak_bytes = quire_counter_get(&dynamic->charged_peak_bytes);
    out->extent_bytes = quire_counter_get(&pool->extent_bytes);
    out->extent_peak_bytes = quire_counter_get(&pool->extent_peak_bytes);
    out->locked_bytes = quire_counter_get(&pool->locked_bytes);
    out->pages_peak = quire_counter_get(&pool->pages_peak);
    out->allocs_total = quire_counter_get(&pool->allocs_total);
    out->frees_total = quire_counter_get(&pool->frees_total);
    out->alloc_failures_total = quire_counter_get(&pool->alloc_failures_total);
    out->page_copies_total = quire_counter_get(&pool->page_copies_total);
    out->page_moves_total = quire_counter_get(&pool->page_moves_total);
    out->watermark_pages = quire_counter_get(&pool->watermark_pages);
    out->seqs_open = (uint32_t)quire_counter_get(&cache->seqs.n_open);
    out->extents = (uint32_t)quire_counter_get(&pool->extents_now);
}

int quire_region_stats_get(const quire_cache *cache, quire_region_id region,
                           quire_region_stats *out)
{
    const quire_region *found;

    QUIRE_FAIL_IF(region >= QUIRE_REGIONS_MAX, QUIRE_NOTFOUND);
    found = &cache->regions.items[region];
    QUIRE_FAIL_IF(quire_counter_get(&found->is_open) == 0, QUIRE_NOTFOUND);
    out->budget_bytes = quire_counter_get(&found->budget_bytes);
    out->charged_bytes = quire_counter_get(&found->charged_bytes);
    out->charged_peak_bytes = quire_counter_get(&found->charged_peak_bytes);
    out->cached_bytes = quire_counter_get(&found->cached_bytes);
    out->pinned_bytes = quire_counter_get(&found->pinned_bytes);
    out->reserved_bytes = quire_counter_get(&found->reserved_bytes);
    out->spilled_bytes = quire_counter_get(&found->spilled_bytes);
    out->offloaded_bytes = quire_counter_get(&found->offloaded_bytes);
    out->pages = quire_counter_get(&found->pages);
    out->seqs = quire_counter_get(&found->n_seqs);
    out->spilled_pages_total = quire_counter_get(&found->spilled_pages);
    out->returned_pages_total = quire_counter_get(&found->returned_pages);
    out->reclaimed_pages_total = quire_counter_get(&found->reclaimed_pages);
    out->adopted_pages_total = quire_counter_get(&found->adopted_pages);
    out->refused_total = quire_counter_get(&found->refused);
    out->spills_to_dynamic = quire_counter_get(&found->spills) != 0;
    return QUIRE_OK;
}

static quire_page_info info_of(const quire_cache *cache, quire_page_id id)
{
    const quire_page *page = &cache->pool.pages[id];

    return (quire_page_info){ .page = id,
                              .group = page->group,
                              .region = page->region,
                              .refs = page->refs,
                              .n_filled = page->n_filled,
                              .n_kept = page->n_kept,
                              .is_pinned = page->is_pinned,
                              .is_offloaded = page->is_offloaded,
                              .extent = page->is_offloaded ? 0 : page->extent,
                              .slot = page->is_offloaded ? page->extent : page->slot };
}

static bool is_in_use(const quire_cache *cache, quire_page_id id)
{
    return quire_page_state_of(&cache->pool.pages[id]) != QUIRE_PAGE_FREE;
}

int quire_cache_page_info_get(const quire_cache *cache, quire_page_id page, quire_page_info *out)
{
    QUIRE_FAIL_IF(page == QUIRE_PAGE_NULL || page >= cache->pool.id_end || !is_in_use(cache, page),
                  QUIRE_NOTFOUND);
    *out = info_of(cache, page);
    return QUIRE_OK;
}

int quire_cache_pages_visit(const quire_cache *cache,
                            int (*visit)(void *ctx, const quire_page_info *page), void *ctx)
{
    for (quire_page_id id = 1; id < cache->pool.id_end; id++) {
        const quire_page_info info = info_of(cache, id);
        const int rc = is_in_use(cache, id) ? visit(ctx, &info) : 0;

        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

uint32_t quire_cache_page_id_end(const quire_cache *cache)
{
    return cache->pool.id_end;
}

quire_page_id quire_cache_pages_visit_some(const quire_cache *cache, quire_page_id first,
                                           uint32_t n_ids,
                                           void (*visit)(void *ctx, const quire_page_info *page),
                                           void *ctx)
{
    const quire_page_id id_end = cache->pool.id_end;
    quire_page_id id = first;

    for (; id < id_end && id - first < n_ids; id++) {
        if (is_in_use(cache, id)) {
            const quire_page_info info = info_of(cache, id);

            visit(ctx, &info);
        }
    }
    return id < id_end ? id : QUIRE_PAGE_NULL;
}
