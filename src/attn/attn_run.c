/* attn_run.c - attention of a step's rows over their page tables: who does what.
 *
 * Every thread walks the same list of items (a pure function of the batch, the layer and the number
 * of threads) and takes the next one from an atomic counter; there is no barrier.
 *
 *   unit   one sequence, or those of a cascade whose rows fit one block together
 *   task   of a unit: one kv head and one block of rows; a cascade has one block, its lead block
 *   item   of a task: a range of the lead block's splits, or of the splits of a cascade's sequence
 *          that it does not share (its rest)
 *
 * The item that finishes a task last, or the only one, merges the partials in ascending order and
 * writes the rows out. A merge is a fold from the left, so what lies first may be folded early.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_block.h"
#include "base/check.h"

/* A task bigger than this share of a thread's work is cut. What a thread waits for at the end is an
 * item at most: of 9 equal ones 2 threads take 5 and 4, and one is idle for a tenth of the layer;
 * of 24 they take 12 each. Smaller ones gain nothing: each begins with a tile that nobody has
 * prefetched. */
#define ITEMS_PER_THREAD 12u

/* One thread's place in the list of items. Items of a unit are numbered by kv head, then block, the
 * last block (the longest) first, then within the task: parts of the lead block, parts of each
 * rest. */
typedef struct unit {
    uint32_t group;
    uint32_t first; /* in order[] */
    uint32_t n_seqs;
    uint32_t n_shared;  /* splits read once for all; 0 for a sequence alone */
    uint32_t n_queries; /* of all its sequences */
    uint32_t n_blocks;
    uint32_t n_parts;      /* items of a lead block */
    uint32_t n_task_items; /* with those of the rests */
    uint32_t n_tasks;
    uint64_t item_cost; /* what an item should cost at most */
    uint64_t first_item;
    size_t task_floats;   /* partials of a task that has several items */
    size_t first_partial; /* floats */
    uint32_t first_counter;
} unit;

/* Part of a range of splits. */
typedef struct split_range {
    uint32_t begin;
    uint32_t end;
} split_range;

static split_range part_of(uint32_t begin, uint32_t end, uint32_t part, uint32_t n_parts)
{
    uint64_t n = end - begin;

    return (split_range){ begin + (uint32_t)(n * part / n_parts),
                          begin + (uint32_t)(n * (part + 1) / n_parts) };
}

static uint32_t seq_index(const quire_attn_ctx *c, const unit *u, uint32_t i)
{
    return c->ws->order[u->first + i];
}

static const quire_attn_seq *seq_of(const quire_attn_ctx *c, const unit *u, uint32_t i)
{
    return &c->ws->batch.seqs[seq_index(c, u, i)];
}

static const uint32_t *split_token_of(const quire_attn_ctx *c, uint32_t s)
{
    return c->ws->split_token + (size_t)s * c->ws->n_splits_max;
}

/* ---- costs ---- */

