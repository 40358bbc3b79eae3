/* test_device_program.c - --device and quire devices, by the built program. Tests that need a
 * Vulkan device are skipped on machines without one. A mock loses its device in the tests of losses
 * (mock_program.c).
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"
#include "served.h"

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static void test_names(void **state)
{
    program_result r = program_expect(
        0, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1", "--device", "cpu"));

    (void)state;
    assert_says(r.err, "quire: device cpu (");
    assert_says(r.err, "): everything, ");
    program_free(&r);
    r = program_expect(
        0, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1", "--device", "auto"));
    assert_says(r.err, "quire: device ");
    program_free(&r);
    r = program_expect(
        1, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1", "--device", "tpu0"));
    assert_says(r.err, "there is no device 'tpu0' (cpu, vulkan0 ..., cuda0 ...)");
    program_free(&r);
    r = program_expect(
        1, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1", "--device", "vulkan12"));
    assert_says(r.err, "vulkan12");
    program_free(&r);
}

static bool has_vulkan; /* set by the first test */

static void need_vulkan(void)
{
    if (!has_vulkan) {
        print_message("no Vulkan device\n");
        skip();
    }
}

static void test_list(void **state)
{
    program_result r = program_expect(0, PROGRAM("devices"));

    (void)state;
    assert_says(r.out, "cpu ");
    has_vulkan = strstr(r.out, "\nvulkan0 ") != NULL;
    if (!has_vulkan) {
        assert_says(r.err, "quire: no Vulkan device: ");
    }
    if (strstr(r.out, "\ncuda0 ") == NULL) {
        assert_says(r.err, "quire: no CUDA device: ");
    }
    program_free(&r);
}

static void test_list_json(void **state)
{
    json_t *list = program_json(PROGRAM("devices", "--json"));

    (void)state;
    assert_true(json_array_size(list) >= (has_vulkan ? 2 : 1));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);

        assert_true(json_real_value(json_object_get(row, "copy_bytes_per_second")) > 0);
        assert_true(json_real_value(json_object_get(row, "in_bytes_per_second")) > 0);
        assert_true(json_real_value(json_object_get(row, "out_bytes_per_second")) > 0);
        assert_true(i == 0 || json_integer_value(json_object_get(row, "memory_bytes")) > 0);
        /* Lavapipe of Debian 12 does not tell it. */
        assert_true(i > 0 || json_is_null(json_object_get(row, "free_bytes")));
        assert_true(json_integer_value(json_object_get(row, "free_bytes")) <=
                    json_integer_value(json_object_get(row, "memory_bytes")));
    }
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "name")), "cpu");
    json_decref(list);
}

/* The line at the start, and the same text as by the CPU's kernels. */
static void test_text(void **state)
{
    program_result r[2];

    (void)state;
    need_vulkan();
    for (uint32_t i = 0; i < 2; i++) {
        r[i] = program_expect(0, PROGRAM("run", "-m", program_model(), "-p", "some words", "-n",
                                         "3", "--temp", "0", "--ignore-eos", "--device",
                                         i == 0 ? "cpu" : "vulkan0"));
    }
    assert_says(r[1].err, "quire: device vulkan0 (");
    assert_says(r[1].err, "): KV pages and attention; CPU: matrix products, ");
    assert_string_equal(r[0].out, r[1].out);
    program_free(&r[0]);
    program_free(&r[1]);
}

/* quire info tells the same before the start, and the need of KV there without a backend. */
static void info_expect(bool has_backend)
{
    program_result r =
        program_run(PROGRAM("info", program_model(), "-c", "64", "--device", "vulkan0"));

    assert_int_equal(r.exit_status, 0);
    assert_says(r.out, "\n  vulkan0     layers 0-");
    program_free(&r);
    r = program_run(
        PROGRAM("info", program_model(), "-c", "64", "--device", "vulkan0", "-ngl", "99"));
    assert_int_equal(r.exit_status, has_backend ? 0 : 1);
    assert_says(has_backend ? r.out : r.err,
                has_backend ? ", output), buffers "
                            : "device vulkan0: this build has no backend of ggml's for weights");
    program_free(&r);
}

