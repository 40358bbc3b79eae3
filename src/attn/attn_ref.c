/* attn_ref.c - the definition of attention: double precision, one row after the other.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_tiles.h"
#include "base/check.h"
#include "codec/codec_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One source of K or V of a (sequence, kv head), decoded, tokens in order: [n_tokens][d] as stored
 * in main pages, and as in hot ones when its side is sealed (else NULL). */
typedef struct stored_source {
    float *main;
    float *hot;
} stored_source;

typedef struct stored_head {
    stored_source k[QUIRE_ATTN_SOURCES_MAX];
    stored_source v[QUIRE_ATTN_SOURCES_MAX];
    bool *is_released; /* [tiles] whose hot page is a hole */
    double *p;         /* [n_tokens] */
    double *q;         /* [n_k][d_k], rotated */
    double *o;         /* [d_v] */
} stored_head;

static void *alloc_doubles(const quire_allocator *allocator, size_t n_tokens, size_t d)
{
    return n_tokens <= SIZE_MAX / 16 / d ? allocator->alloc(allocator->ctx, n_tokens * d * 8)
                                         : NULL;
}

static void free_head(const quire_allocator *allocator, stored_head *head)
{
    for (uint32_t i = 0; i < QUIRE_ATTN_SOURCES_MAX; i++) {
        allocator->free(allocator->ctx, head->k[i].main);
        allocator->free(allocator->ctx, head->k[i].hot);
        allocator->free(allocator->ctx, head->v[i].main);
        allocator->free(allocator->ctx, head->v[i].hot);
    }
    allocator->free(allocator->ctx, head->is_released);
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
        QUIRE_FAIL_IF(source->hot == NULL, QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

static int alloc_head(const quire_allocator *allocator, const quire_attn_layer *layer,
                      uint32_t n_tokens, stored_head *head)
{
    bool k_is_sealed = quire_format_is_sealed(layer->k_format);
    bool v_is_sealed = !layer->v_prefix_of_k && quire_format_is_sealed(layer->v_format);
    uint32_t n_v = layer->v_prefix_of_k ? 1 : layer->n_v;

    for (uint32_t i = 0; i < layer->n_k; i++) {
        QUIRE_TRY(alloc_source(allocator, n_tokens, layer->d_k, k_is_sealed, &head->k[i]));
    }
    for (uint32_t i = 0; i < n_v; i++) {
        QUIRE_TRY(alloc_source(allocator, n_tokens, layer->d_v, v_is_sealed, &head->v[i]));
    }
    head->is_released = alloc_doubles(allocator, n_tokens, 1);
    head->p = alloc_doubles(allocator, n_tokens, 1);
    head->q = alloc_doubles(allocator, QUIRE_ATTN_SOURCES_MAX, layer->d_k);
    head->o = alloc_doubles(allocator, 1, layer->d_v);
    return head->is_released != NULL && head->p != NULL && head->q != NULL && head->o != NULL
               ? QUIRE_OK
               : QUIRE_NOMEM;
}

static void decode(quire_side side, quire_format format, const quire_tile_rows *rows,
                   const void *tile, float *x)
{
    if (side == QUIRE_SIDE_K) {
        quire_codec_ref()->decode_k(format, rows, tile, x);
    } else {
        quire_codec_ref()->decode_v(format, rows, tile, x);
    }
}

/* What decode_source() needs of a side. */
typedef struct side_desc {
    quire_side side;
    quire_format format;
    uint32_t d;
    uint32_t g;
} side_desc;

/* A tile of one source, in the forms that are there: a sealed tile is there when it is full, a hot
 * one when its page is. */
static void decode_source(const side_desc *desc, const quire_attn_tile_pos *pos,
                          const quire_attn_lane *lane, const quire_attn_lane *hot_lane,
                          const stored_source *source)
{
    const quire_tile_rows rows = {
        .d = desc->d, .first_slot = pos->slot_begin, .n_tokens = pos->n_slots, .stride = desc->d
    };
    size_t at = (size_t)pos->token * desc->d;

    if (source->hot == NULL || pos->n_slots == QUIRE_TILE_TOKENS) {
        decode(desc->side, desc->format, &rows,
               quire_attn_tile(lane, pos->page, desc->g, pos->tile), source->main + at);
    }
    if (source->hot != NULL && pos->hot != NULL) {
        decode(desc->side, QUIRE_FORMAT_HOT, &rows,
               quire_attn_tile(hot_lane, pos->hot, desc->g, pos->tile), source->hot + at);
    }
}

static void decode_head(const quire_attn_batch *batch, const quire_attn_layer *layer,
                        const quire_attn_seq *seq, uint32_t g, const stored_head *head)
{
    const side_desc k = { QUIRE_SIDE_K, layer->k_format, layer->d_k, g };
    const side_desc v = { QUIRE_SIDE_V, layer->v_format, layer->d_v, g };
    quire_attn_tile_walk walk;
    quire_attn_tile_pos pos;

    /* Entries of direct formats may begin within a tile's worth of tokens: then not every index is
     * met below, and nobody needs it. */
    for (uint32_t t = 0; t < seq->n_tokens; t += QUIRE_TILE_TOKENS) {
        head->is_released[t / QUIRE_TILE_TOKENS] = false;
    }
    quire_attn_tile_walk_init(&walk, batch, seq, 0, seq->n_entries);
    while (quire_attn_tile_walk_next(&walk, seq->n_tokens, &pos)) {
        head->is_released[pos.token / QUIRE_TILE_TOKENS] = pos.hot == NULL;
        for (uint32_t i = 0; i < layer->n_k; i++) {
            decode_source(&k, &pos, &layer->k[i], &layer->k_hot[i], &head->k[i]);
        }
        for (uint32_t i = 0; i < layer->n_v; i++) {
            decode_source(&v, &pos, &layer->v[i], &layer->v_hot[i], &head->v[i]);
        }
    }
    if (layer->v_prefix_of_k) {
        for (size_t t = 0; t < seq->n_tokens; t++) {
            memcpy(head->v[0].main + t * layer->d_v, head->k[0].main + t * layer->d_k,
                   layer->d_v * sizeof(float));
        }
    }
}

/* Whether the row of token `index` reads token t hot, of a side that has a hot form. */
static bool reads_hot(const quire_attn_layer *layer, const stored_head *head, uint32_t index,
                      uint32_t t)
{
    uint32_t tile = t / QUIRE_TILE_TOKENS;

    return (index / QUIRE_TILE_TOKENS - tile <= layer->recent_tiles || tile < layer->sink_tiles) &&
           !head->is_released[tile];
}

static const float *stored_row(const stored_source *source, bool is_hot, uint32_t t, uint32_t d)
{
    return (is_hot && source->hot != NULL ? source->hot : source->main) + (size_t)t * d;
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

/* head->p = weights of tokens 0 .. n_seen - 1 for one query head. */
static void weigh(const quire_attn_layer *layer, const stored_head *head, uint32_t n_seen)
{
    double max = -INFINITY;
    double sum = 0.0;

    for (uint32_t t = 0; t < n_seen; t++) {
        bool is_hot = reads_hot(layer, head, n_seen - 1, t);
        double logit = 0.0;

        for (uint32_t s = 0; s < layer->n_k; s++) {
            const float *k = stored_row(&head->k[s], is_hot, t, layer->d_k);

            for (uint32_t i = 0; i < layer->d_k; i++) {
                logit += head->q[s * layer->d_k + i] * (double)k[i];
            }
        }
        head->p[t] = logit * (double)layer->scale;
        max = head->p[t] > max ? head->p[t] : max;
    }
    for (uint32_t t = 0; t < n_seen; t++) {
        head->p[t] = exp(head->p[t] - max);
        sum += head->p[t];
    }
    for (uint32_t t = 0; t < n_seen; t++) {
        head->p[t] /= sum;
    }
}

static void attend_row(const quire_attn_layer *layer, const stored_head *head, uint32_t h,
                       size_t row, uint32_t n_seen, double *out)
{
    uint32_t g = h / (layer->n_head / layer->n_kv_head);
    uint32_t n_v = layer->v_prefix_of_k ? 1 : layer->n_v;

    for (uint32_t s = 0; s < layer->n_k; s++) {
        const float *q = layer->q[s] + row * layer->q_stride + (size_t)h * layer->d_k;

        for (uint32_t i = 0; i < layer->d_k; i++) {
            head->q[s * layer->d_k + i] = (double)q[i];
        }
        rotate(head->q + s * layer->d_k, layer->d_k, layer->rotate_k);
    }
    weigh(layer, head, n_seen);
    memset(out, 0, layer->d_v * sizeof(double));
    for (uint32_t s = 0; s < n_v; s++) {
        const float *gate = layer->v_gate[s];

        memset(head->o, 0, layer->d_v * sizeof(double));
        for (uint32_t t = 0; t < n_seen; t++) {
            bool is_hot = reads_hot(layer, head, n_seen - 1, t);
            const float *v = stored_row(&head->v[s], is_hot, t, layer->d_v);

            for (uint32_t i = 0; i < layer->d_v; i++) {
                head->o[i] += head->p[t] * (double)v[i];
            }
        }
        rotate(head->o, layer->d_v, layer->rotate_v);
        for (uint32_t i = 0; i < layer->d_v; i++) {
            out[i] += head->o[i] * (gate != NULL ? (double)gate[(size_t)g * layer->d_v + i] : 1.0);
        }
    }
}

static int attend_seq(const quire_attn_batch *batch, const quire_attn_layer *layer,
                      const quire_attn_seq *seq, double *out)
{
    const quire_allocator *allocator = quire_allocator_default();
    uint32_t group = layer->n_head / layer->n_kv_head;
    stored_head head = { 0 };
    int rc = alloc_head(allocator, layer, seq->n_tokens, &head);

    if (rc < 0) {
        goto out;
    }
    for (uint32_t g = 0; g < layer->n_kv_head; g++) {
        decode_head(batch, layer, seq, g, &head);
        for (uint32_t i = 0; i < seq->n_rows; i++) {
            size_t row = (size_t)seq->first_row + i;

            for (uint32_t h = g * group; h < (g + 1) * group; h++) {
                attend_row(layer, &head, h, row, seq->n_tokens - seq->n_rows + i + 1,
                           out + (row * layer->n_head + h) * layer->d_v);
            }
        }
    }
out:
    free_head(allocator, &head);
    return rc;
}

int quire_attn_ref(const quire_attn_batch *batch, const quire_attn_layer *layer, double *out)
{
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        QUIRE_TRY(attend_seq(batch, layer, &batch->seqs[s], out));
    }
    return QUIRE_OK;
}
