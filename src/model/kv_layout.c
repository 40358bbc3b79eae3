/* kv_layout.c - where a model's K and V lie inside a page, and how many pages a context takes; see
 * runtime.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime.h"

#include "base/check.h"
#include "model/recurrent.h"

/* Of a main page without a stored layer: attention asks for memory. */
#define EMPTY_PAGE_BYTES 64u

/* Bytes of one kv head's K or V in a page. A hot page has no bytes for a side that is not
 * sealed. */
static size_t head_bytes(const quire_kv_form *form, uint32_t stored, quire_side side, bool is_hot)
{
    const uint32_t d = quire_kv_dims(form->desc, stored, side);
    const quire_kv_pair pair = form->pairs[stored];
    const quire_format format = side == QUIRE_SIDE_K ? pair.k : pair.v;

    if (is_hot && !quire_format_is_sealed(format)) {
        return 0;
    }
    return form->page_tokens / QUIRE_TILE_TOKENS *
           quire_tile_bytes(is_hot ? QUIRE_FORMAT_HOT : format, side, d);
}

/* Bytes of the bounds of a stored layer's K in a page: those of a tile are whole lines. */
static size_t bounds_bytes(const quire_kv_form *form, uint32_t stored)
{
    const size_t n_tiles = (size_t)quire_stored_sizes_of(form->desc, stored).n_kv_head *
                           (form->page_tokens / QUIRE_TILE_TOKENS);
    const uint32_t d_k = quire_kv_dims(form->desc, stored, QUIRE_SIDE_K);

    return form->has_bounds ? n_tiles * ((2 * d_k * sizeof(uint16_t) + 63) / 64 * 64) : 0;
}

/* The K and the V of a stored layer in a group's pages, and how its extents keep them. */
typedef struct layer_part {
    size_t k_head_bytes;
    size_t v_head_bytes;
    size_t bytes;
} layer_part;

static layer_part part_of(const quire_kv_form *form, uint32_t stored, bool is_hot)
{
    layer_part part = {
        .k_head_bytes = head_bytes(form, stored, QUIRE_SIDE_K, is_hot),
        .v_head_bytes = head_bytes(form, stored, QUIRE_SIDE_V, is_hot),
    };

    part.bytes = quire_stored_sizes_of(form->desc, stored).n_kv_head *
                 (part.k_head_bytes + part.v_head_bytes);
    part.bytes += is_hot ? 0 : bounds_bytes(form, stored);
    return part;
}

/* ---- groups ---- */

/* The widest window of a stored layer's readers; 0: one of them sees everything. */
typedef struct stored_windows {
    uint32_t of[QUIRE_LAYERS_MAX]; /* [n_stored] */
    uint32_t widest;               /* of those that are not 0 */
    uint32_t n;                    /* stored layers with a window */
} stored_windows;

static void reader_add(const quire_model_desc *desc, uint32_t layer, uint32_t stored,
                       stored_windows *w, bool *is_seen)
{
    const uint32_t window = desc->window[layer];

    if (!is_seen[stored]) {
        w->of[stored] = window;
    } else if (window == 0 || w->of[stored] == 0) {
        w->of[stored] = 0;
    } else if (window > w->of[stored]) {
        w->of[stored] = window;
    }
    is_seen[stored] = true;
}

static void windows_find(const quire_model_desc *desc, bool is_whole, stored_windows *w)
{
    bool is_seen[QUIRE_LAYERS_MAX] = { false };

    *w = (stored_windows){ 0 };
    for (uint32_t l = 0; !is_whole && l < desc->n_layer; l++) {
        const quire_kv_map_entry *map = &desc->kv_map[l];

        for (uint32_t i = 0; i < map->n_k; i++) {
            reader_add(desc, l, map->k_src[i], w, is_seen);
        }
        for (uint32_t i = 0; i < map->n_v; i++) {
            reader_add(desc, l, map->v_src[i], w, is_seen);
        }
    }
    for (uint32_t s = 0; s < desc->n_stored; s++) {
        w->n += w->of[s] != 0;
        w->widest = w->of[s] > w->widest ? w->of[s] : w->widest;
    }
}

static quire_kv_groups groups_make(const stored_windows *w, bool is_sealed)
{
    quire_kv_groups groups = { .n = 1 };

    if (is_sealed) {
        groups.hot = (quire_group_id)groups.n++;
    }
    if (w->n > 0) {
        groups.window = (quire_group_id)groups.n++;
        groups.window_tokens = w->widest;
    }
    return groups;
}

