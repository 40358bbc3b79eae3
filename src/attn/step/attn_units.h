/* attn_units.h - how the work of a call is cut into units, tasks and items (defined in attn_run.c):
 * a pure function of the batch, the layer and the number of threads.
 *
 * Thread: a unit is one thread's place in the list of items; everything else is only read.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_UNITS_H
#define QUIRE_ATTN_UNITS_H

#include "attn/step/attn_block.h"

/* One thread's place in the list of items. A unit's wide items come first, numbered by their first
 * kv head, then by parts of the splits that they cover. Then come parts of the lead blocks' splits,
 * by kv head, then block, the last block (the longest) first; then parts of each rest, by kv head.
 * Splits before first_split are seen by no row of the unit, and in no item. */
typedef struct quire_attn_unit {
    uint32_t cascade;
    uint32_t first; /* in order[] */
    uint32_t n_seqs;
    uint32_t first_split; /* that some row sees */
    uint32_t shared_end;  /* of the splits read once for all; 0 for a sequence alone */
    uint32_t n_queries;   /* of all its sequences */
    uint32_t n_blocks;
    uint32_t n_wide;       /* splits that wide items cover: the first */
    uint32_t n_wide_heads; /* kv heads of a wide item */
    uint32_t n_wide_parts; /* wide items of a kv head */
    uint32_t wide_share;   /* a wide item takes one in so many of the splits that are left, */
    uint32_t wide_max;     /* rounded up, but no more than this */
    uint32_t n_parts;      /* items of a lead block, of the splits after n_wide */
    uint32_t n_task_items; /* with those of the rests, and the wide ones */
    uint32_t n_tasks;
    uint32_t n_threads;
    uint64_t item_cost; /* the most that an item should cost */
    uint64_t first_item;
    size_t task_floats;   /* partials of a task that has several items */
    size_t first_partial; /* floats */
    uint32_t first_counter;
} quire_attn_unit;

/* Sequence i of a unit: its index in the batch, and itself. */
static inline uint32_t quire_attn_unit_seq_index(const quire_attn_ctx *c, const quire_attn_unit *u,
                                                 uint32_t i)
{
    return c->plan->order[u->first + i];
}

static inline const quire_attn_seq *quire_attn_unit_seq(const quire_attn_ctx *c,
                                                        const quire_attn_unit *u, uint32_t i)
{
    return &c->ws->batch.seqs[quire_attn_unit_seq_index(c, u, i)];
}

/* Where the splits of sequence s of the batch begin, and how many there are. */
static inline const uint32_t *quire_attn_split_pos(const quire_attn_ctx *c, uint32_t s)
{
    return c->plan->split_pos + (size_t)s * c->ws->n_splits_max;
}

static inline uint32_t quire_attn_splits_of(const quire_attn_ctx *c, uint32_t s)
{
    return quire_attn_n_splits(c->ws, &c->ws->batch.seqs[s].tables[c->shape.table]);
}

/* The position at which split `split` of sequence s of the batch begins; that after its last row
 * behind the last split. */
uint32_t quire_attn_pos_of_split(const quire_attn_ctx *c, uint32_t s, uint32_t split);

/* Splits of sequence i that its unit does not share, and into how many items they are cut; 0 when
 * there are none. */
uint32_t quire_attn_unit_rest_splits(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t i);
uint32_t quire_attn_unit_rest_parts(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t i);

/* Floats of a state of a lead block's rows, and of those of sequence i's rest. */
size_t quire_attn_unit_lead_floats(const quire_attn_ctx *c, const quire_attn_unit *u);
size_t quire_attn_unit_rest_floats(const quire_attn_ctx *c, const quire_attn_unit *u, uint32_t i);

/* Items of a unit, and the wide ones among them, which come first. */
uint64_t quire_attn_unit_items(const quire_attn_ctx *c, const quire_attn_unit *u);
uint32_t quire_attn_unit_wide_items(const quire_attn_ctx *c, const quire_attn_unit *u);

/* Splits of the wide item that begins with split `begin`: the fewer the less is left. */
static inline uint32_t quire_attn_unit_wide_splits(const quire_attn_unit *u, uint32_t begin)
{
    uint32_t n = quire_attn_ceil_div(u->n_wide - begin, u->wide_share);

    return n < u->wide_max ? n : u->wide_max;
}

/* The first unit of the batch, which is not empty. */
quire_attn_unit quire_attn_unit_first(const quire_attn_ctx *c, uint32_t n_threads);

/* Move to the next unit; false after the last. */
bool quire_attn_unit_next(const quire_attn_ctx *c, quire_attn_unit *u);

#endif /* QUIRE_ATTN_UNITS_H */
