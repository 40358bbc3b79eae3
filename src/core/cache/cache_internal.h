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

struct quire_prefix;

struct quire_cache {
    quire_allocator allocator;
    quire_cache_opts opts; /* as given, with defaults filled in */
    quire_regions regions;
    quire_history history;
    quire_pool pool;
    quire_leaf_stock stock;
    quire_seqs seqs;
    quire_cache_evict_fn evict; /* NULL = none */
    void *evict_ctx;
    bool is_evicting;          /* inside the call */
    struct quire_prefix *tree; /* NULL = none */
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

/* Ask the evictor for need_bytes of a region's charge. Returns the bytes freed: 0 without an
 * evictor, from inside one, and when not enough is cached, as nothing is gained by losing it then.
 */
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
