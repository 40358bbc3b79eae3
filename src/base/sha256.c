/* sha256.c - see sha256.h. Names follow FIPS 180-4.
 *
 * SPDX-License-Identifier: MIT */
#include "base/sha256.h"

#include <string.h>

#define BLOCK_BYTES  64u
#define LENGTH_BYTES 8u
#define N_ROUNDS     64u

/* The first 32 bits of the fractions of the cube roots of the first 64 primes. */
static const uint32_t k[N_ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2
};

static uint32_t rotr(uint32_t x, unsigned n)
{
    return x >> n | x << (32 - n);
}

static void schedule(const unsigned char *block, uint32_t w[N_ROUNDS])
{
    for (unsigned t = 0; t < 16; t++) {
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 |
               (uint32_t)block[4 * t + 2] << 8 | block[4 * t + 3];
    }
    for (unsigned t = 16; t < N_ROUNDS; t++) {
        const uint32_t s0 = rotr(w[t - 15], 7) ^ rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
        const uint32_t s1 = rotr(w[t - 2], 17) ^ rotr(w[t - 2], 19) ^ w[t - 2] >> 10;

        w[t] = s1 + w[t - 7] + s0 + w[t - 16];
    }
}

static void compress(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[N_ROUNDS], v[8];

    schedule(block, w);
    memcpy(v, state, sizeof v);
    for (unsigned t = 0; t < N_ROUNDS; t++) {
        const uint32_t a = v[0], e = v[4];
        const uint32_t s1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
        const uint32_t ch = (e & v[5]) ^ (~e & v[6]);
        const uint32_t t1 = v[7] + s1 + ch + k[t] + w[t];
        const uint32_t s0 = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
        const uint32_t maj = (a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]);

        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t1;
        v[0] = t1 + s0 + maj;
    }
    for (unsigned i = 0; i < 8; i++) {
        state[i] += v[i];
    }
}

void quire_sha256_init(quire_sha256 *hash)
{
    *hash = (quire_sha256){ .state = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                       0x9b05688c, 0x1f83d9ab, 0x5be0cd19 } };
}

void quire_sha256_add(quire_sha256 *hash, const void *bytes, size_t n_bytes)
{
    const unsigned char *at = bytes;

    while (n_bytes > 0) {
        const size_t used = hash->n_bytes % BLOCK_BYTES;
        const size_t n = n_bytes < BLOCK_BYTES - used ? n_bytes : BLOCK_BYTES - used;

        memcpy(hash->block + used, at, n);
        hash->n_bytes += n;
        at += n;
        n_bytes -= n;
        if (used + n == BLOCK_BYTES) {
            compress(hash->state, hash->block);
        }
    }
}

void quire_sha256_get(quire_sha256 *hash, unsigned char out[QUIRE_SHA256_BYTES])
{
    static const unsigned char padding[BLOCK_BYTES] = { 0x80 };
    const uint64_t n_bits = hash->n_bytes * 8;
    const size_t used = hash->n_bytes % BLOCK_BYTES;
    const size_t n_padding =
        (used < BLOCK_BYTES - LENGTH_BYTES ? 0 : BLOCK_BYTES) + BLOCK_BYTES - LENGTH_BYTES - used;
    unsigned char length[LENGTH_BYTES];

    for (unsigned i = 0; i < LENGTH_BYTES; i++) {
        length[i] = (unsigned char)(n_bits >> (56 - 8 * i));
    }
    quire_sha256_add(hash, padding, n_padding); /* 64 bytes at most */
    quire_sha256_add(hash, length, sizeof length);
    for (unsigned i = 0; i < QUIRE_SHA256_BYTES; i++) {
        out[i] = (unsigned char)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
    }
}
