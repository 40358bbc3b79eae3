/* siphash.c - SipHash-2-4 on little-endian words.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/online/siphash.h"

typedef struct sip {
    uint64_t v[4];
} sip;

/* A little-endian word on a machine of any byte order. */
static uint64_t word_at(const unsigned char *at, size_t n)
{
    uint64_t word = 0;

    for (size_t i = 0; i < n; i++) {
        word |= (uint64_t)at[i] << (8 * i);
    }
    return word;
}

static uint64_t rotate(uint64_t x, unsigned bits)
{
    return x << bits | x >> (64 - bits);
}

static void rounds(sip *s, unsigned n)
{
    uint64_t *v = s->v;

    for (unsigned i = 0; i < n; i++) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

static void word_add(sip *s, uint64_t word)
{
    s->v[3] ^= word;
    rounds(s, 2);
    s->v[0] ^= word;
}

uint64_t quire_siphash(const uint64_t key[2], const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    sip s = { { key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du,
                key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u } };
    const uint64_t length = (uint64_t)n << 56;

    for (; n >= 8; at += 8, n -= 8) {
        word_add(&s, word_at(at, 8));
    }
    word_add(&s, length | word_at(at, n));
    s.v[2] ^= 0xff;
    rounds(&s, 4);
    return s.v[0] ^ s.v[1] ^ s.v[2] ^ s.v[3];
}
