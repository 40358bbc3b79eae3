/* test_replicas_soak.c - many small requests from several clients for an engine with two devices
 * over stores that they have in common: shared beginnings, tenants, a pinned class, cancels,
 * invalidations all the while, tight budgets, a small relay, a bad store, a device that is lost.
 * Every answer is the one that a request alone would get.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "device/mock_device.h"
#include "doze.h"
#include "engine/replicas.h"
#include "rounds.h"
#include "seed.h"
#include "soak_fixture.h"
#include "store/chain_store.h"
#include "store/common_store.h"
#include "store/host_store.h"
#include "store/memory_store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define DEVICES    2u
#define N_CLIENTS  4u
#define N_REQUESTS TEST_ROUNDS(600u, 200u)
#define N_TEXTS    12u
#define TOKENS_MAX 40u
#define IN_FLIGHT  6u
#define PAGE_BYTES (2u * 2u * 2u * 32u * 64u * 2u) /* 2 layers, K and V, 2 heads, f16 */

typedef struct soak_opts {
    uint64_t n_pages;     /* budget of each device */
    uint64_t store_bytes; /* of the host's memory */
    bool has_far;         /* a store with faults behind it */
    bool has_pinned;
    uint64_t lose_at; /* work of the second device; 0 = never */
} soak_opts;

static struct soak {
    engine_bench b;
    quire_runtime *second;
    soak_texts texts;
    atomic_uint n_failed;
    atomic_bool is_over;
} s;

typedef struct client {
    quire_rng rng;
    pthread_t thread;
} client;

/* ---- clients; cmocka's assertions belong to the main thread ---- */

/* Ends a request in one of the ways clients do. */
static void land(client *c, const soak_flight *f)
{
    quire_request_token token;
    int rc = 0;

    switch (quire_rng_below(&c->rng, 8)) {
    case 0: /* gone without a word */
        break;
    case 1: /* cancelled, and waited for */
        quire_request_cancel(f->request);
        rc = quire_request_wait(f->request, UINT32_MAX, FIXTURE_WAIT_MS, &token);
        break;
    default:
        rc = soak_flight_finish(&s.texts, f);
        break;
    }
    atomic_fetch_add(&s.n_failed, rc != 0);
    quire_request_release(f->request);
}

