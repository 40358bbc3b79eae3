/* sessions.c - see sessions.h.
 *
 * Sessions are in a hash table by tenant and id, and in a list by last use. A session closed while
 * a request uses it leaves both at once, and is freed when the request leaves it. So a request
 * reads its session without a lock.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/sessions_object.h"
#include "model/text.h"

#include "base/check.h"
#include "base/hash.h"
#include "engine/kept_tokens.h"

#include <stdlib.h>
#include <string.h>

/* ---- content ---- */

static void content_free(session *s)
{
    free(s->messages);
    free(s->tokens);
    s->messages = NULL;
    s->tokens = NULL;
    s->n_messages = s->n_tokens = s->n_turns = 0;
    s->text_bytes = 0;
}

static void session_free(session *s)
{
    content_free(s);
    free(s->tenant);
    free(s);
}

/* Copy text with its end to *at, advance *at; returns the copy. */
static const char *text_copy(char **at, const char *text)
{
    const size_t n = strlen(text) + 1;
    char *copy = memcpy(*at, text, n);

    *at += n;
    return copy;
}

/* Messages and their texts in one allocation of *bytes bytes of text. */
static quire_chat_message *messages_copy(const quire_chat_message *messages, size_t n, size_t bytes)
{
    quire_chat_message *copy = malloc((n + 1) * sizeof(*copy) + bytes);
    char *at;

    if (copy == NULL) {
        return NULL;
    }
    at = (char *)(copy + n + 1);
    for (size_t i = 0; i < n; i++) {
        copy[i].role = text_copy(&at, messages[i].role);
        copy[i].content = text_copy(&at, messages[i].content);
        copy[i].extra = messages[i].extra != NULL ? text_copy(&at, messages[i].extra) : NULL;
    }
    return copy;
}

/* ---- table and list ---- */

static uint64_t name_hash(const void *tenant, uint32_t tenant_bytes, const char *id)
{
    const uint64_t hash = quire_hash_add(QUIRE_HASH_INIT, &tenant_bytes, sizeof(tenant_bytes));

    return quire_hash_add(quire_hash_add(hash, tenant, tenant_bytes), id, strlen(id));
}

/* The link to a session in its bucket; the link is NULL if the session does not exist. */
static session **place_of(const quire_sessions *t, const void *tenant, uint32_t tenant_bytes,
                          const char *id)
{
    const uint64_t hash = name_hash(tenant, tenant_bytes, id);
    session **at = &t->buckets[hash & (t->n_buckets - 1)];

    while (*at != NULL &&
           ((*at)->hash != hash || (*at)->tenant_bytes != tenant_bytes ||
            strcmp((*at)->id, id) != 0 ||
            (tenant_bytes > 0 && memcmp((*at)->tenant, tenant, tenant_bytes) != 0))) {
        at = &(*at)->next;
    }
    return at;
}

session *quire_sessions_find(const quire_sessions *sessions, const void *tenant,
                             uint32_t tenant_bytes, const char *id)
{
    return *place_of(sessions, tenant, tenant_bytes, id);
}

static void list_remove(quire_sessions *t, session *s)
{
    *(s->newer != NULL ? &s->newer->older : &t->newest) = s->older;
    *(s->older != NULL ? &s->older->newer : &t->oldest) = s->newer;
    s->newer = s->older = NULL;
}

static void list_put_first(quire_sessions *t, session *s)
{
    s->older = t->newest;
    *(t->newest != NULL ? &t->newest->newer : &t->oldest) = s;
    t->newest = s;
}

static void list_use(quire_sessions *t, session *s)
{
    sessions_list_lock(t);
    list_remove(t, s);
    list_put_first(t, s);
    sessions_list_unlock(t);
}

/* Remove a session from table and list. */
static void session_unlink(quire_sessions *t, session *s)
{
    session **at = place_of(t, s->tenant, s->tenant_bytes, s->id);

    QUIRE_CHECK(*at == s);
    *at = s->next;
    s->next = NULL;
    sessions_list_lock(t);
    list_remove(t, s);
    sessions_list_unlock(t);
    t->count--;
    t->changes++;
}

