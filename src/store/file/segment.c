/* segment.c - see segment.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/file/segment.h"

#include "base/hash128.h"

#include <string.h>

#define VERSION    1u
#define MAGIC_SIZE 4u

/* Every block: magic, version, checksum; then fields of its own. */
#define AT_VERSION  4u
#define AT_CHECKSUM 8u
#define AT_FIELDS   24u

#define HEAD_BYTES 24u /* number, oldest, sequence */
#define AT_MARKED                                                                                  \
    200u /* the rest of a head, of headers and trailers; 0: not known, else by one more */

#define AT_MARKER_WHAT       32u
#define AT_MARKER_SALT_BYTES 36u
#define AT_MARKER_KEY        40u
#define AT_MARKER_ROOT       56u
#define AT_MARKER_SALT       72u

#define AT_TRAILER_ENTRIES (AT_FIELDS + HEAD_BYTES)
#define AT_TRAILER_BODY    (AT_TRAILER_ENTRIES + 12u)
#define AT_TRAILER_HASH    (AT_TRAILER_ENTRIES + 16u)

_Static_assert(AT_TRAILER_HASH + QUIRE_HASH128_BYTES <= AT_MARKED, "a trailer fits");
_Static_assert(AT_MARKER_SALT + QUIRE_PREFIX_SALT_MAX <= QUIRE_SEGMENT_BLOCK, "a salt fits");

static uint32_t u32_get(const unsigned char *at)
{
    return (uint32_t)quire_le_get(at, 4);
}

static const unsigned char *key_get(const unsigned char *at, quire_page_key *out)
{
    memcpy(out->bytes, at, QUIRE_PAGE_KEY_BYTES);
    return at + QUIRE_PAGE_KEY_BYTES;
}

static unsigned char *key_put(unsigned char *at, const quire_page_key *key)
{
    memcpy(at, key->bytes, QUIRE_PAGE_KEY_BYTES);
    return at + QUIRE_PAGE_KEY_BYTES;
}

/* ---- blocks ---- */

static void block_begin(unsigned char *block, const char *magic)
{
    memset(block, 0, QUIRE_SEGMENT_BLOCK);
    memcpy(block, magic, MAGIC_SIZE);
    (void)quire_le_put(block + AT_VERSION, VERSION, 4);
}

static void block_checksum(const unsigned char *block, unsigned char *out)
{
    quire_hash128_parts(block, AT_CHECKSUM, block + AT_FIELDS, QUIRE_SEGMENT_BLOCK - AT_FIELDS,
                        out);
}

static bool block_check(const unsigned char *block, const char *magic)
{
    unsigned char checksum[QUIRE_HASH128_BYTES];

    if (memcmp(block, magic, MAGIC_SIZE) != 0 || u32_get(block + AT_VERSION) != VERSION) {
        return false;
    }
    block_checksum(block, checksum);
    return memcmp(checksum, block + AT_CHECKSUM, sizeof checksum) == 0;
}

static void head_put(unsigned char *block, const quire_segment_head *head)
{
    unsigned char *at = block + AT_FIELDS;

    at = quire_le_put(at, head->number, 8);
    at = quire_le_put(at, head->oldest, 8);
    (void)quire_le_put(at, head->sequence, 8);
    (void)quire_le_put(block + AT_MARKED, head->marked + 1, 8);
}

static bool head_get(const unsigned char *block, quire_segment_head *out)
{
    const unsigned char *at = block + AT_FIELDS;

    out->number = quire_le_get(at, 8);
    out->oldest = quire_le_get(at + 8, 8);
    out->sequence = quire_le_get(at + 16, 8);
    out->marked = quire_le_get(block + AT_MARKED, 8) - 1;
    return out->number <= QUIRE_SEGMENT_NUMBER_MAX && out->oldest <= out->number;
}

void quire_segment_head_write(unsigned char *block, const quire_segment_head *head)
{
    block_begin(block, "QKVS");
    head_put(block, head);
    block_checksum(block, block + AT_CHECKSUM);
}

bool quire_segment_head_read(const unsigned char *block, quire_segment_head *out)
{
    return block_check(block, "QKVS") && head_get(block, out);
}

/* ---- markers ---- */

bool quire_marker_is_valid(const quire_store_drop *drop)
{
    return (unsigned)drop->what <= QUIRE_STORE_DROP_BEHIND &&
           drop->salt_bytes <= QUIRE_PREFIX_SALT_MAX;
}

