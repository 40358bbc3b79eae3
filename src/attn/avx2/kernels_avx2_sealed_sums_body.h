/* kernels_avx2_sealed_sums_body.h - exact sums of levels times weights, for rows against registers
 * of a tile. Part of kernels_avx2_sealed_body.h, which says how.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_AVX2_SEALED_SUMS_H
#define QUIRE_ATTN_KERNELS_AVX2_SEALED_SUMS_H

#include "attn/avx2/kernels_avx2_sealed_planes_body.h"
#include "attn/vector/kernels_vector_sealed.h"

#include <string.h>

#define STRIP_REGS 2u

/* Bytes of one row's weights for a group: 4 bytes, or 2 pairs of int16. */
#define PARTS        (SEALED_VNNI ? 1u : 2u)
#define WEIGHT_BYTES (4u * PARTS)

/* Levels of STRIP_REGS registers of lanes as all rows use them. */
typedef struct strip {
    _Alignas(64) char levels[QUIRE_HEAD_DIM_MAX * STRIP_REGS * 8];
} strip;

/* No levels for the units of a tile of V. */
static inline void strip_clear(strip *to)
{
    memset(to->levels, 0, (size_t)QUIRE_TILE_TOKENS * STRIP_REGS * 8);
}

/* Levels to multiply: looked up from planes, or from a strip. */
typedef struct source {
    quire_avx2_planes planes;
    const strip *strip;
} source;

/* Weights of the rows of a block, row_bytes apart. */
typedef struct weights {
    const char *rows;
    size_t row_bytes;
} weights;

typedef struct block_sums {
    __m256i row[QUIRE_AVX2_ROWS_MAX][8];
} block_sums;

QUIRE_AVX2_INLINE __m256i broadcast_weight(const weights *w, uint32_t row, uint32_t group,
                                           uint32_t part)
{
    const char *at = w->rows + row * w->row_bytes + (size_t)group * WEIGHT_BYTES + 4 * part;

    return _mm256_castps_si256(_mm256_broadcast_ss((const float *)(const void *)at));
}

QUIRE_AVX2_INLINE __m256i dot(quire_side side, __m256i acc, __m256i levels, __m256i weight)
{
#if SEALED_VNNI
    return side == QUIRE_SIDE_K ? _mm256_dpbusd_avx_epi32(acc, levels, weight)
                                : _mm256_dpbusd_avx_epi32(acc, weight, levels);
#else
    (void)side;
    return _mm256_add_epi32(acc, _mm256_madd_epi16(levels, weight));
#endif
}

/* The factors from a register of levels in part 0 or 1 of the product. */
QUIRE_AVX2_INLINE __m256i part_of(__m256i levels, uint32_t part)
{
    if (PARTS == 1) {
        return levels;
    }
    return part == 0 ? _mm256_and_si256(levels, _mm256_set1_epi16(0xff))
                     : _mm256_srli_epi16(levels, 8);
}

QUIRE_AVX2_INLINE __m256i levels_of(block b, const source *x, uint32_t u, uint32_t m, uint32_t half,
                                    uint32_t i)
{
    return b.has_strip ? quire_avx2_load_bytes(x->strip->levels +
                                               ((size_t)(2 * u + half) * STRIP_REGS + i) * 32)
                       : quire_avx2_look_up(b.format, &x->planes, u, m, half, i);
}

/* Few rows against many registers: the weights stay, levels are used as they come. */
QUIRE_AVX2_INLINE void add_group_wide(block b, const source *x, const weights *w, uint32_t u,
                                      uint32_t m, uint32_t half, block_sums *acc)
{
    __m256i weight[2][2];

    for (uint32_t r = 0; r < b.n; r++) {
        for (uint32_t part = 0; part < PARTS; part++) {
            weight[r][part] = broadcast_weight(w, r, 2 * u + half, part);
        }
    }
    for (uint32_t i = 0; i < b.regs; i++) {
        __m256i levels = levels_of(b, x, u, m, half, i);

        for (uint32_t part = 0; part < PARTS; part++) {
            __m256i factor = part_of(levels, part);

            for (uint32_t r = 0; r < b.n; r++) {
                acc->row[r][i] = dot(b.side, acc->row[r][i], factor, weight[r][part]);
            }
        }
    }
}

/* Many rows against few registers: levels stay, the weights are used as they come. */
QUIRE_AVX2_INLINE void add_group_tall(block b, const source *x, const weights *w, uint32_t u,
                                      uint32_t m, uint32_t half, block_sums *acc)
{
    __m256i levels[2];

    for (uint32_t i = 0; i < b.regs; i++) {
        levels[i] = levels_of(b, x, u, m, half, i);
    }
    for (uint32_t part = 0; part < PARTS; part++) {
        __m256i factor[2];

        for (uint32_t i = 0; i < b.regs; i++) {
            factor[i] = part_of(levels[i], part);
        }
        for (uint32_t r = 0; r < b.n; r++) {
            __m256i weight = broadcast_weight(w, r, 2 * u + half, part);

            for (uint32_t i = 0; i < b.regs; i++) {
                acc->row[r][i] = dot(b.side, acc->row[r][i], factor[i], weight);
            }
        }
    }
}

QUIRE_AVX2_INLINE void add_unit(block b, const source *x, const weights *w, uint32_t u, uint32_t m,
                                block_sums *acc)
{
    if (!b.has_strip) {
        quire_avx2_prefetch_unit(b.format, b.regs, &x->planes, u, m);
    }
    for (uint32_t half = 0; half < 2; half++) {
        if (b.n <= 2) {
            add_group_wide(b, x, w, u, m, half, acc);
        } else {
            add_group_tall(b, x, w, u, m, half, acc);
        }
    }
}

QUIRE_AVX2_INLINE void fill_strip_format(quire_format format, uint32_t regs,
                                         const quire_avx2_planes *x, uint32_t begin, uint32_t end,
                                         strip *to)
{
    for (uint32_t u = begin; u < end; u++) {
        uint32_t m = u % quire_avx2_period(format);

        quire_avx2_prefetch_unit(format, STRIP_REGS, x, u, m);
        for (uint32_t half = 0; half < 2; half++) {
            for (uint32_t i = 0; i < STRIP_REGS && (i == 0 || regs > 1); i++) {
                _mm256_storeu_si256(
                    (__m256i *)(void *)(to->levels +
                                        ((size_t)(2 * u + half) * STRIP_REGS + i) * 32),
                    quire_avx2_look_up(format, x, u, m, half, i));
            }
        }
    }
}

/* Rows of the next block of a strip when `left` are to do. */
static inline uint32_t strip_rows(uint32_t left)
{
    if (left == 5 || (!SEALED_VNNI && left == 6)) {
        return 3;
    }
    return left < 5 ? left : !SEALED_VNNI || left == 7 || left == 8 ? 4 : 6;
}

#endif /* QUIRE_ATTN_KERNELS_AVX2_SEALED_SUMS_H */
