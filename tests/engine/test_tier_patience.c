/* test_tier_patience.c - the wait for a page: shared stores, local ones, short texts.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/loop/tier_patience.h"

#define MS 1000.0

static double wait_ms(double local_ms, double page_ms, double compute_ms)
{
    const quire_tier_patience p = { .wait_us = 50 * MS,
                                    .local_us = local_ms * MS,
                                    .page_us = page_ms * MS,
                                    .compute_us = compute_ms * MS };

    return quire_tier_patience_us(&p) / MS;
}

static void test_shared_stores_wait_shortly(void **state)
{
    (void)state;
    assert_float_equal(wait_ms(0, 1, 2000), 50, 1e-9);
    assert_float_equal(wait_ms(0, 30, 2000), 120, 1e-9); /* four mean times */
    assert_float_equal(wait_ms(0, 1, 0), 50, 1e-9);      /* the cost is not known yet */
}

static void test_local_stores_wait_for_a_share_of_computing(void **state)
{
    (void)state;
    assert_float_equal(wait_ms(1000, 1, 2000), 500, 1e-9);
    assert_float_equal(wait_ms(1000, 1, 60000), 1000, 1e-9); /* the bound */
    assert_float_equal(wait_ms(1000, 1, 100), 50, 1e-9);
    assert_float_equal(wait_ms(1000, 1, 0), 50, 1e-9);
}

static void test_nobody_waits_longer_than_computing(void **state)
{
    (void)state;
    assert_float_equal(wait_ms(0, 1, 20), 20, 1e-9);
    assert_float_equal(wait_ms(1000, 30, 70), 70, 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_stores_wait_shortly),
        cmocka_unit_test(test_local_stores_wait_for_a_share_of_computing),
        cmocka_unit_test(test_nobody_waits_longer_than_computing),
    };

    return cmocka_run_group_tests_name("tier_patience", tests, NULL, NULL);
}
