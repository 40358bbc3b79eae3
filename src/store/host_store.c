/* host_store.c - see host_store.h.
 *
 * Records are sealed, copied and verified outside the lock, so that stores of several threads do
 * not wait for one another. A store has its own list of finished transfers; all else is the
 * records'.
 *
 * SPDX-License-Identifier: MIT */
#include "store/host_store.h"

#include "base/check.h"
#include "base/clock.h"
#include "store/host_records.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct host_store {
    quire_store store; /* must be first */
    quire_host_records *records;
    bool is_first;        /* of those with these records */
    double pinned_share;  /* as the owner says */
    quire_transfer *done; /* oldest first */
    quire_transfer **done_end;
} host_store;

static host_store *self_of(quire_store *store)
{
    return (host_store *)(void *)store;
}

static quire_host_user user_of(const host_store *own, const quire_transfer *t)
{
    return (quire_host_user){ { own, t->use.request }, t->use };
}

/* ---- put ---- */

/* Whether a record is there that a put leaves as it is. */
static bool is_known(quire_host_records *h, const quire_page_key *key, const quire_transfer *t,
                     const quire_host_user *user)
{
    quire_host_entry *known = t->is_replacing ? NULL : quire_host_find(h, key);

    if (known != NULL) {
        quire_host_use(h, known, user);
        h->stats.known_total++;
    }
    return known != NULL;
}

static quire_store_result insert(quire_host_records *h, quire_host_entry *e,
                                 const quire_host_user *user)
{
    const size_t n_bytes = e->n_bytes;

    if (quire_host_insert(h, e, user) < 0) {
        quire_host_entry_free(e);
        return QUIRE_STORE_FULL;
    }
    h->stats.puts_total++;
    h->stats.put_bytes_total += n_bytes;
    h->stats.written_bytes_total += n_bytes;
    return QUIRE_STORE_OK;
}

/* Seal a record that is not there yet, and keep a copy. A drop by another store in the meantime may
 * be of this record: it is refused. */
static quire_store_result put_new(const host_store *own, quire_transfer *t, size_t n_bytes,
                                  uint64_t sequence, uint64_t n_drops)
{
    const quire_host_user user = user_of(own, t);
    quire_host_records *h = own->records;
    quire_store_result result = QUIRE_STORE_OK;
    quire_host_entry *e;

    quire_page_record_seal(t->record, sequence);
    e = quire_host_entry_new(t->record, n_bytes);
    if (e == NULL) {
        return QUIRE_STORE_FULL;
    }
    (void)pthread_mutex_lock(&h->lock);
    if (h->n_drops != n_drops) {
        result = QUIRE_STORE_FULL;
    } else if (!is_known(h, &e->record.text.key, t, &user)) {
        result = insert(h, e, &user);
        e = NULL;
    }
    (void)pthread_mutex_unlock(&h->lock);
    if (e != NULL) {
        quire_host_entry_free(e);
    }
    return result;
}

static quire_store_result put_one(const host_store *own, quire_transfer *t)
{
    const quire_host_user user = user_of(own, t);
    quire_host_records *h = own->records;
    const size_t n_bytes = quire_page_record_peek(t->record, t->capacity);
    quire_page_record record;
    uint64_t sequence, n_drops;
    bool is_there;

    if (n_bytes == 0 || n_bytes > t->capacity) {
        return QUIRE_STORE_FORMAT;
    }
    if (n_bytes > h->capacity_bytes) {
        return QUIRE_STORE_FULL;
    }
    if (quire_page_record_fields(t->record, n_bytes, &record) != QUIRE_STORE_OK) {
        return QUIRE_STORE_FORMAT;
    }
    (void)pthread_mutex_lock(&h->lock);
    is_there = is_known(h, &record.text.key, t, &user);
    sequence = ++h->sequence;
    n_drops = h->n_drops;
    (void)pthread_mutex_unlock(&h->lock);
    return is_there ? QUIRE_STORE_OK : put_new(own, t, n_bytes, sequence, n_drops);
}

