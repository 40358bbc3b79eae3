/* sessions_look.c - reading a table of sessions; see sessions.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/sessions_object.h"

#include <string.h>

/* ---- looking ---- */

static quire_session_info info_of(const session *s)
{
    return (quire_session_info){
        .id = s->id,
        .tenant = s->tenant,
        .tenant_bytes = s->tenant_bytes,
        .owner = s->owner,
        .created_us = s->created_us,
        .used_us = s->used_us,
        .n_turns = s->n_turns,
        .messages = s->messages,
        .n_messages = s->n_messages,
        .text_bytes = s->text_bytes,
        .tokens = s->tokens,
        .n_tokens = s->n_tokens,
        .changed = s->changed,
        .device = s->device,
        .is_in_use = s->is_in_use,
    };
}

int quire_sessions_visit(const quire_sessions *sessions, const void *tenant, uint32_t tenant_bytes,
                         int (*visit)(void *ctx, const quire_session_info *info), void *ctx)
{
    int rc = 0;

    sessions_lock(sessions);
    for (const session *s = sessions->newest; s != NULL && rc == 0; s = s->older) {
        const quire_session_info info = info_of(s);

        if (tenant == NULL ||
            (s->tenant_bytes == tenant_bytes && memcmp(s->tenant, tenant, tenant_bytes) == 0)) {
            rc = visit(ctx, &info);
        }
    }
    sessions_unlock(sessions);
    return rc;
}

int quire_sessions_look(const quire_sessions *sessions, const void *tenant, uint32_t tenant_bytes,
                        const char *id, void (*look)(void *ctx, const quire_session_info *info),
                        void *ctx)
{
    const session *s;

    sessions_lock(sessions);
    s = quire_sessions_find(sessions, tenant, tenant_bytes, id);
    if (s != NULL) {
        const quire_session_info info = info_of(s);

        look(ctx, &info);
    }
    sessions_unlock(sessions);
    return s != NULL ? QUIRE_OK : QUIRE_NOTFOUND;
}

/* ---- figures ---- */

typedef struct figures {
    uint32_t count;
    uint64_t evictions_total;
    uint64_t changes;
} figures;

static figures figures_now(const quire_sessions *sessions)
{
    figures now;

    sessions_lock(sessions);
    now = (figures){ sessions->count, sessions->evictions_total, sessions->changes };
    sessions_unlock(sessions);
    return now;
}

uint32_t quire_sessions_count(const quire_sessions *sessions)
{
    return figures_now(sessions).count;
}

uint64_t quire_sessions_evictions_total(const quire_sessions *sessions)
{
    return figures_now(sessions).evictions_total;
}

uint64_t quire_sessions_changes(const quire_sessions *sessions)
{
    return figures_now(sessions).changes;
}

bool quire_sessions_is_closed(const quire_sessions *sessions, quire_session_ref ref)
{
    const session *s = session_of(ref);
    bool is_closed;

    sessions_list_lock(sessions);
    is_closed = s->is_closed;
    sessions_list_unlock(sessions);
    return is_closed;
}

bool quire_sessions_has_owner(const quire_sessions *sessions, uint64_t owner)
{
    const session *s;
    bool has;

    sessions_list_lock(sessions);
    for (s = sessions->newest; s != NULL && s->owner != owner; s = s->older) {
    }
    has = s != NULL;
    sessions_list_unlock(sessions);
    return has;
}
