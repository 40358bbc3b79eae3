/* sealed.c - the sealed formats in plain C: the definition of their bytes.
 *
 * SPDX-License-Identifier: MIT */
#include "codec/sealed.h"

#include "base/check.h"
#include "codec/half.h"

#include <math.h>
#include <string.h>

#define REFITS 2 /* of a row's scale by least squares */

/* Lloyd-Max levels of a normal distribution, the largest set to 127. */
/* clang-format off */
static _Alignas(64) const int8_t levels_q6[QUIRE_SEALED_LEVELS_MAX] = {
    -127, -110, -99, -91, -84, -78, -73, -68, -64, -60, -56, -53, -49, -46, -43, -40,
    -38, -35, -32, -30, -27, -24, -22, -20, -17, -15, -13, -10, -8, -6, -3, -1,
    1, 3, 6, 8, 10, 13, 15, 17, 20, 22, 24, 27, 30, 32, 35, 38,
    40, 43, 46, 49, 53, 56, 60, 64, 68, 73, 78, 84, 91, 99, 110, 127,
};
#define LEVELS_Q5                                                                                  \
    -127, -105, -90, -79, -70, -61, -54, -47, -41, -35, -29, -24, -18, -13, -8, -3,                \
    3, 8, 13, 18, 24, 29, 35, 41, 47, 54, 61, 70, 79, 90, 105, 127
static _Alignas(64) const int8_t levels_q5[QUIRE_SEALED_LEVELS_MAX] = { LEVELS_Q5, LEVELS_Q5 };
#define LEVELS_Q4 -127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127
static _Alignas(64) const int8_t levels_q4[QUIRE_SEALED_LEVELS_MAX] = { LEVELS_Q4, LEVELS_Q4,
                                                                        LEVELS_Q4, LEVELS_Q4 };
#define LEVELS_Q3 -127, -79, -45, -14, 14, 45, 79, 127
static _Alignas(64) const int8_t levels_q3[QUIRE_SEALED_LEVELS_MAX] = { LEVELS_Q3, LEVELS_Q3,
                                                                        LEVELS_Q3, LEVELS_Q3,
                                                                        LEVELS_Q3, LEVELS_Q3,
                                                                        LEVELS_Q3, LEVELS_Q3 };
/* clang-format on */

const int8_t *quire_sealed_levels(quire_format format, quire_side side)
{
    (void)side;
    switch (format) {
    case QUIRE_FORMAT_Q6:
        return levels_q6;
    case QUIRE_FORMAT_Q5:
        return levels_q5;
    case QUIRE_FORMAT_Q4:
        return levels_q4;
    default:
        return levels_q3;
    }
}

/* Where the bits of dimension i of slot s lie in a plane of b bits. */
typedef struct bit_place {
    size_t byte;
    uint32_t shift;
} bit_place;

static bit_place place_of(quire_side side, uint32_t b, uint32_t d, uint32_t i, uint32_t s)
{
    uint32_t span = 32 / b; /* dimensions or tokens of a group */
    uint32_t n = side == QUIRE_SIDE_K ? i : s;
    size_t row = side == QUIRE_SIDE_K ? (size_t)(n / span) * QUIRE_TILE_TOKENS + s
                                      : (size_t)(n / span) * d + i;

    return (bit_place){ row * 4 + n % 4, b * (n % span / 4) };
}

static void code_store(quire_format format, quire_side side, uint32_t d, void *tile,
                       const uint32_t at[2], uint32_t code)
{
    uint32_t low = quire_sealed_low_bits(format);
    uint32_t high = quire_sealed_high_bits(format);
    bit_place place = place_of(side, low, d, at[0], at[1]);
    uint8_t *plane = (uint8_t *)tile + quire_sealed_low_offset(format, side, d);

    plane[place.byte] |= (uint8_t)((code & ((1u << low) - 1)) << place.shift);
    if (high != 0) {
        place = place_of(side, high, d, at[0], at[1]);
        plane = (uint8_t *)tile + quire_sealed_high_offset(format, side, d);
        plane[place.byte] |= (uint8_t)(code >> low << place.shift);
    }
}

static uint32_t code_load(quire_format format, quire_side side, uint32_t d, const void *tile,
                          const uint32_t at[2])
{
    uint32_t low = quire_sealed_low_bits(format);
    uint32_t high = quire_sealed_high_bits(format);
    bit_place place = place_of(side, low, d, at[0], at[1]);
    const uint8_t *plane = (const uint8_t *)tile + quire_sealed_low_offset(format, side, d);
    uint32_t code = (uint32_t)plane[place.byte] >> place.shift & ((1u << low) - 1);

    if (high != 0) {
        place = place_of(side, high, d, at[0], at[1]);
        plane = (const uint8_t *)tile + quire_sealed_high_offset(format, side, d);
        code |= ((uint32_t)plane[place.byte] >> place.shift & ((1u << high) - 1)) << low;
    }
    return code;
}

