/* overflow.h - requests that are larger than the KV budget: options and figures.
 *
 * A request whose tokens need more than the budget is *large*. Full pages of a large request move
 * to a file, or from a device to the host's memory and from there to the file, and are streamed
 * from there in each step (offload/offload.h). Other requests are queued or preempted when pages
 * are short, as ever: streaming is slower than memory, so only a request that could not run at all
 * without it is streamed.
 *
 *   pages short --> a large request runs?  --yes--> one stripe of its pages goes down
 *                     | no
 *                     '--> preemption (park.c)
 *
 * A large request may use all memory while it is alone. When another request waits for room, the
 * large one gives up pages until it holds half of the memory (QUIRE_OVERFLOW_SHARE). Pages come
 * back one by one when room is free and nobody waits; from the file to the host's memory they come
 * by the stripe.
 *
 * Pages that are charged to the pinned region stay. A request of a pinned class gives up its other
 * pages as any request does, but from the host's memory they go on to the file after the pages of
 * all other classes that the last step has read.
 *
 * With --kv-overflow-attend host or auto, steps of generated tokens attend pages in the host's
 * memory where they lie, by the CPU's kernels, while the device attends the others. Such results
 * depend on which pages lay there, and so do K and V of the tokens that follow from them: other
 * requests get no pages of such tokens. Rows of prompts, and tokens that are computed again after a
 * preemption, are always attended on the device.
 *
 * Pages of the layers that read the whole text move. Pages of windows stay in memory, and so do the
 * states of recurrent layers: both take the same room for a text of any length. Layers that share K
 * and V read the pages of the layers that store them (offload/offload_stops.h).
 *
 * Pages of a request whose text drops tokens (`retain`, `context_overflow`) stay in memory, so that
 * K can be read and turned there, and the request gets none of other places: its hit ends in front
 * of the first offloaded page. Such a request must fit the memory.
 *
 * Tokens that choose pages (--attend) need the bounds of all pages and the payload of those that
 * they choose. The bounds of offloaded pages stay in memory, and a step in which all tokens with
 * such pages choose reads the chosen ones, in layers that choose.
 *
 * When offloaded pages cannot be read, the step fails, and the requests that have such pages are
 * computed again without them (QUIRE_OVERFLOW_TRIES): after a failed read of the file below a
 * device those with pages there.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_OVERFLOW_H
#define QUIRE_ENGINE_OVERFLOW_H

#include "engine/attend_choice.h"
#include "model/runtime.h"
#include "offload/offload.h"
#include "retain/packed_device.h"

#define QUIRE_OVERFLOW_SHARE       0.5 /* of the memory: a large request beside others */
#define QUIRE_OVERFLOW_STRIPES_MAX 4u  /* given up in one round for requests that wait, */
/* and bytes of them, but at least a stripe: running requests wait for a round's copies. */
#define QUIRE_OVERFLOW_ROUND_BYTES ((uint64_t)64 << 20)
#define QUIRE_OVERFLOW_TRIES       2u  /* of a request whose pages could not be read */
#define QUIRE_OVERFLOW_KEEP_PAGES  16u /* room that stays free when pages come back */

/* Where generated tokens read pages that lie in the host's memory below a device's. */
typedef enum quire_overflow_attend {
    QUIRE_OVERFLOW_ATTEND_DEVICE, /* on the device: copied there in each step */
    QUIRE_OVERFLOW_ATTEND_HOST,   /* where they lie */
    QUIRE_OVERFLOW_ATTEND_AUTO    /* where steps take less time: attend_choice.h */
} quire_overflow_attend;

typedef struct quire_overflow_opts {
    /* Requests larger than the budget are refused without a file, and on a device with 0 bytes of
     * the host's memory. */
    const char *dir;              /* of the file; NULL = none */
    uint64_t capacity_bytes;      /* of the file */
    uint64_t host_bytes;          /* of the host's memory, for pages of a device */
    uint32_t wait_ms;             /* for a read; 0 = QUIRE_OFFLOAD_WAIT_MS */
    quire_overflow_attend attend; /* but for DEVICE, of runtimes with attends_host alone */
    const quire_file_ops *ops;    /* for tests; NULL = the operating system's */
} quire_overflow_opts;

/* Whether pages of this model can be offloaded: some layer reads the whole text, and no layer reads
 * K and V of more than QUIRE_OFFLOAD_READS_MAX layers. Errors: QUIRE_UNSUPP, which names a layer
 * that does. Thread: any. */
int quire_overflow_check(const quire_model_desc *desc, quire_error *err);

/* The least capacity of the host's memory: one stripe of pages. opts: as of a runtime, resolved
 * (quire_runtime_opts_resolve()). Thread: any. */
uint64_t quire_overflow_bytes_min(const quire_model_desc *desc, const quire_runtime_opts *opts);

/* The least capacity of a file. opts: as above. Thread: any. */
uint64_t quire_overflow_file_bytes_min(const quire_model_desc *desc,
                                       const quire_runtime_opts *opts);

/* Stripes of pages of this size that are given up in one round, at least one. Thread: any. */
uint32_t quire_overflow_stripes(uint64_t page_bytes);

/* Whether these options let such requests run on the runtime. */
bool quire_overflow_is_on(const quire_overflow_opts *opts, const quire_runtime *runtime);

/* Make the file, and if the runtime's pages are on a device, take the host's memory for them; and
 * put the stream before the runtime's device. chooser: the runtime's device, if rows of its steps
 * may choose pages by their bounds; or NULL. Errors: quire_offload_open(), quire_overflow_check().
 * Memory: quire_overflow_close(), when no page of the runtime's cache is offloaded any more;
 * runtime is NULL when it was destroyed. */
int quire_overflow_open(quire_offload **out, quire_runtime *runtime, const quire_model_desc *desc,
                        const quire_overflow_opts *opts, quire_packed_device *chooser,
                        quire_error *err);
void quire_overflow_close(quire_offload *offload, quire_runtime *runtime);

typedef struct quire_overflow_stats {
    bool is_on;
    uint64_t requests_total; /* large ones, admitted */
    uint64_t lost_total;     /* requests computed again because pages could not be read */
    quire_offload_stats offload;
} quire_overflow_stats;

#endif /* QUIRE_ENGINE_OVERFLOW_H */
