/* route.c - from method and path to the handler; the callbacks of MHD.
 *
 * SPDX-License-Identifier: MIT */
#include "server/foreign_paths.h"
#include "server/handlers.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const quire_route routes[] = {
    { "GET", "/", QUIRE_ACCESS_PUBLIC, QUIRE_SERVICE_ALWAYS, quire_api_dashboard },
    { "GET", "/chat", QUIRE_ACCESS_PUBLIC, QUIRE_SERVICE_ALWAYS, quire_api_chat_page },
    { "GET", "/health", QUIRE_ACCESS_PUBLIC, QUIRE_SERVICE_ALWAYS, quire_api_health },
    { "GET", "/v1/health", QUIRE_ACCESS_PUBLIC, QUIRE_SERVICE_ALWAYS, quire_api_health },
    { "GET", "/v1/models", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED, quire_api_models },
    { "GET", "/v1/models/*", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED, quire_api_model },
    { "GET", "/models", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED, quire_api_models },
    { "GET", "/slots", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED, quire_api_slots },
    { "GET", "/props", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED, quire_api_props },
    { "GET", "/metrics", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED, quire_api_metrics },
    { "POST", "/tokenize", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED, quire_api_tokenize },
    { "POST", "/detokenize", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED, quire_api_detokenize },
    { "POST", "/v1/chat/completions", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_OPEN, quire_api_chat },
    { "POST", "/v1/chat/completions/input_tokens", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_OPEN,
      quire_api_chat_count },
    { "POST", "/chat/completions/input_tokens", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_OPEN,
      quire_api_chat_count },
    { "POST", "/v1/completions", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_OPEN, quire_api_completions },
    { "POST", "/apply-template", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED, quire_api_template },
    { "POST", "/chat/completions", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_OPEN, quire_api_chat },
    { "POST", "/completions", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_OPEN, quire_api_completion },
    { "POST", "/completion", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_OPEN, quire_api_completion },
    { "POST", "/infill", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_OPEN, quire_api_infill },
    { "POST", "/v1/messages", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_OPEN, quire_api_messages },
    { "POST", "/v1/messages/count_tokens", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_OPEN,
      quire_api_messages_count },
    { "POST", "/v1/responses", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_OPEN, quire_api_responses },
    { "POST", "/responses", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_OPEN, quire_api_responses },
    { "POST", "/v1/responses/input_tokens", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_OPEN,
      quire_api_responses_count },
    { "POST", "/responses/input_tokens", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_OPEN,
      quire_api_responses_count },
    { "GET", "/v1/responses/*", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_LOADED, quire_api_response_get },
    { "DELETE", "/v1/responses/*", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_LOADED,
      quire_api_response_delete },
    { "POST", "/v1/embeddings", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_OPEN, quire_api_embeddings },
    { "POST", "/embeddings", QUIRE_ACCESS_TENANT, QUIRE_SERVICE_OPEN, quire_api_embeddings },
    { "GET", "/v1/cache/sessions", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED,
      quire_api_sessions_list },
    { "GET", "/v1/cache/sessions/*", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED,
      quire_api_session_get },
    { "DELETE", "/v1/cache/sessions", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED,
      quire_api_sessions_delete },
    { "DELETE", "/v1/cache/sessions/*", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED,
      quire_api_session_delete },
    { "POST", "/v1/cache/pins", QUIRE_ACCESS_KEY, QUIRE_SERVICE_OPEN, quire_api_pin_create },
    { "GET", "/v1/cache/pins", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED, quire_api_pins_list },
    { "GET", "/v1/cache/pins/*", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED, quire_api_pin_get },
    { "POST", "/v1/cache/pins/*", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED, quire_api_pin_renew },
    { "DELETE", "/v1/cache/pins/*", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED, quire_api_pin_delete },
    { "POST", "/v1/cache/invalidate", QUIRE_ACCESS_ADMIN, QUIRE_SERVICE_LOADED,
      quire_api_cache_invalidate },
    { "GET", "/v1/cache/stats", QUIRE_ACCESS_ADMIN, QUIRE_SERVICE_LOADED, quire_api_cache_stats },
    { "GET", "/v1/cache/regions", QUIRE_ACCESS_ADMIN, QUIRE_SERVICE_LOADED, quire_api_regions },
    { "GET", "/v1/cache/events", QUIRE_ACCESS_ADMIN, QUIRE_SERVICE_LOADED, quire_api_events },
    { "GET", "/v1/cache/what-if", QUIRE_ACCESS_ADMIN, QUIRE_SERVICE_LOADED, quire_api_what_if },
    { "GET", "/v1/cache/tuning", QUIRE_ACCESS_ADMIN, QUIRE_SERVICE_LOADED, quire_api_tuning_get },
    { "POST", "/v1/cache/tuning", QUIRE_ACCESS_ADMIN, QUIRE_SERVICE_LOADED, quire_api_tuning_run },
    { "GET", "/v1/cache/pages", QUIRE_ACCESS_ADMIN, QUIRE_SERVICE_LOADED, quire_api_pages },
    { "GET", "/v1/cache/explain", QUIRE_ACCESS_ADMIN, QUIRE_SERVICE_LOADED,
      quire_api_explain_last },
    { "GET", "/v1/cache/explain/*", QUIRE_ACCESS_KEY, QUIRE_SERVICE_LOADED, quire_api_explain },
};
enum {
    N_ROUTES = sizeof routes / sizeof routes[0]
};