static bool is_whole(const quire_runtime_opts *o)
{
    return o->keeps_past || o->is_contiguous || o->kv_elsewhere_bytes != 0;
}

quire_kv_form quire_kv_form_of(const quire_model_desc *desc, const quire_runtime_opts *o)
{
    return (quire_kv_form){ .desc = desc,
                            .pairs = o->kv_pairs,
                            .page_tokens = o->page_tokens,
                            .is_whole = is_whole(o),
                            .has_bounds = o->has_bounds };
}

quire_kv_groups quire_kv_groups_of(const quire_model_desc *desc, const quire_runtime_opts *o)
{
    const quire_kv_form form = quire_kv_form_of(desc, o);
    stored_windows w;

    windows_find(desc, form.is_whole, &w);
    return groups_make(&w, o->kv_pairs != NULL ? quire_kv_is_sealed(desc, o->kv_pairs)
                                               : quire_format_is_sealed(o->k_format) ||
                                                     quire_format_is_sealed(o->v_format));
}

/* A form with its groups. */
typedef struct kv_store {
    const quire_kv_form *form;
    stored_windows windows;
    quire_kv_groups groups;
} kv_store;

static void store_init(const quire_kv_form *form, kv_store *s)
{
    s->form = form;
    windows_find(form->desc, form->is_whole, &s->windows);
    s->groups = groups_make(&s->windows, quire_kv_is_sealed(form->desc, form->pairs));
}

/* The group of a stored layer's main pages. */
static quire_group_id group_of(const kv_store *s, uint32_t stored)
{
    return s->windows.of[stored] != 0 ? s->groups.window : QUIRE_KV_GROUP_MAIN;
}

static bool is_hot_group(const kv_store *s, quire_group_id group)
{
    return group != QUIRE_KV_GROUP_MAIN && group == s->groups.hot;
}

static bool is_member(const kv_store *s, uint32_t stored, quire_group_id group)
{
    return is_hot_group(s, group) || group == group_of(s, stored);
}

/* The parts of a group's pages; see quire_kv_parts(). */
static size_t parts_of(const kv_store *s, quire_group_id group, size_t *part_bytes,
                       uint32_t *n_parts)
{
    size_t page_bytes = 0;
    uint32_t n = 0;

    for (uint32_t l = 0; l < s->form->desc->n_stored; l++) {
        if (is_member(s, l, group)) {
            const size_t bytes = part_of(s->form, l, is_hot_group(s, group)).bytes;

            if (part_bytes != NULL) {
                part_bytes[n] = bytes;
            }
            page_bytes += bytes;
            n++;
        }
    }
    if (n == 0 && group == QUIRE_KV_GROUP_MAIN) {
        page_bytes = EMPTY_PAGE_BYTES; /* pages that only count tokens */
        if (part_bytes != NULL) {
            part_bytes[0] = page_bytes;
        }
        n = 1;
    }
    if (n_parts != NULL) {
        *n_parts = n;
    }
    return page_bytes;
}

size_t quire_kv_parts(const quire_kv_form *form, quire_group_id group, size_t *part_bytes,
                      uint32_t *n_parts)
{
    kv_store s;

    store_init(form, &s);
    return parts_of(&s, group, part_bytes, n_parts);
}

