/* test_replicas_store.c - an engine with two devices over one directory: a device finds pages that
 * another device of its identity stored, also after a restart; drops, sessions and pins. Mocks, and
 * the CPU, whose identity is another one.
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
#include "engine/adapt/adapt.h"
#include "engine/engine_halves.h"
#include "engine/loop/loop.h"
#include "engine/loop/tier_object.h"
#include "engine/pins.h"
#include "engine/views.h"
#include "file_kit.h"
#include "store/chain_store.h"
#include "store/common_store.h"
#include "store/host_store.h"
#include "store/memory_store.h"

#include <stdatomic.h>
#include <string.h>

#define N_COMMON 128u
#define UNBOUND  2u /* a class */

static char dir[256];

/* An engine on the directory; with a host's memory in front, if that is wanted. */
static replicas open_at(bool has_host, bool first_is_cpu)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_file_store_opts opts = kit_opts(dir, QUIRE_READS_AUTO);
    quire_store *files[DEVICES], *hosts[DEVICES], *stores[DEVICES];

    opts.capacity_bytes = (uint64_t)64 << 20;
    opts.segment_bytes = (uint64_t)4 << 20;
    assert_int_equal(quire_common_store_create(&files[0], kit_open(&opts), 0), QUIRE_OK);
    assert_int_equal(quire_common_store_share(&files[1], files[0]), QUIRE_OK);
    assert_int_equal(
        quire_host_store_create(&hosts[0], &(quire_host_store_opts){ .capacity_bytes = 64u << 20 }),
        QUIRE_OK);
    assert_int_equal(quire_host_store_share(&hosts[1], hosts[0]), QUIRE_OK);
    for (uint32_t i = 0; i < DEVICES; i++) {
        const quire_chain_store_opts chain = { .near = hosts[i],
                                               .far = files[i],
                                               .is_near_volatile = true };

        stores[i] = files[i];
        if (has_host) {
            assert_int_equal(quire_chain_store_create(&stores[i], &chain), QUIRE_OK);
        } else {
            kit_close(hosts[i]);
        }
    }
    engine.tier = (quire_tier_opts){ .store = stores[0],
                                     .copies_all = true,
                                     .wait_us = QUIRE_TIER_WAIT_ALWAYS };
    replicas_second_store = stores[1];
    engine.saver = (quire_saver_opts){ .dir = dir, .keeps = { true, true, true } };
    quire_classes_default(&engine.classes);
    engine.devices.bindings = replica_bindings;
    engine.devices.n_bindings = DEVICES;
    engine.precache.is_off = true;
    replicas_first_is_cpu = first_is_cpu;
    return replicas_open("mock", &engine);
}

static quire_engine_device_stats device_of(const replicas *r, uint32_t device)
{
    quire_engine_device_stats devices[QUIRE_REPLICAS_MAX];

    assert_int_equal(quire_engine_devices_get(r->b.engine, devices), DEVICES);
    return devices[device];
}

/* Wait until a device has copied its pages. */
static void wait_copied(const replicas *r, uint32_t device, uint64_t n_pages)
{
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS; i++) {
        if (device_of(r, device).copied_pages_total >= n_pages) {
            return;
        }
        test_doze_ms();
    }
    fail_msg("device %u has copied %u pages", device,
             (unsigned)device_of(r, device).copied_pages_total);
}

/* Each text on the device that has computed it, then on the other one: first below memory of the
 * same process, then after a restart. Answers have the same bits, and hits are as deep. */
