/* graph_ffn.c - the network of a layer, by the kind that the architecture's row names.
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_build.h"

#include "base/check.h"

#include <math.h>

/* act(gate) * up, of two tensors. */
static struct ggml_tensor *gate_times_up(const quire_graph_build *b, struct ggml_tensor *gate,
                                         struct ggml_tensor *up)
{
    struct ggml_context *ctx = b->graph->ctx;

    switch (b->arch->act) {
    case QUIRE_ACT_SILU:
        return ggml_swiglu_split(ctx, gate, up);
    case QUIRE_ACT_GELU:
        return ggml_geglu_split(ctx, gate, up);
    case QUIRE_ACT_RELU:
    case QUIRE_ACT_RELU2:
    case QUIRE_ACT_XIELU:
    case QUIRE_ACT_CLAMPED:
        break;
    }
    QUIRE_CHECK(false);
}

/* The same where one product made rows of gate and up. */
static struct ggml_tensor *gate_up_halves(const quire_graph_build *b, struct ggml_tensor *gate_up)
{
    return b->arch->act == QUIRE_ACT_SILU ? ggml_swiglu(b->graph->ctx, gate_up)
                                          : ggml_geglu(b->graph->ctx, gate_up);
}

static struct ggml_tensor *ffn_gated(const quire_graph_build *b, struct ggml_tensor *x, uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    const bool is_sparse = il < b->arch->sparse_layers;
    struct ggml_tensor *up, *gate, *y;

    if (l->gate_up != NULL && l->gate_b == NULL && l->up_b == NULL && !is_sparse) {
        y = gate_up_halves(b, quire_linear_build_panels(b->linear, l->gate_up, x));
        return quire_graph_linear(b, l->down, l->down_b, y);
    }
    up = quire_graph_linear(b, l->up, l->up_b, x);
    ggml_build_forward_expand(b->graph->cgraph, up);
    gate = quire_graph_linear(b, l->gate, l->gate_b, x);
    gate = is_sparse ? quire_graph_sparse(b, gate) : gate;
    return quire_graph_linear(b, l->down, l->down_b, gate_times_up(b, gate, up));
}

static struct ggml_tensor *ffn_plain(const quire_graph_build *b, struct ggml_tensor *x, uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    const float *xielu = b->desc->xielu[il];
    struct ggml_tensor *y = quire_graph_linear(b, l->up, l->up_b, x);

    switch (b->arch->act) {
    case QUIRE_ACT_SILU:
        y = ggml_silu(b->graph->ctx, y);
        break;
    case QUIRE_ACT_GELU:
        y = ggml_gelu(b->graph->ctx, y);
        break;
    case QUIRE_ACT_RELU2:
        y = ggml_sqr(b->graph->ctx, ggml_relu(b->graph->ctx, y));
        break;
    case QUIRE_ACT_XIELU:
        y = ggml_xielu(b->graph->ctx, y, xielu[0], xielu[1], xielu[2], xielu[3]);
        break;
    case QUIRE_ACT_RELU:
    case QUIRE_ACT_CLAMPED:
        QUIRE_CHECK(false);
    }
    return quire_graph_linear(b, l->down, l->down_b, y);
}

struct ggml_tensor *quire_graph_ffn(const quire_graph_build *b, struct ggml_tensor *x,
                                    struct ggml_tensor *early, uint32_t il)
{
    if (b->weights->layers[il].experts.router != NULL) {
        return quire_graph_experts_build(&b->experts[il], b->linear, x,
                                         b->arch->experts.routes_early ? early : x);
    }
    switch (b->arch->ffn) {
    case QUIRE_FFN_GATED:
        return ffn_gated(b, x, il);
    case QUIRE_FFN_PLAIN:
        return ffn_plain(b, x, il);
    }
    QUIRE_CHECK(false);
}

struct ggml_tensor *quire_graph_ffn_and_experts(const quire_graph_build *b, struct ggml_tensor *x,
                                                uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    const quire_expert_weights *e = &l->experts;
    struct ggml_context *ctx = b->graph->ctx;
    struct ggml_tensor *dense = ffn_gated(b, quire_graph_norm(b, x, l->ffn_norm, NULL), il);
    struct ggml_tensor *routed = ggml_rms_norm(ctx, x, b->desc->rms_eps);
    struct ggml_tensor *y;

    dense = quire_graph_norm(b, dense, e->dense_post_norm, NULL);
    ggml_build_forward_expand(b->graph->cgraph, dense);
    routed = ggml_scale(ctx, routed, 1.0f / sqrtf((float)b->desc->n_embd));
    routed = ggml_mul(ctx, routed, e->router_scale);
    y = quire_graph_experts_build(&b->experts[il], b->linear, quire_graph_norm(b, x, e->norm, NULL),
                                  routed);
    return ggml_add(ctx, dense, quire_graph_norm(b, y, e->post_norm, NULL));
}
