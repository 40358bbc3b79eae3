/* test_device_moves.c - texts whose tokens move, with KV on a device, by the built program: on a
 * mock device, whose kernels are the CPU's, the text of the CPU; on the first Vulkan device to the
 * end; and a device that is lost while tokens move. Beside these, the perplexity of a text there.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"
#include "served.h"

#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const overflows[] = { "shift", "sinks", "condense" };

/* 600 tokens in a context of 384: tokens leave twice at least. */
static program_args run_on(const char *device, const char *overflow)
{
    return PROGRAM("run", "-m", program_model(), "-p", "some words", "-n", "600", "-c", "384",
                   "--kv", "f16", "--temp", "0", "--ignore-eos", "--context-overflow", overflow,
                   "--device", device);
}

static void test_run(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        program_result cpu = program_expect(0, run_on("cpu", overflows[i]));
        program_result mock = program_expect(0, run_on("mock1", overflows[i]));

        assert_true(cpu.out_bytes > 600);
        assert_string_equal(mock.out, cpu.out);
        program_free(&cpu);
        program_free(&mock);
    }
}

static void need_vulkan(void)
{
    program_result devices = program_expect(0, PROGRAM("devices"));
    const bool has_vulkan = strstr(devices.out, "\nvulkan0 ") != NULL;

    program_free(&devices);
    if (!has_vulkan) {
        print_message("no Vulkan device\n");
        skip();
    }
}

/* The perplexity of a text is nearly the CPU's, and computed on the device: of a text with all its
 * tokens, of texts that keep half of them by scores of the host, and of one that chooses pages. */
static void test_perplexity(void **state)
{
    static const char *const options[][4] = {
        { "-t", "1", "-b", "64" },
        { "--retain", "reconstruct:0.5,recent=16,repeat=32", "--prefill-chunk", "64" },
        { "--retain", "heavy:0.5,recent=16", "--prefill-chunk", "64" },
        { "--retain", "reconstruct:0.5,recent=16,repeat=32,merge=fit", "--prefill-chunk", "64" },
        { "--attend", "top:0.4", "-b", "64" },
    };
    const char *text = program_text("text.txt", 900);

    (void)state;
    need_vulkan();
    for (size_t o = 0; o < sizeof options / sizeof options[0]; o++) {
        double nll[2];

        for (uint32_t i = 0; i < 2; i++) {
            json_t *json = program_json(
                PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "256", "--chunks",
                        "1", "--kv", "q8", "--json", options[o][0], options[o][1], options[o][2],
                        options[o][3], "--device", i == 0 ? "cpu" : "vulkan0"));

            nll[i] = json_real_value(json_object_get(json, "nll"));
            json_decref(json);
        }
        assert_true(nll[0] > 0.0 && nll[1] != nll[0]); /* another ISA's bits */
        assert_true(fabs(nll[1] - nll[0]) < 0.01);
    }
}

/* Rounding may choose other words on the way, so the words are not compared. */
static void test_run_by_vulkan(void **state)
{
    (void)state;
    need_vulkan();
    for (size_t i = 0; i < 3; i++) {
        program_result r = program_expect(0, run_on("vulkan0", overflows[i]));

        assert_true(r.out_bytes > 600);
        program_free(&r);
    }
}

/* Before, while and after tokens move for the first time, which is when the context of 384 tokens
 * is full: a token takes 4 pieces of the device's work. The command ends by the device's name. */
static void test_lost(void **state)
{
    (void)state;
    for (uint32_t at = 1450; at < 1650; at += 9) {
        char text[16];
        program_result r;

        (void)snprintf(text, sizeof text, "%u", at);
        assert_int_equal(setenv("MOCK_LOSE_AT", text, 1), 0);
        r = program_expect(1, run_on("mock", "shift"));
        assert_says(r.err, "device mock was lost, and the KV on it");
        program_free(&r);
    }
    (void)unsetenv("MOCK_LOSE_AT");
}

