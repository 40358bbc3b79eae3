/* valkey_link.c - see valkey_link.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_link.h"

#include "base/check.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECES_MAX 48u
#define READS_MAX  16u /* in a row, then other links have their turn */

static uint64_t clock_us(void)
{
    return quire_clock_ns() / 1000;
}

/* ---- life ---- */

quire_vk_link *quire_vk_link_new(const quire_vk_net *net, const quire_valkey_addr *addr)
{
    quire_vk_link *l = calloc(1, sizeof *l);

    if (l != NULL) {
        l->net = net;
        l->addr = *addr;
        l->fd = -1;
        l->breaker = (quire_breaker){ .latency_max_us = net->latency_max_us,
                                      .pause_min_us = QUIRE_VK_PAUSE_MIN_US,
                                      .pause_max_us = QUIRE_VK_PAUSE_MAX_US };
    }
    return l;
}

static void commands_end(quire_vk_link *l)
{
    quire_vk_cmd *cmd = l->first;

    l->first = NULL;
    l->last = NULL;
    l->out = NULL;
    l->out_at = 0;
    while (cmd != NULL) {
        quire_vk_cmd *next = cmd->next;

        l->net->reply(l->net->ctx, l, cmd, NULL);
        cmd = next;
    }
}

static void disconnect(quire_vk_link *l)
{
    quire_vk_session_free(l->tls);
    l->tls = NULL;
    if (l->fd >= 0) {
        (void)close(l->fd);
        l->fd = -1;
    }
    if (l->reader != NULL) {
        quire_resp_reader_free(l->reader);
        l->reader = NULL;
    }
    l->n_since = 0;
    l->wants_write = false;
    l->state = QUIRE_VK_IDLE;
    l->is_listening = false;
    commands_end(l);
}

void quire_vk_link_free(quire_vk_link *l)
{
    if (l != NULL) {
        disconnect(l);
        free(l);
    }
}

void quire_vk_link_fail(quire_vk_link *l, uint64_t now_us, const char *why)
{
    (void)snprintf(l->trouble, sizeof l->trouble, "%s", why);
    quire_breaker_failed(&l->breaker, now_us);
    disconnect(l);
    l->net->lost(l->net->ctx, l);
    l->was_ready = false;
}

static void fail_errno(quire_vk_link *l, uint64_t now_us, const char *what, int error)
{
    char why[QUIRE_VK_TROUBLE_MAX];

    (void)snprintf(why, sizeof why, "%s: %s", what, strerror(error));
    quire_vk_link_fail(l, now_us, why);
}

/* ---- greeting ---- */

/* A server's own words may have bytes that a log does not want. */
static void words_copy(char *out, size_t n, const char *words)
{
    size_t i = 0;

    for (; i + 1 < n && words[i] != '\0'; i++) {
        out[i] = words[i] >= ' ' && words[i] <= '~' ? words[i] : '?';
    }
    out[i] = '\0';
}

static void greeted(void *ctx, const quire_resp *reply)
{
    quire_vk_link *l = ctx;
    char words[64];
    char why[QUIRE_VK_TROUBLE_MAX];

    if (reply == NULL || l->state != QUIRE_VK_GREETING) {
        return;
    }
    if (reply->type == QUIRE_RESP_ERROR) {
        words_copy(words, sizeof words, reply->str);
        (void)snprintf(why, sizeof why, "the server says: %s", words);
        quire_vk_link_fail(l, clock_us(), why);
    } else if (quire_resp_is_status(reply, "PONG")) {
        l->state = QUIRE_VK_READY;
        l->was_ready = true;
        l->trouble[0] = '\0';
        l->net->ready(l->net->ctx, l);
    } else if (!quire_resp_is_status(reply, "OK")) {
        quire_vk_link_fail(l, clock_us(), "it does not answer as Valkey or Redis does");
    }
}

static void queue(quire_vk_link *l, quire_vk_cmd *cmd)
{
    cmd->next = NULL;
    if (l->first == NULL) {
        l->first = cmd;
        l->moved_us = clock_us();
    } else {
        l->last->next = cmd;
    }
    l->last = cmd;
    if (l->out == NULL) {
        l->out = cmd;
        l->out_at = 0;
    }
}

