/* graph_choice.h - the choice of experts in a ggml graph, by operations of ggml's alone: for layers
 * on a device, which computes the choice and goes on without the host.
 *
 *   logits -> gating (-> + bias) (-> experts of other groups far down) -> sorted: the first n_used
 *   the gating's numbers of these (-> softmax) (-> over their sum) (-> times scale): weights
 *
 * The meaning is router.h's, with two differences for equal numbers: the device's sort says which
 * of equal experts comes first, and of groups that score the same as the last one used, all are
 * used.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GRAPH_CHOICE_H
#define QUIRE_MODEL_GRAPH_CHOICE_H

#include "model/router.h"

#include <ggml.h>

/* The experts of rows, the largest first, and their weights. */
typedef struct quire_graph_choice {
    struct ggml_tensor *ids;     /* i32 [n_used][n_rows]; there are gaps between rows */
    struct ggml_tensor *weights; /* f32 [1][n_used][n_rows] */
} quire_graph_choice;

/* logits: f32 [n_experts][n_rows]; bias: f32 [n_experts], for the choice alone, or NULL; factors:
 * f32 [n_experts], by which weights of an expert are multiplied at last, or NULL. */
quire_graph_choice quire_graph_choice_build(struct ggml_context *ctx, const quire_router *router,
                                            struct ggml_tensor *logits, struct ggml_tensor *bias,
                                            struct ggml_tensor *factors);

/* Rows x [n][n_rows] times the weight of each of their choices: [n][n_used][n_rows]. */
struct ggml_tensor *quire_graph_choice_spread(struct ggml_context *ctx,
                                              const quire_graph_choice *choice,
                                              struct ggml_tensor *x);

/* The sums [n][n_rows] of the results y [n][n_used][n_rows] of a row's choices, in their order,
 * each times its weight if is_weighted. */
struct ggml_tensor *quire_graph_choice_combine(struct ggml_context *ctx,
                                               const quire_graph_choice *choice,
                                               struct ggml_tensor *y, bool is_weighted);

/* The most tensors that the three create. */
uint32_t quire_graph_choice_nodes(uint32_t n_used);

#endif /* QUIRE_MODEL_GRAPH_CHOICE_H */
