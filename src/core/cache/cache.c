/* cache.c - the cache as a whole: creation, upkeep, eviction, history. Sequences are in
 * cache_seq.c, regions in cache_region.c, statistics and validation in cache_stats.c and
 * cache_validate.c.
 *
 * SPDX-License-Identifier: MIT */
#include "core/cache/cache_internal.h"
#include "core/cache/charge.h"
#include "core/pool/payload.h"

#include <string.h>

static bool is_page_size_ok(size_t page_bytes)
{
    return page_bytes % 64 == 0 && page_bytes <= QUIRE_PAGE_BYTES_MAX;
}

/* Check the parts of a group's pages: their number, whole cache lines, no gaps. */
static int parts_check(uint32_t n_parts, const size_t *part_bytes, size_t page_bytes)
{
    size_t left_bytes = page_bytes;

    if (n_parts < 2) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(n_parts > QUIRE_PARTS_MAX || part_bytes == NULL, QUIRE_INVAL);
    for (uint32_t p = 0; p < n_parts; p++) {
        QUIRE_FAIL_IF(part_bytes[p] % 64 != 0 || part_bytes[p] > left_bytes, QUIRE_INVAL);
        left_bytes -= part_bytes[p];
    }
    QUIRE_FAIL_IF(left_bytes != 0, QUIRE_INVAL);
    return QUIRE_OK;
}

static int opts_check(const quire_cache_opts *opts)
{
    QUIRE_FAIL_IF(opts->struct_bytes != sizeof(*opts), QUIRE_INVAL);
    QUIRE_FAIL_IF(opts->page_tokens < QUIRE_PAGE_TOKENS_MIN ||
                      opts->page_tokens > QUIRE_PAGE_TOKENS_MAX ||
                      opts->page_tokens % QUIRE_PAGE_TOKENS_MIN != 0,
                  QUIRE_INVAL);
    QUIRE_FAIL_IF(opts->n_groups == 0 || opts->n_groups > QUIRE_GROUPS_MAX, QUIRE_INVAL);
    QUIRE_FAIL_IF(opts->needs_last_tokens[0] != 0, QUIRE_INVAL);
    QUIRE_FAIL_IF(opts->state_bytes != 0 &&
                      (opts->n_groups == QUIRE_GROUPS_MAX || !is_page_size_ok(opts->state_bytes)),
                  QUIRE_INVAL);
    QUIRE_FAIL_IF(opts->seq_state_bytes != 0 &&
                      (opts->state_bytes == 0 || opts->n_groups + 1 == QUIRE_GROUPS_MAX ||
                       !is_page_size_ok(opts->seq_state_bytes)),
                  QUIRE_INVAL);
    QUIRE_FAIL_IF(opts->state_charge_bytes > QUIRE_PAGE_BYTES_MAX ||
                      opts->seq_state_charge_bytes > QUIRE_PAGE_BYTES_MAX,
                  QUIRE_INVAL);
    for (uint32_t g = 0; g < opts->n_groups; g++) {
        QUIRE_FAIL_IF(!is_page_size_ok(opts->page_bytes[g]), QUIRE_INVAL);
        QUIRE_FAIL_IF(opts->charge_bytes[g] > QUIRE_PAGE_BYTES_MAX, QUIRE_INVAL);
        QUIRE_TRY(parts_check(opts->n_parts[g], opts->part_bytes[g], opts->page_bytes[g]));
    }
    QUIRE_FAIL_IF(opts->seqs_max == 0 || opts->seqs_max > QUIRE_SEQS_MAX, QUIRE_INVAL);
    QUIRE_FAIL_IF(opts->seq_tokens_max == 0 || opts->seq_tokens_max > QUIRE_SEQ_TOKENS_MAX,
                  QUIRE_INVAL);
    QUIRE_FAIL_IF(opts->history_events > QUIRE_HISTORY_EVENTS_MAX, QUIRE_INVAL);
    QUIRE_FAIL_IF(opts->memory != NULL && opts->lock_memory, QUIRE_INVAL);
    return QUIRE_OK;
}

static void state_group_init(quire_cache *cache, uint32_t g, size_t bytes, size_t charge_bytes)
{
    cache->opts.page_bytes[g] = bytes;
    cache->opts.charge_bytes[g] = charge_bytes != 0 ? charge_bytes : bytes;
    cache->opts.n_parts[g] = 1;
    cache->opts.part_bytes[g] = NULL;
    cache->opts.needs_last_tokens[g] = 0;
}

/* The groups of states, behind the others. The window of the nodes' group says that a hit needs the
 * state behind its last token. */
