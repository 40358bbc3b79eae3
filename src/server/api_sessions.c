/* api_sessions.c - GET and DELETE /v1/cache/sessions[/{id}].
 *
 * A key sees its own tenant's sessions, an administrator all of them (?tenant=NAME selects one).
 * The same id may exist once per cache_salt; ?cache_salt=TEXT selects one.
 *
 * SPDX-License-Identifier: MIT */
#include "server/handlers.h"

#include "base/check.h"
#include "base/parse.h"
#include "engine/views.h"
#include "server/dropped.h"

#include <stdlib.h>
#include <string.h>

#define LIST_DEFAULT 100
#define LIST_MAX     1024

typedef struct found_session {
    char id[QUIRE_SESSION_ID_MAX + 1];
    unsigned char salt[QUIRE_PREFIX_SALT_MAX];
    uint32_t salt_bytes;
    quire_tenant_names names;
    quire_session_info info; /* its pointers are invalid */
    uint64_t kv_bytes;
    uint64_t own_kv_bytes;
} found_session;

/* The selection of sessions, and the sessions found. */
typedef struct session_list {
    quire_session_choice choice;
    const char *id; /* NULL = any */
    found_session *found;
    uint32_t n;
    uint32_t cap;
    uint32_t n_wanted; /* includes those beyond cap */
} session_list;

static bool is_wanted(const session_list *list, const quire_session_info *info,
                      quire_tenant_names *names)
{
    return info->tenant_bytes <= QUIRE_PREFIX_SALT_MAX &&
           quire_tenant_salt_names(info->tenant, info->tenant_bytes, names) &&
           (list->choice.tenant == NULL || strcmp(list->choice.tenant, names->tenant) == 0) &&
           (list->choice.cache_salt == NULL ||
            strcmp(list->choice.cache_salt, names->cache_salt) == 0) &&
           (list->id == NULL || strcmp(list->id, info->id) == 0);
}

static int collect(void *ctx, const quire_session_info *info)
{
    session_list *list = ctx;
    quire_tenant_names names;
    found_session *to;

    if (!is_wanted(list, info, &names) || list->n_wanted++ >= list->cap) {
        return 0;
    }
    to = &list->found[list->n];
    to->names = names;
    memcpy(to->id, info->id, strlen(info->id) + 1);
    memcpy(to->salt, info->tenant, info->tenant_bytes);
    to->salt_bytes = info->tenant_bytes;
    to->info = *info;
    list->n++;
    return 0;
}

static void list_fini(session_list *list)
{
    free(list->found);
}

/* The selection of the query. A key without administration sees only its own tenant. */
static quire_session_choice choice_of(quire_http *http)
{
    return (quire_session_choice){ http->caller.is_admin ? quire_http_query(http, "tenant")
                                                         : http->caller.tenant,
                                   quire_http_query(http, "cache_salt") };
}

static int list_make(session_list *list, quire_http *http, uint32_t cap)
{
    list->cap = cap;
    list->found = calloc(cap, sizeof list->found[0]);
    if (list->found == NULL) {
        return quire_api_error_nomem(&http->err);
    }
    (void)quire_sessions_visit(quire_engine_sessions(http->engine), NULL, 0, collect, list);
    return QUIRE_OK;
}

/* Fill in the cached bytes of the sessions. */
static int list_measure(session_list *list, quire_http *http)
{
    quire_session_kv *items = calloc((size_t)list->n + 1, sizeof items[0]);
    int rc;

    if (items == NULL) {
        return quire_api_error_nomem(&http->err);
    }
    for (uint32_t i = 0; i < list->n; i++) {
        const found_session *s = &list->found[i];

        items[i] =
            (quire_session_kv){ .tenant = s->salt, .tenant_bytes = s->salt_bytes, .id = s->id };
    }
    rc = quire_engine_sessions_kv(http->engine, items, list->n);
    for (uint32_t i = 0; i < list->n; i++) {
        list->found[i].kv_bytes = items[i].bytes;
        list->found[i].own_kv_bytes = items[i].own_bytes;
    }
    free(items);
    return rc < 0 ? quire_api_error_set(&http->err, 503, "stopping", NULL, "the engine has ended")
                  : QUIRE_OK;
}

static void write_session(quire_json_out *json, const found_session *s)
{
    const uint64_t now_us = quire_now_us();

    quire_json_object(json, NULL);
    quire_json_string(json, "id", s->id);
    quire_json_string(json, "tenant", s->names.tenant);
    quire_json_string(json, "cache_salt", s->names.cache_salt);
    quire_json_u64(json, "owner", s->info.owner);
    quire_json_bool(json, "in_use", s->info.is_in_use);
    quire_json_number(json, "age_ms", (double)(now_us - s->info.created_us) / 1000.0);
    quire_json_number(json, "idle_ms", (double)(now_us - s->info.used_us) / 1000.0);
    quire_json_u64(json, "turns", s->info.n_turns);
    quire_json_u64(json, "messages", s->info.n_messages);
    quire_json_u64(json, "tokens", s->info.n_tokens);
    quire_json_u64(json, "text_bytes", s->info.text_bytes);
    quire_json_u64(json, "kv_bytes", s->kv_bytes);
    quire_json_u64(json, "own_kv_bytes", s->own_kv_bytes);
    quire_json_object_end(json);
}

