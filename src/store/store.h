/* store.h - where pages go below memory: one interface, several stores.
 *
 *            engine's thread                         the store's threads
 *   get  --> transfers ------------------> read, verify --.
 *   put  --> transfers ------------------> write, sync  --+--> done, then wake()
 *   poll <-- transfers <----------------------------------'
 *   drop --> at once for later gets -----> made durable
 *
 * A store keeps records (page_record.h) by key. Every call returns without waiting for a disk or a
 * network. A *transfer* carries one record: the caller allocates it, the store owns it from get or
 * put until poll returns it.
 *
 * A store may lose records at any time and refuse work at any time; it never returns a record whose
 * checksum, root, position or tokens are not those asked for. So a caller that finds nothing
 * computes, and nothing else differs.
 *
 * Stores: file/file_store.h; host_store.h, in memory; chain_store.h, a near store over a far one;
 * memory_store.h, which tests make slow, small and faulty.
 *
 * Thread: get, put, drop and poll: one thread, the caller's. stats, has: any. wake() is called from
 * the store's threads, also while get, put or drop run, never with a lock that these calls need.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_STORE_H
#define QUIRE_STORE_STORE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/prefix/prefix_learned.h"
#include "store/page_record.h"

typedef struct quire_store quire_store;

#define QUIRE_STORE_PARTS_MAX 3u
#define QUIRE_STORE_ABOVE_MAX (QUIRE_STORE_PARTS_MAX - 1)

/* Notes of a store over others (chain_store.h) about a transfer that it has passed on. */
typedef struct quire_transfer_above {
    uint32_t drops;
    uint32_t copy;
    quire_store_result result;
} quire_transfer_above;

/* The user of a page, for stores that drop pages by an eviction policy. Zeros: the user is
 * unknown. */
typedef struct quire_page_use {
    uint64_t request; /* a number of the request among the caller's; 0: each transfer counts as a
                         request of its own */
    bool is_told;     /* all of the standing is set; else region, rank and account alone */
    quire_prefix_standing standing; /* of the page in the caller's prefix tree */
} quire_page_use;

/* One record under way. */
typedef struct quire_transfer {
    struct quire_transfer *next; /* the store's while it owns the transfer */
    quire_page_text text;        /* get: the page wanted; the pointers stay valid until poll.
                                    put: not read, the record says it */
    quire_page_use use;
    uint8_t urgency;           /* get: higher first; equal ones in order of arrival */
    bool is_query;             /* get: only ask whether there is a record, and count it as used;
                                  no record is read, `record` may be NULL */
    bool is_put;               /* set by the store */
    bool is_replacing;         /* put: replaces a record under the same key, if there is one;
                                  else such a put ends OK and writes nothing */
    quire_store_result result; /* set by the store before poll returns the transfer */
    unsigned char *record;     /* [capacity], aligned to QUIRE_PAGE_RECORD_ALIGN.
                                  put: begun (quire_page_record_begin()); the store seals it */
    size_t capacity;           /* multiple of QUIRE_PAGE_RECORD_ALIGN */
    quire_page_record found;   /* get, result OK, no query: the verified record */
    void *owner;               /* the caller's */
    uint32_t number;           /* likewise */
    quire_transfer_above above[QUIRE_STORE_ABOVE_MAX]; /* one for each store over others */
    uint32_t holder; /* a note of a store for several owners (common_store.h): which one it is */
} quire_transfer;

/* Which records end. */
typedef enum quire_store_drop_what {
    QUIRE_STORE_DROP_ALL,
    QUIRE_STORE_DROP_SALT,  /* of one tenant */
    QUIRE_STORE_DROP_SALTS, /* of tenants whose salts begin with these bytes */
    QUIRE_STORE_DROP_TEXT,  /* `key` and every text that continues it */
    QUIRE_STORE_DROP_BEHIND /* every text that continues `key`, but not `key` */
} quire_store_drop_what;

