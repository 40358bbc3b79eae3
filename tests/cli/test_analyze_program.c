/* test_analyze_program.c - quire analyze: text, JSON, files, refusals; and a server reads the
 * recommended settings.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cli/commands/commands.h"
#include "cli/serving/serve_args.h"
#include "cli/settings/options_internal.h"
#include "program.h"
#include "quire/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS 300

/* Conversations: a shared first block, then turns that go on. */
static const char *make_trace(const char *name)
{
    char *text = calloc(1, 1u << 20);
    quire_rng rng = { 7 };
    size_t n = 0;

    assert_non_null(text);
    for (int i = 0; i < REQUESTS; i++) {
        const int conversation = (int)quire_rng_below(&rng, 20);
        const int turns = 1 + i / 40;

        n += (size_t)snprintf(text + n, (1u << 20) - n,
                              "{\"timestamp\": %d, \"input_length\": %d, \"output_length\": %d, "
                              "\"hash_ids\": [0",
                              i * 1000, 512 * (1 + 2 * turns), 10 + i % 50);
        for (int b = 0; b < 2 * turns; b++) {
            n += (size_t)snprintf(text + n, (1u << 20) - n, ", %d", 1 + conversation * 100 + b);
        }
        n += (size_t)snprintf(text + n, (1u << 20) - n, "]}\n");
    }
    name = program_file(name, text, n);
    free(text);
    return name;
}

/* A page's text. Memory: static. */
static const char *page_text(const char *path)
{
    static char text[1u << 18];
    FILE *page = fopen(path, "rb");
    size_t n;

    assert_non_null(page);
    n = fread(text, 1, sizeof(text) - 1, page);
    assert_in_range(n, 1, sizeof(text) - 2);
    text[n] = '\0';
    assert_int_equal(fclose(page), 0);
    return text;
}

/* The page's tile "Recommended" has the value of kv_budget, to the digit. */
static void tile_is_the_setting(const char *html, const char *out)
{
    const char *budget = strstr(out, "\nkv_budget: ") + strlen("\nkv_budget: ");
    char tile[96];

    (void)snprintf(tile, sizeof(tile), "\"Recommended\",\"value\":\"%.*s\"",
                   (int)strcspn(budget, "\n"), budget);
    assert_says(page_text(html), tile);
}

static void text_and_files(void **state)
{
    const char *trace = make_trace("trace.jsonl");
    const char *html = program_path("page.html");
    const char *yaml = program_path("made.yaml");
    program_result result =
        program_expect(0, PROGRAM("analyze", trace, "--html", html, "--yaml", yaml, "--model",
                                  "llama-3-8b", "--capacity", "20,50", "-t", "2"));

    (void)state;
    assert_says(result.out, "300 requests in ");
    assert_says(result.out, "tokens of a prompt");
    assert_says(result.out, "sessions, found by what prompts begin with");
    assert_says(result.out, "belady");
    assert_says(result.out, "\npage_tokens: ");
    assert_says(result.out, "\nkv_budget: ");
    assert_says(result.out, "\ncache_policy: ");
    assert_says(result.out, "\ncache_ttl: ");
    tile_is_the_setting(html, result.out);
    program_free(&result);
    assert_int_equal(remove(html), 0);
    assert_int_equal(remove(yaml), 0);
}

/* The memory of a model with windows and states is larger than that of its full layers, and the
 * simulations know it. */
static void windows_and_states(void **state)
{
    const char *trace = make_trace("windows.jsonl");
    program_result plain =
        program_expect(0, PROGRAM("analyze", trace, "--model", "8x8x64", "-t", "2"));
    program_result result =
        program_expect(0, PROGRAM("analyze", trace, "--model", "8x8x64,24x8x64@1024,state=20MB",
                                  "--state-every", "2048", "-t", "2"));
    const char *sizes[] = { strstr(plain.out, "\nkv_budget: "),
                            strstr(result.out, "\nkv_budget: ") };

    (void)state;
    assert_non_null(sizes[0]);
    assert_non_null(sizes[1]);
    assert_true(strtod(sizes[1] + 12, NULL) > 1.5 * strtod(sizes[0] + 12, NULL));
    assert_null(strstr(plain.out, "A cached request"));
    assert_says(result.out, "A cached request");
    program_free(&plain);
    program_free(&result);
}

/* The recommendation for a number of devices, as a document. */
static json_t *recommendation_for(const char *trace, const char *devices)
{
    json_t *all = program_json(
        PROGRAM("analyze", trace, "--model", "8x8x64", "--devices", devices, "--json", "-t", "2"));
    json_t *part = json_incref(json_object_get(all, "recommendation"));

    assert_non_null(part);
    json_decref(all);
    return part;
}

