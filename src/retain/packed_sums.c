/* packed_sums.c - sums over the rows of a text between two condensings. See packed_device.h.
 *
 * Rows are added in the order of their positions, each once, so the sums do not depend on the steps
 * that the rows came in.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/packed_device_internal.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define TILE QUIRE_TILE_TOKENS

/* ---- memory ---- */

static size_t n_heads_of(const quire_packing *packing)
{
    return (size_t)packing->n_layers * packing->layers[0].n_head;
}

uint64_t quire_packed_sums_bytes(const quire_packed_text_opts *o)
{
    const uint64_t n_lanes = quire_packing_n_lanes(o->packing);
    uint64_t floats = 0;

    if (o->rotation == NULL && o->n_summed == 0) {
        return 0;
    }
    if (o->rotation != NULL) {
        floats += n_heads_of(o->packing) * quire_query_sums_floats(o->packing->layers[0].d_k);
    }
    if (o->n_summed > 0) {
        floats += n_lanes * o->n_summed + o->n_summed_packed;
    }
    return floats * sizeof(float) + n_lanes * sizeof(uint32_t);
}

int quire_packed_sums_init(quire_packed_sums *sums, const quire_packed_text_opts *o)
{
    const size_t n_heads = n_heads_of(o->packing), d = o->packing->layers[0].d_k;

    *sums = (quire_packed_sums){ .rotation = o->rotation, .n_chunk = o->n_summed };
    if (o->rotation == NULL && o->n_summed == 0) {
        return QUIRE_OK;
    }
    sums->ends = calloc(quire_packing_n_lanes(o->packing), sizeof *sums->ends);
    QUIRE_FAIL_IF(sums->ends == NULL, QUIRE_NOMEM);
    if (o->rotation != NULL) {
        QUIRE_CHECK(o->rotation->d == d && d <= QUIRE_QUERY_SUMS_D_MAX);
        sums->queries = malloc(n_heads * d * sizeof *sums->queries);
        sums->products = malloc(n_heads * d * d * sizeof *sums->products);
        QUIRE_FAIL_IF(sums->queries == NULL || sums->products == NULL, QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

void quire_packed_sums_fini(quire_packed_sums *sums)
{
    free(sums->attention);
    free(sums->products);
    free(sums->queries);
    free(sums->ends);
    *sums = (quire_packed_sums){ 0 };
}

/* ---- beginning ---- */

/* The attention of packed tokens, and none of the tokens to come. */
static int attention_begin(quire_packed_text *text, const quire_packing *packing,
                           const quire_packed_pages *pages)
{
    const uint32_t n_lanes = quire_packing_n_lanes(packing);
    const uint32_t n_places = text->lanes.n_pages > 0 ? text->lanes.first[n_lanes] : 0;
    const size_t n = (size_t)n_places * TILE + (size_t)n_lanes * text->sums.n_chunk;

    free(text->sums.attention);
    text->sums.attention = calloc(n, sizeof *text->sums.attention);
    QUIRE_FAIL_IF(text->sums.attention == NULL, QUIRE_NOMEM);
    for (uint32_t lane = 0; n_places > 0 && lane < n_lanes; lane++) {
        if (text->lanes.first[lane + 1] > text->lanes.first[lane]) {
            quire_packed_worth(packing, pages, &text->lanes, lane,
                               quire_packed_sums_attention(text, lane));
        }
    }
    return QUIRE_OK;
}

int quire_packed_sums_begin(quire_packed_text *text, const quire_packing *packing,
                            const quire_packed_pages *pages, uint32_t position)
{
    quire_packed_sums *sums = &text->sums;
    const size_t n_heads = n_heads_of(packing), d = packing->layers[0].d_k;

    if (sums->ends == NULL) {
        return QUIRE_OK;
    }
    if (sums->n_chunk > 0) {
        QUIRE_TRY(attention_begin(text, packing, pages));
    }
    if (sums->queries != NULL) {
        memset(sums->queries, 0, n_heads * d * sizeof *sums->queries);
        memset(sums->products, 0, n_heads * d * d * sizeof *sums->products);
    }
    for (uint32_t lane = 0; lane < quire_packing_n_lanes(packing); lane++) {
        sums->ends[lane] = position;
    }
    sums->begin = sums->next = position;
    sums->is_whole = true;
    return QUIRE_OK;
}

/* ---- rows ---- */

void quire_packed_sums_expect(quire_packed_sums *sums, uint32_t begin, uint32_t end)
{
    if (sums->ends == NULL) {
        return;
    }
    sums->is_whole = sums->is_whole && begin >= sums->begin && begin <= sums->next;
    sums->next = end > sums->next ? end : sums->next;
}

float *quire_packed_sums_attention(const quire_packed_text *text, uint32_t lane)
{
    const uint32_t first = text->lanes.n_pages > 0 ? text->lanes.first[lane] : 0;

    return text->sums.attention + (size_t)first * TILE + (size_t)lane * text->sums.n_chunk;
}

quire_query_sums quire_packed_sums_queries(const quire_packed_text *text,
                                           const quire_packing *packing, uint32_t lane,
                                           uint64_t *n_queries)
{
    const quire_packed_sums *sums = &text->sums;
    const uint32_t group = packing->layers[0].n_head / packing->n_kv_head;
    const size_t head = (size_t)lane * group, d = packing->layers[0].d_k;
    const uint32_t begin = text->n_sinks > sums->begin ? text->n_sinks : sums->begin;

    *n_queries = sums->ends[lane] > begin ? sums->ends[lane] - begin : 0;
    return (quire_query_sums){ .rotation = sums->rotation,
                               .group = group,
                               .sums = sums->queries + head * d,
                               .products = sums->products + head * d * d };
}

void quire_packed_sums_turns(quire_packed_device *d, const quire_attn_seq *seq)
{
    const quire_packed_text *text = quire_packed_text_of(seq);

    for (uint32_t i = 0; text->sums.queries != NULL && i < seq->n_rows; i++) {
        const double position = text->n_gone + seq->n_tokens - seq->n_rows + i;

        quire_rotation_turns(&d->rotation, -position,
                             d->turns + (size_t)(seq->first_row + i) * d->rotation.d);
    }
}

void quire_packed_sums_add(quire_packed_device *d, quire_packed_worker *w,
                           const quire_attn_seq *seq, const quire_attn_layer *one, uint32_t lane)
{
    quire_packed_text *text = quire_packed_text_of(seq);
    const uint32_t end = text->n_gone + seq->n_tokens, begin = end - seq->n_rows;
    const uint32_t skip = text->sums.ends[lane] > begin ? text->sums.ends[lane] - begin : 0;
    uint64_t n_queries;

    if (skip >= seq->n_rows || !text->sums.is_whole) {
        return;
    }
    if (text->sums.attention != NULL) {
        quire_packed_attention_add(d, w, seq, one, lane, skip);
    }
    if (text->sums.queries != NULL) {
        const quire_query_sums sums =
            quire_packed_sums_queries(text, &d->packing, lane, &n_queries);

        for (uint32_t i = skip; i < seq->n_rows; i++) {
            if (begin + i >= text->n_sinks) { /* the first queries are unlike all others */
                quire_query_sums_add(&sums, one, d->turns + (size_t)(seq->first_row + i) * one->d_k,
                                     one->q[0] + (seq->first_row + i) * one->q_stride);
            }
        }
    }
    text->sums.ends[lane] = end;
}