static void changed(quire_sessions *t, session *s)
{
    s->changed = ++t->changes;
}

static void session_link(quire_sessions *t, session *s)
{
    session **bucket = &t->buckets[s->hash & (t->n_buckets - 1)];

    s->next = *bucket;
    *bucket = s;
    sessions_list_lock(t);
    list_put_first(t, s);
    sessions_list_unlock(t);
    t->count++;
}

int quire_sessions_create(quire_sessions **out, const quire_model *model,
                          const quire_sessions_opts *opts)
{
    quire_sessions *t = calloc(1, sizeof(*t));

    *out = NULL;
    QUIRE_FAIL_IF(t == NULL, QUIRE_NOMEM);
    t->lock = &t->mutex;
    t->list_lock = &t->list_mutex;
    t->model = model;
    t->opts = *opts;
    for (t->n_buckets = 16; t->n_buckets < opts->sessions_max && t->n_buckets < 1u << 20;) {
        t->n_buckets *= 2;
    }
    t->buckets = calloc(t->n_buckets, sizeof(session *));
    if (t->buckets == NULL || pthread_mutex_init(&t->mutex, NULL) != 0) {
        free(t->buckets);
        free(t);
        return QUIRE_NOMEM;
    }
    QUIRE_CHECK(pthread_mutex_init(&t->list_mutex, NULL) == 0);
    *out = t;
    return QUIRE_OK;
}

void quire_sessions_destroy(quire_sessions *t)
{
    if (t == NULL) {
        return;
    }
    while (t->newest != NULL) {
        session *s = t->newest;

        session_unlink(t, s);
        session_free(s);
    }
    while (t->evicted != NULL) {
        session *s = t->evicted;

        t->evicted = s->next;
        session_free(s);
    }
    (void)pthread_mutex_destroy(&t->list_mutex);
    (void)pthread_mutex_destroy(&t->mutex);
    free(t->buckets);
    free(t);
}

/* ---- use ---- */

static bool is_expired(const quire_sessions *t, const session *s, uint64_t now_us)
{
    return t->opts.ttl_us > 0 && !s->is_in_use &&
           quire_session_age_us(s->used_us, now_us) >= t->opts.ttl_us;
}

/* Evict a session to make room for another. */
static int evict(quire_sessions *t, quire_error *err)
{
    session *s = t->oldest;

    if (t->count < t->opts.sessions_max) {
        return QUIRE_OK;
    }
    while (s != NULL && s->is_in_use) {
        s = s->newer;
    }
    if (s == NULL) {
        return quire_error_set(err, QUIRE_LIMIT, "all %u sessions are in use",
                               t->opts.sessions_max);
    }
    session_unlink(t, s);
    content_free(s);
    s->next = t->evicted;
    t->evicted = s;
    t->evictions_total++;
    return QUIRE_OK;
}

static session *session_new(const void *tenant, uint32_t tenant_bytes, const char *id)
{
    session *s = calloc(1, sizeof(*s));

    if (s == NULL) {
        return NULL;
    }
    s->tenant = malloc(tenant_bytes > 0 ? tenant_bytes : 1);
    if (s->tenant == NULL) {
        free(s);
        return NULL;
    }
    if (tenant_bytes > 0) {
        memcpy(s->tenant, tenant, tenant_bytes);
    }
    s->tenant_bytes = tenant_bytes;
    s->hash = name_hash(tenant, tenant_bytes, id);
    memcpy(s->id, id, strlen(id) + 1);
    return s;
}

