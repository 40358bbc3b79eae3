/* test_pins.c - pins of the engine: computed or adopted, held against floods, refused with the
 * bytes that are missing, and the ways in which they end.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "doze.h"
#include "engine/pins.h"
#include "engine_fixture.h"
#include "quire/pin.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define N_CTX    1024u /* and the budget: 16 pages */
#define PAGE     64u
#define SECOND   1000000u
#define REALTIME 0u
#define STANDARD 1u
#define BATCH    2u

static _Atomic uint64_t now_us;

static engine_bench bench_begin_max(uint32_t n_pinned_pages, quire_format format, uint32_t pins_max)
{
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;

    runtime.k_format = runtime.v_format = format;

    quire_classes_default(&opts.classes);
    opts.classes.items[REALTIME].is_pinned = true;
    opts.pinned_bytes = n_pinned_pages * tiny_page_bytes(PAGE);
    opts.pins_max = pins_max;
    opts.precache.is_off = true;
    opts.clock_us = hands_of;
    opts.clock_ctx = &now_us;
    atomic_store(&now_us, 1000u * (uint64_t)SECOND);
    return bench_tiny(&opts, &runtime);
}

static engine_bench bench_begin_as(uint32_t n_pinned_pages, quire_format format)
{
    return bench_begin_max(n_pinned_pages, format, 4);
}

static engine_bench bench_begin(uint32_t n_pinned_pages)
{
    return bench_begin_as(n_pinned_pages, bench_runtime_opts(N_CTX, 4).k_format);
}

static int32_t text[N_CTX];

static quire_engine_pin_params pin_params(const char *name, uint64_t seed, uint32_t n)
{
    tokens_make(text, n, seed);
    return (quire_engine_pin_params){
        .name = name, .tokens = text, .n_tokens = n, .ttl_s = 60, .class_index = REALTIME
    };
}

static quire_engine_pin pin_make(const engine_bench *b, const quire_engine_pin_params *params)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin pin;

    if (quire_engine_pin_create(b->engine, params, &pin, NULL, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return pin;
}

static int pin_refused(const engine_bench *b, const quire_engine_pin_params *params,
                       uint64_t *missing_bytes)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin pin;
    const int rc = quire_engine_pin_create(b->engine, params, &pin, missing_bytes, &err);

    assert_true(rc < 0);
    assert_int_equal(err.status, rc);
    assert_true(err.message[0] != '\0');
    return rc;
}

/* Returns how much of the prompt was cached. */
static uint32_t ask(const engine_bench *b, uint32_t class_index, uint64_t seed, uint32_t n)
{
    int32_t tokens[N_CTX];
    quire_request_params params;
    quire_request *request;
    uint32_t n_cached;

    tokens_make(tokens, n, seed);
    params = params_greedy(tokens, n, 1);
    params.class_index = class_index;
    request = submit(b, &params);
    n_cached = finish(request)->n_cached_tokens;
    finish_as(request, QUIRE_FINISH_LENGTH);
    return n_cached;
}

static void flood(const engine_bench *b)
{
    for (uint64_t i = 0; i < 6; i++) {
        (void)ask(b, BATCH, 100 + i, 7 * PAGE);
        (void)ask(b, REALTIME, 200 + i, 2 * PAGE);
    }
}

static quire_memory_stats after_seconds(const engine_bench *b, uint64_t seconds)
{
    atomic_fetch_add(&now_us, seconds * SECOND);
    (void)stats_now(b->engine);
    return stats_now(b->engine).memory;
}

static int get(const engine_bench *b, const char *name, quire_engine_pin *pin)
{
    return quire_engine_pin_get(b->engine, &(quire_engine_pin_name){ "", 0, name }, pin);
}

