/* offload_fetch.h - attention of a device on pages that lie in the host's memory: a device in front
 * of the device's.
 *
 *   plan        |  the batch's offloaded pages; part 0 is queued to the buffer
 *   append(0)   |  the pages' addresses say the buffer, and the inner device plans again
 *   run(0)      |  as ever; its result is there. Part 1 is queued, over the bytes of part 0
 *               |       products of the model on the CPU            copy of part 1
 *   append(1)   |  ...
 *
 * The buffer has the size of one part of all offloaded pages of the batch, in the device's memory.
 * One is enough: the device's queue does a copy behind the attention that reads the bytes before.
 * So a layer's pages are on their way while the model computes what lies between two attentions.
 *
 * The bytes of a page are the same in either place, and so are results. A layer may only read the
 * part that it stores (QUIRE_UNSUPP by check()). After a call that
 * failed the step does no more work; after a copy that failed it goes on with what lies in the
 * buffer. Either way sync() returns the error.
 *
 * Thread: plan, sync, open and close: the cache's owner. append and run: as quire_attn_device says;
 * thread 0 does the work.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_FETCH_H
#define QUIRE_OFFLOAD_OFFLOAD_FETCH_H

#include "offload/offload_host.h"
#include "quire/attn.h"

typedef struct quire_offload_fetch quire_offload_fetch;

/* Fetches for steps that go to `inner`, a device with a queue, of pages of `group`. memory is
 * copied, the rest borrowed. Errors: QUIRE_NOMEM. Memory: quire_offload_fetch_close(), before the
 * device ends. */
int quire_offload_fetch_open(quire_offload_fetch **out, const quire_attn_device *inner,
                             const quire_page_memory *memory, quire_cache *cache,
                             quire_group_id group, quire_offload_host *host);
void quire_offload_fetch_close(quire_offload_fetch *fetch);

/* The device in front; valid as long as the fetches. */
quire_attn_device quire_offload_fetch_device(quire_offload_fetch *fetch);

/* Memory of the device that a step with n_stripes stripes of offloaded pages takes. */
uint64_t quire_offload_fetch_bytes(const quire_offload_host *host, uint32_t n_stripes);

/* Give the buffer back until a step needs it again: the owner is idle. */
void quire_offload_fetch_rest(quire_offload_fetch *fetch);

#endif /* QUIRE_OFFLOAD_OFFLOAD_FETCH_H */
