/* test_cost_fit.c - costs of formats from a few measurements.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/measuring/cost_fit.h"

#include "seed.h"

#include <math.h>

static const quire_format formats[] = { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q6, QUIRE_FORMAT_Q5,
                                        QUIRE_FORMAT_Q4, QUIRE_FORMAT_Q3 };
#define N (sizeof(formats) / sizeof(formats[0]))

/* Roughly those of the formats; q8 first. */
static const double errors[QUIRE_FORMAT_COUNT] = {
    [QUIRE_FORMAT_Q8] = 4e-5, [QUIRE_FORMAT_Q6] = 5e-4, [QUIRE_FORMAT_Q5] = 2e-3,
    [QUIRE_FORMAT_Q4] = 8e-3, [QUIRE_FORMAT_Q3] = 3e-2,
};

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b);
}

static quire_cost_sample sample(double mean, double std_err)
{
    return (quire_cost_sample){ true, mean, std_err };
}

static void expect_rising(const double *cost)
{
    for (size_t i = 0; i < N; i++) {
        assert_true(isfinite(cost[formats[i]]) && cost[formats[i]] >= 0);
        assert_true(i == 0 || cost[formats[i]] >= cost[formats[i - 1]]);
    }
}

static void errors_of_formats(void **state)
{
    static const uint32_t dims[] = { 8, 48, 64, 128, 1024 };

    (void)state;
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        for (int side = 0; side < 2; side++) {
            double before = 0;

            for (size_t f = 0; f < N; f++) {
                double error;

                assert_int_equal(quire_format_error(formats[f], (quire_side)side, dims[i], &error),
                                 QUIRE_OK);
                /* Each bit less is worth a factor of 4 or a little less. */
                assert_true(error > 2 * before);
                before = error;
            }
            assert_true(before > 0.01 && before < 0.06); /* q3; the best possible is 0.034 */
        }
    }
}

static void one_measurement_gives_all(void **state)
{
    quire_cost_sample samples[QUIRE_FORMAT_COUNT] = { { 0 } };
    double cost[QUIRE_FORMAT_COUNT] = { [QUIRE_FORMAT_F16] = -7 };

    (void)state;
    samples[QUIRE_FORMAT_Q3] = sample(6e-3, 1e-4);
    quire_cost_fit(samples, errors, cost);
    for (size_t i = 0; i < N; i++) {
        assert_true(is_near(cost[formats[i]], 6e-3 / 3e-2 * errors[formats[i]]));
    }
    assert_true(cost[QUIRE_FORMAT_F16] == -7); /* not its business */

    samples[QUIRE_FORMAT_Q3] = (quire_cost_sample){ 0 };
    samples[QUIRE_FORMAT_Q5] = sample(1e-4, 1e-6);
    quire_cost_fit(samples, errors, cost);
    assert_true(is_near(cost[QUIRE_FORMAT_Q3], 1e-4 * 15));
    assert_true(is_near(cost[QUIRE_FORMAT_Q8], 1e-4 * 0.02));
}

static void measurements_count_where_they_are_clear(void **state)
{
    quire_cost_sample samples[QUIRE_FORMAT_COUNT] = { { 0 } };
    double cost[QUIRE_FORMAT_COUNT] = { 0 };

    (void)state;
    samples[QUIRE_FORMAT_Q3] = sample(6e-3, 1e-4);
    samples[QUIRE_FORMAT_Q4] = sample(1e-3, 1e-4);  /* clear, and less than the ratio says */
    samples[QUIRE_FORMAT_Q5] = sample(9e-4, 5e-4);  /* noise */
    samples[QUIRE_FORMAT_Q6] = sample(-3e-4, 1e-4); /* noise, however sure of itself */
    quire_cost_fit(samples, errors, cost);
    assert_true(is_near(cost[QUIRE_FORMAT_Q3], 6e-3));
    assert_true(is_near(cost[QUIRE_FORMAT_Q4], 1e-3));
    assert_true(is_near(cost[QUIRE_FORMAT_Q5], 1e-3 / 4));
    assert_true(is_near(cost[QUIRE_FORMAT_Q6], 1e-3 / 16));
    expect_rising(cost);

    /* A finer format that seems to cost more: the coarser one costs as much. */
    samples[QUIRE_FORMAT_Q4] = sample(8e-3, 1e-4);
    quire_cost_fit(samples, errors, cost);
    assert_true(is_near(cost[QUIRE_FORMAT_Q4], 8e-3));
    assert_true(is_near(cost[QUIRE_FORMAT_Q3], 8e-3));
    expect_rising(cost);
}

