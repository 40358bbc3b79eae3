/* test_split_program.c - --split-mode layer of the built program: mocks (mock_program.c), whose
 * kernels are the CPU's, the first of which can be lost.
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPLIT "--split-mode", "layer", "--device"

static int mock_end(void **state)
{
    (void)state;
    (void)unsetenv("MOCK_LOSE_AT");
    (void)unsetenv("MOCK_MEMORY");
    return 0;
}

/* ---- commands ---- */

/* The text of the CPU, by two devices and by three, hot and sealed. */
static void test_text(void **state)
{
    static const char *const kinds[] = { "f16", "q8", "q4" };
    static const char *const devices[] = { "mock0,mock1", "cpu,cpu", "mock0,cpu,mock1" };
    program_result r;

    (void)state;
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        program_result cpu =
            program_expect(0, PROGRAM("run", "-m", program_model_deep(), "-p", "some words", "-n",
                                      "5", "--temp", "0", "--ignore-eos", "--kv", kinds[k]));

        for (size_t d = 0; d < sizeof(devices) / sizeof(devices[0]); d++) {
            r = program_expect(0, PROGRAM("run", "-m", program_model_deep(), "-p", "some words",
                                          "-n", "5", "--temp", "0", "--ignore-eos", "--kv",
                                          kinds[k], SPLIT, devices[d]));
            assert_string_equal(r.out, cpu.out);
            program_free(&r);
        }
        program_free(&cpu);
    }
    r = program_expect(0, PROGRAM("run", "-m", program_model_deep(), "-p", "some words", "-n", "1",
                                  "--tensor-split", "3,1", SPLIT, "mock0,mock1"));
    assert_says(r.err, "quire: devices mock0: layers 0-11; mock1: layers 12-15: KV pages and "
                       "attention; CPU: matrix products, ");
    program_free(&r);
}

/* The other commands with a device. */
static void test_commands(void **state)
{
    json_t *one = program_json(PROGRAM("perplexity", program_model(), "-f",
                                       program_text("text", 3000), "-c", "64", "--json"));
    json_t *two =
        program_json(PROGRAM("perplexity", program_model(), "-f", program_text("text", 3000), "-c",
                             "64", "--json", SPLIT, "mock0,mock1"));
    program_result r;

    (void)state;
    assert_true(json_real_value(json_object_get(one, "ppl")) > 1.0);
    assert_true(json_real_value(json_object_get(one, "ppl")) ==
                json_real_value(json_object_get(two, "ppl")));
    json_decref(one);
    json_decref(two);
    r = program_expect(0, PROGRAM("bench", program_model(), "-p", "8", "-n", "2", "-r", "1", "-d",
                                  "64", SPLIT, "mock0,mock1"));
    program_free(&r);
}

/* The words of a program with layers of the model on the devices of a split. */
static char *layers_run(const char *devices, const char *n_layers)
{
    program_result r =
        program_expect(0, PROGRAM("run", "-m", program_model_deep(), "-p", "some words", "-n", "8",
                                  "--temp", "0", "--ignore-eos", "-ngl", n_layers, SPLIT, devices));
    char *out = strdup(r.out);

    assert_non_null(out);
    assert_says(r.err, " layers and the output of the model; CPU: other matrix products, ");
    program_free(&r);
    return out;
}

/* Layers of the model on the cards of a split: the words are those of one card. */
static void test_layers(void **state)
{
    static const char *const devices[] = { "mock0,cpu", "cpu,mock0", "mock0,mock1",
                                           "mock0,cpu,mock1", "mock0,mock1,mock0" };
    char *one = layers_run("mock0,cpu", "99");

    (void)state;
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        for (int k = 0; k < 2; k++) {
            char *several = layers_run(devices[i], k == 0 ? "99" : "9");

            assert_true(k == 1 || strcmp(one, several) == 0);
            free(several);
        }
    }
    free(one);
}

