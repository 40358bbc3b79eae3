/* runtime_fill.c - synthetic KV, so that benchmarks reach deep contexts in seconds.
 *
 * One tile of normally distributed K and V is encoded per stored lane, and every tile the new
 * tokens touch becomes a copy of it. Speed does not depend on the values; tokens that were there
 * before stay as they are.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime_internal.h"

#include "base/check.h"
#include "base/rng.h"
#include "model/model_internal.h"

#include <stdlib.h>
#include <string.h>

/* One lane's K or V pattern. */
typedef struct fill_lane {
    const quire_attn_lane *lane;
    quire_format format;
    uint32_t d;
    bool is_k;
    float *rows;         /* [QUIRE_TILE_TOKENS][d] */
    unsigned char *tile; /* rows encoded */
    size_t tile_bytes;
} fill_lane;

static void pattern_make(fill_lane *f, quire_rng *rng)
{
    const quire_codec *codec = quire_codec_get();
    const quire_tile_rows rows = { f->d, 0, QUIRE_TILE_TOKENS, f->d };

    for (size_t i = 0; i < (size_t)QUIRE_TILE_TOKENS * f->d; i++) {
        f->rows[i] = (float)quire_rng_normal(rng);
    }
    (f->is_k ? codec->encode_k : codec->encode_v)(f->format, &rows, f->rows, f->tile);
}

/* Slots first_slot .. n_slots - 1 of the tile get the pattern. A tile without older tokens is
 * copied whole: what lies beyond the valid tokens may be anything. */
static void tile_fill(const fill_lane *f, unsigned char *tile, uint32_t first_slot,
                      uint32_t n_slots)
{
    const quire_codec *codec = quire_codec_get();
    const quire_tile_rows rows = { f->d, first_slot, n_slots - first_slot, f->d };

    if (first_slot == 0) {
        memcpy(tile, f->tile, f->tile_bytes);
    } else {
        (f->is_k ? codec->encode_k : codec->encode_v)(f->format, &rows,
                                                      f->rows + (size_t)first_slot * f->d, tile);
    }
}

/* Fill one lane of head g in all pages from token `begin` to the table's end. */
static void lane_fill(const quire_runtime *rt, const quire_seq_table *table, uint32_t begin,
                      uint32_t g, const fill_lane *f)
{
    unsigned char *const *addr = quire_cache_page_addrs(rt->cache);
    uint32_t token = 0;

    for (uint32_t i = 0; i < table->n_entries; i++) {
        const quire_page_entry *e = &table->leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES];
        const uint32_t end_slot = e->first_slot + e->n_tokens;
        uint32_t slot = e->first_slot;

        if (token + e->n_tokens > begin) {
            slot += token < begin ? begin - token : 0;
            while (slot < end_slot) {
                const uint32_t t = slot / QUIRE_TILE_TOKENS;
                const uint32_t tile_end = (t + 1) * QUIRE_TILE_TOKENS;
                const uint32_t stop = tile_end < end_slot ? tile_end : end_slot;

                tile_fill(f,
                          addr[e->page] + f->lane->page_offset + g * f->lane->head_stride +
                              t * f->lane->tile_stride,
                          slot % QUIRE_TILE_TOKENS, stop - t * QUIRE_TILE_TOKENS);
                slot = stop;
            }
        }
        token += e->n_tokens;
    }
}

int quire_runtime_fill(quire_runtime *rt, quire_seq_id seq, uint32_t n_tokens, uint64_t seed)
{
    const quire_model_desc *desc = &rt->model->desc;
    const quire_allocator *heap = quire_allocator_default();
    const uint32_t d_max = desc->d_k > desc->d_v ? desc->d_k : desc->d_v;
    const uint32_t begin = quire_seq_tokens(rt->cache, seq);
    quire_rng rng = { seed };
    quire_seq_table table;
    fill_lane lane = { 0 };
    int rc = QUIRE_NOMEM;

    QUIRE_FAIL_IF(n_tokens == 0, QUIRE_INVAL);
    lane.rows = heap->alloc(heap->ctx, sizeof(float) * QUIRE_TILE_TOKENS * d_max);
    lane.tile = heap->alloc(heap->ctx, sizeof(float) * QUIRE_TILE_TOKENS * d_max + 64);
    if (lane.rows == NULL || lane.tile == NULL) {
        goto out;
    }
    if ((rc = quire_runtime_reserve(rt, seq, n_tokens)) < 0 ||
        (rc = quire_seq_append(rt->cache, seq, n_tokens)) < 0 ||
        (rc = quire_seq_table_get(rt->cache, seq, QUIRE_RUNTIME_GROUP, &table)) < 0) {
        goto out;
    }
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        const quire_attn_layer *layer = &rt->ops[il].layer;

        for (uint32_t i = 0; i < 2 * desc->n_kv_head; i++) {
            lane.is_k = i < desc->n_kv_head;
            lane.lane = lane.is_k ? &layer->k[0] : &layer->v[0];
            lane.format = lane.is_k ? layer->k_format : layer->v_format;
            lane.d = lane.is_k ? desc->d_k : desc->d_v;
            lane.tile_bytes =
                quire_tile_bytes(lane.format, lane.is_k ? QUIRE_SIDE_K : QUIRE_SIDE_V, lane.d);
            pattern_make(&lane, &rng);
            lane_fill(rt, &table, begin, i % desc->n_kv_head, &lane);
        }
    }
out:
    heap->free(heap->ctx, lane.tile);
    heap->free(heap->ctx, lane.rows);
    return rc;
}
