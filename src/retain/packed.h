/* packed.h - packed pages: pages of a runtime's cache that hold the kept tokens of a text whose
 * lanes keep different numbers of them.
 *
 * A page has room for one tile of K and one of V for each lane (KV head of a layer) and each 64 of
 * its tokens. In a packed page such a pair of tiles, a *place*, belongs to no lane by its number:
 * the pages of a text are one row of places, and the lanes take them one after the other.
 *
 *   parts of the pages   [ list ][ lane 0: 3 places ][ lane 1: 1 ][ lane 2: 5 ] ... [ unused ]
 *   a part               of one layer in one page: K of its KV heads, then V of its KV heads
 *
 * So bytes follow the kept tokens of all lanes, rounded up to a page for the whole text; each lane
 * keeps whole tiles. For the cache, the prefix tree and stores below memory packed pages are pages
 * like others: they share, count, evict, pin and copy them without a rule of their own.
 *
 * The list makes the pages complete by themselves, also after a restart. 32 bits each, in the order
 * of this machine, as K and V are:
 *
 *   number of lanes | tiles of each lane | position in the text of each token, lane after lane
 *   | worth of each token (policy.h), lane after lane: with has_worth alone
 *
 * Pages may have bounds of K behind the V of each part (page_choice.h), one for each tile of a
 * lane:
 *
 *   a part               K of its KV heads, V of its KV heads, bounds of its KV heads
 *
 * Bounds are there for whole tiles of pages that are not packed. They are a function of the tile's
 * bytes, so pages that texts share have the same ones, and they go where the page goes: into copies
 * and into stores.
 *
 * Attention on a lane reads packed and full pages with the same strides: it finds a tile of K or V
 * by the part that the tile is in and by the place's number there.
 *
 * Formats of 6 bits and less are sealed: their full pages have hot pages beside them, with the
 * tokens in 8 bits, while a text may be condensed. Packed pages have none: their tiles are
 * sealed, once, from the hot tiles.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_PACKED_H
#define QUIRE_RETAIN_PACKED_H

#include "quire/attn.h"
#include "quire/cache.h"
#include "quire/error.h"

/* The pages of a runtime. Layers whose pages are not packed, because they have windows and a group
 * of their own, do not count. */
typedef struct quire_packing {
    uint32_t n_layers;
    uint32_t n_kv_head;
    uint32_t page_tokens;
    size_t k_bytes;                 /* of a tile of K of a lane */
    size_t v_bytes;                 /* and of V */
    size_t bounds_bytes;            /* of the bounds of a tile; 0: pages have none */
    bool has_worth;                 /* the list has the worth of each token */
    bool is_on_device;              /* the pages (packed_copy.h) */
    uint32_t hot_group;             /* of hot pages; 0: no side is sealed */
    const quire_attn_layer *layers; /* [n_layers] constants; borrowed */
    const uint32_t
        *model_layers;       /* [n_layers] their numbers in the model; borrowed. NULL: l is l */
    uint32_t n_model_layers; /* with model_layers */
    uint32_t window_group;   /* of layers with windows; 0: there are none */
    uint32_t window_tokens;  /* that these need */
} quire_packing;

/* The first pages of a sequence, of which some are packed. Pointers are borrowed. */
typedef struct quire_packed_pages {
    const quire_page_entry *const *leaves;
    const quire_page_addr *addrs;
    uint32_t n;          /* packed pages */
    unsigned char *list; /* the list, as it begins the parts: of pages in the memory of a device
                            (packed_copy.h). NULL: it is read and written in the pages */
} quire_packed_pages;

/* The places of each lane of a text. */
typedef struct quire_packed_lanes {
    uint32_t n_pages;
    uint32_t n_list_parts;
    uint32_t *first; /* [lanes + 1] lane i has the places [first[i], first[i + 1]) */
} quire_packed_lanes;

