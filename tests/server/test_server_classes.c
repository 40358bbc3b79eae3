/* test_server_classes.c - the service class of a request: its fields, its key, the class in the
 * reply.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum {
    REALTIME,
    STANDARD,
    BATCH
};

static server_fixture f;

static const quire_server_key keys[] = {
    { .key = "any", .tenant = "a" },
    { .key = "upto-standard", .tenant = "a", .max_class = "standard" },
    { .key = "only-batch", .tenant = "b", .max_class = "batch" },
    { .key = "begins-high", .tenant = "c", .default_class = "realtime" },
};

static int start(void **state)
{
    (void)state;
    server_fixture_start_with(&f, NULL, 0);
    return 0;
}

static int start_with_keys(void **state)
{
    (void)state;
    server_fixture_start_with(&f, keys, COUNT(keys));
    return 0;
}

static int stop(void **state)
{
    (void)state;
    server_fixture_stop(&f);
    return 0;
}

/* Ask with these fields and this key; the class that reached the engine. reply: the reply's
 * service_tier, NULL = none. */
static uint32_t class_of(const char *fields, const char *key, const char *reply)
{
    char body[256];
    json_t *root;

    (void)snprintf(body, sizeof body, "{\"prompt\":\"hi\"%s%s}", fields[0] != '\0' ? "," : "",
                   fields);
    root = http_json(f.port, &(http_call){ .path = TEXT, .body = body, .key = key }, 200);
    if (reply == NULL) {
        assert_null(json_object_get(root, "service_tier"));
    } else {
        assert_string_equal(json_string_at(root, "service_tier"), reply);
    }
    json_decref(root);
    return engine_double_seen(f.engine).params.class_index;
}

