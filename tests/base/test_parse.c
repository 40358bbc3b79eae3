/* test_parse.c - numbers, sizes and likely typos, as people write them and as they must not.
 *
 * SPDX-License-Identifier: MIT */
#include "base/parse.h"
#include "quire/status.h"
#include "seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void integers(void **state)
{
    static const struct {
        const char *text;
        int64_t min, max;
        int status;
        int64_t value;
    } cases[] = {
        { "0", 0, 0, QUIRE_OK, 0 },
        { "42", 1, 100, QUIRE_OK, 42 },
        { "-1", -1, 8, QUIRE_OK, -1 },
        { "+7", 0, 8, QUIRE_OK, 7 },
        { "007", 0, 8, QUIRE_OK, 7 },
        { "9223372036854775807", 0, INT64_MAX, QUIRE_OK, INT64_MAX },
        { "-9223372036854775808", INT64_MIN, 0, QUIRE_OK, INT64_MIN },
        { "101", 1, 100, QUIRE_RANGE, 0 },
        { "0", 1, 100, QUIRE_RANGE, 0 },
        { "9223372036854775808", 0, INT64_MAX, QUIRE_RANGE, 0 },
        { "99999999999999999999999", 0, INT64_MAX, QUIRE_RANGE, 0 },
        { "-99999999999999999999999", INT64_MIN, INT64_MAX, QUIRE_RANGE, 0 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t value = -77;

        print_message("%s\n", cases[i].text);
        assert_int_equal(quire_parse_i64(cases[i].text, cases[i].min, cases[i].max, &value),
                         cases[i].status);
        assert_true(value == (cases[i].status == QUIRE_OK ? cases[i].value : -77));
    }
}

static const char *const not_numbers[] = { "",    " ",    " 5",   "5 ",  "-",  "+",
                                           "--5", "+-5",  "five", "5,5", "1e", "inf",
                                           "nan", "-inf", "0x10", "5x",  ".",  "1.2.3",
                                           "\t5", "5\n",  "k",    "KiB" };

static void what_is_no_number_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(not_numbers); i++) {
        int64_t integer = -77;
        double number = -77.0;
        uint64_t size = 77;

        print_message("'%s'\n", not_numbers[i]);
        assert_int_equal(quire_parse_i64(not_numbers[i], INT64_MIN, INT64_MAX, &integer),
                         QUIRE_INVAL);
        assert_int_equal(quire_parse_f64(not_numbers[i], -1e300, 1e300, &number), QUIRE_INVAL);
        assert_int_equal(quire_parse_size(not_numbers[i], &size), QUIRE_INVAL);
        assert_true(integer == -77 && number == -77.0 && size == 77);
    }
    assert_int_equal(quire_parse_i64(NULL, 0, 1, &(int64_t){ 0 }), QUIRE_INVAL);
    assert_int_equal(quire_parse_f64(NULL, 0, 1, &(double){ 0 }), QUIRE_INVAL);
    assert_int_equal(quire_parse_size(NULL, &(uint64_t){ 0 }), QUIRE_INVAL);
    assert_int_equal(quire_parse_i64("1.5", 0, 9, &(int64_t){ 0 }), QUIRE_INVAL);
    assert_int_equal(quire_parse_i64("1k", 0, 9999, &(int64_t){ 0 }), QUIRE_INVAL);
}

static void numbers(void **state)
{
    double value = -77.0;

    (void)state;
    assert_int_equal(quire_parse_f64("0.8", 0.0, 2.0, &value), QUIRE_OK);
    assert_true(value == 0.8);
    assert_int_equal(quire_parse_f64(".5", 0.0, 1.0, &value), QUIRE_OK);
    assert_true(value == 0.5);
    assert_int_equal(quire_parse_f64("-2.5e-3", -1.0, 1.0, &value), QUIRE_OK);
    assert_true(value == -2.5e-3);
    assert_int_equal(quire_parse_f64("1", 0.0, 1.0, &value), QUIRE_OK);
    assert_true(value == 1.0);
    assert_int_equal(quire_parse_f64("1.001", 0.0, 1.0, &value), QUIRE_RANGE);
    assert_int_equal(quire_parse_f64("-0.1", 0.0, 1.0, &value), QUIRE_RANGE);
    assert_int_equal(quire_parse_f64("1e999", 0.0, 1e308, &value), QUIRE_RANGE);
    assert_true(value == 1.0);
}