/* Layers of the model need a device, and a build with ggml's backend for it. */
static void test_layers(void **state)
{
    program_result r =
        program_expect(1, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1", "-ngl", "1"));

    (void)state;
    assert_says(r.err, "-ngl 1: layers of the model can be on a device only");
    program_free(&r);
    r = program_expect(1, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1", "-ngl", "1",
                                  "--device", "cpu"));
    assert_says(r.err, "the device is the CPU (--device is not given, or names it, or is auto and "
                       "found no card)");
    program_free(&r);
    need_vulkan();
    r = program_run(PROGRAM("run", "-m", program_model(), "-p", "some words", "-n", "3", "--temp",
                            "0", "--ignore-eos", "--device", "vulkan0", "-ngl", "99"));
    if (r.exit_status == 0) {
        assert_says(r.err, "): KV pages and attention, ");
        assert_says(r.err, " layers and the output of the model; CPU: other matrix products, ");
    } else {
        assert_says(r.err, "device vulkan0: this build has no backend of ggml's for weights there");
        assert_says(r.err, "scripts/setup.sh vulkan");
    }
    info_expect(r.exit_status == 0);
    program_free(&r);
}

/* ---- quire serve ---- */

static program_running serve_on(const char *device)
{
    return program_start(PROGRAM("serve", program_model(), "--port", "0", "--kv-budget", "1MiB",
                                 "--kv", "q8", "--device", device));
}

/* A hit gives the text of a miss, which is the CPU's. */
static void test_serve(void **state)
{
    char text[2][256];
    char cpu[256];
    program_running running;
    uint16_t port;

    (void)state;
    need_vulkan();
    running = serve_on("vulkan0");
    free(program_line_with(running.err, "quire: device vulkan0 ("));
    port = served_port(&running);
    assert_int_equal(served_complete(port, text[0], sizeof text[0]), 0);
    assert_true(served_complete(port, text[1], sizeof text[1]) > 64);
    assert_string_equal(text[0], text[1]);
    served_end(&running, SIGTERM);

    running = serve_on("cpu");
    port = served_port(&running);
    (void)served_complete(port, cpu, sizeof cpu);
    assert_string_equal(text[0], cpu);
    served_end(&running, SIGTERM);
}

/* Pages survive a restart in a directory, and those of the device are no hit for the CPU. */
static void test_serve_dir(void **state)
{
    static const char *const devices[] = { "vulkan0", "vulkan0", "cpu" };
    const char *dir = program_path("dir");
    char text[3][256];

    (void)state;
    need_vulkan();
    for (size_t i = 0; i < 3; i++) {
        program_running running = program_start(
            PROGRAM("serve", program_model(), "--port", "0", "--kv-budget", "1MiB", "--kv", "q8",
                    "--device", devices[i], "--cache-dir", dir, "--store-all"));
        const json_int_t n_cached = served_complete(served_port(&running), text[i], sizeof text[i]);

        assert_int_equal(n_cached > 64, i == 1);
        assert_string_equal(text[0], text[i]);
        served_end(&running, SIGTERM);
    }
    (void)served_remove_dir(dir);
}

/* Before the weights are loaded, where the model and the settings say it. */
static void test_serve_refusals(void **state)
{
    static const struct {
        const char *words[4];
        const char *says;
    } cases[] = {
        { { "--lock-memory" }, "device vulkan0: locked memory (--lock-memory) are not possible" },
        { { "--retain", "snap:0.5", "--page-tokens", "128" },
          "--retain snap keeps another number of tokens in each lane" },
    };

    (void)state;
    need_vulkan();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        program_result r = program_expect(
            1, PROGRAM("serve", program_model(), "--port", "0", "--kv", "f16", "--kv-budget",
                       "1MiB", "--device", "vulkan0", cases[i].words[0], cases[i].words[1],
                       cases[i].words[2], cases[i].words[3]));

        assert_says(r.err, cases[i].says);
        program_free(&r);
    }
}

