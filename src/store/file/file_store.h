/* file_store.h - a store in a directory: segments of a log, an index in memory.
 *
 *            caller                     reads (reads.h)                 writer (one thread)
 *   get -->  index -- absent: done
 *              '----> by urgency ---->  read, verify --> done
 *   put -->  queue, in order -------------------------------------->  append, sync --> done
 *   drop ->  index at once; queue --------------------------------->  marker, sync
 *
 *   DIR/lock                              held by the process that writes
 *   DIR/segment-<number in 16 hex>.quire  segment.h
 *
 * Invariants:
 *   1. No call takes longer than work in memory: one lock guards the store, and no thread holds it
 *      during input or output. drop is linear in the number of records, the others are constant.
 *   2. A put is OK when the record is durable. A get of a record that is written and not durable
 *      yet may find it.
 *   3. A get ends OK only with the bytes of a record whose checksum, text and sequence number are
 *      those of the index. A record that does not match leaves the index.
 *   4. A get that poll gives back after a drop does not find a record that the drop ended.
 *   5. The files take at most capacity_bytes. Room for one more segment is always kept, so that the
 *      used records of the oldest segment can be carried forward before it goes.
 *   6. Segments are written once, in the order of their numbers, each from front to back.
 *
 * The bound: when a segment begins, the oldest one goes if there would not be room for another. Its
 * records that were used since they were written are carried forward, the most used first: at most
 * QUIRE_FILE_CARRY_SEGMENT of a segment, and in the mean at most QUIRE_FILE_CARRY of the written
 * bytes. So at most 1 / (1 - QUIRE_FILE_CARRY) bytes are written per byte of puts, plus headers and
 * footers. (One bound for each segment alone would lose used records where they stand close
 * together: bench/results/tiers-sim.md.)
 *
 * Accounts: records belong to the account of their tenant. An account may have a quota: when its
 * records take more, its oldest go. Where two accounts or more have records, QUIRE_FILE_SHARED of
 * the capacity is shared out among them by weight. The records of an account that has no more than
 * its share are *guarded*: when the oldest segment goes they are carried forward, used or not. So
 * an account that writes much pushes out its own oldest records, and nobody's guarded ones. Guarded
 * records are carried beyond QUIRE_FILE_CARRY, up to QUIRE_FILE_CARRY_SEGMENT of a segment; with
 * accounts up to 1 / ((1 - QUIRE_FILE_CARRY) * (1 - QUIRE_FILE_SHARED)) bytes, under 3, are written
 * per byte of puts.
 *
 * Trouble: when a write fails, the state is DEGRADED: queued puts come back CLOSED, reads go on.
 * Every retry_ms the store begins a new segment; when that works, it is READY again. Drops that are
 * not durable yet wait in memory; close tries once more to write them, and the log says when they
 * are lost. stats.trouble and the log name call, file and reason.
 *
 * A directory that vanished is such trouble: at each sync the open segment must still be at its
 * path, and before each new segment the lock. A retry makes the directory again, if it is missing,
 * and locks it; it does not write where another process has the lock.
 *
 * Power failures: a footer is written when the records that it lists are durable, so all durable
 * records are there after a crash, whichever later writes reached the disk. A start after a crash
 * may find room for one segment less; then the oldest goes without its used records.
 *
 * Segments that cannot be read at the start: gets find none of their records, and no older records,
 * unless a later segment rules out drops in the unreadable ones. The directory does not change by
 * this.
 *
 * Stuck disks: only the store's threads wait for the disk. create waits for them at most open_ms,
 * close at most close_ms. After that the memory of transfers whose input or output has not ended
 * still belongs to the kernel: close does not give these transfers back, ever, and their memory and
 * the store's stay taken until the process ends.
 *
 * Read-only: no lock is taken and nothing is written. Puts come back CLOSED; drops hold in this
 * process and return QUIRE_IO. Records of a writer that came after the start are not seen.
 *
 * A put that replaces a record takes its place when it is written. When the old record has gone
 * meanwhile, the new one goes with it, since a drop may have been meant for both.
 *
 * A put whose record was dropped meanwhile comes back ABSENT; one that can never fit into a segment
 * or whose lengths do not fit, FORMAT.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_FILE_FILE_STORE_H
#define QUIRE_STORE_FILE_FILE_STORE_H

#include "quire/error.h"
#include "store/file/file_ops.h"
#include "store/file/reads.h"
#include "store/store.h"

#define QUIRE_FILE_SEGMENTS_MIN      4u /* that capacity_bytes must have room for */
#define QUIRE_FILE_SEGMENT_BYTES_MIN (64u << 10)
#define QUIRE_FILE_SEGMENT_BYTES_MAX (1u << 30)
#define QUIRE_FILE_CARRY             0.3 /* of the written bytes may be records carried forward */
#define QUIRE_FILE_CARRY_SEGMENT     0.9 /* of one segment */
#define QUIRE_FILE_SHARED            0.5 /* of the capacity, shared out among accounts */
/* Guarded records of one of the oldest segments are carried if they fill more than this share of
 * the segment, and if old records fill less than the second share of the new segment. */
