/* evict.h - which node goes next.
 *
 * The candidates are the nodes that nothing depends on: no children, no refs. This module is told
 * when a node becomes one and when it ceases to be; between the two nothing that it is ordered by
 * changes.
 *
 *   quire_evict    who may go at all, and whose turn it is: deadlines, ranks, accounts
 *     bin          the nodes of one (region, rank, account), ordered by a policy
 *       heap       candidates in the order of a key; a policy has up to QUIRE_EVICT_HEAPS_MAX
 *
 * A victim is chosen so: what has expired; what the low-traffic rule names; else of the lowest rank
 * that has candidates the account furthest above its fair share, and there whom the policy names.
 * So every policy obeys ranks, time to live, quotas and pins (a pinned node is no candidate).
 *
 * Low traffic: a node whose age has reached the rule's and whose hits are fewer than its age times
 * the rule's rate; with its hits as they are that is true from some moment on. That moment and the
 * end of its time to live make one deadline per candidate, the earlier of them.
 *
 * A policy is a table of functions (quire_evict_ops) and three kinds of state, all zero at first:
 * of the tree, of a bin, and QUIRE_NODE_WORDS words of a node. It orders candidates by a key when
 * they become such and may place them anew when it is asked for a victim, so queues, clock hands
 * and segments are all heaps here. Nodes that are no candidates keep their place in its mind (a
 * queue number, a segment), and what is a scan past them elsewhere is a heap without them here.
 *
 * Who is furthest above its share is looked for among all accounts of the rank that have
 * candidates, so with more than a few of them the answer holds for several victims: one for every
 * eight.
 *
 * Cost: O(log candidates) per call and no allocation, but that a bin of an account above 0 is made
 * when it is first needed; where memory is short its nodes go to account 0's.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_EVICT_H
#define QUIRE_CORE_EVICT_H

#include "core/evict/evict_heap.h"
#include "core/prefix/account.h"
#include "core/prefix/prefix_ghost.h"
#include "quire/prefix.h"

#define QUIRE_EVICT_US_PER_HOUR   3.6e9
#define QUIRE_EVICT_HEAPS_MAX     64u
#define QUIRE_EVICT_LISTS         4u
#define QUIRE_EVICT_SLOTS         (QUIRE_REGIONS_MAX * QUIRE_RANKS_MAX) /* bins of one account */
#define QUIRE_EVICT_ANY           UINT32_MAX
#define QUIRE_EVICT_REQUEST_WORDS 2u /* of a policy's own */

/* quire_prefix_node.heaps */
#define QUIRE_EVICT_IS_CANDIDATE 1u
#define QUIRE_EVICT_HAS_DEADLINE 2u /* is in its region's heap of deadlines */
#define QUIRE_EVICT_IS_LOW       4u /* is in its region's heap of low traffic */
#define QUIRE_EVICT_IN_REST      8u /* is in the bin of account 0 instead of its account's */

/* quire_prefix_node.links */
#define QUIRE_EVICT_BY_POLICY   0u
#define QUIRE_EVICT_BY_DEADLINE 1u

typedef struct quire_evict_bin {
    uint32_t number; /* account * QUIRE_EVICT_SLOTS + region * QUIRE_RANKS_MAX + rank */
    uint32_t n_nodes;
    uint32_t n_candidates;
    uint32_t n_listed[QUIRE_EVICT_LISTS]; /* nodes by list; their sum is n_nodes */
    uint32_t n_when_full;         /* nodes when a victim was last asked for; 0 = never yet */
    struct quire_evict_bin *next; /* of the bins with candidates of the same region and rank */
    struct quire_evict_bin *prev;
    void *state;      /* the policy's, [ops->bin_bytes], behind the heaps */
    uint32_t heaps[]; /* [ops->n_heaps] */
} quire_evict_bin;

/* Who asks at the moment, for policies: the request that a node is used by or born of. */
typedef struct quire_evict_request {
    uint64_t number;   /* of acquires, from 1 */
    uint32_t n_tokens; /* of the prompt */
    uint32_t n_known;  /* tokens it has in common with the tree, ghosts included */
    uint64_t words[QUIRE_EVICT_REQUEST_WORDS]; /* the policy's: see asked */
} quire_evict_request;

struct quire_evict;

#define QUIRE_EVICT_ELSEWHERE UINT8_MAX /* a place in none of the heaps: the policy has its own */

typedef struct quire_evict_place {
    uint32_t heap; /* < ops->n_heaps, or QUIRE_EVICT_ELSEWHERE */
    uint64_t key;
} quire_evict_place;

