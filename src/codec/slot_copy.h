/* slot_copy.h - one token's row copied from a slot of a tile to another slot, of the same or of
 * another tile, byte for byte: nothing is decoded, so nothing is lost.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CODEC_SLOT_COPY_H
#define QUIRE_CODEC_SLOT_COPY_H

#include "quire/codec.h"

/* Format, side and width of a tile. */
typedef struct quire_tile_kind {
    quire_format format; /* not sealed: the rows of a sealed tile have common means */
    quire_side side;
    uint32_t d;
} quire_tile_kind;

/* Copy the row in slot `from` of one tile to slot `to` of another, or of the same. The other slots
 * stay as they are. */
void quire_tile_slot_copy(const quire_tile_kind *kind, const void *from_tile, uint32_t from,
                          void *to_tile, uint32_t to);

#endif /* QUIRE_CODEC_SLOT_COPY_H */
