/* attn_rows.h - a tile and the rows of a block that read it alike.
 *
 * Thread: as attn_block.h.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_ROWS_H
#define QUIRE_ATTN_ROWS_H

#include "attn/step/attn_block.h"
#include "attn/step/attn_tiles.h"

/* Stored tiles of a position that a block reads, at most: of the rows of a block of several kv
 * heads at least one is of each. */
#define QUIRE_ATTN_TILES_MAX (2u * QUIRE_ATTN_SOURCES_MAX * QUIRE_ATTN_WIDE_ROWS_MAX)

/* By hot group of the layer, the hot page that is read in place of a main one; NULL: the main page
 * is. The last one is NULL: of sources without a hot form. */
typedef struct quire_attn_hot_pages {
    const quire_page_addr *at[QUIRE_ATTN_HOT_MAX + 1];
} quire_attn_hot_pages;

/* A position and the one after it (page NULL: none), whose tiles kernels prefetch. at[] has the n
 * tiles of the one, then those of the other, each in the order of the work: K of all kv heads of
 * the block, then V. They are worked out once, in the form that the last query reads, which is most
 * often that of all. */
typedef struct quire_attn_tile_pair {
    quire_attn_tile_pos pos;
    quire_attn_tile_pos next;
    const quire_attn_hot_pages *hot; /* that at[] has tiles of */
    const quire_attn_hot_pages *next_hot;
    quire_attn_hot_pages room[3]; /* of the listed run's, and in turns of the positions' */
    uint32_t next_room;           /* 1 or 2 */
    uint32_t n;
    uint32_t ahead; /* from the tile in work to the one prefetched, <= n */
    bool is_plain;  /* the block reads main pages the short way (attn_plain_body.h) */
    const void *at[2 * QUIRE_ATTN_TILES_MAX];
} quire_attn_tile_pair;

/* Consecutive queries of a block that see something of a tile and read it in the same forms. */
typedef struct quire_attn_tile_run {
    const quire_attn_hot_pages *hot;
    uint32_t first_row; /* of the first kv head's */
    uint32_t end_row;
    uint32_t slot_begin;     /* of the slots that some row sees, */
    uint32_t slot_begin_max; /* and of those that all see as far as slot_end */
    bool shares_ahead;       /* a quarter of the next tiles is prefetched in softmax (kernels.h) */
} quire_attn_tile_run;

static inline bool quire_attn_is_same_hot(const quire_attn_ctx *c, const quire_attn_hot_pages *a,
                                          const quire_attn_hot_pages *b)
{
    bool is_same = true;

    for (uint32_t i = 0; a != b && i < c->shape.n_hot; i++) {
        is_same = is_same && a->at[i] == b->at[i];
    }
    return is_same;
}

/* The first slot of a tile that a query sees. */
static inline uint32_t quire_attn_slot_begin(const quire_attn_ctx *c,
                                             const quire_attn_tile_pos *pos,
                                             const quire_attn_query *query)
{
    return pos->slot_begin +
           quire_attn_slots_before(pos, quire_attn_row_begin(c->layer, query->pos));
}

#endif /* QUIRE_ATTN_ROWS_H */
