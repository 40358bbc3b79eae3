/* runtime_fill.c - synthetic KV, so that benchmarks reach deep contexts in seconds.
 *
 * One tile of normally distributed K and V is encoded per stored lane, and copied to every tile
 * with new tokens; for a sealed side both forms are copied. Speed does not depend on the values.
 * Older tokens stay unchanged. Pages of a device get tiles by its copies.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime_internal.h"

#include "base/check.h"
#include "base/rng.h"
#include "codec/tile_side.h"
#include "model/model_internal.h"

#include <string.h>

/* The pattern of one side of a layer, the same for all kv heads. */
typedef struct fill_lane {
    quire_tile_side tiles;
    const quire_attn_source *store;
    uint32_t n_heads;
    float *rows;             /* [QUIRE_TILE_TOKENS][d] */
    unsigned char *tile;     /* rows in format */
    unsigned char *hot_tile; /* rows in QUIRE_FORMAT_HOT; sealed sides only */
    float *decoded;          /* [QUIRE_TILE_TOKENS][d], shared by all lanes: for sealing */
} fill_lane;

/* New tokens of one tile. */
typedef struct fill_span {
    quire_page_id page;
    quire_page_id hot_page;
    uint32_t tile; /* in the page */
    uint32_t first_slot;
    uint32_t end_slot;
} fill_span;

/* Tiles on their way to their places. */
typedef struct fill_out {
    const quire_runtime *rt;
    quire_page_piece pieces[QUIRE_PAGE_PIECES]; /* of whole tiles, to a device */
    uint32_t n_pieces;
    unsigned char *edited[2]; /* copies of a device's tiles that change in part */
    int status;               /* of the copies */
} fill_out;

static void out_flush(fill_out *o)
{
    if (o->n_pieces > 0 && o->status == QUIRE_OK) {
        o->status = o->rt->page_memory.copy(o->rt->page_memory.ctx, QUIRE_PAGE_COPY_IN, o->pieces,
                                            o->n_pieces);
    }
    o->n_pieces = 0;
}

static size_t bytes_of(const fill_lane *f, quire_format format)
{
    return quire_tile_bytes(format, f->tiles.side, f->tiles.d);
}

/* Write a whole tile; the bytes stay as they are until the last flush. */
static void tile_put(fill_out *o, unsigned char *tile, const unsigned char *from, size_t bytes)
{
    if (!quire_runtime_is_on_device(o->rt)) {
        memcpy(tile, from, bytes);
        return;
    }
    o->pieces[o->n_pieces++] = (quire_page_piece){ .to = tile, .from = from, .bytes = bytes };
    if (o->n_pieces == QUIRE_PAGE_PIECES) {
        out_flush(o);
    }
}

/* A tile as the host may read and write it; of a device, copy number i of two. */
static unsigned char *tile_edit(fill_out *o, uint32_t i, unsigned char *tile, size_t bytes)
{
    const quire_page_piece piece = { .to = o->edited[i], .from = tile, .bytes = bytes };

    if (!quire_runtime_is_on_device(o->rt)) {
        return tile;
    }
    out_flush(o);
    if (o->status == QUIRE_OK) {
        o->status = o->rt->page_memory.copy(o->rt->page_memory.ctx, QUIRE_PAGE_COPY_OUT, &piece, 1);
    }
    return o->edited[i];
}

/* Write an edited tile back to its place on the device. */
static void tile_edited(fill_out *o, unsigned char *tile, const unsigned char *edited, size_t bytes)
{
    if (quire_runtime_is_on_device(o->rt)) {
        tile_put(o, tile, edited, bytes);
        out_flush(o);
    }
}

static void encode(const fill_lane *f, uint32_t first_slot, uint32_t n_tokens, void *tile)
{
    const uint32_t d = f->tiles.d;
    const quire_tile_rows rows = {
        .d = d, .first_slot = first_slot, .n_tokens = n_tokens, .stride = d
    };

    quire_tile_encode(&f->tiles, quire_tile_open_format(&f->tiles), &rows,
                      f->rows + (size_t)first_slot * d, tile);
}

static void pattern_make(fill_lane *f, quire_rng *rng)
{
    for (size_t i = 0; i < (size_t)QUIRE_TILE_TOKENS * f->tiles.d; i++) {
        f->rows[i] = (float)quire_rng_normal(rng);
    }
    if (quire_format_is_sealed(f->tiles.format)) {
        encode(f, 0, QUIRE_TILE_TOKENS, f->hot_tile);
        quire_tile_seal(&f->tiles, f->hot_tile, f->tile, f->decoded);
    } else {
        encode(f, 0, QUIRE_TILE_TOKENS, f->tile);
    }
}

