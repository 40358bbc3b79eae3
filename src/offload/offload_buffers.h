/* offload_buffers.h - memory for parts of the offloaded pages of a step, and the reads that fill
 * it: of the stream (offload_stream.h).
 *
 * A buffer has the size of the largest part of all stripes of the file, or is being filled with a
 * part of those of the step. The memory is reserved, and backed where it was written.
 *
 * Thread: one at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_BUFFERS_H
#define QUIRE_OFFLOAD_OFFLOAD_BUFFERS_H

#include "offload/offload_file.h"
#include "offload/offload_stops.h"

#define QUIRE_OFFLOAD_BUFFERS_MIN 2u
#define QUIRE_OFFLOAD_BUFFERS_MAX (2u * QUIRE_OFFLOAD_READS_MAX) /* of a stop and the next */
#define QUIRE_OFFLOAD_PART_NONE   UINT32_MAX

typedef struct quire_offload_buffer {
    quire_offload_job job;
    uint32_t part; /* that it holds or is being filled with */
} quire_offload_buffer;

/* Stripes of the file, in the order of a buffer; unchanged while buffers are filled. */
typedef struct quire_offload_stripes {
    const uint32_t *at; /* [n] */
    uint32_t n;
} quire_offload_stripes;

typedef struct quire_offload_buffers {
    quire_offload_file *file;         /* borrowed */
    const quire_offload_stops *stops; /* borrowed */
    quire_offload_buffer all[QUIRE_OFFLOAD_BUFFERS_MAX];
    uint32_t n; /* as many as a stop and the next one read, so that one can follow the other */
    unsigned char *memory;
    size_t memory_bytes;
} quire_offload_buffers;

/* Errors: QUIRE_NOMEM. Memory: quire_offload_buffers_close(). */
int quire_offload_buffers_open(quire_offload_buffers *buffers, quire_offload_file *file,
                               const quire_offload_stops *stops);
/* Nothing is being read (quire_offload_buffers_settle()). Accepts buffers that are zero. */
void quire_offload_buffers_close(quire_offload_buffers *buffers);

/* Memory of a step with n_stripes stripes. Thread: any. */
uint64_t quire_offload_buffers_bytes(const quire_offload_buffers *buffers, uint32_t n_stripes);

/* Wait until no buffer is being filled, and let all be empty. Errors: QUIRE_IO (the file is broken:
 * a read may still be under way, and use its memory and its stripes). */
int quire_offload_buffers_settle(quire_offload_buffers *buffers);
/* Give the memory back until a step needs it. */
void quire_offload_buffers_rest(quire_offload_buffers *buffers);

/* The buffer of a part; NULL: none. */
quire_offload_buffer *quire_offload_buffers_of(quire_offload_buffers *buffers, uint32_t part);
/* Begin to fill a buffer with each part of stop `to` that has none, while stop `at` is at hand:
 * parts of these two stay, of the others the one goes that is read last. Errors: QUIRE_AGAIN (a
 * read of a step that was given up has a buffer for ever). */
int quire_offload_buffers_ask(quire_offload_buffers *buffers, uint32_t at, uint32_t to,
                              const quire_offload_stripes *stripes);

#endif /* QUIRE_OFFLOAD_OFFLOAD_BUFFERS_H */
