/* test_panels.c - our products of quantised weights against products with ggml's dequantised
 * weights.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/num.h"
#include "codec/half.h"
#include "gguf_block.h"
#include "matmul/matmul.h"
#include "quire/alloc.h"
#include "rounds.h"
#include "seed.h"

#include <math.h>
#include <string.h>

#include <ggml.h>

#define N_IN   512u
#define N_OUT  96u
#define N_ROWS 5u

static const enum ggml_type ggml_types[QUIRE_MATMUL_TYPES] = {
    [QUIRE_MATMUL_Q8_0] = GGML_TYPE_Q8_0,       [QUIRE_MATMUL_Q4_0] = GGML_TYPE_Q4_0,
    [QUIRE_MATMUL_Q4_1] = GGML_TYPE_Q4_1,       [QUIRE_MATMUL_Q5_0] = GGML_TYPE_Q5_0,
    [QUIRE_MATMUL_Q5_1] = GGML_TYPE_Q5_1,       [QUIRE_MATMUL_IQ4_NL] = GGML_TYPE_IQ4_NL,
    [QUIRE_MATMUL_Q4_K] = GGML_TYPE_Q4_K,       [QUIRE_MATMUL_Q5_K] = GGML_TYPE_Q5_K,
    [QUIRE_MATMUL_Q6_K] = GGML_TYPE_Q6_K,       [QUIRE_MATMUL_MXFP4] = GGML_TYPE_MXFP4,
    [QUIRE_MATMUL_Q2_K] = GGML_TYPE_Q2_K,       [QUIRE_MATMUL_Q3_K] = GGML_TYPE_Q3_K,
    [QUIRE_MATMUL_IQ4_XS] = GGML_TYPE_IQ4_XS,   [QUIRE_MATMUL_IQ2_XXS] = GGML_TYPE_IQ2_XXS,
    [QUIRE_MATMUL_IQ2_XS] = GGML_TYPE_IQ2_XS,   [QUIRE_MATMUL_IQ2_S] = GGML_TYPE_IQ2_S,
    [QUIRE_MATMUL_IQ3_XXS] = GGML_TYPE_IQ3_XXS, [QUIRE_MATMUL_IQ3_S] = GGML_TYPE_IQ3_S,
    [QUIRE_MATMUL_IQ1_S] = GGML_TYPE_IQ1_S,     [QUIRE_MATMUL_IQ1_M] = GGML_TYPE_IQ1_M,
};

static quire_rng rng;

static void random_fill(float *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        values[i] = (float)quire_rng_normal(&rng);
    }
}

/* Any bytes, but f16s that are numbers. */
static void test_blocks_are_ggmls(void **state)
{
    static unsigned char row[N_IN / 32 * 34];
    static float want[N_IN];

    (void)state;
    for (uint32_t i = 0; i < TEST_ROUNDS(20u, 4u) * QUIRE_MATMUL_TYPES; i++) {
        const quire_matmul_type type = (quire_matmul_type)(i % QUIRE_MATMUL_TYPES);
        const gguf_block *what = gguf_block_of(type);

        assert_string_equal(what->name, ggml_type_name(ggml_types[type]));
        assert_int_equal(what->n, ggml_blck_size(ggml_types[type]));
        assert_int_equal(what->bytes, ggml_type_size(ggml_types[type]));
        for (size_t k = 0; k < sizeof row; k++) {
            row[k] = (unsigned char)quire_rng_next(&rng);
        }
        for (uint32_t b = 0; b < N_IN / what->n; b++) {
            const uint16_t m = quire_f32_to_f16((float)quire_rng_normal(&rng));

            memcpy(row + (size_t)b * what->bytes + what->min_at, &m, sizeof m);
            gguf_block_scale(type, row + (size_t)b * what->bytes, (float)quire_rng_normal(&rng));
        }
        ggml_get_type_traits(ggml_types[type])->to_float(row, want, N_IN);
        for (uint32_t k = 0; k < N_IN; k++) {
            /* ggml subtracts in f32, where large parts may leave little. */
            assert_true(fabs(gguf_weight_at(type, row, k) - (double)want[k]) <= 1e-3);
        }
    }
}

static const char *const sets[] = { "portable", "avx2", "avx2+vnni", "avx512" };
#define SETS (sizeof sets / sizeof sets[0])

/* Weights are quantised by ggml and x is exact, so the only error is our rounding of x to 8 bits.
 */
static void test_product(void **state)
{
    static float values[N_OUT * N_IN], weights[N_OUT * N_IN], x[N_ROWS * N_IN], y[N_ROWS * N_OUT];
    static unsigned char rows[N_OUT * N_IN / 32 * 34];
    _Alignas(64) static unsigned char panels[N_OUT * N_IN / 32 * 34];
    static float importance[N_IN]; /* some types need it */
    _Alignas(64) static char packed[N_ROWS * N_IN / 32 * QUIRE_MATMUL_BLOCK_BYTES];

    (void)state;
    for (uint32_t i = 0; i < N_IN; i++) {
        importance[i] = 1.0f;
    }
    for (uint32_t i = 0; i < SETS * QUIRE_MATMUL_TYPES; i++) {
        const char *set = sets[i / QUIRE_MATMUL_TYPES];
        const quire_matmul_type type = (quire_matmul_type)(i % QUIRE_MATMUL_TYPES);
        const quire_matmul_weight w = { quire_matmul_kernels_find(set), type, N_IN, N_OUT, panels };
        const quire_matmul_x in = { x, N_IN, N_IN, N_ROWS };
        const quire_matmul_y to = { y, N_OUT, N_ROWS };
        double error = 0.0, size = 0.0;

        if (w.kernels == NULL) {
            (void)printf("SKIP: no %s here\n", set);
            continue;
        }
        random_fill(values, N_OUT * N_IN);
        random_fill(x, N_ROWS * N_IN);
        (void)ggml_quantize_chunk(ggml_types[type], values, rows, 0, N_OUT, N_IN, importance);
        ggml_get_type_traits(ggml_types[type])->to_float(rows, weights, N_OUT * N_IN);
        assert_true(quire_matmul_weight_bytes(type, N_IN, N_OUT) <= sizeof panels);
        quire_matmul_weight_pack(&w, rows);
        quire_matmul_x_pack(w.kernels, &in, packed, 0, 1);
        quire_matmul_run(&w, packed, &to, 0, 1);
        for (uint32_t k = 0; k < N_ROWS * N_OUT; k++) {
            const float *a = x + (size_t)k / N_OUT * N_IN, *b = weights + (size_t)k % N_OUT * N_IN;
            double want = 0.0;

            for (uint32_t at = 0; at < N_IN; at++) {
                want += (double)a[at] * (double)b[at];
            }
            error += (y[k] - want) * (y[k] - want);
            size += want * want;
        }
        assert_true(size > 0.0 && error <= 0.01 * 0.01 * size);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_are_ggmls),
        cmocka_unit_test(test_product),
    };

    rng = test_rng(0x9a4e15);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