static int enter(quire_sessions *t, session *found, session *fresh, uint64_t now_us,
                 quire_session_ref *out, quire_error *err)
{
    session *s = found != NULL ? found : fresh;

    if (s == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for a session");
    }
    if (found != NULL && found->is_in_use) {
        return quire_error_set(err, QUIRE_AGAIN, "session \"%s\" is in use by another request",
                               found->id);
    }
    if (found == NULL) {
        QUIRE_TRY(evict(t, err));
        s->owner = ++t->owner_last;
        s->created_us = now_us;
        session_link(t, s);
    } else if (is_expired(t, found, now_us)) {
        content_free(found);
        s->created_us = now_us;
        t->evictions_total++;
        changed(t, found);
    }
    s->is_in_use = true;
    s->used_us = now_us;
    list_use(t, s);
    *out = (quire_session_ref)(uintptr_t)s;
    return QUIRE_OK;
}

int quire_sessions_enter(quire_sessions *sessions, const void *tenant, uint32_t tenant_bytes,
                         const char *id, uint64_t now_us, quire_session_ref *out, quire_error *err)
{
    const size_t n = strnlen(id, QUIRE_SESSION_ID_MAX + 1);
    session *fresh, *found;
    int rc;

    *out = 0;
    if (n == 0 || n > QUIRE_SESSION_ID_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "session_id has %s %u bytes",
                               n == 0 ? "0, not 1 to" : "more than", QUIRE_SESSION_ID_MAX);
    }
    sessions_lock(sessions);
    found = *place_of(sessions, tenant, tenant_bytes, id);
    fresh = found == NULL ? session_new(tenant, tenant_bytes, id) : NULL;
    rc = enter(sessions, found, fresh, now_us, out, err);
    if (rc < 0 && fresh != NULL) {
        session_free(fresh);
    }
    sessions_unlock(sessions);
    return rc;
}

void quire_sessions_leave(quire_sessions *sessions, quire_session_ref ref, uint64_t now_us)
{
    session *s = session_of(ref);

    sessions_lock(sessions);
    s->is_in_use = false;
    if (s->is_closed) {
        session_free(s);
    } else {
        s->used_us = now_us;
        list_use(sessions, s);
        changed(sessions, s);
    }
    sessions_unlock(sessions);
}

uint64_t quire_sessions_owner(const quire_sessions *sessions, quire_session_ref ref)
{
    (void)sessions;
    return session_of(ref)->owner;
}

/* ---- turns ---- */

static bool same_text(const quire_chat_message *a, const quire_chat_message *b)
{
    return strcmp(a->role, b->role) == 0 && strcmp(a->content, b->content) == 0;
}

static bool same_message(const quire_chat_message *a, const quire_chat_message *b)
{
    return same_text(a, b) && (a->extra != NULL) == (b->extra != NULL) &&
           (a->extra == NULL || strcmp(a->extra, b->extra) == 0);
}

/* A message that the request sends again at the same place. Clients leave out the thoughts of
 * answers; the session has them (see quire_chat_answer_extra()). */
static quire_chat_message again(const session *s, size_t i, const quire_chat_message *message)
{
    static const char thoughts[] = "{\"reasoning_content\"";

    if (i < s->n_messages && message->extra == NULL && s->messages[i].extra != NULL &&
        strncmp(s->messages[i].extra, thoughts, sizeof(thoughts) - 1) == 0 &&
        same_text(message, &s->messages[i])) {
        return s->messages[i];
    }
    return *message;
}

/* Number of the session's messages that precede the request's messages [*from, ...). */
static size_t messages_before(const session *s, const quire_chat_message *messages, size_t n,
                              size_t *from)
{
    size_t n_same = 0, n_system = 0;

    *from = 0;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(messages[i].role, "assistant") == 0) {
            return 0;
        }
    }
    while (n_same < n && n_same < s->n_messages &&
           same_message(&messages[n_same], &s->messages[n_same])) {
        n_same++;
        n_system += n_system + 1 == n_same && quire_chat_message_instructs(&messages[n_system]);
    }
    if (n_same == n) {
        return 0;
    }
    *from = n_system; /* the session has them already */
    return s->n_messages;
}

