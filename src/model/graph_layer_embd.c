/* graph_layer_embd.c - a second embedding, of which each layer adds a part (Gemma 3n, Gemma 4).
 *
 *   all layers   E[token] * sqrt(d), plus norm(W x0 / sqrt(n_embd)), over sqrt(2): d numbers for
 *                each layer. x0 is the first embedding.
 *   a layer      x + norm(W_b (gelu(W_a x) * its d numbers))
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_build.h"

#include <math.h>

void quire_graph_layer_embd_begin(quire_graph_build *b, struct ggml_tensor *x)
{
    const quire_weights *w = b->weights;
    const int64_t d = b->desc->n_embd_layer, n_layer = b->desc->n_layer;
    struct ggml_context *ctx = b->graph->ctx;
    struct ggml_tensor *looked_up, *y;

    if (w->layer_embd == NULL) {
        return;
    }
    looked_up = ggml_get_rows(ctx, w->layer_embd, b->graph->tokens);
    looked_up = ggml_scale(ctx, looked_up, sqrtf((float)d));
    y = b->arch->has_streams ? quire_graph_exact(b, w->layer_embd_map, x)
                             : quire_graph_linear(b, w->layer_embd_map, NULL, x);
    y = ggml_scale(ctx, y, 1.0f / sqrtf((float)b->desc->n_embd));
    y = ggml_reshape_3d(ctx, y, d, n_layer, b->n_rows);
    y = quire_graph_norm(b, y, w->layer_embd_norm, NULL);
    y = ggml_add(ctx, ggml_reshape_2d(ctx, y, d * n_layer, b->n_rows), looked_up);
    b->layer_embd = ggml_scale(ctx, y, 1.0f / sqrtf(2.0f));
    ggml_build_forward_expand(b->graph->cgraph, b->layer_embd);
}

void quire_graph_layer_embd_pick(quire_graph_build *b)
{
    if (b->layer_embd != NULL) {
        b->layer_embd = ggml_get_rows(b->graph->ctx, b->layer_embd, b->graph->out_rows);
    }
}

struct ggml_tensor *quire_graph_layer_embd_part(const quire_graph_build *b, struct ggml_tensor *x,
                                                uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    const size_t d = b->desc->n_embd_layer;
    struct ggml_context *ctx = b->graph->ctx;
    struct ggml_tensor *y, *part;

    part = ggml_view_2d(ctx, b->layer_embd, (int64_t)d, x->ne[1], b->layer_embd->nb[1],
                        il * d * sizeof(float));
    y = ggml_gelu(ctx, quire_graph_linear(b, l->embd_gate, NULL, x));
    y = quire_graph_linear(b, l->embd_map, NULL, ggml_mul(ctx, y, part));
    return quire_graph_norm(b, y, l->embd_post_norm, NULL);
}

struct ggml_tensor *quire_graph_layer_embd_add(const quire_graph_build *b, struct ggml_tensor *x,
                                               uint32_t il)
{
    return b->layer_embd != NULL ? ggml_add(b->graph->ctx, x, quire_graph_layer_embd_part(b, x, il))
                                 : x;
}
