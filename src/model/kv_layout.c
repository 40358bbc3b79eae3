/* kv_layout.c - where a model's K and V lie inside a page; see quire_kv_layout() in runtime.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime.h"

#include "base/check.h"

size_t quire_kv_layout(const quire_model_desc *desc, quire_format k_format, quire_format v_format,
                       uint32_t page_tokens, uint32_t model_layer, quire_attn_layer *layer)
{
    const quire_kv_map_entry *map = &desc->kv_map[model_layer];
    const size_t n_tiles = page_tokens / QUIRE_TILE_TOKENS;
    const size_t k_tile_bytes = quire_tile_bytes(k_format, QUIRE_SIDE_K, desc->d_k);
    const size_t v_tile_bytes = quire_tile_bytes(v_format, QUIRE_SIDE_V, desc->d_v);
    const size_t k_bytes = desc->n_kv_head * n_tiles * k_tile_bytes;
    const size_t v_bytes = desc->n_kv_head * n_tiles * v_tile_bytes;

    QUIRE_CHECK(model_layer < desc->n_layer);
    *layer = (quire_attn_layer){
        .n_head = desc->n_head,
        .n_kv_head = desc->n_kv_head,
        .d_k = desc->d_k,
        .d_v = desc->d_v,
        .k_format = k_format,
        .v_format = v_format,
        .n_k = map->n_k,
        .n_v = map->n_v,
        .scale = desc->attn_scale,
    };
    for (uint32_t i = 0; i < map->n_k; i++) {
        layer->k[i] = (quire_attn_lane){
            .page_offset = map->k_src[i] * (k_bytes + v_bytes),
            .head_stride = n_tiles * k_tile_bytes,
            .tile_stride = k_tile_bytes,
        };
    }
    for (uint32_t i = 0; i < map->n_v; i++) {
        layer->v[i] = (quire_attn_lane){
            .page_offset = map->v_src[i] * (k_bytes + v_bytes) + k_bytes,
            .head_stride = n_tiles * v_tile_bytes,
            .tile_stride = v_tile_bytes,
        };
    }
    return desc->n_stored * (k_bytes + v_bytes);
}
