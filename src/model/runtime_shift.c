/* runtime_shift.c - tokens leave the middle of a sequence, and those behind move up.
 *
 * Positions end and begin are whole tiles apart, so each tile moves as a whole: V byte for byte, K
 * decoded, turned by the difference of positions and coded again. Tiles move up one after the other
 * into tiles that were read before. Of tokens that are thinned out by lane, the kept rows gather in
 * a buffer of one tile, whose place was read before the buffer is full. Pages of a device are read
 * and written through windows of the host's memory (core/pool/tile_window.h). Formats that are
 * sealed: runtime_shift_sealed.c.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime_shift.h"

#include "base/check.h"
#include "codec/slot_copy.h"
#include "model/model_internal.h"
#include "model/runtime_internal.h"
#include "model/runtime_rows.h"
#include "model/runtime_shift_internal.h"

#include <stdlib.h>
#include <string.h>

#define TILE QUIRE_TILE_TOKENS

void quire_shift_turn(const quire_shift *s, const quire_attn_source *k, uint32_t d,
                      const float *turns, float *row)
{
    if (k->rotate != 0) {
        quire_hadamard(row, d, k->rotate);
    }
    quire_rotation_apply(&s->rotation, turns, row);
    if (k->rotate != 0) {
        quire_hadamard(row, d, k->rotate);
    }
}

/* K of n tokens in a tile. */
void quire_shift_k(const quire_shift *s, const quire_attn_layer *layer, const unsigned char *from,
                   unsigned char *to, uint32_t n)
{
    const quire_attn_source *k = &layer->k_store;
    const quire_tile_rows rows = { .d = layer->d_k, .n_tokens = n, .stride = layer->d_k };
    const quire_codec *codec = quire_codec_get();

    if (s->delta == 0 || !s->has_rope) {
        memcpy(to, from, quire_tile_bytes(k->format, QUIRE_SIDE_K, layer->d_k));
        return;
    }
    codec->decode_k(k->format, &rows, from, s->rows);
    for (uint32_t i = 0; i < n; i++) {
        quire_shift_turn(s, k, layer->d_k, s->turns, s->rows + (size_t)i * layer->d_k);
    }
    codec->encode_k(k->format, &rows, s->rows, to);
}

/* Go to the tiles of the first n_from and n_to tokens of the two. */
static void put(quire_shift *s, const quire_runtime_side *side, uint32_t n_from, uint32_t n_to)
{
    quire_runtime_tiles_put(&s->read, &s->from, side, n_from);
    quire_runtime_tiles_put(&s->write, &s->to, side, n_to);
}

static void move_side_k(quire_shift *s, const quire_attn_layer *layer, uint32_t begin, uint32_t end)
{
    const quire_runtime_side side = quire_runtime_side_of(layer, QUIRE_SIDE_K);

    put(s, &side, end, end - s->delta);
    for (uint32_t t = begin; t < end; t += TILE) {
        for (uint32_t g = 0; g < layer->n_kv_head; g++) {
            quire_shift_k(s, layer, quire_runtime_tile(&s->read, t / TILE, g),
                          quire_runtime_tile(&s->write, (t - s->delta) / TILE, g),
                          end - t < TILE ? end - t : TILE);
        }
    }
}

static void move_side_v(quire_shift *s, const quire_attn_layer *layer, uint32_t begin, uint32_t end)
{
    const quire_runtime_side side = quire_runtime_side_of(layer, QUIRE_SIDE_V);

    put(s, &side, end, end - s->delta);
    for (uint32_t t = begin; t < end; t += TILE) {
        for (uint32_t g = 0; g < layer->n_kv_head; g++) {
            memcpy(quire_runtime_tile(&s->write, (t - s->delta) / TILE, g),
                   quire_runtime_tile(&s->read, t / TILE, g), side.tile_bytes);
        }
    }
}

void quire_shift_enter(quire_shift *s, uint32_t il, quire_attn_layer *layer)
{
    (void)quire_kv_layout(&s->rt->form, il, layer);
    s->has_rope = s->rt->model->desc.layer_rope[il] != QUIRE_LAYER_ROPE_NONE;
}

