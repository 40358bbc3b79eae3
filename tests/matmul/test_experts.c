/* test_experts.c - products of rows with chosen matrices: each pair has the bits of the product of
 * its row and its matrix alone, for any other rows, choices and number of threads.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "gguf_block.h"
#include "matmul/experts.h"
#include "matmul/matmul_kernels.h"
#include "quire/alloc.h"
#include "seed.h"

#include <stdio.h>
#include <string.h>

#define N_IN_MAX  640u
#define N_OUT_MAX 96u
#define ROWS_MAX  50u
#define USED_MAX  6u
#define EXPERTS   12u
#define CASES     (12u * QUIRE_MATMUL_TYPES)
#define THREADS   5u

static quire_rng rng;

static void *take(size_t bytes)
{
    void *p = quire_allocator_default()->alloc(quire_allocator_default()->ctx, bytes);

    assert_non_null(p);
    return p;
}

static void give(void *p)
{
    quire_allocator_default()->free(quire_allocator_default()->ctx, p);
}

/* A case's matrices and rows. */
typedef struct experts_case {
    quire_experts_shape shape;
    quire_matmul_weight weight;
    uint32_t n_out; /* of an expert */
    int32_t choices[ROWS_MAX * USED_MAX];
    float x[ROWS_MAX * USED_MAX * N_IN_MAX]; /* by row or by place */
    float bias[EXPERTS * N_OUT_MAX];
    uint32_t words[EXPERTS + 1 + 2 * ROWS_MAX * USED_MAX];
} experts_case;

static experts_case c;
static float y[ROWS_MAX * USED_MAX * N_OUT_MAX];

static void weight_random(quire_matmul_type type)
{
    const gguf_block *what = gguf_block_of(type);
    const size_t n_blocks = (size_t)c.weight.n_out * c.weight.n_in / what->n;
    unsigned char *rows = take(n_blocks * what->bytes);

    for (size_t i = 0; i < n_blocks * what->bytes; i++) {
        rows[i] = (unsigned char)quire_rng_next(&rng);
    }
    for (size_t b = 0; b < n_blocks; b++) {
        gguf_block_scale(type, rows + b * what->bytes, (float)quire_rng_normal(&rng));
        if (what->min_at > 0) {
            memset(rows + b * what->bytes + what->min_at, 0x24, 2);
        }
    }
    c.weight.panels = take(quire_matmul_weight_bytes(type, c.weight.n_in, c.weight.n_out));
    quire_matmul_weight_pack(&c.weight, rows);
    give(rows);
}

/* Choices of a row, all different; some experts are popular. */
static void choices_random(void)
{
    for (uint32_t r = 0; r < c.shape.n_rows; r++) {
        int32_t order[EXPERTS];

        for (uint32_t e = 0; e < c.shape.n_experts; e++) {
            order[e] = (int32_t)e;
        }
        for (uint32_t k = 0; k < c.shape.n_used; k++) {
            const uint32_t left = c.shape.n_experts - k;
            const uint32_t a = quire_rng_below(&rng, left), b = quire_rng_below(&rng, left);
            const uint32_t at = k + (a < b ? a : b);
            const int32_t chosen = order[at];

            order[at] = order[k];
            order[k] = chosen;
            c.choices[r * c.shape.n_used + k] = chosen;
        }
    }
}

static void case_random(quire_matmul_type type)
{
    const uint32_t group = quire_matmul_layouts[type].group;

    c.shape.n_experts = 1 + quire_rng_below(&rng, EXPERTS);
    c.shape.n_rows = quire_rng_below(&rng, 4) == 0 ? 1 : 1 + quire_rng_below(&rng, ROWS_MAX);
    c.shape.n_used = 1 + quire_rng_below(&rng, USED_MAX);
    c.shape.n_used = c.shape.n_used < c.shape.n_experts ? c.shape.n_used : c.shape.n_experts;
    c.n_out = QUIRE_MATMUL_PANEL * (1 + quire_rng_below(&rng, 3));
    c.weight = (quire_matmul_weight){ .type = type,
                                      .n_in = group * (1 + quire_rng_below(&rng, N_IN_MAX / group)),
                                      .n_out = c.shape.n_experts * c.n_out };
    weight_random(type);
    choices_random();
    for (size_t i = 0; i < (size_t)c.shape.n_rows * c.shape.n_used * c.weight.n_in; i++) {
        c.x[i] = (float)quire_rng_normal(&rng);
    }
    for (uint32_t i = 0; i < c.weight.n_out; i++) {
        c.bias[i] = (float)quire_rng_normal(&rng);
    }
    quire_experts_plan_write(&c.shape, c.choices, c.words);
}

