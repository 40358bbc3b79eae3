/* test_metrics.c - the Prometheus text, read back by a strict parser, and its documentation.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/metrics.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERIES_MAX 512
#define NAME_MAX_  128

/* ---- a strict parser of the text format 0.0.4 ---- */

typedef struct series {
    char name[NAME_MAX_];
    char labels[512]; /* as written */
    double value;
} series;

typedef struct parsed {
    char family[NAME_MAX_]; /* of the last # TYPE */
    char type[16];
    series list[SERIES_MAX];
    size_t n;
    char families[SERIES_MAX][NAME_MAX_];
    char types[SERIES_MAX][16];
    size_t n_families;
} parsed;

static parsed all; /* too large for a stack */

static size_t name_length(const char *text)
{
    size_t n = 0;

    assert_true(isalpha((unsigned char)text[0]) || text[0] == '_');
    while (isalnum((unsigned char)text[n]) || text[n] == '_') {
        n++;
    }
    assert_true(n < NAME_MAX_);
    return n;
}

static bool has_ending(const char *name, const char *ending)
{
    size_t n = strlen(name), m = strlen(ending);

    return n > m && strcmp(name + n - m, ending) == 0;
}

/* Parse "{a="b",c="d"}". Returns the text behind it. */
static const char *parse_labels(const char *at, series *s)
{
    const char *begin = at;

    assert_int_equal(*at, '{');
    do {
        at++;
        at += name_length(at);
        assert_memory_equal(at, "=\"", 2);
        for (at += 2; *at != '"'; at++) {
            assert_true(*at != '\0' && *at != '\n');
            if (*at == '\\') {
                at++;
                assert_true(*at == '\\' || *at == '"' || *at == 'n');
            }
        }
        at++;
    } while (*at == ',');
    assert_int_equal(*at, '}');
    at++;
    assert_true((size_t)(at - begin) < sizeof(s->labels));
    memcpy(s->labels, begin, (size_t)(at - begin));
    return at;
}

/* Whether a series' name belongs to the family at hand. */
static bool is_of_family(const char *name)
{
    size_t n = strlen(all.family);

    if (strncmp(name, all.family, n) != 0) {
        return false;
    }
    if (strcmp(all.type, "histogram") != 0) {
        return name[n] == '\0';
    }
    return strcmp(name + n, "_bucket") == 0 || strcmp(name + n, "_sum") == 0 ||
           strcmp(name + n, "_count") == 0;
}

static void parse_series(const char *line)
{
    series *s = &all.list[all.n];
    size_t n = name_length(line);
    char *end;

    assert_true(all.n < SERIES_MAX);
    memset(s, 0, sizeof(*s));
    memcpy(s->name, line, n);
    line += n;
    if (*line == '{') {
        line = parse_labels(line, s);
    }
    assert_int_equal(*line, ' ');
    line++;
    assert_true(isdigit((unsigned char)*line) || *line == '-');
    s->value = strtod(line, &end);
    assert_int_equal(*end, '\0');
    assert_true(is_of_family(s->name));
    for (size_t i = 0; i < all.n; i++) {
        if (strcmp(all.list[i].name, s->name) == 0) {
            assert_string_not_equal(all.list[i].labels, s->labels);
        }
    }
    all.n++;
}

static void parse_type(const char *line)
{
    size_t n = name_length(line);

    memcpy(all.family, line, n);
    all.family[n] = '\0';
    assert_int_equal(line[n], ' ');
    (void)snprintf(all.type, sizeof(all.type), "%s", line + n + 1);
    assert_true(strcmp(all.type, "counter") == 0 || strcmp(all.type, "gauge") == 0 ||
                strcmp(all.type, "histogram") == 0);
    for (size_t i = 0; i < all.n_families; i++) {
        assert_string_not_equal(all.families[i], all.family);
    }
    memcpy(all.families[all.n_families], all.family, sizeof(all.family));
    memcpy(all.types[all.n_families], all.type, sizeof(all.type));
    all.n_families++;
}

