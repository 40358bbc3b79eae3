/* test_replicas_layers.c - an engine with two devices that have layers of the model: both give the
 * same answers, with weights of their own or with common ones, and when ggml loses one of them, its
 * requests go on at the other.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

#include "doze.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop.h"
#include "model/backend_calls.h"
#include "model/kv_identity.h"
#include "model/runtime_internal.h"
#include "replicas_kit.h"

#include <stdio.h>
#include <string.h>

#define WHY "vk::Queue::submit: ErrorDeviceLost"

/* Of the backends in the order of their first graphs. */
static _Atomic(quire_backend_device *) backends[DEVICES];
static atomic_uint n_graphs[DEVICES];
static atomic_uint fails_at[DEVICES]; /* a number of n_graphs; 0: never */

enum ggml_status __real_quire_backend_device_compute(quire_backend_device *backend,
                                                     struct ggml_cgraph *cgraph);
enum ggml_status __wrap_quire_backend_device_compute(quire_backend_device *backend,
                                                     struct ggml_cgraph *cgraph);

enum ggml_status __wrap_quire_backend_device_compute(quire_backend_device *backend,
                                                     struct ggml_cgraph *cgraph)
{
    for (uint32_t i = 0; i < DEVICES; i++) {
        if (backends[i] == backend && ++n_graphs[i] == fails_at[i]) {
            backend->is_lost = true;
            (void)snprintf(backend->why, sizeof backend->why, "%s", WHY);
            return GGML_STATUS_FAILED;
        }
    }
    return __real_quire_backend_device_compute(backend, cgraph);
}

static replicas open_layers(uint32_t n_layers, uint32_t n_sets)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    replicas r;

    bench_device_layers = n_layers;
    bench_sets = n_sets;
    replicas_second_set = n_sets - 1;
    r = replicas_open("mock", &engine);
    bench_device_layers = bench_sets = replicas_second_set = 0;
    return r;
}

/* The answers of both devices at the same time, each on its thread. */
static void both(const replicas *r, uint64_t seed, answer answers[DEVICES])
{
    gate *gates[DEVICES] = { gate_close_at(r->b.engine, 0), gate_close_at(r->b.engine, 1) };
    quire_request *requests[DEVICES] = { replicas_ask(r, seed), replicas_ask(r, seed) };

    gate_open(gates[0]);
    gate_open(gates[1]);
    for (uint32_t i = 0; i < DEVICES; i++) {
        answers[i] = answer_take(requests[i]);
    }
}

static void test_same_answers(void **state)
{
    (void)state;
    for (uint32_t n_sets = 1; n_sets <= 2; n_sets++) {
        replicas r = open_layers(n_sets == 1 ? UINT32_MAX : 2, n_sets);
        quire_engine_device_stats devices[QUIRE_REPLICAS_MAX];
        uint64_t identities[DEVICES][2];

        quire_kv_identity_get(r.b.runtime, identities[0]);
        quire_kv_identity_get(r.second, identities[1]);
        assert_memory_equal(identities[0], identities[1], sizeof identities[0]);
        for (uint64_t seed = 0; seed < 3; seed++) {
            answer answers[DEVICES];

            both(&r, seed, answers);
            assert_memory_equal(answers[0].tokens, answers[1].tokens, sizeof answers[0].tokens);
        }
        (void)quire_engine_devices_get(r.b.engine, devices);
        assert_int_equal(devices[0].requests_total, 3);
        assert_int_equal(devices[1].requests_total, 3);
        replicas_close(&r);
    }
}

/* The second device's layers are lost in the middle of an answer. */
static void test_lost(void **state)
{
    replicas r = open_layers(UINT32_MAX, 2);
    quire_engine_device_stats devices[QUIRE_REPLICAS_MAX];
    char why[QUIRE_RUNTIME_WHY_BYTES];
    answer before[DEVICES], after[DEVICES];
    quire_request *requests[DEVICES];
    gate *g;

    (void)state;
    both(&r, 0, before);
    backends[0] = &r.b.runtime->layers_backends[0];
    backends[1] = &r.second->layers_backends[0];
    fails_at[1] = n_graphs[1] + 10;
    g = gate_close(r.b.engine);
    requests[0] = replicas_ask(&r, 1); /* on the first device, which stands still */
    requests[1] = replicas_ask(&r, 1);
    while (!quire_loop_is_lost(r.b.engine->loops[1])) {
        test_doze();
    }
    gate_open(g);
    for (uint32_t i = 0; i < DEVICES; i++) {
        after[i] = answer_take(requests[i]);
    }
    assert_memory_equal(after[0].tokens, after[1].tokens, sizeof after[0].tokens);
    assert_false(quire_engine_is_lost(r.b.engine));
    (void)quire_engine_devices_get(r.b.engine, devices);
    assert_false(devices[0].is_lost);
    assert_true(devices[1].is_lost);
    assert_string_equal(quire_runtime_lost_why(r.second, why, sizeof why), " (ggml: " WHY ")");
    assert_string_equal(quire_runtime_lost_why(r.b.runtime, why, sizeof why), "");
    assert_memory_equal(answer_take(replicas_ask(&r, 0)).tokens, before[0].tokens,
                        sizeof before[0].tokens);
    replicas_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_answers),
        cmocka_unit_test(test_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
