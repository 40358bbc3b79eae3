/* graph_streams.c - the residual as several streams (Gemma 3n): AltUp, the map beside attention,
 * and gates of which the largest stay.
 *
 *   begin     stream 0 is the embedding; another one is a map of it, of the embedding's length
 *   predict   a layer adds to each stream a sum of all streams, weighted by factors that follow
 *             from stream 0; the blocks of the layer read stream 0 of the result
 *   correct   the blocks' change is added to each stream, times factors that follow from the
 *             blocks' result; all but stream 0 get the layer's part of the second embedding
 *   end       the mean of stream 0 and a map of each other one, of the length of stream 0
 *
 * A row has its streams one behind the other: [n_embd * QUIRE_STREAMS][rows]. Sources: AltUp, arXiv
 * 2301.13310; the map beside attention (Laurel), arXiv 2411.07501; the gates, arXiv 2506.06644; and
 * libllama's src/models/gemma3n.cpp for numbers and places.
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_build.h"

#include <math.h>

/* The share of a normal distribution below mean + 1.645 deviations is 95 %. */
#define SPARSE_DEVIATIONS 1.6448533535003662f

static struct ggml_tensor *custom(const quire_graph_build *b, int64_t width, int64_t n_rows,
                                  struct ggml_tensor **args, int n, ggml_custom_op_t fun)
{
    return ggml_custom_4d(b->graph->ctx, GGML_TYPE_F32, width, n_rows, 1, 1, args, n, fun,
                          GGML_N_TASKS_MAX, NULL);
}

static const float *row_of(const struct ggml_tensor *t, int64_t row)
{
    return (const float *)((const char *)t->data + (size_t)row * t->nb[1]);
}

static float *result_row(const struct ggml_tensor *t, int64_t row)
{
    return (float *)((char *)t->data + (size_t)row * t->nb[1]);
}

static float length_of(const float *x, int64_t n)
{
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++) {
        sum += (double)x[i] * x[i];
    }
    return (float)sqrt(sum);
}

/* ---- the ops; threads share the columns of predict, correct and late, else the rows ---- */

/* x, maps of x: the streams. */
static void op_begin(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const int64_t n = dst->src[0]->ne[0];

    (void)userdata;
    for (int64_t row = ith; row < dst->ne[1]; row += nth) {
        const float *x = row_of(dst->src[0], row);
        const float length = length_of(x, n);
        float *to = result_row(dst, row);

        for (int64_t i = 0; i < n; i++) {
            to[i] = x[i];
        }
        for (uint32_t s = 1; s < QUIRE_STREAMS; s++) {
            const float *y = row_of(dst->src[s], row);
            const float own = length_of(y, n);

            for (int64_t i = 0; i < n; i++) {
                to[s * n + i] = y[i] * length / own;
            }
        }
    }
}

/* Streams, maps of all but the first: their mean. */
static void op_end(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const int64_t n = dst->ne[0];

    (void)userdata;
    for (int64_t row = ith; row < dst->ne[1]; row += nth) {
        const float *x = row_of(dst->src[0], row);
        const float length = length_of(x, n);
        float *to = result_row(dst, row);

        for (int64_t i = 0; i < n; i++) {
            to[i] = x[i];
        }
        for (uint32_t s = 1; s < QUIRE_STREAMS; s++) {
            const float *y = row_of(dst->src[s], row);
            const float own = length_of(y, n);

            for (int64_t i = 0; i < n; i++) {
                to[i] += y[i] * length / own;
            }
        }
        for (int64_t i = 0; i < n; i++) {
            to[i] *= 1.0f / (float)QUIRE_STREAMS;
        }
    }
}

/* Streams, factors [from][to] of each row. */
static void op_predict(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const int64_t n = dst->ne[0] / QUIRE_STREAMS;
    const int64_t begin = n * ith / nth, end = n * (ith + 1) / nth;

    (void)userdata;
    for (int64_t row = 0; row < dst->ne[1]; row++) {
        const float *x = row_of(dst->src[0], row), *factors = row_of(dst->src[1], row);

        for (uint32_t s = 0; s < QUIRE_STREAMS; s++) {
            const float *f = factors + (size_t)s * QUIRE_STREAMS;
            float *to = result_row(dst, row) + s * n;

            for (int64_t i = begin; i < end; i++) {
                float sum = 0.0f;

                for (uint32_t k = 0; k < QUIRE_STREAMS; k++) {
                    sum += f[k] * x[k * n + i];
                }
                to[i] = sum + x[s * n + i];
            }
        }
    }
}

/* Sources: predicted streams, the result of the blocks for the first one, a factor less one of each
 * stream. */
static void op_correct(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const int64_t n = dst->ne[0] / QUIRE_STREAMS;
    const int64_t begin = n * ith / nth, end = n * (ith + 1) / nth;

    (void)userdata;
    for (int64_t row = 0; row < dst->ne[1]; row++) {
        const float *x = row_of(dst->src[0], row), *y = row_of(dst->src[1], row);
        const float *factors = row_of(dst->src[2], row);

        for (uint32_t s = 0; s < QUIRE_STREAMS; s++) {
            const float factor = factors[s] + 1.0f;
            float *to = result_row(dst, row) + s * n;

            for (int64_t i = begin; i < end; i++) {
                to[i] = (y[i] - x[i]) * factor + x[s * n + i];
            }
        }
    }
}

