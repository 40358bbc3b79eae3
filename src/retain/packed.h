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
 * The difference between the addresses of a place's K and V is the same for all places, as K and V
 * tiles have one size: attention on a lane reads packed and full pages with the same strides.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_PACKED_H
#define QUIRE_RETAIN_PACKED_H

#include "quire/attn.h"
#include "quire/cache.h"
#include "quire/error.h"

/* The pages of a runtime. */
typedef struct quire_packing {
    uint32_t n_layers;
    uint32_t n_kv_head;
    uint32_t page_tokens;
    size_t tile_bytes;              /* of K of a lane, and of V */
    size_t bounds_bytes;            /* of the bounds of a tile; 0: pages have none */
    bool has_worth;                 /* the list has the worth of each token */
    const quire_attn_layer *layers; /* [n_layers] constants; borrowed */
} quire_packing;

/* The first pages of a sequence, of which some are packed. Pointers are borrowed. */
typedef struct quire_packed_pages {
    const quire_page_entry *const *leaves;
    const quire_page_addr *addrs;
    uint32_t n; /* packed pages */
} quire_packed_pages;

/* The places of each lane of a text. */
typedef struct quire_packed_lanes {
    uint32_t n_pages;
    uint32_t n_list_parts;
    uint32_t *first; /* [lanes + 1] lane i has the places [first[i], first[i + 1]) */
} quire_packed_lanes;

/* Whether pages of these layers can be packed: each layer stores the K and V that it reads, in one
 * format that is not sealed, with tiles of one size. Errors: QUIRE_UNSUPP. */
int quire_packing_init(quire_packing *out, const quire_attn_layer *layers, uint32_t n_layers,
                       uint32_t page_tokens);

static inline uint32_t quire_packing_n_lanes(const quire_packing *p)
{
    return p->n_layers * p->n_kv_head;
}

/* Pages for n_tokens tokens of all lanes together, in whole tiles. */
uint64_t quire_packing_pages(const quire_packing *p, uint64_t n_tokens);

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

/* Give each lane so many places, [n_lanes], and write the head of the list. Errors: QUIRE_LIMIT
 * (the pages are too few). */
int quire_packed_assign(const quire_packing *p, const quire_packed_pages *pages,
                        const uint32_t *n_tiles, quire_packed_lanes *lanes);
/* Write the positions of a lane, and the worth. */
void quire_packed_positions_put(const quire_packing *p, const quire_packed_pages *pages,
                                const quire_packed_lanes *lanes, uint32_t lane,
                                const int32_t *positions);
void quire_packed_worth_put(const quire_packing *p, const quire_packed_pages *pages,
                            const quire_packed_lanes *lanes, uint32_t lane, const float *worth);

/* A side of a place. */
unsigned char *quire_packed_tile(const quire_packing *p, const quire_packed_pages *pages,
                                 const quire_packed_lanes *lanes, uint32_t place, quire_side side);

/* A side of a lane's tile `tile` in the page of an entry that is not packed. */
static inline unsigned char *quire_full_tile(const quire_packing *p, const quire_page_addr *addr,
                                             uint32_t lane, uint32_t tile, quire_side side)
{
    const quire_attn_layer *layer = &p->layers[lane / p->n_kv_head];
    const quire_attn_lane *at = side == QUIRE_SIDE_K ? &layer->k_store.lane : &layer->v_store.lane;

    return addr->extent + at->offset + addr->slot * at->page_stride +
           lane % p->n_kv_head * at->head_stride + tile * at->tile_stride;
}

/* The bounds of that tile's K, [2][d_k]; with bounds_bytes. */
float *quire_full_bounds(const quire_packing *p, const quire_page_addr *addr, uint32_t lane,
                         uint32_t tile);

/* Copy one side of a lane's row from slot `from` of a tile to slot `to` of another, byte for byte.
 */
void quire_packing_row_copy(const quire_packing *p, uint32_t lane, quire_side side,
                            const void *from_tile, uint32_t from, void *to_tile, uint32_t to);

/* The address of a place's V above that of its K. */
static inline size_t quire_packing_v_offset(const quire_packing *p)
{
    return (size_t)p->n_kv_head * (p->page_tokens / QUIRE_TILE_TOKENS) * p->tile_bytes;
}

#endif /* QUIRE_RETAIN_PACKED_H */