static void sizes(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {
        { "0", 0 },
        { "1", 1 },
        { "4096", 4096 },
        { "7B", 7 },
        { "4k", 4000 },
        { "4K", 4000 },
        { "2M", 2000000 },
        { "1.5G", 1500000000 },
        { "1.5GB", 1500000000 },
        { "2T", 2000000000000 },
        { "4KiB", 4096 },
        { "512MiB", 536870912 },
        { "16GiB", 17179869184 },
        { "0.5gib", 536870912 },
        { "1TiB", 1099511627776 },
        { "1e3", 1000 },
        { "0.4", 0 },
        { "0.5k", 500 },
        { "4503599627370497", 4503599627370497 },
    };
    uint64_t bytes = 77;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        print_message("%s\n", cases[i].text);
        assert_int_equal(quire_parse_size(cases[i].text, &bytes), QUIRE_OK);
        assert_true(bytes == cases[i].bytes);
    }
    bytes = 77;
    assert_int_equal(quire_parse_size("-1", &bytes), QUIRE_INVAL);
    assert_int_equal(quire_parse_size("1 GiB", &bytes), QUIRE_INVAL);
    assert_int_equal(quire_parse_size("1GiBB", &bytes), QUIRE_INVAL);
    assert_int_equal(quire_parse_size("1XB", &bytes), QUIRE_INVAL);
    assert_int_equal(quire_parse_size("8388608TiB", &bytes), QUIRE_RANGE); /* 2^63 */
    assert_int_equal(quire_parse_size("1e400", &bytes), QUIRE_RANGE);
    assert_int_equal(bytes, 77);
    assert_int_equal(quire_parse_size("8388607TiB", &bytes), QUIRE_OK);
    assert_true(bytes == UINT64_C(8388607) << 40);
}

static void durations(void **state)
{
    static const struct {
        const char *text;
        uint64_t us;
    } cases[] = {
        { "0", 0 },
        { "1", 1000000 },
        { "1.5s", 1500000 },
        { "250ms", 250000 },
        { "30m", 1800000000 },
        { "2h", 7200000000 },
        { "1d", 86400000000 },
        { "0.5H", 1800000000 },
    };
    static const char *const wrong[] = {
        "", "s", "-1s", "1 s", "1min", "1us", "0x1", "nan", "1M2"
    };
    uint64_t us = 77;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        print_message("%s\n", cases[i].text);
        assert_int_equal(quire_parse_duration(cases[i].text, &us), QUIRE_OK);
        assert_true(us == cases[i].us);
    }
    us = 77;
    for (size_t i = 0; i < COUNT(wrong); i++) {
        assert_int_equal(quire_parse_duration(wrong[i], &us), QUIRE_INVAL);
    }
    assert_int_equal(quire_parse_duration("1e13", &us), QUIRE_RANGE);
    assert_int_equal(quire_parse_duration(NULL, &us), QUIRE_INVAL);
    assert_int_equal(us, 77);
}

/* Every printed integer is read back; one below the lower limit is refused. */
static void random_integers_come_back(void **state)
{
    quire_rng rng = test_rng(1);

    (void)state;
    for (int i = 0; i < 20000; i++) {
        int64_t expected = (int64_t)(quire_rng_next(&rng) >> quire_rng_below(&rng, 64));
        int64_t value = 0;
        char text[32];

        expected = (quire_rng_next(&rng) & 1) != 0 ? -(expected / 2) : expected;
        (void)snprintf(text, sizeof(text), "%lld", (long long)expected);
        assert_int_equal(quire_parse_i64(text, INT64_MIN, INT64_MAX, &value), QUIRE_OK);
        assert_true(value == expected);
        assert_int_equal(quire_parse_i64(text, expected, expected, &value), QUIRE_OK);
        if (expected < INT64_MAX) {
            assert_int_equal(quire_parse_i64(text, expected + 1, INT64_MAX, &value), QUIRE_RANGE);
        }
    }
}

