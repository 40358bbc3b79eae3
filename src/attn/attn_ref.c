/* attn_ref.c - the definition of attention: double precision, one row after the other.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/step/attn_tiles.h"
#include "base/check.h"
#include "codec/codec_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One source of K or V of a (sequence, kv head), decoded, tokens in table order: [n_tokens][d] as
 * stored in main pages, and as in hot ones when its format is sealed (else NULL). */
typedef struct stored_source {
    float *main;
    float *hot;
    bool *has_hot; /* [n_tokens] whether the hot page is there */
} stored_source;

/* n_tokens: those in the table, holes included. */
typedef struct stored_head {
    uint32_t n_tokens;
    uint32_t *pos;      /* [n_tokens] */
    uint32_t *tile_pos; /* [n_tokens] the first of the token's tile */
    float *bias;        /* [n_tokens] */
    stored_source k[QUIRE_ATTN_SOURCES_MAX];
    stored_source v[QUIRE_ATTN_SOURCES_MAX];
    double *p; /* [n_tokens] */
    double *q; /* [n_k][d_k], rotated */
    double *o; /* [d_v] */
    double m;  /* of the row and head at hand: quire_attn_layer.sums */
    double l;
} stored_head;

static void *alloc_doubles(const quire_allocator *allocator, size_t n_tokens, size_t d)
{
    return n_tokens <= SIZE_MAX / 16 / d ? allocator->alloc(allocator->ctx, n_tokens * d * 8)
                                         : NULL;
}

static void free_source(const quire_allocator *allocator, stored_source *source)
{
    allocator->free(allocator->ctx, source->main);
    allocator->free(allocator->ctx, source->hot);
    allocator->free(allocator->ctx, source->has_hot);
}

static void free_head(const quire_allocator *allocator, stored_head *head)
{
    for (uint32_t i = 0; i < QUIRE_ATTN_SOURCES_MAX; i++) {
        free_source(allocator, &head->k[i]);
        free_source(allocator, &head->v[i]);
    }
    allocator->free(allocator->ctx, head->pos);
    allocator->free(allocator->ctx, head->tile_pos);
    allocator->free(allocator->ctx, head->bias);
    allocator->free(allocator->ctx, head->p);
    allocator->free(allocator->ctx, head->q);
    allocator->free(allocator->ctx, head->o);
}

