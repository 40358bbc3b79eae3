/* cache_seq.c - the sequence calls of the cache: plan in every group, then apply.
 *
 * SPDX-License-Identifier: MIT */
#include "core/cache/cache_internal.h"
#include "core/cache/charge.h"
#include "core/cache/state_spare.h"

static quire_table_ctx table_ctx(quire_cache *cache, const quire_seq *seq, uint32_t group)
{
    return (quire_table_ctx){ .pool = &cache->pool,
                              .stock = &cache->stock,
                              .group = (quire_group_id)group,
                              .region = seq->region,
                              .seq = seq->id,
                              .n_node_groups = quire_cache_node_groups(cache) };
}

static quire_seq *seq_begin(quire_cache *cache, quire_region_id region)
{
    quire_counter_add(&cache->regions.items[region].n_seqs, 1);
    return quire_seqs_open(&cache->seqs, region);
}

/* Recompute ready_tokens. */
static void ready_update(quire_cache *cache, quire_seq *seq)
{
    uint32_t ready = cache->opts.seq_tokens_max;

    for (uint32_t g = 0; g < cache->opts.n_groups; g++) {
        quire_table_ctx ctx = table_ctx(cache, seq, g);
        uint32_t tokens = quire_table_ready_tokens(&ctx, &seq->tables[g], seq->n_tokens);

        ready = tokens < ready ? tokens : ready;
    }
    seq->ready_tokens = ready;
}

int quire_seq_open(quire_cache *cache, quire_region_id region, quire_seq_id *out)
{
    *out = QUIRE_SEQ_NULL;
    QUIRE_FAIL_IF(quire_region_find(&cache->regions, region) == NULL, QUIRE_INVAL);
    QUIRE_TRY(quire_seqs_plan(&cache->seqs));
    *out = seq_begin(cache, region)->id;
    QUIRE_CACHE_CHECKED(cache);
    return QUIRE_OK;
}

int quire_seq_fork(quire_cache *cache, quire_seq_id seq, quire_seq_id *out)
{
    quire_seq *from = quire_seqs_find(&cache->seqs, seq);
    uint32_t n_groups = cache->opts.n_groups;
    uint32_t n_copies = 0;
    quire_seq *to;
    int rc;

    *out = QUIRE_SEQ_NULL;
    QUIRE_FAIL_IF(from == NULL, QUIRE_NOTFOUND);
    QUIRE_TRY(quire_seqs_plan(&cache->seqs));
    for (uint32_t g = 0; g < n_groups; g++) {
        n_copies += quire_table_fork_copies(&from->tables[g]);
    }
    QUIRE_TRY(quire_leaf_stock_plan(&cache->stock, n_copies));

    to = seq_begin(cache, from->region);
    for (uint32_t g = 0; g < n_groups; g++) {
        rc = quire_table_plan_upper(&to->tables[g], &cache->allocator, from->tables[g].n_leaves);
        if (rc < 0) {
            (void)quire_seq_close(cache, to->id);
            return rc;
        }
    }
    for (uint32_t g = 0; g < n_groups; g++) {
        quire_table_ctx ctx = table_ctx(cache, to, g);

        quire_table_fork(&ctx, &to->tables[g], &from->tables[g]);
    }
    to->n_tokens = from->n_tokens;
    ready_update(cache, to);
    ready_update(cache, from);
    *out = to->id;
    QUIRE_CACHE_CHECKED(cache);
    return QUIRE_OK;
}

/* Plan the leaves and the upper levels. */
static int tables_plan(quire_cache *cache, quire_seq *seq, const quire_table_needs *needs)
{
    uint64_t n_leaves = 0;

    for (uint32_t g = 0; g < cache->opts.n_groups; g++) {
        n_leaves += needs[g].n_leaves;
        QUIRE_TRY(quire_table_plan_upper(&seq->tables[g], &cache->allocator,
                                         seq->tables[g].n_leaves + needs[g].n_leaves));
    }
    return quire_leaf_stock_plan(&cache->stock, n_leaves);
}

/* Evict because slots or page ids are missing, not budget; the number of missing ones is unknown.
 * Evict from the region itself first, then from the dynamic region. */
