/* cache_internal.h - the cache object, and creation with test doubles and smaller limits.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_CACHE_INTERNAL_H
#define QUIRE_CORE_CACHE_INTERNAL_H

#include "base/check.h"
#include "core/cache/checked.h"
#include "core/cache/history.h"
#include "core/cache/region.h"
#include "core/cache/seq.h"
#include "core/cache/table.h"
#include "core/pool/extent.h"
#include "core/pool/pool.h"
#include "quire/cache.h"

struct quire_charge_move;

/* The first token before n_tokens that a group's window needs to go on from there; n_tokens: none.
 * w: quire_cache_opts.needs_last_tokens of a group with a window. */
static inline uint32_t quire_window_begin(uint32_t n_tokens, uint32_t w)
{
    return n_tokens >= w ? n_tokens - w + 1 : 0;
}

/* A keeper keeps pages after their sequences have closed. The prefix tree is a keeper; tests have a
 * double. The cache calls these functions, with ctx, while it makes room or moves budget. The
 * functions must not take pages. */
typedef struct quire_cache_keeper {
    /* Free cached pages until need_bytes of a region's charge are free or no more can be freed.
     * Returns the freed bytes. */
    uint64_t (*evict)(void *ctx, quire_region_id region, uint64_t need_bytes);
    /* Charge kept pages that a region's sequences do not use to another region (charge.h). */
    void (*leave)(void *ctx, struct quire_charge_move *move);
    /* Charge kept pages that a region's sequences use to this region again (charge.h). */
    void (*give_back)(void *ctx, struct quire_charge_move *move);
    /* A cached page of the dynamic region cannot be evicted while cached pages of a pinned region
     * depend on it. Evict one such dependent page. Charge the dynamic region's page to the pinned
     * region in its place, if the charge is no larger. Returns whether there was such a pair. */
    bool (*trade)(void *ctx);
    void *ctx;
} quire_cache_keeper;

struct quire_cache {
    quire_allocator allocator;
    quire_cache_opts opts; /* as given, with defaults filled in */
    quire_regions regions;
    quire_history history;
    quire_pool pool;
    quire_leaf_stock stock;
    quire_seqs seqs;
    quire_cache_keeper keeper; /* all NULL: no keeper */
    bool is_evicting;          /* inside the keeper's evict or trade */
};

/* The groups of a node's pages: those of tokens, and that of states. */
static inline uint32_t quire_cache_node_groups(const quire_cache *cache)
{
    return cache->opts.n_groups + (cache->opts.state_bytes != 0 ? 1 : 0);
}

/* The number of groups: groups of nodes, and a group of sequences' states if their size differs
 * from that of nodes' states. */
static inline uint32_t quire_cache_all_groups(const quire_cache *cache)
{
    return quire_cache_node_groups(cache) + (cache->opts.seq_state_bytes != 0 ? 1 : 0);
}

/* The group of the states of sequences. The cache has states. */
static inline quire_group_id quire_cache_seq_state_group(const quire_cache *cache)
{
    return (quire_group_id)(quire_cache_all_groups(cache) - 1);
}

/* Plan n_pages[group] pages charged to a region, as quire_pool_plan() does. Cached pages are
 * evicted if pages are short. */
int quire_cache_pages_plan(quire_cache *cache, quire_region_id region, const uint32_t *n_pages);

/* Take a page for a state, charged to a region, with one reference of a sequence; QUIRE_PAGE_NULL
 * when there is no room. Cached pages are evicted. */
quire_page_id quire_cache_state_take(quire_cache *cache, quire_region_id region, quire_seq_id seq);

/* The system and the limits of a cache; quire_cache_create() uses the OS and the constants. */
typedef struct quire_cache_env {
    const quire_extent_source *source;
    uint32_t pages_max;   /* 1 .. QUIRE_PAGES_MAX */
    uint32_t extents_max; /* 1 .. QUIRE_EXTENTS_MAX */
} quire_cache_env;

/* As quire_cache_create(). env is copied, its source's ctx is borrowed. */
int quire_cache_create_in(quire_cache **out, const quire_cache_opts *opts,
                          const quire_cache_env *env);

/* Register a keeper with all functions, or remove the keeper (NULL). The table is copied. */
void quire_cache_keeper_set(quire_cache *cache, const quire_cache_keeper *keeper);

/* Have the keeper free need_bytes of a region's charge. Returns the freed bytes. Frees nothing and
 * returns 0 without a keeper, from inside a keeper's call, and when too little is cached to meet
 * the need. */
uint64_t quire_cache_evict(quire_cache *cache, quire_region_id region, uint64_t need_bytes);

/* Fill an open, empty sequence without reserved room with n_tokens > 0 tokens of existing pages:
 * pages[i * n_groups + group] holds the tokens from i * page_tokens on, from slot 0 on. Groups
 * above 0 may have holes (QUIRE_PAGE_NULL), except in a last page that is used in part, and in the
 * last window of a group that has one.
 * The sequence takes a reference to each page. The used slots are filled, and no holder writes them
 * any more.
 * Errors: QUIRE_NOMEM, QUIRE_LIMIT (seq_tokens_max). On error nothing has changed. */
int quire_seq_adopt(quire_cache *cache, quire_seq *seq, const quire_page_id *pages,
                    uint32_t n_tokens);

/* Replace the pages of a full entry of a sequence by pages[group], which the prefix tree keeps for
 * the same tokens. A group in which the entry or pages[] has no page is unchanged. */
void quire_seq_swap(quire_cache *cache, quire_seq *seq, uint32_t entry, const quire_page_id *pages);

/* At debug level 2 every call that changes the cache ends with a full check. */
#define QUIRE_CACHE_CHECKED(cache) QUIRE_CHECKED(quire_cache_validate, cache)

#endif /* QUIRE_CORE_CACHE_INTERNAL_H */
