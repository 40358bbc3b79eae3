/* runtime_shift_sealed.c - moves of tokens whose formats are sealed.
 *
 * Near the end and near the beginning of a text a tile has its hot form beside the sealed one.
 *
 *   before   [ kept | leave | sealed alone             | hot as well, to the end ]
 *   after    [ kept | sealed alone             | hot as well, to the end ]
 *
 * K of a moved tile is decoded from its hot form if it has one, turned, coded in 8 bits, and sealed
 * from these 8 bits, as new tokens are. Without a hot form K is decoded from the sealed one, turned
 * and sealed again. V moves byte for byte in both forms. A hot page holds the hot form of all its
 * tiles; a tile that has none gets one from its sealed form.
 *
 * In place the hot pages to come are holes, and the hot pages that are there lie behind them. So
 * the pages from the first hot one on are made in a buffer; then the sequence is cut before them
 * and gets new pages.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime_shift_internal.h"

#include "base/check.h"
#include "base/num.h"
#include "codec/tile_side.h"
#include "model/model_internal.h"
#include "model/runtime_internal.h"

#include <stdlib.h>
#include <string.h>

#define TILE QUIRE_TILE_TOKENS

/* Counts of tiles, unless they say otherwise. */
typedef struct move {
    quire_shift *s;
    uint32_t page;      /* of a page */
    uint32_t begin;     /* before the first that moves, afterwards */
    uint32_t delta;     /* that leave */
    uint32_t n_tokens;  /* afterwards */
    uint32_t n;         /* afterwards */
    uint32_t first_hot; /* before: from this one on all that move have a hot form */
} move;

/* The two forms of a tile, or NULL. */
typedef struct forms {
    unsigned char *main;
    unsigned char *hot;
} forms;

static bool has_page(const quire_seq_table *table, uint32_t i)
{
    return table->leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES].page != QUIRE_PAGE_NULL;
}

static move move_of(quire_shift *s, uint32_t n_before_tokens)
{
    const uint32_t page = s->rt->opts.page_tokens / TILE;
    const uint32_t n_tokens = n_before_tokens - s->delta;
    uint32_t i = s->from_hot.n_entries;

    while (i > 0 && has_page(&s->from_hot, i - 1)) {
        i--;
    }
    return (move){ .s = s,
                   .page = page,
                   .begin = s->begin / TILE,
                   .delta = s->delta / TILE,
                   .n_tokens = n_tokens,
                   .n = (n_tokens + TILE - 1) / TILE,
                   .first_hot = quire_max_u32(i * page, (s->begin + s->delta) / TILE) };
}

/* Where tile i was before. */
static uint32_t before(const move *m, uint32_t i)
{
    return i < m->begin ? i : i + m->delta;
}

/* Whether tile i had a hot form before. */
static bool was_hot(const move *m, uint32_t i)
{
    return i < m->begin ? has_page(&m->s->from_hot, i / m->page) : i + m->delta >= m->first_hot;
}

/* Whether the page of tile i is hot as well: open, or with a tile that was. */
static bool is_hot_page(const move *m, uint32_t i)
{
    const uint32_t first = i / m->page * m->page, end = first + m->page;

    if (end * TILE > m->n_tokens) {
        return true;
    }
    for (i = first; i < end; i++) {
        if (was_hot(m, i)) {
            return true;
        }
    }
    return false;
}

/* ---- a tile ---- */

/* Tile i of one head of a side. */
typedef struct one {
    quire_tile_side side;
    quire_tile_rows rows;
    bool turns;
} one;

static void decode(const one *t, const forms *from, float *rows)
{
    const quire_format format = from->hot != NULL ? QUIRE_FORMAT_HOT : t->side.format;

    (t->side.side == QUIRE_SIDE_K ? t->side.codec->decode_k : t->side.codec->decode_v)(
        format, &t->rows, from->hot != NULL ? from->hot : from->main, rows);
}

