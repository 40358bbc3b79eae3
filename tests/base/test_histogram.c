/* test_histogram.c - values fall into the right buckets, and quantiles lie between their bounds.
 *
 * SPDX-License-Identifier: MIT */
#include "base/histogram.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const double bounds[] = { 1.0, 2.0, 4.0 };

static void test_bounds_are_inclusive(void **state)
{
    quire_histogram histogram;

    (void)state;
    quire_histogram_init(&histogram, bounds, 3);
    quire_histogram_add(&histogram, 0.0);
    quire_histogram_add(&histogram, 1.0);
    quire_histogram_add(&histogram, 1.5);
    quire_histogram_add(&histogram, 4.0);
    quire_histogram_add(&histogram, 5.0);
    assert_int_equal(histogram.counts[0], 2);
    assert_int_equal(histogram.counts[1], 1);
    assert_int_equal(histogram.counts[2], 1);
    assert_int_equal(histogram.counts[3], 1);
    assert_int_equal(histogram.n, 5);
    assert_float_equal(histogram.sum, 11.5, 1e-12);
}

static void test_quantiles(void **state)
{
    quire_histogram histogram;

    (void)state;
    quire_histogram_init(&histogram, bounds, 3);
    assert_float_equal(quire_histogram_quantile(&histogram, 0.5), 0.0, 0.0);
    for (int i = 0; i < 100; i++) {
        quire_histogram_add(&histogram, i < 50 ? 0.5 : 3.0);
    }
    assert_float_equal(quire_histogram_quantile(&histogram, 0.25), 0.5, 1e-9);
    assert_float_equal(quire_histogram_quantile(&histogram, 0.5), 1.0, 1e-9);
    assert_float_equal(quire_histogram_quantile(&histogram, 0.75), 3.0, 1e-9);
    assert_float_equal(quire_histogram_quantile(&histogram, 1.0), 4.0, 1e-9);
    quire_histogram_add(&histogram, 100.0);
    assert_float_equal(quire_histogram_quantile(&histogram, 1.0), 4.0, 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds_are_inclusive),
        cmocka_unit_test(test_quantiles),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
