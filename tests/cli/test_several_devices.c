/* test_several_devices.c - quire serve with several devices, by the built program: mocks
 * (mock_program.c), the first of which can be lost.
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
#include <stdlib.h>
#include <string.h>

#define LITTLE "415000" /* bytes of a device: less than the trained context needs */

#define METRIC(name, device) name "{device=\"" device "\",name=\"mock" device "\"}"
#define METRIC_OF(name, device, what)                                                              \
    name "{device=\"" device "\",name=\"mock" device "\"," what "}"

static int mock_begin(void **state)
{
    (void)state;
    assert_int_equal(setenv("QUIRE_PROGRAM", QUIRE_PROGRAM_MOCK, 1), 0);
    return 0;
}

static int mock_end(void **state)
{
    (void)unsetenv("QUIRE_PROGRAM");
    (void)unsetenv("MOCK_LOSE_AT");
    return program_clean(state);
}

static const char *config_of(const char *text)
{
    return program_file("config.yaml", text, strlen(text));
}

/* The same with all layers of the model on devices. */
static program_running serve_layers(const char *devices, const char *config)
{
    return program_start(PROGRAM("serve", program_model(), "--port", "0", "--kv-budget", "1MiB",
                                 "--kv", "q8", "--device", devices, "-ngl", "99", "--config",
                                 config));
}

static program_running serve_two(const char *config)
{
    return program_start(PROGRAM("serve", program_model(), "--port", "0", "--kv-budget", "1MiB",
                                 "--kv", "q8", "--device", "mock0,mock1", "--config", config));
}

/* ---- settings ---- */

static void test_settings(void **state)
{
    static const struct {
        const char *device;
        const char *words[2];
        const char *says;
    } cases[] = {
        { "mock0,", { "--no-precache" }, "device: '' among several names" },
        { "auto,mock1", { "--no-precache" }, "device: 'auto' among several names" },
        { "a,b,c,d,e,f,g,h,i", { "--no-precache" }, "device: more than 8 names" },
    };
    program_result r;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        r = program_expect(2, PROGRAM("serve", program_model(), "--check-config", "--device",
                                      cases[i].device, cases[i].words[0], cases[i].words[1]));
        assert_says(r.err, cases[i].says);
        program_free(&r);
    }
    r = program_expect(
        1, PROGRAM("serve", program_model(), "--check-config", "--device", "mock0,tpu0"));
    assert_says(r.err, "there is no device 'tpu0'");
    program_free(&r);
    for (int i = 0; i < 2; i++) { /* a budget of which the second device has nothing left */
        r = program_expect(1, PROGRAM("serve", program_model(), "--check-config", "--memory-limit",
                                      "1GiB", "--kv-budget", i == 0 ? "1GiB" : "900000000GiB",
                                      "--device", "cpu,cpu"));
        assert_says(r.err, "the limit is 0 B");
        program_free(&r);
    }
    for (int i = 0; i < 2; i++) { /* one that is no CPU is enough, at any place */
        r = program_expect(i == 0 ? 0 : 1,
                           PROGRAM("serve", program_model(), "--check-config", "--kv", "q8",
                                   "--kv-budget", "1MiB", "--cache-host-memory", "64MiB",
                                   "--device", i == 0 ? "cpu,mock1" : "cpu,cpu"));
        assert_int_equal(strstr(r.err, "cache_host_memory needs a device") != NULL, i == 1);
        program_free(&r);
    }
}

/* The program refuses a second device without the feature or the memory before it loads weights. */
static void test_second(void **state)
{
    static const struct {
        const char *words[2];
        const char *memory; /* of the device */
        const char *says;
    } cases[] = {
        { { "--lock-memory", NULL }, NULL, "device mock1: locked memory" },
        { { "--context-overflow", "truncate_turns" }, "1000", "kB on device mock1 (KV " },
        { { "--pinned", "256MiB" },
          "300000000",
          "device mock1: pinned: 268 MB of a KV budget of " },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int is_check = 1; is_check >= 0; is_check--) { /* a start would go on */
            program_args args = PROGRAM("serve", program_model(), "--port", "0", "--device",
                                        "cpu,mock1", cases[i].words[0], cases[i].words[1], NULL);
            program_result r;

            args.words[cases[i].words[1] != NULL ? 8 : 7] = is_check ? "--check-config" : NULL;
            if (cases[i].memory != NULL) {
                assert_int_equal(setenv("MOCK_MEMORY", cases[i].memory, 1), 0);
            }
            r = program_expect(1, args);
            (void)unsetenv("MOCK_MEMORY");
            assert_says(r.err, cases[i].says);
            program_free(&r);
        }
    }
}