/* From here on the program is the one with the mock, lost at this piece of its work. */
static void mock_begin(const char *lose_at)
{
    assert_int_equal(setenv("QUIRE_PROGRAM", QUIRE_PROGRAM_MOCK, 1), 0);
    assert_int_equal(setenv("MOCK_LOSE_AT", lose_at, 1), 0);
}

static int mock_end(void **state)
{
    (void)state;
    (void)unsetenv("QUIRE_PROGRAM");
    (void)unsetenv("MOCK_LOSE_AT");
    (void)unsetenv("MOCK_MEMORY");
    return 0;
}

/* Whether auto is a card here: software devices are none. */
static bool has_card(void)
{
    program_result r = program_expect(
        0, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1", "--device", "auto"));
    const bool is_card = strstr(r.err, "quire: device cpu (") == NULL;

    program_free(&r);
    return is_card;
}

/* Pages lie below a device's memory alone, and where requests may have them there. */
static void test_serve_attend(void **state)
{
    program_result r;

    (void)state;
    r = program_expect(
        2, PROGRAM("serve", program_model(), "--check-config", "--kv-overflow-attend", "host"));
    assert_says(r.err, "kv_overflow_attend host needs a device");
    program_free(&r);
    r = program_expect(2, PROGRAM("serve", program_model(), "--check-config", "--device", "vulkan0",
                                  "--kv-overflow", "refuse", "--kv-overflow-attend", "auto"));
    assert_says(r.err, "kv_overflow_attend auto and kv_overflow refuse");
    program_free(&r);
    if (!has_card()) {
        r = program_expect(1, PROGRAM("serve", program_model(), "--check-config", "--device",
                                      "auto", "--kv-overflow-attend", "host"));
        assert_says(r.err, "kv_overflow_attend host needs a device");
        program_free(&r);
    }
    need_vulkan();
    r = program_expect(0, PROGRAM("serve", program_model(), "--check-config", "--device", "vulkan0",
                                  "--kv-overflow-attend", "auto"));
    program_free(&r);
}

/* Models with windows, too. */
static void test_serve_attend_models(void **state)
{
    static const char *const choices[] = { "device", "host", "auto" };

    (void)state;
    mock_begin("0");
    for (size_t i = 0; i < 3; i++) {
        program_result r =
            program_expect(0, PROGRAM("serve", program_model_windows(), "--check-config",
                                      "--device", "mock", "--kv-overflow-attend", choices[i]));

        program_free(&r);
    }
}

/* Large requests run by default, with their pages in the host's memory, or are refused. */
static void test_serve_overflow(void **state)
{
    static const char *const choices[] = { "tier", "auto", "refuse" };
    program_result r;

    (void)state;
    need_vulkan();
    for (size_t i = 0; i < 3; i++) {
        r = program_expect(0, PROGRAM("serve", program_model(), "--check-config", "--json",
                                      "--device", "vulkan0", "--kv-overflow", choices[i]));
        assert_says(r.out, i < 2 ? "\"kv_overflow\": \"tier\"" : "\"kv_overflow\": \"refuse\"");
        program_free(&r);
    }
}

/* ---- a lost device ---- */

#define LOST "device mock was lost, and the KV on it"

/* The commands end by name, at the prompt and later. */
static void test_lost(void **state)
{
    static const char *const places[] = { "3", "60" };
    const char *text = program_text("text.txt", 2000);
    program_result r;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        mock_begin(places[i]);
        r = program_expect(1, PROGRAM("run", "-m", program_model(), "-p", "some words", "-n", "30",
                                      "--ignore-eos", "--device", "mock"));
        assert_says(r.err, LOST ": repeat the command, or use --device cpu");
        program_free(&r);
        r = program_expect(1, PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "128",
                                      "--device", "mock"));
        assert_says(r.err, LOST ": repeat the command, or use --device cpu");
        program_free(&r);
    }
}

