/* test_status.c - the status table: stable values, distinct labels, sane HTTP codes.
 *
 * SPDX-License-Identifier: MIT */
#include "quire/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const int all[] = {
#define X(sym, val, http, label, text) QUIRE_##sym,
    QUIRE_STATUS_MAP(X)
#undef X
};

/* The values are ABI: this list is written out on purpose, so that renumbering fails here. */
static void values_never_change(void **state)
{
    static const int expected[] = { 0, -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11 };

    (void)state;
    assert_true(COUNT(all) >= COUNT(expected));
    for (size_t i = 0; i < COUNT(expected); i++) {
        assert_int_equal(all[i], expected[i]);
    }
    assert_int_equal(QUIRE_NOPAGES, -2);
    assert_int_equal(QUIRE_CORRUPT, -5);
    assert_int_equal(QUIRE_RANGE, -11);
}

static void labels_are_distinct_and_fit_metrics(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(all); i++) {
        const char *name = quire_status_name(all[i]);

        assert_true(strlen(name) > 0);
        assert_int_equal(strspn(name, "abcdefghijklmnopqrstuvwxyz_"), strlen(name));
        assert_string_not_equal(name, "unknown");
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(name, quire_status_name(all[j]));
            assert_int_not_equal(all[i], all[j]);
        }
    }
    assert_string_equal(quire_status_name(QUIRE_OK), "ok");
    assert_string_equal(quire_status_name(QUIRE_NOPAGES), "nopages");
}

static void texts_are_one_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(all); i++) {
        const char *text = quire_status_text(all[i]);

        assert_true(strlen(text) > 0);
        assert_null(strchr(text, '\n'));
    }
    assert_string_equal(quire_status_text(QUIRE_NOMEM), "out of memory");
}

static void http_codes_tell_whose_fault_it_is(void **state)
{
    (void)state;
    assert_int_equal(quire_status_http(QUIRE_OK), 200);
    for (size_t i = 1; i < COUNT(all); i++) {
        assert_in_range(quire_status_http(all[i]), 400, 599);
    }
    assert_int_equal(quire_status_http(QUIRE_INVAL), 400);
    assert_int_equal(quire_status_http(QUIRE_NOPAGES), 429);
    assert_int_equal(quire_status_http(QUIRE_CORRUPT), 500);
}

static void unknown_codes_are_harmless(void **state)
{
    static const int unknown[] = { 1, 200, -9999, INT32_MIN, INT32_MAX };

    (void)state;
    for (size_t i = 0; i < COUNT(unknown); i++) {
        assert_string_equal(quire_status_name(unknown[i]), "unknown");
        assert_string_equal(quire_status_text(unknown[i]), "unknown status");
        assert_int_equal(quire_status_http(unknown[i]), 500);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_never_change),
        cmocka_unit_test(labels_are_distinct_and_fit_metrics),
        cmocka_unit_test(texts_are_one_line),
        cmocka_unit_test(http_codes_tell_whose_fault_it_is),
        cmocka_unit_test(unknown_codes_are_harmless),
    };

    return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}
