/* prefix_internal.h - the prefix tree object, and declarations shared by its files.
 *
 *   prefix_node      storage of nodes          prefix.c          create, acquire, release
 *   prefix_siblings  order of the children     prefix_walk.c     lookup and why it ended
 *   prefix_index     path hash -> node         prefix_publish.c  new nodes
 *   prefix_ghost     ended nodes               prefix_drop.c     eviction, expiry, invalidation
 *   prefix_owner     nodes by owner            prefix_tree.c     nodes, roots, refs come and go
 *   evict*           choice of victims         prefix_charge.c   charges of nodes
 *   account          bytes by tenant           prefix_watch.c    telling a watcher
 *   prefix_window.c  pages behind windows
 *
 * Invariants (quire_prefix_validate checks all of them)
 *   P1  a node with children is full; a root stands for a key and is full with 0 tokens
 *   P2  no node's tokens are a prefix of a sibling's: the longer node replaces the shorter
 *   P3  a page is in at most one node, and is kept for exactly the node's tokens
 *   P4  a node has a page in group 0; a partly filled node has a page in every group
 *   P5  a ref ends at the node that holds the last published token of its sequence: at the node's
 *       end, or inside the node when other tokens follow there. A dead ref ends at no node
 *   P6  candidates for eviction are the nodes without children and refs
 *   P7  a node with an owner has only nodes of the same owner below, and is in the owner's ring
 *   P8  a root has children or refs
 *   P9  the pages of a node are charged to the node's region; each pinned region has a list of its
 *       nodes
 *   P10 a node's pages are pinned while n_pins > 0: the number of pins ending at the node or below.
 *       Its pages of groups with windows are pinned while n_window_pins > 0: the pins among these
 *       whose last window reaches the node
 *   P11 an account's bytes in a region are the charge of its nodes in the region; apart_bytes is
 *       the charge of the nodes that are apart: all nodes of a root are, or none
 *   P12 a node that the watcher knows is full, and the watcher knows its parent
 *   P13 n_ends of a node is the number of nodes with end flags, at the node or below, whose window
 *       reaches the node. A full node with pages of groups with windows is in a list of its region,
 *       unless pins hold these pages: in QUIRE_WINDOW_KEPT if n_ends > 0 or if it has a state that
 *       is smaller than its page of group 0, else in QUIRE_WINDOW_FREE
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
    uint32_t n_ties; /* refs that end under the root */
    uint32_t salt_bytes;
    unsigned char salt[];
} quire_prefix_root;

/* A run of table entries. */
typedef struct quire_prefix_run {
    uint32_t begin;
    uint32_t end;
} quire_prefix_run;

/* The record of a quire_prefix_ref, which is (generation << 32) | number. */
typedef struct quire_prefix_tie {
    quire_prefix_ref id; /* 0 = unused */
    uint64_t owner;
    quire_prefix_root *root; /* the root of its path, also of a dead ref */
    uint32_t generation;
    quire_seq_id seq; /* QUIRE_SEQ_NULL for a pin */
    uint32_t node;    /* the node at which the ref ends; 0 = dead */
    uint32_t n_known; /* the sequence's tokens that the path to the node holds */
    uint32_t next;    /* next of the node's refs, or of the unused ties, by number */
    uint32_t prev;
    bool is_private;
    bool keeps_pages; /* quire_prefix_acquire_opts */
    bool is_pin;
    bool pins_window; /* a pin that holds its last window too */
    uint8_t rank;
    quire_evict_request request;
    uint32_t ban_tokens; /* length of a dropped text that the sequence may turn out to begin with; 0
                            = none */
    uint64_t ban_hash;   /* hash of that text's tokens */
    quire_prefix_run holes[QUIRE_GROUPS_MAX]; /* holes that publish has copied to the tree */
} quire_prefix_tie;

/* The watcher, and the nodes that it has been told. */
typedef struct quire_prefix_watch_state {
    quire_prefix_watcher to; /* stored NULL = none */
    uint32_t telling;        /* number of this telling, from 1; a loss begins the next one */
    uint32_t cursor;         /* the untold nodes have ids from here on; 0 = all are told */
    bool is_lost;            /* the watcher is to be cleared first */
} quire_prefix_watch_state;

