/* api_pins.c - /v1/cache/pins[/{name}]: pinned prefixes.
 *
 * A pin belongs to the key's tenant and a cache_salt; a key sees its own tenant's pins, an
 * administrator all of them (?tenant=NAME selects one; "tenant" in the body sets the tenant of a
 * new pin). Without ?cache_salt= a name is looked up without cache_salt.
 *
 * SPDX-License-Identifier: MIT */
#include "server/handlers.h"

#include "base/check.h"
#include "base/parse.h"
#include "engine/pins.h"
#include "server/prompt_tokens.h"
#include "server/service_tier.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LIST_DEFAULT 100
#define LIST_MAX     QUIRE_ENGINE_PINS_MAX
/* Interval between looks at a pin in computation; each also waits for the engine's next step. */
#define LOOK_NS 10000000L

/* ---- out ---- */

static void write_pin(quire_json_out *json, const quire_http *http, const quire_engine_pin *pin)
{
    quire_tenant_names names = { "", "" };

    (void)quire_tenant_salt_names(pin->tenant, pin->tenant_bytes, &names);
    quire_json_object(json, NULL);
    quire_json_string(json, "object", "cache.pin");
    quire_json_string(json, "name", pin->name);
    quire_json_string(json, "tenant", names.tenant);
    quire_json_string(json, "cache_salt", names.cache_salt);
    quire_json_string(json, "state", quire_engine_pin_state_name(pin->state));
    quire_json_string(json, "class", http->server->tiers.classes.items[pin->class_index].name);
    if (pin->retain[0] != '\0') {
        quire_json_string(json, "retain", pin->retain);
    } else {
        quire_json_null(json, "retain");
    }
    quire_json_u64(json, "tokens", pin->n_tokens);
    quire_json_u64(json, "held_tokens", pin->n_held_tokens);
    quire_json_u64(json, "cached_tokens", pin->n_cached_tokens);
    quire_json_u64(json, "bytes", pin->bytes);
    quire_json_u64(json, "age_s", pin->age_s);
    if (pin->ttl_s > 0) {
        quire_json_u64(json, "ttl_s", pin->ttl_s);
        if (pin->state == QUIRE_ENGINE_PIN_HELD) {
            quire_json_u64(json, "expires_in_s", pin->left_s);
        } else { /* its lifetime begins when it is held */
            quire_json_null(json, "expires_in_s");
        }
    } else {
        quire_json_null(json, "ttl_s");
        quire_json_null(json, "expires_in_s");
    }
    quire_json_object_end(json);
}

static int reply_pin(quire_http *http, int status, const quire_engine_pin *pin)
{
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };

    write_pin(&json, http, pin);
    return quire_http_reply_json(http, status, &body);
}

/* ---- in ---- */

/* http->work owns a new pin, so that the pin is dropped if its client gets no reply. */
typedef struct new_pin {
    quire_http *http;
    bool is_made;
    quire_engine_pin_params params;
    quire_tenant_salt salt;
    char name[QUIRE_ENGINE_PIN_NAME_MAX];
    quire_retain_spec retain;
    int32_t *tokens;
    quire_prompt_source source; /* the field with the tokens */
    bool is_background;
} new_pin;

/* Seconds as a number, or a text such as "30m"; 0 = no expiry. */
static uint64_t read_ttl(quire_fields *fields, uint64_t fallback)
{
    json_t *value = quire_field(fields, "ttl");
    uint64_t us = 0;

    if (value == NULL) {
        return fallback;
    }
    if (!json_is_string(value)) {
        return (uint64_t)quire_field_int(fields, "ttl", 0, 0, (int64_t)QUIRE_ENGINE_PIN_TTL_MAX_S);
    }
    if (quire_parse_duration(json_string_value(value), &us) < 0 ||
        us / 1000000 > QUIRE_ENGINE_PIN_TTL_MAX_S || (us > 0 && us < 1000000)) {
        quire_field_error(fields, "ttl",
                          "takes seconds, or a time such as \"30m\" from 1s to %" PRIu64
                          "d; 0 is until it is dropped",
                          QUIRE_ENGINE_PIN_TTL_MAX_S / 86400);
    }
    return us / 1000000;
}

