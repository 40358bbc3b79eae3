/* server.c - life cycle of the server: socket, MHD, stop.
 *
 * SPDX-License-Identifier: MIT */
#include "server/generate.h"
#include "server/http.h"

#include "base/check.h"
#include "server/response_store.h"
#include "server/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* Connections beyond connections_max that still get an error reply; further ones are closed. */
#define CONNECTIONS_SURPLUS 16u
/* Stack of a connection's thread. Tokenizing takes 128 KiB; a nested JSON body some more. */
#define STACK_BYTES ((size_t)1 << 20)
#define BACKLOG     511

/* An address of the socket of a server; the strings are numeric. */
typedef union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} address;

static void connection_noted(void *cls, struct MHD_Connection *connection, void **context,
                             enum MHD_ConnectionNotificationCode code)
{
    quire_server *server = cls;
    quire_connection *of = *context;
    const union MHD_ConnectionInfo *info;

    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        (void)atomic_fetch_sub(&server->n_connections, 1);
        if (of != NULL) {
            quire_client_watch_remove(server->watch, &of->watched);
        }
        free(of);
        *context = NULL;
        return;
    }
    of = calloc(1, sizeof *of);
    info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (of != NULL) {
        quire_client_watch_add(server->watch, &of->watched, info != NULL ? info->connect_fd : -1,
                               quire_now_us());
    }
    *context = of;
    if (atomic_fetch_add(&server->n_connections, 1) >= server->opts.connections_max && of != NULL) {
        of->is_surplus = true;
    }
}

static int address_of(const quire_server_opts *opts, address *out, socklen_t *n, quire_error *err)
{
    const char *host = opts->host != NULL ? opts->host : "127.0.0.1";

    memset(out, 0, sizeof *out);
    host = strcasecmp(host, "localhost") == 0 ? "127.0.0.1" : host;
    if (inet_pton(AF_INET, host, &out->v4.sin_addr) == 1) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port = htons(opts->port);
        *n = sizeof out->v4;
    } else if (inet_pton(AF_INET6, host, &out->v6.sin6_addr) == 1) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons(opts->port);
        *n = sizeof out->v6;
    } else {
        return quire_error_set(err, QUIRE_INVAL, "host: %s is no numeric address and not localhost",
                               host);
    }
    if (opts->n_keys == 0 && !quire_auth_is_loopback(host)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "host: %s is reachable from elsewhere, which takes API keys; "
                               "without keys use 127.0.0.1, ::1 or localhost",
                               host);
    }
    return QUIRE_OK;
}

static int fail_listening(const quire_server_opts *opts, int failed, quire_error *err)
{
    const char *remedy = failed == EADDRINUSE      ? "; --port names another, 0 a free one"
                         : failed == EADDRNOTAVAIL ? "; --host takes an address of this machine"
                         : failed == EACCES && opts->port < 1024
                             ? "; ports below 1024 are the administrator's"
                             : "";
    const int rc =
        quire_error_set_errno(err, failed, "cannot listen on %s port %u", opts->host, opts->port);

    if (err != NULL) {
        const size_t n = strlen(err->message);

        (void)snprintf(err->message + n, sizeof(err->message) - n, "%s", remedy);
    }
    return rc;
}

