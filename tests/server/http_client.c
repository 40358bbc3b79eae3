/* http_client.c - a small HTTP client for tests.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "http_client.h"

#include "base/bytes.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* A server that hangs fails the test instead of stopping it. */
#define RECEIVE_SECONDS 60

int http_connect(uint16_t port)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
    const struct timeval limit = { RECEIVE_SECONDS, 0 };
    const int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

void http_send(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        const ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);

        if (sent <= 0) {
            return; /* the server has closed: its answer is read next */
        }
        bytes += sent;
        n -= (size_t)sent;
    }
}

void http_send_call(int fd, const http_call *call)
{
    quire_bytes text = { 0 };
    const char *method = call->method;

    if (method == NULL) {
        method = call->body != NULL ? "POST" : "GET";
    }
    (void)quire_bytes_addf(&text, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\n", method, call->path);
    if (call->key != NULL) {
        (void)quire_bytes_addf(&text, "Authorization: Bearer %s\r\n", call->key);
    }
    if (call->headers != NULL) {
        (void)quire_bytes_addf(&text, "%s", call->headers);
    }
    if (call->body != NULL) {
        (void)quire_bytes_addf(&text, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                               strlen(call->body));
    }
    (void)quire_bytes_addf(&text, "\r\n%s", call->body != NULL ? call->body : "");
    assert_int_equal(text.status, 0);
    http_send(fd, text.data, text.n);
    quire_bytes_fini(&text);
}

/* ---- receiving ---- */

typedef struct input {
    int fd;
    quire_bytes bytes;
    size_t at;
} input;

static bool input_more(input *in)
{
    char block[4096];
    const ssize_t n = recv(in->fd, block, sizeof block, 0);

    if (n <= 0) {
        return false;
    }
    assert_int_equal(quire_bytes_add(&in->bytes, block, (size_t)n), 0);
    return true;
}

/* Text up to a mark, which is passed over; NULL when the connection ends before. */
static char *input_until(input *in, const char *mark)
{
    const char *found = NULL;
    char *text;

    for (;;) {
        found = in->bytes.n > in->at ? strstr(in->bytes.data + in->at, mark) : NULL;
        if (found != NULL) {
            break;
        }
        if (!input_more(in)) {
            return NULL;
        }
    }
    text = strndup(in->bytes.data + in->at, (size_t)(found - in->bytes.data) - in->at);
    in->at = (size_t)(found - in->bytes.data) + strlen(mark);
    return text;
}

static bool input_take(input *in, size_t n, quire_bytes *out)
{
    while (in->bytes.n - in->at < n) {
        if (!input_more(in)) {
            (void)quire_bytes_add(out, in->bytes.data + in->at, in->bytes.n - in->at);
            return false;
        }
    }
    (void)quire_bytes_add(out, in->bytes.data + in->at, n);
    in->at += n;
    return true;
}

static bool take_chunks(input *in, quire_bytes *out)
{
    for (;;) {
        char *line = input_until(in, "\r\n");
        const size_t n = line != NULL ? strtoul(line, NULL, 16) : 0;
        const bool is_there = line != NULL;
        quire_bytes end = { 0 };
        bool is_whole;

        free(line);
        if (!is_there) {
            return false;
        }
        if (n > 0 && !input_take(in, n, out)) {
            return false;
        }
        is_whole = input_take(in, 2, &end);
        quire_bytes_fini(&end);
        if (n == 0 || !is_whole) {
            return is_whole;
        }
    }
}

static const char *header_value(const http_reply *reply, const char *name)
{
    const size_t n = strlen(name);

    for (const char *line = reply->headers; line != NULL; line = strstr(line, "\r\n")) {
        line += strncmp(line, "\r\n", 2) == 0 ? 2 : 0;
        if (strncasecmp(line, name, n) == 0 && line[n] == ':') {
            return line + n + 1 + strspn(line + n + 1, " ");
        }
    }
    return NULL;
}

bool http_has_header(const http_reply *reply, const char *name, const char *value)
{
    const char *found = header_value(reply, name);
    const size_t n = strlen(value);

    return found != NULL && strncmp(found, value, n) == 0 && (found[n] == '\r' || found[n] == '\0');
}

http_reply http_receive(int fd)
{
    input in = { fd, { 0 }, 0 };
    http_reply reply = { 0 };
    quire_bytes body = { 0 };
    const char *length;

    (void)quire_bytes_add(&body, "", 0);
    do {
        free(reply.headers);
        reply.headers = input_until(&in, "\r\n\r\n");
        if (reply.headers == NULL) {
            reply.headers = strdup("");
            break;
        }
        assert_int_equal(sscanf(reply.headers, "HTTP/1.1 %d", &reply.status), 1);
    } while (reply.status == 100);
    length = header_value(&reply, "Content-Length");
    if (reply.status != 0 && length != NULL) {
        reply.is_whole = input_take(&in, strtoul(length, NULL, 10), &body);
    } else if (reply.status != 0) {
        reply.is_whole = take_chunks(&in, &body);
    }
    quire_bytes_fini(&in.bytes);
    reply.body = body.data != NULL ? body.data : strdup("");
    reply.n_body = body.n;
    return reply;
}

void http_reply_free(http_reply *reply)
{
    free(reply->headers);
    free(reply->body);
}

http_reply http_do(uint16_t port, const http_call *call)
{
    const int fd = http_connect(port);
    http_reply reply;

    http_send_call(fd, call);
    reply = http_receive(fd);
    (void)close(fd);
    return reply;
}

http_reply http_get(uint16_t port, const char *path)
{
    return http_do(port, &(http_call){ .path = path });
}

http_reply http_post(uint16_t port, const char *path, const char *body)
{
    return http_do(port, &(http_call){ .path = path, .body = body });
}

json_t *http_json(uint16_t port, const http_call *call, int status)
{
    http_reply reply = http_do(port, call);
    json_error_t error;
    json_t *root = json_loads(reply.body, JSON_ALLOW_NUL, &error);

    if (reply.status != status || root == NULL) {
        fail_msg("%s: status %d, expected %d; %s", call->path, reply.status, status, reply.body);
    }
    http_reply_free(&reply);
    return root;
}

json_t *http_post_json(uint16_t port, const char *path, const char *body, int status)
{
    return http_json(port, &(http_call){ .path = path, .body = body }, status);
}

json_t *http_get_json(uint16_t port, const char *path, int status)
{
    return http_json(port, &(http_call){ .path = path }, status);
}

json_t *json_at(json_t *root, const char *path)
{
    char name[64];
    json_t *at = root;

    for (const char *from = path; *from != '\0';) {
        const size_t n = strcspn(from, ".");
        char *end;
        unsigned long index;

        (void)snprintf(name, sizeof name, "%.*s", (int)n, from);
        index = strtoul(name, &end, 10);
        at = *end == '\0' ? json_array_get(at, index) : json_object_get(at, name);
        from += n + (from[n] == '.');
        if (at == NULL) {
            char *text = json_dumps(root, 0);

            fail_msg("no %s in %s", path, text);
        }
    }
    return at;
}

const char *json_string_at(json_t *root, const char *path)
{
    json_t *value = json_at(root, path);

    if (!json_is_string(value)) {
        fail_msg("%s is no string", path);
    }
    return json_string_value(value);
}

int64_t json_int_at(json_t *root, const char *path)
{
    json_t *value = json_at(root, path);

    if (!json_is_integer(value)) {
        fail_msg("%s is no integer", path);
    }
    return (int64_t)json_integer_value(value);
}

void text_append(char *buffer, size_t size, const char *text)
{
    const size_t n = strlen(buffer);

    assert_true(strlen(text) < size - n);
    memcpy(buffer + n, text, strlen(text) + 1);
}

size_t http_events(const http_reply *reply, void (*event)(void *ctx, const char *data), void *ctx)
{
    const char *at = reply->body;
    size_t n_events = 0;

    while (*at != '\0') {
        const char *end = strstr(at, "\n\n");
        char *data;

        assert_non_null(end);
        if (strncmp(at, "event: ", 7) == 0) { /* its name, which the data repeats */
            at = strchr(at, '\n') + 1;
        }
        assert_memory_equal(at, "data: ", 6);
        data = strndup(at + 6, (size_t)(end - at) - 6);
        assert_null(strchr(data, '\n'));
        event(ctx, data);
        free(data);
        n_events++;
        at = end + 2;
    }
    return n_events;
}
