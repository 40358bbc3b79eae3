/* valkey_drop.c - ending records of the shared store on all machines. See valkey_epoch.h.
 *
 * A drop holds in this process from the call on: no get finds the records that the drop ends, also
 * while the drop waits for a server. This includes gets that were under way when the drop came.
 * When a server has taken the drop, it is published, so that other machines ask again for records
 * that they noted as stored.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_internal.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool has_root(const quire_store_drop *what)
{
    static const quire_page_key none;

    return !quire_page_key_is(&what->root, &none);
}

static bool is_text(const quire_store_drop *what)
{
    return what->what == QUIRE_STORE_DROP_TEXT || what->what == QUIRE_STORE_DROP_BEHIND;
}

bool quire_vk_drop_may_end(const quire_vk_drop *drop, const quire_page_text *text)
{
    const quire_store_drop *what = &drop->what;

    switch (what->what) {
    case QUIRE_STORE_DROP_ALL:
    case QUIRE_STORE_DROP_SALT:
    case QUIRE_STORE_DROP_SALTS:
        return quire_store_drop_has_salt(what, text);
    case QUIRE_STORE_DROP_TEXT:
    case QUIRE_STORE_DROP_BEHIND:
        return !has_root(what) || quire_page_key_is(&what->root, &text->root);
    }
    return true;
}

/* Whether a drop ends a text; of a text whose ancestors are not known, yes. */
static bool ends(quire_valkey_store *m, const quire_vk_drop *drop, const quire_page_text *text)
{
    const uint64_t root = quire_lineage_id(&m->lineage, &text->root);
    const uint64_t key = quire_lineage_id(&m->lineage, &drop->what.key);
    bool is_whole;
    uint32_t n;

    if (!is_text(&drop->what) || !quire_vk_drop_may_end(drop, text)) {
        return quire_vk_drop_may_end(drop, text);
    }
    if (key == root || quire_page_key_is(&text->key, &drop->what.key)) {
        return key == root || drop->what.what == QUIRE_STORE_DROP_TEXT;
    }
    n = quire_lineage_list(&m->lineage, quire_lineage_id(&m->lineage, &text->parent), root,
                           m->ancestors, QUIRE_SEAL_ANCESTORS_MAX, &is_whole);
    for (uint32_t i = 0; i < n; i++) {
        if (memcmp(m->ancestors + (size_t)i * 8, &key, 8) == 0) {
            return true;
        }
    }
    return !is_whole;
}

static void mark(quire_valkey_store *m, const quire_vk_drop *drop, const quire_vk_jobs *jobs)
{
    for (quire_vk_job *job = jobs->first; job != NULL; job = job->next) {
        job->is_dropped = job->is_dropped || ends(m, drop, &job->text);
    }
}

bool quire_vk_drop_is_pending(quire_valkey_store *m, const quire_vk_job *job)
{
    for (const quire_vk_drop *drop = m->drops; drop != NULL; drop = drop->next) {
        if (ends(m, drop, &job->text)) {
            return true;
        }
    }
    return false;
}

/* A drop of the whole model stands for all drops before it of which no server is being told. */
static void drops_merge(quire_valkey_store *m)
{
    const quire_vk_drop *last = NULL;
    uint32_t n_merged = 0;

    for (const quire_vk_drop *drop = m->drops; drop != NULL; drop = drop->next) {
        last = drop->what.what == QUIRE_STORE_DROP_ALL ? drop : last;
    }
    for (quire_vk_drop **at = &m->drops; last != NULL && *at != last;) {
        quire_vk_drop *drop = *at;

        if (drop->is_away || drop->is_done) {
            at = &drop->next;
            continue;
        }
        *at = drop->next;
        free(drop);
        n_merged++;
    }
    (void)pthread_mutex_lock(&m->lock);
    m->n_drops_waiting -= n_merged;
    (void)pthread_mutex_unlock(&m->lock);
}

void quire_vk_drops_take(quire_valkey_store *m, quire_vk_drop *drops, const quire_vk_jobs *fresh)
{
    quire_vk_drop **end = &m->drops;

    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = drops;
    for (const quire_vk_drop *drop = drops; drop != NULL; drop = drop->next) {
        mark(m, drop, &m->gets);
        mark(m, drop, &m->waiting);
        mark(m, drop, &m->puts);
        for (quire_vk_job *job = fresh->first; job != NULL; job = job->next) {
            job->is_dropped =
                job->is_dropped || (job->stamp < drop->number && ends(m, drop, &job->text));
        }
    }
    drops_merge(m);
}