/* The tokens [begin, end) move; begin is that of a tile. Errors: those of copies. */
static int move_tokens(quire_shift *s, uint32_t begin, uint32_t end)
{
    const quire_model_desc *desc = &s->rt->model->desc;

    for (uint32_t il = 0; il < desc->n_layer; il++) {
        quire_attn_layer layer;

        if (desc->kv_map[il].stored >= 0) {
            quire_shift_enter(s, il, &layer);
            move_side_k(s, &layer, begin, end);
            move_side_v(s, &layer, begin, end);
        }
    }
    quire_tile_window_flush(&s->write.window);
    return s->status;
}

int quire_opts_shift_check(const quire_model_desc *desc, const quire_runtime_opts *opts)
{
    const bool is_shiftable = opts->kv_elsewhere_bytes == 0 &&
                              quire_kv_groups_of(desc, opts).window == 0 &&
                              desc->recurrent.n_layers == 0 && quire_model_rope_is_movable(desc);

    return is_shiftable ? QUIRE_OK : QUIRE_UNSUPP;
}

int quire_runtime_shift_check(const quire_runtime *rt)
{
    return quire_opts_shift_check(&rt->model->desc, &rt->opts);
}

/* Errors: QUIRE_INVAL, QUIRE_UNSUPP, QUIRE_NOMEM. Memory: shift_end(), on errors too. s stays where
 * it is. */
static int shift_begin(quire_shift *s, const quire_runtime *rt, quire_seq_id seq, uint32_t begin,
                       uint32_t end)
{
    const quire_model_desc *desc = &rt->model->desc;

    *s = (quire_shift){ .rt = rt, .begin = begin, .delta = end - begin };
    QUIRE_TRY(quire_runtime_shift_check(rt));
    QUIRE_FAIL_IF(begin % TILE != 0 || end % TILE != 0 || begin > end ||
                      end > quire_seq_tokens(rt->cache, seq),
                  QUIRE_INVAL);
    QUIRE_TRY(quire_seq_table_get(rt->cache, seq, QUIRE_KV_GROUP_MAIN, &s->from));
    s->rows =
        malloc((size_t)TILE * (desc->d_k > desc->d_v ? desc->d_k : desc->d_v) * sizeof *s->rows);
    QUIRE_FAIL_IF(s->rows == NULL, QUIRE_NOMEM);
    QUIRE_TRY(quire_runtime_tiles_init(&s->read, rt, false, &s->status));
    QUIRE_TRY(quire_runtime_tiles_init(&s->write, rt, true, &s->status));
    if (rt->groups.hot != 0) {
        QUIRE_TRY(quire_seq_table_get(rt->cache, seq, rt->groups.hot, &s->from_hot));
        QUIRE_TRY(quire_runtime_tiles_init(&s->read_hot, rt, false, &s->status));
        QUIRE_TRY(quire_runtime_tiles_init(&s->write_hot, rt, true, &s->status));
    }
    quire_model_rope_frequencies(rt->model, s->frequencies);
    s->rotation = quire_model_rotation_of_moves(desc, s->frequencies);
    quire_rotation_turns(&s->rotation, (double)begin - (double)end, s->turns);
    return QUIRE_OK;
}

/* Returns whether pages of a device were written, or may have been. */
static bool shift_end(quire_shift *s)
{
    quire_tile_window_end(&s->read.window);
    quire_tile_window_end(&s->write.window);
    quire_tile_window_end(&s->read_hot.window);
    quire_tile_window_end(&s->write_hot.window);
    free(s->rows);
    return s->write.window.has_sent || s->write_hot.window.has_sent;
}

/* Without sealed formats. */
static int shift_in_place(quire_shift *s, quire_seq_id seq, uint32_t end)
{
    const uint32_t n_tokens = quire_seq_tokens(s->rt->cache, seq);

    s->to = s->from;
    QUIRE_TRY(move_tokens(s, end, n_tokens));
    return quire_seq_truncate(s->rt->cache, seq, n_tokens - s->delta);
}