static void parse(const char *text)
{
    char help[NAME_MAX_] = "";

    memset(&all, 0, sizeof(all));
    while (*text != '\0') {
        size_t n = strcspn(text, "\n");
        char line[2048];

        assert_int_equal(text[n], '\n');
        assert_true(n > 0 && n < sizeof(line));
        memcpy(line, text, n);
        line[n] = '\0';
        text += n + 1;
        if (strncmp(line, "# HELP ", 7) == 0) {
            size_t name = name_length(line + 7);

            (void)snprintf(help, sizeof(help), "%.*s", (int)name, line + 7);
            assert_int_equal(line[7 + name], ' ');
            assert_true(line[7 + name + 1] != '\0');
        } else if (strncmp(line, "# TYPE ", 7) == 0) {
            parse_type(line + 7);
            assert_string_equal(help, all.family);
        } else {
            parse_series(line);
        }
    }
}

static double value(const char *name, const char *labels)
{
    for (size_t i = 0; i < all.n; i++) {
        if (strcmp(all.list[i].name, name) == 0 && strcmp(all.list[i].labels, labels) == 0) {
            return all.list[i].value;
        }
    }
    fail_msg("no %s%s", name, labels);
    return 0.0;
}

/* ---- the parsed metrics ---- */

static const double bounds[] = { 0.001, 0.01, 0.1, 1, 10 };

static const quire_classes classes = {
    .items = { { .name = "high", .rank = 1, .ttft_target_ms = 250.0 }, { .name = "low" } },
    .n = 2,
};

static quire_engine_stats engine_stats(void)
{
    quire_engine_stats stats = { .requests_total = 12,
                                 .requests_prefilling = 2,
                                 .requests_decoding = 3,
                                 .requests_waiting = 4,
                                 .preemptions_total = 5,
                                 .prompt_tokens_total = UINT64_C(9007199254740993),
                                 .cached_tokens_session_total = 40,
                                 .cached_tokens_prefix_total = 60,
                                 .step_seconds_total = 1.5,
                                 .uptime_us = 2500000 };

    quire_histogram_init(&stats.ttft, bounds, 5);
    quire_histogram_init(&stats.inter_token, bounds, 5);
    quire_histogram_init(&stats.queue, bounds, 5);
    quire_histogram_init(&stats.e2e, bounds, 5);
    quire_histogram_add(&stats.ttft, 0.005);
    quire_histogram_add(&stats.ttft, 0.5);
    quire_histogram_add(&stats.ttft, 0.5);
    quire_histogram_add(&stats.ttft, 100.0);
    stats.prefix.query_tokens_total = 1000;
    stats.prefix.hit_tokens_total = 100;
    stats.prefix.evictable_bytes = 256;
    stats.prefix.gone_tokens_total[QUIRE_PREFIX_GONE_TTL] = 77;
    stats.cache.budget_bytes = 4096;
    stats.cache.charged_bytes = 1280;
    stats.cache.live_bytes = 1024;
    stats.cache.slack_bytes = 11;
    stats.cache.pages_free = 9;
    stats.memory.pinned_budget_bytes = 2048;
    stats.memory.pinned_charged_bytes = 512;
    stats.memory.events_total[QUIRE_EVENT_SPILLED] = 3;
    stats.memory.shadow.sizes[2].hit_blocks_total = 21;
    stats.memory.precache.is_on = true;
    stats.tier.n_parts = 2;
    stats.tier.parts[0] = (quire_store_part){ .name = "file" };
    stats.tier.parts[1] = (quire_store_part){ .name = "far" };
    stats.tier.parts[0].stats.records = 31;
    stats.tier.parts[1].stats.state = QUIRE_STORE_DEGRADED;
    stats.tier.parts[1].stats.results_total[QUIRE_STORE_IO] = 32;
    stats.n_classes = 2;
    for (uint32_t i = 0; i < 2; i++) {
        quire_class_stats *c = &stats.classes[i];

        c->waiting = 10 + i;
        c->late_steps_total = 20 + i;
        quire_histogram_init(&c->queue, bounds, 5);
        quire_histogram_init(&c->ttft, bounds, 5);
        quire_histogram_init(&c->tpot, bounds, 5);
        quire_histogram_add(&c->ttft, 0.05);
        quire_histogram_add(&c->tpot, 5.0 + i);
    }
    return stats;
}

