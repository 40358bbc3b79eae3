/* host_records.c - tables of records, and their coming and going; see host_records.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/host_records.h"

#include "base/check.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

#define TABLE_MIN 1024u /* chains of a table; a power of two */

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

static void list_in(quire_host_records *h, quire_host_entry *e)
{
    e->newer = NULL;
    e->older = h->newest;
    if (h->newest != NULL) {
        h->newest->newer = e;
    }
    h->newest = e;
    h->stats.records++;
    h->stats.record_bytes += e->n_bytes;
}

static void list_out(quire_host_records *h, const quire_host_entry *e)
{
    *(e->newer != NULL ? &e->newer->older : &h->newest) = e->older;
    if (e->older != NULL) {
        e->older->newer = e->newer;
    }
    h->stats.records--;
    h->stats.record_bytes -= e->n_bytes;
}

quire_host_entry *quire_host_above(const quire_host_records *h, const quire_host_entry *e)
{
    quire_host_entry *up = quire_host_find(h, &e->record.text.parent);

    return up != NULL && up->record.text.first_token < e->record.text.first_token ? up : NULL;
}

/* Tell the order the children of a new entry, or of an entry that goes. */
static void children_join(quire_host_records *h, quire_host_entry *e, bool is_in)
{
    const quire_page_key *key = &e->record.text.key;

    for (quire_host_entry *c = quire_host_child(h, key); c != NULL; c = c->next_parent) {
        if (quire_page_key_is(&c->record.text.parent, key) &&
            c->record.text.first_token > e->record.text.first_token) {
            quire_host_order_join(&h->order, c, is_in ? e : NULL);
        }
    }
}

/* ---- entries ---- */

void quire_host_entry_free(quire_host_entry *e)
{
    free(e->bytes);
    free(e);
}

quire_host_entry *quire_host_entry_new(const unsigned char *bytes, size_t n_bytes)
{
    quire_host_entry *e = calloc(1, sizeof *e);

    if (e == NULL) {
        return NULL;
    }
    e->bytes = aligned_alloc(QUIRE_PAGE_RECORD_ALIGN, n_bytes);
    e->n_bytes = n_bytes;
    if (e->bytes == NULL) {
        quire_host_entry_free(e);
        return NULL;
    }
    memcpy(e->bytes, bytes, n_bytes);
    if (quire_page_record_fields(e->bytes, n_bytes, &e->record) != QUIRE_STORE_OK) {
        quire_host_entry_free(e);
        return NULL;
    }
    return e;
}

static void take_out(quire_host_records *h, quire_host_entry *e)
{
    link_out(e);
    list_out(h, e);
    if (e->n_readers > 0) {
        e->is_gone = true;
    } else {
        quire_host_entry_free(e);
    }
}

void quire_host_remove(quire_host_records *h, quire_host_entry *e, quire_prefix_gone why)
{
    children_join(h, e, false);
    quire_host_order_leave(&h->order, e, why);
    take_out(h, e);
}

/* ---- room ---- */

uint64_t quire_host_reserve(const quire_host_records *h)
{
    return h->n_stores > 0 ? (uint64_t)((double)h->capacity_bytes * h->pinned_shares / h->n_stores)
                           : 0;
}

static void evict(quire_host_records *h, quire_host_entry *e)
{
    quire_host_remove(h, e, QUIRE_PREFIX_GONE_MEMORY);
    h->stats.evicted_total++;
    h->stats.evictions++;
}

static bool evict_from(quire_host_records *h, quire_region_id region)
{
    quire_host_entry *victim = quire_host_order_victim(&h->order, region);

    if (victim != NULL) {
        evict(h, victim);
    }
    return victim != NULL;
}

/* The region of n_bytes that come for a pinned class. Without room in its own region they take free
 * memory, then the place of others of the region, then that of all others. */
static quire_region_id pinned_room_make(quire_host_records *h, size_t n_bytes)
{
    const uint64_t reserve = quire_host_reserve(h);

    if (n_bytes > reserve || (h->order.pinned_bytes + n_bytes > reserve &&
                              h->stats.record_bytes + n_bytes <= h->capacity_bytes)) {
        return QUIRE_REGION_DYNAMIC;
    }
    while (h->order.pinned_bytes + n_bytes > reserve) {
        if (!evict_from(h, QUIRE_HOST_PINNED)) {
            return QUIRE_REGION_DYNAMIC;
        }
    }
    return QUIRE_HOST_PINNED;
}

/* Make room for n_bytes more. Returns whether there is room. */
static bool room_make(quire_host_records *h, size_t n_bytes)
{
    const uint64_t reserve = quire_host_reserve(h);

    while (h->stats.record_bytes + n_bytes > h->capacity_bytes) {
        quire_region_id first = QUIRE_REGION_DYNAMIC, then = QUIRE_HOST_PINNED;

        if (h->order.pinned_bytes > reserve) {
            first = QUIRE_HOST_PINNED;
            then = QUIRE_REGION_DYNAMIC;
        }
        if (!evict_from(h, first) && !evict_from(h, then)) {
            return false;
        }
    }
    return true;
}

