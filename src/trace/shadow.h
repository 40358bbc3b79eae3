/* shadow.h - what more or less memory would have brought: ghost caches beside the real one.
 *
 * Each ghost is a real prefix tree under the real policy, on a cache without payloads
 * (page_bytes = 0) of half, the same and twice the capacity. It is fed with what the real one is
 * asked for, as hashes of blocks of 64 tokens, each hash standing for all tokens up to there and
 * the tenant's; a ghost knows no tokens. So the hit rates of the three can be compared with each
 * other; the real cache beside them also holds what runs, and ends hits inside of blocks.
 *
 * Bounds. Ghosts whose capacity in blocks exceeds nodes_max are sampled: they see a share R of the
 * requests and have R of the capacity. Requests are chosen by the hash of their text up to the
 * first block that is not in everybody's: by whole families of prompts, since a hit needs the
 * unbroken prefix. A block counts as everybody's while more than a 16th of the last requests begin
 * with it; such blocks are in every sample. The estimate is hits / blocks among those sampled. It
 * errs where a few families make most of the hits and R is small, and by the shared beginnings,
 * which take a share of the capacity that is 1 / R too large: with nodes_max at its default they
 * would have to be thousands of tokens long to matter.
 *
 * Not modelled: pages of running requests that cannot be evicted, regions, quotas, TTLs, the
 * policy's knowledge of costs.
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
    uint64_t seed;
} quire_shadow_opts;

#define QUIRE_SHADOW_OPTS_INIT                                                                     \
    {                                                                                              \
        .nodes_max = 16384                                                                         \
    }

/* Errors: QUIRE_INVAL, QUIRE_NOMEM. */
int quire_shadow_create(quire_shadow **out, const quire_shadow_opts *opts);
void quire_shadow_destroy(quire_shadow *shadow);

typedef struct quire_shadow_text {
    const void *salt; /* the tenant */
    uint32_t salt_bytes;
    const int32_t *tokens;
    uint32_t n_tokens;
    uint8_t rank;
    uint64_t now_us;
} quire_shadow_text;

/* A request came with this prompt: looked up, counted, and cached as far as there are whole blocks.
 * Cost: a hash over the tokens, and for the sampled ones an acquire and a publish per ghost. */
void quire_shadow_ask(quire_shadow *shadow, const quire_shadow_text *text);
/* A request left this text in the cache, its answer behind its prompt. Counts nothing. */
void quire_shadow_leave(quire_shadow *shadow, const quire_shadow_text *text);

/* The real capacity has changed: ghosts follow, with what they hold as far as it fits. */
void quire_shadow_resize(quire_shadow *shadow, uint64_t capacity_blocks);

typedef struct quire_shadow_size_stats {
    double factor;            /* 0.5, 1, 2 */
    uint64_t capacity_blocks; /* that it stands for */
    uint64_t blocks_total;    /* asked for, among those sampled */
    uint64_t hit_blocks_total;
    double sample_rate; /* R */
} quire_shadow_size_stats;

typedef struct quire_shadow_stats {
    quire_shadow_size_stats sizes[QUIRE_SHADOW_SIZES];
    uint64_t requests_total; /* seen */
    uint64_t sampled_total;  /* by the largest ghost */
    uint64_t errors_total;   /* requests that a ghost had no memory for */
    double seconds_total;    /* that all this took */
} quire_shadow_stats;
/* Thread: any (each figure is atomic, the snapshot as a whole is not). */
void quire_shadow_stats_get(const quire_shadow *shadow, quire_shadow_stats *out);

#endif /* QUIRE_TRACE_SHADOW_H */
