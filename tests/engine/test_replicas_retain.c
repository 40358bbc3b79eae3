/* test_replicas_retain.c - texts that keep a share of their tokens, with two devices that are the
 * CPU: bits, hits, where requests go, pins, invalidation.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_fixture.h"

#include "engine/adapt/adapt.h"
#include "engine/engine_halves.h"
#include "engine/pins.h"

#include <string.h>

#define CTX     1024u
#define CHUNK   256u
#define PROMPT  900u /* three condensings */
#define HEAD    320u /* tokens of the text that another device has in full */
#define TOKENS  8u
#define DEVICES 2u
#define UNBOUND 2u /* a class */

static const char *const policies[] = { "keydiff:0.5,recent=32",
                                        "entropy:0.4,recent=60,full_layers=none" };

/* Requests of a class go to the device of its number. */
static const quire_binding bindings[] = { { .class_index = 0, .devices = 1u << 0 },
                                          { .class_index = 1, .devices = 1u << 1 } };

typedef struct pair {
    engine_bench b; /* its runtime is the first device's */
    quire_runtime *second;
} pair;

static quire_runtime_opts runtime_opts(void)
{
    quire_runtime_opts opts = bench_runtime_opts(CTX, 8);

    opts.k_format = opts.v_format = QUIRE_FORMAT_F16;
    return opts;
}

static quire_engine_opts engine_opts(void)
{
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;

    opts.retain_chunk = CHUNK;
    opts.n_running_max = 4;
    opts.pins_max = 4;
    opts.precache.is_off = true;
    quire_classes_default(&opts.classes);
    return opts;
}

static pair pair_open(const quire_prefix_watcher *second_watcher)
{
    const quire_engine_opts alone = engine_opts();
    const quire_runtime_opts runtime = runtime_opts();
    quire_engine_device second = { .runtime = NULL };
    quire_engine_opts opts = alone;
    quire_error err = QUIRE_ERROR_INIT;
    pair p = { .b = bench_panels(32, &alone, &runtime) };

    quire_engine_destroy(p.b.engine);
    p.second = fixture_runtime(p.b.model, &runtime);
    second.runtime = p.second;
    if (second_watcher != NULL) {
        second.watcher = *second_watcher;
    }
    opts.model = p.b.model;
    opts.runtime = p.b.runtime;
    opts.devices = (quire_engine_devices){ &second, 1, bindings, DEVICES };
    if (quire_engine_create(&p.b.engine, &opts, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return p;
}

static void pair_close(pair *p)
{
    quire_engine_destroy(p->b.engine);
    p->b.engine = NULL;
    quire_cache_validate(quire_runtime_cache(p->second));
    quire_runtime_destroy(p->second);
    bench_close(&p->b);
}

static quire_retain_spec spec_of(const char *policy)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec;

    if (quire_retain_parse(policy, &spec, &err) < 0) {
        fail_msg("%s", err.message);
    }
    return spec;
}

/* Answer a prompt; returns its cached tokens. policy NULL: the text keeps all tokens. */
static uint32_t ask(const engine_bench *b, const char *policy, uint32_t class_index,
                    uint32_t n_prompt, int32_t answer[TOKENS])
{
    int32_t text[PROMPT] = { 0 };
    quire_request_params params = params_greedy(text, n_prompt, TOKENS);
    quire_retain_spec spec;
    quire_request *request;
    uint32_t n_cached;

    tokens_make(text, n_prompt, 5);
    params.class_index = class_index;
    if (policy != NULL) {
        spec = spec_of(policy);
        params.retain = &spec;
    }
    request = submit(b, &params);
    assert_int_equal(collect(request, answer, TOKENS), TOKENS);
    n_cached = finish(request)->n_cached_tokens;
    quire_request_release(request);
    return n_cached;
}

static uint64_t requests_at(const pair *p, uint32_t device)
{
    quire_engine_device_stats devices[QUIRE_REPLICAS_MAX];

    assert_int_equal(quire_engine_devices_get(p->b.engine, devices), DEVICES);
    return devices[device].requests_total;
}

/* A condensed text is at one device, and more of it in full at the other: the next request goes to
 * the first. Answers have the bits of an engine with one device. */
static void check_policy(const char *policy)
{
    const quire_engine_opts alone = engine_opts();
    const quire_runtime_opts runtime = runtime_opts();
    engine_bench one = bench_panels(32, &alone, &runtime);
    pair p = pair_open(NULL);
    int32_t want[TOKENS], got[TOKENS];

    assert_int_equal(ask(&one, policy, UNBOUND, PROMPT, want), 0);
    assert_int_equal(ask(&p.b, policy, 1, PROMPT, got), 0);
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(stats_now(one.engine).condensings_total, 3);
    assert_int_equal(ask(&p.b, NULL, 0, HEAD, got), 0);

    assert_true(ask(&p.b, policy, UNBOUND, PROMPT, got) >= 2 * CHUNK);
    assert_int_equal(requests_at(&p, 1), 2);
    assert_memory_equal(got, want, sizeof want);
    (void)ask(&p.b, NULL, UNBOUND, PROMPT, got); /* a plain one finds more at the other */
    assert_int_equal(requests_at(&p, 0), 2);
    assert_true(ask(&p.b, policy, 0, PROMPT, got) <= CHUNK); /* another tree */
    assert_memory_equal(got, want, sizeof want);
    validate(p.b.engine);
    pair_close(&p);
    bench_close(&one);
}

static void test_requests(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        check_policy(policies[i]);
    }
}

