/* attn_append.c - store the new K and V of a step.
 *
 * The unit of work is (segment, kv head): one tile of K and one of V, which no other thread
 * touches. Threads take contiguous ranges of units; units differ little in cost.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_internal.h"
#include "base/check.h"

#include <string.h>

typedef struct append_side {
    const float *x; /* NULL: this side is not stored (a layer that uses another layer's) */
    size_t stride;
    uint32_t d;
    uint32_t rotate;
    quire_format format;
    const quire_attn_lane *lane;
    void (*encode)(quire_format format, const quire_tile_rows *rows, const float *x, void *tile);
} append_side;

static void append_unit(const append_side *side, const quire_attn_segment *segment, uint32_t g,
                        float *rotated)
{
    quire_tile_rows rows = { .d = side->d,
                             .first_slot = segment->first_slot,
                             .n_tokens = segment->n_tokens,
                             .stride = side->stride };
    void *tile = quire_attn_tile(side->lane, segment->page, g, segment->tile);
    const float *x;

    if (side->x == NULL) {
        return;
    }
    x = side->x + segment->first_row * side->stride + (size_t)g * side->d;
    if (side->rotate != 0) {
        for (uint32_t i = 0; i < segment->n_tokens; i++) {
            memcpy(rotated + (size_t)i * side->d, x + i * side->stride, side->d * sizeof(float));
        }
        quire_hadamard(rotated, (size_t)segment->n_tokens * side->d, side->rotate);
        x = rotated;
        rows.stride = side->d;
    }
    side->encode(side->format, &rows, x, tile);
}

void quire_attn_append(quire_attn_workspace *workspace, const quire_attn_layer *layer,
                       uint32_t thread, uint32_t n_threads)
{
    const append_side k = {
        layer->k_new, layer->k_new_stride,       layer->d_k, layer->rotate_k, layer->k_format,
        &layer->k[0], workspace->codec->encode_k
    };
    const append_side v = { layer->v_prefix_of_k ? NULL : layer->v_new,
                            layer->v_new_stride,
                            layer->d_v,
                            layer->rotate_v,
                            layer->v_format,
                            &layer->v[0],
                            workspace->codec->encode_v };
    uint64_t n_units = (uint64_t)workspace->n_segments * layer->n_kv_head;
    uint64_t end;
    float *rotated;

    QUIRE_CHECK(thread < n_threads && thread < workspace->limits.n_threads_max);
    QUIRE_ASSERT(quire_attn_layer_check(workspace, layer) == QUIRE_OK);
    rotated = quire_attn_scratch_tile(workspace, thread);
    end = n_units * (thread + 1) / n_threads;
    for (uint64_t unit = n_units * thread / n_threads; unit < end; unit++) {
        const quire_attn_segment *segment = &workspace->segments[unit / layer->n_kv_head];
        uint32_t g = (uint32_t)(unit % layer->n_kv_head);

        append_unit(&k, segment, g, rotated);
        append_unit(&v, segment, g, rotated);
    }
}
