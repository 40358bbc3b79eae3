/* test_floats.c - products with matrices of floats: each result has the bits of its row and its
 * output alone, in the order that floats.h defines, for any kernel set, number of rows and number
 * of threads.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "codec/half.h"
#include "matmul/floats.h"
#include "seed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES     16u
#define N_IN_MAX  300u
#define N_OUT_MAX 40u
#define ROWS_MAX  37u
#define EXPERTS   6u
#define USED_MAX  4u
#define CASES     300u
#define WORDS_MAX (EXPERTS + 1 + 2 * ROWS_MAX * USED_MAX)

static const char *const set_names[] = { "portable", "avx2", "avx512" };
#define N_SETS (sizeof set_names / sizeof set_names[0])

static quire_rng rng;

/* Weights of all experts in a type's bytes, and their values. */
static unsigned char bytes[EXPERTS * N_OUT_MAX * N_IN_MAX * sizeof(float)];
static float weights[EXPERTS * N_OUT_MAX * N_IN_MAX];
static float x[ROWS_MAX * USED_MAX * N_IN_MAX];
static float y[ROWS_MAX * USED_MAX * N_OUT_MAX];
static float bias[EXPERTS * N_OUT_MAX];

static size_t bytes_of(quire_floats_type type)
{
    return type == QUIRE_FLOATS_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* n random numbers. A hundredth of these are subnormal in f16. */
static void weights_random(quire_floats_type type, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float scale = quire_rng_below(&rng, 100) == 0 ? 1e-6f : 1.0f;
        const float value = scale * (float)quire_rng_normal(&rng);
        const uint16_t half =
            type == QUIRE_FLOATS_F16 ? quire_f32_to_f16(value) : quire_f32_to_bf16(value);

        if (type == QUIRE_FLOATS_F32) {
            memcpy(bytes + i * sizeof value, &value, sizeof value);
            weights[i] = value;
        } else {
            memcpy(bytes + i * sizeof half, &half, sizeof half);
            weights[i] =
                type == QUIRE_FLOATS_F16 ? quire_f16_to_f32(half) : quire_bf16_to_f32(half);
        }
    }
}

static void floats_random(float *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        to[i] = (float)quire_rng_normal(&rng);
    }
}

/* One result, as floats.h defines it. */
static float reference(const float *w, const float *row, uint32_t n_in)
{
    float lanes[LANES] = { 0 };

    for (uint32_t i = 0; i < n_in; i++) {
        lanes[i % LANES] = fmaf(w[i], row[i], lanes[i % LANES]);
    }
    for (uint32_t n = LANES / 2; n > 0; n /= 2) {
        for (uint32_t i = 0; i < n; i++) {
            lanes[i] += lanes[i + n];
        }
    }
    return lanes[0];
}

static void check_product(quire_floats_product *p, uint32_t n_out, uint32_t n_threads)
{
    memset(y, 0xff, sizeof y);
    for (uint32_t t = n_threads; t-- > 0;) {
        quire_floats_run_part(p, n_out, t, n_threads);
    }
    for (uint32_t r = 0; r < p->n_rows; r++) {
        const float *row = x + (p->x_rows != NULL ? p->x_rows[r] : r) * p->x_stride;

        for (uint32_t o = 0; o < n_out; o++) {
            float want = reference(weights + (size_t)o * p->n_in, row, p->n_in);

            want += p->bias != NULL ? p->bias[o] : 0.0f;
            assert_memory_equal(y + r * p->y_stride + o, &want, sizeof want);
        }
    }
}

static void test_products(void **state)
{
    uint32_t rows[ROWS_MAX];

    (void)state;
    for (uint32_t i = 0; i < CASES; i++) {
        const quire_floats_kernels *kernels = quire_floats_kernels_find(set_names[i % N_SETS]);
        const uint32_t n_out = 1 + quire_rng_below(&rng, N_OUT_MAX);
        quire_floats_product p = { .kernels = kernels,
                                   .type = (quire_floats_type)(i / N_SETS % 3),
                                   .n_in = 1 + quire_rng_below(&rng, N_IN_MAX),
                                   .w = bytes,
                                   .x = x,
                                   .x_stride = N_IN_MAX,
                                   .n_rows = 1 + quire_rng_below(&rng, ROWS_MAX),
                                   .y = y,
                                   .y_stride = N_OUT_MAX };

        if (kernels == NULL) {
            continue;
        }
        p.w_stride = p.n_in * bytes_of(p.type);
        p.bias = quire_rng_below(&rng, 2) == 0 ? bias : NULL;
        weights_random(p.type, (size_t)n_out * p.n_in);
        floats_random(x, sizeof x / sizeof *x);
        floats_random(bias, N_OUT_MAX);
        for (uint32_t r = 0; r < p.n_rows; r++) {
            rows[r] = quire_rng_below(&rng, ROWS_MAX);
        }
        check_product(&p, n_out, 1 + quire_rng_below(&rng, 4));
        p.x_rows = rows;
        check_product(&p, n_out, 1);
    }
}

