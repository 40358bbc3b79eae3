/* test_sampler_state.c - what samplers keep from choice to choice.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "sampler_kit.h"
#include "seed.h"

#define LIKELY 6u

static const quire_sampler_opts usual = QUIRE_SAMPLER_OPTS_INIT;

/* A few tokens are likely, others in each step. */
static void logits_next(quire_rng *rng)
{
    logits_random(rng);
    for (uint32_t i = 0; i < LIKELY; i++) {
        logits[100 + i] = 10.0f + 0.3f * logits[100 + i];
    }
}

/* Texts that surprise less than the target stay random. (mu of mirostat 1 is beyond the integers
 * after some hundred tokens.) */
static void test_mirostat_below_its_target(void **state)
{
    quire_sampler_opts opts = usual;
    quire_rng rng = test_rng(60);

    (void)state;
    for (opts.mirostat = 1; opts.mirostat <= 2; opts.mirostat++) {
        quire_sampler *s = sampler(model_spm, &opts);
        uint32_t n_other = 0;

        for (int step = 0; step < 1000; step++) {
            logits_next(&rng);
            n_other += quire_sampler_pick(s, logits) != likeliest() && step >= 800;
        }
        assert_in_range(n_other, 20, 190);
        quire_sampler_destroy(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mirostat_below_its_target),
    };

    return cmocka_run_group_tests(tests, sampler_setup, sampler_teardown);
}