static void fields_name_a_class(void **state)
{
    static const struct {
        const char *fields;
        uint32_t class_index;
        const char *reply;
    } cases[] = {
        { "", STANDARD, NULL },
        { "\"service_tier\":null", STANDARD, NULL },
        { "\"service_tier\":\"auto\"", STANDARD, "default" },
        { "\"service_tier\":\"default\"", STANDARD, "default" },
        { "\"service_tier\":\"flex\"", BATCH, "flex" },
        { "\"service_tier\":\"priority\"", REALTIME, "priority" },
        { "\"service_tier\":\"scale\"", REALTIME, "priority" },
        { "\"service_tier\":\"realtime\"", REALTIME, "realtime" },
        { "\"service_tier\":\"standard\"", STANDARD, "standard" },
        { "\"service_tier\":\"batch\"", BATCH, "batch" },
        { "\"priority\":\"batch\"", BATCH, "batch" },
        { "\"priority\":\"flex\"", BATCH, "flex" },
        { "\"priority\":\"batch\",\"service_tier\":\"flex\"", BATCH, "flex" },
        { "\"priority\":7", STANDARD, NULL },
        { "\"priority\":-7,\"service_tier\":\"batch\"", BATCH, "batch" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(class_of(cases[i].fields, NULL, cases[i].reply), cases[i].class_index);
    }
    assert_int_equal(engine_double_seen(f.engine).params.priority, -7);
    (void)class_of("\"priority\":\"batch\"", NULL, "batch");
    assert_int_equal(engine_double_seen(f.engine).params.priority, 0);
}

static void what_is_no_class_is_refused(void **state)
{
    static const struct {
        const char *fields;
        const char *param;
        const char *says;
    } cases[] = {
        { "\"service_tier\":\"gold\"", "service_tier",
          "service_tier: \"gold\" is no class: there are realtime, standard, batch, and auto, "
          "default, flex, priority" },
        { "\"service_tier\":\"\"", "service_tier", "is no class" },
        { "\"service_tier\":3", "service_tier", "expected a string, got an integer" },
        { "\"priority\":\"gold\"", "priority", "is no class" },
        { "\"priority\":1.5", "priority", "expected an integer, got a number" },
        { "\"priority\":\"batch\",\"service_tier\":\"standard\"", "priority",
          "names another class than service_tier" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        char body[256];
        json_t *root;

        (void)snprintf(body, sizeof body, "{\"prompt\":\"hi\",%s}", cases[i].fields);
        root = http_post_json(f.port, TEXT, body, 400);
        assert_string_equal(json_string_at(root, "error.param"), cases[i].param);
        assert_string_equal(json_string_at(root, "error.code"), "invalid_value");
        assert_non_null(strstr(json_string_at(root, "error.message"), cases[i].says));
        json_decref(root);
    }
    assert_int_equal(engine_double_seen(f.engine).n_submitted, 0);
}

/* A request above its key's class gets the key's class, and the reply says so. */
static void a_key_caps_the_class(void **state)
{
    (void)state;
    assert_int_equal(class_of("\"service_tier\":\"priority\"", "any", "priority"), REALTIME);
    assert_int_equal(class_of("\"service_tier\":\"priority\"", "upto-standard", "default"),
                     STANDARD);
    assert_int_equal(class_of("\"service_tier\":\"realtime\"", "upto-standard", "standard"),
                     STANDARD);
    assert_int_equal(class_of("\"service_tier\":\"batch\"", "upto-standard", "batch"), BATCH);
    assert_int_equal(class_of("\"service_tier\":\"default\"", "only-batch", "flex"), BATCH);
    assert_int_equal(class_of("", "only-batch", NULL), BATCH);
    assert_int_equal(class_of("", "begins-high", NULL), REALTIME);
    assert_int_equal(class_of("\"service_tier\":\"auto\"", "begins-high", "priority"), REALTIME);
    assert_int_equal(class_of("\"service_tier\":\"default\"", "begins-high", "default"), STANDARD);
}

static void event_has_tier(void *ctx, const char *data)
{
    uint32_t *n = ctx;
    json_t *root = json_loads(data, 0, NULL);

    if (root != NULL) {
        assert_string_equal(json_string_at(root, "service_tier"), "batch");
        (*n)++;
        json_decref(root);
    }
}

static void headers_log_and_streams_say_it(void **state)
{
    http_reply reply =
        http_post(f.port, TEXT, "{\"prompt\":\"hi\",\"stream\":true,\"service_tier\":\"batch\"}");
    uint32_t n = 0;

    (void)state;
    assert_int_equal(reply.status, 200);
    assert_true(http_has_header(&reply, "X-Service-Class", "batch"));
    (void)http_events(&reply, event_has_tier, &n);
    assert_true(n >= 2);
    http_reply_free(&reply);
    server_fixture_wait_log(&f, "class=batch");
    reply = http_post(f.port, TEXT, "{\"prompt\":\"hi\"}");
    assert_true(http_has_header(&reply, "X-Service-Class", "standard"));
    http_reply_free(&reply);
}

static void props_list_the_classes(void **state)
{
    json_t *root = http_get_json(f.port, "/props", 200);

    (void)state;
    assert_int_equal(json_array_size(json_at(root, "quire.service_classes")), 3);
    assert_string_equal(json_string_at(root, "quire.service_classes.0"), "realtime");
    assert_string_equal(json_string_at(root, "quire.default_class"), "standard");
    json_decref(root);
}

static void a_full_queue_names_its_class(void **state)
{
    engine_script script = engine_script_hello;
    json_t *root;

    (void)state;
    script.submit_status = QUIRE_LIMIT;
    script.submit_message = "the queue is full";
    engine_double_script(f.engine, &script);
    root = http_post_json(f.port, TEXT, "{\"prompt\":\"hi\",\"service_tier\":\"batch\"}", 429);
    assert_non_null(strstr(json_string_at(root, "error.message"), "queue of class batch is full"));
    json_decref(root);
}

/* In a table without "standard" the lowest class is the default. Names of classes win over OpenAI's
 * words. */
static void other_tables_work_too(void **state)
{
    quire_server_opts opts = server_fixture_opts();

    (void)state;
    server_fixture_stop(&f);
    opts.classes = (quire_classes){
        .items = { { .name = "slow", .rank = 1, .weight = 1 },
                   { .name = "flex", .rank = 5, .weight = 1 },
                   { .name = "mid", .rank = 3, .weight = 1 } },
        .n = 3,
    };
    server_fixture_start(&f, &opts);
    assert_int_equal(class_of("", NULL, NULL), 0);
    assert_int_equal(class_of("\"service_tier\":\"flex\"", NULL, "flex"), 1);
    assert_int_equal(class_of("\"service_tier\":\"mid\"", NULL, "mid"), 2);
    assert_int_equal(class_of("\"service_tier\":\"priority\"", NULL, "priority"), 1);
}

static void refuses_to_start_with_classes_that_are_not_there(void **state)
{
    const quire_server_key beyond[] = { { .key = "k", .tenant = "t", .max_class = "gold" } };
    const quire_server_key above[] = {
        { .key = "k", .tenant = "t", .max_class = "batch", .default_class = "realtime" }
    };
    quire_server_opts opts = server_fixture_opts();
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    quire_classes_default(&opts.classes);
    opts.default_class = "gold";
    assert_int_equal(quire_server_opts_check(&opts, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "default_class 'gold'"));
    opts.default_class = NULL;
    opts.n_keys = 1;
    opts.keys = beyond;
    assert_int_equal(quire_server_opts_check(&opts, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "key 1: max_class 'gold'"));
    opts.keys = above;
    assert_int_equal(quire_server_opts_check(&opts, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "higher than max_class"));
    opts.n_keys = 0;
    opts.classes.items[1].rank = opts.classes.items[0].rank;
    assert_int_equal(quire_server_opts_check(&opts, &err), QUIRE_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(fields_name_a_class, start, stop),
        cmocka_unit_test_setup_teardown(what_is_no_class_is_refused, start, stop),
        cmocka_unit_test_setup_teardown(a_key_caps_the_class, start_with_keys, stop),
        cmocka_unit_test_setup_teardown(headers_log_and_streams_say_it, start, stop),
        cmocka_unit_test_setup_teardown(props_list_the_classes, start, stop),
        cmocka_unit_test_setup_teardown(a_full_queue_names_its_class, start, stop),
        cmocka_unit_test_setup_teardown(other_tables_work_too, start, stop),
        cmocka_unit_test(refuses_to_start_with_classes_that_are_not_there),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
