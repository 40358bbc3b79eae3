/* runtime_tiles.c - see runtime_tiles.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime_tiles.h"

#include "base/num.h"
#include "model/runtime_internal.h"

#define TILE QUIRE_TILE_TOKENS

quire_runtime_side quire_runtime_side_of(const quire_attn_layer *layer, quire_side side)
{
    const bool is_k = side == QUIRE_SIDE_K;
    const quire_attn_source *store = is_k ? &layer->k_store : &layer->v_store;

    return (quire_runtime_side){
        .lane = &store->lane,
        .tile_bytes = quire_tile_bytes(store->format, side, is_k ? layer->d_k : layer->d_v),
        .n_heads = layer->n_kv_head,
    };
}

quire_runtime_side quire_runtime_side_of_hot(const quire_attn_layer *layer, quire_side side)
{
    const bool is_k = side == QUIRE_SIDE_K;

    return (quire_runtime_side){
        .lane = is_k ? &layer->k_store.hot_lane : &layer->v_store.hot_lane,
        .tile_bytes = quire_tile_bytes(QUIRE_FORMAT_HOT, side, is_k ? layer->d_k : layer->d_v),
        .n_heads = layer->n_kv_head,
    };
}

quire_runtime_side quire_runtime_side_of_head(const quire_attn_layer *layer, quire_side side,
                                              uint32_t head)
{
    quire_runtime_side one = quire_runtime_side_of(layer, side);

    one.first_head = head;
    one.n_heads = 1;
    return one;
}

/* The largest tile of all heads of a layer, a hot one included. */
static size_t tile_bytes_max(const quire_runtime *rt)
{
    const quire_model_desc *desc = &rt->model->desc;
    size_t max = 0;

    for (uint32_t il = 0; il < desc->n_layer; il++) {
        quire_attn_layer layer;

        (void)quire_kv_layout(&rt->form, il, &layer);
        for (uint32_t i = 0; i < (layer.v_prefix_of_k ? 1 : 2) && desc->kv_map[il].stored >= 0;
             i++) {
            const quire_side which = i == 0 ? QUIRE_SIDE_K : QUIRE_SIDE_V;
            const quire_runtime_side side = quire_runtime_side_of(&layer, which);
            const quire_runtime_side hot = quire_runtime_side_of_hot(&layer, which);

            max = quire_max_u64(max, side.n_heads * side.tile_bytes);
            max = quire_max_u64(max, rt->groups.hot != 0 ? hot.n_heads * hot.tile_bytes : 0);
        }
    }
    return max;
}

int quire_runtime_tiles_init(quire_runtime_tiles *tiles, const quire_runtime *rt, bool writes,
                             int *status)
{
    const quire_tile_window_opts opts = { .memory = quire_runtime_page_memory(rt),
                                          .tile_bytes = quire_runtime_is_on_device(rt)
                                                            ? tile_bytes_max(rt)
                                                            : 0,
                                          .writes = writes,
                                          .status = status };

    *tiles = (quire_runtime_tiles){ .runtime = rt };
    return quire_tile_window_init(&tiles->window, &opts);
}

/* A quire_tile_run.at. */
static unsigned char *tile_at(const void *ctx, uint32_t i)
{
    const quire_runtime_tiles *tiles = ctx;
    const quire_attn_lane *lane = &tiles->lane;
    const uint32_t n_tiles = tiles->runtime->opts.page_tokens / TILE;
    const uint32_t entry = i / n_tiles;
    const quire_page_id id =
        tiles->table.leaves[entry / QUIRE_LEAF_ENTRIES][entry % QUIRE_LEAF_ENTRIES].page;
    const quire_page_addr *addr = &quire_cache_page_addrs(tiles->runtime->cache)[id];

    return addr->extent + lane->offset + addr->slot * lane->page_stride +
           tiles->first_head * lane->head_stride + i % n_tiles * lane->tile_stride;
}

void quire_runtime_tiles_put(quire_runtime_tiles *tiles, const quire_seq_table *table,
                             const quire_runtime_side *side, uint32_t n_tokens)
{
    const quire_tile_run run = { .at = tile_at,
                                 .ctx = tiles,
                                 .bytes = side->tile_bytes,
                                 .n_heads = side->n_heads,
                                 .head_stride = side->lane->head_stride,
                                 .n = (n_tokens + TILE - 1) / TILE };

    tiles->table = *table;
    tiles->lane = *side->lane;
    tiles->first_head = side->first_head;
    quire_tile_window_put(&tiles->window, &run);
}
