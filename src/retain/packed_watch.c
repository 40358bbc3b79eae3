/* packed_watch.c - attention that the rows of a step pay to tokens of a lane: of rows that repeat a
 * part of a text, and of all rows of a text that sums it up. See packed_device.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/packed_device_internal.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define TILE QUIRE_TILE_TOKENS

/* The worker keeps its old memory if the memory for more is missing: other requests need it. */
static int worker_watch(quire_packed_worker *w, uint32_t n_watched, uint32_t group, uint32_t d_k)
{
    quire_watch_room room;

    if (w->watched.n_max >= n_watched) {
        return QUIRE_OK;
    }
    if (w->tile == NULL) {
        w->tile = malloc((size_t)TILE * d_k * sizeof *w->tile);
        QUIRE_FAIL_IF(w->tile == NULL, QUIRE_NOMEM);
    }
    if (quire_watch_room_init(&room, n_watched, group, d_k) < 0) {
        quire_watch_room_fini(&room);
        return QUIRE_NOMEM;
    }
    quire_watch_room_fini(&w->watched);
    w->watched = room;
    return QUIRE_OK;
}

int quire_packed_device_watch(quire_packed_device *d, uint32_t n_watched)
{
    for (uint32_t i = 0; i < d->n_threads; i++) {
        QUIRE_TRY(worker_watch(&d->workers[i], n_watched, d->group, d->packing.layers[0].d_k));
    }
    return QUIRE_OK;
}

/* A lane of a sequence whose rows are watched. */
typedef struct watched_lane {
    const quire_packed_device *d;
    const quire_attn_seq *seq;
    quire_packed_pages pages;
    uint32_t lane;
    uint32_t n_packed; /* tokens */
    quire_packed_worker *w;
} watched_lane;

/* On a device one thread at a time has the keys' window. */
static void keys_begin(const quire_packed_device *d)
{
    if (d->queue != NULL) {
        (void)pthread_mutex_lock(&d->queue->lock);
    }
}

static void keys_end(quire_packed_device *d)
{
    if (d->queue != NULL) {
        if (d->queue->status < 0) {
            atomic_store_explicit(&d->status, d->queue->status, memory_order_relaxed);
        }
        (void)pthread_mutex_unlock(&d->queue->lock);
    }
}

/* K of a lane's tile, in a full page if it is not packed. */
static quire_tile_view key_view(const watched_lane *r, uint32_t t)
{
    const quire_packing *p = &r->d->packing;
    const quire_packed_text *text = quire_packed_text_of(r->seq);
    const uint32_t tiles = p->page_tokens / TILE;
    quire_tile_view view = { .format = p->layers[0].k_store.format };
    uint32_t full, entry;
    quire_page_id id;

    if (r->d->queue != NULL) {
        return quire_packed_window_view(&r->d->queue->keys, t);
    }
    if (t < r->n_packed / TILE) {
        view.tile = quire_packed_tile(p, &r->pages, &text->lanes, text->lanes.first[r->lane] + t,
                                      QUIRE_SIDE_K);
        return view;
    }
    full = t - r->n_packed / TILE;
    entry = text->lanes.n_pages + full / tiles;
    id = quire_packed_entry(r->seq, entry)->page;
    return quire_full_view(p, &r->d->batch.page_addr[id], quire_packed_hot_of(r->d, r->seq, entry),
                           r->lane, full % tiles, QUIRE_SIDE_K);
}

