/* kernels_avx512_levels_body.h - from the bit planes of sealed tiles to int8 levels, in registers.
 *
 * The unit is a step: 8 dimensions (K) or tokens (V), which is two quads of 4. A register of a
 * plane holds 16 tokens (K) or dimensions (V); a step of it becomes a register of levels for each
 * quad, in the layout that dot products want. One byte serves as the index of both look-ups where
 * the bits allow it: a look-up ignores the bits that are not its own, because its table repeats
 * itself over them.
 *
 *   index   bits 0-3                     bits 4-5
 *   q4      quad's code                  anything
 *   q6      quad's low bits              quad's high bits
 *   q5      quad's low bits              high bit of quad 0, of quad 1
 *   q3      low bits of quad 0, quad 1   high bit of quad 0, of quad 1
 *
 * The including file defines SEALED_LOOK_UP(format, quad, table, index): per byte, table[index %
 * 64]; format and quad are constants that say which bits of the index count.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_AVX512_LEVELS_H
#define QUIRE_ATTN_KERNELS_AVX512_LEVELS_H

#include "attn/avx512/kernels_avx512.h"
#include "codec/sealed.h"

enum {
    QUAD = 4,
    STEP = 8,
    QUAD_BYTES = QUIRE_TILE_TOKENS * QUAD, /* levels of a quad for all tokens of K */
    THIRD_SELECTS = 0xe4                   /* of vpternlog: third ? first : second */
};

/* 0 .. 63 */
static const _Alignas(64) uint8_t level_identity[64] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63,
};

/* Shifts by step, in every lane. */
#define LANES_OF(x)                                                                                \
    {                                                                                              \
        x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x                                             \
    }
typedef int32_t level_shifts[16];

/* One bit: bits 2s, 2s + 1 (s = step % 4) to bits 4, 5. */
static const _Alignas(64) level_shifts one_bit_left[4] = { LANES_OF(4), LANES_OF(2), LANES_OF(0),
                                                           LANES_OF(0) };
static const _Alignas(64) level_shifts one_bit_right[4] = { LANES_OF(0), LANES_OF(0), LANES_OF(0),
                                                            LANES_OF(2) };
/* Two bits: bits 4s .. 4s + 3 (s = step % 2) to bits 4-7, or to bits 0-3. */
static const _Alignas(64) level_shifts two_bits_left[2] = { LANES_OF(4), LANES_OF(0) };
static const _Alignas(64) level_shifts two_bits_right[2] = { LANES_OF(0), LANES_OF(4) };

/* A look-up table for each quad. */
typedef struct level_tables {
    __m512i quad[2];
} level_tables;

/* The planes of a tile, from some register on. */
typedef struct level_planes {
    const char *low;
    const char *high;
    size_t group_bytes; /* of the K tokens or V dimensions of one 32 bits */
} level_planes;

/* One step: where its registers lie, and the shifts that bring its bits where the index wants them.
 * Shifts of 32 bits, because rotations and shifts by one count for all are slower on Zen 5; bits
 * that cross the border of a byte land where the look-up ignores them. */
typedef struct level_step {
    const char *low;
    const char *high;
    __m512i low_right;
    __m512i high_left;
    __m512i high_right;
} level_step;

/* K levels get an offset of 128, which makes them unsigned. */
QUIRE_AVX512_INLINE level_tables level_tables_of(quire_format format, quire_side side)
{
    const __m512i offset = _mm512_set1_epi8(side == QUIRE_SIDE_K ? -128 : 0);
    const __m512i levels =
        _mm512_add_epi8(_mm512_load_si512(quire_sealed_levels(format, side)), offset);
    const __m512i index = _mm512_load_si512(level_identity);
    __m512i bit = _mm512_srli_epi16(_mm512_and_si512(index, _mm512_set1_epi8(0x20)), 1);
    __m512i code;

    if (format == QUIRE_FORMAT_Q5) {
        code = _mm512_or_si512(_mm512_and_si512(index, _mm512_set1_epi8(15)), bit);
        return (level_tables){ { levels, SEALED_LOOK_UP(QUIRE_FORMAT_Q6, 0, levels, code) } };
    }
    if (format == QUIRE_FORMAT_Q3) {
        level_tables tables;

        code = _mm512_and_si512(index, _mm512_set1_epi8(3));
        bit = _mm512_srli_epi16(_mm512_and_si512(index, _mm512_set1_epi8(0x10)), 2);
        tables.quad[0] = SEALED_LOOK_UP(QUIRE_FORMAT_Q6, 0, levels, _mm512_or_si512(code, bit));
        code = _mm512_srli_epi16(_mm512_and_si512(index, _mm512_set1_epi8(12)), 2);
        bit = _mm512_srli_epi16(_mm512_and_si512(index, _mm512_set1_epi8(0x20)), 3);
        tables.quad[1] = SEALED_LOOK_UP(QUIRE_FORMAT_Q6, 0, levels, _mm512_or_si512(code, bit));
        return tables;
    }
    return (level_tables){ { levels, levels } };
}

