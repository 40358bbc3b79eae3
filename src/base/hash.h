/* hash.h - FNV-1a in 64 bits, for tables and fingerprints of data not constructed to collide.
 *
 * Source: Fowler, Noll, Vo, draft-eastlake-fnv.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_HASH_H
#define QUIRE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define QUIRE_HASH_INIT 0xcbf29ce484222325u

/* Extend a hash by n bytes; begin with QUIRE_HASH_INIT. */
static inline uint64_t quire_hash_add(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;

    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ at[i]) * 0x100000001b3u;
    }
    return hash;
}

#endif /* QUIRE_BASE_HASH_H */
