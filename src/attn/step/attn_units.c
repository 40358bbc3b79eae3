/* attn_units.c - see attn_units.h.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/step/attn_units.h"
#include "base/num.h"

/* The first wide items are that many times as large as the cost of an item asks for: fewer of them
 * begin with tiles that the thread was not on its way to. */
#define WIDE_ITEM_MAX 4u

/* With so many splits for each thread, the last of them by wide items too: two threads take 6 to 9
 * % less time over 8,192 tokens of q4 and q8, and the same over 32,768. */
#define WIDE_SPLITS_PER_THREAD 4u

/* A task bigger than this share of a thread's work is cut. At the end a thread waits for one item
 * at most: of 9 equal ones 2 threads take 5 and 4, and one is idle for a tenth of the layer;
 * of 24 they take 12 each. Smaller ones gain nothing: each begins with tiles that memory still has
 * to deliver. */
#define ITEMS_PER_THREAD 12u

/* ---- costs ---- */

uint32_t quire_attn_pos_of_split(const quire_attn_ctx *c, uint32_t s, uint32_t split)
{
    return split < quire_attn_splits_of(c, s) ? quire_attn_split_pos(c, s)[split]
                                              : c->ws->batch.seqs[s].n_tokens;
}

/* The first split of a sequence that a row sees some of. */
static uint32_t first_split(const quire_attn_ctx *c, uint32_t s)
{
    const quire_attn_seq *seq = &c->ws->batch.seqs[s];

    if (c->layer->window == 0) {
        return 0;
    }
    return quire_attn_split_of(quire_attn_split_pos(c, s), quire_attn_splits_of(c, s),
                               quire_attn_row_begin(c->layer, seq->n_tokens - seq->n_rows));
}

/* Cost of n_queries queries over n_tokens tokens for one kv head, in arbitrary units: every tile
 * has a fixed cost by block (its bytes come from memory) and one by row. */
static uint64_t cost_of(const quire_attn_ctx *c, uint32_t n_tokens, uint32_t n_queries)
{
    uint64_t n_blocks = quire_attn_ceil_div(n_queries, c->shape.block_queries);

    return (uint64_t)n_tokens * (8 * n_blocks + (uint64_t)n_queries * c->shape.group);
}

/* The same over splits [begin, end) of sequence s of the batch. */
static uint64_t splits_cost(const quire_attn_ctx *c, uint32_t s, uint32_t begin, uint32_t end,
                            uint32_t n_queries)
{
    return cost_of(c, quire_attn_pos_of_split(c, s, end) - quire_attn_pos_of_split(c, s, begin),
                   n_queries);
}

/* The cost of the splits from `begin` on that sequence s of the batch does not share. */
static uint64_t rest_cost(const quire_attn_ctx *c, uint32_t s, uint32_t begin)
{
    const uint32_t seen = first_split(c, s);

    return splits_cost(c, s, begin > seen ? begin : seen, quire_attn_splits_of(c, s),
                       c->ws->batch.seqs[s].n_rows);
}

/* Splits that a cascade shares, in this layer: one that reads several tables knows only about the
 * first. */
static uint32_t shared_end_of(const quire_attn_ctx *c, const quire_attn_cascade *cascade)
{
    return c->shape.has_tables ? 0 : cascade->n_splits;
}

static uint64_t batch_cost(const quire_attn_ctx *c)
{
    const quire_attn_plan *plan = c->plan;
    uint64_t cost = 0;

    for (uint32_t i = 0; i < plan->n_cascades; i++) {
        const quire_attn_cascade *cascade = &plan->cascades[i];
        const uint32_t shared_end = shared_end_of(c, cascade);
        uint32_t n_queries = 0;

        for (uint32_t k = 0; k < cascade->n_seqs; k++) {
            const uint32_t s = plan->order[cascade->first + k];

            n_queries += c->ws->batch.seqs[s].n_rows;
            cost += rest_cost(c, s, shared_end);
        }
        if (shared_end > 0) {
            const uint32_t leader = plan->order[cascade->first];
            const uint32_t begin = first_split(c, leader);

            cost += splits_cost(c, leader, quire_min_u32(begin, shared_end), shared_end, n_queries);
        }
    }
    return cost * c->layer->n_kv_head;
}

/* Into how many items something of this cost and so many splits is cut. */
static uint32_t n_parts_of(const quire_attn_unit *u, uint64_t cost, uint32_t n_splits)
{
    uint64_t n = cost / u->item_cost + 1;

    return n < n_splits ? (uint32_t)n : n_splits;
}

uint32_t quire_attn_unit_rest_splits(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t i)
{
    return quire_attn_splits_of(c, quire_attn_unit_seq_index(c, u, i)) - u->shared_end;
}