static int alloc_source(const quire_allocator *allocator, uint32_t n_tokens, uint32_t d,
                        bool is_sealed, stored_source *source)
{
    source->main = alloc_doubles(allocator, n_tokens, d);
    QUIRE_FAIL_IF(source->main == NULL, QUIRE_NOMEM);
    if (is_sealed) {
        source->hot = alloc_doubles(allocator, n_tokens, d);
        source->has_hot = alloc_doubles(allocator, n_tokens, 1);
        QUIRE_FAIL_IF(source->hot == NULL || source->has_hot == NULL, QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

static int alloc_head(const quire_allocator *allocator, const quire_attn_layer *layer,
                      stored_head *head)
{
    const uint32_t n = head->n_tokens;

    for (uint32_t i = 0; i < layer->n_k; i++) {
        QUIRE_TRY(alloc_source(allocator, n, layer->d_k, quire_format_is_sealed(layer->k[i].format),
                               &head->k[i]));
    }
    for (uint32_t i = 0; i < layer->n_v; i++) {
        QUIRE_TRY(alloc_source(allocator, n, layer->d_v, quire_format_is_sealed(layer->v[i].format),
                               &head->v[i]));
    }
    if (layer->v_prefix_of_k) {
        QUIRE_TRY(alloc_source(allocator, n, layer->d_v, quire_format_is_sealed(layer->k[0].format),
                               &head->v[0]));
    }
    head->pos = alloc_doubles(allocator, n, 1);
    head->tile_pos = alloc_doubles(allocator, n, 1);
    head->bias = alloc_doubles(allocator, n, 1);
    head->p = alloc_doubles(allocator, n, 1);
    head->q = alloc_doubles(allocator, QUIRE_ATTN_SOURCES_MAX, layer->d_k);
    head->o = alloc_doubles(allocator, 1, layer->d_v);
    return head->pos != NULL && head->tile_pos != NULL && head->bias != NULL && head->p != NULL &&
                   head->q != NULL && head->o != NULL
               ? QUIRE_OK
               : QUIRE_NOMEM;
}

/* A tile of a table: its place, and the tokens of the head in its slots. */
typedef struct tile_place {
    const quire_attn_batch *batch;
    const quire_attn_seq *seq;
    quire_attn_tile_pos pos;
    uint32_t token;
    uint32_t g;
} tile_place;

static void decode(quire_side side, quire_format format, const quire_tile_rows *rows,
                   const void *tile, float *x)
{
    if (side == QUIRE_SIDE_K) {
        quire_codec_ref()->decode_k(format, rows, tile, x);
    } else {
        quire_codec_ref()->decode_v(format, rows, tile, x);
    }
}

/* A tile of one source, in the forms that are there: a sealed tile is there when it is full and its
 * page no hole, a hot one when its page is. */
static void decode_source(const tile_place *at, quire_side side, uint32_t d,
                          const quire_attn_source *source, const stored_source *to)
{
    const quire_tile_rows rows = {
        .d = d, .first_slot = at->pos.slot_begin, .n_tokens = at->pos.n_slots, .stride = d
    };
    const quire_page_addr *page = quire_attn_source_page(at->batch, at->seq, source, at->pos.entry);
    const quire_page_addr *hot = NULL;

    if (page != NULL && (to->hot == NULL || at->pos.n_slots == QUIRE_TILE_TOKENS)) {
        decode(side, source->format, &rows,
               quire_attn_tile(&source->lane, page, at->g, at->pos.tile),
               to->main + (size_t)at->token * d);
    }
    if (to->hot == NULL) {
        return;
    }
    hot = quire_attn_page(at->batch, at->seq, source->hot_group, at->pos.entry);
    for (uint32_t i = 0; i < at->pos.n_slots; i++) {
        to->has_hot[at->token + i] = hot != NULL;
    }
    if (hot != NULL) {
        decode(side, QUIRE_FORMAT_HOT, &rows,
               quire_attn_tile(&source->hot_lane, hot, at->g, at->pos.tile),
               to->hot + (size_t)at->token * d);
    }
}

static void decode_tile(const quire_attn_layer *layer, const tile_place *at,
                        const stored_head *head)
{
    for (uint32_t i = 0; i < at->pos.n_slots; i++) {
        head->pos[at->token + i] =
            at->pos.positions != NULL ? (uint32_t)at->pos.positions[i] : at->pos.first + i;
        head->tile_pos[at->token + i] = at->pos.first;
        head->bias[at->token + i] = at->pos.biases != NULL ? at->pos.biases[i] : 0.0f;
    }
    for (uint32_t i = 0; i < layer->n_k; i++) {
        decode_source(at, QUIRE_SIDE_K, layer->d_k, &layer->k[i], &head->k[i]);
    }
    for (uint32_t i = 0; i < layer->n_v; i++) {
        decode_source(at, QUIRE_SIDE_V, layer->d_v, &layer->v[i], &head->v[i]);
    }
}

/* V = the first d_v dimensions of K, in all forms that K has. */
static void prefix_take(const quire_attn_layer *layer, const stored_head *head)
{
    const stored_source *k = &head->k[0], *v = &head->v[0];

    for (size_t t = 0; t < head->n_tokens; t++) {
        memcpy(v->main + t * layer->d_v, k->main + t * layer->d_k, layer->d_v * sizeof(float));
        if (k->hot != NULL) {
            memcpy(v->hot + t * layer->d_v, k->hot + t * layer->d_k, layer->d_v * sizeof(float));
            v->has_hot[t] = k->has_hot[t];
        }
    }
}

static void decode_head(const quire_attn_batch *batch, const quire_attn_layer *layer,
                        const quire_attn_seq *seq, uint32_t g, const stored_head *head)
{
    const quire_attn_table *table = &seq->tables[layer->k[0].group];
    tile_place at = { .batch = batch, .seq = seq, .g = g };
    quire_attn_tile_walk walk;

    quire_attn_tile_walk_init(&walk, batch, table, 0, table->n_entries);
    while (quire_attn_tile_walk_next(&walk, seq->n_tokens, &at.pos)) {
        decode_tile(layer, &at, head);
        at.token += at.pos.n_slots;
    }
    if (layer->v_prefix_of_k) {
        prefix_take(layer, head);
    }
}

/* Token t of a source as the row at position `row` reads it. */
static const float *stored_row(const quire_attn_layer *layer, const stored_head *head,
                               const stored_source *source, uint32_t row, uint32_t t, uint32_t d)
{
    uint32_t tile = head->tile_pos[t] / QUIRE_TILE_TOKENS;
    bool is_near =
        row / QUIRE_TILE_TOKENS - tile <= layer->recent_tiles || tile < layer->sink_tiles;
    bool is_hot = source->hot != NULL && is_near && source->has_hot[t];

    return (is_hot ? source->hot : source->main) + (size_t)t * d;
}

/* Whether the row at position `row` sees token t. */
static bool is_seen(const quire_attn_layer *layer, const stored_head *head, uint32_t row,
                    uint32_t t)
{
    uint32_t pos = head->pos[t];

    if (layer->has_chunks && pos / layer->window != row / layer->window) {
        return false;
    }
    return pos <= row && (layer->window == 0 || row - pos < layer->window);
}

/* y = H x in blocks, straight from the definition: H[i][j] = (-1)^popcount(i & j) / sqrt(block). */
static void rotate(double *x, uint32_t d, uint32_t block)
{
    double y[QUIRE_HEAD_DIM_MAX];

    if (block == 0) {
        return;
    }
    for (uint32_t i = 0; i < d; i++) {
        uint32_t first = i / block * block;

        y[i] = 0.0;
        for (uint32_t j = 0; j < block; j++) {
            y[i] += __builtin_parity((i - first) & j) ? -x[first + j] : x[first + j];
        }
        y[i] /= sqrt((double)block);
    }
    memcpy(x, y, d * sizeof(double));
}

static double logit_of(const quire_attn_layer *layer, const stored_head *head, uint32_t row,
                       uint32_t t)
{
    double softcap = (double)layer->softcap;
    double logit = 0.0;

    for (uint32_t s = 0; s < layer->n_k; s++) {
        const float *k = stored_row(layer, head, &head->k[s], row, t, layer->d_k);

        for (uint32_t i = 0; i < layer->d_k; i++) {
            logit += head->q[s * layer->d_k + i] * (double)k[i];
        }
    }
    logit *= (double)layer->scale;
    return (softcap != 0.0 ? softcap * tanh(logit / softcap) : logit) + (double)head->bias[t];
}

/* head->p = weights of all tokens for the row at position `row` and query head h; 0 of those that
 * it does not see. Then head->m and head->l. */
static void weigh(const quire_attn_layer *layer, stored_head *head, uint32_t h, uint32_t row)
{
    double max = layer->sinks != NULL ? (double)layer->sinks[h] : -INFINITY;
    double sum;

    for (uint32_t t = 0; t < head->n_tokens; t++) {
        if (is_seen(layer, head, row, t)) {
            head->p[t] = logit_of(layer, head, row, t);
            max = head->p[t] > max ? head->p[t] : max;
        }
    }
    sum = layer->sinks != NULL ? exp((double)layer->sinks[h] - max) : 0.0;
    for (uint32_t t = 0; t < head->n_tokens; t++) {
        head->p[t] = is_seen(layer, head, row, t) ? exp(head->p[t] - max) : 0.0;
        sum += head->p[t];
    }
    for (uint32_t t = 0; sum != 0.0 && t < head->n_tokens; t++) {
        head->p[t] /= sum;
    }
    head->m = max;
    head->l = sum;
}

static void attend_row(const quire_attn_layer *layer, const quire_attn_seq *seq, stored_head *head,
                       uint32_t h, uint32_t i_row, double *out)
{
    uint32_t g = h / (layer->n_head / layer->n_kv_head);
    uint32_t n_v = layer->v_prefix_of_k ? 1 : layer->n_v;
    uint32_t pos = seq->n_tokens - seq->n_rows + i_row;

    for (uint32_t s = 0; s < layer->n_k; s++) {
        const float *q =
            layer->q[s] + (seq->first_row + i_row) * layer->q_stride + (size_t)h * layer->d_k;

        for (uint32_t i = 0; i < layer->d_k; i++) {
            head->q[s * layer->d_k + i] = (double)q[i];
        }
        rotate(head->q + s * layer->d_k, layer->d_k, layer->k[s].rotate);
    }
    weigh(layer, head, h, pos);
    memset(out, 0, layer->d_v * sizeof(double));
    for (uint32_t s = 0; s < n_v; s++) {
        const float *gate = layer->v_gate[s];

        memset(head->o, 0, layer->d_v * sizeof(double));
        for (uint32_t t = 0; t < head->n_tokens; t++) {
            const float *v = stored_row(layer, head, &head->v[s], pos, t, layer->d_v);

            for (uint32_t i = 0; is_seen(layer, head, pos, t) && i < layer->d_v; i++) {
                head->o[i] += head->p[t] * (double)v[i];
            }
        }
        rotate(head->o, layer->d_v, layer->v_prefix_of_k ? layer->k[0].rotate : layer->v[s].rotate);
        for (uint32_t i = 0; i < layer->d_v; i++) {
            out[i] += head->o[i] * (gate != NULL ? (double)gate[(size_t)g * layer->d_v + i] : 1.0);
        }
    }
}

static int attend_seq(const quire_attn_batch *batch, const quire_attn_layer *layer,
                      const quire_attn_seq *seq, double *out, double *sums)
{
    const quire_allocator *allocator = quire_allocator_default();
    const quire_attn_table *table = &seq->tables[layer->k[0].group];
    uint32_t group = layer->n_head / layer->n_kv_head;
    stored_head head = { 0 };
    int rc;

    for (uint32_t i = 0; i < table->n_entries; i++) {
        head.n_tokens += quire_attn_entry(table, i)->n_tokens;
    }
    rc = alloc_head(allocator, layer, &head);
    for (uint32_t g = 0; rc == QUIRE_OK && g < layer->n_kv_head; g++) {
        decode_head(batch, layer, seq, g, &head);
        for (uint32_t i = 0; i < seq->n_rows; i++) {
            size_t row = (size_t)seq->first_row + i;

            for (uint32_t h = g * group; h < (g + 1) * group; h++) {
                const size_t at = row * layer->n_head + h;

                attend_row(layer, seq, &head, h, i, out + at * layer->d_v);
                if (sums != NULL) {
                    sums[2 * at] = head.m;
                    sums[2 * at + 1] = head.l;
                }
            }
        }
    }
    free_head(allocator, &head);
    return rc;
}

int quire_attn_ref_part(const quire_attn_batch *batch, const quire_attn_layer *layer, double *out,
                        double *sums)
{
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        QUIRE_TRY(attend_seq(batch, layer, &batch->seqs[s], out, sums));
    }
    return QUIRE_OK;
}

int quire_attn_ref(const quire_attn_batch *batch, const quire_attn_layer *layer, double *out)
{
    return quire_attn_ref_part(batch, layer, out, NULL);
}
