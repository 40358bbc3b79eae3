/* test_read_mooncake.c - Mooncake's format as others write it: other sizes, ids, units, fields.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/read/read.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct reading {
    quire_trace trace;
    quire_trace_report report;
} reading;

/* Read lines; so many requests and bad lines are in them. */
static reading read_lines(const char *text, uint32_t n_requests, uint64_t n_bad)
{
    reading r;
    quire_error err = QUIRE_ERROR_INIT;
    FILE *file = tmpfile();

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    if (quire_trace_read_stream(file, NULL, &r.trace, &r.report, &err) < 0) {
        fail_msg("%s", err.message);
    }
    (void)fclose(file);
    assert_int_equal(r.report.format, QUIRE_TRACE_FORMAT_MOONCAKE);
    assert_int_equal(r.trace.n_requests, n_requests);
    assert_int_equal(r.report.n_bad, n_bad);
    return r;
}

/* How many blocks two requests begin with in common. */
static uint32_t common(const reading *r, uint32_t i, uint32_t k)
{
    const quire_trace_request *a = &r->trace.requests[i];
    const quire_trace_request *b = &r->trace.requests[k];
    uint32_t n = 0;

    while (n < a->n_blocks && n < b->n_blocks &&
           quire_trace_blocks(&r->trace, a)[n] == quire_trace_blocks(&r->trace, b)[n]) {
        n++;
    }
    return n;
}

/* When no usual block size fits, the reader takes the size that fits all lines. */
static void test_odd_block_size(void **state)
{
    reading r =
        read_lines("{\"timestamp\": 0, \"input_length\": 500, \"hash_ids\": [1, 2, 3, 4, 5]}\n"
                   "{\"timestamp\": 0, \"input_length\": 405, \"hash_ids\": [1, 2, 3, 4, 9]}\n",
                   2, 0);

    (void)state;
    assert_int_equal(r.trace.block_tokens, 100);
    assert_int_equal(r.report.n_fitted, 0);
    quire_trace_fini(&r.trace);
}

/* A line with a length that does not fit keeps its blocks, since a cache is asked for blocks. */
static void test_lengths_that_do_not_fit(void **state)
{
    static const uint32_t lengths[] = { 1000, 513, 1024, 1, 600, 1030 };
    reading r = read_lines("{\"timestamp\": 0, \"input_length\": 1000, \"hash_ids\": [1, 2]}\n"
                           "{\"timestamp\": 1, \"input_length\": 100, \"hash_ids\": [1, 2]}\n"
                           "{\"timestamp\": 2, \"input_length\": 9000, \"hash_ids\": [1, 2]}\n"
                           "{\"timestamp\": 3, \"input_length\": 9000, \"hash_ids\": []}\n"
                           "{\"timestamp\": 4, \"input_length\": 600, \"hash_ids\": [1, 2]}\n"
                           "{\"timestamp\": 5, \"input_length\": 1030, \"hash_ids\": [1, 2]}\n",
                           6, 0);

    (void)state;
    assert_int_equal(r.trace.block_tokens, 512);
    assert_int_equal(r.report.n_fitted, 3);
    assert_int_equal(r.report.fitted_first, 2);
    assert_int_equal(r.trace.n_blocks, 10);
    for (uint32_t i = 0; i < r.trace.n_requests; i++) {
        assert_int_equal(r.trace.requests[i].n_input_tokens, lengths[i]);
    }
    quire_trace_fini(&r.trace);
}

/* Ids of 64 bits and more, texts, and numbers below zero; the same with quotes and without. */
static void test_ids(void **state)
{
    reading r = read_lines(
        "{\"timestamp\": 0, \"hash_ids\": [18446744073709551615, 7, -9223372036854775808]}\n"
        "{\"timestamp\": 1, \"hash_ids\": [18446744073709551615, \"7\", -9223372036854775808]}\n"
        "{\"timestamp\": 2, \"hash_ids\": [18446744073709551614]}\n"
        "{\"timestamp\": 3, \"hash_ids\": [340282366920938463463374607431768211455]}\n"
        "{\"timestamp\": 4, \"hash_ids\": [340282366920938463463374607431768211454], \"user\": "
        "\"99999999999999999999 \\\" 99999999999999999999\"}\n"
        "{\"timestamp\": 5, \"hash_ids\": [\"a1\", \"b2\"]}\n"
        "{\"timestamp\": 6, \"hash_ids\": [\"a1\", \"b3\"]}\n"
        "{\"timestamp\": 7, \"hash_ids\": [1e999]}\n",
        7, 1);

    (void)state;
    assert_non_null(strstr(r.report.named[0], "trace:8: no JSON"));
    assert_int_equal(common(&r, 0, 1), 3);
    assert_int_equal(common(&r, 5, 6), 1);
    assert_int_equal(r.trace.n_ids, 9);
    quire_trace_fini(&r.trace);
}

/* A field that no line has is made up or left out. A line without a field that other lines have is
 * reported. */
static void test_without_fields(void **state)
{
    reading r = read_lines(
        "{\"hash_ids\": [1, 2], \"timestamp\": null}\n{\"hash_ids\": [1, 2, 3]}\n", 2, 0);

    (void)state;
    assert_true(r.report.has_no_times);
    assert_int_equal(r.trace.block_tokens, 512);
    assert_int_equal(r.trace.requests[0].n_blocks, 2);
    assert_int_equal(r.trace.requests[1].n_input_tokens, 3 * 512);
    assert_true(r.trace.requests[1].time_us > 0);
    quire_trace_fini(&r.trace);

    r = read_lines("{\"hash_ids\": [1]}\n{\"hash_ids\": [1], \"output_length\": 5}\n", 1, 1);
    assert_non_null(strstr(r.report.named[0], "trace:1: no output_length"));
    quire_trace_fini(&r.trace);
}

static void test_time_units(void **state)
{
    static const struct {
        const char *first;
        const char *second;
        uint64_t us; /* between them */
    } times[] = {
        { "0", "27482", 27482000 },
        { "1700000000", "1700000001.5", 1500000 },
        { "1700000000000", "1700000000001", 1000 },
        { "1700000000000000", "1700000000000001", 1 },
        { "1700000000000000000", "1700000000004096000", 4096 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        char text[256];
        reading r;

        (void)snprintf(text, sizeof(text),
                       "{\"timestamp\": %s, \"hash_ids\": [1]}\n"
                       "{\"timestamp\": %s, \"hash_ids\": [1]}\n",
                       times[i].first, times[i].second);
        r = read_lines(text, 2, 0);
        assert_int_equal(r.trace.requests[1].time_us, times[i].us);
        quire_trace_fini(&r.trace);
    }
}

static void test_byte_order_mark(void **state)
{
    reading r = read_lines("\xef\xbb\xbf{\"hash_ids\": [1]}\r\n{\"hash_ids\": [1]}\r\n", 2, 0);

    (void)state;
    assert_int_equal(common(&r, 0, 1), 1);
    quire_trace_fini(&r.trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_odd_block_size),
        cmocka_unit_test(test_lengths_that_do_not_fit),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_without_fields),
        cmocka_unit_test(test_time_units),
        cmocka_unit_test(test_byte_order_mark),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
