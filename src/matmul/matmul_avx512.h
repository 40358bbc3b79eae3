/* matmul_avx512.h - the common part of the two files of the AVX-512 set.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MATMUL_AVX512_H
#define QUIRE_MATMUL_AVX512_H

#include "matmul/matmul_kernels.h"

/* One panel times one tile. */
void quire_matmul_avx512_panel(const quire_matmul_panel *panel);

/* The same of types with grids (matmul_grids.h), where the CPU has VBMI. */
void quire_matmul_avx512_grid_panel(const quire_matmul_panel *panel);
void quire_matmul_avx512_grid_tiles(const quire_matmul_panel *panels, uint32_t n);

#endif /* QUIRE_MATMUL_AVX512_H */
