/* test_rng.c - the generator is the published one, stays in range and looks like its distributions.
 *
 * SPDX-License-Identifier: MIT */
#include "base/rng.h"
#include "seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* First outputs of splitmix64 for seed 1234567, as published with its reference code. */
static void known_answers(void **state)
{
    static const uint64_t expected[] = {
        UINT64_C(6457827717110365317), UINT64_C(3203168211198807973), UINT64_C(9817491932198370423),
        UINT64_C(4593380528125082431), UINT64_C(16408922859458223821)
    };
    quire_rng rng = { 1234567 };

    (void)state;
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        assert_true(quire_rng_next(&rng) == expected[i]);
    }
}

static void same_seed_same_numbers(void **state)
{
    quire_rng a = { 42 };
    quire_rng b = { 42 };
    quire_rng c = { 43 };

    (void)state;
    assert_true(quire_rng_next(&a) == quire_rng_next(&b));
    assert_true(quire_rng_next(&a) != quire_rng_next(&c));
}

static void below_stays_below_and_reaches_everything(void **state)
{
    quire_rng rng = test_rng(2);
    uint32_t seen[7] = { 0 };

    (void)state;
    for (int i = 0; i < 70000; i++) {
        uint32_t value = quire_rng_below(&rng, 7);

        assert_in_range(value, 0, 6);
        seen[value]++;
    }
    /* 10,000 expected, standard deviation 93: nine of them never happen by chance. */
    for (size_t i = 0; i < 7; i++) {
        assert_in_range(seen[i], 9160, 10840);
    }
    assert_int_equal(quire_rng_below(&rng, 1), 0);
    for (int i = 0; i < 1000; i++) {
        assert_true(quire_rng_below(&rng, UINT32_MAX) < UINT32_MAX);
    }
}

static void unit_and_normal_have_their_moments(void **state)
{
    enum {
        N = 200000
    };
    quire_rng rng = test_rng(3);
    double sum_unit = 0.0;
    double sum = 0.0;
    double sum_squares = 0.0;

    (void)state;
    for (int i = 0; i < N; i++) {
        double unit = quire_rng_unit(&rng);
        double normal = quire_rng_normal(&rng);

        assert_true(unit >= 0.0 && unit < 1.0);
        assert_true(isfinite(normal));
        sum_unit += unit;
        sum += normal;
        sum_squares += normal * normal;
    }
    /* Bounds are about nine standard errors wide. */
    assert_true(fabs(sum_unit / N - 0.5) < 0.006);
    assert_true(fabs(sum / N) < 0.02);
    assert_true(fabs(sum_squares / N - 1.0) < 0.03);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(same_seed_same_numbers),
        cmocka_unit_test(below_stays_below_and_reaches_everything),
        cmocka_unit_test(unit_and_normal_have_their_moments),
    };

    return cmocka_run_group_tests_name("rng", tests, NULL, NULL);
}