#define QUIRE_FILE_GUARD_FULL       0.75
#define QUIRE_FILE_GUARD_SEGMENTS   4u /* the oldest ones */
#define QUIRE_FILE_GUARD_AHEAD      0.6
#define QUIRE_FILE_QUOTA_SLACK      16u /* beyond its quota an account goes a part of it below */
#define QUIRE_FILE_ACCOUNTS_MAX     4096u
#define QUIRE_FILE_CARRY_SAVED      16u         /* segments: most unused allowance for carrying */
#define QUIRE_FILE_OVERHEAD_BYTES   (32u << 10) /* of capacity_bytes: the directory and the lock */
#define QUIRE_FILE_SEGMENT_OVERHEAD 4096u       /* of each segment: its place in the file system */
/* Segments in the directory, beside twice those for which the capacity has room: short ones. */
#define QUIRE_FILE_SEGMENTS_SPARE 64u
#define QUIRE_FILE_FDS_MAX        128u  /* segments open for reading, beside those in use */
#define QUIRE_FILE_DROPS_MAX      1024u /* not durable yet; more become one that ends all */

typedef struct quire_file_account {
    uint64_t quota_bytes; /* most bytes of its records; 0 = no quota */
    uint32_t weight;      /* >= 1 */
} quire_file_account;

typedef struct quire_file_store_opts {
    const char *dir; /* made with mode 0700 if it is missing; its parent must be there */
    uint64_t capacity_bytes;
    uint64_t segment_bytes; /* multiple of 4 KiB */
    uint64_t record_bytes;  /* of the largest record that shall be kept: segments are made larger
                               where such a record would not fit; 0 = segments stay as they are */
    uint64_t write_rate;    /* bytes per second; 0 = no limit. A put may exceed it by one record */
    uint64_t queue_bytes;   /* of puts that wait; more are FULL */
    uint32_t reads_max;     /* under way at once, 1 .. QUIRE_READS_MAX */
    uint32_t sync_ms;       /* the longest time from a write to its sync */
    uint32_t idle_sync_ms;  /* without a put, after which written bytes are synced */
    uint32_t retry_ms;      /* DEGRADED: between two attempts */
    uint32_t open_ms;       /* the longest time that create waits for the disk */
    uint32_t close_ms;      /* the longest time that close waits */
    quire_reads_kind reads_kind;
    bool is_readonly;
    /* One line about trouble or damage, without newline; once per kind. From any of the store's
     * threads, without a lock. NULL = nobody listens. */
    void (*log)(void *ctx, const char *line);
    void *log_ctx;
    /* Account i + 1 is as accounts[i], [n_accounts], copied; account 0 is everybody else's, of
     * weight 1. account_of() names the account of a tenant's salt, 0 .. n_accounts, always the same
     * for the same salt. Thread: any of the store's and its caller's, under the store's lock; never
     * after close or a failed create. NULL = 0 for all. */
    const quire_file_account *accounts;
    uint32_t n_accounts;
    uint16_t (*account_of)(void *ctx, const void *salt, uint32_t salt_bytes);
    void *account_ctx;
    const quire_file_ops *ops;       /* NULL = the operating system's */
    uint64_t (*clock_ns)(void *ctx); /* NULL = quire_clock_ns() */
    void *clock_ctx;
} quire_file_store_opts;

/* clang-format off */
#define QUIRE_FILE_STORE_OPTS_INIT                                                                 \
    {                                                                                              \
        .segment_bytes = (uint64_t)64 << 20, .write_rate = (uint64_t)64 << 20,                     \
        .queue_bytes = (uint64_t)256 << 20, .reads_max = 16, .sync_ms = 1000, .idle_sync_ms = 20,  \
        .retry_ms = 5000, .open_ms = 120000, .close_ms = 5000                                      \
    }
/* clang-format on */

/* Whether a store could have these options, of which it looks at no file. Errors: QUIRE_INVAL. */
int quire_file_store_check(const quire_file_store_opts *opts, quire_error *err);

/* Open the directory and read its index. Waits for input and output, at most open_ms. Errors:
 * QUIRE_INVAL (an option out of range), QUIRE_LIMIT (another process holds the directory), QUIRE_IO
 * (also: the disk is stuck; its pending calls are left behind, as by close), QUIRE_NOMEM,
 * QUIRE_UNSUPP (reads_kind). Memory: end with (*out)->ops->close(). */
int quire_file_store_create(quire_store **out, const quire_file_store_opts *opts, quire_error *err);

/* "io_uring" or "threads". Memory: static. */
const char *quire_file_store_reads_name(const quire_store *store);

#endif /* QUIRE_STORE_FILE_FILE_STORE_H */
