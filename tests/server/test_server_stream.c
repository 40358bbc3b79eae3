/* test_server_stream.c - server-sent events, clients that go, time limits, stopping.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server_fixture.h"

#include "base/bytes.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static server_fixture f;

static const char *const pieces[] = { "One", " two", "", " three" };

static const engine_script counting = {
    .pieces = pieces, .n_pieces = 4, .tail = "!", .finish = QUIRE_FINISH_STOP
};

#define STREAM "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static int start(void **state)
{
    (void)state;
    server_fixture_start(&f, NULL);
    engine_double_script(f.engine, &counting);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    server_fixture_stop(&f);
    return 0;
}

/* Events put together again. */
typedef struct heard {
    char text[4][128]; /* by index */
    char finish[4][16];
    size_t n_logprobs;
    size_t n_usage;
    size_t n_timings;
    size_t n_errors;
    size_t n_done;
    size_t n_roles;
    json_t *last;
} heard;

static void hear(void *ctx, const char *data)
{
    heard *h = ctx;
    json_t *root;
    json_t *choices;
    json_t *choice;

    assert_int_equal(h->n_done, 0); /* nothing behind it */
    if (strcmp(data, "[DONE]") == 0) {
        h->n_done++;
        return;
    }
    root = json_loads(data, 0, NULL);
    assert_non_null(root);
    h->n_errors += json_object_get(root, "error") != NULL;
    h->n_usage += json_is_object(json_object_get(root, "usage"));
    h->n_timings += json_object_get(root, "timings") != NULL;
    choices = json_object_get(root, "choices");
    choice = json_array_get(choices, 0);
    if (choice != NULL) {
        const int64_t i = json_int_at(choice, "index");
        json_t *delta = json_object_get(choice, "delta");
        json_t *text =
            delta != NULL ? json_object_get(delta, "content") : json_object_get(choice, "text");
        json_t *finish = json_at(choice, "finish_reason");
        json_t *logprobs = json_at(choice, "logprobs");

        assert_true(i >= 0 && i < 4);
        h->n_roles += json_object_get(delta, "role") != NULL;
        if (json_is_string(text)) {
            text_append(h->text[i], sizeof h->text[i], json_string_value(text));
        }
        if (json_is_string(finish)) {
            text_append(h->finish[i], sizeof h->finish[i], json_string_value(finish));
        }
        if (json_is_object(logprobs)) {
            json_t *list = json_object_get(logprobs, "content") != NULL
                               ? json_object_get(logprobs, "content")
                               : json_object_get(logprobs, "tokens");

            h->n_logprobs += json_array_size(list);
        }
    }
    json_decref(h->last);
    h->last = root;
}

static heard listen_to(const char *path, const char *body)
{
    http_reply reply = http_post(f.port, path, body);
    heard h = { 0 };

    assert_int_equal(reply.status, 200);
    assert_true(reply.is_whole);
    assert_true(http_has_header(&reply, "Content-Type", "text/event-stream; charset=utf-8"));
    (void)http_events(&reply, hear, &h);
    http_reply_free(&reply);
    return h;
}

static void heard_free(heard *h)
{
    json_decref(h->last);
}

/* ---- events ---- */

static void streams_a_chat(void **state)
{
    heard h = listen_to(CHAT, STREAM "}");

    (void)state;
    assert_string_equal(h.text[0], "One two three!");
    assert_string_equal(h.finish[0], "stop");
    assert_int_equal(h.n_roles, 1);
    assert_int_equal(h.n_usage, 0);
    assert_int_equal(h.n_timings, 1);
    assert_int_equal(h.n_done, 1);
    assert_string_equal(json_string_at(h.last, "object"), "chat.completion.chunk");
    heard_free(&h);
}

static void streams_a_text(void **state)
{
    heard h = listen_to(TEXT, "{\"stream\":true,\"prompt\":\"a\",\"max_tokens\":2}");

    (void)state;
    assert_string_equal(h.text[0], "One two!");
    assert_string_equal(h.finish[0], "length");
    assert_int_equal(h.n_done, 1);
    assert_string_equal(json_string_at(h.last, "object"), "text_completion");
    heard_free(&h);
}

static void includes_usage(void **state)
{
    heard h = listen_to(CHAT, STREAM ",\"stream_options\":{\"include_usage\":true}}");

    (void)state;
    assert_int_equal(h.n_usage, 1);
    assert_int_equal(json_array_size(json_at(h.last, "choices")), 0);
    assert_int_equal(json_int_at(h.last, "usage.completion_tokens"), 4);
    assert_int_equal(h.n_done, 1);
    heard_free(&h);
}

