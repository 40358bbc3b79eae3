/* row_kernels_decl.h - the table of row functions in one precision; see row_kernels.h.
 *
 * SPDX-License-Identifier: MIT */

/* AdamW's numbers beside its arrays. */
typedef struct QT(adamw) {
    real rate;
    real beta1;
    real beta2;
    real epsilon;
    real decay;
    real gradient_scale; /* clipping */
    real correction1;    /* 1 / (1 - beta1^t) */
    real correction2;
} QT(adamw);

/* Row lengths n in elements; arrays do not overlap unless they are named once. */
typedef struct QT(rows) {
    const char *name;
    real (*dot)(const real *a, const real *b, size_t n);
    void (*add)(real *y, const real *x, size_t n);                       /* y += x */
    void (*mul)(real *y, const real *x, const real *gate, size_t n);     /* y = x gate */
    void (*mul_add)(real *y, const real *x, const real *gate, size_t n); /* y += x gate */
    /* Returns 1 / rms(x) and writes y = x / rms(x) weight. */
    real (*norm)(real *y, const real *x, const real *weight, real epsilon, size_t n);
    /* dx += and dweight += the gradients of norm, whose result was inv. */
    void (*norm_back)(real *const gradients[2], const real *x, const real *weight, real inv,
                      const real *dy, size_t n);
    /* x becomes softmax(scale x); returns log sum exp(scale x). scale > 0, n > 0. */
    real (*softmax)(real *x, real scale, size_t n);
    /* x becomes exp(scale x - lse). */
    void (*softmax_again)(real *x, real scale, real lse, size_t n);
    /* ds becomes p (ds - d) scale: the gradient of softmax(scale s) with d = sum p ds. */
    void (*softmax_back)(real *ds, const real *p, real d, real scale, size_t n);
    void (*swiglu)(real *y, const real *gate, const real *up, size_t n); /* y = silu(gate) up */
    /* gate becomes dgate, up becomes dup, and y becomes swiglu's result once more. */
    void (*swiglu_back)(real *gate, real *up, real *y, const real *dy, size_t n);
    /* Rotates pairs (j, j + n / 2) of x by the angles of cos and sin [n / 2]; sign -1 turns back.
     */
    void (*rope)(real *x, const real *cos, const real *sin, real sign, size_t n);
    /* One step of AdamW on n parameters and their moments m and v. */
    void (*adamw)(const QT(adamw) * step, real *parameters, const real *gradients, real *moments[2],
                  size_t n);
    QT(product_fn) * product;
} QT(rows);
