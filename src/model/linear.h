/* linear.h - a linear map of a ggml graph: Quire's own product if the weights are in panels
 * (matmul.h), else ggml's product. In some cases the weights are brought into the caches before
 * ggml's product.
 *
 * Panels take two ops, pack(x) and product(W, packed); maps of the same x that are built one after
 * the other share the first.
 *
 * For one row ggml reads the weights in order, and the CPU's prefetchers keep up. For more rows,
 * its block-quantised kernels take four rows of weights at a time in steps of a few dozen bytes. No
 * prefetcher recognises this pattern, so the step waits for memory line by line (linear.c has
 * figures). A custom op before the product therefore reads one byte of every cache line in order.
 * Each thread reads the part that it will multiply, and the product then runs from the L2 caches:
 *
 *   matrix <= block:  touch(W) -> mul_mat(W, x)
 *   larger:           touch(W[0]) -> mul_mat(W[0], x)
 *                     -> collect(touch(W[1])) -> mul_mat(W[1], x) -> ...
 *
 * W[i] are blocks of output rows; collect copies a block's result to its place. The products are
 * ggml's, of the same rows in the same order, so results do not change.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_LINEAR_H
#define QUIRE_MODEL_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ggml.h>

#include "matmul/matmul.h"

/* The most rows of x for which weights are touched. With more rows the product takes longer than
 * reading the weights from memory. A matrix of several blocks has a lower bound, because ggml
 * rounds x again for each block.
 */
#define QUIRE_LINEAR_ROWS_MAX     64
#define QUIRE_LINEAR_CUT_ROWS_MAX 16

/* The graph that maps are added to. */
typedef struct quire_linear {
    struct ggml_context *ctx;
    struct ggml_cgraph *cgraph;
    size_t block_bytes; /* weights that the threads' L2 caches hold together */
    bool is_plain;      /* of a layer on a device: ggml's products, but of the host's panels */
    /* The x that was packed last; NULL at first, then written by quire_linear_build(). */
    struct ggml_tensor *x;
    struct ggml_tensor *packed;
} quire_linear;

/* Bytes of weights that n_threads can keep in their L2 caches beside the other data of a
 * product. */
size_t quire_linear_block_bytes(uint32_t n_threads);

/* The number of blocks of output rows into which a product with n_rows rows of x is cut; 0: a plain
 * product, whose weights are not touched first. */
uint32_t quire_linear_blocks(const struct ggml_tensor *weight, uint32_t n_rows, size_t block_bytes);

/* The most tensors that quire_linear_build() creates in the context. */
uint32_t quire_linear_nodes(const struct ggml_tensor *weight, uint32_t n_rows, size_t block_bytes);

/* weight [in][out] times x [in][n_rows]: [out][n_rows]. Adds the ops that must run in order to the
 * graph, but not the result itself. weight must have the buffer of its data, or panels. */
struct ggml_tensor *quire_linear_build(quire_linear *linear, struct ggml_tensor *weight,
                                       struct ggml_tensor *x);

/* The same for a matrix in panels that is no tensor. */
struct ggml_tensor *quire_linear_build_panels(quire_linear *linear, quire_matmul_weight *panels,
                                              struct ggml_tensor *x);

#endif /* QUIRE_MODEL_LINEAR_H */
