/* reads.h - reading many places of files at once: io_uring, or threads with pread.
 *
 *   client.next(read) ---> engine reads ---> client.done(read)
 *
 * The engine asks for the next read whenever it has a free place, so the client keeps its queue and
 * decides the order at the last moment. next() and done() are called from the engine's threads and
 * may block; next() opens files there.
 *
 * Thread: kick from any; create and close from one.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_FILE_READS_H
#define QUIRE_STORE_FILE_READS_H

#include "store/file/file_ops.h"
#include "store/store.h"

#define QUIRE_READS_MAX 64u /* under way at once */

typedef enum quire_reads_kind {
    QUIRE_READS_AUTO, /* io_uring where the kernel and the build have it */
    QUIRE_READS_URING,
    QUIRE_READS_POOL
} quire_reads_kind;

typedef struct quire_read {
    /* Set by next(). */
    int fd;
    uint64_t offset;
    size_t n_bytes;
    unsigned char *buffer; /* [n_bytes] */
    quire_transfer *transfer;
    void *segment;
    uint32_t place;
    uint64_t sequence;
    /* The engine's. */
    size_t n_done; /* done(): bytes that were read; fewer than n_bytes where the file ends */
    int error;     /* done(): 0 or a negative errno */
    uint32_t tries;
} quire_read;

typedef struct quire_reads_client {
    bool (*next)(void *ctx, quire_read *read); /* false: nothing waits */
    void (*done)(void *ctx, quire_read *read);
    void *ctx;
} quire_reads_client;

typedef struct quire_reads quire_reads;

/* Errors: QUIRE_UNSUPP (URING, and there is none), QUIRE_NOMEM. */
int quire_reads_create(quire_reads **out, quire_reads_kind kind, uint32_t n_max,
                       const quire_reads_client *client, const quire_file_ops *ops);
/* The client may have something now. */
void quire_reads_kick(quire_reads *reads);
/* End: no next() begins after the return. Waits for reads under way until deadline_ns
 * (quire_clock_ns()). Returns false when some are still under way then: engine, client and buffers
 * must stay as they are for ever. */
bool quire_reads_close(quire_reads *reads, uint64_t deadline_ns);
/* "io_uring" or "threads". */
const char *quire_reads_name(const quire_reads *reads);

/* ---- inside ---- */

/* Whether a read goes on after a call that moved n bytes (a negative errno: failed). */
bool quire_read_advance(quire_read *read, ssize_t n);

/* The engine with io_uring, or NULL: no support. */
typedef struct quire_uring quire_uring;
quire_uring *quire_uring_create(uint32_t n_max, const quire_reads_client *client,
                                const quire_file_ops *ops);
void quire_uring_kick(quire_uring *uring);
bool quire_uring_close(quire_uring *uring, uint64_t deadline_ns);

#endif /* QUIRE_STORE_FILE_READS_H */