/* Lanes of their own: policies whose scores need keys when tokens move, and in each step. */
static void test_run_retain(void **state)
{
    static const struct {
        const char *policy, *format;
    } cases[] = { { "entropy:0.5,full_layers=none,recent=16", "f16" },
                  { "snap:0.5,recent=16", "q8" },
                  { "keydiff:0.5,recent=16", "q4" },
                  { "window:0.3,recent=16", "f32" },
                  { "reconstruct:0.5,recent=16,repeat=40", "f16" },
                  { "heavy:0.5,recent=16", "q8" } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        program_result r[2];

        for (int d = 0; d < 2; d++) {
            r[d] = program_expect(0, PROGRAM("run", "-m", program_model(), "-p", "some words", "-n",
                                             "400", "--temp", "0", "--ignore-eos", "--kv",
                                             cases[i].format, "--retain", cases[i].policy,
                                             "--prefill-chunk", "96", "--device",
                                             d == 0 ? "cpu" : "mock1"));
            assert_says(r[d].err, "condensed ");
        }
        assert_string_equal(r[0].out, r[1].out);
        program_free(&r[0]);
        program_free(&r[1]);
    }
}

/* A text whose tokens choose pages, on either device. policy NULL: it keeps all tokens. Sealed
 * formats then are in 8 bits near the end alone. */
static void same_run(const char *format, const char *policy)
{
    program_result r[2];

    for (int d = 0; d < 2; d++) {
        r[d] = program_expect(0, PROGRAM("run", "-m", program_model(), "-p", "some words", "-n",
                                         "400", "--temp", "0", "--ignore-eos", "--kv", format,
                                         "--attend", "top:0.3", "--kv-recent", "64", "--device",
                                         d == 0 ? "cpu" : "mock1",
                                         policy != NULL ? "--retain" : NULL, policy));
    }
    assert_true(r[0].out_bytes > 400);
    assert_string_equal(r[0].out, r[1].out);
    program_free(&r[0]);
    program_free(&r[1]);
}

/* Pages that each generated token chooses; also of a text that drops tokens, in whose steps some
 * rows choose and others do not (perplexity). */
static void test_attend(void **state)
{
    static const char *const formats[] = { "f16", "q8", "q4" };

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        double nll[2];

        for (int d = 0; d < 2; d++) {
            const char *device = d == 0 ? "cpu" : "mock1";
            json_t *json = program_json(
                PROGRAM("perplexity", "-m", program_model(), "-f", program_text("text.txt", 1500),
                        "-c", "448", "--chunks", "1", "--kv", formats[i], "--json", "--attend",
                        "top:0.3", "--retain", "keydiff:0.7,recent=16", "--prefill-chunk", "150",
                        "-b", "100", "--score-from", "140", "--device", device));

            nll[d] = json_real_value(json_object_get(json, "nll"));
            json_decref(json);
        }
        assert_true(nll[0] > 0.0 && nll[0] == nll[1]);
        same_run(formats[i], "keydiff:0.7,recent=16");
        same_run(formats[i], NULL);
    }
}

/* ---- quire serve ---- */

static program_running serve_on(const char *device, const char *option, const char *value)
{
    return program_start(PROGRAM("serve", program_model(), "--port", "0", "--kv-budget", "1MiB",
                                 "--kv", "f16", "--retain-chunk", "192", "-c", "384", "--device",
                                 device, option, value));
}

static const char ask_long[] =
    "{\"prompt\": \"Once upon a time there was a little girl who lived in a house by the sea, and "
    "every day she went down to the beach to look for shells and stones and pieces of glass.\", "
    "\"max_tokens\": 400, \"temperature\": 0, \"ignore_eos\": true}";

/* The answer, and a metric that shows that tokens moved. */
static void answer_on(const char *device, const char *option, const char *value, char *text,
                      size_t text_bytes)
{
    program_running running = serve_on(device, option, value);
    const uint16_t port = served_port(&running);
    json_t *reply = json_loads(served_ask(port, "POST", "/v1/completions", ask_long), 0, NULL);
    const json_t *choice = json_array_get(json_object_get(reply, "choices"), 0);
    const char *said = json_string_value(json_object_get(choice, "text"));

    assert_non_null(said);
    (void)snprintf(text, text_bytes, "%s", said);
    assert_true(
        served_metric(port, "quire_condensings_total{cache_source=\"computed\",input=\"whole\"}") +
            served_metric(port, "quire_context_shifts_total") >
        0);
    json_decref(reply);
    served_end(&running, SIGTERM);
}

