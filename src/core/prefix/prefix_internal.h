/* prefix_internal.h - the prefix tree object, and what its files share.
 *
 *   prefix_node      storage of nodes          prefix.c          create, acquire, release
 *   prefix_siblings  order of the children     prefix_walk.c     lookup and why it ended
 *   prefix_index     path hash -> node         prefix_publish.c  new nodes
 *   prefix_ghost     what went                 prefix_drop.c     eviction, expiry, invalidation
 *   prefix_owner     who published what        prefix_tree.c     nodes, roots, refs come and go
 *   evict*           what goes next            prefix_charge.c   whose budget nodes count against
 *   account          whose bytes
 *
 * Invariants (quire_prefix_validate checks all of them)
 *   P1  a node that has children is full; roots stand for keys and are full with 0 tokens
 *   P2  the tokens of no node begin with those of a sibling: a node that holds more replaces one
 *       that holds less
 *   P3  a page is in one node at most; it is kept for exactly the node's tokens
 *   P4  a node has a page in group 0, and in all groups when it is partly filled
 *   P5  a ref ends at the node that holds the last token known of its sequence, in that node's
 *       whole length or, when other tokens follow there, in part; a dead ref at none
 *   P6  candidates for eviction are the nodes without children and refs
 *   P7  a node of one owner has only nodes of that owner below it, and is in that owner's ring
 *   P8  a root has children or refs
 *   P9  the pages of a node are charged to one region, the node's; the nodes of each pinned region
 *       stand in its list
 *   P10 a node's pages are pinned while pins end at it or below it: n_pins of them
 *   P11 bytes of an account in a region are the charge of its nodes there
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_PREFIX_INTERNAL_H
#define QUIRE_CORE_PREFIX_INTERNAL_H

#include "core/cache/cache_internal.h"
#include "core/cache/charge.h"
#include "core/cache/counter.h"
#include "core/evict/evict.h"
#include "core/prefix/account.h"
#include "core/prefix/prefix_ghost.h"
#include "core/prefix/prefix_index.h"
#include "core/prefix/prefix_node.h"
#include "core/prefix/prefix_owner.h"
#include "core/prefix/prefix_siblings.h"
#include "quire/prefix.h"

typedef struct quire_prefix_root {
    struct quire_prefix_root *prev;
    struct quire_prefix_root *next;
    uint64_t identity[2];
    uint32_t node;
    uint32_t n_ties; /* refs that end under it */
    uint32_t salt_bytes;
    unsigned char salt[];
} quire_prefix_root;

/* A run of table entries. */
typedef struct quire_prefix_run {
    uint32_t begin;
    uint32_t end;
} quire_prefix_run;

/* What stands behind a quire_prefix_ref, which is (generation << 32) | number. */
typedef struct quire_prefix_tie {
    quire_prefix_ref id; /* 0 = unused */
    uint64_t owner;
    quire_prefix_root *root; /* that it ends under, or did */
    uint32_t generation;
    quire_seq_id seq; /* QUIRE_SEQ_NULL of a pin */
    uint32_t node;    /* where it ends; 0 = dead */
    uint32_t n_known; /* tokens of the sequence that the path to there holds */
    uint32_t next;    /* of the node's refs, by number; of unused ones */
    uint32_t prev;
    bool is_private;
    bool is_pin;
    uint8_t rank;
    quire_evict_request request;
    uint32_t ban_tokens; /* a drop named a longer text that this one may begin with; 0 = none */
    uint64_t ban_hash;   /* of that text's tokens */
    quire_prefix_run holes[QUIRE_GROUPS_MAX]; /* entries that publish has let go of */
} quire_prefix_tie;

struct quire_prefix {
    quire_allocator allocator;
    quire_prefix_opts opts;
    quire_cache *cache;
    uint32_t page_tokens;
    uint32_t n_groups;
    quire_prefix_nodes nodes;
    quire_prefix_index index;
    quire_evict evict;
    quire_ghosts ghosts;
    quire_prefix_owners owners;
    quire_accounts accounts;
    bool is_over_quota; /* an account had pages in use when it was to lose them */
    uint32_t region_nodes[QUIRE_REGIONS_MAX]; /* lists of the pinned ones' nodes */
    uint32_t n_region_nodes;                  /* in all of them */
    quire_prefix_root *roots;                 /* latest asked for first */
    quire_prefix_root *roots_last;
    quire_prefix_tie *ties; /* [ties_capacity], number - 1 */
    uint32_t ties_capacity;
    uint32_t n_ties; /* ever used */
    uint32_t ties_free;
    uint32_t *path;       /* scratch of acquire: nodes, [path_capacity] */
    quire_page_id *pages; /* scratch: pages of these nodes, [path_capacity * n_groups] */
    uint32_t path_capacity;
    uint64_t seed;
    uint64_t now_us;
    uint64_t tick;
    uint64_t generation; /* quire_prefix_generation() */
    quire_counter query_tokens;
    quire_counter hit_tokens;
    quire_counter lookups;
    quire_counter hits;
    quire_counter published_tokens;
    quire_counter gone_nodes[QUIRE_PREFIX_GONE_COUNT];
    quire_counter gone_tokens[QUIRE_PREFIX_GONE_COUNT];
    quire_counter regret_tokens;
    quire_counter n_page_nodes;
    quire_counter n_tokens;
    quire_counter n_roots;
    quire_counter n_refs;
};

