/* gguf_block.c - see gguf_block.h.
 *
 * SPDX-License-Identifier: MIT */
#include "gguf_block.h"

#include "codec/half.h"
#include "matmul/matmul_grids.h"

#include <math.h>
#include <string.h>

static const int iq4_nl[16] = { -127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113 };

const gguf_block *gguf_block_of(quire_matmul_type type)
{
    static const gguf_block blocks[QUIRE_MATMUL_TYPES] = {
        [QUIRE_MATMUL_Q8_0] = { "q8_0", 32, 34, 0, 0 },
        [QUIRE_MATMUL_Q4_0] = { "q4_0", 32, 18, 0, 0 },
        [QUIRE_MATMUL_Q4_1] = { "q4_1", 32, 20, 0, 2 },
        [QUIRE_MATMUL_Q5_0] = { "q5_0", 32, 22, 0, 0 },
        [QUIRE_MATMUL_Q5_1] = { "q5_1", 32, 24, 0, 2 },
        [QUIRE_MATMUL_IQ4_NL] = { "iq4_nl", 32, 18, 0, 0 },
        [QUIRE_MATMUL_Q4_K] = { "q4_K", 256, 144, 0, 2 },
        [QUIRE_MATMUL_Q5_K] = { "q5_K", 256, 176, 0, 2 },
        [QUIRE_MATMUL_Q6_K] = { "q6_K", 256, 210, 208, 0 },
        [QUIRE_MATMUL_MXFP4] = { "mxfp4", 32, 17, 0, 0 },
        [QUIRE_MATMUL_Q2_K] = { "q2_K", 256, 84, 80, 82 },
        [QUIRE_MATMUL_Q3_K] = { "q3_K", 256, 110, 108, 0 },
        [QUIRE_MATMUL_IQ4_XS] = { "iq4_xs", 256, 136, 0, 0 },
        [QUIRE_MATMUL_IQ2_XXS] = { "iq2_xxs", 256, 66, 0, 0 },
        [QUIRE_MATMUL_IQ2_XS] = { "iq2_xs", 256, 74, 0, 0 },
        [QUIRE_MATMUL_IQ2_S] = { "iq2_s", 256, 82, 0, 0 },
        [QUIRE_MATMUL_IQ3_XXS] = { "iq3_xxs", 256, 98, 0, 0 },
        [QUIRE_MATMUL_IQ3_S] = { "iq3_s", 256, 110, 0, 0 },
        [QUIRE_MATMUL_IQ1_S] = { "iq1_s", 256, 50, 0, 0 },
        [QUIRE_MATMUL_IQ1_M] = { "iq1_m", 256, 56, 0, 0 }, /* its scale is in four places */
    };

    return &blocks[type];
}

/* Sign, two bits of exponent, one of mantissa. */
static const double fp4[16] = { 0.0,  0.5,  1.0,  1.5,  2.0,  3.0,  4.0,  6.0,
                                -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0 };

static double f16_at(const unsigned char *at)
{
    uint16_t half;

    memcpy(&half, at, sizeof half);
    return (double)quire_f16_to_f32(half);
}

/* Nibble i of 16 bytes: the low nibbles come first, then the high ones. */
static int nibble_at(const unsigned char *bytes, uint32_t i)
{
    return bytes[i % 16] >> (i < 16 ? 0 : 4) & 15;
}

static int bit_at(const unsigned char *bytes, uint32_t i)
{
    return bytes[i / 8] >> i % 8 & 1;
}

/* Q4_K and Q5_K: eight times scale and min of 6 bits in 12 bytes. */
static void k_scale(const unsigned char *bytes, uint32_t b, int *scale, int *min)
{
    if (b < 4) {
        *scale = bytes[b] % 64;
        *min = bytes[b + 4] % 64;
    } else {
        *scale = bytes[b + 4] % 16 + 16 * (bytes[b - 4] / 64);
        *min = bytes[b + 4] / 16 + 16 * (bytes[b] / 64);
    }
}

