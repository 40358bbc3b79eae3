/* segment.h - a segment file as bytes: its header, markers and footer. Nothing here touches files.
 *
 *   0        4096                                                       end of the file
 *   +--------+--------+--------+--------+--------+- - -+--------+---------+
 *   | header | record | record | marker | record |     | footer | trailer |
 *   +--------+--------+--------+--------+--------+- - -+--------+---------+
 *
 * Everything begins at multiples of 4 KiB. Records are those of store/page_record.h. A *marker*
 * says that records end (quire_store_drop); it applies to every record that stands before it: in a
 * segment with a lower number, or at a lower offset. So a marker is no longer needed when its
 * segment is the oldest and goes.
 *
 * The footer lists the live records with all that the index needs, the roots with their salts, and
 * the markers. The trailer, the last 4 KiB, says how long the footer is. A segment without a valid
 * footer is read record by record.
 *
 * Header, marker and trailer are blocks of 4 KiB with {magic, version, XXH3-128 of the rest}. The
 * trailer also holds the hash of the footer. Numbers are little-endian.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_FILE_SEGMENT_H
#define QUIRE_STORE_FILE_SEGMENT_H

#include "store/store.h"

#define QUIRE_SEGMENT_BLOCK       4096u
#define QUIRE_SEGMENT_NUMBER_MAX  0x7fffffffu
#define QUIRE_SEGMENT_ENTRY_BYTES 64u
/* Of one root or marker in the footer, without its salt, which is padded to 4 bytes. */
#define QUIRE_SEGMENT_ROOT_BYTES 20u
#define QUIRE_SEGMENT_DROP_BYTES 52u

typedef struct quire_segment_head {
    uint64_t number;
    uint64_t oldest;   /* the lowest number that existed when this block was written */
    uint64_t sequence; /* above that of every record and marker so far */
    uint64_t marked; /* the highest number of a segment with a marker so far; 0 = none. A reader of
                        the log who cannot read a segment learns here whether the segment may have
                        one. QUIRE_SEGMENT_NOT_KNOWN: the block's writer did not say */
} quire_segment_head;
#define QUIRE_SEGMENT_NOT_KNOWN UINT64_MAX

void quire_segment_head_write(unsigned char *block, const quire_segment_head *head);
bool quire_segment_head_read(const unsigned char *block, quire_segment_head *out);

/* Whether a drop's fields are in range. */
bool quire_marker_is_valid(const quire_store_drop *drop);
void quire_marker_write(unsigned char *block, const quire_store_drop *drop, uint64_t sequence);
/* Memory: drop->salt points into the block. */
bool quire_marker_read(const unsigned char *block, quire_store_drop *drop, uint64_t *sequence);

/* ---- footer ---- */

typedef struct quire_segment_entry {
    quire_page_key key;
    quire_page_key parent;
    uint64_t sequence;
    uint32_t root;   /* index into the footer's roots */
    uint32_t place;  /* of the record in the file, in blocks */
    uint32_t blocks; /* its length */
    uint32_t first_token;
    uint32_t n_tokens;
    uint32_t uses;
} quire_segment_entry;

typedef struct quire_segment_root {
    quire_page_key key;
    const void *salt;
    uint32_t salt_bytes;
} quire_segment_root;

typedef struct quire_segment_drop {
    quire_store_drop drop;
    uint64_t sequence;
    uint32_t place; /* of the marker */
} quire_segment_drop;

typedef struct quire_segment_footer {
    quire_segment_head head;
    uint32_t n_entries;
    uint32_t n_roots;
    uint32_t n_drops;
    uint32_t body_bytes; /* of entries, roots and drops, in this order; without padding */
} quire_segment_footer;

/* Bytes of the footer's body and trailer in the file. */
uint64_t quire_segment_footer_room(uint64_t body_bytes);
uint32_t quire_segment_salt_room(uint32_t salt_bytes);

/* Append one thing to a body. Returns the address behind it. */
unsigned char *quire_segment_entry_put(unsigned char *at, const quire_segment_entry *entry);
unsigned char *quire_segment_root_put(unsigned char *at, const quire_segment_root *root);
unsigned char *quire_segment_drop_put(unsigned char *at, const quire_segment_drop *drop);

void quire_segment_trailer_write(unsigned char *block, const quire_segment_footer *footer,
                                 const unsigned char *body);
/* Whether the block is a trailer; the body is not looked at. file_bytes bounds the body. */
bool quire_segment_trailer_read(const unsigned char *block, uint64_t file_bytes,
                                quire_segment_footer *out);
/* Whether the body, [footer->body_bytes], is the one that the trailer was written for and its
 * parts are in range for a file of file_bytes. */
bool quire_segment_body_check(const unsigned char *block, const quire_segment_footer *footer,
                              const unsigned char *body, uint64_t file_bytes);

/* Walk a body that was checked. */
typedef struct quire_segment_cursor {
    const unsigned char *at;
} quire_segment_cursor;
void quire_segment_entry_get(const unsigned char *body, uint32_t i, quire_segment_entry *out);
/* Roots begin behind the entries, drops behind the last root. */
quire_segment_cursor quire_segment_roots(const quire_segment_footer *footer,
                                         const unsigned char *body);
void quire_segment_root_next(quire_segment_cursor *cursor, quire_segment_root *out);
void quire_segment_drop_next(quire_segment_cursor *cursor, quire_segment_drop *out);

#endif /* QUIRE_STORE_FILE_SEGMENT_H */
