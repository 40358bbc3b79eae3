/* reply.c - queueing replies, and checking that the client still waits.
 *
 * SPDX-License-Identifier: MIT */
#include "server/http.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

/* Let a page of the allowed origin read the reply. */
static enum MHD_Result add_cors(const quire_http *http, struct MHD_Response *response)
{
    enum MHD_Result ok = MHD_YES;

    ok &=
        MHD_add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_ORIGIN, http->cors);
    ok &= MHD_add_response_header(response, MHD_HTTP_HEADER_VARY, MHD_HTTP_HEADER_ORIGIN);
    ok &= MHD_add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_EXPOSE_HEADERS,
                                  "X-Request-Id, X-Service-Class, X-Ignored-Fields, Retry-After");
    return ok;
}

static int queue(quire_http *http, int status, const char *type, struct MHD_Response *response)
{
    enum MHD_Result ok = MHD_YES;

    if (response == NULL) {
        return quire_api_error_nomem(&http->err);
    }
    if (type != NULL) {
        ok &= MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    }
    ok &= MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    ok &= MHD_add_response_header(response, "X-Frame-Options", "DENY");
    ok &= MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    if (http->id[0] != '\0') {
        ok &= MHD_add_response_header(response, "X-Request-Id", http->id);
    }
    if (http->class_name != NULL) {
        ok &= MHD_add_response_header(response, "X-Service-Class", http->class_name);
    }
    if (http->ignored[0] != '\0') {
        ok &= MHD_add_response_header(response, "X-Ignored-Fields", http->ignored);
    }
    if (http->cors != NULL) {
        ok &= add_cors(http, response);
    }
    if (ok == MHD_YES && MHD_queue_response(http->connection, (unsigned)status, response)) {
        http->status = status;
    } else {
        (void)quire_api_error_nomem(&http->err);
    }
    MHD_destroy_response(response); /* the queue holds it */
    return http->status != 0 ? QUIRE_OK : QUIRE_NOMEM;
}

int quire_http_reply(quire_http *http, int status, const char *type, quire_bytes *body)
{
    struct MHD_Response *response = NULL;

    if (body->status == QUIRE_OK) {
        response = MHD_create_response_from_buffer(body->n, body->data != NULL ? body->data : "",
                                                   body->data != NULL ? MHD_RESPMEM_MUST_FREE
                                                                      : MHD_RESPMEM_PERSISTENT);
    }
    if (response == NULL) {
        quire_bytes_fini(body);
    }
    *body = (quire_bytes){ 0 };
    return queue(http, status, type, response);
}

int quire_http_reply_json(quire_http *http, int status, quire_bytes *body)
{
    return quire_http_reply(http, status, "application/json; charset=utf-8", body);
}

int quire_http_reply_static(quire_http *http, const char *type, const void *data, size_t n)
{
    /* MHD does not write to persistent buffers; its signature predates const. */
    union {
        const void *from;
        void *to;
    } bytes = { data };

    return queue(http, 200, type,
                 MHD_create_response_from_buffer(n, bytes.to, MHD_RESPMEM_PERSISTENT));
}

int quire_http_reply_stream(quire_http *http, const char *type, MHD_ContentReaderCallback reader,
                            void *ctx)
{
    enum {
        BLOCK_BYTES = 16 << 10
    };

    return queue(
        http, 200, type,
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, reader, ctx, NULL));
}

int quire_http_reply_options(quire_http *http, const char *methods)
{
    const char *asked = MHD_lookup_connection_value(http->connection, MHD_HEADER_KIND,
                                                    MHD_HTTP_HEADER_ACCESS_CONTROL_REQUEST_HEADERS);
    static char empty[1];
    struct MHD_Response *response =
        MHD_create_response_from_buffer(0, empty, MHD_RESPMEM_PERSISTENT);
    enum MHD_Result ok = MHD_YES;

    if (response == NULL) {
        return quire_api_error_nomem(&http->err);
    }
    ok &= MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, methods);
    if (http->cors != NULL) {
        ok &= MHD_add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_METHODS,
                                      methods);
        ok &= MHD_add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_MAX_AGE, "600");
        if (asked != NULL) { /* clients add headers of their own, which change nothing here */
            ok &= MHD_add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_HEADERS,
                                          asked);
        }
    }
    if (ok != MHD_YES) {
        MHD_destroy_response(response);
        return quire_api_error_nomem(&http->err);
    }
    return queue(http, MHD_HTTP_NO_CONTENT, NULL, response);
}

static bool add_headers(struct MHD_Response *response, const quire_api_error *err)
{
    char seconds[16];
    enum MHD_Result ok = MHD_YES;

    if (err->retry_after_s > 0) {
        (void)snprintf(seconds, sizeof seconds, "%u", err->retry_after_s);
        ok &= MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, seconds);
    }
    if (err->allow != NULL) {
        ok &= MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, err->allow);
    }
    if (err->http == 401) {
        ok &= MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    }
    return ok == MHD_YES;
}

bool quire_http_reply_error(quire_http *http)
{
    quire_bytes body = { 0 };
    struct MHD_Response *response = NULL;

    quire_api_error_write(&body, &http->err, http->error_form);
    if (body.status == QUIRE_OK) {
        response = MHD_create_response_from_buffer(body.n, body.data, MHD_RESPMEM_MUST_FREE);
    }
    if (response == NULL) {
        quire_bytes_fini(&body);
        return false;
    }
    if (!add_headers(response, &http->err)) {
        MHD_destroy_response(response);
        return false;
    }
    return queue(http, http->err.http, "application/json; charset=utf-8", response) == QUIRE_OK;
}

/* A client that shuts down its sending side counts as gone, as in other servers. */
static bool is_client_gone(quire_http *http)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(http->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct pollfd fd = { -1, POLLRDHUP, 0 };

    if (info == NULL) {
        return false;
    }
    fd.fd = info->connect_fd;
    return poll(&fd, 1, 0) > 0 && (fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

int quire_http_check(quire_http *http)
{
    const uint32_t time_max_s = http->server->opts.request_time_max_s;

    if (http->is_gone || is_client_gone(http)) {
        http->is_gone = true;
        (void)quire_api_error_set(&http->err, 499, "client_gone", NULL, "the client has gone");
        return QUIRE_CANCELED;
    }
    if (atomic_load(&http->server->is_stopping)) {
        (void)quire_api_error_set(&http->err, 503, "stopping", NULL, "the server is stopping");
        return QUIRE_AGAIN;
    }
    if (time_max_s > 0 && quire_now_us() - http->begun_us > (uint64_t)time_max_s * 1000000u) {
        (void)quire_api_error_set(&http->err, 408, "request_timeout", NULL,
                                  "the request took longer than %u s", time_max_s);
        return QUIRE_LIMIT;
    }
    return QUIRE_OK;
}

void quire_http_wait_begin(quire_http *http)
{
    (void)MHD_set_connection_option(http->connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
}

/* A timeout set on a connection without one starts now. */
void quire_http_wait_end(quire_http *http)
{
    (void)MHD_set_connection_option(http->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                                    (unsigned)http->server->opts.idle_timeout_s);
}

const char *quire_http_query(quire_http *http, const char *name)
{
    return MHD_lookup_connection_value(http->connection, MHD_GET_ARGUMENT_KIND, name);
}

void quire_http_salt(const quire_http *http, const char *cache_salt, quire_tenant_salt *out)
{
    quire_tenant_salt_make(out, http->caller.tenant, cache_salt != NULL ? cache_salt : "");
}
