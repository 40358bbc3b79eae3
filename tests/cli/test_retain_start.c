/* test_retain_start.c - quire serve --retain with less KV memory than a whole context takes: the
 * need of a longest text is the least budget, from --kv-budget and from the memory that is left.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"
#include "served.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_CTX    2048u
#define N_PROMPT 2000u
#define CTX      "2048"
#define EVEN     "keydiff:0.25,recent=32"
#define BY_LANE  "snap:0.25,recent=28"

/* A server's command line with a budget. */
#define SERVE(policy, chunk, budget)                                                               \
    "serve", "-m", program_model(), "-c", CTX, "--kv", "f16", "-t", "1", "--port", "0",            \
        "--log-level", "errors", "--retain", policy, "--retain-chunk", chunk, "--kv-budget",       \
        budget

static int64_t whole(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value)) {
        fail_msg("no integer '%s'", key);
    }
    return (int64_t)json_integer_value(value);
}

/* The row of f16 in a list of formats. */
static const json_t *row_of(const json_t *formats)
{
    return json_array_get(formats, 1);
}

static int64_t context_bytes(void)
{
    json_t *info = program_json(PROGRAM("info", "-m", program_model(), "--json"));
    const int64_t bytes = N_CTX * whole(row_of(json_object_get(info, "kv")), "bytes_per_token");

    json_decref(info);
    return bytes;
}

/* What quire info calls the most of a text of n_ctx tokens, one of its lengths. */
static int64_t need_of(const char *policy, const char *chunk, uint32_t n_ctx)
{
    json_t *info = program_json(PROGRAM("info", "-m", program_model(), "--retain", policy,
                                        "--retain-chunk", chunk, "--json"));
    const json_t *row = row_of(json_object_get(json_object_get(info, "retained"), "kv"));
    const json_t *context;
    int64_t bytes = 0;
    size_t i;

    assert_string_equal(json_string_value(json_object_get(row, "kv")), "f16");
    json_array_foreach(json_object_get(row, "contexts"), i, context)
    {
        bytes = whole(context, "tokens") == n_ctx ? whole(context, "most_bytes") : bytes;
    }
    assert_true(bytes > 0);
    json_decref(info);
    return bytes;
}

static const char *as_text(int64_t bytes, char text[32])
{
    (void)snprintf(text, 32, "%lld", (long long)bytes);
    return text;
}

static void refuse(const char *says, program_args args)
{
    program_result result = program_expect(1, args);

    assert_says(result.err, says);
    program_free(&result);
}

/* A request with a prompt of n tokens, and the other fields of its body. */
static json_t *complete(uint16_t port, uint32_t n, const char *fields)
{
    static char body[4608];
    size_t at = (size_t)snprintf(body, sizeof body, "{\"temperature\":0,%s,\"prompt\":[", fields);
    json_t *reply;

    for (uint32_t i = 0; i < n; i++) {
        at += (size_t)snprintf(body + at, sizeof body - at, "%s%u", i > 0 ? "," : "",
                               3 + i * i / 7 % 7);
    }
    assert_true(at + 2 < sizeof body);
    (void)snprintf(body + at, sizeof body - at, "]}");
    reply = json_loads(served_ask(port, "POST", "/v1/completions", body), 0, NULL);
    assert_non_null(reply);
    return reply;
}

static int64_t generated(const json_t *reply)
{
    return whole(json_object_get(reply, "usage"), "completion_tokens");
}

static const json_t *choice_of(const json_t *reply)
{
    return json_array_get(json_object_get(reply, "choices"), 0);
}

/* ---- the budget ---- */

/* The least budget is what quire info says, to the byte. */
static void the_need_is_the_least(void **state)
{
    const int64_t need = need_of(EVEN, "128", N_CTX);
    char budget[32], bytes[32], says[160];
    program_result result;

    (void)state;
    assert_true(need * 100 <= context_bytes() * 34);
    result =
        program_expect(0, PROGRAM(SERVE(EVEN, "128", as_text(need, budget)), "--check-config"));
    program_free(&result);
    (void)snprintf(says, sizeof says,
                   "a context of 2048 tokens needs %s bytes of KV (f16) with --retain keydiff:0.25 "
                   "every 128 tokens, the budget is %s: ",
                   as_text(need, bytes), as_text(need - 1, budget));
    refuse(says, PROGRAM(SERVE(EVEN, "128", budget), "--check-config"));
    refuse(says, PROGRAM(SERVE(EVEN, "128", budget)));
}

/* Without a policy, and where texts drop tokens only when the context is full, a budget is for all
 * tokens of a context. */
