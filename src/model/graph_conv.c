/* graph_conv.c - see graph_conv.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_conv.h"

#include "base/num.h"

#include <string.h>

#define WIDTH_UNIT 16u /* floats of a cache line */

quire_columns quire_columns_of(uint32_t width, int ith, int nth)
{
    const uint32_t n_units = (width + WIDTH_UNIT - 1) / WIDTH_UNIT;
    const uint32_t first = (uint32_t)((uint64_t)n_units * (uint32_t)ith / (uint32_t)nth);
    const uint32_t last = (uint32_t)((uint64_t)n_units * ((uint32_t)ith + 1) / (uint32_t)nth);

    return (quire_columns){ first * WIDTH_UNIT, quire_min_u32(last * WIDTH_UNIT, width) };
}

/* Input row r of a run, where rows before the run are in the state. */
static const float *input_of(const quire_conv *conv, const quire_state_run *run, int64_t r)
{
    const quire_graph_recurrent *op = conv->op;

    if (r < 0) {
        return run->from + op->offset + (size_t)(r + op->taps - 1) * op->width;
    }
    return quire_graph_row(conv->in, run->first_row + (size_t)r) + conv->first;
}

void quire_conv_row(const quire_conv *conv, const quire_state_run *run, uint32_t r, quire_columns c,
                    float *out)
{
    const quire_graph_recurrent *op = conv->op;
    const uint32_t n = c.end - c.begin;

    for (uint32_t i = 0; i < n; i++) {
        out[i] = 0.0f;
    }
    for (uint32_t k = 0; k < op->taps; k++) {
        const float *x = input_of(conv, run, (int64_t)r + k + 1 - op->taps) + c.begin;
        const float *w = op->kernel + (size_t)k * op->width + c.begin;

        for (uint32_t i = 0; i < n; i++) {
            out[i] += w[i] * x[i];
        }
    }
}

void quire_conv_keep(const quire_conv *conv, const quire_state_run *run, quire_columns c)
{
    const quire_graph_recurrent *op = conv->op;

    for (uint32_t k = 0; k + 1 < op->taps; k++) {
        const float *x = input_of(conv, run, (int64_t)run->n_rows + k + 1 - op->taps) + c.begin;

        memcpy(run->to + op->offset + (size_t)k * op->width + c.begin, x,
               (c.end - c.begin) * sizeof *x);
    }
}
