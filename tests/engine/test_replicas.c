/* test_replicas.c - an engine with several devices: requests go where their text is cached, and a
 * lost device's requests go on elsewhere. Mocks, whose bits are the CPU's, and a Vulkan device that
 * is opened twice.
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
#include "engine/loop/request.h"
#include "engine/pins.h"
#include "engine/views.h"
#include "store/host_store.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Memory that lavapipe keeps after its devices are closed is no leak of ours. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libvulkan_lvp.so";
}

static uint64_t requests_at(const replicas *r, uint32_t device)
{
    quire_engine_device_stats devices[QUIRE_REPLICAS_MAX];

    assert_int_equal(quire_engine_devices_get(r->b.engine, devices), DEVICES);
    return devices[device].requests_total;
}

/* The answers of one device. */
static void reference_of(answer *out, uint32_t n)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = replica_runtime_opts("mock");
    replicas alone = { .b = bench_panels(32, &engine, &runtime) };

    for (uint32_t i = 0; i < n; i++) {
        out[i] = answer_take(replicas_ask(&alone, i));
    }
    bench_close(&alone.b);
}

/* ---- where requests go ---- */

/* The watcher hears of pages when they are published, so a text is there when its request ends. */
static void check_prefixes(const char *device)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    replicas r = replicas_open(device, &engine);
    gate *g = gate_close(r.b.engine);
    quire_request *waiting = replicas_ask(&r, 0);     /* on the first device, which stands still */
    answer second = answer_take(replicas_ask(&r, 1)); /* so this one goes to the second */
    answer first;

    assert_int_equal(requests_at(&r, 0), 1);
    assert_int_equal(requests_at(&r, 1), 1);
    gate_open(g);
    first = answer_take(waiting);
    for (uint32_t i = 0; i < 3; i++) {
        const answer again[2] = { answer_take(replicas_ask(&r, 0)),
                                  answer_take(replicas_ask(&r, 1)) };

        assert_true(again[0].n_cached >= N_PROMPT / 64 * 64);
        assert_true(again[1].n_cached >= N_PROMPT / 64 * 64);
        assert_memory_equal(again[0].tokens, first.tokens, sizeof first.tokens);
        assert_memory_equal(again[1].tokens, second.tokens, sizeof second.tokens);
        assert_int_equal(requests_at(&r, 0), i + 2);
        assert_int_equal(requests_at(&r, 1), i + 2);
    }
    validate(r.b.engine);
    replicas_close(&r);
}

static void test_prefixes(void **state)
{
    (void)state;
    check_prefixes("mock");
}

static bool has_vulkan(void)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_device *device;

    opts.attn.n_threads_max = opts.attn.n_seqs_max = opts.attn.n_rows_max = 1;
    opts.attn.n_head_max = opts.attn.n_layers_max = 1;
    opts.attn.head_dim_max = opts.attn.page_tokens = 64;
    opts.attn.n_entries_max = 16;
    if (quire_device_open(&device, "vulkan0", &opts, &err) < 0) {
        (void)printf("vulkan0: skipped: %s\n", err.message);
        return false;
    }
    quire_device_close(device);
    return true;
}

static void test_vulkan(void **state)
{
    (void)state;
    if (!has_vulkan()) {
        skip();
    }
    check_prefixes("vulkan0");
}

