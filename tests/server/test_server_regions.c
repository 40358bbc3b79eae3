/* test_server_regions.c - regions, pins and tenants' quotas with the real engine behind the server.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_server.h"

#include "base/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUOTA   (64u << 10)
#define N_CTX   1024
#define N_ASKED 24
#define PINNED  (256u << 10)

static engine_server s;

static int start(void **state)
{
    (void)state;
    engine_server_start_with_quota(&s, N_CTX, QUOTA);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    engine_server_stop(&s);
    return 0;
}

/* Prompts of some pages each; those of different i begin differently. */
static json_t *ask(int i)
{
    char body[1024];

    (void)snprintf(body, sizeof body,
                   "{\"prompt\":\"%c%c %0300d\",\"max_tokens\":1,\"temperature\":0}", 'a' + i,
                   'z' - i, i);
    return post(&s, 200, TEXT, body);
}

static void ask_much(const char *key)
{
    s.key = key;
    for (int i = 0; i < N_ASKED; i++) {
        json_decref(ask(i));
    }
    s.key = KEY_OF_ADMIN;
}

static void a_tenant_keeps_no_more_than_its_quota(void **state)
{
    json_t *root;
    int64_t of_a;
    int64_t of_b;

    (void)state;
    ask_much(KEY_OF_A);
    ask_much(KEY_OF_B);
    root = get(&s, 200, "/v1/cache/regions");
    assert_string_equal(json_string_at(root, "tenants.0.name"), "a");
    of_a = json_int_at(root, "tenants.0.bytes");
    of_b = json_int_at(root, "tenants.1.bytes");
    assert_true(of_a > 0 && of_a <= QUOTA);
    assert_true(of_b > 2 * of_a);
    assert_int_equal(json_int_at(root, "tenants.0.quota_bytes"), QUOTA);
    assert_true(json_int_at(root, "tenants.0.quota_evicted_bytes_total") > 0);
    assert_true(json_is_null(json_at(root, "tenants.1.quota_bytes")));
    assert_int_equal(json_int_at(root, "tenants.1.weight"), 3);
    assert_int_equal(json_int_at(root, "tenants.1.quota_evicted_bytes_total"), 0);
    json_decref(root);
}

static void an_evicted_prompt_is_explained(void **state)
{
    char path[128];
    json_t *reply;
    json_t *root;

    (void)state;
    ask_much(KEY_OF_A);
    s.key = KEY_OF_A;
    reply = ask(0);
    assert_int_equal(cached_tokens(reply), 1); /* all texts begin with the same token */
    (void)snprintf(path, sizeof path, "/v1/cache/explain/%s", json_string_at(reply, "id"));
    root = get(&s, 200, path);
    assert_string_equal(json_string_at(root, "end"), "evicted");
    assert_string_equal(json_string_at(root, "gone.reason"), "memory");
    assert_true(json_int_at(root, "gone.tokens") > 0);
    assert_true(json_int_at(root, "gone.tokens") < prompt_tokens(reply));
    assert_true(json_number_value(json_at(root, "gone.ago_ms")) > 0.0);
    assert_true(json_number_value(json_at(root, "gone.cost_ms")) > 0.0);
    json_decref(root);
    json_decref(reply);
}

/* Pinned pages cannot be evicted, so a pin above the quota is refused, with the missing bytes. */
static void a_tenants_pins_stay_within_its_quota(void **state)
{
    int64_t bytes = 0;
    int64_t missing = 0;

    (void)state;
    s.key = KEY_OF_A;
    for (int i = 0; missing == 0; i++) {
        char body[64];
        http_call call = { .path = "/v1/cache/pins", .body = body, .key = s.key };
        http_reply reply;
        json_t *root;

        assert_true(i < N_ASKED);
        (void)snprintf(body, sizeof body, "{\"text\":\"%c %010d\"}", 'a' + i, i);
        reply = http_do(s.port, &call);
        root = json_loads(reply.body, 0, NULL);
        if (reply.status == 201) {
            bytes += json_int_at(root, "bytes");
        } else {
            assert_int_equal(reply.status, 429);
            assert_string_equal(json_string_at(root, "error.code"), "pin_limit");
            missing = json_int_at(root, "error.missing_bytes");
        }
        json_decref(root);
        http_reply_free(&reply);
    }
    assert_true(bytes > 0 && bytes <= QUOTA);
    assert_true(missing > 0 && missing <= QUOTA);
    s.key = KEY_OF_B; /* is not concerned */
    json_decref(post(&s, 201, "/v1/cache/pins", "{\"text\":\"something else\"}"));
    s.key = KEY_OF_ADMIN;
}

