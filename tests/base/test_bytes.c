/* test_bytes.c - a growing buffer keeps the added bytes in order, terminated.
 *
 * SPDX-License-Identifier: MIT */
#include "base/bytes.h"
#include "quire/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_grows_in_order(void **state)
{
    quire_bytes bytes = { 0 };

    (void)state;
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(quire_bytes_addf(&bytes, "%d,", i), QUIRE_OK);
        assert_int_equal(quire_bytes_add(&bytes, "\0x", 2), QUIRE_OK);
        assert_int_equal(bytes.data[bytes.n], '\0');
    }
    assert_int_equal(bytes.n, 10 * 2 + 90 * 3 + 900 * 4 + 1000 * 2);
    assert_memory_equal(bytes.data, "0,\0x1,\0x2,", 11);
    quire_bytes_fini(&bytes);
    assert_null(bytes.data);
}

static void test_clear_keeps_memory(void **state)
{
    quire_bytes bytes = { 0 };
    size_t capacity;

    (void)state;
    assert_int_equal(quire_bytes_add(&bytes, "abc", 3), QUIRE_OK);
    capacity = bytes.capacity;
    quire_bytes_clear(&bytes);
    assert_int_equal(bytes.n, 0);
    assert_int_equal(bytes.capacity, capacity);
    assert_string_equal(bytes.data, "");
    assert_int_equal(quire_bytes_add(&bytes, NULL, 0), QUIRE_OK);
    assert_string_equal(bytes.data, "");
    quire_bytes_fini(&bytes);
}

static void test_refuses_what_cannot_be(void **state)
{
    quire_bytes bytes = { 0 };

    (void)state;
    assert_int_equal(quire_bytes_add(&bytes, "abc", 3), QUIRE_OK);
    assert_int_equal(quire_bytes_add(&bytes, "x", SIZE_MAX / 2), QUIRE_NOMEM);
    assert_int_equal(bytes.status, QUIRE_NOMEM);
    assert_string_equal(bytes.data, "abc");
    /* The error stays until it is cleared. */
    assert_int_equal(quire_bytes_addf(&bytes, "d"), QUIRE_NOMEM);
    assert_string_equal(bytes.data, "abc");
    quire_bytes_clear(&bytes);
    assert_int_equal(quire_bytes_addf(&bytes, "d"), QUIRE_OK);
    assert_string_equal(bytes.data, "d");
    quire_bytes_fini(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grows_in_order),
        cmocka_unit_test(test_clear_keeps_memory),
        cmocka_unit_test(test_refuses_what_cannot_be),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
