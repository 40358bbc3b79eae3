/* matmul_avx512_grid.c - a panel of a type with a grid times a tile, with AVX-512 VNNI and VBMI.
 *
 * The codes of a block (matmul_avx512_grid_codes.h) are in registers while up to 8 rows of a tile
 * are multiplied with them. Several tiles share the codes of a group, in memory.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/matmul_avx512_grid_codes.h"

#define GROUP_BLOCKS 8u

/* ---- scales ---- */

/* Bits at bit `at` of words as odd integers: 4 of them, of IQ1 3. */
INLINE __m512 odd_of(quire_matmul_type type, __m512i words, uint32_t at)
{
    const __m512i there = _mm512_srl_epi32(words, _mm_cvtsi32_si128((int)at));
    const int mask = quire_matmul_is_iq1(type) ? 14 : 30;

    /* (2 there & mask) | 1 */
    return _mm512_cvtepi32_ps(_mm512_ternarylogic_epi32(
        _mm512_slli_epi32(there, 1), _mm512_set1_epi32(mask), _mm512_set1_epi32(1), 0xea));
}

/* Of a side the scale of block b or of its half; scale is the group's. */
INLINE __m512 scale_at(quire_matmul_type type, __m512 scale, const unsigned char *head,
                       const unsigned char *codes, uint32_t b, uint32_t half)
{
    const unsigned char *scales = head + QUIRE_MATMUL_GRID_SCALES;
    const unsigned char *signs = codes + (type == QUIRE_MATMUL_IQ3_XXS ? 2 * LINE : LINE);

    if (type == QUIRE_MATMUL_IQ2_XXS || type == QUIRE_MATMUL_IQ3_XXS) {
        return _mm512_mul_ps(scale, odd_of(type, _mm512_load_si512(signs), 28));
    }
    if (type == QUIRE_MATMUL_IQ3_S || type == QUIRE_MATMUL_IQ1_S) {
        return _mm512_mul_ps(scale, odd_of(type, _mm512_load_si512(scales), 4 * b));
    }
    if (type == QUIRE_MATMUL_IQ1_M) { /* twice 3 bits for a block, twice that in 16 bits */
        return _mm512_mul_ps(scale, odd_of(type, _mm512_load_si512(head + (size_t)b / 4 * LINE),
                                           16 * (b / 2 % 2) + 6 * (b % 2) + 3 * half));
    }
    return _mm512_mul_ps(scale, odd_of(type, _mm512_load_si512(scales + (size_t)b / 4 * LINE),
                                       8 * (b % 4) + 4 * half));
}

/* The f16s of a side of IQ1_M, in the upper four bits of the words of 16 bits in two of 32. */
INLINE __m512 iq1_m_halves(const unsigned char *head, uint32_t side)
{
    const __m512i low = _mm512_load_si512(head + (size_t)side * REG);
    const __m512i high = _mm512_load_si512(head + LINE + (size_t)side * REG);
    __m512i y = _mm512_and_si512(_mm512_srli_epi32(low, 12), _mm512_set1_epi32(0x000f));

    y = _mm512_or_si512(y, _mm512_and_si512(_mm512_srli_epi32(low, 24), _mm512_set1_epi32(0x00f0)));
    y = _mm512_or_si512(y, _mm512_and_si512(_mm512_srli_epi32(high, 4), _mm512_set1_epi32(0x0f00)));
    y = _mm512_or_si512(y,
                        _mm512_and_si512(_mm512_srli_epi32(high, 16), _mm512_set1_epi32(0xf000)));
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(y));
}

/* ---- products ---- */

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

    UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        scale[side] = _mm512_mul_ps(
            type == QUIRE_MATMUL_IQ1_M ? iq1_m_halves(head, side) : halves_at(head, side), factor);
    }
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
        case QUIRE_MATMUL_IQ1_S:
            group_read(QUIRE_MATMUL_IQ1_S, at, to, &group);
            break;
        case QUIRE_MATMUL_IQ1_M:
            group_read(QUIRE_MATMUL_IQ1_M, at, to, &group);
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
PANEL_FNS(IQ1_S)
PANEL_FNS(IQ1_M)

void quire_matmul_avx512_grid_panel(const quire_matmul_panel *panel)
{
    static void (*const runs[QUIRE_MATMUL_TYPES][ROWS])(const quire_matmul_panel *) = {
        PANEL_LIST(IQ2_XXS), PANEL_LIST(IQ2_XS), PANEL_LIST(IQ2_S), PANEL_LIST(IQ3_XXS),
        PANEL_LIST(IQ3_S),   PANEL_LIST(IQ1_S),  PANEL_LIST(IQ1_M),
    };

    runs[panel->weight->type][panel->n_rows - 1](panel);
}
