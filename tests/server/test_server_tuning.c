/* test_server_tuning.c - GET and POST /v1/cache/tuning.
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

static server_fixture f;
static engine_memory *memory;

static const quire_server_key keys[] = { { .key = "user", .tenant = "a" },
                                         { .key = "ops", .is_admin = true } };

static int start(void **state)
{
    quire_server_opts opts = server_fixture_opts();

    (void)state;
    quire_classes_default(&opts.classes);
    opts.tune_bounds.pinned_share_max = 0.5;
    server_fixture_start(&f, &opts);
    memory = engine_double_memory(f.engine);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    server_fixture_stop(&f);
    return 0;
}

static void tuning_says_what_it_would_do(void **state)
{
    json_t *root = http_get_json(f.port, "/v1/cache/tuning", 200);

    (void)state;
    assert_true(json_is_null(json_at(root, "ago_s")));
    assert_int_equal(json_array_size(json_at(root, "changes")), 0);
    json_decref(root);
    memory->tuning = (quire_engine_tuning){
        .time_us = 1,
        .facts = { .requests = 500, .hit_rate = 0.41, .hit_rate_double = 0.48 },
        .settings = { .pinned_share = 0.25, .ttl_us = 60000000 },
        .changes = { { .knob = QUIRE_TUNE_TTL,
                       .is_applicable = true,
                       .from = 60e6,
                       .to = 120e6,
                       .reason = "gaps are longer" },
                     { .knob = QUIRE_TUNE_MEMORY, .from = 1e9, .to = 2e9 },
                     { .knob = QUIRE_TUNE_POLICY, .from = QUIRE_EVICT_LRU, .to = QUIRE_EVICT_ARC },
                     { .knob = QUIRE_TUNE_PINNED_SHARE, .from = 0.25, .to = 0.5 } },
        .n_changes = 4,
    };
    root = http_post_json(f.port, "/v1/cache/tuning", "{}", 200);
    assert_false(memory->tuned_with.is_applied);
    assert_true(memory->tuned_with.bounds.pinned_share_max == 0.5);
    assert_int_equal(json_int_at(root, "facts.requests"), 500);
    assert_true(json_number_value(json_at(root, "settings.cache_ttl")) == 60);
    assert_string_equal(json_string_at(root, "changes.0.setting"), "cache_ttl");
    assert_string_equal(json_string_at(root, "changes.0.reason"), "gaps are longer");
    assert_true(json_number_value(json_at(root, "changes.0.to")) == 120);
    assert_string_equal(json_string_at(root, "changes.0.unit"), "seconds");
    assert_true(json_is_false(json_at(root, "changes.0.applied")));
    assert_int_equal(json_int_at(root, "changes.1.to"), 2000000000);
    assert_string_equal(json_string_at(root, "changes.2.to"), "arc");
    assert_true(json_number_value(json_at(root, "changes.3.to")) == 0.5);
    json_decref(root);
    root = http_post_json(f.port, "/v1/cache/tuning", "{\"apply\":true,\"compare_policies\":true}",
                          200);
    assert_true(memory->tuned_with.is_applied && memory->tuned_with.compares_policies);
    assert_true(json_is_true(json_at(root, "changes.0.applied")));
    assert_true(json_is_false(json_at(root, "changes.1.applied")));
    json_decref(root);
    root = http_get_json(f.port, "/v1/cache/tuning", 200);
    assert_int_equal(json_array_size(json_at(root, "changes")), 4);
    json_decref(root);
}

static void tuning_may_be_refused(void **state)
{
    json_t *root;

    (void)state;
    root = http_post_json(f.port, "/v1/cache/tuning", "{\"apply\":\"yes\"}", 400);
    assert_string_equal(json_string_at(root, "error.param"), "apply");
    json_decref(root);
    memory->tune_status = QUIRE_AGAIN;
    root = http_post_json(f.port, "/v1/cache/tuning", "{}", 409);
    assert_string_equal(json_string_at(root, "error.code"), "tuning_unavailable");
    json_decref(root);
    memory->tune_status = QUIRE_NOMEM;
    json_decref(http_post_json(f.port, "/v1/cache/tuning", "{}", 503));
}

static void administrators_only(void **state)
{
    http_call call = { .path = "/v1/cache/tuning", .key = "user" };

    (void)state;
    server_fixture_start_with(&f, keys, 2);
    json_decref(http_json(f.port, &call, 403));
    call.body = "{}";
    json_decref(http_json(f.port, &call, 403));
    call.key = "ops";
    json_decref(http_json(f.port, &call, 200));
    server_fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tuning_says_what_it_would_do, start, stop),
        cmocka_unit_test_setup_teardown(tuning_may_be_refused, start, stop),
        cmocka_unit_test(administrators_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