/* Figures are sums; invalidation reaches all devices. */
static void test_sums(void **state)
{
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    const quire_invalidate all = { .what = QUIRE_INVALIDATE_ALL };
    replicas r = replicas_open("mock", &engine);
    gate *g = gate_close(r.b.engine);
    quire_request *waiting = replicas_ask(&r, 0);
    quire_engine_device_stats devices[QUIRE_REPLICAS_MAX];
    quire_prefix_dropped dropped;
    quire_engine_stats stats;
    quire_page_map map;

    (void)state;
    (void)answer_take(replicas_ask(&r, 1));
    gate_open(g);
    (void)answer_take(waiting);
    quire_engine_stats_get(r.b.engine, &stats);
    (void)quire_engine_devices_get(r.b.engine, devices);
    assert_int_equal(stats.requests_total, 2);
    assert_int_equal(stats.generated_tokens_total, 2 * N_TOKENS);
    assert_int_equal(stats.ttft.n, 2);
    assert_int_equal(stats.cache.budget_bytes, devices[0].budget_bytes + devices[1].budget_bytes);
    assert_string_equal(devices[1].name, "mock");
    assert_int_equal(quire_engine_page_map(r.b.engine, &map), QUIRE_OK);
    assert_int_equal(map.n_in_use, stats.cache.pages_cached);
    quire_page_map_fini(&map);
    assert_int_equal(quire_engine_invalidate(r.b.engine, &all, &dropped), QUIRE_OK);
    assert_int_equal(dropped.nodes, stats.prefix.nodes);
    assert_int_equal(answer_take(replicas_ask(&r, 0)).n_cached, 0);
    replicas_close(&r);
}

static uint16_t account_two(void *ctx, const void *tenant, uint32_t tenant_bytes)
{
    (void)ctx;
    (void)tenant;
    (void)tenant_bytes;
    return 2;
}

/* A request of a session with the first text. */
static quire_request *ask_in(const replicas *r, quire_session_ref session)
{
    int32_t text[N_PROMPT] = { 0 };
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);

    params.session = session;
    tokens_make(text, N_PROMPT, 0);
    return submit(&r->b, &params);
}

/* Lose the second device by a request of the session, which the first one takes over. */
static void lose_second(const replicas *r, quire_session_ref session)
{
    const quire_mock_device_opts faults = { .loss = 1.0 };
    quire_engine_device_stats devices[QUIRE_REPLICAS_MAX];
    gate *g = gate_close(r->b.engine);
    quire_request *waiting = ask_in(r, session); /* on the first device, which stands still */
    quire_request *moved;

    quire_mock_device_set(replica_mocks[1], &faults);
    moved = ask_in(r, session);
    while (!quire_loop_is_lost(r->b.engine->loops[1])) {
        test_doze();
    }
    gate_open(g);
    (void)answer_take(waiting);
    (void)answer_take(moved);
    (void)quire_engine_devices_get(r->b.engine, devices);
    assert_true(devices[1].is_lost);
}

