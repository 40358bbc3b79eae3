/* state_item.h - one piece of a server's state as bytes: a head, then a body.
 *
 *   0   8  magic
 *   8   4  version of the layout, of head and body
 *  12   4  kind
 *  16  16  identity: of the KV that the state belongs to (model/kv_identity.h)
 *  32  16  name: a hash; no two items of a kind and an identity have one
 *  48   8  time in microseconds since 1970; its meaning depends on the kind
 *  56   8  bytes of the body
 *  64  16  XXH3-128 of bytes 0 to 63 and the body
 *  80      the body
 *
 * An item is read whole or not at all. Each way to refuse one has a name, so that a log line and a
 * metric can tell it. Numbers are little-endian.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_STATE_ITEM_H
#define QUIRE_STORE_STATE_ITEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/hash128.h"

#define QUIRE_STATE_VERSION        1u
#define QUIRE_STATE_HEAD_BYTES     80u
#define QUIRE_STATE_ITEM_BYTES_MAX ((size_t)40 << 20)

/*  X(symbol, value, "name") */
#define QUIRE_STATE_KIND_MAP(X)                                                                    \
    X(SESSION, 0, "session")                                                                       \
    X(PIN, 1, "pin")                                                                               \
    X(REUSE, 2, "reuse")

typedef enum quire_state_kind {
#define X(sym, val, name) QUIRE_STATE_##sym = (val),
    QUIRE_STATE_KIND_MAP(X)
#undef X
    QUIRE_STATE_KIND_COUNT
} quire_state_kind;
const char *quire_state_kind_name(quire_state_kind kind);

/*  X(symbol, value, "name"): the result for an item */
#define QUIRE_STATE_RESULT_MAP(X)                                                                  \
    X(OK, 0, "ok")                                                                                 \
    X(IO, 1, "io")               /* the file cannot be read, or memory is short */                 \
    X(TRUNCATED, 2, "truncated") /* shorter or longer than its head says */                        \
    X(FOREIGN, 3, "foreign")     /* not such a file, or another name, kind or identity */          \
    X(VERSION, 4, "version")     /* of a layout that this program does not know */                 \
    X(CHECKSUM, 5, "checksum")   /* damaged */                                                     \
    X(FIELDS, 6, "fields")       /* a field out of range, though the checksum is right */          \
    X(EXPIRED, 7, "expired")     /* its time to live has ended */                                  \
    X(LIMIT, 8, "limit")         /* more than this server may have */

typedef enum quire_state_result {
#define X(sym, val, name) QUIRE_STATE_##sym##_RESULT = (val),
    QUIRE_STATE_RESULT_MAP(X)
#undef X
    QUIRE_STATE_RESULT_COUNT
} quire_state_result;
const char *quire_state_result_name(quire_state_result result);

typedef struct quire_state_name {
    quire_state_kind kind;
    unsigned char hash[QUIRE_HASH128_BYTES];
} quire_state_name;

typedef struct quire_state_head {
    quire_state_name name;
    unsigned char identity[QUIRE_HASH128_BYTES];
    uint64_t time_us;
} quire_state_head;

/* The name of the item that a tenant calls `text`. */
quire_state_name quire_state_name_of(quire_state_kind kind, const void *tenant,
                                     uint32_t tenant_bytes, const char *text);
/* In the order of kinds, then hashes: < 0, 0, > 0. */
int quire_state_name_compare(const quire_state_name *a, const quire_state_name *b);

/* ---- writing ---- */

/* Append room for a head. */
int quire_state_begin(quire_bytes *item);
/* Append the low n_bytes of a number; text with its length in front and a zero byte behind. */
int quire_state_put(quire_bytes *item, uint64_t value, uint32_t n_bytes);
int quire_state_put_text(quire_bytes *item, const void *text, uint32_t n_bytes);
/* Write the head of an item whose body is complete. Errors: the first one of the item's appends;
 * QUIRE_LIMIT (longer than QUIRE_STATE_ITEM_BYTES_MAX). */
int quire_state_seal(quire_bytes *item, const quire_state_head *head);

/* ---- reading ---- */

/* Check an item and read its head. The name and the identity are compared with those in *head,
 * the time is filled in. */
quire_state_result quire_state_open(const unsigned char *item, size_t n_bytes,
                                    quire_state_head *head);

/* Takes a body apart. A read beyond its end gives 0 and sets is_bad. */
typedef struct quire_state_reader {
    const unsigned char *at;
    size_t n_left;
    bool is_bad;
} quire_state_reader;
/* The body of an item that was opened. */
quire_state_reader quire_state_body(const unsigned char *item, size_t n_bytes);
uint64_t quire_state_get(quire_state_reader *body, uint32_t n_bytes);
const unsigned char *quire_state_take(quire_state_reader *body, size_t n_bytes);
/* As quire_state_put_text() wrote it. With is_string the text has no zero byte. Memory: in the
 * body. NULL: not such a text, or longer than max. */
const char *quire_state_get_text(quire_state_reader *body, bool is_string, uint32_t max,
                                 uint32_t *n_bytes);
/* Whether all was read, and nothing beyond. */
bool quire_state_is_whole(const quire_state_reader *body);

#endif /* QUIRE_STORE_STATE_ITEM_H */
