/* test_matmul.c - products of block-quantised weights: against double precision, the same bits from
 * every kernel set, number of threads and company of rows, and what damage does.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "codec/half.h"
#include "matmul/matmul.h"
#include "quire/alloc.h"
#include "seed.h"

#include <math.h>
#include <string.h>

#define N_IN_MAX   416u /* 13 blocks: the scales of a panel end between two multiples of 64 */
#define N_OUT_MAX  80u
#define ROWS_MAX   40u
#define SETS_MAX   2u
#define CASES      60u
#define BLOCK      QUIRE_MATMUL_BLOCK
#define TYPES      (sizeof types / sizeof types[0])
#define BLOCK_MAX  34u
#define SCALE_SIZE 2u

static const quire_matmul_type types[] = { QUIRE_MATMUL_Q8_0, QUIRE_MATMUL_Q4_0 };

static quire_rng rng;

typedef struct matrix {
    quire_matmul_weight weight;
    unsigned char rows[(size_t)N_OUT_MAX * N_IN_MAX / BLOCK * BLOCK_MAX]; /* as GGUF has them */
} matrix;

/* All of a case, too large for the stack. */
static matrix m;
static float x[ROWS_MAX * N_IN_MAX];
static float y[ROWS_MAX * N_OUT_MAX], z[ROWS_MAX * N_OUT_MAX];

static uint32_t all_sets(const quire_matmul_kernels **sets)
{
    uint32_t n = 0;

    sets[n++] = quire_matmul_kernels_find("portable");
    assert_non_null(sets[0]);
    if (quire_matmul_kernels_find("avx512") != NULL) {
        sets[n++] = quire_matmul_kernels_find("avx512");
    }
    return n;
}

static size_t block_bytes(quire_matmul_type type)
{
    return SCALE_SIZE + (type == QUIRE_MATMUL_Q8_0 ? BLOCK : BLOCK / 2);
}

static size_t row_bytes(void)
{
    return m.weight.n_in / BLOCK * block_bytes(m.weight.type);
}

static unsigned char *block_of(uint32_t out, uint32_t block)
{
    return m.rows + out * row_bytes() + block * block_bytes(m.weight.type);
}

static void scale_set(uint32_t out, uint32_t block, float scale)
{
    const uint16_t half = quire_f32_to_f16(scale);

    memcpy(block_of(out, block), &half, sizeof half);
}

static void *take(size_t bytes)
{
    const quire_allocator *allocator = quire_allocator_default();
    void *p = allocator->alloc(allocator->ctx, bytes);

    assert_non_null(p);
    return p;
}

static void give(void *p)
{
    quire_allocator_default()->free(quire_allocator_default()->ctx, p);
}

/* Every code, every sign of scale. */
static void matrix_random(quire_matmul_type type, uint32_t n_in, uint32_t n_out)
{
    m.weight = (quire_matmul_weight){ .type = type, .n_in = n_in, .n_out = n_out };
    for (size_t i = 0; i < n_out * row_bytes(); i++) {
        m.rows[i] = (unsigned char)quire_rng_next(&rng);
    }
    for (uint32_t out = 0; out < n_out; out++) {
        for (uint32_t b = 0; b < n_in / BLOCK; b++) {
            scale_set(out, b, (float)quire_rng_normal(&rng) * 0.01f);
        }
    }
    m.weight.panels = take(quire_matmul_weight_bytes(type, n_in, n_out));
    quire_matmul_weight_pack(&m.weight, m.rows);
}

static void x_random(uint32_t n_rows)
{
    for (size_t i = 0; i < (size_t)n_rows * m.weight.n_in; i++) {
        x[i] = (float)quire_rng_normal(&rng);
    }
}

/* All threads' parts, one after the other, in descending order. */
static void product(const quire_matmul_kernels *kernels, const float *rows, uint32_t n_rows,
                    uint32_t n_threads, float *out)
{
    const quire_matmul_x in = { rows, m.weight.n_in, m.weight.n_in, n_rows };
    const quire_matmul_y to = { out, m.weight.n_out, n_rows };
    void *packed = take(quire_matmul_x_bytes(m.weight.n_in, n_rows));

    m.weight.kernels = kernels;
    for (uint32_t t = n_threads; t-- > 0;) {
        quire_matmul_x_pack(kernels, &in, packed, t, n_threads);
    }
    for (uint32_t t = n_threads; t-- > 0;) {
        quire_matmul_run(&m.weight, packed, &to, t, n_threads);
    }
    give(packed);
}