static void check_shared(bool has_host)
{
    answer first[DEVICES], again;
    quire_engine_stats stats;
    replicas r;

    kit_dir_make(dir);
    r = open_at(has_host, false);
    for (uint32_t i = 0; i < DEVICES; i++) {
        first[i] = ask_at(&r, i, i);
        assert_int_equal(first[i].n_cached, 0);
        wait_copied(&r, i, N_FULL / 64);
    }
    for (uint32_t i = 0; i < DEVICES; i++) {
        again = ask_at(&r, 1 - i, i);
        assert_true(again.n_cached >= N_FULL);
        assert_memory_equal(again.tokens, first[i].tokens, sizeof again.tokens);
        assert_true(device_of(&r, 1 - i).fetched_tokens_total >= N_FULL);
    }
    replicas_close(&r);

    for (uint32_t k = 0; k < DEVICES; k++) { /* at the device of before, at the other one */
        r = open_at(has_host, false);
        for (uint32_t i = 0; i < DEVICES; i++) {
            const uint32_t device = k == 0 ? i : 1 - i;

            again = ask_at(&r, device, i);
            assert_int_equal(again.n_cached, N_PROMPT - 1); /* the open page, too */
            assert_memory_equal(again.tokens, first[i].tokens, sizeof again.tokens);
            assert_int_equal(device_of(&r, device).fetched_tokens_total, N_PROMPT - 1);
        }
        quire_engine_stats_get(r.b.engine, &stats); /* figures of the records are counted once */
        assert_int_equal(stats.tier.fetched_tokens_total, DEVICES * (N_PROMPT - 1));
        assert_int_equal(stats.tier.n_parts, has_host ? 2 : 1);
        assert_int_equal(stats.tier.store.results_total[QUIRE_STORE_OK], DEVICES * 4);
        assert_int_equal(stats.tier.parts[stats.tier.n_parts - 1].stats.reads_total, DEVICES * 4);
        validate(r.b.engine);
        replicas_close(&r);
    }
    kit_dir_remove(dir);
}

static void test_shared(void **state)
{
    (void)state;
    check_shared(false);
}

static void test_shared_behind_host(void **state)
{
    (void)state;
    check_shared(true);
}

/* The CPU's pages are not the mock's: each finds its own after a restart, in one directory. */
static void test_identities(void **state)
{
    answer first[DEVICES];
    quire_engine_stats stats;
    replicas r;

    (void)state;
    kit_dir_make(dir);
    r = open_at(false, true);
    first[0] = ask_at(&r, 0, 7);
    wait_copied(&r, 0, N_FULL / 64);
    first[1] = ask_at(&r, 1, 7);
    assert_int_equal(first[1].n_cached, 0);
    assert_int_equal(device_of(&r, 1).fetched_tokens_total, 0);
    wait_copied(&r, 1, N_FULL / 64);
    replicas_close(&r);

    r = open_at(false, true);
    for (uint32_t i = 0; i < DEVICES; i++) {
        const answer again = ask_at(&r, i, 7);

        assert_int_equal(again.n_cached, N_PROMPT - 1);
        assert_memory_equal(again.tokens, first[i].tokens, sizeof again.tokens);
    }
    quire_engine_stats_get(r.b.engine, &stats);
    assert_true(stats.tier.store.records >= 2 * (N_FULL / 64));
    assert_int_equal(stats.tier.store.results_total[QUIRE_STORE_IDENTITY], 0);
    replicas_close(&r);
    kit_dir_remove(dir);
}

static void tree_forget(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)ctx;
    (void)cache;
    (void)quire_prefix_drop_all(tree, 0);
}

/* The last device comes first: the first one, to which a text without pages in memory goes, begins
 * to read when all have forgotten. */
static void trees_forget(const replicas *r)
{
    for (uint32_t i = DEVICES; i-- > 0;) {
        assert_int_equal(quire_loop_call(r->b.engine->loops[i], tree_forget, NULL), QUIRE_OK);
    }
}

/* A request goes to the device for whose identity its text is stored: in the process that stored
 * it, and after a restart. */
static void test_stored_choice(void **state)
{
    answer first, again;
    replicas r;

    (void)state;
    kit_dir_make(dir);
    r = open_at(false, true);
    first = ask_at(&r, 1, 7);
    wait_copied(&r, 1, N_FULL / 64);
    for (uint32_t round = 0; round < 2; round++) {
        if (round == 0) {
            trees_forget(&r);
        } else {
            replicas_close(&r);
            r = open_at(false, true);
        }
        again = ask_at(&r, UNBOUND, 7);
        assert_int_equal(device_of(&r, 0).requests_total, 0);
        assert_true(again.n_cached >= N_FULL);
        assert_memory_equal(again.tokens, first.tokens, sizeof again.tokens);
    }
    replicas_close(&r);
    kit_dir_remove(dir);
}

/* A device is lost: the other one reads its stored pages. */
static void test_lost(void **state)
{
    const quire_mock_device_opts faults = { .loss = 1.0 };
    answer first, again;
    replicas r;

    (void)state;
    kit_dir_make(dir);
    r = open_at(false, false);
    first = ask_at(&r, 0, 3);
    wait_copied(&r, 0, N_FULL / 64);
    quire_mock_device_set(replica_mocks[0], &faults);
    again = ask_at(&r, 0, 3); /* begins on the first device, by its class */
    assert_memory_equal(again.tokens, first.tokens, sizeof again.tokens);
    assert_true(device_of(&r, 0).is_lost);
    assert_true(device_of(&r, 1).fetched_tokens_total >= N_FULL);
    replicas_close(&r);
    kit_dir_remove(dir);
}

