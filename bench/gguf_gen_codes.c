/* gguf_gen_codes.c - see gguf_gen_codes.h.
 *
 * SPDX-License-Identifier: MIT */
#include "gguf_gen_codes.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/check.h"

#define BLOCK        256u /* weights, of all of these types */
#define SAMPLE       16u  /* blocks that estimate the deviation of all */
#define BYTES_MAX    128u /* of a block */
#define IQ1_M_SCALES 48u  /* bytes before its scales, four times 16 bits */

bool gguf_gen_codes_has(enum ggml_type type)
{
    switch (type) {
    case GGML_TYPE_IQ1_S:
    case GGML_TYPE_IQ1_M:
    case GGML_TYPE_IQ2_XXS:
    case GGML_TYPE_IQ2_XS:
    case GGML_TYPE_IQ2_S:
    case GGML_TYPE_IQ3_XXS:
    case GGML_TYPE_IQ3_S:
        return true;
    default:
        return false;
    }
}

/* The super-scale is the first number of a block. IQ1_M has it in pieces, in the upper four bits of
 * its scales. */
static void scale_put(enum ggml_type type, unsigned char *block, ggml_fp16_t scale)
{
    if (type != GGML_TYPE_IQ1_M) {
        memcpy(block, &scale, sizeof scale);
        return;
    }
    for (uint32_t i = 0; i < 4; i++) {
        unsigned char *high = block + IQ1_M_SCALES + (size_t)2 * i + 1;

        *high = (unsigned char)((*high & 15u) | ((uint32_t)scale >> (4 * i) & 15u) << 4);
    }
}

static void block_fill(enum ggml_type type, quire_rng *rng, ggml_fp16_t scale, unsigned char *block)
{
    for (size_t i = 0; i < ggml_type_size(type); i++) {
        block[i] = (unsigned char)(quire_rng_next(rng) >> 56);
    }
    scale_put(type, block, scale);
}

/* The deviation of weights with a super-scale of 1. */
static float unit_deviation(enum ggml_type type)
{
    unsigned char block[BYTES_MAX];
    float weights[BLOCK];
    quire_rng rng = { 1 };
    double squares = 0.0;

    for (uint32_t b = 0; b < SAMPLE; b++) {
        block_fill(type, &rng, ggml_fp32_to_fp16(1.0f), block);
        ggml_get_type_traits(type)->to_float(block, weights, BLOCK);
        for (uint32_t i = 0; i < BLOCK; i++) {
            squares += (double)weights[i] * (double)weights[i];
        }
    }
    return (float)sqrt(squares / (SAMPLE * BLOCK));
}

void gguf_gen_codes_fill(enum ggml_type type, quire_rng *rng, float deviation, void *packed,
                         size_t n)
{
    const size_t bytes = ggml_type_size(type);
    const ggml_fp16_t scale = ggml_fp32_to_fp16(deviation / unit_deviation(type));

    QUIRE_CHECK(ggml_blck_size(type) == BLOCK && bytes <= BYTES_MAX && n % BLOCK == 0);
    for (size_t b = 0; b < n / BLOCK; b++) {
        block_fill(type, rng, scale, (unsigned char *)packed + b * bytes);
    }
}