static void test_a_pin_is_computed_and_stays(void **state)
{
    engine_bench b = bench_begin(8);
    const quire_engine_pin_params params = pin_params("manual", 1, 5 * PAGE + 10);
    const quire_engine_pin pin = pin_make(&b, &params);
    quire_memory_stats m;

    (void)state;
    assert_string_equal(pin.name, "manual");
    assert_int_equal(pin.state, QUIRE_ENGINE_PIN_HELD);
    assert_int_equal(pin.n_tokens, 5 * PAGE + 10);
    assert_int_equal(pin.n_held_tokens, 5 * PAGE + 10);
    assert_int_equal(pin.n_cached_tokens, 0);
    assert_int_equal(pin.bytes, 6 * tiny_page_bytes(PAGE));
    assert_int_equal(pin.left_s, 60);
    assert_int_equal(events_of(&b, QUIRE_EVENT_PIN_CREATED, "pin 'manual' is held: 330 tokens"), 1);
    flood(&b);
    assert_true(ask(&b, STANDARD, 1, 5 * PAGE + 10) >= 5 * PAGE + 9);
    m = after_seconds(&b, 1);
    assert_int_equal(m.pins, 1);
    assert_int_equal(m.pins_computing, 0);
    assert_int_equal(m.pin_bytes, 6 * tiny_page_bytes(PAGE));
    assert_int_equal(m.pinned_pin_bytes, 6 * tiny_page_bytes(PAGE));
    assert_int_equal(m.pins_created_total, 1);
    validate(b.engine);
    bench_close(&b);
}

static void test_what_is_cached_is_adopted(void **state)
{
    engine_bench b = bench_begin(8);
    quire_engine_pin_params params;
    quire_engine_pin pin;
    uint64_t n_computed;

    (void)state;
    (void)ask(&b, STANDARD, 1, 5 * PAGE);
    n_computed = stats_now(b.engine).computed_prompt_tokens_total;
    params = pin_params("adopted", 1, 4 * PAGE);
    pin = pin_make(&b, &params);
    assert_int_equal(pin.state, QUIRE_ENGINE_PIN_HELD);
    assert_int_equal(pin.n_cached_tokens, 4 * PAGE);
    assert_int_equal(pin.n_held_tokens, 4 * PAGE);
    assert_int_equal(stats_now(b.engine).computed_prompt_tokens_total, n_computed);
    params = pin_params("longer", 1, 7 * PAGE); /* the rest of it is computed */
    pin = pin_make(&b, &params);
    assert_int_equal(pin.n_cached_tokens, 5 * PAGE);
    assert_int_equal(pin.n_held_tokens, 7 * PAGE);
    assert_int_equal(stats_now(b.engine).computed_prompt_tokens_total, n_computed + 2 * PAGE);
    flood(&b);
    assert_int_equal(ask(&b, STANDARD, 1, 7 * PAGE), 7 * PAGE - 1);
    bench_close(&b);
}

static void test_what_cannot_be_honoured_is_refused_with_the_figure(void **state)
{
    engine_bench b = bench_begin(6);
    quire_engine_pin_params params = pin_params("big", 1, 8 * PAGE);
    uint64_t missing_bytes, n_computed;
    char message[64];

    (void)state;
    n_computed = stats_now(b.engine).computed_prompt_tokens_total;
    assert_int_equal(pin_refused(&b, &params, &missing_bytes), QUIRE_NOPAGES);
    assert_int_equal(missing_bytes, 2 * tiny_page_bytes(PAGE));
    assert_int_equal(stats_now(b.engine).computed_prompt_tokens_total, n_computed);
    (void)snprintf(message, sizeof message, "pin 'big' of 512 tokens, class realtime: %llu",
                   (unsigned long long)missing_bytes);
    assert_int_equal(events_of(&b, QUIRE_EVENT_PIN_REFUSED, message), 1);
    params = pin_params("first", 2, 4 * PAGE);
    (void)pin_make(&b, &params);
    params = pin_params("second", 3, 3 * PAGE);
    assert_int_equal(pin_refused(&b, &params, &missing_bytes), QUIRE_NOPAGES);
    assert_int_equal(missing_bytes, tiny_page_bytes(PAGE));
    params = pin_params("second", 3, 2 * PAGE); /* exactly the remaining room */
    assert_int_equal(pin_make(&b, &params).n_held_tokens, 2 * PAGE);
    assert_int_equal(after_seconds(&b, 1).pins_refused_total, 2);
    bench_close(&b);
}