/* Tokens in the first n_splits splits of sequence s. */
static uint32_t tokens_of_splits(const quire_attn_ctx *c, uint32_t s, uint32_t n_splits)
{
    const quire_attn_seq *seq = &c->ws->batch.seqs[s];

    return n_splits < quire_attn_n_splits(c->ws, seq) ? split_token_of(c, s)[n_splits]
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
static uint64_t rest_cost(const quire_attn_ctx *c, const unit *u, uint32_t i)
{
    uint32_t s = seq_index(c, u, i);
    const quire_attn_seq *seq = &c->ws->batch.seqs[s];

    return cost_of(c, seq->n_tokens - tokens_of_splits(c, s, u->n_shared), seq->n_rows);
}

static uint64_t batch_cost(const quire_attn_ctx *c)
{
    const quire_attn_workspace *ws = c->ws;
    uint64_t cost = 0;

    for (uint32_t g = 0; g < ws->n_groups; g++) {
        const quire_attn_group *group = &ws->groups[g];
        unit u = { .first = group->first, .n_shared = group->n_splits };
        uint32_t n_queries = 0;

        for (uint32_t i = 0; i < group->n_seqs; i++) {
            n_queries += seq_of(c, &u, i)->n_rows;
            cost += rest_cost(c, &u, i);
        }
        cost +=
            cost_of(c, tokens_of_splits(c, ws->order[group->first], group->n_splits), n_queries);
    }
    return cost * c->layer->n_kv_head;
}

/* Into how many items something of this cost and so many splits is cut. */
static uint32_t n_parts_of(const unit *u, uint64_t cost, uint32_t n_splits)
{
    uint64_t n = cost / u->item_cost + 1;

    return n < n_splits ? (uint32_t)n : n_splits;
}

static uint32_t n_rest_splits(const quire_attn_ctx *c, const unit *u, uint32_t i)
{
    return quire_attn_n_splits(c->ws, seq_of(c, u, i)) - u->n_shared;
}

/* 0 when there is no rest. */
static uint32_t n_rest_parts(const quire_attn_ctx *c, const unit *u, uint32_t i)
{
    return n_parts_of(u, rest_cost(c, u, i), n_rest_splits(c, u, i));
}

/* ---- units ---- */

/* Whether the partials and the counters of the unit's tasks find room. */
static bool unit_fits(const quire_attn_ctx *c, const unit *u)
{
    return u->n_tasks <= QUIRE_ATTN_SHARED_TASKS_MAX - u->first_counter &&
           u->task_floats <= (c->ws->partial_floats - u->first_partial) / u->n_tasks;
}

static size_t lead_state_floats(const quire_attn_ctx *c, const unit *u)
{
    uint32_t n_queries =
        u->n_queries < c->shape.block_queries ? u->n_queries : c->shape.block_queries;

    return quire_attn_state_floats(&c->shape, n_queries * c->shape.group);
}

static size_t rest_state_floats(const quire_attn_ctx *c, const unit *u, uint32_t i)
{
    return quire_attn_state_floats(&c->shape, seq_of(c, u, i)->n_rows * c->shape.group);
}

/* One sequence by itself. */
static void plan_alone(const quire_attn_ctx *c, unit *u)
{
    const quire_attn_seq *seq = seq_of(c, u, 0);
    uint32_t n_splits = quire_attn_n_splits(c->ws, seq);

    u->n_seqs = 1;
    u->n_shared = 0;
    u->n_queries = seq->n_rows;
    u->n_blocks = quire_attn_ceil_div(seq->n_rows, c->shape.block_queries);
    u->n_tasks = u->n_blocks * c->layer->n_kv_head;
    u->n_parts = n_parts_of(u, cost_of(c, seq->n_tokens, seq->n_rows) / u->n_blocks, n_splits);
    u->task_floats = n_splits * lead_state_floats(c, u);
    if (!unit_fits(c, u)) {
        u->n_parts = 1;
    }
    u->n_task_items = u->n_parts;
}

/* The sequences from u->first on that fit a block, over the splits that their group shares; false
 * when there is no room for their partials. */
static bool plan_cascade(const quire_attn_ctx *c, unit *u)
{
    uint32_t n_tokens = tokens_of_splits(c, seq_index(c, u, 0), u->n_shared);
    size_t rest_floats = 0;

    u->n_blocks = 1;
    u->n_tasks = c->layer->n_kv_head;
    u->n_parts = n_parts_of(u, cost_of(c, n_tokens, u->n_queries), u->n_shared);
    u->n_task_items = u->n_parts;
    for (uint32_t i = 0; i < u->n_seqs; i++) {
        rest_floats += n_rest_splits(c, u, i) * rest_state_floats(c, u, i);
        u->n_task_items += n_rest_parts(c, u, i);
    }
    u->task_floats = rest_floats + u->n_shared * lead_state_floats(c, u);
    if (!unit_fits(c, u)) { /* in one piece it is folded as it comes */
        u->n_task_items -= u->n_parts - 1;
        u->n_parts = 1;
        u->task_floats = rest_floats + lead_state_floats(c, u);
    }
    return unit_fits(c, u);
}

static void plan_unit(const quire_attn_ctx *c, unit *u)
{
    const quire_attn_group *group = &c->ws->groups[u->group];
    uint32_t n_left = group->first + group->n_seqs - u->first;

    u->n_seqs = 0;
    u->n_queries = 0;
    u->n_shared = group->n_splits;
    while (u->n_shared > 0 && u->n_seqs < n_left &&
           u->n_queries + seq_of(c, u, u->n_seqs)->n_rows <= c->shape.block_queries) {
        u->n_queries += seq_of(c, u, u->n_seqs)->n_rows;
        u->n_seqs++;
    }
    if (u->n_seqs < 2 || !plan_cascade(c, u)) {
        plan_alone(c, u);
    }
}

static unit first_unit(const quire_attn_ctx *c, uint32_t n_threads)
{
    unit u = { .item_cost = UINT64_MAX };

    if (n_threads > 1) {
        u.item_cost = batch_cost(c) / (n_threads * ITEMS_PER_THREAD) + 1;
    }
    plan_unit(c, &u);
    return u;
}

/* Move to the next unit; false after the last. */
static bool next_unit(const quire_attn_ctx *c, unit *u)
{
    const quire_attn_group *group = &c->ws->groups[u->group];

    u->first_item += (uint64_t)u->n_tasks * u->n_task_items;
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

/* ---- blocks ---- */

/* Add n rows of a sequence, from `first` on, to the block's queries. */
static void add_queries(const quire_attn_ctx *c, quire_attn_block *b, const quire_attn_seq *seq,
                        uint32_t first, uint32_t n)
{
    uint32_t first_index = seq->n_tokens - seq->n_rows + first;

    for (uint32_t i = 0; i < n; i++) {
        c->queries[b->n_queries++] =
            (quire_attn_query){ seq, seq->first_row + first + i, first_index + i };
    }
    b->n_rows += n * c->shape.group;
}

/* Rows of sequence i of the unit, with their own table; the queries lie in the context. */
static quire_attn_block own_block(const quire_attn_ctx *c, const unit *u, uint32_t i, uint32_t g,
                                  uint32_t block)
{
    uint32_t s = seq_index(c, u, i);
    const quire_attn_seq *seq = &c->ws->batch.seqs[s];
    uint32_t first = block * c->shape.block_queries;
    uint32_t rest = seq->n_rows - first;
    quire_attn_block b = { .seq = seq,
                           .split_token = split_token_of(c, s),
                           .n_splits = quire_attn_n_splits(c->ws, seq),
                           .g = g,
                           .queries = c->queries };

    add_queries(c, &b, seq, first, rest < c->shape.block_queries ? rest : c->shape.block_queries);
    b.token_end = b.queries[b.n_queries - 1].index + 1;
    while (b.split_token[b.n_splits - 1] >= b.token_end) {
        b.n_splits--;
    }
    return b;
}

/* The block of a task: the rows of all sequences of a cascade over what they share, or a block of
 * the unit's one sequence. */
static quire_attn_block lead_block(const quire_attn_ctx *c, const unit *u, uint32_t task)
{
    uint32_t s = seq_index(c, u, 0);
    quire_attn_block b = { .seq = &c->ws->batch.seqs[s],
                           .split_token = split_token_of(c, s),
                           .n_splits = u->n_shared,
                           .token_end = tokens_of_splits(c, s, u->n_shared),
                           .g = task / u->n_blocks,
                           .queries = c->queries };

    if (u->n_seqs == 1) {
        return own_block(c, u, 0, b.g, u->n_blocks - 1 - task % u->n_blocks);
    }
    for (uint32_t i = 0; i < u->n_seqs; i++) {
        const quire_attn_seq *seq = seq_of(c, u, i);

        add_queries(c, &b, seq, 0, seq->n_rows);
    }
    return b;
}

/* ---- items ---- */

/* *st = splits [range.begin, range.end) of the block, merged. */
static void run_folded(const quire_attn_ctx *c, quire_attn_block *b, split_range range,
                       const quire_attn_state *st)
{
    quire_attn_state part = quire_attn_state_at(c->states[1], b->n_rows);

    quire_attn_block_run(c, b, range.begin, st);
    for (uint32_t split = range.begin + 1; split < range.end; split++) {
        quire_attn_block_run(c, b, split, &part);
        quire_attn_state_merge(c, st, 0, &part);
    }
}

/* Each split of a range by itself; `partials` holds the states of splits from `first` on. */
static void run_apart(const quire_attn_ctx *c, quire_attn_block *b, split_range range,
                      uint32_t first, float *partials)
{
    size_t floats = quire_attn_state_floats(&c->shape, b->n_rows);

    for (uint32_t split = range.begin; split < range.end; split++) {
        quire_attn_state st = quire_attn_state_at(partials + (split - first) * floats, b->n_rows);

        quire_attn_block_run(c, b, split, &st);
    }
}

/* Partials of a task: the lead block's by split, where that of split 0 holds all splits of the
 * first part (and is the only one when there is one part), then by sequence those of its rest. */
static float *rest_partials(const quire_attn_ctx *c, const unit *u, float *partials, uint32_t i)
{
    partials += (u->n_parts == 1 ? 1 : u->n_shared) * lead_state_floats(c, u);
    for (uint32_t k = 0; k < i; k++) {
        partials += n_rest_splits(c, u, k) * rest_state_floats(c, u, k);
    }
    return partials;
}

/* Item `item` of a cascade's rests, counted from the first sequence's first part. */
static void run_rest(const quire_attn_ctx *c, const unit *u, uint32_t g, uint32_t item,
                     float *partials)
{
    uint32_t n_parts = n_rest_parts(c, u, 0);
    quire_attn_block b;
    uint32_t i = 0;

    while (item >= n_parts) {
        item -= n_parts;
        n_parts = n_rest_parts(c, u, ++i);
    }
    b = own_block(c, u, i, g, 0);
    run_apart(c, &b, part_of(u->n_shared, b.n_splits, item, n_parts), u->n_shared,
              rest_partials(c, u, partials, i));
}

/* All items of the task are done: merge and write. */
static void finish_task(const quire_attn_ctx *c, const unit *u, uint32_t task, float *partials)
{
    quire_attn_block b = lead_block(c, u, task);
    size_t floats = quire_attn_state_floats(&c->shape, b.n_rows);
    quire_attn_state merged = quire_attn_state_at(partials, b.n_rows);
    uint32_t first_row = 0;
    uint32_t n_folded = part_of(0, b.n_splits, 0, u->n_parts).end;

    n_folded = n_folded > 0 ? n_folded : 1; /* there are blocks with fewer splits than parts */
    for (uint32_t split = n_folded; split < b.n_splits; split++) {
        quire_attn_state st = quire_attn_state_at(partials + split * floats, b.n_rows);

        quire_attn_state_merge(c, &merged, 0, &st);
    }
    for (uint32_t i = 0; u->n_seqs > 1 && i < u->n_seqs; i++) {
        float *rest = rest_partials(c, u, partials, i);
        uint32_t n_rows = seq_of(c, u, i)->n_rows * c->shape.group;

        for (uint32_t k = 0; k < n_rest_splits(c, u, i); k++) {
            quire_attn_state st =
                quire_attn_state_at(rest + k * rest_state_floats(c, u, i), n_rows);

            quire_attn_state_merge(c, &merged, first_row, &st);
        }
        first_row += n_rows;
    }
    quire_attn_block_write(c, &b, &merged);
}

/* One of several items of a task. */
static void run_part(const quire_attn_ctx *c, const unit *u, uint32_t task, uint32_t item)
{
    float *partials = c->ws->partials + u->first_partial + task * u->task_floats;
    quire_attn_counter *done = &c->ws->done[u->first_counter + task];

    if (item < u->n_parts) {
        quire_attn_block b = lead_block(c, u, task);
        split_range range = part_of(0, b.n_splits, item, u->n_parts);

        if (item == 0 && range.end > 0) {
            quire_attn_state st = quire_attn_state_at(partials, b.n_rows);

            run_folded(c, &b, range, &st);
        } else {
            run_apart(c, &b, range, 0, partials);
        }
    } else {
        run_rest(c, u, task / u->n_blocks, item - u->n_parts, partials);
    }
    if (atomic_fetch_add_explicit(&done->value, 1, memory_order_acq_rel) + 1 == u->n_task_items) {
        atomic_store_explicit(&done->value, 0, memory_order_relaxed);
        finish_task(c, u, task, partials);
    }
}

static void run_item(const quire_attn_ctx *c, const unit *u, uint64_t item)
{
    uint32_t task = (uint32_t)(item / u->n_task_items);

    if (u->n_task_items > 1) {
        run_part(c, u, task, (uint32_t)(item % u->n_task_items));
    } else {
        quire_attn_block b = lead_block(c, u, task);
        quire_attn_state st = quire_attn_state_at(c->states[0], b.n_rows);

        run_folded(c, &b, (split_range){ 0, b.n_splits }, &st);
        quire_attn_block_write(c, &b, &st);
    }
}

static uint64_t next_item(quire_attn_workspace *ws, uint32_t call)
{
    return atomic_fetch_add_explicit(&ws->next_item[call].value, 1, memory_order_relaxed);
}

void quire_attn_run(quire_attn_workspace *workspace, const quire_attn_layer *layer, uint32_t call,
                    uint32_t thread, uint32_t n_threads)
{
    quire_attn_ctx c;
    unit u;

    QUIRE_CHECK(thread < n_threads && thread < workspace->limits.n_threads_max);
    QUIRE_CHECK(call < workspace->limits.n_layers_max);
    QUIRE_ASSERT(quire_attn_layer_check(workspace, layer) == QUIRE_OK);
    if (workspace->batch.n_seqs == 0) {
        return;
    }
    QUIRE_CHECK(workspace->has_hot || !quire_attn_has_sealed(layer));
    c = quire_attn_ctx_of(workspace, layer, thread);
    u = first_unit(&c, n_threads);
    for (uint64_t item = next_item(workspace, call);; item = next_item(workspace, call)) {
        while (item - u.first_item >= (uint64_t)u.n_tasks * u.n_task_items) {
            if (!next_unit(&c, &u)) {
                return;
            }
        }
        run_item(&c, &u, item - u.first_item);
    }
}
