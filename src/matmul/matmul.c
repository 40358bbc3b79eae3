/* matmul.c - the division of the work among threads, and the choice of kernels.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/matmul_kernels.h"

#include "base/num.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of packed x that are multiplied with all panels before the next part of x. This part stays
 * in half of a small L2 cache while panels pass by. */
#define X_PART_BYTES ((size_t)256 << 10)

/* ---- tiles of x ---- */

size_t quire_matmul_x_bytes(uint32_t n_in, uint32_t n_rows)
{
    return (size_t)n_rows * (n_in / QUIRE_MATMUL_BLOCK) * QUIRE_MATMUL_BLOCK_BYTES;
}

/* A thread's part are blocks, counted through all tiles. */
void quire_matmul_x_pack(const quire_matmul_kernels *kernels, const quire_matmul_x *x, void *packed,
                         uint32_t thread, uint32_t n_threads)
{
    const uint32_t n_tiles = quire_matmul_tiles(x->n_rows);
    const uint32_t n_blocks = x->n_in / QUIRE_MATMUL_BLOCK;
    const uint64_t all = (uint64_t)n_tiles * n_blocks;
    const uint64_t end = all * (thread + 1) / n_threads;

    for (uint64_t at = all * thread / n_threads; at < end;) {
        const uint32_t tile = (uint32_t)(at / n_blocks);
        const uint32_t first = quire_matmul_tile_row(x->n_rows, n_tiles, tile);
        const uint64_t tile_begin = (uint64_t)tile * n_blocks;
        const uint64_t stop = end < tile_begin + n_blocks ? end : tile_begin + n_blocks;
        const quire_matmul_tile part = {
            .rows = x->rows + first * x->stride,
            .stride = x->stride,
            .n_rows = quire_matmul_tile_row(x->n_rows, n_tiles, tile + 1) - first,
            .begin = (uint32_t)(at - tile_begin),
            .end = (uint32_t)(stop - tile_begin),
            .at = (char *)packed + quire_matmul_x_bytes(x->n_in, first),
        };

        kernels->tile_pack(&part);
        at = stop;
    }
}

/* ---- products ---- */

/* One panel times tiles [begin, end) of x. */
static void run_panel(quire_matmul_panel p, const quire_matmul_y *y, const char *packed,
                      uint32_t begin, uint32_t end)
{
    const quire_matmul_kernels *kernels = p.weight->kernels;
    const bool is_shared =
        end - begin > 1 && quire_matmul_has_grid(p.weight->type) && kernels->grid_tiles != NULL;
    const uint32_t n_tiles = quire_matmul_tiles(y->n_rows);
    quire_matmul_panel shared[QUIRE_MATMUL_GRID_TILES];
    float *const to = p.y;
    uint32_t n_shared = 0;

    p.is_first = true;
    for (uint32_t tile = begin; tile < end; tile++) {
        const uint32_t first = quire_matmul_tile_row(y->n_rows, n_tiles, tile);

        p.n_rows = quire_matmul_tile_row(y->n_rows, n_tiles, tile + 1) - first;
        p.tile = packed + quire_matmul_x_bytes(p.weight->n_in, first);
        p.y = to + first * y->stride;
        if (!is_shared) {
            kernels->panel(&p);
            p.is_first = false;
            continue;
        }
        shared[n_shared++] = p;
        if (n_shared == QUIRE_MATMUL_GRID_TILES || tile + 1 == end) {
            kernels->grid_tiles(shared, n_shared);
            n_shared = 0;
            p.is_first = false;
        }
    }
}

void quire_matmul_run(const quire_matmul_weight *weight, const void *packed,
                      const quire_matmul_y *y, uint32_t thread, uint32_t n_threads)
{
    const uint32_t n_panels = weight->n_out / QUIRE_MATMUL_PANEL;

    quire_matmul_run_panels(weight, packed, y, (uint32_t)((uint64_t)n_panels * thread / n_threads),
                            (uint32_t)((uint64_t)n_panels * (thread + 1) / n_threads));
}

void quire_matmul_run_panels(const quire_matmul_weight *weight, const void *packed,
                             const quire_matmul_y *y, uint32_t begin, uint32_t end)
{
    const uint32_t n_tiles = quire_matmul_tiles(y->n_rows);
    const size_t bytes = quire_matmul_panel_bytes(weight->type, weight->n_in);
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

bool quire_matmul_is_fast(const quire_matmul_kernels *kernels, quire_matmul_type type)
{
    return kernels->grid_tiles != NULL || !quire_matmul_has_grid(type);
}

/* By name; a set is NULL where the CPU lacks it. */
static const quire_matmul_kernels *find_named(const char *name)
{
    static const struct {
        const char *name;
        const quire_matmul_kernels *(*find)(void);
    } sets[] = {
#if defined(QUIRE_MATMUL_HAS_X86)
        { "avx512", quire_matmul_kernels_avx512 },
        { "avx2+vnni", quire_matmul_kernels_avxvnni },
        { "avx2", quire_matmul_kernels_avx2 },
#endif
        { "portable", quire_matmul_kernels_portable },
    };

    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        if (strcmp(name, sets[i].name) == 0) {
            return sets[i].find();
        }
    }
    return NULL;
}

/* QUIRE_ISA names kernel sets of attention. A set without products of its own takes those of a
 * narrower set. */
static const quire_matmul_kernels *find_fastest(const char *isa)
{
    const bool is_any = isa == NULL || isa[0] == '\0';
    const bool is_avx512 = is_any || strncmp(isa, "avx512", strlen("avx512")) == 0;
    const bool is_avx2 = is_avx512 || strcmp(isa, "avx2") == 0;
    const quire_matmul_kernels *kernels = is_avx512 ? find_named("avx512") : NULL;

    if (kernels == NULL && is_avx2) {
        kernels = find_named("avx2+vnni");
    }
    return kernels == NULL && is_avx2 ? find_named("avx2") : kernels;
}

const quire_matmul_kernels *quire_matmul_kernels_find(const char *name)
{
    return name != NULL ? find_named(name) : find_fastest(getenv("QUIRE_ISA"));
}