/* A copy of a stored page to a device fails late: the device is lost, and the other one reads the
 * stored pages. */
static void test_late_failure(void **state)
{
    const quire_mock_device_opts faults = { .copy_failure = 1.0, .delay_ticks = 1000 };
    answer first, again;
    replicas r;

    (void)state;
    kit_dir_make(dir);
    r = open_at(false, false);
    first = ask_at(&r, 0, 3);
    wait_copied(&r, 0, N_FULL / 64);
    trees_forget(&r);
    quire_mock_device_set(replica_mocks[0], &faults);
    again = ask_at(&r, 0, 3);
    assert_memory_equal(again.tokens, first.tokens, sizeof again.tokens);
    assert_true(device_of(&r, 0).is_lost);
    assert_true(device_of(&r, 1).fetched_tokens_total >= N_FULL);
    replicas_close(&r);
    kit_dir_remove(dir);
}

/* Dropping removes the stored pages of both devices. */
static void test_dropped(void **state)
{
    const quire_invalidate all = { .what = QUIRE_INVALIDATE_ALL };
    quire_prefix_dropped dropped;
    replicas r;

    (void)state;
    kit_dir_make(dir);
    r = open_at(false, false);
    for (uint32_t i = 0; i < DEVICES; i++) {
        (void)ask_at(&r, i, i);
        wait_copied(&r, i, N_FULL / 64);
    }
    assert_int_equal(quire_engine_invalidate(r.b.engine, &all, &dropped), QUIRE_OK);
    for (uint32_t i = 0; i < DEVICES; i++) {
        assert_int_equal(ask_at(&r, 1 - i, i).n_cached, 0);
    }
    replicas_close(&r);
    kit_dir_remove(dir);
}

/* ---- between the drops of two devices ---- */

/* The store calls of the first device stop behind its drop, those of the second in front of it. */
static struct between {
    const quire_store_ops *ops;
    quire_store_ops own[DEVICES];
    atomic_uint at;     /* the last stop that was reached */
    atomic_uint passed; /* the last one that may be left */
} between;

static void stop_here(uint32_t number)
{
    atomic_store(&between.at, number);
    while (atomic_load(&between.passed) < number) {
        test_doze_ms();
    }
}

static int first_drop(quire_store *store, const quire_store_drop *drop)
{
    const int rc = between.ops->drop(store, drop);

    stop_here(1);
    return rc;
}

static int second_drop(quire_store *store, const quire_store_drop *drop)
{
    stop_here(2);
    return between.ops->drop(store, drop);
}

static void stop_wait(uint32_t number)
{
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && atomic_load(&between.at) < number; i++) {
        test_doze_ms();
    }
    assert_int_equal(atomic_load(&between.at), number);
}

static void *drop_all(void *ctx)
{
    const quire_invalidate all = { .what = QUIRE_INVALIDATE_ALL };
    const replicas *r = ctx;
    quire_prefix_dropped dropped;

    assert_int_equal(quire_engine_invalidate(r->b.engine, &all, &dropped), QUIRE_OK);
    return NULL;
}

static void unmark(void *ctx, const quire_prefix_copy *copy)
{
    (void)quire_prefix_copy_mark_set(ctx, copy->node, copy->key, QUIRE_COPY_NONE);
}

/* As if the pages had just been computed. */
static void copy_now(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    (void)cache;
    (void)quire_prefix_copies_visit(tree, 1, UINT32_MAX, unmark, tree);
    while (quire_tier_copy(ctx, 0)) {
    }
}

static uint64_t records_of(const quire_store *store)
{
    quire_store_stats stats;

    store->ops->stats(store, &stats);
    return stats.records;
}

/* A device that drops second puts its page below when the first one has dropped, which is asked for
 * the text at once: it must not get the dropped page. */
