/* vector/kernels_vector_sealed.h - words of the kernels of sealed formats that AVX2 and NEON share
 * (vector/kernels_vector_sealed_body.h).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_VECTOR_SEALED_H
#define QUIRE_ATTN_KERNELS_VECTOR_SEALED_H

#include "attn/kernels.h"

#define TILE          QUIRE_TILE_TOKENS
#define REGISTER_ROWS 4u  /* at most, whose levels are looked up in registers */
#define STRIP_ROWS    48u /* that meet a strip before it is looked up again */
#define UNIT          8u  /* terms: two groups of 4 */
#define LINE_BYTES    64u /* that one prefetch brings */

#define SEALED_JOIN_(a, b) a##b
#define SEALED_JOIN(a, b)  SEALED_JOIN_(a, b)
#define SEALED_NAME(name)  SEALED_JOIN(name, SEALED_SUFFIX)

/* How a block is multiplied: constants where it is inlined. */
typedef struct block {
    quire_format format; /* of no meaning with a strip */
    quire_side side;
    uint32_t n; /* rows */
    uint32_t regs;
    bool has_strip;
} block;

#define STRIP_BLOCK(side, n) ((block){ QUIRE_FORMAT_COUNT, (side), (n), STRIP_REGS, true })

#endif /* QUIRE_ATTN_KERNELS_VECTOR_SEALED_H */
