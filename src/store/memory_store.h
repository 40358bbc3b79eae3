/* memory_store.h - a store in memory, which can be slow, small, forgetful and damaged: for tests.
 *
 * Transfers finish inside get and put, or later, when quire_memory_store_tick() says so. Faults are
 * chosen by a seeded generator, so a run can be repeated.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_MEMORY_STORE_H
#define QUIRE_STORE_MEMORY_STORE_H

#include "store/store.h"

typedef struct quire_memory_store_opts {
    uint64_t capacity_bytes; /* of records; the oldest record makes room; 0 = no bound */
    uint32_t transfers_max;  /* unfinished at once; more are FULL; 0 = no bound */
    uint32_t delay_ticks;    /* a transfer finishes this number of ticks after it was taken */
    bool outlives; /* close() keeps the records, for a next owner; quire_memory_store_destroy() ends
                      them */
    bool is_degraded; /* the state; puts are CLOSED */
    uint64_t seed;
    /* Probabilities, 0..1, for each transfer. */
    double failure; /* get or put: IO */
    double loss;    /* put: reported OK, not kept */
    double flip;    /* get: one random bit of the record's bytes is wrong before verification */
    double swap;    /* get: the record of another key is read, if there is one */
} quire_memory_store_opts;

/* Errors: QUIRE_NOMEM. Memory: end with (*out)->ops->close(), and with quire_memory_store_destroy()
 * if it outlives its owners. */
int quire_memory_store_create(quire_store **out, const quire_memory_store_opts *opts);

/* End a store that outlives its owners, after close(). */
void quire_memory_store_destroy(quire_store *store);

/* Change faults and delays of a running store. */
void quire_memory_store_set(quire_store *store, const quire_memory_store_opts *opts);

/* Let one unit of time pass: transfers that are due finish. */
void quire_memory_store_tick(quire_store *store);

#endif /* QUIRE_STORE_MEMORY_STORE_H */
