/* packed_seal.c - rows of tokens into the places of packed pages. See packed.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/packed.h"

#include "base/check.h"
#include "codec/slot_copy.h"
#include "codec/tile_side.h"

#include <stdlib.h>

#define TILE QUIRE_TILE_TOKENS

int quire_packed_seal_init(quire_packed_seal *seal, const quire_packing *p)
{
    const quire_attn_layer *layer = &p->layers[0];
    const uint32_t d = layer->d_k > layer->d_v ? layer->d_k : layer->d_v;
    const size_t k_bytes = quire_tile_bytes(QUIRE_FORMAT_HOT, QUIRE_SIDE_K, d);
    const size_t v_bytes = quire_tile_bytes(QUIRE_FORMAT_HOT, QUIRE_SIDE_V, d);

    /* Sizes of tiles are multiples of 64. */
    seal->tile = aligned_alloc(64, k_bytes > v_bytes ? k_bytes : v_bytes);
    seal->rows = aligned_alloc(64, (size_t)TILE * d * sizeof *seal->rows);
    return seal->tile != NULL && seal->rows != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

void quire_packed_seal_fini(quire_packed_seal *seal)
{
    free(seal->rows);
    free(seal->tile);
}

void quire_packed_row_put(const quire_packing *p, const quire_packed_seal *seal, uint32_t lane,
                          quire_side side, const quire_tile_view *from, uint32_t slot, void *place,
                          uint32_t to)
{
    const quire_attn_layer *layer = &p->layers[lane / p->n_kv_head];
    const quire_format format = quire_packing_store(p, lane, side)->format;
    const bool is_sealed = quire_format_is_sealed(format);
    const quire_tile_kind kind = { from->format, side,
                                   side == QUIRE_SIDE_K ? layer->d_k : layer->d_v };
    const quire_tile_side tiles = { quire_codec_get(), side, format, kind.d };

    QUIRE_CHECK(from->format == (is_sealed ? QUIRE_FORMAT_HOT : format));
    quire_tile_slot_copy(&kind, from->tile, slot, is_sealed ? seal->tile : place, to);
    if (is_sealed && to == TILE - 1) {
        quire_tile_seal(&tiles, seal->tile, place, seal->rows);
    }
}