/* Streams, and the part of the second embedding that all but the first stream get. */
static void op_late(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const int64_t n = dst->ne[0] / QUIRE_STREAMS;
    const int64_t begin = n * ith / nth, end = n * (ith + 1) / nth;

    (void)userdata;
    for (int64_t row = 0; row < dst->ne[1]; row++) {
        const float *x = row_of(dst->src[0], row), *y = row_of(dst->src[1], row);
        float *to = result_row(dst, row);

        for (uint32_t s = 0; s < QUIRE_STREAMS; s++) {
            for (int64_t i = begin; i < end; i++) {
                to[s * n + i] = s == 0 ? x[i] : x[s * n + i] + y[i];
            }
        }
    }
}

static void op_sparse(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const int64_t n = dst->ne[0];

    (void)userdata;
    for (int64_t row = ith; row < dst->ne[1]; row += nth) {
        const float *x = row_of(dst->src[0], row);
        float *to = result_row(dst, row);
        double sum = 0.0, squares = 0.0;
        float mean, least;

        for (int64_t i = 0; i < n; i++) {
            sum += (double)x[i];
        }
        mean = (float)(sum / (double)n);
        for (int64_t i = 0; i < n; i++) {
            squares += (double)(x[i] - mean) * (x[i] - mean);
        }
        least = mean + SPARSE_DEVIATIONS * sqrtf((float)squares / (float)(n - 1));
        for (int64_t i = 0; i < n; i++) {
            to[i] = x[i] > least ? x[i] - least : 0.0f;
        }
    }
}

/* ---- building ---- */

static struct ggml_tensor *stream(const quire_graph_build *b, struct ggml_tensor *x, uint32_t s)
{
    const int64_t n = b->desc->n_embd;

    return ggml_view_2d(b->graph->ctx, x, n, x->ne[1], x->nb[1], s * (size_t)n * sizeof(float));
}

struct ggml_tensor *quire_graph_streams_active(const quire_graph_build *b, struct ggml_tensor *x)
{
    return stream(b, x, 0);
}

struct ggml_tensor *quire_graph_streams_begin(const quire_graph_build *b, struct ggml_tensor *x)
{
    struct ggml_tensor *args[QUIRE_STREAMS] = { x };

    for (uint32_t s = 1; s < QUIRE_STREAMS; s++) {
        args[s] = quire_graph_exact(b, b->weights->streams_in[s - 1], x);
        ggml_build_forward_expand(b->graph->cgraph, args[s]);
    }
    return custom(b, (int64_t)QUIRE_STREAMS * x->ne[0], x->ne[1], args, QUIRE_STREAMS, op_begin);
}

struct ggml_tensor *quire_graph_streams_end(const quire_graph_build *b, struct ggml_tensor *x)
{
    struct ggml_tensor *args[QUIRE_STREAMS] = { x };

    for (uint32_t s = 1; s < QUIRE_STREAMS; s++) {
        args[s] = quire_graph_exact(b, b->weights->streams_out[s - 1], stream(b, x, s));
        ggml_build_forward_expand(b->graph->cgraph, args[s]);
    }
    return custom(b, b->desc->n_embd, x->ne[1], args, QUIRE_STREAMS, op_end);
}

/* The numbers from which the factors of streams follow: [QUIRE_STREAMS][rows]. */
static struct ggml_tensor *routed(const quire_graph_build *b, struct ggml_tensor *x, uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    struct ggml_context *ctx = b->graph->ctx;

    x = quire_graph_norm(b, x, l->stream_router_norm, NULL);
    x = ggml_scale(ctx, x, 1.0f / (float)b->desc->n_embd);
    return ggml_tanh(ctx, quire_graph_exact(b, l->stream_router, x));
}

struct ggml_tensor *quire_graph_streams_predict(const quire_graph_build *b, struct ggml_tensor *x,
                                                uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    struct ggml_tensor *factors = routed(b, stream(b, x, 0), il);

    factors = quire_graph_exact(b, l->stream_predict, factors);
    x = custom(b, x->ne[0], x->ne[1], (struct ggml_tensor *[]){ x, factors }, 2, op_predict);
    ggml_build_forward_expand(b->graph->cgraph, x);
    return x;
}

struct ggml_tensor *quire_graph_streams_correct(const quire_graph_build *b,
                                                struct ggml_tensor *predicted,
                                                struct ggml_tensor *y, uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    struct ggml_tensor *factors = quire_graph_exact(b, l->stream_correct, routed(b, y, il));
    struct ggml_tensor *x, *part;

    x = custom(b, predicted->ne[0], y->ne[1], (struct ggml_tensor *[]){ predicted, y, factors }, 3,
               op_correct);
    part = ggml_mul(b->graph->ctx, stream(b, x, 0), l->stream_scale);
    part = quire_graph_layer_embd_part(b, part, il);
    return custom(b, x->ne[0], x->ne[1], (struct ggml_tensor *[]){ x, part }, 2, op_late);
}

struct ggml_tensor *quire_graph_laurel_add(const quire_graph_build *b, struct ggml_tensor *x,
                                           struct ggml_tensor *h, uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    struct ggml_context *ctx = b->graph->ctx;
    struct ggml_tensor *y = quire_graph_exact(b, l->laurel_in, h);

    y = quire_graph_norm(b, quire_graph_exact(b, l->laurel_out, y), l->laurel_norm, NULL);
    return ggml_scale(ctx, ggml_add(ctx, x, ggml_add(ctx, y, h)), 1.0f / sqrtf(2.0f));
}

struct ggml_tensor *quire_graph_sparse(const quire_graph_build *b, struct ggml_tensor *gate)
{
    return custom(b, gate->ne[0], gate->ne[1], &gate, 1, op_sparse);
}