typedef struct quire_evict_ops {
    uint32_t n_heaps;  /* 1 .. QUIRE_EVICT_HEAPS_MAX */
    size_t tree_bytes; /* of evict->state */
    size_t bin_bytes;  /* of bin->state; 128 bins are made with the tree */
    bool has_ghosts;   /* born gets them */
    /* The tree begins, ends. When it ends its nodes are gone; each of its bins is ended before it,
     * for memory that a state holds (evict->allocator). NULL = nothing to do. */
    void (*start)(struct quire_evict *evict);
    void (*bin_stop)(struct quire_evict *evict, quire_evict_bin *bin);
    void (*stop)(struct quire_evict *evict);
    /* A request begins; what the policy notes in its words comes back with it. What it has in
     * common with the tree ends in the ghost, if there is one, else in the node, which may be null.
     * NULL = does not matter. */
    void (*asked)(struct quire_evict *evict, quire_evict_request *request, uint32_t node,
                  const quire_ghost *ghost);
    /* A node is new in its bin, and no candidate yet. It is on list 0 (quire_evict_list() changes
     * that). ghost: what remained of it when it went last time, if it is remembered; else NULL.
     * NULL = does not matter. */
    void (*born)(struct quire_evict *evict, quire_evict_bin *bin, uint32_t node,
                 quire_ghost *ghost);
    /* A request uses the node: a sequence was filled from it by acquire, or published the same
     * tokens without having been filled. It is no candidate meanwhile. NULL = does not matter. */
    void (*used)(struct quire_evict *evict, quire_evict_bin *bin, uint32_t node);
    /* The request is done with the node, one of its text's from the last to the first; how far
     * behind it the text ended is known now. It is no candidate. NULL = does not matter. */
    void (*rested)(struct quire_evict *evict, quire_evict_bin *bin, uint32_t node);
    /* Where a candidate stands. Also called again for the same candidate, without remove between:
     * quire_evict_replace(). */
    quire_evict_place (*place)(struct quire_evict *evict, quire_evict_bin *bin, uint32_t node);
    /* How many of the bin's candidates are elsewhere. NULL = none ever is. */
    uint32_t (*n_elsewhere)(const quire_evict_bin *bin);
    /* A candidate ceased to be one. NULL = does not matter. */
    void (*taken)(struct quire_evict *evict, quire_evict_bin *bin, uint32_t node);
    /* Name one of the candidates of the bin, which has some. It may go (then gone follows) or not
     * (its pages are in use: it is taken away for a while). */
    uint32_t (*victim)(struct quire_evict *evict, quire_evict_bin *bin);
    /* The node ends. ghost: what remains of it, with data to fill in; NULL when none does.
     * NULL = does not matter. */
    void (*gone)(struct quire_evict *evict, quire_evict_bin *bin, uint32_t node,
                 quire_prefix_gone why, quire_ghost *ghost);
    /* A ghost is forgotten. NULL = does not matter. */
    void (*forgotten)(struct quire_evict *evict, quire_ghost *ghost);
} quire_evict_ops;

typedef struct quire_evict_region {
    uint32_t n_nodes;
    uint32_t deadlines; /* heap: key is the earlier of time to live and low traffic */
    uint32_t low;       /* heap of those that have become low traffic: key is the end of their time
                         * to live */
    quire_evict_bin *bins[QUIRE_RANKS_MAX];   /* that have candidates */
    quire_evict_bin *chosen[QUIRE_RANKS_MAX]; /* of these, for so many victims more */
    uint32_t n_chosen[QUIRE_RANKS_MAX];
} quire_evict_region;

typedef struct quire_evict {
    quire_allocator allocator;
    quire_prefix_nodes *nodes; /* borrowed */
    quire_ghosts *ghosts;      /* borrowed */
    const quire_cache *cache;  /* borrowed; NULL = budgets are not known */
    const quire_evict_ops *ops;
    void *state; /* the policy's, of the tree */
    size_t bin_bytes;
    unsigned char *rest;                            /* the bins of account 0, bin_bytes each */
    quire_evict_bin **accounts[QUIRE_ACCOUNTS_MAX]; /* [QUIRE_EVICT_SLOTS] each, NULL = none */
    quire_evict_region regions[QUIRE_REGIONS_MAX];
    uint64_t ttl_us[QUIRE_RANKS_MAX]; /* 0 = never */
    uint64_t low_after_us;            /* 0 = no rule */
    double low_hits_per_us;
    double token_us; /* what computing a token at depth 0 costs, and more of it per depth */
    double token_depth_us;
    const quire_accounts *tenants; /* borrowed: who is how far above its share; NULL = all equal */
    uint64_t seed;
    uint64_t now_us; /* of the tree */
    uint64_t tick;   /* of the tree: grows with every call that uses or publishes */
    quire_evict_request request;
} quire_evict;

