/* float_maps.h - matrices of f32, f16 or bf16 in a ggml graph that Quire multiplies itself
 * (matmul/floats.h), so that a row keeps its bits in any company.
 *
 * Thread: owner; the ops run on all of ggml's threads.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_FLOAT_MAPS_H
#define QUIRE_MODEL_FLOAT_MAPS_H

#include "matmul/floats.h"

#include <stdbool.h>

#include <ggml.h>

/* Whether Quire multiplies with a matrix of this type on this CPU. */
bool quire_float_map_takes(const struct ggml_tensor *weight);

/* The same of a loaded matrix, or of a view of one: it lies in the host's memory. */
bool quire_float_map_is_ours(const struct ggml_tensor *weight);

/* x [n_in][n_rows] times a matrix that Quire takes; y and rows are the caller's to say. */
quire_floats_product quire_float_map_product(const struct ggml_tensor *weight,
                                             const struct ggml_tensor *x);

/* weight [in][out] times x [in][n_rows]: [out][n_rows]. */
struct ggml_tensor *quire_float_map_build(struct ggml_context *ctx, struct ggml_tensor *weight,
                                          struct ggml_tensor *x);

#endif /* QUIRE_MODEL_FLOAT_MAPS_H */
