/* shards.h - the curve of mrc.h from a sample of fixed size, request by request.
 *
 * A block is in the sample when its hash lies below a threshold. A stack distance within the
 * sample, divided by the sample's share of all blocks, estimates the distance among all blocks.
 * When the sample exceeds sample_max, the block with the greatest hash leaves, and its hash is the
 * new threshold. Each use of a sampled block counts for 1 / share uses. The difference between
 * these counts and the true number of uses is added to the shortest distance, because a sample
 * misses a few very popular blocks (the paper's SHARDS-adj).
 *
 * Memory: about 100 bytes per sample, for any trace. Error: of the order of 1 / sqrt(samples);
 * measured in docs/analysis.md.
 *
 * Source: Waldspurger, Park, Garthwaite, Ahmad, "Efficient MRC Construction with SHARDS", FAST
 * 2015.
 *
 * Thread: one at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_SHARDS_H
#define QUIRE_TRACE_SHARDS_H

#include "trace/trace.h"

#define QUIRE_SHARDS_SAMPLES_MAX (1u << 24)

typedef struct quire_shards quire_shards;

typedef struct quire_shards_opts {
    uint32_t sample_max;              /* 16 .. QUIRE_SHARDS_SAMPLES_MAX */
    uint64_t seed;                    /* which blocks are sampled */
    const quire_allocator *allocator; /* NULL = C library */
} quire_shards_opts;

/* Errors: QUIRE_INVAL, QUIRE_NOMEM. */
int quire_shards_create(quire_shards **out, const quire_shards_opts *opts);
void quire_shards_destroy(quire_shards *shards); /* NULL is fine */

/* One request: a name for each block of its prompt, which stands for the block and all before it
 * (an id of a trace, or the hash of a prefix). Errors: QUIRE_NOMEM; the request counts in part. */
int quire_shards_add(quire_shards *shards, const uint64_t *names, uint32_t n);

/* All requests of a trace. Errors: QUIRE_NOMEM. */
int quire_shards_add_trace(quire_shards *shards, const quire_trace *trace);

/* The estimate for a cache of so many blocks; 0 when nothing was added. */
double quire_shards_hit_rate(const quire_shards *shards, uint64_t capacity_blocks);

typedef struct quire_shards_stats {
    uint64_t blocks;  /* asked for */
    uint64_t sampled; /* of them */
    uint32_t samples; /* blocks followed now */
    double rate;      /* their share of all */
} quire_shards_stats;

void quire_shards_stats_get(const quire_shards *shards, quire_shards_stats *out);

#endif /* QUIRE_TRACE_SHARDS_H */