static void test_of_the_dynamic_region_pins_get_half(void **state)
{
    engine_bench b = bench_begin(0);
    quire_engine_pin_params params = pin_params("big", 1, 9 * PAGE);
    uint64_t missing_bytes;

    (void)state;
    assert_int_equal(pin_refused(&b, &params, &missing_bytes), QUIRE_NOPAGES);
    assert_int_equal(missing_bytes, tiny_page_bytes(PAGE));
    params = pin_params("half", 1, 8 * PAGE);
    assert_int_equal(pin_make(&b, &params).bytes, 8 * tiny_page_bytes(PAGE));
    params = pin_params("more", 2, 1);
    assert_int_equal(pin_refused(&b, &params, &missing_bytes), QUIRE_NOPAGES);
    assert_true(ask(&b, BATCH, 5, 8 * PAGE - 1) < 8);
    bench_close(&b);
}

static void test_names_and_limits(void **state)
{
    static const char *const wrong[] = { "", "a b", "\xc3\xa4", "x\n", NULL };
    engine_bench b = bench_begin(8);
    quire_engine_pin_params params = pin_params("a", 1, PAGE);
    quire_engine_pin pins[8];
    char long_name[QUIRE_ENGINE_PIN_NAME_MAX + 1];
    uint32_t n_all;

    (void)state;
    (void)pin_make(&b, &params);
    assert_int_equal(pin_refused(&b, &params, NULL), QUIRE_AGAIN);
    params.tenant = "other";
    params.tenant_bytes = 5;
    (void)pin_make(&b, &params);
    for (uint32_t i = 0; i < 5; i++) {
        params.name = wrong[i];
        assert_int_equal(pin_refused(&b, &params, NULL), QUIRE_INVAL);
    }
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    params.name = long_name;
    assert_int_equal(pin_refused(&b, &params, NULL), QUIRE_INVAL);
    long_name[sizeof long_name - 2] = '\0';
    (void)pin_make(&b, &params);
    params.name = "ttl";
    params.ttl_s = QUIRE_ENGINE_PIN_TTL_MAX_S + 1;
    assert_int_equal(pin_refused(&b, &params, NULL), QUIRE_INVAL);
    params.ttl_s = 0;
    params.class_index = 3;
    assert_int_equal(pin_refused(&b, &params, NULL), QUIRE_INVAL);
    params.class_index = BATCH; /* charged to the dynamic region */
    assert_int_equal(pin_make(&b, &params).left_s, 0);
    params.name = "fifth";
    assert_int_equal(pin_refused(&b, &params, NULL), QUIRE_LIMIT);
    params.n_tokens = 0;
    assert_int_equal(pin_refused(&b, &params, NULL), QUIRE_INVAL);
    params.n_tokens = N_CTX;
    assert_int_equal(pin_refused(&b, &params, NULL), QUIRE_RANGE);

    assert_int_equal(quire_engine_pins_list(b.engine, NULL, 0, 0, pins, 8, &n_all), 4);
    assert_int_equal(n_all, 4);
    assert_string_equal(pins[0].name, "a");
    assert_string_equal(pins[3].name, "ttl");
    assert_int_equal(quire_engine_pins_list(b.engine, "other", 5, 1, pins, 1, &n_all), 1);
    assert_int_equal(n_all, 3);
    assert_string_equal(pins[0].name, long_name);
    assert_memory_equal(pins[0].tenant, "other", 5);
    bench_close(&b);
}

