/* test_server_http.c - paths, methods, bodies, limits, states of the server; the engine is a
 * double.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server/http.h"
#include "server_fixture.h"

#include "base/bytes.h"
#include "doze.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static server_fixture f;

#define HI "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"

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

static void restart(const quire_server_opts *opts)
{
    server_fixture_stop(&f);
    server_fixture_start(&f, opts);
}

static void expect_error(const http_call *call, int status, const char *code, const char *param)
{
    json_t *root = http_json(f.port, call, status);

    assert_string_equal(json_string_at(root, "error.code"), code);
    assert_true(strlen(json_string_at(root, "error.message")) > 0);
    assert_true(strlen(json_string_at(root, "error.type")) > 0);
    if (param != NULL) {
        assert_string_equal(json_string_at(root, "error.param"), param);
    } else {
        assert_true(json_is_null(json_at(root, "error.param")));
    }
    json_decref(root);
}

/* ---- paths and methods ---- */

static void answers_a_chat(void **state)
{
    json_t *root = http_post_json(f.port, CHAT, HI, 200);

    (void)state;
    assert_string_equal(json_string_at(root, "choices.0.message.content"), "Hello there");
    assert_string_equal(json_string_at(root, "choices.0.finish_reason"), "stop");
    assert_string_equal(json_string_at(root, "object"), "chat.completion");
    assert_string_equal(json_string_at(root, "model"), "tiny");
    json_decref(root);
}

static void refuses_unknown_paths_and_methods(void **state)
{
    http_reply reply;

    (void)state;
    expect_error(&(http_call){ .path = "/v1/nothing" }, 404, "unknown_path", NULL);
    expect_error(&(http_call){ .path = "/v1/models/" }, 404, "unknown_path", NULL);
    expect_error(&(http_call){ .path = "//v1/models" }, 404, "unknown_path", NULL);
    expect_error(&(http_call){ .path = "/V1/models" }, 404, "unknown_path", NULL);
    expect_error(&(http_call){ .path = "/v1/models%00" }, 404, "unknown_path", NULL);
    expect_error(&(http_call){ .path = "/slotsandmore" }, 404, "unknown_path", NULL);
    expect_error(&(http_call){ .path = "/v1/models/tiny%00r" }, 404, "model_not_found", "model");
    expect_error(&(http_call){ .path = CHAT }, 405, "method_not_allowed", NULL);
    expect_error(&(http_call){ .path = "/health", .body = "{}" }, 405, "method_not_allowed", NULL);
    reply = http_get(f.port, CHAT);
    assert_true(http_has_header(&reply, "Allow", "POST"));
    assert_non_null(strstr(reply.body, "GET is not allowed here (allowed: POST)"));
    http_reply_free(&reply);
    reply = http_do(f.port, &(http_call){ .method = "PUT", .path = "/v1/cache/sessions/a" });
    assert_true(http_has_header(&reply, "Allow", "GET, HEAD, DELETE"));
    http_reply_free(&reply);
}

