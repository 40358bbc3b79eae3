/* matmul_avx2.h - the common part of the two AVX2 sets, with AVX-VNNI and without.
 *
 * A panel is worked on in steps of up to 8 blocks. The f32 scales of a step are computed once. Then
 * the rows of the tile pass over each side (16 outputs). A pass has as many rows as have their sums
 * in registers. From the second pass on, the codes are in the L1 cache.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MATMUL_AVX2_H
#define QUIRE_MATMUL_AVX2_H

#include "matmul/matmul_kernels.h"

#define QUIRE_MATMUL_STEP_BLOCKS 8u
#define QUIRE_MATMUL_SIDE        16u /* outputs */
#define QUIRE_MATMUL_PASS_ROWS   4u  /* at most: half a tile */

/* scale[b] and, where the type has one, min[b] of block b; of types whose halves have scales, [2 b]
 * and [2 b + 1]. */
typedef struct quire_matmul_scales {
    _Alignas(32) float scale[2 * QUIRE_MATMUL_STEP_BLOCKS][QUIRE_MATMUL_PANEL];
    _Alignas(32) float min[2 * QUIRE_MATMUL_STEP_BLOCKS][QUIRE_MATMUL_PANEL];
} quire_matmul_scales;

/* Some rows of a tile over a side of a step. Pointers are to the side's outputs of the first block
 * or row. */
typedef struct quire_matmul_pass {
    const unsigned char *codes;
    const float *scale; /* these three: QUIRE_MATMUL_PANEL from one to the next */
    const float *min;
    float *y;        /* added to */
    const char *x;   /* quad 0 of the first row */
    size_t x_stride; /* bytes from a quad to the next: 4 by row of the tile */
    uint32_t n_blocks;
    uint32_t ahead_bytes;       /* to prefetch by block; may be 0 */
    const unsigned char *ahead; /* the first address that the first block prefetches */
} quire_matmul_pass;

/* A set's passes by type and number of rows less one. Those of types with a grid read codes that
 * were made of them (matmul_avx2_grid.h). */
typedef struct quire_matmul_passes {
    void (*run[QUIRE_MATMUL_TYPES][QUIRE_MATMUL_PASS_ROWS])(const quire_matmul_pass *pass);
} quire_matmul_passes;

extern const quire_matmul_passes quire_matmul_avx2_passes;
extern const quire_matmul_passes quire_matmul_avxvnni_passes;

#endif /* QUIRE_MATMUL_AVX2_H */
