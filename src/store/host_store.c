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

#define TABLE_MIN 1024u /* chains of a table; a power of two */

typedef struct host_store {
    quire_store store; /* must be first */
    quire_host_records *records;
    bool is_first;        /* of those with these records */
    quire_transfer *done; /* oldest first */
    quire_transfer **done_end;
} host_store;

static host_store *self_of(quire_store *store)
{
    return (host_store *)(void *)store;
}

/* ---- tables ---- */

/* Keys are hashes. */
static uint64_t chain_of(const quire_host_records *h, const quire_page_key *key)
{
    uint64_t hash;

    memcpy(&hash, key->bytes, sizeof hash);
    return hash & (h->n_chains - 1);
}

quire_host_entry *quire_host_find(const quire_host_records *h, const quire_page_key *key)
{
    quire_host_entry *e = h->by_key[chain_of(h, key)];

    while (e != NULL && !quire_page_key_is(&e->record.text.key, key)) {
        e = e->next_key;
    }
    return e;
}

quire_host_entry *quire_host_child(const quire_host_records *h, const quire_page_key *parent)
{
    quire_host_entry *e = h->by_parent[chain_of(h, parent)];

    while (e != NULL && !quire_page_key_is(&e->record.text.parent, parent)) {
        e = e->next_parent;
    }
    return e;
}

static void link_in(quire_host_records *h, quire_host_entry *e)
{
    e->at_key = &h->by_key[chain_of(h, &e->record.text.key)];
    e->next_key = *e->at_key;
    *e->at_key = e;
    if (e->next_key != NULL) {
        e->next_key->at_key = &e->next_key;
    }
    e->at_parent = &h->by_parent[chain_of(h, &e->record.text.parent)];
    e->next_parent = *e->at_parent;
    *e->at_parent = e;
    if (e->next_parent != NULL) {
        e->next_parent->at_parent = &e->next_parent;
    }
}

static int tables_make(quire_host_records *h, uint64_t n_chains)
{
    quire_host_entry **by_key = calloc(n_chains, sizeof *by_key);
    quire_host_entry **by_parent = calloc(n_chains, sizeof *by_parent);

    if (by_key == NULL || by_parent == NULL) {
        free(by_key);
        free(by_parent);
        return QUIRE_NOMEM;
    }
    free(h->by_key);
    free(h->by_parent);
    h->by_key = by_key;
    h->by_parent = by_parent;
    h->n_chains = n_chains;
    for (quire_host_entry *e = h->newest; e != NULL; e = e->older) {
        link_in(h, e);
    }
    return QUIRE_OK;
}

/* All first pages of a root are in one chain, so no chain is walked. */
static void link_out(const quire_host_entry *e)
{
    *e->at_key = e->next_key;
    if (e->next_key != NULL) {
        e->next_key->at_key = e->at_key;
    }
    *e->at_parent = e->next_parent;
    if (e->next_parent != NULL) {
        e->next_parent->at_parent = e->at_parent;
    }
}

/* ---- use ---- */

static void use_end(quire_host_records *h, quire_host_entry *e)
{
    *(e->newer != NULL ? &e->newer->older : &h->newest) = e->older;
    *(e->older != NULL ? &e->older->newer : &h->oldest) = e->newer;
}

static void use_begin(quire_host_records *h, quire_host_entry *e)
{
    e->newer = NULL;
    e->older = h->newest;
    *(h->newest != NULL ? &h->newest->newer : &h->oldest) = e;
    h->newest = e;
}

static void use(quire_host_records *h, quire_host_entry *e)
{
    use_end(h, e);
    use_begin(h, e);
}

static void entry_free(quire_host_entry *e)
{
    free(e->bytes);
    free(e);
}

void quire_host_remove(quire_host_records *h, quire_host_entry *e)
{
    link_out(e);
    use_end(h, e);
    h->stats.records--;
    h->stats.record_bytes -= e->n_bytes;
    if (e->n_readers > 0) {
        e->is_gone = true;
    } else {
        entry_free(e);
    }
}