/* ---- the caller's side ---- */

/* Finished gets that poll has not given back yet. */
static void done_mark(quire_valkey_store *m, const quire_vk_drop *drop)
{
    for (quire_vk_job *job = m->done.first; job != NULL; job = job->next) {
        quire_transfer *t = job->transfer;

        if (!t->is_put && t->result == QUIRE_STORE_OK && quire_vk_drop_may_end(drop, &job->text)) {
            t->result = QUIRE_STORE_ABSENT;
        }
    }
}

static void drop_copy(quire_vk_drop *drop, const quire_store_drop *what)
{
    drop->what = *what;
    drop->what.salt = drop->salt;
    if (what->salt_bytes > 0) {
        memcpy(drop->salt, what->salt, what->salt_bytes);
    }
}

int quire_vk_drop_call(quire_store *store, const quire_store_drop *what)
{
    const uint64_t one = 1;
    quire_valkey_store *m = quire_vk_self(store);
    quire_vk_drop *drop = calloc(1, sizeof *drop);
    quire_vk_drop **end = &m->new_drops;
    int rc;

    QUIRE_FAIL_IF(drop == NULL, QUIRE_NOMEM);
    drop_copy(drop, what);
    (void)pthread_mutex_lock(&m->lock);
    if (m->n_drops_waiting >= QUIRE_VK_DROPS_PENDING_MAX) {
        drop->what = (quire_store_drop){ .what = QUIRE_STORE_DROP_ALL };
    }
    m->n_drops_waiting++;
    drop->number = ++m->drops_total;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = drop;
    done_mark(m, drop);
    quire_seen_forget(&m->seen);
    rc = m->stats.state == QUIRE_STORE_DEGRADED ? QUIRE_IO : QUIRE_OK;
    (void)pthread_mutex_unlock(&m->lock);
    (void)!write(m->wake_fd, &one, sizeof one);
    return rc;
}

/* ---- telling the servers ---- */

/* How a scope's key is changed. */
typedef enum change {
    APPEND, /* another drop of a text */
    RENEW,  /* another epoch */
    REMOVE  /* no epoch: the next writer makes one. A full server takes this, and nothing else */
} change;

/* A drop's command under way. */
typedef struct telling {
    quire_valkey_store *m;
    quire_vk_drop *drop;
    quire_vk_scope *scope;
    change how;
} telling;

static void told(void *ctx, const quire_resp *reply);

static quire_vk_cmd *command_of(telling *t)
{
    static const quire_vk_arg words[] = {
        [APPEND] = { "APPEND", 6 }, [RENEW] = { "SET", 3 }, [REMOVE] = { "UNLINK", 6 }
    };
    static const uint32_t n_args[] = { [APPEND] = 3, [RENEW] = 5, [REMOVE] = 2 };
    const quire_valkey_name *name = &t->scope->name;
    unsigned char value[QUIRE_EPOCH_ENTRY_BYTES];
    char ttl[24];
    const int n_ttl = snprintf(ttl, sizeof ttl, "%" PRIu64, 2 * t->m->opts.ttl_s);
    size_t n = sizeof value;

    if (t->how == APPEND) {
        quire_vk_drop_entry(quire_lineage_id(&t->m->lineage, &t->drop->what.key),
                            t->drop->what.what == QUIRE_STORE_DROP_TEXT, value);
    } else {
        n = quire_vk_scope_value(t->scope, value);
    }
    return quire_vk_cmd_new((quire_vk_arg[]){ words[t->how],
                                              { name->text, name->n },
                                              { value, n },
                                              QUIRE_VK_WORD("EX"),
                                              { ttl, (size_t)n_ttl } },
                            n_args[t->how], quire_valkey_slot(name->text, name->n), told, t);
}

static void telling_end(telling *t, bool is_done)
{
    t->drop->is_away = false;
    t->drop->is_done = is_done;
    t->drop->retry_us = quire_vk_now_us() + QUIRE_VK_DROP_RETRY_US;
    quire_vk_scope_release(t->scope);
    free(t);
}

