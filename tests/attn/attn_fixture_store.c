/* attn_fixture_store.c - K and V of a fixture into its pages, token by token, through the reference
 * codec.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* One source of a head. */
typedef struct stored_lane {
    quire_side side;
    const quire_attn_source *source;
    uint32_t d;
    uint32_t g;
    const float *x; /* of a token t: x + t * n_kv_head * d */
    bool pairs_q;
} stored_lane;

static void encode(const stored_lane *lane, quire_format format, const quire_tile_rows *rows,
                   const float *x, void *tile)
{
    const quire_codec *codec = quire_codec_find("ref");

    if (lane->side == QUIRE_SIDE_K) {
        codec->encode_k(format, rows, x, tile);
    } else {
        codec->encode_v(format, rows, x, tile);
    }
}

/* The tile of a slot of an entry, in the hot table or the main one. */
static void *tile_of(const fixture *f, const stored_lane *lane, const quire_attn_seq *seq,
                     const uint32_t at[2], bool is_hot)
{
    const quire_attn_source *source = lane->source;
    const quire_attn_lane *where = is_hot ? &source->hot_lane : &source->lane;
    const quire_page_entry *entry =
        fixture_entry(&seq->tables[is_hot ? source->hot_group : source->group], at[0]);

    assert_int_not_equal(entry->page, QUIRE_PAGE_NULL);
    return f->page_addr[entry->page].extent + where->offset +
           f->page_addr[entry->page].slot * where->page_stride + lane->g * where->head_stride +
           at[1] / QUIRE_TILE_TOKENS * where->tile_stride;
}

/* The sum of the queries of the lane's head, rotated. Returns false when the token is no query row
 * or the layer has no queries. */
static bool sum_queries(const fixture *f, const stored_lane *lane, uint32_t s, uint32_t token,
                        float *sum)
{
    const quire_attn_seq *seq = &f->seqs[s];
    const uint32_t group = f->opts.n_head / f->opts.n_kv_head;
    const uint32_t first = seq->n_tokens - seq->n_rows;
    const float *q;

    if (!lane->pairs_q || f->layer.q[0] == NULL || token < first) {
        return false;
    }
    q = f->q[0] + (seq->first_row + token - first) * f->layer.q_stride;
    for (uint32_t i = 0; i < lane->d; i++) {
        sum[i] = q[lane->g * group * lane->d + i];
        for (uint32_t h = 1; h < group; h++) {
            sum[i] += q[(lane->g * group + h) * lane->d + i];
        }
    }
    if (lane->source->rotate != 0) {
        quire_hadamard(sum, lane->d, lane->source->rotate);
    }
    return true;
}

/* Store token `token` of a sequence; at: its entry, and its slot in the page. */
static void store_row(const fixture *f, const stored_lane *lane, uint32_t s, uint32_t token,
                      const uint32_t at[2])
{
    const quire_format format = lane->source->format;
    bool is_hot = quire_format_is_sealed(format);
    size_t row = (size_t)(f->first_token[s] + token) * f->opts.n_kv_head;
    quire_tile_rows rows = {
        .d = lane->d, .first_slot = at[1] % QUIRE_TILE_TOKENS, .n_tokens = 1, .stride = lane->d
    };
    float rotated[QUIRE_HEAD_DIM_MAX];
    float queries[QUIRE_HEAD_DIM_MAX];

    rows.queries = sum_queries(f, lane, s, token, queries) ? queries : NULL;
    memcpy(rotated, lane->x + row * lane->d, lane->d * sizeof(float));
    if (lane->source->rotate != 0) {
        quire_hadamard(rotated, lane->d, lane->source->rotate);
    }
    encode(lane, is_hot ? QUIRE_FORMAT_HOT : format, &rows, rotated,
           tile_of(f, lane, &f->seqs[s], at, is_hot));
}

static void seal(const fixture *f, const stored_lane *lane, uint32_t s, const uint32_t at[2])
{
    const quire_codec *codec = quire_codec_find("ref");
    quire_tile_rows rows = { .d = lane->d, .n_tokens = QUIRE_TILE_TOKENS, .stride = lane->d };
    float *x = fixture_take((size_t)QUIRE_TILE_TOKENS * lane->d * sizeof(float));
    const void *hot = tile_of(f, lane, &f->seqs[s], at, true);

    if (lane->side == QUIRE_SIDE_K) {
        codec->decode_k(QUIRE_FORMAT_HOT, &rows, hot, x);
    } else {
        codec->decode_v(QUIRE_FORMAT_HOT, &rows, hot, x);
    }
    encode(lane, lane->source->format, &rows, x, tile_of(f, lane, &f->seqs[s], at, false));
    free(x);
}

/* Positions [begin, end) of a sequence in one lane. */
static void store_lane(const fixture *f, const stored_lane *lane, uint32_t s, uint32_t begin,
                       uint32_t end)
{
    const quire_attn_table *table = &f->seqs[s].tables[lane->source->group];
    bool is_open = false; /* tokens of the tile at hand were stored */

    for (uint32_t e = 0; e < table->n_entries; e++) {
        const quire_page_entry *entry = fixture_entry(table, e);

        for (uint32_t i = 0; i < entry->n_tokens; i++) {
            const uint32_t token = fixture_position(f, entry, i);
            const uint32_t at[2] = { e, entry->first_slot + i };

            if (token >= begin && token < end) {
                store_row(f, lane, s, token, at);
                is_open = true;
            }
            if (at[1] % QUIRE_TILE_TOKENS == QUIRE_TILE_TOKENS - 1) {
                if (is_open && quire_format_is_sealed(lane->source->format) &&
                    token < f->n_stored[s]) {
                    seal(f, lane, s, at);
                }
                is_open = false;
            }
        }
    }
}

void fixture_store(fixture *f, uint32_t seq, uint32_t begin, uint32_t end)
{
    const quire_attn_layer *layer = &f->layer;

    f->n_stored[seq] = f->n_stored[seq] > end ? f->n_stored[seq] : end;
    for (uint32_t g = 0; g < f->opts.n_kv_head; g++) {
        for (uint32_t i = 0; i < f->opts.n_k; i++) {
            const stored_lane lane = {
                QUIRE_SIDE_K, &layer->k[i], layer->d_k, g, f->k[i] + (size_t)g * layer->d_k, i == 0
            };

            store_lane(f, &lane, seq, begin, end);
        }
        for (uint32_t i = 0; i < f->opts.n_v; i++) {
            const stored_lane lane = {
                QUIRE_SIDE_V, &layer->v[i], layer->d_v, g, f->v[i] + (size_t)g * layer->d_v, false
            };

            store_lane(f, &lane, seq, begin, end);
        }
    }
}
