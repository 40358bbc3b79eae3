/* table.c - page tables.
 *
 * SPDX-License-Identifier: MIT */
#include "core/cache/table.h"

#include "base/check.h"
#include "base/num.h"

#include <string.h>

#ifdef QUIRE_TINY
#define SPARE_LEAVES_MAX     1u
#define UPPER_CAPACITY_FIRST 1u
#else
#define SPARE_LEAVES_MAX     32u
#define UPPER_CAPACITY_FIRST 8u
#endif

#define ADOPT_AHEAD 8u /* pages with a prefetched record */

static uint32_t div_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* ---- stock of leaves ---- */

void quire_leaf_stock_init(quire_leaf_stock *stock, const quire_allocator *allocator)
{
    stock->allocator = *allocator;
    stock->spare = NULL;
    stock->n_spare = 0;
}

static quire_leaf *stock_take(quire_leaf_stock *stock)
{
    quire_leaf *leaf = stock->spare;

    QUIRE_CHECK(leaf != NULL);
    stock->spare = leaf->next_spare;
    stock->n_spare--;
    leaf->refs = 1;
    leaf->n_entries = 0;
    leaf->n_seen = 0;
    return leaf;
}

static void stock_put(quire_leaf_stock *stock, quire_leaf *leaf)
{
    leaf->next_spare = stock->spare;
    stock->spare = leaf;
    stock->n_spare++;
}

static void stock_shrink(quire_leaf_stock *stock, uint32_t n_max)
{
    while (stock->n_spare > n_max) {
        quire_leaf *leaf = stock->spare;

        stock->spare = leaf->next_spare;
        stock->n_spare--;
        stock->allocator.free(stock->allocator.ctx, leaf);
    }
}

void quire_leaf_stock_fini(quire_leaf_stock *stock)
{
    stock_shrink(stock, 0);
}

/* Free spare leaves beyond a small reserve. */
static void stock_trim(quire_leaf_stock *stock)
{
    stock_shrink(stock, SPARE_LEAVES_MAX);
}

int quire_leaf_stock_plan(quire_leaf_stock *stock, uint64_t n)
{
    while (stock->n_spare < n) {
        quire_leaf *leaf = stock->allocator.alloc(stock->allocator.ctx, sizeof(*leaf));

        if (leaf == NULL) {
            stock_trim(stock);
            return QUIRE_NOMEM;
        }
        stock_put(stock, leaf);
    }
    return QUIRE_OK;
}

/* ---- leaves of a table ---- */

static quire_leaf *table_leaf(const quire_table *table, uint32_t index)
{
    return quire_leaf_of(table->leaves[index]);
}

static bool is_hole(const quire_page_entry *entry)
{
    return entry->page == QUIRE_PAGE_NULL;
}

/* The table's sequence begins to hold a page; the page may be charged to another region. */
static void page_ref(const quire_table_ctx *ctx, quire_page_id page)
{
    quire_pool_ref(ctx->pool, page, ctx->seq);
    quire_region_changed(ctx->pool->regions, ctx->region);
}

static void entry_unref(const quire_table_ctx *ctx, const quire_page_entry *entry)
{
    if (!is_hole(entry)) {
        quire_pool_unref(ctx->pool, entry->page, ctx->seq);
    }
}

/* Drop a table's reference to a leaf. Dropping the last reference releases the leaf's pages. */
static void leaf_drop(const quire_table_ctx *ctx, quire_leaf *leaf)
{
    QUIRE_CHECK(leaf->refs > 0);
    if (--leaf->refs > 0) { /* its tail may now belong to the only other holder */
        quire_region_changed(ctx->pool->regions, ctx->region);
        return;
    }
    for (uint32_t i = 0; i < leaf->n_entries; i++) {
        entry_unref(ctx, &leaf->entries[i]);
    }
    stock_put(ctx->stock, leaf);
    stock_trim(ctx->stock);
}

/* A private copy of a leaf's first n_entries entries. The copy shares the pages of the first
 * n_shared entries. The original stays with its other holders. */