/* Weights too many for the second cache, which are multiplied in parts, with rows of several passes
 * and a tail. */
static void check_many_weights(const quire_floats_kernels *kernels, uint32_t n_in)
{
    enum {
        N_OUT = 37, /* parts of 16 */
        N_ROWS = 7
    };
    float *many = malloc((size_t)N_ROWS * n_in * sizeof *many);
    float *w = malloc((size_t)N_OUT * n_in * sizeof *w);
    float results[N_ROWS * N_OUT];
    const quire_floats_product p = { .kernels = kernels,
                                     .type = QUIRE_FLOATS_F32,
                                     .n_in = n_in,
                                     .w = w,
                                     .w_stride = n_in * sizeof *w,
                                     .x = many,
                                     .x_stride = n_in,
                                     .n_rows = N_ROWS,
                                     .y = results,
                                     .y_stride = N_OUT };

    assert_non_null(many);
    assert_non_null(w);
    floats_random(many, (size_t)N_ROWS * n_in);
    floats_random(w, (size_t)N_OUT * n_in);
    memset(results, 0xff, sizeof results);
    quire_floats_run(&p, 0, N_OUT);
    for (uint32_t r = 0; r < N_ROWS; r++) {
        for (uint32_t o = 0; o < N_OUT; o++) {
            const float want = reference(w + (size_t)o * n_in, many + (size_t)r * n_in, n_in);

            assert_memory_equal(&results[r * N_OUT + o], &want, sizeof want);
        }
    }
    free(w);
    free(many);
}

static void test_many_weights(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        const quire_floats_kernels *kernels = quire_floats_kernels_find(set_names[i]);

        if (kernels != NULL) {
            check_many_weights(kernels, 2048);
            check_many_weights(kernels, 1551); /* three passes of 512, and 15 */
        }
    }
}

/* One result of one row, with a weight and an input at a place of it. */
static float with_at(const quire_floats_kernels *kernels, quire_floats_type type, uint32_t n_in,
                     uint32_t at, float weight, float input)
{
    float result;
    const quire_floats_product p = { .kernels = kernels,
                                     .type = type,
                                     .n_in = n_in,
                                     .w = bytes,
                                     .w_stride = n_in * bytes_of(type),
                                     .x = x,
                                     .x_stride = n_in,
                                     .n_rows = 1,
                                     .y = &result,
                                     .y_stride = 1 };
    const uint16_t half =
        type == QUIRE_FLOATS_F16 ? quire_f32_to_f16(weight) : quire_f32_to_bf16(weight);

    weights_random(type, n_in);
    floats_random(x, n_in);
    if (type == QUIRE_FLOATS_F32) {
        memcpy(bytes + at * sizeof weight, &weight, sizeof weight);
    } else {
        memcpy(bytes + at * sizeof half, &half, sizeof half);
    }
    x[at] = input;
    quire_floats_run(&p, 0, 1);
    return result;
}

/* Infinities and NaN in weights or rows reach their result, also from the tail. */
static void test_no_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3 * N_SETS; i++) {
        const quire_floats_kernels *kernels = quire_floats_kernels_find(set_names[i % N_SETS]);
        const quire_floats_type type = (quire_floats_type)(i / N_SETS);

        for (uint32_t at = 0; kernels != NULL && at < 37; at += 6) {
            assert_true(isnan(with_at(kernels, type, 37, at, NAN, 1.0f)));
            assert_true(isnan(with_at(kernels, type, 37, at, 1.0f, NAN)));
            assert_true(isnan(with_at(kernels, type, 37, at, INFINITY, 0.0f)));
            assert_true(with_at(kernels, type, 37, at, INFINITY, -2.0f) == -INFINITY);
            assert_true(with_at(kernels, type, 37, at, -1.0f, -INFINITY) == INFINITY);
        }
    }
}

