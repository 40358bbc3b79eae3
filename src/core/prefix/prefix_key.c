/* prefix_key.c - the keys of texts, equal in every process; see quire/prefix.h.
 *
 * The input of the hash is first written byte by byte, so that the machine's byte order does not
 * matter.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/hash128.h"
#include "quire/prefix.h"

#include <string.h>

#define ROOT_TAG       "quire text 1" /* begins a root's bytes; change the tag with the rule */
#define ROOT_TAG_BYTES (sizeof(ROOT_TAG) - 1)
#define ROOT_BYTES     (ROOT_TAG_BYTES + 2 * 8 + 4 + QUIRE_PREFIX_SALT_MAX)
#define PAGE_BYTES_MAX (QUIRE_PAGE_KEY_BYTES + (size_t)QUIRE_PAGE_TOKENS_MAX * 4)

_Static_assert(QUIRE_PAGE_KEY_BYTES == QUIRE_HASH128_BYTES, "a key is a hash");

void quire_prefix_key_root(const quire_prefix_key *key, quire_page_key *out)
{
    unsigned char bytes[ROOT_BYTES];
    unsigned char *at = bytes;

    QUIRE_CHECK(key->salt_bytes <= QUIRE_PREFIX_SALT_MAX);
    memcpy(at, ROOT_TAG, ROOT_TAG_BYTES);
    at = quire_le_put(at + ROOT_TAG_BYTES, key->identity[0], 8);
    at = quire_le_put(at, key->identity[1], 8);
    at = quire_le_put(at, key->salt_bytes, 4);
    if (key->salt_bytes > 0) {
        memcpy(at, key->salt, key->salt_bytes);
    }
    quire_hash128(bytes, (size_t)(at - bytes) + key->salt_bytes, out->bytes);
}

void quire_prefix_key_add(const quire_page_key *parent, const int32_t *tokens, uint32_t n_tokens,
                          quire_page_key *out)
{
    unsigned char bytes[PAGE_BYTES_MAX];
    unsigned char *at = bytes + QUIRE_PAGE_KEY_BYTES;

    QUIRE_CHECK(n_tokens > 0 && n_tokens <= QUIRE_PAGE_TOKENS_MAX);
    memcpy(bytes, parent->bytes, QUIRE_PAGE_KEY_BYTES);
    for (uint32_t i = 0; i < n_tokens; i++) {
        at = quire_le_put(at, (uint32_t)tokens[i], 4);
    }
    quire_hash128(bytes, (size_t)(at - bytes), out->bytes);
}