static json_int_t field(const json_t *object, const char *name)
{
    return json_integer_value(json_object_get(object, name));
}

/* Of two devices each needs at least half of the memory that one needs, and no more than that. */
static void several_devices(void **state)
{
    const char *trace = make_trace("devices.jsonl");
    json_t *one = recommendation_for(trace, "1");
    json_t *two = recommendation_for(trace, "2");
    program_result result = program_expect(
        0, PROGRAM("analyze", trace, "--model", "8x8x64", "--devices", "2", "-t", "2"));

    (void)state;
    assert_int_equal(field(one, "devices"), 1);
    assert_int_equal(field(two, "devices"), 2);
    assert_in_range(field(two, "capacity_blocks"), (field(one, "capacity_blocks") + 1) / 2,
                    field(one, "capacity_blocks") + 1);
    assert_in_range(field(two, "memory_bytes"), field(one, "memory_bytes") / 2,
                    field(one, "memory_bytes"));
    assert_int_equal(field(two, "live_tokens"), field(one, "live_tokens"));
    assert_says(result.out, "Each of 2 devices has such a budget.");
    assert_says(result.out, "shared out equally");
    json_decref(one);
    json_decref(two);
    program_free(&result);
}

/* A recorded trace with two classes. */
static const char *make_recorded(const char *name)
{
    char *text = calloc(1, 1u << 20);
    size_t n = (size_t)snprintf(text, 1u << 20,
                                "{\"quire_trace\":1,\"block_tokens\":64,\"model\":\"m\","
                                "\"form\":\"hashed\",\"key\":\"5f\","
                                "\"classes\":[\"realtime\",\"batch\"]}\n");

    assert_non_null(text);
    for (int i = 0; i < REQUESTS; i++) {
        n += (size_t)snprintf(text + n, (1u << 20) - n,
                              "{\"t\":%lld,\"tenant\":0,\"class\":%d,\"session\":%d,"
                              "\"input\":192,\"output\":90,\"blocks\":\"%016x%016x%016x\"}\n",
                              1700000000000000LL + i * 100000LL, i % 2, 1 + i % 30, 1, 2 + i % 30,
                              100 + i % 90);
    }
    name = program_file(name, text, n);
    free(text);
    return name;
}