#if QUIRE_DEBUG >= 2
#define QUIRE_PREFIX_CHECKED(tree) quire_prefix_validate(tree)
#else
#define QUIRE_PREFIX_CHECKED(tree) ((void)(tree))
#endif

static inline quire_prefix_node *quire_prefix_at(const quire_prefix *tree, uint32_t node)
{
    return quire_prefix_node_at(&tree->nodes, node);
}

static inline const int32_t *quire_prefix_tokens_at(const quire_prefix *tree, uint32_t node)
{
    return quire_prefix_node_tokens_const(&tree->nodes, quire_prefix_at(tree, node));
}

/* Lookups may have another answer from here on: see quire_prefix_generation(). The functions that
 * change nodes, refs and charges call this, so that their callers need not. */
static inline void quire_prefix_changed(quire_prefix *tree)
{
    tree->generation++;
}

/* Time goes on, and recency. */
static inline void quire_prefix_tick(quire_prefix *tree, uint64_t now_us)
{
    tree->now_us = now_us > tree->now_us ? now_us : tree->now_us;
    tree->tick++;
    tree->evict.now_us = tree->now_us;
    tree->evict.tick = tree->tick;
}

/* ---- prefix_tree.c ---- */

/* The root of a key; 0 = none. */
uint32_t quire_prefix_root_find(const quire_prefix *tree, const quire_prefix_key *key,
                                uint64_t key_hash);
/* A root for a key that has none. Settle it when it turns out not to be needed.
 * Errors: QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_prefix_root_make(quire_prefix *tree, const quire_prefix_key *key, uint64_t key_hash,
                           uint16_t account, uint32_t *out);

/* Who uses a node. */
typedef struct quire_prefix_user {
    uint64_t owner;
    uint8_t rank;
} quire_prefix_user;

/* Somebody asks under a root: it is the last to make room for another. */
void quire_prefix_root_use(quire_prefix *tree, uint32_t id);
/* Drop the root that was not asked for longest, of those that no ref ends under (prefix_drop.c).
 * Errors: QUIRE_LIMIT (there is none). */
int quire_prefix_root_spare(quire_prefix *tree);

/* What a node holds beside its tokens. */
typedef struct quire_prefix_fill {
    quire_page_id pages[QUIRE_GROUPS_MAX];
    quire_region_id region; /* that they are charged to */
    quire_prefix_user user;
} quire_prefix_fill;

/* A new child of a full node, with 0 < n_tokens <= page_tokens, that is no sibling's prefix nor has
 * one as its own. Its pages become kept. It is no candidate yet: the caller ties it, or gives it a
 * child. Errors: QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_prefix_node_make(quire_prefix *tree, uint32_t parent, const int32_t *tokens,
                           uint32_t n_tokens, const quire_prefix_fill *fill, uint32_t *out);
/* A partly filled node gets more tokens, and pages that hold them all. It goes to the region of the
 * fill; when it is pinned that is its own, and the pages' charge moves there. */
void quire_prefix_node_grow(quire_prefix *tree, uint32_t id, const int32_t *tokens,
                            uint32_t n_tokens, const quire_prefix_fill *fill);
/* A node without children and refs ends; its parent is the caller's to settle. Returns the charge
 * of pages that were freed by it. */
uint64_t quire_prefix_node_end_now(quire_prefix *tree, uint32_t id, quire_prefix_gone why);
/* Bring a node's candidacy in line with its children and refs; end a root that has neither. */
void quire_prefix_node_settle(quire_prefix *tree, uint32_t id);
/* It is in use at the time of the last tick. */
void quire_prefix_node_touch(quire_prefix *tree, uint32_t id, quire_prefix_user user);
/* The same, and a request begins to use it that had it computed itself. */
void quire_prefix_node_share(quire_prefix *tree, uint32_t id, quire_prefix_user user);
/* The same, and a sequence was filled from it. */
void quire_prefix_node_hit(quire_prefix *tree, uint32_t id, quire_prefix_user user);

/* The tie behind a ref; NULL = none. */
quire_prefix_tie *quire_prefix_tie_find(const quire_prefix *tree, quire_prefix_ref ref);
/* Make sure that the next take succeeds. Errors: QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_prefix_tie_plan(quire_prefix *tree);
quire_prefix_tie *quire_prefix_tie_take(quire_prefix *tree);
void quire_prefix_tie_give(quire_prefix *tree, quire_prefix_tie *tie);
/* Let a tie end at another node under its root, or at none; both nodes are settled. A pin's holds
 * the path. */