/* The planes of a tile of d dimensions, from the register of V dimension dim on. */
QUIRE_AVX512_INLINE level_planes level_planes_of(quire_format format, quire_side side, uint32_t d,
                                                 const void *tile, uint32_t dim)
{
    const char *at = (const char *)tile + (size_t)dim * 4;

    return (level_planes){ .low = at + quire_sealed_low_offset(format, side, d),
                           .high = at + quire_sealed_high_offset(format, side, d),
                           .group_bytes =
                               side == QUIRE_SIDE_K ? QUAD_BYTES : (size_t)d * sizeof(int32_t) };
}

QUIRE_AVX512_INLINE level_step level_step_of(quire_format format, const level_planes *planes,
                                             uint32_t step)
{
    uint32_t low_group = format == QUIRE_FORMAT_Q3 ? step / 2 : step;
    uint32_t high_group = format == QUIRE_FORMAT_Q6 ? step / 2 : step / 4;

    return (level_step){
        .low = planes->low + low_group * planes->group_bytes,
        .high = planes->high + high_group * planes->group_bytes,
        .low_right = _mm512_load_si512(two_bits_right[step % 2]),
        .high_left = _mm512_load_si512(format == QUIRE_FORMAT_Q6 ? two_bits_left[step % 2]
                                                                 : one_bit_left[step % 4]),
        .high_right = _mm512_load_si512(one_bit_right[step % 4]),
    };
}

/* Register i of a step; lanes outside the mask are not read. */
QUIRE_AVX512_INLINE void level_load(quire_format format, const level_tables *tables,
                                    const level_step *step, __mmask16 lanes, uint32_t i,
                                    __m512i level[2])
{
    const __m512i is_low = _mm512_set1_epi8(15);
    __m512i low = _mm512_maskz_loadu_epi32(lanes, step->low + 64 * (size_t)i);
    __m512i high;
    __m512i index[2];

    if (format == QUIRE_FORMAT_Q4) {
        index[0] = low;
        index[1] = _mm512_srli_epi16(low, 4);
    } else {
        high = _mm512_maskz_loadu_epi32(lanes, step->high + 64 * (size_t)i);
        high = _mm512_sllv_epi32(high, step->high_left);
        high = format == QUIRE_FORMAT_Q6 ? high : _mm512_srlv_epi32(high, step->high_right);
        low = format == QUIRE_FORMAT_Q3 ? _mm512_srlv_epi32(low, step->low_right) : low;
        index[0] = _mm512_ternarylogic_epi32(low, high, is_low, THIRD_SELECTS);
        index[1] = index[0];
        if (format != QUIRE_FORMAT_Q3) {
            low = _mm512_srli_epi16(low, 4);
            high = format == QUIRE_FORMAT_Q6 ? _mm512_srli_epi16(high, 2) : high;
            index[1] = _mm512_ternarylogic_epi32(low, high, is_low, THIRD_SELECTS);
        }
    }
    level[0] = SEALED_LOOK_UP(format, 0, tables->quad[0], index[0]);
    level[1] = SEALED_LOOK_UP(format, 1, tables->quad[1], index[1]);
}

/* All of 4 registers. */
QUIRE_AVX512_INLINE void level_load_4(quire_format format, const level_tables *tables,
                                      const level_step *step, __m512i level[2][QUIRE_AVX512_REGS])
{
    for (uint32_t i = 0; i < QUIRE_AVX512_REGS; i++) {
        __m512i pair[2];

        level_load(format, tables, step, 0xffff, i, pair);
        level[0][i] = pair[0];
        level[1][i] = pair[1];
    }
}

#endif /* QUIRE_ATTN_KERNELS_AVX512_LEVELS_H */