static unsigned char *tile_at(const quire_runtime *rt, quire_page_id page,
                              const quire_attn_lane *lane, uint32_t g, uint32_t tile)
{
    const quire_page_addr *addr = &quire_cache_page_addrs(rt->cache)[page];

    return addr->extent + lane->offset + addr->slot * lane->page_stride + g * lane->head_stride +
           tile * lane->tile_stride;
}

/* Copy the pattern into the slots of a tile whose tokens are written one by one. A tile without
 * older tokens is copied whole, because slots beyond the valid tokens may have any contents.
 * Returns the tile as the host may read it where it has older tokens. */
static const unsigned char *write_slots(fill_out *o, const fill_lane *f,
                                        const unsigned char *pattern, const fill_span *span,
                                        unsigned char *tile)
{
    const size_t bytes = bytes_of(f, quire_tile_open_format(&f->tiles));
    unsigned char *seen = tile;

    if (span->first_slot == 0) {
        tile_put(o, tile, pattern, bytes);
    } else {
        seen = tile_edit(o, 0, tile, bytes);
        encode(f, span->first_slot, span->end_slot - span->first_slot, seen);
        tile_edited(o, tile, seen, bytes);
    }
    return seen;
}

static void span_fill(fill_out *o, const fill_lane *f, uint32_t g, const fill_span *span)
{
    const size_t bytes = bytes_of(f, f->tiles.format);
    unsigned char *tile = tile_at(o->rt, span->page, &f->store->lane, g, span->tile);
    const unsigned char *hot;
    unsigned char *sealed;

    if (!quire_format_is_sealed(f->tiles.format)) {
        (void)write_slots(o, f, f->tile, span, tile);
        return;
    }
    hot = write_slots(o, f, f->hot_tile, span,
                      tile_at(o->rt, span->hot_page, &f->store->hot_lane, g, span->tile));
    if (span->end_slot == QUIRE_TILE_TOKENS) {
        if (span->first_slot == 0) {
            tile_put(o, tile, f->tile, bytes);
        } else {
            sealed = tile_edit(o, 1, tile, bytes);
            quire_tile_seal(&f->tiles, hot, sealed, f->decoded);
            tile_edited(o, tile, sealed, bytes);
        }
    }
}

/* Fill a lane of all heads from token `begin` to the end of the tables. Pages are never used in
 * part by the runtime's sequences, so token i lies in slot i % page_tokens of entry i /
 * page_tokens. */
static void lane_fill(fill_out *o, const quire_seq_table *tables, uint32_t begin,
                      const fill_lane *f)
{
    const quire_seq_table *table = &tables[f->store->group];
    const quire_seq_table *hot = &tables[f->store->hot_group];
    const uint32_t page_tokens = o->rt->opts.page_tokens;

    for (uint32_t t = begin, end; t < table->n_tokens; t = end) {
        const uint32_t entry = t / page_tokens;
        const uint32_t leaf = entry / QUIRE_LEAF_ENTRIES;
        fill_span span = {
            .page = table->leaves[leaf][entry % QUIRE_LEAF_ENTRIES].page,
            .tile = t % page_tokens / QUIRE_TILE_TOKENS,
            .first_slot = t % QUIRE_TILE_TOKENS,
        };

        end = (t / QUIRE_TILE_TOKENS + 1) * QUIRE_TILE_TOKENS;
        end = end < table->n_tokens ? end : table->n_tokens;
        span.end_slot = span.first_slot + (end - t);
        if (quire_format_is_sealed(f->store->format)) {
            span.hot_page = hot->leaves[leaf][entry % QUIRE_LEAF_ENTRIES].page;
        }
        for (uint32_t g = 0; g < f->n_heads; g++) {
            span_fill(o, f, g, &span);
        }
    }
}

/* Fill every lane from token `begin` on. */
static int tokens_fill(fill_out *o, quire_seq_id seq, uint32_t begin, const fill_lane *lanes)
{
    const quire_runtime *rt = o->rt;
    quire_seq_table tables[QUIRE_GROUPS_MAX] = { { 0 } };

    for (quire_group_id g = 0; g < rt->groups.n; g++) {
        QUIRE_TRY(quire_seq_table_get(rt->cache, seq, g, &tables[g]));
    }
    for (const fill_lane *f = lanes; f->store != NULL; f++) {
        lane_fill(o, tables, begin, f);
    }
    out_flush(o);
    return o->status;
}

/* Fill in pieces, so that pages that a step would release do not pile up. Those of older tokens are
 * released only at the end, because a failure cuts back to them. */
