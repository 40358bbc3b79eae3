/* matmul_kernels.h - what a kernel set of the matrix products consists of (matmul.h has the
 * layouts).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MATMUL_KERNELS_H
#define QUIRE_MATMUL_KERNELS_H

#include "matmul/matmul.h"

/* One panel times one tile of x. */
typedef struct quire_matmul_panel {
    const quire_matmul_weight *weight;
    const unsigned char *at; /* the panel */
    const void *tile;
    uint32_t n_rows; /* of the tile, 1 to QUIRE_MATMUL_TILE_ROWS */
    bool is_first; /* tile to meet the panel: its bytes come from memory, and so will the next's */
    float *y;      /* [n_rows][QUIRE_MATMUL_PANEL] */
    size_t y_stride; /* floats */
} quire_matmul_panel;

struct quire_matmul_kernels {
    const char *isa;
    /* A row of n_in floats into its place in a tile of n_rows rows. */
    void (*row_pack)(const float *row, uint32_t n_in, uint32_t n_rows, void *at);
    void (*panel)(const quire_matmul_panel *panel);
};

/* Bytes of a panel's scales, and of its codes. */
size_t quire_matmul_scales_bytes(uint32_t n_in);
size_t quire_matmul_codes_bytes(quire_matmul_type type, uint32_t n_in);

const quire_matmul_kernels *quire_matmul_kernels_portable(void);
/* NULL where the CPU lacks it. */
const quire_matmul_kernels *quire_matmul_kernels_avx512(void);

#endif /* QUIRE_MATMUL_KERNELS_H */
