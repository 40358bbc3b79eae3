/* attn_math.h - exp for softmax weights, branch-free so that loops over it vectorise, and the loop
 * that merges partial results.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_MATH_H
#define QUIRE_ATTN_MATH_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Below this exp(x) is no normal float; it counts as 0. */
#define QUIRE_EXP_MIN (-87.33f)

/* exp(x) for x <= 0 within 2 units in the last place; 0 for x < QUIRE_EXP_MIN (-Inf too), NaN for
 * NaN and for +Inf (which only a damaged logit can bring here). Source: Cody-Waite reduction by ln
 * 2 and the degree-5 polynomial of Moshier's Cephes expf. */
static inline float quire_attn_exp(float x)
{
    float clamped = x > QUIRE_EXP_MIN ? (x < 1.0f ? x : 1.0f) : QUIRE_EXP_MIN;
    float n = rintf(clamped * 1.44269504f);
    float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    uint32_t bits;
    float power;

    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + (r + 1.0f);
    bits = (uint32_t)((int32_t)n + 127) << 23;
    memcpy(&power, &bits, sizeof(power));
    p *= power;
    p = x < QUIRE_EXP_MIN ? 0.0f : p;
    return x - x == 0.0f || x < 0.0f ? p : NAN;
}

/* quire_attn_kernels.fold of every set: a loop that the ISA's compiler options vectorise. */
static inline void quire_attn_fold_floats(size_t n, float a, float b, float *restrict dst,
                                          const float *restrict src)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = dst[i] * a + src[i] * b;
    }
}

#endif /* QUIRE_ATTN_MATH_H */
