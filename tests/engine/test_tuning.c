/* test_tuning.c - the engine measures its last hour: suggests, applies, says so, and keeps serving.
 * It also says when low classes have to do with less.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/adapt/adapt_object.h"
#include "engine/engine_halves.h"
#include "engine/pins.h"
#include "engine_fixture.h"

#include <stdatomic.h>
#include <string.h>

#define N_CTX    512u
#define SECOND   1000000u
#define HOUR_US  ((uint64_t)3600 * SECOND)
#define N_PROMPT 140u

static _Atomic uint64_t now_us;

/* arch: with recurrent layers; NULL = the plain model. */
static engine_bench bench_of(const char *arch, size_t recent_bytes)
{
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;

    opts.cache_ttl_us = HOUR_US;
    opts.recent_bytes = recent_bytes;
    opts.clock_us = hands_of;
    opts.clock_ctx = &now_us;
    atomic_store(&now_us, 1000u * (uint64_t)SECOND);
    return arch != NULL ? bench_recurrent(arch, &opts, &runtime) : bench_tiny(&opts, &runtime);
}

static engine_bench bench_begin(size_t recent_bytes)
{
    return bench_of(NULL, recent_bytes);
}

/* n requests a second apart that ask for three texts in turns. */
static void serve(const engine_bench *b, uint32_t n)
{
    int32_t tokens[N_PROMPT];

    for (uint32_t i = 0; i < n; i++) {
        const quire_request_params params = params_greedy(tokens, N_PROMPT, 1);

        tokens_make(tokens, N_PROMPT, 1 + i % 3);
        finish_as(submit(b, &params), QUIRE_FINISH_LENGTH);
        atomic_fetch_add(&now_us, SECOND);
    }
}

/* The change of a knob; NULL = none. */
static const quire_tune_change *change_of(const quire_engine_tuning *tuning, quire_tune_knob knob,
                                          bool *is_applied)
{
    for (uint32_t i = 0; i < tuning->n_changes; i++) {
        if (tuning->changes[i].knob == knob) {
            *is_applied = tuning->is_applied[i];
            return &tuning->changes[i];
        }
    }
    return NULL;
}

static void test_a_ttl_that_is_too_long_becomes_shorter(void **state)
{
    quire_engine_tune_opts opts = { .bounds = QUIRE_TUNE_BOUNDS_INIT, .is_applied = true };
    engine_bench b = bench_begin((size_t)1 << 20);
    const quire_tune_change *change;
    quire_engine_tuning tuning, last;
    bool is_applied = false;

    (void)state;
    serve(&b, 150);
    assert_int_equal(quire_engine_tune(b.engine, &opts, &tuning), QUIRE_OK);
    assert_int_equal(tuning.facts.requests, 150);
    assert_int_equal(tuning.settings.ttl_us, HOUR_US);
    assert_null(change_of(&tuning, QUIRE_TUNE_TTL, &is_applied)); /* patience */
    assert_int_equal(quire_engine_tune(b.engine, &opts, &tuning), QUIRE_OK);
    change = change_of(&tuning, QUIRE_TUNE_TTL, &is_applied);
    assert_non_null(change);
    assert_true(is_applied);
    assert_true(change->to < (double)HOUR_US);
    assert_int_equal(events_of(&b, QUIRE_EVENT_TUNE_APPLIED, "cache_ttl 3600 s -> "), 1);
    quire_engine_tuning_get(b.engine, &last);
    assert_int_equal(last.n_changes, tuning.n_changes);
    assert_int_equal(last.time_us, tuning.time_us);
    serve(&b, 5);
    assert_int_equal(quire_engine_tune(b.engine, &opts, &last), QUIRE_OK);
    assert_int_equal(last.settings.ttl_us, (uint64_t)change->to);
    validate(b.engine);
    bench_close(&b);
}

static void test_a_suggestion_changes_nothing_and_is_said_once(void **state)
{
    const quire_engine_tune_opts opts = { .bounds = QUIRE_TUNE_BOUNDS_INIT };
    engine_bench b = bench_begin((size_t)1 << 20);
    quire_engine_tuning tuning;

    (void)state;
    serve(&b, 150);
    for (uint32_t i = 0; i < 5; i++) {
        const quire_tune_change *change;
        bool is_applied = true;

        assert_int_equal(quire_engine_tune(b.engine, &opts, &tuning), QUIRE_OK);
        assert_int_equal(tuning.settings.ttl_us, HOUR_US);
        change = change_of(&tuning, QUIRE_TUNE_TTL, &is_applied);
        if ((i + 1) % QUIRE_TUNE_PATIENCE == 0) {
            assert_non_null(change);
            assert_true(change->to < (double)HOUR_US);
            assert_false(is_applied);
        } else {
            assert_null(change);
        }
    }
    assert_int_equal(events_of(&b, QUIRE_EVENT_TUNE_SUGGESTED, "cache_ttl 3600 s -> "), 1);
    assert_int_equal(events_of(&b, QUIRE_EVENT_TUNE_APPLIED, ""), 0);
    bench_close(&b);
}

