/* head_maps.h - a matrix for each head times that head's rows, in a ggml graph (latent attention).
 *
 * ggml's products of such matrices add in an order that depends on the number of rows. So matrices
 * in panels have Quire's products, each head's as any matrix's; floats are multiplied as in
 * float_maps.h. Matrices of other types that the host holds are widened to f32 a few rows at a
 * time, and multiplied as floats. Where Quire has no products of its own (an old CPU, ARM), and
 * with matrices on a device, the products are ggml's.
 *
 * Thread: owner; the ops run on all of ggml's threads.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_HEAD_MAPS_H
#define QUIRE_MODEL_HEAD_MAPS_H

#include <ggml.h>

/* weight [in][out][heads] times x [in][heads][n_rows]: [out][heads][n_rows], which may be a view of
 * other strides. Both may be views. Creates at most three tensors. */
struct ggml_tensor *quire_head_maps_build(struct ggml_context *ctx, struct ggml_tensor *weight,
                                          struct ggml_tensor *x);

#endif /* QUIRE_MODEL_HEAD_MAPS_H */
