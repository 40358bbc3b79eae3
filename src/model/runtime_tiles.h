/* runtime_tiles.h - tiles of a sequence of a runtime for code of the host, in order, wherever the
 * pages lie (core/pool/tile_window.h).
 *
 * Thread: owner of the runtime.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_RUNTIME_TILES_H
#define QUIRE_MODEL_RUNTIME_TILES_H

#include "core/pool/tile_window.h"
#include "model/runtime.h"

/* K or V of some KV heads of a layer that stores them. */
typedef struct quire_runtime_side {
    const quire_attn_lane *lane;
    size_t tile_bytes; /* of one head */
    uint32_t first_head;
    uint32_t n_heads;
} quire_runtime_side;

/* Of all heads of a layer. The layer is borrowed. */
quire_runtime_side quire_runtime_side_of(const quire_attn_layer *layer, quire_side side);
/* The hot tiles of a sealed side. */
quire_runtime_side quire_runtime_side_of_hot(const quire_attn_layer *layer, quire_side side);
/* Tiles of one head. */
quire_runtime_side quire_runtime_side_of_head(const quire_attn_layer *layer, quire_side side,
                                              uint32_t head);

/* It stays where it is while it is in use. */
typedef struct quire_runtime_tiles {
    const quire_runtime *runtime;
    quire_tile_window window;
    quire_seq_table table;
    quire_attn_lane lane;
    uint32_t first_head;
} quire_runtime_tiles;

/* status: of all tiles of a move; quire_tile_window_opts. Errors: QUIRE_NOMEM. Memory:
 * quire_tile_window_end(), on errors too. */
int quire_runtime_tiles_init(quire_runtime_tiles *tiles, const quire_runtime *runtime, bool writes,
                             int *status);
/* Go to the tiles of the first n_tokens tokens of a sequence. The table is that of the main group,
 * or of the hot group for hot tiles, and neither it nor the addresses of its pages change before
 * the next call. On a device tiles behind the one that is asked for are read with it, up to
 * n_tokens: their pages must be there. */
void quire_runtime_tiles_put(quire_runtime_tiles *tiles, const quire_seq_table *table,
                             const quire_runtime_side *side, uint32_t n_tokens);
/* Tile i of head number `head` of the side's: quire_tile_window_at(). */
static inline unsigned char *quire_runtime_tile(quire_runtime_tiles *tiles, uint32_t i,
                                                uint32_t head)
{
    return quire_tile_window_at(&tiles->window, i, head);
}

#endif /* QUIRE_MODEL_RUNTIME_TILES_H */
