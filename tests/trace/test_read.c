/* test_read.c - every format, every kind of bad line, and files that are none.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/read/read.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct reading {
    int rc;
    quire_trace trace;
    quire_trace_report report;
    quire_error err;
} reading;

static reading read_bytes(const char *text, size_t n, const quire_trace_read_opts *opts)
{
    reading r = { .err = QUIRE_ERROR_INIT };
    FILE *file = tmpfile();

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, n, file), n);
    r.rc = quire_trace_read_stream(file, opts, &r.trace, &r.report, &r.err);
    (void)fclose(file);
    return r;
}

static reading read_text(const char *text)
{
    return read_bytes(text, strlen(text), NULL);
}

/* Check that the file was read as this format, with this many requests and bad lines. */
static void expect(const reading *r, quire_trace_format format, uint32_t n_requests, uint64_t n_bad)
{
    if (r->rc < 0) {
        fail_msg("%s", r->err.message);
    }
    assert_int_equal(r->report.format, format);
    assert_int_equal(r->trace.n_requests, n_requests);
    assert_int_equal(r->report.n_bad, n_bad);
    assert_int_equal(r->trace.n_bad_lines, n_bad);
    assert_null(r->trace.chains);
}

static void expect_named(const reading *r, uint32_t i, const char *begin, const char *part)
{
    assert_true(i < r->report.n_named);
    if (strncmp(r->report.named[i], begin, strlen(begin)) != 0 ||
        strstr(r->report.named[i], part) == NULL) {
        fail_msg("'%s' is not '%s ... %s'", r->report.named[i], begin, part);
    }
}

static const uint32_t *blocks(const reading *r, uint32_t i)
{
    return quire_trace_blocks(&r->trace, &r->trace.requests[i]);
}

/* How many blocks two requests begin with in common. */
static uint32_t common(const reading *r, uint32_t i, uint32_t k)
{
    uint32_t n = 0;

    while (n < r->trace.requests[i].n_blocks && n < r->trace.requests[k].n_blocks &&
           blocks(r, i)[n] == blocks(r, k)[n]) {
        n++;
    }
    return n;
}

/* ---- mooncake ---- */

static void test_mooncake(void **state)
{
    reading r = read_text(
        "{\"timestamp\": 2000, \"input_length\": 1030, \"output_length\": 5, \"hash_ids\": [7, 9, "
        "11]}\n"
        "{\"timestamp\": 1000.5, \"input_length\": 1024, \"output_length\": 0, \"hash_ids\": [7, "
        "9]}\r\n"
        "\n"
        "{\"timestamp\": 2000, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [8, 9]}");

    (void)state;
    expect(&r, QUIRE_TRACE_FORMAT_MOONCAKE, 3, 0);
    assert_int_equal(r.trace.block_tokens, 512);
    assert_true(r.trace.has_contents);
    assert_int_equal(r.trace.n_lines, 4);
    assert_int_equal(r.trace.n_blocks, 7);
    assert_int_equal(r.trace.requests[0].time_us, 0);
    assert_int_equal(r.trace.requests[0].n_input_tokens, 1024);
    assert_int_equal(r.trace.requests[1].time_us, 999500);
    assert_int_equal(r.trace.requests[1].n_output_tokens, 5);
    assert_int_equal(r.trace.requests[1].n_blocks, 3);
    assert_int_equal(common(&r, 0, 1), 2);
    /* Block 9 behind block 8 is another prefix than behind 7. */
    assert_int_equal(common(&r, 0, 2), 0);
    assert_true(blocks(&r, 2)[1] != blocks(&r, 0)[1]);
    assert_int_equal(r.trace.n_ids, 5);
    assert_int_equal(r.trace.n_classes, 1);
    assert_int_equal(r.trace.n_tenants, 1);
    quire_trace_fini(&r.trace);
}