/* All threads' parts, one after the other, in descending order. */
static void run(const quire_matmul_kernels *kernels, bool is_by_place, bool has_bias,
                uint32_t n_threads)
{
    const quire_experts_plan plan = quire_experts_plan_at(&c.shape, c.words);
    const quire_experts_x x = { c.x, c.weight.n_in, c.weight.n_in, is_by_place };
    void *packed = take(quire_experts_x_bytes(&c.shape, c.weight.n_in));
    const quire_experts_product product = { &c.weight,   packed,
                                            is_by_place, has_bias ? c.bias : NULL,
                                            y,           c.n_out };

    c.weight.kernels = kernels;
    memset(y, 0xff, sizeof y);
    for (uint32_t t = n_threads; t-- > 0;) {
        quire_experts_x_pack(kernels, &plan, &x, packed, t, n_threads);
    }
    for (uint32_t t = n_threads; t-- > 0;) {
        quire_experts_run(&product, &plan, t, n_threads);
    }
    give(packed);
}

/* The product of one row and one expert's matrix. */
static void one_product(uint32_t expert, const float *row, float *out)
{
    const quire_matmul_x x = { row, c.weight.n_in, c.weight.n_in, 1 };
    const quire_matmul_y to = { out, c.n_out, 1 };
    quire_matmul_weight weight = c.weight;
    void *packed = take(quire_matmul_x_bytes(c.weight.n_in, 1));

    weight.n_out = c.n_out;
    weight.panels += expert * quire_matmul_weight_bytes(weight.type, weight.n_in, c.n_out);
    quire_matmul_x_pack(weight.kernels, &x, packed, 0, 1);
    quire_matmul_run(&weight, packed, &to, 0, 1);
    give(packed);
}

static void check_bits(bool is_by_place, bool has_bias)
{
    const quire_experts_plan plan = quire_experts_plan_at(&c.shape, c.words);

    for (uint32_t i = 0; i < c.shape.n_rows * c.shape.n_used; i++) {
        const uint32_t place = plan.places[i], expert = (uint32_t)c.choices[i];
        const uint32_t row = is_by_place ? place : i / c.shape.n_used;
        float want[N_OUT_MAX];

        one_product(expert, c.x + (size_t)row * c.weight.n_in, want);
        for (uint32_t k = 0; has_bias && k < c.n_out; k++) {
            want[k] += c.bias[expert * c.n_out + k];
        }
        assert_memory_equal(y + (size_t)place * c.n_out, want, c.n_out * sizeof *want);
    }
}

static void test_bits(void **state)
{
    static const char *const names[] = { "portable", "avx2", "avx2+vnni", "avx512" };

    (void)state;
    for (uint32_t i = 0; i < CASES; i++) {
        const quire_matmul_kernels *kernels =
            quire_matmul_kernels_find(names[i / QUIRE_MATMUL_TYPES % 4]);
        const bool is_by_place = quire_rng_below(&rng, 2) == 1;
        const bool has_bias = quire_rng_below(&rng, 2) == 1;

        if (kernels != NULL) {
            case_random((quire_matmul_type)(i % QUIRE_MATMUL_TYPES));
            run(kernels, is_by_place, has_bias, 1 + quire_rng_below(&rng, THREADS));
            check_bits(is_by_place, has_bias);
            give(c.weight.panels);
        }
    }
}

/* Every pair has a place of its own in its expert's range, rows in ascending order. */
static void test_plan(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 200; i++) {
        bool is_taken[ROWS_MAX * USED_MAX] = { false };
        quire_experts_plan plan;
        uint32_t n_pairs;

        c.shape = (quire_experts_shape){ .n_experts = USED_MAX + quire_rng_below(&rng, 6),
                                         .n_rows = 1 + quire_rng_below(&rng, ROWS_MAX),
                                         .n_used = 1 + quire_rng_below(&rng, USED_MAX) };
        choices_random();
        quire_experts_plan_write(&c.shape, c.choices, c.words);
        plan = quire_experts_plan_at(&c.shape, c.words);
        n_pairs = c.shape.n_rows * c.shape.n_used;
        assert_int_equal(plan.first[0], 0);
        assert_int_equal(plan.first[c.shape.n_experts], n_pairs);
        assert_int_equal(quire_experts_plan_words(&c.shape), c.shape.n_experts + 1 + 2 * n_pairs);
        for (uint32_t p = 0; p < n_pairs; p++) {
            const uint32_t place = plan.places[p];
            const uint32_t expert = (uint32_t)c.choices[p];

            assert_in_range(place, plan.first[expert], plan.first[expert + 1] - 1);
            assert_false(is_taken[place]);
            is_taken[place] = true;
            assert_int_equal(plan.rows[place], p / c.shape.n_used);
            assert_true(place == plan.first[expert] || plan.rows[place - 1] < plan.rows[place]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_bits),
    };

    rng = test_rng(0xe4be27);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
