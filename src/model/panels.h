/* panels.h - chooses the matrices of a file that Quire multiplies itself (matmul.h).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_PANELS_H
#define QUIRE_MODEL_PANELS_H

#include "matmul/matmul.h"

#include <ggml.h>

/* Whether a matrix has the type and the size. */
bool quire_panels_take(const struct ggml_tensor *matrix);

/* Whether the matrices of a layer's experts, of which this is one kind, all have the type and the
 * size. tensors has the other kinds. */
bool quire_panels_take_experts(struct ggml_context *tensors, const struct ggml_tensor *matrices);

/* The description of such a matrix, or of experts' matrices as one, without its panels. They take
 * as many bytes as the matrix has in the file, a multiple of 64.
 */
quire_matmul_weight quire_panels_weight(const struct ggml_tensor *matrix,
                                        const quire_matmul_kernels *kernels);

#endif /* QUIRE_MODEL_PANELS_H */
