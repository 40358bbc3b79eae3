/* analyze.h - the workload of a trace: lengths, repetition, gaps, sessions, load.
 *
 * Pure: the same trace gives the same figures. Curves of hit rates are in mrc.h and shards.h.
 * Figures that depend on contents are empty for a trace without contents.
 *
 * Memory: some 300 KB, and 16 bytes per id while it is made. Cost: O(blocks). Thread: read-only
 * when made.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_ANALYZE_H
#define QUIRE_TRACE_ANALYZE_H

#include "trace/dist.h"
#include "trace/offline/load.h"
#include "trace/trace.h"

#define QUIRE_ANALYZE_PAGES 5u /* 64, 128, .. 1,024 tokens */

/* The losses by pages of a size. A trace has no data within its blocks. So the model is that a
 * prompt ends, and differs from another, anywhere in a page with equal probability. */
typedef struct quire_analyze_page {
    uint32_t page_tokens;
    double lost_share;   /* of the tokens that could be hit, when hits end at full pages */
    double unused_share; /* of the memory, in last pages that are partly filled */
} quire_analyze_page;

typedef struct quire_analysis {
    quire_allocator allocator;
    uint32_t block_tokens;
    bool has_contents;
    uint32_t n_requests;
    uint32_t n_ids;
    uint32_t n_classes;
    uint64_t n_blocks;
    uint64_t span_us;
    uint64_t input_tokens;
    uint64_t output_tokens;
    quire_dist input;  /* tokens of a prompt */
    quire_dist output; /* of an answer */
    quire_dist fresh;  /* of a prompt, that no earlier one had */

    uint64_t repeated_blocks; /* asked for again: the hits of a cache that never evicts */
    uint64_t repeated_tokens;
    uint64_t one_time_ids; /* blocks that were asked for once */
    quire_dist uses;       /* requests that hold a block */
    quire_dist gap_us;     /* from one use of a block to the next */
    quire_dist gap_requests;

    uint32_t n_sessions;
    bool is_inferred;          /* sessions found by turns.h */
    quire_dist turns;          /* of a session */
    quire_dist session_tokens; /* prompt and answer of its last turn */
    quire_dist turn_gap_us;    /* from one turn's arrival to the next */

    quire_load load;
    quire_analyze_page pages[QUIRE_ANALYZE_PAGES];
} quire_analysis;

/* The time of requests (load.h): round figures of no machine in particular. */
#define QUIRE_ANALYZE_PREFILL_TOKEN_US 25.0
#define QUIRE_ANALYZE_DECODE_TOKEN_US  10000.0

/* cost NULL = the two above; allocator NULL = C library. Errors: QUIRE_NOMEM. */
int quire_analysis_create(quire_analysis **out, const quire_trace *trace,
                          const quire_load_cost *cost, const quire_allocator *allocator);
void quire_analysis_destroy(quire_analysis *analysis); /* NULL is fine */

#endif /* QUIRE_TRACE_ANALYZE_H */