int quire_sessions_history(const quire_sessions *sessions, quire_session_ref ref,
                           const quire_chat_message *messages, size_t n_messages,
                           quire_chat_message **out, size_t *n_out)
{
    const session *s = session_of(ref);
    size_t from, n_before;

    (void)sessions;
    *out = NULL;
    *n_out = 0;
    QUIRE_FAIL_IF(n_messages > QUIRE_SESSION_MESSAGES_MAX, QUIRE_LIMIT);
    n_before = messages_before(s, messages, n_messages, &from);
    QUIRE_FAIL_IF(n_before + n_messages - from > QUIRE_SESSION_MESSAGES_MAX, QUIRE_LIMIT);
    *out = malloc((n_before + n_messages - from + 1) * sizeof(**out));
    QUIRE_FAIL_IF(*out == NULL, QUIRE_NOMEM);
    for (size_t i = 0; i < n_before; i++) {
        (*out)[(*n_out)++] = s->messages[i];
    }
    for (size_t i = from; i < n_messages; i++) {
        (*out)[*n_out] = n_before == 0 ? again(s, i, &messages[i]) : messages[i];
        (*n_out)++;
    }
    return QUIRE_OK;
}

int quire_sessions_tokenize(const quire_sessions *sessions, quire_session_ref ref, const char *text,
                            size_t text_bytes, const quire_tokenize_opts *opts,
                            quire_joined_tokens *out, quire_error *err)
{
    const session *s = ref != 0 ? session_of(ref) : NULL;
    const quire_kept_tokens kept = { s != NULL ? s->tokens : NULL, s != NULL ? s->n_tokens : 0 };

    return quire_kept_tokens_join(sessions->model, &kept, text, text_bytes, opts, out, err);
}

void quire_sessions_device_set(quire_sessions *sessions, quire_session_ref ref, uint32_t device)
{
    session *s = session_of(ref);

    sessions_lock(sessions);
    s->device_now = device;
    sessions_unlock(sessions);
}

void quire_sessions_owner_device_set(quire_sessions *sessions, uint64_t owner, uint32_t device)
{
    sessions_lock(sessions);
    for (session *s = sessions->newest; s != NULL; s = s->older) {
        s->device_now = s->owner == owner ? device : s->device_now;
    }
    sessions_unlock(sessions);
}

