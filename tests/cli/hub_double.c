/* hub_double.c - see hub_double.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "hub_double.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REQUEST_MAX 8192
#define LOG_MAX     65536

/* A body as it was when the entry was set: connections may read it while the test writes the next.
 */
typedef struct body_copy {
    struct body_copy *next;
    char bytes[];
} body_copy;

struct hub_double {
    body_copy *copies;
    hub_entry entries[HUB_ENTRIES_MAX];
    size_t n;
    int listener;
    uint16_t port;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool is_released;
    bool is_stopping;
    uint32_t n_running; /* connections */
    char log[LOG_MAX];
    size_t n_log;
};

typedef struct connection {
    hub_double *hub;
    int fd;
} connection;

typedef struct asked {
    char method[8];
    char path[1024];
    char range[64];
    char authorization[600];
} asked;

/* ---- requests ---- */

static bool read_request(int fd, char *buffer)
{
    size_t n = 0;

    while (n + 1 < REQUEST_MAX) {
        const ssize_t got = read(fd, buffer + n, REQUEST_MAX - 1 - n);

        if (got <= 0) {
            return false;
        }
        n += (size_t)got;
        buffer[n] = '\0';
        if (strstr(buffer, "\r\n\r\n") != NULL) {
            return true;
        }
    }
    return false;
}

/* A header's value, empty if there is none. */
static void header_of(const char *request, const char *name, char *out, size_t out_bytes)
{
    char line[64];
    const char *at;

    out[0] = '\0';
    (void)snprintf(line, sizeof(line), "\r\n%s: ", name);
    at = strstr(request, line);
    if (at != NULL) {
        at += strlen(line);
        (void)snprintf(out, out_bytes, "%.*s", (int)strcspn(at, "\r"), at);
    }
}

static bool parse_request(const char *request, asked *out)
{
    memset(out, 0, sizeof(*out));
    if (sscanf(request, "%7s %1023s", out->method, out->path) != 2) {
        return false;
    }
    header_of(request, "Range", out->range, sizeof(out->range));
    header_of(request, "Authorization", out->authorization, sizeof(out->authorization));
    return true;
}

static void log_request(hub_double *hub, const asked *a)
{
    const int n = snprintf(hub->log + hub->n_log, LOG_MAX - hub->n_log, "%s %s%s%s%s%s\n",
                           a->method, a->path, a->range[0] != '\0' ? " range=" : "",
                           a->range[0] != '\0' ? a->range + strlen("bytes=") : "",
                           a->authorization[0] != '\0' ? " auth=" : "", a->authorization);

    if (n > 0 && (size_t)n < LOG_MAX - hub->n_log) {
        hub->n_log += (size_t)n;
    }
}

/* ---- answers ---- */

typedef struct answer {
    hub_entry entry;
    int status;
    size_t from;
    size_t end;  /* of the bytes sent */
    bool is_cut; /* the connection ends there */
    bool is_busy;
} answer;

/* Choose the answer, and count down the entry's faults. The caller holds the mutex. */
static bool decide(hub_double *hub, const asked *a, answer *out)
{
    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < hub->n; i++) {
        hub_entry *e = &hub->entries[i];

        if (strcmp(e->path, a->path) != 0) {
            continue;
        }
        out->entry = *e;
        out->status = e->status != 0 ? e->status : 200;
        out->end = e->n_body;
        if (e->n_busy > 0) {
            e->n_busy--;
            out->is_busy = true;
            out->status = e->busy_status;
            out->end = 0;
            return true;
        }
        if (e->status == 0 && a->range[0] != '\0' && !e->ignores_ranges) {
            out->from = strtoul(a->range + strlen("bytes="), NULL, 10);
            out->status = out->from < e->n_body ? 206 : 416;
            out->from = out->from < e->n_body ? out->from : e->n_body;
        }
        if (e->n_cut > 0 && strcmp(a->method, "GET") == 0) {
            e->n_cut--;
            out->is_cut = true;
            out->end = out->from + e->cut_bytes < e->n_body ? out->from + e->cut_bytes : e->n_body;
        }
        return true;
    }
    return false;
}

static bool send_all(int fd, const void *bytes, size_t n)
{
    const char *at = bytes;

    while (n > 0) {
        const ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);

        if (sent <= 0) {
            return false;
        }
        at += sent;
        n -= (size_t)sent;
    }
    return true;
}

static void send_head(int fd, const answer *a)
{
    char head[4096];
    size_t n =
        (size_t)snprintf(head, sizeof(head), "HTTP/1.1 %d Some reason\r\nConnection: close\r\n%s",
                         a->status, a->entry.headers != NULL ? a->entry.headers : "");

    if (!a->entry.has_no_length || a->is_busy) {
        n += (size_t)snprintf(head + n, sizeof(head) - n, "Content-Length: %zu\r\n",
                              a->is_busy ? 0 : a->entry.n_body - a->from);
    }
    if (a->status == 206) {
        n += (size_t)snprintf(head + n, sizeof(head) - n, "Content-Range: bytes %zu-%zu/%zu\r\n",
                              a->entry.has_wrong_range ? a->from + 1 : a->from, a->entry.n_body - 1,
                              a->entry.n_body);
    }
    n += (size_t)snprintf(head + n, sizeof(head) - n, "\r\n");
    (void)send_all(fd, head, n);
}

