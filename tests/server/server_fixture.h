/* server_fixture.h - a server on a loopback port, with the double of the engine behind it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_SERVER_FIXTURE_H
#define QUIRE_TESTS_SERVER_FIXTURE_H

#include <pthread.h>

#include "engine_double.h"
#include "gguf_gen.h"
#include "http_client.h"
#include "server/server.h"

typedef struct server_fixture {
    quire_model *model;
    quire_engine *engine;
    quire_server *server;
    uint16_t port;
    pthread_mutex_t lock;
    char log[4096]; /* lines so far */
} server_fixture;

/* A generated model, a server on a free port, an engine that answers with engine_script_hello. opts
 * NULL = defaults. */
void server_fixture_start(server_fixture *fixture, const quire_server_opts *opts);
/* Start with the default classes and these keys, of static storage; NULL and 0 = none. */
void server_fixture_start_with(server_fixture *fixture, const quire_server_key *keys,
                               uint32_t n_keys);
/* Start with a generated model of this shape. */
void server_fixture_start_shape(server_fixture *fixture, const quire_server_opts *opts,
                                const gguf_gen_opts *shape);
void server_fixture_stop(server_fixture *fixture);
quire_server_opts server_fixture_opts(void);

/* Wait until a line of the log holds text. */
void server_fixture_wait_log(server_fixture *fixture, const char *text);

#endif /* QUIRE_TESTS_SERVER_FIXTURE_H */
