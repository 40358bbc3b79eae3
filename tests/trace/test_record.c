/* test_record.c - recorded requests are read back without their texts, and a disk that fails
 * disturbs no request.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/online/record.h"

#include "base/clock.h"
#include "doze.h"
#include "trace/online/siphash.h"
#include "trace/read/read.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define TOKENS 200u

static char path[] = "/tmp/quire-record-XXXXXX";
static int32_t tokens[TOKENS];

static int begin(void **state)
{
    int file;

    (void)state;
    (void)snprintf(path, sizeof(path), "/tmp/quire-record-XXXXXX");
    file = mkstemp(path);
    if (file < 0) {
        return -1;
    }
    (void)close(file);
    for (uint32_t i = 0; i < TOKENS; i++) {
        tokens[i] = (int32_t)(1000 + i);
    }
    return 0;
}

static int end(void **state)
{
    (void)state;
    return unlink(path);
}

static quire_record *open_record(const quire_record_opts *opts)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_record *record;

    if (quire_record_open(&record, opts, &err) < 0) {
        fail_msg("%s", err.message);
    }
    return record;
}

static quire_recent_request request_of(uint32_t n_tokens, uint32_t tenant)
{
    return (quire_recent_request){ .time_us = quire_clock_ns() / 1000,
                                   .tokens = tokens,
                                   .n_input_tokens = n_tokens,
                                   .n_output_tokens = 9,
                                   .tenant = tenant,
                                   .session = 3 };
}

static void add(quire_record *record, uint32_t n_tokens, uint32_t tenant, uint64_t after_us)
{
    quire_recent_request request = request_of(n_tokens, tenant);

    request.time_us += after_us;
    request.class_index = tenant == 0;
    quire_record_add(record, &request);
}

/* Read the file into memory; ended by the caller with free(). */
static char *file_text(void)
{
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);

    assert_non_null(file);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, file) > 0);
    (void)fclose(file);
    return text;
}

static void record_some(bool is_plain)
{
    static const char *const classes[] = { "real\"time", "batch" };
    quire_record_opts opts = {
        .path = path, .model = "m", .is_plain = is_plain, .class_names = classes, .n_classes = 2
    };
    quire_record *record = open_record(&opts);

    add(record, 200, 0, 2000000);
    add(record, 130, 0, 0); /* comes before it */
    add(record, 130, 7, 3000000);
    tokens[140]++;
    add(record, 200, 0, 4000000);
    tokens[140]--;
    quire_record_close(record);
}

static void check_some(const quire_trace *trace, uint32_t first)
{
    const quire_trace_request *requests = trace->requests + first;
    const uint32_t *blocks[4];

    for (uint32_t i = 0; i < 4; i++) {
        blocks[i] = quire_trace_blocks(trace, &requests[i]);
        assert_int_equal(requests[i].n_output_tokens, 9);
    }
    assert_int_equal(requests[0].n_input_tokens, 130);
    assert_int_equal(requests[0].n_blocks, 3);
    assert_int_equal(requests[1].n_input_tokens, 200);
    assert_int_equal(requests[1].n_blocks, 4);
    assert_true(requests[1].time_us - requests[0].time_us >= 1000000);
    assert_true(requests[1].time_us - requests[0].time_us < 3000000);
    assert_int_equal(requests[0].class_index, 1);
    assert_int_equal(requests[2].class_index, 0);
    /* 130 tokens are two whole blocks and one of its own. */
    assert_int_equal(blocks[0][1], blocks[1][1]);
    assert_true(blocks[0][2] != blocks[1][2]);
    /* Another tenant shares nothing. */
    assert_true(blocks[2][0] != blocks[0][0]);
    /* A different token at 140 ends the shared part at 128, the block boundary before it. */
    assert_int_equal(blocks[3][1], blocks[1][1]);
    assert_true(blocks[3][2] != blocks[1][2] && blocks[3][3] != blocks[1][3]);
    assert_true(requests[0].tenant != requests[2].tenant);
    assert_int_equal(requests[0].session, requests[1].session);
}

static void round_trip(bool is_plain)
{
    quire_trace trace;
    quire_trace_report report;
    quire_error err = QUIRE_ERROR_INIT;
    char *text;

    record_some(is_plain);
    if (quire_trace_read(path, NULL, &trace, &report, &err) < 0) {
        fail_msg("%s", err.message);
    }
    assert_int_equal(report.format, QUIRE_TRACE_FORMAT_RECORDED);
    assert_int_equal(report.n_bad, 0);
    assert_int_equal(trace.n_requests, 4);
    assert_int_equal(trace.block_tokens, QUIRE_RECORD_BLOCK_TOKENS);
    assert_int_equal(trace.n_classes, 2);
    assert_string_equal(trace.class_names[0], "real\"time");
    assert_int_equal(trace.n_tenants, 2);
    check_some(&trace, 0);
    quire_trace_fini(&trace);
    text = file_text();
    /* Ids of tokens in a row. A hash may hold the digits of one. */
    assert_true((strstr(text, "1128,1129,1130") != NULL) == is_plain);
    free(text);
}

