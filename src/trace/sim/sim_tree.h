/* sim_tree.h - a cache without payloads and its prefix tree, in which a block of a trace is a page.
 *
 * A page has QUIRE_PAGE_TOKENS_MIN tokens. The first of them is the block's id, the others are 0:
 * so pages are equal when ids are, and the tree tells siblings apart by one comparison.
 *
 * Classes with a share of the capacity have a pinned region of their own, which spills into the
 * dynamic one.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_SIM_TREE_H
#define QUIRE_TRACE_SIM_TREE_H

#include "quire/cache.h"
#include "quire/prefix.h"
#include "trace/sim/sim.h"

/* All requests have one key. */
extern const quire_prefix_key quire_sim_key;

typedef struct quire_sim_tree {
    quire_allocator allocator;
    quire_cache *cache;
    quire_prefix *tree;
    int32_t *tokens; /* [blocks_max] pages, the text at hand */
    uint32_t blocks_max;
    bool has_ttl;
    uint64_t pinned_budget;                           /* of all pinned regions, in pages */
    uint64_t budgets[QUIRE_TRACE_CLASSES_MAX];        /* of them, by class */
    quire_region_id regions[QUIRE_TRACE_CLASSES_MAX]; /* by class: its own, or the dynamic one */
} quire_sim_tree;

typedef struct quire_sim_tree_opts {
    const quire_sim_opts *sim;
    uint64_t budget_blocks; /* of all regions together */
    uint32_t blocks_max;    /* of the longest sequence */
    uint32_t seqs_max;      /* at once */
    uint32_t block_tokens;  /* of the trace */
} quire_sim_tree_opts;

/* Errors: QUIRE_INVAL, QUIRE_LIMIT, QUIRE_NOMEM; err says what. */
int quire_sim_tree_init(quire_sim_tree *tree, const quire_sim_tree_opts *opts, quire_error *err);
void quire_sim_tree_fini(quire_sim_tree *tree);

/* The tokens of a text of n blocks. Memory: the tree's, until the next call. */
int32_t *quire_sim_tree_text(quire_sim_tree *tree, const uint32_t *ids, uint32_t n);

/* Where sequences of a class of the trace are opened. */
quire_region_id quire_sim_tree_region(const quire_sim_tree *tree, uint8_t class_index);

/* The most pages that sequences of a class can hold: all but the pages that other classes have
 * reserved. */
uint64_t quire_sim_tree_reach(const quire_sim_tree *tree, uint64_t blocks, uint8_t class_index);

/* Set the time to now_us: nodes that have expired by then are removed. */
void quire_sim_tree_tick(quire_sim_tree *tree, uint64_t now_us);

/* Pages charged to pinned regions. */
uint64_t quire_sim_tree_pinned(const quire_sim_tree *tree);

/* Evict from the dynamic region until at most that many pages are charged in all, pinned budgets
 * counted whole, or nothing more may go. */
void quire_sim_tree_evict(quire_sim_tree *tree, uint64_t blocks);

#endif /* QUIRE_TRACE_SIM_TREE_H */