/* The file is one that a server takes. */
static void server_reads_it(void **state)
{
    const char *yaml = program_path("read.yaml");
    const char *html = program_path("recorded.html");
    char flag[] = "--config";
    char model_flag[] = "-m";
    char model[] = "x";
    char path[4096];
    char *argv[] = { model_flag, model, flag, path };
    quire_serve_args *args = malloc(sizeof(*args));
    quire_error err = QUIRE_ERROR_INIT;
    program_result result =
        program_expect(0, PROGRAM("analyze", make_recorded("recorded.jsonl"), "--yaml", yaml,
                                  "--model", "8x2x64", "--kv", "f16", "--memory", "40MB", "--disk",
                                  "1TB", "--html", html, "--decode-rate", "50"));

    (void)state;
    program_free(&result);
    assert_non_null(args);
    (void)snprintf(path, sizeof(path), "%s", yaml);
    quire_options_init(&quire_command_serve, args);
    if (quire_command_serve.parse(4, argv, args, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    assert_int_equal(args->common.page_tokens % 64, 0);
    assert_in_range(args->common.kv_budget_bytes, 20000000, 40000000);
    assert_in_range(args->pinned_bytes, 1000000, args->common.kv_budget_bytes - 1);
    assert_in_range(args->cache_disk_bytes, 1000000, 999999999999);
    assert_int_not_equal(args->cache_disk_bytes, (uint64_t)20 << 30); /* the default */
    assert_int_equal(remove(html), 0);
    quire_settings_fini(&args->settings);
    free(args);
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void json(void **state)
{
    json_t *document = program_json(
        PROGRAM("analyze", make_trace("trace.jsonl"), "--json", "--capacity", "10,100"));
    const json_t *policies = json_object_get(document, "policies");
    const json_t *dists = json_object_get(document, "distributions");
    const json_t *lru = json_object_get(document, "lru");
    double blocks = 0.0;

    (void)state;
    assert_true(number(document, "requests") == REQUESTS);
    blocks = number(document, "blocks");
    assert_true(number(document, "different_blocks") + number(document, "repeated_blocks") ==
                blocks);
    assert_true(number(json_object_get(dists, "prompt_tokens"), "n") == REQUESTS);
    assert_true(json_array_size(json_object_get(json_object_get(dists, "reuse_gap_us"), "bars")) >
                2);
    assert_true(json_array_size(lru) >= 5);
    assert_true(fabs(number(json_array_get(lru, json_array_size(lru) - 1), "hit_rate") -
                     number(document, "repeated_blocks") / blocks) < 1e-9);
    /* Nine policies and the bound, at two capacities and the recommended one. */
    assert_int_equal(json_array_size(policies), 10 * 3);
    assert_true(json_array_size(
                    json_object_get(json_object_get(document, "recommendation"), "settings")) >= 4);
    json_decref(document);
}

static void lengths_alone(void **state)
{
    static const char csv[] = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                              "2023-11-16 18:15:46.6805900,374,44\n"
                              "2023-11-16 18:15:50.9951690,396,109\n";
    program_result result =
        program_expect(0, PROGRAM("analyze", program_file("azure.csv", csv, sizeof(csv) - 1),
                                  "--html", program_path("lengths.html")));

    (void)state;
    assert_says(result.out, "lengths alone");
    assert_null(strstr(result.out, "belady"));
    assert_says(result.out, "cache_policy: default");
    program_free(&result);
    assert_int_equal(remove(program_path("lengths.html")), 0);
}

/* Prompts below a block: nothing to simulate, but all the rest is said. */
static void no_whole_block(void **state)
{
    static const char trace[] =
        "{\"timestamp\": 0, \"input_length\": 10, \"output_length\": 3, \"hash_ids\": []}\n"
        "{\"timestamp\": 900, \"input_length\": 12, \"output_length\": 3, \"hash_ids\": []}\n";
    program_result result = program_expect(
        0, PROGRAM("analyze", program_file("short.jsonl", trace, sizeof(trace) - 1), "--html",
                   program_path("short.html"), "--devices", "2", "--model", "llama-3-8b"));
    const char *text;

    (void)state;
    assert_says(result.out, "2 requests in ");
    assert_null(strstr(result.out, "belady"));
    assert_says(result.out, "cache_policy: default");
    program_free(&result);
    text = page_text(program_path("short.html"));
    assert_says(text, "Asked for again");
    assert_null(strstr(text, "nan %"));
    assert_int_equal(remove(program_path("short.html")), 0);
}

/* The longest list, none of whose sizes is the recommended one. */
static void many_capacities(void **state)
{
    static const char *const capacities =
        "901,902,903,904,905,906,907,908,909,910,911,912,913,914,915,916,917,918,919,920,921,922,"
        "923,924,925,926,927,928,929,930,931,932";
    const char *trace = make_trace("many.jsonl");
    program_result result =
        program_expect(0, PROGRAM("analyze", trace, "--json", "--capacity", capacities));

    (void)state;
    assert_says(result.out, "\"capacity_blocks\": 901,");
    assert_says(result.out, "\"capacity_blocks\": 932,");
    program_free(&result);
}

static void refusals(void **state)
{
    const char *trace = make_trace("trace.jsonl");
    program_result result = program_expect(2, PROGRAM("analyze", trace, "--memory", "8GB"));

    (void)state;
    assert_says(result.err, "--memory needs --model");
    program_free(&result);
    result = program_expect(2, PROGRAM("analyze", trace, "--disk", "8GB"));
    assert_says(result.err, "--disk needs --model");
    program_free(&result);
    result = program_expect(2, PROGRAM("analyze", trace, "--kv", "auto"));
    assert_says(result.err, "--kv auto");
    program_free(&result);
    result = program_expect(1, PROGRAM("analyze", trace, "--pinned-class", "gold"));
    assert_says(result.err, "no such class");
    program_free(&result);
    result = program_expect(1, PROGRAM("analyze", "no-such-file"));
    assert_says(result.err, "no-such-file");
    program_free(&result);
    result = program_expect(1, PROGRAM("analyze", trace, "--html", "/no-such-folder/x.html"));
    assert_says(result.err, "no-such-folder");
    assert_string_equal(result.out, ""); /* before all measurements */
    program_free(&result);
    result = program_expect(1, PROGRAM("analyze", trace, "--yaml", "/no-such-folder/x.yaml"));
    assert_says(result.err, "no-such-folder");
    assert_string_equal(result.out, "");
    program_free(&result);
    result = program_expect(2, PROGRAM("analyze"));
    assert_says(result.err, "--trace");
    program_free(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_and_files),
        cmocka_unit_test(windows_and_states),
        cmocka_unit_test(several_devices),
        cmocka_unit_test(server_reads_it),
        cmocka_unit_test(json),
        cmocka_unit_test(lengths_alone),
        cmocka_unit_test(no_whole_block),
        cmocka_unit_test(many_capacities),
        cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