/* A listening socket and its port. */
static int listen_on(const quire_server_opts *opts, int *out, uint16_t *port, quire_error *err)
{
    const int on = 1;
    address to;
    socklen_t n = 0;
    int fd;
    int failed;

    QUIRE_TRY(address_of(opts, &to, &n, err));
    fd = socket(to.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return quire_error_set_errno(err, errno, "socket");
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    /* Inherited by accepted sockets: each event is sent at once. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (bind(fd, &to.any, n) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, &to.any, &n) != 0) {
        failed = errno;
        (void)close(fd);
        return fail_listening(opts, failed, err);
    }
    *port = ntohs(to.any.sa_family == AF_INET ? to.v4.sin_port : to.v6.sin6_port);
    *out = fd;
    return QUIRE_OK;
}

static int copy_text(quire_server *server, unsigned i, const char **text, const char *fallback)
{
    const char *from = *text != NULL ? *text : fallback;

    if (from == NULL) {
        return QUIRE_OK;
    }
    server->texts[i] = strdup(from);
    *text = server->texts[i];
    return *text != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

static int copy_texts(quire_server *server)
{
    quire_server_opts *opts = &server->opts;

    QUIRE_TRY(copy_text(server, 0, &opts->host, "127.0.0.1"));
    QUIRE_TRY(copy_text(server, 1, &opts->model_name, "quire"));
    QUIRE_TRY(copy_text(server, 2, &opts->kv_name, ""));
    QUIRE_TRY(copy_text(server, 3, &opts->version, ""));
    QUIRE_TRY(copy_text(server, 4, &opts->default_class, NULL));
    QUIRE_TRY(copy_text(server, 5, &opts->page_curve, NULL));
    return copy_text(server, 6, &opts->chat_template, NULL);
}

static void server_free(quire_server *server)
{
    quire_client_watch_stop(server->watch);
    quire_auth_destroy(server->auth);
    quire_chat_format_destroy(server->chat);
    quire_said_destroy(server->said);
    free(server->chat_end);
    for (unsigned i = 0; i < sizeof server->texts / sizeof server->texts[0]; i++) {
        free(server->texts[i]);
    }
    quire_response_store_destroy(server->responses);
    quire_origins_fini(&server->hosts);
    quire_origins_fini(&server->origins);
    (void)pthread_cond_destroy(&server->parse_room);
    (void)pthread_mutex_destroy(&server->parse_lock);
    free(server);
}

int quire_server_opts_check(const quire_server_opts *opts, quire_error *err)
{
    address to;
    socklen_t n = 0;
    quire_auth *auth = NULL;
    quire_origins list;
    quire_tls tls;
    quire_tiers tiers;

    if (opts->body_bytes_max == 0 || opts->header_bytes_max < 1024 || opts->connections_max == 0 ||
        opts->connections_max > UINT32_MAX - CONNECTIONS_SURPLUS) {
        return quire_error_set(err, QUIRE_INVAL,
                               "limits: a body, 1 KiB of headers and a connection are the least");
    }
    QUIRE_TRY(address_of(opts, &to, &n, err));
    QUIRE_TRY(quire_origins_init(&list, opts->allowed_hosts, "allowed_hosts", true, err));
    quire_origins_fini(&list);
    QUIRE_TRY(quire_origins_init(&list, opts->cors_origins, "cors_origins", false, err));
    quire_origins_fini(&list);
    QUIRE_TRY(quire_tls_read(&tls, opts->tls_cert, opts->tls_key, err));
    quire_tls_fini(&tls);
    QUIRE_TRY(quire_tiers_init(&tiers, &opts->classes, opts->default_class, err));
    QUIRE_TRY(quire_auth_create(&auth, opts->keys, opts->n_keys, &tiers, err));
    quire_auth_destroy(auth);
    return QUIRE_OK;
}

/* %XX of paths and queries. Later code ends texts at a NUL and would ignore the rest, so %00
 * becomes a byte that no name contains. */
static size_t unescape(void *cls, struct MHD_Connection *connection, char *text)
{
    const size_t n = MHD_http_unescape(text);

    (void)cls;
    (void)connection;
    for (size_t i = 0; i < n; i++) {
        text[i] = (char)(text[i] != '\0' ? text[i] : '\xff');
    }
    return n;
}

/* MHD copies no certificate, but has read it when it returns. */
static struct MHD_Daemon *daemon_start(quire_server *server, int fd, const quire_tls *tls)
{
    const quire_server_opts *opts = &server->opts;
    const unsigned flags =
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL;
    const struct MHD_OptionItem tls_options[] = {
        { MHD_OPTION_HTTPS_MEM_CERT, 0, tls->cert },
        { MHD_OPTION_HTTPS_MEM_KEY, 0, tls->key },
        { MHD_OPTION_END, 0, NULL },
    };
    const struct MHD_OptionItem no_options[] = { { MHD_OPTION_END, 0, NULL } };
    const bool is_tls = quire_tls_is_on(tls);

    return MHD_start_daemon(flags | (is_tls ? MHD_USE_TLS : 0u), 0, NULL, NULL, quire_http_access,
                            server, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
                            opts->connections_max + CONNECTIONS_SURPLUS,
                            MHD_OPTION_CONNECTION_MEMORY_LIMIT, opts->header_bytes_max,
                            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)opts->idle_timeout_s,
                            MHD_OPTION_THREAD_STACK_SIZE, STACK_BYTES, MHD_OPTION_NOTIFY_COMPLETED,
                            quire_http_completed, server, MHD_OPTION_NOTIFY_CONNECTION,
                            connection_noted, server, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL,
                            MHD_OPTION_ARRAY, is_tls ? tls_options : no_options, MHD_OPTION_END);
}

/* The parts that come from the options. Errors: err. */
static int server_init(quire_server *server, const quire_server_opts *opts, quire_error *err)
{
    int rc = copy_texts(server);

    rc = rc == QUIRE_OK ? quire_response_store_create(&server->responses, NULL) : rc;
    if (rc < 0) {
        return quire_error_set(err, rc, "out of memory");
    }
    QUIRE_TRY(quire_origins_init(&server->hosts, opts->allowed_hosts, "allowed_hosts", true, err));
    QUIRE_TRY(quire_origins_init(&server->origins, opts->cors_origins, "cors_origins", false, err));
    QUIRE_TRY(quire_tiers_init(&server->tiers, &opts->classes, opts->default_class, err));
    return quire_auth_create(&server->auth, opts->keys, opts->n_keys, &server->tiers, err);
}

/* Listen and serve. */
static int server_open(quire_server *server, quire_error *err)
{
    const quire_server_opts *opts = &server->opts;
    quire_tls tls;
    int fd = -1;
    int rc;

    QUIRE_TRY(quire_tls_read(&tls, opts->tls_cert, opts->tls_key, err));
    rc = listen_on(opts, &fd, &server->port, err);
    if (rc == QUIRE_OK) {
        server->daemon = daemon_start(server, fd, &tls);
    }
    if (rc == QUIRE_OK && server->daemon == NULL) {
        rc = quire_tls_is_on(&tls)
                 ? quire_error_set(err, QUIRE_INVAL,
                                   "tls_cert, tls_key: GnuTLS does not take them: a certificate "
                                   "and its own private key without a password are needed (or the "
                                   "server's thread does not start)")
                 : quire_error_set(err, QUIRE_NOMEM, "the server's thread does not start");
    }
    quire_tls_fini(&tls);
    return rc;
}

/* A request that has taken its time has idle_timeout_s more for its error. */
static int watch_start(quire_server *server, quire_error *err)
{
    const quire_server_opts *opts = &server->opts;
    const uint32_t time_max_s = opts->request_time_max_s;
    const uint64_t request_max_s = time_max_s > 0 ? (uint64_t)time_max_s + opts->idle_timeout_s : 0;

    return quire_client_watch_start(&server->watch, opts->idle_timeout_s,
                                    request_max_s < UINT32_MAX ? (uint32_t)request_max_s : 0, err);
}

int quire_server_start(quire_server **out, const quire_server_opts *opts, quire_error *err)
{
    quire_server *server;
    int rc = QUIRE_OK;

    *out = NULL;
    QUIRE_TRY(quire_server_opts_check(opts, err));
    server = calloc(1, sizeof *server);
    if (server == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    server->opts = *opts;
    server->opts.keys = NULL; /* the caller owns the keys; auth has copies */
    (void)pthread_mutex_init(&server->parse_lock, NULL);
    (void)quire_cond_init(&server->parse_room);
    if (getrandom(&server->id_base, sizeof server->id_base, GRND_NONBLOCK) < 0) {
        server->id_base = quire_clock_ns();
    }
    if (opts->record != NULL && getrandom(server->note_key, sizeof server->note_key, 0) !=
                                    (ssize_t)sizeof server->note_key) {
        rc = quire_error_set_errno(err, errno, "no random key for the recording");
        goto out;
    }
    rc = server_init(server, opts, err);
    if (rc == QUIRE_OK) {
        rc = watch_start(server, err);
    }
    if (rc == QUIRE_OK) {
        rc = server_open(server, err);
    }
    if (rc < 0) {
        goto out;
    }
    *out = server;
out:
    if (rc < 0) {
        server_free(server);
    }
    return rc;
}

uint16_t quire_server_port(const quire_server *server)
{
    return server->port;
}

/* Without memory answers are not kept, and histories are computed as the template writes them. */
static void chat_begin(quire_server *server, const quire_model *model)
{
    quire_chat_abilities abilities;

    if (quire_chat_format_create(&server->chat, model, server->opts.chat_template,
                                 &server->chat_error) < 0) {
        return;
    }
    quire_chat_format_abilities(server->chat, &abilities);
    if (abilities.has_jinja) {
        server->chat_end = quire_chat_end_find(server->chat);
    }
    if (server->chat_end != NULL) {
        (void)quire_said_create(&server->said, QUIRE_SAID_BYTES_MAX);
    }
}

void quire_server_ready(quire_server *server, quire_engine *engine)
{
    if (engine != NULL && server->chat == NULL) {
        chat_begin(server, quire_engine_model(engine));
    }
    atomic_store(&server->engine, engine);
}

void quire_server_drain(quire_server *server)
{
    atomic_store(&server->is_draining, true);
}

bool quire_server_is_idle(const quire_server *server)
{
    return atomic_load(&server->n_active) == 0;
}

void quire_server_stop(quire_server *server)
{
    if (server == NULL) {
        return;
    }
    atomic_store(&server->is_stopping, true);
    MHD_stop_daemon(server->daemon);
    server_free(server);
}
