/* graph_latent.c - latent attention (MLA), absorbed: Q and K of a layer's rows, and the map behind
 * attention.
 *
 *   latent row   norm(A_kv x) [d_v], and the rest of A_kv x, turned [n_rot]; it is K, and V is its
 *                first d_v numbers
 *   Q of head h  W_k[h]^T q_plain [d_v], and q_turned [n_rot], where q = W_q norm(A_q x) or W_q x
 *   result       W_v[h] (attention of head h over the latent rows) [d_out]
 *
 * K of head h would be W_k[h] times the latent row, and V W_v[h] times it; moving both to the other
 * factor gives the same products (arXiv 2405.04434, 2.1.2). All heads then share one KV head.
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_build.h"

#include "base/check.h"
#include "model/head_maps.h"

/* The part of rows of heads from number `first` of each head on: [n][heads][rows]. */
static struct ggml_tensor *part_of(const quire_graph_build *b, struct ggml_tensor *x, size_t first,
                                   uint32_t n)
{
    return ggml_view_3d(b->graph->ctx, x, n, x->ne[1], x->ne[2], x->nb[1], x->nb[2],
                        first * sizeof(float));
}

/* K, and in its first numbers V: [d_k][1][rows]. */
static struct ggml_tensor *latent_row(const quire_graph_build *b, struct ggml_tensor *x,
                                      uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    struct ggml_context *ctx = b->graph->ctx;
    struct ggml_tensor *row =
        ggml_reshape_3d(ctx, quire_graph_linear(b, l->wkv_a, NULL, x), b->desc->d_k, 1, b->n_rows);
    struct ggml_tensor *turned =
        quire_graph_rope(b, part_of(b, row, b->desc->d_v, b->desc->rope.n_dims), il);

    ggml_build_forward_expand(b->graph->cgraph, turned);
    row = quire_graph_norm(b, part_of(b, row, 0, b->desc->d_v), l->kv_a_norm, NULL);
    return ggml_concat(ctx, row, turned, 0);
}

/* Q in terms of the latent row: [d_k][heads][rows]. */
static struct ggml_tensor *latent_query(const quire_graph_build *b, struct ggml_tensor *x,
                                        uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    const uint32_t d_plain = b->desc->latent.d_plain, n_rot = b->desc->rope.n_dims;
    struct ggml_context *ctx = b->graph->ctx;
    struct ggml_tensor *q, *turned;

    if (l->wq_a != NULL) {
        x = quire_graph_norm(b, quire_graph_linear(b, l->wq_a, NULL, x), l->q_a_norm, NULL);
    }
    q = ggml_reshape_3d(ctx, quire_graph_linear(b, l->wq, NULL, x), d_plain + n_rot,
                        b->desc->n_head, b->n_rows);
    turned = quire_graph_rope(b, part_of(b, q, d_plain, n_rot), il);
    ggml_build_forward_expand(b->graph->cgraph, turned);
    return ggml_concat(ctx, quire_head_maps_build(ctx, l->wk_b, part_of(b, q, 0, d_plain)), turned,
                       0);
}

void quire_graph_latent_rows(const quire_graph_build *b, struct ggml_tensor *x, uint32_t il,
                             struct ggml_tensor **q, struct ggml_tensor **k)
{
    if (q != NULL) {
        *q = latent_query(b, x, il);
        ggml_build_forward_expand(b->graph->cgraph, *q);
    }
    *k = latent_row(b, x, il);
    ggml_build_forward_expand(b->graph->cgraph, *k);
}

/* The matrices of V: a tensor, or every second part of one. */
static struct ggml_tensor *value_matrices(const quire_graph_build *b, uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    const quire_latent_desc *latent = &b->desc->latent;
    struct ggml_tensor *w = l->wkv_b;

    if (w == NULL) {
        return l->wv_b;
    }
    return ggml_view_3d(b->graph->ctx, w, w->ne[0], latent->d_out, b->desc->n_head, w->nb[1],
                        w->nb[1] * (latent->d_plain + latent->d_out), w->nb[1] * latent->d_plain);
}

struct ggml_tensor *quire_graph_latent_result(const quire_graph_build *b, struct ggml_tensor *y,
                                              uint32_t il)
{
    struct ggml_context *ctx = b->graph->ctx;
    const int64_t n_rows = y->ne[1];

    y = ggml_reshape_3d(ctx, y, b->desc->d_v, b->desc->n_head, n_rows);
    y = quire_head_maps_build(ctx, value_matrices(b, il), y);
    y = ggml_is_contiguous(y) ? y : ggml_cont(ctx, y);
    return ggml_reshape_2d(ctx, y, (int64_t)b->desc->latent.d_out * b->desc->n_head, n_rows);
}
