/* host_store.c - see host_store.h.
 *
 * An entry is in two tables: by its key, and by the key of its parent, by which a drop finds the
 * texts that continue a dropped one. Both tables have chains and grow together. A store has its own
 * list of finished transfers; all else is the records'.
 *
 * SPDX-License-Identifier: MIT */
#include "store/host_store.h"

#include "base/check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_MIN 1024u /* chains of a table; a power of two */

typedef struct entry {
    struct entry *next_key;    /* in the chain of its key */
    struct entry *next_parent; /* and of its parent's key */
    struct entry *newer;       /* by use */
    struct entry *older;
    unsigned char *bytes;
    size_t n_bytes;
    quire_page_record record; /* points into bytes */
    uint64_t looked_at;       /* number of the last drop that looked for the text before it */
    bool is_orphan;           /* and did not find all of that text */
} entry;

/* The records, under one lock: several stores may have them in common. */
typedef struct host_records {
    pthread_mutex_t lock;
    uint32_t n_stores;
    uint64_t capacity_bytes;
    entry **by_key;    /* [n_chains] */
    entry **by_parent; /* [n_chains] */
    uint64_t n_chains;
    entry *newest;
    entry *oldest;
    uint64_t sequence;
    uint64_t n_drops;
    quire_store_stats stats; /* of all stores together */
} host_records;

typedef struct host_store {
    quire_store store; /* must be first */
    host_records *records;
    quire_transfer *done; /* oldest first */
    quire_transfer **done_end;
} host_store;

static host_store *self_of(quire_store *store)
{
    return (host_store *)(void *)store;
}

/* ---- tables ---- */

/* Keys are hashes. */
static uint64_t chain_of(const host_records *h, const quire_page_key *key)
{
    uint64_t hash;

    memcpy(&hash, key->bytes, sizeof hash);
    return hash & (h->n_chains - 1);
}

static bool is_key(const quire_page_key *a, const quire_page_key *b)
{
    return memcmp(a->bytes, b->bytes, QUIRE_PAGE_KEY_BYTES) == 0;
}

static entry *find(const host_records *h, const quire_page_key *key)
{
    entry *e = h->by_key[chain_of(h, key)];

    while (e != NULL && !is_key(&e->record.text.key, key)) {
        e = e->next_key;
    }
    return e;
}

static void link_in(host_records *h, entry *e)
{
    entry **key = &h->by_key[chain_of(h, &e->record.text.key)];
    entry **parent = &h->by_parent[chain_of(h, &e->record.text.parent)];

    e->next_key = *key;
    *key = e;
    e->next_parent = *parent;
    *parent = e;
}

static int tables_make(host_records *h, uint64_t n_chains)
{
    entry **by_key = calloc(n_chains, sizeof *by_key);
    entry **by_parent = calloc(n_chains, sizeof *by_parent);

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
    for (entry *e = h->newest; e != NULL; e = e->older) {
        link_in(h, e);
    }
    return QUIRE_OK;
}

static void link_out(host_records *h, const entry *e)
{
    entry **at = &h->by_key[chain_of(h, &e->record.text.key)];

    while (*at != e) {
        at = &(*at)->next_key;
    }
    *at = e->next_key;
    at = &h->by_parent[chain_of(h, &e->record.text.parent)];
    while (*at != e) {
        at = &(*at)->next_parent;
    }
    *at = e->next_parent;
}

/* ---- use ---- */

static void use_end(host_records *h, entry *e)
{
    *(e->newer != NULL ? &e->newer->older : &h->newest) = e->older;
    *(e->older != NULL ? &e->older->newer : &h->oldest) = e->newer;
}

static void use_begin(host_records *h, entry *e)
{
    e->newer = NULL;
    e->older = h->newest;
    *(h->newest != NULL ? &h->newest->newer : &h->oldest) = e;
    h->newest = e;
}

static void use(host_records *h, entry *e)
{
    use_end(h, e);
    use_begin(h, e);
}

static void entry_free(entry *e)
{
    free(e->bytes);
    free(e);
}

static void remove_entry(host_records *h, entry *e)
{
    link_out(h, e);
    use_end(h, e);
    h->stats.records--;
    h->stats.record_bytes -= e->n_bytes;
    entry_free(e);
}

/* ---- put ---- */

