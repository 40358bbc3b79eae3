/* attn_tiles.h - walking the tiles of a page table.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_TILES_H
#define QUIRE_ATTN_TILES_H

#include "attn/attn_internal.h"
#include "quire/attn.h"

/* Consecutive tokens in one tile. */
typedef struct quire_attn_tile_pos {
    const quire_page_addr *page;
    const quire_page_addr *hot; /* NULL: a hole, or no hot table */
    uint32_t entry;             /* of the table */
    uint32_t tile;              /* within the page */
    uint32_t slot_begin;        /* within the tile */
    uint32_t n_slots;
    uint32_t token; /* index in the sequence of the token in slot_begin */
} quire_attn_tile_pos;

typedef struct quire_attn_tile_walk {
    const quire_attn_batch *batch;
    const quire_attn_seq *seq;
    uint32_t entry;
    uint32_t entry_end;
    uint32_t slot; /* within the page, of the entry's next token */
    uint32_t token;
} quire_attn_tile_walk;

/* Walk entries [begin, end) of a sequence's table; set walk->token to the index of the first token.
 */
static inline void quire_attn_tile_walk_init(quire_attn_tile_walk *walk,
                                             const quire_attn_batch *batch,
                                             const quire_attn_seq *seq, uint32_t begin,
                                             uint32_t end)
{
    *walk = (quire_attn_tile_walk){ .batch = batch, .seq = seq, .entry = begin, .entry_end = end };
    if (begin < end) {
        walk->slot = quire_attn_entry(seq, begin)->first_slot;
    }
}

/* The next tile, if it holds a token before token_end. */
static inline bool quire_attn_tile_walk_next(quire_attn_tile_walk *walk, uint32_t token_end,
                                             quire_attn_tile_pos *pos)
{
    const quire_page_entry *entry;
    uint32_t end;

    if (walk->entry >= walk->entry_end || walk->token >= token_end) {
        return false;
    }
    entry = quire_attn_entry(walk->seq, walk->entry);
    end = (uint32_t)entry->first_slot + entry->n_tokens;
    pos->page = &walk->batch->page_addr[entry->page];
    pos->hot = quire_attn_hot_page(walk->batch, walk->seq, walk->entry);
    pos->entry = walk->entry;
    pos->tile = walk->slot / QUIRE_TILE_TOKENS;
    pos->slot_begin = walk->slot % QUIRE_TILE_TOKENS;
    pos->n_slots = QUIRE_TILE_TOKENS - pos->slot_begin;
    pos->n_slots = pos->n_slots < end - walk->slot ? pos->n_slots : end - walk->slot;
    pos->token = walk->token;
    walk->token += pos->n_slots;
    walk->slot += pos->n_slots;
    if (walk->slot == end && ++walk->entry < walk->entry_end) {
        walk->slot = quire_attn_entry(walk->seq, walk->entry)->first_slot;
    }
    return true;
}

/* The distance rule: whether a row of token `index` reads the tile that starts at token
 * `tile_token` hot, if the hot page is there. */
static inline bool quire_attn_is_hot(const quire_attn_layer *layer, uint32_t index,
                                     uint32_t tile_token)
{
    uint32_t i = index / QUIRE_TILE_TOKENS;
    uint32_t j = tile_token / QUIRE_TILE_TOKENS;

    return i - j <= layer->recent_tiles || j < layer->sink_tiles;
}

/* No NaN and no infinity in slots [begin, end) of a V tile. */
bool quire_attn_tile_v_is_finite(quire_format format, uint32_t d, const void *tile, uint32_t begin,
                                 uint32_t end);

#endif /* QUIRE_ATTN_TILES_H */
