/* http.h - one HTTP request on its way through the server; for src/server only.
 *
 * The thread of its connection makes every call about a request. What its headers already decide
 * (no such path, wrong key, loading) is noted when they arrive and told when the body has gone by,
 * so that a client that is still sending can read the answer.
 *
 *   headers -> route, key, state of the server   body -> kept within body_bytes_max
 *   end of body -> handler: queues a reply, or fills err and returns an error
 *   completed -> log line, counters, release of what the handler left in `work`
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
#include "server/api_error.h"
#include "server/auth.h"
#include "server/fields.h"
#include "server/json_out.h"
#include "server/server.h"
#include "server/tenant.h"
#include "server/tier.h"

typedef struct quire_http quire_http;

typedef enum quire_access {
    QUIRE_ACCESS_PUBLIC,
    QUIRE_ACCESS_KEY,    /* any key */
    QUIRE_ACCESS_TENANT, /* a key that is not an administrator's */
    QUIRE_ACCESS_ADMIN
} quire_access;

/* In which states of the server a path is there. */
typedef enum quire_service {
    QUIRE_SERVICE_ALWAYS,
    QUIRE_SERVICE_LOADED, /* also while draining: who operates the server watches that */
    QUIRE_SERVICE_OPEN    /* neither while loading nor while draining; a drain waits for these */
} quire_service;

typedef struct quire_route {
    const char *method; /* "GET" serves HEAD too */
    const char *path;   /* a last '*' stands for what the handler finds in http->item */
    quire_access access;
    quire_service service;
    int (*handler)(quire_http *http);
} quire_route;

struct quire_server {
    quire_server_opts opts; /* texts are copies in `texts` */
    char *texts[6];
    quire_tiers tiers;
    quire_auth *auth;
    struct MHD_Daemon *daemon;
    uint16_t port;
    _Atomic(quire_engine *) engine; /* NULL until ready */
    atomic_bool is_draining;
    atomic_bool is_stopping;
    atomic_uint n_active;      /* between headers and the end of their reply: see is_active */
    atomic_uint n_connections; /* those beyond connections_max too */
    atomic_ullong replies_total[6];
    atomic_ullong client_gone_total;
    atomic_ullong n_ids;
    uint64_t id_base;     /* random: ids of two runs differ; in every id, so no secret */
    uint64_t note_key[2]; /* random and told to nobody: see note.c */
    /* Bytes of large bodies that are trees of values now: a tree takes many times its text. */
    pthread_mutex_t parse_lock;
    pthread_cond_t parse_room;
    size_t parse_bytes;
};

struct quire_http {
    quire_server *server;
    struct MHD_Connection *connection;
    const quire_route *route; /* NULL: none fits, see err */
    quire_engine *engine;     /* NULL while loading */
    quire_caller caller;
    const char *item; /* of the path behind the route's; "" */
    quire_bytes body;
    uint64_t body_seen_bytes;
    size_t parse_bytes; /* what of server->parse_bytes is this request's */
    uint64_t begun_us;
    quire_api_error err;
    int status; /* of the reply; 0 = none queued */
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
    const char *finish; /* static */
    /* What outlives the handler, as a stream does. */
    void *work;
    void (*work_release)(void *work);
};

static inline uint64_t quire_now_us(void)
{
    return quire_clock_ns() / 1000;
}

/* ---- route.c ---- */

/* What MHD calls. */
enum MHD_Result quire_http_access(void *server, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *data_bytes, void **context);
void quire_http_completed(void *server, struct MHD_Connection *connection, void **context,
                          enum MHD_RequestTerminationCode how);

/* ---- body.c ---- */

/* Keep a piece of the body, or only count it when it is not wanted any more.
 * Errors: QUIRE_LIMIT: close the connection. */
int quire_http_body_add(quire_http *http, const char *data, size_t n);
/* Whether the headers promise a body that is refused. */
void quire_http_body_announced(quire_http *http);
/* The body as a JSON object. A large one waits while too many bytes of bodies are trees already, up
 * to opts.parse_wait_ms; held until its texts are tokens, which takes many times their memory too.
 * Memory: end with quire_http_json_release(). Errors: http->err is filled. */
int quire_http_json(quire_http *http, json_t **out);
void quire_http_json_release(quire_http *http, json_t *root);

/* ---- reply.c ---- */

/* Queue a reply with this body, whose memory is taken. Errors: http->err. */
int quire_http_reply(quire_http *http, int status, const char *type, quire_bytes *body);
int quire_http_reply_json(quire_http *http, int status, quire_bytes *body);
int quire_http_reply_static(quire_http *http, const char *type, const void *data, size_t n);
/* A reply of unknown length, made by reader on this connection's thread. */
int quire_http_reply_stream(quire_http *http, const char *type, MHD_ContentReaderCallback reader,
                            void *ctx);
/* The reply for http->err. False when not even that could be queued. */
bool quire_http_reply_error(quire_http *http);

/* Whether the client is still there and the request may go on: QUIRE_OK; QUIRE_CANCELED (gone),
 * QUIRE_LIMIT (request_time_max_s), QUIRE_AGAIN (the server stops), with http->err filled. */
int quire_http_check(quire_http *http);
/* Around anything that waits: MHD's idle timeout is about the client, not about us. */
void quire_http_wait_begin(quire_http *http);
void quire_http_wait_end(quire_http *http);

/* A query argument; NULL when absent. */
const char *quire_http_query(quire_http *http, const char *name);
/* The engine's clock is the monotonic one. Salt of the caller's tenant and a cache_salt. */
void quire_http_salt(const quire_http *http, const char *cache_salt, quire_tenant_salt *out);

#endif /* QUIRE_SERVER_HTTP_H */
