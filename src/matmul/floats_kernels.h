/* floats_kernels.h - the functions of a kernel set of floats.h.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MATMUL_FLOATS_KERNELS_H
#define QUIRE_MATMUL_FLOATS_KERNELS_H

#include "matmul/floats.h"

enum {
    QUIRE_FLOATS_LANES = 16,
    QUIRE_FLOATS_TILE_ROWS = 4, /* the most rows and outputs of a tile */
    QUIRE_FLOATS_TILE_OUTS = 4
};

/* Some rows times some outputs. */
typedef struct quire_floats_tile {
    quire_floats_type type;
    uint32_t n_in;
    uint32_t n_rows; /* 1 to the set's */
    uint32_t n_outs; /* the set's, or 1 */
    const char *w;   /* of the first output */
    size_t w_stride; /* bytes */
    const float *x[QUIRE_FLOATS_TILE_ROWS];
    float *y[QUIRE_FLOATS_TILE_ROWS]; /* at the first output */
} quire_floats_tile;

struct quire_floats_kernels {
    const char *name;
    uint32_t n_rows, n_outs; /* of a whole tile */
    void (*tile)(const quire_floats_tile *tile);
};

/* NULL where the CPU lacks the instructions. */
const quire_floats_kernels *quire_floats_kernels_avx512(void);
const quire_floats_kernels *quire_floats_kernels_avx2(void);
const quire_floats_kernels *quire_floats_kernels_portable(void);

#endif /* QUIRE_MATMUL_FLOATS_KERNELS_H */
