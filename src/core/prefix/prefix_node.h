/* prefix_node.h - storage of the prefix tree's nodes: ids, not pointers, in chunks that never move.
 *
 * A node contains its pages and tokens, so that a lookup reads adjacent cache lines. Siblings form
 * a treap ordered by their tokens (prefix_siblings.h).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_PREFIX_NODE_H
#define QUIRE_CORE_PREFIX_NODE_H

#include "base/check.h"
#include "quire/alloc.h"
#include "quire/prefix.h"
#include "quire/types.h"

#include <stdbool.h>
#include <stdint.h>

struct quire_prefix_root;

#define QUIRE_NODE_NULL 0u

typedef enum quire_node_kind {
    QUIRE_NODE_FREE = 0,
    QUIRE_NODE_ROOT = 1, /* of one key: no tokens, no pages */
    QUIRE_NODE_PAGE = 2
} quire_node_kind;

/* A node's place in a heap (evict_heap.h). */
typedef struct quire_evict_link {
    uint64_t key; /* smallest first */
    uint32_t up;
    uint32_t left;
    uint32_t right;
    uint8_t n_path;
    uint8_t heap; /* number of the heap in the bin */
} quire_evict_link;

#define QUIRE_NODE_LINKS 2u /* by policy, by deadline */
#define QUIRE_NODE_WORDS 3u /* for the policy */

#define QUIRE_NODE_TIP_MAX 255u

/* quire_prefix_node.ends: why hits may end at the node (prefix_window.c). */
#define QUIRE_NODE_ENDS_TEXT   1u /* a prompt or a text ended here */
#define QUIRE_NODE_ENDS_BRANCH 2u /* it has several children */
#define QUIRE_NODE_ENDS        3u

typedef struct quire_prefix_node {
    uint64_t path_hash; /* seeded hash of the key and all tokens up to the node's end */
    quire_page_key key; /* of the same, equal in every process */
    union {
        uint64_t owner;
        struct quire_prefix_root *root; /* of a root */
    };
    uint64_t created_us;
    uint64_t used_us;
    uint64_t used_tick; /* orders uses at the same time */
    uint32_t parent;
    uint32_t left; /* treap of the siblings; in a free node: the next free node */
    uint32_t right;
    uint32_t children; /* root of their treap */
    uint32_t n_children;
    uint32_t owner_next; /* ring of the owner's nodes (prefix_owner.h) */
    uint32_t owner_prev;
    uint32_t refs_head; /* refs that end here, by number (quire_prefix_tie) */
    uint32_t n_refs;
    uint32_t first_token; /* position of tokens[0] */
    uint32_t hits;
    uint32_t n_pins;      /* pins that end here or below */
    uint32_t region_next; /* nodes charged to the same pinned region; 0 = end (charge.h) */
    uint32_t region_prev;
    quire_evict_link links[QUIRE_NODE_LINKS];
    uint64_t words[QUIRE_NODE_WORDS]; /* for the policy; 0 in a new node */
    uint16_t n_tokens;
    uint16_t account; /* of its root */
    uint8_t region;
    uint8_t rank;     /* the highest rank of its users */
    uint8_t kind;     /* quire_node_kind */
    uint8_t tip;      /* pages from the node to the end of the last text that ended at or below it,
                         at most QUIRE_NODE_TIP_MAX; QUIRE_NODE_TIP_MAX when no text did */
    uint8_t heaps;    /* flags of evict.h */
    uint8_t list;     /* number of the policy's list */
    uint8_t copy;     /* quire_copy_mark */
    uint8_t ends : 2; /* flags; this field and those below are for trees with windows
                         (prefix_window.c) */
    uint8_t window_list : 2;    /* of the lists of pages that may go; 0 = in none */
    uint8_t copied_windows : 1; /* whether the copy has the pages of groups with windows */
    uint8_t copied_state : 1;   /* whether the copy has the node's state */
    uint8_t is_apart : 1;       /* as its root: counted in apart_bytes (any tree) */
    uint32_t told;              /* number of the telling that has the node (prefix_watch.c) */
    uint32_t down;              /* scratch of a telling: the next node of a path */
    uint32_t n_ends;        /* nodes with flags, the node itself or below, that need its window */
    uint32_t n_window_pins; /* pins that do */
    uint32_t window_next;
    uint32_t window_prev;
    uint32_t pages[]; /* [n_groups], then int32_t tokens[page_tokens] */
} quire_prefix_node;

typedef struct quire_prefix_nodes {
    quire_allocator allocator;
    unsigned char **chunks; /* [chunks_capacity] */
    uint32_t n_chunks;
    uint32_t chunks_capacity;
    uint32_t chunk_bits; /* a chunk holds 1 << chunk_bits nodes */
    uint32_t n_groups;
    size_t node_bytes;
    uint32_t free_head;
    uint32_t id_end; /* ids from here on were never used */
    uint32_t n_used;
    uint32_t nodes_max;
    uint32_t seed; /* seed of the siblings' priorities; must be unknown to clients */
} quire_prefix_nodes;

void quire_prefix_nodes_init(quire_prefix_nodes *nodes, const quire_allocator *allocator,
                             uint32_t n_groups, uint32_t page_tokens);
void quire_prefix_nodes_fini(quire_prefix_nodes *nodes);

/* Make sure that the next take succeeds. Errors: QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_prefix_nodes_plan(quire_prefix_nodes *nodes);

/* Take a planned node; all fields but the kind are zero. */
uint32_t quire_prefix_nodes_take(quire_prefix_nodes *nodes, quire_node_kind kind);
void quire_prefix_nodes_give(quire_prefix_nodes *nodes, uint32_t id);

static inline quire_prefix_node *quire_prefix_node_at(const quire_prefix_nodes *nodes, uint32_t id)
{
    size_t in_chunk = id & ((1u << nodes->chunk_bits) - 1);

    QUIRE_ASSERT(id != QUIRE_NODE_NULL && id < nodes->id_end);
    return (quire_prefix_node *)(void *)(nodes->chunks[id >> nodes->chunk_bits] +
                                         in_chunk * nodes->node_bytes);
}

static inline int32_t *quire_prefix_node_tokens(const quire_prefix_nodes *nodes,
                                                quire_prefix_node *node)
{
    return (int32_t *)&node->pages[nodes->n_groups];
}

static inline const int32_t *quire_prefix_node_tokens_const(const quire_prefix_nodes *nodes,
                                                            const quire_prefix_node *node)
{
    return (const int32_t *)&node->pages[nodes->n_groups];
}

/* Position behind the node's last token. */
static inline uint32_t quire_prefix_node_end(const quire_prefix_node *node)
{
    return node->first_token + node->n_tokens;
}

#endif /* QUIRE_CORE_PREFIX_NODE_H */
