/* test_replicas_watch.c - the watchers of the trees of an engine with two devices.
 *
 * SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "replicas_kit.h"

#include "doze.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop.h"

#include <stdatomic.h>
#include <string.h>

/* Loops write it, also while they become idle. */
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

/* The pages that a watcher knows, and how often they were cleared. */
typedef struct known {
    quire_page_key keys[64];
    uint32_t n;
    uint32_t n_cleared;
    atomic_bool wants_again;
} known;

static bool hear_cleared(void *ctx)
{
    known *k = ctx;

    (void)pthread_mutex_lock(&known_lock);
    k->n = 0;
    k->n_cleared++;
    (void)pthread_mutex_unlock(&known_lock);
    return true;
}

static bool hear_stored(void *ctx, const quire_prefix_page *page)
{
    known *k = ctx;

    (void)pthread_mutex_lock(&known_lock);
    k->keys[k->n++ % 64] = *page->key;
    (void)pthread_mutex_unlock(&known_lock);
    return true;
}

static bool hear_removed(void *ctx, const quire_page_key *key)
{
    known *k = ctx;
    uint32_t i = 0;

    (void)pthread_mutex_lock(&known_lock);
    while (i < k->n && memcmp(&k->keys[i], key, sizeof *key) != 0) {
        i++;
    }
    k->keys[i] = k->keys[--k->n];
    (void)pthread_mutex_unlock(&known_lock);
    return true;
}

/* Wait until a watcher knows n pages and was cleared n_cleared times. */
static void known_wait(known *k, uint32_t n, uint32_t n_cleared)
{
    uint32_t n_now = 0;
    uint32_t n_cleared_now = 0;

    for (uint32_t i = 0; i < FIXTURE_WAIT_MS; i++) {
        (void)pthread_mutex_lock(&known_lock);
        n_now = k->n;
        n_cleared_now = k->n_cleared;
        (void)pthread_mutex_unlock(&known_lock);
        if (n_now == n && n_cleared_now == n_cleared) {
            return;
        }
        test_doze_ms();
    }
    fail_msg("%u pages are known, not %u; cleared %u times, not %u", n_now, n, n_cleared_now,
             n_cleared);
}

static bool hear_again(void *ctx)
{
    known *k = ctx;

    return atomic_exchange(&k->wants_again, false);
}

/* Let a device's thread come around. */
static void no_work(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)ctx;
    (void)cache;
    (void)tree;
}

/* Each device has a watcher of its own. The watcher of a lost device learns that nothing is left,
 * also when it asks again. */
static void test_watchers(void **state)
{
    const quire_mock_device_opts faults = { .loss = 1.0 };
    known heard[DEVICES] = { { .n = 0 } };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_prefix_watcher watcher = { hear_cleared, hear_stored, hear_removed, hear_again,
                                     &heard[0] };
    replicas r;

    (void)state;
    quire_classes_default(&engine.classes);
    engine.devices.bindings = replica_bindings;
    engine.devices.n_bindings = DEVICES;
    engine.watcher = watcher;
    watcher.ctx = &heard[1];
    replicas_second_watcher = watcher;
    r = replicas_open("mock", &engine);
    (void)ask_at(&r, 1, 0);
    known_wait(&heard[0], 0, 1);
    known_wait(&heard[1], N_FULL / 64, 1);
    (void)ask_at(&r, 0, 1);
    (void)ask_at(&r, 0, 2);
    known_wait(&heard[0], 2 * (N_FULL / 64), 1);
    assert_true(ask_at(&r, 0, 2).n_cached >= N_FULL); /* the dispatcher is told as before */
    known_wait(&heard[1], N_FULL / 64, 1);

    quire_mock_device_set(replica_mocks[0], &faults);
    (void)ask_at(&r, 0, 2);
    known_wait(&heard[0], 0, 2);
    known_wait(&heard[1], 2 * (N_FULL / 64), 1);

    atomic_store(&heard[0].wants_again, true);
    assert_int_equal(quire_loop_call(r.b.engine->loops[0], no_work, NULL), QUIRE_OK);
    known_wait(&heard[0], 0, 3);
    replicas_close(&r);
    assert_int_equal(heard[0].n_cleared, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_watchers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
