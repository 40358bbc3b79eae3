/* test_page_tune.c - measured page sizes that are kept, and --page-tokens auto of a server.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/measuring/page_curve_kept.h"
#include "cli/measuring/page_tune.h"
#include "program.h"
#include "served.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 512

static const char *cache_use(const char *name)
{
    const char *path = program_path(name);

    assert_int_equal(setenv("XDG_CACHE_HOME", path, 1), 0);
    return path;
}

/* Visit kept files of a cache folder, with an edit or NULL. Returns their number. */
static uint32_t kept_visit(const char *cache, void (*edit)(const char *path))
{
    char folder[PATH_BYTES / 2], path[PATH_BYTES];
    const struct dirent *entry;
    uint32_t n = 0;
    DIR *dir;

    (void)snprintf(folder, sizeof(folder), "%s/quire/pages", cache);
    dir = opendir(folder);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (strstr(entry->d_name, ".json") != NULL) {
            assert_null(strstr(entry->d_name, ".partial"));
            (void)snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
            n++;
            if (edit != NULL) {
                edit(path);
            }
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return n;
}

static void remove_file(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

static void cache_remove(const char *cache)
{
    static const char *const folders[] = { "quire/pages", "quire", "." };
    char path[PATH_BYTES];

    (void)kept_visit(cache, remove_file);
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", cache, folders[i]);
        (void)rmdir(path);
    }
    (void)rmdir(cache);
}

/* ---- a curve ---- */

/* 256 tokens are the smallest size that is fast enough. */
static quire_page_curve curve_make(bool has_attention)
{
    quire_page_curve curve = { .choice = 2, .has_share = true };

    for (uint32_t i = 0; i < QUIRE_PAGE_POINTS; i++) {
        const double rate = i < 2 ? 1e9 : 2e9;

        curve.points[i] = (quire_page_point){ .page_tokens = quire_page_point_tokens(i),
                                              .piece_bytes = 1000u << i,
                                              .in = rate,
                                              .out = rate + 0.5,
                                              .attention = has_attention ? rate : 0.0 };
    }
    return curve;
}

static void assert_same(const quire_page_curve *a, const quire_page_curve *b)
{
    for (uint32_t i = 0; i < QUIRE_PAGE_POINTS; i++) {
        assert_int_equal(a->points[i].page_tokens, b->points[i].page_tokens);
        assert_int_equal(a->points[i].piece_bytes, b->points[i].piece_bytes);
        assert_true(a->points[i].in == b->points[i].in);
        assert_true(a->points[i].out == b->points[i].out);
        assert_true(a->points[i].attention == b->points[i].attention);
    }
    assert_int_equal(a->choice, b->choice);
    assert_int_equal(a->has_share, b->has_share);
    assert_int_equal(a->is_cached, b->is_cached);
}

static void test_json(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        quire_page_curve curve = curve_make(i % 2 == 0);
        quire_page_curve back;
        json_t *json;

        curve.is_cached = i / 2 == 0;
        json = quire_page_curve_json("disk", &curve);
        assert_int_equal(quire_page_curve_parse(&back, json), QUIRE_OK);
        assert_same(&curve, &back);
        json_decref(json);
    }
}

/* Documents of other programs, and damaged ones. */
static void test_json_refusals(void **state)
{
    static const char *const keys[] = { "page_tokens", "piece_bytes", "in_bytes_per_second",
                                        "out_bytes_per_second", "attention_bytes_per_second" };
    static const char *const values[] = { "null", "-1", "0", "\"a\"", "[]", "63" };
    const quire_page_curve curve = curve_make(true);
    quire_page_curve back;

    (void)state;
    assert_int_equal(quire_page_curve_parse(&back, NULL), QUIRE_INVAL);
    for (size_t i = 0; i < 5; i++) {
        for (size_t j = 0; j < 6; j++) {
            const bool is_fine = (i == 4 && j == 0) || (i > 0 && j == 5);
            json_t *json = quire_page_curve_json("disk", &curve);
            json_t *points = json_object_get(json, "curve");

            (void)json_object_set_new(json_array_get(points, 1), keys[i],
                                      json_loads(values[j], JSON_DECODE_ANY, NULL));
            assert_int_equal(quire_page_curve_parse(&back, json), is_fine ? QUIRE_OK : QUIRE_INVAL);
            (void)json_array_remove(points, 4);
            assert_int_equal(quire_page_curve_parse(&back, json), QUIRE_INVAL);
            json_decref(json);
        }
    }
}

