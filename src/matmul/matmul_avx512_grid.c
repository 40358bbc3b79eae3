/* matmul_avx512_grid.c - a panel of a type with a grid times a tile, with AVX-512 VNNI and VBMI.
 *
 * A register of indices is a block of 16 outputs. vpermi2b looks 64 of them up in half a plane of
 * the grid, so that both planes cost four of these instructions for 512 weights. The bytes that
 * come out have four codes of two bits. vpmultishiftqb spreads those of a quad over the bytes of
 * its output, another one does so with the signs of two quads, and vpermb makes the weights, plus
 * 128, of both. The rows of the tile share these 3.5 instructions for each 64 weights.
 *
 * SPDX-License-Identifier: MIT */
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
      120, 120, 120, 120, 103, 103, 103, 103, 85,  85,  85,  85,  128, 128, 128, 128 }
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

/* The quads of a side of a block, and its scales as odd integers. */
INLINE void iq2_xxs_read(const unsigned char *codes, __m512i quads[QUADS], __m512i *scale)
{
    const __m512i at = _mm512_load_si512(codes), words = _mm512_load_si512(codes + LINE);
    const __mmask64 is_upper = _mm512_movepi8_mask(at);
    const __m512i signs = signs_of(words), is_size = _mm512_set1_epi8(12);
    const __m512i sizes[2] = { lookup_256(quire_matmul_iq2_xxs_grid[0], at, is_upper),
                               lookup_256(quire_matmul_iq2_xxs_grid[1], at, is_upper) };

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
    *scale = _mm512_or_si512(_mm512_srli_epi32(words, 27), _mm512_set1_epi32(1));
}

/* ---- products ---- */

/* Add a block; scale is the group's by side. */
INLINE void block_add(quire_matmul_type type, uint32_t n, const unsigned char *codes, const char *x,
                      const __m512 scale[SIDES], __m512 y[ROWS][SIDES])
{
    __m512i quads[SIDES][QUADS], odd[SIDES], acc[ROWS][SIDES];

    (void)type;
    UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        iq2_xxs_read(codes + (size_t)side * REG, quads[side], &odd[side]);
    }
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        acc[r][0] = acc[r][1] = int_at(x, QUIRE_MATMUL_X_SUM * n + r);
    }
    UNROLL
    for (uint32_t k = 0; k < QUADS; k++) {
        UNROLL
        for (uint32_t r = 0; r < n; r++) {
            const __m512i quad = int_at(x, k * n + r);

            acc[r][0] = dot(acc[r][0], quads[0][k], quad);
            acc[r][1] = dot(acc[r][1], quads[1][k], quad);
        }
    }
    UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        const __m512 s = _mm512_mul_ps(scale[side], _mm512_cvtepi32_ps(odd[side]));

        UNROLL
        for (uint32_t r = 0; r < n; r++) {
            y[r][side] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r][side]),
                                         _mm512_mul_ps(s, float_at(x, QUIRE_MATMUL_X_D * n + r)),
                                         y[r][side]);
        }
    }
}

INLINE void panel_rows(quire_matmul_type type, uint32_t n, const quire_matmul_panel *p)
{
    const quire_matmul_layout *l = &quire_matmul_layouts[type];
    const uint32_t n_groups = p->weight->n_in / l->group;
    const unsigned char *at = p->at;
    const char *x = p->tile;
    const ahead_to to = ahead_of(type, n, p);
    __m512 y[ROWS][SIDES];

    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        y[r][0] = y[r][1] = _mm512_setzero_ps();
    }
    for (uint32_t g = 0; g < n_groups; g++) {
        const __m512 eighth = _mm512_set1_ps(0.125f);
        const __m512 scale[SIDES] = { _mm512_mul_ps(halves_at(at, 0), eighth),
                                      _mm512_mul_ps(halves_at(at, 1), eighth) };

        prefetch(at, l->head_bytes, to);
        at += l->head_bytes;
        for (uint32_t b = 0; b < l->group / QUIRE_MATMUL_BLOCK; b++) {
            prefetch(at, l->code_bytes, to);
            block_add(type, n, at, x, scale, y);
            at += l->code_bytes;
            x += (size_t)n * QUIRE_MATMUL_BLOCK_BYTES;
        }
    }
    y_store(n, p, y);
}

/* One function for each type and number of rows. */
#define PANEL_FN(type, n)                                                                          \
    static void panel_##type##_##n(const quire_matmul_panel *p)                                    \
    {                                                                                              \
        panel_rows(QUIRE_MATMUL_##type, n, p);                                                     \
    }
#define PANEL_FNS(type)                                                                            \
    PANEL_FN(type, 1)                                                                              \
    PANEL_FN(type, 2)                                                                              \
    PANEL_FN(type, 3)                                                                              \
    PANEL_FN(type, 4)                                                                              \
    PANEL_FN(type, 5)                                                                              \
    PANEL_FN(type, 6)                                                                              \
    PANEL_FN(type, 7)                                                                              \
    PANEL_FN(type, 8)
#define PANEL_LIST(type)                                                                           \
    {                                                                                              \
        panel_##type##_1, panel_##type##_2, panel_##type##_3, panel_##type##_4, panel_##type##_5,  \
            panel_##type##_6, panel_##type##_7, panel_##type##_8                                   \
    }

PANEL_FNS(IQ2_XXS)

void quire_matmul_avx512_grid_panel(const quire_matmul_panel *panel)
{
    static void (*const runs[][ROWS])(const quire_matmul_panel *) = { PANEL_LIST(IQ2_XXS) };

    runs[panel->weight->type - QUIRE_MATMUL_IQ2_XXS][panel->n_rows - 1](panel);
}