static void test_serve(void **state)
{
    static const char *const options[][2] = { { "--retain", "keydiff:0.5,recent=16" },
                                              { "--retain", "stride:0.5,recent=16" },
                                              { "--retain", "snap:0.2,recent=16" },
                                              { "--retain", "reconstruct:0.2,recent=16,repeat=40" },
                                              { "--context-overflow", "shift" },
                                              { "--context-overflow", "condense" } };

    (void)state;
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        static char cpu[8192], mock[8192];

        answer_on("cpu", options[i][0], options[i][1], cpu, sizeof cpu);
        answer_on("mock", options[i][0], options[i][1], mock, sizeof mock);
        assert_true(strlen(cpu) > 100);
        assert_string_equal(mock, cpu);
    }
}

/* A server starts with KV in q6 to q3, and with a model whose layers have windows. */
static void test_serve_retain(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        program_result r = program_expect(
            0, PROGRAM("serve", i == 0 ? program_model() : program_model_sliding(),
                       "--check-config", "--device", "mock", "--kv", i == 0 ? "q4" : "f16",
                       "--retain", "keydiff:0.5", "--retain-chunk", "1024", "-c", "2048"));

        program_free(&r);
        r = program_expect(1, PROGRAM("serve", i == 0 ? program_model() : program_model_sliding(),
                                      "--check-config", "--device", "mock", "--kv",
                                      i == 0 ? "q4" : "f16", "--retain", "keydiff:0.5",
                                      "--page-tokens", "128", "-c", "2048"));
        assert_says(r.err, i == 0 ? "--retain keydiff keeps tokens in q6 to q3 in tiles that are"
                                  : "--retain keydiff keeps tokens beside layers with windows");
        program_free(&r);
    }
}

/* The answer of a server with --attend on these devices, some of whose pages no token reads. */
static void attending_on(const char *devices, char *text, size_t text_bytes)
{
    program_running running = program_start(
        PROGRAM("serve", program_model_deep(), "--port", "0", "--kv", "q8", "-c", "1024",
                "--kv-budget", "8MiB", "--device", devices, "--attend", "top:0.3"));
    const uint16_t port = served_port(&running);

    (void)served_complete_of(port, ask_long, text, text_bytes);
    assert_true(served_metric(port, "quire_attend_pages_total{pages=\"left\"}") > 0);
    served_end(&running, SIGTERM);
}

static void test_serve_attend(void **state)
{
    static const char *const devices[] = { "cpu", "mock", "cpu,mock1" };
    static char text[3][8192];

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        attending_on(devices[i], text[i], sizeof text[i]);
        assert_true(strlen(text[i]) > 100);
        assert_string_equal(text[i], text[0]);
    }
}

/* Requests larger than the budget and tokens that move exclude each other, and so do these and
 * tokens that choose pages on a device: auto gives way. */
static void test_overflow(void **state)
{
    program_result r;

    r = program_expect(0, PROGRAM("serve", program_model(), "--check-config", "--json", "--device",
                                  "mock", "--attend", "top:0.5"));
    assert_says(r.out, "\"kv_overflow\": \"refuse\"");
    program_free(&r);
    r = program_expect(1, PROGRAM("serve", program_model(), "--check-config", "--device", "mock",
                                  "--attend", "top:0.5", "--kv-overflow", "tier"));
    assert_says(r.err, "--attend cannot go with KV on device mock beside texts larger than memory");
    program_free(&r);
    r = program_expect(1, PROGRAM("serve", program_model(), "--check-config", "--split-mode",
                                  "layer", "--device", "mock,mock1", "--attend", "top:0.5"));
    assert_says(r.err, "with layers on several devices");
    program_free(&r);

    (void)state;
    r = program_expect(0, PROGRAM("serve", program_model(), "--check-config", "--json", "--kv",
                                  "f16", "--device", "mock", "--context-overflow", "shift"));
    assert_says(r.out, "\"kv_overflow\": \"refuse\"");
    program_free(&r);
    r = program_expect(1, PROGRAM("serve", program_model(), "--check-config", "--kv", "f16",
                                  "--device", "mock", "--context-overflow", "shift",
                                  "--kv-overflow", "tier"));
    assert_says(r.err,
                "--context-overflow shift and --kv-overflow: K of offloaded pages cannot be");
    program_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run),          cmocka_unit_test(test_run_by_vulkan),
        cmocka_unit_test(test_lost),         cmocka_unit_test(test_run_retain),
        cmocka_unit_test(test_serve),        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_perplexity),   cmocka_unit_test(test_attend),
        cmocka_unit_test(test_serve_attend), cmocka_unit_test(test_serve_retain),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