static void test_mooncake_chats(void **state)
{
    reading r = read_text(
        "{\"chat_id\": 5, \"parent_chat_id\": -1, \"timestamp\": 1.5, \"input_length\": 33, "
        "\"output_length\": 5, \"turn\": 1, \"hash_ids\": [1, 2, 3]}\n"
        "{\"chat_id\": 6, \"parent_chat_id\": 5, \"timestamp\": 3.5, \"input_length\": 48, "
        "\"output_length\": 5, \"turn\": 2, \"hash_ids\": [1, 2, 4]}\n"
        "{\"chat_id\": 7, \"parent_chat_id\": -1, \"timestamp\": 4, \"input_length\": 16, "
        "\"output_length\": 5, \"turn\": 1, \"hash_ids\": [1]}\n");

    (void)state;
    expect(&r, QUIRE_TRACE_FORMAT_MOONCAKE, 3, 0);
    assert_int_equal(r.trace.block_tokens, 16);
    assert_int_equal(r.trace.requests[1].time_us, 2000000);
    assert_int_equal(r.trace.requests[0].session, 1);
    assert_int_equal(r.trace.requests[1].session, 1);
    assert_int_equal(r.trace.requests[2].session, 2);
    assert_int_equal(r.trace.n_sessions, 2);
    quire_trace_fini(&r.trace);
}

/* A first line that is as short as to fit any size says nothing. */
static void test_mooncake_block_size(void **state)
{
    reading r = read_text(
        "{\"timestamp\": 0, \"input_length\": 10, \"output_length\": 5, \"hash_ids\": [1]}\n"
        "{\"timestamp\": 0, \"input_length\": 64, \"output_length\": 5, \"hash_ids\": [1, 2, 3, "
        "4]}\n");

    (void)state;
    expect(&r, QUIRE_TRACE_FORMAT_MOONCAKE, 2, 0);
    assert_int_equal(r.trace.block_tokens, 16);
    quire_trace_fini(&r.trace);
}

#define GOOD "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1]}\n"

static void test_mooncake_bad(void **state)
{
    static const struct {
        const char *line;
        const char *why;
    } lines[] = {
        { "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1]",
          "no JSON" },
        { "[1, 2]", "no JSON object" },
        { "nonsense", "no JSON" },
        { "{\"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1]}", "timestamp" },
        { "{\"timestamp\": -1, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1]}",
          "timestamp" },
        { "{\"timestamp\": \"0\", \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1]}",
          "timestamp" },
        { "{\"timestamp\": 1e300, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1]}",
          "timestamp" },
        { "{\"timestamp\": 0, \"input_length\": 0, \"output_length\": 1, \"hash_ids\": []}",
          "input_length" },
        { "{\"timestamp\": 0, \"input_length\": 1.5, \"output_length\": 1, \"hash_ids\": [1]}",
          "input_length" },
        { "{\"timestamp\": 0, \"input_length\": 1e18, \"output_length\": 1, \"hash_ids\": [1]}",
          "input_length" },
        { "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": -1, \"hash_ids\": [1]}",
          "output_length" },
        { "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 1}", "hash_ids" },
        { "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1.5]}",
          "whole numbers" },
        { "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [null]}",
          "whole numbers" },
        { "{\"timestamp\": 0, \"timestamp\": 0, \"input_length\": 512, \"output_length\": 1, "
          "\"hash_ids\": [1]}",
          "no JSON" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        char text[1024];
        reading r;

        (void)snprintf(text, sizeof(text), GOOD "%s\n" GOOD, lines[i].line);
        r = read_text(text);
        expect(&r, QUIRE_TRACE_FORMAT_MOONCAKE, 2, 1);
        expect_named(&r, 0, "trace:2: ", lines[i].why);
        quire_trace_fini(&r.trace);
    }
}

/* ---- bad lines in general ---- */

static void test_cut_off(void **state)
{
    reading r = read_text(GOOD "{\"timestamp\": 0, \"input_le");

    (void)state;
    expect(&r, QUIRE_TRACE_FORMAT_MOONCAKE, 1, 1);
    expect_named(&r, 0, "trace:2: ", "without an end");
    quire_trace_fini(&r.trace);
}

static void test_bad_lines_are_counted(void **state)
{
    quire_trace_read_opts opts = QUIRE_TRACE_READ_OPTS_INIT;
    char text[4096] = GOOD;
    reading r;

    (void)state;
    for (size_t i = 0; i < 30; i++) {
        memcpy(text + strlen(GOOD) + 2 * i, "x\n", 3);
    }
    opts.name = "some.jsonl";
    opts.bad_lines_max = 30;
    r = read_bytes(text, strlen(text), &opts);
    expect(&r, QUIRE_TRACE_FORMAT_MOONCAKE, 1, 30);
    assert_int_equal(r.report.n_named, QUIRE_TRACE_NAMED_MAX);
    expect_named(&r, 9, "some.jsonl:11: ", "no JSON");
    quire_trace_fini(&r.trace);

    opts.bad_lines_max = 29;
    r = read_bytes(text, strlen(text), &opts);
    assert_int_equal(r.rc, QUIRE_CORRUPT);
    assert_non_null(strstr(r.err.message, "more than 29 bad lines"));
    assert_non_null(strstr(r.err.message, "some.jsonl:2:"));
    assert_null(r.trace.requests);
}

static void test_long_line(void **state)
{
    quire_trace_read_opts opts = QUIRE_TRACE_READ_OPTS_INIT;
    char text[2048];
    reading r;

    (void)state;
    opts.line_bytes_max = 100;
    (void)snprintf(text, sizeof(text), GOOD "%01000d\n" GOOD, 0);
    r = read_bytes(text, strlen(text), &opts);
    expect(&r, QUIRE_TRACE_FORMAT_MOONCAKE, 2, 1);
    expect_named(&r, 0, "trace:2: ", "more than 100 bytes");
    quire_trace_fini(&r.trace);
}

static void test_no_trace(void **state)
{
    static const char *const texts[] = { "",     "\n\n",           "hello\nworld\n",
                                         "{}\n", "a,b,c\n1,2,3\n", "{\"hash_ids\": 5}\n" };
    reading r;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        r = read_text(texts[i]);
        assert_int_equal(r.rc, QUIRE_UNSUPP);
        assert_non_null(strstr(r.err.message, "no trace that is known"));
    }
    r = read_text("TIMESTAMP,ContextTokens,GeneratedTokens\n");
    assert_int_equal(r.rc, QUIRE_CORRUPT);
    assert_non_null(strstr(r.err.message, "no request"));
    r.rc = quire_trace_read("/nonexistent/trace", NULL, &r.trace, &r.report, &r.err);
    assert_int_equal(r.rc, QUIRE_IO);
    quire_trace_fini(&r.trace);
}

