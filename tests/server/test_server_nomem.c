/* test_server_nomem.c - the server when memory is short: every allocation of a request fails once;
 * the client gets an answer, an error or a closed connection, and the server goes on.
 *
 * The linker redirects the allocating functions here (--wrap), and jansson's are set. Only threads
 * that are not the test's are counted: those of connections.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "doze.h"
#include "server_fixture.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local bool is_test; /* the test's own thread: its calls never fail */
static atomic_uint n_calls;
static atomic_uint fail_at; /* the call that fails, from 1; 0 = none */

static bool fails(void)
{
    const unsigned at = atomic_load(&fail_at);

    return !is_test && at > 0 && atomic_fetch_add(&n_calls, 1) + 1 == at;
}

#define WRAP(name, params, args)                                                                   \
    void *__real_##name params;                                                                    \
    void *__wrap_##name params;                                                                    \
    void *__wrap_##name params                                                                     \
    {                                                                                              \
        return fails() ? NULL : __real_##name args;                                                \
    }

WRAP(malloc, (size_t n), (n))
WRAP(calloc, (size_t count, size_t n), (count, n))
WRAP(realloc, (void *old, size_t n), (old, n))

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

static void *json_allocate(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

static server_fixture f;

static int start(void **state)
{
    (void)state;
    is_test = true;
    json_set_alloc_funcs(json_allocate, free);
    server_fixture_start(&f, NULL);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    server_fixture_stop(&f);
    return 0;
}

static unsigned n_pins_told;

static bool is_fine(int status)
{
    return status == 200 || status == 201;
}

/* Fail call after call until a request has none left to fail. Returns how many there were. */
static unsigned fail_each(const http_call *call)
{
    unsigned n_refused = 0;

    for (unsigned at = 1;; at++) {
        http_reply reply;

        atomic_store(&n_calls, 0);
        atomic_store(&fail_at, at);
        reply = http_do(f.port, call);
        while (!quire_server_is_idle(f.server)) { /* its memory is released */
            test_doze();
        }
        atomic_store(&fail_at, 0);
        /* A parser without memory sees an invalid token: jansson does not say which it was. */
        if (!is_fine(reply.status) && reply.status != 503 && reply.status != 0 &&
            strstr(reply.body, "invalid_json") == NULL) {
            fail_msg("%s, allocation %u: status %d, %s", call->path, at, reply.status, reply.body);
        }
        n_refused += !is_fine(reply.status);
        n_pins_told += reply.status == 201;
        http_reply_free(&reply);
        if (atomic_load(&n_calls) < at) {
            break;
        }
    }
    return n_refused;
}

#define A_CHAT                                                                                     \
    "\"messages\":[{\"role\":\"system\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\"y\"}]"

static void a_request_survives(void **state)
{
    static const http_call calls[] = {
        { .path = "/v1/chat/completions",
          .body = "{" A_CHAT ",\"stop\":[\"a\",\"b\"],\"logit_bias\":{\"5\":1},\"logprobs\":true,"
                  "\"top_logprobs\":2,\"explain_cache\":true,\"n\":2,"
                  "\"response_format\":{\"type\":\"json_object\"}}" },
        { .path = "/v1/chat/completions",
          .body = "{" A_CHAT ",\"stream\":true,\"session_id\":\"s\",\"logprobs\":true,"
                  "\"context_overflow\":\"truncate_turns\","
                  "\"stream_options\":{\"include_usage\":true}}" },
        { .path = "/v1/completions", .body = "{\"prompt\":[\"a\",\"b\"],\"logprobs\":2}" },
        { .path = "/v1/completions",
          .body = "{\"prompt\":[\"a\",\"b\"],\"logprobs\":2,\"echo\":true,\"prompt_logprobs\":1}" },
        { .path = "/v1/completions", .body = "{\"prompt\":[5,6,7],\"stream\":true}" },
        { .path = "/v1/completions", .body = "{\"prompt\":\"a\",\"session_id\":\"t\"}" },
        { .path = "/tokenize", .body = "{\"content\":\"abc\",\"with_pieces\":true}" },
        { .path = "/detokenize", .body = "{\"tokens\":[5,6,7]}" },
        { .path = "/v1/models" },
        { .path = "/props" },
        { .path = "/health" },
        { .path = "/v1/cache/stats" },
        { .path = "/v1/cache/explain" },
        { .path = "/v1/cache/pins", .body = "{\"tokens\":[5,6,7],\"ttl\":\"1h\"}" },
        { .path = "/v1/cache/pins", .body = "{" A_CHAT "}" },
        { .path = "/v1/cache/pins" },
        { .path = "/v1/cache/events" },
        { .path = "/v1/cache/what-if" },
        { .path = "/v1/cache/tuning" },
        { .path = "/v1/cache/tuning", .body = "{\"apply\":true}" },
        { .path = "/metrics" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        http_reply reply;

        assert_true(fail_each(&calls[i]) > 0);
        /* No pin stays behind that nobody was told of. */
        assert_true(engine_double_memory(f.engine)->n_pins <= n_pins_told);
        reply = http_do(f.port, &calls[i]);
        assert_true(is_fine(reply.status));
        n_pins_told += reply.status == 201;
        assert_true(reply.is_whole);
        http_reply_free(&reply);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_request_survives, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