static int read_tokens(quire_http *http, quire_fields *fields, new_pin *to)
{
    int32_t **tokens = &to->tokens;
    uint32_t *n = &to->params.n_tokens;
    json_t *array = quire_field_array(fields, "tokens", SIZE_MAX);
    json_t *messages = quire_field_array(fields, "messages", SIZE_MAX);
    json_t *text = quire_field(fields, "text");
    int rc = QUIRE_INVAL;

    (void)quire_field_string(fields, "text", SIZE_MAX);
    if (fields->err->http != 0) {
        return QUIRE_INVAL;
    }
    if ((array != NULL) + (messages != NULL) + (text != NULL) != 1) {
        quire_field_error(fields, "tokens", "is needed, or text or messages; one of the three");
        return QUIRE_INVAL;
    }
    if (array != NULL) {
        to->source = (quire_prompt_source){ "tokens", false };
        rc = quire_prompt_tokens_array(http, &to->source, array, tokens, n);
    } else if (messages != NULL) {
        to->source = (quire_prompt_source){ "messages", false };
        rc = quire_prompt_tokens_messages(http, &to->source, fields, tokens, n);
    } else {
        to->source = (quire_prompt_source){ "text", false };
        rc = quire_prompt_tokens_text(http, &to->source, text, tokens, n);
    }
    if (rc == QUIRE_OK && *n == 0) {
        quire_field_error(fields, to->source.field, "must not be empty");
        rc = QUIRE_INVAL;
    }
    return rc;
}

/* The tenant of a pin: the key's tenant, or the tenant that an administrator names. */
static const char *tenant_of(quire_http *http, const char *named)
{
    if (http->caller.is_tenant) {
        return http->caller.tenant;
    }
    if (named == NULL) {
        (void)quire_api_error_set(&http->err, 400, "invalid_value", "tenant",
                                  "tenant: is required, to say whose pin");
    }
    return named;
}

/* The pin that the path and the query name. Errors: http->err. */
static int pin_of(quire_http *http, quire_tenant_salt *salt, quire_engine_pin_name *out)
{
    const char *cache_salt = quire_http_query(http, "cache_salt");
    const char *named = quire_http_query(http, "tenant");
    const char *tenant = tenant_of(http, named);

    QUIRE_FAIL_IF(tenant == NULL, QUIRE_INVAL);
    if (strlen(tenant) > QUIRE_TENANT_MAX ||
        (cache_salt != NULL && strlen(cache_salt) > QUIRE_CACHE_SALT_MAX)) {
        return quire_api_error_set(&http->err, 404, "no_such_pin", "name", "no such pin");
    }
    quire_tenant_salt_make(salt, tenant, cache_salt != NULL ? cache_salt : "");
    *out = (quire_engine_pin_name){ salt->bytes, salt->n, http->item };
    return QUIRE_OK;
}

/* ---- creating ---- */

static int read_new(quire_http *http, quire_fields *fields, new_pin *to)
{
    const char *name = quire_field_string(fields, "name", QUIRE_ENGINE_PIN_NAME_MAX - 1);
    const char *salt = quire_field_string(fields, "cache_salt", QUIRE_CACHE_SALT_MAX);
    const char *named = quire_field_string(fields, "tenant", QUIRE_TENANT_MAX);
    const char *class_name = quire_field_string(fields, "class", QUIRE_TIER_TEXT_MAX);
    const char *tenant;

    to->params.ttl_s = read_ttl(fields, 0);
    to->is_background = quire_field_bool(fields, "background", false);
    if (!quire_field_retain(fields, &to->retain)) { /* as requests that do not name it */
        to->retain = http->server->opts.retain;
    }
    to->params.retain = to->retain.policy != NULL ? &to->retain : NULL;
    if (name != NULL) {
        (void)snprintf(to->name, sizeof to->name, "%s", name);
    } else {
        (void)snprintf(to->name, sizeof to->name, "pin-%016" PRIx64 "%06llx", http->server->id_base,
                       (unsigned long long)atomic_fetch_add(&http->server->n_ids, 1));
    }
    QUIRE_FAIL_IF(http->err.http != 0, QUIRE_INVAL);
    QUIRE_TRY(quire_tier_of_pin(&http->server->tiers, &http->caller, class_name,
                                &to->params.class_index, &http->err));
    tenant = tenant_of(http, named);
    QUIRE_FAIL_IF(tenant == NULL, QUIRE_INVAL);
    quire_tenant_salt_make(&to->salt, tenant, salt != NULL ? salt : "");
    to->params.name = to->name;
    to->params.tenant = to->salt.bytes;
    to->params.tenant_bytes = to->salt.n;
    QUIRE_TRY(read_tokens(http, fields, to));
    to->params.tokens = to->tokens;
    return QUIRE_OK;
}

/* The engine's message begins with "prompt:"; the client's field is "text". */
static int wrong_text(const new_pin *pin, const quire_error *cause)
{
    static const char prompt[] = "prompt: ";
    const size_t n = sizeof prompt - 1;
    quire_error renamed = QUIRE_ERROR_INIT;

    if (strncmp(cause->message, prompt, n) != 0) {
        return quire_api_error_from(&pin->http->err, cause);
    }
    (void)quire_error_set(&renamed, cause->status, "%s: %s", pin->source.field, cause->message + n);
    return quire_api_error_from(&pin->http->err, &renamed);
}

