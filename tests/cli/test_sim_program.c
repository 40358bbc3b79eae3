/* test_sim_program.c - quire sim end to end, its arguments' parsers, and the cost model from
 * speeds.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "cli/measuring/bench_cost.h"
#include "cli/traces/sim_classes.h"
#include "cli/traces/sim_shape.h"
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Three prefixes of two blocks each that take turns, then the first again. */
static const char *small_trace(void)
{
    static const char text[] =
        "{\"timestamp\": 0, \"input_length\": 1024, \"output_length\": 4, \"hash_ids\": [1, 2]}\n"
        "{\"timestamp\": 1000, \"input_length\": 1024, \"output_length\": 4, \"hash_ids\": [3, "
        "4]}\n"
        "{\"timestamp\": 2000, \"input_length\": 1024, \"output_length\": 4, \"hash_ids\": [5, "
        "6]}\n"
        "{\"timestamp\": 3000, \"input_length\": 1536, \"output_length\": 4, \"hash_ids\": [1, 2, "
        "7]}\n";

    return program_file("small.jsonl", text, sizeof(text) - 1);
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_number(value)) {
        fail_msg("no number '%s'", key);
    }
    return json_number_value(value);
}

/* The entry of a policy and a capacity. */
static const json_t *cell(const json_t *cells, const char *policy, json_int_t capacity)
{
    for (size_t i = 0; i < json_array_size(cells); i++) {
        const json_t *at = json_array_get(cells, i);

        if (strcmp(json_string_value(json_object_get(at, "policy")), policy) == 0 &&
            json_integer_value(json_object_get(at, "capacity_blocks")) == capacity) {
            return at;
        }
    }
    fail_msg("no %s at %d", policy, (int)capacity);
    return NULL;
}

static void sim_json(void **state)
{
    json_t *cells = program_json(PROGRAM("sim", small_trace(), "--policy", "lru,default,lru",
                                         "--capacity", "2,4,1k", "--json"));

    (void)state;
    assert_int_equal(json_array_size(cells), 9); /* lru once, and Belady */
    assert_true(number(cell(cells, "lru", 2), "hit_rate") < 1e-9);
    assert_true(number(cell(cells, "lru", 4), "hit_rate") < 1e-9);
    assert_true(number(cell(cells, "belady", 4), "hit_rate") > 0.222); /* 2 of 9 */
    assert_true(number(cell(cells, "belady", 4), "hit_rate") < 0.223);
    assert_true(number(cell(cells, "default", 1000), "hit_rate") > 0.222);
    assert_int_equal(number(cell(cells, "lru", 1000), "evictions"), 0);
    json_decref(cells);
}

/* Two devices with two blocks each: hits, times, and a disk below both. */
static void sim_devices(void **state)
{
    json_t *cells = program_json(PROGRAM("sim", small_trace(), "--policy", "lru", "--capacity", "2",
                                         "--devices", "2", "--json"));
    program_result r;

    (void)state;
    assert_int_equal(number(cell(cells, "lru", 2), "devices"), 2);
    assert_true(number(cell(cells, "lru", 2), "busiest_blocks") > 0);
    assert_true(number(cell(cells, "belady", 2), "hit_blocks") >=
                number(cell(cells, "lru", 2), "hit_blocks"));
    json_decref(cells);
    cells = program_json(PROGRAM("sim", small_trace(), "--policy", "lru", "--capacity", "1k",
                                 "--devices", "2", "--mode", "time", "--json"));
    assert_int_equal(number(cell(cells, "lru", 1000), "devices"), 2);
    assert_true(number(cell(cells, "lru", 1000), "busiest_us") > 0.0);
    assert_true(number(cell(cells, "lru", 1000), "busy_us") >=
                number(cell(cells, "lru", 1000), "busiest_us"));
    json_decref(cells);
    cells = program_json(PROGRAM("sim", small_trace(), "--policy", "lru", "--capacity", "2",
                                 "--devices", "2", "--disk-blocks", "100", "--disk-copy", "all",
                                 "--json"));
    assert_int_equal(number(cell(cells, "lru", 2), "disk_written_blocks"), 7); /* different ones */
    json_decref(cells);
    r = program_expect(0, PROGRAM("sim", small_trace(), "--devices", "2", "--mode", "time"));
    assert_says(r.out, "2 devices, each with a cache of the size of its column\n");
    assert_says(r.out, "busy, % of the time, the busiest device");
    assert_says(r.out, "4 requests in 3s, 9 blocks of 512 tokens");
    program_free(&r);
    r = program_expect(0, PROGRAM("sim", small_trace(), "--devices", "2", "--disk-blocks", "100"));
    assert_says(r.out, "of its column; one disk below all");
    assert_says(r.out, "computed by the busiest device, blocks");
    program_free(&r);
}