static void test_options(void **state)
{
    quire_trace_read_opts opts = QUIRE_TRACE_READ_OPTS_INIT;
    reading r;

    (void)state;
    opts.requests_max = 2;
    r = read_bytes(GOOD GOOD GOOD, 3 * strlen(GOOD), &opts);
    expect(&r, QUIRE_TRACE_FORMAT_MOONCAKE, 2, 0);
    quire_trace_fini(&r.trace);
    opts.arrivals_per_s = 0.0;
    r = read_bytes(GOOD, strlen(GOOD), &opts);
    assert_int_equal(r.rc, QUIRE_INVAL);
    opts = (quire_trace_read_opts)QUIRE_TRACE_READ_OPTS_INIT;
    opts.format = QUIRE_TRACE_FORMAT_AZURE;
    r = read_bytes(GOOD, strlen(GOOD), &opts);
    assert_int_equal(r.rc, QUIRE_CORRUPT);
}

/* Lines and conversations may have more requests than are wanted. */
static void test_requests_max(void **state)
{
    static const char *const texts[] = {
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", "
        "\"value\": "
        "\"b\"}, {\"from\": \"gpt\", \"value\": \"c\"}, {\"from\": \"gpt\", \"value\": \"d\"}]}\n",
        "{\"timestamp\": 1, \"requests\": [{\"Output Length\": 1, \"prompt\": \"a\"}, {\"Output "
        "Length\": 2, \"prompt\": \"b\"}, {\"Output Length\": 3, \"prompt\": \"c\"}]}\n",
    };
    quire_trace_read_opts opts = QUIRE_TRACE_READ_OPTS_INIT;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        for (uint32_t n = 1; n <= 4; n++) {
            reading r;

            opts.requests_max = n;
            r = read_bytes(texts[i], strlen(texts[i]), &opts);
            expect(&r, i == 0 ? QUIRE_TRACE_FORMAT_SHAREGPT : QUIRE_TRACE_FORMAT_AIBRIX,
                   n < 3 ? n : 3, 0);
            quire_trace_fini(&r.trace);
        }
    }
}