/* Bytes of sessions and of accounts, quotas and pages are sums over the devices that are left. */
static void test_views(void **state)
{
    const quire_account_opts accounts[2] = { { .weight = 1 },
                                             { .quota_bytes = 1u << 30, .weight = 3 } };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_session_kv items[2] = { { "", 0, "s", 9, 9 }, { "", 0, "none", 9, 9 } };
    const quire_chat_message message = { "user", "hello", NULL };
    quire_session_kv both;
    quire_account_info infos[2];
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_stats stats;
    quire_sessions *sessions;
    quire_session_ref session;
    quire_request *waiting;
    quire_region_view regions[QUIRE_REGIONS_MAX];
    quire_page_map map;
    uint32_t n_kept;
    int32_t *kept;
    replicas r;
    gate *g;

    (void)state;
    engine.accounts = (quire_engine_accounts){ .items = accounts, .n = 2, .of = account_two };
    r = replicas_open("mock", &engine);
    sessions = quire_engine_sessions(r.b.engine);
    assert_int_equal(quire_sessions_enter(sessions, "", 0, "s", 1, &session, &err), QUIRE_OK);
    g = gate_close(r.b.engine);
    waiting = ask_in(&r, session);
    (void)answer_take(ask_in(&r, session)); /* on the second device */
    gate_open(g);
    (void)finish(waiting);
    kept = quire_request_tokens_take(waiting, &n_kept);
    assert_int_equal(quire_sessions_commit(sessions, session, &message, 1, kept, n_kept, 2),
                     QUIRE_OK);
    finish_as(waiting, QUIRE_FINISH_LENGTH);

    assert_int_equal(quire_engine_sessions_kv(r.b.engine, items, 2), QUIRE_OK);
    both = items[0];
    assert_true(both.bytes > 0);
    assert_int_equal(both.own_bytes, both.bytes);
    assert_int_equal(items[1].bytes + items[1].own_bytes, 0);
    assert_int_equal(quire_engine_accounts_get(r.b.engine, infos, 2), QUIRE_OK);
    assert_int_equal(infos[0].bytes + infos[0].quota_bytes, 0);
    assert_int_equal(infos[0].weight, 1);
    assert_int_equal(infos[1].quota_bytes, 2 * accounts[1].quota_bytes);
    assert_int_equal(infos[1].weight, 3);
    assert_int_equal(quire_engine_regions(r.b.engine, regions), 1);
    assert_int_equal(infos[1].bytes, regions[0].stats.cached_bytes);
    assert_int_equal(infos[1].region_bytes[QUIRE_REGION_DYNAMIC], infos[1].bytes);

    lose_second(&r, session);
    assert_int_equal(quire_engine_sessions_kv(r.b.engine, items, 2), QUIRE_OK);
    assert_int_equal(items[0].bytes, both.bytes / 2);
    assert_int_equal(items[0].own_bytes, both.own_bytes / 2);
    assert_int_equal(quire_engine_accounts_get(r.b.engine, infos, 2), QUIRE_OK);
    assert_int_equal(infos[1].quota_bytes, accounts[1].quota_bytes);
    assert_int_equal(infos[1].weight, 3);
    (void)quire_engine_regions(r.b.engine, regions);
    assert_int_equal(infos[1].bytes, regions[0].stats.cached_bytes);
    quire_engine_stats_get(r.b.engine, &stats);
    assert_int_equal(quire_engine_page_map(r.b.engine, &map), QUIRE_OK);
    assert_int_equal(map.n_in_use, stats.cache.pages_cached);
    quire_page_map_fini(&map);
    quire_sessions_leave(sessions, session, 2);
    replicas_close(&r);
}

/* A pin is held on the device to which its tenant is bound, where the requests of it go. */
static void test_bound_pin(void **state)
{
    static const quire_binding binding = { .tenant = "bob", .tenant_bytes = 3, .devices = 1u << 1 };
    const quire_engine_pin_name name = { "bob", 3, "pin" };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    int32_t text[N_PROMPT] = { 0 };
    quire_engine_pin_params pin = {
        .name = "pin", .tokens = text, .n_tokens = N_PROMPT, .tenant = "bob", .tenant_bytes = 3
    };
    quire_request_params params = params_greedy(text, N_PROMPT, 1);
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin out;
    quire_request *request;
    uint32_t n_all;
    replicas r;

    (void)state;
    engine.devices.bindings = &binding;
    engine.devices.n_bindings = 1;
    r = replicas_open("mock", &engine);
    tokens_make(text, N_PROMPT, 3);
    assert_int_equal(quire_engine_pin_create(r.b.engine, &pin, &out, NULL, &err), QUIRE_OK);
    assert_int_equal(requests_at(&r, 0), 0);
    assert_int_equal(requests_at(&r, 1), 1);
    params.tenant = "bob";
    params.tenant_bytes = 3;
    request = submit(&r.b, &params);
    assert_true(finish(request)->n_cached_tokens >= N_PROMPT / 64 * 64);
    quire_request_release(request);
    assert_int_equal(requests_at(&r, 1), 2);
    assert_int_equal(quire_engine_pins_list(r.b.engine, NULL, 0, 0, &out, 1, &n_all), 1);
    assert_int_equal(n_all, 1);
    assert_int_equal(quire_engine_pins_list(r.b.engine, NULL, 0, 1, &out, 1, &n_all), 0);
    assert_int_equal(quire_engine_pin_create(r.b.engine, &pin, &out, NULL, &err), QUIRE_AGAIN);
    assert_int_equal(quire_engine_pin_renew(r.b.engine, &name, 100, &out), QUIRE_OK);
    assert_int_equal(quire_engine_pin_drop(r.b.engine, &name), QUIRE_OK);
    assert_int_equal(quire_engine_pin_get(r.b.engine, &name, &out), QUIRE_NOTFOUND);
    replicas_close(&r);
}