static bool evict_for_slots(quire_cache *cache, quire_region_id region, const uint32_t *n_pages)
{
    quire_region_id regions[2] = { region, QUIRE_REGION_DYNAMIC };
    uint64_t bytes = quire_pool_charge_bytes(&cache->pool, n_pages);

    for (uint32_t i = 0; i < 2; i++) {
        uint64_t cached_bytes = quire_counter_get(&cache->regions.items[regions[i]].cached_bytes);

        if (quire_cache_evict(cache, regions[i], bytes < cached_bytes ? bytes : cached_bytes) > 0) {
            return true;
        }
    }
    return false;
}

/* Plan the pages, evicting cached pages if needed. Eviction may drop the tree's hold on the
 * sequence's own tail, which then need not be copied: compute the needs again. */
static int pages_plan(quire_cache *cache, quire_seq *seq, uint32_t n_tokens,
                      quire_table_needs *needs)
{
    uint32_t n_pages[QUIRE_GROUPS_MAX] = { 0 };
    int rc;

    do {
        for (uint32_t g = 0; g < cache->opts.n_groups; g++) {
            quire_table_ctx ctx = table_ctx(cache, seq, g);

            needs[g] = quire_table_room_needs(&ctx, &seq->tables[g], seq->n_tokens, n_tokens);
            n_pages[g] = needs[g].n_pages;
        }
        if (quire_charge_make_room(cache, seq->region, n_pages)) {
            rc = QUIRE_AGAIN;
            continue;
        }
        rc = quire_pool_plan(&cache->pool, seq->region, n_pages);
        if ((rc == QUIRE_NOMEM || rc == QUIRE_LIMIT) &&
            evict_for_slots(cache, seq->region, n_pages)) {
            rc = QUIRE_AGAIN;
        }
    } while (rc == QUIRE_AGAIN);
    if (rc == QUIRE_NOPAGES) {
        quire_counter_add(&cache->regions.items[seq->region].refused, 1);
    }
    return rc;
}

int quire_cache_pages_plan(quire_cache *cache, quire_region_id region, const uint32_t *n_pages)
{
    int rc;

    do {
        if (quire_charge_make_room(cache, region, n_pages)) {
            rc = QUIRE_AGAIN;
            continue;
        }
        rc = quire_pool_plan(&cache->pool, region, n_pages);
        if ((rc == QUIRE_NOMEM || rc == QUIRE_LIMIT) && evict_for_slots(cache, region, n_pages)) {
            rc = QUIRE_AGAIN;
        }
    } while (rc == QUIRE_AGAIN);
    return rc;
}

static int states_plan(quire_cache *cache, quire_group_id group, quire_region_id region, uint32_t n)
{
    uint32_t n_pages[QUIRE_GROUPS_MAX] = { 0 };

    n_pages[group] = n;
    return quire_cache_pages_plan(cache, region, n_pages);
}

quire_page_id quire_cache_state_take(quire_cache *cache, quire_region_id region, quire_seq_id seq)
{
    const quire_group_id group = (quire_group_id)cache->opts.n_groups;

    return states_plan(cache, group, region, 1) == QUIRE_OK
               ? quire_pool_take(&cache->pool, group, region, seq)
               : QUIRE_PAGE_NULL;
}

int quire_seq_states(quire_cache *cache, quire_seq_id seq, quire_page_id pages[2])
{
    quire_seq *found = quire_seqs_find(&cache->seqs, seq);

    QUIRE_CHECK(cache->opts.state_bytes != 0);
    QUIRE_FAIL_IF(found == NULL, QUIRE_NOTFOUND);
    if (found->states[0] == QUIRE_PAGE_NULL) {
        const quire_group_id group = quire_cache_seq_state_group(cache);
        const int rc = states_plan(cache, group, found->region, 2);

        if (rc == QUIRE_NOPAGES) {
            quire_counter_add(&cache->regions.items[found->region].refused, 1);
        }
        QUIRE_TRY(rc);
        for (uint32_t i = 0; i < 2; i++) {
            found->states[i] = quire_pool_take(&cache->pool, group, found->region, seq);
            quire_pool_fill_set(&cache->pool, found->states[i], cache->opts.page_tokens);
        }
        QUIRE_CACHE_CHECKED(cache);
    }
    pages[0] = found->states[0];
    pages[1] = found->states[1];
    return QUIRE_OK;
}

