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

/* 2^n e^(x - n ln 2) for the integer n next to x / ln 2. Source: Cody-Waite reduction by ln 2 and
 * the degree-5 polynomial of Moshier's Cephes expf. */
static inline float quire_attn_exp_of(float x, float n)
{
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
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
    return p * power;
}

/* exp(x) for x <= 0 within 2 units in the last place; 0 for x < QUIRE_EXP_MIN (-Inf too), NaN for
 * NaN and for +Inf (which only a damaged logit can bring here). */
static inline float quire_attn_exp(float x)
{
    float clamped = x > QUIRE_EXP_MIN ? (x < 1.0f ? x : 1.0f) : QUIRE_EXP_MIN;
    float p = quire_attn_exp_of(clamped, rintf(clamped * 1.44269504f));

    p = x < QUIRE_EXP_MIN ? 0.0f : p;
    return x - x == 0.0f || x < 0.0f ? p : NAN;
}

/* tanh(x) within 4 units in the last place; NaN stays. Source: Moshier's Cephes tanhf. Choices are
 * made by masks: loops with branches or comparisons of floats do not vectorise everywhere. */
static inline float quire_attn_tanh(float x)
{
    const uint32_t small = 0x3f200000u; /* 0.625f */
    const uint32_t large = 0x41a00000u; /* 20.0f, whose tanh is 1 */
    const float to_integer = 0x1.8p23f; /* added, it leaves no room for a fraction */
    float a, near, far, e, z;
    float p = -5.70498872745e-3f;
    uint32_t bits, magnitude, clamped, is_small, near_bits, far_bits;

    memcpy(&bits, &x, sizeof(bits));
    magnitude = bits & 0x7fffffffu;
    clamped = magnitude < large ? magnitude : large;
    memcpy(&a, &clamped, sizeof(a));
    e = quire_attn_exp_of(-2.0f * a, (-2.0f * a * 1.44269504f + to_integer) - to_integer);
    far = (1.0f - e) / (1.0f + e);
    z = a * a;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    near = p * z * a + a;
    memcpy(&near_bits, &near, sizeof(near_bits));
    memcpy(&far_bits, &far, sizeof(far_bits));
    is_small = 0u - (uint32_t)(magnitude < small);
    near_bits = (near_bits & is_small) | (far_bits & ~is_small);
    near_bits |= bits & 0x80000000u;
    near_bits |= bits & (0u - (uint32_t)(magnitude > 0x7f800000u)); /* a NaN has all bits of 1 */
    memcpy(&x, &near_bits, sizeof(x));
    return x;
}

/* quire_attn_kernels.cap of every set: a loop that the ISA's compiler options vectorise. */
static inline void quire_attn_cap_floats(size_t n, float cap, float *s)
{
    const float inverse = 1.0f / cap;

    for (size_t i = 0; i < n; i++) {
        s[i] = cap * quire_attn_tanh(s[i] * inverse);
    }
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
