/* experts.c - see experts.h.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/experts.h"

#include "base/check.h"
#include "matmul/matmul_kernels.h"

#include <string.h>

/* Blocks of a tile whose rows are gathered at a time: 8 KiB, which stay in the L1 cache. */
#define GATHER_BLOCKS 8u

enum {
    BLOCK = QUIRE_MATMUL_BLOCK,
    ROWS = QUIRE_MATMUL_TILE_ROWS
};

/* ---- plans ---- */

static size_t pairs_of(const quire_experts_shape *shape)
{
    return (size_t)shape->n_rows * shape->n_used;
}

size_t quire_experts_plan_words(const quire_experts_shape *shape)
{
    return (size_t)shape->n_experts + 1 + 2 * pairs_of(shape);
}

quire_experts_plan quire_experts_plan_at(const quire_experts_shape *shape, const uint32_t *words)
{
    const uint32_t *rows = words + shape->n_experts + 1;

    return (quire_experts_plan){
        .shape = *shape, .first = words, .rows = rows, .places = rows + pairs_of(shape)
    };
}

/* Sort by counting. While pairs are placed, first[e] is where the next pair of e goes; afterwards
 * it is where e + 1 begins. */
void quire_experts_plan_write(const quire_experts_shape *shape, const int32_t *choices,
                              uint32_t *words)
{
    const uint32_t n_experts = shape->n_experts;
    uint32_t *first = words, *rows = words + n_experts + 1, *places = rows + pairs_of(shape);

    memset(first, 0, (n_experts + 1) * sizeof *first);
    for (size_t i = 0; i < pairs_of(shape); i++) {
        QUIRE_CHECK(choices[i] >= 0 && (uint32_t)choices[i] < n_experts);
        first[choices[i] + 1]++;
    }
    for (uint32_t e = 0; e < n_experts; e++) {
        first[e + 1] += first[e];
    }
    for (size_t i = 0; i < pairs_of(shape); i++) {
        places[i] = first[choices[i]]++;
        rows[places[i]] = (uint32_t)(i / shape->n_used);
    }
    memmove(first + 1, first, n_experts * sizeof *first);
    first[0] = 0;
}

/* ---- x ---- */

size_t quire_experts_x_bytes(const quire_experts_shape *shape, uint32_t n_in)
{
    return quire_matmul_x_bytes(n_in, 1) * pairs_of(shape);
}

/* A single row is packed once, for all of its experts. */
static bool is_single(const quire_experts_plan *plan, bool is_by_place)
{
    return plan->shape.n_rows == 1 && !is_by_place;
}

static uint32_t expert_pairs(const quire_experts_plan *plan, uint32_t expert)
{
    return plan->first[expert + 1] - plan->first[expert];
}

/* A tile of some expert's pairs. */
typedef struct tile_place {
    uint32_t first; /* place */
    uint32_t n_rows;
} tile_place;

static uint32_t tiles_of(const quire_experts_plan *plan, bool is_by_place)
{
    uint32_t n = 0;

    if (is_single(plan, is_by_place)) {
        return 1;
    }
    for (uint32_t e = 0; e < plan->shape.n_experts; e++) {
        n += quire_matmul_tiles(expert_pairs(plan, e));
    }
    return n;
}

/* Tile `tile` of all experts' together. */
static tile_place tile_find(const quire_experts_plan *plan, bool is_by_place, uint32_t tile)
{
    uint32_t e = 0, n_pairs, n_tiles, begin;

    if (is_single(plan, is_by_place)) {
        return (tile_place){ 0, 1 };
    }
    for (; tile >= quire_matmul_tiles(expert_pairs(plan, e)); e++) {
        tile -= quire_matmul_tiles(expert_pairs(plan, e));
    }
    n_pairs = expert_pairs(plan, e);
    n_tiles = quire_matmul_tiles(n_pairs);
    begin = quire_matmul_tile_row(n_pairs, n_tiles, tile);
    return (tile_place){ plan->first[e] + begin,
                         quire_matmul_tile_row(n_pairs, n_tiles, tile + 1) - begin };
}

/* Pack blocks of a tile whose rows lie anywhere. */
static void gather_pack(const quire_matmul_kernels *kernels, const quire_experts_x *x,
                        const uint32_t *rows, quire_matmul_tile tile)
{
    float some[ROWS * GATHER_BLOCKS * BLOCK];
    const size_t block_bytes = (size_t)tile.n_rows * QUIRE_MATMUL_BLOCK_BYTES;
    const uint32_t end = tile.end;
    char *const at = tile.at;

    tile.rows = some;
    tile.stride = (size_t)GATHER_BLOCKS * BLOCK;
    for (uint32_t b = tile.begin; b < end; b += GATHER_BLOCKS) {
        const uint32_t n = end - b < GATHER_BLOCKS ? end - b : GATHER_BLOCKS;

        for (uint32_t r = 0; r < tile.n_rows; r++) {
            memcpy(some + r * tile.stride, x->rows + rows[r] * x->stride + (size_t)b * BLOCK,
                   (size_t)n * BLOCK * sizeof *some);
        }
        tile.begin = 0;
        tile.end = n;
        tile.at = at + b * block_bytes;
        kernels->tile_pack(&tile);
    }
}