void quire_seq_state_spare_drop(quire_cache *cache, quire_seq_id seq, const void *kept)
{
    quire_seq *found = quire_seqs_find(&cache->seqs, seq);
    uint32_t i;

    if (found == NULL || found->states[1] == QUIRE_PAGE_NULL) {
        return;
    }
    i = quire_cache_state(cache, found->states[0]) == kept ? 0 : 1;
    QUIRE_CHECK(quire_cache_state(cache, found->states[i]) == kept);
    quire_pool_unref(&cache->pool, found->states[1 - i], found->id);
    found->states[0] = found->states[i];
    found->states[1] = QUIRE_PAGE_NULL;
    QUIRE_CACHE_CHECKED(cache);
}

static void states_clear(quire_cache *cache, quire_seq *seq)
{
    for (uint32_t i = 0; i < 2 && seq->states[i] != QUIRE_PAGE_NULL; i++) {
        quire_pool_unref(&cache->pool, seq->states[i], seq->id);
        seq->states[i] = QUIRE_PAGE_NULL;
    }
}

/* The slow part of reserve: pages, copies or leaves are needed. */
static int seq_make_room(quire_cache *cache, quire_seq *seq, uint32_t n_tokens)
{
    quire_table_needs needs[QUIRE_GROUPS_MAX];
    int rc;

    QUIRE_TRY(pages_plan(cache, seq, n_tokens, needs));
    rc = tables_plan(cache, seq, needs);
    if (rc < 0) {
        quire_pool_cancel(&cache->pool);
        return rc;
    }
    for (uint32_t g = 0; g < cache->opts.n_groups; g++) {
        quire_table_ctx ctx = table_ctx(cache, seq, g);

        quire_table_make_room(&ctx, &seq->tables[g], &needs[g]);
    }
    ready_update(cache, seq);
    return QUIRE_OK;
}

static int seq_reserve(quire_cache *cache, quire_seq *seq, uint32_t n_tokens)
{
    if (n_tokens <= seq->ready_tokens - seq->n_tokens) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(n_tokens > cache->opts.seq_tokens_max - seq->n_tokens, QUIRE_LIMIT);
    return seq_make_room(cache, seq, n_tokens);
}

int quire_seq_reserve(quire_cache *cache, quire_seq_id seq, uint32_t n_tokens)
{
    quire_seq *found = quire_seqs_find(&cache->seqs, seq);

    QUIRE_FAIL_IF(found == NULL, QUIRE_NOTFOUND);
    QUIRE_TRY(seq_reserve(cache, found, n_tokens));
    QUIRE_CACHE_CHECKED(cache);
    return QUIRE_OK;
}

int quire_seq_append(quire_cache *cache, quire_seq_id seq, uint32_t n_tokens)
{
    quire_seq *found = quire_seqs_find(&cache->seqs, seq);

    QUIRE_FAIL_IF(found == NULL, QUIRE_NOTFOUND);
    QUIRE_TRY(seq_reserve(cache, found, n_tokens));
    for (uint32_t g = 0; g < cache->opts.n_groups; g++) {
        quire_table_ctx ctx = table_ctx(cache, found, g);

        quire_table_grow(&ctx, &found->tables[g], n_tokens);
    }
    found->n_tokens += n_tokens;
    QUIRE_CACHE_CHECKED(cache);
    return QUIRE_OK;
}

