/* record.h - records a server's requests for the simulator and for analysis.
 *
 * JSON Lines. First a header, then a line for each request that has ended:
 *
 *   {"quire_trace":1,"block_tokens":64,"model":"m","form":"hashed","key":"5f...","classes":["a"]}
 *   {"t":1700000000000000,"tenant":0,"class":0,"session":3,"input":130,"output":9,
 *    "blocks":"<16 hexadecimal digits for each block>"}
 *
 * t is the time of arrival, in microseconds of Unix time. A block is 64 tokens; the last block may
 * be shorter. Its digits are SipHash-2-4 of the preceding block's hash and the block's token ids,
 * under a random key that is drawn when the recording begins and never stored. Equal prefixes of
 * one tenant have equal hashes. Nobody can recover or guess a text. "key" tells recordings with
 * different keys apart. With form "plain" a line has "tokens" (token ids) instead of "blocks", for
 * operators that may keep the texts.
 *
 * An existing file is appended to, with a new header.
 *
 * Recording never disturbs serving. A request is copied into a queue of bounded size; a thread of
 * the recorder's own hashes and writes. Requests that find the queue full are dropped and counted.
 * The first failed write (a full disk) ends the recording and is reported once; later requests are
 * dropped.
 *
 * Thread: quire_record_add() and quire_record_stats_get() from anywhere.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_RECORD_H
#define QUIRE_TRACE_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/error.h"
#include "trace/online/recent.h"

#define QUIRE_RECORD_VERSION      1
#define QUIRE_RECORD_BLOCK_TOKENS 64u
#define QUIRE_RECORD_DIGITS       16u /* of a block */

typedef struct quire_record quire_record;

typedef struct quire_record_opts {
    const char *path;
    const char *model;              /* its name; NULL = not said */
    bool is_plain;                  /* token ids instead of hashes */
    const char *const *class_names; /* [n_classes] */
    uint32_t n_classes;             /* at most QUIRE_TRACE_CLASSES_MAX */
    size_t queue_bytes;             /* 0 = 64 MiB */
    /* Called once, on the recorder's thread, when a write has failed; may be NULL. */
    void (*failed)(void *ctx, const char *message);
    void *failed_ctx;
} quire_record_opts;

/* Open the file, write its header, start the thread. Errors: QUIRE_IO, QUIRE_NOMEM,
 * QUIRE_INVAL (the file is there and is no recording), QUIRE_LIMIT (another recording writes to
 * it); err gives the reason. Memory: quire_record_close(). */
int quire_record_open(quire_record **out, const quire_record_opts *opts, quire_error *err);

/* Whether an existing file is a recording, to which lines can be appended. Errors: QUIRE_INVAL. */
int quire_record_check(const char *path, quire_error *err);

/* Write the queued requests, end the thread, close the file. NULL is allowed. */
void quire_record_close(quire_record *record);

/* Note a request that has ended; its tokens are copied. time_us: the time of its arrival, by
 * quire_clock_ns() / 1000. tokens NULL: lengths alone. Never waits for the disk. */
void quire_record_add(quire_record *record, const quire_recent_request *request);

typedef struct quire_record_stats {
    uint64_t written;
    uint64_t dropped; /* the queue was full, or the recording had ended */
    uint64_t bytes;
    bool has_failed;
} quire_record_stats;
void quire_record_stats_get(quire_record *record, quire_record_stats *out);

/* ---- parts of it, for tests and readers ---- */

/* The hash that stands for the block before a tenant's first block. */
uint64_t quire_record_chain_begin(const uint64_t key[2], uint32_t tenant);
/* The hash of n_tokens <= QUIRE_RECORD_BLOCK_TOKENS tokens behind a block. */
uint64_t quire_record_chain_add(const uint64_t key[2], uint64_t before, const int32_t *tokens,
                                uint32_t n_tokens);

#endif /* QUIRE_TRACE_RECORD_H */