/* The rest of the path after the route's; NULL when the path does not match. */
static const char *path_item(const quire_route *route, const char *path)
{
    const size_t n = strlen(route->path);

    if (route->path[n - 1] != '*') {
        return strcmp(route->path, path) == 0 ? "" : NULL;
    }
    return strncmp(route->path, path, n - 1) == 0 && path[n - 1] != '\0' ? path + n - 1 : NULL;
}

/* The methods of a path, for 405. Memory: static. */
static const char *allowed(const char *path)
{
    static const char *const methods[] = { "GET", "DELETE", "POST" };
    static const char *const texts[] = {
        "",     "GET, HEAD",       "DELETE",       "GET, HEAD, DELETE",
        "POST", "GET, HEAD, POST", "DELETE, POST", "GET, HEAD, DELETE, POST"
    };
    unsigned has = 0;

    for (unsigned i = 0; i < N_ROUTES; i++) {
        for (unsigned j = 0; j < 3 && path_item(&routes[i], path) != NULL; j++) {
            has |= strcmp(routes[i].method, methods[j]) == 0 ? 1u << j : 0;
        }
    }
    return texts[has];
}

static void find_route(quire_http *http, const char *path, const char *method)
{
    const char *sought = strcmp(method, "HEAD") == 0 ? "GET" : method;
    bool has_path = false;

    for (unsigned i = 0; i < N_ROUTES; i++) {
        const char *item = path_item(&routes[i], path);

        if (item == NULL) {
            continue;
        }
        if (strcmp(routes[i].method, sought) == 0) {
            http->route = &routes[i];
            http->item = item;
            return;
        }
        has_path = true;
    }
    if (has_path && strcmp(method, MHD_HTTP_METHOD_OPTIONS) == 0) {
        http->is_options = true;
        http->err.allow = allowed(path);
    } else if (has_path) {
        http->err.allow = allowed(path);
        (void)quire_api_error_set(&http->err, 405, "method_not_allowed", NULL,
                                  "%s is not allowed here (allowed: %s)", http->method,
                                  http->err.allow);
    } else {
        const char *help = quire_foreign_path(http->path);

        (void)quire_api_error_set(&http->err, 404, "unknown_path", NULL, "no such path: %s%s%s",
                                  http->path, help != NULL ? ": " : "", help != NULL ? help : "");
    }
}

