/* graph_delta.c - the block of a layer with a gated delta net (arXiv 2412.06464).
 *
 * A row x gives q and k for each of n_k_heads heads, v for each of n_v_heads heads, all by a short
 * convolution and SiLU, a gate z for each number of the result, and for each head of v two numbers:
 * b, how much the row writes, and a, how much of the state it keeps. q and k have length 1, and q
 * is divided by sqrt(d_head). For each head of v, whose q and k are those of a head of k, a row
 * changes the state S, a matrix of d_head x d_head, and reads it:
 *
 *   S = exp(decay * softplus(a + dt)) * S       decay < 0
 *   S = S + k (sigmoid(b) * (v - k' S))
 *   o = q' S
 *
 * The result is norm(o) * SiLU(z); the output projection follows.
 *
 * A thread computes heads of k with their heads of v, row after row, so each number has one order
 * of additions. The convolution's state is that of graph_conv.h, the matrices follow it:
 * [n_v_heads][d_head of k][d_head of v].
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_conv.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

#define D_MAX QUIRE_STATE_HEAD_MAX

/* A step's rows of a layer. */
typedef struct delta_task {
    const quire_graph_recurrent *op;
    const quire_recurrent_desc *shape;
    const struct ggml_tensor *qkv, *z;
    const struct ggml_tensor *beta;  /* with alpha, of each head of k, where alpha is NULL */
    const struct ggml_tensor *alpha; /* [n_v_heads][n_rows] */
    struct ggml_tensor *out;
} delta_task;

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* ---- convolution ---- */

static quire_conv conv_of(const delta_task *t)
{
    return (quire_conv){ t->op, t->qkv, 0 };
}

static quire_columns columns(size_t first, uint32_t n)
{
    return (quire_columns){ (uint32_t)first, (uint32_t)first + n };
}

/* SiLU of the convolution of row r at n columns from `first` on. */
static void conv_at(const delta_task *t, const quire_state_run *run, uint32_t r, size_t first,
                    uint32_t n, float *out)
{
    const quire_conv conv = conv_of(t);

    quire_conv_row(&conv, run, r, columns(first, n), out);
    for (uint32_t i = 0; i < n; i++) {
        out[i] *= sigmoid(out[i]);
    }
}

static void conv_keep(const delta_task *t, const quire_state_run *run, size_t first, uint32_t n)
{
    const quire_conv conv = conv_of(t);

    quire_conv_keep(&conv, run, columns(first, n));
}

/* ---- heads ---- */