int quire_api_sessions_list(quire_http *http)
{
    session_list list = { .choice = choice_of(http) };
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    const char *text = quire_http_query(http, "limit");
    int64_t limit = LIST_DEFAULT;
    int rc;

    if (text != NULL && quire_parse_i64(text, 1, LIST_MAX, &limit) < 0) {
        return quire_api_error_set(&http->err, 400, "invalid_value", "limit",
                                   "limit: must be within 1 .. %d", LIST_MAX);
    }
    rc = list_make(&list, http, (uint32_t)limit);
    if (rc == QUIRE_OK) {
        rc = list_measure(&list, http);
    }
    if (rc == QUIRE_OK) {
        quire_json_object(&json, NULL);
        quire_json_string(&json, "object", "list");
        quire_json_u64(&json, "total", list.n_wanted);
        quire_json_array(&json, "data");
        for (uint32_t i = 0; i < list.n; i++) {
            write_session(&json, &list.found[i]);
        }
        quire_json_array_end(&json);
        quire_json_object_end(&json);
        rc = quire_http_reply_json(http, 200, &body);
    }
    list_fini(&list);
    return rc;
}

static int not_found(quire_http *http)
{
    return quire_api_error_set(&http->err, 404, "no_such_session", "session_id", "no such session");
}

int quire_api_session_get(quire_http *http)
{
    session_list list = { .choice = choice_of(http), .id = http->item };
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    int rc = list_make(&list, http, 1);

    if (rc == QUIRE_OK) {
        rc = list.n > 0 ? list_measure(&list, http) : not_found(http);
    }
    if (rc == QUIRE_OK) {
        write_session(&json, &list.found[0]);
        rc = quire_http_reply_json(http, 200, &body);
    }
    list_fini(&list);
    return rc;
}

int quire_api_session_delete(quire_http *http)
{
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    const quire_session_choice choice = choice_of(http);
    quire_prefix_dropped dropped = { 0 };

    QUIRE_TRY(quire_http_session_drop(http, http->item, &choice, &dropped));
    quire_json_object(&json, NULL);
    quire_json_string(&json, "id", http->item);
    quire_json_bool(&json, "deleted", true);
    quire_dropped_write(&json, &dropped);
    quire_json_object_end(&json);
    return quire_http_reply_json(http, 200, &body);
}

/* Close the sessions of this id (NULL = any) and drop their pages. A session closed meanwhile by
 * another request is not counted. */
static int drop_sessions(quire_http *http, const char *id, const quire_session_choice *choice,
                         quire_prefix_dropped *dropped, uint32_t *n_closed)
{
    session_list list = { .choice = *choice, .id = id };
    const uint32_t n_open = quire_sessions_count(quire_engine_sessions(http->engine));
    int rc = list_make(&list, http, n_open > 0 ? n_open : 1);

    *n_closed = 0;
    for (uint32_t i = 0; rc == QUIRE_OK && i < list.n; i++) {
        const found_session *s = &list.found[i];
        const quire_invalidate what = { .what = QUIRE_INVALIDATE_SESSION,
                                        .tenant = s->salt,
                                        .tenant_bytes = s->salt_bytes,
                                        .session_id = s->id };

        rc = quire_http_invalidate(http, &what, dropped);
        *n_closed += rc == QUIRE_OK;
        rc = rc == QUIRE_NOTFOUND ? QUIRE_OK : rc;
    }
    list_fini(&list);
    return rc;
}

int quire_http_session_drop(quire_http *http, const char *id, const quire_session_choice *choice,
                            quire_prefix_dropped *dropped)
{
    uint32_t n_closed;

    QUIRE_TRY(drop_sessions(http, id, choice, dropped, &n_closed));
    return n_closed > 0 ? QUIRE_OK : not_found(http);
}

int quire_api_sessions_delete(quire_http *http)
{
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    const quire_session_choice choice = choice_of(http);
    quire_prefix_dropped dropped = { 0 };
    uint32_t n_closed;

    QUIRE_TRY(drop_sessions(http, NULL, &choice, &dropped, &n_closed));
    quire_json_object(&json, NULL);
    quire_json_u64(&json, "deleted", n_closed);
    quire_dropped_write(&json, &dropped);
    quire_json_object_end(&json);
    return quire_http_reply_json(http, 200, &body);
}
