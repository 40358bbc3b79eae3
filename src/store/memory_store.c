/* memory_store.c - see memory_store.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/memory_store.h"

#include "base/check.h"
#include "base/rng.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct kept {
    struct kept *next; /* in order of age, oldest first */
    size_t n_bytes;
    quire_page_record record; /* points into bytes */
    unsigned char bytes[];
} kept;

typedef struct memory_store {
    quire_store store; /* must be first */
    quire_memory_store_opts opts;
    pthread_mutex_t lock;
    /* Under the lock. */
    quire_rng rng;
    kept *first;
    quire_transfer *pending; /* oldest first */
    quire_transfer *done;    /* likewise */
    uint64_t now;            /* ticks */
    uint64_t sequence;
    quire_store_stats stats;
} memory_store;

static memory_store *self_of(quire_store *store)
{
    return (memory_store *)(void *)store;
}

/* ---- lists ---- */

static void push(quire_transfer **list, quire_transfer *t)
{
    while (*list != NULL) {
        list = &(*list)->next;
    }
    t->next = NULL;
    *list = t;
}

static quire_transfer *pop(quire_transfer **list)
{
    quire_transfer *t = *list;

    *list = t->next;
    t->next = NULL;
    return t;
}

static void wake(memory_store *m)
{
    quire_store_wake(&m->store);
}

/* ---- records ---- */

static void kept_remove(memory_store *m, kept **at)
{
    kept *k = *at;

    *at = k->next;
    m->stats.records--;
    m->stats.record_bytes -= k->n_bytes;
    free(k);
}

static kept **kept_find(memory_store *m, const quire_page_key *key)
{
    kept **at = &m->first;

    while (*at != NULL && !quire_page_key_is(&(*at)->record.text.key, key)) {
        at = &(*at)->next;
    }
    return at;
}

static bool chance(memory_store *m, double p)
{
    return p > 0.0 && quire_rng_unit(&m->rng) < p;
}

/* Keep a copy of a record, instead of one with the same key if is_replacing. */
static int keep(memory_store *m, const unsigned char *bytes, size_t n_bytes, bool is_replacing)
{
    kept **last = &m->first;
    kept *k = malloc(sizeof *k + n_bytes);

    QUIRE_FAIL_IF(k == NULL, QUIRE_NOMEM);
    memcpy(k->bytes, bytes, n_bytes);
    k->n_bytes = n_bytes;
    k->next = NULL;
    if (quire_page_record_open(k->bytes, n_bytes, &k->record) != QUIRE_STORE_OK) {
        free(k);
        return QUIRE_INVAL;
    }
    if (*kept_find(m, &k->record.text.key) != NULL) {
        if (!is_replacing) {
            free(k);
            return QUIRE_OK;
        }
        kept_remove(m, kept_find(m, &k->record.text.key));
    }
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = k;
    m->stats.records++;
    m->stats.record_bytes += n_bytes;
    return QUIRE_OK;
}

static void bound_keep(memory_store *m)
{
    while (m->opts.capacity_bytes > 0 && m->stats.record_bytes > m->opts.capacity_bytes) {
        kept_remove(m, &m->first);
        m->stats.evicted_total++;
        m->stats.evictions++;
    }
}

/* ---- finishing transfers ---- */

static quire_store_result put_finish(memory_store *m, quire_transfer *t)
{
    const size_t n_bytes = quire_page_record_peek(t->record, t->capacity);

    if (m->opts.is_degraded) {
        return QUIRE_STORE_CLOSED;
    }
    if (n_bytes == 0 || n_bytes > t->capacity) {
        return QUIRE_STORE_FORMAT;
    }
    if (chance(m, m->opts.failure)) {
        return QUIRE_STORE_IO;
    }
    quire_page_record_seal(t->record, ++m->sequence);
    if (!chance(m, m->opts.loss) && keep(m, t->record, n_bytes, t->is_replacing) != QUIRE_OK) {
        return QUIRE_STORE_IO;
    }
    bound_keep(m);
    m->stats.puts_total++;
    m->stats.put_bytes_total += n_bytes;
    m->stats.written_bytes_total += n_bytes;
    return QUIRE_STORE_OK;
}

