/* test_train_product.c - matrix products of training: every set of kernels against sums in double
 * precision, whole and broken tiles, transposed and not, written and added; the same bits from AVX2
 * and AVX-512, from a row of a product alone, and from all products of bf16 numbers.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "seed.h"
#include "train/bf16.h"
#include "train/product_bf16.h"
#include "train/row_kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SIDE 70u                    /* some tiles and part of one */
#define DEEP (QUIRE_PRODUCT_K + 5u) /* a panel and part of one */
#define PAD  3u                     /* behind each row: no product touches it */
#define SIZE ((size_t)(DEEP + PAD) * (DEEP + PAD))

static float a[SIZE], b[SIZE], start[SIZE], out[SIZE], other[SIZE];
static double a64[SIZE], b64[SIZE], out64[SIZE];

/* NULL: this CPU lacks the set. */
static quire_f32_product_fn *product_find(const char *name)
{
    const quire_f32_rows *rows = quire_f32_rows_find(name);

    return rows != NULL ? rows->product : NULL;
}

static int setup(void **state)
{
    quire_rng rng = test_rng(1);

    (void)state;
    for (size_t i = 0; i < SIZE; i++) {
        a[i] = (float)quire_rng_normal(&rng);
        b[i] = (float)quire_rng_normal(&rng);
        start[i] = (float)quire_rng_normal(&rng);
        a64[i] = (double)a[i];
        b64[i] = (double)b[i];
    }
    return 0;
}

/* m, n, k; kind: bit 0 a transposed, bit 1 b transposed, bit 2 added. */
static quire_f32_product product_of(uint32_t m, uint32_t n, uint32_t k, uint32_t kind)
{
    return (quire_f32_product){ .m = m,
                                .n = n,
                                .k = k,
                                .a = a,
                                .b = b,
                                .lda = ((kind & 1) != 0 ? m : k) + PAD,
                                .ldb = ((kind & 2) != 0 ? k : n) + PAD,
                                .ldc = n + PAD,
                                .is_a_transposed = (kind & 1) != 0,
                                .is_b_transposed = (kind & 2) != 0,
                                .is_added = (kind & 4) != 0 };
}

static double wanted(const quire_f32_product *p, uint32_t i, uint32_t j, double *size)
{
    double sum = p->is_added ? (double)start[i * p->ldc + j] : 0;

    *size = fabs(sum);
    for (uint32_t k = 0; k < p->k; k++) {
        double x = a64[p->is_a_transposed ? k * p->lda + i : i * p->lda + k];
        double y = b64[p->is_b_transposed ? j * p->ldb + k : k * p->ldb + j];

        sum += x * y;
        *size += fabs(x * y);
    }
    return sum;
}

static void check(const quire_f32_product *p)
{
    for (uint32_t i = 0; i < p->m; i++) {
        for (uint32_t j = 0; j < p->n; j++) {
            double size;
            double want = wanted(p, i, j, &size);

            assert_true(fabs((double)out[i * p->ldc + j] - want) <= 1e-6 * size);
        }
        for (uint32_t j = p->n; j < p->ldc; j++) {
            assert_true(out[i * p->ldc + j] == start[i * p->ldc + j]);
        }
    }
}

static void run_f64(const quire_f32_product *p)
{
    for (size_t i = 0; i < SIZE; i++) {
        out64[i] = (double)start[i];
    }
    quire_f64_rows_best()->product(&(quire_f64_product){ p->m, p->n, p->k, a64, b64, out64, p->lda,
                                                         p->ldb, p->ldc, p->is_a_transposed,
                                                         p->is_b_transposed, p->is_added });
    for (size_t i = 0; i < SIZE; i++) {
        out[i] = (float)out64[i];
    }
}

static const uint32_t shapes[][3] = { { 1, 1, 1 },     { 8, 32, 7 },     { 6, 16, 64 },
                                      { 4, 8, 4 },     { 24, 64, DEEP }, { SIDE, SIDE, 33 },
                                      { 5, 33, DEEP }, { SIDE, 3, 12 },  { 13, 47, 2 },
                                      { DEEP, 33, 70 } };

