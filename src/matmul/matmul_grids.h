/* matmul_grids.h - types whose indices stand for the sizes of several weights, and their codes.
 *
 * A grid says the sizes of the weights of an index. It is kept in two planes of a byte for each
 * index, which kernels look up. Of IQ2, where an index stands for 8 weights, each plane has the
 * sizes of 4 of them as codes of 2 bits, the first in the lowest bits. Of IQ3, where it stands for
 * 4, the first plane has the lower 2 bits of their sizes, and the second the third bits.
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

/* Sizes by code. IQ2 has three. */
extern const uint8_t quire_matmul_iq2_sizes[8];
extern const uint8_t quire_matmul_iq3_xxs_sizes[8];
extern const uint8_t quire_matmul_iq3_s_sizes[8];

/* Offsets in the head of a panel's group. */
enum {
    QUIRE_MATMUL_GRID_SCALES = 2 * QUIRE_MATMUL_PANEL,
    QUIRE_MATMUL_IQ3_S_HIGH = QUIRE_MATMUL_GRID_SCALES + 4 * QUIRE_MATMUL_PANEL,
    QUIRE_MATMUL_IQ2_S_HIGH = QUIRE_MATMUL_GRID_SCALES + 8 * QUIRE_MATMUL_PANEL,
    QUIRE_MATMUL_HIGH_BYTES = 32 /* of a block: [side][2] uint64 */
};

/* The factor of an odd integer of scale, besides the f16. */
static inline float quire_matmul_grid_factor(quire_matmul_type type)
{
    return type == QUIRE_MATMUL_IQ3_S ? 1.0f : type == QUIRE_MATMUL_IQ3_XXS ? 0.25f : 0.125f;
}

#endif /* QUIRE_MATMUL_GRIDS_H */