static void test_time_ends_a_pin_and_renewal_does_not(void **state)
{
    engine_bench b = bench_begin(8);
    quire_engine_pin_params params = pin_params("short", 1, 3 * PAGE);
    const quire_engine_pin_name name = { "", 0, "short" };
    quire_engine_pin pin;

    (void)state;
    (void)pin_make(&b, &params);
    assert_int_equal(after_seconds(&b, 59).pins, 1);
    assert_int_equal(quire_engine_pin_renew(b.engine, &name, QUIRE_ENGINE_PIN_TTL_MAX_S + 1, &pin),
                     QUIRE_INVAL);
    assert_int_equal(quire_engine_pin_renew(b.engine, &name, 100, &pin), QUIRE_OK);
    assert_int_equal(pin.ttl_s, 100);
    assert_int_equal(pin.left_s, 100);
    assert_int_equal(pin.age_s, 59);
    assert_int_equal(after_seconds(&b, 99).pins, 1);
    assert_int_equal(get(&b, "short", &pin), QUIRE_OK);
    assert_int_equal(pin.left_s, 1);
    assert_int_equal(after_seconds(&b, 1).pins, 0);
    assert_int_equal(get(&b, "short", &pin), QUIRE_NOTFOUND);
    assert_int_equal(quire_engine_pin_renew(b.engine, &name, 100, &pin), QUIRE_NOTFOUND);
    assert_int_equal(events_of(&b, QUIRE_EVENT_PIN_EXPIRED, "pin 'short' has expired"), 1);
    assert_int_equal(events_of(&b, QUIRE_EVENT_PIN_RENEWED, "pin 'short'"), 1);
    assert_int_equal(ask(&b, REALTIME, 1, 3 * PAGE), 3 * PAGE - 1); /* cached as before */
    params = pin_params("ever", 1, 3 * PAGE);
    params.ttl_s = 0;
    (void)pin_make(&b, &params);
    assert_int_equal(after_seconds(&b, 1000000).pins, 1);
    bench_close(&b);
}

static void test_a_dropped_pin_may_be_evicted(void **state)
{
    engine_bench b = bench_begin(8);
    const quire_engine_pin_params params = pin_params("x", 1, 5 * PAGE);
    const quire_engine_pin_name name = { "", 0, "x" };
    quire_memory_stats m;

    (void)state;
    (void)pin_make(&b, &params);
    assert_int_equal(quire_engine_pin_drop(b.engine, &name), QUIRE_OK);
    assert_int_equal(quire_engine_pin_drop(b.engine, &name), QUIRE_NOTFOUND);
    m = after_seconds(&b, 1);
    assert_int_equal(m.pins, 0);
    assert_int_equal(m.pin_bytes, 0);
    assert_int_equal(m.pinned_pin_bytes, 0);
    assert_int_equal(m.pins_dropped_total, 1);
    assert_int_equal(events_of(&b, QUIRE_EVENT_PIN_DROPPED, "pin 'x' was dropped"), 1);
    for (uint64_t i = 0; i < 4; i++) {
        (void)ask(&b, REALTIME, 200 + i, 7 * PAGE);
    }
    assert_true(ask(&b, REALTIME, 1, 5 * PAGE) < PAGE);
    bench_close(&b);
}

static void test_invalidation_wins(void **state)
{
    engine_bench b = bench_begin(8);
    const quire_engine_pin_params params = pin_params("wrong", 1, 5 * PAGE);
    const quire_invalidate all = { .what = QUIRE_INVALIDATE_ALL };
    quire_prefix_dropped dropped;
    quire_engine_pin pin;

    (void)state;
    (void)pin_make(&b, &params);
    assert_int_equal(quire_engine_invalidate(b.engine, &all, &dropped), QUIRE_OK);
    assert_int_equal(get(&b, "wrong", &pin), QUIRE_NOTFOUND);
    assert_int_equal(
        events_of(&b, QUIRE_EVENT_PIN_DROPPED, "pin 'wrong' was lost: its text was invalidated"),
        1);
    assert_int_equal(ask(&b, REALTIME, 1, 5 * PAGE), 0);
    (void)pin_make(&b, &params);
    validate(b.engine);
    bench_close(&b);
}

/* The engine's looks at pins in core's table. */
static _Atomic uint32_t n_looks;

int __real_quire_pins_get(const quire_pins *pins, quire_pin_id id, quire_pin_info *out);
int __wrap_quire_pins_get(const quire_pins *pins, quire_pin_id id, quire_pin_info *out);

int __wrap_quire_pins_get(const quire_pins *pins, quire_pin_id id, quire_pin_info *out)
{
    atomic_fetch_add(&n_looks, 1);
    return __real_quire_pins_get(pins, id, out);
}

/* The results of the next holds; 0 = the real one's. */
static _Atomic int next_holds[2];

int __real_quire_pins_hold(quire_pins *pins, quire_pin_id id, uint64_t at_us, uint64_t *missing);
int __wrap_quire_pins_hold(quire_pins *pins, quire_pin_id id, uint64_t at_us, uint64_t *missing);