static bool greet(quire_vk_link *l, const quire_vk_arg *args, uint32_t n)
{
    quire_vk_cmd *cmd = quire_vk_cmd_new(args, n, QUIRE_VK_SLOT_ANY, greeted, l);

    if (cmd != NULL) {
        queue(l, cmd);
    }
    return cmd != NULL;
}

static quire_vk_arg arg_of(const char *text)
{
    return (quire_vk_arg){ text, strlen(text) };
}

static void greeting_begin(quire_vk_link *l, uint64_t now_us)
{
    const quire_vk_net *net = l->net;
    char database[16];
    bool is_ok = true;

    l->state = QUIRE_VK_GREETING;
    l->reader = quire_resp_reader_new();
    (void)snprintf(database, sizeof database, "%u", net->database);
    if (net->user != NULL && net->password != NULL) {
        is_ok = greet(
            l, (quire_vk_arg[]){ QUIRE_VK_WORD("AUTH"), arg_of(net->user), arg_of(net->password) },
            3);
    } else if (net->password != NULL) {
        is_ok = greet(l, (quire_vk_arg[]){ QUIRE_VK_WORD("AUTH"), arg_of(net->password) }, 2);
    }
    if (net->database != 0) {
        is_ok = is_ok && greet(l, (quire_vk_arg[]){ QUIRE_VK_WORD("SELECT"), arg_of(database) }, 2);
    }
    is_ok = is_ok && greet(l, (quire_vk_arg[]){ QUIRE_VK_WORD("PING") }, 1);
    if (!is_ok || l->reader == NULL) {
        quire_vk_link_fail(l, now_us, "out of memory");
    }
}

/* ---- connecting ---- */

