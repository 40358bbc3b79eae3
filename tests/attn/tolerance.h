/* tolerance.h - how far a kernel set may be from the double-precision answer over the same tiles.
 *
 * There are two bounds: one relative to the norm of a call's whole output, and one relative to the
 * norm of its worst row, a norm that cancellation can make small. The bounds hold for logits within
 * about +-20: the error of a logit acts in the exponent and grows with the logits. f32, f16 and
 * bf16 tiles are multiplied in f32, but bf16 in bf16 by avx512+bf16 and avx512+amx; q8 rounds P to
 * 15 bits (src/attn/kernels.h), about 1 % of the rounding error of q8 storage, and q to 8; sealed
 * formats round q and P to 8 bits.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_ATTN_TOLERANCE_H
#define QUIRE_TESTS_ATTN_TOLERANCE_H

#include "quire/codec.h"

#include <stdbool.h>
#include <string.h>

typedef struct attn_tolerance {
    double total;
    double row;
} attn_tolerance;

/* Bounds by the format of V, and by that of K unless K is q8. An output is held to the looser of
 * the two. */
static const attn_tolerance attn_tolerances[QUIRE_FORMAT_COUNT] = {
    [QUIRE_FORMAT_F32] = { 5e-6, 5e-5 },  [QUIRE_FORMAT_F16] = { 5e-6, 5e-5 },
    [QUIRE_FORMAT_BF16] = { 5e-6, 5e-5 }, [QUIRE_FORMAT_Q8] = { 2e-4, 2e-3 },
    [QUIRE_FORMAT_Q6] = { 3e-2, 1e-1 },   [QUIRE_FORMAT_Q5] = { 3e-2, 1e-1 },
    [QUIRE_FORMAT_Q4] = { 3e-2, 1e-1 },   [QUIRE_FORMAT_Q3] = { 3e-2, 1e-1 },
};

/* Bounds for bf16 where q and P are rounded to bf16 too. Each of these roundings is half a unit in
 * 8 bits, as much as bf16 storage itself rounds. The bounds leave a factor of two to three above
 * the largest errors seen in test_attn_numeric. */
static const attn_tolerance attn_tolerance_bf16_products = { 1e-2, 4e-2 };

/* Of a single output there, for normal q, K and V of head 64 with a logit scale of 1/4. Rounding
 * moves a logit by 1.6e-3 in the root mean square, and a P, which is made in 16 bits of fixed point
 * and then rounded, by 2.2e-3, 6.5e-3 at most. An output that hangs on two tokens moves by both
 * times its V, which is 4 at the most: 1.1e-2; four times that is allowed. Seen: 1.3e-2. */
static const double attn_tolerance_bf16_output = 4e-2;

/* K in q8: q is rounded to 8 bits there, as with sealed formats. */
static const attn_tolerance attn_tolerance_q8_queries = { 3e-2, 1e-1 };

static inline bool attn_multiplies_bf16(const char *isa, quire_format format)
{
    return format == QUIRE_FORMAT_BF16 &&
           (strcmp(isa, "avx512+bf16") == 0 || strcmp(isa, "avx512+amx") == 0);
}

static inline attn_tolerance attn_tolerance_of_format(const char *isa, quire_format format)
{
    return attn_multiplies_bf16(isa, format) ? attn_tolerance_bf16_products
                                             : attn_tolerances[format];
}

static inline attn_tolerance attn_tolerance_of(const char *isa, quire_format k_format,
                                               quire_format v_format)
{
    attn_tolerance k = k_format == QUIRE_FORMAT_Q8 ? attn_tolerance_q8_queries
                                                   : attn_tolerance_of_format(isa, k_format);
    attn_tolerance v = attn_tolerance_of_format(isa, v_format);

    return k.total > v.total ? k : v;
}

#endif /* QUIRE_TESTS_ATTN_TOLERANCE_H */