static quire_leaf *leaf_copy(const quire_table_ctx *ctx, const quire_leaf *leaf, uint32_t n_entries,
                             uint32_t n_shared)
{
    quire_leaf *copy = stock_take(ctx->stock);

    copy->n_entries = n_entries;
    memcpy(copy->entries, leaf->entries, n_entries * sizeof(copy->entries[0]));
    for (uint32_t i = 0; i < n_shared; i++) {
        if (!is_hole(&copy->entries[i])) {
            page_ref(ctx, copy->entries[i].page);
        }
    }
    return copy;
}

int quire_table_plan_upper(quire_table *table, const quire_allocator *allocator, uint32_t n_leaves)
{
    uint32_t capacity = table->leaves_capacity > 0 ? table->leaves_capacity : UPPER_CAPACITY_FIRST;
    quire_page_entry **leaves;

    if (n_leaves <= table->leaves_capacity) {
        return QUIRE_OK;
    }
    while (capacity < n_leaves) {
        capacity *= 2;
    }
    leaves = allocator->alloc(allocator->ctx, capacity * sizeof(quire_page_entry *));
    QUIRE_FAIL_IF(leaves == NULL, QUIRE_NOMEM);
    if (table->leaves != NULL) {
        memcpy(leaves, table->leaves, table->n_leaves * sizeof(quire_page_entry *));
        allocator->free(allocator->ctx, table->leaves);
    }
    table->leaves = leaves;
    table->leaves_capacity = capacity;
    return QUIRE_OK;
}

/* ---- room ---- */

/* The tail entry if it has free slots, else NULL. */
static quire_page_entry *open_tail(const quire_table_ctx *ctx, const quire_table *table)
{
    quire_page_entry *tail;

    if (table->n_entries == 0) {
        return NULL;
    }
    tail = quire_table_entry(table, table->n_entries - 1);
    return tail->n_tokens < ctx->pool->page_tokens ? tail : NULL;
}

static quire_leaf *tail_leaf(const quire_table *table)
{
    return table_leaf(table, (table->n_entries - 1) / QUIRE_LEAF_ENTRIES);
}

/* Whether an append to the tail would write slots that others rely on: other tables, through the
 * page or the leaf, or the prefix tree, on slots that this table does not fill. */
static bool is_tail_shared(const quire_table_ctx *ctx, const quire_table *table,
                           const quire_page_entry *tail)
{
    const quire_page *page = quire_pool_page(ctx->pool, tail->page);

    return tail_leaf(table)->refs > 1 || page->refs > 1 || page->n_kept > tail->n_tokens;
}

uint32_t quire_table_ready_tokens(const quire_table_ctx *ctx, const quire_table *table,
                                  uint32_t n_tokens)
{
    const quire_page_entry *tail = open_tail(ctx, table);

    if (tail != NULL && is_tail_shared(ctx, table, tail)) {
        return n_tokens;
    }
    return table->n_held * ctx->pool->page_tokens;
}

quire_table_needs quire_table_room_needs(const quire_table_ctx *ctx, const quire_table *table,
                                         uint32_t n_tokens, uint32_t n_new)
{
    const quire_page_entry *tail = open_tail(ctx, table);
    quire_table_needs needs = { .n_held = table->n_held };
    uint32_t n_wanted = div_up(n_tokens + n_new, ctx->pool->page_tokens);

    QUIRE_ASSERT(n_new > 0);
    needs.copies_tail = tail != NULL && is_tail_shared(ctx, table, tail);
    if (n_wanted > table->n_held) {
        needs.n_held = n_wanted;
        needs.n_pages = n_wanted - table->n_held;
        needs.n_leaves = div_up(n_wanted, QUIRE_LEAF_ENTRIES) - table->n_leaves;
    }
    if (needs.copies_tail || (needs.n_pages > 0 && table->n_held == table->n_entries &&
                              table->n_held % QUIRE_LEAF_ENTRIES != 0)) {
        /* The leaf of the tail is written. Reserved entries behind the tail are never in a shared
         * leaf. */
        needs.copies_leaf = tail_leaf(table)->refs > 1;
    }
    needs.n_pages += needs.copies_tail;
    needs.n_leaves += needs.copies_leaf;
    return needs;
}

