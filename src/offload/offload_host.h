/* offload_host.h - the slots of offloaded pages in the host's memory, below a device's.
 *
 * A device's page goes down to pinned memory by the device's copies, and comes back by them. As in
 * the file (offload_file.h), pages go down in stripes of QUIRE_OFFLOAD_STRIPE, and part p of a
 * stripe's pages lies in one piece, since attention needs one part of many pages at a time:
 *
 *   block: | stripe 0                                   | stripe 1 ...
 *          | part 0: slot 0 ... 7 | part 1: slot 0 ... 7 |
 *
 * A block is the unit that the device pins: the stripes that QUIRE_OFFLOAD_BLOCK_BYTES hold, at
 * least one. The last block ends with the last stripe, so no more is pinned than the capacity. A
 * block is pinned with its first stripe and given back with its last one; where that fails, the
 * stripes of pinned blocks are used up first. The bytes have no checksums: no medium
 * lies in between. A copy that fails is reported by the device.
 *
 * Thread: one, the cache's owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_HOST_H
#define QUIRE_OFFLOAD_OFFLOAD_HOST_H

#include "offload/offload_file.h"

#define QUIRE_OFFLOAD_BLOCK_BYTES ((size_t)64 << 20)

typedef struct quire_offload_host quire_offload_host;

/* memory: the device's, copied. Of opts the capacity, the parts and extent_pages are used. Errors:
 * QUIRE_INVAL (no room for one stripe), QUIRE_NOMEM. Memory: quire_offload_host_close(), before the
 * device ends. */
int quire_offload_host_open(quire_offload_host **out, const quire_page_memory *memory,
                            const quire_offload_file_opts *opts, quire_error *err);
void quire_offload_host_close(quire_offload_host *host);

/* As the functions of the file. write() waits for the device. Errors: QUIRE_LIMIT (no free stripe,
 * or no memory to pin), QUIRE_LOST; then nothing has changed. */
int quire_offload_host_write(quire_offload_host *host, const quire_page_addr *pages,
                             uint32_t n_pages, uint32_t *first_slot);
void quire_offload_host_release(quire_offload_host *host, uint32_t slot);
/* Take these slots of a free stripe, a bit by slot, whose pages come by fill(). Errors:
 * QUIRE_LIMIT.
 */
int quire_offload_host_take(quire_offload_host *host, uint8_t slots, uint32_t *first_slot);
/* A page in one piece, part by part, comes to a slot. */
void quire_offload_host_fill(quire_offload_host *host, uint32_t slot, const void *page);
int quire_offload_host_read(quire_offload_host *host, uint32_t slot, void *buffer, size_t bytes);

/* One part of the page in a slot, pinned. Memory: borrowed, until the slot is released. */
const unsigned char *quire_offload_host_at(const quire_offload_host *host, uint32_t slot,
                                           uint32_t part);
/* A stripe, which looks like an extent of QUIRE_OFFLOAD_STRIPE pages. Memory: as above. */
unsigned char *quire_offload_host_stripe(const quire_offload_host *host, uint32_t stripe);

uint32_t quire_offload_host_n_parts(const quire_offload_host *host);
size_t quire_offload_host_part_offset(const quire_offload_host *host, uint32_t part);
size_t quire_offload_host_part_bytes(const quire_offload_host *host, uint32_t part);

/* Thread of both: any. */
uint32_t quire_offload_host_stripes_max(const quire_offload_host *host);
uint32_t quire_offload_host_stripes_used(const quire_offload_host *host);

/* Bytes that a step has fetched, or attends where they lie, and a fetch that failed; the last
 * failure in words. */
void quire_offload_host_fetched(quire_offload_host *host, uint64_t bytes);
void quire_offload_host_attended(quire_offload_host *host, uint64_t bytes);
void quire_offload_host_failed(quire_offload_host *host, const char *call, int status);
const char *quire_offload_host_trouble(const quire_offload_host *host);
void quire_offload_host_stats_get(const quire_offload_host *host, quire_offload_file_stats *out);

#endif /* QUIRE_OFFLOAD_OFFLOAD_HOST_H */
