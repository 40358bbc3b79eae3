/* common_store.h - one store for several owners, each with a thread of its own: the devices of a
 * server have one directory, and one connection to a shared store, in common.
 *
 *   owner 0 --> handle 0 --.
 *   owner 1 --> handle 1 --+-- one lock --> the store, which belongs to all
 *
 * A handle is a store for its owner. All owners find the records that one owner has put; records
 * are told apart by their keys alone, so owners whose keys differ do not see each other's.
 *
 * Transfers come back by the handle that took them. The store's wakes go to the handles that wait
 * for transfers, and, where the store hears of other machines' drops, to all. Each handle gives
 * every drop that the store has heard to its owner once.
 *
 * A drop by one handle holds for all: gets that any handle has not given back yet end ABSENT.
 *
 * Close. The last handle closes the store. Any other one waits for its own transfers, at most
 * close_ms; like those of a stuck disk (file/file_store.h), transfers that the store still has then
 * are never given back.
 *
 * Figures are the store's, of all owners together; is_common marks them on each handle but the
 * first, so that a sum over owners counts them once.
 *
 * Thread: of one handle as store.h says; different handles at the same time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_COMMON_STORE_H
#define QUIRE_STORE_COMMON_STORE_H

#include "store/store.h"

#define QUIRE_COMMON_CLOSE_MS 5000u /* default of close_ms */

/* The first handle of a store of one part. close_ms: 0 = default. From success on the store belongs
 * to the handles; its waker is set here. Errors: QUIRE_INVAL (a store of several parts),
 * QUIRE_NOMEM. Memory: end with (*out)->ops->close(). */
int quire_common_store_create(quire_store **out, quire_store *store, uint32_t close_ms);

/* A further handle of the store of a handle that is open. Errors: QUIRE_INVAL (other is no such
 * handle), QUIRE_NOMEM. Memory: as above. Thread: one at a time; before the owners' first
 * transfers. */
int quire_common_store_share(quire_store **out, quire_store *other);

#endif /* QUIRE_STORE_COMMON_STORE_H */
