/* cache_internal.h - the cache object, and creation with test doubles and smaller limits.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_CACHE_INTERNAL_H
#define QUIRE_CORE_CACHE_INTERNAL_H

#include "base/check.h"
#include "core/cache/history.h"
#include "core/cache/region.h"
#include "core/cache/seq.h"
#include "core/cache/table.h"
#include "core/pool/extent.h"
#include "core/pool/pool.h"
#include "quire/cache.h"

struct quire_charge_move;

/* A keeper keeps pages after their sequences have closed. The prefix tree is one; tests have a
 * double. The cache calls these functions, with ctx, while it makes room or moves budget. They must
 * not take pages. */
typedef struct quire_cache_keeper {
    /* Free cached pages worth need_bytes of a region's charge, or as much as can be. Returns the
     * bytes freed. */
    uint64_t (*evict)(void *ctx, quire_region_id region, uint64_t need_bytes);
    /* Charge kept pages that a region's sequences do not use to another region (charge.h). */
    void (*leave)(void *ctx, struct quire_charge_move *move);
    /* Charge kept pages that a region's sequences use to this region again (charge.h). */
    void (*give_back)(void *ctx, struct quire_charge_move *move);
    /* A cached page of the dynamic region cannot go while a pinned region has cached pages that
     * depend on it. End one of these and give its region the charge of the other page instead, if
     * that is no more. Returns whether there was such a pair. */
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
    quire_cache_keeper keeper; /* all NULL: none */
    bool is_evicting;          /* inside its evict or trade */
};

/* What quire_cache_create() takes from the system and from constants. */
typedef struct quire_cache_env {
    const quire_extent_source *source;
    uint32_t pages_max;   /* 1 .. QUIRE_PAGES_MAX */
    uint32_t extents_max; /* 1 .. QUIRE_EXTENTS_MAX */
} quire_cache_env;

/* As quire_cache_create(). env is copied, its source's ctx is borrowed. */
int quire_cache_create_in(quire_cache **out, const quire_cache_opts *opts,
                          const quire_cache_env *env);

/* Register a keeper, with all functions, or none (NULL). The table is copied. */
void quire_cache_keeper_set(quire_cache *cache, const quire_cache_keeper *keeper);

/* Have the keeper free need_bytes of a region's charge. Returns the bytes freed: 0 without a
 * keeper, from inside its call, and when not enough is cached, as nothing is gained by losing it
 * then. */
uint64_t quire_cache_evict(quire_cache *cache, quire_region_id region, uint64_t need_bytes);

/* Fill an open, empty sequence without reserved room with n_tokens > 0 tokens that are in pages
 * already: pages[i * n_groups + group] holds those from i * page_tokens on, at slot 0. Groups above
 * 0 may have holes (QUIRE_PAGE_NULL), but for a last page that is used in part. The sequence takes
 * a reference of each page; slots that it uses are filled, and no holder writes them any more.
 * Errors: QUIRE_NOMEM, QUIRE_LIMIT (seq_tokens_max); then nothing has changed. */
int quire_seq_adopt(quire_cache *cache, quire_seq *seq, const quire_page_id *pages,
                    uint32_t n_tokens);

/* Let a full entry of a sequence hold pages[group], which the prefix tree keeps for the same
 * tokens, in place of its own; groups in which either has none are left as they are. */
void quire_seq_swap(quire_cache *cache, quire_seq *seq, uint32_t entry, const quire_page_id *pages);

/* At debug level 2 every call that changes the cache ends with a full check. */
#if QUIRE_DEBUG >= 2
#define QUIRE_CACHE_CHECKED(cache) quire_cache_validate(cache)
#else
#define QUIRE_CACHE_CHECKED(cache) ((void)(cache))
#endif

#endif /* QUIRE_CORE_CACHE_INTERNAL_H */
