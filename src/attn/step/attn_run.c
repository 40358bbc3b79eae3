/* attn_run.c - attention of a step's rows over their page tables, divided among threads.
 *
 * Every thread walks the same list of items (a pure function of the batch, the layer and the number
 * of threads) and takes the next one from an atomic counter; there is no barrier.
 *
 *   unit   one sequence, or those of a cascade whose rows fit one block together
 *   task   of a unit: one kv head and one block of rows; a cascade has one block, its lead block
 *   item   of a task: a range of the lead block's splits, or of the splits of a cascade's sequence
 *          that it does not share (its rest); splits behind the windows of all rows left out
 *   wide   of an item: of the tasks of several kv heads at once, where rows are few
 *
 * The item that finishes a task last, or the only one, merges the partials in ascending order and
 * writes the rows out. A merge is a fold from the left, so the first partials may be folded early.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/step/attn_units.h"
#include "base/check.h"
#include "base/num.h"

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

/* ---- blocks ---- */

/* Add n rows of a sequence, from `first` on, to the block's queries. */
static void add_queries(const quire_attn_ctx *c, quire_attn_block *b, const quire_attn_seq *seq,
                        uint32_t first, uint32_t n)
{
    uint32_t first_pos = seq->n_tokens - seq->n_rows + first;

    for (uint32_t i = 0; i < n; i++) {
        c->queries[b->n_queries++] =
            (quire_attn_query){ seq, seq->first_row + first + i, first_pos + i };
    }
    b->head_rows += n * c->shape.group;
    b->n_rows = b->n_heads * b->head_rows;
}

/* The bounds that follow from the positions of the block's queries. */
static void set_bounds(const quire_attn_ctx *c, quire_attn_block *b)
{
    uint32_t last_pos = b->queries[0].pos;

    b->first_pos = last_pos;
    for (uint32_t i = 1; i < b->n_queries; i++) {
        b->first_pos = quire_min_u32(b->first_pos, b->queries[i].pos);
        last_pos = quire_max_u32(last_pos, b->queries[i].pos);
    }
    b->seen_begin = quire_attn_row_begin(c->layer, b->first_pos);
    b->all_seen_begin = quire_attn_row_begin(c->layer, last_pos);
}

/* Rows of sequence i of the unit, with their own table; the queries lie in the context. */
static quire_attn_block own_block(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t i,
                                  uint32_t g, uint32_t block)
{
    uint32_t s = quire_attn_unit_seq_index(c, u, i);
    const quire_attn_seq *seq = &c->ws->batch.seqs[s];
    uint32_t first = block * c->shape.block_queries;
    uint32_t rest = seq->n_rows - first;
    quire_attn_block b = { .seq = seq,
                           .split_pos = quire_attn_split_pos(c, s),
                           .n_splits = quire_attn_splits_of(c, s),
                           .g = g,
                           .n_heads = 1,
                           .queries = c->queries };

    add_queries(c, &b, seq, first, rest < c->shape.block_queries ? rest : c->shape.block_queries);
    b.pos_end = b.queries[b.n_queries - 1].pos + 1;
    while (b.split_pos[b.n_splits - 1] >= b.pos_end) {
        b.n_splits--;
    }
    set_bounds(c, &b);
    return b;
}

/* The block of a task: the rows of all sequences of a cascade over their shared splits, or a block
 * of the unit's only sequence. */
static quire_attn_block lead_block(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t task)
{
    uint32_t s = quire_attn_unit_seq_index(c, u, 0);
    quire_attn_block b = { .seq = &c->ws->batch.seqs[s],
                           .split_pos = quire_attn_split_pos(c, s),
                           .n_splits = u->shared_end,
                           .pos_end = quire_attn_pos_of_split(c, s, u->shared_end),
                           .g = task / u->n_blocks,
                           .n_heads = 1,
                           .queries = c->queries };

    if (u->n_seqs == 1) {
        return own_block(c, u, 0, b.g, u->n_blocks - 1 - task % u->n_blocks);
    }
    for (uint32_t i = 0; i < u->n_seqs; i++) {
        const quire_attn_seq *seq = quire_attn_unit_seq(c, u, i);

        add_queries(c, &b, seq, 0, seq->n_rows);
    }
    set_bounds(c, &b);
    return b;
}

/* ---- items ---- */

/* *st = splits [range.begin, range.end) of the block, merged. */
static void run_folded(const quire_attn_ctx *c, const quire_attn_block *b, split_range range,
                       const quire_attn_state *st)
{
    quire_attn_state part = quire_attn_state_at(c->states[1], b->n_rows);

    quire_attn_block_touch(c, b, range.begin);
    quire_attn_block_run(c, b, range.begin, st);
    for (uint32_t split = range.begin + 1; split < range.end; split++) {
        quire_attn_block_run(c, b, split, &part);
        quire_attn_state_merge(c, st, 0, &part);
    }
}

