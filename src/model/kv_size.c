/* kv_size.c - how many bytes of KV a token of a model takes.
 *
 * SPDX-License-Identifier: MIT */
#include "model/model.h"

uint64_t quire_model_kv_bytes_per_token(const quire_model_desc *desc, quire_format k_format,
                                        quire_format v_format)
{
    /* Tile sizes are multiples of 64 bytes and a tile holds 64 tokens, so nothing is rounded. */
    uint64_t lane_bytes = (quire_tile_bytes(k_format, QUIRE_SIDE_K, desc->d_k) +
                           quire_tile_bytes(v_format, QUIRE_SIDE_V, desc->d_v)) /
                          QUIRE_TILE_TOKENS;

    return (uint64_t)desc->n_stored * desc->n_kv_head * lane_bytes;
}
