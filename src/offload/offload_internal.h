/* offload_internal.h - the object behind offload_file.h; for src/offload/offload_*.c only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_INTERNAL_H
#define QUIRE_OFFLOAD_OFFLOAD_INTERNAL_H

#include "offload/offload_file.h"

#include <pthread.h>

#define QUIRE_OFFLOAD_TROUBLE_MAX 160u

typedef struct quire_offload_part {
    size_t page_bytes;   /* of one page's part */
    size_t slot_bytes;   /* to the next one of the stripe */
    size_t kept_bytes;   /* its last bytes, which stay in memory */
    size_t kept_offset;  /* of the part in a stripe's kept bytes */
    size_t stripe_bytes; /* of a stripe's, padded */
    size_t mem_offset;   /* of the part in an extent */
    uint64_t file_offset;
} quire_offload_part;

/* A thread that makes one call at a time to the disk, so that the owner can stop waiting. */
typedef struct quire_offload_caller quire_offload_caller;

struct quire_offload_file {
    const quire_file_ops *ops;
    quire_reads *reads;
    int fd;
    uint32_t n_parts;
    quire_offload_part *parts; /* [n_parts] */
    size_t page_bytes;
    size_t stripe_bytes_max;  /* of a part */
    size_t kept_stripe_bytes; /* of all parts; 0: nothing is kept */
    uint64_t stripe_total_bytes;
    uint32_t stripes_max;
    _Atomic uint32_t stripes_used; /* the owner counts, any thread reads */
    uint32_t stripes_end;          /* from here on never used */
    uint32_t stripe_hint;          /* no free stripe lies below */
    uint8_t *slots_used;           /* [stripes_max]: a bit by slot; 0: free */
    uint64_t **sums;       /* [stripes_max], of used stripes [n_parts][QUIRE_OFFLOAD_STRIPE] */
    unsigned char **kept;  /* [stripes_max], of used stripes [kept_stripe_bytes]; or NULL */
    unsigned char *bounce; /* [stripe_bytes_max], aligned */
    uint64_t generation;
    uint32_t wait_ms;
    quire_offload_caller *caller;
    pthread_mutex_t lock; /* guards the rest, and jobs */
    pthread_cond_t changed;
    quire_offload_job *first; /* jobs with reads to begin, in order */
    quire_offload_job *last;
    uint32_t n_active; /* jobs under way */
    uint64_t active_since_ns;
    quire_offload_file_stats stats;
    char trouble[QUIRE_OFFLOAD_TROUBLE_MAX];
    char told[QUIRE_OFFLOAD_TROUBLE_MAX]; /* the owner's copy of it */
};

/* The checksum of a page's part. */
uint64_t quire_offload_sum(const void *bytes, size_t n_bytes);

/* Whether all pages of a stripe's part have their checksums, or one. Thread: the holder of the
 * lock.
 */
bool quire_offload_stripe_is_good(const quire_offload_file *file, uint32_t stripe, uint32_t part,
                                  const unsigned char *bytes);
bool quire_offload_page_is_good(const quire_offload_file *file, uint32_t slot, uint32_t part,
                                const unsigned char *bytes);

/* Remember a failure of `call`: a negative errno, or 0 for a wrong checksum. Returns the status.
 * Thread: the holder of the lock. */
int quire_offload_failed(quire_offload_file *file, const char *call, int error);

/* Errors: QUIRE_NOMEM. */
int quire_offload_caller_open(quire_offload_caller **out, const quire_file_ops *ops);
/* Whether the thread has ended, by a deadline of quire_clock_ns(). Accepts NULL. */
bool quire_offload_caller_close(quire_offload_caller *caller, uint64_t deadline_ns);
/* Read or write all of a buffer that stays the caller's. Returns 0, a negative errno, or -ETIMEDOUT
 * after wait_ms: the thread then has the buffer for ever, and must not be called again. */
int quire_offload_read_at(quire_offload_caller *caller, int fd, void *buffer, size_t n_bytes,
                          uint64_t offset, uint32_t wait_ms);
int quire_offload_write_at(quire_offload_caller *caller, int fd, const void *buffer, size_t n_bytes,
                           uint64_t offset, uint32_t wait_ms);

/* The client of quire_reads: offload_jobs.c. */
bool quire_offload_reads_next(void *ctx, quire_read *read);
void quire_offload_reads_done(void *ctx, quire_read *read);

#endif /* QUIRE_OFFLOAD_OFFLOAD_INTERNAL_H */
