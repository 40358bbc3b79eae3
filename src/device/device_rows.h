/* device_rows.h - the rows of a layer in one piece of memory: the input of enter(), and the result
 * of leave().
 *
 *   q[0] q[1] k_new v_new   rows, dense
 *   gates, sinks            small
 *   out                     rows, dense
 *   sums                    m and l of each row and head
 *
 * Rows and arrays that a layer does not have take no room. All begin at multiples of 64 bytes.
 *
 * Thread: any; functions touch only their arguments.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_DEVICE_ROWS_H
#define QUIRE_DEVICE_DEVICE_ROWS_H

#include "quire/attn.h"

/* Offsets in floats from the beginning of the area; SIZE_MAX: the layer has none. */
typedef struct quire_device_rows {
    uint32_t n_rows;
    size_t q[QUIRE_ATTN_SOURCES_MAX];
    size_t k_new;
    size_t v_new;
    size_t gate[QUIRE_ATTN_SOURCES_MAX];
    size_t sinks;
    size_t out; /* the arrays before it come from the host */
    size_t sums;
    size_t n_floats; /* of the area */
} quire_device_rows;

/* The rows of a batch: one past the largest index. */
uint32_t quire_device_n_rows(const quire_attn_batch *batch);

/* The layout of a layer's area for n_rows rows. */
quire_device_rows quire_device_rows_of(const quire_attn_layer *layer, uint32_t n_rows);

/* Copy the layer's rows into the area, and make *own the layer with rows there. */
void quire_device_rows_take(const quire_device_rows *rows, const quire_attn_layer *layer,
                            float *area, quire_attn_layer *own);

/* Copy the result of the batch's rows, out and sums, from the area to the layer's. */
void quire_device_rows_give(const quire_attn_layer *layer, const quire_attn_batch *batch,
                            const quire_attn_layer *own);

#endif /* QUIRE_DEVICE_DEVICE_ROWS_H */
