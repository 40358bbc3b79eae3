/* packed.c - see packed.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/packed.h"

#include "base/check.h"
#include "base/num.h"
#include "retain/page_choice.h"

#include <stdlib.h>
#include <string.h>

#define TILE       QUIRE_TILE_TOKENS
#define WORD_BYTES sizeof(uint32_t)

/* ---- numbers ---- */

static bool is_same_place(const quire_attn_source *a, const quire_attn_source *b)
{
    return a->group == b->group && a->format == b->format && a->lane.offset == b->lane.offset;
}

uint32_t quire_packing_part_places(const quire_packing *p)
{
    return p->n_kv_head * (p->page_tokens / TILE);
}

/* Of K and V. */
size_t quire_packing_part_bytes(const quire_packing *p)
{
    return quire_packing_part_places(p) * (p->k_bytes + p->v_bytes);
}

/* Whether K is followed by V, and maybe by bounds, with the strides that packing counts on. */
static bool is_regular(const quire_packing *p, const quire_attn_layer *layer)
{
    const quire_attn_lane *k = &layer->k_store.lane, *v = &layer->v_store.lane;

    return k->tile_stride == p->k_bytes && v->tile_stride == p->v_bytes &&
           k->head_stride == p->page_tokens / TILE * p->k_bytes &&
           v->head_stride == p->page_tokens / TILE * p->v_bytes &&
           v->page_stride == k->page_stride && v->offset == k->offset + quire_packing_v_offset(p) &&
           k->page_stride ==
               quire_packing_part_bytes(p) + quire_packing_part_places(p) * p->bounds_bytes;
}

/* Whether hot tiles of a sealed side have the places of its other tiles. */
static bool is_hot_regular(const quire_packing *p, const quire_attn_source *store)
{
    return !quire_format_is_sealed(store->format) ||
           (store->hot_group == p->hot_group &&
            store->hot_lane.head_stride == p->page_tokens / TILE * store->hot_lane.tile_stride);
}

/* Whether both layers store K and V in the same formats. */
static bool is_alike(const quire_attn_layer *a, const quire_attn_layer *b)
{
    return a->k_store.format == b->k_store.format && a->v_store.format == b->v_store.format &&
           a->n_kv_head == b->n_kv_head && a->d_k == b->d_k && a->d_v == b->d_v;
}

/* The group of the hot pages of a layer whose formats are sealed; 0: none is. */
static uint32_t hot_group_of(const quire_attn_layer *layer)
{
    return quire_format_is_sealed(layer->k_store.format)   ? layer->k_store.hot_group
           : quire_format_is_sealed(layer->v_store.format) ? layer->v_store.hot_group
                                                           : 0;
}

int quire_packing_init(quire_packing *out, const quire_attn_layer *layers, uint32_t n_layers,
                       uint32_t page_tokens)
{
    const quire_attn_layer *first = &layers[0];

    *out = (quire_packing){ .n_layers = n_layers,
                            .n_kv_head = first->n_kv_head,
                            .page_tokens = page_tokens,
                            .layers = layers };
    out->k_bytes = quire_tile_bytes(first->k_store.format, QUIRE_SIDE_K, first->d_k);
    out->v_bytes = quire_tile_bytes(first->v_store.format, QUIRE_SIDE_V, first->d_v);
    out->hot_group = hot_group_of(first);
    if (first->k_store.lane.page_stride > quire_packing_part_bytes(out)) {
        out->bounds_bytes = quire_page_bounds_bytes(first->d_k);
    }
    for (uint32_t l = 0; l < n_layers; l++) {
        const quire_attn_layer *layer = &layers[l];

        QUIRE_FAIL_IF(layer->n_k != 1 || layer->n_v != 1, QUIRE_UNSUPP);
        QUIRE_FAIL_IF(!is_same_place(&layer->k[0], &layer->k_store) ||
                          !is_same_place(&layer->v[0], &layer->v_store),
                      QUIRE_UNSUPP);
        QUIRE_FAIL_IF(!is_alike(layer, first) || !is_regular(out, layer), QUIRE_UNSUPP);
        QUIRE_FAIL_IF(!is_hot_regular(out, &layer->k_store) ||
                          !is_hot_regular(out, &layer->v_store),
                      QUIRE_UNSUPP);
    }
    return QUIRE_OK;
}