/* The messages of a turn, copied. Errors: QUIRE_LIMIT, QUIRE_NOMEM. */
static int turn_copy(const quire_chat_message *messages, size_t n, quire_chat_message **out,
                     size_t *bytes)
{
    *bytes = 0;
    QUIRE_FAIL_IF(n > QUIRE_SESSION_MESSAGES_MAX, QUIRE_LIMIT);
    for (size_t i = 0; i < n; i++) {
        *bytes += strlen(messages[i].role) + strlen(messages[i].content) + 2;
        *bytes += messages[i].extra != NULL ? strlen(messages[i].extra) + 1 : 0;
        QUIRE_FAIL_IF(*bytes > QUIRE_SESSION_BYTES_MAX, QUIRE_LIMIT);
    }
    *out = messages_copy(messages, n, *bytes);
    return *out != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

int quire_sessions_commit(quire_sessions *sessions, quire_session_ref ref,
                          const quire_chat_message *messages, size_t n_messages, int32_t *tokens,
                          uint32_t n_tokens, uint64_t now_us)
{
    session *s = session_of(ref);
    quire_chat_message *new_messages;
    size_t bytes;
    int rc = turn_copy(messages, n_messages, &new_messages, &bytes);

    if (rc < 0) {
        free(tokens);
        return rc;
    }
    sessions_lock(sessions);
    free(s->messages);
    free(s->tokens);
    s->messages = new_messages;
    s->n_messages = (uint32_t)n_messages;
    s->text_bytes = bytes;
    s->tokens = tokens;
    s->n_tokens = n_tokens;
    s->device = s->device_now;
    s->n_turns++;
    s->used_us = now_us;
    changed(sessions, s);
    rc = s->is_closed ? QUIRE_NOTFOUND : QUIRE_OK;
    sessions_unlock(sessions);
    return rc;
}

/* ---- after a restart ---- */

static void content_set(session *s, const quire_session_info *saved, quire_chat_message *messages,
                        int32_t *tokens)
{
    s->created_us = saved->created_us;
    s->used_us = saved->used_us;
    s->n_turns = saved->n_turns;
    s->messages = messages;
    s->n_messages = saved->n_messages;
    s->text_bytes = saved->text_bytes;
    s->tokens = tokens;
    s->n_tokens = saved->n_tokens;
    s->device = s->device_now = saved->device;
}

/* Enter a session with its content into the table, which takes them over. */
static int restore(quire_sessions *t, session *s, uint64_t now_us, uint64_t *change)
{
    QUIRE_FAIL_IF(is_expired(t, s, now_us), QUIRE_CANCELED);
    QUIRE_FAIL_IF(t->count >= t->opts.sessions_max, QUIRE_LIMIT);
    QUIRE_FAIL_IF(quire_sessions_find(t, s->tenant, s->tenant_bytes, s->id) != NULL, QUIRE_AGAIN);
    s->owner = ++t->owner_last;
    session_link(t, s);
    changed(t, s);
    *change = s->changed;
    return QUIRE_OK;
}

int quire_sessions_restore(quire_sessions *sessions, const quire_session_info *saved,
                           uint64_t now_us, uint64_t *change)
{
    session *s = session_new(saved->tenant, saved->tenant_bytes, saved->id);
    const size_t n_bytes = saved->n_tokens * sizeof(int32_t);
    quire_chat_message *messages = NULL;
    int32_t *tokens = malloc(n_bytes + 1);
    size_t text_bytes;
    int rc = turn_copy(saved->messages, saved->n_messages, &messages, &text_bytes);

    if (rc == QUIRE_OK && (s == NULL || tokens == NULL)) {
        rc = QUIRE_NOMEM;
    }
    if (rc < 0) {
        free(messages);
        free(tokens);
        if (s != NULL) {
            session_free(s);
        }
        return rc;
    }
    if (n_bytes > 0) {
        memcpy(tokens, saved->tokens, n_bytes);
    }
    content_set(s, saved, messages, tokens);
    s->text_bytes = text_bytes;
    sessions_lock(sessions);
    rc = restore(sessions, s, now_us, change);
    sessions_unlock(sessions);
    if (rc < 0) {
        session_free(s);
    }
    return rc;
}

/* ---- the end ---- */

int quire_sessions_close(quire_sessions *sessions, const void *tenant, uint32_t tenant_bytes,
                         const char *id, uint64_t *owner)
{
    session *s;

    *owner = 0;
    sessions_lock(sessions);
    s = *place_of(sessions, tenant, tenant_bytes, id);
    if (s != NULL) {
        *owner = s->owner;
        session_unlink(sessions, s);
        sessions_list_lock(sessions);
        s->is_closed = true;
        sessions_list_unlock(sessions);
        if (!s->is_in_use) {
            session_free(s);
        }
    }
    sessions_unlock(sessions);
    return s != NULL ? QUIRE_OK : QUIRE_NOTFOUND;
}

uint64_t quire_sessions_expire(quire_sessions *sessions, uint64_t now_us)
{
    uint64_t owner = 0;
    session *s;

    sessions_lock(sessions);
    s = sessions->evicted;
    if (s != NULL) {
        sessions->evicted = s->next;
    } else {
        s = sessions->oldest;
        while (s != NULL && s->is_in_use) {
            s = s->newer;
        }
        s = s != NULL && is_expired(sessions, s, now_us) ? s : NULL;
        if (s != NULL) {
            session_unlink(sessions, s);
            sessions->evictions_total++;
        }
    }
    if (s != NULL) {
        owner = s->owner;
        session_free(s);
    }
    sessions_unlock(sessions);
    return owner;
}