/* Two blocks of memory and a disk: the first prefix comes back if every block is copied. */
static void sim_disk(void **state)
{
    static const char *const copies[] = { "worth", "all" };

    (void)state;
    for (int i = 0; i < 2; i++) {
        json_t *cells =
            program_json(PROGRAM("sim", small_trace(), "--policy", "lru", "--capacity", "2",
                                 "--disk-blocks", "100", "--disk-copy", copies[i], "--json"));
        const json_t *lru = cell(cells, "lru", 2);

        assert_int_equal(number(lru, "disk_blocks"), 100);
        assert_int_equal(number(lru, "hit_blocks"), i == 0 ? 0 : 2);
        assert_int_equal(number(lru, "disk_hit_blocks"), i == 0 ? 0 : 2);
        assert_int_equal(number(lru, "disk_written_blocks"), i == 0 ? 0 : 7);
        assert_int_equal(number(cell(cells, "belady", 2), "hit_blocks"), 2);
        json_decref(cells);
    }
}

/* Whether a file has a text. */
static bool file_has(const char *path, const char *text)
{
    FILE *file = fopen(path, "rb");
    char *bytes = calloc(1, 1u << 22);
    bool has;

    assert_non_null(file);
    assert_non_null(bytes);
    assert_in_range(fread(bytes, 1, (1u << 22) - 1, file), 1, (1u << 22) - 2);
    (void)fclose(file);
    has = strstr(bytes, text) != NULL;
    free(bytes);
    return has;
}

/* The page has a plot of the tiers if there is a disk. */
static void sim_disk_page(void **state)
{
    const char *html = program_path("disk.html");

    (void)state;
    for (int i = 0; i < 2; i++) {
        program_result result =
            i == 0 ? program_expect(0, PROGRAM("sim", small_trace(), "--capacity", "2",
                                               "--disk-blocks", "100", "--html", html))
                   : program_expect(
                         0, PROGRAM("sim", small_trace(), "--capacity", "2", "--html", html));

        assert_int_equal(file_has(html, "Hits from memory and from disk"), i == 0);
        assert_int_equal(remove(html), 0);
        program_free(&result);
    }
}

/* A page that cannot be written is named before the trace is read. */
static void sim_page_refused(void **state)
{
    program_result result =
        program_expect(1, PROGRAM("sim", "no-such-trace", "--html", "/no-such-folder/x.html"));

    (void)state;
    assert_says(result.err, "cannot write /no-such-folder/x.html");
    program_free(&result);
}

/* The check before the work leaves alone a file that another program is writing. */
static void sim_page_of_another(void **state)
{
    const char *partial = program_file("page.html.partial", "half a page", strlen("half a page"));
    program_result result =
        program_expect(1, PROGRAM("sim", "no-such-trace", "--html", program_path("page.html")));

    (void)state;
    assert_says(result.err, "no-such-trace");
    assert_true(file_has(partial, "half a page"));
    assert_int_equal(remove(partial), 0);
    program_free(&result);
}

static void sim_disk_table(void **state)
{
    /* A block of 512 tokens of this shape takes 2 MiB in f16. */
    program_result result =
        program_expect(0, PROGRAM("sim", small_trace(), "--policy", "lru", "--capacity", "2",
                                  "--model", "8x8x16", "--disk", "200MB", "--disk-copy", "all"));

    (void)state;
    assert_says(result.out, "hits from memory, % of prompt blocks\n  lru             0.0");
    assert_says(result.out, "hits from disk, % of prompt blocks\n  lru            22.2");
    assert_says(result.out, "written to disk, blocks\n  lru               7");
    program_free(&result);
    result = program_expect(2, PROGRAM("sim", small_trace(), "--disk", "1GB"));
    assert_says(result.err, "--disk needs --model");
    program_free(&result);
    result =
        program_expect(2, PROGRAM("sim", small_trace(), "--disk-blocks", "99", "--mode", "time"));
    assert_says(result.err, "only with --mode hits");
    program_free(&result);
    result = program_expect(1, PROGRAM("sim", small_trace(), "--disk-blocks", "7"));
    assert_says(result.err, "7 blocks; at least 8");
    program_free(&result);
}