uint64_t quire_packing_list_parts(const quire_packing *p, uint64_t n_places)
{
    const uint64_t n_tokens = n_places * TILE;
    const uint64_t n_words = 1 + quire_packing_n_lanes(p) + n_tokens * (p->has_worth ? 2 : 1);
    const uint64_t n_bytes = n_words * WORD_BYTES;

    return (n_bytes + quire_packing_part_bytes(p) - 1) / quire_packing_part_bytes(p);
}

uint64_t quire_packing_pages(const quire_packing *p, uint64_t n_tokens)
{
    const uint64_t n_places = (n_tokens + TILE - 1) / TILE;
    const uint64_t n_parts =
        quire_packing_list_parts(p, n_places) +
        (n_places + quire_packing_part_places(p) - 1) / quire_packing_part_places(p);

    return (n_parts + p->n_layers - 1) / p->n_layers;
}

int quire_packed_lanes_init(quire_packed_lanes *lanes, const quire_packing *p)
{
    *lanes = (quire_packed_lanes){ 0 };
    lanes->first = calloc((size_t)quire_packing_n_lanes(p) + 1, sizeof *lanes->first);
    return lanes->first != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

void quire_packed_lanes_fini(quire_packed_lanes *lanes)
{
    free(lanes->first);
}

/* ---- contents ---- */

unsigned char *quire_packed_part(const quire_packing *p, const quire_packed_pages *pages,
                                 uint32_t part)
{
    const uint32_t i = part / p->n_layers;
    const quire_page_id id = pages->leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES].page;

    QUIRE_CHECK(i < pages->n);
    return quire_full_tile(p, &pages->addrs[id], part % p->n_layers * p->n_kv_head, 0,
                           QUIRE_SIDE_K);
}

/* Copy bytes of the list from `offset` on, to or from memory. */
static void list_copy(const quire_packing *p, const quire_packed_pages *pages, size_t offset,
                      void *bytes, size_t n_bytes, bool is_put)
{
    char *at = bytes;

    if (pages->list != NULL) {
        memcpy(is_put ? (void *)(pages->list + offset) : bytes,
               is_put ? bytes : (void *)(pages->list + offset), n_bytes);
        return;
    }
    while (n_bytes > 0) {
        const size_t inside = offset % quire_packing_part_bytes(p);
        const size_t n = n_bytes < quire_packing_part_bytes(p) - inside
                             ? n_bytes
                             : quire_packing_part_bytes(p) - inside;
        unsigned char *page =
            quire_packed_part(p, pages, (uint32_t)(offset / quire_packing_part_bytes(p))) + inside;

        if (is_put) {
            memcpy(page, at, n);
        } else {
            memcpy(at, page, n);
        }
        at += n;
        offset += n;
        n_bytes -= n;
    }
}

/* Whether the list and the places of n_places tiles are within the pages. */
static bool has_room(const quire_packing *p, uint32_t n_pages, uint64_t n_places)
{
    return n_places <= UINT32_MAX / TILE && quire_packing_pages(p, n_places * TILE) <= n_pages;
}

static void lanes_clear(const quire_packing *p, quire_packed_lanes *lanes)
{
    lanes->n_pages = 0;
    memset(lanes->first, 0, (quire_packing_n_lanes(p) + 1) * sizeof *lanes->first);
}

int quire_packed_read(const quire_packing *p, const quire_packed_pages *pages,
                      quire_packed_lanes *lanes)
{
    const uint32_t n_lanes = quire_packing_n_lanes(p);
    uint64_t n_places = 0;
    uint32_t word;

    lanes_clear(p, lanes);
    QUIRE_FAIL_IF(quire_packing_pages(p, 0) > pages->n, QUIRE_CORRUPT);
    list_copy(p, pages, 0, &word, sizeof word, false);
    QUIRE_FAIL_IF(word != n_lanes, QUIRE_CORRUPT);
    list_copy(p, pages, WORD_BYTES, lanes->first + 1, n_lanes * WORD_BYTES, false);
    for (uint32_t i = 1; i <= n_lanes; i++) {
        n_places += lanes->first[i];
        lanes->first[i] = (uint32_t)n_places;
    }
    if (!has_room(p, pages->n, n_places)) {
        lanes_clear(p, lanes);
        return QUIRE_CORRUPT;
    }
    lanes->n_pages = pages->n;
    lanes->n_list_parts = (uint32_t)quire_packing_list_parts(p, n_places);
    return QUIRE_OK;
}

/* A list of words for each token. */
typedef enum token_list {
    LIST_POSITIONS,
    LIST_WORTH
} token_list;

