/* offload_fetch.h - attention of a device on pages that lie in the host's memory: a device in front
 * of the device's.
 *
 *   plan        |  the batch's offloaded pages; part 0 is queued to the buffer
 *   append(0)   |  the pages' addresses say the buffer, and the inner device plans again
 *   run(0)      |  as ever; its result is there. Part 1 is queued, over the bytes of part 0
 *               |       products of the model on the CPU            copy of part 1
 *   append(1)   |  ...
 *
 * The buffer has the size of one part of all offloaded pages of the batch, in the device's memory;
 * of two where a layer reads two (offload_stops.h), the second of them at the batch's second
 * addresses. One buffer is enough: the device's queue does a copy behind the attention that reads
 * the bytes before. So a layer's pages are on their way during the computation between two
 * attentions.
 *
 * The bytes of a page are the same in either place, and so are results. A layer whose parts no stop
 * has is QUIRE_UNSUPP by check(). A layer that stores nothing has no append(): its parts are
 * brought at the begin of its run().
 *
 * Where they lie. An inner device that attends pages in the host's memory (quire_device_joint_open)
 * may have pages that are not copied: their addresses say the host's memory, and change with each
 * layer. The owner says for each step whether it may. Pages with hot tiles beside them on the
 * device are copied in such a step, too.
 *
 * Pages in the file behind the host's memory take one way more (offload_stage.h). Each part of them
 * is read while the device computes the part before, and append() waits for it: their copies to the
 * buffer are queued there, and the CPU attends them in the stage.
 *
 * After a call that failed the step does no more work; after a copy that failed it goes on with the
 * bytes in the buffer. Either way sync() returns the error.
 *
 * Thread: plan, sync, open and close: the cache's owner. append and run: as quire_attn_device says;
 * thread 0 copies, and has the inner device append.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_FETCH_H
#define QUIRE_OFFLOAD_OFFLOAD_FETCH_H

#include "offload/offload_stops.h"
#include "offload/offload_tiers.h"
#include "quire/attn.h"

typedef struct quire_offload_fetch quire_offload_fetch;

typedef struct quire_offload_fetch_opts {
    const quire_attn_device *inner;  /* that steps go to, a device with a queue; copied */
    const quire_page_memory *memory; /* the device's; copied */
    quire_cache *cache;              /* borrowed */
    quire_group_id group;            /* of the pages */
    quire_offload_tiers *tiers;      /* borrowed */
    const quire_offload_stop *stops; /* as quire_offload_opts; read by open */
    uint32_t n_stops;
} quire_offload_fetch_opts;

/* Errors: QUIRE_NOMEM. Memory: quire_offload_fetch_close(), before the device ends. */
int quire_offload_fetch_open(quire_offload_fetch **out, const quire_offload_fetch_opts *opts);
void quire_offload_fetch_close(quire_offload_fetch *fetch);

/* The device in front; valid as long as the fetches. */
quire_attn_device quire_offload_fetch_device(quire_offload_fetch *fetch);

/* Memory of the device that a step with n_stripes stripes of offloaded pages takes. */
uint64_t quire_offload_fetch_bytes(const quire_offload_fetch *fetch, uint32_t n_stripes);

/* Whether the next steps attend pages where they lie. Not at first. The inner device must be able
 * to. */
void quire_offload_fetch_attend(quire_offload_fetch *fetch, bool may_attend);
/* Whether a step has attended some since that call. */
bool quire_offload_fetch_attended(const quire_offload_fetch *fetch);

/* Whether the last step failed because a page in the file could not be read. */
bool quire_offload_fetch_missed_file(const quire_offload_fetch *fetch);

/* Give the buffer back until a step needs it again. */
void quire_offload_fetch_give(quire_offload_fetch *fetch);
/* The same, and memory of the stage: the owner is idle. */
void quire_offload_fetch_rest(quire_offload_fetch *fetch);

#endif /* QUIRE_OFFLOAD_OFFLOAD_FETCH_H */