static const char *header(const quire_http *http, const char *name)
{
    return MHD_lookup_connection_value(http->connection, MHD_HEADER_KIND, name);
}

static void copy_printable(char *to, size_t size, const char *from)
{
    size_t i = 0;

    for (; i + 1 < size && from[i] != '\0'; i++) {
        to[i] = (char)(from[i] > 0x20 && from[i] < 0x7f ? from[i] : '?');
    }
    to[i] = '\0';
}

/* A refused Host or Origin, and how to allow it: by a setting for this item, or by keys. */
static int refuse_origin(quire_http *http, const char *name, const char *setting, const char *item)
{
    const bool has_keys = quire_auth_has_keys(http->server->auth);
    char shown[128];

    copy_printable(shown, sizeof shown, header(http, name));
    if (shown[0] == '\0') {
        return quire_api_error_set(&http->err, 403, "foreign_origin", NULL,
                                   "%s is empty: this server answers to localhost and loopback "
                                   "addresses",
                                   name);
    }
    return quire_api_error_set(&http->err, 403, "foreign_origin", NULL,
                               "%s is \"%s\": this server answers to localhost and loopback "
                               "addresses. Use one of these, or start it with %s %s%s%s",
                               name, shown, setting, item[0] != '\0' ? item : shown,
                               has_keys ? "" : ", or with --api-key, which allows every ",
                               has_keys ? "" : name);
}

/* A Host that names another machine: without keys this can be a web page whose name was made to
 * point here (DNS rebinding). With keys every host is allowed, unless a list says which. */
static int check_host(quire_http *http)
{
    const quire_server *server = http->server;
    const char *host = header(http, MHD_HTTP_HEADER_HOST);
    const bool is_listed = server->hosts.n > 0 || server->hosts.has_all;
    char name[QUIRE_ORIGIN_BYTES_MAX + 1] = "";

    if (quire_auth_is_local(host) || quire_origins_has_host(&server->hosts, host) ||
        (!is_listed && quire_auth_has_keys(server->auth))) {
        return QUIRE_OK;
    }
    copy_printable(name, sizeof name, host);
    name[quire_host_bytes(name)] = '\0';
    return refuse_origin(http, MHD_HTTP_HEADER_HOST, "--allowed-hosts", name);
}

/* An Origin means a page in a browser. A page of another machine may read replies only if the
 * settings allow its origin; without keys it may not even ask. */
static int check_origin(quire_http *http)
{
    const quire_server *server = http->server;
    const char *origin = header(http, MHD_HTTP_HEADER_ORIGIN);

    if (origin != NULL && quire_origins_has(&server->origins, origin)) {
        http->cors = server->origins.has_all ? "*" : origin;
        return QUIRE_OK;
    }
    if (quire_auth_is_local(origin) || quire_auth_has_keys(server->auth)) {
        return QUIRE_OK;
    }
    return refuse_origin(http, MHD_HTTP_HEADER_ORIGIN, "--cors-origins", "");
}

static int check_key(quire_http *http)
{
    static const char *const messages[] = {
        [QUIRE_AUTH_MISSING] = "no API key was sent: the header Authorization: Bearer KEY, or "
                               "x-api-key: KEY, is needed",
        [QUIRE_AUTH_SCHEME] = "the header Authorization must be: Bearer KEY",
        [QUIRE_AUTH_WRONG] = "the API key that was sent is none of this server's keys",
    };
    const quire_auth_result result =
        quire_auth_find(http->server->auth, header(http, MHD_HTTP_HEADER_AUTHORIZATION),
                        header(http, "x-api-key"), &http->caller);

    return result == QUIRE_AUTH_OK ? QUIRE_OK
                                   : quire_api_error_set(&http->err, 401, "invalid_api_key", NULL,
                                                         "%s", messages[result]);
}