static void the_dynamic_region_is_there(void **state)
{
    json_t *root;

    (void)state;
    ask_much(KEY_OF_B);
    root = get(&s, 200, "/v1/cache/regions");
    assert_int_equal(json_array_size(json_at(root, "data")), 1);
    assert_string_equal(json_string_at(root, "data.0.name"), "dynamic");
    assert_true(json_int_at(root, "data.0.budget_bytes") > 0);
    assert_true(json_int_at(root, "data.0.cached_bytes") > 0);
    assert_true(json_int_at(root, "data.0.charged_bytes") >=
                json_int_at(root, "data.0.cached_bytes"));
    assert_int_equal(json_int_at(root, "data.0.pinned_bytes"), 0);
    assert_string_equal(json_string_at(root, "locked"), "none");
    json_decref(root);
}

/* ---- the pinned region ---- */

static void ask_as(const char *tier, char first)
{
    char body[1024];

    (void)snprintf(body, sizeof body,
                   "{\"prompt\":\"%c %0300d\",\"max_tokens\":1,\"service_tier\":\"%s\"}", first, 7,
                   tier);
    json_decref(post(&s, 200, TEXT, body));
}

/* The bytes charged to the pinned region, and its budget. */
static int64_t pinned_charged(int64_t *budget)
{
    json_t *root = get(&s, 200, "/v1/cache/regions");
    int64_t charged;

    assert_int_equal(json_array_size(json_at(root, "data")), 2);
    assert_string_equal(json_string_at(root, "data.1.name"), "pinned");
    assert_true(json_is_true(json_at(root, "data.1.spills")));
    charged = json_int_at(root, "data.1.charged_bytes");
    *budget = json_int_at(root, "data.1.budget_bytes");
    json_decref(root);
    return charged;
}

static void a_pinned_class_has_memory_of_its_own(void **state)
{
    engine_server_opts opts = ENGINE_SERVER_OPTS_INIT;
    int64_t budget;
    int64_t charged;

    (void)state;
    engine_server_start_pinned(&s, N_CTX, PINNED, &opts);
    assert_int_equal(pinned_charged(&budget), 0);
    assert_true(budget > 0);
    ask_as("batch", 'b');
    assert_int_equal(pinned_charged(&budget), 0);
    ask_as("realtime", 'r');
    charged = pinned_charged(&budget);
    assert_true(charged > 0 && charged <= budget);
    /* Many requests of the low class do not evict the high class's cached pages. */
    for (char c = 'c'; c < 'q'; c++) {
        ask_as("batch", c);
    }
    assert_int_equal(pinned_charged(&budget), charged);
    engine_server_stop(&s);
}

/* ---- pins ---- */

#define PINS  "/v1/cache/pins"
#define STORY "Once upon a time there was a boat that could not sink, whatever the sea did. "

static int64_t cached_of_story(void)
{
    json_t *reply =
        post(&s, 200, TEXT, "{\"prompt\":\"" STORY STORY "And then\",\"max_tokens\":1}");
    const int64_t n = cached_tokens(reply);

    json_decref(reply);
    return n;
}

static size_t count_pinned_pages(void)
{
    json_t *root = get(&s, 200, "/v1/cache/pages");
    json_t *page;
    size_t i;
    size_t n = 0;

    json_array_foreach(json_at(root, "pages"), i, page)
    {
        n += json_integer_value(json_array_get(page, 2)) == 3;
    }
    json_decref(root);
    return n;
}

static void a_pin_outlives_what_others_ask_for(void **state)
{
    engine_server_opts opts = ENGINE_SERVER_OPTS_INIT;
    json_t *root;
    int64_t n;

    (void)state;
    engine_server_start_pinned(&s, N_CTX, PINNED, &opts);
    root = post(&s, 201, PINS,
                "{\"name\":\"boat\",\"text\":\"" STORY STORY "\",\"class\":\"realtime\"}");
    n = json_int_at(root, "held_tokens");
    assert_string_equal(json_string_at(root, "state"), "held");
    assert_int_equal(json_int_at(root, "tokens"), n);
    assert_int_equal(json_int_at(root, "cached_tokens"), 0);
    assert_true(json_int_at(root, "bytes") > 0);
    json_decref(root);
    for (char c = 'a'; c < 'z'; c++) {
        ask_as(c % 2 == 0 ? "batch" : "realtime", c);
    }
    assert_true(cached_of_story() >= n - 1); /* its last token may be cut otherwise */
    root = get(&s, 200, "/v1/cache/regions");
    assert_true(json_int_at(root, "data.1.pinned_bytes") > 0);
    json_decref(root);
    root = get(&s, 200, PINS);
    assert_int_equal(json_int_at(root, "total"), 1);
    json_decref(root);
    assert_true(count_pinned_pages() > 0);
    /* The pin adopts pages that are already cached. */
    root = post(&s, 201, PINS, "{\"name\":\"half\",\"text\":\"" STORY "\"}");
    assert_true(json_int_at(root, "cached_tokens") > 0);
    json_decref(root);
    json_decref(post(&s, 409, PINS, "{\"name\":\"half\",\"text\":\"" STORY "\"}"));
    engine_server_stop(&s);
}