static double weight_at(uint32_t out, uint32_t in)
{
    const unsigned char *block = block_of(out, in / BLOCK);
    const uint32_t i = in % BLOCK;
    uint16_t half;
    int code;

    memcpy(&half, block, sizeof half);
    if (m.weight.type == QUIRE_MATMUL_Q8_0) {
        code = (int8_t)block[SCALE_SIZE + i];
    } else {
        code = (block[SCALE_SIZE + i % (BLOCK / 2)] >> (i < BLOCK / 2 ? 0 : 4) & 15) - 8;
    }
    return (double)quire_f16_to_f32(half) * code;
}

/* x[row][in] as 8 bits see it. */
static double rounded(uint32_t row, uint32_t in)
{
    const float *block = x + (size_t)row * m.weight.n_in + in / BLOCK * BLOCK;
    float max = 0.0f;

    for (uint32_t i = 0; i < BLOCK; i++) {
        max = fmaxf(max, fabsf(block[i]));
    }
    return max == 0.0f ? 0.0 : rint((double)(block[in % BLOCK] * (127.0f / max))) * max / 127.0;
}

static void check_against_double(uint32_t n_rows)
{
    for (uint32_t row = 0; row < n_rows; row++) {
        for (uint32_t out = 0; out < m.weight.n_out; out++) {
            double want = 0.0, size = 0.0;

            for (uint32_t in = 0; in < m.weight.n_in; in++) {
                const double term = weight_at(out, in) * rounded(row, in);

                want += term;
                size += fabs(term);
            }
            assert_true(fabs(y[row * m.weight.n_out + out] - want) <= 1e-6 * size);
        }
    }
}

static void random_case(quire_matmul_type type)
{
    matrix_random(type, BLOCK * (1 + quire_rng_below(&rng, N_IN_MAX / BLOCK)),
                  QUIRE_MATMUL_PANEL * (1 + quire_rng_below(&rng, N_OUT_MAX / QUIRE_MATMUL_PANEL)));
}

static void test_value(void **state)
{
    const quire_matmul_kernels *sets[SETS_MAX];
    const uint32_t n_sets = all_sets(sets);

    (void)state;
    for (uint32_t i = 0; i < CASES; i++) {
        const uint32_t n_rows = 1 + quire_rng_below(&rng, 14);

        random_case(types[i % TYPES]);
        x_random(n_rows);
        product(sets[i / 2 % n_sets], x, n_rows, 1, y);
        check_against_double(n_rows);
        give(m.weight.panels);
    }
}

/* One set, one thread and one row at a time is what everything else must equal. */
static void test_bits(void **state)
{
    const quire_matmul_kernels *sets[SETS_MAX];
    const uint32_t n_sets = all_sets(sets);

    (void)state;
    for (uint32_t i = 0; i < CASES; i++) {
        const uint32_t n_rows = 1 + i % ROWS_MAX;

        random_case(types[i % TYPES]);
        x_random(n_rows);
        for (uint32_t row = 0; row < n_rows; row++) {
            product(sets[0], x + (size_t)row * m.weight.n_in, 1, 1,
                    z + (size_t)row * m.weight.n_out);
        }
        for (uint32_t s = 0; s < n_sets; s++) {
            memset(y, 0xff, sizeof y);
            product(sets[s], x, n_rows, 1 + quire_rng_below(&rng, 7), y);
            assert_memory_equal(y, z, (size_t)n_rows * m.weight.n_out * sizeof *y);
        }
        give(m.weight.panels);
    }
}

