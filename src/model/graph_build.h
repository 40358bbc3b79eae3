/* graph_build.h - code that the builders of a graph's blocks share; for src/model/graph*.c only.
 *
 * The builders read from the architecture's row (archs.h) which operations a block has, and from
 * the weights which of its optional tensors are there. The choice and order of operations follow
 * the patterns that ggml's CPU backend fuses and repacks (norm directly followed by its weight).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GRAPH_BUILD_H
#define QUIRE_MODEL_GRAPH_BUILD_H

#include "model/archs.h"
#include "model/graph.h"
#include "model/graph_experts.h"
#include "model/linear.h"

typedef struct quire_graph_build {
    const quire_model_desc *desc;
    const quire_arch_row *arch;
    const quire_weights *weights;
    struct ggml_tensor *rope_factors; /* NULL: frequencies as they are */
    quire_graph_op *ops;
    quire_graph_recurrent *recurrent; /* [n_layer], or NULL */
    quire_graph_exit *exit;
    quire_graph *graph;
    quire_linear *linear;
    quire_graph_experts *experts; /* [n_layer], or NULL */
    int device_from_node;         /* the first node of a layer on a device */
    /* Of the rows of the layer at hand. */
    uint32_t n_rows;
    struct ggml_tensor *positions;
    struct ggml_tensor *layer_embd; /* [n_embd_layer * n_layer][n_rows], or NULL */
    /* Layer 0's, for layers that store a sum. */
    struct ggml_tensor *k_first;
    struct ggml_tensor *v_first;
} quire_graph_build;

/* The most tensors of the graph of a shape; the number that linear maps add depends on the number
 * of rows. */
size_t quire_graph_nodes(const quire_graphs *graphs, uint32_t n_rows, uint32_t n_logits);

/* A norm of the architecture's kind over the first dimension of x; bias: NULL = none. */
struct ggml_tensor *quire_graph_norm(const quire_graph_build *b, struct ggml_tensor *x,
                                     struct ggml_tensor *weight, struct ggml_tensor *bias);

/* weight times x, plus bias; NULL = none. */
struct ggml_tensor *quire_graph_linear(const quire_graph_build *b, struct ggml_tensor *weight,
                                       struct ggml_tensor *bias, struct ggml_tensor *x);

/* The same without a bias, with bits that do not depend on the other rows also where weight is of
 * floats. */
struct ggml_tensor *quire_graph_exact(const quire_graph_build *b, struct ggml_tensor *weight,
                                      struct ggml_tensor *x);

/* Note an append or attention that may be queued: where the graph wants that, and no input of it is
 * for the host alone. */
void quire_graph_own_note(const quire_graph_build *b, struct ggml_tensor *tensor, uint32_t il,
                          bool is_append);

/* Queue a layer's work on the attention device, whose memory the graph's tensors are in. */
void quire_graph_work_queue(const quire_graph *graph, const quire_graph_work *work);

/* x times a constant; x itself where that is 1. */
struct ggml_tensor *quire_graph_scaled(const quire_graph_build *b, struct ggml_tensor *x,
                                       float factor);

/* Turn the heads of x by their positions, as layer il does. */
struct ggml_tensor *quire_graph_rope(const quire_graph_build *b, struct ggml_tensor *x,
                                     uint32_t il);

/* Latent attention: Q [d_k][n_head][n_rows], unless q is NULL, and K [d_k][1][n_rows], whose first
 * d_v numbers are V, of a layer's normalised rows. */
void quire_graph_latent_rows(const quire_graph_build *b, struct ggml_tensor *x, uint32_t il,
                             struct ggml_tensor **q, struct ggml_tensor **k);

/* The heads' results [d_out * n_head][rows] of attention over latent rows. */
struct ggml_tensor *quire_graph_latent_result(const quire_graph_build *b, struct ggml_tensor *y,
                                              uint32_t il);

/* The inputs of a layer's attention. */
typedef struct quire_graph_attn {
    struct ggml_tensor *q[QUIRE_ATTN_SOURCES_MAX]; /* gates included */
    struct ggml_tensor *append;                    /* NULL in a layer that stores nothing */
    struct ggml_tensor *k;    /* of the rows' own tokens; NULL when attention does not read it */
    struct ggml_tensor *gate; /* of the result, [n_head * d_v][n_rows]; NULL = none */
} quire_graph_attn;

