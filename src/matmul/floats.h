/* floats.h - products of rows with matrices of f32, f16 or bf16 numbers.
 *
 * ggml's products of such matrices add in an order that depends on the number of rows, and round x
 * to the type of the weights. Here weights are widened to f32, which is exact, and x is as it is.
 * Element i of a row is added to lane i % 16 by an fma, in ascending order; the lanes are then
 * added by halves (8, 4, 2, 1). A result depends on its row and on its output alone: not on other
 * rows, the number of threads or the kernel set.
 *
 * Thread: any; each call names its part of the work.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MATMUL_FLOATS_H
#define QUIRE_MATMUL_FLOATS_H

#include "matmul/experts.h"

typedef enum quire_floats_type {
    QUIRE_FLOATS_F32,
    QUIRE_FLOATS_F16,
    QUIRE_FLOATS_BF16
} quire_floats_type;

typedef struct quire_floats_kernels quire_floats_kernels;

/* A kernel set by name ("avx512", "avx2", "portable"); NULL where the CPU lacks it. Without a name
 * the fastest set, or the one that QUIRE_ISA allows; NULL on an x86 CPU without AVX2 and FMA, where
 * products are left to ggml unless QUIRE_ISA names a set. */
const quire_floats_kernels *quire_floats_kernels_find(const char *name);

/* y = W x (+ bias) of n_rows rows. */
typedef struct quire_floats_product {
    const quire_floats_kernels *kernels;
    quire_floats_type type;
    uint32_t n_in;
    const void *w;   /* rows of n_in numbers */
    size_t w_stride; /* bytes between rows */
    const float *x;
    size_t x_stride;        /* floats between rows */
    const uint32_t *x_rows; /* [n_rows] which rows of x are multiplied; NULL: the first n_rows */
    uint32_t n_rows;
    const float *bias; /* of each output; NULL: none */
    float *y;          /* y[row * y_stride + output] */
    size_t y_stride;   /* floats */
} quire_floats_product;

/* Outputs [begin, end). */
void quire_floats_run(const quire_floats_product *product, uint32_t begin, uint32_t end);

/* Thread `thread`'s part of the outputs. */
void quire_floats_run_part(const quire_floats_product *product, uint32_t n_out, uint32_t thread,
                           uint32_t n_threads);

/* Products of all pairs of a plan (experts.h). `one` is the product with the matrix of expert 0;
 * w, bias and y are those of all experts, and x has a row for each row, or for each place. */
typedef struct quire_floats_experts {
    quire_floats_product one;
    size_t w_bytes;   /* between matrices of experts */
    uint32_t n_out;   /* of one expert */
    bool is_by_place; /* as quire_experts_x */
} quire_floats_experts;

void quire_floats_experts_run(const quire_floats_experts *experts, const quire_experts_plan *plan,
                              uint32_t thread, uint32_t n_threads);

#endif /* QUIRE_MATMUL_FLOATS_H */