static void unit_length(float *x, uint32_t n, float eps, float factor)
{
    double sum = 0.0;
    float scale;

    for (uint32_t i = 0; i < n; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    scale = factor / sqrtf((float)sum + eps);
    for (uint32_t i = 0; i < n; i++) {
        x[i] *= scale;
    }
}

/* Head i of those that read a head of k. */
static uint32_t v_head(const quire_recurrent_desc *s, uint32_t k_head, uint32_t i)
{
    return s->is_interleaved ? k_head * (s->n_v_heads / s->n_k_heads) + i
                             : k_head + i * s->n_k_heads;
}

static float *matrix_of(const delta_task *t, const float *state, uint32_t v)
{
    const size_t d = t->shape->d_head;

    return (float *)(uintptr_t)state + t->op->offset + (size_t)(t->op->taps - 1) * t->op->width +
           v * d * d;
}

/* b and a of a head of v. */
static void gates_of(const delta_task *t, size_t row, uint32_t k_head, uint32_t i, float *b,
                     float *a)
{
    const uint32_t v = v_head(t->shape, k_head, i);
    const uint32_t n = t->shape->n_v_heads / t->shape->n_k_heads;
    const float *both = quire_graph_row(t->beta, row);

    *b = t->alpha != NULL ? both[v] : both[(size_t)2 * n * k_head + i];
    *a =
        t->alpha != NULL ? quire_graph_row(t->alpha, row)[v] : both[(size_t)2 * n * k_head + n + i];
}

/* A row changes a head's matrix, and then reads it by q. */
static void matrix_step(float *m, uint32_t d, const float *q, const float *k, const float *v,
                        float keep, float write, float *o)
{
    float seen[D_MAX] = { 0 };

    for (uint32_t i = 0; i < d; i++) {
        float *row = m + (size_t)i * d;

        for (uint32_t j = 0; j < d; j++) {
            row[j] *= keep;
            seen[j] += row[j] * k[i];
        }
    }
    for (uint32_t j = 0; j < d; j++) {
        seen[j] = (v[j] - seen[j]) * write;
        o[j] = 0.0f;
    }
    for (uint32_t i = 0; i < d; i++) {
        float *row = m + (size_t)i * d;

        for (uint32_t j = 0; j < d; j++) {
            row[j] += k[i] * seen[j];
            o[j] += row[j] * q[i];
        }
    }
}

/* norm(o) * SiLU(z) */
static void result_put(const delta_task *t, size_t row, uint32_t v, const float *o)
{
    const uint32_t d = t->shape->d_head;
    const float *z = quire_graph_row(t->z, row) + (size_t)v * d;
    float *out = (float *)t->out->data + row * (size_t)t->out->ne[0] + (size_t)v * d;
    double sum = 0.0;
    float scale;

    for (uint32_t j = 0; j < d; j++) {
        sum += (double)o[j] * (double)o[j];
    }
    scale = 1.0f / sqrtf((float)(sum / d) + t->op->eps);
    for (uint32_t j = 0; j < d; j++) {
        out[j] = o[j] * scale * t->op->norm[j] * (z[j] * sigmoid(z[j]));
    }
}

/* Row r of a run, a head of k and its heads of v. */
static void head_row(const delta_task *t, const quire_state_run *run, uint32_t r, uint32_t k_head)
{
    const quire_recurrent_desc *s = t->shape;
    const uint32_t d = s->d_head;
    const size_t keys = (size_t)s->n_k_heads * d;
    const size_t row = (size_t)run->first_row + r;
    float q[D_MAX], k[D_MAX], v[D_MAX], o[D_MAX];

    conv_at(t, run, r, (size_t)k_head * d, d, q);
    conv_at(t, run, r, keys + (size_t)k_head * d, d, k);
    unit_length(q, d, t->op->eps, 1.0f / sqrtf((float)d));
    unit_length(k, d, t->op->eps, 1.0f);
    for (uint32_t i = 0; i < s->n_v_heads / s->n_k_heads; i++) {
        const uint32_t h = v_head(s, k_head, i);
        float a, b;

        gates_of(t, row, k_head, i, &b, &a);
        conv_at(t, run, r, 2 * keys + (size_t)h * d, d, v);
        matrix_step(matrix_of(t, run->to, h), d, q, k, v,
                    expf(t->op->decay[h] * quire_softplus(a + t->op->dt[h])), sigmoid(b), o);
        result_put(t, row, h, o);
    }
}

static void head_run(const delta_task *t, const quire_state_run *run, uint32_t k_head)
{
    const quire_recurrent_desc *s = t->shape;
    const uint32_t d = s->d_head;
    const size_t keys = (size_t)s->n_k_heads * d;

    for (uint32_t i = 0; i < s->n_v_heads / s->n_k_heads; i++) {
        const uint32_t h = v_head(s, k_head, i);

        memcpy(matrix_of(t, run->to, h), matrix_of(t, run->from, h), (size_t)d * d * sizeof(float));
    }
    for (uint32_t r = 0; r < run->n_rows; r++) {
        head_row(t, run, r, k_head);
    }
    conv_keep(t, run, (size_t)k_head * d, d);
    conv_keep(t, run, keys + (size_t)k_head * d, d);
    for (uint32_t i = 0; i < s->n_v_heads / s->n_k_heads; i++) {
        conv_keep(t, run, 2 * keys + (size_t)v_head(s, k_head, i) * d, d);
    }
}

static void op_delta(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const quire_graph_recurrent *op = userdata;
    const delta_task task = { .op = op,
                              .shape = op->shape,
                              .qkv = dst->src[0],
                              .z = dst->src[1],
                              .beta = dst->src[2],
                              .alpha = dst->src[3],
                              .out = dst };

    for (uint32_t i = 0; i < quire_states_n_runs(op->states); i++) {
        for (uint32_t h = (uint32_t)ith; h < op->shape->n_k_heads; h += (uint32_t)nth) {
            head_run(&task, quire_states_run(op->states, i), h);
        }
    }
}

struct ggml_tensor *quire_graph_delta_op(const quire_graph_build *b, struct ggml_tensor *x,
                                         uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    quire_graph_recurrent *op = &b->recurrent[il];
    struct ggml_tensor *args[4];
    struct ggml_tensor *y;
    int n = 0;

    args[n++] = quire_graph_linear(b, l->conv_in, NULL, x);
    args[n++] = quire_graph_linear(b, l->delta_z, NULL, x);
    args[n++] = quire_graph_linear(b, l->delta_b, NULL, x);
    if (l->delta_a != NULL) {
        args[n++] = quire_graph_linear(b, l->delta_a, NULL, x);
    }
    y = ggml_custom_4d(b->graph->ctx, GGML_TYPE_F32,
                       (int64_t)op->shape->n_v_heads * op->shape->d_head, b->n_rows, 1, 1, args, n,
                       op_delta, GGML_N_TASKS_MAX, op);
    ggml_build_forward_expand(b->graph->cgraph, y);
    return y;
}
