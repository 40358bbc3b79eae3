/* kept_lanes_fit.c - merge=fit of a lane: its rows and tokens to retain/kept_fit.h, and back.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_fit.h"
#include "retain/kept_lanes_internal.h"
#include "retain/probe.h"

#include <string.h>

#define TILE QUIRE_TILE_TOKENS

/* A lane in the room of a thread. */
typedef struct lane_fit {
    void *solving;
    float *attention;     /* [n_rows][n] */
    float *values;        /* [n][d_v] */
    float *keys;          /* [n][d_k] */
    float *queries;       /* [n_rows][d_k] */
    unsigned char *roles; /* [n] */
} lane_fit;

/* Queries of each head that are fitted to. */
static uint32_t n_queries_max(uint32_t group, uint32_t probe)
{
    const uint32_t most = group < QUIRE_KEPT_FIT_ROWS_MAX ? QUIRE_KEPT_FIT_ROWS_MAX / group : 1;

    return probe < most ? probe : most;
}

static size_t aligned(size_t n_bytes)
{
    return (n_bytes + 63) / 64 * 64;
}

size_t quire_lanes_fit_bytes(const quire_attn_layer *layer, uint32_t group, uint32_t probe,
                             uint32_t n)
{
    const uint32_t n_rows = group * n_queries_max(group, probe);
    const size_t n_floats =
        (size_t)n_rows * n + (size_t)n * (layer->d_v + layer->d_k) + (size_t)n_rows * layer->d_k;

    return aligned(quire_kept_fit_bytes(n, n_rows, layer->d_v)) +
           aligned(n_floats * sizeof(float) + n);
}

static lane_fit lane_fit_in(const quire_attn_layer *one, uint32_t n_rows, uint32_t n, void *room)
{
    unsigned char *bytes = room;
    lane_fit m = { .solving = room };

    m.attention = (float *)(void *)(bytes + aligned(quire_kept_fit_bytes(n, n_rows, one->d_v)));
    m.values = m.attention + (size_t)n_rows * n;
    m.keys = m.values + (size_t)n * one->d_v;
    m.queries = m.keys + (size_t)n * one->d_k;
    m.roles = (unsigned char *)(m.queries + (size_t)n_rows * one->d_k);
    return m;
}

static void attend(const quire_lanes *lanes, uint32_t chosen, uint32_t n_queries, const lane_fit *m)
{
    const quire_attn_layer *one = &lanes->layers[quire_lane_layer(lanes, chosen)].one;
    const lane_state *state = quire_lane_chosen(lanes, chosen);
    const quire_retain_lane lane = { .n_tokens = state->n,
                                     .positions = state->positions + 1,
                                     .n_text = lanes->n_text,
                                     .keys = m->keys,
                                     .d = one->d_k,
                                     .lane = chosen };
    int32_t rows_at[QUIRE_RETAIN_PROBE_MAX];
    const quire_retain_probe probe = {
        .queries = m->queries,
        .rows_at = rows_at,
        .n_heads = lanes->group,
        .n_queries = quire_lane_queries(lanes, chosen, n_queries, m->queries, rows_at),
        .scale = one->scale,
        .softcap = one->softcap,
        .sinks = one->sinks != NULL
                     ? one->sinks + (size_t)(chosen % lanes->n_kv_head) * lanes->group
                     : NULL,
    };

    quire_lane_keys(lanes, one, state, 0, state->n, m->keys);
    quire_retain_attend(&probe, &lane, m->attention);
}

static void take_tokens(const quire_lanes *lanes, const quire_attn_layer *one,
                        const lane_state *lane, const bool *is_kept, const lane_fit *m)
{
    const lane_tables tables = quire_lane_tables(lanes, lane);

    for (uint32_t t = 0; t < lane->n; t++) {
        const uint32_t position = (uint32_t)lane->positions[1 + t];
        const bool is_fixed = quire_retain_is_protected(&lanes->spec, lanes->n_text, position);

        quire_lane_rows(lanes, one, &tables, QUIRE_SIDE_V, t / TILE, t % TILE, 1,
                        m->values + (size_t)t * one->d_v);
        m->roles[t] = !is_kept[t] ? QUIRE_KEPT_FIT_DROPPED
                      : is_fixed  ? QUIRE_KEPT_FIT_KEPT
                                  : QUIRE_KEPT_FIT_FREE;
    }
}

/* Tile i, whose other rows stay as they are. *i_changed: the tile before; UINT32_MAX: none. */
static unsigned char *tile_to_change(const quire_lanes *lanes, const lane_tiles *tiles, uint32_t i,
                                     uint32_t *i_changed)
{
    unsigned char *tile = quire_lane_tile_at(lanes, tiles, LANE_WRITE, i);
    const unsigned char *from;

    if (i != *i_changed) {
        from = quire_lane_tile_at(lanes, tiles, LANE_READ, i);
        if (from != tile) {
            memcpy(tile, from, tiles->bytes);
        }
        *i_changed = i;
    }
    return tile;
}

static void put_values(const quire_lanes *lanes, const quire_attn_layer *one,
                       const lane_state *lane, const lane_fit *m)
{
    const lane_tables tables = quire_lane_tables(lanes, lane);
    const lane_tiles tiles = quire_lane_tiles(lanes, one, &tables, QUIRE_SIDE_V);
    uint32_t i_changed = UINT32_MAX;

    for (uint32_t t = 0; t < lane->n; t++) {
        const quire_tile_rows rows = {
            .d = one->d_v, .first_slot = t % TILE, .n_tokens = 1, .stride = one->d_v
        };

        if (m->roles[t] == QUIRE_KEPT_FIT_FREE) {
            quire_codec_get()->encode_v(one->v[0].format, &rows, m->values + (size_t)t * one->d_v,
                                        tile_to_change(lanes, &tiles, t / TILE, &i_changed));
        }
    }
    quire_lanes_windows_flush(lanes);
}

void quire_lane_fit(const quire_lanes *lanes, uint32_t chosen, const bool *is_kept, void *room)
{
    const quire_attn_layer *one = &lanes->layers[quire_lane_layer(lanes, chosen)].one;
    const lane_state *lane = quire_lane_chosen(lanes, chosen);
    const uint32_t most = n_queries_max(lanes->group, lanes->spec.probe);
    const uint32_t n_queries = quire_lanes_n_queries(lanes, most);
    const lane_fit m = lane_fit_in(one, lanes->group * n_queries, lane->n, room);
    const quire_kept_fit fit = { .n_tokens = lane->n,
                                 .n_rows = lanes->group * n_queries,
                                 .d = one->d_v,
                                 .has_sinks = one->sinks != NULL,
                                 .roles = m.roles,
                                 .attention = m.attention,
                                 .values = m.values,
                                 .biases = lane->biases + 1 };

    if (memchr(is_kept, 0, lane->n * sizeof *is_kept) == NULL) {
        return;
    }
    attend(lanes, chosen, n_queries, &m);
    take_tokens(lanes, one, lane, is_kept, &m);
    quire_kept_fit_run(&fit, m.solving);
    put_values(lanes, one, lane, &m);
}
