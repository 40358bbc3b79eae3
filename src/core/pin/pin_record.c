/* pin_record.c - pins as bytes.
 *
 *   offset  bytes  what, little-endian
 *        0      4  "QPIN"
 *        4      4  version: 1
 *        8      8  bytes of the whole record
 *       16     16  identity
 *       32      8  created_us
 *       40      8  expires_us
 *       48      4  tokens
 *       52      4  tokens that the groups above 0 keep
 *       56      4  bytes of the salt
 *       60      4  bytes of the name
 *       64      2  region
 *       66      2  account
 *       68      1  rank
 *       69      3  0
 *       72         tokens (4 bytes each), salt, name, XXH3 of all before (8 bytes)
 *
 * SPDX-License-Identifier: MIT */
#include "quire/pin.h"

#include "base/check.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define MAGIC      "QPIN"
#define VERSION    1u
#define HEAD_BYTES 72u
#define HASH_BYTES 8u

static void put(unsigned char *at, uint64_t value, uint32_t n_bytes)
{
    for (uint32_t i = 0; i < n_bytes; i++) {
        at[i] = (unsigned char)(value >> 8 * i);
    }
}

static uint64_t get(const unsigned char *at, uint32_t n_bytes)
{
    uint64_t value = 0;

    for (uint32_t i = 0; i < n_bytes; i++) {
        value |= (uint64_t)at[i] << 8 * i;
    }
    return value;
}

static size_t record_bytes(uint64_t n_tokens, uint64_t salt_bytes, uint64_t name_bytes)
{
    return (size_t)(HEAD_BYTES + n_tokens * 4 + salt_bytes + name_bytes + HASH_BYTES);
}

size_t quire_pin_record_bytes(const quire_pin_info *pin)
{
    return record_bytes(pin->n_tokens, pin->key.salt_bytes, strlen(pin->name));
}

void quire_pin_record_write(const quire_pin_info *pin, void *buffer)
{
    unsigned char *at = buffer;
    size_t n_bytes = quire_pin_record_bytes(pin);
    size_t name_bytes = strlen(pin->name);
    unsigned char *to = at + HEAD_BYTES;

    memset(at, 0, HEAD_BYTES);
    memcpy(at, MAGIC, 4);
    put(at + 4, VERSION, 4);
    put(at + 8, n_bytes, 8);
    put(at + 16, pin->key.identity[0], 8);
    put(at + 24, pin->key.identity[1], 8);
    put(at + 32, pin->created_us, 8);
    put(at + 40, pin->expires_us, 8);
    put(at + 48, pin->n_tokens, 4);
    put(at + 52, pin->n_windowed_tokens, 4);
    put(at + 56, pin->key.salt_bytes, 4);
    put(at + 60, name_bytes, 4);
    put(at + 64, pin->region, 2);
    put(at + 66, pin->account, 2);
    put(at + 68, pin->rank, 1);
    for (uint32_t i = 0; i < pin->n_tokens; i++, to += 4) {
        put(to, (uint32_t)pin->tokens[i], 4);
    }
    if (pin->key.salt_bytes > 0) {
        memcpy(to, pin->key.salt, pin->key.salt_bytes);
        to += pin->key.salt_bytes;
    }
    memcpy(to, pin->name, name_bytes);
    put(to + name_bytes, XXH3_64bits(at, n_bytes - HASH_BYTES), HASH_BYTES);
}

