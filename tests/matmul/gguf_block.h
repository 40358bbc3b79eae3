/* gguf_block.h - weights out of GGUF's blocks one by one, written from the formats' description and
 * without regard to speed. Tests compare the matrix products with them.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_GGUF_BLOCK_H
#define QUIRE_TESTS_GGUF_BLOCK_H

#include "matmul/matmul.h"

#define GGUF_BLOCK_BYTES_MAX 210u

typedef struct gguf_block {
    const char *name; /* as ggml calls the type */
    uint32_t n;       /* weights of a block */
    uint32_t bytes;
    uint32_t scale_at; /* places of the scale and of an f16 in a block; min_at = 0: there is none */
    uint32_t min_at;
} gguf_block;

const gguf_block *gguf_block_of(quire_matmul_type type);

/* Give a block a scale as near as its type can: f16, or of MXFP4 a positive power of two. */
void gguf_block_scale(quire_matmul_type type, unsigned char *block, float scale);

/* Weight `in` of a row of blocks. */
double gguf_weight_at(quire_matmul_type type, const unsigned char *row, uint32_t in);

#endif /* QUIRE_TESTS_GGUF_BLOCK_H */
