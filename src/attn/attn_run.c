/* attn_run.c - attention of a step's rows over their page tables: who does what.
 *
 * Every thread walks the same list of items (a pure function of the batch, the layer and the number
 * of threads) and takes the next one from an atomic counter; there is no barrier. An item runs its
 * rows over a range of splits. The item that finishes a task last, or the only one, merges the
 * partials in ascending order and writes the rows out.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_block.h"
#include "base/check.h"

#define ITEMS_PER_THREAD 4u /* a task bigger than this share of a thread's work is cut */

/* How the tasks of one sequence are cut. Items of a sequence are numbered by kv head, then block,
 * the last block (the longest) first, then part. */
typedef struct seq_plan {
    uint32_t s;
    uint32_t n_blocks;
    uint32_t n_parts; /* items of one task */
    uint64_t first_item;
    size_t first_partial;  /* floats; n_parts > 1 only */
    uint32_t first_shared; /* index of its first task in done[] */
} seq_plan;

static uint32_t n_splits_of(const quire_attn_ctx *c, const quire_attn_seq *seq)
{
    return quire_attn_ceil_div(seq->n_entries, c->ws->limits.split_entries);
}

/* Cost of a sequence's tasks for one kv head, in arbitrary units: every tile has a fixed cost (its
 * bytes come from memory) and one by row. */
static uint64_t seq_cost(const quire_attn_ctx *c, const quire_attn_seq *seq)
{
    uint64_t n_blocks = quire_attn_ceil_div(seq->n_rows, c->shape.block_queries);

    return (uint64_t)seq->n_tokens * (8 * n_blocks + (uint64_t)seq->n_rows * c->shape.group);
}

static uint64_t batch_cost(const quire_attn_ctx *c)
{
    uint64_t cost = 0;

    for (uint32_t s = 0; s < c->ws->batch.n_seqs; s++) {
        cost += seq_cost(c, &c->ws->batch.seqs[s]);
    }
    return cost * c->layer->n_kv_head;
}

/* Floats of the partials of one task: a state per split. */
static size_t task_partial_floats(const quire_attn_ctx *c, const quire_attn_seq *seq)
{
    uint32_t n_queries =
        c->shape.block_queries < seq->n_rows ? c->shape.block_queries : seq->n_rows;

    return n_splits_of(c, seq) * quire_attn_state_floats(&c->shape, n_queries * c->shape.group);
}

/* Plan sequence plan->s; item_cost is what an item should cost at most. */
static void plan_seq(const quire_attn_ctx *c, uint64_t item_cost, seq_plan *plan)
{
    const quire_attn_workspace *ws = c->ws;
    const quire_attn_seq *seq = &ws->batch.seqs[plan->s];
    uint32_t n_splits = n_splits_of(c, seq);
    uint64_t n_parts;
    uint32_t n_tasks;

    plan->n_blocks = quire_attn_ceil_div(seq->n_rows, c->shape.block_queries);
    n_tasks = plan->n_blocks * c->layer->n_kv_head;
    n_parts = seq_cost(c, seq) / plan->n_blocks / item_cost + 1;
    n_parts = n_parts < n_splits ? n_parts : n_splits;
    if (n_tasks > QUIRE_ATTN_SHARED_TASKS_MAX - plan->first_shared ||
        task_partial_floats(c, seq) > (ws->partial_floats - plan->first_partial) / n_tasks) {
        n_parts = 1; /* no room to share */
    }
    plan->n_parts = (uint32_t)n_parts;
}

/* Move to the next sequence; false after the last. */
static bool plan_next(const quire_attn_ctx *c, uint64_t item_cost, seq_plan *plan)
{
    const quire_attn_batch *batch = &c->ws->batch;
    uint32_t n_tasks = plan->n_blocks * c->layer->n_kv_head;

    plan->first_item += (uint64_t)n_tasks * plan->n_parts;
    if (plan->n_parts > 1) {
        plan->first_shared += n_tasks;
        plan->first_partial += n_tasks * task_partial_floats(c, &batch->seqs[plan->s]);
    }
    if (plan->s + 1 >= batch->n_seqs) {
        return false;
    }
    plan->s++;
    plan_seq(c, item_cost, plan);
    return true;
}

