/* http.h - one HTTP request on its way through the server; for src/server only.
 *
 * All calls about a request come from the thread of its connection. Errors known from the headers
 * (no such path, wrong key, loading) are noted when the headers arrive, but sent after the body, so
 * that a client that is still sending can read the answer.
 *
 *   headers -> route, key, state of the server   body -> kept within body_bytes_max
 *   end of body -> handler: queues a reply, or fills err and returns an error
 *   completed -> log line, counters, release of the data that the handler left in `work`
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_HTTP_H
#define QUIRE_SERVER_HTTP_H

#include <pthread.h>
#include <stdatomic.h>

#include <jansson.h>
#include <microhttpd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "model/chat_format.h"
#include "server/api_error.h"
#include "server/auth.h"
#include "server/client_watch.h"
#include "server/fields.h"
#include "server/json_out.h"
#include "server/origin.h"
#include "server/said.h"
#include "server/server.h"
#include "server/service_tier.h"
#include "server/tenant.h"

typedef struct quire_http quire_http;

typedef enum quire_access {
    QUIRE_ACCESS_PUBLIC,
    QUIRE_ACCESS_KEY,    /* any key */
    QUIRE_ACCESS_TENANT, /* a key that is not an administrator's */
    QUIRE_ACCESS_ADMIN
} quire_access;

/* The states of the server in which a path is served. */
typedef enum quire_service {
    QUIRE_SERVICE_ALWAYS,
    QUIRE_SERVICE_LOADED, /* loaded, also while draining: for operators that watch a drain */
    QUIRE_SERVICE_OPEN /* neither while loading nor while draining; a drain waits for these requests
                        */
} quire_service;

typedef struct quire_route {
    const char *method; /* "GET" serves HEAD too */
    const char *path;   /* a final '*' matches the text that the handler gets as http->item */
    quire_access access;
    quire_service service;
    int (*handler)(quire_http *http);
} quire_route;

struct quire_server {
    quire_server_opts opts; /* texts are copies in `texts` */
    char *texts[7];
    quire_tiers tiers;
    quire_auth *auth;
    struct quire_response_store *responses;
    quire_origins hosts;
    quire_origins origins;
    struct MHD_Daemon *daemon;
    quire_client_watch *watch;
    uint16_t port;
    _Atomic(quire_engine *) engine; /* NULL until ready */
    quire_chat_format *chat;        /* set before engine; NULL: there is none, see chat_error */
    quire_error chat_error;
    char *chat_end;   /* text of the template behind an answer; NULL: not known, said is NULL */
    quire_said *said; /* NULL = answers are not kept */
    atomic_bool is_draining;
    atomic_bool is_stopping;
    atomic_uint n_active;      /* active requests: see is_active */
    atomic_uint n_connections; /* includes those beyond connections_max */
    atomic_ullong replies_total[6];
    atomic_ullong client_gone_total;
    atomic_ullong n_ids;
    uint64_t id_base;     /* random: ids of two runs differ. Part of every id, so not secret */
    uint64_t note_key[2]; /* random and secret: see note.c */
    /* Bytes of large bodies that are parsed at present. The parsed form takes many times its
     * text. */
    pthread_mutex_t parse_lock;
    pthread_cond_t parse_room;
    size_t parse_bytes;
};

/* MHD's context of a socket. */
typedef struct quire_connection {
    quire_client watched;
    bool is_surplus; /* beyond connections_max */
} quire_connection;