/* Whether pages of these layers can be packed: each layer stores the K and V that it reads, in the
 * formats of the first one. Errors: QUIRE_UNSUPP. */
int quire_packing_init(quire_packing *out, const quire_attn_layer *layers, uint32_t n_layers,
                       uint32_t page_tokens);

static inline uint32_t quire_packing_n_lanes(const quire_packing *p)
{
    return p->n_layers * p->n_kv_head;
}

/* The number of layer l in the model. */
static inline uint32_t quire_packing_model_layer(const quire_packing *p, uint32_t l)
{
    return p->model_layers != NULL ? p->model_layers[l] : l;
}

/* Layers of the model. */
static inline uint32_t quire_packing_n_model(const quire_packing *p)
{
    return p->model_layers != NULL ? p->n_model_layers : p->n_layers;
}

/* Whether a side is sealed. */
static inline bool quire_packing_is_sealed(const quire_packing *p)
{
    return p->hot_group != 0;
}

/* Where K or V of a layer's lane are stored. */
static inline const quire_attn_source *quire_packing_store(const quire_packing *p, uint32_t lane,
                                                           quire_side side)
{
    const quire_attn_layer *layer = &p->layers[lane / p->n_kv_head];

    return side == QUIRE_SIDE_K ? &layer->k_store : &layer->v_store;
}

/* Pages for n_tokens tokens of all lanes together, in whole tiles. */
uint64_t quire_packing_pages(const quire_packing *p, uint64_t n_tokens);

/* Places of a part, and their bytes; the parts of the list that begins the pages of n_places
 * places; and where a part lies, counted from the first page's. */
uint32_t quire_packing_part_places(const quire_packing *p);
size_t quire_packing_part_bytes(const quire_packing *p);
uint64_t quire_packing_list_parts(const quire_packing *p, uint64_t n_places);
unsigned char *quire_packed_part(const quire_packing *p, const quire_packed_pages *pages,
                                 uint32_t part);

/* Errors: QUIRE_NOMEM. Memory: quire_packed_lanes_fini(). */
int quire_packed_lanes_init(quire_packed_lanes *lanes, const quire_packing *p);
void quire_packed_lanes_fini(quire_packed_lanes *lanes);

/* Read the list of packed pages. Errors: QUIRE_CORRUPT; then there are no packed pages. */
int quire_packed_read(const quire_packing *p, const quire_packed_pages *pages,
                      quire_packed_lanes *lanes);
/* The positions of a lane's packed tokens, [64 tokens a place]. */
void quire_packed_positions(const quire_packing *p, const quire_packed_pages *pages,
                            const quire_packed_lanes *lanes, uint32_t lane, int32_t *positions);

/* The worth of a lane's packed tokens, [64 tokens a place]; with has_worth. */
void quire_packed_worth(const quire_packing *p, const quire_packed_pages *pages,
                        const quire_packed_lanes *lanes, uint32_t lane, float *worth);

/* Give each lane so many places, [n_lanes], of n_pages pages. Errors: QUIRE_LIMIT (the pages are
 * too few). */
int quire_packed_assign(const quire_packing *p, uint32_t n_pages, const uint32_t *n_tiles,
                        quire_packed_lanes *lanes);
/* When the places of the lanes are filled: write the head of the list and, in the host's memory,
 * zeros to all bytes of the pages beside the places, so that the pages' bytes do not depend on what
 * they held before. */
void quire_packed_list_begin(const quire_packing *p, const quire_packed_pages *pages,
                             const quire_packed_lanes *lanes);
/* Write the positions of a lane, and the worth. */
void quire_packed_positions_put(const quire_packing *p, const quire_packed_pages *pages,
                                const quire_packed_lanes *lanes, uint32_t lane,
                                const int32_t *positions);
void quire_packed_worth_put(const quire_packing *p, const quire_packed_pages *pages,
                            const quire_packed_lanes *lanes, uint32_t lane, const float *worth);

