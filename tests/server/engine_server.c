/* engine_server.c - a server with the real engine.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_server.h"

#include "server/tenant.h"

#include <string.h>

void engine_server_start_with(engine_server *s, uint32_t n_ctx, const engine_server_opts *opts)
{
    quire_runtime_opts runtime = bench_runtime_opts(n_ctx, opts->engine.retain_chunk != 0 ? 9 : 8);
    quire_engine_opts engine = opts->engine;
    quire_server_opts server = opts->server;
    quire_error err = QUIRE_ERROR_INIT;

    engine.n_running_max = 8;
    runtime.has_bounds = opts->server.attend_share > 0;
    runtime.kv_budget_bytes = opts->n_contexts * (n_ctx / 64) * tiny_page_bytes(64);
    if (opts->n_layer == 0) {
        *s = (engine_server){ .bench = bench_tiny(&engine, &runtime) };
    } else { /* each layer takes as much as the two of the other model */
        runtime.kv_budget_bytes *= opts->n_layer;
        *s = (engine_server){ .bench = bench_deep(opts->n_layer, &engine, &runtime) };
    }
    server.port = 0;
    server.model_name = "tiny";
    server.chat_template = "chatml";
    server.page_tokens = 64;
    server.n_running_max = 8;
    server.classes = engine.classes;
    if (quire_server_start(&s->server, &server, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    quire_server_ready(s->server, s->bench.engine);
    s->port = quire_server_port(s->server);
}

void engine_server_start(engine_server *s, uint32_t n_ctx, const quire_server_key *keys,
                         uint32_t n_keys)
{
    engine_server_opts opts = ENGINE_SERVER_OPTS_INIT;

    opts.server.keys = keys;
    opts.server.n_keys = n_keys;
    engine_server_start_with(s, n_ctx, &opts);
}

static const quire_server_key keys_of_tenants[] = {
    { .key = KEY_OF_A, .tenant = "a" },
    { .key = KEY_OF_B, .tenant = "b" },
    { .key = KEY_OF_ADMIN, .tenant = "root", .is_admin = true },
};
#define N_KEYS (sizeof keys_of_tenants / sizeof keys_of_tenants[0])

void engine_server_start_with_tenants(engine_server *s, uint32_t n_ctx)
{
    engine_server_start(s, n_ctx, keys_of_tenants, N_KEYS);
    s->key = KEY_OF_A;
}

/* Tenants with an account, in the order of the accounts. */
static const char *const names[] = { "a", "b" };
#define N_NAMES (sizeof names / sizeof names[0])

static uint16_t account_of(void *ctx, const void *tenant, uint32_t tenant_bytes)
{
    quire_tenant_names found;

    (void)ctx;
    assert_true(quire_tenant_salt_names(tenant, tenant_bytes, &found));
    for (uint16_t i = 0; i < N_NAMES; i++) {
        if (strcmp(found.tenant, names[i]) == 0) {
            return (uint16_t)(i + 1);
        }
    }
    return 0;
}

void engine_server_start_with_quota(engine_server *s, uint32_t n_ctx, uint64_t quota_bytes)
{
    const quire_account_opts accounts[N_NAMES] = { { quota_bytes, 1 }, { 0, 3 } };
    engine_server_opts opts = ENGINE_SERVER_OPTS_INIT;

    opts.engine.accounts = (quire_engine_accounts){ accounts, N_NAMES, account_of, NULL };
    opts.server.accounts = names;
    opts.server.n_accounts = N_NAMES;
    opts.server.keys = keys_of_tenants;
    opts.server.n_keys = N_KEYS;
    engine_server_start_with(s, n_ctx, &opts);
    s->key = KEY_OF_ADMIN;
}

void engine_server_start_pinned(engine_server *s, uint32_t n_ctx, uint64_t pinned_bytes,
                                engine_server_opts *opts)
{
    quire_classes_default(&opts->engine.classes);
    opts->engine.classes.items[0].is_pinned = true;
    opts->engine.pinned_bytes = pinned_bytes;
    opts->engine.precache.is_off = true;
    engine_server_start_with(s, n_ctx, opts);
}

void engine_server_stop(engine_server *s)
{
    quire_server_stop(s->server);
    bench_close(&s->bench);
}

json_t *post(const engine_server *s, int status, const char *path, const char *body)
{
    return http_json(s->port, &(http_call){ .path = path, .body = body, .key = s->key }, status);
}

json_t *get(const engine_server *s, int status, const char *path)
{
    return http_json(s->port, &(http_call){ .path = path, .key = s->key }, status);
}

json_t *drop(const engine_server *s, int status, const char *path)
{
    return http_json(s->port, &(http_call){ .method = "DELETE", .path = path, .key = s->key },
                     status);
}

int64_t cached_tokens(json_t *reply)
{
    return json_int_at(reply, "usage.prompt_tokens_details.cached_tokens");
}

int64_t prompt_tokens(json_t *reply)
{
    return json_int_at(reply, "usage.prompt_tokens");
}

int64_t completion_tokens(json_t *reply)
{
    return json_int_at(reply, "usage.completion_tokens");
}
