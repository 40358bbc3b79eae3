/* evict.h - chooses the next node to evict.
 *
 * A candidate is a node without children and refs. The tree reports when a node becomes a candidate
 * and when it ceases to be one. The keys of a candidate do not change in between.
 *
 *   quire_evict    deadlines, ranks, accounts: the bin of the next victim
 *     bin          the nodes of one (region, rank, account), ordered by a policy
 *       heap       candidates in the order of a key; up to QUIRE_EVICT_HEAPS_MAX per policy
 *
 * The choice of a victim: an expired candidate; else a low-traffic candidate; else the policy's
 * choice, from the lowest rank that has candidates, and within that rank from the account furthest
 * above its fair share. So every policy obeys ranks, time to live, quotas and pins (a pinned node
 * is no candidate).
 *
 * Low traffic: a node is low traffic when its age has reached the rule's age and its hits are fewer
 * than its age times the rule's rate. For a constant number of hits this holds from some moment on.
 * A candidate's deadline is the earlier of that moment and the end of its time to live.
 *
 * A policy is a table of functions (quire_evict_ops) and three kinds of state, all zero at first:
 * per tree, per bin, and QUIRE_NODE_WORDS words per node. The policy gives a new candidate a place
 * in a heap, and may move candidates when it chooses a victim. So queues, clock hands and segments
 * are all heaps here. A node that is no candidate keeps its place in its words (a queue number, a
 * segment) but is in no heap, so nothing scans past it.
 *
 * The search for the account furthest above its share visits all accounts of the rank that have
 * candidates. Its result is therefore reused for several victims: one per eight such accounts.
 *
 * Cost: O(log candidates) per call, without allocation, except that the bin of an account above 0
 * is made when first needed. When memory is short, its nodes go to account 0's bin.
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
#define QUIRE_EVICT_REQUEST_WORDS 2u /* for the policy */

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
    uint32_t n_when_full;                 /* n_nodes at the last victim; 0 = no victim yet */
    struct quire_evict_bin *next; /* of the bins with candidates of the same region and rank */
    struct quire_evict_bin *prev;
    void *state;      /* the policy's, [ops->bin_bytes], behind the heaps */
    uint32_t heaps[]; /* [ops->n_heaps] */
} quire_evict_bin;

/* The current request, for policies: it uses or creates nodes. */
typedef struct quire_evict_request {
    uint64_t number;                           /* of acquires, from 1; 0 = a pin is at work */
    uint32_t n_tokens;                         /* of the prompt */
    uint32_t n_known;                          /* tokens in common with the tree, ghosts included */
    uint64_t words[QUIRE_EVICT_REQUEST_WORDS]; /* for the policy: see asked */
} quire_evict_request;

struct quire_evict;

#define QUIRE_EVICT_ELSEWHERE UINT8_MAX /* in no heap: the policy stores the candidate */

typedef struct quire_evict_place {
    uint32_t heap; /* < ops->n_heaps, or QUIRE_EVICT_ELSEWHERE */
    uint64_t key;
} quire_evict_place;