uint32_t quire_attn_unit_rest_parts(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t i)
{
    return n_parts_of(u, rest_cost(c, quire_attn_unit_seq_index(c, u, i), u->shared_end),
                      quire_attn_unit_rest_splits(c, u, i));
}

/* ---- units ---- */

/* Whether the partials and the counters of the unit's tasks find room. */
static bool unit_fits(const quire_attn_ctx *c, const quire_attn_unit *u)
{
    return u->n_tasks <= QUIRE_ATTN_SHARED_TASKS_MAX - u->first_counter &&
           u->task_floats <= (c->ws->partial_floats - u->first_partial) / u->n_tasks;
}

size_t quire_attn_unit_lead_floats(const quire_attn_ctx *c, const quire_attn_unit *u)
{
    uint32_t n_queries =
        u->n_queries < c->shape.block_queries ? u->n_queries : c->shape.block_queries;

    return quire_attn_state_floats(&c->shape, n_queries * c->shape.group);
}

size_t quire_attn_unit_rest_floats(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t i)
{
    return quire_attn_state_floats(&c->shape,
                                   quire_attn_unit_seq(c, u, i)->n_rows * c->shape.group);
}

static bool is_last_unit(const quire_attn_ctx *c, const quire_attn_unit *u)
{
    const quire_attn_cascade *cascade = &c->plan->cascades[u->cascade];

    return u->cascade + 1 == c->plan->n_cascades &&
           u->first + u->n_seqs == cascade->first + cascade->n_seqs;
}

/* How many kv heads of a sequence by itself fit a wide item; the same for all items, but for a
 * smaller last one. */
static uint32_t n_wide_heads(const quire_attn_ctx *c, const quire_attn_unit *u)
{
    uint32_t rows = u->n_queries * c->shape.group;
    uint32_t rows_max = quire_min_u32(QUIRE_ATTN_WIDE_ROWS_MAX, c->shape.block_rows);
    uint32_t n = c->layer->n_kv_head;

    if (u->n_blocks > 1 || 2 * rows > rows_max) {
        return 1;
    }
    return quire_attn_ceil_div(n, quire_attn_ceil_div(n, rows_max / rows));
}

/* Which of the n_splits splits of a sequence by itself go to wide items. All of them: of a small
 * sequence; where a split is a small part of the batch and more units follow; where each thread has
 * several. Else so many that each thread can have the same number: up to two splits by thread are
 * left and go kv head by kv head, so that threads end at about the same time, though of few rows
 * one head by itself takes up to twice as long as one of several. A sequence with no more splits
 * has no wide items. */
static void plan_wide(const quire_attn_ctx *c, quire_attn_unit *u, uint32_t n_splits)
{
    const uint32_t s = quire_attn_unit_seq_index(c, u, 0);
    uint32_t n_parts;
    uint64_t cost;

    u->n_wide = 0;
    u->n_wide_parts = 0;
    u->n_wide_heads = n_wide_heads(c, u);
    if (u->n_wide_heads == 1) {
        return;
    }
    cost = rest_cost(c, s, 0) * u->n_wide_heads;
    if (cost < u->item_cost || n_splits >= WIDE_SPLITS_PER_THREAD * u->n_threads ||
        (!is_last_unit(c, u) && cost / n_splits <= 3 * u->item_cost)) {
        u->n_wide = n_splits;
    } else if (n_splits > u->n_threads) { /* the last split may be next to nothing */
        u->n_wide = (n_splits - 1 - u->n_threads) / u->n_threads * u->n_threads;
    }
    n_parts = n_parts_of(u, cost * u->n_wide / n_splits, u->n_wide);
    u->wide_share = n_parts > 1 ? 2 * u->n_threads : 1;
    u->wide_max = n_parts > 1 ? quire_attn_ceil_div(WIDE_ITEM_MAX * u->n_wide, n_parts) : u->n_wide;
    for (uint32_t begin = 0; begin < u->n_wide; u->n_wide_parts++) {
        begin += quire_attn_unit_wide_splits(u, begin);
    }
}

/* One sequence by itself. */
static void plan_alone(const quire_attn_ctx *c, quire_attn_unit *u)
{
    const uint32_t s = quire_attn_unit_seq_index(c, u, 0);
    const uint32_t n_rows = c->ws->batch.seqs[s].n_rows;
    const uint32_t end = quire_attn_splits_of(c, s);
    uint32_t n_splits, begin;

    u->n_seqs = 1;
    u->shared_end = 0;
    u->first_split = first_split(c, s);
    u->n_queries = n_rows;
    u->n_blocks = quire_attn_ceil_div(n_rows, c->shape.block_queries);
    u->n_tasks = u->n_blocks * c->layer->n_kv_head;
    n_splits = end - u->first_split;
    plan_wide(c, u, n_splits);
    begin = u->first_split + u->n_wide;
    u->n_parts =
        n_parts_of(u, splits_cost(c, s, begin, end, n_rows) / u->n_blocks, n_splits - u->n_wide);
    u->task_floats = n_splits * quire_attn_unit_lead_floats(c, u);
    if (u->n_wide_parts + u->n_parts > 1 && !unit_fits(c, u)) { /* then one piece by kv head */
        u->n_wide = 0;
        u->n_wide_parts = 0;
        u->n_parts = 1;
    }
    u->n_task_items = u->n_wide_parts + u->n_parts;
}

