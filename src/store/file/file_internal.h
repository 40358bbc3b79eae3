/* file_internal.h - state and functions that the files of the file store share.
 *
 *   file_store.c    the caller's side: get, put, drop, poll, stats, close
 *   file_create.c   options, directory, lock, threads
 *   file_read.c     the client of reads.h: which record next, and its result
 *   file_writer.c   the writer thread: queue, rate, sync, trouble
 *   file_log.c      the open segment: append, seal, begin
 *   file_account.c  counts of records, by account: quotas and shares
 *   file_evict.c    the bound: carry forward, unlink
 *   file_recover.c  the index from the files in the directory
 *
 * `lock` guards everything that is not marked otherwise. Fields marked W are the writer's alone
 * (before the writer starts and after it ended: the caller's).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_FILE_FILE_INTERNAL_H
#define QUIRE_STORE_FILE_FILE_INTERNAL_H

#include "base/check.h"
#include "store/file/file_index.h"
#include "store/file/file_store.h"
#include "store/file/segment.h"

#include <pthread.h>

#define FILE_PATH_MAX  4096u
#define FILE_URGENCIES 256u

/* A record that was written to a segment. It may be gone or moved: the entry says so. */
typedef struct file_item {
    uint32_t id;
    uint32_t place;
} file_item;

typedef struct file_segment {
    struct file_segment *next; /* newer */
    uint32_t number;
    uint32_t slot;
    uint64_t charge_bytes; /* taken from the capacity */
    int fd;                /* for reads; -1: not open */
    uint64_t used_at;      /* for the choice of an fd to close */
    uint32_t refs;         /* reads under way */
    bool is_gone;          /* unlinked; freed when refs are 0 */
    bool has_drops;        /* W: it has markers of drops, or may have some */
    file_item *items;      /* W, in the order of their places */
    uint32_t n_items, items_capacity;
} file_segment;

typedef struct file_drop {
    struct file_drop *next;
    quire_store_drop drop; /* salt: the array below */
    uint64_t sequence;
    uint32_t place; /* in the open segment, once it is written */
    bool is_durable;
    unsigned char salt[QUIRE_PREFIX_SALT_MAX];
} file_drop;

typedef struct file_drops {
    file_drop *first, *last;
    uint32_t n;
} file_drops;

typedef struct file_transfers {
    quire_transfer *first, *last;
    uint32_t n;
} file_transfers;

/* The segment that is written. All W. */
typedef struct file_open {
    file_segment *segment; /* NULL: none */
    int fd;
    uint64_t end_bytes;    /* of the written part */
    uint64_t footer_bytes; /* of the body that the footer needs now */
    bool is_dirty;         /* written since the last sync */
    file_drops drops;      /* whose markers it holds */
    uint64_t carried_bytes;
} file_open;

/* Room in a new segment for the record that the segment was opened for. */
typedef struct file_kept {
    uint64_t n_bytes;
    uint64_t footer_bytes;
} file_kept;

#define FILE_NUMBER_LOCK 0u
#define FILE_NUMBER_DIR  UINT32_MAX

/* The call of the writer's that failed. */
typedef struct file_failure {
    const char *call; /* NULL: none; static */
    uint32_t number;  /* of the segment, or one of these */
} file_failure;

