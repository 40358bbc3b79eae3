/* matmul_avx512_grid_codes.h - codes of a block of a type with a grid, with AVX-512 VBMI.
 *
 * A register of indices is, of IQ2 and IQ1, a block of 16 outputs. vpermi2b looks 64 of them up in
 * 128 bytes of a plane of the grid, so that both planes of IQ2_XXS cost four of these instructions
 * for 512 weights. The bytes that come out have four codes of two bits. vpmultishiftqb spreads
 * those of a quad over the bytes of its output, another one does so with the signs of two quads,
 * and vpermb makes the weights, plus 128, of both. The rows of the tile share these 3.5
 * instructions for each 64 weights.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MATMUL_AVX512_GRID_CODES_H
#define QUIRE_MATMUL_AVX512_GRID_CODES_H

#include "matmul/matmul_avx512_rows.h"
#include "matmul/matmul_grids.h"

/* Seven signs with their parity as the eighth. */
_Alignas(REG) static const uint8_t signs_by_seven[128] = {
    0x00, 0x81, 0x82, 0x03, 0x84, 0x05, 0x06, 0x87, 0x88, 0x09, 0x0a, 0x8b, 0x0c, 0x8d, 0x8e, 0x0f,
    0x90, 0x11, 0x12, 0x93, 0x14, 0x95, 0x96, 0x17, 0x18, 0x99, 0x9a, 0x1b, 0x9c, 0x1d, 0x1e, 0x9f,
    0xa0, 0x21, 0x22, 0xa3, 0x24, 0xa5, 0xa6, 0x27, 0x28, 0xa9, 0xaa, 0x2b, 0xac, 0x2d, 0x2e, 0xaf,
    0x30, 0xb1, 0xb2, 0x33, 0xb4, 0x35, 0x36, 0xb7, 0xb8, 0x39, 0x3a, 0xbb, 0x3c, 0xbd, 0xbe, 0x3f,
    0xc0, 0x41, 0x42, 0xc3, 0x44, 0xc5, 0xc6, 0x47, 0x48, 0xc9, 0xca, 0x4b, 0xcc, 0x4d, 0x4e, 0xcf,
    0x50, 0xd1, 0xd2, 0x53, 0xd4, 0x55, 0x56, 0xd7, 0xd8, 0x59, 0x5a, 0xdb, 0x5c, 0xdd, 0xde, 0x5f,
    0x60, 0xe1, 0xe2, 0x63, 0xe4, 0x65, 0x66, 0xe7, 0xe8, 0x69, 0x6a, 0xeb, 0x6c, 0xed, 0xee, 0x6f,
    0xf0, 0x71, 0x72, 0xf3, 0x74, 0xf5, 0xf6, 0x77, 0x78, 0xf9, 0xfa, 0x7b, 0xfc, 0x7d, 0x7e, 0xff
};

/* Weights plus 128 by index of vpermb: bits 2 and 3 are the size, and bit 0 the sign, or of the
 * second table bit 4. */
_Alignas(REG) static const uint8_t iq2_values[2][REG] = {
    { 136, 120, 136, 120, 153, 103, 153, 103, 171, 85, 171, 85, 128, 128, 128, 128,
      136, 120, 136, 120, 153, 103, 153, 103, 171, 85, 171, 85, 128, 128, 128, 128,
      136, 120, 136, 120, 153, 103, 153, 103, 171, 85, 171, 85, 128, 128, 128, 128,
      136, 120, 136, 120, 153, 103, 153, 103, 171, 85, 171, 85, 128, 128, 128, 128 },
    { 136, 136, 136, 136, 153, 153, 153, 153, 171, 171, 171, 171, 128, 128, 128, 128,
      120, 120, 120, 120, 103, 103, 103, 103, 85,  85,  85,  85,  128, 128, 128, 128,
      136, 136, 136, 136, 153, 153, 153, 153, 171, 171, 171, 171, 128, 128, 128, 128,
      120, 120, 120, 120, 103, 103, 103, 103, 85,  85,  85,  85,  128, 128, 128, 128 },
};

