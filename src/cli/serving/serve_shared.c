/* serve_shared.c - see serve_shared.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_shared.h"

#include "base/check.h"
#include "server/tenant.h"
#include "store/valkey/valkey_store.h"

#include <stdlib.h>
#include <string.h>

#define US_PER_S  1000000u
#define US_PER_MS 1000u

/* The store's options, with a password that the caller frees. */
static int opts_make(quire_valkey_store_opts *out, char **password, const quire_serve_args *args,
                     quire_error *err)
{
    size_t n;

    *password = NULL;
    *out = (quire_valkey_store_opts)QUIRE_VALKEY_STORE_OPTS_INIT;
    out->url = args->store;
    out->secret_file = args->store_key_file;
    out->user = args->store_user;
    out->password = args->store_password;
    out->ca_file = args->store_tls_ca;
    out->cert_file = args->store_tls_cert;
    out->key_file = args->store_tls_key;
    out->ttl_s = (args->store_ttl_us + US_PER_S - 1) / US_PER_S;
    out->quota_bytes = args->store_quota_bytes;
    out->timeout_ms = (uint32_t)((args->store_timeout_us + US_PER_MS - 1) / US_PER_MS);
    out->latency_ms = out->timeout_ms / 2;
    out->tenant_bytes = quire_tenant_salts_bytes;
    if (args->store_password_file != NULL) {
        if (args->store_password != NULL) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "store_password and store_password_file: only one of them");
        }
        QUIRE_TRY(quire_read_file(args->store_password_file, password, &n, err));
        (*password)[strcspn(*password, "\r\n")] = '\0';
        out->password = *password;
    }
    return QUIRE_OK;
}

static void password_free(char *password)
{
    if (password != NULL) {
        explicit_bzero(password, strlen(password));
        free(password);
    }
}

/* A setting that has a meaning with a store only. */
static const char *orphan(const quire_serve_args *args)
{
    return args->store_key_file != NULL        ? "store_key_file"
           : args->store_user != NULL          ? "store_user"
           : args->store_password != NULL      ? "store_password"
           : args->store_password_file != NULL ? "store_password_file"
           : args->store_quota_bytes != 0      ? "store_quota"
           : args->store_tls_ca != NULL        ? "store_tls_ca"
           : args->store_tls_cert != NULL      ? "store_tls_cert"
           : args->store_tls_key != NULL       ? "store_tls_key"
                                               : NULL;
}

int quire_serve_shared_check(const quire_serve_args *args, quire_error *err)
{
    quire_valkey_store_opts opts;
    char *password;
    int rc;

    if (args->store == NULL) {
        const char *name = orphan(args);

        return name != NULL ? quire_error_set(err, QUIRE_INVAL, "%s needs a store", name)
                            : QUIRE_OK;
    }
    if (args->no_prefix_cache) {
        return quire_error_set(err, QUIRE_INVAL, "store needs the prefix cache");
    }
    rc = opts_make(&opts, &password, args, err);
    rc = rc == QUIRE_OK ? quire_valkey_store_check(&opts, err) : rc;
    password_free(password);
    return rc;
}

static void log_trouble(void *ctx, const char *line)
{
    quire_serve_log_line(ctx, QUIRE_LOG_ERRORS, "store: %s", line);
}

int quire_serve_shared_open(quire_store **out, const quire_serve_args *args,
                            const uint64_t identity[2], const quire_serve_log *log,
                            quire_error *err)
{
    quire_valkey_store_opts opts;
    char *password;
    int rc;

    *out = NULL;
    if (args->store == NULL) {
        return QUIRE_OK;
    }
    rc = opts_make(&opts, &password, args, err);
    if (rc == QUIRE_OK) {
        opts.identity[0] = identity[0];
        opts.identity[1] = identity[1];
        opts.log = log_trouble;
        opts.log_ctx = (void *)(uintptr_t)log;
        rc = quire_valkey_store_create(out, &opts, err);
    }
    password_free(password);
    return rc;
}