typedef struct file_store {
    quire_store store;           /* must be first */
    file_failure failure;        /* W */
    file_kept kept;              /* W */
    uint64_t carry_credit_bytes; /* W: that may be carried forward */
    quire_file_store_opts opts;
    char dir[FILE_PATH_MAX];
    const quire_file_ops *ops;
    int lock_fd;
    quire_reads *reads;

    pthread_mutex_t lock;
    pthread_cond_t work;  /* for the writer */
    pthread_cond_t ended; /* the writer is */
    pthread_t writer;
    bool has_writer, is_writer_ended;
    bool is_opened; /* open_rc says how; then `ended` is signalled */
    int open_rc;
    quire_error open_err;
    bool is_closing;
    uint64_t close_at_ns;     /* of quire_clock_ns() */
    pthread_mutex_t log_lock; /* held while log() runs; no other lock is taken under it */

    quire_index *index;
    quire_file_account *accounts; /* [n_accounts], from account 0 on; constant */
    uint64_t *account_bytes;      /* [n_accounts] of their records */
    uint32_t n_accounts;
    uint64_t sequence; /* of the next put or drop */
    file_segment *oldest, *newest;
    file_segment **slots;
    uint32_t n_slots;
    uint32_t n_segments;
    uint32_t n_fds;
    uint32_t next_number; /* W */
    uint32_t marked;      /* W: see quire_segment_head */
    uint32_t n_unread;    /* segments that the start could not read; constant */
    bool has_unlinked;    /* W: a segment, and the directory was not synced since */

    file_transfers gets[FILE_URGENCIES];
    uint64_t gets_set[FILE_URGENCIES / 64]; /* bit: a list has transfers */
    file_transfers puts;
    uint64_t put_bytes;
    file_drops drops;        /* to be written, in order of sequence */
    file_transfers unsynced; /* written, or known and not durable */
    uint64_t unsynced_at_ns; /* when the first of these was written */
    file_transfers done;

    int64_t rate_tokens; /* W: bytes that may be written now; may be negative */
    uint64_t rate_at_ns; /* W */
    uint64_t retry_at_ns;
    bool has_retried;   /* once more, at the end */
    uint64_t put_at_ns; /* when the last put came */
    uint32_t n_reading;
    uint64_t reading_since_ns;
    uint64_t reads_clock;

    file_open open;
    unsigned char *block; /* W: a block, aligned */
    unsigned char *copy;  /* W: a record that is carried forward */
    size_t copy_bytes;
    uint32_t logged; /* bits: kinds of lines that were logged */

    quire_store_stats stats; /* the counters; the rest is filled in when it is asked for */
} file_store;

/* ---- file_store.c ---- */
extern const quire_store_ops quire_file_store_ops;

/* ---- file_look.c ---- */

uint32_t quire_file_has(const quire_store *store, const quire_page_key *keys, uint32_t n);
uint64_t quire_file_now(const file_store *st);
void quire_file_done(file_store *st, quire_transfer *transfer, quire_store_result result);
/* Call wake(). Without the lock. */
void quire_file_wake(file_store *st);
/* Log a line once per kind (0 .. 31; results have their own numbers). Without the lock. */
#define FILE_LOG_TROUBLE 16u
#define FILE_LOG_DAMAGE  17u
#define FILE_LOG_CLOSE   18u
#define FILE_LOG_UNREAD  19u
#define FILE_LOG_DROPS   20u
__attribute__((format(printf, 3, 4))) void quire_file_log(file_store *st, uint32_t kind,
                                                          const char *format, ...);
/* From the return on nobody is woken, nothing is logged, and account_of is not called: all further
 * records are account 0's. */
void quire_file_quiet(file_store *st);
/* Remove an entry, and count. */
void quire_file_forget(file_store *st, uint32_t id, uint64_t *counter);
/* Keep which call failed, for the message, if rc < 0. Returns rc. Thread: the writer. */
int quire_file_failed(file_store *st, int rc, const char *call, uint32_t number);
/* "DIR/segment-<number>.quire" into path[FILE_PATH_MAX]. */
void quire_file_path(const file_store *st, uint32_t number, char *path);
void quire_file_push(file_transfers *list, quire_transfer *transfer);
quire_transfer *quire_file_pop(file_transfers *list);
void quire_file_drop_push(file_drops *list, file_drop *drop);
void quire_file_drops_free(file_drops *list);

/* ---- file_create.c ---- */
/* Open and lock DIR/lock, and write this process's number into it: other processes name it when
 * they find the lock taken. *fd: also open after an error of the lock. Returns 0 or a negative
 * errno; *call names the call. */
int quire_file_lock(file_store *st, int *fd, const char **call);