/* A conversation ends, and says why once. */
static void test_lost_chat(void **state)
{
    const program_args args = PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml",
                                      "-n", "4", "--device", "mock");
    program_result r;
    const char *said;

    (void)state;
    mock_begin("20");
    r = program_run_with("hello\nhello again\n", args);
    assert_int_equal(r.exit_status, 1);
    assert_says(r.err, LOST);
    said = strstr(r.err, LOST);
    assert_null(strstr(said + 1, LOST));
    program_free(&r);

    /* In an answer that is written again, too. */
    mock_begin("30");
    r = program_run_with("hello\n/retry\n/retry\n/retry\n/retry\n/retry\n/retry\n", args);
    assert_int_equal(r.exit_status, 1);
    said = strstr(r.err, " tokens read ("); /* the first answer */
    assert_non_null(said);
    said = strstr(said, LOST);
    assert_non_null(said);
    assert_null(strstr(said + 1, LOST));
    program_free(&r);
}

/* A request fails by name, and the server ends, so that a supervisor starts it again. */
static void test_lost_serve(void **state)
{
    program_running running;
    const char *reply;
    char *line;
    uint16_t port;

    (void)state;
    mock_begin("6");
    running = serve_on("mock");
    port = served_port(&running);
    reply = served_ask(port, "POST", "/v1/completions", served_story);
    assert_says(reply, LOST);
    assert_says(reply, "\"device_lost\"");
    line = program_line_with(running.err, LOST);
    assert_says(line, ": all requests failed, and the server ends. Start it again");
    free(line);
    assert_int_equal(program_end(&running), 1);
}

/* With the operator's leave the server goes on without the device and its tier, at the same port.
 */
static void test_lost_goes_on(void **state)
{
    program_running running;
    char text[256];
    uint16_t port;

    (void)state;
    mock_begin("6");
    running = program_start(PROGRAM("serve", program_model(), "--port", "0", "--kv-budget", "1MiB",
                                    "--kv", "q8", "--device", "mock", "--on-device-lost", "cpu",
                                    "--cache-host-memory", "64MiB", "--store-all",
                                    "--kv-overflow-attend", "host"));
    port = served_port(&running);
    assert_null(strstr(served_ask(port, "GET", "/health", ""), "lost_device"));
    assert_says(served_ask(port, "POST", "/v1/completions", served_story), "\"device_lost\"");
    free(program_line_with(running.err, LOST ": all requests failed, and the server goes on with "
                                             "--device cpu"));
    free(program_line_with(running.err, "serving "));
    assert_says(served_ask(port, "GET", "/health", ""), "\"lost_device\":\"mock\"");
    assert_true(served_metric(port, "quire_device_lost") == 1.0);
    assert_int_equal(served_complete(port, text, sizeof text), 0);
    assert_true(served_complete(port, text, sizeof text) > 64);
    assert_null(strstr(served_ask(port, "GET", "/metrics", ""), "store=\"host\""));
    served_end(&running, SIGTERM);
}

/* A text larger than the budget: the same text as with all pages on the device. A device without
 * room for it and no memory of the host ends by name. */
static void test_overflow(void **state)
{
    static const char *const budgets[] = { "1GiB", "400KB", "400KB" };
    const char *text = program_text("long.txt", 800);
    program_result r[3];

    (void)state;
    mock_begin("0");
    for (size_t i = 0; i < 3; i++) {
        r[i] = program_expect(i < 2 ? 0 : 1,
                              PROGRAM("run", "-m", program_model_deep(), "-f", text, "-n", "8",
                                      "--temp", "0", "--ignore-eos", "-c", "1024", "--kv-budget",
                                      budgets[i], "--kv-overflow", i < 2 ? "auto" : "refuse",
                                      "--device", "mock"));
    }
    assert_string_equal(r[0].out, r[1].out);
    assert_says(r[2].err, "--kv-budget");
    for (size_t i = 0; i < 3; i++) {
        program_free(&r[i]);
    }
}