/* Block `block` of sequence plan->s for kv head g; its queries lie in the context. */
static quire_attn_block block_of(const quire_attn_ctx *c, const seq_plan *plan, uint32_t g,
                                 uint32_t block)
{
    const quire_attn_workspace *ws = c->ws;
    const quire_attn_seq *seq = &ws->batch.seqs[plan->s];
    uint32_t first = block * c->shape.block_queries;
    uint32_t first_index = seq->n_tokens - seq->n_rows + first;
    uint32_t rest = seq->n_rows - first;
    quire_attn_block b = { .seq = seq,
                           .split_token = ws->split_token + (size_t)plan->s * ws->n_splits_max,
                           .n_splits = n_splits_of(c, seq),
                           .g = g,
                           .queries = c->queries };

    b.n_queries = rest < c->shape.block_queries ? rest : c->shape.block_queries;
    b.n_rows = b.n_queries * c->shape.group;
    b.token_end = first_index + b.n_queries;
    while (b.split_token[b.n_splits - 1] >= b.token_end) {
        b.n_splits--;
    }
    for (uint32_t i = 0; i < b.n_queries; i++) {
        c->queries[i] = (quire_attn_query){ seq, seq->first_row + first + i, first_index + i };
    }
    return b;
}

/* A task in one piece: partials are merged as they come. */
static void run_whole(const quire_attn_ctx *c, quire_attn_block *b)
{
    quire_attn_state merged = quire_attn_state_at(c->states[0], b->n_rows);
    quire_attn_state part = quire_attn_state_at(c->states[1], b->n_rows);

    quire_attn_block_run(c, b, 0, &merged);
    for (uint32_t split = 1; split < b->n_splits; split++) {
        quire_attn_block_run(c, b, split, &part);
        quire_attn_state_merge(c, &merged, &part, b->n_rows);
    }
    quire_attn_block_write(c, b, &merged);
}

/* One part of a shared task; partials lie in the workspace until the last part is there. */
static void run_part(const quire_attn_ctx *c, quire_attn_block *b, const seq_plan *plan,
                     uint32_t part, uint32_t task)
{
    size_t state_floats = quire_attn_state_floats(&c->shape, b->n_rows);
    float *partials = c->ws->partials + plan->first_partial + task * task_partial_floats(c, b->seq);
    quire_attn_counter *done = &c->ws->done[plan->first_shared + task];
    uint32_t n_parts = plan->n_parts;
    uint32_t end = (uint32_t)((uint64_t)b->n_splits * (part + 1) / n_parts);
    quire_attn_state merged = quire_attn_state_at(partials, b->n_rows);

    for (uint32_t split = (uint32_t)((uint64_t)b->n_splits * part / n_parts); split < end;
         split++) {
        quire_attn_state st = quire_attn_state_at(partials + split * state_floats, b->n_rows);

        quire_attn_block_run(c, b, split, &st);
    }
    if (atomic_fetch_add_explicit(&done->value, 1, memory_order_acq_rel) + 1 != n_parts) {
        return;
    }
    atomic_store_explicit(&done->value, 0, memory_order_relaxed);
    for (uint32_t split = 1; split < b->n_splits; split++) {
        quire_attn_state st = quire_attn_state_at(partials + split * state_floats, b->n_rows);

        quire_attn_state_merge(c, &merged, &st, b->n_rows);
    }
    quire_attn_block_write(c, b, &merged);
}

static void run_item(const quire_attn_ctx *c, const seq_plan *plan, uint64_t item)
{
    uint32_t part = (uint32_t)(item % plan->n_parts);
    uint32_t task = (uint32_t)(item / plan->n_parts);
    quire_attn_block b =
        block_of(c, plan, task / plan->n_blocks, plan->n_blocks - 1 - task % plan->n_blocks);

    if (plan->n_parts == 1) {
        run_whole(c, &b);
    } else {
        run_part(c, &b, plan, part, task);
    }
}

static uint64_t next_item(quire_attn_workspace *ws, uint32_t call)
{
    return atomic_fetch_add_explicit(&ws->next_item[call].value, 1, memory_order_relaxed);
}

void quire_attn_run(quire_attn_workspace *workspace, const quire_attn_layer *layer, uint32_t call,
                    uint32_t thread, uint32_t n_threads)
{
    seq_plan plan = { .s = 0 };
    uint64_t item_cost;
    quire_attn_ctx c;

    QUIRE_CHECK(thread < n_threads && thread < workspace->limits.n_threads_max);
    QUIRE_CHECK(call < workspace->limits.n_layers_max);
    QUIRE_ASSERT(quire_attn_layer_check(workspace, layer) == QUIRE_OK);
    if (workspace->batch.n_seqs == 0) {
        return;
    }
    QUIRE_CHECK(workspace->has_hot || !quire_attn_has_sealed(layer));
    c = quire_attn_ctx_of(workspace, layer, thread);
    item_cost = n_threads > 1 ? batch_cost(&c) / (n_threads * ITEMS_PER_THREAD) + 1 : UINT64_MAX;
    plan_seq(&c, item_cost, &plan);
    for (uint64_t item = next_item(workspace, call);; item = next_item(workspace, call)) {
        while (item - plan.first_item >=
               (uint64_t)plan.n_blocks * layer->n_kv_head * plan.n_parts) {
            if (!plan_next(&c, item_cost, &plan)) {
                return;
            }
        }
        run_item(&c, &plan, item - plan.first_item);
    }
}
