/* tile_side.h - storing to the tiles of one side (K or V). New tokens are encoded into a tile of
 * the open form, one by one. A full tile of a sealed format is then encoded into the sealed form.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CODEC_TILE_SIDE_H
#define QUIRE_CODEC_TILE_SIDE_H

#include "quire/codec.h"

/* Properties that all tiles of a side share. */
typedef struct quire_tile_side {
    const quire_codec *codec;
    quire_side side;
    quire_format format;
    uint32_t d;
} quire_tile_side;

static inline void quire_tile_encode(const quire_tile_side *s, quire_format format,
                                     const quire_tile_rows *rows, const float *x, void *tile)
{
    (s->side == QUIRE_SIDE_K ? s->codec->encode_k : s->codec->encode_v)(format, rows, x, tile);
}

/* The format that new tokens are encoded in. */
static inline quire_format quire_tile_open_format(const quire_tile_side *s)
{
    return quire_format_is_sealed(s->format) ? QUIRE_FORMAT_HOT : s->format;
}

/* Encode a full hot tile in the side's sealed format. Only the hot tile is read, so the bytes do
 * not depend on how its tokens came in. scratch: [QUIRE_TILE_TOKENS][d]. */
static inline void quire_tile_seal(const quire_tile_side *s, const void *hot, void *tile,
                                   float *scratch)
{
    const quire_tile_rows rows = { .d = s->d, .n_tokens = QUIRE_TILE_TOKENS, .stride = s->d };

    (s->side == QUIRE_SIDE_K ? s->codec->decode_k : s->codec->decode_v)(QUIRE_FORMAT_HOT, &rows,
                                                                        hot, scratch);
    quire_tile_encode(s, s->format, &rows, scratch, tile);
}

#endif /* QUIRE_CODEC_TILE_SIDE_H */
