/* attn_block.h - a block of query rows over the tiles of a page table.
 *
 * A block is a list of queries by n_heads kv heads. Of a kv head query i is rows i * group ..
 * (i + 1) * group - 1, one per query head of the group; the rows of a kv head follow those of the
 * one before. Queries are either consecutive tokens of one sequence, or of any sequences that all
 * see every token the block is run over, but for those behind their windows.
 *
 * Several kv heads go together where rows are few (decode): each step of a tile, of all kv heads in
 * turn, does not wait for the one before, and tiles of pages of 64 tokens lie side by side.
 *
 * In a tile, consecutive queries that see something of it and read it in the same forms (hot or
 * sealed, see quire/attn.h) are one run: one call of each kernel. The forms depend on the query
 * alone, so a row's result does not depend on its neighbours. At the edge of a window, slots that
 * only some rows of a run still see have logits of -Inf in the other rows.
 *
 * Thread: a context belongs to one thread; blocks and states belong to their holder's thread.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_BLOCK_H
#define QUIRE_ATTN_BLOCK_H

#include "attn/attn_internal.h"

/* Running state of n_rows rows: o[source][row][o_stride] is not yet divided by l. */
typedef struct quire_attn_state {
    uint32_t n_rows;
    float *m;
    float *l;
    float *o;
} quire_attn_state;

typedef struct quire_attn_query {
    const quire_attn_seq *seq;
    uint32_t row; /* in q and out */
    uint32_t pos; /* of its token in the sequence */
} quire_attn_query;

/* The two packed forms of a block's queries: for tiles of main pages, and for tiles of hot pages.
 */
#define QUIRE_ATTN_PACKED_MAIN 0u
#define QUIRE_ATTN_PACKED_HOT  1u

/* The block whose queries lie packed. Consecutive blocks often have the same queries. */
typedef struct quire_attn_packed {
    uint32_t row; /* of the first query */
    uint32_t n_queries;
    uint32_t g;
    uint32_t n_heads;
    bool is_made[2][QUIRE_ATTN_SOURCES_MAX]; /* by form and source */
} quire_attn_packed;

/* One thread's view of a call: the layer, and scratch for one block. */
typedef struct quire_attn_ctx {
    quire_attn_workspace *ws;
    const quire_attn_layer *layer;
    const quire_attn_plan *plan; /* of the layer's tables */
    quire_attn_shape shape;
    /* Tiles from the one in work to the one prefetched, where there are so many. */
    uint32_t n_ahead;
    quire_prefetch ahead_to;
    size_t tile_bytes; /* of K or V, the largest */
    /* [QUIRE_TILE_TOKENS][head_dim_max]: queries before packing; a V tile, for v_prefix_of_k. */
    float *decoded;
    float *row;                                       /* a K row; one row after merging */
    unsigned char *packed[2][QUIRE_ATTN_SOURCES_MAX]; /* by form */
    quire_attn_packed *held;                          /* the block whose queries packed[] holds */
    float *logits;
    quire_attn_weights *weights; /* against one V source; where shape.weights_bytes > 0 */
    float *rescale;
    uint32_t *slot_end;
    quire_attn_query *queries;
    float *states[2]; /* room for two states of block_rows rows */
} quire_attn_ctx;

typedef struct quire_attn_block {
    const quire_attn_seq *seq; /* whose table is walked */
    const uint32_t *split_pos;
    uint32_t n_splits;       /* that are run at most; the last ends at pos_end */
    uint32_t pos_end;        /* of the positions that the last query sees */
    uint32_t first_pos;      /* of the first query */
    uint32_t seen_begin;     /* before it no query sees anything, */
    uint32_t all_seen_begin; /* and from here on all see as far as they have got */
    uint32_t g;              /* the first kv head */
    uint32_t n_heads;        /* kv heads */
    uint32_t n_queries;
    uint32_t head_rows; /* n_queries * group */
    uint32_t n_rows;    /* n_heads * head_rows */
    const quire_attn_query *queries;
} quire_attn_block;

/* *held belongs to the context, and is empty before the first block. */
quire_attn_ctx quire_attn_ctx_of(quire_attn_workspace *workspace, const quire_attn_layer *layer,
                                 uint32_t thread, quire_attn_packed *held);

/* From now on packed[form][source] is the block's. Overwrites decoded and row. */
void quire_attn_pack_queries(const quire_attn_ctx *c, const quire_attn_block *b, uint32_t form,
                             uint32_t source);

/* The state of n_rows rows in quire_attn_state_floats() floats, a multiple of 64 bytes. */
quire_attn_state quire_attn_state_at(float *floats, uint32_t n_rows);

/* Ask memory for the first tiles of a split, as many as a block asks for ahead: for a thread that
 * has not come from the split before. */
void quire_attn_block_touch(const quire_attn_ctx *ctx, const quire_attn_block *block,
                            uint32_t split);

/* *st = the state of the block's rows over one split; a row that sees no token: the initial one. */
void quire_attn_block_run(const quire_attn_ctx *ctx, const quire_attn_block *block, uint32_t split,
                          const quire_attn_state *st);

/* *st = that of rows that have seen nothing. */
void quire_attn_state_reset(const quire_attn_ctx *ctx, const quire_attn_state *st);

/* Rows first_row .. of dst += all rows of src, weighted by exp of their m. A row that saw
 * nothing in src is left alone. */
void quire_attn_state_merge(const quire_attn_ctx *ctx, const quire_attn_state *dst,
                            uint32_t first_row, const quire_attn_state *src);

/* *dst = as many rows of src as dst has, from first_row on. */
void quire_attn_state_take(const quire_attn_ctx *ctx, const quire_attn_state *dst,
                           uint32_t first_row, const quire_attn_state *src);

/* Finish all rows of the block and write them to the layer's out. */
void quire_attn_block_write(const quire_attn_ctx *ctx, const quire_attn_block *block,
                            const quire_attn_state *st);

#endif /* QUIRE_ATTN_BLOCK_H */
