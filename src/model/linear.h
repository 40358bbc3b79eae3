/* linear.h - a linear map of a ggml graph: our own product where the weights are in panels
 * (matmul.h), else ggml's, with the weights brought into the caches first where its kernel cannot
 * do that for itself.
 *
 * Panels take two ops, pack(x) and product(W, packed); maps of the same x that are built one after
 * the other share the first.
 *
 * For one row ggml runs straight through the weights and the CPU's prefetchers keep up. For more,
 * its block-quantised kernels take four rows of weights at a time in steps of a few dozen bytes,
 * which no prefetcher recognises: the step waits for memory line by line, and 2 sequences cost 2.4
 * times as much as one. A custom op before the product reads one byte of every cache line in
 * order, each thread the part that it will multiply, and the product then runs from the L2 caches:
 *
 *   matrix <= block:  touch(W) -> mul_mat(W, x)
 *   larger:           touch(W[0]) -> mul_mat(W[0], x) -> collect(touch(W[1])) -> mul_mat(W[1], x)
 * -> ...
 *
 * where W[i] are blocks of output rows and collect copies a block's result to its place. Products
 * are ggml's in this case, and of the same rows in the same order, so results do not change.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_LINEAR_H
#define QUIRE_MODEL_LINEAR_H

#include <stddef.h>
#include <stdint.h>

#include <ggml.h>

#include "matmul/matmul.h"

/* Beyond so many rows of x the product takes longer than the weights' way from memory: nothing is
 * touched. A matrix of several blocks, for each of which ggml rounds x again, is touched for fewer.
 */
#define QUIRE_LINEAR_ROWS_MAX     64
#define QUIRE_LINEAR_CUT_ROWS_MAX 16

/* The graph that maps are added to. */
typedef struct quire_linear {
    struct ggml_context *ctx;
    struct ggml_cgraph *cgraph;
    size_t block_bytes; /* weights that the threads' L2 caches hold together */
    /* Written by quire_linear_build(), NULL at first: the x that was packed last. */
    struct ggml_tensor *x;
    struct ggml_tensor *packed;
} quire_linear;

/* What n_threads can keep in their L2 caches beside what else a product needs. */
size_t quire_linear_block_bytes(uint32_t n_threads);

/* Into how many blocks of output rows a product with n_rows rows of x is cut; 0: not touched at
 * all, a plain product. */
uint32_t quire_linear_blocks(const struct ggml_tensor *weight, uint32_t n_rows, size_t block_bytes);

/* Tensors that quire_linear_build() creates in the context at most. */
uint32_t quire_linear_nodes(const struct ggml_tensor *weight, uint32_t n_rows, size_t block_bytes);

/* weight [in][out] times x [in][n_rows]: [out][n_rows]. Adds what must run in order to the graph,
 * but not the result itself. weight must have its data's buffer, or panels. */
struct ggml_tensor *quire_linear_build(quire_linear *linear, struct ggml_tensor *weight,
                                       struct ggml_tensor *x);

/* The same of a matrix in panels that is no tensor. */
struct ggml_tensor *quire_linear_build_panels(quire_linear *linear, quire_matmul_weight *panels,
                                              struct ggml_tensor *x);

#endif /* QUIRE_MODEL_LINEAR_H */
