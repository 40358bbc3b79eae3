/* kv_layout.c - where a model's K and V lie inside a page, and how many pages a context takes; see
 * runtime.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime.h"

#include "base/check.h"

/* Bytes of one kv head's K or V of a page. A hot page has nothing of a side that is not sealed. */
static size_t head_bytes(const quire_model_desc *desc, quire_format format, quire_side side,
                         uint32_t page_tokens, bool is_hot)
{
    const uint32_t d = side == QUIRE_SIDE_K ? desc->d_k : desc->d_v;

    if (is_hot && !quire_format_is_sealed(format)) {
        return 0;
    }
    return page_tokens / QUIRE_TILE_TOKENS *
           quire_tile_bytes(is_hot ? QUIRE_FORMAT_HOT : format, side, d);
}

/* The K and the V of a stored layer in a group's pages, and how its extents keep them. */
typedef struct layer_part {
    size_t k_head_bytes;
    size_t v_head_bytes;
    size_t bytes;
} layer_part;

static layer_part part_of(const quire_model_desc *desc, quire_kv_pair pair, uint32_t page_tokens,
                          bool is_hot)
{
    layer_part part = {
        .k_head_bytes = head_bytes(desc, pair.k, QUIRE_SIDE_K, page_tokens, is_hot),
        .v_head_bytes = head_bytes(desc, pair.v, QUIRE_SIDE_V, page_tokens, is_hot),
    };

    part.bytes = desc->n_kv_head * (part.k_head_bytes + part.v_head_bytes);
    return part;
}

size_t quire_kv_parts(const quire_model_desc *desc, const quire_kv_pair *pairs,
                      uint32_t page_tokens, bool is_hot, size_t *part_bytes)
{
    size_t page_bytes = 0;

    for (uint32_t l = 0; l < desc->n_stored; l++) {
        const size_t bytes = part_of(desc, pairs[l], page_tokens, is_hot).bytes;

        if (part_bytes != NULL) {
            part_bytes[l] = bytes;
        }
        page_bytes += bytes;
    }
    return page_bytes;
}

/* K or V of a part that begins at `offset` in an extent. */
static quire_attn_lane lane_of(const layer_part *part, size_t offset, size_t head_bytes,
                               uint32_t n_tiles)
{
    return (quire_attn_lane){ .offset = offset,
                              .page_stride = part->bytes,
                              .head_stride = head_bytes,
                              .tile_stride = head_bytes / n_tiles };
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

/* The lanes that a model layer reads in a group's pages; returns the bytes of a page. */
static size_t lay_group(const quire_model_desc *desc, const quire_kv_pair *pairs,
                        uint32_t page_tokens, bool is_hot, const quire_kv_map_entry *map,
                        quire_attn_lane *k, quire_attn_lane *v)
{
    const size_t page_bytes = quire_kv_parts(desc, pairs, page_tokens, is_hot, NULL);
    const size_t n_pages = quire_cache_extent_pages(page_bytes, desc->n_stored);
    const uint32_t n_tiles = page_tokens / QUIRE_TILE_TOKENS;
    size_t offset = 0;

    for (uint32_t l = 0; l < desc->n_stored; l++) {
        const layer_part part = part_of(desc, pairs[l], page_tokens, is_hot);
        const size_t k_bytes = desc->n_kv_head * part.k_head_bytes;

        set_lanes(map->k_src, map->n_k, l, lane_of(&part, offset, part.k_head_bytes, n_tiles), k);
        set_lanes(map->v_src, map->n_v, l,
                  lane_of(&part, offset + k_bytes, part.v_head_bytes, n_tiles), v);
        offset += n_pages * part.bytes;
    }
    return page_bytes;
}

quire_kv_page_bytes quire_kv_layout(const quire_model_desc *desc, const quire_kv_pair *pairs,
                                    uint32_t page_tokens, uint32_t model_layer,
                                    quire_attn_layer *layer)
{
    const quire_kv_map_entry *map = &desc->kv_map[model_layer];
    quire_kv_page_bytes bytes;

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
    bytes.main = lay_group(desc, pairs, page_tokens, false, map, layer->k, layer->v);
    bytes.hot = lay_group(desc, pairs, page_tokens, true, map, layer->k_hot, layer->v_hot);
    return bytes;
}

static uint64_t div_up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

/* Hot pages of one sequence at most: those of the sinks; those that a step of n_batch tokens can
 * read, which reach back from the first token's tile by kv_recent and may begin and end inside a
 * page; and one to spare. */
static uint64_t hot_pages_max(const quire_runtime_opts *o)
{
    const uint64_t span_tokens = (uint64_t)o->kv_recent + (QUIRE_TILE_TOKENS - 1) + o->n_batch;

    return div_up(o->kv_sinks, o->page_tokens) +
           (span_tokens + o->page_tokens - 2) / o->page_tokens + 1 + 1;
}

static uint64_t mul(uint64_t a, uint64_t b)
{
    uint64_t product;

    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

quire_kv_price quire_kv_price_make(const quire_model_desc *desc, const quire_runtime_opts *o)
{
    uint64_t main_token_bytes;
    uint64_t hot_token_bytes;

    if (o->kv_pairs != NULL) {
        main_token_bytes = quire_kv_bytes_per_token(desc, o->kv_pairs);
        hot_token_bytes = quire_kv_hot_bytes_per_token(desc, o->kv_pairs);
    } else {
        const quire_kv_pair pair = { o->k_format, o->v_format };

        main_token_bytes = quire_kv_uniform_bytes_per_token(desc, pair);
        hot_token_bytes = quire_kv_uniform_hot_bytes_per_token(desc, pair);
    }
    return (quire_kv_price){
        .page_tokens = o->page_tokens,
        .main_page_bytes = mul(main_token_bytes, o->page_tokens),
        .hot_page_bytes = mul(hot_token_bytes, o->page_tokens),
        .hot_pages_max = hot_pages_max(o),
    };
}

uint64_t quire_kv_price_bytes(const quire_kv_price *price, uint64_t n_tokens)
{
    const uint64_t n_pages = div_up(n_tokens, price->page_tokens);
    const uint64_t n_hot = n_pages < price->hot_pages_max ? n_pages : price->hot_pages_max;
    uint64_t bytes;

    if (__builtin_add_overflow(mul(n_pages, price->main_page_bytes),
                               mul(n_hot, price->hot_page_bytes), &bytes)) {
        return UINT64_MAX;
    }
    return bytes;
}

uint64_t quire_runtime_kv_bytes(const quire_model_desc *desc, const quire_runtime_opts *o)
{
    const quire_kv_price price = quire_kv_price_make(desc, o);

    return quire_kv_price_bytes(&price, o->n_ctx);
}
