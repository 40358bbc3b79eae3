/* test_guard_soak.c - everything that adapts, at once: classes with a pinned region that changes
 * its size, pins that come and go, invalidation, tuning, idle time, under several clients in a
 * tight budget. Every answer is the one a request alone would get, and nothing is left behind.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "doze.h"
#include "engine/pins.h"
#include "engine/tuning.h"
#include "seed.h"
#include "soak_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define N_PAGES        24u
#define N_CLIENTS      4u
#define N_REQUESTS     600u
#define N_REQUESTS_MAX (50u * N_REQUESTS)
#define N_ORDERS       400u /* of the operator */
#define N_TEXTS        8u
#define N_NAMES        5u
#define TOKENS_MAX     30u
#define IN_FLIGHT      4u
#define SECOND         1000000u
#define TTL_US         (60u * SECOND)
#define PAGE_BYTES     ((uint64_t)64 * 2 * 2 * 2 * 16 * sizeof(float))
#define IS_EXPECTED(rc)                                                                            \
    ((rc) == QUIRE_OK || (rc) == QUIRE_NOTFOUND || (rc) == QUIRE_AGAIN || (rc) == QUIRE_NOPAGES || \
     (rc) == QUIRE_LIMIT || (rc) == QUIRE_CANCELED || (rc) == QUIRE_RANGE)

typedef struct soak {
    engine_bench bench;
    soak_texts texts;
    atomic_uint n_failed;
    atomic_uint n_whole;
    atomic_bool has_adapted; /* the pinned region has grown, shrunk and spilled */
    atomic_bool is_over;
} soak;

typedef struct client {
    soak *soak;
    quire_rng rng;
    pthread_t thread;
} client;

/* Time passes faster than elsewhere, and leaps at times. */
static _Atomic uint64_t leap_us;

static uint64_t clock_read(void *ctx)
{
    (void)ctx;
    return atomic_load(&leap_us) + quire_clock_ns() / 100u;
}

static void land(client *c, const soak_flight *f)
{
    soak *s = c->soak;

    if (quire_rng_below(&c->rng, 6) == 0) {
        quire_request_release(f->request); /* gone without a word */
        return;
    }
    atomic_fetch_add(&s->n_failed, soak_flight_finish(&s->texts, f) != 0);
    atomic_fetch_add(&s->n_whole, 1);
    quire_request_release(f->request);
}

/* Which client meets which order is the scheduler's choice: until all that adapts has done so. */
static bool goes_on(soak *s, uint32_t n_requests)
{
    return n_requests < N_REQUESTS / N_CLIENTS ||
           (!atomic_load(&s->has_adapted) && n_requests < N_REQUESTS_MAX / N_CLIENTS);
}

static void *client_main(void *arg)
{
    client *c = arg;
    soak *s = c->soak;
    soak_flight flights[IN_FLIGHT];
    uint32_t n = 0;

    for (uint32_t i = 0; goes_on(s, i); i++) {
        soak_flight f;
        quire_request_params params = soak_params(&s->texts, &c->rng, &f);
        quire_error err = QUIRE_ERROR_INIT;

        params.class_index = quire_rng_below(&c->rng, 3);
        if (quire_engine_submit(s->bench.engine, &params, &f.request, &err) != QUIRE_OK) {
            atomic_fetch_add(&s->n_failed, 1);
            continue;
        }
        flights[n++] = f;
        if (n == IN_FLIGHT || quire_rng_below(&c->rng, 3) == 0) {
            const uint32_t k = quire_rng_below(&c->rng, n);

            land(c, &flights[k]);
            flights[k] = flights[--n];
        }
    }
    while (n > 0) {
        land(c, &flights[--n]);
    }
    return NULL;
}

/* ---- the operator ---- */

