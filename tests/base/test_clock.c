/* test_clock.c - deadlines, and condition variables that keep to them.
 *
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define NS_PER_S  UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)

static uint64_t ns_of(struct timespec t)
{
    assert_in_range(t.tv_nsec, 0, NS_PER_S - 1);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static void test_timespec(void **state)
{
    const uint64_t moments[] = { 0,
                                 1,
                                 NS_PER_S - 1,
                                 NS_PER_S,
                                 NS_PER_S + 1,
                                 UINT64_C(4102444800) * NS_PER_S + 999999999,
                                 UINT64_MAX };

    (void)state;
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++) {
        const struct timespec t = quire_timespec(moments[i]);

        assert_int_equal(t.tv_sec, moments[i] / NS_PER_S);
        assert_int_equal(t.tv_nsec, moments[i] % NS_PER_S);
    }
}

static void test_deadline(void **state)
{
    const uint32_t waits_ms[] = { 0, 1, 999, 1000, 1001, UINT32_MAX };

    (void)state;
    for (size_t i = 0; i < sizeof waits_ms / sizeof *waits_ms; i++) {
        const uint64_t wait_ns = waits_ms[i] * NS_PER_MS;
        const uint64_t before_ns = quire_clock_ns();
        const uint64_t end_ns = ns_of(quire_deadline(waits_ms[i]));

        assert_in_range(end_ns, before_ns + wait_ns, quire_clock_ns() + wait_ns);
    }
}

/* A condition variable that goes by the wall clock would end this wait at once, before the
 * deadline. */
static void test_wait_ends_at_its_deadline(void **state)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t never;
    struct timespec deadline;
    int rc = 0;

    (void)state;
    assert_int_equal(quire_cond_init(&never), QUIRE_OK);
    (void)pthread_mutex_lock(&lock);
    deadline = quire_deadline(20);
    while (rc == 0) {
        rc = pthread_cond_timedwait(&never, &lock, &deadline);
    }
    assert_int_equal(rc, ETIMEDOUT);
    assert_true(quire_clock_ns() >= ns_of(deadline));
    (void)pthread_mutex_unlock(&lock);
    assert_int_equal(pthread_cond_destroy(&never), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timespec),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_wait_ends_at_its_deadline),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
