/* matmul_grids.h - types whose indices stand for the sizes of several weights, and their codes.
 *
 * A grid says the sizes of the weights of an index. It is kept in two planes of a byte for each
 * index, which kernels look up. Of IQ2, where an index stands for 8 weights, each plane has the
 * sizes of 4 of them as codes of 2 bits, the first in the lowest bits. Of IQ3, where it stands for
 * 4, the first plane has the lower 2 bits of their sizes, and the second the third bits. Of IQ1,
 * where it stands for 8 weights of -1, 0 or 1, planes are as of IQ2 and codes 1 more than weights.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MATMUL_GRIDS_H
#define QUIRE_MATMUL_GRIDS_H

#include "matmul/matmul_kernels.h"

extern _Alignas(64) const uint8_t quire_matmul_iq2_xxs_grid[2][256];
extern _Alignas(64) const uint8_t quire_matmul_iq2_xs_grid[2][512];
extern _Alignas(64) const uint8_t quire_matmul_iq2_s_grid[2][1024];
extern _Alignas(64) const uint8_t quire_matmul_iq3_xxs_grid[2][256];
extern _Alignas(64) const uint8_t quire_matmul_iq3_s_grid[2][512];
extern _Alignas(64) const uint8_t quire_matmul_iq1_grid[2][2048];

/* Sizes by code. IQ2 has three. */
extern const uint8_t quire_matmul_iq2_sizes[8];
extern const uint8_t quire_matmul_iq3_xxs_sizes[8];
extern const uint8_t quire_matmul_iq3_s_sizes[8];

/* Offsets in the head of a panel's group. */
enum {
    QUIRE_MATMUL_GRID_SCALES = 2 * QUIRE_MATMUL_PANEL,
    QUIRE_MATMUL_IQ3_S_HIGH = QUIRE_MATMUL_GRID_SCALES + 4 * QUIRE_MATMUL_PANEL, /* IQ1_S's too */
    QUIRE_MATMUL_IQ2_S_HIGH = QUIRE_MATMUL_GRID_SCALES + 8 * QUIRE_MATMUL_PANEL,
    QUIRE_MATMUL_IQ1_M_HIGH = 8 * QUIRE_MATMUL_PANEL /* behind the scales */
};

static inline bool quire_matmul_is_iq1(quire_matmul_type type)
{
    return type == QUIRE_MATMUL_IQ1_S || type == QUIRE_MATMUL_IQ1_M;
}

/* Words of 64 bits that a side of 16 outputs has of a block's upper bits. */
static inline uint32_t quire_matmul_high_words(quire_matmul_type type)
{
    return type == QUIRE_MATMUL_IQ1_M ? 4 : type == QUIRE_MATMUL_IQ1_S ? 3 : 2;
}

/* The offset in the head of the upper bits of block b, of side 0 and then of side 1. */
static inline size_t quire_matmul_high_at(quire_matmul_type type, uint32_t b)
{
    const size_t first = type == QUIRE_MATMUL_IQ2_S   ? QUIRE_MATMUL_IQ2_S_HIGH
                         : type == QUIRE_MATMUL_IQ1_M ? QUIRE_MATMUL_IQ1_M_HIGH
                                                      : QUIRE_MATMUL_IQ3_S_HIGH;

    return first + (size_t)b * 2 * quire_matmul_high_words(type) * sizeof(uint64_t);
}

/* The factor of an odd integer of scale, besides the f16. */
static inline float quire_matmul_grid_factor(quire_matmul_type type)
{
    return type == QUIRE_MATMUL_IQ3_S ? 1.0f : type == QUIRE_MATMUL_IQ3_XXS ? 0.25f : 0.125f;
}

#endif /* QUIRE_MATMUL_GRIDS_H */