#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void test_values(void **state)
{
    static const char *const names[] = { "portable", "avx2", "avx512" };

    (void)state;
    for (uint32_t s = 0; s < N_SHAPES * 8; s++) {
        const uint32_t *shape = shapes[s / 8];
        quire_f32_product p = product_of(shape[0], shape[1], shape[2], s % 8);

        for (uint32_t i = 0; i < 3; i++) {
            quire_f32_product_fn *run = product_find(names[i]);

            if (run == NULL) {
                continue;
            }
            memcpy(out, start, sizeof(out));
            p.c = out;
            run(&p);
            check(&p);
        }
        run_f64(&p);
        check(&p);
    }
    assert_null(product_find("sse"));
}

static void test_bits_of_sets(void **state)
{
    quire_f32_product_fn *avx2 = product_find("avx2");
    quire_f32_product_fn *avx512 = product_find("avx512");

    (void)state;
    if (avx2 == NULL || avx512 == NULL) {
        print_message("this CPU has not both of AVX2 and AVX-512\n");
        skip();
    }
    for (uint32_t s = 0; s < N_SHAPES * 8; s++) {
        const uint32_t *shape = shapes[s / 8];
        quire_f32_product p = product_of(shape[0], shape[1], shape[2], s % 8);

        memcpy(out, start, sizeof(out));
        memcpy(other, start, sizeof(other));
        p.c = out;
        avx2(&p);
        p.c = other;
        avx512(&p);
        assert_memory_equal(out, other, sizeof(out));
    }
}

/* Each row alone has the bits that it has among others. */
static void test_bits_of_rows(void **state)
{
    quire_f32_product_fn *const products[] = { quire_f32_rows_best()->product,
                                               quire_bf16_product_by_f32,
                                               quire_bf16_product_best() };
    quire_f32_product p = product_of(SIDE, 47, DEEP, 2);

    (void)state;
    for (uint32_t n = 0; n < sizeof(products) / sizeof(products[0]); n++) {
        p.c = out;
        products[n](&p);
        for (uint32_t i = 0; i < SIDE; i++) {
            quire_f32_product row = p;

            row.m = 1;
            row.a = a + (size_t)i * p.lda;
            row.c = other;
            products[n](&row);
            assert_memory_equal(other, out + (size_t)i * p.ldc, 47 * sizeof(float));
        }
    }
}

/* bf16: the sums are those of rounded numbers, and the same bits by all kernels. */
static void test_bf16(void **state)
{
    quire_f32_product_fn *const products[] = { quire_bf16_product_by_f32,
                                               quire_bf16_product_best() };

    a[0] = 0x1.01p0F;   /* of two as near, the even one: 1 */
    a[1] = 0x1.03p0F;   /* likewise: 1.015625 */
    a[2] = 0x1p-127F;   /* counts as 0 */
    a[3] = -0x1.ffp30F; /* the next power of 2 */
    for (size_t i = 0; i < SIZE; i++) {
        float x[2] = { a[i], b[i] };

        quire_bf16_round(x, 2);
        a64[i] = i == 2 ? 0 : (double)x[0];
        b64[i] = (double)x[1];
    }
    assert_true(a64[0] == 1.0 && a64[1] == 1.015625 && a64[3] == -0x1p31);
    for (uint32_t s = 0; s < N_SHAPES * 8; s++) {
        const uint32_t *shape = shapes[s / 8];
        quire_f32_product p = product_of(shape[0], shape[1], shape[2], s % 8);

        for (uint32_t i = 0; i < 2; i++) {
            memcpy(out, start, sizeof(out));
            p.c = out;
            products[i](&p);
            check(&p);
            if (i == 0) {
                memcpy(other, out, sizeof(out));
            }
        }
        assert_memory_equal(out, other, sizeof(out));
    }
    (void)setup(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_bits_of_sets),
        cmocka_unit_test(test_bits_of_rows),
        cmocka_unit_test(test_bf16),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