static int check_caller(quire_http *http)
{
    const quire_access access = http->route->access;

    if (access == QUIRE_ACCESS_PUBLIC) {
        return QUIRE_OK;
    }
    QUIRE_TRY(check_key(http));
    if (access == QUIRE_ACCESS_TENANT && !http->caller.is_tenant) {
        return quire_api_error_set(&http->err, 403, "not_a_tenant", NULL,
                                   "an administrator's key is not for this");
    }
    if (access == QUIRE_ACCESS_ADMIN && !http->caller.is_admin) {
        return quire_api_error_set(&http->err, 403, "not_an_administrator", NULL,
                                   "this takes an administrator's key");
    }
    return QUIRE_OK;
}

static int check_server(quire_http *http)
{
    quire_server *server = http->server;
    const quire_connection *of = quire_connection_of(http->connection);

    if (of != NULL && of->is_surplus) {
        http->err.retry_after_s = 1;
        return quire_api_error_set(&http->err, 503, "too_many_connections", NULL,
                                   "more than %u connections", server->opts.connections_max);
    }
    if (http->engine == NULL && http->route->service != QUIRE_SERVICE_ALWAYS) {
        http->err.retry_after_s = 1;
        return quire_api_error_set(&http->err, 503, "loading", NULL, "the model is loading");
    }
    if (atomic_load(&server->is_draining) && http->route->service == QUIRE_SERVICE_OPEN) {
        return quire_api_error_set(&http->err, 503, "draining", NULL,
                                   "the server takes no more requests");
    }
    return QUIRE_OK;
}

static void leave(quire_http *http)
{
    if (http->is_active) {
        (void)atomic_fetch_sub(&http->server->n_active, 1);
        http->is_active = false;
    }
}

/* Count the request before checking for a drain: once a drain sees no active request, all later
 * ones are refused. */
static int enter(quire_http *http)
{
    int rc;

    if (http->route->service == QUIRE_SERVICE_OPEN) {
        (void)atomic_fetch_add(&http->server->n_active, 1);
        http->is_active = true;
    }
    rc = check_server(http);
    if (rc < 0) {
        leave(http);
    }
    return rc;
}

static void watch_turn(const quire_http *http, bool is_in_request)
{
    quire_connection *of = quire_connection_of(http->connection);

    if (of != NULL) {
        quire_client_watch_turn(http->server->watch, &of->watched, is_in_request, quire_now_us());
    }
}

/* Errors: the connection is closed. */
static quire_http *http_begin(quire_server *server, struct MHD_Connection *connection,
                              const char *path, const char *method)
{
    quire_http *http = calloc(1, sizeof *http);
    int rc;

    if (http == NULL) {
        return NULL;
    }
    http->server = server;
    http->connection = connection;
    http->engine = atomic_load(&server->engine);
    http->begun_us = quire_now_us();
    watch_turn(http, true);
    http->item = "";
    copy_printable(http->path, sizeof http->path, path);
    copy_printable(http->method, sizeof http->method, method);
    http->error_form =
        strncmp(path, "/v1/messages", 12) == 0 ? QUIRE_ERROR_ANTHROPIC : QUIRE_ERROR_OPENAI;
    find_route(http, path, method);
    /* An error about the path is the reply also to a page that may not ask. */
    rc = check_host(http);
    rc = rc == QUIRE_OK ? check_origin(http) : rc;
    if (rc == QUIRE_OK && http->err.http == 0 && !http->is_options &&
        check_caller(http) == QUIRE_OK && enter(http) == QUIRE_OK) {
        quire_http_body_announced(http);
    }
    return http;
}

static void release_work(quire_http *http)
{
    if (http->work != NULL) {
        http->work_release(http->work);
        http->work = NULL;
    }
}

/* Whether the client awaits "100 Continue" before its body. Then an error is sent at once, and MHD
 * closes the connection after the reply. */
static bool waits_for_consent(const quire_http *http)
{
    return header(http, MHD_HTTP_HEADER_EXPECT) != NULL;
}

