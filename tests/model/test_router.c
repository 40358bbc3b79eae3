/* test_router.c - the choice of experts: against its definition in double precision, the same bits
 * for a row alone and among others, and the effect of NaN.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/router.h"
#include "seed.h"

#include <math.h>
#include <string.h>

#define N_MAX    64u
#define IN_MAX   100u
#define ROWS_MAX 13u

static quire_rng rng;

static void random_fill(float *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        values[i] = (float)quire_rng_normal(&rng);
    }
}

/* ---- products ---- */

static void test_products(void **state)
{
    static float x[ROWS_MAX * IN_MAX], w[N_MAX * IN_MAX], bias[N_MAX], y[ROWS_MAX * N_MAX];

    (void)state;
    for (uint32_t i = 0; i < 200; i++) {
        const uint32_t n_in = 1 + quire_rng_below(&rng, IN_MAX);
        const uint32_t n_out = 1 + quire_rng_below(&rng, N_MAX);
        const uint32_t n_rows = 1 + quire_rng_below(&rng, ROWS_MAX);
        const uint32_t cut = quire_rng_below(&rng, n_out + 1);
        const bool has_bias = quire_rng_below(&rng, 2) == 1;
        const quire_router_product all = { x, n_in, w, has_bias ? bias : NULL, n_in, n_out, y };
        quire_router_product one = all;
        float alone[N_MAX];

        random_fill(x, n_rows * n_in);
        random_fill(w, n_out * n_in);
        random_fill(bias, n_out);
        memset(y, 0xff, sizeof y);
        quire_router_multiply(&all, &(quire_router_part){ 0, n_rows, 0, cut });
        quire_router_multiply(&all, &(quire_router_part){ 0, n_rows, cut, n_out });
        one.y = alone;
        for (uint32_t row = 0; row < n_rows; row++) {
            one.x = x + (size_t)row * n_in;
            quire_router_multiply(&one, &(quire_router_part){ 0, 1, 0, n_out });
            assert_memory_equal(y + (size_t)row * n_out, alone, n_out * sizeof *alone);
            for (uint32_t out = 0; out < n_out; out++) {
                double want = has_bias ? (double)bias[out] : 0.0;

                for (uint32_t k = 0; k < n_in; k++) {
                    want += (double)w[out * n_in + k] * (double)one.x[k];
                }
                assert_true(fabs((double)alone[out] - want) < 1e-4);
            }
        }
    }
}

/* ---- choices ---- */

/* The scores that choose experts, and the probabilities that weigh them, in double precision. */
static void scores_of(const quire_router *r, const float *logits, const float *bias, double *probs,
                      double *scores)
{
    double sum = 0.0;

    for (uint32_t e = 0; e < r->n_experts; e++) {
        sum += exp((double)logits[e]);
    }
    for (uint32_t e = 0; e < r->n_experts; e++) {
        const double l = (double)logits[e];

        probs[e] = r->gating == QUIRE_GATING_SOFTMAX   ? exp(l) / sum
                   : r->gating == QUIRE_GATING_SIGMOID ? 1.0 / (1.0 + exp(-l))
                                                       : l;
        scores[e] = probs[e] + (bias != NULL ? (double)bias[e] : 0.0);
    }
}

/* The number of values that come before value i. */
static uint32_t rank_of(const double *values, uint32_t n, uint32_t i)
{
    uint32_t rank = 0;

    for (uint32_t k = 0; k < n; k++) {
        rank += values[k] > values[i] || (values[k] == values[i] && k < i);
    }
    return rank;
}

static double two_largest(const double *values, uint32_t n)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < n; i++) {
        sum += rank_of(values, n, i) < 2 ? values[i] : 0.0;
    }
    return sum;
}

static void groups_drop(const quire_router *r, double *scores)
{
    const uint32_t n = r->n_experts / r->n_groups;
    double sums[N_MAX];

    for (uint32_t g = 0; g < r->n_groups; g++) {
        sums[g] = two_largest(scores + (size_t)g * n, n);
    }
    for (uint32_t e = 0; e < r->n_experts; e++) {
        if (rank_of(sums, r->n_groups, e / n) >= r->n_groups_used) {
            scores[e] = -INFINITY;
        }
    }
}

