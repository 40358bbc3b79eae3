/* test_device_program.c - --device and quire devices, by the built program. What needs a Vulkan
 * device is skipped where none is.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

#include <stdbool.h>
#include <string.h>

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
    assert_says(r.err, "there is no device 'tpu0' (cpu, vulkan0 ...)");
    program_free(&r);
    r = program_expect(
        1, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1", "--device", "vulkan12"));
    assert_says(r.err, "vulkan12");
    program_free(&r);
}

static bool has_vulkan; /* set by the first test */

static void test_list(void **state)
{
    program_result r = program_expect(0, PROGRAM("devices"));

    (void)state;
    assert_says(r.out, "cpu ");
    has_vulkan = strstr(r.out, "\nvulkan0 ") != NULL;
    if (!has_vulkan) {
        assert_says(r.err, "quire: no Vulkan device: ");
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
    }
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "name")), "cpu");
    json_decref(list);
}

/* What a device lacks, as a user meets it. */
static void test_refusals(void **state)
{
    program_result r;

    (void)state;
    if (!has_vulkan) {
        skip();
    }
    r = program_expect(1, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1", "--retain",
                                  "snap:0.5", "--device", "vulkan0"));
    assert_says(r.err, "device vulkan0: texts that keep a share of their tokens");
    program_free(&r);
    r = program_expect(1, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1",
                                  "--context-overflow", "shift", "--device", "vulkan0"));
    assert_says(r.err, "--context-overflow shift moves tokens in the host's memory");
    program_free(&r);
}

/* The line at the start, and the same text as by the CPU's kernels. */
static void test_text(void **state)
{
    program_result r[2];

    (void)state;
    if (!has_vulkan) {
        skip();
    }
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),  cmocka_unit_test(test_list_json),
        cmocka_unit_test(test_names), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