int __wrap_quire_pins_hold(quire_pins *pins, quire_pin_id id, uint64_t at_us, uint64_t *missing)
{
    const int rc = atomic_exchange(&next_holds[0], atomic_exchange(&next_holds[1], 0));

    return rc != 0 ? rc : __real_quire_pins_hold(pins, id, at_us, missing);
}

/* A pin that waits for room and is then given up tells the reason. */
static void test_the_reason_is_told(void **state)
{
    engine_bench b = bench_begin(8);
    quire_engine_pin_params params = pin_params("late", 1, 3 * PAGE);
    quire_engine_pin pin;

    (void)state;
    params.is_background = true;
    atomic_store(&next_holds[1], QUIRE_NOMEM);
    atomic_store(&next_holds[0], QUIRE_NOPAGES);
    (void)pin_make(&b, &params);
    while (get(&b, "late", &pin) == QUIRE_OK) {
        (void)after_seconds(&b, 1);
        test_doze();
    }
    assert_int_equal(
        events_of(&b, QUIRE_EVENT_PIN_DROPPED, "pin 'late' was given up (out of memory)"), 1);
    bench_close(&b);
}

/* Pins that end together are counted once, since each look at a pin walks over its pages. */
static void test_many_end_together(void **state)
{
    enum {
        N = 64
    };
    engine_bench b = bench_begin_max(8, bench_runtime_opts(N_CTX, 4).k_format, N);
    const quire_invalidate all = { .what = QUIRE_INVALIDATE_ALL };
    quire_prefix_dropped dropped;
    quire_memory_stats m;
    uint32_t n_all = 1;

    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        quire_engine_pin_params params = pin_params("", 1, 5 * PAGE); /* of one text */
        char name[8];

        (void)snprintf(name, sizeof name, "p%u", (unsigned)i);
        params.name = name;
        (void)pin_make(&b, &params);
    }
    m = stats_now(b.engine).memory;
    assert_int_equal(m.pins, N);
    assert_int_equal(m.pin_bytes, N * 5 * tiny_page_bytes(PAGE));
    atomic_store(&n_looks, 0);
    assert_int_equal(quire_engine_invalidate(b.engine, &all, &dropped), QUIRE_OK);
    assert_true(atomic_load(&n_looks) <= 4 * N);
    assert_int_equal(quire_engine_pins_list(b.engine, NULL, 0, 0, NULL, 0, &n_all), 0);
    assert_int_equal(n_all, 0);
    m = stats_now(b.engine).memory;
    assert_int_equal(m.pins, 0);
    assert_int_equal(m.pin_bytes, 0);
    assert_int_equal(m.pins_dropped_total, N);
    bench_close(&b);
}

static void test_in_the_background(void **state)
{
    engine_bench b = bench_begin(12);
    quire_engine_pin_params params = pin_params("later", 1, 11 * PAGE);
    quire_engine_pin pin;

    (void)state;
    params.is_background = true;
    pin = pin_make(&b, &params);
    assert_int_equal(pin.state, QUIRE_ENGINE_PIN_COMPUTING);
    assert_int_equal(pin.n_held_tokens, 0);
    assert_int_equal(pin.bytes, 11 * tiny_page_bytes(PAGE));
    while (pin.state == QUIRE_ENGINE_PIN_COMPUTING) {
        assert_int_equal(get(&b, "later", &pin), QUIRE_OK);
        test_doze();
    }
    assert_int_equal(pin.n_held_tokens, 11 * PAGE);
    assert_int_equal(quire_engine_pin_drop(b.engine, &(quire_engine_pin_name){ "", 0, "later" }),
                     QUIRE_OK);
    for (uint64_t i = 2; i < 12; i++) { /* dropped while it is computed, mostly */
        params = pin_params("later", i, 11 * PAGE);
        params.is_background = true;
        (void)pin_make(&b, &params);
        assert_int_equal(
            quire_engine_pin_drop(b.engine, &(quire_engine_pin_name){ "", 0, "later" }), QUIRE_OK);
    }
    while (!quire_engine_is_idle(b.engine)) {
        test_doze();
    }
    assert_int_equal(after_seconds(&b, 1).pins + after_seconds(&b, 1).pins_computing, 0);
    assert_int_equal(stats_now(b.engine).finished_error_total, 0);
    validate(b.engine);
    params = pin_params("unfinished", 20, 11 * PAGE);
    params.is_background = true;
    (void)pin_make(&b, &params);
    bench_close(&b); /* in the middle of it */
}

