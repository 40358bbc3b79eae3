/* test_classes.c - tables of classes, the cost of steps, and fewer requests of low classes under
 * pressure. No model.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/adapt/degrade.h"
#include "engine/classes.h"
#include "engine/loop/cost.h"
#include "seed.h"

#include <math.h>
#include <string.h>

/* About the costs of a model of 135M parameters on two cores. */
static quire_cost cost_known(void)
{
    return (quire_cost){ .step_us = 9000.0,
                         .several_us = 40000.0,
                         .prefill_row_us = 900.0,
                         .decode_row_us = 900.0,
                         .depth_row_us = 0.2,
                         .n_steps = 1000 };
}

/* ---- costs ---- */

/* From steps of all kinds with noise, and some that took ten times as long, to the coefficients. */
static void test_costs_are_learned(void **state)
{
    const quire_cost truth = cost_known();
    quire_rng rng = test_rng(65);
    quire_cost cost;

    (void)state;
    quire_cost_init(&cost);
    assert_false(quire_cost_is_known(&cost));
    for (int i = 0; i < 4000; i++) {
        quire_cost_step step = { 0 };
        const uint32_t n_decode = quire_rng_below(&rng, 32);
        double us;

        for (uint32_t j = 0; j < n_decode; j++) {
            quire_cost_add_decode(&step, quire_rng_below(&rng, 4000));
        }
        if (n_decode == 0 || quire_rng_below(&rng, 2) == 0) {
            quire_cost_add_prefill(&step, quire_rng_below(&rng, 4000),
                                   1 + quire_rng_below(&rng, 256));
        }
        us = quire_cost_step_us(&truth, &step) * (0.95 + 0.1 * quire_rng_unit(&rng));
        quire_cost_learn(&cost, &step, quire_rng_below(&rng, 50) == 0 ? us * 10.0 : us);
    }
    assert_true(quire_cost_is_known(&cost));
    for (int i = 0; i < 1000; i++) {
        quire_cost_step step = { 0 };
        double ratio;

        for (uint32_t j = quire_rng_below(&rng, 32); j > 0; j--) {
            quire_cost_add_decode(&step, quire_rng_below(&rng, 4000));
        }
        quire_cost_add_prefill(&step, quire_rng_below(&rng, 4000), 1 + quire_rng_below(&rng, 256));
        ratio = quire_cost_step_us(&cost, &step) / quire_cost_step_us(&truth, &step);
        assert_true(ratio > 0.9 && ratio < 1.1);
    }
    assert_true(cost.error < 0.2);
}

/* A cost that new steps do not measure is kept. A machine that becomes slower is noticed. */
static void test_costs_stay_and_follow(void **state)
{
    quire_cost truth = cost_known(), cost;
    quire_rng rng = test_rng(66);
    double prefill_row_us;

    (void)state;
    quire_cost_init(&cost);
    for (int i = 0; i < 600; i++) {
        quire_cost_step step = { 0 };

        quire_cost_add_prefill(&step, 0, 1 + quire_rng_below(&rng, 256));
        quire_cost_learn(&cost, &step, quire_cost_step_us(&truth, &step));
    }
    prefill_row_us = cost.prefill_row_us;
    assert_true(fabs(prefill_row_us / truth.prefill_row_us - 1.0) < 0.2);
    for (int i = 0; i < 20000; i++) {
        quire_cost_step step = { 0 };

        for (uint32_t j = 1 + quire_rng_below(&rng, 8); j > 0; j--) {
            quire_cost_add_decode(&step, 100);
        }
        quire_cost_learn(&cost, &step, quire_cost_step_us(&truth, &step));
    }
    assert_true(fabs(cost.prefill_row_us / prefill_row_us - 1.0) < 0.1);

    truth.step_us *= 3.0;
    truth.several_us *= 3.0;
    truth.decode_row_us *= 3.0;
    for (int i = 0; i < 1000; i++) {
        quire_cost_step step = { 0 };

        for (uint32_t j = 1 + quire_rng_below(&rng, 8); j > 0; j--) {
            quire_cost_add_decode(&step, 100);
        }
        quire_cost_learn(&cost, &step, quire_cost_step_us(&truth, &step));
        if (i > 900) {
            const double ratio =
                quire_cost_step_us(&cost, &step) / quire_cost_step_us(&truth, &step);

            assert_true(ratio > 0.9 && ratio < 1.1);
        }
    }
}

