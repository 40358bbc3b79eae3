/* test_server_memory.c - /v1/cache/events, /v1/cache/what-if, and the classes and memory of
 * /v1/cache/stats.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static server_fixture f;
static engine_memory *memory;

static const quire_server_key keys[] = { { .key = "user", .tenant = "a" },
                                         { .key = "ops", .is_admin = true } };

static int start(void **state)
{
    (void)state;
    server_fixture_start_with(&f, NULL, 0);
    memory = engine_double_memory(f.engine);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    server_fixture_stop(&f);
    return 0;
}

static void events_come_in_order(void **state)
{
    json_t *root = http_get_json(f.port, "/v1/cache/events", 200);

    (void)state;
    assert_int_equal(json_array_size(json_at(root, "data")), 5);
    assert_int_equal(json_int_at(root, "data.0.number"), 1);
    assert_string_equal(json_string_at(root, "data.0.kind"), "spilled");
    assert_string_equal(json_string_at(root, "data.4.text"), "event \"5\"");
    assert_int_equal(json_int_at(root, "last"), 5);
    json_decref(root);
    root = http_get_json(f.port, "/v1/cache/events?after=3", 200);
    assert_int_equal(json_array_size(json_at(root, "data")), 2);
    json_decref(root);
    root = http_get_json(f.port, "/v1/cache/events?after=1&limit=2", 200);
    assert_int_equal(json_int_at(root, "data.0.number"), 2);
    assert_int_equal(json_int_at(root, "last"), 3);
    json_decref(root);
    root = http_get_json(f.port, "/v1/cache/events?after=9", 200);
    assert_int_equal(json_array_size(json_at(root, "data")), 0);
    assert_int_equal(json_int_at(root, "last"), 9);
    json_decref(root);
    json_decref(http_get_json(f.port, "/v1/cache/events?after=-1", 400));
    root = http_get_json(f.port, "/v1/cache/events?limit=9999", 400);
    assert_string_equal(json_string_at(root, "error.param"), "limit");
    json_decref(root);
}

static void what_if_gives_rates_by_size(void **state)
{
    quire_shadow_stats *shadow = &memory->stats.memory.shadow;
    json_t *root = http_get_json(f.port, "/v1/cache/what-if", 200);

    (void)state;
    assert_true(json_is_false(json_at(root, "enabled")));
    assert_non_null(strstr(json_string_at(root, "reason"), "--no-what-if"));
    assert_int_equal(json_array_size(json_at(root, "sizes")), 0);
    json_decref(root);
    memory->has_stats = true;
    memory->stats.cache.budget_bytes = 3000;
    memory->stats.memory.pinned_budget_bytes = 1000;
    *shadow = (quire_shadow_stats){ .sizes = { { 0.5, 50, 100 }, { 1, 100, 150 }, { 2, 200, 300 } },
                                    .requests_total = 900,
                                    .asking_total = QUIRE_SHADOW_REQUESTS_MIN,
                                    .blocks_total = QUIRE_SHADOW_BLOCKS_MIN,
                                    .expected_blocks_total = 600,
                                    .sample_rate = 0.25 };
    root = http_get_json(f.port, "/v1/cache/what-if", 200);
    assert_true(json_is_true(json_at(root, "enabled")));
    assert_true(json_is_null(json_at(root, "reason")));
    assert_int_equal(json_int_at(root, "sizes.0.bytes"), 2000);
    assert_int_equal(json_int_at(root, "sizes.1.tokens"), 6400);
    assert_true(fabs(json_number_value(json_at(root, "sizes.0.hit_rate")) - 200.0 / 600) < 1e-5);
    assert_true(fabs(json_number_value(json_at(root, "sizes.1.hit_rate")) - 250.0 / 600) < 1e-5);
    assert_int_equal(json_int_at(root, "sizes.2.bytes"), 8000);
    assert_true(json_number_value(json_at(root, "sample_rate")) == 0.25);
    json_decref(root);
}

/* With one request or one block too few the reply has no rates, but the reason. */
static void what_if_waits_until_it_means_something(void **state)
{
    quire_shadow_stats *shadow = &memory->stats.memory.shadow;

    (void)state;
    memory->has_stats = true;
    for (uint32_t i = 0; i < 2; i++) {
        json_t *root;

        *shadow = (quire_shadow_stats){ .sizes = { { 0.5, 50, 1 }, { 1, 100, 1 }, { 2, 200, 2 } },
                                        .asking_total = QUIRE_SHADOW_REQUESTS_MIN - (i == 0),
                                        .blocks_total = QUIRE_SHADOW_BLOCKS_MIN - (i == 1),
                                        .expected_blocks_total = 600,
                                        .sample_rate = 1 };
        root = http_get_json(f.port, "/v1/cache/what-if", 200);
        assert_true(json_is_true(json_at(root, "enabled")));
        for (size_t k = 0; k < QUIRE_SHADOW_SIZES; k++) {
            const json_t *size = json_array_get(json_at(root, "sizes"), k);

            assert_true(json_is_null(json_object_get(size, "hit_rate")));
        }
        assert_non_null(strstr(json_string_at(root, "reason"),
                               i == 0 ? "there are 99 requests with 500 blocks"
                                      : "there are 100 requests with 499 blocks"));
        json_decref(root);
    }
}

