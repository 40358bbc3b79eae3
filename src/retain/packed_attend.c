/* packed_attend.c - rows that read the pages that they may need most. See packed_device.h.
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

quire_attn_seq quire_packed_rows_of(const quire_attn_seq *seq, uint32_t first, uint32_t n)
{
    quire_attn_seq part = *seq;

    part.first_row += first;
    part.n_rows = n;
    part.n_tokens -= seq->n_rows - first - n;
    return part;
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

uint32_t quire_packed_row_choose(const quire_packed_device *d, quire_packed_worker *w,
                                 const quire_attn_seq *seq, const quire_attn_layer *one,
                                 uint32_t lane)
{
    const uint32_t n_held = (seq->n_tokens + TILE - 1) / TILE;
    const uint32_t n = quire_pages_read(quire_packed_text_of(seq)->attend_share, n_held);

    for (uint32_t t = 0; t < n_held; t++) {
        w->ranks[t].bounds = quire_packed_bounds_at(d, seq, lane, t);
    }
    quire_pages_choose(w->ranks, n_held, n, one, d->group,
                       one->q[0] + seq->first_row * one->q_stride);
    w->n_held += n_held;
    w->n_read += n;
    return n;
}

/* Attention of one row, on the tiles that it chooses. */
static void attend_row(quire_packed_device *d, quire_packed_worker *w, const quire_attn_seq *seq,
                       const quire_attn_layer *one, uint32_t lane)
{
    const uint32_t n = quire_packed_row_choose(d, w, seq, one, lane);

    need_pages(d, w, seq, n);
    if (quire_packed_job_begin_on(d, w, seq, lane, n)) {
        quire_attn_run(w->workspace, one, 0, 0, 1);
    }
}

uint32_t quire_packed_n_dense(const quire_packed_device *d, const quire_attn_seq *seq,
                              uint32_t lane)
{
    const quire_packed_text *text = quire_packed_text_of(seq);
    const uint32_t begin = seq->n_tokens - seq->n_rows;

    if (!quire_packed_attends(seq) || lane / d->packing.n_kv_head < QUIRE_ATTEND_DENSE) {
        return seq->n_rows;
    }
    return text->attend_from > begin ? text->attend_from - begin : 0;
}

void quire_packed_attend(quire_packed_device *d, quire_packed_worker *w, const quire_attn_seq *seq,
                         const quire_attn_layer *one, uint32_t lane)
{
    const uint32_t n_dense = quire_packed_n_dense(d, seq, lane);

    if (n_dense > 0) {
        const quire_attn_seq dense = quire_packed_rows_of(seq, 0, n_dense);
        const quire_attn_seq *seqs = &dense;

        if (quire_packed_job_begin(d, w, &seqs, 1, lane, false)) {
            quire_attn_run(w->workspace, one, 0, 0, 1);
        }
    }
    for (uint32_t i = n_dense; i < seq->n_rows; i++) {
        const quire_attn_seq row = quire_packed_rows_of(seq, i, 1);

        attend_row(d, w, &row, one, lane);
    }
}
