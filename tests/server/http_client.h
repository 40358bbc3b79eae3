/* http_client.h - a small HTTP client over a loopback socket, for tests.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_HTTP_CLIENT_H
#define QUIRE_TESTS_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

/* The paths that most tests ask. */
#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"

typedef struct http_reply {
    int status;    /* 0: the connection ended before a reply */
    char *headers; /* terminated */
    char *body;    /* terminated, decoded */
    size_t n_body;
    bool is_whole; /* false: the connection ended within the body */
} http_reply;

typedef struct http_call {
    const char *method; /* NULL = POST with a body, else GET */
    const char *path;
    const char *body;    /* NULL = none */
    const char *key;     /* API key; NULL = none */
    const char *headers; /* more, each with its line end; NULL = none */
} http_call;

/* Connect to 127.0.0.1. */
int http_connect(uint16_t port);
void http_send(int fd, const char *bytes, size_t n);
void http_send_call(int fd, const http_call *call);
/* Read one reply. Memory: http_reply_free(). */
http_reply http_receive(int fd);
void http_reply_free(http_reply *reply);

/* A connection of its own for one call. */
http_reply http_do(uint16_t port, const http_call *call);
http_reply http_get(uint16_t port, const char *path);
http_reply http_post(uint16_t port, const char *path, const char *body);

/* The call must be answered with this status; returns the body as JSON. Memory: json_decref(). */
json_t *http_json(uint16_t port, const http_call *call, int status);
json_t *http_post_json(uint16_t port, const char *path, const char *body, int status);
json_t *http_get_json(uint16_t port, const char *path, int status);

/* A header's value is `value`. */
bool http_has_header(const http_reply *reply, const char *name, const char *value);

/* The value at a path like "choices.0.message.content"; fails the test when there is none. */
json_t *json_at(json_t *root, const char *path);
const char *json_string_at(json_t *root, const char *path);
int64_t json_int_at(json_t *root, const char *path);

/* Append text to a buffer's text. Fails the test when the buffer is full. */
void text_append(char *buffer, size_t size, const char *text);

/* Call with each event's data of a body of server-sent events, "[DONE]" too. Returns the number. */
size_t http_events(const http_reply *reply, void (*event)(void *ctx, const char *data), void *ctx);

#endif /* QUIRE_TESTS_HTTP_CLIENT_H */
