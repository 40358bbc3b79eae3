/* test_attend_choice.c - where generated tokens read pages in the host's memory: the way that took
 * less time.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/attend_choice.h"

#define BYTES 1000000u

/* Steps of the choice's own, with these times of either way; returns those on the device. */
static uint32_t run(quire_attend_choice *c, uint32_t n, uint64_t device_us, uint64_t host_us)
{
    uint32_t n_device = 0;

    for (uint32_t i = 0; i < n; i++) {
        const quire_attend_place place = quire_attend_choose(c);

        n_device += place == QUIRE_ATTEND_DEVICE;
        quire_attend_measured(c, place, BYTES, place == QUIRE_ATTEND_DEVICE ? device_us : host_us);
    }
    return n_device;
}

static void test_cheaper(void **state)
{
    quire_attend_choice dear = { 0 };
    quire_attend_choice cheap = { 0 };

    (void)state;
    assert_int_equal(run(&dear, 2 * QUIRE_ATTEND_TRIES, 100, 200), QUIRE_ATTEND_TRIES);
    assert_int_equal(run(&dear, 20, 100, 200), 20);
    assert_int_equal(run(&cheap, 2 * QUIRE_ATTEND_TRIES, 200, 100), QUIRE_ATTEND_TRIES);
    assert_int_equal(run(&cheap, 20, 200, 100), 0);
}

/* The dearer way is measured again from time to time, once. */
static void test_again(void **state)
{
    quire_attend_choice c = { 0 };

    (void)state;
    (void)run(&c, 2 * QUIRE_ATTEND_TRIES, 100, 200);
    assert_int_equal(run(&c, 10 * (QUIRE_ATTEND_AGAIN + 1), 100, 200), 10 * QUIRE_ATTEND_AGAIN);
}

/* Loads change: so does the choice. */
static void test_change(void **state)
{
    quire_attend_choice c = { 0 };
    uint32_t n_device;

    (void)state;
    (void)run(&c, 1000, 100, 200);
    n_device = run(&c, 1000, 500, 200);
    assert_true(n_device < 100);
    n_device = run(&c, 10000, 100, 200);
    assert_true(n_device > 5000);
}

/* The choice compares times per byte: the pages of two requests take twice as long as those of one.
 */
static void test_bytes(void **state)
{
    quire_attend_choice c = { 0 };

    (void)state;
    for (uint32_t i = 0; i < QUIRE_ATTEND_TRIES; i++) {
        quire_attend_measured(&c, QUIRE_ATTEND_DEVICE, 2 * BYTES, 150);
        quire_attend_measured(&c, QUIRE_ATTEND_HOST, BYTES, 100);
    }
    assert_int_equal(quire_attend_choose(&c), QUIRE_ATTEND_DEVICE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cheaper),
        cmocka_unit_test(test_again),
        cmocka_unit_test(test_change),
        cmocka_unit_test(test_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