static void sim_default_table(void **state)
{
    program_result result = program_expect(0, PROGRAM("sim", small_trace()));
    const char *lru;

    (void)state;
    assert_says(result.out, "mooncake: 4 requests");
    assert_says(result.out, "30000");
    lru = strstr(result.out, "\n  lru");
    assert_non_null(lru);
    assert_non_null(strstr(lru, "\n  belady"));
    program_free(&result);
}

static void sim_memory(void **state)
{
    /* 2 x 32 layers x 32 heads x 128 values x 2 bytes = 524,288 bytes a token. */
    json_t *cells = program_json(PROGRAM("sim", small_trace(), "--policy", "lru", "--memory",
                                         "1GiB,8GB", "--model", "llama-7b", "--json"));
    json_t *shared;

    (void)state;
    assert_int_equal(number(cell(cells, "lru", 4), "memory_bytes"), 1 << 30);
    assert_int_equal(number(cell(cells, "lru", 29), "capacity_blocks"), 29);
    json_decref(cells);
    cells = program_json(PROGRAM("sim", small_trace(), "--policy", "lru", "--memory", "1MB",
                                 "--model", program_model(), "--json"));
    assert_true(number(json_array_get(cells, 0), "capacity_blocks") > 0);
    /* Only layers that store KV count: the model with shared layers has as many as the first one.
     */
    shared = program_json(PROGRAM("sim", small_trace(), "--policy", "lru", "--memory", "1MB",
                                  "--model", program_model_shared(), "--json"));
    assert_int_equal(number(json_array_get(shared, 0), "capacity_blocks"),
                     number(json_array_get(cells, 0), "capacity_blocks"));
    json_decref(shared);
    json_decref(cells);
}

/* Windows and states take memory of their own, and hits end where they are. */
static void sim_windows_and_states(void **state)
{
    /* A block of 512 tokens takes 2 MiB in f16 in the layers of either kind. */
    static const char windows[] = "8x8x16,8x8x16@1024";
    static const char states[] = "8x8x16,state=10MB";
    json_t *cells = program_json(PROGRAM("sim", small_trace(), "--policy", "lru", "--memory",
                                         "100MB,3MB", "--model", windows, "--json"));
    json_t *plain = program_json(
        PROGRAM("sim", small_trace(), "--policy", "lru", "--capacity", "100,1", "--json"));
    program_result result;

    (void)state;
    assert_int_equal(number(cell(cells, "lru", 47), "hit_blocks"),
                     number(cell(plain, "lru", 100), "hit_blocks"));
    assert_int_equal(number(cell(cells, "lru", 47), "memory_bytes"), 100000000);
    assert_null(json_object_get(cell(cells, "lru", 47), "states_left"));
    /* Room for a block of full layers, not for its windows. */
    assert_int_equal(number(cell(cells, "lru", 1), "hit_blocks"), 0);
    json_decref(cells);
    json_decref(plain);

    cells = program_json(PROGRAM("sim", small_trace(), "--policy", "lru", "--memory", "100MB",
                                 "--model", states, "--state-every", "512", "--json"));
    assert_int_equal(number(cell(cells, "lru", 47), "hit_blocks"), 2);
    assert_int_equal(number(cell(cells, "lru", 47), "states_left"), 7); /* each block's end */
    plain = program_json(PROGRAM("sim", small_trace(), "--policy", "lru", "--memory", "100MB",
                                 "--model", states, "--mode", "time", "--json"));
    assert_true(number(cell(plain, "lru", 47), "states_left") > 0);
    json_decref(cells);
    json_decref(plain);
    result =
        program_expect(0, PROGRAM("sim", small_trace(), "--capacity", "10", "--model", states));
    assert_says(result.out, "states left in the cache");
    assert_says(result.out, "memory        21.0 MB");
    program_free(&result);
    /* Memory for a block and a state: the hits are the disk's. */
    cells = program_json(PROGRAM("sim", small_trace(), "--policy", "lru", "--memory", "13MB",
                                 "--model", states, "--state-every", "512", "--disk-blocks", "99",
                                 "--disk-copy", "all", "--json"));
    assert_int_equal(number(cell(cells, "lru", 6), "disk_hit_blocks"), 2);
    assert_int_equal(number(cell(cells, "lru", 6), "hit_blocks"), 2);
    json_decref(cells);
    result = program_expect(1, PROGRAM("sim", small_trace(), "--disk-blocks", "99", "--disk-copy",
                                       "evicted", "--model", windows));
    assert_says(result.err, "8x8x16,8x8x16@1024");
    program_free(&result);
}

