/* host_records.h - the records of stores in the host's memory; for host_store.c and host_drops.c.
 *
 * An entry is in two tables: by its key, and by the key of its parent, by which a drop finds the
 * texts that continue a dropped one. Both tables have chains and grow together.
 *
 * Thread: the functions are called under the lock.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_HOST_RECORDS_H
#define QUIRE_STORE_HOST_RECORDS_H

#include <pthread.h>
#include <string.h>

#include "store/store.h"

typedef struct quire_host_entry {
    struct quire_host_entry *next_key;    /* in the chain of its key */
    struct quire_host_entry *next_parent; /* and of its parent's key */
    struct quire_host_entry **at_key;     /* where the chains point to this quire_host_entry */
    struct quire_host_entry **at_parent;
    struct quire_host_entry *newer; /* by use */
    struct quire_host_entry *older;
    unsigned char *bytes;
    size_t n_bytes;
    quire_page_record record; /* points into bytes */
    uint64_t looked_at;       /* number of the last drop that looked for the text before it */
    bool is_orphan;           /* and did not find all of that text */
    bool is_gone;             /* removed; the last of its readers frees it */
    uint32_t n_readers;
} quire_host_entry;

/* The records, under one lock: several stores may have them in common. */
typedef struct quire_host_records {
    pthread_mutex_t lock;
    uint32_t n_stores;
    uint64_t capacity_bytes;
    quire_host_entry **by_key;    /* [n_chains] */
    quire_host_entry **by_parent; /* [n_chains] */
    uint64_t n_chains;
    quire_host_entry *newest;
    quire_host_entry *oldest;
    uint64_t sequence;
    uint64_t n_drops;
    uint64_t read_ns;        /* of all reads */
    quire_store_stats stats; /* of all stores together */
} quire_host_records;

/* NULL: there is none. */
quire_host_entry *quire_host_find(const quire_host_records *h, const quire_page_key *key);
/* Any of the entries that continue a key; NULL: there is none. */
quire_host_entry *quire_host_child(const quire_host_records *h, const quire_page_key *parent);
/* Take an entry out, and free it unless it is being read. */
void quire_host_remove(quire_host_records *h, quire_host_entry *e);

/* ---- host_drops.c ---- */

/* End the records that a drop names. Records behind a gap, whose ancestors are unknown, end with
 * their root's drops. */
void quire_host_drop_apply(quire_host_records *h, const quire_store_drop *drop);

#endif /* QUIRE_STORE_HOST_RECORDS_H */