void quire_prefix_tie_move(quire_prefix *tree, quire_prefix_tie *tie, uint32_t node);

/* ---- prefix_charge.c ---- */

/* Charge of a node's pages. */
uint64_t quire_prefix_node_charge_bytes(const quire_prefix *tree, uint32_t id);
/* A node begins to be charged to its region and account, ends it. Between the two its pages must
 * not change. */
void quire_prefix_node_enter(quire_prefix *tree, uint32_t id);
void quire_prefix_node_leave(quire_prefix *tree, uint32_t id);
/* One of its pages above group 0 has gone. */
void quire_prefix_node_shrink(quire_prefix *tree, uint32_t id, uint64_t bytes);
/* Charge a node to another region, which has room. */
void quire_prefix_node_recharge(quire_prefix *tree, uint32_t id, quire_region_id to);
/* A pin begins to hold the path to a node, lets go. */
void quire_prefix_path_pin(quire_prefix *tree, uint32_t id);
void quire_prefix_path_unpin(quire_prefix *tree, uint32_t id);
/* A sequence of a region was filled from the first n nodes of the path: charges move to it. */
void quire_prefix_path_charge(quire_prefix *tree, quire_region_id region, uint8_t rank, uint32_t n);
/* See charge.h: the part of it that concerns nodes. */
void quire_prefix_nodes_leave(quire_prefix *tree, quire_charge_move *move);
void quire_prefix_nodes_return(quire_prefix *tree, quire_charge_move *move);
/* A cached node of the dynamic region below which a pinned region has cached something cannot go
 * before that, which is not the dynamic region's to take. So the pinned region gives the node below
 * and gets the charge of the one above for it, nearer to the root, if that is no more. Returns
 * whether there were such two; then the dynamic region has fewer bytes charged, or is nearer to it.
 */
bool quire_prefix_nodes_trade(quire_prefix *tree);
/* Tie a pin to the path that ends at a node with n_tokens of it. The tie is planned; it becomes a
 * pin's by quire_prefix_tie_pin(), and until then only protects the path from eviction. Ended by
 * quire_prefix_release(). */
quire_prefix_tie *quire_prefix_tie_hold(quire_prefix *tree, uint32_t node, uint32_t n_tokens,
                                        uint8_t rank);
void quire_prefix_tie_pin(quire_prefix *tree, quire_prefix_tie *tie);
/* The path of a pin is used by it: its rank, and nobody's in particular from now on. */
void quire_prefix_tie_use(quire_prefix *tree, const quire_prefix_tie *tie);
/* Let an account that is above its quota lose candidates of its own; all those of which more were
 * in use when that was tried last. */
void quire_prefix_quota_apply(quire_prefix *tree, uint16_t account);
void quire_prefix_quotas_apply(quire_prefix *tree);

/* ---- prefix_walk.c ---- */

/* Where a text leaves the tree. */
typedef struct quire_prefix_walk {
    uint64_t hash;   /* of the path to base; of the key when there is no root */
    uint32_t root;   /* 0 = none */
    uint32_t base;   /* last of the nodes that match wholly: the root at least */
    uint32_t n_full; /* tokens up to there */
    uint32_t inside; /* child of base that shares the next n_inside tokens; 0 = none */
    uint32_t n_inside;
    uint32_t other; /* child of base that goes on with another token behind these; 0 = none */
    const quire_ghost *gone; /* walk_match: the last thing that the text goes on with and that went,
                              * behind all that is there; NULL = none */
} quire_prefix_walk;

/* path gets the nodes that match wholly, without the root: [n_tokens / page_tokens] or NULL. */
quire_prefix_walk quire_prefix_walk_to(const quire_prefix *tree, const quire_prefix_key *key,
                                       const int32_t *tokens, uint32_t n_tokens, uint32_t *path);

/* What a walk amounts to when at most tokens_max tokens are to be used. */
void quire_prefix_walk_match(const quire_prefix *tree, quire_prefix_walk *walk,
                             const int32_t *tokens, uint32_t n_tokens, uint32_t tokens_max,
                             quire_prefix_match *match);

/* Find a full page of a path; 0 = none. */
uint32_t quire_prefix_child_find(const quire_prefix *tree, uint32_t parent, uint64_t path_hash,
                                 const int32_t *tokens);

/* ---- prefix_drop.c ---- */

/* quire_prefix_evict() with all that can be asked for. */
uint64_t quire_prefix_evict_ask(quire_prefix *tree, quire_evict_ask ask, uint64_t need_bytes);

#endif /* QUIRE_CORE_PREFIX_INTERNAL_H */
