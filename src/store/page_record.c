/* page_record.c - see page_record.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/page_record.h"

#include "base/check.h"
#include "base/hash128.h"

#include <string.h>

#define MAGIC      "QKVP"
#define MAGIC_SIZE 4u

/* Offsets of the fixed part. */
#define AT_VERSION      4u
#define AT_RECORD_BYTES 8u
#define AT_HEAD_BYTES   12u
#define AT_CHECKSUM     16u
#define AT_KEY          32u
#define AT_PARENT       48u
#define AT_ROOT         64u
#define AT_SEQUENCE     80u
#define AT_FIRST_TOKEN  88u
#define AT_N_TOKENS     92u
#define AT_N_PARTS      96u
#define AT_SALT_BYTES   100u
#define FIXED_BYTES     104u

#define HEAD_ALIGN 64u

_Static_assert(QUIRE_HASH128_BYTES == QUIRE_PAGE_KEY_BYTES, "a checksum is as long as a key");

const char *quire_store_result_name(quire_store_result result)
{
    switch (result) {
#define X(sym, val, name)                                                                          \
    case QUIRE_STORE_##sym:                                                                        \
        return (name);
        QUIRE_STORE_RESULT_MAP(X)
#undef X
    case QUIRE_STORE_RESULT_COUNT:
        break;
    }
    return "unknown";
}

static size_t align_up(size_t n, size_t align)
{
    return (n + align - 1) / align * align;
}

static uint32_t u32_get(const unsigned char *record, uint32_t at)
{
    return (uint32_t)quire_le_get(record + at, 4);
}

/* ---- lengths ---- */

static size_t head_bytes_of(uint32_t n_tokens, uint32_t salt_bytes, uint32_t n_parts)
{
    return align_up(FIXED_BYTES + (size_t)n_parts * 4 + salt_bytes + (size_t)n_tokens * 4,
                    HEAD_ALIGN);
}

static size_t part_room(size_t part_bytes)
{
    return align_up(part_bytes, HEAD_ALIGN);
}

size_t quire_page_record_bytes(uint32_t n_tokens, uint32_t salt_bytes, uint32_t n_parts,
                               const size_t *part_bytes)
{
    size_t bytes;

    if (n_tokens == 0 || n_tokens > QUIRE_PAGE_TOKENS_MAX || salt_bytes > QUIRE_PREFIX_SALT_MAX ||
        n_parts == 0 || n_parts > QUIRE_GROUPS_MAX) {
        return 0;
    }
    bytes = head_bytes_of(n_tokens, salt_bytes, n_parts);
    for (uint32_t i = 0; i < n_parts; i++) {
        if (part_bytes[i] > QUIRE_PAGE_RECORD_BYTES_MAX) {
            return 0;
        }
        bytes += part_room(part_bytes[i]);
    }
    bytes = align_up(bytes, QUIRE_PAGE_RECORD_ALIGN);
    return bytes <= QUIRE_PAGE_RECORD_BYTES_MAX ? bytes : 0;
}

/* ---- writing ---- */

static unsigned char *key_put(unsigned char *at, const quire_page_key *key)
{
    memcpy(at, key->bytes, QUIRE_PAGE_KEY_BYTES);
    return at + QUIRE_PAGE_KEY_BYTES;
}