static int refused(const new_pin *pin, const quire_error *cause, uint64_t missing_bytes)
{
    quire_http *http = pin->http;
    quire_api_error *err = &http->err;

    switch (cause->status) {
    case QUIRE_NOPAGES:
        err->missing_bytes = missing_bytes;
        return quire_api_error_set(err, 507, "pin_budget", NULL, "%s", cause->message);
    case QUIRE_AGAIN:
        if (atomic_load(&http->server->is_draining) || atomic_load(&http->server->is_stopping)) {
            return quire_api_error_set(err, 503, "draining", NULL,
                                       "the server takes no more requests");
        }
        return quire_api_error_set(err, 409, "pin_exists", "name",
                                   "name: there is a pin of this name; renew it with POST to its "
                                   "path, or drop it first");
    case QUIRE_UNSUPP:
        if (strncmp(cause->message, "retain:", strlen("retain:")) == 0) {
            return quire_api_error_set(err, 400, "invalid_value", "retain", "%s", cause->message);
        }
        return quire_api_error_set(err, 501, "no_pins", NULL,
                                   "this server keeps no pins (max_pins, or no_prefix_cache)");
    case QUIRE_LIMIT:
        err->missing_bytes = missing_bytes; /* of the tenant's quota */
        return quire_api_error_set(err, 429, "pin_limit", NULL, "%s", cause->message);
    default:
        return wrong_text(pin, cause);
    }
}

/* Wait until the pin is held. The engine could wait, but does not check the client: the pin of a
 * client that is gone is dropped, as a request would be cancelled. */
static int wait_held(quire_http *http, const new_pin *pin, quire_engine_pin *out)
{
    const quire_engine_pin_name name = { pin->params.tenant, pin->params.tenant_bytes, pin->name };
    const struct timespec pause = { 0, LOOK_NS };

    while (out->state != QUIRE_ENGINE_PIN_HELD) {
        int rc = quire_http_check(http);

        if (rc < 0) {
            return rc;
        }
        (void)nanosleep(&pause, NULL);
        rc = quire_engine_pin_get(http->engine, &name, out);
        if (rc == QUIRE_NOTFOUND) {
            return quire_api_error_set(&http->err, 409, "pin_gone", NULL,
                                       "the pin went while it was computed: it was dropped, its "
                                       "text was invalidated, or computing it failed");
        }
        if (rc < 0) {
            return quire_api_error_set(&http->err, 503, "stopping", NULL, "the engine has ended");
        }
        if (out->state != QUIRE_ENGINE_PIN_HELD && quire_engine_is_lost(http->engine)) {
            return quire_api_error_set(&http->err, 503, "device_lost", NULL,
                                       "the device was lost while the pin was computed");
        }
    }
    return QUIRE_OK;
}

static void new_pin_release(void *work)
{
    new_pin *pin = work;
    const quire_engine_pin_name name = { pin->params.tenant, pin->params.tenant_bytes, pin->name };

    if (pin->is_made && (pin->http->status == 0 || pin->http->is_gone)) {
        (void)quire_engine_pin_drop(pin->http->engine, &name);
    }
    free(pin->tokens);
    free(pin);
}

static int make(quire_http *http, new_pin *pin, quire_engine_pin *made)
{
    quire_error cause = QUIRE_ERROR_INIT;
    uint64_t missing_bytes = 0;

    cause.status =
        quire_engine_pin_create(http->engine, &pin->params, made, &missing_bytes, &cause);
    if (cause.status < 0) {
        return refused(pin, &cause, missing_bytes);
    }
    pin->is_made = true;
    return pin->is_background ? QUIRE_OK : wait_held(http, pin, made);
}

int quire_api_pin_create(quire_http *http)
{
    quire_fields fields = { .err = &http->err };
    new_pin *pin = calloc(1, sizeof *pin);
    quire_engine_pin made = { 0 };
    int rc;

    if (pin == NULL) {
        return quire_api_error_nomem(&http->err);
    }
    pin->http = http;
    pin->params.is_background = true;
    http->work = pin;
    http->work_release = new_pin_release;
    QUIRE_TRY(quire_http_json(http, &fields.object));
    rc = read_new(http, &fields, pin);
    quire_http_json_release(http, fields.object);
    QUIRE_TRY(rc);
    QUIRE_TRY(make(http, pin, &made));
    return reply_pin(http, made.state == QUIRE_ENGINE_PIN_HELD ? 201 : 202, &made);
}

/* ---- existing pins ---- */

static int not_there(quire_http *http, int rc)
{
    if (rc == QUIRE_NOTFOUND) {
        return quire_api_error_set(&http->err, 404, "no_such_pin", "name", "no such pin");
    }
    return quire_api_error_set(&http->err, 503, "stopping", NULL, "the engine has ended");
}