/* Errors: QUIRE_NOMEM. opts->policy is one of the table. */
int quire_evict_init(quire_evict *evict, const quire_prefix_opts *opts,
                     const quire_allocator *allocator, quire_prefix_nodes *nodes,
                     quire_ghosts *ghosts);
void quire_evict_fini(quire_evict *evict);

/* ---- requests and nodes come and go ---- */

/* A request begins: it is evict->request from now on. node, ghost: as for the policy. */
void quire_evict_asked(quire_evict *evict, quire_evict_request request, uint32_t node,
                       const quire_ghost *ghost);

/* A node begins; its fields, region, rank and account among them, are set. */
void quire_evict_born(quire_evict *evict, uint32_t node);
/* A node that is no candidate is used by the request. */
void quire_evict_used(quire_evict *evict, uint32_t node);
/* The request is done with a node that is no candidate. */
void quire_evict_rested(quire_evict *evict, uint32_t node);
/* A node that is no candidate ends. ghost may be NULL. */
void quire_evict_gone(quire_evict *evict, uint32_t node, quire_prefix_gone why, quire_ghost *ghost);
/* A node, candidate or not, gets another region or rank (both are set here). */
void quire_evict_move(quire_evict *evict, uint32_t node, quire_region_id region, uint8_t rank);

/* A node becomes a candidate, ceases to be one. */
void quire_evict_add(quire_evict *evict, uint32_t node);
void quire_evict_remove(quire_evict *evict, uint32_t node);

static inline bool quire_evict_has(const quire_evict *evict, uint32_t node)
{
    return (quire_prefix_node_at(evict->nodes, node)->heaps & QUIRE_EVICT_IS_CANDIDATE) != 0;
}

/* ---- victims ---- */

typedef struct quire_evict_ask {
    quire_region_id region;
    uint32_t account; /* only of this one; QUIRE_EVICT_ANY */
} quire_evict_ask;

/* The candidate that should go, and why; 0 when there is none. With an account named, deadlines do
 * not count: who has to give way is known. */
uint32_t quire_evict_victim(quire_evict *evict, quire_evict_ask ask, quire_prefix_gone *why);
/* One that has expired; 0 = none. */
uint32_t quire_evict_expired(quire_evict *evict, quire_region_id region);

/* Time to live of a rank, of candidates too. Cost: O(nodes log nodes). */
void quire_evict_ttl_set(quire_evict *evict, uint8_t rank, uint64_t ttl_us);
/* Another low-traffic rule, for candidates too. Cost: O(nodes log nodes). */
void quire_evict_low_traffic_set(quire_evict *evict, uint64_t after_us, double hits_per_hour);

void quire_evict_validate(const quire_evict *evict);

/* ---- for policies ---- */

const quire_evict_ops *quire_evict_ops_of(quire_evict_policy policy);

static inline quire_prefix_node *quire_evict_at(const quire_evict *evict, uint32_t node)
{
    return quire_prefix_node_at(evict->nodes, node);
}

/* The first of one of a bin's heaps; 0 = it is empty. */
static inline uint32_t quire_evict_first(const quire_evict_bin *bin, uint32_t heap)
{
    return bin->heaps[heap];
}

/* A candidate is placed anew. */
void quire_evict_replace(quire_evict *evict, quire_evict_bin *bin, uint32_t node);

/* A node goes to one of QUIRE_EVICT_LISTS lists, which the bin counts. */
void quire_evict_list(quire_evict *evict, quire_evict_bin *bin, uint32_t node, uint8_t list);

/* How many nodes the bin can hold: as many as it held when a victim was last asked for, since then
 * there was no room. Before that what the region's budget leaves to it. At least 1. */
uint32_t quire_evict_capacity(const quire_evict *evict, const quire_evict_bin *bin);

/* What computing the node's tokens costs, and what its pages are charged. */
double quire_evict_cost_us(const quire_evict *evict, uint32_t node);
uint64_t quire_evict_charge_bytes(const quire_evict *evict, uint32_t node);

/* The bin that a node is in. */
quire_evict_bin *quire_evict_bin_of(const quire_evict *evict, uint32_t node);

/* A bin by its number; NULL = there is none. */
quire_evict_bin *quire_evict_bin_at(const quire_evict *evict, uint32_t number);

#endif /* QUIRE_CORE_EVICT_H */