static void head_write(unsigned char *record, size_t record_bytes, const quire_page_text *text,
                       uint32_t n_parts, const size_t *part_bytes)
{
    const size_t head_bytes = head_bytes_of(text->n_tokens, text->salt_bytes, n_parts);
    unsigned char *at = record + AT_VERSION;

    memset(record, 0, head_bytes);
    memcpy(record, MAGIC, MAGIC_SIZE);
    at = quire_le_put(at, QUIRE_PAGE_RECORD_VERSION, 4);
    at = quire_le_put(at, record_bytes, 4);
    (void)quire_le_put(at, head_bytes, 4);
    at = key_put(record + AT_KEY, &text->key);
    at = key_put(at, &text->parent);
    (void)key_put(at, &text->root);
    at = quire_le_put(record + AT_FIRST_TOKEN, text->first_token, 4);
    at = quire_le_put(at, text->n_tokens, 4);
    at = quire_le_put(at, n_parts, 4);
    at = quire_le_put(at, text->salt_bytes, 4);
    for (uint32_t i = 0; i < n_parts; i++) {
        at = quire_le_put(at, part_bytes[i], 4);
    }
    if (text->salt_bytes > 0) {
        memcpy(at, text->salt, text->salt_bytes);
    }
    at += text->salt_bytes;
    for (uint32_t i = 0; i < text->n_tokens; i++) {
        at = quire_le_put(at, (uint32_t)text->tokens[i], 4);
    }
}

int quire_page_record_begin(unsigned char *record, size_t capacity, const quire_page_text *text,
                            uint32_t n_parts, const size_t *part_bytes,
                            unsigned char *parts[QUIRE_GROUPS_MAX])
{
    const size_t bytes =
        quire_page_record_bytes(text->n_tokens, text->salt_bytes, n_parts, part_bytes);
    unsigned char *at;

    QUIRE_FAIL_IF(bytes == 0, QUIRE_INVAL);
    QUIRE_FAIL_IF(bytes > capacity, QUIRE_RANGE);
    head_write(record, bytes, text, n_parts, part_bytes);
    at = record + head_bytes_of(text->n_tokens, text->salt_bytes, n_parts);
    for (uint32_t i = 0; i < n_parts; i++) {
        const size_t room = part_room(part_bytes[i]);

        parts[i] = at;
        memset(at + part_bytes[i], 0, room - part_bytes[i]);
        at += room;
    }
    memset(at, 0, bytes - (size_t)(at - record));
    return QUIRE_OK;
}

static void checksum_make(const unsigned char *record, size_t record_bytes, unsigned char *out)
{
    quire_hash128_parts(record, AT_CHECKSUM, record + AT_KEY, record_bytes - AT_KEY, out);
}

void quire_page_record_seal(unsigned char *record, uint64_t sequence)
{
    (void)quire_le_put(record + AT_SEQUENCE, sequence, 8);
    checksum_make(record, u32_get(record, AT_RECORD_BYTES), record + AT_CHECKSUM);
}

/* ---- reading ---- */

size_t quire_page_record_peek(const unsigned char *record, size_t n_bytes)
{
    size_t bytes;

    if (n_bytes < QUIRE_PAGE_RECORD_ALIGN || memcmp(record, MAGIC, MAGIC_SIZE) != 0 ||
        u32_get(record, AT_VERSION) != QUIRE_PAGE_RECORD_VERSION) {
        return 0;
    }
    bytes = u32_get(record, AT_RECORD_BYTES);
    return bytes >= QUIRE_PAGE_RECORD_ALIGN && bytes <= QUIRE_PAGE_RECORD_BYTES_MAX &&
                   bytes % QUIRE_PAGE_RECORD_ALIGN == 0
               ? bytes
               : 0;
}

