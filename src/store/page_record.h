/* page_record.h - one page of text as bytes: the record that a store keeps under the page's key.
 *
 *   head                                     payload
 *   +--------+-------+------+----------------+----------+----------+- - -
 *   | fixed  | parts | salt | token ids      | part 0   | part 1   |  zeros up to record_bytes
 *   +--------+-------+------+----------------+----------+----------+- - -
 *   0                                        head_bytes (a multiple of 64)
 *
 * A part is the gathered page of one group (quire_cache_page_gather()); a group without a page at
 * this place (a hole) has a part of 0 bytes. Numbers are little-endian. A record begins and ends at
 * multiples of QUIRE_PAGE_RECORD_ALIGN, so that direct I/O reads and writes it in place.
 *
 * The fixed part, by offset:
 *     0  magic "QKVP"          4  version            8  record_bytes (u32)  12  head_bytes (u32)
 *    16  checksum             32  key               48  parent             64  root
 *    80  sequence number (u64)
 *    88  first_token (u32)    92  n_tokens (u32)    96  n_parts (u32)     100  salt_bytes (u32)
 *
 * The checksum is XXH3-128 over bytes 0 to 15 and 32 to the end. A reader trusts no field before
 * the checksum is right, and uses no page before key, parent, root, position and every token are
 * the expected ones: see quire_page_record_check().
 *
 * Thread: any; a record belongs to its holder.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_PAGE_RECORD_H
#define QUIRE_STORE_PAGE_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "quire/prefix.h"
#include "quire/types.h"

#define QUIRE_PAGE_RECORD_VERSION   1u
#define QUIRE_PAGE_RECORD_ALIGN     4096u
#define QUIRE_PAGE_RECORD_BYTES_MAX ((size_t)256 << 20)

/* The name of a page of text. Pointers are borrowed. */
typedef struct quire_page_text {
    quire_page_key key;    /* of the text up to the page's end */
    quire_page_key parent; /* of the text before the page; of the root for the first page, or of a
                              root of its own for the first page of a condensed text
                              (engine/loop/tier_condensed.c) */
    quire_page_key root;   /* of {identity, salt}: quire_prefix_key_root() */
    uint32_t first_token;  /* position of tokens[0] */
    uint32_t n_tokens;     /* 1 .. QUIRE_PAGE_TOKENS_MAX */
    const int32_t *tokens;
    const void *salt; /* the tenant, as in quire_prefix_key */
    uint32_t salt_bytes;
} quire_page_text;

static inline bool quire_page_key_is(const quire_page_key *a, const quire_page_key *b)
{
    return memcmp(a->bytes, b->bytes, QUIRE_PAGE_KEY_BYTES) == 0;
}

/* Why a record was not used; also how a transfer ended (store.h). X(symbol, value, "name") */
#define QUIRE_STORE_RESULT_MAP(X)                                                                  \
    X(OK, 0, "ok")                                                                                 \
    X(ABSENT, 1, "absent")     /* no record under the key */                                       \
    X(CHECKSUM, 2, "checksum") /* the bytes are not those that were written */                     \
    X(FORMAT, 3, "format")     /* another version, or lengths that do not fit */                   \
    X(IDENTITY, 4, "identity") /* another model, format or tenant */                               \
    X(TOKENS, 5, "tokens")     /* the same key, but other tokens */                                \
    X(IO, 6, "io")             /* reading or writing failed */                                     \
    X(FULL, 7, "full")         /* put: the queue has no room now */                                \
    X(CLOSED, 8, "closed")     /* the store was closed, or takes nothing now (degraded) */

typedef enum quire_store_result {
#define X(sym, val, name) QUIRE_STORE_##sym = (val),
    QUIRE_STORE_RESULT_MAP(X)
#undef X
    QUIRE_STORE_RESULT_COUNT
} quire_store_result;
/* "checksum"; "unknown" outside the table. Memory: static. */
const char *quire_store_result_name(quire_store_result result);

/* The fields of a record. Pointers point into the record. */
typedef struct quire_page_record {
    quire_page_text text; /* .tokens is NULL: quire_page_record_tokens() */
    uint64_t sequence;    /* grows with each record that a store writes */
    uint32_t record_bytes;
    uint32_t n_parts;
    uint32_t part_bytes[QUIRE_GROUPS_MAX];
    const unsigned char *parts[QUIRE_GROUPS_MAX];
} quire_page_record;

/* Bytes of a record; 0 if the numbers are out of range or above QUIRE_PAGE_RECORD_BYTES_MAX. */
size_t quire_page_record_bytes(uint32_t n_tokens, uint32_t salt_bytes, uint32_t n_parts,
                               const size_t *part_bytes);

/* Write the head for a text and n_parts <= QUIRE_GROUPS_MAX parts, and zero the bytes that no part
 * fills. parts[i] gets the place of part i, for the caller to fill in. Then
 * quire_page_record_seal() completes the record. `record` is [capacity]. Errors: QUIRE_INVAL
 * (numbers out of range), QUIRE_RANGE (capacity too small). */
int quire_page_record_begin(unsigned char *record, size_t capacity, const quire_page_text *text,
                            uint32_t n_parts, const size_t *part_bytes,
                            unsigned char *parts[QUIRE_GROUPS_MAX]);

/* Set the sequence number and compute the checksum of a begun record. Cost: one pass. */
void quire_page_record_seal(unsigned char *record, uint64_t sequence);

/* The record's length as its head says: a multiple of QUIRE_PAGE_RECORD_ALIGN, or 0 if these bytes
 * are no head of a record of this version. n_bytes >= QUIRE_PAGE_RECORD_ALIGN. Nothing is verified.
 */
size_t quire_page_record_peek(const unsigned char *record, size_t n_bytes);

/* Verify a record and read its fields. n_bytes is the length that was read; it must be the
 * record's. Returns OK, CHECKSUM or FORMAT; *out is set when it is OK. Never reads beyond n_bytes,
 * for any bytes. */
quire_store_result quire_page_record_open(const unsigned char *record, size_t n_bytes,
                                          quire_page_record *out);

/* Read the fields of a begun record, which is not sealed yet: lengths are verified, the checksum is
 * not. n_bytes is the room behind `record`. Returns OK or FORMAT. */
quire_store_result quire_page_record_fields(const unsigned char *record, size_t n_bytes,
                                            quire_page_record *out);

/* Whether an opened record is the page that `text` names. Returns OK, IDENTITY (root, salt), TOKENS
 * (key, parent, position or a token). With text->n_tokens 0 the record may have any tokens, and the
 * caller compares them: quire_page_record_slot(). */
quire_store_result quire_page_record_check(const quire_page_record *record,
                                           const quire_page_text *text);

/* The key under which an open page is kept: the page behind `parent` that is partly filled and
 * whose first token is `token`. A later record replaces an earlier one under such a key, because
 * the page's text grows (quire_transfer.is_replacing). */
void quire_page_record_slot(const quire_page_key *parent, int32_t token, quire_page_key *out);

/* Copy the token ids of an opened record: [record->text.n_tokens]. */
void quire_page_record_tokens(const quire_page_record *record, int32_t *out);

#endif /* QUIRE_STORE_PAGE_RECORD_H */