/* For paths of other servers the error names the path to use instead. */
static void says_what_there_is_instead_of_a_foreign_path(void **state)
{
    static const struct {
        const char *path, *said;
    } cases[] = {
        { "/rerank", "no such path: /rerank: Quire does not rerank" },
        { "/lora-adapters", "there are no adapters" },
        { "/models/load", "a server has one model" },
        { "/embedding", "/v1/embeddings makes vectors" },
        { "/slots/0", "--cache-dir keeps pages over restarts" },
        { "/slots/0?action=save", "session_id in requests keeps a conversation" },
        { "/api/chat", "OpenAI's is at /v1" },
        { "/v1/audio/speech", "text only" },
        { "/v1/batches", "runs no jobs" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *root = http_json(f.port, &(http_call){ .path = cases[i].path, .body = "{}" }, 404);

        assert_non_null(strstr(json_string_at(root, "error.message"), cases[i].said));
        assert_string_equal(json_string_at(root, "error.code"), "unknown_path");
        json_decref(root);
    }
}

static void one_connection_takes_many_requests(void **state)
{
    const int fd = http_connect(f.port);

    (void)state;
    for (int i = 0; i < 3; i++) {
        http_reply reply;

        http_send_call(fd, &(http_call){ .path = CHAT, .body = HI });
        reply = http_receive(fd);
        assert_int_equal(reply.status, 200);
        http_reply_free(&reply);
        http_send_call(fd, &(http_call){ .path = "/nothing" });
        reply = http_receive(fd);
        assert_int_equal(reply.status, 404);
        http_reply_free(&reply);
    }
    (void)close(fd);
}

static void tells_what_it_is(void **state)
{
    json_t *root = http_get_json(f.port, "/v1/models", 200);
    http_reply reply;

    (void)state;
    assert_string_equal(json_string_at(root, "data.0.id"), "tiny");
    assert_string_equal(json_string_at(root, "data.0.meta.architecture"), "llama");
    json_decref(root);
    root = http_get_json(f.port, "/v1/models/tiny", 200);
    assert_string_equal(json_string_at(root, "object"), "model");
    json_decref(root);
    expect_error(&(http_call){ .path = "/v1/models/other" }, 404, "model_not_found", "model");
    root = http_get_json(f.port, "/props", 200);
    assert_int_equal(json_int_at(root, "default_generation_settings.n_ctx"), 256);
    assert_int_equal(json_int_at(root, "total_slots"), 4);
    assert_string_equal(json_string_at(root, "chat_template"), "chatml");
    assert_string_equal(json_string_at(root, "quire.kv"), "f16:f16");
    json_decref(root);
    root = http_get_json(f.port, "/health", 200);
    assert_string_equal(json_string_at(root, "status"), "ok");
    json_decref(root);
    reply = http_get(f.port, "/");
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.body, "<!doctype html>"));
    assert_true(http_has_header(&reply, "Content-Type", "text/html; charset=utf-8"));
    http_reply_free(&reply);
    reply = http_get(f.port, "/metrics");
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.body, "# TYPE quire_"));
    http_reply_free(&reply);
}

static void head_has_no_body(void **state)
{
    const int fd = http_connect(f.port);
    char block[2048];
    ssize_t n;

    (void)state;
    http_send_call(
        fd,
        &(http_call){ .method = "HEAD", .path = "/health", .headers = "Connection: close\r\n" });
    n = recv(fd, block, sizeof block - 1, MSG_WAITALL);
    assert_true(n > 0);
    block[n] = '\0';
    assert_memory_equal(block, "HTTP/1.1 200", 12);
    assert_string_equal(strstr(block, "\r\n\r\n"), "\r\n\r\n");
    (void)close(fd);
}

/* ---- bodies ---- */

static void refuses_what_is_no_json(void **state)
{
    json_t *root;

    (void)state;
    expect_error(&(http_call){ .path = CHAT, .body = "" }, 400, "invalid_json", NULL);
    expect_error(&(http_call){ .path = CHAT, .body = "[]" }, 400, "invalid_json", NULL);
    expect_error(&(http_call){ .path = CHAT, .body = "{\"a\":1,\"a\":2}" }, 400, "invalid_json",
                 NULL);
    expect_error(&(http_call){ .path = CHAT, .body = "{\"messages\":\"\xff\"}" }, 400,
                 "invalid_json", NULL);
    root = http_post_json(f.port, CHAT, "{\"messages\":\"\\u0000\"}", 400);
    assert_string_equal(json_string_at(root, "error.code"), "invalid_json");
    assert_non_null(strstr(json_string_at(root, "error.message"), "holds \\u0000"));
    json_decref(root);
    root = http_post_json(f.port, CHAT, "{\n  \"messages\": [,]\n}", 400);
    assert_non_null(strstr(json_string_at(root, "error.message"), "line 2, column 16"));
    json_decref(root);
}

static char *filled(size_t n)
{
    char *text = malloc(n + 1);

    assert_non_null(text);
    memset(text, ' ', n);
    text[n] = '\0';
    return text;
}

