/* panels.h - chooses the matrices of a file that Quire multiplies itself (matmul.h).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_PANELS_H
#define QUIRE_MODEL_PANELS_H

#include "matmul/matmul.h"

#include <ggml.h>

/* Whether the kernels multiply a matrix of this type and size, and faster than ggml does. */
bool quire_panels_take(const struct ggml_tensor *matrix, const quire_matmul_kernels *kernels);

/* The same for all matrices of a layer's experts. `matrices` is one kind of them (gate, up, down),
 * and `tensors` has the other kinds. Each of these needs panels, too, or is of floats that Quire
 * multiplies: ggml's products of experts know no results of ours. */
bool quire_panels_take_experts(struct ggml_context *tensors, const struct ggml_tensor *matrices,
                               const quire_matmul_kernels *kernels);

/* The description of such a matrix, or of experts' matrices as one, without its panels. They take
 * as many bytes as the matrix has in the file, a multiple of 64.
 */
quire_matmul_weight quire_panels_weight(const struct ggml_tensor *matrix,
                                        const quire_matmul_kernels *kernels);

#endif /* QUIRE_MODEL_PANELS_H */