static void tail_copy(const quire_table_ctx *ctx, quire_page_entry *tail)
{
    quire_page_id from = tail->page;

    tail->page = quire_pool_take(ctx->pool, ctx->group, ctx->region, ctx->seq);
    quire_pool_copy(ctx->pool, tail->page, from, ctx->seq);
    quire_pool_fill_set(ctx->pool, tail->page, tail->n_tokens);
}

/* The leaf for entry n_held. */
static quire_leaf *leaf_for_next(const quire_table_ctx *ctx, quire_table *table)
{
    quire_leaf *leaf;

    if (table->n_held % QUIRE_LEAF_ENTRIES != 0) {
        return table_leaf(table, table->n_leaves - 1);
    }
    leaf = stock_take(ctx->stock);
    QUIRE_CHECK(table->n_leaves < table->leaves_capacity);
    table->leaves[table->n_leaves++] = leaf->entries;
    return leaf;
}

static void entry_add(const quire_table_ctx *ctx, quire_table *table)
{
    quire_leaf *leaf = leaf_for_next(ctx, table);

    leaf->entries[leaf->n_entries++] = (quire_page_entry){
        .page = quire_pool_take(ctx->pool, ctx->group, ctx->region, ctx->seq),
        .first_pos = (int32_t)(table->n_held * ctx->pool->page_tokens),
    };
    table->n_held++;
}

void quire_table_make_room(const quire_table_ctx *ctx, quire_table *table,
                           const quire_table_needs *needs)
{
    if (needs->copies_leaf) {
        uint32_t index = (table->n_entries - 1) / QUIRE_LEAF_ENTRIES;
        quire_leaf *leaf = table_leaf(table, index);
        /* A tail page that is replaced at once is not shared with the copy. */
        quire_leaf *copy =
            leaf_copy(ctx, leaf, leaf->n_entries, leaf->n_entries - (needs->copies_tail ? 1 : 0));

        table->leaves[index] = copy->entries;
        if (needs->copies_tail) {
            tail_copy(ctx, &copy->entries[copy->n_entries - 1]);
        }
        leaf_drop(ctx, leaf);
    } else if (needs->copies_tail) {
        quire_page_entry *tail = quire_table_entry(table, table->n_entries - 1);
        quire_page_id shared = tail->page;

        tail_copy(ctx, tail);
        quire_pool_unref(ctx->pool, shared, ctx->seq);
    }
    while (table->n_held < needs->n_held) {
        entry_add(ctx, table);
    }
}

void quire_table_grow(const quire_table_ctx *ctx, quire_table *table, uint32_t n_new)
{
    uint32_t page_tokens = ctx->pool->page_tokens;
    quire_page_entry *tail = open_tail(ctx, table);

    while (n_new > 0) {
        uint32_t n;

        if (tail == NULL) {
            QUIRE_CHECK(table->n_entries < table->n_held);
            tail = quire_table_entry(table, table->n_entries++);
        }
        n = quire_min_u32(page_tokens - tail->n_tokens, n_new);
        tail->n_tokens = (uint16_t)(tail->n_tokens + n);
        quire_pool_fill_set(ctx->pool, tail->page, tail->n_tokens);
        n_new -= n;
        tail = NULL;
    }
}

/* ---- release ---- */

/* Record that [begin, end) are holes. One range is recorded: the union when the two touch, else the
 * new range. */
static void holes_note(quire_table *table, uint32_t begin, uint32_t end)
{
    if (begin > table->holes_end || end < table->holes_begin) {
        table->holes_begin = begin;
        table->holes_end = end;
        return;
    }
    table->holes_begin = quire_min_u32(table->holes_begin, begin);
    table->holes_end = table->holes_end > end ? table->holes_end : end;
}