/* Bytes of three stripes of pages in f16: with a file the host's memory has two of them. */
static const char *three_stripes(void)
{
    static char bytes[32];
    json_t *info = program_json(PROGRAM("info", program_model_deep(), "--json"));
    const json_t *f16 = json_array_get(json_object_get(info, "kv"), 1);
    const json_int_t token = json_integer_value(json_object_get(f16, "bytes_per_token"));

    (void)snprintf(bytes, sizeof bytes, "%lld", (long long)(3 * 8 * 64 * token));
    json_decref(info);
    return bytes;
}

/* A text that exceeds the host's memory as well: with a directory its pages go on to a file there,
 * and the text is that of a run with all pages on the device. */
static void test_overflow_file(void **state)
{
    const char *text = program_text("longer.txt", 2400);
    const char *dir = program_path("pages");
    json_t *r[2];

    (void)state;
    mock_begin("0");
    for (size_t i = 0; i < 2; i++) {
        const json_t *offloaded;

        r[i] = program_json(PROGRAM(
            "run", "-m", program_model_deep(), "-f", text, "-n", "8", "--temp", "0", "--ignore-eos",
            "-c", "4096", "--kv", "f16", "--kv-budget", i == 0 ? "1GiB" : "400KB", "--device",
            "mock", "--kv-overflow-memory", three_stripes(), "--cache-dir", dir, "--json"));
        offloaded = json_object_get(json_object_get(r[i], "kv"), "offloaded");
        assert_int_equal(offloaded != NULL, i == 1);
        assert_int_equal(json_integer_value(json_object_get(offloaded, "file_pages")) > 0, i == 1);
        (void)served_remove_dir(dir);
    }
    assert_string_equal(json_string_value(json_object_get(r[0], "text")),
                        json_string_value(json_object_get(r[1], "text")));
    for (size_t i = 0; i < 2; i++) {
        json_decref(r[i]);
    }
}

/* A file that cannot be written: the message names it. A file that has no room is refused. */
static void test_overflow_file_failures(void **state)
{
    const char *text = program_text("longer.txt", 2400);
    const char *dir = program_path("pages");
    const char *memory = three_stripes();
    struct rlimit before;
    program_result r;

    (void)state;
    mock_begin("0");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 4096, before.rlim_max }), 0);
    r = program_expect(1, PROGRAM("run", "-m", program_model_deep(), "-f", text, "-n", "8", "-c",
                                  "4096", "--kv", "f16", "--kv-budget", "400KB", "--device", "mock",
                                  "--kv-overflow-memory", memory, "--cache-dir", dir));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_says(r.err, "; overflow file in --cache-dir: write: File too large");
    program_free(&r);
    (void)served_remove_dir(dir);
    r = program_expect(1, PROGRAM("serve", program_model_deep(), "--check-config", "--device",
                                  "mock", "--cache-dir", dir, "--kv-overflow-disk", "1KiB"));
    assert_says(r.err, "kv_overflow_disk: 1.02 kB have no room for 8 pages");
    program_free(&r);
}

