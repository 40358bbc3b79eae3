/* http_exercise.c - see http_exercise.h.
 *
 * The server is the program's own, with a listening socket that nobody uses; the model is the one
 * in tests/data, of which only the vocabulary is loaded.
 *
 * SPDX-License-Identifier: MIT */
#include "http_exercise.h"

#include "base/check.h"
#include "engine_double.h"
#include "server/http.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The server has nothing to say for so long: it waits for more. */
#define WAIT_MS 2

static quire_server *server;
static char reply[HTTP_EXERCISE_REPLY_MAX + 1];

static void start(void)
{
    static const char *const pieces[] = { "Once", " upon", " a", " time", "\xc3", "\xa9" };
    static const engine_script script = { .pieces = pieces,
                                          .n_pieces = sizeof pieces / sizeof pieces[0],
                                          .finish = QUIRE_FINISH_STOP };
    quire_server_opts opts = QUIRE_SERVER_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *model = NULL;
    quire_engine *engine;

    QUIRE_CHECK(quire_model_open(&model, FUZZ_MODEL, NULL, &err) == QUIRE_OK);
    engine = engine_double_create(model);
    engine_double_script(engine, &script);
    opts.port = 0;
    opts.model_name = "tiny";
    opts.chat_template = "chatml";
    opts.body_bytes_max = HTTP_EXERCISE_BYTES_MAX / 2; /* so that larger ones are tried */
    quire_classes_default(&opts.classes);
    QUIRE_CHECK(quire_server_start(&server, &opts, &err) == QUIRE_OK);
    quire_server_ready(server, engine);
}

/* Send as long as the server takes it: it may answer and close before it has read all. */
static void send_all(int fd, const char *data, size_t n)
{
    while (n > 0) {
        const ssize_t sent = send(fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent <= 0) {
            return;
        }
        data += sent;
        n -= (size_t)sent;
    }
}

/* All that comes. */
static size_t take_reply(int fd, bool is_whole)
{
    struct pollfd poll_for = { .fd = fd, .events = POLLIN };
    bool is_ended = is_whole;
    size_t n = 0;
    ssize_t got = 1;

    while (got > 0 || (got < 0 && errno == EINTR)) { /* libFuzzer's alarm interrupts */
        if (!is_ended && poll(&poll_for, 1, WAIT_MS) == 0) {
            (void)shutdown(fd, SHUT_WR);
            is_ended = true;
        }
        QUIRE_CHECK(n < HTTP_EXERCISE_REPLY_MAX);
        got = recv(fd, reply + n, HTTP_EXERCISE_REPLY_MAX - n, 0);
        n += got > 0 ? (size_t)got : 0;
    }
    reply[n] = '\0';
    return n;
}

const char *http_exercise(const void *data, size_t size_bytes, bool is_whole, size_t *reply_bytes)
{
    const struct sockaddr_in from = { .sin_family = AF_INET };
    int fds[2];

    if (server == NULL) {
        start();
    }
    QUIRE_CHECK(size_bytes <= HTTP_EXERCISE_BYTES_MAX);
    QUIRE_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    QUIRE_CHECK(MHD_add_connection(server->daemon, fds[1], (const struct sockaddr *)&from,
                                   sizeof from) == MHD_YES);
    send_all(fds[0], data, size_bytes);
    *reply_bytes = take_reply(fds[0], is_whole);
    (void)close(fds[0]);
    while (atomic_load(&server->n_connections) > 0) {
        (void)sched_yield();
    }
    return reply;
}