uint32_t quire_table_release(const quire_table_ctx *ctx, quire_table *table, uint32_t begin,
                             uint32_t end)
{
    uint32_t n_released = 0;
    uint32_t at = end;

    QUIRE_ASSERT(begin <= end && end <= table->n_entries);
    /* Walk backwards: by T6 all leaves before the first shared leaf met are shared too. When that
     * leaf is no longer shared, the next call continues there. */
    while (at > begin) {
        quire_page_entry *entry;

        if (at > table->holes_begin && at <= table->holes_end) {
            at = table->holes_begin;
            continue;
        }
        if (table_leaf(table, (at - 1) / QUIRE_LEAF_ENTRIES)->refs > 1) {
            break;
        }
        entry = quire_table_entry(table, --at);
        QUIRE_ASSERT(entry->n_tokens == ctx->pool->page_tokens);
        if (!is_hole(entry)) {
            quire_pool_unref(ctx->pool, entry->page, ctx->seq);
            entry->page = QUIRE_PAGE_NULL;
            n_released++;
        }
    }
    if (at < end) {
        holes_note(table, at, end);
    }
    return n_released;
}

bool quire_table_cuts_hole(const quire_table *table, uint32_t page_tokens, uint32_t n_tokens)
{
    return n_tokens % page_tokens != 0 && is_hole(quire_table_entry(table, n_tokens / page_tokens));
}

/* ---- truncate, fork, clear ---- */

/* The end of a truncated table. */
typedef struct cut {
    uint32_t n_entries;
    uint32_t n_leaves;
    uint32_t n_last;      /* entries in the last leaf */
    uint32_t tail_tokens; /* in the last entry */
} cut;

static cut cut_at(const quire_table_ctx *ctx, uint32_t n_tokens)
{
    uint32_t page_tokens = ctx->pool->page_tokens;
    cut at = { 0, 0, 0, 0 };

    if (n_tokens > 0) {
        at.n_entries = div_up(n_tokens, page_tokens);
        at.n_leaves = div_up(at.n_entries, QUIRE_LEAF_ENTRIES);
        at.n_last = at.n_entries - (at.n_leaves - 1) * QUIRE_LEAF_ENTRIES;
        at.tail_tokens = n_tokens - (at.n_entries - 1) * page_tokens;
    }
    return at;
}

bool quire_table_truncate_copies(const quire_table_ctx *ctx, const quire_table *table,
                                 uint32_t n_tokens)
{
    cut at = cut_at(ctx, n_tokens);
    const quire_leaf *leaf;

    if (at.n_leaves == 0) {
        return false;
    }
    leaf = table_leaf(table, at.n_leaves - 1);
    return leaf->refs > 1 &&
           (leaf->n_entries > at.n_last || leaf->entries[at.n_last - 1].n_tokens > at.tail_tokens);
}

static void last_leaf_cut(const quire_table_ctx *ctx, quire_table *table, cut at)
{
    quire_leaf *leaf = table_leaf(table, at.n_leaves - 1);
    quire_page_entry *tail;

    for (uint32_t i = at.n_last; i < leaf->n_entries; i++) {
        entry_unref(ctx, &leaf->entries[i]);
    }
    leaf->n_entries = at.n_last;
    tail = &leaf->entries[at.n_last - 1];
    tail->n_tokens = (uint16_t)at.tail_tokens;
    if (!is_hole(tail) && !is_tail_shared(ctx, table, tail)) {
        quire_pool_fill_set(ctx->pool, tail->page, at.tail_tokens);
    }
}

void quire_table_truncate(const quire_table_ctx *ctx, quire_table *table, uint32_t n_tokens)
{
    cut at = cut_at(ctx, n_tokens);
    bool copies = quire_table_truncate_copies(ctx, table, n_tokens);

    QUIRE_ASSERT(!quire_table_cuts_hole(table, ctx->pool->page_tokens, n_tokens));
    while (table->n_leaves > at.n_leaves) {
        leaf_drop(ctx, table_leaf(table, --table->n_leaves));
    }
    table->n_entries = at.n_entries;
    table->n_held = at.n_entries;
    table->holes_end = quire_min_u32(table->holes_end, at.n_entries);
    table->holes_begin = quire_min_u32(table->holes_begin, table->holes_end);
    if (at.n_leaves == 0) {
        return;
    }
    if (copies) {
        quire_leaf *leaf = table_leaf(table, at.n_leaves - 1);

        table->leaves[at.n_leaves - 1] = leaf_copy(ctx, leaf, at.n_last, at.n_last)->entries;
        leaf_drop(ctx, leaf);
    }
    if (table_leaf(table, at.n_leaves - 1)->refs == 1) {
        last_leaf_cut(ctx, table, at);
    }
}

