/* kept_lanes_sealed.c - lanes whose format is sealed. A tile is coded as a whole, so kept tokens
 * are gathered in 8 bit, 64 by 64, and sealed once: tokens that were condensed stay.
 *
 *   before   [ condensed, sealed ][ in full: hot, 8 bit                ]
 *   after    [ condensed, sealed       ][ from the edge on: hot ]
 *
 * The edge is a multiple of 64 positions, and each lane keeps whole tiles, so tokens from the edge
 * on keep their slots.
 *
 * In a text that keeps all its tokens, and in layers with windows, there is no edge: append() seals
 * each tile that is full, and hot pages between the sinks and the recent tokens are given back.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/check.h"
#include "codec/slot_copy.h"
#include "codec/tile_side.h"

#include <stdlib.h>
#include <string.h>

#define TILE QUIRE_TILE_TOKENS

uint32_t quire_lanes_edge(const quire_lanes *lanes)
{
    const uint32_t recent = lanes->spec.recent;
    uint32_t edge;

    if (lanes->hot_bytes == 0) {
        return lanes->n_text;
    }
    edge = lanes->n_text > recent ? (lanes->n_text - recent) / TILE * TILE : 0;
    return edge > lanes->n_condensed ? edge : lanes->n_condensed;
}

/* Of a hot tile, and of its rows in f32. */
static size_t tile_room(uint32_t d)
{
    const size_t k = quire_tile_bytes(QUIRE_FORMAT_HOT, QUIRE_SIDE_K, d);
    const size_t v = quire_tile_bytes(QUIRE_FORMAT_HOT, QUIRE_SIDE_V, d);

    return k > v ? k : v;
}

static size_t room_of(const quire_lanes_opts *o, size_t *tile_bytes)
{
    const quire_attn_layer *layer = &o->layers[0];
    const uint32_t d = layer->d_k > layer->d_v ? layer->d_k : layer->d_v;

    *tile_bytes = tile_room(d);
    return *tile_bytes + (size_t)TILE * d * sizeof(float); /* both multiples of 64 */
}

static bool is_sealed(const quire_lanes_opts *o)
{
    return quire_format_is_sealed(o->layers[0].k_store.format) ||
           quire_format_is_sealed(o->layers[0].v_store.format);
}

uint64_t quire_lanes_seal_bytes(const quire_lanes_opts *o)
{
    size_t tile_bytes;

    return is_sealed(o) ? (uint64_t)o->n_threads * room_of(o, &tile_bytes) : 0;
}

int quire_lanes_seal_create(quire_lanes *lanes, const quire_lanes_opts *o)
{
    if (!is_sealed(o)) {
        return QUIRE_OK;
    }
    lanes->seal_bytes = room_of(o, &lanes->seal_tile_bytes);
    lanes->seal_room = aligned_alloc(64, o->n_threads * lanes->seal_bytes);
    QUIRE_FAIL_IF(lanes->seal_room == NULL, QUIRE_NOMEM);
    return QUIRE_OK;
}

/* One side of a lane while it is sealed. */
typedef struct sealing {
    const quire_lanes *lanes;
    quire_tile_side side;
    lane_tiles tiles;
    lane_tiles hot_tiles;
    unsigned char *hot; /* a tile in 8 bit */
    float *rows;        /* scratch: its rows */
} sealing;

/* Token t's row to slot n: of a side that is not sealed, from tile to tile. */
static void copy_row(const sealing *s, uint32_t t, uint32_t n)
{
    const quire_tile_kind kind = { s->side.format, s->side.side, s->side.d };

    quire_tile_slot_copy(&kind, quire_lane_tile_at(s->lanes, &s->tiles, LANE_READ, t / TILE),
                         t % TILE, quire_lane_tile_at(s->lanes, &s->tiles, LANE_WRITE, n / TILE),
                         n % TILE);
}

/* Kept tokens of [from, to) to the slots from `from` on. Returns the slot behind them. */
static uint32_t seal_side(const sealing *s, const bool *is_kept, uint32_t from, uint32_t to)
{
    const quire_tile_kind kind = { QUIRE_FORMAT_HOT, s->side.side, s->side.d };
    uint32_t n = from;

    for (uint32_t t = from; t < to; t++) {
        if (!is_kept[t]) {
            continue;
        }
        if (!quire_format_is_sealed(s->side.format)) {
            if (n != t || s->lanes->rows != NULL) { /* windows write whole tiles */
                copy_row(s, t, n);
            }
        } else {
            quire_tile_slot_copy(
                &kind, quire_lane_tile_at(s->lanes, &s->hot_tiles, LANE_READ_HOT, t / TILE),
                t % TILE, s->hot, n % TILE);
            if (n % TILE == TILE - 1) {
                quire_tile_seal(&s->side, s->hot,
                                quire_lane_tile_at(s->lanes, &s->tiles, LANE_WRITE, n / TILE),
                                s->rows);
            }
        }
        n++;
    }
    QUIRE_CHECK(n % TILE == 0);
    return n;
}

