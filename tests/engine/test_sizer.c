/* test_sizer.c - the controller of the pinned region: bounds under random demand, convergence, and
 * a stable size afterwards.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/num.h"
#include "base/rng.h"
#include "engine/adapt/sizer.h"
#include "quire/status.h"
#include "seed.h"

#define MIB       ((uint64_t)1 << 20)
#define STEP      (2 * MIB)
#define TOTAL     (1000 * MIB)
#define SECOND_US 1000000u

/* A model of a cache of two regions, with the sizer and its counts. */
typedef struct model {
    quire_sizer sizer;
    quire_sizer_sample sample;
    uint32_t n_grown, n_shrunk;
} model;

static model model_begin(uint64_t budget, uint64_t floor, uint64_t ceiling, uint64_t dynamic_floor)
{
    quire_sizer_opts opts = QUIRE_SIZER_OPTS_INIT;
    model m = { .sample = { .now_us = 5 * SECOND_US,
                            .budget_bytes = budget,
                            .dynamic_bytes = TOTAL - budget } };

    opts.step_bytes = STEP;
    opts.floor_bytes = floor;
    opts.ceiling_bytes = ceiling;
    opts.dynamic_floor_bytes = dynamic_floor;
    assert_int_equal(quire_sizer_init(&m.sizer, &opts), QUIRE_OK);
    return m;
}

/* One second with this need. Carries the sizer's decision out. */
static quire_sizer_decision tick(model *m, uint64_t need)
{
    quire_sizer_decision d;

    m->sample.now_us += SECOND_US;
    m->sample.need_bytes = need;
    d = quire_sizer_decide(&m->sizer, &m->sample);
    m->n_grown += d.budget_bytes > m->sample.budget_bytes;
    m->n_shrunk += d.budget_bytes < m->sample.budget_bytes;
    m->sample.dynamic_bytes = TOTAL - d.budget_bytes;
    m->sample.budget_bytes = d.budget_bytes;
    return d;
}

static void run(model *m, uint64_t need, uint32_t seconds)
{
    for (uint32_t i = 0; i < seconds; i++) {
        (void)tick(m, need);
    }
}

static void test_a_burst_makes_it_grow_and_quiet_makes_it_shrink(void **state)
{
    model m = model_begin(10 * MIB, 10 * MIB, 400 * MIB, 250 * MIB);

    (void)state;
    run(&m, 100 * MIB, 60);
    assert_in_range(m.sample.budget_bytes, 100 * MIB, 100 * MIB + STEP);
    assert_int_equal(m.n_grown, 45); /* a step a second, and then none */
    assert_int_equal(m.n_shrunk, 0);

    run(&m, 0, 60 * 60);
    assert_int_equal(m.sample.budget_bytes, 10 * MIB);
    assert_int_equal(m.n_grown, 45);
    assert_int_equal(m.n_shrunk, 45);
}

static void test_a_short_burst_does_not_move_it(void **state)
{
    model m = model_begin(50 * MIB, 10 * MIB, 400 * MIB, 250 * MIB);

    (void)state;
    run(&m, 45 * MIB, 600);
    run(&m, 300 * MIB, 3); /* at most two of 256 slots */
    run(&m, 45 * MIB, 600);
    assert_int_equal(m.n_grown, 0);
    assert_int_equal(m.sample.budget_bytes, 50 * MIB);
}

/* With any constant need the region's size settles, and then does not move. */
static void test_it_settles_and_rests(void **state)
{
    quire_rng rng = test_rng(1);

    (void)state;
    for (uint32_t i = 0; i < 30; i++) {
        const uint64_t begin = 10 * MIB + quire_rng_below(&rng, 390 * MIB);
        const uint64_t need = quire_rng_below(&rng, 500 * MIB);
        model m = model_begin(begin, 10 * MIB, 400 * MIB, 250 * MIB);
        uint32_t n_moves;

        run(&m, need, 6500);
        n_moves = m.n_grown + m.n_shrunk;
        if (m.n_grown > 0 && m.n_shrunk > 0) {
            fail_msg("it swings: %u up, %u down", m.n_grown, m.n_shrunk);
        }
        run(&m, need, 600);
        assert_int_equal(m.n_grown + m.n_shrunk, n_moves);
        assert_true(m.sample.budget_bytes >= quire_min_u64(need, 400 * MIB));
    }
}