/* The same in a server, which counts the way to the file. */
static void test_serve_overflow_file(void **state)
{
    const char *dir = program_path("pages");
    program_running running;
    char prompt[2401] = "";
    json_t *request;
    char *body;
    uint16_t port;

    (void)state;
    for (size_t n = 0; n + 12 < sizeof prompt; n += 12) {
        memcpy(prompt + n, "12 pages, or", 13);
    }
    request = json_pack("{s:s, s:i, s:i}", "prompt", prompt, "max_tokens", 4, "temperature", 0);
    body = json_dumps(request, 0);
    json_decref(request);
    mock_begin("0");
    running = program_start(PROGRAM("serve", program_model_deep(), "--port", "0", "--kv", "f16",
                                    "--kv-budget", "400KB", "-c", "4096", "--device", "mock",
                                    "--kv-overflow-memory", three_stripes(), "--cache-dir", dir));
    port = served_port(&running);
    assert_says(served_ask(port, "POST", "/v1/completions", body), "\"finish_reason\"");
    assert_true(served_metric(port, "quire_kv_offload_file_pages_total{direction=\"down\"}") >= 8);
    assert_true(served_metric(port, "quire_kv_offload_file_io_bytes_total{direction=\"read\"}") >
                0);
    assert_true(served_metric(port, "quire_kv_offload_file_bytes{what=\"capacity\"}") > 0);
    assert_true(served_metric(port, "quire_kv_offload_file_failures_total") == 0.0);
    assert_says(served_ask(port, "GET", "/v1/cache/stats", ""), "\"pages_down_total\":");
    assert_says(served_ask(port, "GET", "/v1/cache/regions", ""), "\"pages_down_total\":");
    served_end(&running, SIGTERM);
    (void)served_remove_dir(dir);
    free(body);
}

/* Tokens of the one text in a directory of pages. */
static json_int_t tokens_in(const char *dir)
{
    json_t *document = program_json(PROGRAM("cache", "ls", dir, "--json"));
    const json_t *texts = json_object_get(document, "texts");
    json_int_t n;

    assert_int_equal(json_array_size(texts), 1);
    n = json_integer_value(json_object_get(json_array_get(texts, 0), "tokens"));
    json_decref(document);
    return n;
}

/* Generated tokens attend pages of the host's memory where they lie. Such tokens are not stored. */
static void test_overflow_attend(void **state)
{
    static const char *const choices[] = { "device", "host", "auto" };
    const char *text = program_text("long.txt", 800);
    json_t *r[3];

    (void)state;
    mock_begin("0");
    for (size_t i = 0; i < 3; i++) {
        const char *dir = program_path(choices[i]);
        const json_t *offloaded;
        json_int_t n_prompt;

        r[i] = program_json(PROGRAM("run", "-m", program_model_deep(), "-f", text, "-n", "130",
                                    "--temp", "0", "--ignore-eos", "-c", "1024", "--kv-budget",
                                    "400KB", "--kv-overflow-attend", choices[i], "--device", "mock",
                                    "--cache-dir", dir, "--json"));
        offloaded = json_object_get(json_object_get(r[i], "kv"), "offloaded");
        n_prompt = json_integer_value(json_object_get(r[i], "prompt_tokens"));
        assert_true(json_integer_value(json_object_get(offloaded, "pages")) > 0);
        assert_int_equal(json_integer_value(json_object_get(offloaded, "attended_bytes")) > 0,
                         i > 0);
        assert_int_equal(tokens_in(dir) >= n_prompt + 64, i == 0);
        (void)served_remove_dir(dir);
        assert_string_equal(json_string_value(json_object_get(r[0], "text")),
                            json_string_value(json_object_get(r[i], "text")));
    }
    for (size_t i = 0; i < 3; i++) {
        json_decref(r[i]);
    }
}

static void test_overflow_attend_refusals(void **state)
{
    program_result r =
        program_expect(1, PROGRAM("chat", "-m", program_model(), "--kv-overflow-attend", "host"));

    (void)state;
    assert_says(r.err, "--kv-overflow-attend host needs a device");
    program_free(&r);
    mock_begin("0");
    r = program_expect(1, PROGRAM("run", "-m", program_model(), "-p", "a", "--device", "mock",
                                  "--kv-overflow", "refuse", "--kv-overflow-attend", "auto"));
    assert_says(r.err, "--kv-overflow-attend auto and --kv-overflow refuse");
    program_free(&r);
}