/* Of several refusals the client gets that of the full queue, and one refusal is counted. The first
 * device has the text and is asked first; the second one is too small. */
static void test_full_queue(void **state)
{
    const int32_t token = 7;
    const quire_request_params small = params_greedy(&token, 1, 1);
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    int32_t text[N_PROMPT] = { 0 };
    const quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    quire_error err = QUIRE_ERROR_INIT;
    quire_request *waiting[4], *request;
    quire_engine_stats stats;
    gate *first, *second;
    replicas r;

    (void)state;
    engine.n_running_max = engine.queue_max = 1;
    r = replicas_open_with("mock", &engine, 64u << 10);
    (void)answer_take(replicas_ask(&r, 0));
    first = gate_close_at(r.b.engine, 0);
    second = gate_close_at(r.b.engine, 1);
    for (uint32_t i = 0; i < 4; i++) {
        waiting[i] = submit(&r.b, &small);
    }
    gate_open(second);
    while (!quire_loop_is_idle(r.b.engine->loops[1])) {
        test_doze();
    }
    tokens_make(text, N_PROMPT, 0);
    assert_int_equal(quire_engine_submit(r.b.engine, &params, &request, &err), QUIRE_LIMIT);
    assert_string_equal(err.message, "the queue is full: 2 requests of class 'standard' run or "
                                     "wait");
    quire_engine_stats_get(r.b.engine, &stats);
    assert_int_equal(stats.rejected_queue_full_total, 1);
    assert_int_equal(stats.rejected_invalid_total, 0);
    assert_int_equal(stats.requests_total, 5);
    gate_open(first);
    for (uint32_t i = 0; i < 4; i++) {
        finish_as(waiting[i], QUIRE_FINISH_LENGTH);
    }
    replicas_close(&r);
}

/* A device that can do less than the first one: all requests must be such that it can serve them.
 */
static void test_abilities(void **state)
{
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    int32_t text[N_PROMPT] = { 0 };
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec by_lane;
    quire_request *request;
    quire_engine_stats stats;
    replicas r;

    (void)state;
    replicas_first_is_cpu = true;
    engine.retain_chunk = 256;
    engine.n_running_max = N_SEQS - 1;
    r = replicas_open_with("mock", &engine, UINT64_C(64) << 20); /* its texts may overflow */
    assert_int_equal(quire_retain_parse("snap:0.25,recent=16", &by_lane, &err), QUIRE_OK);
    assert_int_equal(quire_loop_retain_check(r.b.engine->loop, &by_lane, "x", &err), QUIRE_OK);
    assert_int_equal(quire_engine_retain_check(r.b.engine, &by_lane, "x", &err), QUIRE_UNSUPP);
    tokens_make(text, N_PROMPT, 0);
    params.retain = &by_lane;
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(quire_engine_submit(r.b.engine, &params, &request, &err), QUIRE_UNSUPP);
    }
    quire_engine_stats_get(r.b.engine, &stats);
    assert_int_equal(stats.rejected_invalid_total, 2);
    replicas_close(&r);
}

/* ---- loss ---- */

/* Of three requests on the lost device two run and have tokens, and one waits. All answers are
 * those of one device, each token once. */