/* ---- CSV ---- */

static void test_csv(void **state)
{
    reading r = read_text("TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                          "2023-11-16 18:15:46.6805900,374,44\r\n"
                          "2023-11-16 18:15:50.9951690,396,109\r\n"
                          "2023-11-17 00:00:00,128,0\n");

    (void)state;
    expect(&r, QUIRE_TRACE_FORMAT_AZURE, 3, 0);
    assert_false(r.trace.has_contents);
    assert_int_equal(r.trace.block_tokens, 64);
    assert_int_equal(r.trace.requests[1].time_us, 4314579);
    assert_int_equal(r.trace.requests[2].time_us, 20653319410);
    assert_int_equal(r.trace.requests[0].n_blocks, 6);
    assert_int_equal(r.trace.requests[2].n_blocks, 2);
    assert_int_equal(r.trace.n_ids, 6 + 7 + 2);
    quire_trace_fini(&r.trace);

    r = read_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,374,44\n4.5,1,1\n");
    expect(&r, QUIRE_TRACE_FORMAT_AZURE, 2, 0);
    assert_int_equal(r.trace.requests[1].time_us, 4250000);
    quire_trace_fini(&r.trace);

    r = read_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
                  "5,ChatGPT,472,18,490,Conversation log\n");
    expect(&r, QUIRE_TRACE_FORMAT_AZURE, 1, 0);
    assert_int_equal(r.trace.requests[0].n_input_tokens, 472);
    assert_int_equal(r.trace.requests[0].n_output_tokens, 18);
    quire_trace_fini(&r.trace);

    r = read_text("\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\n"
                  "\"2024-02-29 23:59:59.5+00:00\",\"4808\",\"10\"\n"
                  "2024-03-01 00:00:00.5+00:00,4808,10\n");
    expect(&r, QUIRE_TRACE_FORMAT_AZURE, 2, 0);
    assert_int_equal(r.trace.requests[1].time_us, 1000000);
    quire_trace_fini(&r.trace);
}