/* ---- get ---- */

/* Find a record and keep it from being freed; NULL: *result is the answer. */
static quire_host_entry *read_begin(const host_store *own, const quire_transfer *t,
                                    quire_store_result *result)
{
    const quire_host_user user = user_of(own, t);
    quire_host_records *h = own->records;
    quire_host_entry *e;

    (void)pthread_mutex_lock(&h->lock);
    e = quire_host_find(h, &t->text.key);
    *result = QUIRE_STORE_ABSENT;
    if (e != NULL) {
        quire_host_use(h, e, &user);
        *result = t->is_query                ? QUIRE_STORE_OK
                  : e->n_bytes > t->capacity ? QUIRE_STORE_FORMAT
                                             : QUIRE_STORE_ABSENT;
        e->n_readers += *result == QUIRE_STORE_ABSENT;
    }
    (void)pthread_mutex_unlock(&h->lock);
    return *result == QUIRE_STORE_ABSENT ? e : NULL;
}

static void read_end(quire_host_records *h, quire_host_entry *e, uint64_t took_ns, bool is_damaged)
{
    (void)pthread_mutex_lock(&h->lock);
    h->stats.reads_total++;
    h->stats.read_bytes_total += e->n_bytes;
    h->read_ns += took_ns;
    e->n_readers--;
    if (!e->is_gone && is_damaged) {
        quire_host_remove(h, e, QUIRE_PREFIX_GONE_INVALIDATED);
    } else if (e->is_gone && e->n_readers == 0) {
        quire_host_entry_free(e);
    }
    (void)pthread_mutex_unlock(&h->lock);
}

static quire_store_result get_one(const host_store *own, quire_transfer *t)
{
    const uint64_t begin_ns = quire_clock_ns();
    quire_store_result result;
    quire_host_entry *e = read_begin(own, t, &result);

    if (e == NULL) {
        return result;
    }
    memcpy(t->record, e->bytes, e->n_bytes);
    result = quire_page_record_open(t->record, e->n_bytes, &t->found);
    read_end(own->records, e, quire_clock_ns() - begin_ns,
             result != QUIRE_STORE_OK); /* a flipped bit */
    return result == QUIRE_STORE_OK ? quire_page_record_check(&t->found, &t->text) : result;
}

/* ---- the table of functions ---- */

static void count(quire_host_records *h, const quire_transfer *t)
{
    (void)pthread_mutex_lock(&h->lock);
    h->stats.refused_total += t->is_put && t->result != QUIRE_STORE_OK;
    h->stats.results_total[t->result] += !t->is_put && !t->is_query;
    (void)pthread_mutex_unlock(&h->lock);
}

static void take(quire_store *store, quire_transfer *const *transfers, uint32_t n, bool is_put)
{
    host_store *own = self_of(store);

    for (uint32_t i = 0; i < n; i++) {
        quire_transfer *t = transfers[i];

        t->is_put = is_put;
        t->next = NULL;
        t->result = is_put ? put_one(own, t) : get_one(own, t);
        count(own->records, t);
        *own->done_end = t;
        own->done_end = &t->next;
    }
    quire_store_wake(store);
}

static void host_get(quire_store *store, quire_transfer *const *transfers, uint32_t n)
{
    take(store, transfers, n, false);
}

static void host_put(quire_store *store, quire_transfer *const *transfers, uint32_t n)
{
    take(store, transfers, n, true);
}

static int host_drop(quire_store *store, const quire_store_drop *drop)
{
    quire_host_records *h = self_of(store)->records;

    (void)pthread_mutex_lock(&h->lock);
    quire_host_drop_apply(h, drop);
    (void)pthread_mutex_unlock(&h->lock);
    return QUIRE_OK;
}

static uint32_t host_poll(quire_store *store, quire_transfer **out, uint32_t n)
{
    host_store *h = self_of(store);
    uint32_t i = 0;

    while (i < n && h->done != NULL) {
        out[i] = h->done;
        h->done = h->done->next;
        out[i++]->next = NULL;
    }
    if (h->done == NULL) {
        h->done_end = &h->done;
    }
    return i;
}