static void write_and_parse(const quire_engine_stats *engine, const char *model)
{
    const quire_server_stats server = {
        .http_requests_total = { 0, 0, 7, 0, 2, 1 },
        .client_gone_total = 3,
        .connections = 6,
        .is_recording = true,
        .recorded_total = 11,
        .record_dropped_total = 2,
        .devices = { { .name = "cpu", .requests = 4 },
                     { .name = "cpu", .is_lost = true, .requests_total = 8, .adopted_total = 5 } },
        .n_devices = 2
    };
    const quire_metrics_config config = { .model = model,
                                          .kv = "q8:q4",
                                          .version = "1.2.3",
                                          .page_tokens = 64,
                                          .n_ctx = 8192,
                                          .n_running_max = 16,
                                          .classes = &classes };
    quire_bytes out = { 0 };

    assert_int_equal(quire_metrics_write(&out, engine, &server, &config), QUIRE_OK);
    parse(out.data);
    quire_bytes_fini(&out);
}

static void values_come_through(void **state)
{
    quire_engine_stats stats = engine_stats();

    (void)state;
    write_and_parse(&stats, "m");
    assert_true(value("quire_num_requests_running", "") == 5);
    assert_true(value("quire_num_requests_waiting", "") == 4);
    assert_true(value("quire_num_requests", "{phase=\"decode\"}") == 3);
    assert_true(value("quire_num_preemptions_total", "") == 5);
    assert_true(value("quire_prompt_tokens_total", "") == 9007199254740993.0);
    assert_true(value("quire_prefix_cache_queries_total", "") == 1000);
    assert_true(value("quire_prefix_cache_hits_total", "") == 100);
    assert_true(value("quire_cached_tokens_total", "{cache_source=\"session\"}") == 40);
    assert_true(value("quire_cached_tokens_total", "{cache_source=\"prefix\"}") == 60);
    assert_true(value("quire_evicted_tokens_total", "{reason=\"ttl\"}") == 77);
    assert_true(value("quire_kv_cache_usage_perc", "") == 0.25); /* 1536 of 6144 */
    assert_true(value("quire_kv_bytes", "{state=\"live\"}") == 1024);
    assert_true(value("quire_kv_bytes", "{state=\"slack\"}") == 11);
    assert_true(value("quire_kv_pages", "{state=\"free\"}") == 9);
    assert_true(value("quire_tier_records", "{store=\"file\"}") == 31);
    assert_true(value("quire_tier_records", "{store=\"far\"}") == 0);
    assert_true(value("quire_tier_reads_total", "{store=\"far\",result=\"io\"}") == 32);
    assert_true(value("quire_tier_degraded", "{store=\"file\"}") == 0);
    assert_true(value("quire_tier_degraded", "{store=\"far\"}") == 1);
    assert_true(value("quire_device_down", "{device=\"0\",name=\"cpu\"}") == 0);
    assert_true(value("quire_device_down", "{device=\"1\",name=\"cpu\"}") == 1);
    assert_true(value("quire_device_requests", "{device=\"0\",name=\"cpu\"}") == 4);
    assert_true(
        value("quire_device_requests_total", "{device=\"1\",name=\"cpu\",what=\"adopted\"}") == 5);
    assert_true(value("quire_step_seconds_total", "") == 1.5);
    assert_true(value("quire_uptime_seconds", "") == 2.5);
    assert_true(value("quire_http_requests_total", "{class=\"2xx\"}") == 7);
    assert_true(value("quire_http_requests_total", "{class=\"5xx\"}") == 1);
    assert_true(value("quire_http_client_gone_total", "") == 3);
    assert_true(value("quire_http_connections", "") == 6);
    assert_true(value("quire_recording", "") == 1);
    assert_true(value("quire_recorded_requests_total", "{result=\"written\"}") == 11);
    assert_true(value("quire_recorded_requests_total", "{result=\"dropped\"}") == 2);
    assert_true(value("quire_build_info", "{version=\"1.2.3\"}") == 1);
    assert_true(value("quire_cache_config_info",
                      "{model=\"m\",kv=\"q8:q4\",page_tokens=\"64\",max_seq_len=\"8192\","
                      "max_batch_size=\"16\"}") == 1);
}