/* Add the lane's tokens [from, to) to the watched ones. */
static void gather(const watched_lane *r, uint32_t from, uint32_t to, quire_watch *watch)
{
    const quire_tile_rows rows = { .d = watch->one->d_k,
                                   .n_tokens = TILE,
                                   .stride = watch->one->d_k };

    if (r->d->queue != NULL) {
        const quire_packing *p = &r->d->packing;

        quire_packed_window_put(
            &r->d->queue->keys, &r->pages,
            quire_packing_is_sealed(p) ? r->seq->tables[p->hot_group].leaves : NULL,
            &quire_packed_text_of(r->seq)->lanes, r->lane, QUIRE_SIDE_K, (to + TILE - 1) / TILE);
    }
    while (from < to) {
        const uint32_t slot = from % TILE;
        const uint32_t n = to - from < TILE - slot ? to - from : TILE - slot;
        const quire_watch_room *room = &r->w->watched;
        const quire_tile_view view = key_view(r, from / TILE);

        quire_codec_get()->decode_k(view.format, &rows, view.tile, r->w->tile);
        memcpy(room->keys + (size_t)watch->n * rows.d, r->w->tile + (size_t)slot * rows.d,
               (size_t)n * rows.d * sizeof *room->keys);
        for (uint32_t i = 0; i < n; i++) {
            room->positions[watch->n + i] = (int32_t)(from + i);
        }
        watch->n += n;
        from += n;
    }
}

static watched_lane lane_of(const quire_packed_device *d, quire_packed_worker *w,
                            const quire_attn_seq *seq, uint32_t lane)
{
    const quire_packed_lanes *lanes = &quire_packed_text_of(seq)->lanes;

    return (watched_lane){ .d = d,
                           .seq = seq,
                           .pages = { .leaves = seq->tables[0].leaves,
                                      .addrs = d->batch.page_addr,
                                      .n = lanes->n_pages },
                           .lane = lane,
                           .n_packed = (lanes->first[lane + 1] - lanes->first[lane]) * TILE,
                           .w = w };
}

/* The lane's tokens, those of the step's rows included. Watched tokens are counted within the
 * lane: all its tokens come before the rows, and their positions in the text do not matter. */
static uint32_t n_tokens_of(const watched_lane *r)
{
    const uint32_t n_pages = quire_packed_text_of(r->seq)->lanes.n_pages;

    return r->n_packed + r->seq->n_tokens - n_pages * r->d->packing.page_tokens;
}

void quire_packed_repeat(quire_packed_device *d, quire_packed_worker *w, const quire_attn_seq *seq,
                         const quire_attn_layer *one, uint32_t lane)
{
    const quire_packed_text *text = quire_packed_text_of(seq);
    const watched_lane r = lane_of(d, w, seq, lane);
    const uint32_t end = text->n_gone + seq->n_tokens; /* position behind the rows */
    const uint32_t n = n_tokens_of(&r);
    const uint32_t first = n - (end - text->repeat_begin);
    quire_watch watch = { .one = one,
                          .group = d->group,
                          .first_row = seq->first_row,
                          .n_rows = seq->n_rows,
                          .first_at = n - seq->n_rows,
                          .at = text->n_sinks < first ? text->n_sinks : first,
                          .n_worth = text->repeat_end - text->repeat_begin };

    keys_begin(d);
    gather(&r, 0, watch.at, &watch);
    gather(&r, first, first + watch.n_worth, &watch);
    gather(&r, n - (end - text->repeat_at), n, &watch);
    keys_end(d);
    quire_watch_rows(&watch, &w->watched,
                     text->worth + (size_t)lane * text->n_worth +
                         text->repeat_begin % text->n_worth);
}

void quire_packed_attention_add(quire_packed_device *d, quire_packed_worker *w,
                                const quire_attn_seq *seq, const quire_attn_layer *one,
                                uint32_t lane, uint32_t skip)
{
    const quire_packed_text *text = quire_packed_text_of(seq);
    const watched_lane r = lane_of(d, w, seq, lane);
    const uint32_t n = n_tokens_of(&r);
    quire_watch watch = { .one = one,
                          .group = d->group,
                          .first_row = seq->first_row + skip,
                          .n_rows = seq->n_rows - skip,
                          .first_at = n - seq->n_rows + skip,
                          .n_worth = n,
                          .is_sum = true };

    keys_begin(d);
    gather(&r, 0, n, &watch);
    keys_end(d);
    quire_watch_rows(&watch, &w->watched, quire_packed_sums_attention(text, lane));
}