/* Memory of the host for offloaded pages that has room for them on one device, not on two. */
static void test_little_memory(void **state)
{
    json_t *info = program_json(PROGRAM("info", program_model(), "--json"));
    const json_t *f16 = json_array_get(json_object_get(info, "kv"), 1);
    const json_int_t token = json_integer_value(json_object_get(f16, "bytes_per_token"));
    char bytes[32];
    program_result r;

    (void)state;
    (void)snprintf(bytes, sizeof bytes, "%lld", (long long)(8 * 64 * token)); /* a stripe */
    for (int n = 1; n <= 2; n++) {
        r = program_expect(0, PROGRAM("serve", program_model(), "--check-config", "--json", "--kv",
                                      "f16", "--device", n == 1 ? "mock0" : "mock0,mock1",
                                      "--kv-overflow-memory", bytes));
        assert_says(r.out, n == 1 ? "\"kv_overflow\": \"tier\"" : "\"kv_overflow\": \"refuse\"");
        program_free(&r);
    }
    r = program_expect(1, PROGRAM("serve", program_model(), "--check-config", "--kv", "f16",
                                  "--device", "mock0,mock1", "--kv-overflow", "tier",
                                  "--kv-overflow-memory", bytes));
    assert_says(r.err, "--kv-overflow tier: pages outside of the device need at least");
    program_free(&r);
    json_decref(info);
}

/* The memory of the host that a server leaves for offloaded pages, in MB. */
static double memory_left(const char *devices)
{
    program_result r = program_expect(
        1, PROGRAM("serve", program_model(), "--check-config", "--device", devices, "--kv-budget",
                   "1MiB", "--memory-limit", "400MiB", "--kv-overflow-memory", "64GiB"));
    const char *says = strstr(r.err, "the runtime leaves ");
    char unit[3] = { 0 };
    double n;

    assert_non_null(says);
    assert_int_equal(sscanf(says, "the runtime leaves %lf %2s", &n, unit), 2);
    assert_string_equal(unit, "MB");
    program_free(&r);
    return n;
}

/* Each device has buffers in the host's memory. */
static void test_buffers_of_each(void **state)
{
    const double one = memory_left("mock0");
    const double two = memory_left("mock0,mock1");
    const double three = memory_left("mock0,mock1,cpu");

    (void)state;
    assert_true(two < one);
    assert_true(three < two);
}

/* Devices have equal parts of the disk for large requests, those that are the CPU and others. */
static void test_overflow_disk_is_shared(void **state)
{
    static const char *const devices[] = { "mock0", "mock0,mock1", "mock0,mock1,cpu" };
    const double disk_bytes = 64 << 20;
    const char *dir = program_path("pages");

    (void)state;
    for (int n = 1; n <= 3; n++) {
        program_running running = program_start(
            PROGRAM("serve", program_model_deep(), "--port", "0", "--kv", "f16", "--kv-budget",
                    "1MiB", "--device", devices[n - 1], "--kv-overflow-memory", "128MiB",
                    "--cache-dir", dir, "--kv-overflow-disk", "64MiB"));
        const uint16_t port = served_port(&running);
        const double cards = n == 3 ? disk_bytes / 3 * 2 : disk_bytes;
        const double bytes = served_metric(port, "quire_kv_offload_file_bytes{what=\"capacity\"}");

        assert_true(bytes <= cards && bytes > cards * 0.9); /* whole stripes */
        served_end(&running, SIGTERM);
        (void)served_remove_dir(dir);
    }
}

/* Devices have the memory of --cache-host-memory in common: the check counts it once, and where the
 * limit has no room for it, the start is refused as on one device. */
static void test_host_memory_counts_once(void **state)
{
    program_result r;

    (void)state;
    for (int i = 0; i < 2; i++) {
        r = program_expect(i == 0 ? 0 : 1,
                           PROGRAM("serve", program_model(), "--check-config", "--kv", "q8",
                                   "--kv-budget", "1MiB", "--memory-limit", "1GiB",
                                   "--cache-host-memory", i == 0 ? "600MiB" : "1100MiB", "--device",
                                   "mock0,mock1,mock1"));
        assert_int_equal(strstr(r.err, "the limit is ") != NULL, i == 1);
        program_free(&r);
    }
}