static void send_body(hub_double *hub, int fd, const answer *a)
{
    const char *body = a->entry.body;
    size_t from = a->from;

    if (body == NULL || a->status == 416) {
        return;
    }
    if (a->entry.is_held && from < a->entry.cut_bytes) {
        if (!send_all(fd, body + from, a->entry.cut_bytes - from)) {
            return;
        }
        from = a->entry.cut_bytes;
        pthread_mutex_lock(&hub->mutex);
        while (!hub->is_released && !hub->is_stopping) {
            pthread_cond_wait(&hub->changed, &hub->mutex);
        }
        pthread_mutex_unlock(&hub->mutex);
    }
    if (from < a->end) {
        (void)send_all(fd, body + from, a->end - from);
    }
}

static void *serve(void *opaque)
{
    connection c = *(connection *)opaque;
    char *request = malloc(REQUEST_MAX);
    asked a;
    answer out;

    free(opaque);
    if (request != NULL && read_request(c.fd, request) && parse_request(request, &a)) {
        bool is_known;

        pthread_mutex_lock(&c.hub->mutex);
        log_request(c.hub, &a);
        is_known = decide(c.hub, &a, &out);
        pthread_mutex_unlock(&c.hub->mutex);
        if (!is_known) {
            out.status = 404;
        }
        send_head(c.fd, &out);
        if (strcmp(a.method, "HEAD") != 0) {
            send_body(c.hub, c.fd, &out);
        }
    }
    free(request);
    /* All that was sent arrives before the end does. */
    shutdown(c.fd, SHUT_WR);
    close(c.fd);
    pthread_mutex_lock(&c.hub->mutex);
    c.hub->n_running--;
    pthread_cond_broadcast(&c.hub->changed);
    pthread_mutex_unlock(&c.hub->mutex);
    return NULL;
}

static void *accept_all(void *opaque)
{
    hub_double *hub = opaque;
    int fd;

    while ((fd = accept(hub->listener, NULL, NULL)) >= 0) {
        connection *c = malloc(sizeof(*c));
        pthread_t thread;

        if (c == NULL) {
            close(fd);
            continue;
        }
        *c = (connection){ hub, fd };
        pthread_mutex_lock(&hub->mutex);
        hub->n_running++;
        pthread_mutex_unlock(&hub->mutex);
        if (pthread_create(&thread, NULL, serve, c) == 0) {
            pthread_detach(thread);
        }
    }
    return NULL;
}

/* ---- the server ---- */

static const void *copied(hub_double *hub, const hub_entry *entry)
{
    body_copy *copy;

    if (entry->body == NULL) {
        return NULL;
    }
    copy = malloc(sizeof(*copy) + entry->n_body);
    assert_non_null(copy);
    memcpy(copy->bytes, entry->body, entry->n_body);
    copy->next = hub->copies;
    hub->copies = copy;
    return copy->bytes;
}

hub_double *hub_double_start(const hub_entry *entries, size_t n)
{
    hub_double *hub = calloc(1, sizeof(*hub));
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n_at = sizeof(at);

    assert_non_null(hub);
    assert_true(n <= HUB_ENTRIES_MAX);
    if (n > 0) {
        memcpy(hub->entries, entries, n * sizeof(*entries));
    }
    for (size_t i = 0; i < n; i++) {
        hub->entries[i].body = copied(hub, &entries[i]);
    }
    hub->n = n;
    pthread_mutex_init(&hub->mutex, NULL);
    pthread_cond_init(&hub->changed, NULL);
    hub->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(hub->listener >= 0);
    assert_int_equal(bind(hub->listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(hub->listener, 16), 0);
    assert_int_equal(getsockname(hub->listener, (struct sockaddr *)&at, &n_at), 0);
    hub->port = ntohs(at.sin_port);
    assert_int_equal(pthread_create(&hub->thread, NULL, accept_all, hub), 0);
    return hub;
}

uint16_t hub_double_port(const hub_double *hub)
{
    return hub->port;
}

void hub_double_change(hub_double *hub, const char *path, hub_entry entry)
{
    size_t i = 0;

    pthread_mutex_lock(&hub->mutex);
    while (i < hub->n && strcmp(hub->entries[i].path, path) != 0) {
        i++;
    }
    if (i == hub->n) {
        hub->n++;
    }
    pthread_mutex_unlock(&hub->mutex);
    assert_true(i < HUB_ENTRIES_MAX);
    pthread_mutex_lock(&hub->mutex);
    hub->entries[i] = entry;
    hub->entries[i].body = copied(hub, &entry);
    hub->entries[i].path = path;
    hub->is_released = false;
    pthread_mutex_unlock(&hub->mutex);
}

void hub_double_release(hub_double *hub)
{
    pthread_mutex_lock(&hub->mutex);
    hub->is_released = true;
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->mutex);
}

char *hub_double_log(hub_double *hub)
{
    char *log;

    pthread_mutex_lock(&hub->mutex);
    log = strdup(hub->log);
    pthread_mutex_unlock(&hub->mutex);
    assert_non_null(log);
    return log;
}

void hub_double_log_clear(hub_double *hub)
{
    pthread_mutex_lock(&hub->mutex);
    hub->n_log = 0;
    hub->log[0] = '\0';
    pthread_mutex_unlock(&hub->mutex);
}

void hub_double_stop(hub_double *hub)
{
    shutdown(hub->listener, SHUT_RDWR);
    pthread_join(hub->thread, NULL);
    close(hub->listener);
    pthread_mutex_lock(&hub->mutex);
    hub->is_stopping = true;
    pthread_cond_broadcast(&hub->changed);
    while (hub->n_running > 0) {
        pthread_cond_wait(&hub->changed, &hub->mutex);
    }
    pthread_mutex_unlock(&hub->mutex);
    pthread_cond_destroy(&hub->changed);
    pthread_mutex_destroy(&hub->mutex);
    while (hub->copies != NULL) {
        body_copy *next = hub->copies->next;

        free(hub->copies);
        hub->copies = next;
    }
    free(hub);
}
