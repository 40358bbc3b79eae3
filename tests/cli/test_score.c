/* test_score.c - log-probabilities, divergences, means and quantiles against figures worked out in
 * double precision or by hand.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/score.h"

#include "seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_MAX 501

static void fill(quire_rng *rng, float *logits, uint32_t n, double spread)
{
    for (uint32_t i = 0; i < n; i++) {
        logits[i] = (float)(spread * quire_rng_normal(rng));
    }
}

static double exact_log_sum(const float *logits, uint32_t n)
{
    double max = -INFINITY;
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        max = (double)logits[i] > max ? (double)logits[i] : max;
    }
    for (uint32_t i = 0; i < n; i++) {
        sum += exp((double)logits[i] - max);
    }
    return max + log(sum);
}

static double exact_kld(const float *base, const float *logits, uint32_t n)
{
    double base_sum = exact_log_sum(base, n);
    double sum = exact_log_sum(logits, n);
    double kld = 0;

    for (uint32_t i = 0; i < n; i++) {
        double log_base = (double)base[i] - base_sum;

        kld += exp(log_base) * (log_base - ((double)logits[i] - sum));
    }
    return kld;
}

static void rows_by_hand(void **state)
{
    /* softmax of (0, ln 2, ln 5) is (1, 2, 5) / 8 */
    float logits[3] = { 0.0f, logf(2.0f), logf(5.0f) };
    float even[3] = { 1.0f, 1.0f, 1.0f };
    quire_row row;
    quire_row base;
    double expected = (log(8.0 / 3) + log(8.0 / 6) + log(8.0 / 15)) / 3;

    (void)state;
    quire_row_read(logits, 3, 1, &row);
    assert_true(fabs(row.nll - log(4.0)) < 1e-6);
    assert_int_equal(row.top, 2);
    quire_row_read(even, 3, 0, &base);
    assert_true(fabs(base.nll - log(3.0)) < 1e-6);
    assert_int_equal(base.top, 0); /* the first of equals */
    assert_true(fabs(quire_row_kld(even, &base, logits, &row, 3) - expected) < 1e-6);
    assert_true(quire_row_kld(even, &base, even, &base, 3) == 0.0);
}

static void rows_exactly(void **state)
{
    quire_rng rng = test_rng(1);
    float a[N_MAX];
    float b[N_MAX];

    (void)state;
    for (uint32_t round = 0; round < 200; round++) {
        uint32_t n = 1 + quire_rng_below(&rng, N_MAX);
        int32_t token = (int32_t)quire_rng_below(&rng, n);
        quire_row row_a;
        quire_row row_b;

        fill(&rng, a, n, 4);
        fill(&rng, b, n, 4);
        quire_row_read(a, n, token, &row_a);
        quire_row_read(b, n, token, &row_b);
        assert_true(fabs(row_a.log_sum - exact_log_sum(a, n)) < 1e-5);
        assert_true(fabs(row_a.nll - (exact_log_sum(a, n) - (double)a[token])) < 1e-5);
        assert_true(fabs(quire_row_kld(a, &row_a, b, &row_b, n) - exact_kld(a, b, n)) <
                    1e-5 * (1 + exact_kld(a, b, n)));
    }
}

/* Large logits must not overflow: exp(200) does in single precision. */
static void rows_of_large_logits(void **state)
{
    float logits[4] = { 200.0f, 199.0f, -500.0f, 0.0f };
    quire_row row;

    (void)state;
    quire_row_read(logits, 4, 0, &row);
    assert_true(fabs(row.nll - log1p(exp(-1.0))) < 1e-6);
    quire_row_read(logits, 4, 2, &row);
    assert_true(fabs(row.nll - (700 + log1p(exp(-1.0)))) < 1e-3);
}

/* A coded row is the row up to 1/65535 of its range, at most 16; nothing lower is kept. */
static void coded_rows(void **state)
{
    quire_rng rng = test_rng(2);
    float logits[N_MAX];
    float other[N_MAX];
    quire_coded_row *coded = malloc((size_t)quire_coded_row_bytes(N_MAX));

    (void)state;
    assert_non_null(coded);
    assert_int_equal(quire_coded_row_bytes(4), 16);
    assert_int_equal(quire_coded_row_bytes(3), 16);
    for (uint32_t round = 0; round < 100; round++) {
        uint32_t n = 2 + quire_rng_below(&rng, N_MAX - 2);
        int32_t token = (int32_t)quire_rng_below(&rng, n);
        quire_row row;
        quire_row back;
        quire_row row_other;
        double kld;

        fill(&rng, logits, n, 2); /* spread 2: 16 below the largest hardly occurs */
        fill(&rng, other, n, 2);
        quire_row_read(logits, n, token, &row);
        quire_row_read(other, n, token, &row_other);
        quire_row_encode(logits, n, coded);
        quire_coded_row_read(coded, n, token, &back);
        if ((double)logits[token] > (double)logits[row.top] - 16) {
            assert_true(fabs(back.nll - row.nll) < 4e-4);
        }
        assert_true(logits[back.top] >= logits[row.top] - 4e-4f);
        kld = quire_coded_row_kld(coded, other, &row_other, n);
        assert_true(fabs(kld - quire_row_kld(logits, &row, other, &row_other, n)) <
                    1e-3 * (1 + kld));
    }
    free(coded);
}

