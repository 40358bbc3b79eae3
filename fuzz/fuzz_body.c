/* fuzz_body.c - bytes as the body of a request: answered, or refused with an error in JSON that
 * has a message.
 *
 * The first byte says of which request (requests[] below, by letter); a line end after it is left
 * out. The rest is the body.
 *
 * SPDX-License-Identifier: MIT */
#include "http_exercise.h"

#include "base/check.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES_MAX 256u

/* Whether the head of a reply says so; its body may repeat such words from the request. */
static bool is_json(const char *reply)
{
    const char *type = strstr(reply, "Content-Type: application/json");
    const char *body = strstr(reply, "\r\n\r\n");

    return type != NULL && body != NULL && type < body;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

/* 'a' is the first. */
static const char *const requests[] = {
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/cache/pins",
    "POST /v1/cache/pins/a",
    "POST /tokenize",
    "POST /detokenize",
    "POST /v1/cache/tuning",
    "POST /v1/cache/invalidate",
    "DELETE /v1/cache/sessions",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/responses",
    "POST /v1/embeddings",
    "POST /completion",
    "POST /infill",
    "POST /apply-template",
};
#define N_REQUESTS (sizeof requests / sizeof requests[0])

/* A refusal says why, to people and to programs. */
static void check_error(const char *reply, int status)
{
    const char *body = strstr(reply, "\r\n\r\n");
    json_t *root;

    QUIRE_CHECK(body != NULL);
    root = json_loads(body + 4, JSON_ALLOW_NUL, NULL);
    QUIRE_CHECK(root != NULL);
    if (status >= 400) {
        const json_t *error = json_object_get(root, "error");

        QUIRE_CHECK(json_string_length(json_object_get(error, "message")) > 0);
        QUIRE_CHECK(json_string_length(json_object_get(error, "code")) > 0);
    }
    json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    static char text[HTTP_EXERCISE_BYTES_MAX];
    const char *reply;
    size_t reply_bytes;
    size_t n_head;
    int status;

    if (size_bytes < 1 || size_bytes > sizeof text - HEAD_BYTES_MAX) {
        return 0;
    }
    reply = requests[(data[0] + N_REQUESTS - 'a' % N_REQUESTS) % N_REQUESTS];
    data++;
    size_bytes--;
    if (size_bytes > 0 && data[0] == '\n') {
        data++;
        size_bytes--;
    }
    n_head = (size_t)snprintf(text, HEAD_BYTES_MAX,
                              "%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                              "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                              reply, size_bytes);
    memcpy(text + n_head, data, size_bytes);
    reply = http_exercise(text, n_head + size_bytes, true, &reply_bytes);
    QUIRE_CHECK(reply_bytes > 13 && strncmp(reply, "HTTP/1.1 ", 9) == 0);
    status = (int)strtol(reply + 9, NULL, 10);
    QUIRE_CHECK(status >= 200 && status != 500);
    if (is_json(reply)) {
        check_error(reply, status);
    }
    return 0;
}