/* K, turned. */
static void turn(const move *m, const quire_attn_layer *layer, const one *t, const forms *from,
                 const forms *to)
{
    float *rows = m->s->rows;

    decode(t, from, rows);
    for (uint32_t i = 0; i < t->rows.n_tokens; i++) {
        quire_shift_turn(m->s, &layer->k_store, layer->d_k, m->s->turns,
                         rows + (size_t)i * layer->d_k);
    }
    if (to->hot != NULL) {
        quire_tile_encode(&t->side, QUIRE_FORMAT_HOT, &t->rows, rows, to->hot);
    }
    if (to->main != NULL && from->hot != NULL) {
        quire_tile_seal(&t->side, to->hot, to->main, rows);
    } else if (to->main != NULL) {
        quire_tile_encode(&t->side, t->side.format, &t->rows, rows, to->main);
    }
}

static void copy(const move *m, const one *t, const forms *from, const forms *to)
{
    const quire_tile_side *s = &t->side;

    if (to->main != NULL) {
        memcpy(to->main, from->main, quire_tile_bytes(s->format, s->side, s->d));
    }
    if (to->hot != NULL && from->hot != NULL) {
        memcpy(to->hot, from->hot, quire_tile_bytes(QUIRE_FORMAT_HOT, s->side, s->d));
    } else if (to->hot != NULL) {
        decode(t, from, m->s->rows);
        quire_tile_encode(s, QUIRE_FORMAT_HOT, &t->rows, m->s->rows, to->hot);
    }
}

static void make(const move *m, const quire_attn_layer *layer, const one *t, const forms *from,
                 const forms *to)
{
    QUIRE_CHECK(from->hot != NULL || from->main != NULL); /* an open tile is hot */
    if (!t->turns) {
        copy(m, t, from, to);
    } else if (quire_format_is_sealed(t->side.format)) {
        turn(m, layer, t, from, to);
    } else {
        quire_shift_k(m->s, layer, from->main, to->main, t->rows.n_tokens);
    }
}

/* ---- a range of tiles ---- */

typedef enum range_use {
    IN_PAGES,
    TO_BUFFER,
    FROM_BUFFER
} range_use;

/* Tiles [first, end) afterwards. */
typedef struct range {
    uint32_t first;
    uint32_t end;
    bool is_hot; /* their pages are hot as well */
    range_use use;
    unsigned char *buffer;
    size_t at; /* of the tile at hand, there */
} range;

/* A side of a layer, with the sizes of its tiles. */
typedef struct whole_side {
    const quire_attn_layer *layer;
    quire_tile_side side;
    quire_runtime_side main;
    quire_runtime_side hot;
    bool is_sealed;
} whole_side;

static whole_side side_of(const quire_attn_layer *layer, quire_side side)
{
    const bool is_k = side == QUIRE_SIDE_K;
    const quire_format format = is_k ? layer->k_store.format : layer->v_store.format;

    return (
        whole_side){ .layer = layer,
                     .side = { quire_codec_get(), side, format, is_k ? layer->d_k : layer->d_v },
                     .main = quire_runtime_side_of(layer, side),
                     .hot = quire_runtime_side_of_hot(layer, side),
                     .is_sealed = quire_format_is_sealed(format) };
}

/* The forms of the tile at hand in the buffer; goes on to the next one. */
static forms in_buffer(range *r, const whole_side *s, bool is_hot)
{
    forms f = { r->buffer + r->at, NULL };

    r->at += s->main.tile_bytes;
    if (is_hot) {
        f.hot = r->buffer + r->at;
        r->at += s->hot.tile_bytes;
    }
    return f;
}

