/* test_team_size.c - when a team runs with fewer members, and when with all again.
 *
 * SPDX-License-Identifier: MIT */
#include "base/team_size.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MS UINT64_C(1000000)

/* A run of time_ns that had `processors` of them; returns its members. */
static uint32_t run(quire_team_sizer *s, uint64_t *now_ns, uint64_t time_ns, double processors)
{
    const uint32_t n = quire_team_sizer_begin(s, *now_ns);

    *now_ns += time_ns;
    quire_team_sizer_end(s, *now_ns, time_ns, (uint64_t)((double)time_ns * processors));
    return n;
}

static void test_good_runs_keep_all(void **state)
{
    quire_team_sizer s;
    uint64_t now_ns = 0;

    (void)state;
    quire_team_sizer_init(&s, 4);
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(run(&s, &now_ns, MS, 2.5), 4);
    }
}

static void test_a_lost_run_pauses(void **state)
{
    quire_team_sizer s;
    uint64_t now_ns = 7 * MS;

    (void)state;
    quire_team_sizer_init(&s, 2);
    assert_int_equal(run(&s, &now_ns, 5 * MS, 0.4), 2);
    assert_int_equal(run(&s, &now_ns, 5 * MS, 1.0), 1);
    assert_int_equal(run(&s, &now_ns, 5 * MS, 1.0), 1);
    /* QUIRE_TEAM_PATIENCE_FIRST times 5 ms are over. */
    assert_int_equal(run(&s, &now_ns, 5 * MS, 1.9), 2);
    assert_int_equal(run(&s, &now_ns, 5 * MS, 1.9), 2);
}

/* Many short runs are judged by their sum: one that took long for its size does not matter. */
static void test_short_runs_are_judged_together(void **state)
{
    quire_team_sizer s;
    uint64_t now_ns = 0;

    (void)state;
    quire_team_sizer_init(&s, 2);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(run(&s, &now_ns, QUIRE_TEAM_WINDOW_NS / 20, i % 4 == 0 ? 0.5 : 1.9), 2);
    }
}

static void test_as_many_as_had_processors(void **state)
{
    quire_team_sizer s;
    uint64_t now_ns = 0;

    (void)state;
    quire_team_sizer_init(&s, 16);
    assert_int_equal(run(&s, &now_ns, 4 * MS, 6.8), 16);
    assert_int_equal(run(&s, &now_ns, MS, 6.5), 7);
    quire_team_sizer_init(&s, 16);
    assert_int_equal(run(&s, &now_ns, 4 * MS, 0.1), 16);
    assert_int_equal(run(&s, &now_ns, MS, 1.0), 1);
}

/* Trials that fail in a row come at longer and longer distances, up to a bound. */
static void test_patience_grows_and_is_forgotten(void **state)
{
    quire_team_sizer s;
    uint64_t now_ns = 0;
    uint64_t paused_ns = 0;

    (void)state;
    quire_team_sizer_init(&s, 2);
    for (uint32_t patience = QUIRE_TEAM_PATIENCE_FIRST, i = 0; i < 10; i++) {
        const uint64_t began_ns = now_ns + 4 * MS;

        assert_int_equal(run(&s, &now_ns, 4 * MS, 0.5), 2);
        while (s.retry_ns > now_ns) {
            assert_int_equal(run(&s, &now_ns, MS, 1.0), 1);
        }
        paused_ns = now_ns - began_ns;
        assert_int_equal(paused_ns, 4 * MS * patience);
        patience = patience < QUIRE_TEAM_PATIENCE_MAX ? 2 * patience : patience;
    }
    assert_int_equal(paused_ns, 4 * MS * QUIRE_TEAM_PATIENCE_MAX);
    assert_int_equal(run(&s, &now_ns, 4 * MS, 1.9), 2);
    assert_int_equal(run(&s, &now_ns, 4 * MS, 0.5), 2);
    assert_int_equal(s.retry_ns, now_ns + 4 * MS * QUIRE_TEAM_PATIENCE_FIRST);
    while (s.retry_ns > now_ns) {
        (void)run(&s, &now_ns, MS, 1.0);
    }
    assert_int_equal(run(&s, &now_ns, 1000000 * MS, 0.5), 2);
    assert_int_equal(s.retry_ns, now_ns + QUIRE_TEAM_PAUSE_NS_MAX);
}

/* One thread without a processor is proof of a busy machine: the team makes no trial. */
static void test_a_busy_machine_is_not_tried(void **state)
{
    quire_team_sizer s;
    uint64_t now_ns = 0;

    (void)state;
    quire_team_sizer_init(&s, 2);
    assert_int_equal(run(&s, &now_ns, 4 * MS, 0.5), 2);
    for (uint32_t i = 0; i < 1000; i++) {
        assert_int_equal(run(&s, &now_ns, MS, 0.6), 1);
    }
    for (uint32_t i = 0; s.n_members == 1; i++) {
        assert_true(i < 20);
        (void)run(&s, &now_ns, MS, 1.0);
        (void)quire_team_sizer_begin(&s, now_ns);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_runs_keep_all),
        cmocka_unit_test(test_a_lost_run_pauses),
        cmocka_unit_test(test_short_runs_are_judged_together),
        cmocka_unit_test(test_as_many_as_had_processors),
        cmocka_unit_test(test_patience_grows_and_is_forgotten),
        cmocka_unit_test(test_a_busy_machine_is_not_tried),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
