/* matmul_avx512_grid.c - a panel of a type with a grid times a tile, with AVX-512 VNNI and VBMI.
 *
 * A register of indices is, of IQ2, a block of 16 outputs. vpermi2b looks 64 of them up in 128
 * bytes of a plane of the grid, so that both planes of IQ2_XXS cost four of these instructions for
 * 512 weights. The bytes that come out have four codes of two bits. vpmultishiftqb spreads those of
 * a quad over the bytes of its output, another one does so with the signs of two quads, and vpermb
 * makes the weights, plus 128, of both. The rows of the tile share these 3.5 instructions for each
 * 64 weights.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/matmul_avx512_rows.h"
#include "matmul/matmul_grids.h"

#define GROUP_BLOCKS 8u

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

/* ---- scales ---- */

/* Nibbles at bit `at` of words as odd integers. */
INLINE __m512 odd_of(__m512i words, uint32_t at)
{
    const __m512i there = _mm512_srl_epi32(words, _mm_cvtsi32_si128((int)at));

    /* (2 there & 30) | 1 */
    return _mm512_cvtepi32_ps(_mm512_ternarylogic_epi32(
        _mm512_slli_epi32(there, 1), _mm512_set1_epi32(30), _mm512_set1_epi32(1), 0xea));
}

/* Of a side the scale of block b or of its half; scale is the group's. */
INLINE __m512 scale_at(quire_matmul_type type, __m512 scale, const unsigned char *head,
                       const unsigned char *codes, uint32_t b, uint32_t half)
{
    const unsigned char *scales = head + QUIRE_MATMUL_GRID_SCALES;
    const unsigned char *signs = codes + (type == QUIRE_MATMUL_IQ3_XXS ? 2 * LINE : LINE);

    if (type == QUIRE_MATMUL_IQ2_XXS || type == QUIRE_MATMUL_IQ3_XXS) {
        return _mm512_mul_ps(scale, odd_of(_mm512_load_si512(signs), 28));
    }
    if (type == QUIRE_MATMUL_IQ3_S) {
        return _mm512_mul_ps(scale, odd_of(_mm512_load_si512(scales), 4 * b));
    }
    return _mm512_mul_ps(
        scale, odd_of(_mm512_load_si512(scales + (size_t)b / 4 * LINE), 8 * (b % 4) + 4 * half));
}

/* ---- products ---- */

/* A block of a group. */
typedef struct grid_block {
    const unsigned char *head, *codes;
    uint32_t b;
} grid_block;

/* Add a row's quads [begin, end). */
INLINE void sums(uint32_t n, const char *x, __m512i quads[SIDES][QUADS], uint32_t begin,
                 uint32_t end, __m512i acc[ROWS][SIDES])
{
    UNROLL
    for (uint32_t k = begin; k < end; k++) {
        UNROLL
        for (uint32_t r = 0; r < n; r++) {
            const __m512i quad = int_at(x, k * n + r);

            acc[r][0] = dot(acc[r][0], quads[0][k], quad);
            acc[r][1] = dot(acc[r][1], quads[1][k], quad);
        }
    }
}

INLINE void whole_add(uint32_t n, const char *x, __m512i quads[SIDES][QUADS], __m512 s[2][SIDES],
                      __m512 y[ROWS][SIDES])
{
    __m512i acc[ROWS][SIDES];

    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        acc[r][0] = acc[r][1] = int_at(x, QUIRE_MATMUL_X_SUM * n + r);
    }
    sums(n, x, quads, 0, QUADS, acc);
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        const __m512 d = float_at(x, QUIRE_MATMUL_X_D * n + r);

        UNROLL
        for (uint32_t side = 0; side < SIDES; side++) {
            y[r][side] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r][side]),
                                         _mm512_mul_ps(s[0][side], d), y[r][side]);
        }
    }
}

/* The same of types whose halves have scales. */
INLINE void halves_add(uint32_t n, const char *x, __m512i quads[SIDES][QUADS], __m512 s[2][SIDES],
                       __m512 y[ROWS][SIDES])
{
    __m512 first[ROWS][SIDES];
    __m512i acc[ROWS][SIDES];

    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        acc[r][0] = acc[r][1] = _mm512_slli_epi32(int_at(x, QUIRE_MATMUL_X_HALF * n + r), 2);
    }
    sums(n, x, quads, 0, QUADS / 2, acc);
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        const __m512i half = _mm512_slli_epi32(int_at(x, QUIRE_MATMUL_X_HALF * n + r), 2);
        const __m512i rest = _mm512_sub_epi32(int_at(x, QUIRE_MATMUL_X_SUM * n + r), half);

        UNROLL
        for (uint32_t side = 0; side < SIDES; side++) {
            first[r][side] = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][side]), s[0][side]);
            acc[r][side] = rest;
        }
    }
    sums(n, x, quads, QUADS / 2, QUADS, acc);
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        const __m512 d = float_at(x, QUIRE_MATMUL_X_D * n + r);

        UNROLL
        for (uint32_t side = 0; side < SIDES; side++) {
            const __m512 both =
                _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r][side]), s[1][side], first[r][side]);

            y[r][side] = _mm512_fmadd_ps(both, d, y[r][side]);
        }
    }
}

