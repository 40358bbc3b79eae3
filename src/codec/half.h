/* half.h - f32 <-> f16 and bf16 in integer arithmetic, bit for bit the same everywhere.
 *
 * Encoding rounds to nearest, ties to even. Infinity stays infinity, NaN stays (quiet) NaN with the
 * upper bits of its payload, and a finite value never becomes infinite: it saturates to the largest
 * finite value, because one overflowed element would otherwise poison every later logit.
 *
 * F16C and shift instructions compute the same (apart from saturation), so SIMD codecs give the
 * same bytes.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CODEC_HALF_H
#define QUIRE_CODEC_HALF_H

#include <stdint.h>

#define QUIRE_F32_INF_BITS 0x7f800000u
#define QUIRE_F16_MAX_BITS 0x7bffu
#define QUIRE_F16_NAN_BITS 0x7e00u

/* A union and not memcpy: gcc vectorises loops over the one but not over the other. */
union quire_f32_word {
    float value;
    uint32_t bits;
};

static inline uint32_t quire_f32_bits(float x)
{
    union quire_f32_word word = { .value = x };

    return word.bits;
}

static inline float quire_f32_from_bits(uint32_t u)
{
    union quire_f32_word word = { .bits = u };

    return word.value;
}

/* By masks, so that loops over it vectorise: ternaries would become branches. */
static inline float quire_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t magnitude = h & 0x7fffu;
    uint32_t is_subnormal = 0u - (uint32_t)(magnitude < 0x400u);
    uint32_t is_special = 0u - (uint32_t)(magnitude >= 0x7c00u);
    uint32_t is_nan = (uint32_t)(magnitude > 0x7c00u);
    uint32_t normal = (magnitude << 13) + 0x38000000u;
    uint32_t subnormal = quire_f32_bits((float)(int32_t)magnitude * 0x1p-24f);         /* exact */
    uint32_t special = QUIRE_F32_INF_BITS | (magnitude & 0x3ffu) << 13 | is_nan << 22; /* quiet */
    uint32_t finite = (subnormal & is_subnormal) | (normal & ~is_subnormal);

    return quire_f32_from_bits(sign | (special & is_special) | (finite & ~is_special));
}

/* Magnitude bits of a subnormal result: mantissa >> shift, rounded to nearest even or up. */
static inline uint32_t quire_f16_subnormal(uint32_t magnitude, int up)
{
    uint32_t exponent = magnitude >> 23;
    uint32_t mantissa = (magnitude & 0x7fffffu) | (exponent != 0 ? 0x800000u : 0u);
    uint32_t shift = 126u - (exponent != 0 ? exponent : 1u);
    uint32_t r;
    uint32_t rest;
    uint32_t half;

    if (shift > 25u) {
        return up && mantissa != 0;
    }
    r = mantissa >> shift;
    rest = mantissa & ((1u << shift) - 1u);
    half = 1u << (shift - 1u);
    if (up) {
        return r + (rest != 0);
    }
    return r + (rest > half || (rest == half && (r & 1u) != 0));
}

static inline uint16_t quire_f32_to_f16(float x)
{
    uint32_t u = quire_f32_bits(x);
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t magnitude = u & 0x7fffffffu;

    if (magnitude >= QUIRE_F32_INF_BITS) {
        uint32_t payload =
            magnitude > QUIRE_F32_INF_BITS ? 0x200u | ((magnitude >> 13) & 0x3ffu) : 0u;

        return (uint16_t)(sign | 0x7c00u | payload);
    }
    if (magnitude >= 0x477ff000u) { /* 65520: would round to infinity */
        return (uint16_t)(sign | QUIRE_F16_MAX_BITS);
    }
    if (magnitude < 0x38800000u) { /* 2^-14 */
        return (uint16_t)(sign | quire_f16_subnormal(magnitude, 0));
    }
    magnitude += 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((magnitude >> 13) - 0x1c000u));
}

/* The smallest f16 that is not below a finite x >= 0; saturates. */
static inline uint16_t quire_f32_to_f16_up(float x)
{
    uint32_t magnitude = quire_f32_bits(x) & 0x7fffffffu;

    if (magnitude > 0x477fe000u) { /* 65504 */
        return QUIRE_F16_MAX_BITS;
    }
    if (magnitude < 0x38800000u) {
        return (uint16_t)quire_f16_subnormal(magnitude, 1);
    }
    return (uint16_t)(((magnitude + 0x1fffu) >> 13) - 0x1c000u);
}

static inline float quire_bf16_to_f32(uint16_t b)
{
    return quire_f32_from_bits((uint32_t)b << 16);
}

static inline uint16_t quire_f32_to_bf16(float x)
{
    uint32_t u = quire_f32_bits(x);
    uint32_t magnitude = u & 0x7fffffffu;

    if (magnitude > QUIRE_F32_INF_BITS) {
        return (uint16_t)((u >> 16) | 0x40u);
    }
    if (magnitude > 0x7f7f0000u && magnitude < QUIRE_F32_INF_BITS) {
        return (uint16_t)((u >> 16 & 0x8000u) | 0x7f7fu);
    }
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* The numbers for a row in q8: its stored scale, and the factor before rounding to a code. */
typedef struct quire_q8_scale {
    uint16_t bits; /* the f16 scale as stored */
    float inverse; /* code = round(x * inverse), ties to even, clamped to +-127 */
} quire_q8_scale;

/* max_bits: the largest magnitude of the row as f32 bits, so that NaN and Inf sort on top. */
static inline quire_q8_scale quire_q8_scale_of(uint32_t max_bits)
{
    quire_q8_scale scale = { QUIRE_F16_NAN_BITS, 0.0f };

    if (max_bits < QUIRE_F32_INF_BITS) {
        scale.bits = quire_f32_to_f16_up(quire_f32_from_bits(max_bits) / 127.0f);
        scale.inverse = scale.bits != 0 ? 1.0f / quire_f16_to_f32(scale.bits) : 0.0f;
    }
    return scale;
}

#endif /* QUIRE_CODEC_HALF_H */