/* KV and buffers must fit the device's memory, before anything is loaded. The memory of a mock is
 * the host's: KV and buffers count in the host's memory as well. */
static void test_memory(void **state)
{
    program_result r;

    (void)state;
    mock_begin("0");
    assert_int_equal(setenv("MOCK_MEMORY", "1000000", 1), 0);
    r = program_expect(1, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1", "-c", "512k",
                                  "--device", "mock"));
    assert_says(r.err, " tokens of KV f16 need ");
    assert_says(r.err, " on device mock (KV ");
    assert_says(r.err, ", which has 1.00 MB: ");
    program_free(&r);
    r = program_expect(
        1, PROGRAM("serve", program_model(), "--check-config", "-c", "512k", "--device", "mock"));
    assert_says(r.err, " device mock");
    program_free(&r);

    assert_int_equal(setenv("MOCK_MEMORY", "4000000000", 1), 0);
    r = program_expect(1, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1", "-c", "512k",
                                  "--memory-limit", "60MB", "--device", "mock"));
    assert_says(r.err, ", the limit is 60.0 MB: ");
    program_free(&r);
}

/* Little memory of the host is left for pages outside of the device: by default large requests are
 * refused with a warning, and an explicit wish is an error that names its setting. */
static void test_little_memory(void **state)
{
    static const char *const sizes[] = { "4KiB", "64GiB" };
    program_running running;
    char text[256];
    program_result r;
    uint16_t port;

    (void)state;
    mock_begin("0");
    for (size_t i = 0; i < 2; i++) {
        r = program_expect(1, PROGRAM("serve", program_model(), "--check-config", "--device",
                                      "mock", "--memory-limit", "1GiB", "--kv-overflow", "tier",
                                      "--kv-overflow-memory", sizes[i]));
        assert_says(r.err, "--kv-overflow-memory");
        program_free(&r);
    }
    r = program_expect(0, PROGRAM("serve", program_model(), "--check-config", "--json", "--device",
                                  "mock", "--kv-overflow-memory", "4KiB"));
    assert_says(r.out, "\"kv_overflow\": \"refuse\"");
    program_free(&r);
    running = program_start(PROGRAM("serve", program_model(), "--port", "0", "--device", "mock",
                                    "--kv-budget", "1MiB", "--kv-overflow-memory", "4KiB"));
    free(program_line_with(running.err, "warning: the host has too little memory"));
    port = served_port(&running);
    assert_int_equal(served_complete(port, text, sizeof text), 0);
    served_end(&running, SIGTERM);
    r = program_expect(0, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1", "--device",
                                  "mock", "--kv-budget", "1MiB", "--kv-overflow-memory", "4KiB"));
    assert_says(r.err, "warning: the host has too little memory");
    program_free(&r);
}