static void states_init(quire_cache *cache)
{
    const quire_cache_opts *o = &cache->opts;
    const uint32_t g = o->n_groups;

    if (o->state_bytes != 0) {
        state_group_init(cache, g, o->state_bytes, o->state_charge_bytes);
        cache->opts.needs_last_tokens[g] = 2;
    }
    if (o->seq_state_bytes != 0) {
        state_group_init(cache, g + 1, o->seq_state_bytes, o->seq_state_charge_bytes);
    }
}

int quire_cache_create_in(quire_cache **out, const quire_cache_opts *opts,
                          const quire_cache_env *env)
{
    const quire_allocator *allocator;
    quire_pool_opts pool_opts;
    quire_cache *cache;

    *out = NULL;
    QUIRE_TRY(opts_check(opts));
    allocator = opts->allocator != NULL ? opts->allocator : quire_allocator_default();
    cache = allocator->alloc(allocator->ctx, sizeof(*cache));
    QUIRE_FAIL_IF(cache == NULL, QUIRE_NOMEM);

    memset(cache, 0, sizeof(*cache));
    cache->allocator = *allocator;
    cache->opts = *opts;
    cache->opts.memory = NULL;
    cache->opts.allocator = NULL; /* the caller's struct may not outlive this call; the copy does */
    for (uint32_t g = 0; g < opts->n_groups; g++) {
        if (opts->charge_bytes[g] == 0) {
            cache->opts.charge_bytes[g] = opts->page_bytes[g] > 0 ? opts->page_bytes[g] : 1;
        }
    }
    states_init(cache);
    quire_regions_init(&cache->regions, opts->budget_bytes);
    quire_leaf_stock_init(&cache->stock, allocator);
    quire_seqs_init(&cache->seqs, allocator, opts->seqs_max, opts->n_groups);
    pool_opts = (quire_pool_opts){ .page_tokens = opts->page_tokens,
                                   .n_groups = quire_cache_all_groups(cache),
                                   .page_bytes = cache->opts.page_bytes,
                                   .n_parts = cache->opts.n_parts,
                                   .part_bytes = cache->opts.part_bytes,
                                   .charge_bytes = cache->opts.charge_bytes,
                                   .pages_max = env->pages_max,
                                   .extents_max = env->extents_max,
                                   .lock_memory = opts->lock_memory,
                                   .allocator = allocator,
                                   .source = env->source,
                                   .memory = opts->memory,
                                   .n_memory_groups = opts->n_groups,
                                   .regions = &cache->regions,
                                   .history = &cache->history };
    if (quire_history_init(&cache->history, allocator, opts->history_events, opts->clock_us,
                           opts->clock_ctx) < 0 ||
        quire_pool_init(&cache->pool, &pool_opts) < 0) {
        quire_history_fini(&cache->history);
        allocator->free(allocator->ctx, cache);
        return QUIRE_NOMEM;
    }
    memset(cache->opts.part_bytes, 0, sizeof(cache->opts.part_bytes)); /* as above */
    *out = cache;
    QUIRE_CACHE_CHECKED(cache);
    return QUIRE_OK;
}

int quire_cache_create(quire_cache **out, const quire_cache_opts *opts)
{
    quire_cache_env env = { .source = quire_extent_source_os(),
                            .pages_max = QUIRE_PAGES_MAX,
                            .extents_max = QUIRE_EXTENTS_MAX };

    return quire_cache_create_in(out, opts, &env);
}

void quire_cache_destroy(quire_cache *cache)
{
    quire_allocator allocator;

    if (cache == NULL) {
        return;
    }
    for (uint32_t i = 0; i < cache->seqs.n_items; i++) {
        if (cache->seqs.items[i]->id != QUIRE_SEQ_NULL) {
            (void)quire_seq_close(cache, cache->seqs.items[i]->id);
        }
    }
    quire_seqs_fini(&cache->seqs);
    quire_leaf_stock_fini(&cache->stock);
    quire_pool_fini(&cache->pool);
    quire_history_fini(&cache->history);
    allocator = cache->allocator;
    allocator.free(allocator.ctx, cache);
}

uint32_t quire_cache_extent_pages(size_t page_bytes, uint32_t n_parts)
{
    return quire_extent_shape_for(page_bytes, n_parts).n_slots;
}

const quire_page_addr *quire_cache_page_addrs(const quire_cache *cache)
{
    return cache->pool.addrs;
}

uint32_t quire_cache_page_tokens(const quire_cache *cache)
{
    return cache->opts.page_tokens;
}

uint32_t quire_cache_groups(const quire_cache *cache)
{
    return cache->opts.n_groups;
}

/* ---- payloads ---- */

size_t quire_cache_payload_bytes(const quire_cache *cache, quire_group_id group)
{
    return group < quire_cache_all_groups(cache) ? cache->opts.page_bytes[group] : 0;
}

