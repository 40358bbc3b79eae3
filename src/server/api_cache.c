/* api_cache.c - POST /v1/cache/invalidate.
 *
 * One of four fields selects the target: "all": true; "session": id; "prefix": a text, tokens or
 * messages; or "tenant" alone. "tenant" and "cache_salt" select the owner of sessions and prefixes.
 *
 * SPDX-License-Identifier: MIT */
#include "server/handlers.h"

#include "base/check.h"
#include "server/dropped.h"
#include "server/prompt_tokens.h"

#include <stdlib.h>
#include <string.h>

typedef struct invalidation {
    quire_http *http;
    quire_fields fields;
    const char *tenant; /* NULL = not said */
    const char *cache_salt;
    quire_prefix_dropped dropped;
} invalidation;

int quire_http_invalidate(quire_http *http, const quire_invalidate *what,
                          quire_prefix_dropped *dropped)
{
    quire_prefix_dropped now = { 0 };
    const int rc = quire_engine_invalidate(http->engine, what, &now);

    if (rc == QUIRE_OK) {
        dropped->nodes += now.nodes;
        dropped->tokens += now.tokens;
        dropped->freed_bytes += now.freed_bytes;
    } else if (rc == QUIRE_NOMEM) {
        (void)quire_api_error_nomem(&http->err);
    } else if (rc != QUIRE_NOTFOUND) {
        (void)quire_api_error_set(&http->err, 503, "stopping", NULL, "the engine has ended");
    }
    return rc;
}

void quire_dropped_write(quire_json_out *json, const quire_prefix_dropped *dropped)
{
    quire_json_object(json, "dropped");
    quire_json_u64(json, "pages", dropped->nodes);
    quire_json_u64(json, "tokens", dropped->tokens);
    quire_json_u64(json, "freed_bytes", dropped->freed_bytes);
    quire_json_object_end(json);
}

/* ---- a tenant ---- */

/* Drop one cache_salt of the tenant, or all. */
static int drop_tenant(invalidation *inv)
{
    quire_invalidate what = { .what = QUIRE_INVALIDATE_TENANT };
    quire_tenant_salt salt;

    if (inv->cache_salt != NULL) {
        quire_tenant_salt_make(&salt, inv->tenant, inv->cache_salt);
    } else {
        quire_tenant_salts_begin(&salt, inv->tenant);
        what.what = QUIRE_INVALIDATE_TENANTS;
    }
    what.tenant = salt.bytes;
    what.tenant_bytes = salt.n;
    return quire_http_invalidate(inv->http, &what, &inv->dropped);
}

/* ---- a prefix ---- */

static int prefix_tokens(invalidation *inv, json_t *value, int32_t **tokens, uint32_t *n_tokens)
{
    static const quire_prompt_source prefix = { "prefix", true };

    if (json_is_string(value)) {
        return quire_prompt_tokens_text(inv->http, &prefix, value, tokens, n_tokens);
    }
    if (json_is_integer(json_array_get(value, 0))) {
        return quire_prompt_tokens_array(inv->http, &prefix, value, tokens, n_tokens);
    }
    if (json_is_object(json_array_get(value, 0))) {
        return quire_prompt_tokens_messages(inv->http, &prefix, &inv->fields, tokens, n_tokens);
    }
    quire_field_error(&inv->fields, "prefix", "must be a text, tokens or messages");
    return QUIRE_INVAL;
}

static int drop_prefix(invalidation *inv, json_t *value)
{
    quire_invalidate what = { .what = QUIRE_INVALIDATE_PREFIX };
    quire_tenant_salt salt;
    int32_t *tokens = NULL;
    int rc = prefix_tokens(inv, value, &tokens, &what.n_tokens);

    if (rc == QUIRE_OK) {
        quire_tenant_salt_make(&salt, inv->tenant != NULL ? inv->tenant : "",
                               inv->cache_salt != NULL ? inv->cache_salt : "");
        what.tenant = salt.bytes;
        what.tenant_bytes = salt.n;
        what.tokens = tokens;
        rc = quire_http_invalidate(inv->http, &what, &inv->dropped);
    }
    free(tokens);
    return rc == QUIRE_NOTFOUND ? QUIRE_OK : rc;
}

/* ---- the request ---- */

static int drop_all(invalidation *inv)
{
    const quire_invalidate what = { .what = QUIRE_INVALIDATE_ALL };

    return quire_http_invalidate(inv->http, &what, &inv->dropped);
}

static int drop(invalidation *inv)
{
    quire_fields *fields = &inv->fields;
    const bool all = quire_field_bool(fields, "all", false);
    const char *session = quire_field_string(fields, "session", QUIRE_SESSION_ID_MAX);
    json_t *prefix = quire_field(fields, "prefix");
    const quire_session_choice choice = { inv->tenant, inv->cache_salt };

    if (fields->err->http != 0) {
        return QUIRE_INVAL;
    }
    if (all + (session != NULL) + (prefix != NULL) > 1) {
        return quire_api_error_set(fields->err, 400, "invalid_value", "all",
                                   "one of all, session and prefix, not several");
    }
    if (all) {
        return drop_all(inv);
    }
    if (session != NULL) {
        return quire_http_session_drop(inv->http, session, &choice, &inv->dropped);
    }
    if (prefix != NULL && inv->tenant == NULL && quire_auth_has_keys(inv->http->server->auth)) {
        quire_field_error(fields, "tenant", "is required, to say whose prefix");
        return QUIRE_INVAL;
    }
    if (prefix != NULL) {
        return drop_prefix(inv, prefix);
    }
    if (inv->tenant == NULL) {
        return quire_api_error_set(fields->err, 400, "invalid_value", "all",
                                   "what to invalidate: all, session, prefix or tenant");
    }
    return drop_tenant(inv);
}

int quire_api_cache_invalidate(quire_http *http)
{
    invalidation inv = { .http = http, .fields = { .err = &http->err } };
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    int rc = QUIRE_INVAL;

    QUIRE_TRY(quire_http_json(http, &inv.fields.object));
    inv.tenant = quire_field_string(&inv.fields, "tenant", QUIRE_TENANT_MAX);
    inv.cache_salt = quire_field_string(&inv.fields, "cache_salt", QUIRE_CACHE_SALT_MAX);
    if (http->err.http == 0) {
        rc = drop(&inv);
    }
    quire_http_json_release(http, inv.fields.object);
    QUIRE_TRY(rc);
    quire_json_object(&json, NULL);
    quire_dropped_write(&json, &inv.dropped);
    quire_json_object_end(&json);
    return quire_http_reply_json(http, 200, &body);
}