/* Whether a record of this version is whole and says what a pin may say. */
static int record_check(const unsigned char *at, size_t data_bytes)
{
    uint64_t n_bytes;
    uint64_t n_tokens;
    uint64_t salt_bytes;
    uint64_t name_bytes;

    QUIRE_FAIL_IF(data_bytes < HEAD_BYTES + HASH_BYTES || memcmp(at, MAGIC, 4) != 0, QUIRE_CORRUPT);
    n_bytes = get(at + 8, 8);
    QUIRE_FAIL_IF(n_bytes < HEAD_BYTES + HASH_BYTES || n_bytes > data_bytes, QUIRE_CORRUPT);
    QUIRE_FAIL_IF(XXH3_64bits(at, (size_t)n_bytes - HASH_BYTES) !=
                      get(at + n_bytes - HASH_BYTES, HASH_BYTES),
                  QUIRE_CORRUPT);
    QUIRE_FAIL_IF(get(at + 4, 4) > VERSION, QUIRE_UNSUPP);
    n_tokens = get(at + 48, 4);
    salt_bytes = get(at + 56, 4);
    name_bytes = get(at + 60, 4);
    QUIRE_FAIL_IF(n_tokens == 0 || n_tokens > QUIRE_SEQ_TOKENS_MAX, QUIRE_CORRUPT);
    QUIRE_FAIL_IF(salt_bytes > QUIRE_PREFIX_SALT_MAX, QUIRE_CORRUPT);
    QUIRE_FAIL_IF(name_bytes == 0 || name_bytes > QUIRE_PIN_NAME_MAX, QUIRE_CORRUPT);
    QUIRE_FAIL_IF(record_bytes(n_tokens, salt_bytes, name_bytes) != n_bytes, QUIRE_CORRUPT);
    QUIRE_FAIL_IF(memchr(at + n_bytes - HASH_BYTES - name_bytes, 0, (size_t)name_bytes) != NULL,
                  QUIRE_CORRUPT);
    QUIRE_FAIL_IF(get(at + 64, 2) >= QUIRE_REGIONS_MAX || get(at + 66, 2) >= QUIRE_ACCOUNTS_MAX ||
                      get(at + 68, 1) >= QUIRE_RANKS_MAX,
                  QUIRE_CORRUPT);
    return QUIRE_OK;
}

int quire_pin_record_read(const void *data, size_t data_bytes, const quire_allocator *allocator,
                          quire_pin_record *out)
{
    const unsigned char *at = data;
    unsigned char *memory;
    int32_t *tokens;
    uint32_t n_tokens;
    uint32_t salt_bytes;
    uint32_t name_bytes;

    memset(out, 0, sizeof(*out));
    QUIRE_TRY(record_check(at, data_bytes));
    n_tokens = (uint32_t)get(at + 48, 4);
    salt_bytes = (uint32_t)get(at + 56, 4);
    name_bytes = (uint32_t)get(at + 60, 4);
    out->allocator = allocator != NULL ? *allocator : *quire_allocator_default();
    memory = out->allocator.alloc(out->allocator.ctx,
                                  (size_t)n_tokens * 4 + salt_bytes + name_bytes + 1);
    QUIRE_FAIL_IF(memory == NULL, QUIRE_NOMEM);
    out->memory = memory;
    tokens = (int32_t *)(void *)memory;
    for (uint32_t i = 0; i < n_tokens; i++) {
        tokens[i] = (int32_t)(uint32_t)get(at + HEAD_BYTES + (size_t)i * 4, 4);
    }
    memory += (size_t)n_tokens * 4;
    memcpy(memory, at + HEAD_BYTES + (size_t)n_tokens * 4, (size_t)salt_bytes + name_bytes);
    memory[salt_bytes + name_bytes] = '\0';
    out->spec = (quire_pin_spec){
        .name = (const char *)memory + salt_bytes,
        .key = { .identity = { get(at + 16, 8), get(at + 24, 8) },
                 .salt = salt_bytes > 0 ? memory : NULL,
                 .salt_bytes = salt_bytes },
        .tokens = tokens,
        .n_tokens = n_tokens,
        .n_windowed_tokens = (uint32_t)get(at + 52, 4),
        .region = (quire_region_id)get(at + 64, 2),
        .rank = (uint8_t)get(at + 68, 1),
        .account = (uint16_t)get(at + 66, 2),
        .expires_us = get(at + 40, 8),
    };
    out->created_us = get(at + 32, 8);
    out->record_bytes = (size_t)get(at + 8, 8);
    return QUIRE_OK;
}

void quire_pin_record_fini(quire_pin_record *record)
{
    if (record->memory != NULL) {
        record->allocator.free(record->allocator.ctx, record->memory);
    }
    memset(record, 0, sizeof(*record));
}