/* Decode with up to 8 rows, n times. */
static void learn_decode(quire_cost *cost, const quire_cost *truth, int n)
{
    for (int i = 0; i < n; i++) {
        quire_cost_step step = { 0 };

        for (int j = 0; j <= i % 8; j++) {
            quire_cost_add_decode(&step, 100);
        }
        quire_cost_learn(cost, &step, quire_cost_step_us(truth, &step));
    }
}

/* Costs survive when the sums behind them have decayed to their last bit, and one leap of the clock
 * does not decide the cost of a step. */
static void test_costs_outlast_silence_and_leaps(void **state)
{
    static const double leaps_us[] = { 1.0, 1e19 };
    const quire_cost truth = cost_known();
    quire_cost_step two = { 0 };
    quire_cost cost;

    (void)state;
    quire_cost_init(&cost);
    for (uint32_t i = 0; i < 600; i++) {
        quire_cost_step step = { 0 };

        quire_cost_add_prefill(&step, i % 500, 1 + i * 37 % 256);
        quire_cost_learn(&cost, &step, quire_cost_step_us(&truth, &step));
    }
    learn_decode(&cost, &truth, 160000); /* 0.995^160000 is no number any more */
    assert_true(quire_cost_is_known(&cost));
    assert_true(fabs(cost.prefill_row_us / truth.prefill_row_us - 1.0) < 0.1);
    quire_cost_add_decode(&two, 100);
    quire_cost_add_decode(&two, 100);
    for (size_t i = 0; i < sizeof leaps_us / sizeof leaps_us[0]; i++) {
        quire_cost_learn(&cost, &two, leaps_us[i]);
        learn_decode(&cost, &truth, 300);
        assert_true(fabs(quire_cost_step_us(&cost, &two) / quire_cost_step_us(&truth, &two) - 1.0) <
                    0.1);
    }
}

static void test_costs_of_nothing(void **state)
{
    const quire_cost known = cost_known();
    quire_cost cost;
    quire_cost_step step = { 0 };

    (void)state;
    quire_cost_init(&cost);
    quire_cost_learn(&cost, &step, 0.0); /* a clock that stands still */
    quire_cost_learn(&cost, &step, NAN);
    assert_int_equal(cost.n_steps, 0);
    assert_int_equal(quire_cost_prefill_fit(&cost, &step, 0, 7, 1.0), 7);
    assert_true(quire_cost_prefill_us(&cost, 0, 100, 10) == 0.0);
    assert_int_equal(quire_cost_prefill_fit(&known, &step, 0, 256, 1.0), 0);
    assert_int_equal(quire_cost_prefill_fit(&known, &step, 0, 256, 1e9), 256);
    assert_true(quire_cost_prefill_us(&known, 9, 9, 10) == 0.0);
    assert_true(quire_cost_prefill_us(&known, 1000, 1512, 256) >
                quire_cost_prefill_us(&known, 0, 512, 256));
}

/* ---- degradation ---- */