static void bounds_the_body(void **state)
{
    quire_server_opts opts = server_fixture_opts();
    char *body;
    int fd;
    http_reply reply;

    (void)state;
    opts.body_bytes_max = 4096;
    restart(&opts);
    body = filled(4097);
    expect_error(&(http_call){ .path = CHAT, .body = body }, 413, "body_too_large", NULL);
    /* A client that sends Expect: 100-continue gets 413 instead of 100. */
    fd = http_connect(f.port);
    http_send(fd,
              "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n"
              "Expect: 100-continue\r\n\r\n",
              strlen("POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n"
                     "Expect: 100-continue\r\n\r\n"));
    reply = http_receive(fd);
    assert_int_equal(reply.status, 413);
    http_reply_free(&reply);
    (void)close(fd);
    /* A body of unknown length is counted. */
    fd = http_connect(f.port);
    http_send(
        fd, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        strlen("POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"));
    http_send(fd, "1001\r\n", 6);
    http_send(fd, body, 4097);
    http_send(fd, "\r\n0\r\n\r\n", 7);
    reply = http_receive(fd);
    assert_int_equal(reply.status, 413);
    http_reply_free(&reply);
    (void)close(fd);
    /* A body without end is not read for ever. */
    fd = http_connect(f.port);
    http_send(
        fd, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        strlen("POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"));
    for (int i = 0; i < 16; i++) {
        http_send(fd, "1001\r\n", 6);
        http_send(fd, body, 4097);
        http_send(fd, "\r\n", 2);
    }
    reply = http_receive(fd);
    assert_int_equal(reply.status, 0);
    http_reply_free(&reply);
    (void)close(fd);
    body[4096] = '\0'; /* as long as is allowed */
    expect_error(&(http_call){ .path = CHAT, .body = body }, 400, "invalid_json", NULL);
    free(body);
}

/* Each byte begins MHD's timeout again. */
static void headers_have_an_end(void **state)
{
    static const char begin[] = "GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: ";
    quire_server_opts opts = server_fixture_opts();
    char byte = 'a';
    int fd;

    (void)state;
    opts.idle_timeout_s = 1;
    restart(&opts);
    fd = http_connect(f.port);
    http_send(fd, begin, strlen(begin));
    for (unsigned i = 0; recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN; i++) {
        assert_true(i < 60000);
        if (i % 50 == 0) {
            (void)send(fd, "a", 1, MSG_NOSIGNAL);
        }
        test_doze_ms();
    }
    (void)close(fd);
    json_decref(http_get_json(f.port, "/health", 200));
}

/* The reply to n times the token. */
static http_reply detokenize(unsigned token, size_t n)
{
    char body[256] = "{\"tokens\":[";
    char number[16];

    for (size_t i = 0; i < n; i++) {
        (void)snprintf(number, sizeof number, "%s%u", i > 0 ? "," : "", token);
        text_append(body, sizeof body, number);
    }
    text_append(body, sizeof body, "]}");
    return http_post(f.port, "/detokenize", body);
}

/* A token in the body can be shorter than its text. */
static void bounds_the_text_of_tokens(void **state)
{
    enum {
        TOKEN = 2, /* the end of a text */
        BODY_MAX = 64
    };
    quire_server_opts opts = server_fixture_opts();
    json_t *root = http_post_json(f.port, "/detokenize", "{\"tokens\":[2]}", 200);
    const size_t n = BODY_MAX / strlen(json_string_at(root, "content"));
    http_reply reply;

    (void)state;
    json_decref(root);
    assert_true(n < BODY_MAX / 3);
    opts.body_bytes_max = BODY_MAX;
    restart(&opts);
    reply = detokenize(TOKEN, n);
    assert_int_equal(reply.status, 200);
    http_reply_free(&reply);
    reply = detokenize(TOKEN, n + 1);
    assert_int_equal(reply.status, 400);
    assert_non_null(strstr(reply.body, "tokens: their text is longer than 64"));
    http_reply_free(&reply);
}

/* The piece of a token is longer in the reply than its text in the body. */
static void bounds_the_pieces_of_a_text(void **state)
{
    quire_server_opts opts = server_fixture_opts();
    http_reply reply;

    (void)state;
    opts.body_bytes_max = 80;
    restart(&opts);
    reply = http_post(f.port, "/tokenize", "{\"content\":\"0z1z2z\",\"with_pieces\":true}");
    assert_int_equal(reply.status, 200);
    http_reply_free(&reply);
    reply = http_post(f.port, "/tokenize",
                      "{\"content\":\"0z1z2z3z4z5z6z7z8z9z0z1z2z3z4z5z6z7z8z9z\","
                      "\"with_pieces\":false}");
    assert_int_equal(reply.status, 200);
    http_reply_free(&reply);
    reply = http_post(f.port, "/tokenize",
                      "{\"content\":\"0z1z2z3z4z5z6z7z8z9z0z1z2z3z4z5z6z7z8z9z\","
                      "\"with_pieces\":true}");
    assert_int_equal(reply.status, 400);
    assert_non_null(strstr(reply.body, "with_pieces: the reply is longer than 640"));
    http_reply_free(&reply);
}

