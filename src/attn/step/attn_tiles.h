/* attn_tiles.h - walking the tiles of a page table.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_TILES_H
#define QUIRE_ATTN_TILES_H

#include "attn/attn_internal.h"
#include "quire/attn.h"

/* Consecutive slots of one tile, whose positions ascend. */
typedef struct quire_attn_tile_pos {
    const quire_page_addr *page; /* of the table that is walked; NULL: a hole */
    const int32_t *positions;    /* of the slots; NULL: they follow by one */
    const float *biases;         /* of the slots; NULL: none */
    uint32_t entry;              /* of the table */
    uint32_t tile;               /* within the page */
    uint32_t slot_begin;         /* within the tile */
    uint32_t n_slots;
    uint32_t first; /* position of slot_begin */
    uint32_t end;   /* that after the last slot's */
} quire_attn_tile_pos;

typedef struct quire_attn_tile_walk {
    const quire_attn_batch *batch;
    const quire_attn_table *table;
    uint32_t entry;
    uint32_t entry_end;
    uint32_t slot; /* within the page, the entry's next */
} quire_attn_tile_walk;

/* Walk entries [begin, end) of a table. */
static inline void quire_attn_tile_walk_init(quire_attn_tile_walk *walk,
                                             const quire_attn_batch *batch,
                                             const quire_attn_table *table, uint32_t begin,
                                             uint32_t end)
{
    *walk =
        (quire_attn_tile_walk){ .batch = batch, .table = table, .entry = begin, .entry_end = end };
    if (begin < end) {
        walk->slot = quire_attn_entry(table, begin)->first_slot;
    }
}

/* Where the walk stands; it must not be at its end. */
static inline quire_attn_tile_pos quire_attn_tile_walk_at(const quire_attn_tile_walk *walk)
{
    const quire_page_entry *entry = quire_attn_entry(walk->table, walk->entry);
    const uint32_t end = (uint32_t)entry->first_slot + entry->n_tokens;
    const uint32_t n_before = walk->slot - entry->first_slot;
    quire_attn_tile_pos pos = { .entry = walk->entry,
                                .tile = walk->slot / QUIRE_TILE_TOKENS,
                                .slot_begin = walk->slot % QUIRE_TILE_TOKENS };

    pos.page = entry->page != QUIRE_PAGE_NULL ? &walk->batch->page_addr[entry->page] : NULL;
    pos.n_slots = QUIRE_TILE_TOKENS - pos.slot_begin;
    pos.n_slots = pos.n_slots < end - walk->slot ? pos.n_slots : end - walk->slot;
    if (entry->positions == 0) {
        pos.first = (uint32_t)entry->first_pos + n_before;
        pos.end = pos.first + pos.n_slots;
    } else {
        pos.positions = walk->batch->positions + entry->positions + n_before;
        if (walk->batch->biases != NULL) {
            pos.biases = walk->batch->biases + entry->positions + n_before;
        }
        pos.first = (uint32_t)pos.positions[0];
        pos.end = (uint32_t)pos.positions[pos.n_slots - 1] + 1;
    }
    return pos;
}

static inline void quire_attn_tile_walk_step(quire_attn_tile_walk *walk, uint32_t n_slots)
{
    const quire_page_entry *entry = quire_attn_entry(walk->table, walk->entry);

    walk->slot += n_slots;
    if (walk->slot == (uint32_t)entry->first_slot + entry->n_tokens &&
        ++walk->entry < walk->entry_end) {
        walk->slot = quire_attn_entry(walk->table, walk->entry)->first_slot;
    }
}

/* The next tile, if it holds a position before pos_end. */
static inline bool quire_attn_tile_walk_next(quire_attn_tile_walk *walk, uint32_t pos_end,
                                             quire_attn_tile_pos *pos)
{
    if (walk->entry >= walk->entry_end) {
        return false;
    }
    *pos = quire_attn_tile_walk_at(walk);
    if (pos->first >= pos_end) {
        return false;
    }
    quire_attn_tile_walk_step(walk, pos->n_slots);
    return true;
}

/* Skip tiles that end before pos_begin or with it. */
static inline void quire_attn_tile_walk_seek(quire_attn_tile_walk *walk, uint32_t pos_begin)
{
    while (walk->entry < walk->entry_end) {
        const quire_attn_tile_pos pos = quire_attn_tile_walk_at(walk);

        if (pos.end > pos_begin) {
            return;
        }
        quire_attn_tile_walk_step(walk, pos.n_slots);
    }
}

/* How many slots of a tile lie before a position. */
static inline uint32_t quire_attn_slots_before(const quire_attn_tile_pos *pos, uint32_t position)
{
    uint32_t n = 0;

    if (position <= pos->first) {
        return 0;
    }
    if (pos->positions == NULL) {
        return position - pos->first < pos->n_slots ? position - pos->first : pos->n_slots;
    }
    while (n < pos->n_slots && (uint32_t)pos->positions[n] < position) {
        n++;
    }
    return n;
}

/* The distance rule: whether a row at position `row` reads the tile whose first position is
 * `tile_first` hot, if the hot page is there. */
static inline bool quire_attn_is_hot(const quire_attn_layer *layer, uint32_t row,
                                     uint32_t tile_first)
{
    uint32_t i = row / QUIRE_TILE_TOKENS;
    uint32_t j = tile_first / QUIRE_TILE_TOKENS;

    return i - j <= layer->recent_tiles || j < layer->sink_tiles;
}

/* No NaN and no infinity in slots [begin, end) of a V tile. */
bool quire_attn_tile_v_is_finite(quire_format format, uint32_t d, const void *tile, uint32_t begin,
                                 uint32_t end);

#endif /* QUIRE_ATTN_TILES_H */