void quire_table_swap(const quire_table_ctx *ctx, quire_table *table, uint32_t i,
                      quire_page_id page)
{
    quire_page_entry *entry = quire_table_entry(table, i);
    quire_page_id own = entry->page;

    QUIRE_ASSERT(i < table->n_entries && entry->n_tokens == ctx->pool->page_tokens);
    if (own == page || is_hole(entry) || quire_pool_page(ctx->pool, own)->n_kept > 0 ||
        table_leaf(table, i / QUIRE_LEAF_ENTRIES)->refs > 1) {
        return;
    }
    QUIRE_ASSERT(quire_pool_page(ctx->pool, page)->n_kept == ctx->pool->page_tokens);
    page_ref(ctx, page);
    entry->page = page;
    quire_pool_unref(ctx->pool, own, ctx->seq);
}

bool quire_table_fork_copies(const quire_table *table)
{
    return table->n_held > table->n_entries && table->n_entries % QUIRE_LEAF_ENTRIES != 0;
}

void quire_table_fork(const quire_table_ctx *ctx, quire_table *to, const quire_table *from)
{
    uint32_t n_leaves = div_up(from->n_entries, QUIRE_LEAF_ENTRIES);
    uint32_t n_shared = n_leaves - (quire_table_fork_copies(from) ? 1 : 0);

    QUIRE_CHECK(to->n_leaves == 0 && n_leaves <= to->leaves_capacity);
    for (uint32_t i = 0; i < n_shared; i++) {
        to->leaves[i] = from->leaves[i];
        table_leaf(to, i)->refs++;
    }
    if (n_shared < n_leaves) {
        uint32_t n_last = from->n_entries % QUIRE_LEAF_ENTRIES;

        to->leaves[n_shared] = leaf_copy(ctx, table_leaf(from, n_shared), n_last, n_last)->entries;
    }
    to->n_leaves = n_leaves;
    to->n_entries = from->n_entries;
    to->n_held = from->n_entries;
    to->holes_begin = from->holes_begin;
    to->holes_end = from->holes_end;
}

void quire_table_adopt(const quire_table_ctx *ctx, quire_table *table, const quire_page_id *pages,
                       uint32_t n_tokens)
{
    uint32_t page_tokens = ctx->pool->page_tokens;
    uint32_t n_groups = ctx->n_node_groups;
    uint32_t n_entries = div_up(n_tokens, page_tokens);

    QUIRE_CHECK(table->n_held == 0);
    while (table->n_held < n_entries) {
        uint32_t i = table->n_held;
        quire_page_id page = pages[(size_t)i * n_groups + ctx->group];
        quire_leaf *leaf;

        if (i + ADOPT_AHEAD < n_entries) {
            __builtin_prefetch(
                &ctx->pool->pages[pages[(size_t)(i + ADOPT_AHEAD) * n_groups + ctx->group]], 1);
        }
        leaf = leaf_for_next(ctx, table);
        leaf->entries[leaf->n_entries++] = (quire_page_entry){
            .page = page,
            .n_tokens = (uint16_t)quire_min_u32(n_tokens - i * page_tokens, page_tokens),
            .first_pos = (int32_t)(i * page_tokens),
        };
        if (page != QUIRE_PAGE_NULL) {
            QUIRE_ASSERT(quire_pool_page(ctx->pool, page)->group == ctx->group);
            page_ref(ctx, page);
        } else if (table->holes_end == i) {
            table->holes_end = i + 1; /* a run from the begin on: behind a window */
        }
        table->n_held++;
    }
    table->n_entries = n_entries;
}

void quire_table_clear(const quire_table_ctx *ctx, quire_table *table,
                       const quire_allocator *allocator)
{
    quire_table_truncate(ctx, table, 0);
    if (table->leaves != NULL) {
        allocator->free(allocator->ctx, table->leaves);
    }
    memset(table, 0, sizeof(*table));
}