int quire_runtime_shift(quire_runtime *rt, quire_seq_id seq, uint32_t begin, uint32_t end,
                        bool *is_torn)
{
    bool has_cut = false;
    quire_shift s;
    int rc;

    quire_runtime_cool(rt, seq);
    rc = shift_begin(&s, rt, seq, begin, end);
    if (rc == QUIRE_OK && begin < end) {
        rc = rt->groups.hot != 0 ? quire_shift_sealed(&s, seq, &has_cut)
                                 : shift_in_place(&s, seq, end);
    }
    *is_torn = (shift_end(&s) || has_cut) && rc < 0;
    return rc;
}

/* ---- thinning ---- */

/* The arrays that the lanes of a thinning share. */
typedef struct thin_room {
    float *turns; /* [tokens that leave + 1][d_k]: to a position by so many lower */
    float *rows;  /* [TILE][d_k] kept rows of the tile to come */
} thin_room;

static int room_init(thin_room *room, const quire_shift *s)
{
    const uint32_t d = s->rt->model->desc.d_k;

    room->turns = malloc(((size_t)s->delta + 1) * d * sizeof *room->turns);
    room->rows = malloc((size_t)TILE * d * sizeof *room->rows);
    QUIRE_FAIL_IF(room->turns == NULL || room->rows == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i <= s->delta; i++) {
        quire_rotation_turns(&s->rotation, -(double)i, room->turns + (size_t)i * d);
    }
    return QUIRE_OK;
}

static void room_fini(thin_room *room)
{
    free(room->rows);
    free(room->turns);
}

static void thin_k(quire_shift *s, const thin_room *room, const quire_thinning *t,
                   const quire_attn_layer *layer, uint32_t head, const bool *is_kept)
{
    const quire_attn_source *k = &layer->k_store;
    const quire_runtime_side side = quire_runtime_side_of_head(layer, QUIRE_SIDE_K, head);
    const quire_tile_rows tile = { .d = layer->d_k, .n_tokens = TILE, .stride = layer->d_k };
    const size_t d = layer->d_k;
    uint32_t to = t->begin;

    put(s, &side, t->end, t->begin + t->n_kept);
    for (uint32_t from = t->begin; from < t->end; from++) {
        float *row = room->rows + to % TILE * d;

        if (from % TILE == 0) {
            quire_codec_get()->decode_k(k->format, &tile,
                                        quire_runtime_tile(&s->read, from / TILE, 0), s->rows);
        }
        if (!is_kept[from - t->begin]) {
            continue;
        }
        memcpy(row, s->rows + from % TILE * d, d * sizeof *row);
        if (from != to && s->has_rope) {
            quire_shift_turn(s, k, layer->d_k, room->turns + (from - to) * d, row);
        }
        if (++to % TILE == 0) {
            quire_codec_get()->encode_k(k->format, &tile, room->rows,
                                        quire_runtime_tile(&s->write, to / TILE - 1, 0));
        }
    }
    QUIRE_CHECK(to == t->begin + t->n_kept);
}

static void thin_v(quire_shift *s, const quire_thinning *t, const quire_attn_layer *layer,
                   uint32_t head, const bool *is_kept)
{
    const quire_runtime_side side = quire_runtime_side_of_head(layer, QUIRE_SIDE_V, head);
    const quire_tile_kind kind = { layer->v_store.format, QUIRE_SIDE_V, layer->d_v };
    uint32_t to = t->begin;

    put(s, &side, t->end, t->begin + t->n_kept);
    for (uint32_t from = t->begin; from < t->end; from++) {
        if (is_kept[from - t->begin]) {
            quire_tile_slot_copy(&kind, quire_runtime_tile(&s->read, from / TILE, 0), from % TILE,
                                 quire_runtime_tile(&s->write, to / TILE, 0), to % TILE);
            to++;
        }
    }
}

static void thin_lanes(quire_shift *s, const thin_room *room, const quire_thinning *t)
{
    const bool *is_kept = t->is_kept;

    for (uint32_t i = 0; i < quire_runtime_n_lanes(s->rt); i++, is_kept += t->end - t->begin) {
        const quire_runtime_lane lane = quire_runtime_lane_at(s->rt, i);
        quire_attn_layer layer;

        quire_shift_enter(s, lane.layer, &layer);
        thin_k(s, room, t, &layer, lane.head, is_kept);
        thin_v(s, t, &layer, lane.head, is_kept);
    }
}

