/* test_html.c - data in a page: where they belong, and unable to leave it.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/offline/html.h"

#include "quire/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static size_t count(const char *text, const char *part)
{
    size_t n = 0;

    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part)) {
        n++;
    }
    return n;
}

static void test_place(void **state)
{
    static const char json[] = "{\"title\":\"x\"}";
    quire_bytes page = { 0 };

    (void)state;
    assert_int_equal(quire_html_write(&page, json, strlen(json)), QUIRE_OK);
    assert_int_equal(strncmp(page.data, "<!doctype html>", 15), 0);
    assert_non_null(strstr(page.data, "type=\"application/json\">{\"title\":\"x\"}</script>"));
    assert_null(strstr(page.data, "@DATA@"));
    assert_int_equal(page.n, quire_report_page_bytes - strlen("@DATA@") + strlen(json));
    assert_string_equal(page.data + page.n - 8, "</html>\n");
    quire_bytes_fini(&page);
}

/* Nothing from outside, and a policy that says so. */
static void test_self_contained(void **state)
{
    quire_bytes page = { 0 };

    (void)state;
    assert_int_equal(quire_html_write(&page, "{}", 2), QUIRE_OK);
    assert_non_null(strstr(page.data, "default-src 'none'"));
    assert_int_equal(count(page.data, "src="), 0);
    assert_int_equal(count(page.data, "http://") + count(page.data, "https://"),
                     count(page.data, "http://www.w3.org/2000/svg"));
    quire_bytes_fini(&page);
}

static void test_escapes(void **state)
{
    static const char json[] = "{\"a\":\"</script><script>x()<!--<\",\"b\":\"\\u2028<\"}";
    static const char want[] = "{\"a\":\"\\u003c/script>\\u003cscript>x()\\u003c!--\\u003c\","
                               "\"b\":\"\\u2028\\u003c\"}</script>";
    quire_bytes empty = { 0 };
    quire_bytes page = { 0 };

    (void)state;
    assert_int_equal(quire_html_write(&empty, "", 0), QUIRE_OK);
    assert_int_equal(quire_html_write(&page, json, strlen(json)), QUIRE_OK);
    assert_non_null(strstr(page.data, want));
    assert_int_equal(count(page.data, "</script"), count(empty.data, "</script"));
    assert_int_equal(count(page.data, "<script"), count(empty.data, "<script"));
    assert_int_equal(count(page.data, "<!--"), count(empty.data, "<!--"));
    quire_bytes_fini(&page);
    quire_bytes_fini(&empty);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_place),
        cmocka_unit_test(test_self_contained),
        cmocka_unit_test(test_escapes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