/* Two do not fit at once: the second waits forever if the first one's bytes are not given back. */
static void large_bodies_come_one_after_the_other(void **state)
{
    quire_server_opts opts = server_fixture_opts();
    char *body = filled((size_t)100 << 10);

    (void)state;
    opts.body_bytes_max = (size_t)128 << 10;
    restart(&opts);
    expect_error(&(http_call){ .path = CHAT, .body = body }, 400, "invalid_json", NULL);
    memcpy(body, "[]", 2);
    expect_error(&(http_call){ .path = CHAT, .body = body }, 400, "invalid_json", NULL);
    memcpy(body, HI, strlen(HI));
    for (int i = 0; i < 2; i++) {
        json_decref(http_post_json(f.port, CHAT, body, 200));
        json_decref(http_post_json(f.port, "/tokenize", body, 400));
    }
    free(body);
}

/* A large body waits a bounded time for other large bodies. Then the error says what to do. Small
 * bodies do not wait. */
static void large_bodies_wait_for_a_while_only(void **state)
{
    quire_server_opts opts = server_fixture_opts();
    char *body = filled((size_t)100 << 10);
    http_reply reply;

    (void)state;
    opts.body_bytes_max = (size_t)128 << 10;
    opts.parse_wait_ms = 1;
    restart(&opts);
    memcpy(body, HI, strlen(HI));
    (void)pthread_mutex_lock(&f.server->parse_lock);
    f.server->parse_bytes = opts.body_bytes_max; /* somebody's */
    (void)pthread_mutex_unlock(&f.server->parse_lock);
    expect_error(&(http_call){ .path = CHAT, .body = body }, 503, "busy_parsing", NULL);
    reply = http_do(f.port, &(http_call){ .path = CHAT, .body = body });
    assert_true(http_has_header(&reply, "Retry-After", "30"));
    http_reply_free(&reply);
    json_decref(http_post_json(f.port, CHAT, HI, 200));
    (void)pthread_mutex_lock(&f.server->parse_lock);
    assert_int_equal(f.server->parse_bytes, opts.body_bytes_max);
    f.server->parse_bytes = 0;
    (void)pthread_mutex_unlock(&f.server->parse_lock);
    json_decref(http_post_json(f.port, CHAT, body, 200));
    free(body);
}

static void bounds_the_headers(void **state)
{
    char *value = filled(40000);
    quire_bytes header = { 0 };
    http_reply reply;

    (void)state;
    memset(value, 'a', 40000);
    (void)quire_bytes_addf(&header, "X-Long: %s\r\n", value);
    reply = http_do(f.port, &(http_call){ .path = "/health", .headers = header.data });
    assert_int_equal(reply.status, 431);
    http_reply_free(&reply);
    quire_bytes_fini(&header);
    free(value);
}

