/* response_store.c - see response_store.h.
 *
 * Entries are in a list, the one used last first, and in a table of chains by the hash of their id.
 *
 * SPDX-License-Identifier: MIT */
#include "server/response_store.h"

#include "base/check.h"
#include "base/hash.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 1024u /* a power of two */

/* The messages of a turn, held by its response and by the turns that follow. */
typedef struct turn {
    struct turn *before;
    uint32_t n_holders;
    size_t bytes;
    char *messages; /* JSON array */
} turn;

typedef struct entry {
    struct entry *newer, *older; /* by use */
    struct entry *next;          /* of the slot */
    char id[QUIRE_RESPONSE_ID_MAX];
    quire_tenant_salt salt;
    turn *turn;
    char *reply;
} entry;

struct quire_response_store {
    quire_response_limits limits;
    pthread_mutex_t lock;
    entry *slots[SLOTS];
    entry *newest, *oldest;
    uint32_t n;
    size_t bytes;
};

int quire_response_store_create(quire_response_store **out, const quire_response_limits *limits)
{
    quire_response_store *store = calloc(1, sizeof *store);

    *out = store;
    QUIRE_FAIL_IF(store == NULL, QUIRE_NOMEM);
    store->limits = limits != NULL
                        ? *limits
                        : (quire_response_limits){ QUIRE_RESPONSES_MAX, QUIRE_RESPONSES_BYTES_MAX };
    (void)pthread_mutex_init(&store->lock, NULL);
    return QUIRE_OK;
}

/* ---- turns and entries ---- */

static void turn_release(quire_response_store *store, turn *t)
{
    while (t != NULL && --t->n_holders == 0) {
        turn *before = t->before;

        store->bytes -= t->bytes;
        free(t->messages);
        free(t);
        t = before;
    }
}

static entry **slot_of(quire_response_store *store, const char *id)
{
    return &store->slots[quire_hash_add(QUIRE_HASH_INIT, id, strlen(id)) % SLOTS];
}

static bool is_same_salt(const quire_tenant_salt *a, const quire_tenant_salt *b)
{
    return a->n == b->n && memcmp(a->bytes, b->bytes, a->n) == 0;
}

static entry *find(quire_response_store *store, const quire_tenant_salt *salt, const char *id)
{
    for (entry *e = *slot_of(store, id); e != NULL; e = e->next) {
        if (strcmp(e->id, id) == 0 && is_same_salt(&e->salt, salt)) {
            return e;
        }
    }
    return NULL;
}

static void list_remove(quire_response_store *store, entry *e)
{
    *(e->newer != NULL ? &e->newer->older : &store->newest) = e->older;
    *(e->older != NULL ? &e->older->newer : &store->oldest) = e->newer;
}

static void list_push(quire_response_store *store, entry *e)
{
    e->newer = NULL;
    e->older = store->newest;
    *(store->newest != NULL ? &store->newest->newer : &store->oldest) = e;
    store->newest = e;
}

static void touch(quire_response_store *store, entry *e)
{
    list_remove(store, e);
    list_push(store, e);
}

static void entry_free(quire_response_store *store, entry *e)
{
    store->bytes -= strlen(e->reply);
    turn_release(store, e->turn);
    free(e->reply);
    free(e);
}

static void entry_drop(quire_response_store *store, entry *e)
{
    entry **at = slot_of(store, e->id);

    while (*at != e) {
        at = &(*at)->next;
    }
    *at = e->next;
    list_remove(store, e);
    store->n--;
    entry_free(store, e);
}

void quire_response_store_destroy(quire_response_store *store)
{
    if (store == NULL) {
        return;
    }
    while (store->oldest != NULL) {
        entry_drop(store, store->oldest);
    }
    (void)pthread_mutex_destroy(&store->lock);
    free(store);
}

/* ---- adding ---- */

/* An entry of its own turn, not in the store. Errors: NULL. */
static entry *entry_make(const quire_response *response)
{
    entry *e = calloc(1, sizeof *e);
    turn *t = calloc(1, sizeof *t);
    char *messages = json_dumps(response->messages, JSON_COMPACT);
    char *reply = strdup(response->reply);

    if (e == NULL || t == NULL || messages == NULL || reply == NULL) {
        free(e);
        free(t);
        free(messages);
        free(reply);
        return NULL;
    }
    *t = (turn){ .n_holders = 1,
                 .bytes = strlen(messages) + sizeof *t + sizeof *e,
                 .messages = messages };
    (void)snprintf(e->id, sizeof e->id, "%s", response->id);
    e->salt = *response->salt;
    e->turn = t;
    e->reply = reply;
    return e;
}