/* Tile i of all heads. A tile that is not full has no sealed form. */
static void tile_run(const move *m, const whole_side *s, range *r, uint32_t i)
{
    quire_shift *shift = m->s;
    const uint32_t n = quire_min_u32(m->n_tokens - i * TILE, TILE);
    const bool has_main = n == TILE || !s->is_sealed;
    const bool is_hot = s->is_sealed && r->is_hot;
    const bool reads_hot = is_hot && r->use != FROM_BUFFER && was_hot(m, i);
    const one t = { .side = s->side,
                    .rows = { .d = s->side.d, .n_tokens = n, .stride = s->side.d },
                    .turns = s->side.side == QUIRE_SIDE_K && shift->has_rope && i >= m->begin &&
                             m->delta > 0 };

    /* To a device a run of one tile: there may be holes before and behind. */
    if (reads_hot) {
        quire_runtime_tiles_put(&shift->read_hot, &shift->from_hot, &s->hot,
                                (before(m, i) + 1) * TILE);
    }
    if (is_hot && r->use != TO_BUFFER) {
        quire_runtime_tiles_put(&shift->write_hot, &shift->to_hot, &s->hot, (i + 1) * TILE);
    }
    for (uint32_t g = 0; g < s->main.n_heads; g++) {
        forms from = { NULL, NULL }, to = { NULL, NULL };

        if (r->use == FROM_BUFFER) {
            from = in_buffer(r, s, is_hot);
        } else {
            from.main = has_main ? quire_runtime_tile(&shift->read, before(m, i), g) : NULL;
            from.hot = reads_hot ? quire_runtime_tile(&shift->read_hot, before(m, i), g) : NULL;
        }
        if (r->use == TO_BUFFER) {
            to = in_buffer(r, s, is_hot);
        } else {
            to.main = has_main ? quire_runtime_tile(&shift->write, i, g) : NULL;
            to.hot = is_hot ? quire_runtime_tile(&shift->write_hot, i, g) : NULL;
        }
        to.main = has_main ? to.main : NULL;
        if (r->use == FROM_BUFFER) {
            copy(m, &t, &from, &to);
        } else {
            make(m, s->layer, &t, &from, &to);
        }
    }
}

static void side_run(const move *m, const quire_attn_layer *layer, quire_side side, range *r)
{
    const whole_side s = side_of(layer, side);

    if (r->use != FROM_BUFFER) {
        quire_runtime_tiles_put(&m->s->read, &m->s->from, &s.main,
                                (before(m, r->end - 1) + 1) * TILE);
    }
    if (r->use != TO_BUFFER) {
        quire_runtime_tiles_put(&m->s->write, &m->s->to, &s.main, r->end * TILE);
    }
    for (uint32_t i = r->first; i < r->end; i++) {
        tile_run(m, &s, r, i);
    }
}

/* Errors: those of copies. */
static int range_run(const move *m, range *r)
{
    const quire_model_desc *desc = &m->s->rt->model->desc;

    r->at = 0;
    for (uint32_t il = 0; il < desc->n_layer && r->first < r->end; il++) {
        quire_attn_layer layer;

        if (desc->kv_map[il].stored >= 0) {
            quire_shift_enter(m->s, il, &layer);
            side_run(m, &layer, QUIRE_SIDE_K, r);
            side_run(m, &layer, QUIRE_SIDE_V, r);
        }
    }
    quire_tile_window_flush(&m->s->write.window);
    quire_tile_window_flush(&m->s->write_hot.window);
    return m->s->status;
}

