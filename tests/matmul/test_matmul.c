/* test_matmul.c - products of block-quantised weights: against double precision, the same bits from
 * every kernel set, for any number of threads and any other rows, and the effect of damage.
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
#include "matmul/matmul_kernels.h"
#include "quire/alloc.h"
#include "rounds.h"
#include "seed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_IN_MAX  1024u
#define N_OUT_MAX 96u
#define ROWS_MAX  40u
#define SETS_MAX  4u
#define CASES     (TEST_ROUNDS(20u, 8u) * QUIRE_MATMUL_TYPES)
#define BLOCK     QUIRE_MATMUL_BLOCK
#define ROW_BYTES (N_IN_MAX / BLOCK * 34u) /* of Q8_0, the largest */

static quire_rng rng;

typedef struct matrix {
    quire_matmul_weight weight;
    unsigned char rows[(size_t)N_OUT_MAX * ROW_BYTES]; /* as GGUF has them */
} matrix;

/* All of a case, too large for the stack. */
static matrix m;
static float x[ROWS_MAX * N_IN_MAX];
static float y[ROWS_MAX * N_OUT_MAX], z[ROWS_MAX * N_OUT_MAX];

/* The portable set first. */
static uint32_t all_sets(const quire_matmul_kernels **sets)
{
    static const char *const names[SETS_MAX] = { "portable", "avx2", "avx2+vnni", "avx512" };
    uint32_t n = 0;

    for (uint32_t i = 0; i < SETS_MAX; i++) {
        sets[n] = quire_matmul_kernels_find(names[i]);
        n += sets[n] != NULL;
    }
    assert_ptr_equal(sets[0], quire_matmul_kernels_find("portable"));
    return n;
}

static size_t row_bytes(void)
{
    const gguf_block *block = gguf_block_of(m.weight.type);

    return (size_t)m.weight.n_in / block->n * block->bytes;
}

static unsigned char *block_of(uint32_t out, uint32_t block)
{
    return m.rows + out * row_bytes() + (size_t)block * gguf_block_of(m.weight.type)->bytes;
}

static void half_set(unsigned char *at, float value)
{
    const uint16_t half = quire_f32_to_f16(value);

    memcpy(at, &half, sizeof half);
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

/* Every code, every sign of scale; f16s of the given size. */
static void matrix_random(quire_matmul_type type, uint32_t n_in, uint32_t n_out, float scale)
{
    const gguf_block *what = gguf_block_of(type);

    m.weight = (quire_matmul_weight){ .type = type, .n_in = n_in, .n_out = n_out };
    for (size_t i = 0; i < n_out * row_bytes(); i++) {
        m.rows[i] = (unsigned char)quire_rng_next(&rng);
    }
    for (uint32_t out = 0; out < n_out; out++) {
        for (uint32_t b = 0; b < n_in / what->n; b++) {
            gguf_block_scale(type, block_of(out, b), (float)quire_rng_normal(&rng) * scale);
            if (what->min_at > 0) {
                half_set(block_of(out, b) + what->min_at, (float)quire_rng_normal(&rng) * scale);
            }
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
                const double term =
                    gguf_weight_at(m.weight.type, block_of(out, 0), in) * rounded(row, in);

                want += term;
                size += fabs(term);
            }
            /* Not (a > b), which no NaN is. */
            if (!(fabs(y[row * m.weight.n_out + out] - want) <= 1e-6 * size)) {
                fail_msg("%s, row %u, output %u: %g, not %g, of %g",
                         gguf_block_of(m.weight.type)->name, row, out,
                         (double)y[row * m.weight.n_out + out], want, size);
            }
        }
    }
}

/* Numbers of blocks for which the heads of a panel end between two multiples of 64, too. */
static void random_case(quire_matmul_type type)
{
    const uint32_t n = quire_matmul_layouts[type].group;

    matrix_random(type, n * (1 + quire_rng_below(&rng, quire_min_u32(13, N_IN_MAX / n))),
                  QUIRE_MATMUL_PANEL * (1 + quire_rng_below(&rng, N_OUT_MAX / QUIRE_MATMUL_PANEL)),
                  0.01f);
}