/* A high class that misses halves the lowest, again and again, then the next; then they grow. */
static void test_degrade(void **state)
{
    const uint32_t most[3] = { 8, 8, 8 }; /* realtime, standard, batch */
    quire_classes classes;
    quire_degrade d;
    uint32_t running[3], cuts[3] = { 0 };
    uint64_t now_us = 5;

    (void)state;
    quire_classes_default(&classes);
    quire_degrade_init(&d, &classes, 8, now_us);
    memcpy(running, most, sizeof running);
    for (int window = 0; window < 6; window++) {
        uint32_t cut;

        for (uint32_t i = 0; i < QUIRE_DEGRADE_STEPS_MIN; i++) {
            quire_degrade_step(&d, 0, 10.0, 20.0);
            quire_degrade_step(&d, 1, 0.0, 20.0); /* nothing promised */
        }
        assert_int_equal(quire_degrade_tick(&d, now_us, running), QUIRE_CLASSES_MAX); /* too soon */
        now_us += QUIRE_DEGRADE_WINDOW_US;
        cut = quire_degrade_tick(&d, now_us, running);
        assert_true(cut == (window < 3 ? 2u : 1u));
        cuts[cut]++;
        running[cut] = d.classes[cut].limit;
    }
    assert_int_equal(cuts[2], 3);
    assert_int_equal(d.classes[2].limit, 1);
    assert_int_equal(d.classes[1].limit, 1);
    assert_int_equal(d.classes[0].limit, 8);
    for (int window = 0; window < 7; window++) {
        quire_degrade_first(&d, 0, false);
        now_us += QUIRE_DEGRADE_WINDOW_US;
        assert_int_equal(quire_degrade_tick(&d, now_us, running), QUIRE_CLASSES_MAX);
        assert_int_equal(d.classes[2].limit, 2 + window);
    }
    quire_degrade_first(&d, 1, true); /* late first tokens of standard */
    now_us += QUIRE_DEGRADE_WINDOW_US;
    running[2] = 8;
    assert_int_equal(quire_degrade_tick(&d, now_us, running), 2);
    assert_int_equal(d.classes[2].limit, 4);
    quire_degrade_first(&d, 2, true); /* there is nobody below */
    now_us += QUIRE_DEGRADE_WINDOW_US;
    assert_int_equal(quire_degrade_tick(&d, now_us, running), QUIRE_CLASSES_MAX);
    assert_int_equal(d.classes[2].limit, 4);
}

/* ---- tables ---- */

static void test_tables(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_classes classes;

    (void)state;
    quire_classes_default(&classes);
    assert_int_equal(quire_classes_resolve(&classes, &err), QUIRE_OK);
    assert_int_equal(quire_classes_find(&classes, "standard"), QUIRE_CLASS_STANDARD);
    assert_int_equal(quire_classes_find(&classes, "batch"), 2);
    assert_int_equal(quire_classes_find(&classes, "other"), QUIRE_NOTFOUND);
    assert_int_equal(quire_classes_of_rank(&classes, 2), 0);
    assert_int_equal(quire_classes_of_rank(&classes, 7), QUIRE_CLASSES_MAX);
    classes.n = 0;
    assert_int_equal(quire_classes_resolve(&classes, &err), QUIRE_OK);
    assert_int_equal(classes.n, 1);
    assert_string_equal(classes.items[0].name, "standard");
}

static void refused(quire_classes *classes, const char *word)
{
    quire_error err = QUIRE_ERROR_INIT;

    assert_int_equal(quire_classes_resolve(classes, &err), QUIRE_INVAL);
    if (strstr(err.message, word) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.message, word);
    }
    quire_classes_default(classes);
}

static void test_tables_that_are_wrong(void **state)
{
    quire_classes classes;

    (void)state;
    quire_classes_default(&classes);
    classes.n = QUIRE_CLASSES_MAX + 1;
    refused(&classes, "at most 8");
    classes.items[1].name[0] = '\0';
    refused(&classes, "class 2");
    classes.items[1].name[0] = 'S';
    refused(&classes, "name");
    memset(classes.items[1].name, 'a', sizeof classes.items[1].name);
    refused(&classes, "name");
    memcpy(classes.items[2].name, "realtime", sizeof "realtime");
    refused(&classes, "two");
    classes.items[2].rank = 2;
    refused(&classes, "rank 2");
    classes.items[2].rank = QUIRE_RANKS_MAX;
    refused(&classes, "batch");
    classes.items[0].weight = 0;
    refused(&classes, "weight");
    classes.items[0].ttft_target_ms = -1.0;
    refused(&classes, "ttft");
    classes.items[0].tpot_target_ms = NAN;
    refused(&classes, "tpot");
    classes.items[0].stretch = 0.5;
    refused(&classes, "stretch");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_costs_are_learned),
        cmocka_unit_test(test_costs_stay_and_follow),
        cmocka_unit_test(test_costs_outlast_silence_and_leaps),
        cmocka_unit_test(test_costs_of_nothing),
        cmocka_unit_test(test_degrade),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_tables_that_are_wrong),
    };

    return cmocka_run_group_tests_name("classes", tests, NULL, NULL);
}
