/* step_sizes.h - the memory of the graphs of steps, known before weights are loaded.
 *
 * The figures are not estimated. The graphs of a runtime's largest steps are built on an outline of
 * the weights (weights_outline.h), and ggml's allocator is asked how much memory they would take.
 * That takes some milliseconds, so the last results are remembered.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_STEP_SIZES_H
#define QUIRE_MODEL_STEP_SIZES_H

#include "model/graph.h"
#include "model/runtime.h"
#include "model/weights.h"

typedef struct quire_step_sizes quire_step_sizes;

/* desc is borrowed. The outlines, one of each set, become the object's, also on failure. Errors:
 * QUIRE_NOMEM. */
int quire_step_sizes_create(quire_step_sizes **out, const quire_model_desc *desc,
                            quire_weights *outlines[QUIRE_MODEL_SETS_MAX]);
void quire_step_sizes_destroy(quire_step_sizes *sizes);

/* The memory of a runtime with these options, which have no zeros (quire_runtime_opts_resolve()).
 * kv_pairs may be NULL. All zeros if there is no memory for the question. */
quire_graphs_size quire_step_sizes_get(quire_step_sizes *sizes, const quire_runtime_opts *opts);

/* quire_weights_layer_side() of the weights of a set. */
uint32_t quire_step_sizes_layer_side(const quire_step_sizes *sizes, uint32_t set, uint32_t layer);

#endif /* QUIRE_MODEL_STEP_SIZES_H */