/* The quads of a block, both sides. */
INLINE void block_read(quire_matmul_type type, const grid_block *g, __m512i quads[SIDES][QUADS])
{
    const bool is_iq3 = type == QUIRE_MATMUL_IQ3_XXS || type == QUIRE_MATMUL_IQ3_S;
    const unsigned char *high = g->head +
                                (is_iq3 ? QUIRE_MATMUL_IQ3_S_HIGH : QUIRE_MATMUL_IQ2_S_HIGH) +
                                (size_t)QUIRE_MATMUL_HIGH_BYTES * g->b;

    UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        const unsigned char *codes = g->codes + (size_t)side * REG;

        if (is_iq3) {
            iq3_read(type, codes, high, quads[side]);
        } else {
            iq2_read(type, codes, high, quads[side]);
        }
        high += QUIRE_MATMUL_HIGH_BYTES / SIDES;
    }
}

/* The scales of a block or its halves; scale is the group's by side. */
INLINE void block_scales(quire_matmul_type type, const grid_block *g, const __m512 scale[SIDES],
                         __m512 s[2][SIDES])
{
    const uint32_t n = quire_matmul_has_halves(type) ? 2 : 1;

    UNROLL
    for (uint32_t i = 0; i < n * SIDES; i++) {
        const size_t at = (size_t)(i % SIDES) * REG;

        s[i / SIDES][i % SIDES] =
            scale_at(type, scale[i % SIDES], g->head + at, g->codes + at, g->b, i / SIDES);
    }
}

/* Add a block to n rows. */
INLINE void block_add(bool has_halves, uint32_t n, const char *x, __m512i quads[SIDES][QUADS],
                      __m512 s[2][SIDES], __m512 y[ROWS][SIDES])
{
    if (has_halves) {
        halves_add(n, x, quads, s, y);
    } else {
        whole_add(n, x, quads, s, y);
    }
}

/* The scale of a group by side. */
INLINE void group_scale(quire_matmul_type type, const unsigned char *head, __m512 scale[SIDES])
{
    const __m512 factor = _mm512_set1_ps(quire_matmul_grid_factor(type));

    scale[0] = _mm512_mul_ps(halves_at(head, 0), factor);
    scale[1] = _mm512_mul_ps(halves_at(head, 1), factor);
}

INLINE void panel_rows(quire_matmul_type type, uint32_t n, const quire_matmul_panel *p)
{
    const quire_matmul_layout *l = &quire_matmul_layouts[type];
    const uint32_t n_groups = p->weight->n_in / l->group;
    const unsigned char *at = p->at;
    const char *x = p->tile;
    const quire_prefetch to = ahead_of(type, n, p);
    __m512 y[ROWS][SIDES];

    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        y[r][0] = y[r][1] = _mm512_setzero_ps();
    }
    for (uint32_t g = 0; g < n_groups; g++) {
        grid_block block = { at, at + l->head_bytes, 0 };
        __m512 scale[SIDES];

        prefetch(at, l->head_bytes, to);
        group_scale(type, at, scale);
        for (; block.b < GROUP_BLOCKS; block.b++) {
            __m512i quads[SIDES][QUADS];
            __m512 s[2][SIDES];

            prefetch(block.codes, l->code_bytes, to);
            block_read(type, &block, quads);
            block_scales(type, &block, scale, s);
            block_add(quire_matmul_has_halves(type), n, x, quads, s, y);
            block.codes += l->code_bytes;
            x += (size_t)n * QUIRE_MATMUL_BLOCK_BYTES;
        }
        at = block.codes;
    }
    y_store(n, p, y);
}

/* ---- several tiles ---- */

/* A group's codes and scales, which tiles share. */
typedef struct grid_group {
    __m512i quads[GROUP_BLOCKS][SIDES][QUADS];
    __m512 scale[GROUP_BLOCKS][2][SIDES];
} grid_group;

