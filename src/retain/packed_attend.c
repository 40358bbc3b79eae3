/* packed_attend.c - bounds of full tiles, and rows that read the pages that they may need most. See
 * packed_device.h.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/packed_device_internal.h"

#define TILE QUIRE_TILE_TOKENS

bool quire_packed_attends(const quire_attn_seq *seq)
{
    const quire_packed_text *text = quire_packed_text_of(seq);

    return quire_attends(text->attend_share) && seq->n_tokens > text->attend_from;
}

bool quire_packed_chooses(const quire_attn_seq *seq)
{
    const quire_packed_text *text = quire_packed_text_of(seq);

    return text != NULL && quire_attends(text->attend_share) &&
           seq->n_tokens - seq->n_rows >= text->attend_from;
}

void quire_packed_bound(const quire_packed_device *d, quire_packed_worker *w,
                        const quire_attn_seq *seq, uint32_t lane)
{
    const quire_packing *p = &d->packing;
    const uint32_t d_k = p->layers[0].d_k, tiles = p->page_tokens / TILE;
    const quire_tile_rows rows = { .d = d_k, .n_tokens = TILE, .stride = d_k };

    for (uint32_t t = (seq->n_tokens - seq->n_rows) / TILE;
         p->bounds_bytes > 0 && t < seq->n_tokens / TILE; t++) {
        const quire_page_id id = quire_packed_entry(seq, t / tiles)->page;
        const quire_page_addr *addr = &d->batch.page_addr[id];
        /* Of a sealed format: as the tokens came, in 8 bits. */
        const quire_tile_view k = quire_full_view(p, addr, quire_packed_hot_of(d, seq, t / tiles),
                                                  lane, t % tiles, QUIRE_SIDE_K);
        uint16_t *bounds = quire_full_bounds(p, addr, lane, t % tiles);

        quire_codec_get()->decode_k(k.format, &rows, k.tile, w->tile);
        for (uint32_t i = 0; i < TILE; i++) {
            quire_page_bounds_add(bounds, d_k, w->tile + (size_t)i * d_k, i == 0);
        }
    }
}

/* Rows [first, first + n) of a sequence's rows in the step. */
static quire_attn_seq rows_of(const quire_attn_seq *seq, uint32_t first, uint32_t n)
{
    quire_attn_seq part = *seq;

    part.first_row += first;
    part.n_rows = n;
    part.n_tokens -= seq->n_rows - first - n;
    return part;
}

/* The bounds of a lane's tile, which are in memory also when the page is not. */
static const uint16_t *bounds_at(const quire_packed_device *d, quire_page_id page, uint32_t lane,
                                 uint32_t tile)
{
    const uint32_t tiles = d->packing.page_tokens / TILE;
    const char *kept =
        d->elsewhere.bounds != NULL ? d->elsewhere.bounds(d->elsewhere.ctx, page) : NULL;

    if (kept == NULL) {
        return quire_full_bounds(&d->packing, &d->batch.page_addr[page], lane, tile);
    }
    return (const uint16_t *)(const void *)(kept + (lane % d->packing.n_kv_head * tiles + tile) *
                                                       d->packing.bounds_bytes);
}

/* The pages of the tiles whose ranks are the worker's first n must be in memory. */
static void need_pages(const quire_packed_device *d, const quire_packed_worker *w,
                       const quire_attn_seq *seq, uint32_t n)
{
    const uint32_t tiles = d->packing.page_tokens / TILE;

    if (d->elsewhere.need == NULL) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        w->chosen[i] = quire_packed_entry(seq, w->ranks[i].entry / tiles)->page;
    }
    d->elsewhere.need(d->elsewhere.ctx, w->chosen, n);
}

/* Attention of one row, on the tiles that it chooses. */
static void attend_row(quire_packed_device *d, quire_packed_worker *w, const quire_attn_seq *seq,
                       const quire_attn_layer *one, uint32_t lane)
{
    const quire_packed_text *text = quire_packed_text_of(seq);
    const uint32_t tiles = d->packing.page_tokens / TILE;
    const uint32_t n_held = (seq->n_tokens + TILE - 1) / TILE;
    const uint32_t n = quire_pages_read(text->attend_share, n_held);

    for (uint32_t t = 0; t < n_held; t++) {
        const quire_page_id id = quire_packed_entry(seq, t / tiles)->page;

        w->ranks[t].bounds = bounds_at(d, id, lane, t % tiles);
    }
    quire_pages_choose(w->ranks, n_held, n, one, d->group,
                       one->q[0] + seq->first_row * one->q_stride);
    need_pages(d, w, seq, n);
    w->n_held += n_held;
    w->n_read += n;
    if (quire_packed_job_begin_on(d, w, seq, lane, n)) {
        quire_attn_run(w->workspace, one, 0, 0, 1);
    }
}

void quire_packed_attend(quire_packed_device *d, quire_packed_worker *w, const quire_attn_seq *seq,
                         const quire_attn_layer *one, uint32_t lane)
{
    const quire_packed_text *text = quire_packed_text_of(seq);
    const uint32_t begin = seq->n_tokens - seq->n_rows;
    uint32_t n_dense = text->attend_from > begin ? text->attend_from - begin : 0;

    if (lane / d->packing.n_kv_head < QUIRE_ATTEND_DENSE) {
        n_dense = seq->n_rows;
    }
    if (n_dense > 0) {
        const quire_attn_seq dense = rows_of(seq, 0, n_dense);

        if (quire_packed_job_begin(d, w, &dense, lane, false)) {
            quire_attn_run(w->workspace, one, 0, 0, 1);
        }
    }
    for (uint32_t i = n_dense; i < seq->n_rows; i++) {
        const quire_attn_seq row = rows_of(seq, i, 1);

        attend_row(d, w, &row, one, lane);
    }
}