static enum MHD_Result http_end(quire_http *http)
{
    if (http->err.http == 0 && http->is_options) {
        (void)quire_http_reply_options(http, http->err.allow);
    } else if (http->err.http == 0) {
        quire_http_wait_begin(http);
        (void)http->route->handler(http);
        quire_http_wait_end(http);
    }
    if (http->status != 0) {
        return MHD_YES;
    }
    if (http->is_gone) {
        return MHD_NO;
    }
    if (http->err.http == 0) {
        (void)quire_api_error_nomem(&http->err);
    }
    release_work(http); /* when the client reads the error, its session is free */
    return quire_http_reply_error(http) ? MHD_YES : MHD_NO;
}

enum MHD_Result quire_http_access(void *server, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *data_bytes, void **context)
{
    quire_http *http = *context;

    (void)version;
    if (http == NULL) {
        http = http_begin(server, connection, url, method);
        if (http == NULL) {
            return MHD_NO;
        }
        *context = http;
        return http->err.http != 0 && waits_for_consent(http) ? http_end(http) : MHD_YES;
    }
    if (*data_bytes > 0) {
        const uint32_t time_max_s = http->server->opts.request_time_max_s;
        const int rc = quire_http_body_add(http, data, *data_bytes);

        *data_bytes = 0;
        return rc < 0 || (time_max_s > 0 &&
                          quire_now_us() - http->begun_us > (uint64_t)time_max_s * 1000000u)
                   ? MHD_NO
                   : MHD_YES;
    }
    return http->status != 0 ? MHD_YES : http_end(http);
}

static void write_log(const quire_http *http)
{
    const quire_server_opts *opts = &http->server->opts;
    char tokens[224] = "";
    char cached[16];
    char line[640];

    if (opts->log == NULL) {
        return;
    }
    if (http->id[0] != '\0') {
        (void)snprintf(cached, sizeof cached, "%u", http->n_cached_tokens);
        (void)snprintf(tokens, sizeof tokens,
                       " id=%s class=%s prompt_tokens=%u cached_tokens=%s completion_tokens=%u "
                       "finish=%s",
                       http->id, http->class_name != NULL ? http->class_name : "-",
                       http->n_prompt_tokens, http->is_given_up ? "-" : cached,
                       http->n_generated_tokens, http->finish != NULL ? http->finish : "none");
    }
    (void)snprintf(
        line, sizeof line, "%s %s status=%d ms=%.1f tenant=%s%s%s%s%s", http->method, http->path,
        http->status, (double)(quire_now_us() - http->begun_us) / 1000.0,
        http->caller.tenant != NULL && http->caller.tenant[0] != '\0' ? http->caller.tenant : "-",
        tokens, http->ignored[0] != '\0' ? " ignored=" : "", http->ignored,
        http->is_gone ? " client=gone" : "");
    opts->log(opts->log_ctx, line);
}

void quire_http_completed(void *server, struct MHD_Connection *connection, void **context,
                          enum MHD_RequestTerminationCode how)
{
    quire_http *http = *context;
    quire_server *s = server;

    (void)connection;
    if (http == NULL) {
        return; /* MHD refused the headers */
    }
    /* Socket errors and a client that does not read cannot be told apart here. A server that stops
     * shuts the sockets down itself. */
    http->is_gone |= http->status == 0 || (how != MHD_REQUEST_TERMINATED_COMPLETED_OK &&
                                           how != MHD_REQUEST_TERMINATED_DAEMON_SHUTDOWN);
    http->is_gone &= !atomic_load(&s->is_stopping);
    if (http->is_gone) {
        (void)atomic_fetch_add(&s->client_gone_total, 1);
    }
    if (http->status >= 100 && http->status < 600) {
        (void)atomic_fetch_add(&s->replies_total[http->status / 100], 1);
    }
    release_work(http);
    write_log(http);
    watch_turn(http, false);
    leave(http);
    quire_bytes_fini(&http->body);
    free(http);
    *context = NULL;
}