void quire_marker_write(unsigned char *block, const quire_store_drop *drop, uint64_t sequence)
{
    block_begin(block, "QKVD");
    (void)quire_le_put(block + AT_FIELDS, sequence, 8);
    (void)quire_le_put(block + AT_MARKER_WHAT, drop->what, 4);
    (void)quire_le_put(block + AT_MARKER_SALT_BYTES, drop->salt_bytes, 4);
    (void)key_put(key_put(block + AT_MARKER_KEY, &drop->key), &drop->root);
    if (drop->salt_bytes > 0) {
        memcpy(block + AT_MARKER_SALT, drop->salt, drop->salt_bytes);
    }
    block_checksum(block, block + AT_CHECKSUM);
}

bool quire_marker_read(const unsigned char *block, quire_store_drop *drop, uint64_t *sequence)
{
    if (!block_check(block, "QKVD")) {
        return false;
    }
    *sequence = quire_le_get(block + AT_FIELDS, 8);
    drop->what = (quire_store_drop_what)u32_get(block + AT_MARKER_WHAT);
    drop->salt_bytes = u32_get(block + AT_MARKER_SALT_BYTES);
    (void)key_get(key_get(block + AT_MARKER_KEY, &drop->key), &drop->root);
    drop->salt = block + AT_MARKER_SALT;
    return quire_marker_is_valid(drop);
}

/* ---- footer ---- */

uint32_t quire_segment_salt_room(uint32_t salt_bytes)
{
    return (salt_bytes + 3u) / 4u * 4u;
}

uint64_t quire_segment_footer_room(uint64_t body_bytes)
{
    const uint64_t block = QUIRE_SEGMENT_BLOCK;

    return (body_bytes + block - 1) / block * block + block;
}

unsigned char *quire_segment_entry_put(unsigned char *at, const quire_segment_entry *entry)
{
    at = key_put(at, &entry->key);
    at = key_put(at, &entry->parent);
    at = quire_le_put(at, entry->sequence, 8);
    at = quire_le_put(at, entry->root, 4);
    at = quire_le_put(at, entry->place, 4);
    at = quire_le_put(at, entry->blocks, 4);
    at = quire_le_put(at, entry->first_token, 4);
    at = quire_le_put(at, entry->n_tokens, 4);
    return quire_le_put(at, entry->uses, 4);
}

void quire_segment_entry_get(const unsigned char *body, uint32_t i, quire_segment_entry *out)
{
    const unsigned char *at = body + (size_t)i * QUIRE_SEGMENT_ENTRY_BYTES;

    at = key_get(at, &out->key);
    at = key_get(at, &out->parent);
    out->sequence = quire_le_get(at, 8);
    out->root = u32_get(at + 8);
    out->place = u32_get(at + 12);
    out->blocks = u32_get(at + 16);
    out->first_token = u32_get(at + 20);
    out->n_tokens = u32_get(at + 24);
    out->uses = u32_get(at + 28);
}

static unsigned char *salt_put(unsigned char *at, const void *salt, uint32_t salt_bytes)
{
    const uint32_t room = quire_segment_salt_room(salt_bytes);

    at = quire_le_put(at, salt_bytes, 4);
    memset(at, 0, room);
    if (salt_bytes > 0) {
        memcpy(at, salt, salt_bytes);
    }
    return at + room;
}

unsigned char *quire_segment_root_put(unsigned char *at, const quire_segment_root *root)
{
    return salt_put(key_put(at, &root->key), root->salt, root->salt_bytes);
}

unsigned char *quire_segment_drop_put(unsigned char *at, const quire_segment_drop *drop)
{
    at = quire_le_put(at, drop->sequence, 8);
    at = quire_le_put(at, drop->place, 4);
    at = quire_le_put(at, drop->drop.what, 4);
    at = key_put(key_put(at, &drop->drop.key), &drop->drop.root);
    return salt_put(at, drop->drop.salt, drop->drop.salt_bytes);
}

void quire_segment_root_next(quire_segment_cursor *cursor, quire_segment_root *out)
{
    const unsigned char *at = key_get(cursor->at, &out->key);

    out->salt_bytes = u32_get(at);
    out->salt = at + 4;
    cursor->at = at + 4 + quire_segment_salt_room(out->salt_bytes);
}

void quire_segment_drop_next(quire_segment_cursor *cursor, quire_segment_drop *out)
{
    const unsigned char *at = cursor->at;

    out->sequence = quire_le_get(at, 8);
    out->place = u32_get(at + 8);
    out->drop.what = (quire_store_drop_what)u32_get(at + 12);
    at = key_get(key_get(at + 16, &out->drop.key), &out->drop.root);
    out->drop.salt_bytes = u32_get(at);
    out->drop.salt = at + 4;
    cursor->at = at + 4 + quire_segment_salt_room(out->drop.salt_bytes);
}

