/* shadow.h - what more or less memory would have brought: ghost caches beside the real one.
 *
 * Each ghost is a real prefix tree under the real policy, on a cache without payloads
 * (page_bytes = 0) of half, the same and twice the capacity. It is fed with the texts of the
 * requests that the real one has served, as hashes of blocks of 64 tokens, each hash standing for
 * all tokens up to there and for the tenant; a ghost keeps no token. The three hit rates can be
 * compared with each other; the real cache also ends hits inside of blocks.
 *
 * Bounds. Ghosts whose capacity exceeds nodes_max blocks are sampled: they see a share R of the
 * requests and have R of the capacity. Which requests is decided by the hash of their text up to
 * the first block that is not everybody's: so by whole families of prompts, since a hit needs the
 * unbroken prefix. A block is everybody's while more than a 16th of the last requests begin with
 * it. What is sampled may have more or less of the popular families than its share; as SHARDS does
 * (Waldspurger and others, FAST 2015), the blocks that are missing from the expected share are
 * counted as hits, those too many taken off: it is the popular ones that make the difference. The
 * shared beginnings are in every sample and take 1 / R too much of its capacity; with nodes_max at
 * its default they would have to be tens of thousands of tokens long to matter.
 *
 * Not modelled: pages of running requests that cannot be evicted (a text counts when its request
 * ends), regions, quotas, TTLs, what the policy knows of costs.
 *
 * Thread: owner; quire_shadow_stats_get() from anywhere.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_SHADOW_H
#define QUIRE_TRACE_SHADOW_H

#include <stddef.h>
#include <stdint.h>

#include "quire/prefix.h"

#define QUIRE_SHADOW_BLOCK_TOKENS 64u
#define QUIRE_SHADOW_SIZES        3u

typedef struct quire_shadow quire_shadow;

typedef struct quire_shadow_opts {
    quire_evict_policy policy;
    uint64_t capacity_blocks; /* of the real cache, >= 1 */
    uint32_t nodes_max;       /* blocks a ghost may hold; default 16384, about 8 MB each */
    uint32_t blocks_max;      /* of a text; what is behind them is left out; default 4096 */
    uint64_t seed;
} quire_shadow_opts;

#define QUIRE_SHADOW_OPTS_INIT                                                                     \
    {                                                                                              \
        .nodes_max = 16384, .blocks_max = 4096                                                     \
    }

/* Errors: QUIRE_INVAL, QUIRE_NOMEM. */
int quire_shadow_create(quire_shadow **out, const quire_shadow_opts *opts);
void quire_shadow_destroy(quire_shadow *shadow);

typedef struct quire_shadow_text {
    const void *salt; /* the tenant */
    uint32_t salt_bytes;
    const int32_t *tokens; /* prompt and answer */
    uint32_t n_tokens;
    uint32_t n_prompt; /* of them, what is looked up: whole blocks before the last of these */
    uint8_t rank;
    uint64_t now_us;
} quire_shadow_text;

/* A request has ended with this text in the cache. Cost: a hash over the tokens, and for the
 * sampled ones an acquire and a publish per ghost. */
void quire_shadow_feed(quire_shadow *shadow, const quire_shadow_text *text);

typedef struct quire_shadow_size_stats {
    double factor;            /* 0.5, 1, 2 */
    uint64_t capacity_blocks; /* that it stands for */
    uint64_t blocks_total;    /* asked for, among those sampled */
    uint64_t hit_blocks_total;
    uint64_t share_blocks_total; /* R of all that were asked for: what blocks_total should be */
    double sample_rate;          /* R */
} quire_shadow_size_stats;

/* Share of blocks that were hits between two snapshots, 0..1; since the beginning where before is
 * NULL; 0 when nothing was asked for. */
double quire_shadow_hit_rate(const quire_shadow_size_stats *now,
                             const quire_shadow_size_stats *before);

typedef struct quire_shadow_stats {
    quire_shadow_size_stats sizes[QUIRE_SHADOW_SIZES];
    uint64_t requests_total; /* seen */
    uint64_t sampled_total;  /* by the largest ghost */
    uint64_t errors_total;   /* times that a ghost had no memory for a request */
    double seconds_total;    /* that all this took */
} quire_shadow_stats;
/* Thread: any (each figure is atomic, the snapshot as a whole is not). */
void quire_shadow_stats_get(const quire_shadow *shadow, quire_shadow_stats *out);

#endif /* QUIRE_TRACE_SHADOW_H */