static bool row_is_finite(const float *x, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++) {
        if ((quire_f32_bits(x[i]) & 0x7fffffffu) >= QUIRE_F32_INF_BITS) {
            return false;
        }
    }
    return true;
}

/* The tile's average over its finite rows, as stored. */
static void mean_of(uint32_t d, size_t stride, const float *rows, uint16_t *mean)
{
    float sum[QUIRE_HEAD_DIM_MAX] = { 0 };
    uint32_t n = 0;

    for (uint32_t t = 0; t < QUIRE_TILE_TOKENS; t++) {
        if (row_is_finite(rows + t * stride, d)) {
            n++;
            for (uint32_t i = 0; i < d; i++) {
                sum[i] += rows[t * stride + i];
            }
        }
    }
    for (uint32_t i = 0; i < d; i++) {
        mean[i] = quire_f32_to_f16(n != 0 ? sum[i] / (float)n : 0.0f);
    }
}

/* Codes of one row, nearest level to y / scale; returns the least-squares scale of those codes. */
static float fit(quire_format format, uint32_t d, const float *y, float scale, uint8_t *codes)
{
    const int8_t *levels = quire_sealed_levels(format, QUIRE_SIDE_K);
    uint32_t n = quire_sealed_n_levels(format);
    float inverse = 1.0f / scale;
    float numerator = 0.0f;
    float denominator = 0.0f;

    for (uint32_t i = 0; i < d; i++) {
        float x = y[i] * inverse;
        uint32_t code = 0;

        for (uint32_t k = 1; k < n; k++) {
            code += x > 0.5f * (float)(levels[k - 1] + levels[k]);
        }
        codes[i] = (uint8_t)code;
        numerator += y[i] * (float)levels[code];
        denominator += (float)(levels[code] * levels[code]);
    }
    return denominator > 0.0f ? numerator / denominator : 0.0f;
}

/* Scale and codes of one row. */
static uint16_t row_encode(quire_format format, uint32_t d, const float *y, uint8_t *codes)
{
    float squares = 0.0f;
    float scale;

    memset(codes, (int)(quire_sealed_n_levels(format) / 2), d);
    if (!row_is_finite(y, d)) {
        return QUIRE_F16_NAN_BITS;
    }
    for (uint32_t i = 0; i < d; i++) {
        squares += y[i] * y[i];
    }
    scale = sqrtf(squares / (float)d) / 46.0f;
    for (uint32_t r = 0; r <= REFITS; r++) {
        if (!(scale > 0x1p-100f)) {
            return 0;
        }
        scale = fit(format, d, y, scale, codes);
    }
    return quire_f32_to_f16(scale);
}

void quire_sealed_encode(quire_format format, quire_side side, uint32_t d, size_t stride,
                         const float *rows, void *tile)
{
    uint16_t *mean = (uint16_t *)(void *)((char *)tile + QUIRE_SEALED_SCALES_BYTES);
    uint8_t codes[QUIRE_HEAD_DIM_MAX];
    float y[QUIRE_HEAD_DIM_MAX];

    memset(tile, 0, quire_sealed_tile_bytes(format, side, d));
    if (side == QUIRE_SIDE_K) {
        mean_of(d, stride, rows, mean);
    }
    for (uint32_t t = 0; t < QUIRE_TILE_TOKENS; t++) {
        for (uint32_t i = 0; i < d; i++) {
            y[i] = rows[t * stride + i] - (side == QUIRE_SIDE_K ? quire_f16_to_f32(mean[i]) : 0.0f);
        }
        ((uint16_t *)tile)[t] = row_encode(format, d, y, codes);
        for (uint32_t i = 0; i < d; i++) {
            code_store(format, side, d, tile, (const uint32_t[]){ i, t }, codes[i]);
        }
    }
}

void quire_sealed_decode_row(quire_format format, quire_side side, uint32_t d, const void *tile,
                             uint32_t s, float *x)
{
    const uint16_t *mean =
        (const uint16_t *)(const void *)((const char *)tile + QUIRE_SEALED_SCALES_BYTES);
    const int8_t *levels = quire_sealed_levels(format, side);
    float scale = quire_f16_to_f32(((const uint16_t *)tile)[s]);

    for (uint32_t i = 0; i < d; i++) {
        x[i] = scale * (float)levels[code_load(format, side, d, tile, (const uint32_t[]){ i, s })];
        if (side == QUIRE_SIDE_K) {
            x[i] += quire_f16_to_f32(mean[i]);
        }
    }
}
