/* kept_lanes_bytes.c - the memory of lanes, from their options alone.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/num.h"

#define TILE            QUIRE_TILE_TOKENS
#define CANDIDATE_BYTES 16u /* of quire_retain_choose() */

uint32_t quire_lanes_n_choosing(const quire_lanes_opts *o)
{
    uint32_t n = 0;

    for (uint32_t l = 0; l < o->n_layers; l++) {
        n += o->layers[l].window == 0;
    }
    return n;
}

/* Lanes of the layers that choose. */
static uint64_t n_lanes_of(const quire_lanes_opts *o)
{
    return (uint64_t)quire_lanes_n_choosing(o) * o->layers[0].n_kv_head;
}

uint32_t quire_lanes_text_max(const quire_lanes_opts *o)
{
    return o->n_text_max + o->n_repeat_max;
}

uint32_t quire_lanes_entries_max(const quire_lanes_opts *o)
{
    /* the last page of the condensed part, and the last of all */
    return quire_lanes_text_max(o) / TILE + 2;
}

size_t quire_lane_page_bytes(const quire_attn_layer *layer)
{
    return quire_tile_bytes(layer->k_store.format, QUIRE_SIDE_K, layer->d_k) +
           quire_tile_bytes(layer->v_store.format, QUIRE_SIDE_V, layer->d_v);
}

size_t quire_lane_hot_bytes(const quire_lanes_opts *o)
{
    const quire_attn_layer *layer = &o->layers[0];
    const bool has_k = quire_format_is_sealed(layer->k_store.format);
    const bool has_v = quire_format_is_sealed(layer->v_store.format);

    return (has_k ? quire_tile_bytes(QUIRE_FORMAT_HOT, QUIRE_SIDE_K, layer->d_k) : 0) +
           (has_v ? quire_tile_bytes(QUIRE_FORMAT_HOT, QUIRE_SIDE_V, layer->d_v) : 0);
}

/* ---- layers that choose ---- */

/* The most tokens of a lane that are held in full. With sealed formats these are the recent tokens
 * and the tokens of a tile that is not full. */
static uint64_t open_max(const quire_lanes_opts *o)
{
    const uint64_t n =
        o->n_full_max + (quire_lane_hot_bytes(o) > 0 ? (uint64_t)o->spec->recent + TILE : 0);

    return (n < o->n_text_max ? n : o->n_text_max) + o->n_repeat_max;
}

/* Tokens that have hot pages by the distance rule: the sinks, the recent ones, and n_rows new ones,
 * which begin inside a tile. */
static uint64_t near_max(const quire_lanes_opts *o, uint64_t n_rows)
{
    const quire_attn_layer *layer = &o->layers[0];

    return ((uint64_t)layer->sink_tiles + layer->recent_tiles + 1) * TILE + n_rows;
}

/* The most tokens of a lane that have hot pages: those held in full, or those of the rule. */
static uint64_t hot_max(const quire_lanes_opts *o)
{
    const uint64_t n = near_max(o, o->n_rows_max);

    return o->keeps_all && n < open_max(o) ? n : open_max(o);
}

/* The most tokens that a lane keeps beyond its share and its protected tokens, because it keeps
 * whole granules. Tiles of sealed formats are counted as pages. */
static uint64_t granule_rest(const quire_lanes_opts *o, uint64_t n_protected)
{
    const uint32_t granule = quire_lane_hot_bytes(o) == 0 ? o->spec->granule : 1;

    return granule > 1 && n_protected % granule != 0 ? granule : 0;
}

/* Layers that choose and are kept whole. */
static uint32_t n_full_of(const quire_lanes_opts *o)
{
    uint32_t n = 0;

    for (uint32_t l = 0; l < o->n_layers; l++) {
        n += o->layers[l].window == 0 && quire_retain_names_layer(o->spec, o->n_layers, l);
    }
    return n;
}

/* The most tokens of all lanes: condensed ones, and those held in full. */
static uint64_t tokens_max(const quire_lanes_opts *o)
{
    const uint64_t n_lanes = n_lanes_of(o);
    const uint64_t n_text = o->n_text_max;
    const uint64_t ends = (uint64_t)o->spec->sinks + o->spec->recent;
    const uint64_t n_protected = ends < n_text ? ends : n_text;
    const uint64_t n_open = open_max(o);
    const uint64_t n_share =
        (uint64_t)(o->spec->share * (double)n_text * (double)n_lanes) + n_lanes;
    const uint64_t n_whole = n_full_of(o) * (uint64_t)o->layers[0].n_kv_head;
    const uint64_t n_least = n_whole * n_text + (n_lanes - n_whole) * n_protected;
    const uint64_t n_kept = (n_share > n_least ? n_share : n_least) +
                            (n_lanes - n_whole) * granule_rest(o, n_protected) + n_open * n_lanes;
    const uint64_t n_all = quire_lanes_text_max(o) * n_lanes;

    return n_kept < n_all ? n_kept : n_all;
}

/* ---- layers with windows ---- */