/* The number of a place among all places that the pages have room for, those of the list too. Pages
 * of two lists give a place the same number when it lies in the same slot of the same page. */
uint64_t quire_packed_number(const quire_packing *p, const quire_packed_lanes *lanes,
                             uint32_t place);
/* A side of a place. */
unsigned char *quire_packed_tile(const quire_packing *p, const quire_packed_pages *pages,
                                 const quire_packed_lanes *lanes, uint32_t place, quire_side side);

/* A part of a page and a place in it, for attention: K of the place is at part + index * k_bytes, V
 * at part + quire_packing_v_offset() + index * v_bytes. */
typedef struct quire_packed_spot {
    unsigned char *part;
    uint32_t index;
} quire_packed_spot;
quire_packed_spot quire_packed_spot_of(const quire_packing *p, const quire_packed_pages *pages,
                                       const quire_packed_lanes *lanes, uint32_t place);

static inline unsigned char *quire_lane_tile(const quire_attn_lane *at, const quire_page_addr *addr,
                                             uint32_t head, uint32_t tile)
{
    return addr->extent + at->offset + addr->slot * at->page_stride + head * at->head_stride +
           tile * at->tile_stride;
}

/* A side of a lane's tile `tile` in the page of an entry that is not packed. */
static inline unsigned char *quire_full_tile(const quire_packing *p, const quire_page_addr *addr,
                                             uint32_t lane, uint32_t tile, quire_side side)
{
    return quire_lane_tile(&quire_packing_store(p, lane, side)->lane, addr, lane % p->n_kv_head,
                           tile);
}

/* The same as a spot; also of the tile's hot page, which has the same index. */
quire_packed_spot quire_full_spot(const quire_packing *p, const quire_page_addr *addr,
                                  uint32_t lane, uint32_t tile);
unsigned char *quire_hot_part(const quire_packing *p, const quire_page_addr *addr, uint32_t lane);
/* Where K and V of a hot spot lie: offsets count from the hot part. */
quire_attn_lane quire_hot_lane(const quire_packing *p, uint32_t lane, quire_side side);

/* One side of a tile to be read, hot where there is a hot page. */
typedef struct quire_tile_view {
    quire_format format;
    const unsigned char *tile;
} quire_tile_view;
/* hot: the entry's hot page; NULL: none. */
quire_tile_view quire_full_view(const quire_packing *p, const quire_page_addr *addr,
                                const quire_page_addr *hot, uint32_t lane, uint32_t tile,
                                quire_side side);

/* The bounds of that tile's K, [2][d_k] in bf16; with bounds_bytes. */
uint16_t *quire_full_bounds(const quire_packing *p, const quire_page_addr *addr, uint32_t lane,
                            uint32_t tile);

/* Room to seal a tile: its tokens in 8 bits, and its rows. */
typedef struct quire_packed_seal {
    unsigned char *tile;
    float *rows;
} quire_packed_seal;
/* Errors: QUIRE_NOMEM. Memory: quire_packed_seal_fini(), on errors too. */
int quire_packed_seal_init(quire_packed_seal *seal, const quire_packing *p);
void quire_packed_seal_fini(quire_packed_seal *seal);

/* Put one side of a lane's token, which is in a slot of `from`, into slot `to` of a place. A row of
 * a format that is not sealed moves byte for byte. Of a sealed format `from` is in 8 bits, and the
 * place is sealed with its last slot: all slots of a place come one after the other. */
void quire_packed_row_put(const quire_packing *p, const quire_packed_seal *seal, uint32_t lane,
                          quire_side side, const quire_tile_view *from, uint32_t slot, void *place,
                          uint32_t to);

/* V of a part above its K. */
static inline size_t quire_packing_v_offset(const quire_packing *p)
{
    return (size_t)p->n_kv_head * (p->page_tokens / QUIRE_TILE_TOKENS) * p->k_bytes;
}

#endif /* QUIRE_RETAIN_PACKED_H */