size_t quire_kv_part_bytes(const quire_kv_form *form, quire_group_id group, uint32_t stored)
{
    kv_store s;

    store_init(form, &s);
    return is_member(&s, stored, group) ? part_of(form, stored, is_hot_group(&s, group)).bytes : 0;
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
static uint32_t rotation(const quire_model_desc *desc, uint32_t stored, quire_format format,
                         quire_side side)
{
    const quire_layer_sizes sizes = quire_stored_sizes_of(desc, stored);
    const bool is_rotated =
        quire_format_is_sealed(format) || (format == QUIRE_FORMAT_Q8 && side == QUIRE_SIDE_K);
    const uint32_t k_block = quire_hadamard_block(sizes.d_k);
    const uint32_t v_block = quire_hadamard_block(sizes.d_v);
    uint32_t block = side == QUIRE_SIDE_K ? k_block : v_block;

    if (desc->latent.is_there) { /* no block has numbers of V and others: V is rotated back alone */
        block = k_block < v_block ? k_block : v_block;
    }
    return is_rotated ? block : 0;
}

/* The lane of K or V of a stored layer in a group's pages. */
static quire_attn_lane stored_lane(const kv_store *s, uint32_t stored, quire_side side,
                                   quire_group_id group)
{
    const bool is_hot = is_hot_group(s, group);
    const uint32_t n_tiles = s->form->page_tokens / QUIRE_TILE_TOKENS;
    const layer_part part = part_of(s->form, stored, is_hot);
    const size_t n_heads = quire_stored_sizes_of(s->form->desc, stored).n_kv_head;
    uint32_t n_parts;
    const size_t page_bytes = parts_of(s, group, NULL, &n_parts);
    const size_t n_pages = quire_cache_extent_pages(page_bytes, n_parts);
    size_t offset = 0;

    for (uint32_t l = 0; l < stored; l++) {
        offset += is_member(s, l, group) ? n_pages * part_of(s->form, l, is_hot).bytes : 0;
    }
    if (side == QUIRE_SIDE_K) {
        return lane_of(&part, offset, part.k_head_bytes, n_tiles);
    }
    return lane_of(&part, offset + n_heads * part.k_head_bytes, part.v_head_bytes, n_tiles);
}

/* K or V of a stored layer, in its own format. */
static quire_attn_source stored_source(const kv_store *s, uint32_t stored, quire_side side)
{
    const quire_model_desc *desc = s->form->desc;
    const quire_kv_pair pair = s->form->pairs[stored];
    const quire_group_id group = group_of(s, stored);
    quire_attn_source source = {
        .format = side == QUIRE_SIDE_K ? pair.k : pair.v,
        .group = group,
        .lane = stored_lane(s, stored, side, group),
    };

    source.rotate = rotation(desc, stored, source.format, side);
    if (quire_format_is_sealed(source.format)) {
        source.hot_group = QUIRE_KV_GROUP_HOT;
        source.hot_lane = stored_lane(s, stored, side, QUIRE_KV_GROUP_HOT);
    }
    return source;
}

quire_kv_page_bytes quire_kv_layout(const quire_kv_form *form, uint32_t model_layer,
                                    quire_attn_layer *layer)
{
    const quire_model_desc *desc = form->desc;
    const quire_kv_map_entry *map = &desc->kv_map[model_layer];
    const quire_layer_sizes sizes = quire_layer_sizes_of(desc, model_layer);
    kv_store s;

    QUIRE_CHECK(model_layer < desc->n_layer);
    store_init(form, &s);
    *layer = (quire_attn_layer){
        .n_head = desc->n_head,
        .n_kv_head = sizes.n_kv_head,
        .d_k = sizes.d_k,
        .d_v = sizes.d_v,
        .n_k = map->n_k,
        .n_v = desc->latent.is_there ? 0 : map->n_v,
        .v_prefix_of_k = desc->latent.is_there,
        .scale = desc->attn_scale,
        .softcap = desc->attn_softcap,
        .window = desc->window[model_layer],
        .has_chunks = desc->has_chunks && desc->window[model_layer] != 0,
    };
    for (uint32_t i = 0; i < map->n_k; i++) {
        layer->k[i] = stored_source(&s, map->k_src[i], QUIRE_SIDE_K);
    }
    for (uint32_t i = 0; i < layer->n_v; i++) {
        layer->v[i] = stored_source(&s, map->v_src[i], QUIRE_SIDE_V);
    }
    if (map->stored >= 0) {
        layer->k_store = stored_source(&s, (uint32_t)map->stored, QUIRE_SIDE_K);
        if (!desc->latent.is_there) {
            layer->v_store = stored_source(&s, (uint32_t)map->stored, QUIRE_SIDE_V);
        }
    }
    return (quire_kv_page_bytes){
        .main = parts_of(&s, QUIRE_KV_GROUP_MAIN, NULL, NULL),
        .hot = s.groups.hot != 0 ? parts_of(&s, s.groups.hot, NULL, NULL) : 0,
        .window = s.groups.window != 0 ? parts_of(&s, s.groups.window, NULL, NULL) : 0,
    };
}

uint64_t quire_kv_tokens_bytes(const quire_kv_form *form, uint64_t n_tokens)
{
    stored_windows w;
    uint64_t bytes = 0;

    windows_find(form->desc, form->is_whole, &w);
    for (uint32_t s = 0; s < form->desc->n_stored; s++) {
        const uint64_t n = w.of[s] != 0 && w.of[s] < n_tokens ? w.of[s] : n_tokens;

        bytes += n * quire_kv_layer_bytes_per_token(form->desc, s, form->pairs[s]);
    }
    return bytes;
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

static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t sum;

    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

/* The bytes of one token of the stored layers in the window group, or of the others. */
static uint64_t member_bytes(const quire_model_desc *desc, const quire_runtime_opts *o,
                             const stored_windows *w, bool is_windowed)
{
    const quire_kv_pair uniform = { o->k_format, o->v_format };
    uint64_t bytes = 0;

    for (uint32_t s = 0; s < desc->n_stored; s++) {
        if ((w->of[s] != 0) == is_windowed) {
            bytes += quire_kv_layer_bytes_per_token(desc, s,
                                                    o->kv_pairs != NULL ? o->kv_pairs[s] : uniform);
        }
    }
    return bytes;
}

quire_kv_price quire_kv_price_make(const quire_model_desc *desc, const quire_runtime_opts *o)
{
    const quire_kv_pair uniform = { o->k_format, o->v_format };
    const uint64_t hot_token_bytes = o->kv_pairs != NULL
                                         ? quire_kv_hot_bytes_per_token(desc, o->kv_pairs)
                                         : quire_kv_uniform_hot_bytes_per_token(desc, uniform);
    const quire_kv_form form = quire_kv_form_of(desc, o);
    stored_windows w;
    uint64_t main_page_bytes;

    windows_find(desc, is_whole(o), &w);
    main_page_bytes = mul(member_bytes(desc, o, &w, false), o->page_tokens);
    for (uint32_t s = 0; s < desc->n_stored; s++) {
        main_page_bytes = add(main_page_bytes, bounds_bytes(&form, s));
    }
    return (quire_kv_price){
        .page_tokens = o->page_tokens,
        .n_batch = o->n_batch,
        .main_page_bytes = w.n == desc->n_stored ? EMPTY_PAGE_BYTES : main_page_bytes,
        .hot_page_bytes = mul(hot_token_bytes, o->page_tokens),
        .hot_pages_max = hot_pages_max(o),
        .window_page_bytes = mul(member_bytes(desc, o, &w, true), o->page_tokens),
        .window_tokens = w.widest,
    };
}

/* The most pages that n tokens in a row touch. */
static uint64_t pages_touched(const quire_kv_price *price, uint64_t n_tokens)
{
    return n_tokens == 0 ? 0 : (n_tokens + price->page_tokens - 2) / price->page_tokens + 1;
}

/* Bytes of the window group: the pages of a step's rows and of the window before its first row. */
static uint64_t window_bytes(const quire_kv_price *price, uint64_t n_pages, uint32_t n_rows)
{
    uint64_t n = 0;

    if (price->window_tokens != 0) {
        n = pages_touched(price, (uint64_t)price->window_tokens - 1 + n_rows);
    }
    return mul(n < n_pages ? n : n_pages, price->window_page_bytes);
}

static uint64_t whole_bytes(const quire_kv_price *price, uint64_t n_pages)
{
    const uint64_t n_hot = n_pages < price->hot_pages_max ? n_pages : price->hot_pages_max;

    return add(mul(n_pages, price->main_page_bytes), mul(n_hot, price->hot_page_bytes));
}

uint64_t quire_kv_price_steps_bytes(const quire_kv_price *price, uint64_t n_tokens, uint32_t n_rows)
{
    const uint64_t n_pages = div_up(n_tokens, price->page_tokens);

    return add(whole_bytes(price, n_pages), window_bytes(price, n_pages, n_rows));
}

uint64_t quire_kv_price_bytes(const quire_kv_price *price, uint64_t n_tokens)
{
    return quire_kv_price_steps_bytes(price, n_tokens, price->n_batch);
}

uint64_t quire_kv_price_held_bytes(const quire_kv_price *price, uint64_t n_tokens)
{
    const uint64_t n_pages = div_up(n_tokens, price->page_tokens);
    uint64_t n = 0;

    if (price->window_tokens != 0) {
        n = div_up((uint64_t)price->window_tokens - 1, price->page_tokens);
    }
    return add(whole_bytes(price, n_pages),
               mul(n < n_pages ? n : n_pages, price->window_page_bytes));
}

uint64_t quire_runtime_kv_bytes(const quire_model_desc *desc, const quire_runtime_opts *o)
{
    const quire_kv_price price = quire_kv_price_make(desc, o);

    return o->kv_elsewhere_bytes != 0
               ? o->kv_elsewhere_bytes
               : add(quire_kv_price_bytes(&price, o->n_ctx), quire_state_seq_bytes(desc));
}