static void formatted_bytes(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        { 0, "0 B" },
        { 999, "999 B" },
        { 1000, "1.00 kB" },
        { 1234, "1.23 kB" },
        { 9994, "9.99 kB" },
        { 9996, "10.0 kB" },
        { 99949, "99.9 kB" },
        { 99951, "100 kB" },
        { 999499, "999 kB" },
        { 999500, "1.00 MB" },
        { 322591712, "323 MB" },
        { UINT64_C(17179869184), "17.2 GB" },
        { UINT64_MAX, "18.4 EB" },
    };
    char buffer[16];

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_ptr_equal(quire_format_bytes(cases[i].bytes, buffer, sizeof(buffer)), buffer);
        assert_string_equal(buffer, cases[i].text);
    }
    for (uint64_t bytes = UINT64_MAX; bytes > 0; bytes -= bytes / 7 + 1) {
        assert_true(strlen(quire_format_bytes(bytes, buffer, sizeof(buffer))) <= 7);
    }
}

static void formatted_reals(void **state)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        { 0, "0" },
        { 0.1, "0.1" },
        { 200, "200" },
        { 200.0001, "200.0001" },
        { 0.30000000000000004, "0.30000000000000004" },
        { -2.2250738585072014e-308, "-2.2250738585072014e-308" },
    };
    char buffer[32];
    uint64_t bits = 1;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_ptr_equal(quire_format_real(cases[i].value, buffer, sizeof(buffer)), buffer);
        assert_string_equal(buffer, cases[i].text);
    }
    for (int i = 0; i < 2000; i++) {
        double value, again = 0;

        bits = bits * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memcpy(&value, &bits, sizeof(value));
        if (isfinite(value) && fabs(value) > 1e-300) {
            (void)quire_format_real(value, buffer, sizeof(buffer));
            assert_int_equal(quire_parse_f64(buffer, -INFINITY, INFINITY, &again), QUIRE_OK);
            assert_memory_equal(&again, &value, sizeof(value));
        }
    }
}

static void nearest_names(void **state)
{
    static const char *const options[] = { "--temp", "--top-k", "--top-p", "--min-p",    "--seed",
                                           "--kv",   "--ctx",   "--json",  "--kv-budget" };
    static const struct {
        const char *word;
        const char *nearest;
    } cases[] = {
        { "--temp", "--temp" },  { "--tmep", "--temp" },   { "--topk", "--top-k" },
        { "--seeed", "--seed" }, { "--jsno", "--json" },   { "--kv-buget", "--kv-budget" },
        { "--contxt", "--ctx" }, { "--frobnicate", NULL },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *nearest = quire_nearest_name(cases[i].word, options, COUNT(options));

        print_message("%s\n", cases[i].word);
        if (cases[i].nearest == NULL) {
            assert_null(nearest);
        } else {
            assert_non_null(nearest);
            assert_string_equal(nearest, cases[i].nearest);
        }
    }
    assert_null(quire_nearest_name("--temp", NULL, 0));
    assert_string_equal(quire_nearest_within("--contxt", options, COUNT(options), 3), "--ctx");
    assert_null(quire_nearest_within("--contxt", options, COUNT(options), 2));
}

/* A very long word has the length that is compared, not a threshold that anything meets. */
static void nearest_names_of_long_words(void **state)
{
    static const char *const options[] = { "perplexity", "run" };
    char word[4096];

    (void)state;
    memset(word, 'z', sizeof(word) - 1);
    word[sizeof(word) - 1] = '\0';
    assert_null(quire_nearest_name(word, options, COUNT(options)));
    for (size_t length = 0; length < 200; length++) {
        word[length] = '\0';
        (void)quire_nearest_name(word, options, COUNT(options));
        word[length] = 'r';
    }
    assert_non_null(quire_nearest_name("perplexiti", options, COUNT(options)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers),        cmocka_unit_test(what_is_no_number_is_refused),
        cmocka_unit_test(numbers),         cmocka_unit_test(sizes),
        cmocka_unit_test(durations),       cmocka_unit_test(random_integers_come_back),
        cmocka_unit_test(formatted_bytes), cmocka_unit_test(formatted_reals),
        cmocka_unit_test(nearest_names),   cmocka_unit_test(nearest_names_of_long_words),
    };

    return cmocka_run_group_tests_name("parse", tests, NULL, NULL);
}
