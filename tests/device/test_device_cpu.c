/* test_device_cpu.c - the CPU as a device: the suite, and names of devices.
 *
 * SPDX-License-Identifier: MIT */
#include "device/conformance.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static int open_cpu(quire_device **out, const quire_device_opts *opts, quire_error *err)
{
    return quire_device_open(out, "cpu", opts, err);
}

static void test_names(void **state)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_device *device;
    quire_device_info info;
    quire_error err;

    (void)state;
    opts.attn = fixture_small_opts();
    assert_int_equal(quire_device_open(&device, "abacus", &opts, &err), QUIRE_NOTFOUND);
    assert_null(device);
    assert_non_null(strstr(err.message, "'abacus'"));
    assert_int_not_equal(quire_device_open(&device, "vulkan12", &opts, &err), QUIRE_OK);
    assert_null(device);
    assert_non_null(strstr(err.message, "vulkan12"));
    opts.struct_bytes--;
    assert_int_equal(quire_device_open(&device, "cpu", &opts, &err), QUIRE_INVAL);
    opts.struct_bytes++;
    assert_int_equal(quire_device_open(&device, "cpu", &opts, &err), QUIRE_OK);
    quire_device_info_get(device, &info);
    assert_string_equal(info.name, "cpu");
    assert_string_equal(info.isa, quire_attn_isa());
    assert_int_equal(info.memory, QUIRE_MEMORY_HOST);
    quire_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_names) };
    const int rc = conformance_run(
        &(conformance_device){ .name = "cpu", .open = open_cpu, .rounds_as_cpu = true });

    return rc != 0 ? rc : cmocka_run_group_tests_name("names", tests, NULL, NULL);
}