/* A need that swings faster than the window: the region keeps the size for the upper end of the
 * swing. */
static void test_waves_do_not_move_it(void **state)
{
    model m = model_begin(100 * MIB, 10 * MIB, 400 * MIB, 250 * MIB);

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        run(&m, 100 * MIB, 30);
        run(&m, 20 * MIB, 90);
    }
    assert_int_equal(m.n_grown, 0);
    assert_int_equal(m.n_shrunk, 0);
    for (uint32_t i = 0; i < 20; i++) {
        run(&m, 200 * MIB, 30);
        run(&m, 20 * MIB, 90);
    }
    assert_int_equal(m.n_shrunk, 0);
    assert_in_range(m.sample.budget_bytes, 200 * MIB, 200 * MIB + STEP);
}

static void test_what_bounds_it_is_said(void **state)
{
    model m = model_begin(100 * MIB, 100 * MIB, 104 * MIB, 250 * MIB);
    quire_sizer_decision d = tick(&m, 300 * MIB);

    (void)state;
    assert_int_equal(d.reason, QUIRE_SIZER_NEED);
    (void)tick(&m, 300 * MIB);
    assert_int_equal(tick(&m, 300 * MIB).reason, QUIRE_SIZER_AT_CEILING);
    assert_int_equal(m.sample.budget_bytes, 104 * MIB);

    m = model_begin(100 * MIB, 100 * MIB, 400 * MIB, 899 * MIB);
    assert_int_equal(tick(&m, 300 * MIB).budget_bytes, 101 * MIB); /* the last, shorter step */
    assert_int_equal(tick(&m, 300 * MIB).reason, QUIRE_SIZER_DYNAMIC_FLOOR);

    m = model_begin(100 * MIB, 100 * MIB, 400 * MIB, 250 * MIB);
    m.sample.dynamic_held_bytes = 900 * MIB;
    assert_int_equal(tick(&m, 300 * MIB).reason, QUIRE_SIZER_DYNAMIC_HELD);

    m = model_begin(100 * MIB, 100 * MIB, 400 * MIB, 250 * MIB);
    assert_int_equal(tick(&m, 0).reason, QUIRE_SIZER_AT_FLOOR);

    m = model_begin(100 * MIB, 10 * MIB, 400 * MIB, 250 * MIB);
    m.sample.held_bytes = 100 * MIB;
    assert_int_equal(tick(&m, 0).reason, QUIRE_SIZER_HELD);
    m.sample.held_bytes = 0;
    assert_int_equal(tick(&m, 0).reason, QUIRE_SIZER_SPARE);
    assert_int_equal(tick(&m, 0).reason, QUIRE_SIZER_CALM);
}

static void test_wrong_bounds_are_mended(void **state)
{
    model m = model_begin(500 * MIB, 10 * MIB, 400 * MIB, 250 * MIB);

    (void)state;
    assert_int_equal(tick(&m, 500 * MIB).reason, QUIRE_SIZER_CEILING);
    run(&m, 500 * MIB, 60);
    assert_int_equal(m.sample.budget_bytes, 400 * MIB);

    m = model_begin(5 * MIB, 10 * MIB, 400 * MIB, 250 * MIB);
    assert_int_equal(tick(&m, 0).reason, QUIRE_SIZER_FLOOR);
    run(&m, 0, 60);
    assert_int_equal(m.sample.budget_bytes, 10 * MIB);

    m = model_begin(300 * MIB, 10 * MIB, 400 * MIB, 800 * MIB);
    assert_int_equal(tick(&m, 300 * MIB).reason, QUIRE_SIZER_DYNAMIC_SHORT);
    run(&m, 300 * MIB, 60);
    assert_int_equal(m.sample.budget_bytes, 200 * MIB);
}