/* Where the words of a place's tokens begin. */
static size_t words_offset(const quire_packing *p, const quire_packed_lanes *lanes, token_list list,
                           uint32_t place)
{
    const uint32_t n_lanes = quire_packing_n_lanes(p);
    const size_t n_before = list == LIST_WORTH ? lanes->first[n_lanes] : 0;

    return (1 + n_lanes + (n_before + place) * TILE) * WORD_BYTES;
}

static size_t words_bytes(const quire_packed_lanes *lanes, uint32_t lane)
{
    return (size_t)(lanes->first[lane + 1] - lanes->first[lane]) * TILE * WORD_BYTES;
}

void quire_packed_positions(const quire_packing *p, const quire_packed_pages *pages,
                            const quire_packed_lanes *lanes, uint32_t lane, int32_t *positions)
{
    list_copy(p, pages, words_offset(p, lanes, LIST_POSITIONS, lanes->first[lane]), positions,
              words_bytes(lanes, lane), false);
}

void quire_packed_worth(const quire_packing *p, const quire_packed_pages *pages,
                        const quire_packed_lanes *lanes, uint32_t lane, float *worth)
{
    QUIRE_CHECK(p->has_worth);
    list_copy(p, pages, words_offset(p, lanes, LIST_WORTH, lanes->first[lane]), worth,
              words_bytes(lanes, lane), false);
}

int quire_packed_assign(const quire_packing *p, uint32_t n_pages, const uint32_t *n_tiles,
                        quire_packed_lanes *lanes)
{
    const uint32_t n_lanes = quire_packing_n_lanes(p);
    uint64_t n_places = 0;

    lanes_clear(p, lanes);
    for (uint32_t i = 0; i < n_lanes; i++) {
        n_places += n_tiles[i];
    }
    QUIRE_FAIL_IF(!has_room(p, n_pages, n_places), QUIRE_LIMIT);
    for (uint32_t i = 0; i < n_lanes; i++) {
        lanes->first[i + 1] = lanes->first[i] + n_tiles[i];
    }
    lanes->n_pages = n_pages;
    lanes->n_list_parts = (uint32_t)quire_packing_list_parts(p, n_places);
    return QUIRE_OK;
}

/* The bytes of a part behind those that are in use: of K, V and bounds. n_used: places. */
static void part_clear(const quire_packing *p, unsigned char *part, uint32_t n_used)
{
    const uint32_t n = quire_packing_part_places(p);
    const size_t v_offset = quire_packing_v_offset(p);

    memset(part + n_used * p->k_bytes, 0, v_offset - n_used * p->k_bytes);
    memset(part + v_offset + n_used * p->v_bytes, 0, (n - n_used) * p->v_bytes);
    memset(part + quire_packing_part_bytes(p), 0, n * p->bounds_bytes);
}

/* The same of all parts. */
static void rest_clear(const quire_packing *p, const quire_packed_pages *pages,
                       const quire_packed_lanes *lanes)
{
    const uint32_t n_parts = pages->n * p->n_layers, n = quire_packing_part_places(p);
    uint32_t n_left = lanes->first[quire_packing_n_lanes(p)];

    for (uint32_t i = 0; i < n_parts; i++) {
        const uint32_t n_used = i < lanes->n_list_parts ? 0 : quire_min_u32(n_left, n);

        part_clear(p, quire_packed_part(p, pages, i), n_used);
        n_left -= n_used;
    }
}

void quire_packed_list_begin(const quire_packing *p, const quire_packed_pages *pages,
                             const quire_packed_lanes *lanes)
{
    const uint32_t n_lanes = quire_packing_n_lanes(p);
    uint32_t word = n_lanes;

    if (pages->list == NULL) {
        rest_clear(p, pages, lanes);
    }
    list_copy(p, pages, 0, &word, sizeof word, true);
    for (uint32_t i = 0; i < n_lanes; i++) {
        word = lanes->first[i + 1] - lanes->first[i];
        list_copy(p, pages, (1 + i) * WORD_BYTES, &word, sizeof word, true);
    }
}

static void words_put(const quire_packing *p, const quire_packed_pages *pages,
                      const quire_packed_lanes *lanes, token_list list, uint32_t lane,
                      const void *words)
{
    unsigned char block[TILE * WORD_BYTES];

    for (uint32_t i = lanes->first[lane]; i < lanes->first[lane + 1]; i++) {
        memcpy(block, (const char *)words + (size_t)(i - lanes->first[lane]) * sizeof block,
               sizeof block);
        list_copy(p, pages, words_offset(p, lanes, list, i), block, sizeof block, true);
    }
}

