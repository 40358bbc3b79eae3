/* graph_mamba.c - the block of a layer with Mamba-2 (arXiv 2405.21060).
 *
 * One product of a row gives: z, a gate for each of the inner numbers; x, the inner numbers, and B
 * and C, d_state numbers of each group; dt, a number for each head. x, B and C go through a short
 * convolution and SiLU. For each head, which has d_head of the inner numbers and the B and C of its
 * group, a row changes the state S, a matrix [d_state][d_head], and reads it:
 *
 *   t = softplus(dt + dt bias)
 *   S = exp(decay * t) * S + B (t * x)'        decay < 0
 *   y = C' S + skip * x
 *
 * The result is y * SiLU(z), normalised group by group where the model has that norm; the output
 * projection follows.
 *
 * Two operations of our own touch the state: the convolution, whose threads have columns of their
 * own, and the change of S, whose threads have heads of their own. Both go row after row, so each
 * number has one order of additions. The other operations are ggml's, row by row.
 *
 * The convolution's state is that of graph_conv.h, the matrices of the heads follow it.
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_conv.h"

#include "base/check.h"
#include "base/num.h"

#include <math.h>
#include <string.h>

#define COLUMNS 16u /* of a matrix that are changed together: one cache line */

static size_t inner_width(const quire_recurrent_desc *s)
{
    return (size_t)s->n_v_heads * s->d_head;
}

/* ---- convolution ---- */

static void op_conv(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const quire_graph_recurrent *op = userdata;
    const quire_conv conv = { op, dst->src[0], inner_width(op->shape) };
    const quire_columns c = quire_columns_of(op->width, ith, nth);

    for (uint32_t i = 0; i < quire_states_n_runs(op->states) && c.begin < c.end; i++) {
        const quire_state_run *run = quire_states_run(op->states, i);

        for (uint32_t r = 0; r < run->n_rows; r++) {
            float *out = (float *)dst->data + ((size_t)run->first_row + r) * op->width;

            quire_conv_row(&conv, run, r, c, out + c.begin);
            for (uint32_t j = c.begin; j < c.end; j++) {
                out[j] += op->bias[j];
            }
        }
        quire_conv_keep(&conv, run, c);
    }
}

/* ---- heads ---- */

/* A step's rows of a layer. */
typedef struct scan_task {
    const quire_graph_recurrent *op;
    const quire_recurrent_desc *shape;
    const struct ggml_tensor *in;
    const struct ggml_tensor *xbc; /* behind convolution and SiLU */
    struct ggml_tensor *out;       /* [inner][n_rows] */
} scan_task;

/* A row's change of n columns of a head's matrix, whose rows are `stride` apart, and the columns'
 * results y. x: times t. */
typedef struct scan_row {
    uint32_t d_state, stride;
    const float *b, *c, *x;
    float keep;
} scan_row;

static void columns_change(float *m, const scan_row *r, uint32_t n, float *y)
{
    for (uint32_t j = 0; j < n; j++) {
        y[j] = 0.0f;
    }
    for (uint32_t i = 0; i < r->d_state; i++) {
        float *row = m + (size_t)i * r->stride;

        for (uint32_t j = 0; j < n; j++) {
            row[j] = row[j] * r->keep + r->x[j] * r->b[i];
            y[j] += row[j] * r->c[i];
        }
    }
}

/* Row r of a run, n columns of head h from `first` on. */
static void columns_row(const scan_task *t, size_t row, uint32_t h, uint32_t first, uint32_t n,
                        float *m)
{
    const quire_recurrent_desc *s = t->shape;
    const size_t inner = inner_width(s), at = (size_t)h * s->d_head + first;
    const uint32_t group = h / (s->n_v_heads / s->n_k_heads);
    const float *x = quire_graph_row(t->xbc, row);
    const float dt =
        quire_softplus(quire_graph_row(t->in, row)[inner + t->op->width + h] + t->op->dt[h]);
    float *out = (float *)t->out->data + row * inner + at;
    float scaled[COLUMNS], y[COLUMNS];
    const scan_row change = { .d_state = s->d_state,
                              .stride = s->d_head,
                              .b = x + inner + (size_t)group * s->d_state,
                              .c = x + inner + ((size_t)s->n_k_heads + group) * s->d_state,
                              .x = scaled,
                              .keep = expf(dt * t->op->decay[h]) };

    for (uint32_t j = 0; j < n; j++) {
        scaled[j] = x[at + j] * dt;
    }
    if (n == COLUMNS) { /* a constant, for which registers are enough */
        columns_change(m, &change, COLUMNS, y);
    } else {
        columns_change(m, &change, n, y);
    }
    for (uint32_t j = 0; j < n; j++) {
        out[j] = y[j] + x[at + j] * t->op->skip[h];
    }
}

static void head_run(const scan_task *t, const quire_state_run *run, uint32_t h)
{
    const quire_recurrent_desc *s = t->shape;
    const size_t n_floats = (size_t)s->d_state * s->d_head;
    const size_t place =
        t->op->offset + (size_t)(t->op->taps - 1) * t->op->width + (size_t)h * n_floats;

    memcpy(run->to + place, run->from + place, n_floats * sizeof(float));
    for (uint32_t first = 0; first < s->d_head; first += COLUMNS) {
        const uint32_t n = quire_min_u32(COLUMNS, s->d_head - first);

        for (uint32_t r = 0; r < run->n_rows; r++) {
            columns_row(t, (size_t)run->first_row + r, h, first, n, run->to + place + first);
        }
    }
}

static void op_scan(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const quire_graph_recurrent *op = userdata;
    const scan_task task = {
        .op = op, .shape = op->shape, .in = dst->src[0], .xbc = dst->src[1], .out = dst
    };

    for (uint32_t i = 0; i < quire_states_n_runs(op->states); i++) {
        for (uint32_t h = (uint32_t)ith; h < op->shape->n_v_heads; h += (uint32_t)nth) {
            head_run(&task, quire_states_run(op->states, i), h);
        }
    }
}

/* ---- the block ---- */

struct ggml_tensor *quire_graph_mamba_op(const quire_graph_build *b, struct ggml_tensor *x,
                                         uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    struct ggml_context *ctx = b->graph->ctx;
    quire_graph_recurrent *op = &b->recurrent[il];
    const int64_t inner = (int64_t)inner_width(op->shape), n_groups = op->shape->n_k_heads;
    struct ggml_tensor *in = quire_graph_linear(b, l->conv_in, NULL, x);
    struct ggml_tensor *args[2] = { in, NULL };
    struct ggml_tensor *z, *y;

    args[1] = ggml_silu(ctx, ggml_custom_4d(ctx, GGML_TYPE_F32, op->width, b->n_rows, 1, 1, args, 1,
                                            op_conv, GGML_N_TASKS_MAX, op));
    y = ggml_custom_4d(ctx, GGML_TYPE_F32, inner, b->n_rows, 1, 1, args, 2, op_scan,
                       GGML_N_TASKS_MAX, op);
    ggml_build_forward_expand(b->graph->cgraph, y);
    z = ggml_view_2d(ctx, in, inner, b->n_rows, in->nb[1], 0);
    y = ggml_swiglu_split(ctx, z, y);
    if (l->mamba_norm != NULL) {
        y = ggml_reshape_3d(ctx, y, inner / n_groups, n_groups, b->n_rows);
        y = ggml_reshape_2d(ctx, quire_graph_norm(b, y, l->mamba_norm, NULL), inner, b->n_rows);
    }
    return y;
}
