/* matmul.c - layouts, and who computes what.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/matmul_kernels.h"

#include "base/check.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

#define SCALE_BYTES 2u /* of a block, in GGUF as in panels */
#define ALIGN_BYTES 64u

/* Packed x that is worked on before the next part of it: half of a small L2 cache, where it meets
 * one panel after the other. */
#define X_PART_BYTES ((size_t)256 << 10)

/* ---- layouts ---- */

static uint32_t n_blocks_of(uint32_t n_in)
{
    return n_in / QUIRE_MATMUL_BLOCK;
}

/* Bytes of a block's codes. */
static uint32_t code_bytes(quire_matmul_type type)
{
    return type == QUIRE_MATMUL_Q8_0 ? QUIRE_MATMUL_BLOCK : QUIRE_MATMUL_BLOCK / 2;
}

bool quire_matmul_takes(uint64_t n_in, uint64_t n_out)
{
    return n_in > 0 && n_in % QUIRE_MATMUL_BLOCK == 0 && n_out > 0 &&
           n_out % QUIRE_MATMUL_PANEL == 0 && n_in <= UINT32_MAX && n_out <= UINT32_MAX;
}

size_t quire_matmul_scales_bytes(uint32_t n_in)
{
    size_t bytes = (size_t)n_blocks_of(n_in) * QUIRE_MATMUL_PANEL * SCALE_BYTES;

    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

size_t quire_matmul_codes_bytes(quire_matmul_type type, uint32_t n_in)
{
    return (size_t)n_blocks_of(n_in) * QUIRE_MATMUL_PANEL * code_bytes(type);
}

static size_t panel_bytes(quire_matmul_type type, uint32_t n_in)
{
    return quire_matmul_scales_bytes(n_in) + quire_matmul_codes_bytes(type, n_in);
}

size_t quire_matmul_weight_bytes(quire_matmul_type type, uint32_t n_in, uint32_t n_out)
{
    return n_out / QUIRE_MATMUL_PANEL * panel_bytes(type, n_in);
}

size_t quire_matmul_x_bytes(uint32_t n_in, uint32_t n_rows)
{
    return (size_t)n_rows * n_blocks_of(n_in) * QUIRE_MATMUL_BLOCK_BYTES;
}

/* One output's codes of a block, by four. GGUF's Q4_0 pairs inputs i and i + 16 in a byte, as
 * panels do. */
static void pack_block(quire_matmul_type type, const unsigned char *block, unsigned char *codes)
{
    const uint32_t flip = type == QUIRE_MATMUL_Q8_0 ? 0x80808080u : 0;

    for (uint32_t i = 0; i < code_bytes(type); i += 4) {
        uint32_t four;

        memcpy(&four, block + SCALE_BYTES + i, sizeof four);
        four ^= flip;
        memcpy(codes + (size_t)i * QUIRE_MATMUL_PANEL, &four, sizeof four);
    }
}

void quire_matmul_weight_pack(const quire_matmul_weight *weight, const void *rows)
{
    const quire_matmul_type type = weight->type;
    const uint32_t n_blocks = n_blocks_of(weight->n_in);
    const size_t block_bytes = SCALE_BYTES + code_bytes(type);
    const unsigned char *block = rows;

    QUIRE_CHECK(quire_matmul_takes(weight->n_in, weight->n_out));
    for (uint32_t out = 0; out < weight->n_out; out++) {
        const size_t lane = out % QUIRE_MATMUL_PANEL;
        unsigned char *panel =
            weight->panels + out / QUIRE_MATMUL_PANEL * panel_bytes(type, weight->n_in);
        unsigned char *scale = panel + lane * SCALE_BYTES;
        unsigned char *codes = panel + quire_matmul_scales_bytes(weight->n_in) + lane * 4;

        for (uint32_t b = 0; b < n_blocks; b++) {
            memcpy(scale, block, SCALE_BYTES);
            pack_block(type, block, codes);
            scale += QUIRE_MATMUL_PANEL * SCALE_BYTES;
            codes += QUIRE_MATMUL_PANEL * code_bytes(type);
            block += block_bytes;
        }
    }
}

/* ---- tiles of x ---- */

/* The first row of a tile. */
static uint32_t tile_row(uint32_t n_rows, uint32_t n_tiles, uint32_t tile)
{
    return (uint32_t)((uint64_t)n_rows * tile / n_tiles);
}

static uint32_t n_tiles_of(uint32_t n_rows)
{
    return (n_rows + QUIRE_MATMUL_TILE_ROWS - 1) / QUIRE_MATMUL_TILE_ROWS;
}

void quire_matmul_x_pack(const quire_matmul_kernels *kernels, const quire_matmul_x *x, void *packed,
                         uint32_t thread, uint32_t n_threads)
{
    const uint32_t n_tiles = n_tiles_of(x->n_rows);
    const uint32_t begin = (uint32_t)((uint64_t)x->n_rows * thread / n_threads);
    const uint32_t end = (uint32_t)((uint64_t)x->n_rows * (thread + 1) / n_threads);
    uint32_t tile = 0;

    for (uint32_t row = begin; row < end; row++) {
        while (tile_row(x->n_rows, n_tiles, tile + 1) <= row) {
            tile++;
        }
        const uint32_t first = tile_row(x->n_rows, n_tiles, tile);
        const uint32_t n = tile_row(x->n_rows, n_tiles, tile + 1) - first;
        char *at = (char *)packed + quire_matmul_x_bytes(x->n_in, first);

        kernels->row_pack(x->rows + row * x->stride, x->n_in, n, at + 4 * (size_t)(row - first));
    }
}

/* ---- products ---- */

/* One panel times tiles [begin, end) of x. */
static void run_panel(quire_matmul_panel p, const quire_matmul_y *y, const char *packed,
                      uint32_t begin, uint32_t end)
{
    const uint32_t n_tiles = n_tiles_of(y->n_rows);
    float *const to = p.y;

    p.is_first = true;
    for (uint32_t tile = begin; tile < end; tile++) {
        const uint32_t first = tile_row(y->n_rows, n_tiles, tile);

        p.n_rows = tile_row(y->n_rows, n_tiles, tile + 1) - first;
        p.tile = packed + quire_matmul_x_bytes(p.weight->n_in, first);
        p.y = to + first * y->stride;
        p.weight->kernels->panel(&p);
        p.is_first = false;
    }
}

void quire_matmul_run(const quire_matmul_weight *weight, const void *packed,
                      const quire_matmul_y *y, uint32_t thread, uint32_t n_threads)
{
    const uint32_t n_panels = weight->n_out / QUIRE_MATMUL_PANEL;
    const uint32_t begin = (uint32_t)((uint64_t)n_panels * thread / n_threads);
    const uint32_t end = (uint32_t)((uint64_t)n_panels * (thread + 1) / n_threads);
    const uint32_t n_tiles = n_tiles_of(y->n_rows);
    const size_t bytes = panel_bytes(weight->type, weight->n_in);
    const size_t tile_bytes = quire_matmul_x_bytes(weight->n_in, QUIRE_MATMUL_TILE_ROWS);
    const uint32_t step = tile_bytes < X_PART_BYTES ? (uint32_t)(X_PART_BYTES / tile_bytes) : 1;
    quire_matmul_panel p = { .weight = weight, .y_stride = y->stride };

    for (uint32_t tile = 0; tile < n_tiles; tile += step) {
        for (uint32_t panel = begin; panel < end; panel++) {
            p.at = weight->panels + panel * bytes;
            p.y = y->rows + (size_t)panel * QUIRE_MATMUL_PANEL;
            run_panel(p, y, packed, tile, quire_min_u32(n_tiles, tile + step));
        }
    }
}

/* ---- sets ---- */

static const quire_matmul_kernels *find_avx512(void)
{
#if defined(QUIRE_MATMUL_HAS_AVX512)
    return quire_matmul_kernels_avx512();
#else
    return NULL;
#endif
}

const quire_matmul_kernels *quire_matmul_kernels_find(const char *name)
{
    const char *asked = name != NULL ? name : getenv("QUIRE_ISA");

    if (asked == NULL || strncmp(asked, "avx512", strlen("avx512")) == 0 || asked[0] == '\0') {
        return find_avx512();
    }
    return name != NULL && strcmp(name, "portable") == 0 ? quire_matmul_kernels_portable() : NULL;
}

const char *quire_matmul_isa(const quire_matmul_kernels *kernels)
{
    return kernels->isa;
}