/* Different experts for each row. */
static void choices_random(const quire_experts_shape *shape, int32_t *choices)
{
    for (uint32_t r = 0; r < shape->n_rows; r++) {
        const uint32_t first = quire_rng_below(&rng, shape->n_experts);

        for (uint32_t k = 0; k < shape->n_used; k++) {
            choices[r * shape->n_used + k] = (int32_t)((first + k) % shape->n_experts);
        }
    }
}

static void experts_case(const quire_floats_kernels *kernels, quire_floats_type type)
{
    const quire_experts_shape shape = { .n_experts = EXPERTS,
                                        .n_rows = 1 + quire_rng_below(&rng, ROWS_MAX),
                                        .n_used = 1 + quire_rng_below(&rng, USED_MAX) };
    const uint32_t n_in = 1 + quire_rng_below(&rng, N_IN_MAX);
    const uint32_t n_out = 1 + quire_rng_below(&rng, N_OUT_MAX), n_threads = 3;
    int32_t choices[ROWS_MAX * USED_MAX];
    uint32_t words[WORDS_MAX];
    quire_floats_experts e = { .one = { .kernels = kernels,
                                        .type = type,
                                        .n_in = n_in,
                                        .w = bytes,
                                        .w_stride = n_in * bytes_of(type),
                                        .x = x,
                                        .x_stride = n_in,
                                        .bias = bias,
                                        .y = y,
                                        .y_stride = n_out },
                               .w_bytes = (size_t)n_out * n_in * bytes_of(type),
                               .n_out = n_out,
                               .is_by_place = quire_rng_below(&rng, 2) == 0 };
    quire_experts_plan plan;

    weights_random(type, (size_t)EXPERTS * n_out * n_in);
    floats_random(x, (size_t)shape.n_rows * shape.n_used * n_in);
    floats_random(bias, (size_t)EXPERTS * n_out);
    choices_random(&shape, choices);
    quire_experts_plan_write(&shape, choices, words);
    plan = quire_experts_plan_at(&shape, words);
    memset(y, 0xff, sizeof y);
    for (uint32_t t = n_threads; t-- > 0;) {
        quire_floats_experts_run(&e, &plan, t, n_threads);
    }
    for (uint32_t pair = 0; pair < shape.n_rows * shape.n_used; pair++) {
        const uint32_t place = plan.places[pair], expert = (uint32_t)choices[pair];
        const float *row = x + (size_t)(e.is_by_place ? place : pair / shape.n_used) * n_in;

        for (uint32_t o = 0; o < n_out; o++) {
            const float *w = weights + ((size_t)expert * n_out + o) * n_in;
            const float want = reference(w, row, n_in) + bias[expert * n_out + o];

            assert_memory_equal(y + (size_t)place * n_out + o, &want, sizeof want);
        }
    }
}

static void test_experts(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < CASES / 4; i++) {
        const quire_floats_kernels *kernels = quire_floats_kernels_find(set_names[i % N_SETS]);

        if (kernels != NULL) {
            experts_case(kernels, (quire_floats_type)(i / N_SETS % 3));
        }
    }
}

static void test_sets(void **state)
{
    (void)state;
    assert_non_null(quire_floats_kernels_find("portable"));
    assert_null(quire_floats_kernels_find("nothing"));
    assert_int_equal(setenv("QUIRE_ISA", "portable", 1), 0);
    assert_ptr_equal(quire_floats_kernels_find(NULL), quire_floats_kernels_find("portable"));
    assert_int_equal(setenv("QUIRE_ISA", "avx2", 1), 0);
    if (quire_floats_kernels_find("avx2") != NULL) {
        assert_ptr_equal(quire_floats_kernels_find(NULL), quire_floats_kernels_find("avx2"));
    }
    assert_int_equal(unsetenv("QUIRE_ISA"), 0);
#if defined(__x86_64__)
    if (!quire_cpu_get()->has_avx2) { /* fma in software is slower than ggml */
        assert_null(quire_floats_kernels_find(NULL));
        return;
    }
#endif
    assert_non_null(quire_floats_kernels_find(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),   cmocka_unit_test(test_many_weights),
        cmocka_unit_test(test_no_numbers), cmocka_unit_test(test_experts),
        cmocka_unit_test(test_sets),
    };

    rng = test_rng(0xf10a75);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