static void check_choice(const quire_router *r, const float *logits, const float *bias)
{
    double probs[N_MAX], scores[N_MAX], weights[N_MAX], sum = 0.0;
    int32_t choices[N_MAX];
    float got[N_MAX];

    scores_of(r, logits, bias, probs, scores);
    if (r->n_groups > 1) {
        groups_drop(r, scores);
    }
    quire_router_choose(r, logits, bias, choices, got);
    for (uint32_t k = 0; k < r->n_used; k++) {
        assert_in_range(choices[k], 0, r->n_experts - 1);
        /* In f32 another expert with nearly the same score may come first. */
        for (uint32_t e = 0; e < r->n_experts; e++) {
            if (rank_of(scores, r->n_experts, e) == k) {
                assert_true(scores[choices[k]] == scores[e] ||
                            fabs(scores[choices[k]] - scores[e]) < 1e-5);
            }
        }
        assert_true(k == 0 || choices[k] != choices[k - 1]);
        weights[k] = r->gating == QUIRE_GATING_CHOSEN ? exp(probs[choices[k]]) : probs[choices[k]];
        sum += weights[k];
    }
    for (uint32_t k = 0; k < r->n_used; k++) {
        const bool is_shared = r->is_normalised || r->gating == QUIRE_GATING_CHOSEN;
        const double want = weights[k] / (is_shared ? sum : 1.0) * (double)r->scale;

        assert_true(fabs((double)got[k] - want) <= 1e-5 * (1.0 + fabs(want)));
    }
}

static quire_router router_random(void)
{
    const uint32_t n_groups = 1 + quire_rng_below(&rng, 8);
    quire_router r = { .n_groups = n_groups,
                       .n_experts = n_groups * (1 + quire_rng_below(&rng, 8)),
                       .n_groups_used = 1 + quire_rng_below(&rng, n_groups),
                       .gating = (quire_gating)quire_rng_below(&rng, 3),
                       .is_normalised = quire_rng_below(&rng, 2) == 1,
                       .scale = quire_rng_below(&rng, 2) == 1 ? 1.0f : 2.5f };

    r.n_used = 1 + quire_rng_below(&rng, r.n_experts / n_groups * r.n_groups_used);
    /* Weights are divided by their sum where they are positive. */
    r.is_normalised = r.is_normalised && r.gating != QUIRE_GATING_CHOSEN;
    return r;
}

static void test_choices(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2000; i++) {
        const quire_router r = router_random();
        float logits[N_MAX], bias[N_MAX];

        random_fill(logits, r.n_experts);
        random_fill(bias, r.n_experts);
        check_choice(&r, logits, quire_rng_below(&rng, 2) == 1 ? bias : NULL);
    }
}

/* Among equal scores the first expert is chosen. A sum of weights of 0 divides nothing. */
static void test_ties(void **state)
{
    const quire_router r = { .n_experts = 8,
                             .n_used = 3,
                             .gating = QUIRE_GATING_SIGMOID,
                             .is_normalised = true,
                             .scale = 1.0f };
    float logits[8] = { 0.0f, 1.0f, 1.0f, 0.0f, 1.0f, 1.0f, 0.0f, 0.0f };
    int32_t choices[3];
    float weights[3];

    (void)state;
    quire_router_choose(&r, logits, NULL, choices, weights);
    assert_int_equal(choices[0], 1);
    assert_int_equal(choices[1], 2);
    assert_int_equal(choices[2], 4);
    for (uint32_t e = 0; e < 8; e++) {
        logits[e] = -200.0f;
    }
    quire_router_choose(&r, logits, NULL, choices, weights);
    assert_true(weights[0] == 0.0f && weights[2] == 0.0f);
}

/* For any numbers the choices are distinct existing experts. */
static void test_damage(void **state)
{
    static const float values[] = { NAN, INFINITY, -INFINITY, 0.0f, 3e38f };

    (void)state;
    for (uint32_t i = 0; i < 500; i++) {
        const quire_router r = router_random();
        bool is_chosen[N_MAX] = { false };
        float logits[N_MAX], weights[N_MAX];
        int32_t choices[N_MAX];

        for (uint32_t e = 0; e < r.n_experts; e++) {
            logits[e] = values[quire_rng_below(&rng, 5)];
        }
        quire_router_choose(&r, logits, NULL, choices, weights);
        for (uint32_t k = 0; k < r.n_used; k++) {
            assert_in_range(choices[k], 0, r.n_experts - 1);
            assert_false(is_chosen[choices[k]]);
            is_chosen[choices[k]] = true;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_damage),
    };

    rng = test_rng(0x407e4);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
