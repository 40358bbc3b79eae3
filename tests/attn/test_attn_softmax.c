/* test_attn_softmax.c - softmax of each kernel set: weights and sums against double precision, the
 * same bits for a row alone as among others, and the results for -Inf, Inf and NaN.
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

/* Rows for a call of softmax, and their results. */
typedef struct softmax_call {
    quire_attn_softmax *softmax;
    bool is_bf16;
    uint32_t n_rows;
    uint32_t begin;
    const uint32_t *end;
    const float *s;
    float *p;
    softmax_state before;
    softmax_state after;
} softmax_call;

/* The largest visible logit of a row, and m. */
static float largest(const softmax_call *call, uint32_t r, float m)
{
    for (uint32_t t = call->begin; t < call->end[r]; t++) {
        m = fmaxf(m, call->s[r * TILE + t]);
    }
    return m;
}

/* How far m lies below a row's largest logit: rows that saw nothing yet among others; none that
 * must rise; some of them. */
static float random_m(const softmax_call *call, uint32_t r, uint32_t kind)
{
    float max = largest(call, r, -INFINITY);

    if (kind == 0 || max == -INFINITY) {
        return quire_rng_below(&rng, 2) == 0 ? -INFINITY : (float)(quire_rng_normal(&rng) * 30.0);
    }
    return max +
           (float)(kind == 1 ? 8.0 - 13.0 * quire_rng_unit(&rng) : -8.0 * quire_rng_unit(&rng));
}

/* Row by row, softmax gives the same bits as for all rows together. */
static void check_alone(const softmax_call *call)
{
    for (uint32_t r = 0; r < call->n_rows; r++) {
        _Alignas(64) float row[TILE];
        float m = call->before.m[r];
        float l = call->before.l[r];
        float rescale = 0.0f;

        memcpy(row, call->s + (size_t)r * TILE, sizeof(row));
        call->softmax(1, call->begin, call->end + r, row, &m, &l, &rescale);
        assert_memory_equal(row, call->p + (size_t)r * TILE, sizeof(row));
        assert_true(m == call->after.m[r] && l == call->after.l[r] &&
                    rescale == call->after.rescale[r]);
    }
}

/* P, l and rescale of a row against double precision. By contract s - m is computed in f32. Weights
 * of bf16 are rounded twice (kernels_avx512_bf16.c), and l is the sum of the rounded weights. */
static void check_row(const softmax_call *call, uint32_t r)
{
    const double tolerance = call->is_bf16 ? 6.5e-3 : 4e-7;
    const float *s = call->s + (size_t)r * TILE;
    const bool sees = call->end[r] > call->begin;
    float before = call->before.m[r];
    float m = check_m(before, call->after.m[r], largest(call, r, before));
    double l = (double)call->before.l[r] * (sees ? exp((double)(before - m)) : 1.0);

    for (uint32_t t = 0; t < TILE; t++) {
        bool is_seen = t >= call->begin && t < call->end[r];
        double expected = is_seen ? exp((double)(s[t] - m)) : 0.0;
        double weight = weight_of(call->is_bf16, call->p + (size_t)r * TILE, t);

        assert_true(fabs(weight - expected) <= tolerance * expected + 2e-38);
        assert_true(is_seen || weight == 0.0);
        l += call->is_bf16 ? weight : expected;
    }
    assert_true(fabs((double)call->after.l[r] - l) <= 1e-6 * l);
    assert_true(sees || call->after.rescale[r] == 1.0f);
}