/* Each split of a range by itself; `partials` holds the states of splits from `first` on. */
static void run_apart(const quire_attn_ctx *c, const quire_attn_block *b, split_range range,
                      uint32_t first, float *partials)
{
    size_t floats = quire_attn_state_floats(&c->shape, b->n_rows);

    if (range.begin < range.end) {
        quire_attn_block_touch(c, b, range.begin);
    }
    for (uint32_t split = range.begin; split < range.end; split++) {
        quire_attn_state st = quire_attn_state_at(partials + (split - first) * floats, b->n_rows);

        quire_attn_block_run(c, b, split, &st);
    }
}

/* Partials of a task: those of the lead block, by split from the unit's first on, then those of
 * each sequence's rest. If the first part is no wide item, the first partial holds all splits of
 * this part. With one part it is the only partial of the lead block. */
static float *rest_partials(const quire_attn_ctx *c, const quire_attn_unit *u, float *partials,
                            uint32_t i)
{
    partials +=
        (u->n_parts == 1 ? 1 : u->shared_end - u->first_split) * quire_attn_unit_lead_floats(c, u);
    for (uint32_t k = 0; k < i; k++) {
        partials += quire_attn_unit_rest_splits(c, u, k) * quire_attn_unit_rest_floats(c, u, k);
    }
    return partials;
}

/* Item `item` of a cascade's rests, counted from the first sequence's first part. */
static void run_rest(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t g, uint32_t item,
                     float *partials)
{
    uint32_t n_parts = quire_attn_unit_rest_parts(c, u, 0);
    quire_attn_block b;
    uint32_t i = 0;

    while (item >= n_parts) {
        item -= n_parts;
        n_parts = quire_attn_unit_rest_parts(c, u, ++i);
    }
    b = own_block(c, u, i, g, 0);
    run_apart(c, &b, part_of(u->shared_end, b.n_splits, item, n_parts), u->shared_end,
              rest_partials(c, u, partials, i));
}

/* All items of the task are done: merge and write. */
static void finish_task(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t task,
                        float *partials)
{
    quire_attn_block b = lead_block(c, u, task);
    size_t floats = quire_attn_state_floats(&c->shape, b.n_rows);
    quire_attn_state merged = quire_attn_state_at(partials, b.n_rows);
    uint32_t first_row = 0;
    uint32_t folded_end = u->first_split + 1;

    if (u->n_wide == 0) { /* there are blocks with fewer splits than parts */
        folded_end =
            quire_max_u32(folded_end, part_of(u->first_split, b.n_splits, 0, u->n_parts).end);
    }
    for (uint32_t split = folded_end; split < b.n_splits; split++) {
        quire_attn_state st =
            quire_attn_state_at(partials + (split - u->first_split) * floats, b.n_rows);

        quire_attn_state_merge(c, &merged, 0, &st);
    }
    for (uint32_t i = 0; u->n_seqs > 1 && i < u->n_seqs; i++) {
        float *rest = rest_partials(c, u, partials, i);
        uint32_t n_rows = quire_attn_unit_seq(c, u, i)->n_rows * c->shape.group;

        for (uint32_t k = 0; k < quire_attn_unit_rest_splits(c, u, i); k++) {
            quire_attn_state st =
                quire_attn_state_at(rest + k * quire_attn_unit_rest_floats(c, u, i), n_rows);

            quire_attn_state_merge(c, &merged, first_row, &st);
        }
        first_row += n_rows;
    }
    quire_attn_block_write(c, &b, &merged);
}

static float *task_partials(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t task)
{
    return c->ws->partials + u->first_partial + task * u->task_floats;
}

/* Another item of the task is done. */
static void end_part(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t task)
{
    quire_attn_counter *done = &c->ws->done[u->first_counter + task];

    if (atomic_fetch_add_explicit(&done->value, 1, memory_order_acq_rel) + 1 == u->n_task_items) {
        atomic_store_explicit(&done->value, 0, memory_order_relaxed);
        finish_task(c, u, task, task_partials(c, u, task));
    }
}

/* One of several items of a task. */
static void run_part(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t task,
                     uint32_t item)
{
    float *partials = task_partials(c, u, task);

    if (item < u->n_parts) {
        quire_attn_block b = lead_block(c, u, task);
        split_range range = part_of(u->first_split + u->n_wide, b.n_splits, item, u->n_parts);

        if (u->n_wide == 0 && item == 0 && range.end > range.begin) {
            quire_attn_state st = quire_attn_state_at(partials, b.n_rows);

            run_folded(c, &b, range, &st);
        } else {
            run_apart(c, &b, range, u->first_split, partials);
        }
    } else {
        run_rest(c, u, task / u->n_blocks, item - u->n_parts, partials);
    }
    end_part(c, u, task);
}

/* Each split of a range by itself, of several kv heads at once. */
static void run_wide_part(const quire_attn_ctx *c, const quire_attn_unit *u,
                          const quire_attn_block *b, split_range range)
{
    size_t floats = quire_attn_unit_lead_floats(c, u);
    quire_attn_state st = quire_attn_state_at(c->states[0], b->n_rows);

    quire_attn_block_touch(c, b, range.begin);
    for (uint32_t split = range.begin; split < range.end; split++) {
        quire_attn_block_run(c, b, split, &st);
        for (uint32_t i = 0; i < b->n_heads; i++) {
            float *to = task_partials(c, u, b->g + i) + (split - u->first_split) * floats;
            quire_attn_state own = quire_attn_state_at(to, b->head_rows);

            quire_attn_state_take(c, &own, i * b->head_rows, &st);
        }
    }
    for (uint32_t i = 0; i < b->n_heads; i++) {
        end_part(c, u, b->g + i);
    }
}

