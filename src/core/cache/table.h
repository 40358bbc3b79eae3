/* table.h - two-level page tables with copy-on-write leaves.
 *
 *   table -> leaves[] -> leaf: refs, QUIRE_LEAF_ENTRIES entries -> page
 *                         ^
 *   fork shares leaves ---'       a page counts the leaves that hold it, not the sequences
 *
 *   entries:   | full | hole | full | ... | tail, maybe partly filled | reserved | reserved |
 *              0                                          n_entries - 1           n_held - 1
 *
 * Invariants (quire_cache_validate checks all of them)
 *   T1  a leaf counts its holders (tables). With two or more holders its content is frozen, and all
 *       its entries hold tokens, so that every holder has the same entries
 *   T2  entry i starts at token i * page_tokens and at slot 0; all but the tail are full
 *   T3  a page's refs is the number of leaf entries that name the page
 *   T4  a tail page has one appender: the table that was the sole holder of the page and of its
 *       leaf when room was made, and that fills all slots on which the prefix tree relies. Readers
 *       that adopt the page later, through the tree, use slots that the appender has filled; they
 *       copy the page before they append
 *   T5  a hole (page QUIRE_PAGE_NULL) is a full entry whose page was released. A hole refers to
 *       nothing in the pool, and stays a hole until truncation drops the entry
 *   T6  refs of a table's leaves do not grow towards the end: a holder of a leaf also holds the
 *       leaves before it, because sharing starts at the first leaf and only the last leaf is ever
 *       replaced
 *
 * As everywhere: functions named plan may fail and only prepare memory; the other functions cannot
 * fail and use the prepared memory.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_TABLE_H
#define QUIRE_CORE_TABLE_H

#include "core/pool/pool.h"
#include "quire/alloc.h"
#include "quire/types.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct quire_leaf {
    uint32_t refs;      /* tables that hold the leaf */
    uint32_t n_entries; /* in use, including reserved entries */
    union {
        struct quire_leaf *next_spare; /* in the stock */
        uint64_t n_seen;               /* scratch of validate: 0 between calls */
    };
    quire_page_entry entries[QUIRE_LEAF_ENTRIES];
} quire_leaf;

static inline quire_leaf *quire_leaf_of(quire_page_entry *entries)
{
    return (quire_leaf *)(void *)((unsigned char *)entries - offsetof(quire_leaf, entries));
}

/* Spare leaves, so that applying a plan cannot fail and a busy cache does not allocate. */
typedef struct quire_leaf_stock {
    quire_allocator allocator;
    quire_leaf *spare;
    uint32_t n_spare;
} quire_leaf_stock;

void quire_leaf_stock_init(quire_leaf_stock *stock, const quire_allocator *allocator);
void quire_leaf_stock_fini(quire_leaf_stock *stock);

/* Make sure of n spare leaves. Errors: QUIRE_NOMEM. */
int quire_leaf_stock_plan(quire_leaf_stock *stock, uint64_t n);

typedef struct quire_table {
    quire_page_entry **leaves; /* [leaves_capacity] -> entries of a leaf */
    uint32_t leaves_capacity;
    uint32_t n_leaves;
    uint32_t n_entries; /* entries that hold tokens */
    uint32_t n_held;    /* n_entries plus the reserved entries */
    /* Entries [holes_begin, holes_end) are known to be holes, so that release can skip them; other
     * entries may be holes too. */
    uint32_t holes_begin;
    uint32_t holes_end;
} quire_table;

/* The pool, the stock and the owner of a table. */
typedef struct quire_table_ctx {
    quire_pool *pool;
    quire_leaf_stock *stock;
    quire_group_id group;
    quire_region_id region;
    quire_seq_id seq;
    uint32_t n_node_groups; /* quire_cache_node_groups() */
} quire_table_ctx;

/* Needs of making room for more tokens, or of truncation. */
typedef struct quire_table_needs {
    uint32_t n_pages;  /* including the copy of the tail page */
    uint32_t n_leaves; /* including the copy of the last leaf */
    uint32_t n_held;   /* entries afterwards */
    bool copies_leaf;
    bool copies_tail;
} quire_table_needs;

static inline quire_page_entry *quire_table_entry(const quire_table *table, uint32_t i)
{
    return &table->leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES];
}

/* Pages and leaves for n_new > 0 more tokens behind the present n_tokens. */
quire_table_needs quire_table_room_needs(const quire_table_ctx *ctx, const quire_table *table,
                                         uint32_t n_tokens, uint32_t n_new);

/* Tokens that the table can hold without further pages, copies or leaves. */
uint32_t quire_table_ready_tokens(const quire_table_ctx *ctx, const quire_table *table,
                                  uint32_t n_tokens);

/* Give the upper level room for n_leaves. Errors: QUIRE_NOMEM. */
int quire_table_plan_upper(quire_table *table, const quire_allocator *allocator, uint32_t n_leaves);

/* Take the pages and leaves of needs. */
void quire_table_make_room(const quire_table_ctx *ctx, quire_table *table,
                           const quire_table_needs *needs);

/* Add n_new tokens within the present room. Cost: O(pages touched). */
void quire_table_grow(const quire_table_ctx *ctx, quire_table *table, uint32_t n_new);

/* Turn the entries [begin, end), all full, into holes, except for entries in leaves that another
 * table holds. Returns the number of released pages. Nothing is allocated.
 * Cost: O(end - begin), without the entries before the last shared leaf and those in the known run
 * of holes. */
uint32_t quire_table_release(const quire_table_ctx *ctx, quire_table *table, uint32_t begin,
                             uint32_t end);

/* Whether truncation to n_tokens would cut into a hole, which is not allowed. */
bool quire_table_cuts_hole(const quire_table *table, uint32_t page_tokens, uint32_t n_tokens);

/* Whether truncation to n_tokens copies a leaf (from the stock). */
bool quire_table_truncate_copies(const quire_table_ctx *ctx, const quire_table *table,
                                 uint32_t n_tokens);

/* Keep n_tokens tokens; drop all other entries, reserved entries included. The cut must not be
 * inside a hole. */
void quire_table_truncate(const quire_table_ctx *ctx, quire_table *table, uint32_t n_tokens);

/* Whether a fork copies the last leaf, because it also holds reserved pages of its owner. */
bool quire_table_fork_copies(const quire_table *table);

/* Share the entries of `from`, without its reserved pages, with `to`, which is empty and has an
 * upper level of sufficient size. ctx is the new holder's. Cost: O(leaves). */
void quire_table_fork(const quire_table_ctx *ctx, quire_table *to, const quire_table *from);

/* Fill an empty table with n_tokens > 0 tokens of existing pages; the upper level and the leaves
 * are planned. See quire_seq_adopt(). Cost: O(pages). */
void quire_table_adopt(const quire_table_ctx *ctx, quire_table *table, const quire_page_id *pages,
                       uint32_t n_tokens);

/* Replace the page of a full entry by another page that is kept for the same tokens. Does nothing
 * in a leaf that another table holds, for a hole, or when the prefix tree keeps the entry's present
 * page. Nothing is allocated. The replaced page is free when it has no other holder. */
void quire_table_swap(const quire_table_ctx *ctx, quire_table *table, uint32_t i,
                      quire_page_id page);

/* Drop every entry and the upper level. */
void quire_table_clear(const quire_table_ctx *ctx, quire_table *table,
                       const quire_allocator *allocator);

#endif /* QUIRE_CORE_TABLE_H */
