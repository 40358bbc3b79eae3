/* tolerance.h - how far a kernel set may be from the double-precision answer over the same tiles.
 *
 * Relative to the norm of the output: of a whole call, and of its worst row (which may be small by
 * cancellation). For logits within about +-20: an error of a logit acts in the exponent, so it
 * grows with the logits. f32, f16 and bf16 tiles are multiplied in f32; q8 rounds q and P to 15
 * bits (src/attn/kernels.h), about 1 % of what q8 storage itself rounds; sealed formats round q and
 * P to 8 bits.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_ATTN_TOLERANCE_H
#define QUIRE_TESTS_ATTN_TOLERANCE_H

#include "quire/codec.h"

typedef struct attn_tolerance {
    double total;
    double row;
} attn_tolerance;

/* By format of K and of V; an output is held to the looser of the two, on every ISA. */
static const attn_tolerance attn_tolerances[QUIRE_FORMAT_COUNT] = {
    [QUIRE_FORMAT_F32] = { 5e-6, 5e-5 },  [QUIRE_FORMAT_F16] = { 5e-6, 5e-5 },
    [QUIRE_FORMAT_BF16] = { 5e-6, 5e-5 }, [QUIRE_FORMAT_Q8] = { 2e-4, 2e-3 },
    [QUIRE_FORMAT_Q6] = { 3e-2, 1e-1 },   [QUIRE_FORMAT_Q5] = { 3e-2, 1e-1 },
    [QUIRE_FORMAT_Q4] = { 3e-2, 1e-1 },   [QUIRE_FORMAT_Q3] = { 3e-2, 1e-1 },
};

static inline attn_tolerance attn_tolerance_of(quire_format k_format, quire_format v_format)
{
    attn_tolerance k = attn_tolerances[k_format];
    attn_tolerance v = attn_tolerances[v_format];

    return k.total > v.total ? k : v;
}

#endif /* QUIRE_TESTS_ATTN_TOLERANCE_H */