static void test_csv_bad(void **state)
{
    static const struct {
        const char *line;
        const char *why;
    } lines[] = {
        { "x,1,1", "time" },
        { "-1,1,1", "time" },
        { "inf,1,1", "time" },
        { "2023-13-16 18:15:46,1,1", "time" },
        { "2023-11-16 18:15,1,1", "time" },
        { ",1,1", "time" },
        { "1,0,1", "prompt" },
        { "1,1.5,1", "prompt" },
        { "1,,1", "prompt" },
        { "1,99999999999,1", "prompt" },
        { "1,1", "answer" },
        { "1,1,-1", "answer" },
        { "1,1,x", "answer" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        char text[256];
        reading r;

        (void)snprintf(text, sizeof(text),
                       "arrived_at,num_prefill_tokens,num_decode_tokens\n%s\n1,1,1\n",
                       lines[i].line);
        r = read_text(text);
        expect(&r, QUIRE_TRACE_FORMAT_AZURE, 1, 1);
        expect_named(&r, 0, "trace:2: ", lines[i].why);
        quire_trace_fini(&r.trace);
    }
}

static void test_csv_zero_byte(void **state)
{
    static const char text[] = "arrived_at,num_prefill_tokens,num_decode_tokens\n1,1\0,1\n1,1,1\n";
    reading r = read_bytes(text, sizeof(text) - 1, NULL);

    (void)state;
    expect(&r, QUIRE_TRACE_FORMAT_AZURE, 1, 1);
    expect_named(&r, 0, "trace:2: ", "byte 0");
    quire_trace_fini(&r.trace);
}

/* ---- texts ---- */

static void test_aibrix(void **state)
{
    quire_trace_read_opts opts = QUIRE_TRACE_READ_OPTS_INIT;
    /* 8 bytes a token, from the file's own lengths: 80 + 160 bytes, 30 tokens. */
    const char *text =
        "{\"timestamp\": 6011, \"requests\": [{\"Prompt Length\": 10, \"Output Length\": 8, "
        "\"prompt\": "
        "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbb\"}]}\n"
        "{\"timestamp\": 7011, \"requests\": [{\"Prompt Length\": 20, \"Output Length\": 9, "
        "\"session_id\": \"s\", \"prompt\": "
        "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaacccccccccccccccc"
        "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd\"}]}\n"
        "{\"timestamp\": 7011, \"requests\": [{\"Prompt Length\": 20, \"Output Length\": 9}]}\n"
        "{\"timestamp\": 7011, \"requests\": [{\"prompt\": \"a\"}]}\n"
        "{\"timestamp\": 7011, \"requests\": 3}\n"
        "{\"requests\": []}\n";
    reading r;

    (void)state;
    opts.block_tokens = 4;
    r = read_bytes(text, strlen(text), &opts);
    expect(&r, QUIRE_TRACE_FORMAT_AIBRIX, 2, 4);
    assert_int_equal(r.trace.requests[0].n_input_tokens, 10);
    assert_int_equal(r.trace.requests[0].n_blocks, 3); /* 32, 32 and 16 bytes */
    assert_int_equal(r.trace.requests[1].n_blocks, 5);
    assert_int_equal(common(&r, 0, 1), 2);
    assert_int_equal(r.trace.requests[1].time_us, 1000000);
    assert_int_equal(r.trace.requests[0].session, 0);
    assert_int_equal(r.trace.requests[1].session, 1);
    expect_named(&r, 0, "trace:3: ", "prompt");
    expect_named(&r, 1, "trace:4: ", "Output Length");
    expect_named(&r, 2, "trace:5: ", "requests");
    expect_named(&r, 3, "trace:6: ", "timestamp");
    quire_trace_fini(&r.trace);
}

#define TALK                                                                                       \
    "{\"id\": \"q\", \"conversations\": ["                                                         \
    "{\"from\": \"system\", \"value\": \"0123456789abcdef\"}, "                                    \
    "{\"from\": \"human\", \"value\": \"0123456789abcdef\"}, "                                     \
    "{\"from\": \"gpt\", \"value\": \"0123456789abcde\"}, "                                        \
    "{\"from\": \"human\", \"value\": \"0123456789abcdef\"}, "                                     \
    "{\"from\": \"gpt\", \"value\": \"0123\"}]}"

static void test_sharegpt(void **state)
{
    quire_trace_read_opts opts = QUIRE_TRACE_READ_OPTS_INIT;
    static const char *const forms[] = { "[" TALK ",\n" TALK "]\n", " [\n" TALK "\n,\n" TALK "\n]",
                                         TALK "\n" TALK "\n" };

    (void)state;
    opts.block_tokens = 2; /* 8 bytes */
    opts.think_s = 0.0;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        reading r = read_bytes(forms[i], strlen(forms[i]), &opts);

        expect(&r, QUIRE_TRACE_FORMAT_SHAREGPT, 4, 0);
        assert_int_equal(r.trace.n_sessions, 2);
        /* The second turn goes on where the first ended, with its answer. */
        for (uint32_t k = 0; k < 4; k++) {
            bool is_first = r.trace.requests[k].n_blocks == 4;

            assert_int_equal(r.trace.requests[k].n_blocks, is_first ? 4 : 8);
            assert_int_equal(r.trace.requests[k].n_input_tokens, is_first ? 8 : 16);
            assert_int_equal(r.trace.requests[k].n_output_tokens, is_first ? 4 : 1);
            assert_int_equal(common(&r, 0, k), 4);
        }
        quire_trace_fini(&r.trace);
    }
}

static void test_sharegpt_times(void **state)
{
    quire_trace_read_opts opts = QUIRE_TRACE_READ_OPTS_INIT;
    const char *text = "[" TALK "," TALK "," TALK "]";
    reading a = read_bytes(text, strlen(text), &opts);
    reading b = read_bytes(text, strlen(text), &opts);
    reading c;

    (void)state;
    opts.seed = 2;
    c = read_bytes(text, strlen(text), &opts);
    expect(&a, QUIRE_TRACE_FORMAT_SHAREGPT, 6, 0);
    expect(&b, QUIRE_TRACE_FORMAT_SHAREGPT, 6, 0);
    expect(&c, QUIRE_TRACE_FORMAT_SHAREGPT, 6, 0);
    assert_memory_equal(a.trace.requests, b.trace.requests, 6 * sizeof(*a.trace.requests));
    assert_memory_not_equal(a.trace.requests, c.trace.requests, 6 * sizeof(*a.trace.requests));
    for (uint32_t i = 1; i < 6; i++) {
        assert_true(a.trace.requests[i].time_us >= a.trace.requests[i - 1].time_us);
    }
    quire_trace_fini(&a.trace);
    quire_trace_fini(&b.trace);
    quire_trace_fini(&c.trace);
}

