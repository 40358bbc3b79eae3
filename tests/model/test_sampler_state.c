/* test_sampler_state.c - what samplers keep from choice to choice, and what they share.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/sampler_internal.h"
#include "sampler_kit.h"
#include "seed.h"

#define STEPS  60u
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

/* ---- DRY ---- */

static quire_sampler_opts dry_opts(void)
{
    quire_sampler_opts opts = usual;

    opts.dry_multiplier = 3.0f;
    opts.dry_tokens = 50;
    opts.seed = 7;
    return opts;
}

static void dry_prompt(quire_sampler *s, int32_t first)
{
    int32_t prompt[40];

    for (int32_t i = 0; i < 40; i++) {
        prompt[i] = 100 + (first + i) % (int32_t)LIKELY;
    }
    quire_sampler_prompt(s, prompt, 40);
}

/* What the breakers are made into is there once for all samplers with the same options: it may be
 * as large as the vocabulary for each breaker. */
static void test_dry_is_shared(void **state)
{
    const quire_sampler_opts opts = dry_opts();
    quire_sampler_opts other_opts = opts;
    quire_sampler *a = sampler(model_spm, &opts), *other, *b;
    const quire_dry_shared *shared = a->dry.shared;

    (void)state;
    assert_non_null(shared);
    other_opts.dry_base = 1.5f;
    other = sampler(model_spm, &other_opts);
    b = sampler(model_spm, &opts);
    assert_ptr_equal(b->dry.shared, shared);
    assert_ptr_not_equal(other->dry.shared, shared);
    quire_sampler_destroy(other);
    quire_sampler_destroy(a);
    quire_sampler_destroy(b);
    a = sampler(model_spm, &opts); /* the last one is kept */
    assert_ptr_equal(a->dry.shared, shared);
    quire_sampler_destroy(a);
}

/* Samplers with the same options and other texts do not see each other's tokens. */
static void test_dry_texts_are_apart(void **state)
{
    const quire_sampler_opts opts = dry_opts();
    int32_t alone[STEPS];
    quire_sampler *a, *b;
    quire_rng rng = test_rng(61);

    (void)state;
    a = sampler(model_spm, &opts);
    dry_prompt(a, 0);
    for (uint32_t step = 0; step < STEPS; step++) {
        logits_next(&rng);
        alone[step] = quire_sampler_pick(a, logits);
    }
    quire_sampler_destroy(a);
    rng = test_rng(61);
    a = sampler(model_spm, &opts);
    b = sampler(model_spm, &opts);
    dry_prompt(a, 0);
    dry_prompt(b, 3);
    for (uint32_t step = 0; step < STEPS; step++) {
        logits_next(&rng);
        (void)quire_sampler_pick(b, logits);
        assert_int_equal(quire_sampler_pick(a, logits), alone[step]);
    }
    quire_sampler_destroy(a);
    quire_sampler_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mirostat_below_its_target),
        cmocka_unit_test(test_dry_is_shared),
        cmocka_unit_test(test_dry_texts_are_apart),
    };

    return cmocka_run_group_tests(tests, sampler_setup, sampler_teardown);
}
