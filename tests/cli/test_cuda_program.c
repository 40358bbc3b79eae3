/* test_cuda_program.c - --device cuda0 of the built program, by the emulated card of
 * tests/device/fake_cuda, which CTest puts into LD_LIBRARY_PATH.
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

/* Both cards that can be used, in text and JSON. */
static void test_list(void **state)
{
    program_result r = program_expect(0, PROGRAM("devices"));
    json_t *list = program_json(PROGRAM("devices", "--json"));
    uint32_t n = 0;

    (void)state;
    assert_says(r.out, "\ncuda0 ");
    assert_says(r.out, "  emulated card 0\n");
    assert_says(r.out, "\ncuda1 ");
    assert_says(r.out, "  emulated card 2\n");
    assert_null(strstr(r.out, "cuda2"));
    assert_null(strstr(r.err, "no CUDA device"));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);
        const json_int_t bytes = json_integer_value(json_object_get(row, "memory_bytes"));
        const json_int_t left = json_integer_value(json_object_get(row, "free_bytes"));

        if (strcmp(json_string_value(json_object_get(row, "isa")), "cuda") == 0) {
            assert_true(left > 0 && left < bytes);
            assert_true(json_real_value(json_object_get(row, "in_bytes_per_second")) > 0);
            n++;
        }
    }
    assert_int_equal(n, 2);
    json_decref(list);
    program_free(&r);
}

/* The text of the CPU's kernels, hot and sealed. */
static void test_text(void **state)
{
    static const char *const kinds[] = { "f16", "q8", "q4" };

    (void)state;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        program_result r[2];

        for (uint32_t j = 0; j < 2; j++) {
            r[j] = program_expect(0, PROGRAM("run", "-m", program_model(), "-p", "some words", "-n",
                                             "3", "--temp", "0", "--ignore-eos", "--kv", kinds[i],
                                             "--device", j == 0 ? "cpu" : "cuda0"));
        }
        assert_says(r[1].err, "quire: device cuda0 (emulated card 0): KV pages and attention; CPU: "
                              "matrix products, ");
        assert_string_equal(r[0].out, r[1].out);
        program_free(&r[0]);
        program_free(&r[1]);
    }
}

/* Names that there are not, and layers on the device. */
static void test_refusals(void **state)
{
    program_result r = program_expect(
        1, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1", "--device", "cuda2"));

    (void)state;
    assert_says(r.err, "there is no device 'cuda2': CUDA lists 3 devices, 2 of which have");
    program_free(&r);
    r = program_expect(1, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1", "--device",
                                  "cuda0", "-ngl", "1"));
    assert_says(r.err, "device cuda0: this build has no backend of ggml's for weights there "
                       "(scripts/setup.sh cuda builds it); leave out -ngl");
    program_free(&r);
    r = program_expect(
        1, PROGRAM("info", program_model(), "-c", "64", "--device", "cuda0", "-ngl", "1"));
    assert_says(r.err, "device cuda0: this build has no backend of ggml's for weights there");
    program_free(&r);
}

/* Vulkan's cards come first, then CUDA's, and the CPU last. */
static void test_auto(void **state)
{
    program_result r = program_expect(
        0, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1", "--device", "auto"));

    (void)state;
    assert_true(strstr(r.err, "quire: device cuda0 (") != NULL ||
                strstr(r.err, "quire: device vulkan") != NULL);
    program_free(&r);
}

static void test_measures(void **state)
{
    program_result r = program_expect(0, PROGRAM("bench", program_model(), "--device", "cuda0",
                                                 "--kv", "q8", "-p", "16", "-n", "2", "-r", "1"));
    json_t *root;

    (void)state;
    program_free(&r);
    root = program_json(PROGRAM("tune-pages", "--device", "cuda0", "--tokens", "1024", "--json"));
    assert_string_equal(json_string_value(json_object_get(
                            json_array_get(json_object_get(root, "memories"), 0), "memory")),
                        "cuda0");
    json_decref(root);
}

/* A hit gives the text of a miss. Pages survive a restart in a directory, another card of the same
 * kind reads them, and they are no hit for the CPU. */
static void test_serve(void **state)
{
    static const char *const devices[] = { "cuda0", "cuda1", "cpu" };
    const char *dir = program_path("dir");
    char text[4][256];

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        program_running running = program_start(
            PROGRAM("serve", program_model(), "--port", "0", "--kv-budget", "1MiB", "--kv", "q8",
                    "--device", devices[i], "--cache-dir", dir, "--store-all"));
        const uint16_t port = served_port(&running);
        const json_int_t n_cached = served_complete(port, text[i], sizeof text[i]);

        assert_int_equal(n_cached > 64, i == 1);
        assert_string_equal(text[0], text[i]);
        assert_true(served_complete(port, text[3], sizeof text[3]) > 64);
        assert_string_equal(text[0], text[3]);
        served_end(&running, SIGTERM);
    }
    (void)served_remove_dir(dir);
}

/* Two cards serve together. */
static void test_two(void **state)
{
    program_running running =
        program_start(PROGRAM("serve", program_model(), "--port", "0", "--kv-budget", "1MiB",
                              "--kv", "q4", "--device", "cuda0,cuda1"));
    const uint16_t port = served_port(&running);
    char text[2][256];

    (void)state;
    (void)served_complete(port, text[0], sizeof text[0]);
    assert_true(served_complete(port, text[1], sizeof text[1]) > 64);
    assert_string_equal(text[0], text[1]);
    served_end(&running, SIGTERM);
}

/* The negative log-likelihood of a text. */
static double nll_of(const char *kv, const char *device, const char *split_mode)
{
    json_t *json = program_json(PROGRAM("perplexity", program_model(), "-f",
                                        program_text("text", 2000), "-c", "128", "--kv", kv,
                                        "--json", "--device", device, "--split-mode", split_mode));
    const double nll = json_real_value(json_object_get(json, "nll"));

    json_decref(json);
    return nll;
}

/* Layers on two cards give the bits of one, those on a card and the CPU nearly. */
static void test_layers(void **state)
{
    static const char *const kinds[] = { "q8", "q4" };

    (void)state;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const double one = nll_of(kinds[i], "cuda0", "none");

        assert_true(one > 0.0);
        assert_true(nll_of(kinds[i], "cuda0,cuda1", "layer") == one);
        assert_true(fabs(nll_of(kinds[i], "cuda0,cpu", "layer") - one) < 0.01 * one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),     cmocka_unit_test(test_text),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_auto),
        cmocka_unit_test(test_measures), cmocka_unit_test(test_serve),
        cmocka_unit_test(test_two),      cmocka_unit_test(test_layers),
    };

    return cmocka_run_group_tests(tests, program_no_cache, program_clean);
}