/* Nodes whose pages of groups with windows may be evicted alone, oldest use first. */
typedef enum quire_window_list {
    QUIRE_WINDOW_NONE,
    QUIRE_WINDOW_FREE, /* no end needs them */
    QUIRE_WINDOW_KEPT, /* an end needs them */
    QUIRE_WINDOW_LISTS
} quire_window_list;

typedef struct quire_window_queue {
    uint32_t first;
    uint32_t last;
    uint32_t n;
    uint64_t searched; /* the cache's generation when a search found nothing; 0 = none */
} quire_window_queue;

struct quire_prefix {
    quire_allocator allocator;
    quire_prefix_opts opts;
    quire_cache *cache;
    uint32_t page_tokens;
    uint32_t n_groups;      /* of a node's pages: those of sequences, and states */
    uint32_t window_tokens; /* the widest window of a group; 0 = no group has one */
    quire_window_queue windows[QUIRE_REGIONS_MAX][QUIRE_WINDOW_LISTS];
    quire_prefix_nodes nodes;
    quire_prefix_index index;
    quire_evict evict;
    quire_ghosts ghosts;
    uint8_t copies_epoch; /* 1 .. 255: ghosts of another one know of no copies */
    bool has_copies;      /* a ghost has known of a copy */
    quire_prefix_owners owners;
    quire_accounts accounts;
    bool is_over_quota;                       /* an account above its quota had pages in use */
    uint32_t region_nodes[QUIRE_REGIONS_MAX]; /* lists of the nodes of pinned regions */
    uint32_t n_region_nodes;                  /* in all these lists */
    quire_prefix_root *roots;                 /* most recently used first */
    quire_prefix_root *roots_last;
    quire_prefix_tie *ties; /* [ties_capacity], number - 1 */
    uint32_t ties_capacity;
    uint32_t n_ties; /* ever used */
    uint32_t ties_free;
    uint32_t *path;       /* scratch of acquire: nodes, [path_capacity] */
    quire_page_id *pages; /* scratch: pages of these nodes, [path_capacity * n_groups] */
    uint32_t path_capacity;
    quire_prefix_watch_state watch;
    uint64_t seed;
    uint64_t now_us;
    uint64_t tick;
    uint64_t generation; /* of quire_prefix_generation(): the tree's part */
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
    quire_counter apart_bytes;
};

#define QUIRE_PREFIX_CHECKED(tree) QUIRE_CHECKED(quire_prefix_validate, tree)

static inline quire_prefix_node *quire_prefix_at(const quire_prefix *tree, uint32_t node)
{
    return quire_prefix_node_at(&tree->nodes, node);
}

static inline const int32_t *quire_prefix_tokens_at(const quire_prefix *tree, uint32_t node)
{
    return quire_prefix_node_tokens_const(&tree->nodes, quire_prefix_at(tree, node));
}

/* Report that results of lookups may change: see quire_prefix_generation(). The functions that
 * change nodes, refs and charges call this; their callers need not. */
static inline void quire_prefix_changed(quire_prefix *tree)
{
    tree->generation++;
}

/* Advance the time and the tick that orders uses. */
static inline void quire_prefix_tick(quire_prefix *tree, uint64_t now_us)
{
    tree->now_us = now_us > tree->now_us ? now_us : tree->now_us;
    tree->tick++;
    tree->evict.now_us = tree->now_us;
    tree->evict.tick = tree->tick;
}

/* The window of a group; 0 = none. */
static inline uint32_t quire_prefix_window(const quire_prefix *tree, uint32_t group)
{
    return tree->cache->opts.needs_last_tokens[group];
}

/* The number of groups that sequences have, and the group of states: the one behind them. */
static inline uint32_t quire_prefix_seq_groups(const quire_prefix *tree)
{
    return tree->cache->opts.n_groups;
}

static inline bool quire_prefix_is_state(const quire_prefix *tree, uint32_t group)
{
    return group == tree->cache->opts.n_groups;
}

