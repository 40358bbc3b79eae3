/* test_error.c - filling in errors: texts, errno, truncation, a NULL error.
 *
 * SPDX-License-Identifier: MIT */
#include "quire/error.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void set_fills_every_field(void **state)
{
    quire_error err = { QUIRE_IO, EACCES, "old" };

    (void)state;
    assert_int_equal(quire_error_set(&err, QUIRE_CORRUPT, "%s: tensor %d", "m.gguf", 7),
                     QUIRE_CORRUPT);
    assert_int_equal(err.status, QUIRE_CORRUPT);
    assert_int_equal(err.sys_errno, 0);
    assert_string_equal(err.message, "m.gguf: tensor 7");
}

static void set_errno_appends_the_system_text(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    assert_int_equal(quire_error_set_errno(&err, ENOENT, "cannot open %s", "m.gguf"), QUIRE_IO);
    assert_int_equal(err.status, QUIRE_IO);
    assert_int_equal(err.sys_errno, ENOENT);
    assert_string_equal(err.message, "cannot open m.gguf: No such file or directory");
}

static void set_errno_survives_an_unknown_errno(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    assert_int_equal(quire_error_set_errno(&err, 98765, "read"), QUIRE_IO);
    assert_non_null(strstr(err.message, "98765"));
}

static void out_of_memory_is_nomem_not_io(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    assert_int_equal(quire_error_set_errno(&err, ENOMEM, "mmap of 4 GiB"), QUIRE_NOMEM);
    assert_int_equal(err.status, QUIRE_NOMEM);
    assert_int_equal(err.sys_errno, ENOMEM);
}

static void a_null_error_still_returns_the_status(void **state)
{
    (void)state;
    assert_int_equal(quire_error_set(NULL, QUIRE_LIMIT, "%d", 1), QUIRE_LIMIT);
    assert_int_equal(quire_error_set_errno(NULL, EIO, "read"), QUIRE_IO);
    assert_int_equal(quire_error_set_errno(NULL, ENOMEM, "map"), QUIRE_NOMEM);
}

/* Long messages keep their beginning, stay terminated and never write past the array. */
static void long_messages_are_cut(void **state)
{
    struct {
        quire_error err;
        unsigned char guard[64];
    } box;
    char longest[2 * QUIRE_ERROR_MESSAGE_MAX];

    (void)state;
    memset(box.guard, 0xa5, sizeof(box.guard));
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    for (size_t length = QUIRE_ERROR_MESSAGE_MAX - 40; length < sizeof(longest); length++) {
        size_t kept = length < QUIRE_ERROR_MESSAGE_MAX ? length : QUIRE_ERROR_MESSAGE_MAX - 1;

        (void)quire_error_set(&box.err, QUIRE_INVAL, "%.*s", (int)length, longest);
        assert_int_equal(strlen(box.err.message), kept);
        (void)quire_error_set_errno(&box.err, ENOENT, "%.*s", (int)length, longest);
        assert_in_range(strlen(box.err.message), kept, QUIRE_ERROR_MESSAGE_MAX - 1);
        assert_memory_equal(box.err.message, longest, kept);
    }
    for (size_t i = 0; i < sizeof(box.guard); i++) {
        assert_int_equal(box.guard[i], 0xa5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_fills_every_field),
        cmocka_unit_test(set_errno_appends_the_system_text),
        cmocka_unit_test(set_errno_survives_an_unknown_errno),
        cmocka_unit_test(out_of_memory_is_nomem_not_io),
        cmocka_unit_test(a_null_error_still_returns_the_status),
        cmocka_unit_test(long_messages_are_cut),
    };

    return cmocka_run_group_tests_name("error", tests, NULL, NULL);
}