/* Weights and activations of each card count, and the message names the card. */
static void test_layers_memory(void **state)
{
    program_result r;

    (void)state;
    assert_int_equal(setenv("MOCK_MEMORY", "60000", 1), 0);
    r = program_run(PROGRAM("run", "-m", program_model_deep(), "-p", "a", "-n", "1", "-ngl", "99",
                            "-c", "64", "--kv", "q8", SPLIT, "mock0,mock1"));
    (void)unsetenv("MOCK_MEMORY");
    assert_int_equal(r.exit_status, 1);
    assert_says(r.err, "need more than device mock");
    assert_says(r.err, " and weights of ");
    program_free(&r);
}

/* ggml loses the layers of one card. */
static void test_layers_lost(void **state)
{
    program_result r;

    (void)state;
    assert_int_equal(setenv("MOCK_LOSE_LAYERS_AT", "3", 1), 0);
    r = program_run(PROGRAM("run", "-m", program_model_deep(), "-p", "a few words", "-n", "9",
                            "--ignore-eos", "-ngl", "99", SPLIT, "mock1,mock0"));
    (void)unsetenv("MOCK_LOSE_LAYERS_AT");
    assert_int_equal(r.exit_status, 1);
    assert_says(r.err, "device mock1 was lost, and the KV on it");
    assert_says(r.err, "vk::Queue::submit: ErrorDeviceLost");
    program_free(&r);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *words[4];
        const char *device;
        const char *says;
    } cases[] = {
        { { "--split-mode", "layer" }, "mock0", "--split-mode layer needs several names in" },
        { { "--split-mode", "row" }, "mock0,mock1", "--split-mode row: rows of matrices are not" },
        { { "--split-mode", "none" }, "mock0,mock1", "--device mock0,mock1: several devices are" },
        { { "--tensor-split", "1,1" }, "mock0", "--tensor-split needs --split-mode layer" },
        { { "-sm", "layer", "-ts", "1" }, "mock0,mock1", "--tensor-split: 1 shares for 2 devices" },
        { { "-sm", "layer", "-ts", "1,1,1" }, "mock0,mock1", "3 shares for 2 devices" },
        { { "-sm", "layer", "-ts", "1,0" }, "mock0,mock1", "--tensor-split: '0' is no share" },
        { { "-sm", "layer", "-ts", "1,x" }, "mock0,mock1", "--tensor-split: 'x' is no share" },
        { { "-sm", "layer", "-ts", "99,1" }, "mock0,mock1", "device mock1 gets no layer with KV" },
        { { "-sm", "layer", "-ngl", "1" }, "cpu,cpu", "and --device names none" },
        { { "-sm", "layer" }, "mock0,auto", "device: 'auto' among several names" },
        { { "-sm", "layer" }, "mock0,", "device: '' among several names" },
        { { "-sm", "layer" }, "mock0,a-name-that-is-too-long", "among several names" },
        { { "-sm", "layer" }, "a,b,c,d,e,f,g,h,i", "device: more than 8 names for layers" },
        { { "-sm", "layer" }, "mock0,tpu0", "there is no device 'tpu0'" },
        { { "-sm", "layer", "--retain", "window:0.5" },
          "mock0,mock1",
          "--retain and --split-mode layer" },
        { { "-sm", "layer", "--kv-overflow", "tier" }, "mock0,mock1", "--kv-overflow tier" },
        { { "-sm", "layer", "--kv-overflow-attend", "host" },
          "mock0,mock1",
          "--kv-overflow-attend host and --split-mode layer" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        program_result r = program_run(
            (program_args){ { "run", "-m", program_model(), "-p", "a", "-n", "1", "--kv-budget",
                              "1MiB", "--device", cases[i].device, cases[i].words[0],
                              cases[i].words[1], cases[i].words[2], cases[i].words[3], NULL } });

        assert_true(r.exit_status == 1 || r.exit_status == 2);
        assert_says(r.err, cases[i].says);
        program_free(&r);
    }
}

/* fusedkv-lite: layers read the K of one layer and the V of another. */
static void test_shared_layers(void **state)
{
    program_result r = program_run(
        PROGRAM("run", "-m", program_model_shared(), "-p", "a", "-n", "1", SPLIT, "mock0,mock1"));

    (void)state;
    assert_int_equal(r.exit_status, 1);
    assert_says(r.err, "which lie on two devices (mock1, mock0): choose other shares");
    program_free(&r);
}

/* ---- memory ---- */