/* The same with the size's third bit as bit 0, and the sign as bit 4. */
_Alignas(REG) static const uint8_t iq3_xxs_values[REG] = {
    132, 164, 132, 164, 140, 172, 140, 172, 148, 180, 148, 180, 156, 190, 156, 190,
    124, 92,  124, 92,  116, 84,  116, 84,  108, 76,  108, 76,  100, 66,  100, 66,
    132, 164, 132, 164, 140, 172, 140, 172, 148, 180, 148, 180, 156, 190, 156, 190,
    124, 92,  124, 92,  116, 84,  116, 84,  108, 76,  108, 76,  100, 66,  100, 66
};
_Alignas(REG) static const uint8_t iq3_s_values[REG] = {
    129, 137, 129, 137, 131, 139, 131, 139, 133, 141, 133, 141, 135, 143, 135, 143,
    127, 119, 127, 119, 125, 117, 125, 117, 123, 115, 123, 115, 121, 113, 121, 113,
    129, 137, 129, 137, 131, 139, 131, 139, 133, 141, 133, 141, 135, 143, 135, 143,
    127, 119, 127, 119, 125, 117, 125, 117, 123, 115, 123, 115, 121, 113, 121, 113
};

/* 8 times the weights of IQ1, plus 128, by the lower two bits of vpermb's index. */
_Alignas(REG) static const uint8_t iq1_values[REG] = {
    120, 128, 136, 128, 120, 128, 136, 128, 120, 128, 136, 128, 120, 128, 136, 128,
    120, 128, 136, 128, 120, 128, 136, 128, 120, 128, 136, 128, 120, 128, 136, 128,
    120, 128, 136, 128, 120, 128, 136, 128, 120, 128, 136, 128, 120, 128, 136, 128,
    120, 128, 136, 128, 120, 128, 136, 128, 120, 128, 136, 128, 120, 128, 136, 128
};

/* ---- codes ---- */

/* Byte i of each output: 8 bits of its word from bit start + i * step on. The least bits of the
 * first bytes may be the other output's. */
INLINE __m512i spread(__m512i words, uint32_t start, uint32_t step)
{
    uint64_t control = 0;

    UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        control |= (uint64_t)((start + i % 4 * step + i / 4 * 32) % 64) << (8 * i);
    }
    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64((int64_t)control), words);
}

/* Bytes of 128 by the lower seven bits of indices. */
INLINE __m512i lookup_128(const uint8_t *table, __m512i at)
{
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), at, _mm512_load_si512(table + REG));
}

/* Bytes of 256, the upper 128 where is_upper. */
INLINE __m512i lookup_256(const uint8_t *table, __m512i at, __mmask64 is_upper)
{
    return _mm512_mask_blend_epi8(is_upper, lookup_128(table, at), lookup_128(table + LINE, at));
}

/* Signs of eights of inputs, a byte each, from words with 7 bits for each. */
INLINE __m512i signs_of(__m512i words)
{
    return lookup_128(signs_by_seven, spread(words, 0, 7));
}

/* Bytes of 512, the upper 256 where is_ninth. */
INLINE __m512i lookup_512(const uint8_t *table, __m512i at, __mmask64 is_upper, __mmask64 is_ninth)
{
    return _mm512_mask_blend_epi8(is_ninth, lookup_256(table, at, is_upper),
                                  lookup_256(table + 256, at, is_upper));
}

INLINE __mmask64 high_at(const unsigned char *high, uint32_t i)
{
    return *(const uint64_t *)(const void *)(high + (size_t)8 * i);
}

/* A side of a block: quads of two planes of sizes and eights of signs. */
INLINE void iq2_quads(__m512i first, __m512i second, __m512i signs, __m512i quads[QUADS])
{
    const __m512i sizes[2] = { first, second }, is_size = _mm512_set1_epi8(12);

    UNROLL
    for (uint32_t eight = 0; eight < QUADS / 2; eight++) {
        /* The sign in bit 0 or, of the second quad, 4; the size in bits 2 and 3. */
        const __m512i sign = spread(signs, 8 * eight, 1);

        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const __m512i size = spread(sizes[i], 62 + 8 * eight, 2);

            quads[2 * eight + i] =
                _mm512_permutexvar_epi8(_mm512_ternarylogic_epi32(is_size, size, sign, 0xca),
                                        _mm512_load_si512(iq2_values[i]));
        }
    }
}

/* A side of a block's even or odd quads: sizes' lower bits, and in a byte their third bits and the
 * signs above them. */
INLINE void iq3_quads(const uint8_t *values, __m512i low, __m512i rest, uint32_t odd,
                      __m512i quads[QUADS])
{
    UNROLL
    for (uint32_t eight = 0; eight < QUADS / 2; eight++) {
        const __m512i both = _mm512_ternarylogic_epi32(
            _mm512_set1_epi8(12), spread(low, 62 + 8 * eight, 2), spread(rest, 8 * eight, 1), 0xca);

        quads[2 * eight + odd] = _mm512_permutexvar_epi8(both, _mm512_load_si512(values));
    }
}