/* A block of all tasks from kv head `g` on that a wide item has. */
static quire_attn_block wide_block(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t g)
{
    quire_attn_block b = own_block(c, u, 0, g, 0);

    b.n_heads = quire_min_u32(u->n_wide_heads, c->layer->n_kv_head - g);
    b.n_rows = b.n_heads * b.head_rows;
    return b;
}

/* A block of one kv head or of several, from the first split to the last. */
static void run_whole(const quire_attn_ctx *c, const quire_attn_unit *u, const quire_attn_block *b)
{
    quire_attn_state st = quire_attn_state_at(c->states[0], b->n_rows);

    run_folded(c, b, (split_range){ u->first_split, b->n_splits }, &st);
    quire_attn_block_write(c, b, &st);
}

static split_range wide_range(const quire_attn_unit *u, uint32_t part)
{
    split_range range = { 0, quire_attn_unit_wide_splits(u, 0) };

    for (; part > 0; part--) {
        range.begin = range.end;
        range.end += quire_attn_unit_wide_splits(u, range.begin);
    }
    range.begin += u->first_split;
    range.end += u->first_split;
    return range;
}

static void run_wide_item(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t item)
{
    uint32_t part = item % u->n_wide_parts;
    quire_attn_block b = wide_block(c, u, item / u->n_wide_parts * u->n_wide_heads);

    if (u->n_task_items > 1) {
        run_wide_part(c, u, &b, wide_range(u, part));
    } else {
        run_whole(c, u, &b);
    }
}

/* The rests of all tasks come last: they are small, so threads end at about the same time. */
static void run_narrow_item(const quire_attn_ctx *c, const quire_attn_unit *u, uint64_t item)
{
    const uint64_t n_lead = (uint64_t)u->n_tasks * u->n_parts;
    const uint32_t n_rest = u->n_task_items - u->n_wide_parts - u->n_parts;

    if (u->n_task_items == 1) {
        quire_attn_block b = lead_block(c, u, (uint32_t)item);

        run_whole(c, u, &b);
    } else if (item < n_lead) {
        run_part(c, u, (uint32_t)(item / u->n_parts), (uint32_t)(item % u->n_parts));
    } else {
        item -= n_lead;
        run_part(c, u, (uint32_t)(item / n_rest), u->n_parts + (uint32_t)(item % n_rest));
    }
}

static void run_item(const quire_attn_ctx *c, const quire_attn_unit *u, uint64_t item)
{
    uint32_t n_wide = quire_attn_unit_wide_items(c, u);

    if (item < n_wide) {
        run_wide_item(c, u, (uint32_t)item);
    } else {
        run_narrow_item(c, u, item - n_wide);
    }
}

static uint64_t next_item(quire_attn_workspace *ws, uint32_t call)
{
    return atomic_fetch_add_explicit(&ws->next_item[call].value, 1, memory_order_relaxed);
}

/* Count the splits that a unit's sequences need not read again. */
static void count_saved(const quire_attn_ctx *c, const quire_attn_unit *u)
{
    if (u->n_seqs > 1) {
        c->ws->n_saved_splits +=
            (uint64_t)(u->n_seqs - 1) * (u->shared_end - u->first_split) * c->layer->n_kv_head;
    }
}

/* Items of the call, until there is none. All threads come by all units; one of them counts. */
static void run_items(const quire_attn_ctx *c, uint32_t call, uint32_t thread, uint32_t n_threads)
{
    quire_attn_unit u = quire_attn_unit_first(c, n_threads);

    if (thread == 0) {
        count_saved(c, &u);
    }
    for (uint64_t item = next_item(c->ws, call);; item = next_item(c->ws, call)) {
        while (item - u.first_item >= quire_attn_unit_items(c, &u)) {
            if (!quire_attn_unit_next(c, &u)) {
                return;
            }
            if (thread == 0) {
                count_saved(c, &u);
            }
        }
        run_item(c, &u, item - u.first_item);
    }
}

void quire_attn_run(quire_attn_workspace *workspace, const quire_attn_layer *layer, uint32_t call,
                    uint32_t thread, uint32_t n_threads)
{
    quire_attn_packed held = { 0 };
    quire_attn_cpu_state before;
    quire_attn_ctx c;

    QUIRE_CHECK(thread < n_threads && thread < workspace->limits.n_threads_max);
    QUIRE_CHECK(call < workspace->limits.n_layers_max);
    QUIRE_ASSERT(quire_attn_layer_check(workspace, layer) == QUIRE_OK);
    if (workspace->batch.n_seqs == 0) {
        return;
    }
    c = quire_attn_ctx_of(workspace, layer, thread, &held);
    quire_attn_kernels_enter(workspace->kernels, &before);
    run_items(&c, call, thread, n_threads);
    quire_attn_kernels_leave(workspace->kernels, &before);
}
