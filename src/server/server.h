/* server.h - HTTP in front of one engine: OpenAI's API, administration, metrics, the dashboard.
 *
 * The server uses libmicrohttpd with one thread per connection (at most connections_max); a
 * streaming reply blocks only its own thread. Requests go to the engine. While waiting, the server
 * notices that a client is gone and cancels its request.
 *
 * Life: start() listens at once; until ready() provides an engine, all paths but / answer 503.
 * drain() refuses new generations (503); accepted ones continue and other paths are served. stop()
 * ends the server.
 *
 * Tenants: an API key names its tenant. The salt of the prefix tree is the tenant and the request's
 * cache_salt, both with their lengths, so that different pairs give different bytes. Without keys
 * all clients are one tenant, and the server binds to loopback addresses only.
 *
 * TLS: with a certificate the server speaks TLS alone, by GnuTLS.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_SERVER_H
#define QUIRE_SERVER_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/tuning.h"
#include "quire/error.h"
#include "server/kv_events/kv_events.h"
#include "trace/online/record.h"

typedef struct quire_server quire_server;

#define QUIRE_SERVER_KEYS_MAX      1024u
#define QUIRE_SERVER_KEY_BYTES_MAX 256u
#define QUIRE_SERVER_CHOICES_MAX   16u /* n */

typedef struct quire_server_key {
    const char *key;
    const char *tenant;
    bool is_admin; /* administration only, no generations */
    /* Service classes by name; see service_tier.h. NULL = any; NULL = the server's default. */
    const char *max_class;
    const char *default_class;
} quire_server_key;

typedef struct quire_server_opts {
    const char *host;             /* numeric address or "localhost"; default 127.0.0.1 */
    uint16_t port;                /* 0 = a free one: quire_server_port() */
    const quire_server_key *keys; /* [n_keys], copied */
    uint32_t n_keys;
    const char *tls_cert; /* path of a PEM file; NULL = no TLS. Read by start */
    const char *tls_key;
    const char *allowed_hosts; /* origin.h; NULL = none beside loopback */
    const char *cors_origins;  /* origin.h; NULL = none */
    size_t body_bytes_max;     /* default 8 MiB: 413 */
    size_t header_bytes_max;   /* of a connection's memory pool; default 32 KiB: 431 */
    uint32_t parse_wait_ms;   /* longest wait of a large body for others to be tokenized; default 10
                                 s: 503 */
    uint32_t connections_max; /* default 256 */
    uint32_t idle_timeout_s;  /* of a connection; default 60 */
    uint32_t request_time_max_s; /* a request that takes longer is cancelled: 408, or the stream
                                    ends with an error; default 600, 0 = none */
    const char *model_name;      /* as shown by /v1/models */
    const char *kv_name;         /* formats, for /props and metrics; NULL = "" */
    const char *version;         /* of the program; NULL = "" */
    const char *lost_device;     /* the server went on without it; NULL = none */
    uint32_t page_tokens;        /* likewise */
    uint32_t n_running_max;      /* likewise: /props calls them slots */
    const char *page_curve;      /* JSON of quire tune-pages, for views; NULL = none */
    const char *chat_template;   /* a name or the text of a template; NULL = the model's */
    bool truncates_turns;        /* default of the request field context_overflow, */
    quire_context_overflow
        context_overflow;  /* or this one; quire_engine_context_check() allows it */
    uint32_t context_keep; /* default of the field context_keep */
    /* Default of the field retain, which quire_engine_retain_check() allows; policy NULL = none. */
    quire_retain_spec retain;
    /* Default of the field attend, which quire_engine_attend_check() allows if it leaves pages out;
     * 0 = none. */
    double attend_share;
    const char *const
        *accounts; /* [n_accounts], borrowed: names of the engine's accounts from 1 on */
    uint32_t n_accounts;
    quire_classes classes;     /* those of the engine; n = 0: one */
    const char *default_class; /* of requests that name none; NULL = "standard", or the lowest */
    quire_tune_bounds tune_bounds;    /* bounds for POST /v1/cache/tuning */
    quire_sampler_opts sampler;       /* defaults of requests */
    const quire_kv_events *kv_events; /* borrowed: for metrics; NULL = none */
    quire_record *record; /* borrowed: requests are recorded there; NULL = not recorded */
    void (*log)(void *ctx, const char *line); /* one line per request; NULL = none. Thread: any */
    void *log_ctx;
} quire_server_opts;

#define QUIRE_SERVER_OPTS_INIT                                                                     \
    {                                                                                              \
        .host = "127.0.0.1", .port = 8080, .body_bytes_max = (size_t)8 << 20,                      \
        .header_bytes_max = (size_t)32 << 10, .parse_wait_ms = 10000, .connections_max = 256,      \
        .idle_timeout_s = 60, .request_time_max_s = 600, .tune_bounds = QUIRE_TUNE_BOUNDS_INIT,    \
        .context_keep = 64, .sampler = QUIRE_SAMPLER_OPTS_INIT                                     \
    }

/* Check limits, host, lists, certificate, keys and classes, as start() does first. Errors:
 * QUIRE_INVAL, QUIRE_LIMIT, QUIRE_IO, QUIRE_UNSUPP (TLS), QUIRE_NOMEM. */
int quire_server_opts_check(const quire_server_opts *opts, quire_error *err);
/* Errors: QUIRE_INVAL (a host that is not loopback without keys, keys), QUIRE_IO (address in use:
 * err says which), QUIRE_NOMEM. */
int quire_server_start(quire_server **out, const quire_server_opts *opts, quire_error *err);
uint16_t quire_server_port(const quire_server *server);
/* engine: borrowed until stop; its classes are those of the options. */
void quire_server_ready(quire_server *server, quire_engine *engine);
/* New generations get 503; returns at once. */
void quire_server_drain(quire_server *server);
/* Whether no generation is being answered. Other requests do not delay a drain. */
bool quire_server_is_idle(const quire_server *server);
/* Cancel all requests and close all connections. */
void quire_server_stop(quire_server *server);

#endif /* QUIRE_SERVER_SERVER_H */