static void a_pin_that_cannot_be_honoured_is_refused(void **state)
{
    engine_server_opts opts = ENGINE_SERVER_OPTS_INIT;
    quire_bytes body = { 0 };
    json_t *root;

    (void)state;
    opts.engine.pins_max = 1;
    engine_server_start_pinned(&s, N_CTX, PINNED, &opts);
    (void)quire_bytes_addf(&body, "{\"class\":\"realtime\",\"tokens\":[5");
    for (int i = 0; i < N_CTX - 8; i++) {
        (void)quire_bytes_addf(&body, ",%d", 5 + i % 90);
    }
    assert_int_equal(quire_bytes_addf(&body, "]}"), QUIRE_OK);
    root = post(&s, 507, PINS, body.data);
    assert_string_equal(json_string_at(root, "error.code"), "pin_budget");
    assert_true(json_int_at(root, "error.missing_bytes") > 0);
    json_decref(root);
    quire_bytes_fini(&body);
    json_decref(post(&s, 400, PINS, "{\"name\":\"a b\",\"text\":\"" STORY "\"}"));
    json_decref(post(&s, 400, PINS, "{\"tokens\":[99999999]}"));
    json_decref(post(&s, 201, PINS, "{\"name\":\"a\",\"text\":\"" STORY "\"}"));
    root = post(&s, 429, PINS, "{\"name\":\"b\",\"text\":\"another one\"}");
    assert_string_equal(json_string_at(root, "error.code"), "pin_limit");
    json_decref(root);
    engine_server_stop(&s);
}

static void invalidation_wins_over_pins(void **state)
{
    engine_server_opts opts = ENGINE_SERVER_OPTS_INIT;
    json_t *root;

    (void)state;
    engine_server_start_pinned(&s, N_CTX, PINNED, &opts);
    json_decref(post(&s, 201, PINS, "{\"name\":\"boat\",\"text\":\"" STORY STORY "\"}"));
    json_decref(post(&s, 200, "/v1/cache/invalidate", "{\"all\":true}"));
    json_decref(get(&s, 404, PINS "/boat"));
    assert_int_equal(cached_of_story(), 0);
    root = get(&s, 200, "/v1/cache/events");
    assert_string_equal(json_string_at(root, "data.0.kind"), "pin_created");
    assert_string_equal(json_string_at(root, "data.1.kind"), "pin_dropped");
    assert_non_null(strstr(json_string_at(root, "data.1.text"), "boat"));
    json_decref(root);
    engine_server_stop(&s);
}

/* ---- classes ---- */

/* Uses its own salt: pages used by a higher class keep the TTL of that class. */
static int64_t cached_of(const char *tier)
{
    char body[256];
    json_t *reply;
    int64_t n;

    (void)snprintf(body, sizeof body,
                   "{\"prompt\":\"a text\",\"max_tokens\":1,\"service_tier\":\"%s\","
                   "\"cache_salt\":\"%s\"}",
                   tier, tier);
    reply = post(&s, 200, TEXT, body);
    n = cached_tokens(reply);
    json_decref(reply);
    return n;
}

static void classes_have_a_time_to_live(void **state)
{
    engine_server_opts opts = ENGINE_SERVER_OPTS_INIT;
    _Atomic uint64_t now_us = 1;

    (void)state;
    quire_classes_default(&opts.engine.classes);
    opts.engine.classes.items[2].cache_ttl_us = 60000000; /* batch */
    opts.engine.clock_us = hands_of;
    opts.engine.clock_ctx = &now_us;
    opts.engine.precache.is_off = true;
    engine_server_start_with(&s, N_CTX, &opts);
    assert_int_equal(cached_of("batch"), 0);
    assert_int_equal(cached_of("standard"), 0);
    now_us += 30000000;
    assert_true(cached_of("batch") > 0);
    now_us += 61000000;
    assert_true(cached_of("standard") > 0);
    assert_int_equal(cached_of("batch"), 0);
    engine_server_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_tenant_keeps_no_more_than_its_quota, start, stop),
        cmocka_unit_test_setup_teardown(an_evicted_prompt_is_explained, start, stop),
        cmocka_unit_test_setup_teardown(a_tenants_pins_stay_within_its_quota, start, stop),
        cmocka_unit_test_setup_teardown(the_dynamic_region_is_there, start, stop),
        cmocka_unit_test(a_pinned_class_has_memory_of_its_own),
        cmocka_unit_test(a_pin_outlives_what_others_ask_for),
        cmocka_unit_test(a_pin_that_cannot_be_honoured_is_refused),
        cmocka_unit_test(invalidation_wins_over_pins),
        cmocka_unit_test(classes_have_a_time_to_live),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