typedef struct quire_evict_ops {
    uint32_t n_heaps;  /* 1 .. QUIRE_EVICT_HEAPS_MAX */
    size_t tree_bytes; /* of evict->state */
    size_t bin_bytes;  /* of bin->state; 128 bins are made with the tree */
    bool has_ghosts;   /* born gets ghosts */
    /* start: the tree begins. stop: the tree ends, after its nodes are gone and each bin had a
     * bin_stop. bin_stop and stop free memory that a state holds (evict->allocator). NULL = nothing
     * to do. */
    void (*start)(struct quire_evict *evict);
    void (*bin_stop)(struct quire_evict *evict, quire_evict_bin *bin);
    void (*stop)(struct quire_evict *evict);
    /* A request begins. The policy may write the request's words, which stay with the request. The
     * tokens in common with the tree end in the ghost, if not NULL, else in the node, which may be
     * null. NULL = ignored. */
    void (*asked)(struct quire_evict *evict, quire_evict_request *request, uint32_t node,
                  const quire_ghost *ghost);
    /* A node is new in its bin, on list 0 (see quire_evict_list()), and no candidate yet. ghost:
     * the remembered record of the node's last end, else NULL. NULL = ignored. */
    void (*born)(struct quire_evict *evict, quire_evict_bin *bin, uint32_t node,
                 quire_ghost *ghost);
    /* A request uses the node: acquire filled a sequence from it, or a sequence that was not filled
     * from it published the same tokens. The node is no candidate. NULL = ignored. */
    void (*used)(struct quire_evict *evict, quire_evict_bin *bin, uint32_t node);
    /* The request is done with the node. Called for the nodes of its text from last to first; the
     * node's distance to the end of the text (tip) is known now. The node is no candidate. NULL =
     * ignored. */
    void (*rested)(struct quire_evict *evict, quire_evict_bin *bin, uint32_t node);
    /* The place of a candidate. quire_evict_replace() calls this again for the same candidate,
     * without taken in between. */
    quire_evict_place (*place)(struct quire_evict *evict, quire_evict_bin *bin, uint32_t node);
    /* The number of the bin's candidates at QUIRE_EVICT_ELSEWHERE. NULL = always 0. */
    uint32_t (*n_elsewhere)(const quire_evict_bin *bin);
    /* A node ceased to be a candidate. NULL = ignored. */
    void (*taken)(struct quire_evict *evict, quire_evict_bin *bin, uint32_t node);
    /* Choose a candidate of the bin, which has at least one. The candidate is evicted (gone
     * follows) or, when its pages are in use, removed for a while (taken follows). */
    uint32_t (*victim)(struct quire_evict *evict, quire_evict_bin *bin);
    /* The node ends. ghost: the node's record, with words for the policy to fill in; NULL = no
     * record. NULL = ignored. */
    void (*gone)(struct quire_evict *evict, quire_evict_bin *bin, uint32_t node,
                 quire_prefix_gone why, quire_ghost *ghost);
    /* A ghost is forgotten. NULL = ignored. */
    void (*forgotten)(struct quire_evict *evict, quire_ghost *ghost);
    /* A node's history in words that another tree of this policy, in this process, begins or goes
     * on with: a store below memory follows the tree above it (core/prefix/prefix_learned.h). hear
     * takes the place of rested. NULL = there is no history beside the number of uses. */
    void (*tell)(const struct quire_evict *evict, uint32_t node, uint64_t words[QUIRE_NODE_WORDS]);
    void (*hear)(struct quire_evict *evict, uint32_t node, const uint64_t words[QUIRE_NODE_WORDS]);
    /* The chance, 0 .. 1, that a node is used within this time after its last use, learned from
     * enough events; 0 = not known. NULL = never known. */
    double (*chance)(const struct quire_evict *evict, uint32_t node, uint64_t within_us);
    /* The knowledge that the policy has learned from the workload, as learned_bytes bytes that
     * another tree of this policy can begin with. load: false, and nothing changes, when a number
     * is out of range. learned_bytes 0 = nothing is learned. */
    size_t learned_bytes;
    void (*save)(const struct quire_evict *evict, unsigned char *out);
    bool (*load)(struct quire_evict *evict, const unsigned char *bytes);
} quire_evict_ops;

typedef struct quire_evict_region {
    uint32_t n_nodes;
    uint32_t deadlines; /* heap: key is the earlier of time to live and low traffic */
    uint32_t low;       /* heap of low-traffic candidates: key is the end of the time to live */
    quire_evict_bin *bins[QUIRE_RANKS_MAX];   /* bins with candidates */
    quire_evict_bin *chosen[QUIRE_RANKS_MAX]; /* of these, for n_chosen more victims */
    uint32_t n_chosen[QUIRE_RANKS_MAX];
} quire_evict_region;

typedef struct quire_evict {
    quire_allocator allocator;
    quire_prefix_nodes *nodes; /* borrowed */
    quire_ghosts *ghosts;      /* borrowed */
    const quire_cache *cache;  /* borrowed; NULL = budgets are unknown, and the ghost of any node is
                                  found by the node's own path */
    /* Without a cache: the bytes of a node, for its worth; NULL = all nodes are alike. */
    uint64_t (*node_bytes)(const void *ctx, uint32_t node);
    const void *node_bytes_ctx;
    uint32_t n_fit; /* without a cache: nodes that should fit; 0 = not known */
    const quire_evict_ops *ops;
    void *state; /* the policy's, of the tree */
    size_t bin_bytes;
    unsigned char *rest;                            /* the bins of account 0, bin_bytes each */
    quire_evict_bin **accounts[QUIRE_ACCOUNTS_MAX]; /* [QUIRE_EVICT_SLOTS] each, NULL = none */
    quire_evict_region regions[QUIRE_REGIONS_MAX];
    uint64_t ttl_us[QUIRE_RANKS_MAX]; /* 0 = never */
    uint64_t low_after_us;            /* 0 = no rule */
    double low_hits_per_us;
    double token_us; /* cost of computing a token: token_us + depth * token_depth_us */
    double token_depth_us;
    const quire_accounts *tenants; /* borrowed: loads of the accounts; NULL = all equal */
    uint64_t seed;
    uint64_t now_us; /* of the tree */
    uint64_t tick;   /* of the tree: grows with every using or publishing call */
    quire_evict_request request;
} quire_evict;

