/* attn_ref.c - the definition of attention: double precision, one row after the other.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_tiles.h"
#include "base/check.h"
#include "codec/codec_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* K and V of one (sequence, kv head) as stored, tokens in order. */
typedef struct stored_head {
    float *k[QUIRE_ATTN_SOURCES_MAX]; /* [n_tokens][d_k] */
    float *v[QUIRE_ATTN_SOURCES_MAX]; /* [n_tokens][d_v] */
    double *p;                        /* [n_tokens] */
    double *q;                        /* [n_k][d_k], rotated */
    double *o;                        /* [d_v] */
} stored_head;

static void *alloc_floats(const quire_allocator *allocator, size_t n_tokens, size_t d)
{
    return n_tokens <= SIZE_MAX / 16 / d ? allocator->alloc(allocator->ctx, n_tokens * d * 8)
                                         : NULL;
}

static void free_head(const quire_allocator *allocator, stored_head *head)
{
    for (uint32_t i = 0; i < QUIRE_ATTN_SOURCES_MAX; i++) {
        allocator->free(allocator->ctx, head->k[i]);
        allocator->free(allocator->ctx, head->v[i]);
    }
    allocator->free(allocator->ctx, head->p);
    allocator->free(allocator->ctx, head->q);
    allocator->free(allocator->ctx, head->o);
}

static int alloc_head(const quire_allocator *allocator, const quire_attn_layer *layer,
                      uint32_t n_tokens, stored_head *head)
{
    uint32_t n_v = layer->v_prefix_of_k ? 1 : layer->n_v;

    for (uint32_t i = 0; i < layer->n_k; i++) {
        head->k[i] = alloc_floats(allocator, n_tokens, layer->d_k);
        QUIRE_FAIL_IF(head->k[i] == NULL, QUIRE_NOMEM);
    }
    for (uint32_t i = 0; i < n_v; i++) {
        head->v[i] = alloc_floats(allocator, n_tokens, layer->d_v);
        QUIRE_FAIL_IF(head->v[i] == NULL, QUIRE_NOMEM);
    }
    head->p = alloc_floats(allocator, n_tokens, 1);
    head->q = alloc_floats(allocator, QUIRE_ATTN_SOURCES_MAX, layer->d_k);
    head->o = alloc_floats(allocator, 1, layer->d_v);
    return head->p != NULL && head->q != NULL && head->o != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

static void decode_head(const quire_attn_batch *batch, const quire_attn_layer *layer,
                        const quire_attn_seq *seq, uint32_t g, const stored_head *head)
{
    const quire_codec *codec = quire_codec_ref();
    quire_attn_tile_walk walk;
    quire_attn_tile_pos pos;

    quire_attn_tile_walk_init(&walk, batch, seq, 0, seq->n_entries);
    while (quire_attn_tile_walk_next(&walk, seq->n_tokens, &pos)) {
        quire_tile_rows rows = { layer->d_k, pos.slot_begin, pos.n_slots, layer->d_k };

        for (uint32_t i = 0; i < layer->n_k; i++) {
            codec->decode_k(layer->k_format, &rows,
                            quire_attn_tile(&layer->k[i], pos.page, g, pos.tile),
                            head->k[i] + (size_t)pos.token * layer->d_k);
        }
        rows.d = layer->d_v;
        rows.stride = layer->d_v;
        for (uint32_t i = 0; i < layer->n_v; i++) {
            codec->decode_v(layer->v_format, &rows,
                            quire_attn_tile(&layer->v[i], pos.page, g, pos.tile),
                            head->v[i] + (size_t)pos.token * layer->d_v);
        }
    }
    if (layer->v_prefix_of_k) {
        for (size_t t = 0; t < seq->n_tokens; t++) {
            memcpy(head->v[0] + t * layer->d_v, head->k[0] + t * layer->d_k,
                   layer->d_v * sizeof(float));
        }
    }
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

    for (size_t t = 0; t < n_seen; t++) {
        double logit = 0.0;

        for (uint32_t s = 0; s < layer->n_k; s++) {
            for (uint32_t i = 0; i < layer->d_k; i++) {
                logit += head->q[s * layer->d_k + i] * (double)head->k[s][t * layer->d_k + i];
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
        for (size_t t = 0; t < n_seen; t++) {
            for (uint32_t i = 0; i < layer->d_v; i++) {
                head->o[i] += head->p[t] * (double)head->v[s][t * layer->d_v + i];
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
