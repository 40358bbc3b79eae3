/* engine_server.h - a server with the real engine on a generated model.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_ENGINE_SERVER_H
#define QUIRE_TESTS_ENGINE_SERVER_H

#include "engine_fixture.h"
#include "http_client.h"
#include "server/server.h"

typedef struct engine_server {
    engine_bench bench;
    quire_server *server;
    uint16_t port;
    const char *key; /* of the calls below; NULL = none */
} engine_server;

typedef struct engine_server_opts {
    quire_engine_opts engine; /* its model and runtime are set */
    quire_server_opts server; /* its port too */
    uint32_t n_contexts;      /* that memory has room for; 0 = 1 */
    uint32_t n_layer;         /* of bench_deep(); 0 = bench_tiny() */
} engine_server_opts;

#define ENGINE_SERVER_OPTS_INIT                                                                    \
    {                                                                                              \
        .engine = QUIRE_ENGINE_OPTS_INIT, .server = QUIRE_SERVER_OPTS_INIT                         \
    }

void engine_server_start_with(engine_server *s, uint32_t n_ctx, const engine_server_opts *opts);
void engine_server_start(engine_server *s, uint32_t n_ctx, const quire_server_key *keys,
                         uint32_t n_keys);
/* With the keys of two tenants and of an administrator; the calls below have the first one. */
#define KEY_OF_A     "key-of-a"
#define KEY_OF_B     "key-of-b"
#define KEY_OF_ADMIN "key-of-admin"
void engine_server_start_with_tenants(engine_server *s, uint32_t n_ctx);
/* With keys KEY_OF_A, KEY_OF_B and KEY_OF_ADMIN as well. Tenant a may keep quota_bytes and has
 * weight 1; tenant b has no quota and weight 3. The calls below have the administrator's key. */
void engine_server_start_with_quota(engine_server *s, uint32_t n_ctx, uint64_t quota_bytes);
/* Without keys. Class 0 (realtime) has a pinned region of so many bytes, and nothing is computed
 * while the engine is idle; other options are the caller's. */
void engine_server_start_pinned(engine_server *s, uint32_t n_ctx, uint64_t pinned_bytes,
                                engine_server_opts *opts);
void engine_server_stop(engine_server *s);

/* POST with the key; fails the test unless the status is `status`. Memory: json_decref(). */
json_t *post(const engine_server *s, int status, const char *path, const char *body);
json_t *get(const engine_server *s, int status, const char *path);
json_t *drop(const engine_server *s, int status, const char *path);

int64_t cached_tokens(json_t *reply);
int64_t prompt_tokens(json_t *reply);
int64_t completion_tokens(json_t *reply);

#endif /* QUIRE_TESTS_ENGINE_SERVER_H */