static int pin_order(client *c, const char *name)
{
    soak *s = c->soak;
    quire_engine *engine = s->bench.engine;
    const uint32_t text = quire_rng_below(&c->rng, N_TEXTS);
    const quire_engine_pin_name which = { "b", 1, name };
    const quire_engine_pin_params params = {
        .name = name,
        .tokens = s->texts.tokens[text],
        .n_tokens = s->texts.n_tokens[text],
        .ttl_s = quire_rng_below(&c->rng, 40),
        .class_index = quire_rng_below(&c->rng, 3),
        .tenant = "b",
        .tenant_bytes = 1,
        .is_background = quire_rng_below(&c->rng, 2) == 0,
    };
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin pins[N_NAMES];

    switch (quire_rng_below(&c->rng, 5)) {
    case 0:
    case 1:
        return quire_engine_pin_create(engine, &params, &pins[0], NULL, &err);
    case 2:
        return quire_engine_pin_renew(engine, &which, params.ttl_s, &pins[0]);
    case 3:
        return quire_engine_pin_drop(engine, &which);
    default:
        return quire_engine_pins_list(engine, "b", 1, 0, pins, N_NAMES, NULL) >= 0 ? QUIRE_OK
                                                                                   : QUIRE_INVAL;
    }
}

static int other_order(client *c)
{
    quire_engine_tune_opts tune = { .bounds = QUIRE_TUNE_BOUNDS_INIT, .is_applied = true };
    soak *s = c->soak;
    quire_engine *engine = s->bench.engine;
    const uint32_t text = quire_rng_below(&c->rng, N_TEXTS);
    const quire_invalidate what = {
        .what =
            quire_rng_below(&c->rng, 4) == 0 ? QUIRE_INVALIDATE_TENANT : QUIRE_INVALIDATE_PREFIX,
        .tenant = "b",
        .tenant_bytes = 1,
        .tokens = s->texts.tokens[text],
        .n_tokens = s->texts.n_tokens[text],
    };
    quire_prefix_dropped dropped;
    quire_engine_stats stats;
    quire_event events[8];

    tune.bounds.ttl_min_us = TTL_US / 2u;
    tune.bounds.ttl_max_us = TTL_US; /* test_idle_time() waits until all has expired */
    switch (quire_rng_below(&c->rng, 6)) {
    case 0:
        return quire_engine_invalidate(engine, &what, &dropped);
    case 1:
        return quire_engine_tune(engine, &tune, NULL);
    case 2:
        (void)quire_engine_events(engine, quire_rng_below(&c->rng, 100), events, 8);
        return QUIRE_OK;
    default:
        atomic_fetch_add(&leap_us, quire_rng_below(&c->rng, 3 * SECOND));
        quire_engine_stats_get(engine, &stats);
        if (stats.memory.spilled_pages_total > 0 && stats.memory.pinned_grown_total > 0 &&
            stats.memory.pinned_shrunk_total > 0) {
            atomic_store(&s->has_adapted, true);
        }
        return stats.memory.pinned_budget_bytes + stats.memory.dynamic_budget_bytes == 0
                   ? QUIRE_INVAL
                   : QUIRE_OK;
    }
}

static void *operator_main(void *arg)
{
    client *c = arg;
    char name[8];

    for (uint32_t i = 0; i < N_ORDERS || !atomic_load(&c->soak->is_over); i++) {
        int rc;

        (void)snprintf(name, sizeof name, "pin%u", quire_rng_below(&c->rng, N_NAMES));
        rc = quire_rng_below(&c->rng, 2) == 0 ? pin_order(c, name) : other_order(c);
        atomic_fetch_add(&c->soak->n_failed, !IS_EXPECTED(rc));
        test_doze();
    }
    return NULL;
}

/* ---- the test ---- */

/* A text of two pages and more, by a tenant whose texts are neither pinned nor dropped. */
static void ask_again(soak *s)
{
    enum {
        TEXT = 2
    };
    quire_request_params params =
        params_greedy(s->texts.tokens[TEXT], s->texts.n_tokens[TEXT], TOKENS_MAX);
    int32_t tokens[TOKENS_MAX];
    quire_request *request;

    params.class_index = 1;
    params.tenant = "c";
    params.tenant_bytes = 1;
    request = submit(&s->bench, &params);
    assert_int_equal(collect(request, tokens, TOKENS_MAX), TOKENS_MAX);
    assert_memory_equal(tokens, s->texts.answers[TEXT], sizeof tokens);
    finish_as(request, QUIRE_FINISH_LENGTH);
}