static void coded_row_of_equal_logits(void **state)
{
    float logits[3] = { 2.0f, 2.0f, 2.0f };
    unsigned char bytes[32] __attribute__((aligned(8)));
    quire_coded_row *coded = (void *)bytes;
    quire_row row;
    quire_row back;

    (void)state;
    memset(bytes, 0xff, sizeof(bytes));
    quire_row_encode(logits, 3, coded);
    assert_true(coded->scale == 0.0f);
    assert_int_equal(coded->code[3], 0); /* padding is written too */
    quire_coded_row_read(coded, 3, 1, &back);
    assert_true(fabs(back.nll - log(3.0)) < 1e-6);
    quire_row_read(logits, 3, 1, &row);
    assert_true(fabs(quire_coded_row_kld(coded, logits, &row, 3)) < 1e-6);
}

/* A token 40 below the largest: the file keeps 16 of it, which is no difference between the two. */
static void coded_row_of_a_rare_token(void **state)
{
    float logits[4] = { 10.0f, 9.0f, 8.0f, -30.0f };
    float other[4] = { 10.0f, 9.0f, 8.0f, -25.0f };
    unsigned char bytes[32] __attribute__((aligned(8)));
    quire_coded_row *coded = (void *)bytes;
    quire_row row;
    quire_row back;

    (void)state;
    quire_row_encode(logits, 4, coded);
    quire_coded_row_read(coded, 4, 3, &back);
    assert_true(back.nll < 17);
    assert_true(back.nll_max == back.nll);
    quire_row_read(other, 4, 3, &row);
    assert_true(row.nll > 30);
    assert_true(quire_row_nll_difference(&row, &back) == 0.0);
    /* Within the range, and against a row that was not coded, nothing is cut. */
    quire_coded_row_read(coded, 4, 1, &back);
    quire_row_read(logits, 4, 1, &row);
    assert_true(fabs(quire_row_nll_difference(&row, &back)) < 4e-4);
    quire_row_read(logits, 4, 3, &back);
    quire_row_read(other, 4, 3, &row);
    assert_true(fabs(quire_row_nll_difference(&row, &back) + 5) < 1e-3);
}

static void means(void **state)
{
    quire_mean mean = { 0 };

    (void)state;
    assert_true(quire_mean_value(&mean) == 0.0);
    assert_true(quire_mean_stderr(&mean) == 0.0);
    quire_mean_add(&mean, 1);
    assert_true(quire_mean_value(&mean) == 1.0);
    assert_true(quire_mean_stderr(&mean) == 0.0);
    quire_mean_add(&mean, 2);
    quire_mean_add(&mean, 3);
    quire_mean_add(&mean, 6);
    assert_true(quire_mean_value(&mean) == 3.0);
    /* variance (4 + 1 + 0 + 9) / 4 = 3.5; sqrt(3.5 / 3) */
    assert_true(fabs(quire_mean_stderr(&mean) - sqrt(3.5 / 3)) < 1e-12);
}

static void quantiles(void **state)
{
    double values[5] = { 5, 1, 4, 2, 3 };
    double one[1] = { 7 };

    (void)state;
    assert_true(quire_quantile(values, 5, 0.5) == 3.0);
    assert_true(quire_quantile(values, 5, 0.0) == 1.0);
    assert_true(quire_quantile(values, 5, 1.0) == 5.0);
    assert_true(fabs(quire_quantile(values, 5, 0.9) - 4.6) < 1e-12);
    assert_true(fabs(quire_quantile(values, 4, 0.5) - 2.5) < 1e-12);
    assert_true(quire_quantile(one, 1, 0.99) == 7.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_by_hand),
        cmocka_unit_test(rows_exactly),
        cmocka_unit_test(rows_of_large_logits),
        cmocka_unit_test(coded_rows),
        cmocka_unit_test(coded_row_of_equal_logits),
        cmocka_unit_test(coded_row_of_a_rare_token),
        cmocka_unit_test(means),
        cmocka_unit_test(quantiles),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