static void test_failover(void **state)
{
    const quire_mock_device_opts faults = { .loss = 1.0 };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_engine_device_stats devices[QUIRE_REPLICAS_MAX];
    quire_request *requests[5];
    quire_request_token token;
    answer expected[5];
    uint32_t n_recomputed = 0;
    replicas r;
    gate *second;
    gate *g;

    (void)state;
    reference_of(expected, 5);
    engine.n_running_max = 2;
    r = replicas_open("mock", &engine);
    g = gate_close(r.b.engine);
    second = gate_close_at(r.b.engine, 1);
    for (uint32_t i = 0; i < 5; i++) {
        requests[i] = replicas_ask(&r, i); /* in turns */
    }
    assert_int_equal(requests_at(&r, 0), 3);
    gate_open(second);
    for (uint32_t i = 0; i < 6; i++) {
        gate_step(g);
    }
    assert_int_equal(quire_request_wait(requests[0], 1, FIXTURE_WAIT_MS, &token), 1);
    quire_mock_device_set(replica_mocks[0], &faults); /* its thread waits at the gate */
    gate_open(g);
    for (uint32_t i = 0; i < 5; i++) {
        const answer a = answer_take(requests[i]);

        assert_memory_equal(a.tokens, expected[i].tokens, sizeof a.tokens);
        n_recomputed += a.n_recomputed;
    }
    assert_true(n_recomputed >= N_PROMPT);
    (void)quire_engine_devices_get(r.b.engine, devices);
    assert_true(devices[0].is_lost);
    assert_false(devices[1].is_lost);
    assert_int_equal(devices[0].requests, 0);
    assert_int_equal(devices[1].adopted_total, 3);
    assert_false(quire_engine_is_lost(r.b.engine));
    assert_memory_equal(answer_take(replicas_ask(&r, 7)).tokens,
                        answer_take(replicas_ask(&r, 7)).tokens, sizeof(int32_t));

    quire_mock_device_set(replica_mocks[1], &faults); /* the last one */
    finish_as(replicas_ask(&r, 8), QUIRE_FINISH_ERROR);
    assert_true(quire_engine_is_lost(r.b.engine));
    assert_true(quire_engine_is_idle(r.b.engine));
    replicas_close(&r);
}

/* Requests of a lost device keep their places in the order of arrival, and the tokens that are to
 * be computed again are a load. Each request counts once. */
static void test_failover_place(void **state)
{
    const quire_mock_device_opts faults = { .loss = 1.0 };
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    quire_engine_device_stats devices[QUIRE_REPLICAS_MAX];
    quire_request *requests[4];
    quire_request_token token;
    quire_engine_stats stats;
    gate *first, *second;
    replicas r;

    (void)state;
    engine.n_running_max = 1;
    r = replicas_open("mock", &engine);
    first = gate_close_at(r.b.engine, 0);
    second = gate_close_at(r.b.engine, 1);
    for (uint32_t i = 0; i < 4; i++) {
        requests[i] = replicas_ask(&r, i); /* in turns */
    }
    for (uint32_t i = 0; i < 4; i++) {
        gate_step(first);
    }
    assert_int_equal(quire_request_wait(requests[0], 0, FIXTURE_WAIT_MS, &token), 1);
    quire_mock_device_set(replica_mocks[0], &faults);
    gate_open(first);
    do {
        test_doze();
        (void)quire_engine_devices_get(r.b.engine, devices);
    } while (devices[1].adopted_total < 2);
    assert_true(devices[1].to_compute_tokens >= (uint64_t)4 * N_PROMPT);
    assert_int_equal(devices[1].requests_total, 4);
    quire_engine_stats_get(r.b.engine, &stats);
    assert_int_equal(stats.requests_total, 4);
    assert_int_equal(stats.adopted_total, 2);
    gate_open(second);
    (void)finish(requests[3]);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(quire_request_wait(requests[i], N_TOKENS, 0, &token), 0);
        (void)answer_take(requests[i]);
    }
    replicas_close(&r);
}