/* ---- put ---- */

/* A copy of a sealed record. NULL: no memory, or no record. */
static quire_host_entry *entry_new(const unsigned char *bytes, size_t n_bytes)
{
    quire_host_entry *e = calloc(1, sizeof *e);

    if (e == NULL) {
        return NULL;
    }
    e->bytes = aligned_alloc(QUIRE_PAGE_RECORD_ALIGN, n_bytes);
    e->n_bytes = n_bytes;
    if (e->bytes == NULL) {
        entry_free(e);
        return NULL;
    }
    memcpy(e->bytes, bytes, n_bytes);
    if (quire_page_record_fields(e->bytes, n_bytes, &e->record) != QUIRE_STORE_OK) {
        entry_free(e);
        return NULL;
    }
    return e;
}

static void room_make(quire_host_records *h, size_t n_bytes)
{
    while (h->oldest != NULL && h->stats.record_bytes + n_bytes > h->capacity_bytes) {
        quire_host_remove(h, h->oldest);
        h->stats.evicted_total++;
        h->stats.evictions++;
    }
}

/* Whether a record is there that a put leaves as it is. */
static bool is_known(quire_host_records *h, const quire_page_key *key, bool is_replacing)
{
    quire_host_entry *known = is_replacing ? NULL : quire_host_find(h, key);

    if (known != NULL) {
        use(h, known);
        h->stats.known_total++;
    }
    return known != NULL;
}

static void insert(quire_host_records *h, quire_host_entry *e)
{
    quire_host_entry *known = quire_host_find(h, &e->record.text.key);

    if (known != NULL) {
        quire_host_remove(h, known);
    }
    room_make(h, e->n_bytes);
    if (h->stats.records >= h->n_chains) {
        (void)tables_make(h, 2 * h->n_chains); /* else chains are longer */
    }
    link_in(h, e);
    use_begin(h, e);
    h->stats.records++;
    h->stats.record_bytes += e->n_bytes;
    h->stats.puts_total++;
    h->stats.put_bytes_total += e->n_bytes;
    h->stats.written_bytes_total += e->n_bytes;
}

/* Seal a record that is not there yet, and keep a copy. A drop by another store in the meantime may
 * be of this record: it is refused. */
static quire_store_result put_new(quire_host_records *h, quire_transfer *t, size_t n_bytes,
                                  uint64_t sequence, uint64_t n_drops)
{
    quire_store_result result = QUIRE_STORE_OK;
    quire_host_entry *e;

    quire_page_record_seal(t->record, sequence);
    e = entry_new(t->record, n_bytes);
    if (e == NULL) {
        return QUIRE_STORE_FULL;
    }
    (void)pthread_mutex_lock(&h->lock);
    if (h->n_drops != n_drops) {
        result = QUIRE_STORE_FULL;
    } else if (!is_known(h, &e->record.text.key, t->is_replacing)) {
        insert(h, e);
        e = NULL;
    }
    (void)pthread_mutex_unlock(&h->lock);
    if (e != NULL) {
        entry_free(e);
    }
    return result;
}

static quire_store_result put_one(quire_host_records *h, quire_transfer *t)
{
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
    is_there = is_known(h, &record.text.key, t->is_replacing);
    sequence = ++h->sequence;
    n_drops = h->n_drops;
    (void)pthread_mutex_unlock(&h->lock);
    return is_there ? QUIRE_STORE_OK : put_new(h, t, n_bytes, sequence, n_drops);
}

/* ---- get ---- */

/* Find a record and keep it from being freed; NULL: *result is the answer. */
static quire_host_entry *read_begin(quire_host_records *h, const quire_transfer *t,
                                    quire_store_result *result)
{
    quire_host_entry *e;

    (void)pthread_mutex_lock(&h->lock);
    e = quire_host_find(h, &t->text.key);
    *result = QUIRE_STORE_ABSENT;
    if (e != NULL) {
        use(h, e);
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
        quire_host_remove(h, e);
    } else if (e->is_gone && e->n_readers == 0) {
        entry_free(e);
    }
    (void)pthread_mutex_unlock(&h->lock);
}