/* The context of quire serve without -c, on devices of so much memory. */
static json_int_t context_on(const char *devices, const char *memory)
{
    json_t *checked;
    json_int_t n;

    assert_int_equal(setenv("MOCK_MEMORY", memory, 1), 0);
    checked = program_json(PROGRAM("serve", program_model(), "--check-config", "--json", "--kv",
                                   "f16", "--kv-overflow", "refuse", "--device", devices));
    (void)unsetenv("MOCK_MEMORY");
    n = json_integer_value(json_object_get(json_object_get(checked, "effective"), "ctx_size"));
    json_decref(checked);
    return n;
}

/* Every device's room counts, in any order of their names: for large requests, for steps that
 * attend their pages in the host's memory, and for the context. */
static void test_room(void **state)
{
    static const char *const orders[] = { "cpu,mock1", "mock1,cpu" };
    const json_int_t alone = context_on("mock1", LITTLE), most = context_on("cpu", LITTLE);
    program_result r;

    (void)state;
    assert_in_range(alone, 64, most - 1);
    for (int i = 0; i < 2; i++) {
        r = program_expect(0, PROGRAM("serve", program_model(), "--check-config", "--json", "--kv",
                                      "f16", "--kv-budget", "1MiB", "--kv-overflow-attend", "host",
                                      "--device", orders[i]));
        assert_says(r.out, "\"kv_overflow\": \"tier\"");
        program_free(&r);
        assert_int_equal(context_on(orders[i], LITTLE), alone);
    }
    r = program_expect(1, PROGRAM("serve", program_model(), "--check-config",
                                  "--kv-overflow-attend", "host", "--device", "cpu,cpu"));
    assert_says(r.err, "kv_overflow_attend host needs a device");
    program_free(&r);
}