static json_int_t of(const json_t *at, const char *name)
{
    return json_integer_value(json_object_get(at, name));
}

/* quire info: the layers and the need of each device, and of the host without them. */
static void test_info(void **state)
{
    json_t *plain = program_json(PROGRAM("info", program_model_deep(), "--json", "-c", "1024"));
    json_t *split, *devices;
    const json_t *host, *need, *first, *second;
    program_result r;

    (void)state;
    assert_int_equal(setenv("MOCK_MEMORY", "100000000", 1), 0);
    split = program_json(PROGRAM("info", program_model_deep(), "--json", "-c", "1024",
                                 "--tensor-split", "3,1", SPLIT, "mock0,cpu"));
    host = json_object_get(plain, "need");
    need = json_object_get(split, "need");
    devices = json_object_get(need, "devices");
    first = json_array_get(devices, 0);
    second = json_array_get(devices, 1);
    assert_null(json_object_get(host, "devices"));
    assert_int_equal(json_array_size(devices), 2);
    assert_string_equal(json_string_value(json_object_get(first, "name")), "mock0");
    assert_int_equal(of(first, "first_layer"), 0);
    assert_int_equal(of(first, "last_layer"), 11);
    assert_int_equal(of(second, "first_layer"), 12);
    assert_int_equal(of(second, "last_layer"), 15);
    assert_true(json_real_value(json_object_get(first, "kv_share")) == 0.75);
    assert_int_equal(of(first, "kv_bytes") + of(second, "kv_bytes"), of(host, "kv_bytes"));
    /* The memory of a mock is the host's, too. */
    assert_int_equal(of(need, "kv_bytes"), of(host, "kv_bytes"));
    assert_int_equal(of(first, "memory_bytes"), 100000000);
    assert_true(of(need, "total_bytes") >= of(host, "total_bytes") + of(first, "buffers_bytes"));
    assert_true(json_is_true(json_object_get(need, "fits")));
    json_decref(plain);
    json_decref(split);

    assert_int_equal(setenv("MOCK_MEMORY", "1000000", 1), 0); /* too little for buffers and KV */
    r = program_expect(0, PROGRAM("info", program_model_deep(), "-c", "4096", "--tensor-split",
                                  "3,1", SPLIT, "mock0,cpu"));
    assert_says(r.out, ", of the host\n");
    assert_says(r.out, "  mock0       layers 0-11: KV ");
    assert_says(r.out, "memory 1.00 MB\n");
    assert_says(r.out, "  cpu         layers 12-15: KV ");
    assert_says(r.out, "does not fit:");
    program_free(&r);
    r = program_expect(1, PROGRAM("run", "-m", program_model_deep(), "-p", "a", "-n", "1", "-c",
                                  "4096", "--tensor-split", "3,1", SPLIT, "mock0,cpu"));
    assert_says(r.err, "need more than device mock0 has for its layers");
    program_free(&r);
}

/* The layers of weights of a device, or of the host: "8-9 11-15 output". */
static const char *weights_of(const json_t *at)
{
    const json_t *weights = json_object_get(at, "weights");
    const json_t *layers = json_object_get(weights, "layers");
    static char text[128];
    size_t n = 0;

    text[0] = '\0';
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *range = json_array_get(layers, i);

        n += (size_t)snprintf(text + n, sizeof text - n, "%s%d-%d", n > 0 ? " " : "",
                              (int)of(range, "first_layer"), (int)of(range, "last_layer"));
        assert_true(n < sizeof text);
    }
    if (json_is_true(json_object_get(weights, "output"))) {
        (void)snprintf(text + n, sizeof text - n, "%soutput", n > 0 ? " " : "");
    }
    return text;
}

static void memory_set(json_int_t bytes)
{
    char text[32];

    (void)snprintf(text, sizeof text, "%lld", (long long)bytes);
    assert_int_equal(setenv("MOCK_MEMORY", text, 1), 0);
}

#define ONE_CARD program_model_deep(), "-t", "1", "-c", "256", "--device", "mock0", "-ngl", "5"

