/* sim_tree.c - the core as simulators use it.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/sim/sim_tree.h"

#include "base/check.h"

#include <string.h>

#define PAGE_TOKENS QUIRE_PAGE_TOKENS_MIN
#define WINDOWS     1u  /* the group of layers with windows */
#define STATE_BYTES 64u /* payload of a page with a state, which nobody reads */

const quire_prefix_key quire_sim_key = { .identity = { 1, 1 } };

uint64_t quire_sim_charge(const quire_sim_opts *opts, uint64_t n_blocks)
{
    return quire_sim_has_kv(opts) ? n_blocks * opts->kv.block_bytes : n_blocks;
}

uint64_t quire_sim_capacity(const quire_sim_opts *opts)
{
    return quire_sim_has_kv(opts) ? opts->capacity_bytes : opts->capacity_blocks;
}

static uint32_t blocks_up(uint64_t n_tokens, uint32_t block_tokens)
{
    return (uint32_t)((n_tokens + block_tokens - 1) / block_tokens);
}

/* Hits end at full blocks. A hit needs the last w - 1 tokens before its end. */
static void kv_set(quire_sim_tree *t, const quire_sim_tree_opts *opts, quire_cache_opts *cache)
{
    const quire_sim_kv *kv = &opts->sim->kv;

    t->kv = *kv;
    t->block_tokens = opts->block_tokens;
    cache->charge_bytes[0] = quire_sim_charge(opts->sim, 1);
    if (kv->window_bytes != 0) {
        t->window_blocks = blocks_up(kv->window_tokens - 1, opts->block_tokens);
        t->window_blocks =
            t->window_blocks < opts->blocks_max ? t->window_blocks : opts->blocks_max;
        cache->n_groups = WINDOWS + 1;
        cache->charge_bytes[WINDOWS] = kv->window_bytes;
        cache->needs_last_tokens[WINDOWS] = t->window_blocks * PAGE_TOKENS + 1;
    }
    if (kv->state_bytes != 0) {
        t->every_blocks = blocks_up(kv->state_every_tokens, opts->block_tokens);
        cache->state_bytes = STATE_BYTES;
        cache->state_charge_bytes = kv->state_bytes;
        cache->seq_state_bytes = STATE_BYTES;
        cache->seq_state_charge_bytes =
            kv->seq_state_bytes != 0 ? kv->seq_state_bytes : kv->state_bytes;
        t->kv.seq_state_bytes = cache->seq_state_charge_bytes;
    }
}

