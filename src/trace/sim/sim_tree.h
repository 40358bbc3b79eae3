/* sim_tree.h - a cache without payloads and its prefix tree, in which a block of a trace is a page.
 *
 * A page has QUIRE_PAGE_TOKENS_MIN tokens. The first of them is the block's id, the others are 0:
 * so pages are equal when ids are, and the tree tells siblings apart by one comparison.
 *
 * Memory is counted in units of charge: one per block, or bytes with quire_sim_kv. Then layers with
 * windows are a group of their own, and nodes have states.
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
    quire_sim_kv kv;
    uint32_t block_tokens;  /* of the trace */
    uint32_t window_blocks; /* that a hit needs before its end; 0 without windows */
    uint32_t every_blocks;  /* between two states; 0 without states */
    uint64_t states_left;
    uint64_t promised;                                /* to sequences that are still to grow */
    uint64_t pinned_budget;                           /* of all pinned regions */
    uint64_t budgets[QUIRE_TRACE_CLASSES_MAX];        /* of them, by class */
    quire_region_id regions[QUIRE_TRACE_CLASSES_MAX]; /* by class: its own, or the dynamic one */
} quire_sim_tree;

typedef struct quire_sim_tree_opts {
    const quire_sim_opts *sim;
    uint64_t budget;       /* of all regions together */
    uint32_t blocks_max;   /* of the longest sequence */
    uint32_t seqs_max;     /* at once */
    uint32_t block_tokens; /* of the trace */
} quire_sim_tree_opts;

/* Errors: QUIRE_INVAL, QUIRE_LIMIT, QUIRE_NOMEM; err names the reason. */
int quire_sim_tree_init(quire_sim_tree *tree, const quire_sim_tree_opts *opts, quire_error *err);
void quire_sim_tree_fini(quire_sim_tree *tree);

/* Whether memory is counted in bytes. */
static inline bool quire_sim_has_kv(const quire_sim_opts *opts)
{
    return opts->kv.block_bytes != 0;
}

/* The charge of n blocks of layers that keep all tokens. */
uint64_t quire_sim_charge(const quire_sim_opts *opts, uint64_t n_blocks);

/* The capacity in units of charge. */
uint64_t quire_sim_capacity(const quire_sim_opts *opts);

/* The tokens of a text of n blocks. Memory: the tree's, until the next call. */
int32_t *quire_sim_tree_text(quire_sim_tree *tree, const uint32_t *ids, uint32_t n);

/* Where sequences of a class of the trace are opened. */
quire_region_id quire_sim_tree_region(const quire_sim_tree *tree, uint8_t class_index);

/* The most charge that sequences of a class can hold: all but the charge that other classes have
 * reserved. */
uint64_t quire_sim_tree_reach(const quire_sim_tree *tree, uint64_t capacity, uint8_t class_index);

/* Charge that sequences of a class may take: free or evictable, and not promised. */
uint64_t quire_sim_tree_room(const quire_sim_tree *tree, uint8_t class_index);

/* Set the time to now_us: nodes that have expired by then are removed. */
void quire_sim_tree_tick(quire_sim_tree *tree, uint64_t now_us);

/* Counts of blocks held by sequences, held by pins, cached, and charged to pinned regions. A block
 * counts as one of the layers that keep all tokens. */
void quire_sim_tree_held(const quire_sim_tree *tree, quire_sim_point *out);

/* Evict from the dynamic region until at most that much is charged in all, pinned budgets counted
 * whole, or nothing more may go. */
void quire_sim_tree_evict(quire_sim_tree *tree, uint64_t capacity);

#endif /* QUIRE_TRACE_SIM_TREE_H */