/* The number of pins on a node's page of a group. */
static inline uint32_t quire_prefix_page_pins(const quire_prefix *tree,
                                              const quire_prefix_node *node, uint32_t group)
{
    return quire_prefix_window(tree, group) != 0 ? node->n_window_pins : node->n_pins;
}

/* ---- prefix_window.c ---- */

/* Why hits end before a node that lacks its page of a group. */
quire_prefix_cut quire_prefix_group_cut(const quire_prefix *tree, uint32_t group);

/* The most tokens, up to n_tokens, of which a hit can be made: those before n_tokens whose last
 * windows are whole. `id` is the node that holds the last of n_tokens tokens, or one below it. *cut
 * gets the reason if these are fewer than n_tokens, and is left alone otherwise. */
uint32_t quire_prefix_window_fit(const quire_prefix *tree, uint32_t id, uint32_t n_tokens,
                                 quire_prefix_cut *cut);

/* Whether a hit can end nowhere inside or at the end of a node. */
bool quire_prefix_is_dead(const quire_prefix *tree, uint32_t id);

/* Leave out the pages that a hit of n_tokens tokens does not need: pages[] as for
 * quire_seq_adopt(). */
void quire_prefix_window_trim(const quire_prefix *tree, quire_page_id *pages, uint32_t n_tokens);

/* Whether a hit of n_tokens tokens uses a node's page of a group. */
bool quire_prefix_window_uses(const quire_prefix *tree, const quire_prefix_node *node,
                              uint32_t group, uint32_t n_tokens);

/* The first token that ends and pins in a node, which begins at first_token, keep. */
static inline uint32_t quire_prefix_window_reach(const quire_prefix *tree, uint32_t first_token)
{
    return quire_window_begin(first_token > tree->page_tokens ? first_token - tree->page_tokens : 0,
                              tree->window_tokens);
}

/* Whether an end in node `end` keeps the page of a group of a node on the path to it. */
bool quire_prefix_window_reaches(const quire_prefix *tree, uint32_t end, uint32_t id,
                                 uint32_t group);

/* Set or clear flags of a node. */
void quire_prefix_ends_set(quire_prefix *tree, uint32_t id, uint8_t flags);
void quire_prefix_ends_clear(quire_prefix *tree, uint32_t id, uint8_t flags);
/* A text ended at a node: flag it, and clear older flags of its path beyond those that a path
 * keeps. */
void quire_prefix_text_ended(quire_prefix *tree, uint32_t id);
/* The number of a node's children has changed. */
void quire_prefix_branch_update(quire_prefix *tree, uint32_t id);

/* A node's pages, region, n_ends or n_window_pins have changed or are about to: leave its list
 * before, enter one after. */
void quire_prefix_window_enter(quire_prefix *tree, uint32_t id);
void quire_prefix_window_leave(quire_prefix *tree, uint32_t id);
/* A sequence was filled from a node: its pages are the last to go. */
void quire_prefix_window_use(quire_prefix *tree, uint32_t id);

/* Count a pin that ends at a node (is_added), or count it no more. */
void quire_prefix_window_pin(quire_prefix *tree, uint32_t id, bool is_added);

/* Evict pages of a list until the region's charge is down to end_bytes (see prefix_drop.c). */
void quire_prefix_windows_evict(quire_prefix *tree, quire_evict_ask ask, quire_window_list list,
                                uint64_t end_bytes);

/* A sequence has computed the tokens of a full node again: give the node the pages that it lacks.
 * pages: [n_groups], of the sequence, QUIRE_PAGE_NULL = none. */
void quire_prefix_window_fill(quire_prefix *tree, uint32_t id, const quire_page_id *pages);

/* Check P13 and the pins of windows. */
void quire_prefix_windows_validate(const quire_prefix *tree);

/* ---- prefix_tree.c ---- */

/* The root of a key; 0 = none. */
uint32_t quire_prefix_root_find(const quire_prefix *tree, const quire_prefix_key *key,
                                uint64_t key_hash);