static void test_a_refused_change_is_not_tried_again_at_once(void **state)
{
    model m = model_begin(50 * MIB, 10 * MIB, 400 * MIB, 250 * MIB);

    (void)state;
    m.sample.now_us += SECOND_US;
    m.sample.need_bytes = 100 * MIB;
    assert_true(quire_sizer_decide(&m.sizer, &m.sample).budget_bytes > 50 * MIB);
    quire_sizer_undo(&m.sizer, m.sample.now_us);
    for (uint32_t i = 1; i < 30; i++) {
        assert_int_equal(tick(&m, 100 * MIB).reason, QUIRE_SIZER_REFUSED);
    }
    assert_int_equal(tick(&m, 100 * MIB).reason, QUIRE_SIZER_NEED);
}

static void test_options(void **state)
{
    quire_sizer_opts opts = QUIRE_SIZER_OPTS_INIT;
    quire_sizer sizer;

    (void)state;
    assert_int_equal(quire_sizer_init(&sizer, &opts), QUIRE_OK);
    opts.floor_bytes = 1;
    assert_int_equal(quire_sizer_init(&sizer, &opts), QUIRE_INVAL);
    opts.ceiling_bytes = 1;
    opts.step_bytes = 0;
    assert_int_equal(quire_sizer_init(&sizer, &opts), QUIRE_INVAL);
    opts.step_bytes = 1;
    opts.slack_share = -0.5;
    assert_int_equal(quire_sizer_init(&sizer, &opts), QUIRE_INVAL);
    assert_string_equal(quire_sizer_reason_text(QUIRE_SIZER_NEED), "the high classes need more");
}

/* Random demand, random bounds, random holdings, refused moves: no decision exceeds a bound. */
static void random_demand(quire_rng *rng)
{
    const uint64_t floor = quire_rng_below(rng, 200 * MIB);
    const uint64_t ceiling = floor + quire_rng_below(rng, 600 * MIB);
    const uint64_t dynamic_floor = quire_rng_below(rng, 500 * MIB);
    model m = model_begin(quire_rng_below(rng, TOTAL), floor, ceiling, dynamic_floor);
    uint64_t need = 0;

    for (uint32_t i = 0; i < 2000; i++) {
        const quire_sizer_sample before = m.sample;
        uint64_t now;

        if (quire_rng_below(rng, 20) == 0) {
            need = quire_rng_below(rng, 2 * TOTAL);
        }
        m.sample.held_bytes = quire_rng_next(rng) % (m.sample.budget_bytes + 1);
        m.sample.dynamic_held_bytes = quire_rng_next(rng) % (m.sample.dynamic_bytes + 1);
        m.sample.now_us += quire_rng_below(rng, 60 * SECOND_US);
        now = tick(&m, need).budget_bytes;
        if (now > before.budget_bytes) {
            const uint64_t dynamic = TOTAL - now;

            if (now - before.budget_bytes > STEP || now > ceiling || dynamic < dynamic_floor ||
                dynamic < m.sample.dynamic_held_bytes) {
                fail_msg("grown beyond a bound in round %u", i);
            }
        } else if (now < before.budget_bytes &&
                   (before.budget_bytes - now > STEP || now < floor || now < m.sample.held_bytes)) {
            fail_msg("shrunk beyond a bound in round %u", i);
        }
        if (now != before.budget_bytes && quire_rng_below(rng, 10) == 0) {
            quire_sizer_undo(&m.sizer, m.sample.now_us);
            m.sample.budget_bytes = before.budget_bytes;
            m.sample.dynamic_bytes = before.dynamic_bytes;
        }
    }
}

static void test_random_demand_stays_within_bounds(void **state)
{
    quire_rng rng = test_rng(1);

    (void)state;
    for (uint32_t i = 0; i < 100; i++) {
        random_demand(&rng);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_burst_makes_it_grow_and_quiet_makes_it_shrink),
        cmocka_unit_test(test_a_short_burst_does_not_move_it),
        cmocka_unit_test(test_it_settles_and_rests),
        cmocka_unit_test(test_waves_do_not_move_it),
        cmocka_unit_test(test_what_bounds_it_is_said),
        cmocka_unit_test(test_wrong_bounds_are_mended),
        cmocka_unit_test(test_a_refused_change_is_not_tried_again_at_once),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_random_demand_stays_within_bounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
