/* codec_support.h - code that the tests of the tile formats share.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_CODEC_SUPPORT_H
#define QUIRE_TESTS_CODEC_SUPPORT_H

#include "base/rng.h"
#include "quire/codec.h"

#define CODEC_LIST_MAX 4u

/* Aligned memory; fails the test when there is none. Release with free(). */
void *codec_take(size_t bytes);

/* FNV-1a, 64 bits. */
uint64_t codec_hash(const void *bytes, size_t n);

/* kind: 0 normal, 1 with outliers, 2 any exponent, else any bits, NaN and Inf among them. */
float codec_random_value(quire_rng *rng, uint32_t kind);

/* The codecs of this machine, "ref" first; returns their number. */
uint32_t codec_list(const quire_codec **codecs);

#endif /* QUIRE_TESTS_CODEC_SUPPORT_H */
