/* cache_inherit.c - a sequence that takes over the pages of another one, whose tokens move within
 * them.
 *
 * SPDX-License-Identifier: MIT */
#include "base/num.h"
#include "core/cache/cache_internal.h"

#include <string.h>

/* One call. */
typedef struct heir {
    quire_cache *cache;
    const quire_seq *from;
    quire_seq *to;
    uint32_t n_shared; /* entries that may have the page of `from` */
    uint32_t n_entries;
} heir;

/* The page of `from` for entry i of group 0, if no other table and no pin holds it; else the null
 * page. */
static quire_page_id inherited(const heir *h, uint32_t i)
{
    const quire_table *table = &h->from->tables[0];
    const quire_page *page;
    quire_page_id id;

    if (i >= h->n_shared || quire_leaf_of(table->leaves[i / QUIRE_LEAF_ENTRIES])->refs > 1) {
        return QUIRE_PAGE_NULL;
    }
    id = quire_table_entry(table, i)->page;
    page = id != QUIRE_PAGE_NULL ? quire_pool_page(&h->cache->pool, id) : NULL;
    return page != NULL && page->refs == 1 && !page->is_pinned && !page->is_offloaded
               ? id
               : QUIRE_PAGE_NULL;
}

/* The first entry with a page, in a group above 0. */
static uint32_t first_needed(const heir *h, uint32_t group)
{
    const uint32_t w = h->cache->opts.needs_last_tokens[group];
    const uint32_t page_tokens = h->cache->opts.page_tokens;

    return w != 0 ? quire_window_begin(h->n_entries * page_tokens, w) / page_tokens : h->n_entries;
}

/* Give holes of a group new pages, which are planned, from entry `first` on. */
static void holes_fill(const heir *h, uint32_t group, uint32_t first)
{
    quire_table *table = &h->to->tables[group];
    quire_pool *pool = &h->cache->pool;

    for (uint32_t i = first; i < h->n_entries; i++) {
        quire_page_entry *entry = quire_table_entry(table, i);

        if (entry->page == QUIRE_PAGE_NULL) {
            entry->page = quire_pool_take(pool, (quire_group_id)group, h->to->region, h->to->id);
            quire_pool_fill_set(pool, entry->page, h->cache->opts.page_tokens);
        }
    }
    table->holes_end = quire_min_u32(table->holes_end, first); /* a run from the begin on */
}

/* pages: the inherited ones, as for quire_seq_adopt(). */
static int fill(const heir *h, const quire_page_id *pages)
{
    const uint32_t n_node_groups = quire_cache_node_groups(h->cache);
    uint32_t n_pages[QUIRE_GROUPS_MAX] = { 0 };
    int rc;

    for (uint32_t i = 0; i < h->n_entries; i++) {
        n_pages[0] += pages[(size_t)i * n_node_groups] == QUIRE_PAGE_NULL;
    }
    for (uint32_t g = 1; g < h->cache->opts.n_groups; g++) {
        n_pages[g] = h->n_entries - first_needed(h, g);
    }
    QUIRE_TRY(quire_cache_pages_plan(h->cache, h->to->region, n_pages));
    rc = quire_seq_adopt(h->cache, h->to, pages, h->n_entries * h->cache->opts.page_tokens);
    if (rc < 0) {
        quire_pool_cancel(&h->cache->pool);
        return rc;
    }
    for (uint32_t g = 0; g < h->cache->opts.n_groups; g++) {
        holes_fill(h, g, g > 0 ? first_needed(h, g) : 0);
    }
    return QUIRE_OK;
}

int quire_seq_inherit(quire_cache *cache, quire_seq_id from, uint32_t n_shared, quire_seq_id to,
                      uint32_t n_tokens)
{
    const uint32_t page_tokens = cache->opts.page_tokens;
    const uint32_t n_node_groups = quire_cache_node_groups(cache);
    heir h = { .cache = cache,
               .from = quire_seqs_find(&cache->seqs, from),
               .to = quire_seqs_find(&cache->seqs, to),
               .n_shared = quire_min_u32(n_shared, n_tokens) / page_tokens,
               .n_entries = n_tokens / page_tokens };
    const size_t n_bytes = (size_t)h.n_entries * n_node_groups * sizeof(quire_page_id);
    quire_page_id *pages;
    int rc;

    QUIRE_FAIL_IF(h.from == NULL || h.to == NULL, QUIRE_NOTFOUND);
    QUIRE_FAIL_IF(n_tokens == 0 || n_tokens % page_tokens != 0 || n_shared % page_tokens != 0 ||
                      n_shared > h.from->n_tokens ||
                      !quire_seq_is_blank(h.to, cache->opts.n_groups),
                  QUIRE_INVAL);
    pages = cache->allocator.alloc(cache->allocator.ctx, n_bytes);
    QUIRE_FAIL_IF(pages == NULL, QUIRE_NOMEM);
    memset(pages, 0, n_bytes);
    for (uint32_t i = 0; i < h.n_shared; i++) {
        pages[(size_t)i * n_node_groups] = inherited(&h, i);
    }
    rc = fill(&h, pages);
    cache->allocator.free(cache->allocator.ctx, pages);
    if (rc == QUIRE_NOPAGES) {
        quire_counter_add(&cache->regions.items[h.to->region].refused, 1);
    }
    QUIRE_CACHE_CHECKED(cache);
    return rc;
}