/* Make a root for a key without a root; opts: account and is_apart are read. Call
 * quire_prefix_node_settle() if the root is not needed. Errors: QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_prefix_root_make(quire_prefix *tree, const quire_prefix_key *key, uint64_t key_hash,
                           const quire_prefix_acquire_opts *opts, uint32_t *out);

/* The user of a node. */
typedef struct quire_prefix_user {
    uint64_t owner;
    uint8_t rank;
} quire_prefix_user;

/* Mark a root as the most recently used, so that it is the last to be replaced. */
void quire_prefix_root_use(quire_prefix *tree, uint32_t id);
/* Drop the least recently used root without refs (prefix_drop.c).
 * Errors: QUIRE_LIMIT (every root has refs). */
int quire_prefix_root_spare(quire_prefix *tree);

/* The contents of a node beside its tokens. */
typedef struct quire_prefix_fill {
    quire_page_id pages[QUIRE_GROUPS_MAX];
    quire_region_id region; /* to which the pages are charged */
    quire_prefix_user user;
} quire_prefix_fill;

/* Make a child of a full node, with 0 < n_tokens <= page_tokens. Neither the child's tokens nor a
 * sibling's are a prefix of the other. The child's pages become kept. The child is no candidate
 * yet: the caller ties it, or adds a child to it. Errors: QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_prefix_node_make(quire_prefix *tree, uint32_t parent, const int32_t *tokens,
                           uint32_t n_tokens, const quire_prefix_fill *fill, uint32_t *out);
/* Replace the tokens of a partly filled node by a longer text, and its pages by pages that hold
 * this text. The node moves to the fill's region. For a pinned node the fill's region is the node's
 * own, and the charge of the new pages moves there. */
void quire_prefix_node_grow(quire_prefix *tree, uint32_t id, const int32_t *tokens,
                            uint32_t n_tokens, const quire_prefix_fill *fill);
/* End a node without children and refs. The caller settles its parent. Returns the charge of the
 * freed pages. */
uint64_t quire_prefix_node_end_now(quire_prefix *tree, uint32_t id, quire_prefix_gone why);
/* Make a node a candidate or not, according to its children and refs; end a root without both. */
void quire_prefix_node_settle(quire_prefix *tree, uint32_t id);
/* Record a use of a node at the last tick. */
void quire_prefix_node_touch(quire_prefix *tree, uint32_t id, quire_prefix_user user);
/* The same for a node that a further request begins to use after it computed the tokens itself. */
void quire_prefix_node_share(quire_prefix *tree, uint32_t id, quire_prefix_user user);
/* The same for a node from which a sequence was filled. */
void quire_prefix_node_hit(quire_prefix *tree, uint32_t id, quire_prefix_user user);

/* The tie behind a ref; NULL = none. */
quire_prefix_tie *quire_prefix_tie_find(const quire_prefix *tree, quire_prefix_ref ref);
/* Make sure that the next take succeeds. Errors: QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_prefix_tie_plan(quire_prefix *tree);
quire_prefix_tie *quire_prefix_tie_take(quire_prefix *tree);
void quire_prefix_tie_give(quire_prefix *tree, quire_prefix_tie *tie);
/* Move the end of a tie to another node under its root, or to none. Both nodes are settled. A pin's
 * tie also pins the path. */
void quire_prefix_tie_move(quire_prefix *tree, quire_prefix_tie *tie, uint32_t node);

/* ---- prefix_charge.c ---- */

/* Charge of a node's pages. */
uint64_t quire_prefix_node_charge_bytes(const quire_prefix *tree, uint32_t id);
/* Begin (enter) or end (leave) the charge of a node to its region and account. Between the two
 * calls the node's pages must not change. */
void quire_prefix_node_enter(quire_prefix *tree, uint32_t id);
void quire_prefix_node_leave(quire_prefix *tree, uint32_t id);
/* A node lost a page above group 0. */
void quire_prefix_node_shrink(quire_prefix *tree, uint32_t id, uint64_t bytes);
/* Charge a node to another region, which has room. */
void quire_prefix_node_recharge(quire_prefix *tree, uint32_t id, quire_region_id to);
/* Pin or unpin the path to a node for a tie. */
void quire_prefix_path_pin(quire_prefix *tree, const quire_prefix_tie *tie, uint32_t id);
void quire_prefix_path_unpin(quire_prefix *tree, const quire_prefix_tie *tie, uint32_t id);
/* A sequence of a region was filled from the first n nodes of tree->path: move their charges to the
 * region. */
