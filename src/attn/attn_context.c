/* attn_context.c - one thread's view of a call: its scratch, and how far ahead it prefetches.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/step/attn_block.h"
#include "base/check.h"
#include "base/cpu.h"

/* Prefetch goes so far ahead, in whole tiles: memory takes longer to answer than the work on a
 * small tile, and waiting tiles must fit the L1 cache beside data that the work reuses. Measured
 * with 3 rows of head 64, 3 kv heads. Zen 5 (48 KB): q4 5 or 6 tiles of 2.3 KB ahead take a fifth
 * less time than 2, q8 3 tiles of 4.2 KB 10 % less, f16 is as fast with 1 tile of 8 KB as with any
 * number. Cascade Lake (32 KB): q4 and q8 are 5 to 8 % faster with 7 KB than with 14, 9 KB lie
 * between; other CPUs with so small a cache follow it unmeasured. */
#define AHEAD_BYTES       ((size_t)14 << 10)
#define AHEAD_BYTES_SMALL ((size_t)7 << 10)
#define L1D_BYTES_SMALL   (32u << 10)

/* Zen 4 (32 KB) has prefetchers of its own that bring tiles as they are read, in the order of
 * memory, at the speed of memory; a prefetch into the L1 cache takes their place and does worse.
 * One into the L2 cache goes along with them, and wants to be far ahead. ns by token and kv head,
 * 1 thread, 3 rows of head 64, 3 kv heads; 7 KB into L1 / none / a position into L2:
 * f16 13.2 / 12.7 / 10.6, bf16 17.4 / 11.3 / 12.6, q8 7.3 / 6.4 / 5.5, q4 5.2 / 5.7 / 3.9.
 * Granite Rapids (48 KB; 2 MB of L2), 2 threads, 14 KB into L1 / a position into L2: f16 11.0
 * / 10.9, bf16 10.2 / 9.4, q8 5.6 / 4.9, q6 4.4 / 3.7, q4 2.8 / 2.5; head 128, 4 rows, 1 thread:
 * f16 47.6 / 41.0, q8 20.7 / 17.5, q6 13.4 / 11.4, q4 7.1 / 7.1. */
#define AHEAD_BYTES_L2 ((size_t)64 << 10)

static size_t ahead_bytes(void)
{
    const uint32_t l1d_bytes = quire_cpu_get()->l1d_bytes;

    if (quire_cpu_get()->prefetch_to_l2) {
        return AHEAD_BYTES_L2;
    }
    return l1d_bytes > 0 && l1d_bytes <= L1D_BYTES_SMALL ? AHEAD_BYTES_SMALL : AHEAD_BYTES;
}

/* The largest tile in main pages that the layer reads. */
static size_t largest_tile_bytes(const quire_attn_layer *layer)
{
    size_t largest = 0;

    for (uint32_t i = 0; i < layer->n_k; i++) {
        const size_t bytes = quire_tile_bytes(layer->k[i].format, QUIRE_SIDE_K, layer->d_k);

        largest = bytes > largest ? bytes : largest;
    }
    for (uint32_t i = 0; i < layer->n_v; i++) {
        const size_t bytes = quire_tile_bytes(layer->v[i].format, QUIRE_SIDE_V, layer->d_v);

        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

static unsigned char *take(unsigned char **rest, size_t bytes)
{
    unsigned char *p = *rest;

    *rest += quire_attn_round_up(bytes, 64);
    return p;
}

quire_attn_ctx quire_attn_ctx_of(quire_attn_workspace *workspace, const quire_attn_layer *layer,
                                 uint32_t thread, quire_attn_packed *held)
{
    quire_attn_ctx c = { .ws = workspace,
                         .layer = layer,
                         .held = held,
                         .shape = quire_attn_shape_of(workspace, layer) };
    uint32_t rows = c.shape.block_rows;
    unsigned char *begin = (unsigned char *)quire_attn_scratch_tile(workspace, thread);
    unsigned char *rest = begin;

    c.plan = &workspace->plans[c.shape.table];
    c.tile_bytes = largest_tile_bytes(layer);
    c.n_ahead = (uint32_t)(ahead_bytes() / c.tile_bytes);
    c.n_ahead = c.n_ahead > 0 ? c.n_ahead : 1;
    c.ahead_to = quire_cpu_get()->prefetch_to_l2 ? QUIRE_PREFETCH_L2 : QUIRE_PREFETCH_L1;
    c.decoded = (void *)take(&rest, quire_attn_scratch_tile_floats(workspace) * sizeof(float));
    c.row = (void *)take(&rest, workspace->limits.head_dim_max * sizeof(float));
    for (uint32_t k = 0; k < layer->n_k; k++) {
        c.packed[QUIRE_ATTN_PACKED_MAIN][k] = take(&rest, rows * c.shape.k[k].q_bytes);
        c.packed[QUIRE_ATTN_PACKED_HOT][k] = take(&rest, rows * c.shape.k[k].q_hot_bytes);
    }
    c.logits = (void *)take(&rest, (size_t)rows * QUIRE_TILE_TOKENS * sizeof(float));
    c.weights = (void *)take(&rest, rows * c.shape.weights_bytes);
    c.rescale = (void *)take(&rest, rows * sizeof(float));
    c.slot_end = (void *)take(&rest, rows * sizeof(uint32_t));
    c.queries = (void *)take(&rest, c.shape.block_queries * sizeof(quire_attn_query));
    for (uint32_t i = 0; i < 2; i++) {
        c.states[i] = (void *)take(&rest, quire_attn_state_floats(&c.shape, rows) * sizeof(float));
    }
    QUIRE_CHECK((size_t)(rest - begin) + workspace->behind_bytes <= workspace->scratch_bytes);
    return c;
}