/* Compute Q, K and V of a layer's normalised rows, and store K and V. Without Q if only the append
 * is wanted and does not need Q. */
quire_graph_attn quire_graph_attn_begin(quire_graph_build *b, struct ggml_tensor *x, uint32_t il,
                                        bool is_append_only);

/* From here on the graph computes the wanted rows alone. */
void quire_graph_attn_exit(quire_graph_build *b, quire_graph_attn *in);

/* Attention of one layer, output projection not included. */
struct ggml_tensor *quire_graph_attn_op(const quire_graph_build *b, const quire_graph_attn *in,
                                        uint32_t il);

/* The recurrent operation of a layer with a delta net. */
struct ggml_tensor *quire_graph_delta_op(const quire_graph_build *b, struct ggml_tensor *x,
                                         uint32_t il);

/* The recurrent operation of a layer with Mamba-2. */
struct ggml_tensor *quire_graph_mamba_op(const quire_graph_build *b, struct ggml_tensor *x,
                                         uint32_t il);

/* The block of a recurrent layer, output projection not included. */
struct ggml_tensor *quire_graph_recurrent_op(const quire_graph_build *b, struct ggml_tensor *x,
                                             uint32_t il);

/* The second embedding of the step's tokens, mixed with the first one, x: b->layer_embd. */
void quire_graph_layer_embd_begin(quire_graph_build *b, struct ggml_tensor *x);

/* From here on of the wanted rows. */
void quire_graph_layer_embd_pick(quire_graph_build *b);

/* A layer's output x with its part of the second embedding. */
struct ggml_tensor *quire_graph_layer_embd_add(const quire_graph_build *b, struct ggml_tensor *x,
                                               uint32_t il);

/* The part of the second embedding that layer il adds to its rows x. */
struct ggml_tensor *quire_graph_layer_embd_part(const quire_graph_build *b, struct ggml_tensor *x,
                                                uint32_t il);

/* A residual of streams, [n_embd][QUIRE_STREAMS][rows] as rows of n_embd * QUIRE_STREAMS, of rows
 * of the embedding. */
struct ggml_tensor *quire_graph_streams_begin(const quire_graph_build *b, struct ggml_tensor *x);

/* The streams that layer il predicts before its blocks. */
struct ggml_tensor *quire_graph_streams_predict(const quire_graph_build *b, struct ggml_tensor *x,
                                                uint32_t il);

/* The stream that blocks read and change. */
struct ggml_tensor *quire_graph_streams_active(const quire_graph_build *b, struct ggml_tensor *x);

/* The streams after layer il. predicted: the streams before its blocks; y: the blocks' result for
 * the active stream. */
struct ggml_tensor *quire_graph_streams_correct(const quire_graph_build *b,
                                                struct ggml_tensor *predicted,
                                                struct ggml_tensor *y, uint32_t il);

/* The residual behind attention, x, with the map beside attention, which reads the same rows h. */
struct ggml_tensor *quire_graph_laurel_add(const quire_graph_build *b, struct ggml_tensor *x,
                                           struct ggml_tensor *h, uint32_t il);

/* The mean of the streams: [n_embd][rows]. */
struct ggml_tensor *quire_graph_streams_end(const quire_graph_build *b, struct ggml_tensor *x);

/* Gates of a network of which the largest stay, and only by how much they exceed the others. */
struct ggml_tensor *quire_graph_sparse(const quire_graph_build *b, struct ggml_tensor *gate);

/* The network of a layer, norms not included. early: the layer's input, for routers that read
 * it. */
struct ggml_tensor *quire_graph_ffn(const quire_graph_build *b, struct ggml_tensor *x,
                                    struct ggml_tensor *early, uint32_t il);

/* The sum of a layer's plain network and of its experts, each with its norms. */
struct ggml_tensor *quire_graph_ffn_and_experts(const quire_graph_build *b, struct ggml_tensor *x,
                                                uint32_t il);

#endif /* QUIRE_MODEL_GRAPH_BUILD_H */