static void streams_several_answers(void **state)
{
    heard h = listen_to(CHAT, STREAM ",\"n\":3}");

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_string_equal(h.text[i], "One two three!");
        assert_string_equal(h.finish[i], "stop");
    }
    assert_int_equal(h.n_roles, 3);
    heard_free(&h);
}

/* The log-probabilities of a token without text of its own come with the next text. */
static void streams_logprobs(void **state)
{
    heard h = listen_to(CHAT, STREAM ",\"logprobs\":true,\"top_logprobs\":1}");

    (void)state;
    assert_int_equal(h.n_logprobs, 4);
    heard_free(&h);
    h = listen_to(TEXT, "{\"stream\":true,\"prompt\":\"a\",\"logprobs\":0}");
    assert_int_equal(h.n_logprobs, 4);
    heard_free(&h);
}

static void an_error_in_the_middle_is_an_event(void **state)
{
    engine_script script = counting;
    heard h;

    (void)state;
    script.finish = QUIRE_FINISH_ERROR;
    script.status = QUIRE_IO;
    engine_double_script(f.engine, &script);
    h = listen_to(CHAT, STREAM "}");
    assert_string_equal(h.text[0], "One two three");
    assert_string_equal(h.finish[0], "");
    assert_int_equal(h.n_errors, 1);
    assert_int_equal(h.n_done, 0);
    assert_string_equal(json_string_at(h.last, "error.message"), "the script says so");
    heard_free(&h);
}

static void an_error_before_it_is_a_status(void **state)
{
    engine_script script = counting;

    (void)state;
    script.submit_status = QUIRE_RANGE;
    script.submit_message = "too long";
    engine_double_script(f.engine, &script);
    json_decref(http_post_json(f.port, CHAT, STREAM "}", 400));
}

/* Tokens are sent when they are there, not when the answer is whole. */
static void sends_tokens_at_once(void **state)
{
    engine_script script = counting;
    char block[16384];
    size_t n = 0;
    int fd;

    (void)state;
    script.holds = true;
    script.hold_at = 2;
    engine_double_script(f.engine, &script);
    fd = http_connect(f.port);
    http_send_call(fd, &(http_call){ .path = CHAT, .body = STREAM "}" });
    block[0] = '\0';
    while (strstr(block, " two") == NULL) {
        const ssize_t got = recv(fd, block + n, sizeof block - 1 - n, 0);

        assert_true(got > 0);
        n += (size_t)got;
        block[n] = '\0';
    }
    assert_null(strstr(block, " three"));
    assert_false(quire_server_is_idle(f.server));
    engine_double_go(f.engine);
    while (strstr(block, "[DONE]") == NULL) {
        const ssize_t got = recv(fd, block + n, sizeof block - 1 - n, 0);

        assert_true(got > 0);
        n += (size_t)got;
        block[n] = '\0';
    }
    (void)close(fd);
}

/* ---- clients that go ---- */

static void cancels_when(bool is_stream, uint32_t hold_at)
{
    engine_script script = counting;
    const char *body =
        is_stream ? STREAM "}" : "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    int fd;

    script.holds = true;
    script.hold_at = hold_at;
    engine_double_script(f.engine, &script);
    fd = http_connect(f.port);
    http_send_call(fd, &(http_call){ .path = CHAT, .body = body });
    engine_double_wait_submitted(f.engine, 1);
    (void)close(fd);
    engine_double_wait_cancelled(f.engine, 1);
    server_fixture_wait_log(&f, "client=gone");
    assert_null(strstr(f.log, " prompt_tokens=0 "));
    assert_non_null(strstr(f.log, " cached_tokens=- "));
    assert_non_null(strstr(f.log, " finish=cancelled client=gone"));
    f.log[0] = '\0';
}

static void a_client_that_goes_cancels(void **state)
{
    (void)state;
    cancels_when(false, 0);
    cancels_when(false, 2);
    cancels_when(true, 0);
    cancels_when(true, 2);
}

static void one_request_uses_a_session_at_a_time(void **state)
{
    static const char body[] = "{\"session_id\":\"s\",\"messages\":[{\"role\":\"user\","
                               "\"content\":\"hi\"}]}";
    engine_script script = counting;
    http_reply reply;
    json_t *root;
    int fd;

    (void)state;
    script.holds = true;
    engine_double_script(f.engine, &script);
    fd = http_connect(f.port);
    http_send_call(fd, &(http_call){ .path = CHAT, .body = body });
    engine_double_wait_submitted(f.engine, 1);
    root = http_post_json(f.port, CHAT, body, 409);
    assert_string_equal(json_string_at(root, "error.code"), "session_in_use");
    assert_string_equal(json_string_at(root, "error.param"), "session_id");
    json_decref(root);
    engine_double_go(f.engine);
    reply = http_receive(fd);
    assert_int_equal(reply.status, 200);
    http_reply_free(&reply);
    (void)close(fd);
    json_decref(http_post_json(f.port, CHAT, body, 200));
}