/* Damage the bytes that were read, as the options say. */
static void damage(memory_store *m, quire_transfer *t, size_t n_bytes)
{
    if (chance(m, m->opts.flip)) {
        const uint32_t bit = quire_rng_below(&m->rng, (uint32_t)n_bytes * 8);

        t->record[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

static quire_store_result get_finish(memory_store *m, quire_transfer *t)
{
    const kept *k = *kept_find(m, &t->text.key);
    quire_store_result result;

    if (k == NULL || t->is_query) {
        return k != NULL ? QUIRE_STORE_OK : QUIRE_STORE_ABSENT;
    }
    if (chance(m, m->opts.failure)) {
        return QUIRE_STORE_IO;
    }
    if (chance(m, m->opts.swap)) {
        k = m->first;
    }
    if (k->n_bytes > t->capacity) {
        return QUIRE_STORE_FORMAT;
    }
    memcpy(t->record, k->bytes, k->n_bytes);
    damage(m, t, k->n_bytes);
    m->stats.reads_total++;
    m->stats.read_bytes_total += k->n_bytes;
    result = quire_page_record_open(t->record, k->n_bytes, &t->found);
    return result == QUIRE_STORE_OK ? quire_page_record_check(&t->found, &t->text) : result;
}

static void finish(memory_store *m, quire_transfer *t)
{
    t->result = t->is_put ? put_finish(m, t) : get_finish(m, t);
    if (t->is_put) {
        m->stats.refused_total += t->result != QUIRE_STORE_OK;
    } else if (!t->is_query) {
        m->stats.results_total[t->result]++;
    }
    push(&m->done, t);
}

/* A transfer's tick is kept where the caller has nothing to read before poll. */
static void take(memory_store *m, quire_transfer *const *transfers, uint32_t n, bool is_put)
{
    (void)pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < n; i++) {
        quire_transfer *t = transfers[i];

        t->is_put = is_put;
        if (m->opts.transfers_max > 0 &&
            m->stats.gets_now + m->stats.puts_now >= m->opts.transfers_max) {
            t->result = QUIRE_STORE_FULL;
            m->stats.refused_total += is_put;
            push(&m->done, t);
        } else if (m->opts.delay_ticks == 0 && m->pending == NULL) {
            finish(m, t);
        } else {
            t->found.sequence = m->now + m->opts.delay_ticks;
            m->stats.gets_now += !is_put;
            m->stats.puts_now += is_put;
            push(&m->pending, t);
        }
    }
    (void)pthread_mutex_unlock(&m->lock);
    wake(m);
}

/* ---- the table ---- */

static void memory_get(quire_store *store, quire_transfer *const *transfers, uint32_t n)
{
    take(self_of(store), transfers, n, false);
}

static void memory_put(quire_store *store, quire_transfer *const *transfers, uint32_t n)
{
    take(self_of(store), transfers, n, true);
}

static bool is_named(const quire_store_drop *drop, const quire_page_text *text)
{
    switch (drop->what) {
    case QUIRE_STORE_DROP_ALL:
    case QUIRE_STORE_DROP_SALT:
    case QUIRE_STORE_DROP_SALTS:
        return quire_store_drop_has_salt(drop, text);
    case QUIRE_STORE_DROP_TEXT:
        return quire_page_key_is(&text->key, &drop->key);
    case QUIRE_STORE_DROP_BEHIND:
        return false; /* drop_children() */
    }
    return false;
}

static void drop_named(memory_store *m, const quire_store_drop *drop)
{
    for (kept **at = &m->first; *at != NULL;) {
        if (!is_named(drop, &(*at)->record.text)) {
            at = &(*at)->next;
            continue;
        }
        kept_remove(m, at);
        m->stats.dropped_total++;
        if (drop->what == QUIRE_STORE_DROP_TEXT) {
            break; /* keys are unique */
        }
    }
}

/* The text that continues a dropped one: its children have its key as parent. */
static void drop_children(memory_store *m, const quire_page_key *parent)
{
    for (kept *k = m->first; k != NULL;) {
        if (quire_page_key_is(&k->record.text.parent, parent)) {
            const quire_page_key key = k->record.text.key;

            kept_remove(m, kept_find(m, &key));
            m->stats.dropped_total++;
            drop_children(m, &key);
            k = m->first;
        } else {
            k = k->next;
        }
    }
}

static int memory_drop(quire_store *store, const quire_store_drop *drop)
{
    memory_store *m = self_of(store);

    (void)pthread_mutex_lock(&m->lock);
    for (quire_transfer *t = m->pending; t != NULL; t = t->next) {
        /* Pending puts are older than the drop, so they are dropped too: kept now, they are found
         * below. */
        if (t->is_put) {
            quire_page_record_seal(t->record, ++m->sequence);
            (void)keep(m, t->record, quire_page_record_peek(t->record, t->capacity), true);
        }
    }
    for (quire_transfer **at = &m->pending; *at != NULL;) {
        quire_transfer *t = *at;

        if (t->is_put) {
            *at = t->next;
            t->result = QUIRE_STORE_OK;
            m->stats.puts_now--;
            push(&m->done, t);
        } else {
            at = &t->next;
        }
    }
    drop_named(m, drop);
    if (drop->what == QUIRE_STORE_DROP_TEXT || drop->what == QUIRE_STORE_DROP_BEHIND) {
        drop_children(m, &drop->key);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return QUIRE_OK;
}

static uint32_t memory_poll(quire_store *store, quire_transfer **out, uint32_t n)
{
    memory_store *m = self_of(store);
    uint32_t i = 0;

    (void)pthread_mutex_lock(&m->lock);
    while (i < n && m->done != NULL) {
        out[i++] = pop(&m->done);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return i;
}

static void memory_stats(const quire_store *store, quire_store_stats *out)
{
    memory_store *m = self_of((quire_store *)(uintptr_t)store);

    (void)pthread_mutex_lock(&m->lock);
    *out = m->stats;
    if (m->opts.is_degraded) {
        out->state = QUIRE_STORE_DEGRADED;
        (void)snprintf(out->trouble, sizeof out->trouble, "a test says so");
    }
    out->capacity_bytes = m->opts.capacity_bytes;
    out->stored_bytes = m->stats.record_bytes;
    (void)pthread_mutex_unlock(&m->lock);
}

static uint32_t memory_has(const quire_store *store, const quire_page_key *keys, uint32_t n)
{
    memory_store *m = self_of((quire_store *)(uintptr_t)store);
    uint32_t i = 0;

    (void)pthread_mutex_lock(&m->lock);
    while (i < n && *kept_find(m, &keys[i]) != NULL) {
        i++;
    }
    (void)pthread_mutex_unlock(&m->lock);
    return i;
}

static void memory_close(quire_store *store, void (*give_back)(void *ctx, quire_transfer *transfer),
                         void *ctx)
{
    memory_store *m = self_of(store);

    while (m->pending != NULL) {
        finish(m, pop(&m->pending));
    }
    while (m->done != NULL) {
        give_back(ctx, pop(&m->done));
    }
    m->stats.gets_now = 0;
    m->stats.puts_now = 0;
    quire_store_waker_set(store, (quire_store_waker){ 0 });
    if (!m->opts.outlives) {
        quire_memory_store_destroy(store);
    }
}

void quire_memory_store_destroy(quire_store *store)
{
    memory_store *m = self_of(store);

    while (m->first != NULL) {
        kept_remove(m, &m->first);
    }
    (void)pthread_mutex_destroy(&m->lock);
    free(m);
}

int quire_memory_store_create(quire_store **out, const quire_memory_store_opts *opts)
{
    static const quire_store_ops ops = {
        .get = memory_get,
        .put = memory_put,
        .drop = memory_drop,
        .poll = memory_poll,
        .stats = memory_stats,
        .has = memory_has,
        .close = memory_close,
    };
    memory_store *m = calloc(1, sizeof *m);

    *out = NULL;
    QUIRE_FAIL_IF(m == NULL, QUIRE_NOMEM);
    m->store = (quire_store){ .ops = &ops, .name = "memory" };
    m->opts = *opts;
    m->rng.state = opts->seed;
    if (pthread_mutex_init(&m->lock, NULL) != 0) {
        free(m);
        return QUIRE_NOMEM;
    }
    *out = &m->store;
    return QUIRE_OK;
}

void quire_memory_store_set(quire_store *store, const quire_memory_store_opts *opts)
{
    memory_store *m = self_of(store);

    (void)pthread_mutex_lock(&m->lock);
    m->opts = *opts;
    (void)pthread_mutex_unlock(&m->lock);
}

void quire_memory_store_tick(quire_store *store)
{
    memory_store *m = self_of(store);

    (void)pthread_mutex_lock(&m->lock);
    m->now++;
    while (m->pending != NULL && m->pending->found.sequence <= m->now) {
        quire_transfer *t = pop(&m->pending);

        m->stats.gets_now -= !t->is_put;
        m->stats.puts_now -= t->is_put;
        finish(m, t);
    }
    (void)pthread_mutex_unlock(&m->lock);
    wake(m);
}
