/* graph_conv.h - the common part of recurrent blocks: the short convolution over the rows of a run,
 * and its state, which holds the inputs of the last taps - 1 rows.
 *
 * Thread: any, with columns of its own.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GRAPH_CONV_H
#define QUIRE_MODEL_GRAPH_CONV_H

#include "model/graph_build.h"

#include <math.h>

/* The inputs of a step: of each row of `in` the op's width columns from `first` on. */
typedef struct quire_conv {
    const quire_graph_recurrent *op;
    const struct ggml_tensor *in;
    size_t first;
} quire_conv;

/* Columns [begin, end). */
typedef struct quire_columns {
    uint32_t begin, end;
} quire_columns;

/* A thread's columns of width; threads share no cache line. */
quire_columns quire_columns_of(uint32_t width, int ith, int nth);

/* out[i] = the convolution of row r of a run at column c.begin + i. */
void quire_conv_row(const quire_conv *conv, const quire_state_run *run, uint32_t r, quire_columns c,
                    float *out);

/* Write the state behind a run. */
void quire_conv_keep(const quire_conv *conv, const quire_state_run *run, quire_columns c);

static inline const float *quire_graph_row(const struct ggml_tensor *t, size_t row)
{
    return (const float *)t->data + row * (size_t)t->ne[0];
}

static inline float quire_softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

#endif /* QUIRE_MODEL_GRAPH_CONV_H */
