/* sha256.h - SHA-256 (FIPS 180-4) of bytes in memory: names of texts that nobody can forge.
 *
 * Portable and slow: for tokens and names. Pages of KV have hash128.h.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_SHA256_H
#define QUIRE_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define QUIRE_SHA256_BYTES 32u

typedef struct quire_sha256 {
    uint32_t state[8];
    uint64_t n_bytes; /* added so far */
    unsigned char block[64];
} quire_sha256;

void quire_sha256_init(quire_sha256 *hash);
void quire_sha256_add(quire_sha256 *hash, const void *bytes, size_t n_bytes);
/* The hash of all bytes added. Ends the struct's use. */
void quire_sha256_get(quire_sha256 *hash, unsigned char out[QUIRE_SHA256_BYTES]);

#endif /* QUIRE_BASE_SHA256_H */