/* Hits of sealed formats end at full pages, and so do pins. */
static void test_sealed_formats_hold_full_pages(void **state)
{
    engine_bench b = bench_begin_as(2, QUIRE_FORMAT_Q4);
    quire_engine_pin_params params = pin_params("sealed", 1, 3 * PAGE + 10);
    quire_engine_pin pin = pin_make(&b, &params);

    (void)state;
    assert_int_equal(pin.state, QUIRE_ENGINE_PIN_HELD);
    assert_int_equal(pin.n_tokens, 3 * PAGE + 10);
    assert_int_equal(pin.n_held_tokens, 3 * PAGE);
    flood(&b);
    assert_int_equal(ask(&b, STANDARD, 1, 3 * PAGE + 10), 3 * PAGE);
    params.name = "again";
    pin = pin_make(&b, &params);
    assert_int_equal(pin.n_cached_tokens, 3 * PAGE);
    assert_int_equal(pin.n_held_tokens, 3 * PAGE);
    params.n_tokens = PAGE - 1;
    assert_int_equal(pin_refused(&b, &params, NULL), QUIRE_INVAL);
    validate(b.engine);
    bench_close(&b);
}

/* While it is computed others run; the pin waits for its room and gets it. */
static void test_beside_requests(void **state)
{
    engine_bench b = bench_begin(8);
    quire_engine_pin_params params = pin_params("busy", 1, 6 * PAGE);
    quire_request *requests[3];
    int32_t tokens[3][2 * PAGE];

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        quire_request_params p;

        tokens_make(tokens[i], 2 * PAGE, 50 + i);
        p = params_greedy(tokens[i], 2 * PAGE, 40);
        p.class_index = i < 2 ? REALTIME : BATCH;
        requests[i] = submit(&b, &p);
    }
    params.is_background = true;
    (void)pin_make(&b, &params);
    for (uint32_t i = 0; i < 3; i++) {
        finish_as(requests[i], QUIRE_FINISH_LENGTH);
    }
    while (after_seconds(&b, 1).pins == 0) {
        test_doze();
    }
    assert_int_equal(stats_now(b.engine).memory.pin_bytes, 6 * tiny_page_bytes(PAGE));
    validate(b.engine);
    bench_close(&b);
}

static void test_without_pins(void **state)
{
    const quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 4);
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;
    quire_engine_pin_params params = pin_params("none", 1, PAGE);
    quire_engine_pin pin;
    uint32_t n_all = 9;
    engine_bench b;

    (void)state;
    opts.pins_max = 0;
    b = bench_tiny(&opts, &runtime);
    params.class_index = 0;
    assert_int_equal(pin_refused(&b, &params, NULL), QUIRE_UNSUPP);
    assert_int_equal(get(&b, "none", &pin), QUIRE_NOTFOUND);
    assert_int_equal(quire_engine_pins_list(b.engine, NULL, 0, 0, &pin, 1, &n_all), 0);
    assert_int_equal(n_all, 0);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_pin_is_computed_and_stays),
        cmocka_unit_test(test_what_is_cached_is_adopted),
        cmocka_unit_test(test_what_cannot_be_honoured_is_refused_with_the_figure),
        cmocka_unit_test(test_of_the_dynamic_region_pins_get_half),
        cmocka_unit_test(test_names_and_limits),
        cmocka_unit_test(test_time_ends_a_pin_and_renewal_does_not),
        cmocka_unit_test(test_a_dropped_pin_may_be_evicted),
        cmocka_unit_test(test_invalidation_wins),
        cmocka_unit_test(test_the_reason_is_told),
        cmocka_unit_test(test_many_end_together),
        cmocka_unit_test(test_in_the_background),
        cmocka_unit_test(test_sealed_formats_hold_full_pages),
        cmocka_unit_test(test_beside_requests),
        cmocka_unit_test(test_without_pins),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