/* Errors: QUIRE_NOMEM. opts->policy is one of the table. */
int quire_evict_init(quire_evict *evict, const quire_prefix_opts *opts,
                     const quire_allocator *allocator, quire_prefix_nodes *nodes,
                     quire_ghosts *ghosts);
void quire_evict_fini(quire_evict *evict);

/* ---- requests and nodes come and go ---- */

/* A request begins, and becomes evict->request. node, ghost: as in quire_evict_ops.asked. */
void quire_evict_asked(quire_evict *evict, quire_evict_request request, uint32_t node,
                       const quire_ghost *ghost);

/* A node begins; its fields are set, including region, rank and account. */
void quire_evict_born(quire_evict *evict, uint32_t node);
/* The request uses a node that is no candidate. */
void quire_evict_used(quire_evict *evict, uint32_t node);
/* The request is done with a node that is no candidate. */
void quire_evict_rested(quire_evict *evict, uint32_t node);
/* A node that is no candidate ends. ghost may be NULL. */
void quire_evict_gone(quire_evict *evict, uint32_t node, quire_prefix_gone why, quire_ghost *ghost);
/* Set the region and rank of a node, candidate or not. */
void quire_evict_move(quire_evict *evict, uint32_t node, quire_region_id region, uint8_t rank);

/* A node becomes a candidate, or ceases to be one. */
void quire_evict_add(quire_evict *evict, uint32_t node);
void quire_evict_remove(quire_evict *evict, uint32_t node);

static inline bool quire_evict_has(const quire_evict *evict, uint32_t node)
{
    return (quire_prefix_node_at(evict->nodes, node)->heaps & QUIRE_EVICT_IS_CANDIDATE) != 0;
}

/* ---- victims ---- */

typedef struct quire_evict_ask {
    quire_region_id region;
    uint32_t account; /* candidates of this account only, or QUIRE_EVICT_ANY */
} quire_evict_ask;

/* The next candidate to evict, and why; 0 = none. When ask names an account, deadlines do not
 * count. */
uint32_t quire_evict_victim(quire_evict *evict, quire_evict_ask ask, quire_prefix_gone *why);
/* An expired candidate; 0 = none. */
uint32_t quire_evict_expired(quire_evict *evict, quire_region_id region);

/* Set the time to live of a rank, also for present candidates. Cost: O(nodes log nodes). */
void quire_evict_ttl_set(quire_evict *evict, uint8_t rank, uint64_t ttl_us);
/* Set the low-traffic rule, also for present candidates. Cost: O(nodes log nodes). */
void quire_evict_low_traffic_set(quire_evict *evict, uint64_t after_us, double hits_per_hour);

void quire_evict_validate(const quire_evict *evict);

/* ---- for policies ---- */

const quire_evict_ops *quire_evict_ops_of(quire_evict_policy policy);

static inline quire_prefix_node *quire_evict_at(const quire_evict *evict, uint32_t node)
{
    return quire_prefix_node_at(evict->nodes, node);
}

/* The first node of a bin's heap; 0 = empty. */
static inline uint32_t quire_evict_first(const quire_evict_bin *bin, uint32_t heap)
{
    return bin->heaps[heap];
}

/* Place a candidate anew. */
void quire_evict_replace(quire_evict *evict, quire_evict_bin *bin, uint32_t node);

/* Move a node to one of QUIRE_EVICT_LISTS lists; the bin counts the nodes of each. */
void quire_evict_list(quire_evict *evict, quire_evict_bin *bin, uint32_t node, uint8_t list);

/* The capacity of a bin in nodes, at least 1: the number of its nodes at the last request for a
 * victim, because the bin was full then. Before the first victim: an estimate from the region's
 * budget, or n_fit. */
uint32_t quire_evict_capacity(const quire_evict *evict, const quire_evict_bin *bin);

/* The worth of a node: the cost of computing its tokens, per byte of the charge of its pages. With
 * states, a node without children takes others along when it goes: the nodes above it up to the
 * next state or branch, behind which no hit could end. Their cost and their charge count, too, of
 * at most QUIRE_EVICT_ALONG_MAX nodes. */
#define QUIRE_EVICT_ALONG_MAX 64u
double quire_evict_worth(const quire_evict *evict, uint32_t node);

/* The bin of a node. */
quire_evict_bin *quire_evict_bin_of(const quire_evict *evict, uint32_t node);

/* A bin by number; NULL = none. */
quire_evict_bin *quire_evict_bin_at(const quire_evict *evict, uint32_t number);

#endif /* QUIRE_CORE_EVICT_H */