/* A request that the other device has no room for ends by name. */
static void test_failover_too_large(void **state)
{
    const quire_mock_device_opts faults = { .loss = 1.0 };
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    replicas r = replicas_open_with("mock", &engine, 64u << 10);
    gate *g = gate_close(r.b.engine);
    quire_request *request = replicas_ask(&r, 0);
    const quire_request_result *result;

    (void)state;
    gate_step(g);
    quire_mock_device_set(replica_mocks[0], &faults);
    gate_open(g);
    result = finish(request);
    assert_int_equal(result->finish, QUIRE_FINISH_ERROR);
    assert_int_equal(result->status, QUIRE_LOST);
    assert_string_equal(result->message, "device mock was lost, and the KV on it");
    quire_request_release(request);
    assert_false(quire_engine_is_lost(r.b.engine));
    replicas_close(&r);
}

/* The pin of a lost device is computed again on the other one, where a request finds its text. */
static void test_pins_move(void **state)
{
    const quire_mock_device_opts faults = { .loss = 1.0 };
    const quire_engine_pin_name name = { NULL, 0, "pin" };
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    replicas r = replicas_open("mock", &engine);
    int32_t text[N_PROMPT] = { 0 };
    const quire_engine_pin_params pin = {
        .name = "pin", .tokens = text, .n_tokens = N_PROMPT, .ttl_s = 100
    };
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin out;
    uint32_t n_gone = 7;
    gate *g;

    (void)state;
    tokens_make(text, N_PROMPT, 3);
    assert_int_equal(quire_engine_pin_create(r.b.engine, &pin, &out, NULL, &err), QUIRE_OK);
    g = gate_close(r.b.engine);
    quire_mock_device_set(replica_mocks[0], &faults);
    gate_open(g);
    (void)answer_take(replicas_ask(&r, 3)); /* which begins where the pin is */
    assert_int_equal(quire_engine_pins_move(r.b.engine, 0, &n_gone), 1);
    assert_int_equal(n_gone, 0);
    do {
        test_doze();
        assert_int_equal(quire_engine_pin_get(r.b.engine, &name, &out), QUIRE_OK);
    } while (out.state != QUIRE_ENGINE_PIN_HELD);
    assert_in_range(out.ttl_s, 1, 100);
    assert_int_equal(quire_engine_pins_list(r.b.engine, NULL, 0, 0, &out, 1, NULL), 1);
    assert_int_equal(quire_engine_pins_move(r.b.engine, 0, &n_gone), 0);
    replicas_close(&r);
}

/* Through the host's memory a prefix that a lost device has computed comes to the other one. */
static void test_common_store(void **state)
{
    const quire_mock_device_opts faults = { .loss = 1.0 };
    const uint64_t n_pages = N_PROMPT / 64 + 1; /* with the open one */
    quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    answer first, again;
    quire_engine_stats stats;
    quire_request *request;
    replicas r;
    gate *g;

    (void)state;
    assert_int_equal(
        quire_host_store_create(&engine.tier.store,
                                &(quire_host_store_opts){ .capacity_bytes = 64u << 20 }),
        QUIRE_OK);
    assert_int_equal(quire_host_store_share(&replicas_second_store, engine.tier.store), QUIRE_OK);
    engine.tier.copies_all = true;
    engine.tier.wait_us = QUIRE_TIER_WAIT_ALWAYS;
    r = replicas_open("mock", &engine);
    first = answer_take(replicas_ask(&r, 0));
    do { /* idle time copies */
        test_doze();
        quire_engine_stats_get(r.b.engine, &stats);
    } while (stats.tier.store.records < n_pages);

    g = gate_close(r.b.engine);
    request = replicas_ask(&r, 0);
    quire_mock_device_set(replica_mocks[0], &faults);
    gate_open(g);
    again = answer_take(request);
    assert_memory_equal(first.tokens, again.tokens, sizeof first.tokens);
    assert_int_equal(requests_at(&r, 1), 1);
    quire_engine_stats_get(r.b.engine, &stats);
    assert_true(stats.tier.fetched_tokens_total >= N_PROMPT / 64 * 64);
    assert_true(stats.prefix.hit_tokens_total >= N_PROMPT / 64 * 64);
    replicas_close(&r);
}

