/* hadamard.c - orthonormal Walsh-Hadamard transform in blocks.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "quire/attn.h"

#include <math.h>

/* One stage: sums and differences of elements `half` apart. */
static void stage(float *restrict low, float *restrict high, uint32_t half)
{
    for (uint32_t j = 0; j < half; j++) {
        float a = low[j];
        float b = high[j];

        low[j] = a + b;
        high[j] = a - b;
    }
}

/* The stages of distance 1 and 2 together: as loops of their own they would not vectorise. The
 * additions are the same ones in the same order. */
static void first_two_stages(float *x, uint32_t block)
{
    for (uint32_t i = 0; i < block; i += 4) {
        float a = x[i] + x[i + 1];
        float b = x[i] - x[i + 1];
        float c = x[i + 2] + x[i + 3];
        float d = x[i + 2] - x[i + 3];

        x[i] = a + c;
        x[i + 1] = b + d;
        x[i + 2] = a - c;
        x[i + 3] = b - d;
    }
}

static void transform_block(float *x, uint32_t block)
{
    float scale = 1.0f / sqrtf((float)block);
    uint32_t half = 1;

    if (block >= 4) {
        first_two_stages(x, block);
        half = 4;
    }
    for (; half < block; half *= 2) {
        for (uint32_t i = 0; i < block; i += 2 * half) {
            stage(x + i, x + i + half, half);
        }
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