static void test_placement(void **state)
{
    static const struct {
        const char *text;
        const char *says;
    } cases[] = {
        { "placement: [ { devices: mock0 } ]\n",
          "placement[1] needs devices, and either class or tenant" },
        { "placement: [ { class: batch, tenant: a, devices: mock0 } ]\n",
          "placement[1] needs devices, and either class or tenant" },
        { "placement: [ { class: batch } ]\n",
          "placement[1] needs devices, and either class or tenant" },
        { "placement: [ { class: batch, devices: mock1 }, { class: none, devices: mock1 } ]\n",
          "placement[2]: there is no class 'none'" },
        { "placement: [ { class: batch, devices: \"mock1,mock2\" } ]\n",
          "placement[1]: 'mock2' is not among the names of device" },
        { "placement: [ { class: batch, devices: \"mock1,\" } ]\n",
          "placement[1]: '' is not among the names of device" },
        { "placement: [ { class: batch, devices: mock1 }, { class: batch, devices: mock0 } ]\n",
          "placement[2]: class 'batch' is bound by placement[1]" },
        { "placement: [ { tenant: a, devices: mock1 }, { tenant: a, devices: mock0 } ]\n",
          "placement[2]: tenant 'a' is bound by placement[1]" },
        { "placement: [ { tenant: a, devices: mock1 } ]\n",
          "placement[1]: there is no key of a tenant 'a'" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *config = config_of(cases[i].text);
        program_result r =
            program_expect(2, PROGRAM("serve", program_model(), "--check-config", "--device",
                                      "mock0,mock1", "--config", config));

        assert_says(r.err, cases[i].says);
        program_free(&r);
    }
}

static void test_placement_alone(void **state)
{
    const char *config = config_of("placement: [ { class: batch, devices: mock0 } ]\n");
    program_result r = program_expect(2, PROGRAM("serve", program_model(), "--check-config",
                                                 "--device", "mock0", "--config", config));

    (void)state;
    assert_says(r.err, "placement needs several names in device");
    program_free(&r);
}

/* ---- serving ---- */

/* Requests of a bound class go to its device; figures are by device. */
static void test_bound(void **state)
{
    program_running running =
        serve_two(config_of("placement: [ { class: standard, devices: mock1 } ]\n"));
    const uint16_t port = served_port(&running);
    char text[2][256];

    (void)state;
    assert_int_equal(served_complete(port, text[0], sizeof text[0]), 0);
    assert_true(served_complete(port, text[1], sizeof text[1]) > 64);
    assert_string_equal(text[0], text[1]);
    assert_true(
        served_metric(port, METRIC_OF("quire_device_requests_total", "0", "what=\"all\"")) == 0.0);
    assert_true(
        served_metric(port, METRIC_OF("quire_device_requests_total", "1", "what=\"all\"")) == 2.0);
    assert_true(served_metric(port, METRIC_OF("quire_device_prompt_tokens_total", "1",
                                              "what=\"cached\"")) > 64.0);
    assert_true(served_metric(port, METRIC("quire_device_down", "1")) == 0.0);
    assert_says(served_ask(port, "GET", "/v1/cache/stats", ""),
                "\"devices\":[{\"name\":\"mock0\",\"lost\":false,\"requests\":0,");
    served_end(&running, SIGTERM);
}

#define HOST_RECORDS "quire_tier_records{store=\"host\"}"

/* The answer to the story in a class; returns its cached tokens. */
static json_int_t complete_in(uint16_t port, const char *class_name, char *text, size_t text_bytes)
{
    char body[512];

    (void)snprintf(body, sizeof body, "{\"service_tier\": \"%s\", %s", class_name,
                   served_story + 1);
    return served_complete_of(port, body, text, text_bytes);
}

/* Without any store a prefix that is hot on one device comes to another through the host's memory:
 * when it was used a second time there. */
static void test_relay(void **state)
{
    program_running running =
        serve_two(config_of("placement: [ { class: standard, devices: mock0 }, "
                            "{ class: batch, devices: mock1 } ]\n"));
    const uint16_t port = served_port(&running);
    char text[3][256];

    (void)state;
    assert_int_equal(complete_in(port, "standard", text[0], sizeof text[0]), 0);
    assert_true(served_metric(port, HOST_RECORDS) == 0.0);
    assert_true(complete_in(port, "standard", text[1], sizeof text[1]) > 64);
    while (served_metric(port, HOST_RECORDS) == 0.0) {
        served_doze();
    }
    assert_true(complete_in(port, "batch", text[2], sizeof text[2]) >= 64);
    assert_true(served_metric(port, METRIC("quire_device_fetched_tokens_total", "1")) >= 64.0);
    assert_string_equal(text[0], text[1]);
    assert_string_equal(text[0], text[2]);
    served_end(&running, SIGTERM);
}

/* Memory of 0 in the settings means no relay. The default is printed as a comment: settings that
 * are read again mean the same. */
static void test_no_relay(void **state)
{
    program_running running = serve_two(config_of("cache_host_memory: 0\n"));
    const uint16_t port = served_port(&running);
    program_result r;

    (void)state;
    (void)served_metric(port, METRIC("quire_device_down", "1"));
    assert_null(strstr(served_ask(port, "GET", "/metrics", ""), HOST_RECORDS));
    served_end(&running, SIGTERM);

    r = program_expect(0, PROGRAM("serve", program_model(), "--check-config", "--kv", "q8",
                                  "--kv-budget", "1MiB", "--device", "mock0,mock1"));
    assert_says(r.out, "\n# cache_host_memory: none; several devices of a kind ");
    program_free(&r);
}

/* ---- with layers of the model ---- */

#define TWO_CLASSES                                                                                \
    "placement: [ { class: standard, devices: mock0 }, { class: batch, devices: mock1 } ]\n"

/* Both devices give the same answer, and one of them stops having layers: the other goes on. */
static void test_layers(void **state)
{
    program_running running = serve_layers("mock0,mock1", config_of(TWO_CLASSES));
    uint16_t port = served_port(&running);
    char text[4][256];

    (void)state;
    free(program_line_with(running.err, " layers and the output of the model; CPU: other"));
    (void)complete_in(port, "standard", text[0], sizeof text[0]);
    (void)complete_in(port, "batch", text[1], sizeof text[1]);
    assert_string_equal(text[0], text[1]);
    served_end(&running, SIGTERM);

    assert_int_equal(setenv("MOCK_LOSE_LAYERS_AT", "7", 1), 0);
    running = serve_layers("mock0,mock1", config_of("page_tokens: 64\n"));
    port = served_port(&running);
    (void)served_complete(port, text[2], sizeof text[2]);
    assert_string_equal(text[2], text[0]);
    free(program_line_with(running.err,
                           "device mock0 was lost, and the KV on it (ggml: vk::Queue::submit: "
                           "ErrorDeviceLost): its requests go on elsewhere; pins that moved: 0"));
    assert_says(served_ask(port, "GET", "/health", ""),
                "{\"name\":\"mock0\",\"lost\":true},{\"name\":\"mock1\",\"lost\":false}");
    (void)served_complete(port, text[3], sizeof text[3]);
    assert_string_equal(text[3], text[0]);
    (void)unsetenv("MOCK_LOSE_LAYERS_AT");
    served_end(&running, SIGTERM);
}

/* A name that is cpu has all layers with the host; the same name twice has its weights once. */
static void test_layers_of_some(void **state)
{
    static const char *const devices[] = { "cpu,mock1", "mock1,cpu,mock1" };

    (void)state;
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        program_running running =
            serve_layers(devices[i], config_of("placement: [ { class: standard, devices: mock1 }, "
                                               "{ class: batch, devices: cpu } ]\n"));
        const uint16_t port = served_port(&running);
        char text[2][256];

        (void)complete_in(port, "standard", text[0], sizeof text[0]);
        (void)complete_in(port, "batch", text[1], sizeof text[1]);
        assert_true(text[0][0] != '\0' && text[1][0] != '\0');
        served_end(&running, SIGTERM);
    }
}