int quire_api_pin_get(quire_http *http)
{
    quire_engine_pin pin;
    quire_engine_pin_name name;
    quire_tenant_salt salt;
    int rc;

    QUIRE_TRY(pin_of(http, &salt, &name));
    rc = quire_engine_pin_get(http->engine, &name, &pin);
    return rc < 0 ? not_there(http, rc) : reply_pin(http, 200, &pin);
}

/* Restart a pin's lifetime; without "ttl" the TTL stays the same. */
int quire_api_pin_renew(quire_http *http)
{
    quire_fields fields = { .err = &http->err };
    quire_engine_pin pin;
    quire_engine_pin_name name;
    quire_tenant_salt salt;
    uint64_t ttl_s;
    int rc;

    QUIRE_TRY(pin_of(http, &salt, &name));
    rc = quire_engine_pin_get(http->engine, &name, &pin);
    if (rc < 0) {
        return not_there(http, rc);
    }
    ttl_s = pin.ttl_s;
    if (http->body.n > 0) {
        QUIRE_TRY(quire_http_json(http, &fields.object));
        ttl_s = read_ttl(&fields, ttl_s);
        quire_http_json_release(http, fields.object);
        QUIRE_FAIL_IF(http->err.http != 0, QUIRE_INVAL);
    }
    rc = quire_engine_pin_renew(http->engine, &name, ttl_s, &pin);
    return rc < 0 ? not_there(http, rc) : reply_pin(http, 200, &pin);
}

int quire_api_pin_delete(quire_http *http)
{
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    quire_engine_pin_name name;
    quire_tenant_salt salt;
    int rc;

    QUIRE_TRY(pin_of(http, &salt, &name));
    rc = quire_engine_pin_drop(http->engine, &name);
    if (rc < 0) {
        return not_there(http, rc);
    }
    quire_json_object(&json, NULL);
    quire_json_string(&json, "name", http->item);
    quire_json_bool(&json, "deleted", true);
    quire_json_object_end(&json);
    return quire_http_reply_json(http, 200, &body);
}

/* ---- the list ---- */

static bool is_wanted(quire_http *http, const quire_engine_pin *pin)
{
    const char *tenant =
        http->caller.is_admin ? quire_http_query(http, "tenant") : http->caller.tenant;
    const char *cache_salt = quire_http_query(http, "cache_salt");
    quire_tenant_names names;

    return quire_tenant_salt_names(pin->tenant, pin->tenant_bytes, &names) &&
           (tenant == NULL || strcmp(tenant, names.tenant) == 0) &&
           (cache_salt == NULL || strcmp(cache_salt, names.cache_salt) == 0);
}

/* All pins of all tenants, from one call to the engine, so that none is missing or listed twice. */
static int all_pins(quire_http *http, quire_engine_pin **out, uint32_t *n)
{
    quire_engine_pin *pins = calloc(QUIRE_ENGINE_PINS_MAX, sizeof pins[0]);
    int found;

    if (pins == NULL) {
        return quire_api_error_nomem(&http->err);
    }
    found = quire_engine_pins_list(http->engine, NULL, 0, 0, pins, QUIRE_ENGINE_PINS_MAX, NULL);
    if (found < 0) {
        free(pins);
        return not_there(http, found);
    }
    *out = pins;
    *n = (uint32_t)found;
    return QUIRE_OK;
}

int quire_api_pins_list(quire_http *http)
{
    const char *text = quire_http_query(http, "limit");
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    quire_engine_pin *pins = NULL;
    int64_t limit = LIST_DEFAULT;
    uint64_t bytes = 0;
    uint32_t n_wanted = 0;
    uint32_t n = 0;

    if (text != NULL && quire_parse_i64(text, 1, LIST_MAX, &limit) < 0) {
        return quire_api_error_set(&http->err, 400, "invalid_value", "limit",
                                   "limit: must be within 1 .. %u", LIST_MAX);
    }
    QUIRE_TRY(all_pins(http, &pins, &n));
    quire_json_object(&json, NULL);
    quire_json_string(&json, "object", "list");
    quire_json_array(&json, "data");
    for (uint32_t i = 0; i < n; i++) {
        if (is_wanted(http, &pins[i])) {
            bytes += pins[i].bytes;
            if (n_wanted++ < limit) {
                write_pin(&json, http, &pins[i]);
            }
        }
    }
    quire_json_array_end(&json);
    quire_json_u64(&json, "total", n_wanted);
    quire_json_u64(&json, "bytes", bytes);
    quire_json_object_end(&json);
    free(pins);
    return quire_http_reply_json(http, 200, &body);
}