static void host_stats(const quire_store *store, quire_store_stats *out)
{
    const host_store *own = self_of((quire_store *)(uintptr_t)store);
    quire_host_records *h = own->records;

    (void)pthread_mutex_lock(&h->lock);
    *out = h->stats;
    out->read_us_total = h->read_ns / 1000;
    (void)pthread_mutex_unlock(&h->lock);
    out->stored_bytes = out->record_bytes;
    out->capacity_bytes = h->capacity_bytes;
    out->is_common = !own->is_first;
}

static void host_hint(quire_store *store, const quire_store_hints *hints)
{
    host_store *own = self_of(store);
    quire_host_records *h = own->records;

    (void)pthread_mutex_lock(&h->lock);
    h->pinned_shares += hints->pinned_share - own->pinned_share;
    own->pinned_share = hints->pinned_share;
    quire_host_order_cost(&h->order, hints->token_us, hints->token_depth_us);
    (void)pthread_mutex_unlock(&h->lock);
}

static uint32_t host_has(const quire_store *store, const quire_page_key *keys, uint32_t n)
{
    quire_host_records *h = self_of((quire_store *)(uintptr_t)store)->records;
    uint32_t i = 0;

    (void)pthread_mutex_lock(&h->lock);
    while (i < n && quire_host_find(h, &keys[i]) != NULL) {
        i++;
    }
    (void)pthread_mutex_unlock(&h->lock);
    return i;
}

static void records_leave(const host_store *own)
{
    quire_host_records *h = own->records;
    bool is_last;

    (void)pthread_mutex_lock(&h->lock);
    is_last = --h->n_stores == 0;
    h->pinned_shares -= own->pinned_share;
    (void)pthread_mutex_unlock(&h->lock);
    if (is_last) {
        quire_host_records_free(h);
    }
}

static void host_close(quire_store *store, void (*give_back)(void *ctx, quire_transfer *transfer),
                       void *ctx)
{
    quire_transfer *t;

    while (host_poll(store, &t, 1) == 1) {
        give_back(ctx, t);
    }
    records_leave(self_of(store));
    free(store);
}

static const quire_store_ops host_ops = {
    .get = host_get,
    .put = host_put,
    .drop = host_drop,
    .poll = host_poll,
    .stats = host_stats,
    .hint = host_hint,
    .has = host_has,
    .close = host_close,
};

/* A store on records. Errors: QUIRE_NOMEM. */
static int store_make(quire_store **out, quire_host_records *records)
{
    host_store *h = calloc(1, sizeof *h);

    QUIRE_FAIL_IF(h == NULL, QUIRE_NOMEM);
    h->store = (quire_store){ .ops = &host_ops, .name = "host", .is_volatile = true };
    h->records = records;
    h->done_end = &h->done;
    (void)pthread_mutex_lock(&records->lock);
    h->is_first = records->n_stores++ == 0;
    (void)pthread_mutex_unlock(&records->lock);
    *out = &h->store;
    return QUIRE_OK;
}

int quire_host_store_create(quire_store **out, const quire_host_store_opts *opts)
{
    quire_host_records *records;
    int rc;

    *out = NULL;
    QUIRE_FAIL_IF(opts->capacity_bytes == 0 || opts->policy >= QUIRE_EVICT_POLICY_COUNT,
                  QUIRE_INVAL);
    records = quire_host_records_new(opts);
    QUIRE_FAIL_IF(records == NULL, QUIRE_NOMEM);
    rc = store_make(out, records);
    if (rc < 0) {
        quire_host_records_free(records);
    }
    return rc;
}

int quire_host_store_share(quire_store **out, quire_store *other)
{
    *out = NULL;
    QUIRE_FAIL_IF(other->ops != &host_ops, QUIRE_INVAL);
    return store_make(out, self_of(other)->records);
}