/* Cached pages go to the host's memory; without a device that is refused by name. */
static void test_host_memory(void **state)
{
    program_result r = program_expect(2, PROGRAM("serve", program_model(), "--check-config",
                                                 "--device", "cpu", "--cache-host-memory", "1MiB"));
    program_running running;
    char text[256];
    uint16_t port;

    (void)state;
    assert_says(r.err, "cache_host_memory needs a device");
    program_free(&r);
    r = program_run(PROGRAM("serve", program_model(), "--check-config", "--device", "auto",
                            "--cache-host-memory", "1MiB"));
    if (!has_card()) {
        assert_int_not_equal(r.exit_status, 0);
        assert_says(r.err, "cache_host_memory needs a device");
    }
    program_free(&r);
    mock_begin("0");
    running =
        program_start(PROGRAM("serve", program_model(), "--port", "0", "--kv", "q8", "--device",
                              "mock", "--cache-host-memory", "64MiB", "--store-all"));
    port = served_port(&running);
    (void)served_complete(port, text, sizeof text);
    while (served_metric(port, "quire_tier_records{store=\"host\"}") == 0.0) {
        served_doze();
    }
    served_end(&running, SIGTERM);
    r = program_expect(1, PROGRAM("serve", program_model(), "--port", "0", "--device", "mock",
                                  "--cache-host-memory", "100"));
    assert_says(r.err, "cache_host_memory is 100 B, but a page of this model with its head takes ");
    program_free(&r);
    r = program_expect(1, PROGRAM("serve", program_model(), "--check-config", "--device", "mock",
                                  "--cache-host-memory", "100"));
    assert_says(r.err, "cache_host_memory is 100 B, but a page of this model with its head takes ");
    program_free(&r);
    r = program_expect(1, PROGRAM("serve", program_model(), "--check-config", "--device", "mock",
                                  "--memory-limit", "1GB", "--cache-host-memory", "2GB"));
    assert_says(r.err, "buffers 2.01 GB"); /* and pinned memory */
    assert_says(r.err, "the limit is 1.00 GB");
    program_free(&r);
}

/* In front of a directory, which has the pages after a restart. */
static void test_host_memory_dir(void **state)
{
    const char *dir = program_path("dir");
    char text[2][256];

    (void)state;
    mock_begin("0");
    for (size_t i = 0; i < 2; i++) {
        program_running running = program_start(
            PROGRAM("serve", program_model(), "--port", "0", "--kv", "q8", "--device", "mock",
                    "--cache-host-memory", "64MiB", "--cache-dir", dir, "--store-all"));
        const uint16_t port = served_port(&running);
        const json_int_t n_cached = served_complete(port, text[i], sizeof text[i]);

        assert_int_equal(n_cached > 64, i == 1);
        assert_string_equal(text[0], text[i]);
        /* The end of a server waits for the disk, but not for long. */
        while (i == 0 &&
               served_metric(port, "quire_tier_copied_pages_total{result=\"durable\"}") < 2.0) {
            served_doze();
        }
        served_end(&running, SIGTERM);
    }
    (void)served_remove_dir(dir);
}

/* Models with windows are measured as others are. */
static void test_bench_windows(void **state)
{
    program_result r;

    (void)state;
    mock_begin("0");
    r = program_expect(0, PROGRAM("bench", "-m", program_model_windows(), "--device", "mock", "-p",
                                  "16", "-n", "2", "-r", "1", "-c", "1024", "--sequences", "4"));
    program_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_list_json),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_serve),
        cmocka_unit_test(test_serve_dir),
        cmocka_unit_test(test_serve_refusals),
        cmocka_unit_test(test_serve_attend),
        cmocka_unit_test_teardown(test_serve_attend_models, mock_end),
        cmocka_unit_test(test_serve_overflow),
        cmocka_unit_test_teardown(test_memory, mock_end),
        cmocka_unit_test_teardown(test_overflow, mock_end),
        cmocka_unit_test_teardown(test_overflow_file, mock_end),
        cmocka_unit_test_teardown(test_overflow_file_failures, mock_end),
        cmocka_unit_test_teardown(test_serve_overflow_file, mock_end),
        cmocka_unit_test_teardown(test_overflow_attend, mock_end),
        cmocka_unit_test_teardown(test_overflow_attend_refusals, mock_end),
        cmocka_unit_test_teardown(test_little_memory, mock_end),
        cmocka_unit_test_teardown(test_host_memory, mock_end),
        cmocka_unit_test_teardown(test_host_memory_dir, mock_end),
        cmocka_unit_test_teardown(test_bench_windows, mock_end),
        cmocka_unit_test_teardown(test_lost, mock_end),
        cmocka_unit_test_teardown(test_lost_chat, mock_end),
        cmocka_unit_test_teardown(test_lost_serve, mock_end),
        cmocka_unit_test_teardown(test_lost_goes_on, mock_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
