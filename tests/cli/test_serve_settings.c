/* test_serve_settings.c - the table of quire serve against the options that it sets, and the
 * documents made of tables.
 *
 * With QUIRE_WRITE_DOCS in the environment the generated parts of documents are written instead of
 * compared (make docs).
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/commands/commands.h"
#include "cli/serving/serve_args.h"
#include "cli/serving/serve_classes.h"
#include "cli/settings/options_internal.h"
#include "document.h"
#include "model/chat_templates.h"
#include "quire/status.h"
#include "server/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Defaults, with a model named. */
static quire_serve_args *default_args(void)
{
    char *argv[] = { (char[]){ "-m" }, (char[]){ "x" } };
    quire_serve_args *args = malloc(sizeof(*args));
    quire_error err = QUIRE_ERROR_INIT;

    assert_non_null(args);
    quire_options_init(&quire_command_serve, args);
    if (quire_command_serve.parse(2, argv, args, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return args;
}

/* The table's defaults are those of the parts, which their headers give. */
static void defaults_are_those_of_the_engine(void **state)
{
    const quire_engine_opts expected = QUIRE_ENGINE_OPTS_INIT;
    quire_serve_args *args = default_args();
    const quire_engine_opts opts = quire_serve_engine_opts(args);
    const quire_opened_want want = quire_serve_want(args);

    (void)state;
    assert_int_equal(opts.n_running_max, expected.n_running_max);
    assert_int_equal(opts.queue_max, expected.queue_max);
    assert_int_equal(opts.chunk_tokens, expected.chunk_tokens);
    assert_int_equal(opts.tokens_max, expected.tokens_max);
    assert_int_equal(opts.admit, expected.admit);
    assert_int_equal(opts.no_prefix_cache, expected.no_prefix_cache);
    assert_int_equal(opts.cache_policy, expected.cache_policy);
    assert_true(opts.aging_us == expected.aging_us);
    assert_true(opts.pinned_bytes == expected.pinned_bytes);
    assert_true(opts.pinned_stays == expected.pinned_stays);
    assert_true(opts.pinned.ceiling_bytes == expected.pinned.ceiling_bytes);
    assert_int_equal(opts.pins_max, expected.pins_max);
    assert_int_equal(opts.precache.is_off, expected.precache.is_off);
    assert_int_equal(opts.recent_bytes, expected.recent_bytes);
    assert_int_equal(opts.no_shadow, expected.no_shadow);
    assert_true(opts.cache_ttl_us == expected.cache_ttl_us);
    assert_true(opts.low_traffic_after_us == expected.low_traffic_after_us);
    assert_true(opts.low_traffic_hits_per_hour == expected.low_traffic_hits_per_hour);
    assert_int_equal(opts.sessions.sessions_max, expected.sessions.sessions_max);
    assert_true(opts.sessions.ttl_us == expected.sessions.ttl_us);
    /* A step holds a chunk and a row of each request. */
    assert_int_equal(want.n_seqs_max,
                     opts.n_running_max + quire_engine_parked_max(opts.n_running_max) + 1);
    assert_int_equal(opts.retain_chunk, 1024);
    assert_int_equal(args->common.n_batch, opts.chunk_tokens + opts.n_running_max);
    free(args);
}

static void defaults_are_those_of_the_server(void **state)
{
    const quire_server_opts expected = QUIRE_SERVER_OPTS_INIT;
    quire_serve_args *args = default_args();
    const quire_server_opts opts = quire_serve_server_opts(args);

    (void)state;
    assert_string_equal(opts.host, expected.host);
    assert_int_equal(opts.port, expected.port);
    assert_int_equal(opts.body_bytes_max, expected.body_bytes_max);
    assert_int_equal(opts.header_bytes_max, expected.header_bytes_max);
    assert_int_equal(opts.connections_max, expected.connections_max);
    assert_int_equal(opts.idle_timeout_s, expected.idle_timeout_s);
    assert_int_equal(opts.request_time_max_s, expected.request_time_max_s);
    assert_int_equal(opts.truncates_turns, expected.truncates_turns);
    assert_int_equal(opts.context_overflow, expected.context_overflow);
    assert_int_equal(opts.context_keep, expected.context_keep);
    assert_true(opts.tune_bounds.pinned_share_min == expected.tune_bounds.pinned_share_min);
    assert_true(opts.tune_bounds.pinned_share_max == expected.tune_bounds.pinned_share_max);
    assert_true(opts.tune_bounds.ttl_min_us == expected.tune_bounds.ttl_min_us);
    assert_true(opts.tune_bounds.ttl_max_us == expected.tune_bounds.ttl_max_us);
    assert_true(opts.sampler.temperature == expected.sampler.temperature);
    assert_int_equal(opts.sampler.top_k, expected.sampler.top_k);
    assert_true(opts.sampler.top_p == expected.sampler.top_p);
    assert_true(opts.sampler.min_p == expected.sampler.min_p);
    assert_true(opts.sampler.repeat_penalty == expected.sampler.repeat_penalty);
    assert_true(opts.sampler.frequency_penalty == expected.sampler.frequency_penalty);
    assert_true(opts.sampler.presence_penalty == expected.sampler.presence_penalty);
    assert_int_equal(opts.sampler.penalty_tokens, expected.sampler.penalty_tokens);
    assert_true(opts.sampler.repetition_penalty == expected.sampler.repetition_penalty);
    assert_true(opts.sampler.dry_multiplier == expected.sampler.dry_multiplier);
    assert_true(opts.sampler.dry_base == expected.sampler.dry_base);
    assert_int_equal(opts.sampler.dry_allowed_length, expected.sampler.dry_allowed_length);
    assert_int_equal(opts.sampler.dry_tokens, expected.sampler.dry_tokens);
    assert_int_equal(opts.sampler.n_dry_breakers, expected.sampler.n_dry_breakers);
    assert_true(opts.sampler.top_n_sigma == expected.sampler.top_n_sigma);
    assert_true(opts.sampler.typical_p == expected.sampler.typical_p);
    assert_true(opts.sampler.xtc_probability == expected.sampler.xtc_probability);
    assert_true(opts.sampler.xtc_threshold == expected.sampler.xtc_threshold);
    assert_true(opts.sampler.dynatemp_range == expected.sampler.dynatemp_range);
    assert_true(opts.sampler.dynatemp_exponent == expected.sampler.dynatemp_exponent);
    assert_int_equal(opts.sampler.mirostat, expected.sampler.mirostat);
    assert_true(opts.sampler.mirostat_tau == expected.sampler.mirostat_tau);
    assert_true(opts.sampler.mirostat_eta == expected.sampler.mirostat_eta);
    assert_memory_equal(&opts.sampler.order, &expected.sampler.order,
                        sizeof expected.sampler.order);
    free(args);
}

/* Without a list, realtime, standard and batch; a request that says nothing is standard. */
static void there_are_three_classes(void **state)
{
    quire_serve_args *args = default_args();
    quire_error err = QUIRE_ERROR_INIT;
    quire_tiers tiers;

    (void)state;
    assert_int_equal(quire_serve_classes_read(&tiers, args, &err), QUIRE_OK);
    assert_int_equal(tiers.classes.n, 3);
    assert_string_equal(tiers.classes.items[0].name, "realtime");
    assert_true(tiers.classes.items[0].is_pinned);
    assert_string_equal(tiers.classes.items[tiers.default_index].name, "standard");
    args->default_class = "batch";
    assert_int_equal(quire_serve_classes_read(&tiers, args, &err), QUIRE_OK);
    assert_string_equal(tiers.classes.items[tiers.default_index].name, "batch");
    args->default_class = "other";
    assert_int_equal(quire_serve_classes_read(&tiers, args, &err), QUIRE_INVAL);
    assert_string_equal(err.message,
                        "default_class 'other' is no class: there are realtime, standard, batch");
    free(args);
}

/* The defaults of a class's fields are those of its table. */
static void a_class_has_the_tables_defaults(void **state)
{
    const quire_config_list *list = &quire_config_lists[QUIRE_CONFIG_CLASSES];
    quire_config_class entry = { 0 };
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    assert_int_equal(list->entry_bytes, sizeof(entry));
    for (size_t i = 0; i < list->n_fields; i++) {
        const quire_opt *opt = &list->fields[i].opt;

        if (opt->initial != NULL) {
            assert_int_equal(quire_options_store(opt, opt->names[0], opt->initial, &entry, &err),
                             QUIRE_OK);
        }
    }
    assert_int_equal(entry.weight, 1);
    assert_true(entry.stretch == QUIRE_CLASS_STRETCH);
    assert_false(entry.is_pinned);
}

/* The pinned region begins as it is told, at its floor, or at a quarter of its ceiling. */
static void the_pinned_region_begins_within_its_bounds(void **state)
{
    static const struct {
        uint64_t pinned, floor, ceiling, dynamic_floor;
        uint64_t begins;
        const char *says; /* NULL = fine */
    } cases[] = {
        { 0, 0, 0, 0, 0, NULL },
        { 100, 0, 0, 0, 100, NULL },
        { 0, 0, 400, 0, 100, NULL },
        { 0, 300, 400, 0, 300, NULL },
        { 350, 300, 400, 0, 350, NULL },
        { 0, 300, 0, 0, 300, "pinned_floor is for a region that changes: give pinned_ceiling too" },
        { 100, 0, 0, 50, 100, "dynamic_floor is for a region that changes" },
        { 500, 0, 400, 0, 500, "pinned is more than pinned_ceiling" },
        { 0, 500, 400, 0, 500, "pinned_floor is more than pinned_ceiling" },
        { 200, 300, 400, 0, 200, "pinned is less than pinned_floor" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        quire_serve_args *args = default_args();
        quire_error err = QUIRE_ERROR_INIT;

        args->pinned_bytes = cases[i].pinned;
        args->pinned_floor_bytes = cases[i].floor;
        args->pinned_ceiling_bytes = cases[i].ceiling;
        args->dynamic_floor_bytes = cases[i].dynamic_floor;
        assert_int_equal(quire_serve_engine_opts(args).pinned_bytes, cases[i].begins);
        assert_int_equal(quire_serve_memory_check(args, &err),
                         cases[i].says == NULL ? QUIRE_OK : QUIRE_INVAL);
        assert_true(cases[i].says == NULL || strstr(err.message, cases[i].says) != NULL);
        free(args);
    }
}

static void times_are_rounded_up(void **state)
{
    quire_serve_args *args = default_args();

    (void)state;
    args->max_time_us = 1500;
    assert_int_equal(quire_serve_server_opts(args).request_time_max_s, 1);
    args->max_time_us = 0;
    assert_int_equal(quire_serve_server_opts(args).request_time_max_s, 0);
    free(args);
}

static void templates_have_names(void **state)
{
    const char *names[QUIRE_CHAT_TEMPLATES_MAX];
    size_t n = quire_chat_template_names(names);

    (void)state;
    assert_true(n > 10 && n < QUIRE_CHAT_TEMPLATES_MAX);
    assert_true(quire_chat_template_is_name("chatml"));
    assert_true(quire_chat_template_is_name(names[n - 1]));
    assert_false(quire_chat_template_is_name("chatlm"));
}

/* ---- documents ---- */

static void the_configuration_is_documented(void **state)
{
    quire_bytes settings = { 0 };
    quire_bytes templates = { 0 };

    (void)state;
    assert_int_equal(quire_serve_settings_document(&settings), QUIRE_OK);
    document_part("configuration.md", "settings", &settings);
    assert_int_equal(quire_serve_templates_document(&templates), QUIRE_OK);
    document_part("configuration.md", "chat templates", &templates);
    quire_bytes_fini(&settings);
    quire_bytes_fini(&templates);
}

static void the_metrics_are_documented(void **state)
{
    quire_bytes made = { 0 };

    (void)state;
    assert_int_equal(quire_metrics_document(&made), QUIRE_OK);
    document_part("metrics.md", "metrics", &made);
    quire_bytes_fini(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_engine),
        cmocka_unit_test(defaults_are_those_of_the_server),
        cmocka_unit_test(there_are_three_classes),
        cmocka_unit_test(a_class_has_the_tables_defaults),
        cmocka_unit_test(the_pinned_region_begins_within_its_bounds),
        cmocka_unit_test(times_are_rounded_up),
        cmocka_unit_test(templates_have_names),
        cmocka_unit_test(the_configuration_is_documented),
        cmocka_unit_test(the_metrics_are_documented),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