static void sim_time(void **state)
{
    json_t *a = program_json(PROGRAM("sim", small_trace(), "--mode", "time", "--policy", "lru",
                                     "--capacity", "10", "--json"));
    json_t *b = program_json(PROGRAM("sim", small_trace(), "--mode", "time", "--policy", "lru",
                                     "--capacity", "10", "--json", "-t", "2"));
    const json_t *ttft = json_object_get(cell(a, "lru", 10), "ttft");

    (void)state;
    assert_true(json_equal(a, b));
    assert_true(number(ttft, "p50_us") > 0);
    assert_true(number(cell(a, "lru", 10), "makespan_us") > 3e6);
    json_decref(a);
    json_decref(b);
}

static void sim_cost_file(void **state)
{
    static const char text[] = "{\"prefill_token_us\": 1000, \"prefill_token_depth_us\": 0, "
                               "\"decode_step_us\": 0, \"decode_row_us\": 1, "
                               "\"decode_row_depth_us\": 0}";
    const char *cost = program_file("cost.json", text, sizeof(text) - 1);
    json_t *cells =
        program_json(PROGRAM("sim", small_trace(), "--mode", "time", "--policy", "lru",
                             "--capacity", "100", "--cost", cost, "--json", "--requests", "1"));
    program_result result;

    (void)state;
    assert_true(number(json_object_get(cell(cells, "lru", 100), "ttft"), "mean_us") > 1023999);
    assert_true(number(json_object_get(cell(cells, "lru", 100), "ttft"), "mean_us") < 1024001);
    json_decref(cells);
    result =
        program_expect(1, PROGRAM("sim", small_trace(), "--mode", "time", "--cost", small_trace()));
    assert_says(result.err, "--cost");
    program_free(&result);
}