static void test_value(void **state)
{
    const quire_matmul_kernels *sets[SETS_MAX];
    const uint32_t n_sets = all_sets(sets);

    (void)state;
    for (uint32_t i = 0; i < CASES; i++) {
        const uint32_t n_rows = 1 + quire_rng_below(&rng, 14);

        random_case((quire_matmul_type)(i % QUIRE_MATMUL_TYPES));
        x_random(n_rows);
        product(sets[i / QUIRE_MATMUL_TYPES % n_sets], x, n_rows, 1, y);
        check_against_double(n_rows);
        give(m.weight.panels);
    }
}

/* All sets, threads and batches equal one set with one thread and one row at a time. */
static void test_bits(void **state)
{
    const quire_matmul_kernels *sets[SETS_MAX];
    const uint32_t n_sets = all_sets(sets);

    (void)state;
    for (uint32_t i = 0; i < CASES; i++) {
        const uint32_t n_rows = 1 + quire_rng_below(&rng, ROWS_MAX);

        random_case((quire_matmul_type)(i % QUIRE_MATMUL_TYPES));
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

/* Each type with each number of rows of a tile: each number has a kernel of its own. The f16s are
 * random and include NaN and Inf, but the bits of a NaN are not compared, since no rule fixes them.
 */
static void test_bits_of_any_bytes(void **state)
{
    const quire_matmul_kernels *sets[SETS_MAX] = { NULL };
    const uint32_t n_sets = all_sets(sets);

    (void)state;
    for (uint32_t i = 0; i < QUIRE_MATMUL_TYPES * QUIRE_MATMUL_TILE_ROWS; i++) {
        const uint32_t n_rows = 1 + i / QUIRE_MATMUL_TYPES;
        const quire_matmul_type type = (quire_matmul_type)(i % QUIRE_MATMUL_TYPES);

        matrix_random(type, 512, 32, 1.0f);
        for (size_t k = 0; k < 32 * row_bytes(); k++) {
            m.rows[k] = (unsigned char)quire_rng_next(&rng);
        }
        quire_matmul_weight_pack(&m.weight, m.rows);
        x_random(n_rows);
        product(sets[0], x, n_rows, 1, z);
        for (uint32_t s = 1; s < n_sets; s++) {
            product(sets[s], x, n_rows, 1, y);
            for (uint32_t k = 0; k < n_rows * m.weight.n_out; k++) {
                assert_int_equal(isnan(y[k]) != 0, isnan(z[k]) != 0);
                assert_true(isnan(y[k]) || memcmp(&y[k], &z[k], sizeof y[k]) == 0);
            }
        }
        give(m.weight.panels);
    }
}

/* The largest and the least f16s, the largest integers: nothing overflows on the way. */
static void test_extremes(void **state)
{
    static const float sizes[] = { 65504.0f, 6e-8f };
    static const unsigned char fills[] = { 0x00, 0x7f, 0x80, 0xff };
    const quire_matmul_kernels *sets[SETS_MAX];
    const uint32_t n_sets = all_sets(sets);

    (void)state;
    for (uint32_t i = 0; i < QUIRE_MATMUL_TYPES * 8; i++) {
        const gguf_block *what = gguf_block_of((quire_matmul_type)(i / 8));

        matrix_random((quire_matmul_type)(i / 8), 256, QUIRE_MATMUL_PANEL, 1.0f);
        memset(m.rows, fills[i % 4], QUIRE_MATMUL_PANEL * row_bytes());
        for (uint32_t b = 0; b < QUIRE_MATMUL_PANEL * 256 / what->n; b++) {
            gguf_block_scale(m.weight.type, m.rows + b * what->bytes, sizes[i / 4 % 2]);
            if (what->min_at > 0) {
                half_set(m.rows + b * what->bytes + what->min_at, -sizes[i / 4 % 2]);
            }
        }
        quire_matmul_weight_pack(&m.weight, m.rows);
        for (uint32_t k = 0; k < 512; k++) {
            x[k] = k < 256 || k % 2 == 0 ? 1.0f : -1.0f;
        }
        for (uint32_t s = 0; s < n_sets; s++) {
            product(sets[s], x, 2, 1, y);
            check_against_double(2);
        }
        give(m.weight.panels);
    }
}

enum {
    MANY_IN = 2048,
    MANY_ROWS = 301
};

/* Rows of a matrix together, and each alone. */
static void check_many_rows(quire_matmul_type type, uint32_t n_in)
{
    static float many[MANY_ROWS * MANY_IN], all[MANY_ROWS * QUIRE_MATMUL_PANEL];
    static unsigned char rows[QUIRE_MATMUL_PANEL * MANY_IN / BLOCK * 34];
    const quire_matmul_kernels *sets[SETS_MAX];
    const quire_matmul_kernels *kernels = sets[all_sets(sets) - 1];
    const uint32_t block_bytes = gguf_block_of(type)->bytes;
    float one[QUIRE_MATMUL_PANEL];

    m.weight = (quire_matmul_weight){ .type = type, .n_in = n_in, .n_out = QUIRE_MATMUL_PANEL };
    for (size_t i = 0; i < QUIRE_MATMUL_PANEL * row_bytes(); i++) {
        rows[i] = (unsigned char)quire_rng_next(&rng);
    }
    for (size_t i = 0; i < QUIRE_MATMUL_PANEL * row_bytes(); i += block_bytes) {
        gguf_block_scale(type, rows + i, 0.01f);
    }
    m.weight.panels = take(quire_matmul_weight_bytes(type, n_in, QUIRE_MATMUL_PANEL));
    quire_matmul_weight_pack(&m.weight, rows);
    for (size_t i = 0; i < (size_t)MANY_ROWS * n_in; i++) {
        many[i] = (float)quire_rng_normal(&rng);
    }
    product(kernels, many, MANY_ROWS, 2, all);
    for (uint32_t row = 0; row < MANY_ROWS; row++) {
        product(kernels, many + (size_t)row * n_in, 1, 1, one);
        assert_memory_equal(one, all + (size_t)row * QUIRE_MATMUL_PANEL, sizeof one);
    }
    give(m.weight.panels);
}

/* More tiles of x than are worked on at a time, and than share a reading of a grid's codes. */
static void test_many_rows(void **state)
{
    (void)state;
    check_many_rows(QUIRE_MATMUL_Q8_0, MANY_IN);
    check_many_rows(QUIRE_MATMUL_IQ2_XXS, 512);
    check_many_rows(QUIRE_MATMUL_IQ2_S, 512);
    check_many_rows(QUIRE_MATMUL_IQ1_S, 512);
    check_many_rows(QUIRE_MATMUL_IQ1_M, 512);
}

/* NaN and Inf stay in their row, next to nothing counts as zero, and the largest values are exact.
 */
static void test_damage(void **state)
{
    const quire_matmul_kernels *sets[SETS_MAX];
    const uint32_t n_sets = all_sets(sets);

    (void)state;
    for (uint32_t i = 0; i < QUIRE_MATMUL_TYPES * n_sets; i++) {
        const uint32_t n_in = 256, n_out = 32;

        matrix_random((quire_matmul_type)(i % QUIRE_MATMUL_TYPES), n_in, n_out, 0.01f);
        x_random(5);
        x[1 * n_in + 40] = NAN;
        x[2 * n_in + 95] = -INFINITY;
        for (uint32_t in = 0; in < n_in; in++) {
            x[3 * n_in + in] = 1e-31f;
            x[4 * n_in + in] = in % 2 == 0 ? 3e38f : -3e38f;
        }
        x[4 * n_in] = 0.0f; /* IQ1's weights, odd numbers of steps, do not cancel then */
        product(sets[i / QUIRE_MATMUL_TYPES], x, 5, 2, y);
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
        matrix_random(QUIRE_MATMUL_Q8_0, 64, QUIRE_MATMUL_PANEL, 0.01f);
        memcpy(block_of(7, 1), &(uint16_t){ 0x7e00 }, sizeof(uint16_t));
        quire_matmul_weight_pack(&m.weight, m.rows);
        x_random(3);
        product(sets[s], x, 3, 1, y);
        for (uint32_t i = 0; i < 3 * QUIRE_MATMUL_PANEL; i++) {
            assert_int_equal(isnan(y[i]) != 0, i % QUIRE_MATMUL_PANEL == 7);
        }
        give(m.weight.panels);
    }
}

static void test_limits(void **state)
{
    (void)state;
    assert_true(quire_matmul_takes(QUIRE_MATMUL_Q8_0, 32, 32));
    assert_true(quire_matmul_takes(QUIRE_MATMUL_Q8_0, 4096, 128256));
    assert_false(quire_matmul_takes(QUIRE_MATMUL_Q8_0, 0, 32));
    assert_false(quire_matmul_takes(QUIRE_MATMUL_Q8_0, 32, 0));
    assert_false(quire_matmul_takes(QUIRE_MATMUL_Q8_0, 48, 32));
    assert_false(quire_matmul_takes(QUIRE_MATMUL_Q8_0, 32, 48));
    assert_false(quire_matmul_takes(QUIRE_MATMUL_Q8_0, (uint64_t)1 << 37, 32));
    assert_true(quire_matmul_takes(QUIRE_MATMUL_Q4_K, 256, 32));
    assert_false(quire_matmul_takes(QUIRE_MATMUL_Q4_K, 128, 32));
    assert_true(quire_matmul_takes(QUIRE_MATMUL_MXFP4, 2880, 2880));
    assert_false(quire_matmul_takes(QUIRE_MATMUL_MXFP4, 32, 32));
    for (uint32_t t = 0; t < QUIRE_MATMUL_TYPES; t++) {
        const gguf_block *what = gguf_block_of((quire_matmul_type)t);

        assert_int_equal(quire_matmul_weight_bytes((quire_matmul_type)t, 768, 64),
                         (size_t)64 * 768 / what->n * what->bytes);
    }
    assert_int_equal(quire_matmul_x_bytes(64, 3), 3 * 96);
    assert_null(quire_matmul_kernels_find("nothing"));
    assert_string_equal(quire_matmul_kernels_find("portable")->isa, "portable");
}

/* Models take a type's panels where the set has products of its own: all sets of x86 do. */
static void test_fast_types(void **state)
{
    const quire_matmul_kernels *sets[SETS_MAX];
    const uint32_t n_sets = all_sets(sets);

    (void)state;
    for (uint32_t i = 0; i < QUIRE_MATMUL_TYPES; i++) {
        const quire_matmul_type type = (quire_matmul_type)i;

        assert_int_equal(quire_matmul_is_fast(sets[0], type), type < QUIRE_MATMUL_IQ2_XXS);
        for (uint32_t s = 1; s < n_sets; s++) {
            assert_true(quire_matmul_is_fast(sets[s], type));
        }
    }
}

/* QUIRE_ISA's names are attention's; where no set is left that is faster than ggml there is none.
 */
static void test_isa(void **state)
{
    static const struct {
        const char *asked;
        const char *prefixes[2];
    } cases[] = { { "", { "avx512", "avx2" } },
                  { "avx512", { "avx512", "avx2" } },
                  { "avx512+bf16", { "avx512", "avx2" } },
                  { "avx512+amx", { "avx512", "avx2" } },
                  { "avx2", { "avx2", "avx2" } },
                  { "portable", { "none", "none" } },
                  { "neon", { "none", "none" } } };
    const char *before = getenv("QUIRE_ISA");
    char saved[32] = "";

    (void)state;
    if (before != NULL) {
        (void)snprintf(saved, sizeof saved, "%s", before);
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const quire_matmul_kernels *kernels;
        const char *isa;

        assert_int_equal(setenv("QUIRE_ISA", cases[i].asked, 1), 0);
        kernels = quire_matmul_kernels_find(NULL);
        isa = kernels != NULL ? kernels->isa : "none";
        if (quire_matmul_kernels_find("avx2") == NULL) {
            assert_string_equal(isa, "none");
        } else {
            assert_true(strncmp(isa, cases[i].prefixes[0], strlen(cases[i].prefixes[0])) == 0 ||
                        strncmp(isa, cases[i].prefixes[1], strlen(cases[i].prefixes[1])) == 0);
        }
    }
    assert_int_equal(before != NULL ? setenv("QUIRE_ISA", saved, 1) : unsetenv("QUIRE_ISA"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_value),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_bits_of_any_bytes),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_damaged_weights),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_fast_types),
        cmocka_unit_test(test_isa),
    };

    rng = test_rng(20261120);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
