/* matmul_kernels.h - the interface of a kernel set of the matrix products (matmul.h has the
 * layouts).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MATMUL_KERNELS_H
#define QUIRE_MATMUL_KERNELS_H

#include "matmul/matmul.h"

#define QUIRE_MATMUL_GRID_TILES 16u /* that share codes of a type with a grid, at most */

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

/* Blocks of a tile of x. */
typedef struct quire_matmul_tile {
    const float *rows; /* of the tile, from its first input */
    size_t stride;     /* floats */
    uint32_t n_rows;
    uint32_t begin, end; /* blocks */
    void *at;            /* the tile */
} quire_matmul_tile;

struct quire_matmul_kernels {
    const char *isa;
    void (*tile_pack)(const quire_matmul_tile *tile);
    void (*panel)(const quire_matmul_panel *panel);
    /* The product of one panel of a type with a grid and up to QUIRE_MATMUL_GRID_TILES tiles:
     * panels[n] differ in the tile alone, and the tiles share the panel's codes. NULL in sets whose
     * products of these types are slower than ggml's. */
    void (*grid_tiles)(const quire_matmul_panel *panels, uint32_t n);
};

/* The layout of a type in GGUF and in panels. */
typedef struct quire_matmul_layout {
    uint32_t group;      /* inputs of a block of GGUF's, of MXFP4: of two */
    uint32_t gguf_bytes; /* of such a block; a panel has one of each output together */
    uint32_t head_bytes; /* of a panel's group */
    uint32_t code_bytes; /* of a panel's QUIRE_MATMUL_BLOCK inputs */
} quire_matmul_layout;

static const quire_matmul_layout quire_matmul_layouts[QUIRE_MATMUL_TYPES] = {
    [QUIRE_MATMUL_Q8_0] = { 32, 34, 64, 1024 },     [QUIRE_MATMUL_Q4_0] = { 32, 18, 64, 512 },
    [QUIRE_MATMUL_Q4_1] = { 32, 20, 128, 512 },     [QUIRE_MATMUL_Q5_0] = { 32, 22, 64, 640 },
    [QUIRE_MATMUL_Q5_1] = { 32, 24, 128, 640 },     [QUIRE_MATMUL_IQ4_NL] = { 32, 18, 64, 512 },
    [QUIRE_MATMUL_Q4_K] = { 256, 144, 512, 512 },   [QUIRE_MATMUL_Q5_K] = { 256, 176, 512, 640 },
    [QUIRE_MATMUL_Q6_K] = { 256, 210, 576, 768 },   [QUIRE_MATMUL_MXFP4] = { 64, 34, 64, 512 },
    [QUIRE_MATMUL_Q2_K] = { 256, 84, 640, 256 },    [QUIRE_MATMUL_Q3_K] = { 256, 110, 448, 384 },
    [QUIRE_MATMUL_IQ4_XS] = { 256, 136, 256, 512 }, [QUIRE_MATMUL_IQ2_XXS] = { 256, 66, 64, 256 },
    [QUIRE_MATMUL_IQ2_XS] = { 256, 74, 320, 256 },  [QUIRE_MATMUL_IQ2_S] = { 256, 82, 576, 256 },
    [QUIRE_MATMUL_IQ3_XXS] = { 256, 98, 64, 384 },  [QUIRE_MATMUL_IQ3_S] = { 256, 110, 448, 384 },
    [QUIRE_MATMUL_IQ1_S] = { 256, 50, 576, 128 },   [QUIRE_MATMUL_IQ1_M] = { 256, 56, 768, 128 },
};

/* Whether the halves of a block have scales of their own. */
static inline bool quire_matmul_has_halves(quire_matmul_type type)
{
    return type == QUIRE_MATMUL_Q6_K || type == QUIRE_MATMUL_Q3_K || type == QUIRE_MATMUL_Q2_K ||
           type == QUIRE_MATMUL_IQ2_XS || type == QUIRE_MATMUL_IQ2_S || type == QUIRE_MATMUL_IQ1_M;
}

/* Whether indices stand for several weights (matmul_grids.h). */
static inline bool quire_matmul_has_grid(quire_matmul_type type)
{
    return type >= QUIRE_MATMUL_IQ2_XXS;
}

/* Bytes of a panel. */
size_t quire_matmul_panel_bytes(quire_matmul_type type, uint32_t n_in);

/* The number of tiles of rows, and the first row of a tile; tile n_tiles is the end. */
static inline uint32_t quire_matmul_tiles(uint32_t n_rows)
{
    return (n_rows + QUIRE_MATMUL_TILE_ROWS - 1) / QUIRE_MATMUL_TILE_ROWS;
}

static inline uint32_t quire_matmul_tile_row(uint32_t n_rows, uint32_t n_tiles, uint32_t tile)
{
    return (uint32_t)((uint64_t)n_rows * tile / n_tiles);
}

/* Outputs of panels [begin, end) of y = W x. */
void quire_matmul_run_panels(const quire_matmul_weight *weight, const void *packed,
                             const quire_matmul_y *y, uint32_t begin, uint32_t end);

/* Fields of a block in packed x behind its QUIRE_MATMUL_BLOCK / 4 quads, [row] of 4 bytes each. */
enum {
    QUIRE_MATMUL_X_SUM = QUIRE_MATMUL_BLOCK / 4, /* -128 sum(n) */
    QUIRE_MATMUL_X_HALF,                         /* -32 sum(n) of the first half */
    QUIRE_MATMUL_X_D,
    QUIRE_MATMUL_X_DSUM /* d * sum(n) */
};

/* Values by code, plus 128. MXFP4's values are doubled to be integers, and its scale is halved. */
extern const uint8_t quire_matmul_iq4_nl[16];
extern const uint8_t quire_matmul_mxfp4[16];

#define QUIRE_MATMUL_MXFP4_BYTES 17u /* of a block in GGUF: the exponent, nibbles */

/* The scale of an exponent: 2^(e - 128). The two least are subnormal numbers. */
static inline uint32_t quire_matmul_mxfp4_scale_bits(uint32_t e)
{
    return e < 2 ? 0x00200000u << e : (e - 1) << 23;
}

const quire_matmul_kernels *quire_matmul_kernels_portable(void);
/* NULL where the CPU lacks it. */
const quire_matmul_kernels *quire_matmul_kernels_avx512(void);
const quire_matmul_kernels *quire_matmul_kernels_avxvnni(void);
const quire_matmul_kernels *quire_matmul_kernels_avx2(void);

#endif /* QUIRE_MATMUL_KERNELS_H */