static void sim_refuses(void **state)
{
    static const struct {
        const char *words[4];
        const char *says;
        int exit_status;
    } rows[] = {
        { { "--policy", "lru,mru", NULL, NULL }, "--policy 'mru'", 2 },
        { { "--memory", "1GB", NULL, NULL }, "needs --model", 2 },
        { { "--memory", "1GB", "--capacity", "5" }, "say the same", 2 },
        { { "--capacity", "0", NULL, NULL }, "--capacity '0'", 2 },
        { { "--kv", "auto", NULL, NULL }, "--kv auto", 2 },
        { { "--classes", "a", NULL, NULL }, "--classes 'a'", 2 },
        { { "--classes", "a:1", NULL, NULL }, "no class 'a'", 2 },
        { { "--memory", "1GB", "--model", "nosuch" }, "llama-7b", 1 },
        { { "--memory", "1MB", "--model", "llama-7b" }, "0 blocks", 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *const *w = rows[i].words;
        program_result result = program_expect(
            rows[i].exit_status, PROGRAM("sim", small_trace(), w[0], w[1], w[2], w[3]));

        assert_says(result.err, rows[i].says);
        program_free(&result);
    }
}

static void sim_bad_lines(void **state)
{
    static const char text[] =
        "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 4, \"hash_ids\": [1]}\n"
        "nonsense\n"
        "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 4, \"hash_ids\": [1]}\n";
    const char *path = program_file("bad.jsonl", text, sizeof(text) - 1);
    program_result result = program_expect(0, PROGRAM("sim", path));

    (void)state;
    assert_says(result.err, "bad.jsonl:2: ");
    assert_says(result.err, "1 bad lines left out");
    program_free(&result);
    result = program_expect(1, PROGRAM("sim", path, "--bad-lines", "0"));
    assert_says(result.err, "more than 0 bad lines");
    program_free(&result);
}

/* ---- parsers ---- */

static void shapes(void **state)
{
    const quire_kv_pair f16 = { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 };
    const quire_kv_pair q8 = { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q8 };
    static const char *const wrong[] = { "32x8",      "32x8x128x2",     "0x8x128", "32x8x129",
                                         "4x2x64@0",  "4x2x64,",        "state=",  "state=0",
                                         "4x2x64@1x", "state=1,state=1" };
    quire_sim_shape shape, other;
    quire_sim_kv kv;
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    assert_int_equal(quire_sim_shape_find("32x8x128", f16, &shape, &err), QUIRE_OK);
    assert_int_equal(shape.token_bytes, 131072);
    assert_int_equal(quire_sim_shape_kv(&shape, 64, QUIRE_FORMAT_F32, 1024).block_bytes, 0);
    assert_int_equal(quire_sim_shape_find("llama-3-8b", f16, &other, &err), QUIRE_OK);
    assert_memory_equal(&other, &shape, sizeof shape);
    assert_int_equal(quire_sim_shape_find("32x8x128", q8, &other, &err), QUIRE_OK);
    assert_true(other.token_bytes < shape.token_bytes * 6 / 10);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(quire_sim_shape_find(wrong[i], f16, &other, &err), QUIRE_INVAL);
    }
    assert_int_equal(
        quire_sim_shape_find("5x4x256,29x4x256@1024,1x4x256@512,state=50MB", f16, &shape, &err),
        QUIRE_OK);
    assert_int_equal(shape.token_bytes, 5 * 4 * 256 * 4);
    assert_int_equal(shape.window_token_bytes, 30 * 4 * 256 * 4);
    assert_int_equal(shape.window_tokens, 1024);
    assert_int_equal(shape.state_bytes, 50000000);
    kv = quire_sim_shape_kv(&shape, 512, QUIRE_FORMAT_F16, 2048);
    assert_int_equal(kv.state_bytes, 25000000);
    assert_int_equal(kv.seq_state_bytes, 50000000); /* running states are in f32 */
    kv = quire_sim_shape_kv(&shape, 512, QUIRE_FORMAT_F32, 2048);
    assert_int_equal(kv.state_bytes, 50000000);
    assert_int_equal(kv.block_bytes, 512 * shape.token_bytes);
    assert_int_equal(kv.window_bytes, 512 * shape.window_token_bytes);
    assert_int_equal(kv.state_every_tokens, 2048);
    assert_int_equal(quire_sim_shape_find("state=1MB", f16, &shape, &err), QUIRE_OK);
    assert_int_equal(shape.token_bytes, 1);
}

static void classes(void **state)
{
    quire_sim_classes found;
    quire_error err = QUIRE_ERROR_INIT;
    quire_trace trace = { .n_classes = 3, .class_names = { "x", "batch", "realtime" } };

    (void)state;
    assert_int_equal(quire_sim_classes_parse(&found, NULL, &err), QUIRE_OK);
    assert_int_equal(found.n, 0);
    assert_int_equal(quire_sim_classes_match(&found, &trace, &err), QUIRE_OK);
    assert_int_equal(found.n, 0);
    assert_int_equal(quire_sim_classes_parse(&found, "realtime:2:0.25:30s,batch:1", &err),
                     QUIRE_OK);
    assert_int_equal(found.n, 2);
    assert_int_equal(quire_sim_classes_match(&found, &trace, &err), QUIRE_OK);
    assert_int_equal(found.n, 3);
    assert_int_equal(found.list[0].rank, 0);
    assert_int_equal(found.list[1].rank, 1);
    assert_int_equal(found.list[2].rank, 2);
    assert_true(found.list[2].pinned_share > 0.2);
    assert_int_equal(found.list[2].ttl_us, 30000000);
    assert_int_equal(quire_sim_classes_parse(&found, "a:8", &err), QUIRE_INVAL);
    assert_int_equal(quire_sim_classes_parse(&found, "a:1:2", &err), QUIRE_INVAL);
    assert_int_equal(quire_sim_classes_parse(&found, "a:1:0.5:x", &err), QUIRE_INVAL);
    assert_int_equal(quire_sim_classes_parse(&found, "a:1:0.5:1s:1", &err), QUIRE_INVAL);
    assert_int_equal(quire_sim_classes_parse(&found, ":1", &err), QUIRE_INVAL);
    assert_int_equal(quire_sim_classes_parse(&found, "a:1:0.5,b:1:0.5", &err), QUIRE_RANGE);
    assert_int_equal(quire_sim_classes_parse(&found, "a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1", &err),
                     QUIRE_LIMIT);
}

