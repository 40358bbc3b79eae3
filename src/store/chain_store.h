/* chain_store.h - one store over two: a near one (a directory), then a far one (shared, slower).
 *
 *   get --> near --found-------------------------------------> caller
 *              \-missing--> far --found--> caller
 *                                      \-> a copy is put into near
 *
 *   put --> near (the caller's buffer) --durable--> caller
 *      \--> far  (a copy of it)            \-refused: the caller waits for the far store's answer
 *
 * A near store that is volatile (the host's memory) is no place to count on. Then both stores have
 * the caller's buffer, one after the other, and a put ends with the far store's answer:
 *
 *   put --> near --any answer--> far --answer--> caller
 *
 * So the far store holds the caller back, and the put of each record that ends OK is durable. While
 * the far store takes no puts (CLOSED), the near store's answer holds.
 *
 * Gets. A get that the near store does not answer with OK is passed on to the far store, in the
 * order in which the near store gives it back. A record that the far store finds is put into the
 * near one; it replaces a record there only if that record was damaged. A query counts as a use in
 * both stores, and is OK if one of them has the record.
 *
 * Copies. A transfer has one buffer, and two stores need two. Copies have a pool of their own,
 * bounded by copy_bytes and QUIRE_CHAIN_COPIES_MAX. When it is used up, a record goes to the near
 * store only, or is not put there after a get; this is counted (unpassed_total of the store that
 * goes without). Nobody waits for a copy, apart from puts that the near store refused.
 *
 * Drops reach both stores. A record that was found in the far store before a drop is not put into
 * the near store after the drop. Drops of other machines, which the far store hears, are repeated
 * in the near store and passed on to the caller.
 *
 * Failure. Each store degrades alone, and the other goes on. The chain is READY while one of the
 * two is, and `trouble` names the store that is not. Figures of a chain: results, refused puts and
 * transfers under way are the caller's; all others are the sums of both stores.
 *
 * The far store may be a chain of two stores: memory over a directory over a shared store. The near
 * one is a store of one part.
 *
 * Thread: as store.h says.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_CHAIN_STORE_H
#define QUIRE_STORE_CHAIN_STORE_H

#include "store/store.h"

#define QUIRE_CHAIN_COPY_BYTES 67108864u /* default of copy_bytes */
#define QUIRE_CHAIN_COPIES_MAX 64u       /* copies at once */

typedef struct quire_chain_store_opts {
    quire_store *near;
    quire_store *far;
    size_t copy_bytes;     /* memory for copies; 0 = default; one copy may always be made */
    bool is_near_volatile; /* the near store's records do not outlive the process */
} quire_chain_store_opts;

/* Both stores are the chain's from success on: its close() closes them, at the same time, so it
 * takes as long as the slower of the two. Their wakers are set here. Errors: QUIRE_NOMEM,
 * QUIRE_INVAL (more than QUIRE_STORE_PARTS_MAX stores, or the near one is a chain). */
int quire_chain_store_create(quire_store **out, const quire_chain_store_opts *opts);

#endif /* QUIRE_STORE_CHAIN_STORE_H */
