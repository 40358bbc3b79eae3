/* test_server_pins.c - /v1/cache/pins: calls to the engine, replies, refusals, and visibility by
 * tenant.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server_fixture.h"

#include "server/tenant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PINS "/v1/cache/pins"

static server_fixture f;
static engine_memory *memory;

static const quire_server_key keys[] = {
    { .key = "key-a", .tenant = "a", .max_class = "standard" },
    { .key = "key-b", .tenant = "b" },
    { .key = "ops", .is_admin = true },
};

static void start_with(const quire_server_key *list, uint32_t n)
{
    server_fixture_start_with(&f, list, n);
    memory = engine_double_memory(f.engine);
}

static int start(void **state)
{
    (void)state;
    start_with(NULL, 0);
    return 0;
}

static int start_with_keys(void **state)
{
    (void)state;
    start_with(keys, 3);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    server_fixture_stop(&f);
    return 0;
}

static json_t *call(const char *method, const char *key, const char *path, const char *body,
                    int status)
{
    return http_json(
        f.port, &(http_call){ .method = method, .path = path, .body = body, .key = key }, status);
}

static void expect_error(json_t *root, const char *code, const char *param)
{
    assert_string_equal(json_string_at(root, "error.code"), code);
    if (param != NULL) {
        assert_string_equal(json_string_at(root, "error.param"), param);
    }
    json_decref(root);
}

/* ---- creating ---- */

static void a_pin_is_made_of_tokens(void **state)
{
    json_t *root = http_post_json(
        f.port, PINS, "{\"name\":\"system\",\"tokens\":[5,6,7],\"ttl\":90,\"class\":\"realtime\"}",
        201);

    (void)state;
    assert_string_equal(json_string_at(root, "object"), "cache.pin");
    assert_string_equal(json_string_at(root, "name"), "system");
    assert_string_equal(json_string_at(root, "state"), "held");
    assert_string_equal(json_string_at(root, "class"), "realtime");
    assert_int_equal(json_int_at(root, "tokens"), 3);
    assert_int_equal(json_int_at(root, "held_tokens"), 3);
    assert_int_equal(json_int_at(root, "bytes"), 300);
    assert_int_equal(json_int_at(root, "ttl_s"), 90);
    assert_int_equal(json_int_at(root, "expires_in_s"), 90);
    json_decref(root);
    assert_int_equal(memory->created.n_tokens, 3);
    assert_int_equal(memory->tokens[2], 7);
    assert_int_equal(memory->created.class_index, 0);
    assert_true(memory->created.is_background);
}

static void a_pin_is_made_of_a_text_or_messages(void **state)
{
    json_t *root = http_post_json(f.port, PINS, "{\"text\":\"Once upon a time\"}", 201);
    char name[64];
    uint32_t n_text;

    (void)state;
    (void)snprintf(name, sizeof name, "%s", json_string_at(root, "name"));
    assert_int_equal(strncmp(name, "pin-", 4), 0); /* made up */
    assert_true(json_is_null(json_at(root, "ttl_s")));
    assert_string_equal(json_string_at(root, "class"), "standard");
    n_text = memory->created.n_tokens;
    assert_true(n_text > 1);
    json_decref(root);
    root = http_post_json(f.port, PINS,
                          "{\"messages\":[{\"role\":\"system\",\"content\":\"be brief\"}],"
                          "\"ttl\":\"1.5h\",\"cache_salt\":\"x\"}",
                          201);
    assert_int_equal(json_int_at(root, "ttl_s"), 5400);
    assert_string_equal(json_string_at(root, "cache_salt"), "x");
    assert_string_not_equal(json_string_at(root, "name"), name);
    json_decref(root);
}

