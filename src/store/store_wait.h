/* store_wait.h - waiting for a store: for callers that have nothing else to do.
 *
 * Thread: the caller's; the store's threads only wake it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_STORE_WAIT_H
#define QUIRE_STORE_STORE_WAIT_H

#include "store/store.h"

typedef struct quire_store_wait quire_store_wait;

/* NULL: out of memory. Memory: quire_store_wait_free(), after the store was closed. */
quire_store_wait *quire_store_wait_new(void);
void quire_store_wait_free(quire_store_wait *wait);

/* The value for the store's option `waker`. */
quire_store_waker quire_store_wait_waker(quire_store_wait *wait);

/* The next transfer that the store gives back. Waits for it at most within_ms (UINT32_MAX: as long
 * as it takes); NULL when none came. */
quire_transfer *quire_store_wait_next(quire_store_wait *wait, quire_store *store,
                                      uint32_t within_ms);

#endif /* QUIRE_STORE_STORE_WAIT_H */
