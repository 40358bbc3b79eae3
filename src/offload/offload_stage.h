/* offload_stage.h - one part of the pages that a step of a device reads from the file behind the
 * host's memory, on its way to the device.
 *
 *   file --reads--> ordinary memory --> pinned memory --> the device, or the CPU's kernels
 *                   part p + 1          part p
 *
 * Reads of a part have the time of a layer: take() waits for a part, copies it to pinned memory and
 * begins to read the next one. Behind the last part comes the first one, for the next step. Files
 * are read past the page cache, and drivers may not let a disk write to memory that they have
 * pinned, so reads end in memory of the process.
 *
 * Pinned memory has a *room* for each part that a layer reads at once (offload_stops.h).
 *
 * Both memories are by stripe, and together take quire_offload_stage_bytes() for each stripe of a
 * step. Pinned memory is taken in chunks, when the file gets stripes, and given back when it has
 * fewer.
 *
 * Thread: the cache's owner; take() by thread 0 of a step.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_STAGE_H
#define QUIRE_OFFLOAD_OFFLOAD_STAGE_H

#include "offload/offload_file.h"

#define QUIRE_OFFLOAD_CHUNK_BYTES ((size_t)16 << 20) /* pinned at once; at least a stripe */

typedef struct quire_offload_stage quire_offload_stage;

/* memory: the device's, copied. The file is borrowed, and has no kept bytes. n_rooms: parts that
 * are in pinned memory at once, at least 1. Errors: QUIRE_NOMEM. Memory:
 * quire_offload_stage_close(), before the file is closed and the device ends. */
int quire_offload_stage_open(quire_offload_stage **out, const quire_page_memory *memory,
                             quire_offload_file *file, uint32_t n_rooms);
void quire_offload_stage_close(quire_offload_stage *stage);

/* Memory of the host for a stripe of the file whose largest part has these bytes, padded. */
uint64_t quire_offload_stage_bytes(uint64_t stripe_bytes_max, uint32_t n_rooms);

/* Between steps. The file is about to have n_stripes stripes. Errors: QUIRE_LIMIT (no memory to
 * pin), then nothing has changed. */
int quire_offload_stage_reserve(quire_offload_stage *stage, uint32_t n_stripes);
/* Between steps. The file has n_stripes stripes. */
void quire_offload_stage_trim(quire_offload_stage *stage, uint32_t n_stripes);

/* A step begins, or goes on, that reads these stripes of the file, [n >= 1], no more than it has.
 * Its first part is on its way. Errors: QUIRE_IO (the file is broken). */
int quire_offload_stage_begin(quire_offload_stage *stage, const uint32_t *stripes, uint32_t n,
                              uint32_t first_part);
/* Wait until a part of the stripes is in a room of pinned memory, over the part before there, and
 * begin to read `next`. Errors: QUIRE_IO, QUIRE_CORRUPT. */
int quire_offload_stage_take(quire_offload_stage *stage, uint32_t part, uint32_t room,
                             uint32_t next);
/* Where a part of a page lies. The bytes are there from take() on. Memory: borrowed, until the next
 * step begins. Thread: any of the step. */
typedef struct quire_offload_staged {
    uint32_t stripe; /* of those of begin() */
    uint32_t slot;   /* in it, 0 to QUIRE_OFFLOAD_STRIPE - 1 */
    uint32_t part;
    uint32_t room; /* 0 to n_rooms - 1 */
} quire_offload_staged;
const unsigned char *quire_offload_stage_at(const quire_offload_stage *stage,
                                            const quire_offload_staged *at);

/* No step will run for a while. */
void quire_offload_stage_rest(quire_offload_stage *stage);

#endif /* QUIRE_OFFLOAD_OFFLOAD_STAGE_H */