static void classes_have_labels(void **state)
{
    quire_engine_stats stats = engine_stats();

    (void)state;
    write_and_parse(&stats, "m");
    assert_true(value("quire_class_requests", "{class=\"high\",state=\"waiting\"}") == 10);
    assert_true(value("quire_class_requests", "{class=\"low\",state=\"waiting\"}") == 11);
    assert_true(value("quire_class_late_steps_total", "{class=\"low\"}") == 21);
    assert_true(value("quire_class_target_seconds", "{class=\"high\",target=\"ttft\"}") == 0.25);
    assert_true(value("quire_class_target_seconds", "{class=\"low\",target=\"ttft\"}") == 0);
    assert_true(value("quire_class_time_to_first_token_seconds_bucket",
                      "{class=\"high\",le=\"0.1\"}") == 1);
    assert_true(value("quire_class_time_per_output_token_seconds_sum", "{class=\"low\"}") == 6);
}

static void memory_is_told_by_region(void **state)
{
    quire_engine_stats stats = engine_stats();

    (void)state;
    write_and_parse(&stats, "m");
    assert_true(value("quire_kv_budget_bytes", "{region=\"dynamic\"}") == 4096);
    assert_true(value("quire_kv_budget_bytes", "{region=\"pinned\"}") == 2048);
    assert_true(value("quire_kv_charged_bytes", "{region=\"pinned\"}") == 512);
    assert_true(value("quire_events_total", "{kind=\"spilled\"}") == 3);
    assert_true(value("quire_ghost_hit_blocks_total", "{size=\"2\"}") == 21);
    assert_true(value("quire_precache_active", "") == 1);
    for (int i = 0; i < (int)QUIRE_EVENT_KIND_COUNT; i++) {
        char labels[64];

        (void)snprintf(labels, sizeof(labels), "{kind=\"%s\"}",
                       quire_event_kind_name((quire_event_kind)i));
        (void)value("quire_events_total", labels);
    }
}

/* The counts of each run of buckets rise up to +Inf, whose count is the total. Returns the number
 * of runs. */
static size_t check_histogram(const char *family)
{
    double before = 0.0, le = -1.0;
    char name[NAME_MAX_ + 16];
    size_t n = 0;

    (void)snprintf(name, sizeof(name), "%s_bucket", family);
    for (size_t i = 0; i < all.n; i++) {
        const char *at = strstr(all.list[i].labels, "le=\"");
        char labels[512];
        double bound;

        if (strcmp(all.list[i].name, name) != 0) {
            continue;
        }
        assert_non_null(at);
        assert_int_equal(sscanf(at, "le=\"%lf\"}", &bound), 1);
        assert_true(bound > le && all.list[i].value >= before);
        le = bound;
        before = all.list[i].value;
        if (bound > 1e300) { /* +Inf: the same labels without le */
            (void)snprintf(labels, sizeof(labels), "%.*s", (int)(at - all.list[i].labels),
                           all.list[i].labels);
            if (labels[strlen(labels) - 1] == ',') {
                labels[strlen(labels) - 1] = '}';
            } else {
                labels[0] = '\0';
            }
            (void)snprintf(name, sizeof(name), "%s_count", family);
            assert_true(value(name, labels) == before);
            (void)snprintf(name, sizeof(name), "%s_bucket", family);
            before = 0.0;
            le = -1.0;
            n++;
        }
    }
    return n;
}

