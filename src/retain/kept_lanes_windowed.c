/* kept_lanes_windowed.c - lanes of layers with windows. The token at position t is in slot t, and
 * the pages of tokens that no later row sees are given back before a step.
 *
 *   pages   [ given back ][ sealed alone ][ in 8 bits as well ][ the rows of the step ]
 *           0             n_past          n_cooled             the step's first row
 *
 * The middle is there in sealed formats alone.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/check.h"
#include "base/num.h"

#define TILE QUIRE_TILE_TOKENS

uint32_t quire_lane_past(const quire_attn_layer *one, uint32_t position)
{
    uint32_t first = position - quire_min_u32(position, one->window - 1);

    if (one->has_chunks) {
        first = position - position % one->window;
    }
    return first / TILE * TILE;
}

/* The token up to which the distance rule reads tiles sealed, the sinks apart. */
static uint32_t cooled_at(const quire_attn_layer *one, uint32_t position)
{
    const uint32_t tile = position / TILE;

    return tile > one->recent_tiles ? (tile - one->recent_tiles) * TILE : 0;
}

static void release(const quire_lanes *lanes, const lane_state *lane, quire_group_id group,
                    uint32_t begin, uint32_t end)
{
    if (begin < end) {
        int rc = quire_seq_release(lanes->cache, lane->seq, group, begin, end, NULL);

        QUIRE_CHECK(rc == QUIRE_OK);
    }
}

void quire_lane_give_back(const quire_lanes *lanes, const lane_layer *layer, const lane_state *lane,
                          uint32_t position)
{
    const uint32_t past = quire_lane_past(&layer->one, position);
    const uint32_t n_sinks = layer->one.sink_tiles * TILE;

    release(lanes, lane, QUIRE_LANES_MAIN, layer->n_past, past);
    if (lanes->hot_bytes > 0) {
        release(lanes, lane, QUIRE_LANES_HOT, layer->n_past, past);
        release(lanes, lane, QUIRE_LANES_HOT, quire_max_u32(layer->n_cooled, n_sinks),
                cooled_at(&layer->one, position));
    }
}

void quire_layer_given_back(lane_layer *layer, uint32_t position)
{
    layer->n_past = quire_max_u32(layer->n_past, quire_lane_past(&layer->one, position));
    layer->n_cooled = quire_max_u32(layer->n_cooled, cooled_at(&layer->one, position));
}

void quire_lanes_give_back(quire_lanes *lanes, uint32_t position)
{
    for (uint32_t l = 0; l < lanes->n_layers; l++) {
        lane_layer *layer = &lanes->layers[l];

        for (uint32_t g = 0; layer->is_windowed && g < lanes->n_kv_head; g++) {
            quire_lane_give_back(lanes, layer, quire_lane_at(lanes, l, g), position);
        }
        if (layer->is_windowed) {
            quire_layer_given_back(layer, position);
        }
    }
}

void quire_lanes_windowed_cut(quire_lanes *lanes, uint32_t n)
{
    for (uint32_t l = 0; l < lanes->n_layers; l++) {
        lane_layer *layer = &lanes->layers[l];

        layer->n_past = quire_min_u32(layer->n_past, n);
        layer->n_cooled = quire_min_u32(layer->n_cooled, n);
    }
}

uint32_t quire_lanes_windowed_cuttable(const quire_lanes *lanes, uint32_t n)
{
    /* A cut moves to the start of its tile, where nothing moves it on. */
    for (uint32_t l = 0; l < lanes->n_layers; l++) {
        if (lanes->layers[l].is_windowed) {
            n = quire_seq_truncatable(lanes->cache, quire_lane_at(lanes, l, 0)->seq, n);
        }
    }
    for (uint32_t l = 0; l < lanes->n_layers; l++) {
        const lane_layer *layer = &lanes->layers[l];

        if (layer->is_windowed && quire_lane_past(&layer->one, n) < layer->n_past) {
            return 0;
        }
    }
    return n;
}