/* Put an entry behind its predecessor. Errors: QUIRE_NOTFOUND. */
static int entry_link(quire_response_store *store, entry *e, const char *previous_id)
{
    entry *previous;

    if (previous_id == NULL) {
        return QUIRE_OK;
    }
    previous = find(store, &e->salt, previous_id);
    QUIRE_FAIL_IF(previous == NULL, QUIRE_NOTFOUND);
    e->turn->before = previous->turn;
    previous->turn->n_holders++;
    return QUIRE_OK;
}

/* Bytes that an entry keeps in the store: its own, and those of the turns before it. */
static size_t bytes_of(const entry *e)
{
    size_t bytes = strlen(e->reply);

    for (const turn *t = e->turn; t != NULL; t = t->before) {
        bytes += t->bytes;
    }
    return bytes;
}

int quire_response_store_add(quire_response_store *store, const quire_response *response)
{
    entry *e = entry_make(response);
    int rc;

    QUIRE_FAIL_IF(e == NULL, QUIRE_NOMEM);
    (void)pthread_mutex_lock(&store->lock);
    store->bytes += e->turn->bytes + strlen(e->reply);
    rc = entry_link(store, e, response->previous_id);
    if (rc == QUIRE_OK && bytes_of(e) > store->limits.bytes_max) {
        rc = QUIRE_LIMIT;
    }
    if (rc < 0) {
        entry_free(store, e);
        (void)pthread_mutex_unlock(&store->lock);
        return rc;
    }
    while (store->n > 0 &&
           (store->n >= store->limits.n_max || store->bytes > store->limits.bytes_max)) {
        entry_drop(store, store->oldest);
    }
    e->next = *slot_of(store, e->id);
    *slot_of(store, e->id) = e;
    list_push(store, e);
    store->n++;
    (void)pthread_mutex_unlock(&store->lock);
    return QUIRE_OK;
}

/* ---- reading ---- */

/* Put the messages of a turn before those in `all`. */
static int prepend(json_t **all, const turn *t)
{
    /* A text that a model wrote may hold a zero byte. */
    json_t *messages = json_loads(t->messages, JSON_ALLOW_NUL, NULL);

    if (messages == NULL || json_array_extend(messages, *all) != 0) {
        json_decref(messages);
        return QUIRE_NOMEM;
    }
    json_decref(*all);
    *all = messages;
    return QUIRE_OK;
}

int quire_response_store_chain(quire_response_store *store, const quire_tenant_salt *salt,
                               const char *id, json_t **messages)
{
    int rc = QUIRE_OK;
    entry *e;

    *messages = json_array();
    QUIRE_FAIL_IF(*messages == NULL, QUIRE_NOMEM);
    (void)pthread_mutex_lock(&store->lock);
    e = find(store, salt, id);
    if (e == NULL) {
        rc = QUIRE_NOTFOUND;
    } else {
        touch(store, e);
        for (const turn *t = e->turn; t != NULL && rc == QUIRE_OK; t = t->before) {
            rc = prepend(messages, t);
        }
    }
    (void)pthread_mutex_unlock(&store->lock);
    if (rc < 0) {
        json_decref(*messages);
        *messages = NULL;
    }
    return rc;
}

int quire_response_store_get(quire_response_store *store, const quire_tenant_salt *salt,
                             const char *id, char **reply)
{
    entry *e;

    *reply = NULL;
    (void)pthread_mutex_lock(&store->lock);
    e = find(store, salt, id);
    if (e != NULL) {
        touch(store, e);
        *reply = strdup(e->reply);
    }
    (void)pthread_mutex_unlock(&store->lock);
    return e == NULL ? QUIRE_NOTFOUND : *reply == NULL ? QUIRE_NOMEM : QUIRE_OK;
}

int quire_response_store_drop(quire_response_store *store, const quire_tenant_salt *salt,
                              const char *id)
{
    entry *e;

    (void)pthread_mutex_lock(&store->lock);
    e = find(store, salt, id);
    if (e != NULL) {
        entry_drop(store, e);
    }
    (void)pthread_mutex_unlock(&store->lock);
    return e != NULL ? QUIRE_OK : QUIRE_NOTFOUND;
}

uint32_t quire_response_store_count(const quire_response_store *store)
{
    return store->n;
}

size_t quire_response_store_bytes(const quire_response_store *store)
{
    return store->bytes;
}