/* The most bytes of a lane: the tokens before a step that its rows see, and the rows; the first and
 * the last page may be held for one token of it. */
static uint64_t window_bytes(const quire_lanes_opts *o, const quire_attn_layer *layer)
{
    const uint64_t n_rows = o->n_rows_max > o->n_repeat_max ? o->n_rows_max : o->n_repeat_max;
    const uint64_t n_all = quire_lanes_text_max(o) / TILE + 1;
    const uint64_t n_held = (layer->window - 1 + n_rows) / TILE + 2;
    const uint64_t n = n_held < n_all ? n_held : n_all;
    const uint64_t n_hot = near_max(o, n_rows) / TILE + 2;

    return n * quire_lane_page_bytes(layer) + (n_hot < n ? n_hot : n) * quire_lane_hot_bytes(o);
}

/* ---- all ---- */

uint64_t quire_lanes_bytes_max(const quire_lanes_opts *o)
{
    const uint64_t n_lanes = n_lanes_of(o);
    const uint64_t hot_bytes = quire_lane_hot_bytes(o);
    /* Whole tiles: a lane may keep one more than its share. */
    const uint64_t n_pages = tokens_max(o) / TILE + (hot_bytes > 0 ? 2 : 1) * n_lanes;
    uint64_t bytes = n_pages * quire_lane_page_bytes(&o->layers[0]) +
                     (hot_max(o) / TILE + 2) * n_lanes * hot_bytes;

    for (uint32_t l = 0; l < o->n_layers; l++) {
        bytes +=
            o->layers[l].window != 0 ? o->layers[l].n_kv_head * window_bytes(o, &o->layers[l]) : 0;
    }
    return bytes;
}

quire_attn_workspace_opts quire_lanes_head_opts(const quire_lanes_opts *o)
{
    const quire_attn_layer *layer = &o->layers[0];
    quire_attn_workspace_opts opts = QUIRE_ATTN_WORKSPACE_OPTS_INIT;

    opts.n_threads_max = (o->n_threads + layer->n_kv_head - 1) / layer->n_kv_head;
    opts.n_seqs_max = 1;
    opts.n_rows_max = o->n_rows_max;
    opts.n_head_max = layer->n_head / layer->n_kv_head;
    opts.head_dim_max = layer->d_k > layer->d_v ? layer->d_k : layer->d_v;
    opts.n_entries_max = quire_lanes_entries_max(o);
    opts.page_tokens = TILE;
    opts.n_layers_max = 1;
    opts.n_groups = quire_lane_hot_bytes(o) > 0 ? 2 : 1;
    opts.groups[QUIRE_LANES_HOT] = (quire_attn_group){ .like = QUIRE_LANES_MAIN, .is_hot = true };
    return opts;
}

uint64_t quire_lanes_queries_floats(const quire_lanes_opts *o)
{
    return o->spec->policy->needs_attention || o->spec->merges
               ? (uint64_t)quire_lanes_n_choosing(o) * o->layers[0].n_head * o->spec->probe *
                     o->layers[0].d_k
               : 0;
}

quire_attn_workspace_opts quire_lanes_device_limits(const quire_lanes_opts *o)
{
    quire_attn_workspace_opts opts = quire_lanes_head_opts(o);

    opts.n_threads_max = 1;
    opts.n_seqs_max = o->layers[0].n_kv_head;
    opts.n_rows_max = o->layers[0].n_kv_head * o->n_rows_max;
    return opts;
}

uint64_t quire_lanes_buffer_bytes(const quire_lanes_opts *o)
{
    const quire_attn_workspace_opts head = quire_lanes_head_opts(o);
    const quire_attn_layer *layer = &o->layers[0];
    const uint64_t lane_max = quire_lanes_text_max(o);
    const uint64_t rows =
        o->spec->policy->needs_attention ? (uint64_t)head.n_head_max * o->spec->probe : 0;
    const uint64_t entry = sizeof(quire_page_entry);

    /* A device below has a workspace of its own. */
    return layer->n_kv_head * ((o->is_on_device ? 0 : quire_attn_workspace_bytes(&head)) +
                               2 * quire_lanes_entries_max(o) * entry) +
           quire_lanes_device_bytes(o) + sizeof(float) * quire_lanes_queries_floats(o) +
           quire_lanes_watch_bytes(o) + quire_lanes_sums_bytes(o) + quire_lanes_seal_bytes(o) +
           quire_lanes_attend_bytes(o, quire_lanes_entries_max(o), tokens_max(o)) +
           (2 * sizeof(int32_t) + (2 + o->spec->merges) * sizeof(float) + sizeof(bool) +
            (o->spec->policy->is_across ? CANDIDATE_BYTES : 0)) *
               tokens_max(o) +
           o->n_threads *
               (lane_max * (layer->d_k + rows + 2) * sizeof(float) +
                (o->spec->merges ? quire_lanes_fit_bytes(layer, head.n_head_max, o->spec->probe,
                                                         (uint32_t)lane_max)
                                 : 0));
}