static void bounds_the_connections(void **state)
{
    quire_server_opts opts = server_fixture_opts();
    int fds[2];
    http_reply reply;

    (void)state;
    opts.connections_max = 2;
    restart(&opts);
    for (int i = 0; i < 2; i++) {
        fds[i] = http_connect(f.port);
        http_send_call(fds[i], &(http_call){ .path = "/health" });
        reply = http_receive(fds[i]);
        assert_int_equal(reply.status, 200);
        http_reply_free(&reply);
    }
    reply = http_get(f.port, "/health");
    assert_int_equal(reply.status, 503);
    assert_non_null(strstr(reply.body, "too_many_connections"));
    assert_true(http_has_header(&reply, "Retry-After", "1"));
    http_reply_free(&reply);
    http_send_call(fds[1], &(http_call){ .path = "/health" });
    reply = http_receive(fds[1]);
    assert_int_equal(reply.status, 200);
    http_reply_free(&reply);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

/* ---- states ---- */

static void says_that_it_loads_and_drains(void **state)
{
    json_t *root;

    (void)state;
    quire_server_ready(f.server, NULL);
    root = http_get_json(f.port, "/health", 503);
    assert_string_equal(json_string_at(root, "status"), "loading");
    json_decref(root);
    expect_error(&(http_call){ .path = CHAT, .body = HI }, 503, "loading", NULL);
    expect_error(&(http_call){ .path = "/v1/models" }, 503, "loading", NULL);
    quire_server_ready(f.server, f.engine);
    quire_server_drain(f.server);
    expect_error(&(http_call){ .path = CHAT, .body = HI }, 503, "draining", NULL);
    root = http_get_json(f.port, "/health", 503);
    assert_string_equal(json_string_at(root, "status"), "draining");
    json_decref(root);
}

/* Send the headers of a POST and wait until the server has taken them. */
static int begin_post(const char *path, const char *headers)
{
    static const char more[] = "HTTP/1.1 100 Continue\r\n\r\n";
    const int fd = http_connect(f.port);
    quire_bytes head = { 0 };
    char reply[sizeof more];

    (void)quire_bytes_addf(&head,
                           "POST %s HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                           "%sContent-Length: %zu\r\n\r\n",
                           path, headers, strlen(HI));
    http_send(fd, head.data, head.n);
    quire_bytes_fini(&head);
    assert_int_equal(recv(fd, reply, sizeof more - 1, MSG_WAITALL), sizeof more - 1);
    assert_memory_equal(reply, more, sizeof more - 1);
    return fd;
}

static void a_drain_waits_for_generations_only(void **state)
{
    static const char *const watched[] = { "/",
                                           "/metrics",
                                           "/props",
                                           "/v1/models",
                                           "/v1/cache/stats",
                                           "/v1/cache/explain",
                                           "/v1/cache/sessions" };
    const int watcher = begin_post("/tokenize", "");
    int fd;
    http_reply reply;

    (void)state;
    assert_true(quire_server_is_idle(f.server));
    fd = begin_post(CHAT, "");
    assert_false(quire_server_is_idle(f.server));
    quire_server_drain(f.server);
    for (size_t i = 0; i < sizeof watched / sizeof watched[0]; i++) {
        reply = http_get(f.port, watched[i]);
        assert_int_equal(reply.status, 200);
        http_reply_free(&reply);
    }
    json_decref(http_post_json(f.port, "/tokenize", "{\"content\":\"a\"}", 200));
    expect_error(&(http_call){ .path = CHAT, .body = HI }, 503, "draining", NULL);
    expect_error(&(http_call){ .path = "/v1/completions", .body = "{\"prompt\":\"a\"}" }, 503,
                 "draining", NULL);
    /* The one that was there first goes on. */
    http_send(fd, HI, strlen(HI));
    reply = http_receive(fd);
    assert_int_equal(reply.status, 200);
    http_reply_free(&reply);
    server_fixture_wait_log(&f, "POST " CHAT " status=200");
    while (!quire_server_is_idle(f.server)) {
        test_doze();
    }
    (void)close(fd);
    (void)close(watcher);
}

static void a_client_that_is_refused_holds_up_no_drain(void **state)
{
    static const quire_server_key keys[] = { { .key = "k1", .tenant = "a" } };
    quire_server_opts opts = server_fixture_opts();
    const char *head = "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{";
    int fd;
    int known;

    (void)state;
    opts.keys = keys;
    opts.n_keys = 1;
    restart(&opts);
    fd = http_connect(f.port);
    http_send(fd, head, strlen(head)); /* without a key, and the rest never comes */
    known = begin_post(CHAT, "Authorization: Bearer k1\r\n");
    assert_false(quire_server_is_idle(f.server));
    (void)close(known);
    server_fixture_wait_log(&f, "client=gone");
    while (!quire_server_is_idle(f.server)) {
        test_doze();
    }
    (void)close(fd);
}

static void says_that_there_is_no_chat_template(void **state)
{
    quire_server_opts opts = server_fixture_opts();

    (void)state;
    opts.chat_template = NULL; /* the generated model has none */
    restart(&opts);
    expect_error(&(http_call){ .path = CHAT, .body = HI }, 501, "no_chat_template", NULL);
    json_decref(http_post_json(f.port, "/v1/completions", "{\"prompt\":\"hi\"}", 200));
}

static void refuses_to_start_wrongly(void **state)
{
    quire_server_opts opts = server_fixture_opts();
    quire_error err = QUIRE_ERROR_INIT;
    quire_server *server;
    const quire_server_key same[] = { { .key = "k1", .tenant = "a" },
                                      { .key = "k1", .tenant = "b" } };
    const quire_server_key blank[] = { { .key = "k 1", .tenant = "a" } };
    const quire_server_key nobody[] = { { .key = "k1", .tenant = "" } };

    (void)state;
    opts.host = "0.0.0.0";
    assert_int_equal(quire_server_start(&server, &opts, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "API keys"));
    assert_null(server);
    opts.host = "example.org";
    assert_int_equal(quire_server_start(&server, &opts, &err), QUIRE_INVAL);
    opts.host = "127.0.0.1";
    opts.port = f.port;
    assert_int_equal(quire_server_start(&server, &opts, &err), QUIRE_IO);
    assert_non_null(strstr(err.message, "127.0.0.1"));
    opts.port = 0;
    opts.n_keys = 2;
    opts.keys = same;
    assert_int_equal(quire_server_start(&server, &opts, &err), QUIRE_INVAL);
    opts.n_keys = 1;
    opts.keys = blank;
    assert_int_equal(quire_server_start(&server, &opts, &err), QUIRE_INVAL);
    opts.keys = nobody;
    assert_int_equal(quire_server_start(&server, &opts, &err), QUIRE_INVAL);
    opts.n_keys = QUIRE_SERVER_KEYS_MAX + 1;
    assert_int_equal(quire_server_start(&server, &opts, &err), QUIRE_LIMIT);
    opts.n_keys = 0;
    opts.connections_max = 0;
    assert_int_equal(quire_server_start(&server, &opts, &err), QUIRE_INVAL);
}

static void listens_on_ipv6(void **state)
{
    quire_server_opts opts = server_fixture_opts();
    quire_error err = QUIRE_ERROR_INIT;
    quire_server *server = NULL;
    int rc;

    (void)state;
    opts.host = "::1";
    rc = quire_server_start(&server, &opts, &err);
    if (rc == QUIRE_IO) {
        print_message("skipped: no ::1 here (%s)\n", err.message);
        skip();
    }
    assert_int_equal(rc, QUIRE_OK);
    assert_true(quire_server_port(server) > 0);
    quire_server_stop(server);
}

static void writes_a_log_line(void **state)
{
    json_t *root = http_post_json(f.port, CHAT, HI, 200);

    (void)state;
    json_decref(root);
    server_fixture_wait_log(&f, "POST " CHAT " status=200");
    assert_non_null(strstr(f.log, "completion_tokens=2 finish=stop"));
    assert_null(strstr(f.log, "hi"));
    http_reply reply = http_get(f.port, "/a%0ab");
    assert_int_equal(reply.status, 404);
    http_reply_free(&reply);
    server_fixture_wait_log(&f, "GET /a?b status=404");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(answers_a_chat, start, stop),
        cmocka_unit_test_setup_teardown(refuses_unknown_paths_and_methods, start, stop),
        cmocka_unit_test_setup_teardown(says_what_there_is_instead_of_a_foreign_path, start, stop),
        cmocka_unit_test_setup_teardown(one_connection_takes_many_requests, start, stop),
        cmocka_unit_test_setup_teardown(tells_what_it_is, start, stop),
        cmocka_unit_test_setup_teardown(head_has_no_body, start, stop),
        cmocka_unit_test_setup_teardown(refuses_what_is_no_json, start, stop),
        cmocka_unit_test_setup_teardown(bounds_the_body, start, stop),
        cmocka_unit_test_setup_teardown(bounds_the_text_of_tokens, start, stop),
        cmocka_unit_test_setup_teardown(bounds_the_pieces_of_a_text, start, stop),
        cmocka_unit_test_setup_teardown(large_bodies_come_one_after_the_other, start, stop),
        cmocka_unit_test_setup_teardown(large_bodies_wait_for_a_while_only, start, stop),
        cmocka_unit_test_setup_teardown(bounds_the_headers, start, stop),
        cmocka_unit_test_setup_teardown(headers_have_an_end, start, stop),
        cmocka_unit_test_setup_teardown(bounds_the_connections, start, stop),
        cmocka_unit_test_setup_teardown(says_that_it_loads_and_drains, start, stop),
        cmocka_unit_test_setup_teardown(a_drain_waits_for_generations_only, start, stop),
        cmocka_unit_test_setup_teardown(a_client_that_is_refused_holds_up_no_drain, start, stop),
        cmocka_unit_test_setup_teardown(says_that_there_is_no_chat_template, start, stop),
        cmocka_unit_test_setup_teardown(refuses_to_start_wrongly, start, stop),
        cmocka_unit_test_setup_teardown(listens_on_ipv6, start, stop),
        cmocka_unit_test_setup_teardown(writes_a_log_line, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
