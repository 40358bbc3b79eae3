/* host_store.h - a store in the host's memory: copies of pages of a device, in front of a disk or a
 * shared store.
 *
 * Records are kept by key. Which one makes room says an eviction policy, that of the prefix tree
 * above (host_order.h): low ranks first, and pages of pinned classes have a part of the memory of
 * their own (host_records.h). A get, a query and a put count as uses. Nothing outlives the
 * process. Transfers are finished inside get and put: each
 * costs a pass over its record, and a checksum; a put of a known record costs neither. Stores with
 * the same records wait for one another only while tables change; read_us_total is the sum of the
 * times of all their reads.
 *
 * A drop of a text ends also the records of its root behind a gap: of the text before them a page
 * is not here, so they may continue the dropped one. It looks at all records.
 *
 * Thread: as store.h says.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_HOST_STORE_H
#define QUIRE_STORE_HOST_STORE_H

#include "store/store.h"

typedef struct quire_host_store_opts {
    uint64_t capacity_bytes; /* of records, > 0; memory is taken as it is needed */
    quire_evict_policy policy;
} quire_host_store_opts;

/* Errors: QUIRE_INVAL (an option), QUIRE_NOMEM. Memory: end with (*out)->ops->close(). */
int quire_host_store_create(quire_store **out, const quire_host_store_opts *opts);

/* A further store with the records of another one made here, for an owner of its own: both
 * find the records of both, and figures are those of both. The records end with the last of them.
 * Thread: any, while the other is not closed. Errors: QUIRE_INVAL (no such store), QUIRE_NOMEM. */
int quire_host_store_share(quire_store **out, quire_store *other);

#endif /* QUIRE_STORE_HOST_STORE_H */