/* A text is asked for again and again, expires, and idle time computes it in advance. The texts of
 * the soak are dropped first, so that idle time has nothing else to compute. */
static void test_idle_time(soak *s)
{
    const quire_invalidate all = { .what = QUIRE_INVALIDATE_ALL };
    quire_prefix_dropped dropped;
    quire_engine_stats stats;
    uint64_t n_before;

    assert_int_equal(quire_engine_invalidate(s->bench.engine, &all, &dropped), QUIRE_OK);
    n_before = stats_now(s->bench.engine).memory.precache.tokens_total;
    for (uint32_t round = 0; round < 3; round++) {
        ask_again(s);
        atomic_fetch_add(&leap_us, TTL_US / 3u * 2u);
    }
    atomic_fetch_add(&leap_us, TTL_US);
    do {
        test_doze();
        quire_engine_stats_get(s->bench.engine, &stats);
    } while (stats.memory.precache.tokens_total == n_before);
    ask_again(s);
}

static engine_bench bench_begin(void)
{
    quire_runtime_opts runtime = bench_runtime_opts(SOAK_N_CTX, 12);
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;

    runtime.kv_budget_bytes = N_PAGES * PAGE_BYTES;
    quire_classes_default(&opts.classes);
    opts.classes.items[0].is_pinned = true;
    opts.n_running_max = 8;
    opts.pinned_bytes = 8 * PAGE_BYTES;
    opts.pinned.floor_bytes = 2 * PAGE_BYTES;
    opts.pinned.ceiling_bytes = 14 * PAGE_BYTES;
    opts.pinned.dynamic_floor_bytes = 13 * PAGE_BYTES;
    opts.pinned.window_us = 20u * SECOND;
    opts.pinned.recent_us = 5u * SECOND;
    opts.precache.idle_us = 1;
    opts.cache_ttl_us = TTL_US;
    opts.pins_max = N_NAMES;
    opts.clock_us = clock_read;
    return bench_tiny(&opts, &runtime);
}

static void test_all_at_once(void **state)
{
    static soak s;
    quire_rng rng = test_rng(2026);
    client clients[N_CLIENTS + 1];
    quire_memory_stats m;

    (void)state;
    s.bench = bench_begin();
    s.texts.n = N_TEXTS;
    s.texts.answer_tokens = TOKENS_MAX;
    soak_texts_make(&s.texts, &s.bench, 80, &rng);
    for (uint32_t i = 0; i <= N_CLIENTS; i++) {
        clients[i].soak = &s;
        clients[i].rng.state = quire_rng_next(&rng);
        assert_int_equal(pthread_create(&clients[i].thread, NULL,
                                        i < N_CLIENTS ? client_main : operator_main, &clients[i]),
                         0);
    }
    for (uint32_t i = 0; i <= N_CLIENTS; i++) {
        assert_int_equal(pthread_join(clients[i].thread, NULL), 0);
        atomic_store(&s.is_over, i + 1 >= N_CLIENTS);
    }
    validate(s.bench.engine);
    test_idle_time(&s);
    validate(s.bench.engine);
    m = stats_now(s.bench.engine).memory;
    assert_int_equal(atomic_load(&s.n_failed), 0);
    assert_true(atomic_load(&s.n_whole) > N_REQUESTS / 2);
    assert_true(m.pins_created_total > 0);
    assert_true(m.spilled_pages_total > 0);
    assert_true(m.pinned_grown_total > 0);
    assert_true(m.pinned_shrunk_total > 0);
    assert_true(m.precache.gain_tokens_total > 0);
    assert_int_equal(m.pinned_budget_bytes + m.dynamic_budget_bytes, N_PAGES * PAGE_BYTES);
    bench_close(&s.bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