static void spoil(const char *path)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs("{\"curve\": [", file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void test_files(void **state)
{
    const char *cache = cache_use("cache-files");
    const quire_page_curve curve = curve_make(true);
    quire_error err = QUIRE_ERROR_INIT;
    quire_page_curve back;

    assert_int_equal(quire_page_curve_load(&back, 7), QUIRE_NOTFOUND);
    assert_int_equal(quire_page_curve_save("disk", &curve, 7, &err), QUIRE_OK);
    assert_int_equal(quire_page_curve_load(&back, 7), QUIRE_OK);
    assert_same(&curve, &back);
    assert_int_equal(quire_page_curve_load(&back, 8), QUIRE_NOTFOUND);
    assert_int_equal(kept_visit(cache, spoil), 1);
    assert_int_equal(quire_page_curve_load(&back, 7), QUIRE_NOTFOUND);
    assert_int_equal(quire_page_curve_save("disk", &curve, 7, &err), QUIRE_OK); /* replaced */
    assert_int_equal(quire_page_curve_load(&back, 7), QUIRE_OK);
    assert_int_equal(kept_visit(cache, NULL), 1);
    cache_remove(cache);
    assert_int_equal(program_no_cache(state), 0);
    assert_true(quire_page_curve_save("disk", &curve, 7, &err) < 0);
    assert_int_equal(quire_page_curve_load(&back, 7), QUIRE_NOTFOUND);
}

/* ---- several memories ---- */

/* Rates that make 256 tokens the choice, and no rate of this machine. */
static void edit(const char *path)
{
    json_t *old = json_load_file(path, 0, NULL);
    const char *memory = json_string_value(json_object_get(old, "memory"));
    const quire_page_curve curve = curve_make(strcmp(memory, "disk") != 0);
    json_t *json = quire_page_curve_json(memory, &curve);

    assert_int_equal(json_dump_file(json, path, 0), 0);
    json_decref(json);
    json_decref(old);
}

static void count_got(void *ctx, const char *memory, const quire_page_curve *curve)
{
    assert_non_null(memory);
    assert_true(curve->points[0].in > 0.0);
    ++*(uint32_t *)ctx;
}

static json_t *tune_get(const quire_page_tune *tune)
{
    quire_error err = QUIRE_ERROR_INIT;
    json_t *document;

    if (quire_page_tune_get(&document, tune, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return document;
}

static json_int_t size_of(const json_t *document)
{
    return json_integer_value(json_object_get(document, "page_tokens"));
}

static void test_kept(void **state)
{
    static const char *const devices[] = { "cpu", "cpu" };
    const char *cache = cache_use("cache-kept");
    uint32_t n_got = 0;
    quire_page_tune tune = { .devices = devices,
                             .n_devices = 2,
                             .dir = program_path("."),
                             .format = QUIRE_FORMAT_Q4,
                             .n_tokens = 1024,
                             .from = QUIRE_PAGE_TUNE_KEPT,
                             .got = count_got,
                             .ctx = &n_got };
    quire_error err = QUIRE_ERROR_INIT;
    json_t *documents[2];

    (void)state;
    assert_int_equal(quire_page_tune_get(&documents[0], &tune, &err), QUIRE_NOTFOUND);
    assert_string_equal(err.message, "host was not measured yet");
    assert_null(documents[0]);
    tune.from = QUIRE_PAGE_TUNE_FIRST;
    documents[0] = tune_get(&tune);
    assert_int_equal(n_got, 2);
    assert_int_equal(json_array_size(json_object_get(documents[0], "memories")), 2);
    assert_int_equal(kept_visit(cache, NULL), 2);
    tune.from = QUIRE_PAGE_TUNE_KEPT;
    documents[1] = tune_get(&tune);
    assert_true(json_equal(documents[0], documents[1]));
    json_decref(documents[0]);
    json_decref(documents[1]);
    /* Kept curves are taken as they are, for the same format, tokens and path. */
    assert_int_equal(kept_visit(cache, edit), 2);
    tune.from = QUIRE_PAGE_TUNE_FIRST;
    documents[0] = tune_get(&tune);
    assert_int_equal(size_of(documents[0]), 256);
    assert_true(json_is_true(json_object_get(documents[0], "has_share")));
    json_decref(documents[0]);
    tune.from = QUIRE_PAGE_TUNE_KEPT;
    tune.n_tokens = 2048; /* which attention reads */
    assert_int_equal(quire_page_tune_get(&documents[0], &tune, &err), QUIRE_NOTFOUND);
    tune.n_tokens = 1024;
    tune.format = QUIRE_FORMAT_Q8;
    assert_int_equal(quire_page_tune_get(&documents[0], &tune, &err), QUIRE_NOTFOUND);
    tune.format = QUIRE_FORMAT_Q4;
    tune.dir = "/";
    assert_int_equal(quire_page_tune_get(&documents[0], &tune, &err), QUIRE_NOTFOUND);
    assert_string_equal(err.message, "disk was not measured yet");
    /* quire tune-pages measures anew. */
    tune.dir = NULL;
    tune.from = QUIRE_PAGE_TUNE_NEW;
    documents[0] = tune_get(&tune);
    tune.from = QUIRE_PAGE_TUNE_KEPT;
    documents[1] = tune_get(&tune);
    assert_true(json_equal(documents[0], documents[1]));
    assert_int_equal(kept_visit(cache, NULL), 2);
    json_decref(documents[0]);
    json_decref(documents[1]);
    cache_remove(cache);
}

/* No place to keep them is no error. */
static void test_unkept(void **state)
{
    const quire_page_tune tune = { .format = QUIRE_FORMAT_Q8,
                                   .n_tokens = 1024,
                                   .from = QUIRE_PAGE_TUNE_FIRST };
    json_t *document;

    assert_int_equal(program_no_cache(state), 0);
    document = tune_get(&tune);
    assert_true(size_of(document) >= 64);
    json_decref(document);
}

static void test_sizes(void **state)
{
    static const char *const texts[] = { "{}",
                                         "{\"page_tokens\": 0}",
                                         "{\"page_tokens\": 100}",
                                         "{\"page_tokens\": 2048}",
                                         "{\"page_tokens\": -64}",
                                         "{\"page_tokens\": 64.0}" };
    uint32_t page_tokens = 1;
    json_t *document;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        document = json_loads(texts[i], 0, NULL);
        assert_int_equal(quire_page_tune_size(document, &page_tokens), QUIRE_INVAL);
        json_decref(document);
    }
    document = json_loads("{\"page_tokens\": 1024}", 0, NULL);
    assert_int_equal(quire_page_tune_size(document, &page_tokens), QUIRE_OK);
    assert_int_equal(page_tokens, 1024);
    json_decref(document);
}

/* ---- the server ---- */

/* Its curves and pages, by /v1/cache/regions. Memory: json_decref(). */
static json_t *regions_of(const program_running *running)
{
    json_t *root =
        json_loads(served_ask(served_port(running), "GET", "/v1/cache/regions", ""), 0, NULL);

    assert_non_null(root);
    assert_int_equal(size_of(root), size_of(json_object_get(root, "page_curve")));
    return root;
}

static const char *memory_name(const json_t *regions, size_t i)
{
    const json_t *memories = json_object_get(json_object_get(regions, "page_curve"), "memories");

    return json_string_value(json_object_get(json_array_get(memories, i), "memory"));
}

#define SERVE "serve", program_model(), "--device", "mock,cpu,mock1", "--page-tokens", "auto"

/* The first start measures, the second one takes what was kept, and a setting is checked without a
 * measurement. */
static void test_serve(void **state)
{
    const char *cache = cache_use("cache-serve");
    const char *dir = program_path("dir");
    const program_args args = PROGRAM(SERVE, "--port", "0", "--cache-dir", dir);
    program_result r = program_expect(0, PROGRAM(SERVE, "--check-config", "--cache-dir", dir));
    program_running running;
    json_t *root;

    (void)state;
    assert_says(r.out, "page_tokens: auto  # flag, --page-tokens\n");
    assert_says(r.out, "# page_tokens auto: not measured yet, so all is checked with pages of 64 "
                       "tokens\n");
    program_free(&r);
    assert_int_equal(kept_visit(cache, NULL), 0);
    running = program_start(args);
    root = regions_of(&running);
    assert_string_equal(memory_name(root, 0), "mock");
    assert_string_equal(memory_name(root, 1), "mock1");
    assert_string_equal(memory_name(root, 2), "host");
    assert_string_equal(memory_name(root, 3), "disk");
    assert_null(memory_name(root, 4));
    json_decref(root);
    served_end(&running, SIGTERM);
    assert_int_equal(kept_visit(cache, edit), 3); /* both mocks are of one kind */

    running = program_start(args);
    free(program_line_with(running.err, "pages have 256 tokens, as measured"));
    root = regions_of(&running);
    assert_int_equal(size_of(root), 256);
    json_decref(root);
    served_end(&running, SIGTERM);
    r = program_expect(0, PROGRAM(SERVE, "--check-config", "--cache-dir", dir));
    assert_says(r.out, "# page_tokens auto: 256, as measured\n");
    program_free(&r);
    (void)served_remove_dir(dir);
    cache_remove(cache);
}

#define CURVE "{\"page_tokens\":%u,\"memories\":[]}"

/* A file gives curves and size. */
static void test_serve_file(void **state)
{
    const char *cache = cache_use("cache-file");
    char text[64];
    const char *file;
    json_t *root;
    program_result r;

    (void)state;
    (void)snprintf(text, sizeof(text), CURVE, 192u);
    file = program_file("curve.json", text, strlen(text));
    root = program_json(
        PROGRAM(SERVE, "--check-config", "--json", "--kv", "f16", "--page-curve", file));
    assert_int_equal(size_of(json_object_get(root, "effective")), 192);
    json_decref(root);
    (void)snprintf(text, sizeof(text), CURVE, 100u);
    file = program_file("curve.json", text, strlen(text));
    r = program_expect(1, PROGRAM(SERVE, "--check-config", "--page-curve", file));
    assert_says(r.err, "curve.json names a size that pages cannot have");
    program_free(&r);
    root = program_json(PROGRAM(SERVE, "--check-config", "--json"));
    assert_true(json_is_null(json_object_get(json_object_get(root, "effective"), "page_tokens")));
    json_decref(root);
    r = program_expect(2, PROGRAM("serve", program_model(), "--page-tokens", "best"));
    assert_says(r.err, "it takes a whole number from 64 to 1024, a multiple of 64, or auto");
    program_free(&r);
    r = program_expect(2, PROGRAM("run", "-m", program_model(), "--page-tokens", "auto"));
    assert_says(r.err, "it takes a whole number from 64 to 1024, a multiple of 64");
    program_free(&r);
    assert_int_equal(kept_visit(cache, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),   cmocka_unit_test(test_json_refusals),
        cmocka_unit_test(test_files),  cmocka_unit_test(test_kept),
        cmocka_unit_test(test_unkept), cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_serve),  cmocka_unit_test(test_serve_file),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