/* Buckets are cumulative, the last is all there is, and the sum and the count agree. */
static void histograms_are_cumulative(void **state)
{
    quire_engine_stats stats = engine_stats();
    size_t n_histograms = 0;
    size_t n_series = 0;

    (void)state;
    write_and_parse(&stats, "m");
    assert_true(value("quire_time_to_first_token_seconds_bucket", "{le=\"0.001\"}") == 0);
    assert_true(value("quire_time_to_first_token_seconds_bucket", "{le=\"0.01\"}") == 1);
    assert_true(value("quire_time_to_first_token_seconds_bucket", "{le=\"1\"}") == 3);
    assert_true(value("quire_time_to_first_token_seconds_bucket", "{le=\"+Inf\"}") == 4);
    assert_true(value("quire_time_to_first_token_seconds_sum", "") == 101.005);
    for (size_t f = 0; f < all.n_families; f++) {
        if (strcmp(all.types[f], "histogram") == 0) {
            n_histograms++;
            n_series += check_histogram(all.families[f]);
        }
    }
    assert_int_equal(n_histograms, 8);
    assert_int_equal(n_series, 5 + 3 * 2);
}

/* A server without an engine: no histogram has bounds yet. */
static void zeros_are_fine(void **state)
{
    static const quire_engine_stats stats;

    (void)state;
    write_and_parse(&stats, "");
    assert_true(value("quire_kv_cache_usage_perc", "") == 0);
    assert_true(value("quire_time_to_first_token_seconds_bucket", "{le=\"+Inf\"}") == 0);
}

static void label_values_are_escaped(void **state)
{
    quire_engine_stats stats = engine_stats();

    (void)state;
    write_and_parse(&stats, "a \"b\" \\ c\nd");
    assert_true(value("quire_cache_config_info",
                      "{model=\"a \\\"b\\\" \\\\ c\\nd\",kv=\"q8:q4\",page_tokens=\"64\","
                      "max_seq_len=\"8192\",max_batch_size=\"16\"}") == 1);
}

static void names_follow_the_rules(void **state)
{
    quire_engine_stats stats = engine_stats();

    (void)state;
    write_and_parse(&stats, "m");
    assert_true(all.n_families > 40);
    for (size_t i = 0; i < all.n_families; i++) {
        const char *name = all.families[i];

        assert_int_equal(strncmp(name, "quire_", 6), 0);
        if (has_ending(name, "_total") != (strcmp(all.types[i], "counter") == 0)) {
            fail_msg("%s is a %s", name, all.types[i]);
        }
    }
}

static void reasons_are_named_as_in_the_tree(void **state)
{
    quire_engine_stats stats = engine_stats();

    (void)state;
    for (int i = 0; i < (int)QUIRE_PREFIX_GONE_COUNT; i++) {
        stats.prefix.gone_tokens_total[i] = 100u + (uint64_t)i;
    }
    write_and_parse(&stats, "m");
    for (int i = QUIRE_PREFIX_GONE_NONE + 1; i < (int)QUIRE_PREFIX_GONE_COUNT; i++) {
        char labels[64];

        (void)snprintf(labels, sizeof(labels), "{reason=\"%s\"}",
                       quire_prefix_gone_name((quire_prefix_gone)i));
        assert_true(value("quire_evicted_tokens_total", labels) == 100.0 + i);
    }
}

static void everything_is_documented(void **state)
{
    quire_engine_stats stats = engine_stats();
    quire_bytes out = { 0 };

    (void)state;
    write_and_parse(&stats, "m");
    assert_int_equal(quire_metrics_document(&out), QUIRE_OK);
    for (size_t i = 0; i < all.n_families; i++) {
        char row[NAME_MAX_ + 64];

        (void)snprintf(row, sizeof(row), "| `%s` | %s |", all.families[i], all.types[i]);
        if (strstr(out.data, row) == NULL) {
            fail_msg("the documentation lacks %s", row);
        }
    }
    quire_bytes_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_come_through),
        cmocka_unit_test(classes_have_labels),
        cmocka_unit_test(memory_is_told_by_region),
        cmocka_unit_test(histograms_are_cumulative),
        cmocka_unit_test(zeros_are_fine),
        cmocka_unit_test(label_values_are_escaped),
        cmocka_unit_test(names_follow_the_rules),
        cmocka_unit_test(reasons_are_named_as_in_the_tree),
        cmocka_unit_test(everything_is_documented),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
