/* product_bf16.c - see product_bf16.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/product_bf16.h"

#include "base/cpu.h"
#include "base/num.h"
#include "train/bf16.h"
#include "train/row_kernels.h"

#include <math.h>
#include <string.h>

#define BLOCK_SIDE 64u /* rows of a, or columns of b, in a copy: 64 KiB */

/* A part of a or b. Its line l has the terms of one row of a, or of one column of b. */
typedef struct part_view {
    const float *from;
    size_t line; /* elements from one line to the next, and from one term to the next */
    size_t term;
    uint32_t n_lines;
    uint32_t n_terms;
} part_view;

/* to[lines][QUIRE_PRODUCT_K]: numbers of bf16, the terms of each pair exchanged. */
static void part_round(const part_view *view, float *to)
{
    for (uint32_t l = 0; l < view->n_lines; l++, to += QUIRE_PRODUCT_K) {
        for (uint32_t k = 0; k < view->n_terms; k++) {
            const float x = view->from[l * view->line + k * view->term];
            const uint32_t other = k ^ 1u;

            to[other < view->n_terms ? other : k] = fabsf(x) < 0x1p-126F ? 0 : x;
        }
        quire_bf16_round(to, view->n_terms);
    }
}

/* A block of c, and the terms that are added to it. */
typedef struct block_place {
    uint32_t row, n_rows;
    uint32_t column, n_columns;
    uint32_t term, n_terms;
} block_place;

static void rows_round(const quire_f32_product *p, const block_place *at, float *to)
{
    const size_t line = p->is_a_transposed ? 1 : p->lda, term = p->is_a_transposed ? p->lda : 1;
    const part_view rows = { p->a + at->row * line + at->term * term, line, term, at->n_rows,
                             at->n_terms };

    part_round(&rows, to);
}

static void columns_round(const quire_f32_product *p, const block_place *at, float *to)
{
    const size_t line = p->is_b_transposed ? p->ldb : 1, term = p->is_b_transposed ? 1 : p->ldb;
    const part_view columns = { p->b + at->column * line + at->term * term, line, term,
                                at->n_columns, at->n_terms };

    part_round(&columns, to);
}

/* All columns of a block of rows, for some terms. */
static void rows_run(const quire_f32_product *p, quire_f32_product_fn *product, block_place *at)
{
    float a[BLOCK_SIDE * QUIRE_PRODUCT_K], b[BLOCK_SIDE * QUIRE_PRODUCT_K];

    rows_round(p, at, a);
    for (at->column = 0; at->column < p->n; at->column += BLOCK_SIDE) {
        at->n_columns = quire_min_u32(p->n - at->column, BLOCK_SIDE);
        columns_round(p, at, b);
        product(&(quire_f32_product){ .m = at->n_rows,
                                      .n = at->n_columns,
                                      .k = at->n_terms,
                                      .a = a,
                                      .lda = QUIRE_PRODUCT_K,
                                      .b = b,
                                      .ldb = QUIRE_PRODUCT_K,
                                      .is_b_transposed = true,
                                      .c = p->c + (size_t)at->row * p->ldc + at->column,
                                      .ldc = p->ldc,
                                      .is_added = p->is_added || at->term > 0 });
    }
}

void quire_bf16_product_by_f32(const quire_f32_product *p)
{
    quire_f32_product_fn *product = quire_f32_rows_best()->product;
    block_place at;

    for (at.term = 0; at.term < p->k; at.term += QUIRE_PRODUCT_K) {
        at.n_terms = quire_min_u32(p->k - at.term, QUIRE_PRODUCT_K);
        for (at.row = 0; at.row < p->m; at.row += BLOCK_SIDE) {
            at.n_rows = quire_min_u32(p->m - at.row, BLOCK_SIDE);
            rows_run(p, product, &at);
        }
    }
}

quire_f32_product_fn *quire_bf16_product_best(void)
{
#ifdef QUIRE_TRAIN_HAS_X86
    if (quire_cpu_get()->has_avx512_bf16 && quire_f32_rows_best() == &quire_f32_rows_avx512) {
        return quire_bf16_product_avx512;
    }
#endif
    return quire_bf16_product_by_f32;
}