/* A copy of a sealed record. NULL: no memory, or no record. */
static entry *entry_new(const unsigned char *bytes, size_t n_bytes)
{
    entry *e = calloc(1, sizeof *e);

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

static void room_make(host_records *h, size_t n_bytes)
{
    while (h->oldest != NULL && h->stats.record_bytes + n_bytes > h->capacity_bytes) {
        remove_entry(h, h->oldest);
        h->stats.evicted_total++;
        h->stats.evictions++;
    }
}

static quire_store_result put_one(host_records *h, quire_transfer *t)
{
    const size_t n_bytes = quire_page_record_peek(t->record, t->capacity);
    quire_page_record record;
    entry *known;
    entry *e;

    if (n_bytes == 0 || n_bytes > t->capacity) {
        return QUIRE_STORE_FORMAT;
    }
    if (n_bytes > h->capacity_bytes) {
        return QUIRE_STORE_FULL;
    }
    quire_page_record_seal(t->record, ++h->sequence);
    if (quire_page_record_fields(t->record, n_bytes, &record) != QUIRE_STORE_OK) {
        return QUIRE_STORE_FORMAT;
    }
    known = find(h, &record.text.key);
    if (known != NULL && !t->is_replacing) {
        use(h, known);
        h->stats.known_total++;
        return QUIRE_STORE_OK;
    }
    e = entry_new(t->record, n_bytes);
    if (e == NULL) {
        return QUIRE_STORE_FULL;
    }
    if (known != NULL) {
        remove_entry(h, known);
    }
    room_make(h, n_bytes);
    if (h->stats.records >= h->n_chains) {
        (void)tables_make(h, 2 * h->n_chains); /* else chains are longer */
    }
    link_in(h, e);
    use_begin(h, e);
    h->stats.records++;
    h->stats.record_bytes += n_bytes;
    h->stats.puts_total++;
    h->stats.put_bytes_total += n_bytes;
    h->stats.written_bytes_total += n_bytes;
    return QUIRE_STORE_OK;
}

/* ---- get ---- */

static quire_store_result get_one(host_records *h, quire_transfer *t)
{
    entry *e = find(h, &t->text.key);
    quire_store_result result;

    if (e == NULL) {
        return QUIRE_STORE_ABSENT;
    }
    use(h, e);
    if (t->is_query) {
        return QUIRE_STORE_OK;
    }
    if (e->n_bytes > t->capacity) {
        return QUIRE_STORE_FORMAT;
    }
    memcpy(t->record, e->bytes, e->n_bytes);
    h->stats.reads_total++;
    h->stats.read_bytes_total += e->n_bytes;
    result = quire_page_record_open(t->record, e->n_bytes, &t->found);
    if (result != QUIRE_STORE_OK) { /* memory that has flipped a bit */
        remove_entry(h, e);
        return result;
    }
    return quire_page_record_check(&t->found, &t->text);
}

/* ---- the table of functions ---- */

static void take(quire_store *store, quire_transfer *const *transfers, uint32_t n, bool is_put)
{
    host_store *own = self_of(store);
    host_records *h = own->records;

    (void)pthread_mutex_lock(&h->lock);
    for (uint32_t i = 0; i < n; i++) {
        quire_transfer *t = transfers[i];

        t->is_put = is_put;
        t->next = NULL;
        t->result = is_put ? put_one(h, t) : get_one(h, t);
        h->stats.refused_total += is_put && t->result != QUIRE_STORE_OK;
        h->stats.results_total[t->result] += !is_put && !t->is_query;
        *own->done_end = t;
        own->done_end = &t->next;
    }
    (void)pthread_mutex_unlock(&h->lock);
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

static bool is_of(const quire_store_drop *drop, const quire_page_text *text)
{
    const bool begins =
        text->salt_bytes >= drop->salt_bytes &&
        (drop->salt_bytes == 0 || memcmp(text->salt, drop->salt, drop->salt_bytes) == 0);

    return drop->what == QUIRE_STORE_DROP_ALL || (begins && (drop->what == QUIRE_STORE_DROP_SALTS ||
                                                             text->salt_bytes == drop->salt_bytes));
}

static void drop_entry(host_records *h, entry *e)
{
    remove_entry(h, e);
    h->stats.dropped_total++;
}

/* Of all texts, those of the drop's salts. */
static void drop_salts(host_records *h, const quire_store_drop *drop)
{
    for (entry *e = h->newest, *older; e != NULL; e = older) {
        older = e->older;
        if (is_of(drop, &e->record.text)) {
            drop_entry(h, e);
        }
    }
}

static entry *child_of(const host_records *h, const quire_page_key *parent)
{
    entry *e = h->by_parent[chain_of(h, parent)];

    while (e != NULL && !is_key(&e->record.text.parent, parent)) {
        e = e->next_parent;
    }
    return e;
}

/* Drop all that continues the text of a key: down to a text without a child, that one, then its
 * parent. */
static void drop_branch(host_records *h, const quire_page_key *key)
{
    entry *e = child_of(h, key);

    while (e != NULL) {
        entry *child = child_of(h, &e->record.text.key);

        if (child == NULL || child == e) {
            const quire_page_key parent = e->record.text.parent;

            drop_entry(h, e);
            child = is_key(&parent, key) ? child_of(h, key) : find(h, &parent);
        }
        e = child;
    }
}

/* The page before an entry's; NULL: it is not there. Positions fall on the way up, so that no
 * constructed circle holds the search. */
static entry *above(const host_records *h, const entry *e)
{
    entry *up = find(h, &e->record.text.parent);

    return up != NULL && up->record.text.first_token < e->record.text.first_token ? up : NULL;
}

static bool is_first(const entry *e)
{
    return is_key(&e->record.text.parent, &e->record.text.root);
}

/* Find out whether an entry's text is there from its beginning on, for it and all above it. */
static void look_above(const host_records *h, entry *e)
{
    entry *top = e, *up = e;
    bool is_orphan;

    while (up != NULL && up->looked_at != h->n_drops) {
        top = up;
        up = is_first(top) ? NULL : above(h, top);
    }
    is_orphan = up != NULL ? up->is_orphan : !is_first(top);
    while (e != up) {
        e->looked_at = h->n_drops;
        e->is_orphan = is_orphan;
        e = e != top ? above(h, e) : up;
    }
}

/* Drop the records of a root, zeros for all, that may continue a dropped text: of the text before
 * them a part is missing, as the page used longest ago makes room first. */
static void drop_orphans(host_records *h, const quire_page_key *root)
{
    static const quire_page_key zeros;
    const bool is_all = is_key(root, &zeros);
    entry *older;

    for (entry *e = h->newest; e != NULL; e = e->older) {
        look_above(h, e);
    }
    for (entry *e = h->newest; e != NULL; e = older) {
        older = e->older;
        if (e->is_orphan && (is_all || is_key(&e->record.text.root, root))) {
            drop_entry(h, e);
        }
    }
}

static int host_drop(quire_store *store, const quire_store_drop *drop)
{
    host_records *h = self_of(store)->records;
    entry *e;

    (void)pthread_mutex_lock(&h->lock);
    h->n_drops++;
    if (drop->what != QUIRE_STORE_DROP_TEXT && drop->what != QUIRE_STORE_DROP_BEHIND) {
        drop_salts(h, drop);
    } else {
        drop_orphans(h, &drop->root); /* while all of the text is there */
        drop_branch(h, &drop->key);
        e = drop->what == QUIRE_STORE_DROP_TEXT ? find(h, &drop->key) : NULL;
        if (e != NULL) {
            drop_entry(h, e);
        }
    }
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
    host_records *h = self_of((quire_store *)(uintptr_t)store)->records;

    (void)pthread_mutex_lock(&h->lock);
    *out = h->stats;
    (void)pthread_mutex_unlock(&h->lock);
    out->stored_bytes = out->record_bytes;
    out->capacity_bytes = h->capacity_bytes;
}

static void records_free(host_records *h)
{
    while (h->newest != NULL) {
        remove_entry(h, h->newest);
    }
    free(h->by_key);
    free(h->by_parent);
    (void)pthread_mutex_destroy(&h->lock);
    free(h);
}

static void records_leave(host_records *h)
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
    .close = host_close,
};

/* A store on records. Errors: QUIRE_NOMEM. */
static int store_make(quire_store **out, host_records *records)
{
    host_store *h = calloc(1, sizeof *h);

    QUIRE_FAIL_IF(h == NULL, QUIRE_NOMEM);
    h->store = (quire_store){ .ops = &host_ops, .name = "host" };
    h->records = records;
    h->done_end = &h->done;
    (void)pthread_mutex_lock(&records->lock);
    records->n_stores++;
    (void)pthread_mutex_unlock(&records->lock);
    *out = &h->store;
    return QUIRE_OK;
}

static host_records *records_new(uint64_t capacity_bytes)
{
    host_records *h = calloc(1, sizeof *h);

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
    host_records *records;
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