void quire_prefix_path_charge(quire_prefix *tree, quire_region_id region, uint8_t rank, uint32_t n);
/* The moves of charge.h for nodes. */
void quire_prefix_nodes_leave(quire_prefix *tree, quire_charge_move *move);
void quire_prefix_nodes_return(quire_prefix *tree, quire_charge_move *move);
/* A cached node of the dynamic region cannot be evicted before the cached nodes below it, which the
 * dynamic region cannot evict when they are charged to a pinned region. So evict the pinned
 * region's node, and charge the dynamic region's node above to the pinned region in its place, if
 * the charge is no larger. Returns whether there was such a pair. If so, the dynamic region has
 * fewer bytes charged, or is a step nearer to it. */
bool quire_prefix_nodes_trade(quire_prefix *tree);
/* Tie a pin to the first n_tokens of the path to a node. The tie is planned. Until
 * quire_prefix_tie_pin() the tie only protects the path from eviction. Ended by
 * quire_prefix_release(). */
quire_prefix_tie *quire_prefix_tie_hold(quire_prefix *tree, uint32_t node, uint32_t n_tokens,
                                        uint8_t rank);
void quire_prefix_tie_pin(quire_prefix *tree, quire_prefix_tie *tie, bool pins_window);
/* Record a pin's use of its path: the nodes get the pin's rank, and have no owner from now on. */
void quire_prefix_tie_use(quire_prefix *tree, const quire_prefix_tie *tie);
/* quota_apply: evict candidates of an account above its quota. quotas_apply: the same for all
 * accounts, when pages in use hindered an earlier call. */
void quire_prefix_quota_apply(quire_prefix *tree, uint16_t account);
void quire_prefix_quotas_apply(quire_prefix *tree);

/* ---- prefix_walk.c ---- */

/* The place where a text leaves the tree. */
typedef struct quire_prefix_walk {
    uint64_t hash;   /* of the path to base, or of the key without a root */
    uint32_t root;   /* 0 = none */
    uint32_t base;   /* last node that matches wholly, at least the root */
    uint32_t n_full; /* tokens up to the end of base */
    uint32_t inside; /* child of base that shares the next n_inside tokens; 0 = none */
    uint32_t n_inside;
    uint32_t other;          /* child of base with another token behind these; 0 = none */
    const quire_ghost *gone; /* set by walk_match: the ghost furthest along the text, behind all
                                cached nodes; NULL = none */
} quire_prefix_walk;

/* Follow a text. path gets the nodes that match wholly, without the root: [n_tokens / page_tokens]
 * or NULL. */
quire_prefix_walk quire_prefix_walk_to(const quire_prefix *tree, const quire_prefix_key *key,
                                       const int32_t *tokens, uint32_t n_tokens, uint32_t *path);

/* Compute the match of a walk when at most tokens_max tokens may be used. */
void quire_prefix_walk_match(const quire_prefix *tree, quire_prefix_walk *walk,
                             const int32_t *tokens, uint32_t n_tokens, uint32_t tokens_max,
                             quire_prefix_match *match);

/* Find a full page of a path; 0 = none. */
uint32_t quire_prefix_child_find(const quire_prefix *tree, uint32_t parent, uint64_t path_hash,
                                 const int32_t *tokens);

/* ---- prefix_watch.c ---- */

/* A node came or grew; it is told if it is full. */
void quire_prefix_tell_stored(quire_prefix *tree, uint32_t id);
/* A node is about to end. */
void quire_prefix_tell_removed(quire_prefix *tree, uint32_t id);
/* Whether the watcher knows the node. */
bool quire_prefix_is_told(const quire_prefix *tree, uint32_t id);

/* ---- prefix_drop.c ---- */

/* quire_prefix_evict() with a region and an account. */
uint64_t quire_prefix_evict_ask(quire_prefix *tree, quire_evict_ask ask, uint64_t need_bytes);

#endif /* QUIRE_CORE_PREFIX_INTERNAL_H */
