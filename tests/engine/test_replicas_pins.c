/* test_replicas_pins.c - pins, sessions and views of an engine with several devices.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "replicas_kit.h"

#include "doze.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop.h"
#include "engine/pins.h"
#include "engine/tuning.h"
#include "engine/views.h"

#include <pthread.h>

static const quire_mock_device_opts faults = { .loss = 1.0 };

/* Create a pin on a device that is lost while the pin is computed. retain NULL: all tokens are
 * held.
 */
static int pin_of_lost(const replicas *r, const quire_retain_spec *retain, bool is_background,
                       quire_error *err)
{
    int32_t text[N_PROMPT] = { 0 };
    const quire_engine_pin_params pin = { .name = "pin",
                                          .tokens = text,
                                          .n_tokens = N_PROMPT,
                                          .ttl_s = 100,
                                          .retain = retain,
                                          .is_background = is_background };
    quire_engine_pin out;

    tokens_make(text, N_PROMPT, 3);
    quire_mock_device_set(replica_mocks[0], &faults);
    return quire_engine_pin_create(r->b.engine, &pin, &out, NULL, err);
}

/* The pin of a device that is lost is computed and held by the other one. */
static quire_engine_pin pin_moved(replicas *r, const quire_retain_spec *retain)
{
    const quire_engine_pin_name name = { NULL, 0, "pin" };
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin out;
    uint32_t n_gone = 7;

    if (pin_of_lost(r, retain, true, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    while (!quire_loop_is_idle(r->b.engine->loop) || !quire_loop_is_lost(r->b.engine->loop)) {
        test_doze();
    }
    assert_int_equal(quire_engine_pins_move(r->b.engine, 0, &n_gone), 1);
    assert_int_equal(n_gone, 0);
    do {
        test_doze();
        assert_int_equal(quire_engine_pin_get(r->b.engine, &name, &out), QUIRE_OK);
    } while (out.state != QUIRE_ENGINE_PIN_HELD);
    assert_int_equal(out.ttl_s, 100);
    return out;
}

/* A pin in computation moves like a held pin when its device is lost. */
static void test_pin_computing(void **state)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    replicas r = replicas_open("mock", &engine);

    (void)state;
    assert_string_equal(pin_moved(&r, NULL).retain, "");
    replicas_close(&r);
}

/* A pin with a policy keeps it when it moves. */
static void test_pin_condensed(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    char policy[QUIRE_RETAIN_TEXT_MAX];
    quire_retain_spec spec;
    quire_engine_pin pin;
    replicas r;

    (void)state;
    assert_int_equal(quire_retain_parse("keydiff:0.5,recent=32", &spec, NULL), QUIRE_OK);
    engine.retain_chunk = 128;
    engine.n_running_max = 2;
    r = replicas_open("mock", &engine);
    pin = pin_moved(&r, &spec);
    assert_string_equal(pin.retain, quire_retain_text(&spec, policy, sizeof policy));
    assert_in_range(pin.n_held_tokens, 1, N_PROMPT - 1);
    replicas_close(&r);
}

/* A client that waits for its pin gets it from the other device. */
static void test_pin_waited_for(void **state)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    replicas r = replicas_open("mock", &engine);
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin out;
    uint32_t n_gone = 7;

    (void)state;
    if (pin_of_lost(&r, NULL, false, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    assert_int_equal(quire_engine_pins_list(r.b.engine, NULL, 0, 0, &out, 1, NULL), 1);
    assert_int_equal(quire_engine_pins_move(r.b.engine, 0, &n_gone), 0);
    assert_int_equal(n_gone, 0);
    assert_int_equal(pin_of_lost(&r, NULL, false, &err), QUIRE_AGAIN);
    assert_string_equal(err.message, "name: there is a pin 'pin' already");
    replicas_close(&r);
}

typedef struct creator {
    const replicas *r;
    int status;
} creator;

static void *create_pin(void *arg)
{
    creator *c = arg;
    int32_t text[N_PROMPT] = { 0 };
    const quire_engine_pin_params pin = { .name = "pin", .tokens = text, .n_tokens = N_PROMPT };
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin out;

    tokens_make(text, N_PROMPT, 3);
    c->status = quire_engine_pin_create(c->r->b.engine, &pin, &out, NULL, &err);
    return NULL;
}

static bool is_naming(quire_engine *engine)
{
    bool is;

    (void)pthread_mutex_lock(&engine->naming_lock);
    is = engine->namings != NULL;
    (void)pthread_mutex_unlock(&engine->naming_lock);
    return is;
}

/* Two clients create a pin of the same name at once, and one of them gets the pin: a name is taken
 * before its pin is there. */
static void test_pin_twice(void **state)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    replicas r = replicas_open("mock", &engine);
    creator first = { &r, QUIRE_INVAL };
    creator second = { &r, QUIRE_INVAL };
    gate *g = gate_close(r.b.engine);
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, create_pin, &first), 0);
    while (!is_naming(r.b.engine)) {
        test_doze();
    }
    (void)create_pin(&second); /* the first device stands still */
    assert_int_equal(second.status, QUIRE_AGAIN);
    gate_open(g);
    (void)pthread_join(thread, NULL);
    assert_int_equal(first.status, QUIRE_OK);
    replicas_close(&r);
}

