/* kv_layout.c - where a model's K and V lie inside a page, and how many pages a context takes; see
 * runtime.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime.h"

#include "base/check.h"

static size_t tile_bytes(const quire_model_desc *desc, quire_format format, quire_side side)
{
    return quire_tile_bytes(format, side, side == QUIRE_SIDE_K ? desc->d_k : desc->d_v);
}

/* Lay one side of a stored layer, [kv head][tile], at the end of a page; returns where it lies. */
static quire_attn_lane lay(const quire_model_desc *desc, quire_format format, quire_side side,
                           size_t n_tiles, size_t *page_bytes)
{
    const quire_attn_lane lane = {
        .page_offset = *page_bytes,
        .head_stride = n_tiles * tile_bytes(desc, format, side),
        .tile_stride = tile_bytes(desc, format, side),
    };

    *page_bytes += desc->n_kv_head * lane.head_stride;
    return lane;
}

static void set_lanes(const uint16_t *sources, uint32_t n, uint32_t stored, quire_attn_lane lane,
                      quire_attn_lane *lanes)
{
    for (uint32_t i = 0; i < n; i++) {
        if (sources[i] == stored) {
            lanes[i] = lane;
        }
    }
}

quire_kv_page_bytes quire_kv_layout(const quire_model_desc *desc, const quire_kv_pair *pairs,
                                    uint32_t page_tokens, uint32_t model_layer,
                                    quire_attn_layer *layer)
{
    const quire_kv_map_entry *map = &desc->kv_map[model_layer];
    const size_t n_tiles = page_tokens / QUIRE_TILE_TOKENS;
    quire_kv_page_bytes bytes = { 0 };

    QUIRE_CHECK(model_layer < desc->n_layer);
    *layer = (quire_attn_layer){
        .n_head = desc->n_head,
        .n_kv_head = desc->n_kv_head,
        .d_k = desc->d_k,
        .d_v = desc->d_v,
        .k_format = pairs[map->k_src[0]].k,
        .v_format = pairs[map->v_src[0]].v,
        .n_k = map->n_k,
        .n_v = map->n_v,
        .scale = desc->attn_scale,
    };
    for (uint32_t l = 0; l < desc->n_stored; l++) {
        const quire_kv_pair pair = pairs[l];

        set_lanes(map->k_src, map->n_k, l, lay(desc, pair.k, QUIRE_SIDE_K, n_tiles, &bytes.main),
                  layer->k);
        set_lanes(map->v_src, map->n_v, l, lay(desc, pair.v, QUIRE_SIDE_V, n_tiles, &bytes.main),
                  layer->v);
        if (quire_format_is_sealed(pair.k)) {
            set_lanes(map->k_src, map->n_k, l,
                      lay(desc, QUIRE_FORMAT_HOT, QUIRE_SIDE_K, n_tiles, &bytes.hot), layer->k_hot);
        }
        if (quire_format_is_sealed(pair.v)) {
            set_lanes(map->v_src, map->n_v, l,
                      lay(desc, QUIRE_FORMAT_HOT, QUIRE_SIDE_V, n_tiles, &bytes.hot), layer->v_hot);
        }
    }
    return bytes;
}

static uint64_t div_up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

/* Hot pages of one sequence at most: those of the sinks; those that a step of n_batch tokens can
 * read, which reach back from the first token's tile by kv_recent and may begin and end inside a
 * page; and one to spare. */
static uint64_t hot_pages_max(const quire_runtime_opts *o, uint64_t n_pages)
{
    const uint64_t span_tokens = (uint64_t)o->kv_recent + (QUIRE_TILE_TOKENS - 1) + o->n_batch;
    const uint64_t n = div_up(o->kv_sinks, o->page_tokens) +
                       (span_tokens + o->page_tokens - 2) / o->page_tokens + 1 + 1;

    return n < n_pages ? n : n_pages;
}

uint64_t quire_runtime_kv_bytes(const quire_model_desc *desc, const quire_runtime_opts *o)
{
    const uint64_t n_pages = div_up(o->n_ctx, o->page_tokens);
    uint64_t main_token_bytes = 0;
    uint64_t hot_token_bytes = 0;
    uint64_t main_bytes;
    uint64_t hot_bytes;
    uint64_t bytes;

    if (o->kv_pairs != NULL) {
        main_token_bytes = quire_kv_bytes_per_token(desc, o->kv_pairs);
        hot_token_bytes = quire_kv_hot_bytes_per_token(desc, o->kv_pairs);
    } else {
        const quire_kv_pair pair = { o->k_format, o->v_format };

        main_token_bytes = quire_kv_uniform_bytes_per_token(desc, pair);
        hot_token_bytes = quire_kv_uniform_hot_bytes_per_token(desc, pair);
    }
    if (__builtin_mul_overflow(n_pages * o->page_tokens, main_token_bytes, &main_bytes) ||
        __builtin_mul_overflow(hot_pages_max(o, n_pages) * o->page_tokens, hot_token_bytes,
                               &hot_bytes) ||
        __builtin_add_overflow(main_bytes, hot_bytes, &bytes)) {
        return UINT64_MAX;
    }
    return bytes;
}