static int fill_pieces(quire_runtime *rt, fill_out *o, quire_seq_id seq, uint32_t n_tokens,
                       const fill_lane *lanes)
{
    const uint32_t begin = quire_seq_tokens(rt->cache, seq);
    const uint32_t page_tokens = rt->opts.page_tokens;
    const uint32_t new_pages_token = (begin + page_tokens - 1) / page_tokens * page_tokens;
    uint32_t n_piece;
    int rc = QUIRE_OK;

    for (uint32_t done = 0; rc == QUIRE_OK && done < n_tokens; done += n_piece) {
        n_piece = n_tokens - done < rt->opts.n_batch ? n_tokens - done : rt->opts.n_batch;
        n_piece = rt->groups.n > 1 ? n_piece : n_tokens;
        rc = quire_runtime_reserve(rt, seq, n_piece);
        if (rc == QUIRE_OK) {
            rc = quire_seq_append(rt->cache, seq, n_piece);
        }
        if (rc == QUIRE_OK) {
            rc = tokens_fill(o, seq, begin + done, lanes);
        }
        if (rc == QUIRE_OK) {
            quire_runtime_release_hot(rt, seq, new_pages_token);
            quire_runtime_release_window(rt, seq, new_pages_token);
        }
    }
    if (rc == QUIRE_OK) {
        quire_runtime_release_hot(rt, seq, 0);
        quire_runtime_release_window(rt, seq, 0);
    } else {
        int undone = quire_seq_truncate(rt->cache, seq, begin);

        QUIRE_ASSERT(undone == QUIRE_OK || rc == QUIRE_NOTFOUND);
        (void)undone;
    }
    return rc;
}

/* The patterns of all stored layers and sides, in `memory`: three tiles of floats for each (no
 * format takes more), one for sealing, and two for a device's tiles. */
static void patterns_make(const quire_runtime *rt, uint64_t seed, unsigned char *memory,
                          size_t tile_bytes, fill_lane *lanes)
{
    const quire_model_desc *desc = &rt->model->desc;
    unsigned char *at = memory + 3 * tile_bytes;
    quire_rng rng = { seed };

    for (uint32_t i = 0; i < 2 * desc->n_layer; i++) {
        const quire_attn_layer *layer = &rt->ops[i / 2].layer;
        const quire_attn_source *store = i % 2 == 0 ? &layer->k_store : &layer->v_store;
        const bool is_k = i % 2 == 0;
        fill_lane *f;

        if (desc->kv_map[i / 2].stored < 0 || (!is_k && layer->v_prefix_of_k)) {
            continue;
        }
        f = lanes++;

        *f = (fill_lane){
            .tiles = { .codec = quire_codec_get(),
                       .side = is_k ? QUIRE_SIDE_K : QUIRE_SIDE_V,
                       .format = store->format,
                       .d = is_k ? layer->d_k : layer->d_v },
            .store = store,
            .n_heads = layer->n_kv_head,
            .rows = (float *)(void *)at,
            .tile = at + tile_bytes,
            .hot_tile = at + 2 * tile_bytes,
            .decoded = (float *)(void *)memory,
        };
        pattern_make(f, &rng);
        at += 3 * tile_bytes;
    }
    lanes->store = NULL;
}

int quire_runtime_fill(quire_runtime *rt, quire_seq_id seq, uint32_t n_tokens, uint64_t seed)
{
    const quire_model_desc *desc = &rt->model->desc;
    const quire_allocator *heap = quire_allocator_default();
    const uint32_t d_max = desc->d_k > desc->d_v ? desc->d_k : desc->d_v;
    const size_t tile_bytes = sizeof(float) * QUIRE_TILE_TOKENS * d_max;
    const size_t n_lanes = 2 * (size_t)desc->n_stored + 1; /* the last ends them */
    fill_out out = { .rt = rt };
    unsigned char *memory;
    fill_lane *lanes;
    int rc = QUIRE_NOMEM;

    QUIRE_FAIL_IF(n_tokens == 0, QUIRE_INVAL);
    QUIRE_FAIL_IF(rt->opts.kv_elsewhere_bytes != 0, QUIRE_UNSUPP); /* pages without payload */
    memory = heap->alloc(heap->ctx, (3 * n_lanes + 3) * tile_bytes);
    lanes = heap->alloc(heap->ctx, n_lanes * sizeof(*lanes));
    if (memory != NULL && lanes != NULL) {
        patterns_make(rt, seed, memory, tile_bytes, lanes);
        out.edited[0] = memory + tile_bytes;
        out.edited[1] = memory + 2 * tile_bytes;
        rc = quire_runtime_state_reserve(rt, seq);
        rc = rc == QUIRE_OK ? fill_pieces(rt, &out, seq, n_tokens, lanes) : rc;
        rc = rc == QUIRE_OK ? quire_runtime_recurrent_clear(rt, seq) : rc;
    }
    heap->free(heap->ctx, lanes);
    heap->free(heap->ctx, memory);
    return rc;
}
