/* test_dist.c - counts, quantiles and bars of a distribution.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/dist.h"

#include "seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_small_values_are_exact(void **state)
{
    quire_dist dist = { 0 };

    (void)state;
    assert_int_equal(quire_dist_quantile(&dist, 0.5), 0);
    assert_float_equal(quire_dist_mean(&dist), 0.0, 0.0);
    for (uint64_t v = 1; v <= 50; v++) {
        quire_dist_add_n(&dist, v, v == 50 ? 51 : 1);
    }
    assert_int_equal(dist.n, 100);
    assert_int_equal(dist.min, 1);
    assert_int_equal(dist.max, 50);
    assert_int_equal(quire_dist_quantile(&dist, 0.0), 1);
    assert_int_equal(quire_dist_quantile(&dist, 0.25), 25);
    assert_int_equal(quire_dist_quantile(&dist, 0.49), 49);
    assert_int_equal(quire_dist_quantile(&dist, 0.5), 50);
    assert_int_equal(quire_dist_quantile(&dist, 1.0), 50);
    assert_float_equal(quire_dist_mean(&dist), (49.0 * 50.0 / 2.0 + 51.0 * 50.0) / 100.0, 1e-9);
    quire_dist_add_n(&dist, 7, 0);
    assert_int_equal(dist.n, 100);
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void test_large_values_are_near(void **state)
{
    static uint64_t values[20000];
    static quire_dist dist;
    quire_rng rng = test_rng(11);

    (void)state;
    for (size_t i = 0; i < 20000; i++) {
        values[i] = quire_rng_next(&rng) >> quire_rng_below(&rng, 64);
        quire_dist_add(&dist, values[i]);
    }
    qsort(values, 20000, sizeof(values[0]), compare);
    for (uint32_t p = 1; p < 100; p++) {
        const double want = (double)values[p * 200 - 1];
        const double got = (double)quire_dist_quantile(&dist, p / 100.0);

        assert_true(got >= want * (1 - 1 / 60.0) && got <= want * (1 + 1 / 60.0));
    }
    assert_int_equal(dist.max, values[19999]);
    assert_int_equal(quire_dist_quantile(&dist, 1.0), values[19999]);
    quire_dist_add(&dist, UINT64_MAX);
    assert_int_equal(dist.max, UINT64_MAX);
}

/* Bars lie side by side, hold everything, and are not too many. */
static void check_bars(const quire_dist *dist, uint32_t max)
{
    quire_dist_bar bars[200];
    const uint32_t n = quire_dist_bars(dist, bars, max);
    uint64_t sum = 0;

    assert_in_range(n, 1, max);
    assert_true(bars[0].low <= dist->min);
    assert_true(bars[n - 1].high > dist->max || bars[n - 1].high == UINT64_MAX);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(bars[i].low < bars[i].high);
        assert_true(i == 0 || bars[i].low == bars[i - 1].high);
        sum += bars[i].n;
    }
    assert_int_equal(sum, dist->n);
}

static void test_bars(void **state)
{
    static quire_dist dist;
    quire_dist_bar bars[4];
    quire_rng rng = test_rng(12);

    (void)state;
    assert_int_equal(quire_dist_bars(&dist, bars, 4), 0);
    quire_dist_add(&dist, 3);
    assert_int_equal(quire_dist_bars(&dist, bars, 4), 1);
    assert_int_equal(bars[0].low, 3);
    assert_int_equal(bars[0].high, 4);
    for (uint32_t i = 0; i < 3000; i++) {
        static const uint32_t limits[] = { 1, 2, 7, 40, 200 };

        quire_dist_add(&dist, quire_rng_next(&rng) >> (63 - i % 64));
        for (size_t l = 0; i % 50 == 0 && l < sizeof(limits) / sizeof(limits[0]); l++) {
            check_bars(&dist, limits[l]);
        }
    }
    check_bars(&dist, 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_values_are_exact),
        cmocka_unit_test(test_large_values_are_near),
        cmocka_unit_test(test_bars),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
