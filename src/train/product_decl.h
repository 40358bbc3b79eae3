/* product_decl.h - a product in one precision; see product.h.
 *
 * SPDX-License-Identifier: MIT */

/* c[m][n] = a[m][k] b[k][n], or += when is_added. A matrix that is_*_transposed lies in memory as
 * its transpose. ld*: elements from one row in memory to the next. c overlaps neither a nor b;
 * k > 0. */
typedef struct QT(product) {
    uint32_t m;
    uint32_t n;
    uint32_t k;
    const real *a;
    const real *b;
    real *c;
    uint32_t lda;
    uint32_t ldb;
    uint32_t ldc;
    bool is_a_transposed;
    bool is_b_transposed;
    bool is_added;
} QT(product);

/* Thread: any, with different c. */
typedef void QT(product_fn)(const QT(product) * p);