struct quire_http {
    quire_server *server;
    struct MHD_Connection *connection;
    const quire_route *route; /* NULL: no route matches, see err */
    quire_engine *engine;     /* NULL while loading */
    quire_caller caller;
    const char *item; /* rest of the path after the route's; "" */
    quire_bytes body;
    uint64_t body_seen_bytes;
    size_t parse_bytes; /* this request's part of server->parse_bytes */
    uint64_t begun_us;
    quire_api_error err;
    int status;       /* status of the reply; 0 = none queued */
    const char *cors; /* allowed origin, for the reply; NULL = none. Memory: the request's */
    quire_error_form error_form;
    bool is_options; /* OPTIONS: the reply names the methods of the path */
    bool is_gone;
    bool is_active; /* accepted, of QUIRE_SERVICE_OPEN */
    /* for the log */
    char path[160]; /* printable */
    char method[12];
    char id[QUIRE_REQUEST_ID_MAX]; /* "" for all but generations */
    const char *class_name;        /* of a generation; NULL = none. Memory: the server's */
    uint32_t n_prompt_tokens;
    uint32_t n_cached_tokens;
    uint32_t n_generated_tokens;
    const char *finish;                    /* static */
    bool is_given_up;                      /* before its end: nobody knows the cached tokens */
    char ignored[QUIRE_FIELDS_NEAR_BYTES]; /* fields that look misspelt */
    /* State that outlives the handler, such as a stream. */
    void *work;
    void (*work_release)(void *work);
};

static inline uint64_t quire_now_us(void)
{
    return quire_clock_ns() / 1000;
}

/* The connection of a request; NULL: there was no memory. */
static inline quire_connection *quire_connection_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info != NULL ? info->socket_context : NULL;
}

/* ---- route.c ---- */

/* Callbacks of MHD. */
enum MHD_Result quire_http_access(void *server, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *data_bytes, void **context);
void quire_http_completed(void *server, struct MHD_Connection *connection, void **context,
                          enum MHD_RequestTerminationCode how);

/* ---- body.c ---- */

/* Keep a piece of the body, or only count it once the body is refused. Errors: QUIRE_LIMIT: close
 * the connection. */
int quire_http_body_add(quire_http *http, const char *data, size_t n);
/* Refuse a body by its announced length. */
void quire_http_body_announced(quire_http *http);
/* The body as a JSON object. A large body waits, at most opts.parse_wait_ms, while too many bytes
 * of other bodies are parsed. It counts until its texts are tokenized, because tokenizing also
 * takes many times their memory. Memory: end with quire_http_json_release(). Errors: http->err is
 * filled. */
int quire_http_json(quire_http *http, json_t **out);
void quire_http_json_release(quire_http *http, json_t *root);

/* ---- reply.c ---- */

/* Queue a reply with this body, and take over its memory. Errors: http->err. */
int quire_http_reply(quire_http *http, int status, const char *type, quire_bytes *body);
int quire_http_reply_json(quire_http *http, int status, quire_bytes *body);
int quire_http_reply_static(quire_http *http, const char *type, const void *data, size_t n);
/* A reply of unknown length, made by reader on this connection's thread. */
int quire_http_reply_stream(quire_http *http, const char *type, MHD_ContentReaderCallback reader,
                            void *ctx);
/* Queue a reply without a body: to a question for the allowed methods (OPTIONS). methods: static.
 * Errors: http->err. */
int quire_http_reply_options(quire_http *http, const char *methods);
/* Queue the reply for http->err. False if this failed, too. */
bool quire_http_reply_error(quire_http *http);

/* Whether the request may continue: QUIRE_OK. Errors, with http->err filled: QUIRE_CANCELED (the
 * client is gone), QUIRE_LIMIT (request_time_max_s), QUIRE_AGAIN (the server stops). */
int quire_http_check(quire_http *http);
/* Call around anything that waits: MHD's idle timeout is meant for clients, not for the server. */
void quire_http_wait_begin(quire_http *http);
void quire_http_wait_end(quire_http *http);

/* A query argument; NULL when absent. */
const char *quire_http_query(quire_http *http, const char *name);
/* The salt of the caller's tenant and a cache_salt. */
void quire_http_salt(const quire_http *http, const char *cache_salt, quire_tenant_salt *out);

#endif /* QUIRE_SERVER_HTTP_H */