/* The pages of an expired session leave the trees of all devices. */
static void test_session_expires(void **state)
{
    _Atomic uint64_t now_us = 1000000;
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    int32_t text[N_PROMPT] = { 0 };
    quire_request_params params = params_greedy(text, N_PROMPT, 1);
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_stats stats;
    quire_sessions *sessions;
    quire_request *request;
    replicas r;

    (void)state;
    engine.clock_us = hands_of;
    engine.clock_ctx = &now_us;
    engine.sessions.ttl_us = 10000000;
    r = replicas_open("mock", &engine);
    sessions = quire_engine_sessions(r.b.engine);
    tokens_make(text, N_PROMPT, 4);
    assert_int_equal(quire_sessions_enter(sessions, "", 0, "s", now_us, &params.session, &err),
                     QUIRE_OK);
    for (uint32_t i = 0; i < DEVICES; i++) {
        assert_int_equal(quire_loop_submit(r.b.engine->loops[i], &params, 0, &request, &err),
                         QUIRE_OK);
        finish_as(request, QUIRE_FINISH_LENGTH);
        quire_loop_stats_get(r.b.engine->loops[i], &stats);
        assert_true(stats.prefix.nodes > 0);
    }
    quire_sessions_leave(sessions, params.session, now_us);
    atomic_store(&now_us, 30000000);
    for (uint32_t i = 0; i < 3; i++) { /* rounds of both loops, in each of which a second is over */
        gate *gates[DEVICES] = { gate_close_at(r.b.engine, 0), gate_close_at(r.b.engine, 1) };

        atomic_fetch_add(&now_us, 2000000);
        gate_open(gates[0]);
        gate_open(gates[1]);
    }
    stats = stats_now(r.b.engine);
    assert_int_equal(stats.sessions, 0);
    assert_int_equal(stats.prefix.nodes, 0);
    replicas_close(&r);
}

/* A session is deleted in its first turn: first the device without its request looks, then the
 * request comes there from a device that is lost. It publishes nothing. */
static void test_session_deleted_while_it_moves(void **state)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    int32_t text[N_PROMPT] = { 0 };
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    replicas r = replicas_open("mock", &engine);
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_stats stats;
    quire_sessions *sessions;
    quire_request *request;
    uint64_t owner;
    gate *g;

    (void)state;
    sessions = quire_engine_sessions(r.b.engine);
    tokens_make(text, N_PROMPT, 4);
    assert_int_equal(quire_sessions_enter(sessions, "", 0, "s", 1, &params.session, &err),
                     QUIRE_OK);
    g = gate_close(r.b.engine);
    assert_int_equal(quire_loop_submit(r.b.engine->loop, &params, 0, &request, &err), QUIRE_OK);
    quire_mock_device_set(replica_mocks[0], &faults);
    /* As quire_engine_invalidate() begins. The second device has no request of it. */
    assert_int_equal(quire_sessions_close(sessions, "", 0, "s", &owner), QUIRE_OK);
    gate_open(g);
    finish_as(request, QUIRE_FINISH_LENGTH);
    quire_sessions_leave(sessions, params.session, 2);
    assert_true(quire_loop_is_lost(r.b.engine->loop));
    quire_loop_stats_get(r.b.engine->loops[1], &stats);
    assert_int_equal(stats.adopted_total, 1);
    assert_int_equal(stats.prefix.nodes, 0);
    replicas_close(&r);
}