void *quire_cache_state(const quire_cache *cache, quire_page_id page)
{
    const quire_page_addr addr = cache->pool.addrs[page];
    const quire_group_id group = quire_pool_page(&cache->pool, page)->group;

    QUIRE_CHECK(group >= cache->opts.n_groups);
    return (unsigned char *)addr.extent + (size_t)addr.slot * cache->opts.page_bytes[group];
}

/* Find the class of a page in use, and check its payload bytes. */
static int payload_find(const quire_cache *cache, quire_page_id id, size_t n_bytes,
                        const quire_pool_class **out)
{
    const quire_pool *pool = &cache->pool;
    const quire_page *page = &pool->pages[id];

    QUIRE_FAIL_IF(id == QUIRE_PAGE_NULL || id >= pool->id_end ||
                      quire_page_state_of(page) == QUIRE_PAGE_FREE,
                  QUIRE_NOTFOUND);
    *out = &pool->classes[pool->groups[page->group].class_index];
    QUIRE_FAIL_IF(n_bytes == 0 || n_bytes != (*out)->page_bytes, QUIRE_INVAL);
    return QUIRE_OK;
}

int quire_cache_page_gather(const quire_cache *cache, quire_page_id page, void *buffer,
                            size_t buffer_bytes)
{
    const quire_pool_class *class;

    QUIRE_TRY(payload_find(cache, page, buffer_bytes, &class));
    if (cache->pool.pages[page].is_offloaded) {
        const quire_offload_ops *ops = &cache->pool.offload;

        return ops->read(ops->ctx, cache->pool.pages[page].extent, buffer, buffer_bytes);
    }
    return quire_payload_gather(&cache->pool, class, buffer, cache->pool.addrs[page]);
}

int quire_cache_page_scatter(quire_cache *cache, quire_page_id page, const void *buffer,
                             size_t buffer_bytes)
{
    const quire_pool_class *class;
    const quire_page *found;

    QUIRE_TRY(payload_find(cache, page, buffer_bytes, &class));
    found = quire_pool_page(&cache->pool, page);
    QUIRE_FAIL_IF(found->refs != 1 || found->n_kept > 0 || found->is_offloaded, QUIRE_AGAIN);
    return quire_payload_scatter(&cache->pool, class, cache->pool.addrs[page], buffer);
}

uint64_t quire_cache_generation(const quire_cache *cache)
{
    return cache->regions.generation;
}

void quire_cache_maintain(quire_cache *cache)
{
    quire_charge_settle(cache);
    quire_pool_maintain(&cache->pool, cache->opts.watermark_pages_max);
    QUIRE_CACHE_CHECKED(cache);
}

uint32_t quire_cache_coalesce(quire_cache *cache, uint32_t moves_max)
{
    uint32_t moves = quire_pool_coalesce(&cache->pool, moves_max);

    QUIRE_CACHE_CHECKED(cache);
    return moves;
}

uint64_t quire_cache_trim(quire_cache *cache, uint64_t keep_bytes)
{
    uint64_t released_bytes = quire_pool_trim(&cache->pool, keep_bytes);

    QUIRE_CACHE_CHECKED(cache);
    return released_bytes;
}

void quire_cache_keeper_set(quire_cache *cache, const quire_cache_keeper *keeper)
{
    static const quire_cache_keeper none = { 0 };

    QUIRE_CHECK(keeper == NULL || (keeper->evict != NULL && keeper->leave != NULL &&
                                   keeper->give_back != NULL && keeper->trade != NULL));
    cache->keeper = keeper != NULL ? *keeper : none;
}

uint64_t quire_cache_evict(quire_cache *cache, quire_region_id region, uint64_t need_bytes)
{
    const quire_region *found = &cache->regions.items[region];
    const quire_cache_keeper *keeper = &cache->keeper;
    uint64_t charged_bytes = quire_counter_get(&found->charged_bytes);
    uint64_t freed_bytes;

    if (keeper->evict == NULL || cache->is_evicting ||
        need_bytes > quire_counter_get(&found->cached_bytes)) {
        return 0;
    }
    cache->is_evicting = true;
    freed_bytes = keeper->evict(keeper->ctx, region, need_bytes);
    while (freed_bytes < need_bytes && region == QUIRE_REGION_DYNAMIC &&
           keeper->trade(keeper->ctx)) {
        (void)keeper->evict(keeper->ctx, region, need_bytes - freed_bytes);
        freed_bytes = charged_bytes - quire_counter_get(&found->charged_bytes);
    }
    cache->is_evicting = false;
    return freed_bytes;
}

int quire_cache_history_visit(const quire_cache *cache,
                              int (*visit)(void *ctx, const quire_history_event *event), void *ctx)
{
    return quire_history_visit(&cache->history, visit, ctx);
}
