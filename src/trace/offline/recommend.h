/* recommend.h - settings of `quire serve` for a workload, each with the reason for its value.
 *
 *   page_tokens   the largest page that loses next to nothing to rounding and to last pages
 *   kv_budget     the knee of LRU's curve, or nine tenths of all hits where that is more, plus the
 *                 memory of running requests; at most the memory there is
 *   pinned        the memory that the high class holds at once, p99
 *   cache_disk    room for all pages that the curve finds worth keeping; at most the given disk
 *   cache_policy  the policy with the most hits at that size; the default one where it is as good
 *   cache_ttl     twice the gap within which nearly all reuse happens; none where the trace is too
 *                 short to say
 *
 * Two steps, because the best policy depends on the size and is found by simulation:
 * quire_recommend_sizes_find(), then quire_recommend_settings().
 *
 * With several devices each has a cache of its own. The sizes are those of each device; the disk is
 * common. find() shares one cache out equally. As texts go to one device or another, each needs
 * more: quire_recommend_sizes_each() takes the size that a simulation has found.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_RECOMMEND_H
#define QUIRE_TRACE_RECOMMEND_H

#include "base/bytes.h"
#include "quire/prefix.h"
#include "trace/offline/analyze.h"
#include "trace/offline/mrc.h"

#define QUIRE_RECOMMEND_ITEMS_MAX  8u
#define QUIRE_RECOMMEND_REASON_MAX 640u
#define QUIRE_RECOMMEND_NO_CLASS   UINT32_MAX

typedef struct quire_recommend_ask {
    const quire_analysis *analysis;
    const quire_mrc *mrc;
    double token_bytes;     /* KV of a token; 0 = not known: no sizes in bytes. Without layers that
                               have windows */
    double text_bytes;      /* windows and states that a cached request leaves besides; 0 = none */
    double running_bytes;   /* those that a running request holds */
    uint64_t memory_bytes;  /* for KV; 0 = as much as is worth it */
    uint64_t disk_bytes;    /* for copies of KV at most; 0 = no disk */
    uint32_t n_devices;     /* 0 = 1; memory_bytes is that of each */
    uint32_t pinned_class;  /* index of the class to keep memory for, or QUIRE_RECOMMEND_NO_CLASS */
    const char *class_name; /* its name; NULL without */
} quire_recommend_ask;

typedef struct quire_recommend_sizes {
    uint32_t page_tokens;
    uint32_t n_devices;
    uint64_t live_tokens;     /* held by the requests that run at once, p99; of all devices */
    uint64_t total_blocks;    /* of one cache in place of all, >= 1 */
    uint64_t capacity_blocks; /* for the cache of each device besides, >= 1 */
    double hit_rate;          /* of LRU there */
    double hit_rate_infinite;
    uint64_t memory_bytes; /* for both; 0 = not known */
    uint64_t pinned_bytes; /* 0 = none, or not known */
    uint64_t disk_blocks;  /* 0 = none, or not known */
    uint64_t disk_bytes;
} quire_recommend_sizes;

/* The memory of a cached block, its share of windows and states included; 0 = not known. */
double quire_recommend_block_bytes(const quire_recommend_ask *ask);

void quire_recommend_sizes_find(const quire_recommend_ask *ask, quire_recommend_sizes *out);

/* The same sizes with this many blocks for the cache of each device, at most as many as its memory
 * holds; hit_rate: of LRU there. */
void quire_recommend_sizes_each(const quire_recommend_ask *ask, uint64_t capacity_blocks,
                                double hit_rate, quire_recommend_sizes *sizes);

/* The hits of policies with capacity_blocks. */
typedef struct quire_recommend_policies {
    const quire_evict_policy *policies; /* [n] */
    const double *hit_rates;            /* [n] */
    uint32_t n;                         /* 0 = not simulated: the default one */
    /* With disk_blocks below, the default policy: see quire_sim_copy. 0 = not simulated. */
    double disk_hit_rate;     /* blocks that were hit are copied */
    double disk_all_hit_rate; /* all blocks are copied */
} quire_recommend_policies;

typedef struct quire_recommend_item {
    const char *key;
    char value[32];
    bool is_comment; /* the value cannot be known: to be filled in by the reader */
    char reason[QUIRE_RECOMMEND_REASON_MAX];
} quire_recommend_item;

typedef struct quire_recommendation {
    quire_recommend_sizes sizes;
    quire_evict_policy policy;
    double policy_hit_rate; /* 0 where it was not simulated */
    uint64_t ttl_us;        /* 0 = never */
    quire_recommend_item items[QUIRE_RECOMMEND_ITEMS_MAX];
    uint32_t n_items;
} quire_recommendation;

void quire_recommend_settings(const quire_recommend_ask *ask, const quire_recommend_sizes *sizes,
                              const quire_recommend_policies *policies, quire_recommendation *out);

/* Append a file for `quire serve --config`, reasons as comments. title: a line of its own at the
 * top. Errors: QUIRE_NOMEM. */
int quire_recommend_yaml(const quire_recommendation *recommendation, const char *title,
                         quire_bytes *out);

#endif /* QUIRE_TRACE_RECOMMEND_H */