/* A thread's part are blocks, counted through all tiles. */
void quire_experts_x_pack(const quire_matmul_kernels *kernels, const quire_experts_plan *plan,
                          const quire_experts_x *x, void *packed, uint32_t thread,
                          uint32_t n_threads)
{
    const uint32_t n_blocks = x->n_in / BLOCK;
    const uint64_t all = (uint64_t)tiles_of(plan, x->is_by_place) * n_blocks;
    const uint64_t end = all * (thread + 1) / n_threads;

    for (uint64_t at = all * thread / n_threads; at < end;) {
        const uint32_t tile = (uint32_t)(at / n_blocks);
        const tile_place place = tile_find(plan, x->is_by_place, tile);
        const uint64_t tile_begin = (uint64_t)tile * n_blocks;
        const uint64_t stop = end < tile_begin + n_blocks ? end : tile_begin + n_blocks;
        const uint32_t row = x->is_by_place ? place.first : plan->rows[place.first];
        quire_matmul_tile part = {
            .rows = x->rows + row * x->stride,
            .stride = x->stride,
            .n_rows = place.n_rows,
            .begin = (uint32_t)(at - tile_begin),
            .end = (uint32_t)(stop - tile_begin),
            .at = (char *)packed + quire_matmul_x_bytes(x->n_in, 1) * place.first,
        };

        if (x->is_by_place || place.n_rows == 1) {
            kernels->tile_pack(&part);
        } else {
            gather_pack(kernels, x, plan->rows + place.first, part);
        }
        at = stop;
    }
}

/* ---- products ---- */

static void bias_add(const quire_matmul_y *y, const float *bias, uint32_t begin, uint32_t end)
{
    for (uint32_t r = 0; r < y->n_rows; r++) {
        float *row = y->rows + r * y->stride;

        for (uint32_t i = begin * QUIRE_MATMUL_PANEL; i < end * QUIRE_MATMUL_PANEL; i++) {
            row[i] += bias[i];
        }
    }
}

/* Panels [begin, end) of one expert. */
static void expert_run(const quire_experts_product *p, const quire_experts_plan *plan,
                       uint32_t expert, uint32_t begin, uint32_t end)
{
    const uint32_t n_in = p->weight->n_in;
    const uint32_t n_out = p->weight->n_out / plan->shape.n_experts;
    const size_t bytes = quire_matmul_weight_bytes(p->weight->type, n_in, n_out);
    const uint32_t first = plan->first[expert];
    const size_t packed_first = is_single(plan, p->is_by_place) ? 0 : first;
    const quire_matmul_y y = { .rows = p->y + first * p->y_stride,
                               .stride = p->y_stride,
                               .n_rows = expert_pairs(plan, expert) };
    quire_matmul_weight weight = *p->weight;

    weight.n_out = n_out;
    weight.panels += expert * bytes;
    quire_matmul_run_panels(&weight,
                            (const char *)p->packed + quire_matmul_x_bytes(n_in, 1) * packed_first,
                            &y, begin, end);
    if (p->bias != NULL) {
        bias_add(&y, p->bias + (size_t)expert * n_out, begin, end);
    }
}

/* The first panel of an expert that is not before `at`, in units of a panel times a tile. */
static uint32_t panel_at(uint64_t at, uint64_t expert_begin, uint32_t n_tiles, uint32_t n_panels)
{
    const uint64_t panel = at > expert_begin ? (at - expert_begin + n_tiles - 1) / n_tiles : 0;

    return panel < n_panels ? (uint32_t)panel : n_panels;
}

/* Experts with more tiles take longer, so the shares of threads are panels times tiles. */
void quire_experts_run(const quire_experts_product *product, const quire_experts_plan *plan,
                       uint32_t thread, uint32_t n_threads)
{
    const uint32_t n_panels = product->weight->n_out / plan->shape.n_experts / QUIRE_MATMUL_PANEL;
    const uint64_t all = (uint64_t)tiles_of(plan, true) * n_panels;
    const uint64_t begin = all * thread / n_threads;
    const uint64_t end = all * (thread + 1) / n_threads;
    uint64_t expert_begin = 0;

    for (uint32_t e = 0; e < plan->shape.n_experts && expert_begin < end; e++) {
        const uint32_t n_tiles = quire_matmul_tiles(expert_pairs(plan, e));

        if (n_tiles > 0) {
            const uint32_t from = panel_at(begin, expert_begin, n_tiles, n_panels);
            const uint32_t to = panel_at(end, expert_begin, n_tiles, n_panels);

            if (from < to) {
                expert_run(product, plan, e, from, to);
            }
        }
        expert_begin += (uint64_t)n_tiles * n_panels;
    }
}