static void *client_main(void *arg)
{
    client *c = arg;
    soak_flight flights[IN_FLIGHT];
    uint32_t n = 0;

    for (uint32_t i = 0; i < N_REQUESTS / N_CLIENTS; i++) {
        quire_request_params params = soak_params(&s.texts, &c->rng, &flights[n]);
        quire_error err = QUIRE_ERROR_INIT;

        params.class_index = quire_rng_below(&c->rng, 3);
        if (quire_engine_submit(s.b.engine, &params, &flights[n].request, &err) != QUIRE_OK) {
            atomic_fetch_add(&s.n_failed, 1);
            continue;
        }
        if (++n == IN_FLIGHT || quire_rng_below(&c->rng, 3) == 0) {
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

static void drop_some(quire_rng *rng)
{
    const uint32_t text = quire_rng_below(rng, N_TEXTS), what = quire_rng_below(rng, 8);
    const quire_invalidate drop = {
        .what = what == 0   ? QUIRE_INVALIDATE_ALL
                : what == 1 ? QUIRE_INVALIDATE_TENANT
                            : QUIRE_INVALIDATE_PREFIX,
        .tenant = quire_rng_below(rng, 2) == 0 ? "a" : "b",
        .tenant_bytes = 1,
        .tokens = s.texts.tokens[text],
        .n_tokens = quire_rng_below(rng, s.texts.n_tokens[text]),
    };
    quire_prefix_dropped dropped;

    atomic_fetch_add(&s.n_failed, quire_engine_invalidate(s.b.engine, &drop, &dropped) != QUIRE_OK);
}

static void *dropper_main(void *arg)
{
    client *c = arg;

    while (!atomic_load(&s.is_over)) {
        drop_some(&c->rng);
        for (uint32_t i = quire_rng_below(&c->rng, 40); i > 0; i--) {
            test_doze_ms();
        }
    }
    return NULL;
}

/* ---- the engine ---- */

static quire_mock_device_opts faults[DEVICES];
static uint32_t n_mocks;

static int open_mock(quire_device **out, const char *name, const quire_device_opts *opts,
                     quire_error *err)
{
    (void)name;
    return quire_mock_device_open(out, opts, &faults[n_mocks++ % DEVICES], err);
}

static void stores_open(const soak_opts *o, quire_store *out[DEVICES])
{
    const quire_host_store_opts host = { .capacity_bytes = o->store_bytes };
    const quire_memory_store_opts bad = { .capacity_bytes = 4 * o->store_bytes,
                                          .seed = 1,
                                          .failure = 0.05,
                                          .loss = 0.05,
                                          .flip = 0.05,
                                          .swap = 0.05 };
    quire_store *far[DEVICES], *below;

    assert_int_equal(quire_host_store_create(&out[0], &host), QUIRE_OK);
    assert_int_equal(quire_host_store_share(&out[1], out[0]), QUIRE_OK);
    if (!o->has_far) {
        return;
    }
    assert_int_equal(quire_memory_store_create(&below, &bad), QUIRE_OK);
    assert_int_equal(quire_common_store_create(&far[0], below, 0), QUIRE_OK);
    assert_int_equal(quire_common_store_share(&far[1], far[0]), QUIRE_OK);
    for (uint32_t i = 0; i < DEVICES; i++) {
        const quire_chain_store_opts chain = { .near = out[i],
                                               .far = far[i],
                                               .is_near_volatile = true };

        assert_int_equal(quire_chain_store_create(&out[i], &chain), QUIRE_OK);
    }
}

static void runtimes_open(const soak_opts *o)
{
    const quire_engine_opts alone = QUIRE_ENGINE_OPTS_INIT;
    quire_runtime_opts runtime = bench_runtime_opts(SOAK_N_CTX, 8);

    n_mocks = 0;
    faults[0] = (quire_mock_device_opts){ .delay_ticks = 1000 };
    faults[1] = (quire_mock_device_opts){ .delay_ticks = 1000, .lose_at = o->lose_at };
    runtime.n_batch = 128;
    runtime.k_format = runtime.v_format = QUIRE_FORMAT_F16;
    runtime.device = "mock";
    runtime.device_open = open_mock;
    runtime.kv_budget_bytes = o->n_pages * PAGE_BYTES;
    s.b = bench_panels(32, &alone, &runtime);
    quire_engine_destroy(s.b.engine);
    s.second = fixture_runtime(s.b.model, &runtime);
}

static void engine_open(const soak_opts *o)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_engine_device second = { .runtime = s.second };
    quire_store *stores[DEVICES];
    quire_error err = QUIRE_ERROR_INIT;

    stores_open(o, stores);
    engine.tier.store = stores[0];
    second.store = stores[1];
    engine.tier.wait_us = QUIRE_TIER_WAIT_ALWAYS;
    engine.tier.copies_all = true;
    engine.model = s.b.model;
    engine.runtime = s.b.runtime;
    engine.devices.items = &second;
    engine.devices.n = 1;
    engine.chunk_tokens = 96;
    quire_classes_default(&engine.classes);
    if (o->has_pinned) {
        engine.classes.items[engine.classes.n - 1].is_pinned = true;
        engine.pinned_bytes = o->n_pages / 3 * PAGE_BYTES;
    }
    if (quire_engine_create(&s.b.engine, &engine, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
}

static void engine_close(const soak_opts *o)
{
    quire_engine_device_stats devices[QUIRE_REPLICAS_MAX];
    quire_engine_stats stats;
    quire_cache_stats cache;

    while (!quire_engine_is_idle(s.b.engine)) { /* requests that were let go of */
        test_doze_ms();
    }
    assert_int_equal(quire_engine_devices_get(s.b.engine, devices), DEVICES);
    assert_int_equal(devices[1].is_lost, o->lose_at != 0);
    quire_engine_stats_get(s.b.engine, &stats);
    assert_int_equal(stats.finished_error_total, 0);
    assert_true(stats.tier.fetched_tokens_total > 0 && stats.tier.store.evicted_total > 0);
    validate(s.b.engine);
    quire_engine_destroy(s.b.engine);
    s.b.engine = NULL;
    quire_cache_validate(quire_runtime_cache(s.second));
    quire_cache_stats_get(quire_runtime_cache(s.second), &cache);
    assert_int_equal(cache.pages_live, 0);
    assert_int_equal(cache.seqs_open, 0);
    quire_runtime_destroy(s.second);
    bench_close(&s.b);
}

/* ---- tests ---- */

static void soak_run(const soak_opts *o)
{
    quire_rng rng = test_rng(2026);
    client clients[N_CLIENTS], dropper = { .rng = { 77 } };

    memset(&s, 0, sizeof s);
    runtimes_open(o);
    engine_open(o);
    s.texts.n = N_TEXTS;
    s.texts.answer_tokens = TOKENS_MAX;
    soak_texts_make(&s.texts, &s.b, 70, &rng);
    assert_int_equal(pthread_create(&dropper.thread, NULL, dropper_main, &dropper), 0);
    for (uint32_t i = 0; i < N_CLIENTS; i++) {
        clients[i].rng = (quire_rng){ quire_rng_below(&rng, 1u << 30) };
        assert_int_equal(pthread_create(&clients[i].thread, NULL, client_main, &clients[i]), 0);
    }
    for (uint32_t i = 0; i < N_CLIENTS; i++) {
        (void)pthread_join(clients[i].thread, NULL);
    }
    atomic_store(&s.is_over, true);
    (void)pthread_join(dropper.thread, NULL);
    assert_int_equal(s.n_failed, 0);
    engine_close(o);
}

static void test_relay(void **state)
{
    (void)state;
    soak_run(&(soak_opts){ .n_pages = 24, .store_bytes = 400000 });
}

static void test_relay_tight(void **state)
{
    (void)state;
    soak_run(&(soak_opts){ .n_pages = 14, .store_bytes = 150000, .has_pinned = true });
}

static void test_bad_store(void **state)
{
    (void)state;
    soak_run(
        &(soak_opts){ .n_pages = 20, .store_bytes = 250000, .has_far = true, .has_pinned = true });
}

static void test_lost(void **state)
{
    (void)state;
    soak_run(&(soak_opts){ .n_pages = 20,
                           .store_bytes = 250000,
                           .has_far = true,
                           .has_pinned = true,
                           .lose_at = 3000 });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_relay),
        cmocka_unit_test(test_relay_tight),
        cmocka_unit_test(test_bad_store),
        cmocka_unit_test(test_lost),
    };

    return cmocka_run_group_tests_name("replicas_soak", tests, NULL, NULL);
}