/* Read a group, and prefetch the lines behind it. */
INLINE void group_read(quire_matmul_type type, const unsigned char *at, quire_prefetch to,
                       grid_group *g)
{
    const quire_matmul_layout *l = &quire_matmul_layouts[type];
    grid_block block = { at, at + l->head_bytes, 0 };
    __m512 scale[SIDES];

    prefetch(at, l->head_bytes, to);
    group_scale(type, at, scale);
    for (; block.b < GROUP_BLOCKS; block.b++) {
        prefetch(block.codes, l->code_bytes, to);
        block_read(type, &block, g->quads[block.b]);
        block_scales(type, &block, scale, g->scale[block.b]);
        block.codes += l->code_bytes;
    }
}

/* Add group i to a tile's y. */
INLINE void tile_add(bool has_halves, uint32_t n, const quire_matmul_panel *p, grid_group *g,
                     uint32_t i)
{
    const char *x = (const char *)p->tile + (size_t)i * GROUP_BLOCKS * n * QUIRE_MATMUL_BLOCK_BYTES;
    __m512 y[ROWS][SIDES];

    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        UNROLL
        for (uint32_t side = 0; side < SIDES; side++) {
            y[r][side] = i == 0 ? _mm512_setzero_ps()
                                : _mm512_loadu_ps(p->y + r * p->y_stride + side * REG / 4);
        }
    }
    for (uint32_t b = 0; b < GROUP_BLOCKS; b++) {
        block_add(has_halves, n, x, g->quads[b], g->scale[b], y);
        x += (size_t)n * QUIRE_MATMUL_BLOCK_BYTES;
    }
    y_store(n, p, y);
}

#define TILE_FNS(n)                                                                                \
    static void tile_whole_##n(const quire_matmul_panel *p, grid_group *g, uint32_t i)             \
    {                                                                                              \
        tile_add(false, n, p, g, i);                                                               \
    }                                                                                              \
    static void tile_halves_##n(const quire_matmul_panel *p, grid_group *g, uint32_t i)            \
    {                                                                                              \
        tile_add(true, n, p, g, i);                                                                \
    }

TILE_FNS(1)
TILE_FNS(2)
TILE_FNS(3)
TILE_FNS(4)
TILE_FNS(5)
TILE_FNS(6)
TILE_FNS(7)
TILE_FNS(8)

void quire_matmul_avx512_grid_tiles(const quire_matmul_panel *panels, uint32_t n)
{
    static void (*const adds[2][ROWS])(const quire_matmul_panel *, grid_group *, uint32_t) = {
        { tile_whole_1, tile_whole_2, tile_whole_3, tile_whole_4, tile_whole_5, tile_whole_6,
          tile_whole_7, tile_whole_8 },
        { tile_halves_1, tile_halves_2, tile_halves_3, tile_halves_4, tile_halves_5, tile_halves_6,
          tile_halves_7, tile_halves_8 },
    };
    const quire_matmul_type type = panels->weight->type;
    const quire_matmul_layout *l = &quire_matmul_layouts[type];
    const quire_prefetch to = ahead_of(type, ROWS, panels);
    const unsigned char *at = panels->at;
    grid_group group;

    for (uint32_t i = 0; i < panels->weight->n_in / l->group; i++) {
        switch (type) {
        case QUIRE_MATMUL_IQ2_XS:
            group_read(QUIRE_MATMUL_IQ2_XS, at, to, &group);
            break;
        case QUIRE_MATMUL_IQ2_S:
            group_read(QUIRE_MATMUL_IQ2_S, at, to, &group);
            break;
        case QUIRE_MATMUL_IQ3_XXS:
            group_read(QUIRE_MATMUL_IQ3_XXS, at, to, &group);
            break;
        case QUIRE_MATMUL_IQ3_S:
            group_read(QUIRE_MATMUL_IQ3_S, at, to, &group);
            break;
        default:
            group_read(QUIRE_MATMUL_IQ2_XXS, at, to, &group);
            break;
        }
        for (uint32_t t = 0; t < n; t++) {
            adds[quire_matmul_has_halves(type)][panels[t].n_rows - 1](&panels[t], &group, i);
        }
        at += (size_t)QUIRE_MATMUL_PANEL * l->gguf_bytes;
    }
}

/* ---- one tile ---- */

PANEL_FNS(IQ2_XXS)
PANEL_FNS(IQ2_XS)
PANEL_FNS(IQ2_S)
PANEL_FNS(IQ3_XXS)
PANEL_FNS(IQ3_S)

void quire_matmul_avx512_grid_panel(const quire_matmul_panel *panel)
{
    static void (*const runs[QUIRE_MATMUL_TYPES][ROWS])(const quire_matmul_panel *) = {
        PANEL_LIST(IQ2_XXS), PANEL_LIST(IQ2_XS), PANEL_LIST(IQ2_S),
        PANEL_LIST(IQ3_XXS), PANEL_LIST(IQ3_S),
    };

    runs[panel->weight->type][panel->n_rows - 1](panel);
}