/* A text of 140 tokens leaves a state at 128: two of its three blocks are hit again. The curve of
 * plain blocks would say three. */
static void test_states_are_measured(void **state)
{
    const quire_engine_tune_opts opts = { .bounds = QUIRE_TUNE_BOUNDS_INIT };
    engine_bench b = bench_of("lfm2", (size_t)1 << 20);
    quire_engine_tuning tuning;

    (void)state;
    serve(&b, 30);
    assert_int_equal(quire_engine_tune(b.engine, &opts, &tuning), QUIRE_OK);
    assert_int_equal(tuning.facts.requests, 30);
    assert_true(tuning.facts.hit_rate_double == 27.0 * 2.0 / (30.0 * 3.0));
    assert_true(tuning.facts.hit_rate_infinite == tuning.facts.hit_rate_double);
    bench_close(&b);
}

static void test_too_little_is_known(void **state)
{
    const quire_engine_tune_opts opts = { .bounds = QUIRE_TUNE_BOUNDS_INIT, .is_applied = true };
    engine_bench b = bench_begin((size_t)1 << 20);
    quire_engine_tuning tuning;

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        serve(&b, 2);
        assert_int_equal(quire_engine_tune(b.engine, &opts, &tuning), QUIRE_OK);
        assert_int_equal(tuning.n_changes, 0);
    }
    bench_close(&b);
    b = bench_begin(0); /* it remembers nothing */
    assert_int_equal(quire_engine_tune(b.engine, &opts, NULL), QUIRE_AGAIN);
    quire_engine_tuning_get(b.engine, &tuning);
    assert_int_equal(tuning.time_us, 0);
    bench_close(&b);
}

#define PAGE 64u

/* An engine with a pinned region of one page of 16, and a pin of n tokens in the dynamic region. */
static engine_bench bench_pinned(uint32_t n)
{
    const quire_runtime_opts runtime = bench_runtime_opts(16 * PAGE, 4);
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;
    int32_t tokens[16 * PAGE];
    const quire_engine_pin_params params = {
        .name = "pin", .tokens = tokens, .n_tokens = n, .class_index = 1
    };
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin pin;
    engine_bench b;

    quire_classes_default(&opts.classes);
    opts.classes.items[0].is_pinned = true;
    opts.pinned_bytes = tiny_page_bytes(PAGE);
    b = bench_tiny(&opts, &runtime);
    tokens_make(tokens, n, 1);
    assert_int_equal(quire_engine_pin_create(b.engine, &params, &pin, NULL, &err), QUIRE_OK);
    return b;
}

/* Tune to a pinned region of n_pages. Returns the pages that it has then. */
static uint64_t pages_tuned(const engine_bench *b, uint32_t n_pages)
{
    const quire_engine_tuning tuning = { .changes = { { .knob = QUIRE_TUNE_PINNED_SHARE,
                                                        .to = (n_pages + 0.5) / 16.0 } },
                                         .is_applied = { true },
                                         .n_changes = 1 };

    quire_adapt_tune_follow(b->engine->adapt, &tuning);
    return stats_now(b->engine).memory.pinned_budget_bytes / tiny_page_bytes(PAGE);
}

/* Pins have at most half of the dynamic region, so that requests can compute in the rest: tuning
 * takes nothing of this rest. */
static void test_pins_keep_half_of_the_dynamic_region(void **state)
{
    engine_bench b = bench_pinned(6 * PAGE);

    (void)state;
    assert_int_equal(pages_tuned(&b, 8), 1); /* 8 pages would be left for 6 of a pin */
    assert_int_equal(pages_tuned(&b, 5), 1);
    assert_int_equal(pages_tuned(&b, 4), 4);
    assert_int_equal(pages_tuned(&b, 2), 2);
    validate(b.engine);
    bench_close(&b);
}

typedef struct limit {
    quire_engine *engine;
    uint32_t value;
} limit;

static void limit_set(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    const limit *l = ctx;

    (void)cache;
    (void)tree;
    l->engine->adapt->degrade.classes[0].limit = l->value;
    quire_adapt_upkeep(l->engine->adapt); /* here and now: left alone, limits grow */
}

static void test_degradation_is_said(void **state)
{
    static const uint32_t limits[] = { 2, 3, 1, 2, 4 }; /* of 4 */
    engine_bench b = bench_begin(0);

    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        limit l = { b.engine, limits[i] };

        assert_int_equal(engine_call(b.engine, limit_set, &l), QUIRE_OK);
    }
    assert_int_equal(events_of(&b, QUIRE_EVENT_DEGRADED, "class standard: "), 2);
    assert_int_equal(events_of(&b, QUIRE_EVENT_RECOVERED, "class standard: 4 may run"), 1);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_ttl_that_is_too_long_becomes_shorter),
        cmocka_unit_test(test_a_suggestion_changes_nothing_and_is_said_once),
        cmocka_unit_test(test_states_are_measured),
        cmocka_unit_test(test_too_little_is_known),
        cmocka_unit_test(test_pins_keep_half_of_the_dynamic_region),
        cmocka_unit_test(test_degradation_is_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