/* Dropping a prefix reaches the condensed texts of both devices. */
static void test_dropped(void **state)
{
    int32_t text[PROMPT], got[TOKENS];
    const quire_invalidate what = { .what = QUIRE_INVALIDATE_PREFIX,
                                    .tokens = text,
                                    .n_tokens = CHUNK / 2 };
    quire_prefix_dropped dropped;
    pair p = pair_open(NULL);

    (void)state;
    tokens_make(text, PROMPT, 5);
    for (uint32_t i = 0; i < DEVICES; i++) {
        (void)ask(&p.b, policies[0], i, PROMPT, got);
        assert_true(ask(&p.b, policies[0], i, PROMPT, got) > 3 * CHUNK);
    }
    assert_int_equal(quire_engine_invalidate(p.b.engine, &what, &dropped), QUIRE_OK);
    for (uint32_t i = 0; i < DEVICES; i++) {
        assert_true(ask(&p.b, policies[0], i, PROMPT, got) < CHUNK);
    }
    validate(p.b.engine);
    pair_close(&p);
}

/* A pin of a condensed text is held where its text is. */
static void test_pin(void **state)
{
    const quire_retain_spec spec = spec_of(policies[0]);
    int32_t text[PROMPT] = { 0 }, got[TOKENS];
    const quire_engine_pin_params params = { .name = "a",
                                             .tokens = text,
                                             .n_tokens = 2 * CHUNK + 64,
                                             .class_index = UNBOUND,
                                             .retain = &spec,
                                             .ttl_s = 1000 };
    quire_error err = QUIRE_ERROR_INIT;
    const quire_adapt_pins_ask all = { .tenant = NULL };
    quire_engine_pin pin;
    uint32_t n_pins;
    pair p = pair_open(NULL);

    (void)state;
    tokens_make(text, PROMPT, 5);
    (void)ask(&p.b, policies[0], 1, PROMPT, got);
    if (quire_engine_pin_create(p.b.engine, &params, &pin, NULL, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    assert_int_equal(pin.state, QUIRE_ENGINE_PIN_HELD);
    assert_int_equal(stats_now(p.b.engine).condensings_total, 3); /* of the request alone */
    (void)quire_adapt_pins_list(p.b.engine->adapts[1], &all, NULL, 0, &n_pins);
    assert_int_equal(n_pins, 1);
    pair_close(&p);
}

static bool hear_cleared(void *ctx)
{
    (void)ctx;
    return true;
}

static bool hear_stored(void *ctx, const quire_prefix_page *page)
{
    (void)ctx;
    (void)page;
    return true;
}

static bool hear_removed(void *ctx, const quire_page_key *key)
{
    (void)ctx;
    (void)key;
    return true;
}

/* Watchers hear of whole texts: one at any device is enough for a refusal. */
static void test_watched(void **state)
{
    const quire_prefix_watcher watcher = { .cleared = hear_cleared,
                                           .stored = hear_stored,
                                           .removed = hear_removed };
    const quire_retain_spec spec = spec_of(policies[0]);
    quire_error err = QUIRE_ERROR_INIT;
    pair p = pair_open(&watcher);

    (void)state;
    assert_int_equal(quire_engine_retain_check(p.b.engine, &spec, "retain:", &err), QUIRE_UNSUPP);
    assert_non_null(strstr(err.message, "KV events"));
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_dropped),
        cmocka_unit_test(test_pin),
        cmocka_unit_test(test_watched),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
