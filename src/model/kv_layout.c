/* kv_layout.c - where a model's K and V lie inside a page, and how many pages a context takes; see
 * runtime.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime.h"

#include "base/check.h"

/* Bytes of one kv head's K or V in a page. A hot page has no bytes for a side that is not
 * sealed. */
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

/* The block of the Hadamard rotation of a side before rounding; 0 = no rotation. K of q8 is rotated
 * because keys have outlier dimensions and one scale serves a whole row. V of q8 is not, because
 * values have no such outliers. Sealed formats rotate both sides: their levels are those of a
 * Gaussian, and rotated rows are nearly Gaussian. Mean KL divergence of the logits from f32 KV,
 * with K in q8, without -> with rotation of K: stories260K-f32 1.6e-3 -> 8.6e-4; TinyLlama IQ2,
 * 1,536 tokens of wiki.test.raw, 4.4e-3 -> 4.1e-3 (f16: 3.9e-3). Rotating V of q8 as well changes
 * neither figure beyond its error. */
static uint32_t rotation(quire_format format, quire_side side, uint32_t d)
{
    const bool is_rotated =
        quire_format_is_sealed(format) || (format == QUIRE_FORMAT_Q8 && side == QUIRE_SIDE_K);

    return is_rotated ? quire_hadamard_block(d) : 0;
}

/* The stored layers of a model with their formats, from which the lanes of a stored layer
 * follow. */
typedef struct kv_store {
    const quire_model_desc *desc;
    const quire_kv_pair *pairs;
    uint32_t page_tokens;
} kv_store;

/* The lane of K or V of a stored layer in a group's pages. */
static quire_attn_lane stored_lane(const kv_store *s, uint32_t stored, quire_side side, bool is_hot)
{
    const size_t page_bytes = quire_kv_parts(s->desc, s->pairs, s->page_tokens, is_hot, NULL);
    const size_t n_pages = quire_cache_extent_pages(page_bytes, s->desc->n_stored);
    const uint32_t n_tiles = s->page_tokens / QUIRE_TILE_TOKENS;
    layer_part part = { 0 };
    size_t offset = 0;

    for (uint32_t l = 0; l <= stored; l++) {
        offset += n_pages * part.bytes;
        part = part_of(s->desc, s->pairs[l], s->page_tokens, is_hot);
    }
    if (side == QUIRE_SIDE_K) {
        return lane_of(&part, offset, part.k_head_bytes, n_tiles);
    }
    return lane_of(&part, offset + s->desc->n_kv_head * part.k_head_bytes, part.v_head_bytes,
                   n_tiles);
}

/* K or V of a stored layer, in its own format. */
static quire_attn_source stored_source(const kv_store *s, uint32_t stored, quire_side side)
{
    const quire_kv_pair pair = s->pairs[stored];
    quire_attn_source source = {
        .format = side == QUIRE_SIDE_K ? pair.k : pair.v,
        .group = QUIRE_KV_GROUP_MAIN,
        .lane = stored_lane(s, stored, side, false),
    };

    source.rotate =
        rotation(source.format, side, side == QUIRE_SIDE_K ? s->desc->d_k : s->desc->d_v);
    if (quire_format_is_sealed(source.format)) {
        source.hot_group = QUIRE_KV_GROUP_HOT;
        source.hot_lane = stored_lane(s, stored, side, true);
    }
    return source;
}

quire_kv_page_bytes quire_kv_layout(const quire_model_desc *desc, const quire_kv_pair *pairs,
                                    uint32_t page_tokens, uint32_t model_layer,
                                    quire_attn_layer *layer)
{
    const quire_kv_map_entry *map = &desc->kv_map[model_layer];
    const kv_store store = { desc, pairs, page_tokens };

    QUIRE_CHECK(model_layer < desc->n_layer);
    *layer = (quire_attn_layer){
        .n_head = desc->n_head,
        .n_kv_head = desc->n_kv_head,
        .d_k = desc->d_k,
        .d_v = desc->d_v,
        .n_k = map->n_k,
        .n_v = map->n_v,
        .scale = desc->attn_scale,
        .window = desc->window[model_layer],
    };
    for (uint32_t i = 0; i < map->n_k; i++) {
        layer->k[i] = stored_source(&store, map->k_src[i], QUIRE_SIDE_K);
    }
    for (uint32_t i = 0; i < map->n_v; i++) {
        layer->v[i] = stored_source(&store, map->v_src[i], QUIRE_SIDE_V);
    }
    if (map->stored >= 0) {
        layer->k_store = stored_source(&store, (uint32_t)map->stored, QUIRE_SIDE_K);
        layer->v_store = stored_source(&store, (uint32_t)map->stored, QUIRE_SIDE_V);
    }
    return (quire_kv_page_bytes){
        .main = quire_kv_parts(desc, pairs, page_tokens, false, NULL),
        .hot = quire_kv_parts(desc, pairs, page_tokens, true, NULL),
    };
}

static uint64_t div_up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

/* The most hot pages of one sequence: the pages of the sinks; the pages that a step of n_batch
 * tokens can read, which reach back from the first token's tile by kv_recent and may begin and end
 * inside a page; and one spare page. */
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

    return o->kv_elsewhere_bytes != 0 ? o->kv_elsewhere_bytes
                                      : quire_kv_price_bytes(&price, o->n_ctx);
}