static int cache_make(quire_sim_tree *t, const quire_sim_tree_opts *opts)
{
    quire_cache_opts cache = QUIRE_CACHE_OPTS_INIT;
    quire_prefix_opts tree = QUIRE_PREFIX_OPTS_INIT;

    cache.page_tokens = PAGE_TOKENS;
    kv_set(t, opts, &cache);
    cache.budget_bytes = opts->budget;
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

static int classes_open(quire_sim_tree *t, const quire_sim_opts *sim)
{
    for (uint32_t i = 0; i < sim->n_classes; i++) {
        const quire_sim_class *class = &sim->classes[i];
        quire_region_opts region = QUIRE_REGION_OPTS_INIT;

        region.budget_bytes = (uint64_t)(class->pinned_share * (double)quire_sim_capacity(sim));
        if (class->ttl_us > 0) {
            t->has_ttl = true;
            QUIRE_TRY(quire_prefix_ttl_set(t->tree, class->rank, class->ttl_us));
        }
        if (region.budget_bytes > 0) {
            QUIRE_TRY(quire_region_open(t->cache, &region, &t->regions[i]));
            t->pinned_budget += region.budget_bytes;
            t->budgets[i] = region.budget_bytes;
        }
    }
    return QUIRE_OK;
}

/* The cost of a token, in mode TIME: a page of the trace has block_tokens, a page here has fewer.
 * (In mode HITS all tokens are worth the same.) */
static int cost_set(quire_sim_tree *t, const quire_sim_tree_opts *opts)
{
    const quire_sim_cost *cost = &opts->sim->cost;
    double scale = (double)opts->block_tokens / PAGE_TOKENS;

    return opts->sim->mode == QUIRE_SIM_TIME
               ? quire_prefix_cost_set(t->tree, cost->prefill_token_us * scale,
                                       cost->prefill_token_depth_us * scale * scale)
               : QUIRE_OK;
}

int quire_sim_tree_init(quire_sim_tree *t, const quire_sim_tree_opts *opts, quire_error *err)
{
    uint64_t tokens = (uint64_t)opts->blocks_max * PAGE_TOKENS;
    int rc = QUIRE_NOMEM;

    memset(t, 0, sizeof(*t));
    t->allocator = *quire_allocator_default();
    t->blocks_max = opts->blocks_max;
    if (tokens > QUIRE_SEQ_TOKENS_MAX ||
        opts->budget / quire_sim_charge(opts->sim, 1) > QUIRE_PAGES_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "a simulated cache has at most %u pages",
                               QUIRE_PAGES_MAX);
    }
    t->tokens = t->allocator.alloc(NULL, tokens * sizeof(*t->tokens));
    if (t->tokens != NULL) {
        memset(t->tokens, 0, tokens * sizeof(*t->tokens));
        rc = cache_make(t, opts);
    }
    if (rc == QUIRE_OK) {
        rc = classes_open(t, opts->sim);
    }
    if (rc == QUIRE_OK) {
        rc = cost_set(t, opts);
    }
    if (rc < 0) {
        quire_sim_tree_fini(t);
        return quire_error_set(err, rc, "a cache of %llu pages cannot be simulated: %s",
                               (unsigned long long)(opts->budget / quire_sim_charge(opts->sim, 1)),
                               quire_status_text(rc));
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
    return class_index < QUIRE_TRACE_CLASSES_MAX ? t->regions[class_index] : QUIRE_REGION_DYNAMIC;
}

uint64_t quire_sim_tree_reach(const quire_sim_tree *t, uint64_t capacity, uint8_t class_index)
{
    uint64_t own = class_index < QUIRE_TRACE_CLASSES_MAX ? t->budgets[class_index] : 0;

    return capacity - t->pinned_budget + own;
}

static uint64_t region_room(const quire_sim_tree *t, quire_region_id region)
{
    quire_region_stats stats = { 0 };
    uint64_t live;

    (void)quire_region_stats_get(t->cache, region, &stats);
    live = stats.charged_bytes - stats.cached_bytes;
    return stats.budget_bytes > live ? stats.budget_bytes - live : 0;
}

uint64_t quire_sim_tree_room(const quire_sim_tree *t, uint8_t class_index)
{
    const quire_region_id region = quire_sim_tree_region(t, class_index);
    uint64_t room = region_room(t, QUIRE_REGION_DYNAMIC);

    room += region != QUIRE_REGION_DYNAMIC ? region_room(t, region) : 0;
    return room > t->promised ? room - t->promised : 0;
}

void quire_sim_tree_tick(quire_sim_tree *t, uint64_t now_us)
{
    if (t->has_ttl) {
        (void)quire_prefix_expire(t->tree, now_us, UINT32_MAX);
    }
}

void quire_sim_tree_held(const quire_sim_tree *t, quire_sim_point *out)
{
    const uint64_t unit = t->kv.block_bytes != 0 ? t->kv.block_bytes : 1;
    quire_region_stats stats = { 0 };
    uint64_t cached, live, pinned = 0;

    (void)quire_region_stats_get(t->cache, QUIRE_REGION_DYNAMIC, &stats);
    cached = stats.cached_bytes;
    live = stats.charged_bytes - stats.cached_bytes;
    for (uint32_t i = 0; i < QUIRE_TRACE_CLASSES_MAX; i++) {
        if (t->regions[i] != QUIRE_REGION_DYNAMIC &&
            quire_region_stats_get(t->cache, t->regions[i], &stats) == QUIRE_OK) {
            cached += stats.cached_bytes;
            live += stats.charged_bytes - stats.cached_bytes;
            pinned += stats.charged_bytes;
        }
    }
    out->cached_blocks += cached / unit;
    out->live_blocks += live / unit;
    out->pinned_blocks += pinned / unit;
}

void quire_sim_tree_evict(quire_sim_tree *t, uint64_t capacity)
{
    uint64_t dynamic = capacity > t->pinned_budget ? capacity - t->pinned_budget : 0;
    quire_region_stats stats;

    if (quire_region_stats_get(t->cache, QUIRE_REGION_DYNAMIC, &stats) == QUIRE_OK &&
        stats.charged_bytes > dynamic) {
        (void)quire_prefix_evict(t->tree, QUIRE_REGION_DYNAMIC, stats.charged_bytes - dynamic);
    }
}
