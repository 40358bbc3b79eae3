/* graph_experts.h - the network of a layer with experts, in a ggml graph.
 *
 *   logits     custom op: router times x, in an order that depends on no other row
 *   choice     custom op: experts and weights of each row (router.h)
 *   plan       custom op, one thread: pairs of rows and experts by expert (matmul/experts.h)
 *
 * Matrices in panels:
 *   pack       custom op: x to 8 bits, rows in the order of the plan
 *   (spread    custom op: a weighted row for each pair, where weights are of the input; these are
 *              packed)
 *   gate, up   custom op: both products of all pairs, or one where a matrix holds both
 *   activation ggml's
 *   pack, down custom ops
 *   combine    custom op: the weighted sum of a row's results
 *
 * Matrices of f32, f16 and bf16 have the same ops but for packing: their products read x as it is
 * (matmul/floats.h), also beside matrices in panels. A layer with a matrix that is neither in
 * panels nor of floats has ggml's mul_mat_id between choice and combine. Experts that all rows pass
 * through (shared ones) are built as a network beside, and added; floats are multiplied in the same
 * way there.
 *
 * In a layer on a device all operations are ggml's, with the choice and the sum (graph_choice.h),
 * so no row comes to the host between them. Of these operations the host computes what the device
 * lacks (graph_split.h).
 *
 * In a layer in panels or of floats a row's result depends on no other row, as everywhere in Quire
 * (docs/architecture.md). ggml's products of experts do not promise as much.
 *
 * Thread: owner; the ops run on all of ggml's threads.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GRAPH_EXPERTS_H
#define QUIRE_MODEL_GRAPH_EXPERTS_H

#include "model/archs.h"
#include "model/linear.h"
#include "model/model.h"
#include "model/weights.h"

/* A layer's constants, which its ops read; they must live as long as the graphs. */
typedef struct quire_graph_experts {
    const quire_router *router;
    const quire_expert_weights *weights;
    quire_act act; /* SILU, GELU, RELU or CLAMPED; without gates RELU2 */
    bool weighs_input;
    bool is_averaged;
} quire_graph_experts;

/* The output of the layer's network for rows x [n_embd][n_rows], [n_embd][n_rows]; adds the ops
 * that must run in order to the graph, but not the result itself. routed: the rows that the router
 * reads. */
struct ggml_tensor *quire_graph_experts_build(quire_graph_experts *experts, quire_linear *linear,
                                              struct ggml_tensor *x, struct ggml_tensor *routed);

/* The most tensors that quire_graph_experts_build() creates in the context. */
uint32_t quire_graph_experts_nodes(const quire_expert_weights *weights, uint32_t n_used,
                                   uint32_t n_rows, size_t block_bytes);

#endif /* QUIRE_MODEL_GRAPH_EXPERTS_H */