static void others_need_a_context(void **state)
{
    const int64_t need = need_of(EVEN, "128", N_CTX);
    char budget[32], bytes[32], says[80];

    (void)state;
    (void)snprintf(says, sizeof says, "a context of 2048 tokens needs %s bytes of KV",
                   as_text(context_bytes(), bytes));
    refuse(says, PROGRAM("serve", "-m", program_model(), "-c", CTX, "--kv", "f16", "--port", "0",
                         "--kv-budget", as_text(need, budget)));
    refuse(says, PROGRAM(SERVE(EVEN, "128", budget), "--context-overflow", "condense"));
}

/* ---- serving ---- */

/* A text as long as the context, twice; then those that keep all tokens. */
static void serve_within(const char *policy, const char *chunk)
{
    const int64_t need = need_of(policy, chunk, N_CTX);
    char budget[32];
    program_running running = program_start(PROGRAM(SERVE(policy, chunk, as_text(need, budget))));
    const uint16_t port = served_port(&running);
    json_t *first = complete(port, N_PROMPT, "\"ignore_eos\":true");
    json_t *again = complete(port, N_PROMPT, "\"ignore_eos\":true");
    json_t *other = complete(port, N_PROMPT, "\"retain\":\"none\"");

    assert_int_equal(generated(first), N_CTX - N_PROMPT);
    assert_true(json_equal(choice_of(first), choice_of(again)));
    assert_true(served_metric(port, "quire_kv_charged_peak_bytes{region=\"dynamic\"}") <=
                (double)need);
    assert_string_equal(json_string_value(json_object_get(json_object_get(other, "error"), "code")),
                        "context_length_exceeded");
    assert_says(json_string_value(json_object_get(json_object_get(other, "error"), "message")),
                budget);
    assert_says(json_string_value(json_object_get(json_object_get(other, "error"), "message")),
                ": it is for texts that keep a share of their tokens (retain)");
    json_decref(other);
    /* A short one begins, and ends where the memory does. */
    other = complete(port, 100, "\"retain\":\"none\",\"ignore_eos\":true");
    assert_true(generated(other) > 256 && generated(other) < N_CTX / 2);
    assert_string_equal(json_string_value(json_object_get(choice_of(other), "finish_reason")),
                        "length");
    json_decref(other);
    json_decref(again);
    json_decref(first);
    served_end(&running, SIGTERM);
}

static void a_context_in_a_third(void **state)
{
    (void)state;
    serve_within(EVEN, "128");
    serve_within(BY_LANE, "256");
}

/* ---- the memory that is left ---- */

#define GIB "1073741824"

/* What a server that has a GiB for all needs beside its KV. */
static int64_t beside_of(program_args args)
{
    json_t *document = program_json(args);
    const int64_t budget = whole(json_object_get(document, "effective"), "kv_budget_bytes");

    json_decref(document);
    return (1 << 30) - budget;
}

/* Without --kv-budget. The limit leaves the need, or a page less. It is checked before the weights
 * are loaded, too, for one request with few buffers: so the context is long and the batch small. */
static void the_rest_of_memory(void **state)
{
#define LEFT(limit)                                                                                \
    "serve", "-m", program_model(), "-c", "32768", "--kv", "f16", "-t", "1", "--port", "0",        \
        "--log-level", "errors", "--max-batch-size", "1", "--chunk-tokens", "64",                  \
        "--cache-memory-ratio", "1", "--memory-limit", limit
#define KEEPING "--retain", EVEN, "--retain-chunk", "2048"
    const int64_t need = need_of(EVEN, "2048", 32768);
    const int64_t beside = beside_of(PROGRAM(LEFT(GIB), KEEPING, "--check-config", "--json"));
    const int64_t beside_all = beside_of(PROGRAM(LEFT(GIB), "--check-config", "--json"));
    char limit[32];
    program_running running = program_start(PROGRAM(LEFT(as_text(beside + need, limit)), KEEPING));
    json_t *reply = complete(served_port(&running), N_PROMPT, "\"max_tokens\":4");

    (void)state;
    assert_true(generated(reply) > 0);
    served_end(&running, SIGTERM);
    refuse("32768 tokens of context take ", PROGRAM(LEFT(as_text(beside_all + need, limit))));
    refuse(" of KV with --retain, but weights and buffers leave ",
           PROGRAM(LEFT(as_text(beside + need - 4096, limit)), KEEPING));
    json_decref(reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_need_is_the_least),
        cmocka_unit_test(others_need_a_context),
        cmocka_unit_test(a_context_in_a_third),
        cmocka_unit_test(the_rest_of_memory),
    };

    return cmocka_run_group_tests(tests, program_no_cache, program_clean);
}
