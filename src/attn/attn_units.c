/* attn_units.c - see attn_units.h.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_units.h"
#include "base/num.h"

/* The first wide items are that many times as large as the cost of an item asks for: fewer of them
 * begin with tiles that the thread was not on its way to. */
#define WIDE_ITEM_MAX 4u

/* With so many splits for each thread, the last of them by wide items too: two threads take 6 to 9
 * % less time over 8,192 tokens of q4 and q8, and the same over 32,768. */
#define WIDE_SPLITS_PER_THREAD 4u

/* A task bigger than this share of a thread's work is cut. What a thread waits for at the end is an
 * item at most: of 9 equal ones 2 threads take 5 and 4, and one is idle for a tenth of the layer;
 * of 24 they take 12 each. Smaller ones gain nothing: each begins with tiles that memory still has
 * to deliver. */
#define ITEMS_PER_THREAD 12u

/* ---- costs ---- */

uint32_t quire_attn_tokens_of_splits(const quire_attn_ctx *c, uint32_t s, uint32_t n_splits)
{
    const quire_attn_seq *seq = &c->ws->batch.seqs[s];

    return n_splits < quire_attn_n_splits(c->ws, seq) ? quire_attn_split_token(c, s)[n_splits]
                                                      : seq->n_tokens;
}

/* Cost of n_queries queries over n_tokens tokens for one kv head, in arbitrary units: every tile
 * has a fixed cost by block (its bytes come from memory) and one by row. */
static uint64_t cost_of(const quire_attn_ctx *c, uint32_t n_tokens, uint32_t n_queries)
{
    uint64_t n_blocks = quire_attn_ceil_div(n_queries, c->shape.block_queries);

    return (uint64_t)n_tokens * (8 * n_blocks + (uint64_t)n_queries * c->shape.group);
}

/* Of what sequence i of a unit does not share. */
static uint64_t rest_cost(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t i)
{
    uint32_t s = quire_attn_unit_seq_index(c, u, i);
    const quire_attn_seq *seq = &c->ws->batch.seqs[s];

    return cost_of(c, seq->n_tokens - quire_attn_tokens_of_splits(c, s, u->n_shared), seq->n_rows);
}