/* Weights and buffers of each card are counted before anything is loaded. */
static void test_layers_refused(void **state)
{
    static const char *const orders[] = { "cpu,mock1", "mock1,cpu" };
    program_result r;

    (void)state;
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        assert_int_equal(setenv("MOCK_MEMORY", "150000", 1), 0);
        r = program_expect(1, PROGRAM("serve", program_model(), "--check-config", "--device",
                                      orders[i], "-ngl", "99"));
        (void)unsetenv("MOCK_MEMORY");
        assert_says(r.err, "on device mock1 (weights ");
        assert_says(r.err, "fewer layers there (-ngl), or --device cpu");
        program_free(&r);
    }
    r = program_expect(
        1, PROGRAM("serve", program_model(), "--check-config", "--device", "cpu,cpu", "-ngl", "1"));
    assert_says(r.err, "layers of the model can be on a device only, and the device is the CPU");
    program_free(&r);
}

/* The first device is lost in the middle of an answer: the client gets the answer of a server that
 * loses nothing, and the server goes on. */
static void test_lost(void **state)
{
    const char *config = config_of("page_tokens: 64\n");
    program_running running = serve_two(config);
    char text[3][256];
    const char *health;
    uint16_t port = served_port(&running);

    (void)state;
    (void)served_complete(port, text[0], sizeof text[0]);
    served_end(&running, SIGTERM);

    assert_int_equal(setenv("MOCK_LOSE_AT", "12", 1), 0);
    running = serve_two(config);
    port = served_port(&running);
    (void)served_complete(port, text[1], sizeof text[1]);
    assert_string_equal(text[0], text[1]);
    free(program_line_with(running.err, "device mock0 was lost, and the KV on it: its requests go "
                                        "on elsewhere; pins that moved: 0 of 0"));
    health = served_ask(port, "GET", "/health", "");
    assert_says(health, "\"status\":\"ok\"");
    assert_says(health, "{\"name\":\"mock0\",\"lost\":true},{\"name\":\"mock1\",\"lost\":false}");
    assert_true(served_metric(port, METRIC("quire_device_down", "0")) == 1.0);
    assert_true(served_metric(port, METRIC_OF("quire_device_requests_total", "1",
                                              "what=\"adopted\"")) == 1.0);
    assert_true(served_complete(port, text[2], sizeof text[2]) > 64);
    assert_string_equal(text[0], text[2]);
    served_end(&running, SIGTERM);
}

/* Both devices are lost: the server goes on with the CPU, names the one that was lost last, and has
 * the places of one device. */
static void test_lost_both(void **state)
{
    program_running running;
    uint16_t port;
    char *line;

    (void)state;
    assert_int_equal(setenv("MOCK_LOSE_AT", "12", 1), 0);
    running = program_start(PROGRAM("serve", program_model(), "--port", "0", "--kv-budget", "1MiB",
                                    "--kv", "q8", "--device", "mock0,mock", "--max-batch-size", "3",
                                    "--on-device-lost", "cpu"));
    port = served_port(&running);
    line = program_line_with(running.err, "requests at once");
    assert_says(line, " 6 requests at once");
    free(line);
    while (strstr(served_ask(port, "POST", "/v1/completions", served_story), "\"device_lost\"") ==
           NULL) { /* a few pieces of work are left to the second device */
        served_doze();
    }
    free(program_line_with(running.err, "device mock was lost, and the KV on it: all requests "
                                        "failed, and the server goes on with --device cpu"));
    line = program_line_with(running.err, "requests at once");
    assert_says(line, " 3 requests at once");
    free(line);
    assert_says(served_ask(port, "GET", "/health", ""), "\"lost_device\":\"mock\"");
    served_end(&running, SIGTERM);
}