/* Whole pages of a table, of tokens [from, n), to those from token `to` on; both at the beginning
 * of a tile. */
static void move_pages(const quire_lanes *lanes, const quire_seq_table *table, size_t page_bytes,
                       uint32_t from, uint32_t n, uint32_t to)
{
    const lane_tiles pages = { table, page_bytes, 0, page_bytes };

    for (; from < n && from != to; from += TILE, to += TILE) {
        const unsigned char *page = quire_lane_tile_at(lanes, &pages, LANE_READ, from / TILE);

        memcpy(quire_lane_tile_at(lanes, &pages, LANE_WRITE, to / TILE), page, page_bytes);
    }
}

/* Positions and worth, as the rows are moved. */
static void move_lists(lane_state *lane, const bool *is_kept, uint32_t from, uint32_t tail)
{
    uint32_t n = from;

    for (uint32_t t = from; t < lane->n; t++) {
        if (t >= tail || is_kept[t]) {
            lane->positions[1 + n] = lane->positions[1 + t];
            if (lane->worth != NULL) {
                lane->worth[n] = lane->worth[t];
            }
            n++;
        }
    }
}

uint32_t quire_lane_seal(const quire_lanes *lanes, lane_state *lane, const bool *is_kept,
                         uint32_t edge, uint32_t thread)
{
    const size_t index = (size_t)(lane - lanes->lanes);
    const quire_attn_layer *one = &lanes->layers[index / lanes->n_kv_head].one;
    const uint32_t from = quire_lane_n_condensed(lanes, lane);
    const uint32_t tail = lane->n - (lanes->n_text - edge);
    unsigned char *room = lanes->seal_room + thread * lanes->seal_bytes;
    const lane_tables tables = quire_lane_tables(lanes, lane);
    uint32_t n = from;

    for (int i = 0; i < 2; i++) {
        const quire_side side = i == 0 ? QUIRE_SIDE_K : QUIRE_SIDE_V;
        const quire_attn_source *source = i == 0 ? &one->k[0] : &one->v[0];
        const sealing s = { .lanes = lanes,
                            .side = { .codec = quire_codec_get(),
                                      .side = side,
                                      .format = source->format,
                                      .d = i == 0 ? one->d_k : one->d_v },
                            .tiles = quire_lane_tiles(lanes, one, &tables, side),
                            .hot_tiles = quire_lane_hot_tiles(lanes, one, &tables, side),
                            .hot = room,
                            .rows = (float *)(void *)(room + lanes->seal_tile_bytes) };

        n = seal_side(&s, is_kept, from, tail);
    }
    move_pages(lanes, &tables.main, lanes->page_bytes, tail, lane->n, n);
    move_pages(lanes, &tables.hot, lanes->hot_bytes, tail, lane->n, n);
    move_lists(lane, is_kept, from, tail);
    return n + (lane->n - tail);
}

void quire_lane_cool(quire_lanes *lanes, lane_state *lane, uint32_t n_condensed)
{
    if (lanes->hot_bytes > 0 && n_condensed > 0) {
        int rc = quire_seq_release(lanes->cache, lane->seq, QUIRE_LANES_HOT, 0, n_condensed, NULL);

        QUIRE_CHECK(rc == QUIRE_OK);
    }
}

void quire_lanes_cool(quire_lanes *lanes)
{
    const quire_attn_layer *one = &lanes->layers[lanes->choosing[0]].one;
    const uint32_t tile = lanes->n_text / TILE; /* of the next row */
    const uint32_t n_sinks = one->sink_tiles * TILE;
    const uint32_t begin = lanes->n_cooled > n_sinks ? lanes->n_cooled : n_sinks;
    const uint32_t end = tile > one->recent_tiles ? (tile - one->recent_tiles) * TILE : 0;

    if (lanes->hot_bytes == 0 || !lanes->keeps_all || begin >= end) {
        return;
    }
    for (size_t i = 0; i < quire_lanes_n_chosen(lanes); i++) {
        int rc = quire_seq_release(lanes->cache, quire_lane_chosen(lanes, i)->seq, QUIRE_LANES_HOT,
                                   begin, end, NULL);

        QUIRE_CHECK(rc == QUIRE_OK);
    }
    lanes->n_cooled = end;
}

uint32_t quire_lanes_cuttable(const quire_lanes *lanes, uint32_t n)
{
    if (lanes->keeps_all) { /* all lanes that choose have the same tokens and the same holes */
        n = quire_seq_truncatable(lanes->cache, quire_lane_chosen(lanes, 0)->seq, n);
    }
    return quire_lanes_windowed_cuttable(lanes, n);
}