/* Errors: QUIRE_NOMEM. Memory: free(buffer). */
static int buffer_make(const move *m, range *r)
{
    const quire_model_desc *desc = &m->s->rt->model->desc;
    size_t n_bytes = 0;

    for (uint32_t il = 0; il < desc->n_layer; il++) {
        quire_attn_layer layer;

        quire_shift_enter(m->s, il, &layer);
        for (uint32_t i = 0; i < 2 && desc->kv_map[il].stored >= 0; i++) {
            const whole_side s = side_of(&layer, i == 0 ? QUIRE_SIDE_K : QUIRE_SIDE_V);

            n_bytes += s.main.n_heads * (s.main.tile_bytes + s.hot.tile_bytes);
        }
    }
    r->buffer = r->first < r->end ? aligned_alloc(64, (r->end - r->first) * n_bytes) : NULL;
    return r->first == r->end || r->buffer != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

/* ---- in place ---- */

/* Tiles that move, up to `end`, whose pages stay. Their hot pages were those of other tokens, and
 * go; a page in which tokens stay keeps its own. */
static int lower_part(const move *m, quire_seq_id seq, uint32_t end)
{
    const uint32_t rest = (m->begin + m->page - 1) / m->page * m->page;
    range shared = { .first = m->begin, .end = rest, .is_hot = is_hot_page(m, m->begin) };
    range own = { .first = rest, .end = end };

    if (end <= m->begin) {
        return QUIRE_OK;
    }
    QUIRE_TRY(range_run(m, &shared)); /* nothing, if the first one begins a page */
    QUIRE_TRY(range_run(m, &own));
    return quire_seq_release(m->s->rt->cache, seq, m->s->rt->groups.hot, rest * TILE, end * TILE,
                             NULL);
}

static int tables_get(quire_shift *s, quire_seq_id seq)
{
    QUIRE_TRY(quire_seq_table_get(s->rt->cache, seq, QUIRE_KV_GROUP_MAIN, &s->to));
    return quire_seq_table_get(s->rt->cache, seq, s->rt->groups.hot, &s->to_hot);
}

/* New pages for the tiles in the buffer, behind those before. */
static int upper_part(const move *m, quire_seq_id seq, range *tail)
{
    quire_cache *cache = m->s->rt->cache;
    const uint32_t n = m->n_tokens - tail->first * TILE;

    QUIRE_TRY(quire_seq_truncate(cache, seq, tail->first * TILE));
    if (n == 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_seq_reserve(cache, seq, n)); /* no more than were there */
    QUIRE_TRY(quire_seq_append(cache, seq, n));
    QUIRE_TRY(tables_get(m->s, seq));
    tail->use = FROM_BUFFER;
    return range_run(m, tail);
}

int quire_shift_sealed(quire_shift *s, quire_seq_id seq, bool *has_cut)
{
    const move m = move_of(s, quire_seq_tokens(s->rt->cache, seq));
    const uint32_t n_whole = m.n_tokens / TILE;
    const uint32_t cut = quire_min_u32(m.first_hot - m.delta, n_whole) / m.page * m.page;
    range tail = { .first = cut, .end = m.n, .is_hot = true, .use = TO_BUFFER };
    int rc = buffer_make(&m, &tail);

    rc = rc == QUIRE_OK ? range_run(&m, &tail) : rc;
    if (rc == QUIRE_OK) {
        *has_cut = true;
        s->to = s->from;
        s->to_hot = s->from_hot;
        rc = lower_part(&m, seq, cut);
    }
    rc = rc == QUIRE_OK ? upper_part(&m, seq, &tail) : rc;
    free(tail.buffer);
    return rc;
}

/* ---- into other pages ---- */

/* Give up the pages that were read, and those of the tokens that leave, up to the tile `end`. */
static int give_up(const move *m, quire_seq_id from, uint32_t end, bool *is_torn)
{
    const quire_group_id groups[] = { QUIRE_KV_GROUP_MAIN, m->s->rt->groups.hot };

    for (uint32_t i = 0; i < 2; i++) {
        uint32_t n = 0;

        QUIRE_TRY(
            quire_seq_release(m->s->rt->cache, from, groups[i], m->begin * TILE, end * TILE, &n));
        *is_torn = *is_torn || n > 0;
    }
    return QUIRE_OK;
}

/* The page of tile `first`, its first one. */
static int page_away(const move *m, quire_seq_id from, quire_seq_id to, uint32_t first)
{
    quire_shift *s = m->s;
    quire_cache *cache = s->rt->cache;
    const uint32_t n = quire_min_u32(m->n_tokens - first * TILE, m->page * TILE);
    range r = { .first = first, .end = first + (n + TILE - 1) / TILE };

    QUIRE_TRY(quire_seq_reserve(cache, to, n));
    QUIRE_TRY(quire_seq_append(cache, to, n));
    QUIRE_TRY(quire_seq_table_get(cache, from, QUIRE_KV_GROUP_MAIN, &s->from));
    QUIRE_TRY(quire_seq_table_get(cache, from, s->rt->groups.hot, &s->from_hot));
    QUIRE_TRY(tables_get(s, to));
    r.is_hot = is_hot_page(m, first);
    QUIRE_TRY(range_run(m, &r));
    return r.is_hot ? QUIRE_OK
                    : quire_seq_release(cache, to, s->rt->groups.hot, first * TILE,
                                        first * TILE + n, NULL);
}

int quire_shift_sealed_away(quire_shift *s, quire_seq_id from, quire_seq_id to, bool *is_torn)
{
    const move m = move_of(s, quire_seq_tokens(s->rt->cache, from));
    const uint32_t first = m.begin / m.page * m.page;

    /* The hot page before `begin` may be a hole, behind which nothing can be appended. */
    QUIRE_TRY(quire_seq_truncate(s->rt->cache, to, first * TILE));
    for (uint32_t i = first; i < m.n; i += m.page) {
        if (i > first) {
            QUIRE_TRY(give_up(&m, from, before(&m, i), is_torn));
        }
        QUIRE_TRY(page_away(&m, from, to, i));
    }
    return QUIRE_OK;
}