/* ---- costs ---- */

static void near(double a, double b)
{
    if (!(a > b * (1 - 1e-9) - 1e-12 && a < b * (1 + 1e-9) + 1e-12)) {
        fail_msg("%.12g is not %.12g", a, b);
    }
}

/* Speeds of a machine that follows the formula give its coefficients back. */
static void costs_of_speeds(void **state)
{
    const quire_sim_cost is = { .prefill_token_us = 10,
                                .prefill_token_depth_us = 0.002,
                                .decode_step_us = 2000,
                                .decode_row_us = 50,
                                .decode_row_depth_us = 0.03 };
    const double prefill = 2000 + 512 * (10 + 0.002 * 256);
    const quire_cost_speeds speeds = { .depth = 1000,
                                       .n_prompt = 512,
                                       .n_several = 8,
                                       .prefill = 512e6 / prefill,
                                       .prefill_deep = 512e6 / (prefill + 512 * 0.002 * 1000),
                                       .decode = 1e6 / 2050,
                                       .decode_deep = 1e6 / (2050 + 30),
                                       .decode_several = 8e6 / 2400 };
    const quire_cost_speeds noise = { .depth = 1000,
                                      .n_prompt = 512,
                                      .n_several = 8,
                                      .prefill = 1e9,
                                      .prefill_deep = 2e9,
                                      .decode = 10,
                                      .decode_deep = 20,
                                      .decode_several = 1000 };
    quire_sim_cost cost = { 0 };

    (void)state;
    quire_cost_of_speeds(&speeds, &cost);
    near(cost.prefill_token_us, is.prefill_token_us);
    near(cost.prefill_token_depth_us, is.prefill_token_depth_us);
    near(cost.decode_step_us, is.decode_step_us);
    near(cost.decode_row_us, is.decode_row_us);
    near(cost.decode_row_depth_us, is.decode_row_depth_us);
    quire_cost_of_speeds(&noise, &cost); /* more rows and depth were faster: no cost below 0 */
    near(cost.prefill_token_us, 0);
    near(cost.prefill_token_depth_us, 0);
    near(cost.decode_step_us, 1e6 / 10);
    near(cost.decode_row_us, 0);
    near(cost.decode_row_depth_us, 0);
}

/* The time of one kind of work is a part of the program's time; noise may make a cost 0. */
static void expect_part(double us, double whole_us)
{
    if (!(us >= 0 && us < whole_us)) {
        fail_msg("%g us, not a part of %g us", us, whole_us);
    }
}

/* The measured tokens: 16 decode steps and a prompt of 512, each also at a depth of 64. */
static void bench_cost(void **state)
{
    const uint64_t from_ns = quire_clock_ns();
    json_t *cost = program_json(
        PROGRAM("bench", "-m", program_model(), "--cost", "-d", "64", "-r", "1", "-t", "1"));
    const double took_us = (double)(quire_clock_ns() - from_ns) * 1e-3;
    const double decode_us = number(cost, "decode_step_us") + number(cost, "decode_row_us");

    (void)state;
    assert_true(decode_us > 0);
    expect_part(16 * decode_us, took_us);
    expect_part(512 * number(cost, "prefill_token_us"), took_us);
    expect_part(512 * 64 * number(cost, "prefill_token_depth_us"), took_us);
    expect_part(16 * 64 * number(cost, "decode_row_depth_us"), took_us);
    assert_int_equal(json_object_size(cost), 5);
    json_decref(cost);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sim_devices),
        cmocka_unit_test(sim_disk),
        cmocka_unit_test(sim_disk_page),
        cmocka_unit_test(sim_page_refused),
        cmocka_unit_test(sim_page_of_another),
        cmocka_unit_test(sim_disk_table),
        cmocka_unit_test(sim_json),
        cmocka_unit_test(sim_default_table),
        cmocka_unit_test(sim_memory),
        cmocka_unit_test(sim_windows_and_states),
        cmocka_unit_test(sim_time),
        cmocka_unit_test(sim_cost_file),
        cmocka_unit_test(sim_refuses),
        cmocka_unit_test(sim_bad_lines),
        cmocka_unit_test(shapes),
        cmocka_unit_test(classes),
        cmocka_unit_test(costs_of_speeds),
        cmocka_unit_test(bench_cost),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