/* Of IQ2 the quads of a side of a block; codes and high begin with the side's. */
INLINE void iq2_read(quire_matmul_type type, const unsigned char *codes, const unsigned char *high,
                     __m512i quads[QUADS])
{
    const __m512i at = _mm512_load_si512(codes), words = _mm512_load_si512(codes + LINE);
    const __mmask64 is_upper = _mm512_movepi8_mask(at);
    __m512i sizes[2], signs;

    UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        if (type == QUIRE_MATMUL_IQ2_XXS) {
            sizes[i] = lookup_256(quire_matmul_iq2_xxs_grid[i], at, is_upper);
        } else if (type == QUIRE_MATMUL_IQ2_XS) {
            sizes[i] =
                lookup_512(quire_matmul_iq2_xs_grid[i], at, is_upper, _mm512_movepi8_mask(words));
        } else {
            const uint8_t *table = quire_matmul_iq2_s_grid[i];

            sizes[i] = _mm512_mask_blend_epi8(
                high_at(high, 1), lookup_512(table, at, is_upper, high_at(high, 0)),
                lookup_512(table + 512, at, is_upper, high_at(high, 0)));
        }
    }
    if (type == QUIRE_MATMUL_IQ2_XXS) {
        signs = signs_of(words);
    } else {
        signs = type == QUIRE_MATMUL_IQ2_XS ? lookup_128(signs_by_seven, words) : words;
    }
    iq2_quads(sizes[0], sizes[1], signs, quads);
}

/* The same of IQ3. */
INLINE void iq3_read(quire_matmul_type type, const unsigned char *codes, const unsigned char *high,
                     __m512i quads[QUADS])
{
    const bool is_xxs = type == QUIRE_MATMUL_IQ3_XXS;
    const __m512i words = _mm512_load_si512(codes + (size_t)2 * LINE);
    const __m512i signs = is_xxs ? signs_of(words) : words;

    UNROLL
    for (uint32_t odd = 0; odd < 2; odd++) {
        const __m512i at = _mm512_load_si512(codes + (size_t)odd * LINE);
        const __mmask64 is_upper = _mm512_movepi8_mask(at);
        const __m512i sign = odd == 0 ? _mm512_slli_epi16(signs, 4) : signs;
        __m512i low, third;

        if (is_xxs) {
            low = lookup_256(quire_matmul_iq3_xxs_grid[0], at, is_upper);
            third = lookup_256(quire_matmul_iq3_xxs_grid[1], at, is_upper);
        } else {
            low = lookup_512(quire_matmul_iq3_s_grid[0], at, is_upper, high_at(high, odd));
            third = lookup_512(quire_matmul_iq3_s_grid[1], at, is_upper, high_at(high, odd));
        }
        iq3_quads(is_xxs ? iq3_xxs_values : iq3_s_values, low,
                  _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), third, sign, 0xca), odd, quads);
    }
}

/* What a side's codes of IQ1 get, 1 or -1, by eights of inputs: byte k of an output is of eight k.
 * scales: the side's words. */
INLINE __m512i iq1_deltas(quire_matmul_type type, const unsigned char *scales,
                          const unsigned char *high, uint32_t b)
{
    const __m512i one = _mm512_set1_epi8(1);
    __m512i words;

    if (type == QUIRE_MATMUL_IQ1_M) {
        return _mm512_or_si512(_mm512_movm_epi8(high_at(high, 3)), one);
    }
    /* The upper bit of the block's nibble. */
    words = _mm512_sll_epi32(_mm512_load_si512(scales), _mm_cvtsi32_si128(28 - 4 * (int)b));
    return _mm512_or_si512(_mm512_srai_epi32(words, 31), one);
}

/* Byte k of each word, four times. */
INLINE __m512i fours_of(__m512i words, uint32_t k)
{
    const int32_t byte = 0x01010101 * (int32_t)k;

    return _mm512_shuffle_epi8(
        words, _mm512_set4_epi32(0x0c0c0c0c + byte, 0x08080808 + byte, 0x04040404 + byte, byte));
}

/* A block of a group. */
typedef struct grid_block {
    const unsigned char *head, *codes;
    uint32_t b;
} grid_block;

/* Where the lower two of three upper bits of indices of IQ1 are n. */
INLINE __mmask64 upper_is(const unsigned char *high, uint32_t n)
{
    const __mmask64 first = high_at(high, 0), second = high_at(high, 1);

    return (n % 2 == 0 ? ~first : first) & (n < 2 ? ~second : second);
}

