/* server_fixture.c - a server in front of the double.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server_fixture.h"

#include "doze.h"
#include "model_fixture.h"

#include <stdio.h>
#include <string.h>

static void note_line(void *ctx, const char *line)
{
    server_fixture *fixture = ctx;
    size_t n;

    (void)pthread_mutex_lock(&fixture->lock);
    n = strlen(fixture->log);
    if (n > sizeof fixture->log / 2) { /* the newest lines are the ones that are asked for */
        memmove(fixture->log, fixture->log + n / 2, n - n / 2 + 1);
        n = strlen(fixture->log);
    }
    (void)snprintf(fixture->log + n, sizeof fixture->log - n, "%s\n", line);
    (void)pthread_mutex_unlock(&fixture->lock);
}

void server_fixture_wait_log(server_fixture *fixture, const char *text)
{
    bool is_there = false;

    while (!is_there) {
        (void)pthread_mutex_lock(&fixture->lock);
        is_there = strstr(fixture->log, text) != NULL;
        (void)pthread_mutex_unlock(&fixture->lock);
        test_doze();
    }
}

quire_server_opts server_fixture_opts(void)
{
    quire_server_opts opts = QUIRE_SERVER_OPTS_INIT;

    opts.port = 0;
    opts.model_name = "tiny";
    opts.chat_template = "chatml";
    opts.version = "0.0.0";
    opts.kv_name = "f16:f16";
    opts.page_tokens = 64;
    opts.n_running_max = 4;
    return opts;
}

void server_fixture_start(server_fixture *fixture, const quire_server_opts *opts)
{
    gguf_gen_opts shape;

    assert_true(gguf_gen_shape("tiny-llama", &shape));
    server_fixture_start_shape(fixture, opts, &shape);
}

void server_fixture_start_shape(server_fixture *fixture, const quire_server_opts *opts,
                                const gguf_gen_opts *shape)
{
    quire_server_opts own = opts != NULL ? *opts : server_fixture_opts();
    quire_error err = QUIRE_ERROR_INIT;

    *fixture = (server_fixture){ 0 };
    (void)pthread_mutex_init(&fixture->lock, NULL);
    fixture->model = fixture_open(fixture_generate(shape));
    fixture->engine = engine_double_create(fixture->model);
    engine_double_script(fixture->engine, &engine_script_hello);
    own.log = note_line;
    own.log_ctx = fixture;
    if (quire_server_start(&fixture->server, &own, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    fixture->port = quire_server_port(fixture->server);
    quire_server_ready(fixture->server, fixture->engine);
}

void server_fixture_start_with(server_fixture *fixture, const quire_server_key *keys,
                               uint32_t n_keys)
{
    quire_server_opts opts = server_fixture_opts();

    quire_classes_default(&opts.classes);
    opts.keys = keys;
    opts.n_keys = n_keys;
    server_fixture_start(fixture, &opts);
}

void server_fixture_stop(server_fixture *fixture)
{
    quire_server_stop(fixture->server);
    engine_double_destroy(fixture->engine);
    quire_model_close(fixture->model);
    fixture_generated_remove();
    (void)pthread_mutex_destroy(&fixture->lock);
}
