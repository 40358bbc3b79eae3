/* mrc.h - the exact hit rates of LRU caches of all sizes (miss-ratio curve).
 *
 * One pass computes all sizes. Requests come one after the other. A block is served when the block
 * and all earlier blocks of its request are cached at the request's arrival. Then the request's
 * blocks are used from the last to the first, so a block is never evicted before its descendants,
 * as in a tree that evicts leaves first. With that order "cached in c blocks" means "at most c deep
 * in the LRU stack". The same as quire_sim_run() with QUIRE_SIM_HITS and QUIRE_EVICT_LRU for every
 * capacity at once.
 *
 * Cost: O(blocks x log ids). Thread: read-only when made.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_MRC_H
#define QUIRE_TRACE_MRC_H

#include "trace/trace.h"

typedef struct quire_mrc {
    quire_allocator allocator;
    uint64_t *hits; /* [n_depths + 1]: blocks served by a cache of so many blocks */
    uint32_t n_depths;
    uint64_t n_blocks; /* asked for */
} quire_mrc;

/* allocator NULL = C library. Errors: QUIRE_NOMEM. */
int quire_mrc_init(quire_mrc *mrc, const quire_trace *trace, const quire_allocator *allocator);
void quire_mrc_fini(quire_mrc *mrc);

/* Blocks served, and their share of those asked for (0 when none were). */
uint64_t quire_mrc_hits(const quire_mrc *mrc, uint64_t capacity_blocks);
double quire_mrc_hit_rate(const quire_mrc *mrc, uint64_t capacity_blocks);

/* The smallest capacity whose hit rate is at least this share (0..1) of the greatest one. */
uint64_t quire_mrc_capacity_for(const quire_mrc *mrc, double share);

/* Where more memory begins to bring less: the point of the curve that lies farthest above the line
 * from nothing to its end.
 * Source of the criterion: Satopaa and others, "Finding a Kneedle in a haystack", ICDCSW 2011. */
uint64_t quire_mrc_knee(const quire_mrc *mrc);

#endif /* QUIRE_TRACE_MRC_H */