/* Eighths of the planes of IQ1's grid: of plane 0 the lower and upper 128 of the first 256 bytes
 * with the same lower two upper bits, those of the other 256; then of plane 1. */
enum {
    EIGHTHS = 8
};

/* Look up the indices whose lower two upper bits are n, in all eighths. A look-up leaves the other
 * indices in place. Both sides share the loads of the planes, which would take longer than the
 * look-ups. */
INLINE void iq1_find(uint32_t n, const unsigned char *const high[SIDES],
                     __m512i found[EIGHTHS][SIDES])
{
    const __mmask64 is[SIDES] = { upper_is(high[0], n), upper_is(high[1], n) };

    UNROLL
    for (uint32_t i = 0; i < EIGHTHS; i++) {
        const uint8_t *table = quire_matmul_iq1_grid[i / 4] + (size_t)i / 2 % 2 * 1024 +
                               (size_t)256 * n + i % 2 * LINE;
        const __m512i low = _mm512_load_si512(table), rest = _mm512_load_si512(table + REG);

        found[i][0] = _mm512_mask2_permutex2var_epi8(low, found[i][0], is[0], rest);
        found[i][1] = _mm512_mask2_permutex2var_epi8(low, found[i][1], is[1], rest);
    }
}

/* Bytes of 2,048 of both planes. */
INLINE void iq1_lookup(const __m512i at[SIDES], const unsigned char *const high[SIDES],
                       __m512i weights[2][SIDES])
{
    __m512i found[EIGHTHS][SIDES];

    UNROLL
    for (uint32_t i = 0; i < EIGHTHS; i++) {
        found[i][0] = at[0];
        found[i][1] = at[1];
    }
    iq1_find(0, high, found);
    iq1_find(1, high, found);
    iq1_find(2, high, found);
    iq1_find(3, high, found);
    UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        const __mmask64 is_upper = _mm512_movepi8_mask(at[side]), is_last = high_at(high[side], 2);

        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            weights[i][side] = _mm512_mask_blend_epi8(
                is_last,
                _mm512_mask_blend_epi8(is_upper, found[4 * i][side], found[4 * i + 1][side]),
                _mm512_mask_blend_epi8(is_upper, found[4 * i + 2][side], found[4 * i + 3][side]));
        }
    }
}

/* The quads of a block of IQ1, both sides. */
INLINE void iq1_read(quire_matmul_type type, const grid_block *g, __m512i quads[SIDES][QUADS])
{
    const unsigned char *first = g->head + quire_matmul_high_at(type, g->b);
    const unsigned char *const high[SIDES] = { first,
                                               first + (size_t)8 * quire_matmul_high_words(type) };
    const __m512i at[SIDES] = { _mm512_load_si512(g->codes), _mm512_load_si512(g->codes + REG) };
    const __m512i values = _mm512_load_si512(iq1_values);
    __m512i weights[2][SIDES];

    iq1_lookup(at, high, weights);
    UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        const __m512i deltas = iq1_deltas(
            type, g->head + QUIRE_MATMUL_GRID_SCALES + (size_t)side * REG, high[side], g->b);

        UNROLL
        for (uint32_t k = 0; k < QUADS; k++) {
            const __m512i quad =
                _mm512_permutexvar_epi8(spread(weights[k % 2][side], 8 * (k / 2), 2), values);

            quads[side][k] = _mm512_add_epi8(
                quad, type == QUIRE_MATMUL_IQ1_M ? fours_of(deltas, k / 2) : deltas);
        }
    }
}

/* The quads of a block, both sides. */
INLINE void block_read(quire_matmul_type type, const grid_block *g, __m512i quads[SIDES][QUADS])
{
    const bool is_iq3 = type == QUIRE_MATMUL_IQ3_XXS || type == QUIRE_MATMUL_IQ3_S;
    const unsigned char *high = g->head + quire_matmul_high_at(type, g->b);

    if (quire_matmul_is_iq1(type)) {
        iq1_read(type, g, quads);
        return;
    }
    UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        const unsigned char *codes = g->codes + (size_t)side * REG;

        if (is_iq3) {
            iq3_read(type, codes, high, quads[side]);
        } else {
            iq2_read(type, codes, high, quads[side]);
        }
        high += (size_t)8 * quire_matmul_high_words(type);
    }
}

#endif /* QUIRE_MATMUL_AVX512_GRID_CODES_H */
