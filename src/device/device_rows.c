/* device_rows.c - see device_rows.h.
 *
 * SPDX-License-Identifier: MIT */
#include "device/device_rows.h"

#include <string.h>

#define NONE        SIZE_MAX
#define UNIT_FLOATS 16u /* 64 bytes */

uint32_t quire_device_n_rows(const quire_attn_batch *batch)
{
    uint32_t n = 0;

    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        const uint32_t end = batch->seqs[s].first_row + batch->seqs[s].n_rows;

        n = n > end ? n : end;
    }
    return n;
}

static size_t place(quire_device_rows *rows, const void *array, size_t n_floats)
{
    const size_t at = rows->n_floats;

    if (array == NULL) {
        return NONE;
    }
    rows->n_floats += (n_floats + UNIT_FLOATS - 1) / UNIT_FLOATS * UNIT_FLOATS;
    return at;
}

quire_device_rows quire_device_rows_of(const quire_attn_layer *layer, uint32_t n_rows)
{
    quire_device_rows rows = { .n_rows = n_rows };
    const size_t kv_k = (size_t)layer->n_kv_head * layer->d_k;
    const size_t kv_v = (size_t)layer->n_kv_head * layer->d_v;

    for (uint32_t i = 0; i < QUIRE_ATTN_SOURCES_MAX; i++) {
        rows.q[i] = place(&rows, i < layer->n_k ? layer->q[i] : NULL,
                          (size_t)n_rows * layer->n_head * layer->d_k);
    }
    rows.k_new = place(&rows, layer->k_new, n_rows * kv_k);
    rows.v_new = place(&rows, layer->v_new, n_rows * kv_v);
    for (uint32_t i = 0; i < QUIRE_ATTN_SOURCES_MAX; i++) {
        rows.gate[i] = place(&rows, layer->v_gate[i], kv_v);
    }
    rows.sinks = place(&rows, layer->sinks, layer->n_head);
    rows.out = place(&rows, layer->out, (size_t)n_rows * layer->n_head * layer->d_v);
    rows.sums =
        place(&rows, layer->out != NULL ? layer->sums : NULL, (size_t)n_rows * layer->n_head * 2);
    return rows;
}

/* Rows that lie `stride` apart, side by side at an offset of the area. */
static const float *take(float *area, size_t at, const float *x, size_t n_rows, size_t row_floats,
                         size_t stride)
{
    for (size_t i = 0; at != NONE && i < n_rows; i++) {
        memcpy(area + at + i * row_floats, x + i * stride, row_floats * sizeof(float));
    }
    return at != NONE ? area + at : NULL;
}

void quire_device_rows_take(const quire_device_rows *rows, const quire_attn_layer *layer,
                            float *area, quire_attn_layer *own)
{
    const size_t kv_k = (size_t)layer->n_kv_head * layer->d_k;
    const size_t kv_v = (size_t)layer->n_kv_head * layer->d_v;
    const size_t q = (size_t)layer->n_head * layer->d_k;

    *own = *layer;
    for (uint32_t i = 0; i < QUIRE_ATTN_SOURCES_MAX; i++) {
        own->q[i] = take(area, rows->q[i], layer->q[i], rows->n_rows, q, layer->q_stride);
        own->v_gate[i] = take(area, rows->gate[i], layer->v_gate[i], 1, kv_v, kv_v);
    }
    own->k_new = take(area, rows->k_new, layer->k_new, rows->n_rows, kv_k, layer->k_new_stride);
    own->v_new = take(area, rows->v_new, layer->v_new, rows->n_rows, kv_v, layer->v_new_stride);
    own->sinks = take(area, rows->sinks, layer->sinks, 1, layer->n_head, layer->n_head);
    own->out = rows->out != NONE ? area + rows->out : NULL;
    own->sums = rows->sums != NONE ? area + rows->sums : NULL;
    own->q_stride = q;
    own->k_new_stride = kv_k;
    own->v_new_stride = kv_v;
    own->out_stride = (size_t)layer->n_head * layer->d_v;
}

void quire_device_rows_give(const quire_attn_layer *layer, const quire_attn_batch *batch,
                            const quire_attn_layer *own)
{
    const size_t row_floats = (size_t)layer->n_head * layer->d_v;
    const size_t row_sums = (size_t)layer->n_head * 2;

    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        const quire_attn_seq *seq = &batch->seqs[s];

        for (size_t row = seq->first_row; row < (size_t)seq->first_row + seq->n_rows; row++) {
            memcpy(layer->out + row * layer->out_stride, own->out + row * row_floats,
                   row_floats * sizeof(float));
            if (own->sums != NULL) {
                memcpy(layer->sums + row * row_sums, own->sums + row * row_sums,
                       row_sums * sizeof(float));
            }
        }
    }
}