quire_segment_cursor quire_segment_roots(const quire_segment_footer *footer,
                                         const unsigned char *body)
{
    return (quire_segment_cursor){ body + (size_t)footer->n_entries * QUIRE_SEGMENT_ENTRY_BYTES };
}

void quire_segment_trailer_write(unsigned char *block, const quire_segment_footer *footer,
                                 const unsigned char *body)
{
    unsigned char *at = block + AT_TRAILER_ENTRIES;

    block_begin(block, "QKVT");
    head_put(block, &footer->head);
    at = quire_le_put(at, footer->n_entries, 4);
    at = quire_le_put(at, footer->n_roots, 4);
    at = quire_le_put(at, footer->n_drops, 4);
    (void)quire_le_put(at, footer->body_bytes, 4);
    quire_hash128(body, footer->body_bytes, block + AT_TRAILER_HASH);
    block_checksum(block, block + AT_CHECKSUM);
}

bool quire_segment_trailer_read(const unsigned char *block, uint64_t file_bytes,
                                quire_segment_footer *out)
{
    const unsigned char *at = block + AT_TRAILER_ENTRIES;

    if (!block_check(block, "QKVT") || !head_get(block, &out->head)) {
        return false;
    }
    out->n_entries = u32_get(at);
    out->n_roots = u32_get(at + 4);
    out->n_drops = u32_get(at + 8);
    out->body_bytes = u32_get(at + 12);
    return quire_segment_footer_room(out->body_bytes) + QUIRE_SEGMENT_BLOCK <= file_bytes &&
           (uint64_t)out->n_entries * QUIRE_SEGMENT_ENTRY_BYTES <= out->body_bytes;
}

static bool entries_check(const quire_segment_footer *footer, const unsigned char *body,
                          uint64_t file_bytes)
{
    for (uint32_t i = 0; i < footer->n_entries; i++) {
        quire_segment_entry entry;

        quire_segment_entry_get(body, i, &entry);
        if (entry.root >= footer->n_roots || entry.place == 0 || entry.blocks == 0 ||
            ((uint64_t)entry.place + entry.blocks) * QUIRE_SEGMENT_BLOCK > file_bytes ||
            (uint64_t)entry.blocks * QUIRE_SEGMENT_BLOCK > QUIRE_PAGE_RECORD_BYTES_MAX ||
            entry.n_tokens == 0 || entry.n_tokens > QUIRE_PAGE_TOKENS_MAX) {
            return false;
        }
    }
    return true;
}

/* Whether a part of `fixed` bytes, whose last 4 say the salt's length, lies within `left`. Returns
 * its length, 0 if not. */
static size_t salted_check(const unsigned char *at, size_t left, size_t fixed)
{
    uint32_t salt_bytes;

    if (left < fixed) {
        return 0;
    }
    salt_bytes = u32_get(at + fixed - 4);
    if (salt_bytes > QUIRE_PREFIX_SALT_MAX || left - fixed < quire_segment_salt_room(salt_bytes)) {
        return 0;
    }
    return fixed + quire_segment_salt_room(salt_bytes);
}

bool quire_segment_body_check(const unsigned char *block, const quire_segment_footer *footer,
                              const unsigned char *body, uint64_t file_bytes)
{
    unsigned char hash[QUIRE_HASH128_BYTES];
    size_t at = (size_t)footer->n_entries * QUIRE_SEGMENT_ENTRY_BYTES;

    quire_hash128(body, footer->body_bytes, hash);
    if (memcmp(hash, block + AT_TRAILER_HASH, sizeof hash) != 0 ||
        !entries_check(footer, body, file_bytes)) {
        return false;
    }
    for (uint64_t i = 0; i < (uint64_t)footer->n_roots + footer->n_drops; i++) {
        const bool is_root = i < footer->n_roots;
        const size_t n =
            salted_check(body + at, footer->body_bytes - at,
                         is_root ? QUIRE_SEGMENT_ROOT_BYTES : QUIRE_SEGMENT_DROP_BYTES);

        if (n == 0 || (!is_root && u32_get(body + at + 12) > QUIRE_STORE_DROP_BEHIND)) {
            return false;
        }
        at += n;
    }
    return at == footer->body_bytes;
}