/* The server answers when the pin is held, or at once on request. */
static void it_waits_until_the_pin_is_held(void **state)
{
    json_t *root;

    (void)state;
    memory->n_looks = 3;
    root = http_post_json(f.port, PINS, "{\"name\":\"a\",\"tokens\":[1]}", 201);
    assert_string_equal(json_string_at(root, "state"), "held");
    json_decref(root);
    memory->n_looks = 3;
    root = http_post_json(f.port, PINS, "{\"name\":\"b\",\"tokens\":[1],\"background\":true}", 202);
    assert_string_equal(json_string_at(root, "state"), "computing");
    assert_int_equal(json_int_at(root, "held_tokens"), 0);
    json_decref(root);
    memory->n_looks = UINT32_MAX; /* its time begins when it is held */
    root = http_post_json(f.port, PINS,
                          "{\"name\":\"c\",\"tokens\":[1],\"ttl\":60,\"background\":true}", 202);
    assert_int_equal(json_int_at(root, "ttl_s"), 60);
    assert_true(json_is_null(json_at(root, "expires_in_s")));
    json_decref(root);
}

static void a_client_that_goes_drops_its_pin(void **state)
{
    const int fd = http_connect(f.port);

    (void)state;
    memory->n_looks = UINT32_MAX;
    http_send_call(fd, &(http_call){ .path = PINS, .body = "{\"name\":\"slow\",\"tokens\":[1]}" });
    (void)close(fd);
    server_fixture_wait_log(&f, "client=gone");
    assert_int_equal(memory->n_dropped, 1);
    assert_int_equal(memory->n_pins, 0);
}

static void a_pin_that_goes_meanwhile_is_told(void **state)
{
    (void)state;
    memory->n_looks = 3;
    memory->vanishes = true;
    expect_error(http_post_json(f.port, PINS, "{\"tokens\":[1]}", 409), "pin_gone", NULL);
}

/* A lost device computes nothing: the server, which ends, does not wait for the pin. */
static void a_lost_device_is_told(void **state)
{
    (void)state;
    memory->n_looks = UINT32_MAX;
    memory->is_lost = true;
    expect_error(http_post_json(f.port, PINS, "{\"tokens\":[1]}", 503), "device_lost", NULL);
}

/* ---- refusals ---- */