/* ---- limits of time, and the end ---- */

static void time_is_limited(void **state)
{
    quire_server_opts opts = server_fixture_opts();
    engine_script script = counting;
    json_t *root;
    heard h;

    (void)state;
    opts.request_time_max_s = 1;
    opts.idle_timeout_s = 1; /* of the client, which waits here */
    server_fixture_stop(&f);
    server_fixture_start(&f, &opts);
    script.holds = true;
    engine_double_script(f.engine, &script);
    root = http_post_json(f.port, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}",
                          408);
    assert_string_equal(json_string_at(root, "error.code"), "request_timeout");
    json_decref(root);
    engine_double_wait_cancelled(f.engine, 1);
    script.hold_at = 1;
    engine_double_script(f.engine, &script);
    h = listen_to(CHAT, STREAM "}");
    assert_string_equal(h.text[0], "One");
    assert_int_equal(h.n_errors, 1);
    assert_string_equal(json_string_at(h.last, "error.code"), "request_timeout");
    heard_free(&h);
    engine_double_wait_cancelled(f.engine, 1);
}

static void *stop_server(void *ctx)
{
    server_fixture *fixture = ctx;

    quire_server_stop(fixture->server);
    return NULL;
}

static void stopping_ends_what_runs(void **state)
{
    engine_script script = counting;
    http_reply reply;
    pthread_t thread;
    bool is_logged, is_blamed;
    int fd;

    (void)state;
    script.holds = true;
    engine_double_script(f.engine, &script);
    fd = http_connect(f.port);
    http_send_call(fd, &(http_call){ .path = CHAT, .body = STREAM "}" });
    engine_double_wait_submitted(f.engine, 1);
    assert_int_equal(pthread_create(&thread, NULL, stop_server, &f), 0);
    reply = http_receive(fd);
    http_reply_free(&reply);
    (void)close(fd);
    (void)pthread_join(thread, NULL);
    is_logged = strstr(f.log, "POST " CHAT) != NULL;
    is_blamed = strstr(f.log, "client=gone") != NULL;
    assert_int_equal(engine_double_seen(f.engine).n_released, 1);
    engine_double_destroy(f.engine);
    quire_model_close(f.model);
    server_fixture_start(&f, NULL); /* for the teardown */
    assert_true(is_logged && !is_blamed);
}

/* A client that does not read delays no other client. */
static void slow_clients_block_only_themselves(void **state)
{
    enum {
        N_PIECES = 100000 /* 20 MB of events: more than sockets hold */
    };
    const char **many = calloc(N_PIECES, sizeof many[0]);
    const int small = 4096;
    engine_script script = counting;
    int fd;
    heard h;

    (void)state;
    assert_non_null(many);
    for (int i = 0; i < N_PIECES; i++) {
        many[i] = "word ";
    }
    script.pieces = many;
    script.n_pieces = N_PIECES;
    engine_double_script(f.engine, &script);
    fd = http_connect(f.port);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
    http_send_call(fd, &(http_call){ .path = CHAT, .body = STREAM "}" });
    engine_double_wait_submitted(f.engine, 1);
    h = listen_to(CHAT, STREAM ",\"max_tokens\":3}");
    assert_string_equal(h.finish[0], "length");
    heard_free(&h);
    assert_false(quire_server_is_idle(f.server)); /* the other one still sends */
    (void)close(fd);
    server_fixture_wait_log(&f, "client=gone");
    free(many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(streams_a_chat, start, stop),
        cmocka_unit_test_setup_teardown(streams_a_text, start, stop),
        cmocka_unit_test_setup_teardown(includes_usage, start, stop),
        cmocka_unit_test_setup_teardown(streams_several_answers, start, stop),
        cmocka_unit_test_setup_teardown(streams_logprobs, start, stop),
        cmocka_unit_test_setup_teardown(an_error_in_the_middle_is_an_event, start, stop),
        cmocka_unit_test_setup_teardown(an_error_before_it_is_a_status, start, stop),
        cmocka_unit_test_setup_teardown(sends_tokens_at_once, start, stop),
        cmocka_unit_test_setup_teardown(a_client_that_goes_cancels, start, stop),
        cmocka_unit_test_setup_teardown(one_request_uses_a_session_at_a_time, start, stop),
        cmocka_unit_test_setup_teardown(time_is_limited, start, stop),
        cmocka_unit_test_setup_teardown(stopping_ends_what_runs, start, stop),
        cmocka_unit_test_setup_teardown(slow_clients_block_only_themselves, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