int quire_seq_release(quire_cache *cache, quire_seq_id seq, quire_group_id group,
                      uint32_t begin_token, uint32_t end_token, uint32_t *n_released)
{
    quire_seq *found = quire_seqs_find(&cache->seqs, seq);
    uint32_t page_tokens = cache->opts.page_tokens;
    uint32_t begin;
    uint32_t end;
    uint32_t n = 0;

    QUIRE_FAIL_IF(found == NULL, QUIRE_NOTFOUND);
    QUIRE_FAIL_IF(group >= cache->opts.n_groups || begin_token > end_token, QUIRE_INVAL);
    end_token = end_token < found->n_tokens ? end_token : found->n_tokens;
    begin = begin_token / page_tokens + (begin_token % page_tokens != 0);
    end = end_token / page_tokens; /* entries wholly in the range: full entries */
    if (begin < end) {
        quire_table_ctx ctx = table_ctx(cache, found, group);

        n = quire_table_release(&ctx, &found->tables[group], begin, end);
    }
    if (n_released != NULL) {
        *n_released = n;
    }
    QUIRE_CACHE_CHECKED(cache);
    return QUIRE_OK;
}

/* Whether a cut would leave an offloaded page as the tail, which appends write to. */
static bool cuts_offloaded(const quire_cache *cache, const quire_table *table, uint32_t n_tokens)
{
    const uint32_t page_tokens = cache->opts.page_tokens;
    quire_page_id page;

    if (quire_counter_get(&cache->pool.offloaded_pages) == 0 || n_tokens % page_tokens == 0) {
        return false;
    }
    page = quire_table_entry(table, n_tokens / page_tokens)->page;
    return page != QUIRE_PAGE_NULL && cache->pool.pages[page].is_offloaded;
}

/* The largest length up to n_tokens at which one group, with a window of w, could go on. */
static uint32_t window_truncatable(const quire_table *table, uint32_t page_tokens, uint32_t w,
                                   uint32_t n_tokens)
{
    uint32_t end = n_tokens; /* the tokens [end, n_tokens) have pages */

    while (end > quire_window_begin(n_tokens, w)) {
        const uint32_t entry = (end - 1) / page_tokens;

        end = entry * page_tokens;
        if (quire_table_entry(table, entry)->page == QUIRE_PAGE_NULL) {
            n_tokens = end;
        }
    }
    return n_tokens;
}

/* The largest length up to n_tokens that cuts into no hole and into no offloaded page, and that has
 * the windows before it. */
static uint32_t seq_truncatable(const quire_cache *cache, const quire_seq *seq, uint32_t n_tokens)
{
    uint32_t page_tokens = cache->opts.page_tokens;
    uint32_t before;

    n_tokens = n_tokens < seq->n_tokens ? n_tokens : seq->n_tokens;
    for (uint32_t g = 0; g < cache->opts.n_groups; g++) {
        if (quire_table_cuts_hole(&seq->tables[g], page_tokens, n_tokens) ||
            cuts_offloaded(cache, &seq->tables[g], n_tokens)) {
            n_tokens -= n_tokens % page_tokens;
        }
    }
    do { /* a cut that one group moves down needs the windows of the others there */
        before = n_tokens;
        for (uint32_t g = 0; g < cache->opts.n_groups; g++) {
            if (cache->opts.needs_last_tokens[g] != 0) {
                n_tokens = window_truncatable(&seq->tables[g], page_tokens,
                                              cache->opts.needs_last_tokens[g], n_tokens);
            }
        }
    } while (n_tokens != before);
    return n_tokens;
}

uint32_t quire_seq_truncatable(const quire_cache *cache, quire_seq_id seq, uint32_t n_tokens)
{
    const quire_seq *found = quire_seqs_find(&cache->seqs, seq);

    return found != NULL ? seq_truncatable(cache, found, n_tokens) : 0;
}

int quire_seq_truncate(quire_cache *cache, quire_seq_id seq, uint32_t n_tokens)
{
    quire_seq *found = quire_seqs_find(&cache->seqs, seq);
    uint32_t n_copies = 0;

    QUIRE_FAIL_IF(found == NULL, QUIRE_NOTFOUND);
    QUIRE_FAIL_IF(seq_truncatable(cache, found, n_tokens) != n_tokens, QUIRE_RANGE);
    for (uint32_t g = 0; g < cache->opts.n_groups; g++) {
        quire_table_ctx ctx = table_ctx(cache, found, g);

        n_copies += quire_table_truncate_copies(&ctx, &found->tables[g], n_tokens);
    }
    QUIRE_TRY(quire_leaf_stock_plan(&cache->stock, n_copies));
    for (uint32_t g = 0; g < cache->opts.n_groups; g++) {
        quire_table_ctx ctx = table_ctx(cache, found, g);

        quire_table_truncate(&ctx, &found->tables[g], n_tokens);
    }
    found->n_tokens = n_tokens;
    found->cut_tokens = n_tokens < found->cut_tokens ? n_tokens : found->cut_tokens;
    ready_update(cache, found);
    QUIRE_CACHE_CHECKED(cache);
    return QUIRE_OK;
}

