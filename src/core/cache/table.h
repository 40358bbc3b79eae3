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
 *   T1  a leaf counts the tables that hold it; while that is more than one its content is frozen
 *       and all its entries hold tokens, so that every holder means the same entries
 *   T2  entry i starts at token i * page_tokens and at slot 0; all but the tail are full
 *   T3  a page's refs is the number of leaf entries that name it
 *   T4  a tail page has one appender: the table that held it alone, in a leaf held alone, when room
 *       was made, and that fills all slots which the prefix tree relies on. Readers that adopt the
 *       page later, through the tree, use slots that the appender has filled; they copy it before
 *       they append
 *   T5  a hole (page QUIRE_PAGE_NULL) is a full entry whose page was released; it holds nothing of
 *       the pool and stays a hole until truncation drops the entry
 *   T6  refs of a table's leaves do not grow towards its end: who holds a leaf of ours also holds
 *       those before it, as leaves are shared from the first on and only the last is ever replaced
 *
 * As everywhere: functions named plan may fail and change nothing that counts, the others cannot
 * fail and take what the plan has laid by.
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
    uint32_t refs;      /* tables that hold it */
    uint32_t n_entries; /* used, reserved ones included */
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

/* Leaves laid by, so that applying a plan cannot fail and a busy cache does not allocate. */
typedef struct quire_leaf_stock {
    quire_allocator allocator;
    quire_leaf *spare;
    uint32_t n_spare;
} quire_leaf_stock;

void quire_leaf_stock_init(quire_leaf_stock *stock, const quire_allocator *allocator);
void quire_leaf_stock_fini(quire_leaf_stock *stock);

/* Lay by n leaves. Errors: QUIRE_NOMEM. */
int quire_leaf_stock_plan(quire_leaf_stock *stock, uint64_t n);

/* Free what exceeds a small reserve. */
void quire_leaf_stock_trim(quire_leaf_stock *stock);

typedef struct quire_table {
    quire_page_entry **leaves; /* [leaves_capacity] -> entries of a leaf */
    uint32_t leaves_capacity;
    uint32_t n_leaves;
    uint32_t n_entries; /* entries that hold tokens */
    uint32_t n_held;    /* and reserved ones */
    /* Entries [holes_begin, holes_end) are known to be holes, so that release need not look at them
     * again; there may be others. */
    uint32_t holes_begin;
    uint32_t holes_end;
} quire_table;

/* What a table works with, and whom its pages are charged to. */
typedef struct quire_table_ctx {
    quire_pool *pool;
    quire_leaf_stock *stock;
    quire_group_id group;
    quire_region_id region;
    quire_seq_id seq;
} quire_table_ctx;

/* What it takes to make room for more tokens, or to truncate. */
typedef struct quire_table_needs {
    uint32_t n_pages;  /* the copy of the tail page included */
    uint32_t n_leaves; /* the copy of the last leaf included */
    uint32_t n_held;   /* entries afterwards */
    bool copies_leaf;
    bool copies_tail;
} quire_table_needs;

static inline quire_page_entry *quire_table_entry(const quire_table *table, uint32_t i)
{
    return &table->leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES];
}

/* Pages and leaves that n_new > 0 more tokens need when there are n_tokens. */
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

/* Count n_new more tokens; there is room for them. Cost: O(pages touched). */
void quire_table_grow(const quire_table_ctx *ctx, quire_table *table, uint32_t n_new);

/* Turn the entries [begin, end), all of them full, into holes, but for those in leaves that another
 * table holds. Returns the number of pages released. Nothing is allocated.
 * Cost: O(end - begin), less what lies before the last shared leaf and what the calls before left
 * as one run of holes. */
uint32_t quire_table_release(const quire_table_ctx *ctx, quire_table *table, uint32_t begin,
                             uint32_t end);

/* Whether truncation to n_tokens would cut into a hole, which it must not. */
bool quire_table_cuts_hole(const quire_table *table, uint32_t page_tokens, uint32_t n_tokens);

/* Whether truncation to n_tokens copies a leaf: one from the stock. */
bool quire_table_truncate_copies(const quire_table_ctx *ctx, const quire_table *table,
                                 uint32_t n_tokens);

/* Keep n_tokens tokens, drop all other entries and reserved ones. Must not cut into a hole. */
void quire_table_truncate(const quire_table_ctx *ctx, quire_table *table, uint32_t n_tokens);

/* Whether a fork copies the last leaf, because it also holds reserved pages of its owner. */
bool quire_table_fork_copies(const quire_table *table);

/* Make to, which is empty and has an upper level for it, hold what from holds, without its
 * reserved pages. ctx is that of the new holder. Cost: O(leaves). */
void quire_table_fork(const quire_table_ctx *ctx, quire_table *to, const quire_table *from);

/* Make an empty table, with an upper level and leaves laid by for it, hold n_tokens > 0 tokens in
 * pages that exist; see quire_seq_adopt(). Cost: O(pages). */
void quire_table_adopt(const quire_table_ctx *ctx, quire_table *table, const quire_page_id *pages,
                       uint32_t n_tokens);

/* Hold another page in place of a full entry's own: one that is kept for the same tokens. Not done
 * in a leaf that another table holds, nor for a hole or a page that the prefix tree keeps. Nothing
 * is allocated; the own page is free when nobody else holds it. */
void quire_table_swap(const quire_table_ctx *ctx, quire_table *table, uint32_t i,
                      quire_page_id page);

/* Drop every entry and the upper level. */
void quire_table_clear(const quire_table_ctx *ctx, quire_table *table,
                       const quire_allocator *allocator);

#endif /* QUIRE_CORE_TABLE_H */