/* Layers of the model on one device: the figures are those of the check of quire run. */
static void test_info_layers(void **state)
{
    json_t *plain = program_json(PROGRAM("info", program_model_deep(), "--json", "-c", "256"));
    const json_int_t weights_bytes = of(json_object_get(plain, "need"), "weights_bytes");
    json_int_t bytes = 100000000;
    program_result r;

    (void)state;
    json_decref(plain);
    for (int missing = -1; missing < 2; missing++) {
        json_t *info;
        const json_t *need, *card, *refusal;

        memory_set(bytes - (missing > 0));
        info = program_json(PROGRAM("info", "--json", ONE_CARD));
        need = json_object_get(info, "need");
        card = json_array_get(json_object_get(need, "devices"), 0);
        refusal = json_object_get(need, "refusal");
        assert_int_equal(json_array_size(json_object_get(need, "devices")), 1);
        assert_string_equal(json_string_value(json_object_get(card, "name")), "mock0");
        assert_int_equal(of(card, "first_layer"), 0);
        assert_int_equal(of(card, "last_layer"), 15);
        assert_int_equal(of(card, "memory_bytes"), bytes - (missing > 0));
        assert_string_equal(weights_of(card), "12-15 output");
        assert_string_equal(weights_of(need), "0-11");
        assert_true(of(card, "weights_bytes") > 0);
        /* The memory of a mock is the host's, too. */
        assert_true(of(need, "weights_bytes") >= weights_bytes);
        assert_int_equal(json_is_true(json_object_get(need, "fits")), missing <= 0);
        assert_int_equal(of(need, "missing_bytes"), missing > 0);
        r = program_run(PROGRAM("run", "-p", "a", "-n", "1", "-m", ONE_CARD));
        /* Past the check a memory without a byte to spare may still be too small for a step. */
        assert_true(missing == 0 || r.exit_status == (missing > 0));
        assert_true(missing > 0 || json_is_null(refusal));
        assert_says(r.err, missing > 0 ? json_string_value(refusal) : "4 layers and the output");
        program_free(&r);
        bytes = of(card, "weights_bytes") + of(card, "kv_bytes") + of(card, "buffers_bytes");
        json_decref(info);
    }
    r = program_expect(0, PROGRAM("info", ONE_CARD));
    assert_says(r.out, "\n  host        weights: layers 0-11, token embedding\n");
    assert_says(r.out, "\n  mock0       layers 0-15: KV ");
    assert_says(r.out, " (layers 12-15, output), buffers ");
    assert_says(r.out, "\n  does not fit: 1 B too much\n  256 tokens of KV f16 need ");
    assert_says(r.out, "fewer layers there (-ngl), ");
    program_free(&r);
}

/* The same on the cards of a split. Layers with KV on the CPU have their weights on the card before
 * it; a card that is named twice has them once. */
static void test_info_split_layers(void **state)
{
    static const struct {
        const char *devices;
        const char *weights[3];
    } cases[] = {
        { "mock0,cpu,mock1", { "8-9", "", "10-15 output" } },
        { "mock0,mock1,mock0", { "10-15 output", "8-9", "" } },
        { "cpu,mock0,mock1", { "", "8-9", "10-15 output" } },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const json_t *need, *devices;
        program_result r;
        json_t *info;

        assert_int_equal(setenv("MOCK_MEMORY", "60000", 1), 0);
        info = program_json(PROGRAM("info", program_model_deep(), "--json", "-c", "256", "-ngl",
                                    "9", "-ts", "3,2,3", SPLIT, cases[i].devices));
        r = program_expect(1, PROGRAM("run", "-m", program_model_deep(), "-p", "a", "-n", "1", "-c",
                                      "256", "-ngl", "9", "-ts", "3,2,3", SPLIT, cases[i].devices));
        need = json_object_get(info, "need");
        devices = json_object_get(need, "devices");
        assert_string_equal(weights_of(need), "0-7");
        for (size_t d = 0; d < 3; d++) {
            const json_t *device = json_array_get(devices, d);

            assert_string_equal(weights_of(device), cases[i].weights[d]);
            assert_int_equal(of(device, "weights_bytes") > 0, cases[i].weights[d][0] != '\0');
        }
        assert_true(of(need, "missing_bytes") > 0);
        assert_says(r.err, json_string_value(json_object_get(need, "refusal")));
        program_free(&r);
        json_decref(info);
    }
}