static void test_between(void **state)
{
    const quire_memory_store_opts opts = { 0 };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    int32_t text[N_PROMPT] = { 0 };
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    quire_request *request;
    quire_store *store;
    pthread_t thread;
    replicas r;

    (void)state;
    assert_int_equal(quire_memory_store_create(&store, &opts), QUIRE_OK);
    assert_int_equal(quire_common_store_create(&engine.tier.store, store, 0), QUIRE_OK);
    assert_int_equal(quire_common_store_share(&replicas_second_store, engine.tier.store), QUIRE_OK);
    between.ops = engine.tier.store->ops;
    between.own[0] = between.own[1] = *between.ops;
    between.own[0].drop = first_drop;
    between.own[1].drop = second_drop;
    engine.tier.store->ops = &between.own[0];
    replicas_second_store->ops = &between.own[1];
    engine.tier.wait_us = QUIRE_TIER_WAIT_ALWAYS;
    engine.tier.copies_all = true;
    engine.precache.is_off = true;
    quire_classes_default(&engine.classes);
    engine.devices.bindings = replica_bindings;
    engine.devices.n_bindings = DEVICES;
    r = replicas_open("mock", &engine);
    (void)ask_at(&r, 1, 3);
    wait_copied(&r, 1, N_FULL / 64);

    assert_int_equal(pthread_create(&thread, NULL, drop_all, &r), 0);
    stop_wait(1);
    assert_int_equal(records_of(store), 0);
    assert_int_equal(quire_loop_call(r.b.engine->loops[1], copy_now, r.b.engine->loops[1]),
                     QUIRE_OK);
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && records_of(store) < N_FULL / 64; i++) {
        test_doze_ms();
    }
    assert_true(records_of(store) >= N_FULL / 64);
    atomic_store(&between.passed, 1);
    stop_wait(2);
    tokens_make(text, N_PROMPT, 3);
    request = submit(&r.b, &params); /* of class 0: the first device's */
    for (uint32_t i = 0; i < 50; i++) {
        test_doze_ms();
    }
    assert_int_equal(device_of(&r, 0).fetched_tokens_total, 0);
    atomic_store(&between.passed, 2);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(answer_take(request).n_cached, 0);
    assert_int_equal(device_of(&r, 0).fetched_tokens_total, 0);
    replicas_close(&r);
}

/* A text that begins with the two pages that all these texts share. */
static void text_make(int32_t text[N_PROMPT], uint64_t seed)
{
    tokens_make(text, N_PROMPT, 40);
    tokens_make(text + N_COMMON, N_PROMPT - N_COMMON, seed);
}

/* A turn of a session on a device. */
static void turn_at(const replicas *r, const char *id, uint32_t device, uint64_t seed)
{
    const quire_chat_message message = { "user", "a", NULL };
    const uint64_t now_us = quire_loop_now_us(r->b.engine->loops[0]);
    quire_sessions *sessions = quire_engine_sessions(r->b.engine);
    quire_error err = QUIRE_ERROR_INIT;
    int32_t text[N_PROMPT] = { 0 };
    quire_request_params params = params_greedy(text, N_PROMPT, 1);
    quire_request *request;
    uint32_t n_tokens;
    int32_t *tokens;

    text_make(text, seed);
    params.class_index = device;
    assert_int_equal(quire_sessions_enter(sessions, NULL, 0, id, now_us, &params.session, &err),
                     QUIRE_OK);
    request = submit(&r->b, &params);
    (void)finish(request);
    tokens = quire_request_tokens_take(request, &n_tokens);
    assert_int_equal(
        quire_sessions_commit(sessions, params.session, &message, 1, tokens, n_tokens, now_us),
        QUIRE_OK);
    quire_request_release(request);
    quire_sessions_leave(sessions, params.session, now_us);
}

static void look_none(void *ctx, const quire_session_info *info)
{
    (void)ctx;
    (void)info;
}

static bool has_session(const replicas *r, const char *id)
{
    return quire_sessions_look(quire_engine_sessions(r->b.engine), NULL, 0, id, look_none, NULL) ==
           QUIRE_OK;
}

static uint32_t cached_at(const replicas *r, uint32_t device, uint64_t seed)
{
    int32_t text[N_PROMPT] = { 0 };
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);

    text_make(text, seed);
    params.class_index = device;
    return answer_take(submit(&r->b, &params)).n_cached;
}