/* Whether the lengths of a record whose checksum is right fit together; fills in *out. */
static bool fields_read(const unsigned char *record, size_t n_bytes, quire_page_record *out)
{
    size_t part_bytes[QUIRE_GROUPS_MAX];
    const unsigned char *at = record + FIXED_BYTES;

    *out = (quire_page_record){ .record_bytes = (uint32_t)n_bytes };
    memcpy(out->text.key.bytes, record + AT_KEY, QUIRE_PAGE_KEY_BYTES);
    memcpy(out->text.parent.bytes, record + AT_PARENT, QUIRE_PAGE_KEY_BYTES);
    memcpy(out->text.root.bytes, record + AT_ROOT, QUIRE_PAGE_KEY_BYTES);
    out->sequence = quire_le_get(record + AT_SEQUENCE, 8);
    out->text.first_token = u32_get(record, AT_FIRST_TOKEN);
    out->text.n_tokens = u32_get(record, AT_N_TOKENS);
    out->n_parts = u32_get(record, AT_N_PARTS);
    out->text.salt_bytes = u32_get(record, AT_SALT_BYTES);
    if (out->n_parts > QUIRE_GROUPS_MAX) {
        return false;
    }
    for (uint32_t i = 0; i < out->n_parts; i++, at += 4) {
        out->part_bytes[i] = (uint32_t)quire_le_get(at, 4);
        part_bytes[i] = out->part_bytes[i];
    }
    if (quire_page_record_bytes(out->text.n_tokens, out->text.salt_bytes, out->n_parts,
                                part_bytes) != n_bytes ||
        u32_get(record, AT_HEAD_BYTES) !=
            head_bytes_of(out->text.n_tokens, out->text.salt_bytes, out->n_parts)) {
        return false;
    }
    out->text.salt = at;
    at = record + u32_get(record, AT_HEAD_BYTES);
    for (uint32_t i = 0; i < out->n_parts; i++) {
        out->parts[i] = at;
        at += part_room(out->part_bytes[i]);
    }
    return true;
}

quire_store_result quire_page_record_open(const unsigned char *record, size_t n_bytes,
                                          quire_page_record *out)
{
    unsigned char checksum[QUIRE_HASH128_BYTES];

    if (quire_page_record_peek(record, n_bytes) != n_bytes) {
        return QUIRE_STORE_FORMAT;
    }
    checksum_make(record, n_bytes, checksum);
    if (memcmp(checksum, record + AT_CHECKSUM, sizeof checksum) != 0) {
        return QUIRE_STORE_CHECKSUM;
    }
    return fields_read(record, n_bytes, out) ? QUIRE_STORE_OK : QUIRE_STORE_FORMAT;
}

quire_store_result quire_page_record_fields(const unsigned char *record, size_t n_bytes,
                                            quire_page_record *out)
{
    const size_t bytes = quire_page_record_peek(record, n_bytes);

    return bytes > 0 && bytes <= n_bytes && fields_read(record, bytes, out) ? QUIRE_STORE_OK
                                                                            : QUIRE_STORE_FORMAT;
}

static const unsigned char *tokens_at(const quire_page_record *record)
{
    return (const unsigned char *)record->text.salt + record->text.salt_bytes;
}

static int32_t token_at(const quire_page_record *record, uint32_t i)
{
    return (int32_t)(uint32_t)quire_le_get(tokens_at(record) + (size_t)i * 4, 4);
}

quire_store_result quire_page_record_check(const quire_page_record *record,
                                           const quire_page_text *text)
{
    if (!quire_page_key_is(&record->text.root, &text->root) ||
        record->text.salt_bytes != text->salt_bytes ||
        (text->salt_bytes > 0 && memcmp(record->text.salt, text->salt, text->salt_bytes) != 0)) {
        return QUIRE_STORE_IDENTITY;
    }
    if (!quire_page_key_is(&record->text.key, &text->key) ||
        !quire_page_key_is(&record->text.parent, &text->parent) ||
        record->text.first_token != text->first_token ||
        (text->n_tokens > 0 && record->text.n_tokens != text->n_tokens)) {
        return QUIRE_STORE_TOKENS;
    }
    for (uint32_t i = 0; i < text->n_tokens; i++) {
        if (token_at(record, i) != text->tokens[i]) {
            return QUIRE_STORE_TOKENS;
        }
    }
    return QUIRE_STORE_OK;
}

/* No text has a negative token, so no page has this key. */
void quire_page_record_slot(const quire_page_key *parent, int32_t token, quire_page_key *out)
{
    const int32_t tokens[2] = { -1, token };

    quire_prefix_key_add(parent, tokens, 2, out);
}

void quire_page_record_tokens(const quire_page_record *record, int32_t *out)
{
    for (uint32_t i = 0; i < record->text.n_tokens; i++) {
        out[i] = token_at(record, i);
    }
}
