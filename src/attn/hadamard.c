/* hadamard.c - orthonormal Walsh-Hadamard transform in blocks.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "quire/attn.h"

#include <math.h>

static void transform_block(float *x, uint32_t block)
{
    float scale = 1.0f / sqrtf((float)block);

    for (uint32_t half = 1; half < block; half *= 2) {
        for (uint32_t i = 0; i < block; i += 2 * half) {
            for (uint32_t j = i; j < i + half; j++) {
                float a = x[j];
                float b = x[j + half];

                x[j] = a + b;
                x[j + half] = a - b;
            }
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
