/* attn_append.c - store the new K and V of a step.
 *
 * The unit of work is (segment, kv head): one tile of K and one of V, which no other thread
 * touches. Threads take contiguous ranges of units; units differ little in cost.
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
    const float *x; /* NULL: this side is not stored (a layer that uses another layer's) */
    size_t stride;
    uint32_t rotate;
    const float *q; /* of K that minds queries; else NULL */
    size_t q_stride;
    uint32_t group; /* query heads per kv head */
    const quire_attn_lane *lane;
    const quire_attn_lane *hot_lane; /* NULL: the format is not sealed */
} append_side;

/* A thread's scratch, as in attn_internal.h. */
typedef struct append_scratch {
    float *tile;
    float *queries; /* a tile, too */
} append_scratch;

/* sums[i] = what the queries of head g add up to in row i of a segment, rotated as K is. */
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
    if (side->rotate != 0) {
        quire_hadamard(sums, (size_t)segment->n_tokens * d, side->rotate);
    }
}

/* Store a segment's rows of one head in a tile. */
static void store_rows(const append_side *side, const quire_attn_segment *segment, uint32_t g,
                       void *tile, const append_scratch *scratch)
{
    const uint32_t d = side->tiles.d;
    quire_tile_rows rows = { .d = d,
                             .first_slot = segment->first_slot,
                             .n_tokens = segment->n_tokens,
                             .stride = side->stride };
    const float *x = side->x + segment->first_row * side->stride + (size_t)g * d;

    if (side->rotate != 0) {
        for (uint32_t i = 0; i < segment->n_tokens; i++) {
            memcpy(scratch->tile + (size_t)i * d, x + i * side->stride, d * sizeof(float));
        }
        quire_hadamard(scratch->tile, (size_t)segment->n_tokens * d, side->rotate);
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

static void append_unit(const append_side *side, const quire_attn_segment *segment, uint32_t g,
                        const append_scratch *scratch)
{
    void *tile = quire_attn_tile(side->lane, segment->page, g, segment->tile);
    void *hot;

    if (side->x == NULL) {
        return;
    }
    if (side->hot_lane == NULL) {
        store_rows(side, segment, g, tile, scratch);
        return;
    }
    hot = quire_attn_tile(side->hot_lane, segment->hot, g, segment->tile);
    store_rows(side, segment, g, hot, scratch);
    if (segment->first_slot + segment->n_tokens == QUIRE_TILE_TOKENS) {
        quire_tile_seal(&side->tiles, hot, tile, scratch->tile);
    }
}

bool quire_attn_pairs_qk(const quire_attn_layer *layer)
{
    return layer->k_format == QUIRE_FORMAT_Q8 || quire_format_is_sealed(layer->k_format);
}

void quire_attn_append(quire_attn_workspace *workspace, const quire_attn_layer *layer,
                       uint32_t thread, uint32_t n_threads)
{
    const quire_codec *codec = workspace->codec;
    append_side k = { .tiles = { codec, QUIRE_SIDE_K, layer->k_format, layer->d_k },
                      .x = layer->k_new,
                      .stride = layer->k_new_stride,
                      .rotate = layer->rotate_k,
                      .q = quire_attn_pairs_qk(layer) ? layer->q[0] : NULL,
                      .q_stride = layer->q_stride,
                      .lane = &layer->k[0],
                      .hot_lane =
                          quire_format_is_sealed(layer->k_format) ? &layer->k_hot[0] : NULL };
    const append_side v = { .tiles = { codec, QUIRE_SIDE_V, layer->v_format, layer->d_v },
                            .x = layer->v_prefix_of_k ? NULL : layer->v_new,
                            .stride = layer->v_new_stride,
                            .rotate = layer->rotate_v,
                            .lane = &layer->v[0],
                            .hot_lane = quire_attn_v_is_sealed(layer) ? &layer->v_hot[0] : NULL };
    uint64_t n_units = (uint64_t)workspace->n_segments * layer->n_kv_head;
    append_scratch scratch;
    uint64_t end;

    QUIRE_CHECK(thread < n_threads && thread < workspace->limits.n_threads_max);
    QUIRE_ASSERT(quire_attn_layer_check(workspace, layer) == QUIRE_OK);
    QUIRE_CHECK(n_units == 0 || workspace->has_hot || !quire_attn_has_sealed(layer));
    k.group = layer->n_head / layer->n_kv_head;
    scratch = (append_scratch){ quire_attn_scratch_tile(workspace, thread),
                                quire_attn_scratch_queries(workspace, thread) };
    end = n_units * (thread + 1) / n_threads;
    for (uint64_t unit = n_units * thread / n_threads; unit < end; unit++) {
        const quire_attn_segment *segment = &workspace->segments[unit / layer->n_kv_head];
        uint32_t g = (uint32_t)(unit % layer->n_kv_head);

        append_unit(&k, segment, g, &scratch);
        append_unit(&v, segment, g, &scratch);
    }
}