int quire_runtime_thin(quire_runtime *rt, quire_seq_id seq, const quire_thinning *t, bool *is_torn)
{
    const uint32_t n_tokens = quire_seq_tokens(rt->cache, seq);
    thin_room room = { 0 };
    quire_shift s;
    int rc;

    *is_torn = false;
    QUIRE_TRY(quire_runtime_rows_check(rt));
    QUIRE_FAIL_IF(rt->groups.hot != 0, QUIRE_UNSUPP);
    QUIRE_FAIL_IF(t->begin > t->end || t->n_kept > t->end - t->begin || t->begin % TILE != 0 ||
                      t->n_kept % TILE != 0,
                  QUIRE_INVAL);
    rc = shift_begin(&s, rt, seq, t->begin + t->n_kept, t->end);
    s.to = s.from;
    rc = rc == QUIRE_OK ? room_init(&room, &s) : rc;
    if (rc == QUIRE_OK && s.delta > 0) {
        thin_lanes(&s, &room, t);
        rc = move_tokens(&s, t->end, n_tokens);
    }
    room_fini(&room);
    *is_torn = shift_end(&s) && rc < 0;
    return rc == QUIRE_OK ? quire_seq_truncate(rt->cache, seq, n_tokens - s.delta) : rc;
}

/* ---- a move into other pages ---- */

/* Move the tokens from `end` on into pages that `to` gets one by one. Before each page but the
 * first, `from` gives up the pages that were read and those of the tokens that leave. */
static int move_away(quire_shift *s, quire_seq_id from, quire_seq_id to, uint32_t end,
                     bool *is_torn)
{
    const uint32_t page_tokens = s->rt->opts.page_tokens;
    const uint32_t n_tokens = quire_seq_tokens(s->rt->cache, from);
    quire_cache *cache = s->rt->cache;

    for (uint32_t t = end; t < n_tokens;) {
        const uint32_t n_room = page_tokens - (t - s->delta) % page_tokens;
        const uint32_t n = n_tokens - t < n_room ? n_tokens - t : n_room;

        if (t > end) {
            uint32_t n_released = 0;

            QUIRE_TRY(quire_seq_release(cache, from, QUIRE_KV_GROUP_MAIN, end - s->delta, t,
                                        &n_released));
            *is_torn = *is_torn || n_released > 0;
        }
        QUIRE_TRY(quire_seq_reserve(cache, to, n));
        QUIRE_TRY(quire_seq_append(cache, to, n));
        QUIRE_TRY(quire_seq_table_get(cache, from, QUIRE_KV_GROUP_MAIN, &s->from));
        QUIRE_TRY(quire_seq_table_get(cache, to, QUIRE_KV_GROUP_MAIN, &s->to));
        QUIRE_TRY(move_tokens(s, t, t + n));
        t += n;
    }
    return QUIRE_OK;
}

int quire_runtime_shift_away(quire_runtime *rt, quire_seq_id seq, uint32_t begin, uint32_t end,
                             quire_seq_id *out, bool *is_torn)
{
    quire_seq_id to = QUIRE_SEQ_NULL;
    quire_shift s;
    int rc;

    *out = QUIRE_SEQ_NULL;
    *is_torn = false;
    quire_runtime_cool(rt, seq);
    rc = shift_begin(&s, rt, seq, begin, end);
    rc = rc == QUIRE_OK ? quire_seq_fork(rt->cache, seq, &to) : rc;
    if (rc == QUIRE_OK && rt->groups.hot != 0) {
        rc = quire_shift_sealed_away(&s, seq, to, is_torn);
    } else if (rc == QUIRE_OK) {
        rc = quire_seq_truncate(rt->cache, to, begin);
        rc = rc == QUIRE_OK ? move_away(&s, seq, to, end, is_torn) : rc;
    }
    (void)shift_end(&s);
    if (rc < 0 && to != QUIRE_SEQ_NULL) {
        (void)quire_seq_close(rt->cache, to);
    } else if (rc == QUIRE_OK) {
        *out = to;
    }
    return rc;
}
