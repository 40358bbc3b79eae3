/* product_bf16.c - see product_bf16.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/product_bf16.h"

#include "base/cpu.h"
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

typedef struct block_place {
    uint32_t row, n_rows;
    uint32_t column, n_columns;
    uint32_t term, n_terms;
} block_place;

static void block_run(const quire_f32_product *p, const block_place *at)
{
    float a[BLOCK_SIDE * QUIRE_PRODUCT_K], b[BLOCK_SIDE * QUIRE_PRODUCT_K];
    const size_t a_line = p->is_a_transposed ? 1 : p->lda, a_term = p->is_a_transposed ? p->lda : 1;
    const size_t b_line = p->is_b_transposed ? p->ldb : 1, b_term = p->is_b_transposed ? 1 : p->ldb;
    const part_view rows = { p->a + at->row * a_line + at->term * a_term, a_line, a_term,
                             at->n_rows, at->n_terms };
    const part_view columns = { p->b + at->column * b_line + at->term * b_term, b_line, b_term,
                                at->n_columns, at->n_terms };

    part_round(&rows, a);
    part_round(&columns, b);
    quire_f32_rows_best()->product(&(quire_f32_product){
        .m = at->n_rows,
        .n = at->n_columns,
        .k = at->n_terms,
        .a = a,
        .lda = QUIRE_PRODUCT_K,
        .b = b,
        .ldb = QUIRE_PRODUCT_K,
        .is_b_transposed = true,
        .c = p->c + (size_t)at->row * p->ldc + at->column,
        .ldc = p->ldc,
        .is_added = p->is_added || at->term > 0,
    });
}

static uint32_t at_most(uint32_t n, uint32_t max)
{
    return n < max ? n : max;
}

void quire_bf16_product_by_f32(const quire_f32_product *p)
{
    block_place at;

    for (at.term = 0; at.term < p->k; at.term += QUIRE_PRODUCT_K) {
        at.n_terms = at_most(p->k - at.term, QUIRE_PRODUCT_K);
        for (at.row = 0; at.row < p->m; at.row += BLOCK_SIDE) {
            at.n_rows = at_most(p->m - at.row, BLOCK_SIDE);
            for (at.column = 0; at.column < p->n; at.column += BLOCK_SIDE) {
                at.n_columns = at_most(p->n - at.column, BLOCK_SIDE);
                block_run(p, &at);
            }
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
