/* test_server_random.c - requests with bytes changed at random: for any body the answer is valid
 * HTTP and JSON, and the server goes on.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "seed.h"
#include "server_fixture.h"

#include "base/bytes.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define N_ROUNDS 4000

static server_fixture f;

static const struct {
    const char *path;
    const char *body;
} seeds[] = {
    { "/v1/chat/completions",
      "{\"messages\":[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[{"
      "\"type\":\"text\",\"text\":\"\\u00e9\"}]}],\"stop\":[\"x\"],\"logit_bias\":{\"5\":-1.5},"
      "\"temperature\":0.5,\"max_tokens\":3,\"seed\":-7,\"logprobs\":true,\"top_logprobs\":2,"
      "\"n\":2,\"cache_salt\":\"s\",\"priority\":1,\"explain_cache\":true}" },
    { "/v1/chat/completions",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"b\"}],\"stream\":true,\"stream_options\":{"
      "\"include_usage\":true},\"session_id\":\"c\",\"context_overflow\":\"truncate_turns\"}" },
    { "/v1/chat/completions",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"b\"}],\"response_format\":{\"type\":"
      "\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"object\",\"properties\":{\"a\":{"
      "\"type\":\"array\",\"items\":{\"enum\":[1,\"b\"]},\"maxItems\":2}}}}}}" },
    { "/v1/completions", "{\"prompt\":[[5,6],[7]],\"n\":2,\"logprobs\":1,\"best_of\":2}" },
    { "/v1/completions", "{\"prompt\":[[5,6],[7]],\"n\":2,\"logprobs\":1,\"echo\":true,"
                         "\"prompt_logprobs\":2,\"max_tokens\":0}" },
    { "/v1/completions", "{\"prompt\":\"abc\",\"session_id\":\"t\",\"grammar\":\"root ::= [a]\"}" },
    { "/tokenize", "{\"content\":\"abc\",\"add_special\":true,\"with_pieces\":true}" },
    { "/detokenize", "{\"tokens\":[5,6,300]}" },
    { "/v1/cache/invalidate", "{\"prefix\":[{\"role\":\"user\",\"content\":\"b\"}]}" },
    { "/v1/cache/invalidate", "{\"tenant\":\"\",\"cache_salt\":\"s\"}" },
};

static int start(void **state)
{
    (void)state;
    server_fixture_start(&f, NULL);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    server_fixture_stop(&f);
    return 0;
}

/* Change, drop or repeat some bytes. */
static void mutate(quire_bytes *out, const char *text, quire_rng *rng)
{
    static const char alphabet[] = "{}[]\",:0123456789-.eE\\utrfalsn \x01\x7f\x80\xc3\xff";
    const size_t n = strlen(text);
    const uint32_t one_in = 4 + quire_rng_below(rng, 120);

    quire_bytes_clear(out);
    for (size_t i = 0; i < n; i++) {
        const bool changes = quire_rng_below(rng, one_in) == 0;
        const uint32_t how = changes ? quire_rng_below(rng, 4) : 3;

        if (how == 0) {
            (void)quire_bytes_add(out, alphabet + quire_rng_below(rng, sizeof alphabet - 1), 1);
        } else if (how == 1) {
            (void)quire_bytes_add(out, text + i, n - i < 8 ? n - i : 8);
        }
        if (how != 2) {
            (void)quire_bytes_add(out, text + i, 1);
        }
    }
    (void)quire_bytes_add(out, "", 0);
    assert_int_equal(out->status, QUIRE_OK);
}

static bool is_status(int status)
{
    static const int known[] = { 200, 400, 404, 409, 413, 429, 501, 503 };

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i] == status) {
            return true;
        }
    }
    return false;
}

static void check_event(void *ctx, const char *data)
{
    json_error_t error;
    json_t *root =
        strcmp(data, "[DONE]") == 0 ? json_null() : json_loads(data, JSON_ALLOW_NUL, &error);

    (void)ctx;
    if (root == NULL) {
        fail_msg("%s: %s", error.text, data);
    }
    json_decref(root);
}

static void random_bodies_get_answers(void **state)
{
    quire_rng rng = test_rng(20261120);
    quire_bytes body = { 0 };
    unsigned n_good = 0;
    int fd = http_connect(f.port);

    (void)state;
    for (int round = 0; round < N_ROUNDS; round++) {
        const uint32_t i = quire_rng_below(&rng, sizeof seeds / sizeof seeds[0]);
        http_reply reply;

        mutate(&body, seeds[i].body, &rng);
        http_send_call(fd, &(http_call){ .path = seeds[i].path, .body = body.data });
        reply = http_receive(fd);
        if (!is_status(reply.status) || !reply.is_whole) {
            fail_msg("%s %s: status %d", seeds[i].path, body.data, reply.status);
        }
        if (strncmp(reply.body, "data: ", 6) == 0) {
            (void)http_events(&reply, check_event, NULL);
        } else {
            check_event(NULL, reply.body);
        }
        n_good += reply.status == 200;
        http_reply_free(&reply);
    }
    (void)close(fd);
    assert_true(n_good > 0 && n_good < N_ROUNDS);
    quire_bytes_fini(&body);
}

/* The head of a request, too: there MHD answers, or closes. */
static void random_heads_do_no_harm(void **state)
{
    static const char head[] = "POST /v1/chat/completions?a=b%20c HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                               "Content-Length: 2\r\nAuthorization: Bearer x\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n{}";
    quire_rng rng = test_rng(20261121);
    quire_bytes text = { 0 };
    http_reply reply;

    (void)state;
    for (int round = 0; round < N_ROUNDS / 8; round++) {
        const int fd = http_connect(f.port);
        char block[512];

        mutate(&text, head, &rng);
        http_send(fd, text.data, text.n);
        (void)shutdown(fd, SHUT_WR);
        while (recv(fd, block, sizeof block, 0) > 0) {
        }
        (void)close(fd);
    }
    quire_bytes_fini(&text);
    reply = http_get(f.port, "/health");
    assert_int_equal(reply.status, 200);
    http_reply_free(&reply);
}

/* Deeper than the parser goes, and than a thread's stack would. */
static void nesting_is_bounded(void **state)
{
    quire_bytes body = { 0 };
    json_t *reply;

    (void)state;
    for (int i = 0; i < 1000000; i++) {
        (void)quire_bytes_add(&body, i == 0 ? "{\"a\":" : "[", i == 0 ? 5 : 1);
    }
    assert_int_equal(body.status, QUIRE_OK);
    reply = http_post_json(f.port, "/tokenize", body.data, 400);
    assert_string_equal(json_string_at(reply, "error.code"), "invalid_json");
    json_decref(reply);
    quire_bytes_fini(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_bodies_get_answers),
        cmocka_unit_test(random_heads_do_no_harm),
        cmocka_unit_test(nesting_is_bounded),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