/* A request that is cancelled in the step of the loss ends as cancelled. */
static void test_failover_cancelled(void **state)
{
    const quire_mock_device_opts faults = { .loss = 1.0 };
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    replicas r = replicas_open("mock", &engine);
    gate *g = gate_close(r.b.engine);
    quire_request *request = replicas_ask(&r, 0);

    (void)state;
    gate_step(g);
    quire_mock_device_set(replica_mocks[0], &faults);
    atomic_store(&request->is_cancelled, true); /* its thread has not heard of it */
    gate_open(g);
    finish_as(request, QUIRE_FINISH_CANCEL);
    assert_true(quire_engine_is_idle(r.b.engine));
    replicas_close(&r);
}

/* The parts of an answer that a client sees. */
typedef struct seen {
    quire_finish finish;
    int32_t stop_index;
    uint32_t n;
    int32_t tokens[N_TOKENS];
    char text[512]; /* with the tail */
} seen;

static seen see(quire_request *request)
{
    const quire_request_result *result;
    quire_request_token token;
    seen s = { .n = 0 };
    size_t n_text = 0;

    while (quire_request_wait(request, s.n, FIXTURE_WAIT_MS, &token) == 1) {
        assert_true(s.n < N_TOKENS && n_text + token.text_bytes < sizeof s.text);
        s.tokens[s.n++] = token.token;
        memcpy(s.text + n_text, token.text, token.text_bytes);
        n_text += token.text_bytes;
    }
    result = finish(request);
    assert_true(n_text + result->tail_bytes < sizeof s.text);
    memcpy(s.text + n_text, result->tail, result->tail_bytes);
    s.finish = result->finish;
    s.stop_index = result->stop_index;
    quire_request_release(request);
    return s;
}

/* The answer to the parameters with a loss in its middle, or without. */
static seen see_with(const quire_request_params *params, bool is_lost)
{
    const quire_mock_device_opts faults = { .loss = 1.0 };
    const quire_engine_opts engine = QUIRE_ENGINE_OPTS_INIT;
    replicas r = replicas_open("mock", &engine);
    gate *g = gate_close(r.b.engine);
    quire_request *request = submit(&r.b, params);
    quire_request_token token;
    seen s;

    for (uint32_t i = 0; i < 6; i++) {
        gate_step(g);
    }
    assert_int_equal(quire_request_wait(request, 1, FIXTURE_WAIT_MS, &token), 1);
    assert_int_equal(quire_request_wait(request, N_TOKENS - 3, 0, &token), QUIRE_AGAIN);
    if (is_lost) {
        quire_mock_device_set(replica_mocks[0], &faults);
    }
    gate_open(g);
    s = see(request);
    assert_int_equal(quire_loop_is_lost(r.b.engine->loop), is_lost);
    replicas_close(&r);
    return s;
}

/* A sampled answer with penalties and mirostat, and the same with a stop text at its end, which the
 * text before and after the loss has. */
static void test_failover_sampled(void **state)
{
    int32_t text[N_PROMPT] = { 0 };
    quire_request_params params = params_greedy(text, N_PROMPT, N_TOKENS);
    seen whole, moved;
    const char *stop;

    (void)state;
    tokens_make(text, N_PROMPT, 5);
    params.sampler.temperature = 0.9f;
    params.sampler.seed = 12;
    params.sampler.repeat_penalty = 1.3f;
    params.sampler.dry_multiplier = 2.0f;
    params.sampler.mirostat = 2;
    whole = see_with(&params, false);
    moved = see_with(&params, true);
    assert_int_equal(whole.n, N_TOKENS);
    assert_memory_equal(&whole, &moved, sizeof whole);
    stop = whole.text + strlen(whole.text) - 3;
    params.stops = &stop;
    params.n_stops = 1;
    moved = see_with(&params, true);
    whole = see_with(&params, false);
    assert_int_equal(whole.finish, QUIRE_FINISH_STOP);
    assert_memory_equal(&whole, &moved, sizeof whole);
}