/* quire info refuses devices as the commands that compute there do. */
static void test_info_devices(void **state)
{
    static const struct {
        const char *words[4];
        const char *says;
    } cases[] = {
        { { "-ngl", "1" }, "-ngl 1: layers of the model can be on a device only" },
        { { "-ngl", "1", "--device", "cpu" }, "the device is the CPU" },
        { { "--device", "tpu0" }, "there is no device 'tpu0'" },
        { { "--device", "mock0,mock1" }, "several devices are for quire serve, or for --split" },
    };
    program_result r[2];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        r[0] = program_expect(
            1, (program_args){ { "info", program_model(), cases[i].words[0], cases[i].words[1],
                                 cases[i].words[2], cases[i].words[3], NULL } });
        assert_says(r[0].err, cases[i].says);
        program_free(&r[0]);
    }
    for (size_t i = 0; i < 2; i++) {
        r[i] = program_expect(0, PROGRAM("info", program_model(), "--memory", "1GiB", "--device",
                                         i == 0 ? "cpu" : "mock0"));
    }
    assert_null(strstr(r[0].out, ", of the host\n"));
    assert_says(r[1].out, "\n  mock0       layers 0-");
    assert_null(strstr(r[1].out, "  host        weights: "));
    program_free(&r[0]);
    program_free(&r[1]);
}

/* ---- the server ---- */

static program_running serve_on(const char *devices)
{
    return program_start(PROGRAM("serve", program_model_deep(), "--port", "0", "--kv-budget",
                                 "4MiB", "--kv", "q8", SPLIT, devices, "--on-device-lost", "cpu"));
}

static void text_of_cpu(char *text, size_t text_bytes)
{
    program_running running = program_start(
        PROGRAM("serve", program_model_deep(), "--port", "0", "--kv-budget", "4MiB", "--kv", "q8"));

    (void)served_complete(served_port(&running), text, text_bytes);
    served_end(&running, SIGTERM);
}

/* A hit gives the text of a miss, which is the CPU's. The layers of the devices are shown. */
static void test_serve(void **state)
{
    program_running running;
    json_t *regions;
    const json_t *layers;
    char text[3][256];
    uint16_t port;

    (void)state;
    text_of_cpu(text[0], sizeof text[0]);
    running = serve_on("mock0,mock1");
    port = served_port(&running);
    assert_int_equal(served_complete(port, text[1], sizeof text[1]), 0);
    assert_true(served_complete(port, text[2], sizeof text[2]) > 64);
    assert_string_equal(text[0], text[1]);
    assert_string_equal(text[0], text[2]);
    regions = json_loads(served_ask(port, "GET", "/v1/cache/regions", ""), 0, NULL);
    layers = json_object_get(regions, "layers");
    assert_null(json_object_get(regions, "devices"));
    assert_int_equal(json_array_size(layers), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(layers, 1), "device")),
                        "mock1");
    assert_int_equal(of(json_array_get(layers, 1), "first_layer"), 8);
    assert_int_equal(of(json_array_get(layers, 1), "last_layer"), 15);
    assert_int_equal(of(json_array_get(layers, 1), "budget_bytes"), 2 << 20);
    json_decref(regions);
    assert_says(served_ask(port, "GET", "/v1/cache/stats", ""),
                "\"devices\":[{\"name\":\"mock0,mock1\",\"lost\":false,");
    served_end(&running, SIGTERM);
}

