/* test_attn_softmax.c - softmax of each kernel set: weights and sums against double precision, the
 * same bits for a row alone as among others, and what it must do with -Inf, Inf and NaN.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attn/attn_fixture.h"
#include "attn/kernel_sets.h"
#include "codec/half.h"

#define TILE     QUIRE_TILE_TOKENS
#define ROWS_MAX 96u

static quire_rng rng;

typedef struct softmax_state {
    float m[ROWS_MAX];
    float l[ROWS_MAX];
    float rescale[ROWS_MAX];
} softmax_state;

/* Weight t of a row that softmax has been through. */
static double weight_of(bool is_bf16, const float *row, uint32_t t)
{
    return is_bf16 ? (double)quire_bf16_to_f32(((const uint16_t *)(const void *)row)[t])
                   : (double)row[t];
}

/* m after a tile is the largest logit, or it has stayed, if that is little above it. */
static float check_m(float before, float after, float max)
{
    assert_true(after == max || (after == before && max - before <= QUIRE_ATTN_RISE));
    return after;
}

/* Row by row, softmax gives what it gave the rows together, to the bit. */
static void check_alone(quire_attn_softmax *softmax, uint32_t n_rows, uint32_t begin,
                        const uint32_t *end, float *s, softmax_state *before, const float *p,
                        const softmax_state *together)
{
    for (uint32_t r = 0; r < n_rows; r++) {
        float *row = s + (size_t)r * TILE;
        float rescale = 0.0f;

        softmax(1, begin, end + r, row, before->m + r, before->l + r, &rescale);
        assert_memory_equal(row, p + (size_t)r * TILE, TILE * sizeof(float));
        assert_true(before->m[r] == together->m[r] && before->l[r] == together->l[r] &&
                    rescale == together->rescale[r]);
    }
}

/* P, l and rescale against double precision. Weights of bf16 are rounded twice
 * (kernels_avx512_bf16.c), and l is the sum of what came out. */
static void check_softmax(const quire_attn_kernels *set, bool is_bf16, uint32_t n_rows,
                          uint32_t begin, const uint32_t *end)
{
    const double tolerance = is_bf16 ? 6.5e-3 : 4e-7;
    quire_attn_softmax *softmax = is_bf16 ? set->softmax_bf16 : set->softmax;
    float *s = kernel_sets_take((size_t)n_rows * TILE * sizeof(float));
    float *p = kernel_sets_take((size_t)n_rows * TILE * sizeof(float));
    softmax_state before;
    softmax_state st;

    for (uint32_t r = 0; r < n_rows; r++) {
        bool is_first = quire_rng_below(&rng, 2) == 0;

        st.m[r] = is_first ? -INFINITY : (float)(quire_rng_normal(&rng) * 30.0);
        st.l[r] = is_first ? 0.0f : (float)quire_rng_unit(&rng) + 1.0f;
        for (uint32_t t = 0; t < TILE; t++) {
            bool is_seen = t >= begin && t < end[r];

            s[r * TILE + t] = is_seen ? (float)(quire_rng_normal(&rng) * 30.0) : NAN;
            p[r * TILE + t] = s[r * TILE + t];
        }
    }
    before = st;
    softmax(n_rows, begin, end, p, st.m, st.l, st.rescale);
    for (uint32_t r = 0; r < n_rows; r++) { /* the differences are f32 by contract */
        float m = before.m[r];
        double l;

        for (uint32_t t = begin; t < end[r]; t++) {
            m = fmaxf(m, s[r * TILE + t]);
        }
        m = check_m(before.m[r], st.m[r], m);
        l = end[r] > begin ? (double)before.l[r] * exp((double)(before.m[r] - m))
                           : (double)before.l[r];
        for (uint32_t t = 0; t < TILE; t++) {
            bool is_seen = t >= begin && t < end[r];
            double expected = is_seen ? exp((double)(s[r * TILE + t] - m)) : 0.0;
            double weight = weight_of(is_bf16, p + (size_t)r * TILE, t);

            assert_true(fabs(weight - expected) <= tolerance * expected + 2e-38);
            assert_true(is_seen || weight == 0.0);
            l += is_bf16 ? weight : expected;
        }
        assert_true(fabs((double)st.l[r] - l) <= 1e-6 * l);
        assert_true(end[r] > begin || st.rescale[r] == 1.0f);
    }
    check_alone(softmax, n_rows, begin, end, s, &before, p, &st);
    free(p);
    free(s);
}

static void test_softmax(void **state)
{
    const quire_attn_kernels *sets[KERNEL_SETS_MAX];
    uint32_t n_sets = kernel_sets_all(sets);

    (void)state;
    for (uint32_t n = 0; n < 500; n++) {
        uint32_t n_rows = 1 + quire_rng_below(&rng, ROWS_MAX);
        uint32_t begin = n % 2 == 0 ? 0 : quire_rng_below(&rng, TILE);
        uint32_t end[ROWS_MAX];

        for (uint32_t r = 0; r < n_rows; r++) {
            end[r] = n % 3 == 0 ? TILE : quire_rng_below(&rng, TILE + 1);
        }
        for (uint32_t i = 0; i < n_sets; i++) {
            check_softmax(sets[i], false, n_rows, begin, end);
            if (sets[i]->softmax_bf16 != NULL) {
                check_softmax(sets[i], true, n_rows, begin, end);
            }
        }
    }
}

static void check_special_logits(quire_attn_softmax *softmax, bool is_bf16)
{
    float *s = kernel_sets_take((size_t)4 * TILE * sizeof(float));
    float m[4] = { -INFINITY, -INFINITY, 2.0f, -INFINITY };
    float l[4] = { 0.0f, 0.0f, 3.0f, 0.0f };
    uint32_t end[4] = { 2, 2, 2, 2 };
    float rescale[4];

    memset(s, 0, (size_t)4 * TILE * sizeof(float));
    s[0] = -INFINITY; /* row 0: nothing but -Inf */
    s[1] = -INFINITY;
    s[TILE] = NAN; /* row 1: NaN and a number */
    s[TILE + 1] = 1.0f;
    s[2 * TILE] = -INFINITY; /* row 2: -Inf and a very small weight */
    s[2 * TILE + 1] = -200.0f;
    s[3 * TILE] = INFINITY;
    softmax(4, 0, end, s, m, l, rescale);
    assert_true(m[0] == -INFINITY && l[0] == 0.0f && weight_of(is_bf16, s, 0) == 0.0);
    assert_true(isnan(l[1]) && isnan(weight_of(is_bf16, s + TILE, 0)));
    assert_true(m[2] == 2.0f && l[2] == 3.0f && rescale[2] == 1.0f);
    assert_true(weight_of(is_bf16, s + (size_t)2 * TILE, 0) == 0.0);
    assert_true(weight_of(is_bf16, s + (size_t)2 * TILE, 1) == 0.0);
    assert_true(isnan(l[3]));
    free(s);
}

static void test_softmax_of_special_logits(void **state)
{
    const quire_attn_kernels *sets[KERNEL_SETS_MAX];
    uint32_t n_sets = kernel_sets_all(sets);

    (void)state;
    for (uint32_t i = 0; i < n_sets; i++) {
        check_special_logits(sets[i]->softmax, false);
        if (sets[i]->softmax_bf16 != NULL) {
            check_special_logits(sets[i]->softmax_bf16, true);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_softmax_of_special_logits),
    };

    rng.state = fixture_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