/* ---- refusals ---- */

static void test_refusals(void **state)
{
    const quire_engine_opts alone = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = replica_runtime_opts("mock");
    engine_bench b = bench_panels(32, &alone, &runtime);
    quire_engine_device more[QUIRE_REPLICAS_MAX] = { { .runtime = b.runtime } };
    quire_engine_opts opts = alone;
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine *engine;

    (void)state;
    opts.model = b.model;
    opts.runtime = b.runtime;
    opts.devices = (quire_engine_devices){ .items = more, .n = QUIRE_REPLICAS_MAX };
    assert_int_equal(quire_engine_create(&engine, &opts, &err), QUIRE_INVAL);
    assert_string_equal(err.message, "9 devices: at most 8 are possible");
    opts.devices.n = 1;
    assert_int_equal(
        quire_host_store_create(&opts.tier.store, &(quire_host_store_opts){ .capacity_bytes = 1 }),
        QUIRE_OK);
    assert_int_equal(quire_engine_create(&engine, &opts, &err), QUIRE_INVAL);
    assert_string_equal(err.message, "devices: a store below memory must be there for all or none");
    opts.tier.store->ops->close(opts.tier.store, NULL, NULL);
    opts.tier.store = NULL;
    assert_null(engine);
    bench_close(&b);
}

static uint32_t threads_left = UINT32_MAX; /* that can be created */
static uint32_t n_closed;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                          void *arg)
{
    if (threads_left == 0) {
        return EAGAIN;
    }
    threads_left -= threads_left != UINT32_MAX;
    return __real_pthread_create(thread, attr, start, arg);
}

static void count_close(quire_store *store, void (*give_back)(void *ctx, quire_transfer *transfer),
                        void *ctx)
{
    (void)store;
    (void)give_back;
    (void)ctx;
    n_closed++;
}

/* When the second device's thread cannot start, both stores stay the caller's. */
static void test_no_thread(void **state)
{
    const quire_engine_opts alone = QUIRE_ENGINE_OPTS_INIT;
    const quire_runtime_opts runtime = replica_runtime_opts("mock");
    engine_bench b = bench_panels(32, &alone, &runtime);
    quire_engine_device second = { .runtime = fixture_runtime(b.model, &runtime) };
    quire_engine_opts opts = alone;
    quire_error err = QUIRE_ERROR_INIT;
    const quire_store_ops *ops;
    quire_store_ops counting;
    quire_engine *engine;

    (void)state;
    quire_engine_destroy(b.engine);
    b.engine = NULL;
    assert_int_equal(quire_host_store_create(&opts.tier.store,
                                             &(quire_host_store_opts){ .capacity_bytes = 1 << 20 }),
                     QUIRE_OK);
    assert_int_equal(quire_host_store_share(&second.store, opts.tier.store), QUIRE_OK);
    ops = opts.tier.store->ops;
    counting = *ops;
    counting.close = count_close;
    opts.tier.store->ops = second.store->ops = &counting;
    opts.model = b.model;
    opts.runtime = b.runtime;
    opts.devices = (quire_engine_devices){ .items = &second, .n = 1 };
    threads_left = 1;
    assert_int_equal(quire_engine_create(&engine, &opts, &err), QUIRE_NOMEM);
    threads_left = UINT32_MAX;
    assert_int_equal(n_closed, 0);
    assert_null(engine);
    ops->close(opts.tier.store, NULL, NULL);
    ops->close(second.store, NULL, NULL);
    quire_runtime_destroy(second.runtime);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_vulkan),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_bound_pin),
        cmocka_unit_test(test_failover),
        cmocka_unit_test(test_failover_cancelled),
        cmocka_unit_test(test_failover_sampled),
        cmocka_unit_test(test_failover_place),
        cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_abilities),
        cmocka_unit_test(test_common_store),
        cmocka_unit_test(test_failover_too_large),
        cmocka_unit_test(test_pins_move),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_thread),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