static void test_round_trip(void **state)
{
    struct stat info;

    (void)state;
    round_trip(false);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 077, 0);
}

static void test_round_trip_plain(void **state)
{
    (void)state;
    round_trip(true);
}

/* Behind a recording that was cut off comes another, with another key. */
static void test_append(void **state)
{
    quire_trace trace;
    quire_trace_report report;
    quire_error err = QUIRE_ERROR_INIT;
    FILE *file;

    (void)state;
    record_some(false);
    file = fopen(path, "ab");
    assert_non_null(file);
    assert_true(fputs("{\"t\":17", file) >= 0);
    (void)fclose(file);
    record_some(false);
    assert_int_equal(quire_trace_read(path, NULL, &trace, &report, &err), QUIRE_OK);
    assert_int_equal(report.n_bad, 1);
    assert_non_null(strstr(report.named[0], ":6: "));
    assert_int_equal(trace.n_requests, 8);
    assert_int_equal(trace.n_ids, 2 * 10); /* nothing is shared between keys */
    quire_trace_fini(&trace);
}

/* Two files are refused and stay unchanged: a file that another recording writes to, and a file
 * that is no recording. */
static void test_refused_files(void **state)
{
    const quire_record_opts opts = { .path = path, .model = "m" };
    quire_record *first, *second;
    quire_error err = QUIRE_ERROR_INIT;
    FILE *file;
    char *text;

    (void)state;
    assert_int_equal(quire_record_open(&first, &opts, &err), QUIRE_OK);
    assert_int_equal(quire_record_open(&second, &opts, &err), QUIRE_LIMIT);
    assert_non_null(strstr(err.message, "another recording writes to this file"));
    quire_record_close(first);
    assert_int_equal(quire_record_open(&first, &opts, &err), QUIRE_OK);
    quire_record_close(first);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fputs("a letter\n", file) >= 0);
    (void)fclose(file);
    assert_int_equal(quire_record_open(&first, &opts, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "the file is no recording"));
    text = file_text();
    assert_string_equal(text, "a letter\n");
    free(text);
}

static void test_keys_differ(void **state)
{
    char *a;
    char *b;

    (void)state;
    record_some(false);
    a = file_text();
    assert_int_equal(truncate(path, 0), 0);
    record_some(false);
    b = file_text();
    assert_string_not_equal(strstr(a, "\"blocks\""), strstr(b, "\"blocks\""));
    free(a);
    free(b);
}

static void on_failure(void *ctx, const char *message)
{
    assert_non_null(strstr(message, "/dev/full"));
    ++*(uint32_t *)ctx;
}

static void test_full_disk(void **state)
{
    uint32_t n_told = 0;
    quire_record_opts opts = { .path = "/dev/full", .failed = on_failure, .failed_ctx = &n_told };
    quire_error err = QUIRE_ERROR_INIT;
    quire_record *record;

    (void)state;
    if (access("/dev/full", W_OK) != 0) {
        (void)printf("SKIPPED: no /dev/full\n");
        skip();
    }
    /* The header is the first write: then nothing is begun. */
    assert_int_equal(quire_record_open(&record, &opts, &err), QUIRE_IO);
    assert_null(record);
    assert_non_null(strstr(err.message, "/dev/full"));
    opts.path = "/nonexistent/record";
    assert_int_equal(quire_record_open(&record, &opts, &err), QUIRE_IO);
    assert_int_equal(n_told, 0);
}

static void on_limit(void *ctx, const char *message)
{
    assert_non_null(strstr(message, path));
    ++*(uint32_t *)ctx;
}

/* Files may not become larger than this one is. */
static void test_write_fails(void **state)
{
    uint32_t n_told = 0;
    quire_record_opts opts = { .path = path, .failed = on_limit, .failed_ctx = &n_told };
    quire_record *record = open_record(&opts);
    quire_record_stats stats;
    struct rlimit before;
    struct rlimit small;
    struct stat info;

    (void)state;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){ (rlim_t)info.st_size, before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (uint32_t i = 0; i < 10; i++) {
        add(record, 130, 0, 0);
    }
    do {
        test_doze();
        quire_record_stats_get(record, &stats);
    } while (stats.dropped + stats.written < 10);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(stats.written, 0);
    assert_true(stats.has_failed);
    add(record, 130, 0, 0);
    quire_record_stats_get(record, &stats);
    assert_int_equal(stats.dropped, 11);
    quire_record_close(record);
    assert_int_equal(n_told, 1);
}

