/* test_json_complete.c - JSON that ends too early, made whole.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server/json_complete.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

#define N(list) (sizeof(list) / sizeof((list)[0]))

static void test_beginnings_are_completed(void **state)
{
    static const char *const cases[][2] = {
        { "", "{}" },
        { " \n", "{}" },
        { "{", "{}" },
        { "{\"a", "{}" },
        { "{\"a\":", "{}" },
        { "{\"a\": 2", "{\"a\": 2}" },
        { "{\"a\": 2, ", "{\"a\": 2}" },
        { "{\"a\": 2, \"b", "{\"a\": 2}" },
        { "{\"a\": 2, \"b\": \"he", "{\"a\": 2, \"b\": \"he\"}" },
        { "{\"a\":1.", "{\"a\":1}" },
        { "{\"a\":[1,-", "{\"a\":[1]}" },
        { "{\"a\":[true,fal", "{\"a\":[true]}" },
        { "{\"a\":null", "{\"a\":null}" },
        { "{\"a\":{\"b\":[{\"c\":\"d\"},{\"e\":", "{\"a\":{\"b\":[{\"c\":\"d\"},{}]}}" },
        { "{\"a\":\"x\\", "{\"a\":\"x\"}" },
        { "{\"a\":\"x\\u00e", "{\"a\":\"x\"}" },
        { "{\"a\":\"x\\ud83d\\ude0", "{\"a\":\"x\"}" },
        { "{\"a\":\"x\\ud83d\\ude00", "{\"a\":\"x\\ud83d\\ude00\"}" },
        { "{\"a\":1}", "{\"a\":1}" },
    };

    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        char *whole = quire_json_complete(cases[i][0]);

        if (whole == NULL || strcmp(whole, cases[i][1]) != 0) {
            fail_msg("%s: %s", cases[i][0], whole != NULL ? whole : "NULL");
        }
        free(whole);
    }
}

static void test_other_texts_are_not(void **state)
{
    static const char *const texts[] = { "x",          "[1",          "{oops",        "{\"a\":oops",
                                         "{'a': 1",    "{\"a\" 1",    "{\"a\":1]",    "{\"a\":[1}",
                                         "{\"a\":1}}", "{\"a\":1} x", "{\"a\":\"\\q", "{\"a\":01" };
    char deep[6 * 257 + 1] = "";

    (void)state;
    for (size_t i = 0; i < N(texts); i++) {
        char *whole = quire_json_complete(texts[i]);

        if (whole != NULL) {
            fail_msg("%s: %s", texts[i], whole);
        }
    }
    for (size_t i = 0; i < 257; i++) {
        memcpy(deep + 5 * i, "{\"a\":", 6);
    }
    assert_null(quire_json_complete(deep));
}

/* Each beginning of a text is one, and becomes JSON. */
static void test_every_beginning(void **state)
{
    static const char text[] = "{\"a b\": [1, -2.5e+10, true, null, \"x\\u00e9\\n\\ud83d\\ude00\", "
                               "[]], \"c\" : {\"d\":{}, \"e\":[{}]} ,\n\"f\" :false }";
    char begin[sizeof text];

    (void)state;
    for (size_t n = 0; n < sizeof text; n++) {
        char *whole;
        json_t *value;

        memcpy(begin, text, n);
        begin[n] = '\0';
        whole = quire_json_complete(begin);
        if (whole == NULL) {
            fail_msg("no object begins with: %s", begin);
        }
        value = json_loads(whole, 0, NULL);
        assert_non_null(value);
        json_decref(value);
        free(whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beginnings_are_completed),
        cmocka_unit_test(test_other_texts_are_not),
        cmocka_unit_test(test_every_beginning),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