/* ---- a directory ---- */

/* A server that sends all requests to one of its devices. */
static program_running serve_on(const char *dir, const char *devices, const char *bound)
{
    char config[128];

    (void)snprintf(config, sizeof config, "placement: [ { class: standard, devices: %s } ]\n",
                   bound);
    return program_start(PROGRAM("serve", program_model(), "--port", "0", "--kv-budget", "1MiB",
                                 "--kv", "q8", "--device", devices, "--cache-dir", dir,
                                 "--store-all", "--config", config_of(config)));
}

/* The tokens that a device has read from the directory. */
static double fetched(uint16_t port, const char *labels)
{
    char name[128];

    (void)snprintf(name, sizeof name, "quire_device_fetched_tokens_total{%s}", labels);
    return served_metric(port, name);
}

/* After a restart a device reads pages that another device of its kind computed. A device of
 * another kind does not read those, but finds its own. */
static void test_directory(void **state)
{
    const char *dir = program_path("devices-cache");
    char text[4][256];
    program_running running;
    json_int_t n_again;
    uint16_t port;

    (void)state;
    (void)unsetenv("MOCK_LOSE_AT");
    running = serve_on(dir, "mock0,mock1", "mock0");
    port = served_port(&running);
    assert_int_equal(served_complete(port, text[0], sizeof text[0]), 0);
    n_again = served_complete(port, text[1], sizeof text[1]);
    assert_true(n_again > 64);
    assert_says(served_ask(port, "GET", "/v1/cache/regions", ""),
                "\"devices\":[{\"name\":\"mock0\",\"lost\":false,\"data\":[{\"id\":0,");
    served_end(&running, SIGTERM);

    running = serve_on(dir, "mock0,mock1", "mock1");
    port = served_port(&running);
    assert_int_equal(served_complete(port, text[1], sizeof text[1]), n_again);
    assert_true(fetched(port, "device=\"0\",name=\"mock0\"") == 0.0);
    assert_true(fetched(port, "device=\"1\",name=\"mock1\"") > 64.0);
    served_end(&running, SIGTERM);

    for (int i = 0; i < 2; i++) { /* the second time its own pages are there */
        running = serve_on(dir, "mock0,cpu", "cpu");
        port = served_port(&running);
        assert_int_equal(served_complete(port, text[2 + i], sizeof text[2]), i == 0 ? 0 : n_again);
        assert_true((fetched(port, "device=\"1\",name=\"cpu\"") > 64.0) == (i == 1));
        served_end(&running, SIGTERM);
    }
    for (int i = 1; i < 4; i++) {
        assert_string_equal(text[0], text[i]); /* the mock's kernels are the CPU's */
    }
    assert_true(served_remove_dir(dir) > 0);
}

/* Devices of one memory share it in equal parts, however little of it a small model's sequences
 * need. */
static void test_budgets(void **state)
{
    const double limit = 2.0 * 1024 * 1024 * 1024, share = 0.9;
    program_running running = program_start(
        PROGRAM("serve", program_model(), "--port", "0", "--kv", "q8", "--device", "cpu,cpu,cpu",
                "--memory-limit", "2GiB", "--cache-memory-ratio", "0.9"));
    const uint16_t port = served_port(&running);
    const double budgets[] = {
        served_metric(port, "quire_device_kv_bytes{device=\"0\",name=\"cpu\",what=\"budget\"}"),
        served_metric(port, "quire_device_kv_bytes{device=\"1\",name=\"cpu\",what=\"budget\"}"),
        served_metric(port, "quire_device_kv_bytes{device=\"2\",name=\"cpu\",what=\"budget\"}"),
    };

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_true(budgets[i] > 0.25 * share * limit && budgets[i] <= share * limit / 3);
        assert_true(fabs(budgets[i] - budgets[0]) <= 0.1 * budgets[0]);
    }
    served_end(&running, SIGTERM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_second),
        cmocka_unit_test(test_buffers_of_each),
        cmocka_unit_test(test_little_memory),
        cmocka_unit_test(test_overflow_disk_is_shared),
        cmocka_unit_test(test_host_memory_counts_once),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_placement),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_relay),
        cmocka_unit_test(test_no_relay),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_layers_of_some),
        cmocka_unit_test(test_layers_refused),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_placement_alone),
        cmocka_unit_test(test_lost_both),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_directory),
    };

    return cmocka_run_group_tests(tests, mock_begin, mock_end);
}
