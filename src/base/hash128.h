/* hash128.h - hashes of 128 bits that are equal in every process and on every machine: XXH3 over
 * bytes in a fixed order. Not cryptographic: two inputs with one hash can be constructed.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_HASH128_H
#define QUIRE_BASE_HASH128_H

#include <stddef.h>
#include <stdint.h>

#define QUIRE_HASH128_BYTES 16u

/* XXH3-128 without a seed, in its canonical form: most significant byte first. out may overlap
 * bytes. */
void quire_hash128(const void *bytes, size_t n_bytes, unsigned char out[QUIRE_HASH128_BYTES]);

/* The hash of two pieces of memory, one after the other. */
void quire_hash128_parts(const void *a, size_t a_bytes, const void *b, size_t b_bytes,
                         unsigned char out[QUIRE_HASH128_BYTES]);

/* Read n_bytes (at most 8) of a number, least significant first. */
static inline uint64_t quire_le_get(const unsigned char *at, uint32_t n_bytes)
{
    uint64_t value = 0;

    for (uint32_t i = n_bytes; i > 0; i--) {
        value = value << 8 | at[i - 1];
    }
    return value;
}

/* Write the low n_bytes (at most 8) of a number, least significant first. Returns the address
 * behind them. */
static inline unsigned char *quire_le_put(unsigned char *at, uint64_t value, uint32_t n_bytes)
{
    for (uint32_t i = 0; i < n_bytes; i++) {
        at[i] = (unsigned char)(value >> (8 * i));
    }
    return at + n_bytes;
}

#endif /* QUIRE_BASE_HASH128_H */
