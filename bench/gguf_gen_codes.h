/* gguf_gen_codes.h - random weights, as random codes, of types with blocks of indices into a grid.
 *
 * ggml's search for the nearest codes of given weights takes seconds for a million of them, and for
 * some types it wants to know which weights are important. Every pattern of bits is a block of
 * these types, so blocks are random bits with a super-scale that gives the weights their deviation.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BENCH_GGUF_GEN_CODES_H
#define QUIRE_BENCH_GGUF_GEN_CODES_H

#include <stdbool.h>
#include <stddef.h>

#include <ggml.h>

#include "base/rng.h"

/* Whether the type is one of these: IQ1, IQ2 and IQ3 of all sizes. */
bool gguf_gen_codes_has(enum ggml_type type);

/* n weights, a multiple of the type's block, of about this standard deviation; their mean is about
 * zero. */
void gguf_gen_codes_fill(enum ggml_type type, quire_rng *rng, float deviation, void *packed,
                         size_t n);

#endif /* QUIRE_BENCH_GGUF_GEN_CODES_H */
