/* stored.h - a cache directory as quire cache looks at it: its records, and the texts they form.
 *
 * A record names the record before it, so the records of a root form a tree. A *text* is the way
 * from a root to a record that nothing continues, its *end*. A record is an *orphan* when a record
 * before it is missing: then no request can reach it.
 *
 * Thread: the main thread only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_STORED_H
#define QUIRE_CLI_STORED_H

#include <stdbool.h>

#include "quire/error.h"
#include "server/tenant.h"
#include "store/file/file_visit.h"
#include "store/store.h"
#include "store/store_wait.h"

/* The root of one identity and one tenant: model, formats, cache_salt. */
typedef struct quire_stored_root {
    uint32_t n_records; /* 0: free */
    uint32_t salt_bytes;
    unsigned char salt[QUIRE_PREFIX_SALT_MAX];
} quire_stored_root;

typedef struct quire_stored_record {
    quire_page_key key;
    quire_page_key parent;
    quire_page_key root;
    uint32_t root_id; /* in quire_stored.roots */
    uint32_t first_token;
    uint32_t n_tokens;
    uint32_t uses;
    uint32_t segment;
    uint64_t offset;
    uint64_t n_bytes;
    /* The records from the root to this one; for an orphan, from its first stored record. */
    const struct quire_stored_record *before; /* NULL: none */
    const struct quire_stored_record *first;
    uint64_t text_bytes;
    bool is_condensed; /* of a text that kept a share of its tokens */
    bool is_orphan;
    bool is_end;
} quire_stored_record;

typedef struct quire_stored {
    const char *dir;
    quire_store *store;
    quire_stored_record *records; /* [n], by first_token */
    uint32_t n;
    quire_stored_record **by_key; /* [n] */
    quire_stored_root *roots;
    uint32_t n_roots;
    uint32_t n_segments;
    uint64_t file_bytes; /* of the segments, when the directory was opened */
    uint64_t record_bytes_max;
    quire_store_wait *wait;
} quire_stored;

/* How a directory is opened. Zero: only to be read, beside a process that writes. */
typedef struct quire_stored_want {
    bool is_writer;
    bool is_made;            /* if it is missing */
    uint64_t capacity_bytes; /* 0 = so much that nothing goes which is there; is_writer */
    uint64_t added_bytes;    /* that will be written; is_writer */
    uint64_t record_bytes;   /* of the largest record that will be written; is_writer */
} quire_stored_want;

/* Errors: QUIRE_IO, QUIRE_INVAL (no cache directory), quire_file_store_create(). Memory:
 * quire_stored_close(). `dir` is borrowed. */
int quire_stored_open(quire_stored *out, const char *dir, const quire_stored_want *want,
                      quire_error *err);
/* Only count segments and their bytes, and refuse the same directories as open() if they are no
 * cache directory. Nothing is to be closed. */
int quire_stored_look(quire_stored *out, const char *dir, bool is_made, quire_error *err);
/* The capacity with which a directory is opened. */
uint64_t quire_stored_room(const quire_stored *stored, const quire_stored_want *want);
/* A zeroed struct is allowed. Waits until puts and drops are durable, within a bound. */
void quire_stored_close(quire_stored *stored);

/* List the records, and link them to texts. Earlier pointers to records end. Errors: QUIRE_NOMEM.
 */
int quire_stored_list(quire_stored *stored, quire_error *err);

/* The record with this key, or NULL. */
const quire_stored_record *quire_stored_find(const quire_stored *stored, const quire_page_key *key);

/* Tenant and cache_salt of a record. False: another program made its salt. */
bool quire_stored_names(const quire_stored *stored, const quire_stored_record *record,
                        quire_tenant_names *out);

/* Read records and call each(ctx, record, transfer) for every one, in order; transfer->result tells
 * the outcome. each() returns false to end the reading. Errors: QUIRE_NOMEM, QUIRE_CANCELED
 * (Ctrl-C, or each() wanted no more). */
int quire_stored_read(quire_stored *stored, const quire_stored_record *const *records, uint32_t n,
                      bool (*each)(void *ctx, const quire_stored_record *record,
                                   const quire_transfer *transfer),
                      void *ctx);

/* Trouble of a store of a command, to stderr: quire_file_store_opts.log. */
void quire_stored_say_trouble(void *ctx, const char *line);

/* The next transfer that the store gives back; waits for it. */
quire_transfer *quire_stored_next(quire_stored *stored);

/* Whether the key of a verified record is that of its own tokens. */
bool quire_stored_is_own_key(const quire_page_record *record);

#endif /* QUIRE_CLI_STORED_H */