static void test_queue_is_bounded(void **state)
{
    quire_record_opts opts = { .path = path, .queue_bytes = 500 };
    quire_record *record = open_record(&opts);
    quire_record_stats stats;

    (void)state;
    add(record, 200, 0, 0); /* 800 bytes of tokens */
    quire_record_stats_get(record, &stats);
    assert_int_equal(stats.dropped, 1);
    assert_false(stats.has_failed);
    quire_record_close(record);
}

#define THREADS    4u
#define PER_THREAD 200u

static void *add_many(void *record)
{
    for (uint32_t i = 0; i < PER_THREAD; i++) {
        add(record, 1 + i % TOKENS, 0, 0);
    }
    return NULL;
}

static void test_threads(void **state)
{
    quire_record_opts opts = { .path = path };
    quire_record *record = open_record(&opts);
    quire_trace trace;
    quire_trace_report report;
    pthread_t threads[THREADS];

    (void)state;
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, record), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    quire_record_close(record);
    assert_int_equal(quire_trace_read(path, NULL, &trace, &report, NULL), QUIRE_OK);
    assert_int_equal(report.n_bad, 0);
    assert_int_equal(trace.n_requests, THREADS * PER_THREAD);
    assert_int_equal(trace.n_tenants, 1);
    quire_trace_fini(&trace);
}

/* Lines that a recorder does not write. */
static void test_bad_lines(void **state)
{
#define HEAD     "{\"quire_trace\":1,\"block_tokens\":64,\"form\":\"hashed\",\"classes\":[\"a\"]}\n"
#define LINE(of) "{\"t\":1,\"tenant\":0,\"class\":0,\"session\":0," of "}\n"
    static const struct {
        const char *line;
        const char *why;
    } lines[] = {
        { LINE("\"input\":0,\"output\":1"), "no t" },
        { LINE("\"input\":1"), "no t" },
        { "{\"t\":1,\"tenant\":0,\"class\":8,\"session\":0,\"input\":1,\"output\":1}\n", "class" },
        { LINE("\"input\":65,\"output\":1,\"blocks\":\"0000000000000000\""), "as many blocks" },
        { LINE("\"input\":1,\"output\":1,\"blocks\":\"000000000000000G\""), "hexadecimal" },
        { LINE("\"input\":2,\"output\":1,\"tokens\":[1]"), "as many tokens" },
        { LINE("\"input\":1,\"output\":1,\"tokens\":[-1]"), "ids" },
        { "{\"quire_trace\":1,\"block_tokens\":32}\n", "block_tokens" },
    };
    const char *good = LINE("\"input\":65,\"output\":1");

    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        FILE *file = fopen(path, "wb");
        quire_error err = QUIRE_ERROR_INIT;
        quire_trace trace;
        quire_trace_report report;

        assert_non_null(file);
        assert_true(fprintf(file, HEAD "%s%s%s", good, lines[i].line, good) > 0);
        assert_int_equal(fclose(file), 0);
        if (quire_trace_read(path, NULL, &trace, &report, &err) < 0) {
            fail_msg("%s", err.message);
        }
        assert_int_equal(trace.n_requests, 2);
        assert_int_equal(trace.n_ids, 4); /* lengths alone: nothing is shared */
        assert_int_equal(report.n_bad, 1);
        if (strstr(report.named[0], ":3: ") == NULL ||
            strstr(report.named[0], lines[i].why) == NULL) {
            fail_msg("'%s' does not say '%s'", report.named[0], lines[i].why);
        }
        quire_trace_fini(&trace);
    }
#undef LINE
#undef HEAD
}

/* The vectors that its authors publish: key 00 01 .. 0f, text 00 01 .. */
static void test_siphash(void **state)
{
    static const uint64_t key[2] = { 0x0706050403020100u, 0x0f0e0d0c0b0a0908u };
    unsigned char text[15];

    (void)state;
    for (unsigned i = 0; i < sizeof(text); i++) {
        text[i] = (unsigned char)i;
    }
    assert_true(quire_siphash(key, text, 0) == 0x726fdb47dd0e0e31u);
    assert_true(quire_siphash(key, text, 1) == 0x74f839c593dc67fdu);
    assert_true(quire_siphash(key, text, 8) == 0x93f5f5799a932462u);
    assert_true(quire_siphash(key, text, 15) == 0xa129ca6149be45e5u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, begin, end),
        cmocka_unit_test_setup_teardown(test_round_trip_plain, begin, end),
        cmocka_unit_test_setup_teardown(test_append, begin, end),
        cmocka_unit_test_setup_teardown(test_refused_files, begin, end),
        cmocka_unit_test_setup_teardown(test_keys_differ, begin, end),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test_setup_teardown(test_write_fails, begin, end),
        cmocka_unit_test_setup_teardown(test_queue_is_bounded, begin, end),
        cmocka_unit_test_setup_teardown(test_threads, begin, end),
        cmocka_unit_test_setup_teardown(test_bad_lines, begin, end),
        cmocka_unit_test(test_siphash),
    };

    return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
