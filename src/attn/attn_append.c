/* attn_append.c - store the new K and V of a step.
 *
 * The unit of work is (segment, kv head): one tile of K or of V, which no other thread touches.
 * Threads take contiguous ranges of units; units differ little in cost.
 *
 * A sealed side is stored hot. The segment that fills a hot tile seals it.
 *
 * K in 8 bit is rounded with its token's queries in view, where the layer has them
 * (codec/q8_rounding_body.h).
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_internal.h"
#include "base/check.h"
#include "codec/tile_side.h"

#include <string.h>

typedef struct append_side {
    quire_tile_side tiles;
    const quire_attn_source *store;
    const float *x;
    size_t stride;
    const float *q; /* of K that minds queries; else NULL */
    size_t q_stride;
    uint32_t group; /* query heads per kv head */
} append_side;

/* A thread's scratch, as in attn_internal.h. */
typedef struct append_scratch {
    float *tile;
    float *queries; /* a tile, too */
} append_scratch;

/* sums[i] = the sum of the queries of head g in row i of a segment, rotated as K is. */
static void sum_queries(const append_side *side, const quire_attn_segment *segment, uint32_t g,
                        float *sums)
{
    const uint32_t d = side->tiles.d;

    for (uint32_t i = 0; i < segment->n_tokens; i++) {
        const float *q =
            side->q + (segment->first_row + i) * side->q_stride + (size_t)g * side->group * d;
        float *sum = sums + (size_t)i * d;

        memcpy(sum, q, d * sizeof(float));
        for (uint32_t h = 1; h < side->group; h++) {
            for (uint32_t k = 0; k < d; k++) {
                sum[k] += q[(size_t)h * d + k];
            }
        }
    }
    if (side->store->rotate != 0) {
        quire_hadamard(sums, (size_t)segment->n_tokens * d, side->store->rotate);
    }
}

/* Store a segment's rows of one head in a tile. */
static void store_rows(const append_side *side, const quire_attn_segment *segment, uint32_t g,
                       void *tile, const append_scratch *scratch)
{
    const uint32_t d = side->tiles.d;
    const uint32_t rotate = side->store->rotate;
    quire_tile_rows rows = { .d = d,
                             .first_slot = segment->first_slot,
                             .n_tokens = segment->n_tokens,
                             .stride = side->stride };
    const float *x = side->x + segment->first_row * side->stride + (size_t)g * d;

    if (rotate != 0) {
        for (uint32_t i = 0; i < segment->n_tokens; i++) {
            memcpy(scratch->tile + (size_t)i * d, x + i * side->stride, d * sizeof(float));
        }
        quire_hadamard(scratch->tile, (size_t)segment->n_tokens * d, rotate);
        x = scratch->tile;
        rows.stride = d;
    }
    if (side->q != NULL) {
        sum_queries(side, segment, g, scratch->queries);
        rows.queries = scratch->queries;
        rows.queries_stride = d;
    }
    quire_tile_encode(&side->tiles, quire_tile_open_format(&side->tiles), &rows, x, tile);
}

static void append_unit(const quire_attn_batch *batch, const append_side *side,
                        const quire_attn_segment *segment, uint32_t g,
                        const append_scratch *scratch)
{
    const quire_attn_source *store = side->store;
    void *tile = quire_attn_tile(&store->lane,
                                 quire_attn_page(batch, segment->seq, store->group, segment->entry),
                                 g, segment->tile);
    void *hot;

    if (!quire_format_is_sealed(store->format)) {
        store_rows(side, segment, g, tile, scratch);
        return;
    }
    hot = quire_attn_tile(&store->hot_lane,
                          quire_attn_page(batch, segment->seq, store->hot_group, segment->entry), g,
                          segment->tile);
    store_rows(side, segment, g, hot, scratch);
    if (segment->first_slot + segment->n_tokens == QUIRE_TILE_TOKENS) {
        quire_tile_seal(&side->tiles, hot, tile, scratch->tile);
    }
}

/* A thread's share of one side. */
static void append_share(quire_attn_workspace *workspace, const append_side *side,
                         uint32_t n_kv_head, uint32_t thread, uint32_t n_threads)
{
    const quire_attn_plan *plan = &workspace->plans[side->store->group];
    const uint64_t n_units = (uint64_t)plan->n_segments * n_kv_head;
    const uint64_t end = n_units * (thread + 1) / n_threads;
    const append_scratch scratch = { quire_attn_scratch_tile(workspace, thread),
                                     quire_attn_scratch_queries(workspace, thread) };

    for (uint64_t unit = n_units * thread / n_threads; unit < end; unit++) {
        append_unit(&workspace->batch, side, &plan->segments[unit / n_kv_head],
                    (uint32_t)(unit % n_kv_head), &scratch);
    }
}

bool quire_attn_pairs_qk(const quire_attn_layer *layer)
{
    const quire_attn_source *read = &layer->k[0];
    const quire_attn_source *store = &layer->k_store;

    return quire_attn_is_8bit(store->format) && read->format == store->format &&
           read->group == store->group && read->lane.offset == store->lane.offset;
}

void quire_attn_append(quire_attn_workspace *workspace, const quire_attn_layer *layer,
                       uint32_t thread, uint32_t n_threads)
{
    const quire_codec *codec = workspace->codec;
    const append_side k = { .tiles = { codec, QUIRE_SIDE_K, layer->k_store.format, layer->d_k },
                            .store = &layer->k_store,
                            .x = layer->k_new,
                            .stride = layer->k_new_stride,
                            .q = quire_attn_pairs_qk(layer) ? layer->q[0] : NULL,
                            .q_stride = layer->q_stride,
                            .group = layer->n_head / layer->n_kv_head };
    const append_side v = { .tiles = { codec, QUIRE_SIDE_V, layer->v_store.format, layer->d_v },
                            .store = &layer->v_store,
                            .x = layer->v_prefix_of_k ? NULL : layer->v_new,
                            .stride = layer->v_new_stride };

    QUIRE_CHECK(thread < n_threads && thread < workspace->limits.n_threads_max);
    QUIRE_ASSERT(quire_attn_layer_check(workspace, layer) == QUIRE_OK);
    if (k.x != NULL) {
        append_share(workspace, &k, layer->n_kv_head, thread, n_threads);
    }
    if (v.x != NULL) {
        append_share(workspace, &v, layer->n_kv_head, thread, n_threads);
    }
}
