/* floats.c - see floats.h.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/floats_kernels.h"

#include "base/cpu.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of weights that are multiplied with all rows before the next weights. They stay in half of
 * a small L2 cache, while the rows of a tile stay in the L1 cache. */
#define W_PART_BYTES ((size_t)128 << 10)

/* Parts of threads begin at multiples of so many outputs: whole cache lines of y, whole tiles. */
#define PART_OUTS 16u

/* Outputs that are multiplied together: whole tiles. */
static uint32_t part_outs(const quire_floats_product *p)
{
    const uint32_t n = (uint32_t)(W_PART_BYTES / p->w_stride);
    const uint32_t tile = p->kernels->n_outs;

    return n > tile ? n / tile * tile : tile;
}

/* One tile's rows at the outputs that `tile` names. */
static void rows_run(const quire_floats_product *p, quire_floats_tile *tile, uint32_t row,
                     uint32_t out)
{
    for (uint32_t r = 0; r < tile->n_rows; r++) {
        const size_t from = p->x_rows != NULL ? p->x_rows[row + r] : row + r;

        tile->x[r] = p->x + from * p->x_stride;
        tile->y[r] = p->y + (size_t)(row + r) * p->y_stride + out;
    }
    p->kernels->tile(tile);
    for (uint32_t r = 0; p->bias != NULL && r < tile->n_rows; r++) {
        for (uint32_t o = 0; o < tile->n_outs; o++) {
            tile->y[r][o] += p->bias[out + o];
        }
    }
}

/* The rows of one tile times outputs [begin, end). */
static void outs_run(const quire_floats_product *p, quire_floats_tile *tile, uint32_t row,
                     uint32_t begin, uint32_t end)
{
    const uint32_t n_outs = p->kernels->n_outs;

    tile->n_rows = quire_min_u32(p->n_rows - row, p->kernels->n_rows);
    for (uint32_t out = begin; out < end; out += tile->n_outs) {
        tile->n_outs = end - out < n_outs ? 1 : n_outs;
        tile->w = (const char *)p->w + out * p->w_stride;
        rows_run(p, tile, row, out);
    }
}

void quire_floats_run(const quire_floats_product *p, uint32_t begin, uint32_t end)
{
    const uint32_t n_together = part_outs(p);
    quire_floats_tile tile = { .type = p->type, .n_in = p->n_in, .w_stride = p->w_stride };

    for (uint32_t first = begin; first < end; first += n_together) {
        const uint32_t last = quire_min_u32(end, first + n_together);

        for (uint32_t row = 0; row < p->n_rows; row += tile.n_rows) {
            outs_run(p, &tile, row, first, last);
        }
    }
}

/* The first output of a thread's part. */
static uint32_t part_begin(uint32_t n_out, uint32_t thread, uint32_t n_threads)
{
    const uint64_t n_parts = (n_out + PART_OUTS - 1) / PART_OUTS;

    return quire_min_u32(n_out, (uint32_t)(n_parts * thread / n_threads) * PART_OUTS);
}

void quire_floats_run_part(const quire_floats_product *product, uint32_t n_out, uint32_t thread,
                           uint32_t n_threads)
{
    quire_floats_run(product, part_begin(n_out, thread, n_threads),
                     part_begin(n_out, thread + 1, n_threads));
}

void quire_floats_experts_run(const quire_floats_experts *experts, const quire_experts_plan *plan,
                              uint32_t thread, uint32_t n_threads)
{
    for (uint32_t e = 0; e < plan->shape.n_experts; e++) {
        const uint32_t first = plan->first[e];
        quire_floats_product p = experts->one;

        p.n_rows = plan->first[e + 1] - first;
        if (p.n_rows == 0) {
            continue;
        }
        p.w = (const char *)p.w + e * experts->w_bytes;
        p.bias = p.bias != NULL ? p.bias + (size_t)e * experts->n_out : NULL;
        p.y += first * p.y_stride;
        if (experts->is_by_place) {
            p.x += first * p.x_stride;
        } else {
            p.x_rows = plan->rows + first;
        }
        quire_floats_run_part(&p, experts->n_out, thread, n_threads);
    }
}

/* ---- sets ---- */

static const quire_floats_kernels *find_named(const char *name)
{
#if defined(QUIRE_MATMUL_HAS_X86)
    if (strcmp(name, "avx512") == 0) {
        return quire_floats_kernels_avx512();
    }
    if (strcmp(name, "avx2") == 0) {
        return quire_floats_kernels_avx2();
    }
#endif
    return strcmp(name, "portable") == 0 ? quire_floats_kernels_portable() : NULL;
}

/* Whether the CPU multiplies and adds in one instruction. The C library does it in software
 * otherwise, which is slower than ggml's products by far. */
static bool has_fma(void)
{
#if defined(QUIRE_MATMUL_HAS_X86)
    return quire_cpu_get()->has_avx2;
#else
    return true;
#endif
}

/* QUIRE_ISA names kernel sets of attention, as for the products of matmul.h. */
static const quire_floats_kernels *find_fastest(const char *isa)
{
    const bool is_any = isa == NULL || isa[0] == '\0';
    const bool is_avx512 = is_any || strncmp(isa, "avx512", strlen("avx512")) == 0;
    const quire_floats_kernels *kernels = is_avx512 ? find_named("avx512") : NULL;

    if (kernels == NULL && (is_avx512 || strcmp(isa, "avx2") == 0)) {
        kernels = find_named("avx2");
    }
    if (kernels == NULL && (!is_any || has_fma())) {
        kernels = quire_floats_kernels_portable();
    }
    return kernels;
}

const quire_floats_kernels *quire_floats_kernels_find(const char *name)
{
    return name != NULL ? find_named(name) : find_fastest(getenv("QUIRE_ISA"));
}