/* The answers of a session's two turns. Returns the cached tokens of the second one. */
static json_int_t turns(uint16_t port, char text[2][256])
{
    static const char *const bodies[] = {
        "{\"max_tokens\": 8, \"temperature\": 0, \"session_id\": \"s\", \"messages\": [{\"role\": "
        "\"user\", \"content\": \"the river ran to the sea and the tree saw it all the long day, "
        "and a dog and a cat ran by the old house\"}]}",
        "{\"max_tokens\": 8, \"temperature\": 0, \"session_id\": \"s\", \"messages\": [{\"role\": "
        "\"user\", \"content\": \"and then\"}]}"
    };
    json_int_t n_cached = 0;

    for (size_t i = 0; i < 2; i++) {
        json_t *reply =
            json_loads(served_ask(port, "POST", "/v1/chat/completions", bodies[i]), 0, NULL);
        const json_t *choice = json_array_get(json_object_get(reply, "choices"), 0);
        const json_t *details =
            json_object_get(json_object_get(reply, "usage"), "prompt_tokens_details");

        assert_non_null(choice);
        (void)snprintf(
            text[i], sizeof text[i], "%s",
            json_string_value(json_object_get(json_object_get(choice, "message"), "content")));
        n_cached = of(details, "cached_tokens");
        json_decref(reply);
    }
    return n_cached;
}

/* A session's next turn goes on from its pages, and a pinned text is held. */
static void test_session(void **state)
{
    static const char pin[] =
        "{\"name\": \"p\", \"text\": \"once upon a time there was a dog and a "
        "cat and they ran to the sea\", \"background\": false}";
    json_int_t n_cached[2];
    char text[2][2][256];

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        program_running running = program_start(
            PROGRAM("serve", program_model_deep(), "--port", "0", "--kv-budget", "4MiB", "--kv",
                    "q8", "--chat-template", "chatml", "--device", i == 0 ? "cpu" : "mock0,mock1",
                    "--split-mode", i == 0 ? "none" : "layer"));
        const uint16_t port = served_port(&running);

        n_cached[i] = turns(port, text[i]);
        (void)served_ask(port, "POST", "/v1/cache/pins", pin);
        assert_says(served_ask(port, "GET", "/v1/cache/pins/p", ""), "\"held\"");
        served_end(&running, SIGTERM);
    }
    assert_true(n_cached[0] > 64);
    assert_int_equal(n_cached[0], n_cached[1]);
    assert_string_equal(text[0][0], text[1][0]);
    assert_string_equal(text[0][1], text[1][1]);
}

/* Pages go to a directory and come back, also to one device of the same rounding. */
static void test_directory(void **state)
{
    static const char *const devices[] = { "mock0,mock1", "mock0,mock1", "mock1" };
    const char *dir = program_path("dir");
    char text[4][256];

    (void)state;
    text_of_cpu(text[3], sizeof text[3]);
    for (size_t i = 0; i < 3; i++) {
        program_running running = program_start(
            PROGRAM("serve", program_model_deep(), "--port", "0", "--kv-budget", "4MiB", "--kv",
                    "q8", "--device", devices[i], "--split-mode", i < 2 ? "layer" : "none",
                    "--cache-dir", dir, "--store-all", "--cache-host-memory", "8MiB"));
        const uint16_t port = served_port(&running);
        const json_int_t n_cached = served_complete(port, text[i], sizeof text[i]);

        assert_int_equal(n_cached > 64, i > 0);
        assert_string_equal(text[i], text[3]);
        served_end(&running, SIGTERM);
    }
    (void)served_remove_dir(dir);
}

/* One device of the split is lost: the requests fail by its name, and the server goes on. */
static void test_lost(void **state)
{
    program_running running;
    char text[2][256];
    uint16_t port;

    (void)state;
    text_of_cpu(text[0], sizeof text[0]);
    assert_int_equal(setenv("MOCK_LOSE_AT", "12", 1), 0);
    running = serve_on("mock1,mock0");
    port = served_port(&running);
    assert_says(served_ask(port, "POST", "/v1/completions", served_story), "\"device_lost\"");
    free(program_line_with(running.err, "device mock0 was lost, and the KV on it: all requests "
                                        "failed, and the server goes on with --device cpu"));
    free(program_line_with(running.err, "serving "));
    assert_says(served_ask(port, "GET", "/health", ""), "\"lost_device\":\"mock0\"");
    (void)served_complete(port, text[1], sizeof text[1]);
    assert_string_equal(text[0], text[1]);
    assert_null(strstr(served_ask(port, "GET", "/v1/cache/regions", ""), "\"layers\""));
    served_end(&running, SIGTERM);
}