static quire_store_result get_one(quire_host_records *h, quire_transfer *t)
{
    const uint64_t begin_ns = quire_clock_ns();
    quire_store_result result;
    quire_host_entry *e = read_begin(h, t, &result);

    if (e == NULL) {
        return result;
    }
    memcpy(t->record, e->bytes, e->n_bytes);
    result = quire_page_record_open(t->record, e->n_bytes, &t->found);
    read_end(h, e, quire_clock_ns() - begin_ns, result != QUIRE_STORE_OK); /* a flipped bit */
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
        t->result = is_put ? put_one(own->records, t) : get_one(own->records, t);
        count(own->records, t);
        *own->done_end = t;
        own->done_end = &t->next;
    }
    if (store->waker.wake != NULL) {
        store->waker.wake(store->waker.ctx);
    }
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

static void records_free(quire_host_records *h)
{
    while (h->newest != NULL) {
        quire_host_remove(h, h->newest);
    }
    free(h->by_key);
    free(h->by_parent);
    (void)pthread_mutex_destroy(&h->lock);
    free(h);
}

static void records_leave(quire_host_records *h)
{
    bool is_last;

    (void)pthread_mutex_lock(&h->lock);
    is_last = --h->n_stores == 0;
    (void)pthread_mutex_unlock(&h->lock);
    if (is_last) {
        records_free(h);
    }
}

static void host_close(quire_store *store, void (*give_back)(void *ctx, quire_transfer *transfer),
                       void *ctx)
{
    quire_transfer *t;

    while (host_poll(store, &t, 1) == 1) {
        give_back(ctx, t);
    }
    records_leave(self_of(store)->records);
    free(store);
}

static const quire_store_ops host_ops = {
    .get = host_get,
    .put = host_put,
    .drop = host_drop,
    .poll = host_poll,
    .stats = host_stats,
    .has = host_has,
    .close = host_close,
};

/* A store on records. Errors: QUIRE_NOMEM. */
static int store_make(quire_store **out, quire_host_records *records)
{
    host_store *h = calloc(1, sizeof *h);

    QUIRE_FAIL_IF(h == NULL, QUIRE_NOMEM);
    h->store = (quire_store){ .ops = &host_ops, .name = "host" };
    h->records = records;
    h->done_end = &h->done;
    (void)pthread_mutex_lock(&records->lock);
    h->is_first = records->n_stores++ == 0;
    (void)pthread_mutex_unlock(&records->lock);
    *out = &h->store;
    return QUIRE_OK;
}

static quire_host_records *records_new(uint64_t capacity_bytes)
{
    quire_host_records *h = calloc(1, sizeof *h);

    if (h == NULL) {
        return NULL;
    }
    h->capacity_bytes = capacity_bytes;
    if (pthread_mutex_init(&h->lock, NULL) != 0) {
        free(h);
        return NULL;
    }
    if (tables_make(h, TABLE_MIN) < 0) {
        records_free(h);
        return NULL;
    }
    return h;
}

int quire_host_store_create(quire_store **out, uint64_t capacity_bytes)
{
    quire_host_records *records;
    int rc;

    *out = NULL;
    QUIRE_FAIL_IF(capacity_bytes == 0, QUIRE_INVAL);
    records = records_new(capacity_bytes);
    QUIRE_FAIL_IF(records == NULL, QUIRE_NOMEM);
    rc = store_make(out, records);
    if (rc < 0) {
        records_free(records);
    }
    return rc;
}

int quire_host_store_share(quire_store **out, quire_store *other)
{
    *out = NULL;
    QUIRE_FAIL_IF(other->ops != &host_ops, QUIRE_INVAL);
    return store_make(out, self_of(other)->records);
}
