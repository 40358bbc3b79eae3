/* matmul_grids.h - types whose indices stand for the sizes of several weights, and their codes.
 *
 * A grid says the sizes of the weights of an index. It is kept in planes of a byte for each index,
 * which kernels look up: of IQ2 plane q has 4 codes of 2 bits, the sizes of weights 4 q to
 * 4 q + 3, the first in the lowest bits.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MATMUL_GRIDS_H
#define QUIRE_MATMUL_GRIDS_H

#include "matmul/matmul.h"

extern _Alignas(64) const uint8_t quire_matmul_iq2_xxs_grid[2][256];

/* Weights by size and, times 4, sign, plus 128. No index has size 3. */
extern const uint8_t quire_matmul_iq2_values[8];

/* Code of input i of a panel's block; codes begin with the output's. */
uint8_t quire_matmul_grid_code(quire_matmul_type type, const unsigned char *codes, uint32_t i);

#endif /* QUIRE_MATMUL_GRIDS_H */