int quire_seq_adopt(quire_cache *cache, quire_seq *seq, const quire_page_id *pages,
                    uint32_t n_tokens)
{
    uint32_t n_groups = cache->opts.n_groups;
    uint32_t n_entries =
        n_tokens / cache->opts.page_tokens + (n_tokens % cache->opts.page_tokens != 0);
    uint32_t n_leaves = (n_entries + QUIRE_LEAF_ENTRIES - 1) / QUIRE_LEAF_ENTRIES;

    QUIRE_CHECK(seq->n_tokens == 0 && n_tokens > 0);
    QUIRE_FAIL_IF(n_tokens > cache->opts.seq_tokens_max, QUIRE_LIMIT);
    for (uint32_t g = 0; g < n_groups; g++) {
        QUIRE_TRY(quire_table_plan_upper(&seq->tables[g], &cache->allocator, n_leaves));
    }
    QUIRE_TRY(quire_leaf_stock_plan(&cache->stock, (uint64_t)n_leaves * n_groups));
    for (uint32_t g = 0; g < n_groups; g++) {
        quire_table_ctx ctx = table_ctx(cache, seq, g);

        quire_table_adopt(&ctx, &seq->tables[g], pages, n_tokens);
    }
    seq->n_tokens = n_tokens;
    ready_update(cache, seq);
    QUIRE_CACHE_CHECKED(cache);
    return QUIRE_OK;
}

void quire_seq_swap(quire_cache *cache, quire_seq *seq, uint32_t entry, const quire_page_id *pages)
{
    for (uint32_t g = 0; g < cache->opts.n_groups; g++) {
        quire_table_ctx ctx = table_ctx(cache, seq, g);

        if (pages[g] != QUIRE_PAGE_NULL) {
            quire_table_swap(&ctx, &seq->tables[g], entry, pages[g]);
        }
    }
}

int quire_seq_close(quire_cache *cache, quire_seq_id seq)
{
    quire_seq *found = quire_seqs_find(&cache->seqs, seq);

    QUIRE_FAIL_IF(found == NULL, QUIRE_NOTFOUND);
    for (uint32_t g = 0; g < cache->opts.n_groups; g++) {
        quire_table_ctx ctx = table_ctx(cache, found, g);

        quire_table_clear(&ctx, &found->tables[g], &cache->allocator);
    }
    states_clear(cache, found);
    quire_counter_sub(&cache->regions.items[found->region].n_seqs, 1);
    quire_region_changed(&cache->regions, found->region); /* even without pages: seqs_max */
    quire_seqs_close(&cache->seqs, found);
    QUIRE_CACHE_CHECKED(cache);
    return QUIRE_OK;
}

uint32_t quire_seq_tokens(const quire_cache *cache, quire_seq_id seq)
{
    const quire_seq *found = quire_seqs_find(&cache->seqs, seq);

    return found != NULL ? found->n_tokens : 0;
}

int quire_seq_table_get(const quire_cache *cache, quire_seq_id seq, quire_group_id group,
                        quire_seq_table *out)
{
    const quire_seq *found = quire_seqs_find(&cache->seqs, seq);

    QUIRE_FAIL_IF(found == NULL, QUIRE_NOTFOUND);
    QUIRE_FAIL_IF(group >= cache->opts.n_groups, QUIRE_INVAL);
    out->leaves = (const quire_page_entry *const *)found->tables[group].leaves;
    out->n_entries = found->tables[group].n_entries;
    out->n_tokens = found->n_tokens;
    return QUIRE_OK;
}