static void stats_have_classes_and_memory(void **state)
{
    static const double bounds[] = { 0.1, 1.0 };
    json_t *root;

    (void)state;
    memory->has_stats = true;
    memory->stats.n_classes = 3;
    for (uint32_t i = 0; i < 3; i++) {
        quire_histogram_init(&memory->stats.classes[i].ttft, bounds, 2);
        quire_histogram_init(&memory->stats.classes[i].tpot, bounds, 2);
        quire_histogram_init(&memory->stats.classes[i].queue, bounds, 2);
        memory->stats.classes[i].waiting = 7 + i;
    }
    quire_histogram_add(&memory->stats.classes[2].ttft, 0.5);
    memory->stats.memory.pinned_budget_bytes = 4096;
    memory->stats.memory.precache.gain_tokens_total = 12;
    memory->stats.requests_parked = 4;
    root = http_get_json(f.port, "/v1/cache/stats", 200);
    assert_int_equal(json_array_size(json_at(root, "classes")), 3);
    assert_string_equal(json_string_at(root, "classes.0.name"), "realtime");
    assert_int_equal(json_int_at(root, "classes.2.waiting"), 9);
    assert_int_equal(json_int_at(root, "classes.2.ttft.n"), 1);
    assert_int_equal(json_int_at(root, "memory.pinned_budget_bytes"), 4096);
    assert_int_equal(json_int_at(root, "memory.precache.gain_tokens_total"), 12);
    assert_int_equal(json_int_at(root, "requests.parked"), 4);
    json_decref(root);
}

static void administrators_only(void **state)
{
    static const char *const paths[] = { "/v1/cache/regions", "/v1/cache/events",
                                         "/v1/cache/what-if" };

    (void)state;
    server_fixture_start_with(&f, keys, 2);
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        json_decref(http_json(f.port, &(http_call){ .path = paths[i], .key = "user" }, 403));
        /* The double has no cache to look into. */
        json_decref(
            http_json(f.port, &(http_call){ .path = paths[i], .key = "ops" }, i == 0 ? 503 : 200));
    }
    server_fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(events_come_in_order, start, stop),
        cmocka_unit_test_setup_teardown(what_if_gives_rates_by_size, start, stop),
        cmocka_unit_test_setup_teardown(what_if_waits_until_it_means_something, start, stop),
        cmocka_unit_test_setup_teardown(stats_have_classes_and_memory, start, stop),
        cmocka_unit_test(administrators_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
