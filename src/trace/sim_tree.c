/* sim_tree.c - the core as simulators use it.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/sim_tree.h"

#include "base/check.h"

#include <string.h>

#define PAGE_TOKENS QUIRE_PAGE_TOKENS_MIN

const quire_prefix_key quire_sim_key = { .identity = { 1, 1 } };

static int cache_make(quire_sim_tree *t, const quire_sim_tree_opts *opts)
{
    quire_cache_opts cache = QUIRE_CACHE_OPTS_INIT;
    quire_prefix_opts tree = QUIRE_PREFIX_OPTS_INIT;

    cache.page_tokens = PAGE_TOKENS;
    cache.charge_bytes[0] = 1;
    cache.budget_bytes = opts->budget_blocks;
    cache.seqs_max = opts->seqs_max;
    cache.seq_tokens_max = opts->blocks_max * PAGE_TOKENS;
    cache.history_events = 0;
    cache.allocator = &t->allocator;
    QUIRE_TRY(quire_cache_create(&t->cache, &cache));
    tree.cache = t->cache;
    tree.policy = opts->sim->policy;
    tree.is_page_exact = true;
    tree.refs_max = opts->seqs_max;
    tree.seed = opts->sim->seed != 0 ? opts->sim->seed : 1; /* 0 would be taken from addresses */
    tree.allocator = &t->allocator;
    return quire_prefix_create(&t->tree, &tree);
}

int quire_sim_tree_init(quire_sim_tree *t, const quire_sim_tree_opts *opts, quire_error *err)
{
    uint64_t tokens = (uint64_t)opts->blocks_max * PAGE_TOKENS;
    int rc = QUIRE_NOMEM;

    memset(t, 0, sizeof(*t));
    t->allocator = *quire_allocator_default();
    t->blocks_max = opts->blocks_max;
    if (tokens > QUIRE_SEQ_TOKENS_MAX || opts->budget_blocks > QUIRE_PAGES_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "a simulated cache has at most %u pages",
                               QUIRE_PAGES_MAX);
    }
    t->tokens = t->allocator.alloc(NULL, tokens * sizeof(*t->tokens));
    if (t->tokens != NULL) {
        memset(t->tokens, 0, tokens * sizeof(*t->tokens));
        rc = cache_make(t, opts);
    }
    if (rc < 0) {
        quire_sim_tree_fini(t);
        return quire_error_set(err, rc, "a cache of %llu pages cannot be simulated: %s",
                               (unsigned long long)opts->budget_blocks, quire_status_text(rc));
    }
    return QUIRE_OK;
}

void quire_sim_tree_fini(quire_sim_tree *t)
{
    if (t->tree != NULL) {
        quire_prefix_destroy(t->tree);
    }
    if (t->cache != NULL) {
        quire_cache_destroy(t->cache);
    }
    t->allocator.free(NULL, t->tokens);
    memset(t, 0, sizeof(*t));
}

int32_t *quire_sim_tree_text(quire_sim_tree *t, const uint32_t *ids, uint32_t n)
{
    QUIRE_CHECK(n <= t->blocks_max);
    for (uint32_t i = 0; i < n; i++) {
        t->tokens[(size_t)i * PAGE_TOKENS] = (int32_t)ids[i];
    }
    return t->tokens;
}

quire_region_id quire_sim_tree_region(const quire_sim_tree *t, uint8_t class_index)
{
    (void)t;
    (void)class_index;
    return QUIRE_REGION_DYNAMIC;
}

void quire_sim_tree_evict(quire_sim_tree *t, uint64_t blocks)
{
    quire_region_stats stats;

    if (quire_region_stats_get(t->cache, QUIRE_REGION_DYNAMIC, &stats) == QUIRE_OK &&
        stats.charged_bytes > blocks) {
        (void)quire_prefix_evict(t->tree, QUIRE_REGION_DYNAMIC, stats.charged_bytes - blocks);
    }
}