typedef struct quire_store_drop {
    quire_store_drop_what what;
    quire_page_key key;  /* TEXT, BEHIND */
    quire_page_key root; /* TEXT, BEHIND: of the key's text, if it is known; else zeros. It saves
                            records of other roots whose texts a store cannot follow to their
                            beginning */
    const void *salt;    /* SALT, SALTS */
    uint32_t salt_bytes;
} quire_store_drop;

/* Whether a drop of kind ALL, SALT or SALTS ends a text. */
static inline bool quire_store_drop_has_salt(const quire_store_drop *drop,
                                             const quire_page_text *text)
{
    const bool begins =
        text->salt_bytes >= drop->salt_bytes &&
        (drop->salt_bytes == 0 || memcmp(text->salt, drop->salt, drop->salt_bytes) == 0);

    return drop->what == QUIRE_STORE_DROP_ALL || (begins && (drop->what == QUIRE_STORE_DROP_SALTS ||
                                                             text->salt_bytes == drop->salt_bytes));
}

typedef enum quire_store_state {
    QUIRE_STORE_READY,
    QUIRE_STORE_READONLY,
    QUIRE_STORE_DEGRADED /* the medium fails: writes are refused, retried from time to time */
} quire_store_state;

typedef struct quire_store_stats {
    quire_store_state state;
    char trouble[128]; /* why it is, or one of its parts is, DEGRADED; else empty */
    uint64_t records;
    uint64_t record_bytes;   /* of these records */
    uint64_t stored_bytes;   /* taken from the medium, garbage included */
    uint64_t capacity_bytes; /* bound of stored_bytes */
    uint64_t reads_total;    /* records read, with any result */
    uint64_t read_bytes_total;
    uint64_t read_us_total; /* time during which at least one read was under way */
    uint64_t results_total[QUIRE_STORE_RESULT_COUNT]; /* of gets, queries not counted */
    uint64_t puts_total;                              /* records that became durable */
    uint64_t known_total;         /* puts of records that were durable already: nothing written */
    uint64_t put_bytes_total;     /* of these */
    uint64_t written_bytes_total; /* all that was written: heads, footers, copies too */
    uint64_t refused_total;       /* puts that did not become durable */
    uint64_t evicted_total;       /* records that went for want of room */
    uint64_t copied_total;        /* records carried forward from old segments */
    uint64_t dropped_total;       /* records ended by drop */
    uint64_t passed_total;        /* records that came from another part of the store above */
    uint64_t unpassed_total;      /* such records that were not kept, or not passed on at all */
    uint64_t evictions;           /* changes whenever records went that the caller did not drop */
    bool is_common;               /* another store gives the same figures, of the same records */
    uint32_t gets_now;            /* under way */
    uint32_t puts_now;
} quire_store_stats;

#define QUIRE_STORE_NAME_MAX 24u

/* The figures of one of the stores that a store consists of. */
typedef struct quire_store_part {
    char name[QUIRE_STORE_NAME_MAX];
    quire_store_stats stats;
} quire_store_part;

/* What an owner knows and a store that chooses by an eviction policy cannot. */
typedef struct quire_store_hints {
    double pinned_share; /* of the owner's memory, kept for pinned classes: 0 .. 1 */
    double token_us;     /* cost of computing a token: quire_prefix_cost_set() */
    double token_depth_us;
} quire_store_hints;

