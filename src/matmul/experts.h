/* experts.h - products of rows with the matrices that a router chose for each row.
 *
 * A mixture of experts has n_experts matrices of one shape, and multiplies each row with n_used of
 * them. A pair is a row with one of its choices. A plan orders the pairs by their experts; the
 * place of a pair is its index in this order. An expert's pairs are the rows of a small batch then:
 * its weights are read once for up to QUIRE_MATMUL_TILE_ROWS of them. Results lie by place.
 *
 * A pair's result has the bits that matmul.h's product of the row and the matrix has: they do not
 * depend on the other rows, on their choices or on the number of threads.
 *
 * The matrices lie one behind the other, as GGUF has them: together they are a quire_matmul_weight
 * of n_experts * n_out outputs, whose panels are packed by quire_matmul_weight_pack(). n_out of one
 * expert must be whole panels.
 *
 * Thread: any. A plan, weights and packed x are read only; each call names its part of the work.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MATMUL_EXPERTS_H
#define QUIRE_MATMUL_EXPERTS_H

#include "matmul/matmul.h"

typedef struct quire_experts_shape {
    uint32_t n_experts;
    uint32_t n_rows;
    uint32_t n_used; /* choices of a row, 1 to n_experts; n_rows * n_used < 2^32 */
} quire_experts_shape;

/* A view of a plan's words. */
typedef struct quire_experts_plan {
    quire_experts_shape shape;
    const uint32_t *first;  /* [n_experts + 1] the place of an expert's first pair */
    const uint32_t *rows;   /* [pairs] the row of a place */
    const uint32_t *places; /* [n_rows][n_used] the place of a pair */
} quire_experts_plan;

/* Words of 32 bits that a plan takes. */
size_t quire_experts_plan_words(const quire_experts_shape *shape);

/* Write a plan. choices [n_rows][n_used] are indices of experts, different ones in a row. Pairs of
 * an expert are in ascending order of their rows. */
void quire_experts_plan_write(const quire_experts_shape *shape, const int32_t *choices,
                              uint32_t *words);

/* The plan that was written. Memory: words stay the caller's. */
quire_experts_plan quire_experts_plan_at(const quire_experts_shape *shape, const uint32_t *words);

/* Rows of f32 to be packed. */
typedef struct quire_experts_x {
    const float *rows;
    size_t stride; /* floats between rows */
    uint32_t n_in;
    bool is_by_place; /* a row for each place, as products write them; else a row for each row */
} quire_experts_x;

/* Bytes of packed x. */
size_t quire_experts_x_bytes(const quire_experts_shape *shape, uint32_t n_in);

/* Thread `thread`'s part of packing x into `packed`. Every thread's part must be done before any
 * product. */
void quire_experts_x_pack(const quire_matmul_kernels *kernels, const quire_experts_plan *plan,
                          const quire_experts_x *x, void *packed, uint32_t thread,
                          uint32_t n_threads);

/* A product of all pairs. */
typedef struct quire_experts_product {
    const quire_matmul_weight *weight; /* n_out: of all experts */
    const void *packed;
    bool is_by_place;  /* as x was packed */
    const float *bias; /* [n_experts][n_out of one], added; NULL: none */
    float *y;          /* y[place * y_stride + output] */
    size_t y_stride;   /* floats */
} quire_experts_product;

/* Thread `thread`'s part of a product. */
void quire_experts_run(const quire_experts_product *product, const quire_experts_plan *plan,
                       uint32_t thread, uint32_t n_threads);

#endif /* QUIRE_MATMUL_EXPERTS_H */
