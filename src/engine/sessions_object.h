/* sessions_object.h - the table of sessions; for sessions*.c only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_SESSIONS_OBJECT_H
#define QUIRE_ENGINE_SESSIONS_OBJECT_H

#include "engine/sessions.h"

#include "base/check.h"

#include <pthread.h>

typedef struct session {
    struct session *newer, *older; /* list by last use */
    struct session *next;          /* next of the same bucket, or of the evicted ones */
    uint64_t hash;
    char id[QUIRE_SESSION_ID_MAX + 1];
    void *tenant;
    uint32_t tenant_bytes;
    uint64_t owner, created_us, used_us;
    uint32_t n_turns;
    quire_chat_message *messages; /* [n_messages], with their texts in one allocation */
    uint32_t n_messages;
    size_t text_bytes;
    int32_t *tokens;
    uint32_t n_tokens;
    uint64_t changed;    /* see quire_session_info */
    uint32_t device;     /* likewise */
    uint32_t device_now; /* of the turn under way */
    bool is_in_use, is_closed;
} session;

struct quire_sessions {
    pthread_mutex_t mutex;
    pthread_mutex_t *lock; /* the same lock, for const readers */
    /* Held, inside of the other, while the list and is_closed change. The engine asks for these
     * under the lock of an inbox, which visitors of sessions may want under the other lock. */
    pthread_mutex_t list_mutex;
    pthread_mutex_t *list_lock; /* likewise */
    const quire_model *model;
    quire_sessions_opts opts;
    session **buckets; /* [n_buckets], a power of two */
    uint32_t n_buckets;
    session *newest, *oldest;
    uint32_t count;
    session *evicted; /* evicted, pages not dropped yet */
    uint64_t owner_last;
    uint64_t evictions_total;
    uint64_t changes; /* grows with each change of a field that quire_sessions_restore() takes */
};

static inline void sessions_lock(const quire_sessions *sessions)
{
    QUIRE_CHECK(pthread_mutex_lock(sessions->lock) == 0);
}

static inline void sessions_unlock(const quire_sessions *sessions)
{
    QUIRE_CHECK(pthread_mutex_unlock(sessions->lock) == 0);
}

static inline void sessions_list_lock(const quire_sessions *sessions)
{
    QUIRE_CHECK(pthread_mutex_lock(sessions->list_lock) == 0);
}

static inline void sessions_list_unlock(const quire_sessions *sessions)
{
    QUIRE_CHECK(pthread_mutex_unlock(sessions->list_lock) == 0);
}

/* The session of a request that uses it. */
static inline session *session_of(quire_session_ref ref)
{
    session *s = (session *)(uintptr_t)ref; /* see quire_sessions_enter() */

    QUIRE_CHECK(s != NULL && s->is_in_use);
    return s;
}

/* The session with this id, or NULL. The lock is held. */
session *quire_sessions_find(const quire_sessions *sessions, const void *tenant,
                             uint32_t tenant_bytes, const char *id);

#endif /* QUIRE_ENGINE_SESSIONS_OBJECT_H */