typedef struct quire_store_ops {
    /* Take n transfers. A transfer that cannot be taken (FULL, CLOSED) is returned by poll as
     * well, with that result. */
    void (*get)(quire_store *store, quire_transfer *const *transfers, uint32_t n);
    void (*put)(quire_store *store, quire_transfer *const *transfers, uint32_t n);
    /* From the return on no get finds these records, nor those of puts begun before. Errors:
     * QUIRE_IO, QUIRE_NOMEM: the drop holds in this process, but may not survive a restart. */
    int (*drop)(quire_store *store, const quire_store_drop *drop);
    /* The next drop that another machine made, so that the caller forgets its own copies. The salt
     * stays valid until the next call. False: there is none. wake() says when to look. NULL: the
     * store is this machine's alone. Thread: as poll. */
    bool (*heard)(quire_store *store, quire_store_drop *out);
    /* Give back finished transfers, at most n. Returns their number. */
    uint32_t (*poll)(quire_store *store, quire_transfer **out, uint32_t n);
    void (*stats)(const quire_store *store, quire_store_stats *out);
    /* What holds from now on. NULL = of no use. Thread: as poll. Called by quire_store_hint(). */
    void (*hint)(quire_store *store, const quire_store_hints *hints);
    /* How many of these keys, from the first one on, have records, as far as the store can tell
     * without a disk or a network: a hint, which costs a look-up each. NULL: it cannot tell.
     * Thread: any, until close. */
    uint32_t (*has)(const quire_store *store, const quire_page_key *keys, uint32_t n);
    /* Of a store over others: fill out[QUIRE_STORE_PARTS_MAX] and return their number. NULL: the
     * store is its own one part. Called by quire_store_parts(). */
    uint32_t (*parts)(const quire_store *store, quire_store_part *out);
    /* Make puts durable, within a time bound; end the store. The transfers still owned are handed
     * to give_back(), as poll would. */
    void (*close)(quire_store *store, void (*give_back)(void *ctx, quire_transfer *transfer),
                  void *ctx);
} quire_store_ops;

/* Called from any thread when poll has something to give. May be NULL. */
typedef struct quire_store_waker {
    void (*wake)(void *ctx);
    void *ctx;
} quire_store_waker;

/* The common head of all stores. */
struct quire_store {
    const quire_store_ops *ops;
    const char *name;          /* "file", "memory", "file+valkey": for messages and metrics; shorter
                                  than QUIRE_STORE_NAME_MAX */
    bool is_volatile;          /* no record that is put outlives the process */
    quire_store_waker waker;   /* quire_store_waker_set() */
    pthread_mutex_t wake_lock; /* all bits zero at first; held while wake() runs */
};

/* Name the one that is woken from now on; { 0 } = nobody. A store's threads may wake already, for
 * drops of other machines (heard) that came since it was opened. After the return no call of the
 * waker before is under way. Thread: any, without a lock that a wake() needs. */
void quire_store_waker_set(quire_store *store, quire_store_waker waker);
/* Call wake(), if there is a waker. For stores; thread: any, likewise. */
void quire_store_wake(quire_store *store);

/* The stores that this one consists of, in the order of asking: out[QUIRE_STORE_PARTS_MAX].
 * Returns their number, at least 1. */
uint32_t quire_store_parts(const quire_store *store, quire_store_part *out);

/* A store's own name and figures, of all its parts together. */
void quire_store_part_fill(const quire_store *store, quire_store_part *out);

/* ops->hint(), if there is one. */
void quire_store_hint(quire_store *store, const quire_store_hints *hints);

/* ops->has(), or 0. */
uint32_t quire_store_has(const quire_store *store, const quire_page_key *keys, uint32_t n);

/* Add the figures of another store's medium: all but state, trouble, results, refused puts and
 * transfers under way, which are those of an owner's questions. */
void quire_store_stats_add(quire_store_stats *sum, const quire_store_stats *more);

/* ---- helpers for owners of transfers ---- */

/* Allocate a transfer with room for records of record_bytes (0: none, for queries) and for the
 * tokens of its text. Memory: quire_transfer_free(). NULL: out of memory. */
quire_transfer *quire_transfer_new(size_t record_bytes, uint32_t tokens_max);
void quire_transfer_free(quire_transfer *transfer);
/* Copy a text into the transfer, tokens and salt included (n_tokens <= tokens_max). */
void quire_transfer_text_set(quire_transfer *transfer, const quire_page_text *text);

#endif /* QUIRE_STORE_STORE_H */