static void test_sharegpt_prompts(void **state)
{
    reading r = read_text("[{\"input\": \"hello\", \"output_length\": 7},\n"
                          "{\"input\": \"\", \"output_length\": 7},\n"
                          "{\"input\": \"hello\"},\n"
                          "{\"conversations\": []},\n"
                          "{\"conversations\": [{\"from\": \"human\", \"value\": 1}]},\n"
                          "[],\n"
                          "{\"input\": \"hello\", \"output_length\": 7},\n"
                          "{\"input\": \"hel");

    (void)state;
    expect(&r, QUIRE_TRACE_FORMAT_SHAREGPT, 2, 6);
    assert_int_equal(common(&r, 0, 1), 1);
    expect_named(&r, 0, "trace:2: ", "input");
    expect_named(&r, 1, "trace:3: ", "output_length");
    expect_named(&r, 2, "trace:4: ", "without an answer");
    expect_named(&r, 3, "trace:5: ", "has no text");
    expect_named(&r, 4, "trace:6: ", "no object");
    expect_named(&r, 5, "trace:8: ", "without an end");
    quire_trace_fini(&r.trace);

    r = read_text("[{\"input\": \"hello\", \"output_length\": 7}");
    expect(&r, QUIRE_TRACE_FORMAT_SHAREGPT, 1, 1);
    expect_named(&r, 0, "trace:1: ", "no end");
    quire_trace_fini(&r.trace);
}

static void test_element_too_long(void **state)
{
    quire_trace_read_opts opts = QUIRE_TRACE_READ_OPTS_INIT;
    char text[1024];
    reading r;

    (void)state;
    opts.line_bytes_max = 100;
    (void)snprintf(text, sizeof(text),
                   "[{\"input\": \"a\", \"output_length\": 7},\n{\"input\": \"%0500d\"}]", 0);
    r = read_bytes(text, strlen(text), &opts);
    expect(&r, QUIRE_TRACE_FORMAT_SHAREGPT, 1, 1);
    expect_named(&r, 0, "trace:2: ", "more than 100 bytes");
    quire_trace_fini(&r.trace);
}

/* ---- as published ---- */

static void test_published_files(void **state)
{
    static const struct {
        const char *path;
        quire_trace_format format;
        uint32_t n_requests;
        bool has_contents;
    } files[] = {
        { "mooncake.jsonl", QUIRE_TRACE_FORMAT_MOONCAKE, 300, true },
        { "azure.csv", QUIRE_TRACE_FORMAT_AZURE, 399, false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        reading r = { .err = QUIRE_ERROR_INIT };
        char path[4096];

        (void)snprintf(path, sizeof(path), QUIRE_SOURCE_DIR "/tests/data/%s", files[i].path);
        r.rc = quire_trace_read(path, NULL, &r.trace, &r.report, &r.err);
        expect(&r, files[i].format, files[i].n_requests, 0);
        assert_int_equal(r.trace.has_contents, files[i].has_contents);
        quire_trace_fini(&r.trace);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mooncake),
        cmocka_unit_test(test_mooncake_chats),
        cmocka_unit_test(test_mooncake_block_size),
        cmocka_unit_test(test_mooncake_bad),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_bad_lines_are_counted),
        cmocka_unit_test(test_long_line),
        cmocka_unit_test(test_no_trace),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_csv),
        cmocka_unit_test(test_csv_bad),
        cmocka_unit_test(test_csv_zero_byte),
        cmocka_unit_test(test_aibrix),
        cmocka_unit_test(test_sharegpt),
        cmocka_unit_test(test_requests_max),
        cmocka_unit_test(test_sharegpt_times),
        cmocka_unit_test(test_sharegpt_prompts),
        cmocka_unit_test(test_element_too_long),
        cmocka_unit_test(test_published_files),
    };

    return cmocka_run_group_tests_name("read", tests, NULL, NULL);
}