static int socket_open(const struct addrinfo *at)
{
    const int yes = 1;
    const int fd =
        socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol);

    if (fd < 0) {
        return -1;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    if (connect(fd, at->ai_addr, at->ai_addrlen) < 0 && errno != EINPROGRESS) {
        const int error = errno;

        (void)close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static void connect_begin(quire_vk_link *l, uint64_t now_us)
{
    const struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
    struct addrinfo *list = NULL;
    char port[8];
    int rc;

    (void)snprintf(port, sizeof port, "%u", l->addr.port);
    l->begun_us = now_us;
    rc = getaddrinfo(l->addr.host, port, &hints, &list);
    if (rc != 0) {
        char why[QUIRE_VK_TROUBLE_MAX];

        (void)snprintf(why, sizeof why, "name: %s", gai_strerror(rc));
        quire_vk_link_fail(l, now_us, why);
        return;
    }
    l->fd = socket_open(list);
    rc = errno;
    freeaddrinfo(list);
    if (l->fd < 0) {
        fail_errno(l, now_us, "connect", rc);
        return;
    }
    l->state = QUIRE_VK_CONNECTING;
}

static void tls_go_on(quire_vk_link *l, uint64_t now_us)
{
    const ssize_t rc = quire_vk_session_handshake(l->tls, &l->wants_write);

    if (rc > 0) {
        l->wants_write = false;
        greeting_begin(l, now_us);
    } else if (rc < 0) {
        char why[QUIRE_VK_TROUBLE_MAX];

        quire_vk_session_why(l->tls, why, sizeof why);
        quire_vk_link_fail(l, now_us, why);
    }
}

static void connected(quire_vk_link *l, uint64_t now_us)
{
    int error = 0;
    socklen_t n = sizeof error;

    (void)getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &n);
    if (error != 0) {
        fail_errno(l, now_us, "connect", error);
        return;
    }
    if (l->net->tls == NULL) {
        greeting_begin(l, now_us);
        return;
    }
    l->state = QUIRE_VK_TLS;
    l->tls = quire_vk_session_new(l->net->tls, l->fd, l->addr.host);
    if (l->tls == NULL) {
        quire_vk_link_fail(l, now_us, "out of memory");
        return;
    }
    tls_go_on(l, now_us);
}

/* ---- writing ---- */

void quire_vk_link_send(quire_vk_link *l, quire_vk_cmd *cmd)
{
    QUIRE_ASSERT(l->state == QUIRE_VK_READY);
    queue(l, cmd);
}

/* Pieces of the commands that are to be written. */
static uint32_t pieces_get(const quire_vk_link *l, struct iovec *out)
{
    uint32_t n = 0;
    size_t at = l->out_at;

    for (const quire_vk_cmd *cmd = l->out; cmd != NULL && n + 3 <= PIECES_MAX; cmd = cmd->next) {
        n += quire_vk_cmd_pieces(cmd, at, out + n);
        at = 0;
    }
    return n;
}

static void written(quire_vk_link *l, size_t n, uint64_t now_us)
{
    l->moved_us = now_us;
    while (n > 0) {
        const size_t left = quire_vk_cmd_bytes(l->out) - l->out_at;

        if (n < left) {
            l->out_at += n;
            return;
        }
        n -= left;
        l->out->sent_us = now_us;
        l->out = l->out->next;
        l->out_at = 0;
    }
}

/* Returns bytes, 0 = the socket is full, -1 = lost. */
static ssize_t write_some(quire_vk_link *l)
{
    struct iovec pieces[PIECES_MAX];
    const uint32_t n_pieces = pieces_get(l, pieces);
    ssize_t n;

    if (l->tls != NULL) {
        return quire_vk_session_write(l->tls, pieces[0].iov_base, pieces[0].iov_len,
                                      &l->wants_write);
    }
    do {
        const struct msghdr message = { .msg_iov = pieces, .msg_iovlen = n_pieces };

        n = sendmsg(l->fd, &message, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : n;
}

static void write_all(quire_vk_link *l, uint64_t now_us)
{
    while (l->out != NULL) {
        const ssize_t n = write_some(l);

        if (n < 0) {
            quire_vk_link_fail(l, now_us, "the connection was lost while writing");
            return;
        }
        if (n == 0) {
            return;
        }
        written(l, (size_t)n, now_us);
    }
}

/* ---- reading ---- */

/* Messages also come while a PING waits for its reply. */
static bool is_message(const quire_vk_link *l, const quire_resp *reply)
{
    return l->is_listening && reply->type == QUIRE_RESP_ARRAY && reply->elements == 3 &&
           reply->element[0]->type == QUIRE_RESP_STRING &&
           strcmp(reply->element[0]->str, "message") == 0;
}

static void replied(quire_vk_link *l, const quire_resp *reply, uint64_t now_us)
{
    quire_vk_cmd *cmd = l->first;
    uint64_t since_us;

    l->n_since = 0;
    if (is_message(l, reply) || (l->is_listening && cmd == NULL)) {
        l->net->message(l->net->ctx, reply);
        return;
    }
    if (cmd == NULL || cmd == l->out) {
        quire_vk_link_fail(l, now_us, "a reply came that nobody asked for");
        return;
    }
    l->first = cmd->next;
    if (l->first == NULL) {
        l->last = NULL;
    }
    since_us = cmd->sent_us > l->replied_us ? cmd->sent_us : l->replied_us;
    l->replied_us = now_us;
    l->net->reply(l->net->ctx, l, cmd, reply);
    if (l->state != QUIRE_VK_IDLE &&
        !quire_breaker_good(&l->breaker, now_us, now_us > since_us ? now_us - since_us : 0)) {
        quire_vk_link_fail(l, now_us, "replies are too slow");
    }
}

/* Returns false when the link is gone. */
static bool replies_take(quire_vk_link *l, const char *bytes, size_t n, uint64_t now_us)
{
    l->n_since += n;
    if (quire_resp_feed(l->reader, bytes, n) != 0) {
        quire_vk_link_fail(l, now_us, "out of memory for a reply");
        return false;
    }
    while (l->reader != NULL) {
        void *reply = NULL;

        if (quire_resp_next(l->reader, &reply) != 0) {
            quire_vk_link_fail(l, now_us, "it does not answer as Valkey or Redis does");
            return false;
        }
        if (reply == NULL) {
            break;
        }
        replied(l, reply, now_us);
        quire_resp_free(reply);
    }
    if (l->reader != NULL && l->n_since > QUIRE_VK_REPLY_BYTES_MAX) {
        quire_vk_link_fail(l, now_us, "a reply is longer than a record can be");
    }
    return l->reader != NULL;
}

/* Returns bytes, 0 = nothing is there, -1 = lost. */
static ssize_t read_some(quire_vk_link *l, char *out, size_t n_max)
{
    ssize_t n;

    if (l->tls != NULL) {
        return quire_vk_session_read(l->tls, out, n_max, &l->wants_write);
    }
    do {
        n = read(l->fd, out, n_max);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return 0;
    }
    return n > 0 ? n : -1;
}

static void read_all(quire_vk_link *l, uint64_t now_us)
{
    char buffer[QUIRE_VK_READ_BYTES];

    for (uint32_t i = 0; i < READS_MAX || l->tls != NULL; i++) {
        const ssize_t n = read_some(l, buffer, sizeof buffer);

        if (n < 0) {
            quire_vk_link_fail(l, now_us, "the server closed the connection");
            return;
        }
        if (n == 0) {
            return;
        }
        l->moved_us = now_us;
        if (!replies_take(l, buffer, (size_t)n, now_us)) {
            return;
        }
    }
}

/* ---- the loop's calls ---- */

short quire_vk_link_events(const quire_vk_link *l)
{
    switch (l->state) {
    case QUIRE_VK_IDLE:
        return 0;
    case QUIRE_VK_CONNECTING:
        return POLLOUT;
    case QUIRE_VK_TLS:
        return l->wants_write ? POLLOUT : POLLIN;
    case QUIRE_VK_GREETING:
    case QUIRE_VK_READY:
        break;
    }
    return (short)(POLLIN | (l->out != NULL || l->wants_write ? POLLOUT : 0));
}

void quire_vk_link_io(quire_vk_link *l, short revents, uint64_t now_us)
{
    if (revents == 0 || l->state == QUIRE_VK_IDLE) {
        return;
    }
    if (l->state == QUIRE_VK_CONNECTING) {
        connected(l, now_us);
    } else if (l->state == QUIRE_VK_TLS) {
        tls_go_on(l, now_us);
    } else {
        read_all(l, now_us);
    }
    if (l->state >= QUIRE_VK_GREETING) {
        write_all(l, now_us);
    }
}

static void ping(quire_vk_link *l)
{
    const quire_vk_arg word = QUIRE_VK_WORD("PING");
    quire_vk_cmd *cmd = quire_vk_cmd_new(&word, 1, QUIRE_VK_SLOT_ANY, NULL, NULL);

    if (cmd != NULL) {
        queue(l, cmd);
    }
}

/* How long a greeting and the oldest command may take. */
static uint64_t patience_us(const quire_vk_link *l)
{
    return l->net->silence_us > QUIRE_VK_PATIENCE_US ? l->net->silence_us : QUIRE_VK_PATIENCE_US;
}

uint64_t quire_vk_link_due_us(const quire_vk_link *l)
{
    uint64_t slow_us;

    if (l->state == QUIRE_VK_IDLE) {
        return quire_breaker_is_closed(&l->breaker) ? 0 : quire_breaker_due_us(&l->breaker);
    }
    if (l->state != QUIRE_VK_READY) {
        return l->begun_us + patience_us(l);
    }
    if (l->first == NULL) {
        return l->moved_us + QUIRE_VK_PING_US;
    }
    slow_us = l->first == l->out ? UINT64_MAX : l->first->sent_us + patience_us(l);
    slow_us = slow_us > l->replied_us + patience_us(l) ? slow_us : l->replied_us + patience_us(l);
    return slow_us < l->moved_us + l->net->silence_us ? slow_us : l->moved_us + l->net->silence_us;
}

static void overdue(quire_vk_link *l, uint64_t now_us)
{
    char why[QUIRE_VK_TROUBLE_MAX];

    if (l->state != QUIRE_VK_READY) {
        (void)snprintf(why, sizeof why, "no %s for %llu ms",
                       l->state == QUIRE_VK_CONNECTING ? "connection" : "greeting",
                       (unsigned long long)(now_us - l->begun_us) / 1000);
    } else {
        (void)snprintf(why, sizeof why, "no answer for %llu ms",
                       (unsigned long long)(now_us - l->moved_us) / 1000);
    }
    quire_vk_link_fail(l, now_us, why);
}

void quire_vk_link_tick(quire_vk_link *l, uint64_t now_us)
{
    if (now_us >= quire_vk_link_due_us(l)) {
        if (l->state == QUIRE_VK_IDLE) {
            (void)quire_breaker_probe(&l->breaker, now_us);
            connect_begin(l, now_us);
        } else if (l->state == QUIRE_VK_READY && l->first == NULL) {
            ping(l);
        } else {
            overdue(l, now_us);
        }
    }
    if (l->state >= QUIRE_VK_GREETING) {
        write_all(l, now_us); /* commands queued since the last call */
    }
}