/* The sequences from u->first on that fit a block, over the splits that their cascade shares; false
 * when there is no room for their partials, or no row sees such a split. */
static bool plan_cascade(const quire_attn_ctx *c, quire_attn_unit *u)
{
    const uint32_t leader = quire_attn_unit_seq_index(c, u, 0);
    size_t rest_floats = 0;
    uint32_t n_splits;

    u->first_split = first_split(c, leader);
    for (uint32_t i = 1; i < u->n_seqs; i++) {
        u->first_split =
            quire_min_u32(u->first_split, first_split(c, quire_attn_unit_seq_index(c, u, i)));
    }
    if (u->first_split >= u->shared_end) { /* all of it lies behind the windows of this layer */
        return false;
    }
    n_splits = u->shared_end - u->first_split;
    u->n_blocks = 1;
    u->n_tasks = c->layer->n_kv_head;
    u->n_wide = 0;
    u->n_wide_heads = 1;
    u->n_wide_parts = 0;
    u->n_parts = n_parts_of(u, splits_cost(c, leader, u->first_split, u->shared_end, u->n_queries),
                            n_splits);
    u->n_task_items = u->n_parts;
    for (uint32_t i = 0; i < u->n_seqs; i++) {
        rest_floats += quire_attn_unit_rest_splits(c, u, i) * quire_attn_unit_rest_floats(c, u, i);
        u->n_task_items += quire_attn_unit_rest_parts(c, u, i);
    }
    u->task_floats =
        rest_floats + (u->n_parts == 1 ? 1 : n_splits) * quire_attn_unit_lead_floats(c, u);
    if (!unit_fits(c, u)) { /* in one piece it is folded as it comes */
        u->n_task_items -= u->n_parts - 1;
        u->n_parts = 1;
        u->task_floats = rest_floats + quire_attn_unit_lead_floats(c, u);
    }
    return unit_fits(c, u);
}

static void plan_unit(const quire_attn_ctx *c, quire_attn_unit *u)
{
    const quire_attn_cascade *cascade = &c->plan->cascades[u->cascade];
    uint32_t n_left = cascade->first + cascade->n_seqs - u->first;

    u->n_seqs = 0;
    u->n_queries = 0;
    u->shared_end = shared_end_of(c, cascade);
    while (u->shared_end > 0 && u->n_seqs < n_left &&
           u->n_queries + quire_attn_unit_seq(c, u, u->n_seqs)->n_rows <= c->shape.block_queries) {
        u->n_queries += quire_attn_unit_seq(c, u, u->n_seqs)->n_rows;
        u->n_seqs++;
    }
    if (u->n_seqs < 2 || !plan_cascade(c, u)) {
        plan_alone(c, u);
    }
}

quire_attn_unit quire_attn_unit_first(const quire_attn_ctx *c, uint32_t n_threads)
{
    quire_attn_unit u = { .item_cost = UINT64_MAX, .n_threads = n_threads };

    if (n_threads > 1) {
        u.item_cost = batch_cost(c) / (n_threads * ITEMS_PER_THREAD) + 1;
    }
    plan_unit(c, &u);
    return u;
}

uint32_t quire_attn_unit_wide_items(const quire_attn_ctx *c, const quire_attn_unit *u)
{
    return quire_attn_ceil_div(c->layer->n_kv_head, u->n_wide_heads) * u->n_wide_parts;
}

uint64_t quire_attn_unit_items(const quire_attn_ctx *c, const quire_attn_unit *u)
{
    return quire_attn_unit_wide_items(c, u) +
           (uint64_t)u->n_tasks * (u->n_task_items - u->n_wide_parts);
}

bool quire_attn_unit_next(const quire_attn_ctx *c, quire_attn_unit *u)
{
    const quire_attn_cascade *cascade = &c->plan->cascades[u->cascade];

    u->first_item += quire_attn_unit_items(c, u);
    if (u->n_task_items > 1) {
        u->first_counter += u->n_tasks;
        u->first_partial += u->n_tasks * u->task_floats;
    }
    u->first += u->n_seqs;
    if (u->first == cascade->first + cascade->n_seqs && ++u->cascade == c->plan->n_cascades) {
        return false;
    }
    plan_unit(c, u);
    return true;
}