/* ---- file_read.c ---- */
bool quire_file_read_next(void *ctx, quire_read *read);
void quire_file_read_done(void *ctx, quire_read *read);

/* ---- segments: file_evict.c ---- */
/* Add the newest segment. NULL: out of memory. */
file_segment *quire_file_segment_add(file_store *st, uint32_t number, uint64_t charge_bytes);
/* Take a segment, whose entries were removed, off the list. Returns it when no read uses it: then
 * the caller frees it, without the lock, because the last close of a file may take long. */
file_segment *quire_file_segment_remove(file_store *st, file_segment *segment);
/* The segment, if it is off the list and no read uses it: to be freed as above. Else NULL. */
file_segment *quire_file_segment_unused(file_store *st, file_segment *segment);
void quire_file_segment_free(const file_store *st, file_segment *segment);
int quire_file_item_add(file_segment *segment, uint32_t id, uint32_t place);
/* The entry of an item, or NULL when the record is no longer there. With the lock. */
quire_index_entry *quire_file_item_entry(const file_store *st, const file_segment *segment,
                                         file_item item);
/* A put was written: so much more may be carried forward. Thread: the writer. */
void quire_file_carry_earn(file_store *st, uint64_t put_bytes);
/* Let the oldest segments go until there is room for one more. With carry, used records are
 * appended to the open segment. Returns 0 or a negative errno. Without the lock. */
int quire_file_room_make(file_store *st, bool is_carrying);

/* ---- file_account.c ---- */
/* Errors: QUIRE_INVAL, QUIRE_NOMEM. */
int quire_file_accounts_init(file_store *st, quire_error *err);
void quire_file_accounts_fini(file_store *st);
/* A record is written, and counts from now on; or it ceases to. With the lock. */
void quire_file_count(file_store *st, const quire_index_entry *entry);
void quire_file_uncount(file_store *st, const quire_index_entry *entry);
/* The account of a record. With the lock. */
uint16_t quire_file_account_of(file_store *st, const quire_index_entry *entry);
/* The weights of the accounts that have records; 0: it is one account, and nothing is guarded. With
 * the lock. */
uint64_t quire_file_weights(const file_store *st);
/* Whether a record is carried forward although it was not used. With the lock. */
bool quire_file_is_guarded(file_store *st, const quire_index_entry *entry, uint64_t weights);
/* Let the oldest records of an account go, if it has more than its quota. Thread: the writer.
 * Without the lock. */
void quire_file_quota_keep(file_store *st, uint16_t account);

/* ---- file_log.c; all without the lock, all return 0 or a negative errno ---- */
/* Append bytes for which the footer grows by `footer`; *place: where they are. Where the open
 * segment has no room another one begins, unless is_new_allowed is false: -ENOBUFS. */
int quire_file_append(file_store *st, const unsigned char *bytes, size_t n_bytes, uint64_t footer,
                      bool is_new_allowed, uint32_t *place);
/* Begin a segment, after the open one was sealed. */
int quire_file_begin(file_store *st);
int quire_file_seal(file_store *st);
/* Make the open segment durable. */
int quire_file_sync(file_store *st);
/* Make the names in the directory durable: which segments there are. */
int quire_file_dir_sync(file_store *st);
/* Write the footer of a segment at *end_bytes, and add its length. `drops` are those in it. */
int quire_file_footer_write(file_store *st, int fd, const file_segment *segment,
                            const file_drops *drops, uint64_t *end_bytes);
/* Leave the open segment as it is, because writing failed; one that holds nothing goes. Drops that
 * are not durable are queued again. */
void quire_file_open_abandon(file_store *st);

/* ---- file_writer.c ---- */
void *quire_file_writer_main(void *ctx);
/* Give back the queued puts, CLOSED, and the puts that are written and not durable, IO. With the
 * lock. */
void quire_file_puts_refuse(file_store *st);

/* ---- file_recover.c ---- */
int quire_file_recover(file_store *st, quire_error *err);

#endif /* QUIRE_STORE_FILE_FILE_INTERNAL_H */