static void tell(telling *t, change how)
{
    quire_vk_cmd *cmd;

    t->how = how;
    cmd = command_of(t);
    if (cmd != NULL) {
        quire_vk_cluster_send(t->m->cluster, cmd);
    } else {
        telling_end(t, false);
    }
}

/* An APPEND tells the length: of a key that was not there (its epoch got lost), or of a list that
 * has become too long. Then the epoch is replaced. */
static bool is_to_replace(const quire_resp *reply)
{
    return reply->integer < 2 * (long long)QUIRE_EPOCH_ENTRY_BYTES ||
           reply->integer % QUIRE_EPOCH_ENTRY_BYTES != 0 ||
           reply->integer > (long long)QUIRE_EPOCH_ENTRY_BYTES * (QUIRE_EPOCH_DROPS_MAX + 1);
}

static void told(void *ctx, const quire_resp *reply)
{
    telling *t = ctx;
    const bool is_number = reply != NULL && reply->type == QUIRE_RESP_INTEGER;

    if (reply == NULL) {
        telling_end(t, false);
    } else if (t->how == APPEND && is_number && is_to_replace(reply)) {
        tell(t, RENEW);
    } else if (t->how != REMOVE && reply->type == QUIRE_RESP_ERROR) {
        tell(t, REMOVE);
    } else {
        telling_end(t, t->how == RENEW ? quire_resp_is_status(reply, "OK") : is_number);
    }
}

/* The scope that a drop concerns, and whether it is a drop of a text of it. */
static quire_vk_scope *scope_of(quire_valkey_store *m, const quire_store_drop *what,
                                bool *is_append)
{
    quire_prefix_key salted = { .identity = { m->opts.identity[0], m->opts.identity[1] } };
    quire_epoch_of kind = QUIRE_EPOCH_MODEL;
    quire_page_key key;

    *is_append = is_text(what) && has_root(what) && !quire_page_key_is(&what->root, &what->key);
    if (is_text(what) && has_root(what)) {
        return quire_vk_scope_use(&m->epochs, QUIRE_EPOCH_ROOT, &what->root);
    }
    if (what->what == QUIRE_STORE_DROP_SALT) {
        kind = QUIRE_EPOCH_ROOT;
    } else if (what->what == QUIRE_STORE_DROP_SALTS && what->salt_bytes > 0 &&
               m->opts.tenant_bytes != NULL &&
               m->opts.tenant_bytes(what->salt, what->salt_bytes) == what->salt_bytes) {
        kind = QUIRE_EPOCH_TENANT;
    }
    if (kind != QUIRE_EPOCH_MODEL) {
        salted.salt = what->salt;
        salted.salt_bytes = what->salt_bytes;
    }
    quire_prefix_key_root(&salted, &key);
    return quire_vk_scope_use(&m->epochs, kind, &key);
}

static void drop_begin(quire_valkey_store *m, quire_vk_drop *drop)
{
    bool is_append;
    quire_vk_scope *scope = scope_of(m, &drop->what, &is_append);
    telling *t = scope != NULL ? malloc(sizeof *t) : NULL;

    if (t == NULL) {
        quire_vk_scope_release(scope);
        return;
    }
    *t = (telling){ .m = m, .drop = drop, .scope = scope };
    drop->is_away = true;
    tell(t, is_append ? APPEND : RENEW);
}

void quire_vk_drops_move(quire_valkey_store *m, uint64_t now_us)
{
    for (quire_vk_drop **at = &m->drops; *at != NULL;) {
        quire_vk_drop *drop = *at;

        if (!drop->is_away && !drop->is_done && now_us >= drop->retry_us &&
            quire_vk_cluster_is_up(m->cluster)) {
            drop->retry_us = now_us + QUIRE_VK_DROP_RETRY_US;
            drop_begin(m, drop);
        }
        if (!drop->is_done) {
            at = &drop->next;
            continue;
        }
        mark(m, drop, &m->gets); /* gets that read the epochs before */
        mark(m, drop, &m->puts); /* likewise; waiting puts will read the new ones */
        quire_vk_news_send(m, &drop->what);
        *at = drop->next;
        free(drop);
        (void)pthread_mutex_lock(&m->lock);
        m->n_drops_waiting--;
        m->stats.dropped_total++;
        (void)pthread_mutex_unlock(&m->lock);
    }
}