/* More tiles of x than are worked on at a time. */
static void test_many_rows(void **state)
{
    enum {
        N_IN = 2048,
        ROWS = 301
    };
    static float many[ROWS * N_IN], all[ROWS * QUIRE_MATMUL_PANEL], one[QUIRE_MATMUL_PANEL];
    static unsigned char rows[QUIRE_MATMUL_PANEL * N_IN / BLOCK * BLOCK_MAX];
    const quire_matmul_kernels *sets[SETS_MAX];
    const quire_matmul_kernels *kernels = sets[all_sets(sets) - 1];

    (void)state;
    m.weight = (quire_matmul_weight){ .type = QUIRE_MATMUL_Q8_0,
                                      .n_in = N_IN,
                                      .n_out = QUIRE_MATMUL_PANEL };
    for (size_t i = 0; i < sizeof rows; i++) {
        rows[i] = i % BLOCK_MAX < SCALE_SIZE ? 0x24 : (unsigned char)quire_rng_next(&rng);
    }
    m.weight.panels = take(quire_matmul_weight_bytes(QUIRE_MATMUL_Q8_0, N_IN, QUIRE_MATMUL_PANEL));
    quire_matmul_weight_pack(&m.weight, rows);
    for (size_t i = 0; i < (size_t)ROWS * N_IN; i++) {
        many[i] = (float)quire_rng_normal(&rng);
    }
    product(kernels, many, ROWS, 2, all);
    for (uint32_t row = 0; row < ROWS; row++) {
        product(kernels, many + (size_t)row * N_IN, 1, 1, one);
        assert_memory_equal(one, all + (size_t)row * QUIRE_MATMUL_PANEL, sizeof one);
    }
    give(m.weight.panels);
}

/* NaN and Inf stay in their row, next to nothing counts as zero, and the largest values are exact.
 */
static void test_damage(void **state)
{
    const quire_matmul_kernels *sets[SETS_MAX];
    const uint32_t n_sets = all_sets(sets);

    (void)state;
    for (uint32_t i = 0; i < TYPES * n_sets; i++) {
        const uint32_t n_in = 96, n_out = 32;

        matrix_random(types[i % TYPES], n_in, n_out);
        x_random(5);
        x[1 * n_in + 40] = NAN;
        x[2 * n_in + 95] = -INFINITY;
        for (uint32_t in = 0; in < n_in; in++) {
            x[3 * n_in + in] = 1e-31f;
            x[4 * n_in + in] = in % 2 == 0 ? 3e38f : -3e38f;
        }
        product(sets[i / TYPES], x, 5, 2, y);
        for (uint32_t out = 0; out < n_out; out++) {
            assert_true(isfinite(y[out]));
            assert_false(isfinite(y[n_out + out]));
            assert_false(isfinite(y[2 * n_out + out]));
            assert_true(y[3 * n_out + out] == 0.0f);
            assert_true(fabsf(y[4 * n_out + out]) > 1e30f);
        }
        give(m.weight.panels);
    }
}

/* A damaged scale shows in its output and no other. */
static void test_damaged_weights(void **state)
{
    const quire_matmul_kernels *sets[SETS_MAX];
    const uint32_t n_sets = all_sets(sets);

    (void)state;
    for (uint32_t s = 0; s < n_sets; s++) {
        matrix_random(QUIRE_MATMUL_Q8_0, 64, 16);
        memcpy(block_of(7, 1), &(uint16_t){ 0x7e00 }, SCALE_SIZE);
        quire_matmul_weight_pack(&m.weight, m.rows);
        x_random(3);
        product(sets[s], x, 3, 1, y);
        for (uint32_t i = 0; i < 3 * 16; i++) {
            assert_int_equal(isnan(y[i]) != 0, i % 16 == 7);
        }
        give(m.weight.panels);
    }
}

static void test_limits(void **state)
{
    (void)state;
    assert_true(quire_matmul_takes(32, 16));
    assert_true(quire_matmul_takes(4096, 128256));
    assert_false(quire_matmul_takes(0, 16));
    assert_false(quire_matmul_takes(32, 0));
    assert_false(quire_matmul_takes(48, 16));
    assert_false(quire_matmul_takes(32, 24));
    assert_false(quire_matmul_takes((uint64_t)1 << 37, 16));
    assert_int_equal(quire_matmul_weight_bytes(QUIRE_MATMUL_Q8_0, 64, 32), 2 * 16 * 68);
    assert_int_equal(quire_matmul_weight_bytes(QUIRE_MATMUL_Q4_0, 64, 32), 2 * 16 * 36);
    assert_int_equal(quire_matmul_weight_bytes(QUIRE_MATMUL_Q8_0, 32, 16), 16 * 34 + 32);
    assert_int_equal(quire_matmul_x_bytes(64, 3), 3 * 80);
    assert_null(quire_matmul_kernels_find("nothing"));
    assert_string_equal(quire_matmul_isa(quire_matmul_kernels_find("portable")), "portable");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_value),           cmocka_unit_test(test_bits),
        cmocka_unit_test(test_many_rows),       cmocka_unit_test(test_damage),
        cmocka_unit_test(test_damaged_weights), cmocka_unit_test(test_limits),
    };

    rng = test_rng(20261120);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