static void test_lost_run(void **state)
{
    program_result r;

    (void)state;
    assert_int_equal(setenv("MOCK_LOSE_AT", "6", 1), 0);
    r = program_expect(1, PROGRAM("run", "-m", program_model(), "-p", "a few words", "-n", "9",
                                  "--ignore-eos", SPLIT, "mock1,mock0"));
    assert_says(r.err, "device mock0 was lost, and the KV on it: repeat the command");
    program_free(&r);
}

static void test_serve_settings(void **state)
{
    static const struct {
        const char *words[2];
        const char *says;
    } cases[] = {
        { { "--kv-overflow", "tier" }, "kv_overflow tier and split_mode layer cannot go together" },
        { { "--kv-overflow-attend", "host" }, "kv_overflow_attend host and split_mode layer" },
        { { "--retain", "snap:0.5" }, "--retain snap keeps another number of tokens in each lane" },
        { { "--tensor-split", "1" }, "--tensor-split: 1 shares for 2 devices" },
    };
    static const char placement[] = "placement: [ { class: standard, devices: mock1 } ]\n";
    program_result r;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        r = program_run(PROGRAM("serve", program_model_deep(), "--check-config", "--kv", "q8",
                                "--kv-budget", "4MiB", SPLIT, "mock0,mock1", cases[i].words[0],
                                cases[i].words[1]));
        assert_true(r.exit_status == 1 || r.exit_status == 2);
        assert_says(r.err, cases[i].says);
        program_free(&r);
    }
    r = program_expect(2, PROGRAM("serve", program_model_deep(), "--check-config", SPLIT,
                                  "mock0,mock1", "--config",
                                  program_file("config.yaml", placement, strlen(placement))));
    assert_says(r.err, "placement and split_mode layer cannot go together");
    program_free(&r);
    r = program_expect(0, PROGRAM("serve", program_model_deep(), "--check-config", "--kv", "q8",
                                  "--kv-budget", "4MiB", SPLIT, "mock0,mock1", "--context-overflow",
                                  "shift"));
    program_free(&r);
    r = program_expect(0, PROGRAM("serve", program_model_deep(), "--check-config", "--kv", "q8",
                                  "--kv-budget", "4MiB", SPLIT, "mock0,mock1"));
    assert_says(r.out, "# the layers are on several devices (split_mode), so requests larger than");
    program_free(&r);
}

/* Without --kv-budget the KV is what the device with the least memory for its share has room for.
 */
static void test_budget(void **state)
{
    json_t *json;
    json_int_t even, uneven;

    (void)state;
    assert_int_equal(setenv("MOCK_MEMORY", "60000000", 1), 0);
    json = program_json(PROGRAM("serve", program_model_deep(), "--check-config", "--json", "--kv",
                                "q8", "--cache-memory-ratio", "0.5", SPLIT, "mock0,mock1"));
    even = of(json_object_get(json, "effective"), "kv_budget_bytes");
    json_decref(json);
    json = program_json(PROGRAM("serve", program_model_deep(), "--check-config", "--json", "--kv",
                                "q8", "--cache-memory-ratio", "0.5", "--tensor-split", "3,1", SPLIT,
                                "mock0,mock1"));
    uneven = of(json_object_get(json, "effective"), "kv_budget_bytes");
    json_decref(json);
    assert_true(even > 50000000 && even < 60000000); /* half of the room for two halves */
    assert_true(fabs((double)uneven / (double)even - 2.0 / 3.0) < 0.001);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_commands),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_layers_memory),
        cmocka_unit_test(test_layers_lost),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_shared_layers),
        cmocka_unit_test_teardown(test_info, mock_end),
        cmocka_unit_test_teardown(test_info_layers, mock_end),
        cmocka_unit_test_teardown(test_info_split_layers, mock_end),
        cmocka_unit_test_teardown(test_info_devices, mock_end),
        cmocka_unit_test(test_serve),
        cmocka_unit_test(test_session),
        cmocka_unit_test(test_directory),
        cmocka_unit_test_teardown(test_lost, mock_end),
        cmocka_unit_test_teardown(test_lost_run, mock_end),
        cmocka_unit_test(test_serve_settings),
        cmocka_unit_test_teardown(test_budget, mock_end),
    };

    return cmocka_run_group_tests(tests, program_no_cache, program_clean);
}