static double k_weight_at(const unsigned char *block, uint32_t i, bool has_high)
{
    const unsigned char *high = block + 16;
    const unsigned char *nibbles = high + (has_high ? 32 : 0) + i / 64 * 32;
    const uint32_t b = i / 32;
    int code = nibbles[i % 32] >> 4 * (b % 2) & 15;
    int scale, min;

    k_scale(block + 4, b, &scale, &min);
    if (has_high) {
        code += 16 * (high[i % 32] >> b & 1);
    }
    return f16_at(block) * scale * code - f16_at(block + 2) * min;
}

static double q6_k_weight_at(const unsigned char *block, uint32_t i)
{
    const uint32_t half = i / 128, quarter = i % 128 / 32, l = i % 32;
    const int low = block[half * 64 + quarter % 2 * 32 + l] >> 4 * (quarter / 2) & 15;
    const int high = block[128 + half * 32 + l] >> 2 * quarter & 3;

    return f16_at(block + 208) * (int8_t)block[192 + i / 16] * (low + 16 * high - 32);
}

/* Two bits of weight i of 64 bytes: four times 32 weights share 32 bytes. */
static int two_at(const unsigned char *bytes, uint32_t i)
{
    return bytes[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

static double q2_k_weight_at(const unsigned char *block, uint32_t i)
{
    const int scale = block[i / 16] % 16, min = block[i / 16] / 16;

    return f16_at(block + 80) * scale * two_at(block + 16, i) - f16_at(block + 82) * min;
}

static double q3_k_weight_at(const unsigned char *block, uint32_t i)
{
    const unsigned char *scales = block + 96;
    const uint32_t s = i / 16;
    const int low = s < 8 ? scales[s] % 16 : scales[s - 8] / 16;
    const int high = scales[8 + s % 4] >> s / 4 * 2 & 3;
    const int code = two_at(block + 32, i) + 4 * (block[i % 32] >> i / 32 & 1);

    return f16_at(block + 108) * (low + 16 * high - 32) * (code - 4);
}

static double iq4_xs_weight_at(const unsigned char *block, uint32_t i)
{
    const uint32_t b = i / 32;
    const int low = block[4 + b / 2] >> b % 2 * 4 & 15;
    const int high = (block[2] + 256 * block[3]) >> 2 * b & 3;

    return f16_at(block) * (low + 16 * high - 32) * iq4_nl[nibble_at(block + 8 + 16 * b, i % 32)];
}

/* Bits [at, at + n) of bytes. */
static uint32_t bits_at(const unsigned char *bytes, uint32_t at, uint32_t n)
{
    uint32_t bits = 0;

    for (uint32_t i = 0; i < n; i++) {
        bits |= (uint32_t)bit_at(bytes, at + i) << i;
    }
    return bits;
}

/* Sign i of 8 weights from 7 bits: the eighth makes the number of negative ones even. */
static int sign_of_seven(uint32_t seven, uint32_t i)
{
    uint32_t n = 0;

    for (uint32_t bit = 0; bit < 7; bit++) {
        n += seven >> bit & 1;
    }
    return (i < 7 ? seven >> i : n) & 1 ? -1 : 1;
}

/* Size i of the 8 of an index, from planes of 4 of 2 bits each. */
static int iq2_size(const uint8_t *low, const uint8_t *high, uint32_t index, uint32_t i)
{
    static const int sizes[4] = { 8, 25, 43, 0 };

    return sizes[(i < 4 ? low : high)[index] >> 2 * (i % 4) & 3];
}

/* 32 weights in 8 bytes: 4 indices, 4 times 7 signs, 4 bits of scale. */
static double iq2_xxs_weight_at(const unsigned char *block, uint32_t i)
{
    const unsigned char *some = block + 2 + i / 32 * 8;
    const int scale = 2 * (int)bits_at(some, 60, 4) + 1;
    const int size = iq2_size(quire_matmul_iq2_xxs_grid[0], quire_matmul_iq2_xxs_grid[1],
                              some[i % 32 / 8], i % 8);

    return f16_at(block) / 8 * scale * size *
           sign_of_seven(bits_at(some, 32 + i % 32 / 8 * 7, 7), i % 8);
}

/* 8 weights in 16 bits: 9 of index, 7 signs; behind them a nibble of scale for 16 weights. */
static double iq2_xs_weight_at(const unsigned char *block, uint32_t i)
{
    const uint32_t some = bits_at(block + 2, i / 8 * 16, 16);
    const int scale = 2 * (int)bits_at(block + 66, i / 16 * 4, 4) + 1;
    const int size =
        iq2_size(quire_matmul_iq2_xs_grid[0], quire_matmul_iq2_xs_grid[1], some % 512, i % 8);

    return f16_at(block) / 8 * scale * size * sign_of_seven(some / 512, i % 8);
}

/* Lower 8 bits of 32 indices, 256 signs, two upper bits of each index, scales. */
static double iq2_s_weight_at(const unsigned char *block, uint32_t i)
{
    const uint32_t index = block[2 + i / 8] + 256 * bits_at(block + 66, i / 8 * 2, 2);
    const int scale = 2 * (int)bits_at(block + 74, i / 16 * 4, 4) + 1;
    const int size = iq2_size(quire_matmul_iq2_s_grid[0], quire_matmul_iq2_s_grid[1], index, i % 8);

    return f16_at(block) / 8 * scale * size * (bit_at(block + 34, i) ? -1 : 1);
}

/* 64 indices of 4 weights; of 32 weights 4 times 7 signs and 4 bits of scale. */
static double iq3_xxs_weight_at(const unsigned char *block, uint32_t i)
{
    static const int sizes[8] = { 4, 12, 20, 28, 36, 44, 52, 62 };
    const unsigned char *signs = block + 66 + i / 32 * 4;
    const uint32_t index = block[2 + i / 4];
    const int size = sizes[(quire_matmul_iq3_xxs_grid[0][index] >> 2 * (i % 4) & 3) +
                           4 * (quire_matmul_iq3_xxs_grid[1][index] >> i % 4 & 1)];

    return f16_at(block) / 4 * (2 * (int)bits_at(signs, 28, 4) + 1) * size *
           sign_of_seven(bits_at(signs, i % 32 / 8 * 7, 7), i % 8);
}

/* Lower 8 bits of 64 indices, their ninth bits, 256 signs, a nibble of scale for 32 weights. */
static double iq3_s_weight_at(const unsigned char *block, uint32_t i)
{
    const uint32_t index = block[2 + i / 4] + 256u * (uint32_t)bit_at(block + 66, i / 4);
    const int size = 2 * (quire_matmul_iq3_s_grid[0][index] >> 2 * (i % 4) & 3) +
                     8 * (quire_matmul_iq3_s_grid[1][index] >> i % 4 & 1) + 1;

    return f16_at(block) * (2 * (int)bits_at(block + 106, i / 32 * 4, 4) + 1) * size *
           (bit_at(block + 74, i) ? -1 : 1);
}

/* Eight times weight i of an index of IQ1 with its delta of an eighth. */
static int iq1_weight(uint32_t index, uint32_t i, bool is_less)
{
    const int code = quire_matmul_iq1_grid[i % 8 / 4][index] >> 2 * (i % 4) & 3;

    return 8 * (code - 1) + (is_less ? -1 : 1);
}

/* Lower 8 bits of 32 indices; of each 32 weights 4 times 3 upper bits, 3 of scale, a delta's sign.
 */
static double iq1_s_weight_at(const unsigned char *block, uint32_t i)
{
    const unsigned char *some = block + 34 + i / 32 * 2;
    const uint32_t index = block[2 + i / 8] + 256 * bits_at(some, i % 32 / 8 * 3, 3);

    return f16_at(block) / 8 * (2 * (int)bits_at(some, 12, 3) + 1) *
           iq1_weight(index, i, bit_at(some, 15));
}

/* Lower 8 bits of 32 indices, then of each 3 upper bits and a delta's sign; four times 4 scales of
 * 3 bits for 16 weights each and 4 bits of the f16. */
static double iq1_m_weight_at(const unsigned char *block, uint32_t i)
{
    const unsigned char *scales = block + 48;
    const uint32_t index = block[i / 8] + 256 * bits_at(block + 32, i / 8 * 4, 3);
    const int scale = 2 * (int)bits_at(scales + i / 64 * 2, i % 64 / 16 * 3, 3) + 1;
    const unsigned char half[2] = {
        (unsigned char)(bits_at(scales, 12, 4) | bits_at(scales, 28, 4) << 4),
        (unsigned char)(bits_at(scales, 44, 4) | bits_at(scales, 60, 4) << 4),
    };

    return f16_at(half) / 8 * scale * iq1_weight(index, i, bit_at(block + 32, i / 8 * 4 + 3));
}

void gguf_block_scale(quire_matmul_type type, unsigned char *block, float scale)
{
    const uint16_t half = quire_f32_to_f16(scale);
    int exponent;

    if (type == QUIRE_MATMUL_MXFP4) {
        (void)frexpf(scale, &exponent);
        block[0] = (unsigned char)(exponent + 127);
        return;
    }
    if (type == QUIRE_MATMUL_IQ1_M) {
        for (uint32_t i = 0; i < 4; i++) {
            unsigned char *high = block + 49 + (size_t)2 * i;

            *high = (unsigned char)(*high % 16 + 16 * (half >> 4 * i & 15));
        }
        return;
    }
    memcpy(block + gguf_block_of(type)->scale_at, &half, sizeof half);
}

double gguf_weight_at(quire_matmul_type type, const unsigned char *row, uint32_t in)
{
    const gguf_block *what = gguf_block_of(type);
    const unsigned char *block = row + in / what->n * what->bytes;
    const uint32_t i = in % what->n;

    switch (type) {
    case QUIRE_MATMUL_Q8_0:
        return f16_at(block) * (int8_t)block[2 + i];
    case QUIRE_MATMUL_Q4_0:
        return f16_at(block) * (nibble_at(block + 2, i) - 8);
    case QUIRE_MATMUL_Q4_1:
        return f16_at(block) * nibble_at(block + 4, i) + f16_at(block + 2);
    case QUIRE_MATMUL_Q5_0:
        return f16_at(block) * (nibble_at(block + 6, i) + 16 * bit_at(block + 2, i) - 16);
    case QUIRE_MATMUL_Q5_1:
        return f16_at(block) * (nibble_at(block + 8, i) + 16 * bit_at(block + 4, i)) +
               f16_at(block + 2);
    case QUIRE_MATMUL_IQ4_NL:
        return f16_at(block) * iq4_nl[nibble_at(block + 2, i)];
    case QUIRE_MATMUL_MXFP4:
        return ldexp(fp4[nibble_at(block + 1, i)], block[0] - 127);
    case QUIRE_MATMUL_Q4_K:
        return k_weight_at(block, i, false);
    case QUIRE_MATMUL_Q5_K:
        return k_weight_at(block, i, true);
    case QUIRE_MATMUL_Q2_K:
        return q2_k_weight_at(block, i);
    case QUIRE_MATMUL_Q3_K:
        return q3_k_weight_at(block, i);
    case QUIRE_MATMUL_IQ4_XS:
        return iq4_xs_weight_at(block, i);
    case QUIRE_MATMUL_IQ2_XXS:
        return iq2_xxs_weight_at(block, i);
    case QUIRE_MATMUL_IQ2_XS:
        return iq2_xs_weight_at(block, i);
    case QUIRE_MATMUL_IQ2_S:
        return iq2_s_weight_at(block, i);
    case QUIRE_MATMUL_IQ3_XXS:
        return iq3_xxs_weight_at(block, i);
    case QUIRE_MATMUL_IQ3_S:
        return iq3_s_weight_at(block, i);
    case QUIRE_MATMUL_IQ1_S:
        return iq1_s_weight_at(block, i);
    case QUIRE_MATMUL_IQ1_M:
        return iq1_m_weight_at(block, i);
    case QUIRE_MATMUL_Q6_K:
    default:
        return q6_k_weight_at(block, i);
    }
}