/* A closed session of one device takes along no page of a text that another device has. */
static void test_session(void **state)
{
    const quire_invalidate session = { .what = QUIRE_INVALIDATE_SESSION, .session_id = "s" };
    quire_prefix_dropped dropped;
    replicas r;

    (void)state;
    kit_dir_make(dir);
    r = open_at(false, false);
    turn_at(&r, "s", 1, 41);
    wait_copied(&r, 1, N_FULL / 64);
    assert_true(cached_at(&r, 0, 42) >= N_COMMON); /* the session's, from the directory */
    wait_copied(&r, 0, 1);
    assert_int_equal(quire_engine_invalidate(r.b.engine, &session, &dropped), QUIRE_OK);
    assert_true(dropped.nodes > 0);
    assert_int_equal(cached_at(&r, 1, 43), N_COMMON);
    assert_int_equal(cached_at(&r, 1, 41), N_COMMON); /* and nothing of the session's own */
    replicas_close(&r);
    kit_dir_remove(dir);
}

/* ---- reading ahead ---- */

#define SECOND ((uint64_t)1000000)

static _Atomic uint64_t the_clock = 1000 * SECOND;

/* Pages of sessions are read in idle time by the clock above. */
static replicas open_ahead(void)
{
    const quire_memory_store_opts opts = { 0 };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_store *store;

    assert_int_equal(quire_memory_store_create(&store, &opts), QUIRE_OK);
    assert_int_equal(quire_common_store_create(&engine.tier.store, store, 0), QUIRE_OK);
    assert_int_equal(quire_common_store_share(&replicas_second_store, engine.tier.store), QUIRE_OK);
    engine.tier.wait_us = QUIRE_TIER_WAIT_ALWAYS;
    engine.tier.copies_all = true;
    engine.precache.idle_us = 1;
    engine.clock_us = hands_of;
    engine.clock_ctx = &the_clock;
    engine.sessions.ttl_us = 0;
    quire_classes_default(&engine.classes);
    engine.devices.bindings = replica_bindings;
    engine.devices.n_bindings = DEVICES;
    return replicas_open("mock", &engine);
}

/* Let time pass, and wait for idle time of a device behind it: there it copies its open page. */
static void pass_idle(const replicas *r, uint32_t device, uint64_t us)
{
    const uint64_t n_pages = N_FULL / 64;

    wait_copied(r, device, n_pages);
    atomic_fetch_add(&the_clock, us);
    wait_copied(r, device, n_pages + 1);
}

/* Wait until pages have been read ahead, and none is on its way. */
static void wait_ahead(const replicas *r, quire_engine_stats *stats)
{
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS; i++) {
        quire_engine_stats_get(r->b.engine, stats);
        if (stats->tier.ahead_total > 0 && stats->tier.fetching == 0) {
            return;
        }
        test_doze_ms();
    }
    fail_msg("%u texts were read ahead, of %u tokens; %u fetches run, %u were begun",
             (unsigned)stats->tier.ahead_total, (unsigned)stats->tier.fetched_tokens_total,
             (unsigned)stats->tier.fetching, (unsigned)stats->tier.fetches_total);
}

/* A session's pages are read to one device, and not while another has them in memory. */
static void test_ahead(void **state)
{
    quire_engine_stats stats;
    replicas r;

    (void)state;
    r = open_ahead();
    turn_at(&r, "s", 0, 41);
    pass_idle(&r, 0, 100 * SECOND);
    turn_at(&r, "s", 0, 41); /* the next one should come in 100 seconds */
    (void)ask_at(&r, 1, 9);
    pass_idle(&r, 1, 52 * SECOND);
    quire_engine_stats_get(r.b.engine, &stats);
    assert_int_equal(stats.tier.ahead_total, 0);
    trees_forget(&r);
    wait_ahead(&r, &stats);
    assert_int_equal(stats.tier.ahead_total, 1);
    assert_int_equal(device_of(&r, 0).fetched_tokens_total, stats.tier.fetched_tokens_total);
    assert_true(stats.tier.fetched_tokens_total >= N_FULL);
    replicas_close(&r);
}

/* ---- state that outlives a restart ---- */