static void wrong_fields_are_named(void **state)
{
    static const struct {
        const char *body;
        const char *param;
    } cases[] = {
        { "{}", "tokens" },
        { "{\"tokens\":[1],\"text\":\"a\"}", "tokens" },
        { "{\"tokens\":[]}", "tokens" },
        { "{\"tokens\":[1,\"x\"]}", "tokens" },
        { "{\"tokens\":[-1]}", "tokens" },
        { "{\"tokens\":\"x\"}", "tokens" },
        { "{\"text\":5}", "text" },
        { "{\"messages\":[{\"role\":\"system\"}]}", "messages[0].content" },
        { "{\"tokens\":[1],\"ttl\":-1}", "ttl" },
        { "{\"tokens\":[1],\"ttl\":\"soon\"}", "ttl" },
        { "{\"tokens\":[1],\"ttl\":\"10ms\"}", "ttl" },
        { "{\"tokens\":[1],\"ttl\":\"400d\"}", "ttl" },
        { "{\"tokens\":[1],\"ttl\":true}", "ttl" },
        { "{\"tokens\":[1],\"name\":7}", "name" },
        { "{\"tokens\":[1],\"class\":\"gold\"}", "class" },
        { "{\"tokens\":[1],\"background\":1}", "background" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_error(http_post_json(f.port, PINS, cases[i].body, 400), "invalid_value",
                     cases[i].param);
    }
    assert_int_equal(memory->n_pins, 0);
}

static void the_engines_refusals_are_told(void **state)
{
    static const struct {
        int status;
        const char *message;
        int http;
        const char *code;
        const char *param;
    } cases[] = {
        { QUIRE_NOPAGES, "the pinned region misses 4096 bytes", 507, "pin_budget", NULL },
        { QUIRE_LIMIT, "256 pins: there are as many as there may be", 429, "pin_limit", NULL },
        { QUIRE_UNSUPP, "no pins", 501, "no_pins", NULL },
        { QUIRE_AGAIN, "name: taken", 409, "pin_exists", "name" },
        { QUIRE_INVAL, "name: letters, digits", 400, "invalid_value", "name" },
        { QUIRE_RANGE, "prompt: 300, the context has 256", 400, "context_length_exceeded",
          "tokens" }, /* as the client calls it */
        { QUIRE_INVAL, "prompt: token 0 is 99, the vocabulary has 90", 400, "invalid_value",
          "tokens" },
        { QUIRE_NOMEM, "out of memory", 503, "out_of_memory", NULL },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *root;

        memory->create_status = cases[i].status;
        memory->create_message = cases[i].message;
        memory->missing_bytes = cases[i].status == QUIRE_NOPAGES ? 4096 : 0;
        root = http_post_json(f.port, PINS, "{\"tokens\":[1]}", cases[i].http);
        if (cases[i].status == QUIRE_NOPAGES) {
            assert_int_equal(json_int_at(root, "error.missing_bytes"), 4096);
        } else {
            assert_null(json_object_get(json_at(root, "error"), "missing_bytes"));
        }
        expect_error(root, cases[i].code, cases[i].param);
    }
}

static void a_drain_takes_no_pins(void **state)
{
    (void)state;
    json_decref(http_post_json(f.port, PINS, "{\"name\":\"a\",\"tokens\":[1]}", 201));
    quire_server_drain(f.server);
    expect_error(http_post_json(f.port, PINS, "{\"tokens\":[1]}", 503), "draining", NULL);
    json_decref(http_get_json(f.port, PINS "/a", 200));
}

/* ---- those that are there ---- */

static void pins_are_renewed_and_dropped(void **state)
{
    json_t *root;

    (void)state;
    json_decref(http_post_json(f.port, PINS, "{\"name\":\"a/b\",\"tokens\":[1],\"ttl\":60}", 201));
    root = http_post_json(f.port, PINS "/a/b", "{\"ttl\":\"2m\"}", 200);
    assert_int_equal(json_int_at(root, "ttl_s"), 120);
    json_decref(root);
    root = http_post_json(f.port, PINS "/a/b", "{}", 200); /* for as long as it had */
    assert_int_equal(json_int_at(root, "ttl_s"), 120);
    json_decref(root);
    root = http_post_json(f.port, PINS "/a/b", "{\"ttl\":0}", 200);
    assert_true(json_is_null(json_at(root, "expires_in_s")));
    json_decref(root);
    expect_error(http_post_json(f.port, PINS "/a/b", "{\"ttl\":\"x\"}", 400), "invalid_value",
                 "ttl");
    root = call("DELETE", NULL, PINS "/a/b", NULL, 200);
    assert_string_equal(json_string_at(root, "name"), "a/b");
    assert_true(json_is_true(json_at(root, "deleted")));
    json_decref(root);
    expect_error(http_get_json(f.port, PINS "/a/b", 404), "no_such_pin", "name");
    expect_error(http_post_json(f.port, PINS "/a/b", "{}", 404), "no_such_pin", "name");
    expect_error(call("DELETE", NULL, PINS "/a/b", NULL, 404), "no_such_pin", "name");
}

static void pins_belong_to_their_tenant(void **state)
{
    json_t *root;

    (void)state;
    json_decref(call(NULL, "key-a", PINS, "{\"name\":\"p\",\"tokens\":[1]}", 201));
    json_decref(
        call(NULL, "key-a", PINS, "{\"name\":\"p\",\"tokens\":[1],\"cache_salt\":\"s\"}", 201));
    json_decref(call(NULL, "key-b", PINS, "{\"name\":\"q\",\"tokens\":[1,2]}", 201));
    root = call(NULL, "key-a", PINS, NULL, 200);
    assert_int_equal(json_int_at(root, "total"), 2);
    assert_int_equal(json_int_at(root, "bytes"), 200);
    json_decref(root);
    root = call(NULL, "key-a", PINS "?cache_salt=s&limit=5&tenant=b", NULL, 200);
    assert_int_equal(json_int_at(root, "total"), 1);
    assert_string_equal(json_string_at(root, "data.0.cache_salt"), "s");
    json_decref(root);
    expect_error(call(NULL, "key-b", PINS "/p", NULL, 404), "no_such_pin", "name");
    expect_error(call("DELETE", "key-a", PINS "/q?tenant=b", NULL, 404), "no_such_pin", "name");
    json_decref(call(NULL, "key-b", PINS "/q", NULL, 200));
    /* An administrator sees the pins of all tenants, and names the tenant of a pin. */
    root = call(NULL, "ops", PINS "?limit=1", NULL, 200);
    assert_int_equal(json_int_at(root, "total"), 3);
    assert_int_equal(json_array_size(json_at(root, "data")), 1);
    json_decref(root);
    expect_error(call(NULL, "ops", PINS "/q", NULL, 400), "invalid_value", "tenant");
    expect_error(call(NULL, "ops", PINS, "{\"tokens\":[1]}", 400), "invalid_value", "tenant");
    root = call(NULL, "ops", PINS, "{\"tokens\":[1],\"tenant\":\"b\",\"name\":\"r\"}", 201);
    assert_string_equal(json_string_at(root, "tenant"), "b");
    json_decref(root);
    json_decref(call("DELETE", "ops", PINS "/p?tenant=a&cache_salt=s", NULL, 200));
    root = call(NULL, "key-b", PINS, NULL, 200);
    assert_int_equal(json_int_at(root, "total"), 2);
    json_decref(root);
    expect_error(call(NULL, NULL, PINS, NULL, 401), "invalid_api_key", NULL);
}

/* A promise about one budget does not stand in for another's: refused, not capped. */
static void a_key_may_not_pin_above_its_class(void **state)
{
    (void)state;
    expect_error(call(NULL, "key-a", PINS, "{\"tokens\":[1],\"class\":\"realtime\"}", 403),
                 "class_not_allowed", "class");
    json_decref(call(NULL, "key-a", PINS, "{\"tokens\":[1],\"class\":\"batch\"}", 201));
    json_decref(call(NULL, "key-b", PINS, "{\"tokens\":[1],\"class\":\"realtime\"}", 201));
}

static void the_list_has_a_limit(void **state)
{
    (void)state;
    expect_error(http_get_json(f.port, PINS "?limit=0", 400), "invalid_value", "limit");
    expect_error(http_get_json(f.port, PINS "?limit=x", 400), "invalid_value", "limit");
}

static void other_methods_are_told_which_work(void **state)
{
    http_reply reply = http_do(f.port, &(http_call){ .method = "PUT", .path = PINS "/a" });

    (void)state;
    assert_int_equal(reply.status, 405);
    assert_true(http_has_header(&reply, "Allow", "GET, HEAD, DELETE, POST"));
    http_reply_free(&reply);
    reply = http_do(f.port, &(http_call){ .method = "DELETE", .path = PINS });
    assert_int_equal(reply.status, 405);
    assert_true(http_has_header(&reply, "Allow", "GET, HEAD, POST"));
    http_reply_free(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_pin_is_made_of_tokens, start, stop),
        cmocka_unit_test_setup_teardown(a_pin_is_made_of_a_text_or_messages, start, stop),
        cmocka_unit_test_setup_teardown(it_waits_until_the_pin_is_held, start, stop),
        cmocka_unit_test_setup_teardown(a_client_that_goes_drops_its_pin, start, stop),
        cmocka_unit_test_setup_teardown(a_pin_that_goes_meanwhile_is_told, start, stop),
        cmocka_unit_test_setup_teardown(a_lost_device_is_told, start, stop),
        cmocka_unit_test_setup_teardown(wrong_fields_are_named, start, stop),
        cmocka_unit_test_setup_teardown(the_engines_refusals_are_told, start, stop),
        cmocka_unit_test_setup_teardown(a_drain_takes_no_pins, start, stop),
        cmocka_unit_test_setup_teardown(pins_are_renewed_and_dropped, start, stop),
        cmocka_unit_test_setup_teardown(pins_belong_to_their_tenant, start_with_keys, stop),
        cmocka_unit_test_setup_teardown(a_key_may_not_pin_above_its_class, start_with_keys, stop),
        cmocka_unit_test_setup_teardown(the_list_has_a_limit, start, stop),
        cmocka_unit_test_setup_teardown(other_methods_are_told_which_work, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
