/* state_item.c - see state_item.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/state/state_item.h"

#include "base/check.h"

#include <string.h>

#define MAGIC         "QuireSta"
#define MAGIC_BYTES   8u
#define AT_BODY_BYTES 56u
#define AT_CHECKSUM   64u

const char *quire_state_kind_name(quire_state_kind kind)
{
    static const char *const names[] = {
#define X(sym, val, name) [val] = (name),
        QUIRE_STATE_KIND_MAP(X)
#undef X
    };

    return names[kind];
}

const char *quire_state_result_name(quire_state_result result)
{
    static const char *const names[] = {
#define X(sym, val, name) [val] = (name),
        QUIRE_STATE_RESULT_MAP(X)
#undef X
    };

    return names[result];
}

quire_state_name quire_state_name_of(quire_state_kind kind, const void *tenant,
                                     uint32_t tenant_bytes, const char *text)
{
    unsigned char parts[2 * QUIRE_HASH128_BYTES];
    quire_state_name name = { .kind = kind };

    quire_hash128(tenant_bytes > 0 ? tenant : "", tenant_bytes, parts);
    quire_hash128(text, strlen(text), parts + QUIRE_HASH128_BYTES);
    quire_hash128(parts, sizeof parts, name.hash);
    return name;
}

int quire_state_name_compare(const quire_state_name *a, const quire_state_name *b)
{
    return a->kind != b->kind ? (a->kind < b->kind ? -1 : 1)
                              : memcmp(a->hash, b->hash, sizeof a->hash);
}

/* ---- writing ---- */

int quire_state_begin(quire_bytes *item)
{
    static const unsigned char zeros[QUIRE_STATE_HEAD_BYTES];

    return quire_bytes_add(item, zeros, sizeof zeros);
}

int quire_state_put(quire_bytes *item, uint64_t value, uint32_t n_bytes)
{
    unsigned char bytes[8];

    (void)quire_le_put(bytes, value, n_bytes);
    return quire_bytes_add(item, bytes, n_bytes);
}

int quire_state_put_text(quire_bytes *item, const void *text, uint32_t n_bytes)
{
    (void)quire_state_put(item, n_bytes, 4);
    if (n_bytes > 0) {
        (void)quire_bytes_add(item, text, n_bytes);
    }
    return quire_bytes_add(item, "", 1);
}

int quire_state_seal(quire_bytes *item, const quire_state_head *head)
{
    unsigned char *bytes = (unsigned char *)item->data;
    unsigned char *at = bytes;

    QUIRE_TRY(item->status);
    QUIRE_FAIL_IF(item->n > QUIRE_STATE_ITEM_BYTES_MAX, QUIRE_LIMIT);
    memcpy(at, MAGIC, MAGIC_BYTES);
    at = quire_le_put(at + MAGIC_BYTES, QUIRE_STATE_VERSION, 4);
    at = quire_le_put(at, head->name.kind, 4);
    memcpy(at, head->identity, sizeof head->identity);
    at += sizeof head->identity;
    memcpy(at, head->name.hash, sizeof head->name.hash);
    at = quire_le_put(at + sizeof head->name.hash, head->time_us, 8);
    at = quire_le_put(at, item->n - QUIRE_STATE_HEAD_BYTES, 8);
    quire_hash128_parts(bytes, AT_CHECKSUM, bytes + QUIRE_STATE_HEAD_BYTES,
                        item->n - QUIRE_STATE_HEAD_BYTES, at);
    return QUIRE_OK;
}

/* ---- reading ---- */

quire_state_result quire_state_open(const unsigned char *item, size_t n_bytes,
                                    quire_state_head *head)
{
    unsigned char checksum[QUIRE_HASH128_BYTES];

    QUIRE_FAIL_IF(n_bytes < QUIRE_STATE_HEAD_BYTES, QUIRE_STATE_TRUNCATED_RESULT);
    QUIRE_FAIL_IF(memcmp(item, MAGIC, MAGIC_BYTES) != 0, QUIRE_STATE_FOREIGN_RESULT);
    QUIRE_FAIL_IF(quire_le_get(item + 8, 4) != QUIRE_STATE_VERSION, QUIRE_STATE_VERSION_RESULT);
    QUIRE_FAIL_IF(quire_le_get(item + AT_BODY_BYTES, 8) != n_bytes - QUIRE_STATE_HEAD_BYTES,
                  QUIRE_STATE_TRUNCATED_RESULT);
    quire_hash128_parts(item, AT_CHECKSUM, item + QUIRE_STATE_HEAD_BYTES,
                        n_bytes - QUIRE_STATE_HEAD_BYTES, checksum);
    QUIRE_FAIL_IF(memcmp(checksum, item + AT_CHECKSUM, sizeof checksum) != 0,
                  QUIRE_STATE_CHECKSUM_RESULT);
    QUIRE_FAIL_IF(quire_le_get(item + 12, 4) != head->name.kind ||
                      memcmp(item + 16, head->identity, sizeof head->identity) != 0 ||
                      memcmp(item + 32, head->name.hash, sizeof head->name.hash) != 0,
                  QUIRE_STATE_FOREIGN_RESULT);
    head->time_us = quire_le_get(item + 48, 8);
    return QUIRE_STATE_OK_RESULT;
}

quire_state_reader quire_state_body(const unsigned char *item, size_t n_bytes)
{
    return (quire_state_reader){ item + QUIRE_STATE_HEAD_BYTES, n_bytes - QUIRE_STATE_HEAD_BYTES,
                                 false };
}

const unsigned char *quire_state_take(quire_state_reader *body, size_t n_bytes)
{
    const unsigned char *at = body->at;

    if (body->is_bad || n_bytes > body->n_left) {
        body->is_bad = true;
        return NULL;
    }
    body->at += n_bytes;
    body->n_left -= n_bytes;
    return at;
}

uint64_t quire_state_get(quire_state_reader *body, uint32_t n_bytes)
{
    const unsigned char *at = quire_state_take(body, n_bytes);

    return at != NULL ? quire_le_get(at, n_bytes) : 0;
}

const char *quire_state_get_text(quire_state_reader *body, bool is_string, uint32_t max,
                                 uint32_t *n_bytes)
{
    const uint32_t n = (uint32_t)quire_state_get(body, 4);
    const unsigned char *text = n <= max ? quire_state_take(body, (size_t)n + 1) : NULL;

    *n_bytes = 0;
    if (text == NULL || text[n] != '\0' || (is_string && memchr(text, '\0', n) != NULL)) {
        body->is_bad = true;
        return NULL;
    }
    *n_bytes = n;
    return (const char *)text;
}

bool quire_state_is_whole(const quire_state_reader *body)
{
    return !body->is_bad && body->n_left == 0;
}