/* ---- uses ---- */

static void use(quire_host_records *h, quire_host_entry *e, const quire_host_user *user)
{
    const bool moves = user->use.standing.region != QUIRE_REGION_DYNAMIC &&
                       h->order.pinned_bytes + e->n_bytes <= quire_host_reserve(h);

    quire_host_order_use(&h->order, e, user, moves);
}

void quire_host_use(quire_host_records *h, quire_host_entry *e, const quire_host_user *user)
{
    quire_host_order_ask(&h->order, &user->asker);
    use(h, e, user);
}

/* A record takes the place of an older one of its key, whose readers go on. */
static void replace(quire_host_records *h, quire_host_entry *known, quire_host_entry *e,
                    const quire_host_user *user)
{
    bool has_room;

    quire_host_order_pass(&h->order, known, e);
    take_out(h, known);
    link_in(h, e);
    list_in(h, e);
    use(h, e, user);
    quire_host_order_hold(&h->order, e);
    has_room = room_make(h, 0);
    quire_host_order_let(&h->order, e);
    if (!has_room) {
        evict(h, e);
    }
}

/* Whether a record differs from one of its key in more than its bytes and tokens: of two keys that
 * were made to be equal. */
static bool is_other(const quire_host_entry *a, const quire_host_entry *b)
{
    return a->record.text.first_token != b->record.text.first_token ||
           !quire_page_key_is(&a->record.text.parent, &b->record.text.parent);
}

/* Records of the mean size that fit. */
static uint32_t n_fit(const quire_host_records *h)
{
    const uint64_t mean = h->stats.record_bytes / h->stats.records;

    return (uint32_t)quire_min_u64(h->capacity_bytes / mean, UINT32_MAX);
}

/* Take a new entry in, if there is room. The text before it stays meanwhile: without this text
 * nobody finds the entry. If it is not here, the entry takes free memory alone. */
static bool add(quire_host_records *h, quire_host_entry *e, const quire_host_user *user)
{
    quire_host_entry *up = quire_host_above(h, e);
    quire_region_id region = QUIRE_REGION_DYNAMIC;
    bool has_room;

    if (up == NULL && e->record.text.first_token > 0 &&
        h->stats.record_bytes + e->n_bytes > h->capacity_bytes) {
        return false;
    }
    if (up != NULL) {
        quire_host_order_hold(&h->order, up);
    }
    if (user->use.standing.region != QUIRE_REGION_DYNAMIC) {
        region = pinned_room_make(h, e->n_bytes);
    }
    has_room = room_make(h, e->n_bytes);
    if (has_room) {
        link_in(h, e);
        list_in(h, e);
        quire_host_order_enter(&h->order, e, user, region, n_fit(h));
        quire_host_order_join(&h->order, e, up);
        children_join(h, e, true);
    }
    if (up != NULL) {
        quire_host_order_let(&h->order, up);
    }
    return has_room;
}

int quire_host_insert(quire_host_records *h, quire_host_entry *e, const quire_host_user *user)
{
    quire_host_entry *known = quire_host_find(h, &e->record.text.key);

    quire_host_order_ask(&h->order, &user->asker);
    if (known != NULL && !is_other(known, e)) {
        replace(h, known, e, user);
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_host_order_plan(&h->order));
    if (known != NULL) {
        quire_host_remove(h, known, QUIRE_PREFIX_GONE_INVALIDATED);
    }
    if (h->stats.records >= h->n_chains) {
        (void)tables_make(h, 2 * h->n_chains); /* else chains are longer */
    }
    if (!add(h, e, user)) {
        h->stats.evicted_total++;
        h->stats.evictions++;
        quire_host_entry_free(e);
    }
    return QUIRE_OK;
}

/* ---- life ---- */

void quire_host_records_free(quire_host_records *h)
{
    while (h->newest != NULL) {
        quire_host_remove(h, h->newest, QUIRE_PREFIX_GONE_NONE);
    }
    quire_host_order_fini(&h->order);
    free(h->by_key);
    free(h->by_parent);
    (void)pthread_mutex_destroy(&h->lock);
    free(h);
}

quire_host_records *quire_host_records_new(const quire_host_store_opts *opts)
{
    quire_host_records *h = calloc(1, sizeof *h);

    if (h == NULL) {
        return NULL;
    }
    h->capacity_bytes = opts->capacity_bytes;
    if (quire_host_order_init(&h->order, opts->policy) < 0) {
        free(h);
        return NULL;
    }
    if (pthread_mutex_init(&h->lock, NULL) != 0) {
        quire_host_order_fini(&h->order);
        free(h);
        return NULL;
    }
    if (tables_make(h, TABLE_MIN) < 0) {
        quire_host_records_free(h);
        return NULL;
    }
    return h;
}
