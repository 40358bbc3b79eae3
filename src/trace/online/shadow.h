/* shadow.h - estimates of the effect of more or less memory: hit rates of an LRU cache of half, the
 * same and twice the size, from one sample of the blocks that requests asked for.
 *
 * One list holds the sampled blocks in the order of their last use. A block is 64 tokens and stands
 * for all tokens before it and for the tenant; the list keeps hashes, no tokens.
 *
 *   newest                                                              oldest
 *   | half the memory | as it is        | twice the memory                  |  forgotten
 *   0               C/2                 C                                  2C
 *
 * A request asks for the blocks of its prompt: a block that lies left of a size's mark is a hit for
 * that size. Then the request uses its blocks from the last to the first, so a block never lies
 * left of an earlier block of the same text. Each size therefore holds the blocks that would remain
 * if leaves were evicted first, and hits are unbroken beginnings of texts.
 *
 * Monotone. A block left of a mark is left of all marks further right, and all sizes get the same
 * queries. A larger size therefore never has fewer hits than a smaller one, in any span of time.
 *
 * Source of the marks: Mattson and others, IBM Systems Journal 9(2), 1970 (stack algorithms).
 *
 * Sampling. Where 2C exceeds nodes_max, a block is sampled when its hash is below a share R, and
 * the marks stand at R times the sizes. A popular block may be in the sample or not: as SHARDS does
 * (Waldspurger and others, FAST 2015), the difference between the blocks that were sampled and the
 * share R of all blocks counts as hits of every size.
 *
 * Not modelled: the eviction policy (LRU stands for all: it alone answers for all sizes at once;
 * the default policy has more hits, most of all on work that returns in loops), pages of running
 * requests that cannot be evicted (a text counts when its request ends), hits inside of blocks,
 * ranks, regions, quotas, TTLs, invalidation.
 *
 * Thread: owner; quire_shadow_stats_get() from anywhere.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_SHADOW_H
#define QUIRE_TRACE_SHADOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUIRE_SHADOW_BLOCK_TOKENS 64u
#define QUIRE_SHADOW_SIZES        3u

/* The least evidence for a rate. The blocks of one request hit or miss together, so the number of
 * requests decides: a hundred requests bound the standard error of a rate at 5 points (0.5 /
 * sqrt(n)). The number of blocks has a bound too, because prompts of one or two blocks say less. */
#define QUIRE_SHADOW_REQUESTS_MIN 100u
#define QUIRE_SHADOW_BLOCKS_MIN   500u

typedef struct quire_shadow quire_shadow;

typedef struct quire_shadow_opts {
    uint64_t capacity_blocks; /* of the real cache, >= 1 */
    uint32_t nodes_max;       /* blocks that the list may hold, of 28 bytes; default 65536 */
    uint32_t blocks_max;      /* of a text; later blocks are left out; default 4096 */
    uint64_t seed;
} quire_shadow_opts;

#define QUIRE_SHADOW_OPTS_INIT                                                                     \
    {                                                                                              \
        .nodes_max = 65536, .blocks_max = 4096                                                     \
    }

/* Errors: QUIRE_INVAL, QUIRE_NOMEM. */
int quire_shadow_create(quire_shadow **out, const quire_shadow_opts *opts);
void quire_shadow_destroy(quire_shadow *shadow);

typedef struct quire_shadow_text {
    const void *salt; /* the tenant */
    uint32_t salt_bytes;
    const int32_t *tokens; /* prompt and answer */
    uint32_t n_tokens;
    uint32_t n_prompt; /* of them, the tokens to look up: whole blocks before the last of these */
} quire_shadow_text;

/* A request has ended with this text in the cache. Cost: a hash over the tokens, and a constant for
 * each sampled block. */
void quire_shadow_feed(quire_shadow *shadow, const quire_shadow_text *text);

typedef struct quire_shadow_size_stats {
    double factor;            /* 0.5, 1, 2 */
    uint64_t capacity_blocks; /* factor times that of the real cache */
    uint64_t hit_blocks_total;
} quire_shadow_size_stats;

typedef struct quire_shadow_stats {
    quire_shadow_size_stats sizes[QUIRE_SHADOW_SIZES]; /* from the smallest */
    uint64_t requests_total;                           /* seen */
    uint64_t asking_total;          /* of them, those that asked for a sampled block */
    uint64_t blocks_total;          /* sampled blocks asked for */
    uint64_t expected_blocks_total; /* R of all blocks asked for: the expectation of blocks_total */
    double sample_rate;             /* R; 0 = there is no shadow */
    double seconds_total;           /* that all this took */
} quire_shadow_stats;
/* Thread: any (each figure is atomic, the snapshot as a whole is not). */
void quire_shadow_stats_get(const quire_shadow *shadow, quire_shadow_stats *out);

/* Whether enough was sampled for the rates to mean something. */
bool quire_shadow_is_telling(const quire_shadow_stats *stats);

/* Share of blocks that a size (0..QUIRE_SHADOW_SIZES - 1) would have had, 0..1; 0 when nothing was
 * asked for. */
double quire_shadow_hit_rate(const quire_shadow_stats *stats, uint32_t size);

#endif /* QUIRE_TRACE_SHADOW_H */
