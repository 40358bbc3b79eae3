/* body.c - the body of a request: bounded, and parsed as JSON.
 *
 * SPDX-License-Identifier: MIT */
#include "server/http.h"

#include "base/check.h"
#include "base/parse.h"
#include "server/json_in.h"

#include <string.h>
#include <time.h>

/* A body above the limit is read and discarded up to this multiple of the limit, because a client
 * that is still sending would lose the answer with the connection. */
#define BODY_IGNORED_FACTOR 4u
/* Bodies up to this size do not wait for larger ones, whose texts may take seconds to tokenize. One
 * body of this size per connection takes little memory. */
#define BODY_SMALL_BYTES ((size_t)16 << 10)
/* Interval at which a large body that waits for room checks its client. */
#define PARSE_LOOK_MS 100
/* The longest time of a body ahead: QUIRE_TOKENIZE_TIME_MAX_S. */
#define PARSE_RETRY_AFTER_S 30u

static void refuse(quire_http *http)
{
    char limit[16];

    (void)quire_api_error_set(
        &http->err, 413, "body_too_large", NULL, "the body is longer than %s",
        quire_format_bytes(http->server->opts.body_bytes_max, limit, sizeof limit));
    quire_bytes_fini(&http->body);
    http->body = (quire_bytes){ 0 };
}

void quire_http_body_announced(quire_http *http)
{
    const char *text = MHD_lookup_connection_value(http->connection, MHD_HEADER_KIND,
                                                   MHD_HTTP_HEADER_CONTENT_LENGTH);
    int64_t n = 0;

    if (text != NULL && (quire_parse_i64(text, 0, INT64_MAX, &n) < 0 ||
                         (uint64_t)n > http->server->opts.body_bytes_max)) {
        refuse(http);
    }
}

int quire_http_body_add(quire_http *http, const char *data, size_t n)
{
    const size_t limit = http->server->opts.body_bytes_max;

    http->body_seen_bytes += n;
    if (http->body_seen_bytes > limit) {
        refuse(http);
        return http->body_seen_bytes / BODY_IGNORED_FACTOR > limit ? QUIRE_LIMIT : QUIRE_OK;
    }
    if (http->err.http == 0 && quire_bytes_add(&http->body, data, n) < 0) {
        (void)quire_api_error_nomem(&http->err);
    }
    return QUIRE_OK;
}

static bool is_parse_room(const quire_server *server, size_t n)
{
    return server->parse_bytes == 0 || server->parse_bytes + n <= server->opts.body_bytes_max;
}

/* Wait until room is released, at most PARSE_LOOK_MS. */
static void parse_room_wait(quire_server *server)
{
    const struct timespec until = quire_deadline(PARSE_LOOK_MS);

    (void)pthread_cond_timedwait(&server->parse_room, &server->parse_lock, &until);
}

/* Errors: http->err. */
static int parse_enter(quire_http *http, size_t n)
{
    quire_server *server = http->server;
    const uint64_t end_us = quire_now_us() + (uint64_t)server->opts.parse_wait_ms * 1000;
    bool has_room;
    int rc = QUIRE_OK;

    if (n <= BODY_SMALL_BYTES) {
        return QUIRE_OK;
    }
    quire_http_wait_begin(http);
    (void)pthread_mutex_lock(&server->parse_lock);
    while (!(has_room = is_parse_room(server, n)) && rc == QUIRE_OK && quire_now_us() < end_us) {
        parse_room_wait(server);
        rc = quire_http_check(http);
    }
    if (has_room) {
        server->parse_bytes += n;
        http->parse_bytes = n;
        rc = QUIRE_OK;
    }
    (void)pthread_mutex_unlock(&server->parse_lock);
    quire_http_wait_end(http);
    if (has_room || rc < 0) {
        return rc;
    }
    http->err.retry_after_s = PARSE_RETRY_AFTER_S;
    return quire_api_error_set(&http->err, 503, "busy_parsing", NULL,
                               "other large bodies are being tokenized, try again in %u s",
                               PARSE_RETRY_AFTER_S);
}

void quire_http_json_release(quire_http *http, json_t *root)
{
    quire_server *server = http->server;

    json_decref(root);
    (void)pthread_mutex_lock(&server->parse_lock);
    server->parse_bytes -= http->parse_bytes;
    (void)pthread_cond_broadcast(&server->parse_room);
    (void)pthread_mutex_unlock(&server->parse_lock);
    http->parse_bytes = 0;
}

int quire_http_json(quire_http *http, json_t **out)
{
    json_error_t error;
    json_t *root;

    *out = NULL;
    if (http->body.n == 0) {
        return quire_api_error_set(&http->err, 400, "invalid_json", NULL,
                                   "the body is empty, a JSON object is expected");
    }
    QUIRE_TRY(parse_enter(http, http->body.n));
    root = quire_json_read(http->body.data, http->body.n, JSON_REJECT_DUPLICATES, &error);
    quire_bytes_fini(&http->body);
    http->body = (quire_bytes){ 0 };
    if (root == NULL) {
        quire_http_json_release(http, NULL);
        /* jansson gives no message when it has no memory. */
        if (error.text[0] == '\0' || json_error_code(&error) == json_error_out_of_memory) {
            return quire_api_error_nomem(&http->err);
        }
        if (json_error_code(&error) == json_error_null_character ||
            json_error_code(&error) == json_error_null_byte_in_key) {
            return quire_api_error_set(&http->err, 400, "invalid_json", NULL,
                                       "a string at line %d, column %d holds \\u0000, which is not "
                                       "supported",
                                       error.line, error.column);
        }
        return quire_api_error_set(&http->err, 400, "invalid_json", NULL,
                                   "the body is not valid JSON at line %d, column %d: %s",
                                   error.line, error.column, error.text);
    }
    if (!json_is_object(root)) {
        (void)quire_api_error_set(&http->err, 400, "invalid_json", NULL,
                                  "the body is %s, a JSON object is expected",
                                  quire_json_type_text(root));
        quire_http_json_release(http, root);
        return QUIRE_INVAL;
    }
    *out = root;
    return QUIRE_OK;
}