static void check_softmax(const quire_attn_kernels *set, bool is_bf16, uint32_t n_rows,
                          uint32_t begin, const uint32_t *end)
{
    const size_t n_floats = (size_t)n_rows * TILE;
    const uint32_t kind = quire_rng_below(&rng, 3);
    float *s = kernel_sets_take(n_floats * sizeof(float));
    softmax_call call = { .softmax = is_bf16 ? set->softmax_bf16 : set->softmax,
                          .is_bf16 = is_bf16,
                          .n_rows = n_rows,
                          .begin = begin,
                          .end = end,
                          .s = s,
                          .p = kernel_sets_take(n_floats * sizeof(float)) };

    for (uint32_t r = 0; r < n_rows; r++) {
        for (uint32_t t = 0; t < TILE; t++) {
            bool is_seen = t >= begin && t < end[r];

            s[r * TILE + t] = is_seen ? (float)(quire_rng_normal(&rng) * 30.0) : NAN;
        }
        call.before.m[r] = random_m(&call, r, kind);
        call.before.l[r] =
            call.before.m[r] == -INFINITY ? 0.0f : (float)quire_rng_unit(&rng) + 1.0f;
    }
    memcpy(call.p, s, n_floats * sizeof(float));
    call.after = call.before;
    call.softmax(n_rows, begin, end, call.p, call.after.m, call.after.l, call.after.rescale);
    for (uint32_t r = 0; r < n_rows; r++) {
        check_row(&call, r);
    }
    check_alone(&call);
    free(call.p);
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

/* n_together rows in a call: 4, or 1. */
static void check_special_logits(quire_attn_softmax *softmax, bool is_bf16, uint32_t n_together)
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
    for (uint32_t r = 0; r < 4; r += n_together) {
        softmax(n_together, 0, end + r, s + (size_t)r * TILE, m + r, l + r, rescale + r);
    }
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
        for (uint32_t n_together = 1; n_together <= 4; n_together += 3) {
            check_special_logits(sets[i]->softmax, false, n_together);
            if (sets[i]->softmax_bf16 != NULL) {
                check_special_logits(sets[i]->softmax_bf16, true, n_together);
            }
        }
    }
}

/* Rows that have their m: one of them with a special logit, which leaves the others' bits alone. */
static void check_special_among_begun(quire_attn_softmax *softmax, bool is_bf16, uint32_t bad,
                                      float special)
{
    float *s = kernel_sets_take((size_t)4 * TILE * sizeof(float));
    float *clean = kernel_sets_take((size_t)4 * TILE * sizeof(float));
    float m[2][4] = { { 2.0f, 2.0f, 2.0f, 2.0f }, { 2.0f, 2.0f, 2.0f, 2.0f } };
    float l[2][4] = { { 3.0f, 3.0f, 3.0f, 3.0f }, { 3.0f, 3.0f, 3.0f, 3.0f } };
    uint32_t end[4] = { TILE, TILE, TILE, TILE };
    const uint32_t slot = quire_rng_below(&rng, TILE);
    float rescale[2][4];

    for (uint32_t i = 0; i < 4 * TILE; i++) {
        clean[i] = s[i] = (float)quire_rng_normal(&rng);
    }
    s[bad * TILE + slot] = special;
    softmax(4, 0, end, s, m[0], l[0], rescale[0]);
    softmax(4, 0, end, clean, m[1], l[1], rescale[1]);
    for (uint32_t r = 0; r < 4; r++) {
        if (r != bad) {
            assert_memory_equal(s + r * TILE, clean + r * TILE,
                                TILE * (is_bf16 ? sizeof(uint16_t) : sizeof(float)));
            assert_true(m[0][r] == m[1][r] && l[0][r] == l[1][r] && rescale[0][r] == rescale[1][r]);
        }
    }
    if (special < 0.0f) {
        assert_true(weight_of(is_bf16, s + bad * TILE, slot) == 0.0 && isfinite(l[0][bad]));
    } else {
        assert_true(isnan(l[0][bad]));
    }
    free(s);
    free(clean);
}

static void test_special_logits_among_begun(void **state)
{
    const float specials[] = { NAN, -NAN, INFINITY, -INFINITY };
    const quire_attn_kernels *sets[KERNEL_SETS_MAX];
    uint32_t n_sets = kernel_sets_all(sets);

    (void)state;
    for (uint32_t i = 0; i < n_sets; i++) {
        for (uint32_t k = 0; k < 16; k++) {
            check_special_among_begun(sets[i]->softmax, false, k % 4, specials[k / 4]);
            if (sets[i]->softmax_bf16 != NULL) {
                check_special_among_begun(sets[i]->softmax_bf16, true, k % 4, specials[k / 4]);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_special_logits_among_begun),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_softmax_of_special_logits),
    };

    rng.state = fixture_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