static void pin_create(const replicas *r, uint32_t device, const char *name)
{
    int32_t text[N_PROMPT] = { 0 };
    const quire_engine_pin_params params = {
        .name = name, .tokens = text, .n_tokens = N_PROMPT, .class_index = device, .ttl_s = 1000
    };
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin pin;

    tokens_make(text, N_PROMPT, 20 + device);
    if (quire_engine_pin_create(r->b.engine, &params, &pin, NULL, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
}

static void wait_held(const replicas *r, const char *name)
{
    const quire_engine_pin_name of = { NULL, 0, name };
    quire_engine_pin pin = { .state = QUIRE_ENGINE_PIN_COMPUTING };

    for (uint32_t i = 0; i < FIXTURE_WAIT_MS; i++) {
        assert_int_equal(quire_engine_pin_get(r->b.engine, &of, &pin), QUIRE_OK);
        if (pin.state == QUIRE_ENGINE_PIN_HELD) {
            return;
        }
        test_doze_ms();
    }
    fail_msg("pin %s has the state %u, and %u of %u tokens", name, (unsigned)pin.state,
             pin.n_held_tokens, pin.n_tokens);
}

static uint32_t pins_at(const replicas *r, uint32_t device)
{
    const quire_adapt_pins_ask all = { .tenant = NULL };
    uint32_t n;

    (void)quire_adapt_pins_list(r->b.engine->adapts[device], &all, NULL, 0, &n);
    return n;
}

/* Pins of both devices come back on the devices of their classes. So do the reuse models of the
 * trees.
 */
static void test_pins(void **state)
{
    quire_engine_stats stats;
    replicas r;

    (void)state;
    kit_dir_make(dir);
    r = open_at(false, false);
    pin_create(&r, 0, "a");
    pin_create(&r, 1, "b");
    replicas_close(&r);

    r = open_at(false, false);
    quire_engine_stats_get(r.b.engine, &stats);
    assert_int_equal(stats.saver.restored_total[QUIRE_STATE_PIN], DEVICES);
    assert_int_equal(stats.saver.restored_total[QUIRE_STATE_REUSE], 1);
    for (uint32_t i = 0; i < DEVICES; i++) {
        assert_int_equal(pins_at(&r, i), 1);
        wait_held(&r, i == 0 ? "a" : "b");
        assert_true(ask_at(&r, i, 20 + i).n_cached >= N_FULL);
    }
    assert_int_equal(quire_engine_pin_drop(r.b.engine, &(quire_engine_pin_name){ NULL, 0, "b" }),
                     QUIRE_OK);
    replicas_close(&r);

    r = open_at(false, false); /* a dropped pin of the second device does not come back */
    assert_int_equal(pins_at(&r, 0), 1);
    assert_int_equal(pins_at(&r, 1), 0);
    replicas_close(&r);
    kit_dir_remove(dir);
}

static uint64_t restored(const replicas *r, quire_state_kind kind)
{
    quire_engine_stats stats;

    quire_engine_stats_get(r->b.engine, &stats);
    return stats.saver.restored_total[kind];
}

/* Items of two devices of different kinds: a server without one of the kinds takes up those of the
 * other alone, and leaves the rest to a server that has both. */
static void test_items(void **state)
{
    replicas r;

    (void)state;
    kit_dir_make(dir);
    r = open_at(false, true); /* the CPU and a mock */
    pin_create(&r, 0, "a");
    pin_create(&r, 1, "b");
    turn_at(&r, "s", 0, 41);
    turn_at(&r, "t", 1, 42);
    turn_at(&r, "u", 1, 43);
    turn_at(&r, "u", 0, 43); /* another device has its last turn */
    replicas_close(&r);

    r = open_at(false, false); /* two mocks */
    assert_int_equal(restored(&r, QUIRE_STATE_PIN), 1);
    assert_int_equal(pins_at(&r, 1), 1);
    wait_held(&r, "b");
    assert_int_equal(restored(&r, QUIRE_STATE_SESSION), 1);
    assert_true(has_session(&r, "t"));
    assert_int_equal(restored(&r, QUIRE_STATE_REUSE), 1);
    replicas_close(&r);

    r = open_at(false, true);
    assert_int_equal(restored(&r, QUIRE_STATE_PIN), 2);
    assert_int_equal(pins_at(&r, 0), 1);
    assert_int_equal(pins_at(&r, 1), 1);
    assert_int_equal(restored(&r, QUIRE_STATE_SESSION), 3);
    assert_int_equal(restored(&r, QUIRE_STATE_REUSE), 2);
    replicas_close(&r);
    kit_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared),       cmocka_unit_test(test_shared_behind_host),
        cmocka_unit_test(test_identities),   cmocka_unit_test(test_lost),
        cmocka_unit_test(test_late_failure), cmocka_unit_test(test_stored_choice),
        cmocka_unit_test(test_between),      cmocka_unit_test(test_items),
        cmocka_unit_test(test_dropped),      cmocka_unit_test(test_pins),
        cmocka_unit_test(test_session),      cmocka_unit_test(test_ahead),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