void quire_packed_positions_put(const quire_packing *p, const quire_packed_pages *pages,
                                const quire_packed_lanes *lanes, uint32_t lane,
                                const int32_t *positions)
{
    words_put(p, pages, lanes, LIST_POSITIONS, lane, positions);
}

void quire_packed_worth_put(const quire_packing *p, const quire_packed_pages *pages,
                            const quire_packed_lanes *lanes, uint32_t lane, const float *worth)
{
    QUIRE_CHECK(p->has_worth);
    words_put(p, pages, lanes, LIST_WORTH, lane, worth);
}

quire_packed_spot quire_packed_spot_of(const quire_packing *p, const quire_packed_pages *pages,
                                       const quire_packed_lanes *lanes, uint32_t place)
{
    return (quire_packed_spot){
        quire_packed_part(p, pages, lanes->n_list_parts + place / quire_packing_part_places(p)),
        place % quire_packing_part_places(p)
    };
}

uint64_t quire_packed_number(const quire_packing *p, const quire_packed_lanes *lanes,
                             uint32_t place)
{
    return (uint64_t)lanes->n_list_parts * quire_packing_part_places(p) + place;
}

unsigned char *quire_packed_tile(const quire_packing *p, const quire_packed_pages *pages,
                                 const quire_packed_lanes *lanes, uint32_t place, quire_side side)
{
    const quire_packed_spot spot = quire_packed_spot_of(p, pages, lanes, place);

    return side == QUIRE_SIDE_K ? spot.part + spot.index * p->k_bytes
                                : spot.part + quire_packing_v_offset(p) + spot.index * p->v_bytes;
}

/* ---- full pages ---- */

static uint32_t index_in_part(const quire_packing *p, uint32_t lane, uint32_t tile)
{
    return lane % p->n_kv_head * (p->page_tokens / TILE) + tile;
}

quire_packed_spot quire_full_spot(const quire_packing *p, const quire_page_addr *addr,
                                  uint32_t lane, uint32_t tile)
{
    const uint32_t first = lane / p->n_kv_head * p->n_kv_head; /* lane of the layer */

    return (quire_packed_spot){ quire_full_tile(p, addr, first, 0, QUIRE_SIDE_K),
                                index_in_part(p, lane, tile) };
}

/* The side whose hot tiles are the first of a hot part. */
static const quire_attn_lane *first_hot(const quire_packing *p, uint32_t lane)
{
    const quire_attn_source *k = quire_packing_store(p, lane, QUIRE_SIDE_K);

    return quire_format_is_sealed(k->format)
               ? &k->hot_lane
               : &quire_packing_store(p, lane, QUIRE_SIDE_V)->hot_lane;
}

unsigned char *quire_hot_part(const quire_packing *p, const quire_page_addr *addr, uint32_t lane)
{
    return quire_lane_tile(first_hot(p, lane), addr, 0, 0);
}

quire_attn_lane quire_hot_lane(const quire_packing *p, uint32_t lane, quire_side side)
{
    const quire_attn_lane *hot = &quire_packing_store(p, lane, side)->hot_lane;

    return (quire_attn_lane){ .offset = hot->offset - first_hot(p, lane)->offset,
                              .page_stride = hot->tile_stride };
}

quire_tile_view quire_full_view(const quire_packing *p, const quire_page_addr *addr,
                                const quire_page_addr *hot, uint32_t lane, uint32_t tile,
                                quire_side side)
{
    const quire_attn_source *store = quire_packing_store(p, lane, side);

    return quire_format_is_sealed(store->format) && hot != NULL
               ? (quire_tile_view){ QUIRE_FORMAT_HOT, quire_lane_tile(&store->hot_lane, hot,
                                                                      lane % p->n_kv_head, tile) }
               : (quire_tile_view){ store->format, quire_full_tile(p, addr, lane, tile, side) };
}

uint16_t *quire_full_bounds(const quire_packing *p, const quire_page_addr *addr, uint32_t lane,
                            uint32_t tile)
{
    const quire_packed_spot spot = quire_full_spot(p, addr, lane, tile);

    return (uint16_t *)(void *)(spot.part + quire_packing_part_bytes(p) +
                                spot.index * p->bounds_bytes);
}
