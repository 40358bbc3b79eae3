/* siphash.h - SipHash-2-4: a keyed hash of short texts; without the key it cannot be computed or
 * inverted.
 *
 * Source: Aumasson, Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_SIPHASH_H
#define QUIRE_TRACE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t quire_siphash(const uint64_t key[2], const void *bytes, size_t n);

#endif /* QUIRE_TRACE_SIPHASH_H */