static uint64_t batch_cost(const quire_attn_ctx *c)
{
    const quire_attn_workspace *ws = c->ws;
    uint64_t cost = 0;

    for (uint32_t g = 0; g < ws->n_groups; g++) {
        const quire_attn_group *group = &ws->groups[g];
        quire_attn_unit u = { .first = group->first, .n_shared = group->n_splits };
        uint32_t n_queries = 0;

        for (uint32_t i = 0; i < group->n_seqs; i++) {
            n_queries += quire_attn_unit_seq(c, &u, i)->n_rows;
            cost += rest_cost(c, &u, i);
        }
        cost += cost_of(c, quire_attn_tokens_of_splits(c, ws->order[group->first], group->n_splits),
                        n_queries);
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
    return quire_attn_n_splits(c->ws, quire_attn_unit_seq(c, u, i)) - u->n_shared;
}

uint32_t quire_attn_unit_rest_parts(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t i)
{
    return n_parts_of(u, rest_cost(c, u, i), quire_attn_unit_rest_splits(c, u, i));
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
    const quire_attn_group *group = &c->ws->groups[u->group];

    return u->group + 1 == c->ws->n_groups && u->first + u->n_seqs == group->first + group->n_seqs;
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

/* Which splits of a sequence by itself go to wide items. All of them: of a small sequence; where a
 * split is a small part of the batch and more units follow; where each thread has several. Else so
 * many that each thread can have the same number: up to two splits by thread are left and go kv
 * head by kv head, so that threads end at about the same time, though of few rows one head by
 * itself takes up to twice as long as one of several. A sequence with no more splits has no wide
 * items. */
static void plan_wide(const quire_attn_ctx *c, quire_attn_unit *u, uint32_t n_splits)
{
    const quire_attn_seq *seq = quire_attn_unit_seq(c, u, 0);
    uint32_t n_parts;
    uint64_t cost;

    u->n_wide = 0;
    u->n_wide_parts = 0;
    u->n_wide_heads = n_wide_heads(c, u);
    if (u->n_wide_heads == 1) {
        return;
    }
    cost = cost_of(c, seq->n_tokens, seq->n_rows) * u->n_wide_heads;
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
    const quire_attn_seq *seq = quire_attn_unit_seq(c, u, 0);
    uint32_t n_splits = quire_attn_n_splits(c->ws, seq);
    uint32_t n_left;

    u->n_seqs = 1;
    u->n_shared = 0;
    u->n_queries = seq->n_rows;
    u->n_blocks = quire_attn_ceil_div(seq->n_rows, c->shape.block_queries);
    u->n_tasks = u->n_blocks * c->layer->n_kv_head;
    plan_wide(c, u, n_splits);
    n_left = seq->n_tokens -
             quire_attn_tokens_of_splits(c, quire_attn_unit_seq_index(c, u, 0), u->n_wide);
    u->n_parts = n_parts_of(u, cost_of(c, n_left, seq->n_rows) / u->n_blocks, n_splits - u->n_wide);
    u->task_floats = n_splits * quire_attn_unit_lead_floats(c, u);
    if (u->n_wide_parts + u->n_parts > 1 && !unit_fits(c, u)) { /* then one piece by kv head */
        u->n_wide = 0;
        u->n_wide_parts = 0;
        u->n_parts = 1;
    }
    u->n_task_items = u->n_wide_parts + u->n_parts;
}

/* The sequences from u->first on that fit a block, over the splits that their group shares; false
 * when there is no room for their partials. */
static bool plan_cascade(const quire_attn_ctx *c, quire_attn_unit *u)
{
    uint32_t n_tokens =
        quire_attn_tokens_of_splits(c, quire_attn_unit_seq_index(c, u, 0), u->n_shared);
    size_t rest_floats = 0;

    u->n_blocks = 1;
    u->n_tasks = c->layer->n_kv_head;
    u->n_wide = 0;
    u->n_wide_heads = 1;
    u->n_wide_parts = 0;
    u->n_parts = n_parts_of(u, cost_of(c, n_tokens, u->n_queries), u->n_shared);
    u->n_task_items = u->n_parts;
    for (uint32_t i = 0; i < u->n_seqs; i++) {
        rest_floats += quire_attn_unit_rest_splits(c, u, i) * quire_attn_unit_rest_floats(c, u, i);
        u->n_task_items += quire_attn_unit_rest_parts(c, u, i);
    }
    u->task_floats = rest_floats + u->n_shared * quire_attn_unit_lead_floats(c, u);
    if (!unit_fits(c, u)) { /* in one piece it is folded as it comes */
        u->n_task_items -= u->n_parts - 1;
        u->n_parts = 1;
        u->task_floats = rest_floats + quire_attn_unit_lead_floats(c, u);
    }
    return unit_fits(c, u);
}

static void plan_unit(const quire_attn_ctx *c, quire_attn_unit *u)
{
    const quire_attn_group *group = &c->ws->groups[u->group];
    uint32_t n_left = group->first + group->n_seqs - u->first;

    u->n_seqs = 0;
    u->n_queries = 0;
    u->n_shared = group->n_splits;
    while (u->n_shared > 0 && u->n_seqs < n_left &&
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
    const quire_attn_group *group = &c->ws->groups[u->group];

    u->first_item += quire_attn_unit_items(c, u);
    if (u->n_task_items > 1) {
        u->first_counter += u->n_tasks;
        u->first_partial += u->n_tasks * u->task_floats;
    }
    u->first += u->n_seqs;
    if (u->first == group->first + group->n_seqs && ++u->group == c->ws->n_groups) {
        return false;
    }
    plan_unit(c, u);
    return true;
}
