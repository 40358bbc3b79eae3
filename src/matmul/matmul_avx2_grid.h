/* matmul_avx2_grid.h - the part of the two AVX2 sets that reads types with a grid: codes of a group
 * as bytes, in the layout of Q8_0's, and its scales.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MATMUL_AVX2_GRID_H
#define QUIRE_MATMUL_AVX2_GRID_H

#include "matmul/matmul_avx2.h"

#define QUIRE_MATMUL_GRID_BLOCK_BYTES (QUIRE_MATMUL_BLOCK * QUIRE_MATMUL_PANEL)
#define QUIRE_MATMUL_GRID_GROUP_BYTES (QUIRE_MATMUL_STEP_BLOCKS * QUIRE_MATMUL_GRID_BLOCK_BYTES)

/* Make the tables, once in a process. Thread: any. */
void quire_matmul_avx2_grid_init(void);

/* The codes of the group with this head: weights without their scale, plus 64, so that they have 7
 * bits; of IQ1 plus 16, so that they have 5. The bytes at a distance of ahead_bytes are prefetched,
 * unless that is 0. to: QUIRE_MATMUL_GRID_GROUP_BYTES, aligned to 32. */
void quire_matmul_avx2_grid_read(quire_matmul_type type, const unsigned char *head,
                                 size_t ahead_bytes, unsigned char *to);

/* The scales of its blocks, or of their halves. */
void quire_matmul_avx2_grid_scales(quire_matmul_type type, const unsigned char *head,
                                   quire_matmul_scales *s);

#endif /* QUIRE_MATMUL_AVX2_GRID_H */