static void noise_is_not_free(void **state)
{
    quire_cost_sample samples[QUIRE_FORMAT_COUNT] = { { 0 } };
    double cost[QUIRE_FORMAT_COUNT] = { 0 };

    (void)state;
    samples[QUIRE_FORMAT_Q3] = sample(-2e-4, 3e-4);
    quire_cost_fit(samples, errors, cost);
    assert_true(is_near(cost[QUIRE_FORMAT_Q3], 3e-4));
    expect_rising(cost);
    /* The measured loss is exactly 0, so the fitted cost is 0. */
    samples[QUIRE_FORMAT_Q3] = sample(0, 0);
    quire_cost_fit(samples, errors, cost);
    assert_true(cost[QUIRE_FORMAT_Q3] == 0);
    expect_rising(cost);
}

static void any_measurements_give_costs(void **state)
{
    quire_rng rng = test_rng(41);

    (void)state;
    for (uint32_t i = 0; i < 2000; i++) {
        quire_cost_sample samples[QUIRE_FORMAT_COUNT] = { { 0 } };
        double cost[QUIRE_FORMAT_COUNT] = { 0 };
        uint32_t which = 1 + quire_rng_below(&rng, (1u << N) - 1);

        for (size_t f = 0; f < N; f++) {
            if ((which >> f & 1u) != 0) {
                samples[formats[f]] =
                    sample(1e-3 * quire_rng_normal(&rng), 1e-3 * quire_rng_unit(&rng));
            }
        }
        quire_cost_fit(samples, errors, cost);
        expect_rising(cost);
    }
}

static void shrinks_noise_and_keeps_signal(void **state)
{
    quire_cost_sample clear[4] = { sample(1, 0.01), sample(2, 0.01), sample(6, 0.01),
                                   sample(3, 0.01) };
    quire_cost_sample noisy[4] = { sample(1, 4), sample(2, 4), sample(6, 4), sample(3, 4) };
    quire_cost_sample mixed[3] = { sample(0, 0.1), sample(10, 0.1), sample(2, 8) };
    quire_cost_sample one[1] = { sample(5, 1) };
    quire_cost_sample equal[2] = { sample(5, 0), sample(5, 0) };

    (void)state;
    quire_cost_shrink(clear, 4);
    assert_true(fabs(clear[0].mean - 1) < 1e-3 && fabs(clear[2].mean - 6) < 1e-3);
    assert_true(fabs(clear[0].std_err - 0.01) < 1e-4);
    quire_cost_shrink(noisy, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_true(is_near(noisy[i].mean, 3)); /* all of the spread may be noise */
        assert_true(is_near(noisy[i].std_err, 2));
    }
    quire_cost_shrink(mixed, 3);
    assert_true(fabs(mixed[0].mean) < 0.1 && fabs(mixed[1].mean - 10) < 0.1);
    assert_true(mixed[2].mean > 2.5 && mixed[2].mean < 4.1); /* most of the way to the mean, 4 */
    quire_cost_shrink(one, 1);
    assert_true(is_near(one[0].mean, 5));
    quire_cost_shrink(equal, 2);
    assert_true(is_near(equal[0].mean, 5) && is_near(equal[1].mean, 5));
}

static void behind_by_more_than_noise(void **state)
{
    (void)state;
    assert_true(quire_cost_is_behind(sample(5e-3, 1e-4), sample(4e-3, 1e-4)));
    assert_false(quire_cost_is_behind(sample(4e-3, 1e-4), sample(5e-3, 1e-4)));
    assert_false(quire_cost_is_behind(sample(5e-3, 6e-4), sample(4e-3, 6e-4)));
    assert_false(quire_cost_is_behind(sample(5e-3, 0), sample(5e-3, 0)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_of_formats),
        cmocka_unit_test(one_measurement_gives_all),
        cmocka_unit_test(measurements_count_where_they_are_clear),
        cmocka_unit_test(noise_is_not_free),
        cmocka_unit_test(any_measurements_give_costs),
        cmocka_unit_test(shrinks_noise_and_keeps_signal),
        cmocka_unit_test(behind_by_more_than_noise),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
