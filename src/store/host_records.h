/* host_records.h - the records of stores in the host's memory; for host_store.c, host_records.c and
 * host_drops.c.
 *
 * An entry is in two tables: by its key, and by the key of its parent, by which a drop finds the
 * texts that continue a dropped one. Both tables have chains and grow together. The order
 * (host_order.h) says which entry makes room.
 *
 * Regions. Pages of pinned classes have a part of the memory: the share that their region has of
 * the memory above, as its owners say (quire_store_hints). Within this part they make room for one
 * another only; what they leave free of it, others use. Beyond it they take free memory, then the
 * place of others of the part. A page that is larger than the part, or that finds no other there
 * that may go, comes as pages of all classes do.
 *
 * Thread: the functions are called under the lock.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_HOST_RECORDS_H
#define QUIRE_STORE_HOST_RECORDS_H

#include <pthread.h>
#include <string.h>

#include "store/host_order.h"
#include "store/host_store.h"

struct quire_host_entry {
    struct quire_host_entry *next_key;    /* in the chain of its key */
    struct quire_host_entry *next_parent; /* and of its parent's key */
    struct quire_host_entry **at_key;     /* where the chains point to this quire_host_entry */
    struct quire_host_entry **at_parent;
    struct quire_host_entry *newer; /* of all entries, by arrival */
    struct quire_host_entry *older;
    unsigned char *bytes;
    size_t n_bytes;
    quire_page_record record;   /* points into bytes */
    uint32_t node;              /* the order's */
    quire_host_asker last_user; /* likewise */
    uint64_t looked_at;         /* number of the last drop that looked for the text before it */
    bool is_orphan;             /* and did not find all of that text */
    bool is_gone;               /* removed; the last of its readers frees it */
    uint32_t n_readers;
};

/* The records, under one lock: several stores may have them in common. */
typedef struct quire_host_records {
    pthread_mutex_t lock;
    uint32_t n_stores;
    uint64_t capacity_bytes;
    double pinned_shares;         /* the sum of those that the stores' owners name */
    quire_host_entry **by_key;    /* [n_chains] */
    quire_host_entry **by_parent; /* [n_chains] */
    uint64_t n_chains;
    quire_host_entry *newest;
    quire_host_order order;
    uint64_t sequence;
    uint64_t n_drops;
    uint64_t read_ns;        /* of all reads */
    quire_store_stats stats; /* of all stores together */
} quire_host_records;

/* NULL: no memory. */
quire_host_records *quire_host_records_new(const quire_host_store_opts *opts);
void quire_host_records_free(quire_host_records *h);

/* A copy of a sealed record. NULL: no memory, or no record. */
quire_host_entry *quire_host_entry_new(const unsigned char *bytes, size_t n_bytes);
void quire_host_entry_free(quire_host_entry *e);

/* NULL: there is none. */
quire_host_entry *quire_host_find(const quire_host_records *h, const quire_page_key *key);
/* Any of the entries that continue a key; NULL: there is none. */
quire_host_entry *quire_host_child(const quire_host_records *h, const quire_page_key *parent);
/* The page before an entry's; NULL: it is not there. Positions fall on the way up, so that no
 * constructed circle holds a search. */
quire_host_entry *quire_host_above(const quire_host_records *h, const quire_host_entry *e);

/* Take an entry in, which belongs to the records then, instead of one with its key. Others make
 * room; if only the text before it could, or that text is not here and no memory is free, the entry
 * goes at once, as if it was evicted. Errors: QUIRE_NOMEM, QUIRE_LIMIT: the entry stays the
 * caller's. */
int quire_host_insert(quire_host_records *h, quire_host_entry *e, const quire_host_user *user);
/* An entry is used. */
void quire_host_use(quire_host_records *h, quire_host_entry *e, const quire_host_user *user);
/* Take an entry out, and free it unless it is being read. */
void quire_host_remove(quire_host_records *h, quire_host_entry *e, quire_prefix_gone why);
/* The bytes that pinned classes keep. */
uint64_t quire_host_reserve(const quire_host_records *h);

/* ---- host_drops.c ---- */

/* End the records that a drop names. Records behind a gap, whose ancestors are unknown, end with
 * their root's drops. */
void quire_host_drop_apply(quire_host_records *h, const quire_store_drop *drop);

#endif /* QUIRE_STORE_HOST_RECORDS_H */