/* Explanations of all devices come newest first. */
static void test_explanations(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_explanation last[4];
    quire_request *waiting;
    replicas r;
    gate *g;

    (void)state;
    engine.explain_max = 4;
    r = replicas_open("mock", &engine);
    g = gate_close(r.b.engine);
    waiting = replicas_ask(&r, 0); /* on the first device */
    (void)answer_take(replicas_ask(&r, 1));
    gate_open(g);
    (void)answer_take(waiting);
    (void)answer_take(replicas_ask(&r, 1)); /* on the second, as the text before */
    assert_int_equal(quire_engine_explain_last(r.b.engine, last, 4), 3);
    assert_true(last[0].ended_us >= last[1].ended_us && last[1].ended_us >= last[2].ended_us);
    assert_true(last[0].n_cached_tokens > 0);
    assert_int_equal(last[2].n_cached_tokens, 0);
    assert_int_equal(quire_engine_explain_last(r.b.engine, last, 1), 1);
    assert_true(last[0].n_cached_tokens > 0);
    replicas_close(&r);
}

/* The sums contain a lost device's counters but not its memory. Figures of tuning are those of
 * another device. */
static void test_gauges(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_engine_device_stats devices[QUIRE_REPLICAS_MAX];
    const quire_engine_tune_opts tune = { .is_applied = true };
    quire_region_view regions[QUIRE_REGIONS_MAX];
    quire_engine_stats stats;
    quire_page_map map;
    replicas r;
    gate *g;

    (void)state;
    engine.recent_bytes = 1u << 20;
    r = replicas_open("mock", &engine);
    (void)answer_take(replicas_ask(&r, 0));
    quire_engine_stats_get(r.b.engine, &stats);
    (void)quire_engine_devices_get(r.b.engine, devices);
    assert_int_equal(stats.cache.budget_bytes, devices[0].budget_bytes + devices[1].budget_bytes);
    g = gate_close(r.b.engine);
    quire_mock_device_set(replica_mocks[0], &faults);
    gate_open(g);
    (void)answer_take(replicas_ask(&r, 0));
    quire_engine_stats_get(r.b.engine, &stats);
    (void)quire_engine_devices_get(r.b.engine, devices);
    assert_true(devices[0].is_lost);
    assert_int_equal(stats.requests_total, 2);
    assert_int_equal(stats.generated_tokens_total, 2 * N_TOKENS);
    assert_int_equal(stats.cache.budget_bytes, devices[1].budget_bytes);
    assert_int_equal(stats.cache.cached_bytes, devices[1].cached_bytes);
    assert_int_equal(stats.memory.dynamic_budget_bytes, devices[1].budget_bytes);
    assert_true(quire_engine_regions(r.b.engine, regions) > 0);
    assert_int_equal(regions[0].stats.budget_bytes, devices[1].budget_bytes);
    assert_int_equal(quire_engine_page_map(r.b.engine, &map), QUIRE_OK);
    assert_int_equal(map.n_in_use, stats.cache.pages_cached);
    quire_page_map_fini(&map);
    assert_int_equal(quire_engine_tune(r.b.engine, &tune, NULL), QUIRE_OK);
    replicas_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pin_computing),
        cmocka_unit_test(test_pin_condensed),
        cmocka_unit_test(test_pin_twice),
        cmocka_unit_test(test_pin_waited_for),
        cmocka_unit_test(test_session_expires),
        cmocka_unit_test(test_session_deleted_while_it_moves),
        cmocka_unit_test(test_explanations),
        cmocka_unit_test(test_gauges),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
