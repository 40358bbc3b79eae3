/* test_serve_events.c - quire serve --kv-events, end to end: a subscriber hears of the server's
 * beginning, for each of two devices, and of its end, and settings that cannot work are refused by
 * name.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define CLEARED "AllBlocksCleared"
#define DEVICES 2
#define WAIT_MS 60000 /* for a server that has ended */

/* The word behind `mark` in a line, up to the next blank, comma or end. Memory: free(). */
static char *word_after(const char *line, const char *mark)
{
    const char *at = strstr(line, mark);

    assert_non_null(at);
    at += strlen(mark);
    return strndup(at, strcspn(at, " ,\n"));
}

/* Receive frames until one holds the text. */
static void hear(void *socket, const char *text)
{
    char frame[4096];
    int n;

    do {
        n = zmq_recv(socket, frame, sizeof frame, 0);
        assert_true(n >= 0 && n <= (int)sizeof frame);
    } while (memmem(frame, (size_t)n, text, strlen(text)) == NULL);
}

static void *socket_connect(void *zmq, int type, const char *endpoint)
{
    void *socket = zmq_socket(zmq, type);
    const int linger = 0, wait_ms = WAIT_MS;

    assert_non_null(socket);
    assert_int_equal(zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger), 0);
    assert_int_equal(zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms), 0);
    if (type == ZMQ_SUB) {
        assert_int_equal(zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0), 0);
    }
    assert_int_equal(zmq_connect(socket, endpoint), 0);
    return socket;
}

/* Ask for everything until the first event of each device has been told. */
static void replay_has_begin(void *dealer)
{
    const char zeros[8] = { 0 };
    char frame[4096];
    bool has_begun[DEVICES] = { false };

    while (!has_begun[0] || !has_begun[1]) {
        assert_int_equal(zmq_send(dealer, "", 0, ZMQ_SNDMORE), 0);
        assert_int_equal(zmq_send(dealer, zeros, sizeof zeros, 0), (int)sizeof zeros);
        for (uint32_t i = 0;; i++) {
            const int n = zmq_recv(dealer, frame, sizeof frame, 0);

            assert_true(n >= 0);
            if (memmem(frame, (size_t)n, CLEARED, strlen(CLEARED)) != NULL) {
                assert_in_range(frame[n - 1], 0, DEVICES - 1); /* the rank ends a batch */
                has_begun[(int)frame[n - 1]] = true;
            }
            if (i % 3 == 2 && n == 0) { /* [empty, -1, empty]: the end */
                break;
            }
        }
    }
}

static void begin_and_end_are_told(void **state)
{
    program_running running = program_start(
        PROGRAM("serve", "-m", program_model(), "-t", "1", "--port", "0", "--device", "cpu,cpu",
                "--kv-budget", "8MiB", "--kv-events", "tcp://127.0.0.1:0", "--kv-events-replay",
                "tcp://127.0.0.1:0", "--kv-events-topic", "a topic"));
    char *line = program_line_with(running.err, "events for routers: ");
    char *stream = word_after(line, "events for routers: ");
    char *replay = word_after(line, "replay: ");
    void *zmq = zmq_ctx_new();
    void *dealer = socket_connect(zmq, ZMQ_DEALER, replay);
    void *sub = socket_connect(zmq, ZMQ_SUB, stream);
    program_result second;

    (void)state;
    free(program_line_with(running.out, "ready: "));
    replay_has_begin(dealer);
    second = program_expect(
        1, PROGRAM("serve", "-m", program_model(), "--port", "0", "--kv-events", stream));
    assert_non_null(strstr(second.err, "another program uses this address"));
    assert_non_null(strstr(second.err, stream));
    program_free(&second);
    assert_int_equal(kill(running.pid, SIGTERM), 0);
    hear(sub, "a topic");
    hear(sub, CLEARED);
    assert_int_equal(program_end(&running), 0);
    assert_int_equal(zmq_close(sub), 0);
    assert_int_equal(zmq_close(dealer), 0);
    assert_int_equal(zmq_ctx_term(zmq), 0);
    free(line);
    free(stream);
    free(replay);
}

static void settings_are_checked(void **state)
{
    const char *m = program_model();
    const struct {
        program_args args;
        const char *says;
    } cases[] = {
        { PROGRAM("serve", "-m", m, "--kv-events-replay", "tcp://127.0.0.1:1"),
          "kv_events_replay needs kv_events" },
        { PROGRAM("serve", "-m", m, "--kv-events-topic", "t"), "kv_events_topic needs kv_events" },
        { PROGRAM("serve", "-m", m, "--kv-events", "tcp://127.0.0.1:1", "--no-prefix-cache"),
          "kv_events needs the prefix cache" },
        { PROGRAM("serve", "-m", m, "--kv-events", "127.0.0.1:1"), "kv_events: '127.0.0.1:1'" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        program_result result = program_expect(2, cases[i].args);

        assert_non_null(strstr(result.err, cases[i].says));
        program_free(&result);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(begin_and_end_are_told),
        cmocka_unit_test(settings_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
