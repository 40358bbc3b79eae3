/* hadamard.c - orthonormal Walsh-Hadamard transform in blocks.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "quire/attn.h"

#include <math.h>

/* Four neighbouring elements: every CPU that Quire runs on adds so many at once. */
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

/* The stages of distance 1 and 2. a - b is a + -b to the bit. */
static void first_two_stages(float *x, uint32_t block)
{
    const four odd = { 1.0f, -1.0f, 1.0f, -1.0f };
    const four high = { 1.0f, 1.0f, -1.0f, -1.0f };

    for (uint32_t i = 0; i < block; i += 4) {
        four *at = (four *)(x + i);
        four v = *at;

        v = __builtin_shufflevector(v, v, 0, 0, 2, 2) +
            odd * __builtin_shufflevector(v, v, 1, 1, 3, 3);
        *at = __builtin_shufflevector(v, v, 0, 1, 0, 1) +
              high * __builtin_shufflevector(v, v, 2, 3, 2, 3);
    }
}

/* The stages of distance `half` >= 4 and 2 * half of 4 * half elements. */
static void two_stages(float *x, uint32_t half)
{
    for (uint32_t j = 0; j < half; j += 4) {
        four *at[4] = { (four *)(x + j), (four *)(x + half + j), (four *)(x + 2 * half + j),
                        (four *)(x + 3 * half + j) };
        four a = *at[0] + *at[1];
        four b = *at[0] - *at[1];
        four c = *at[2] + *at[3];
        four d = *at[2] - *at[3];

        *at[0] = a + c;
        *at[1] = b + d;
        *at[2] = a - c;
        *at[3] = b - d;
    }
}

/* The stage of distance `half`. */
static void last_stage(float *x, uint32_t half)
{
    for (uint32_t j = 0; j < half; j++) {
        float a = x[j];
        float b = x[half + j];

        x[j] = a + b;
        x[half + j] = a - b;
    }
}

static void transform_block(float *x, uint32_t block)
{
    const float scale = 1.0f / sqrtf((float)block);
    uint32_t half = 1;

    if (block >= 4) {
        first_two_stages(x, block);
        half = 4;
    }
    for (; 4 * half <= block; half *= 4) {
        for (uint32_t i = 0; i < block; i += 4 * half) {
            two_stages(x + i, half);
        }
    }
    if (half < block) {
        last_stage(x, half);
    }
    for (uint32_t i = 0; i < block; i++) {
        x[i] *= scale;
    }
}

void quire_hadamard(float *x, size_t n, uint32_t block)
{
    QUIRE_CHECK(block != 0 && (block & (block - 1)) == 0 && n % block == 0);
    for (size_t i = 0; i < n; i += block) {
        transform_block(x + i, block);
    }
}

uint32_t quire_hadamard_block(uint32_t d)
{
    return d & (~d + 1u);
}
