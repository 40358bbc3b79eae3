/* kept_lanes_state.c - lanes to a quire_block_state and back.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define TILE QUIRE_TILE_TOKENS

static uint32_t n_lanes_of(const quire_lanes *lanes)
{
    return lanes->n_layers * lanes->n_kv_head;
}

/* Data of the text's queries that the policy keeps: arrays, one after the other. */
typedef struct extra {
    float *items[3];
    size_t n[3];
    size_t n_all;
} extra;

static extra extra_of(const quire_lanes *lanes)
{
    const size_t n_heads = quire_lanes_n_chosen(lanes) * lanes->group;
    const size_t d = lanes->layers[0].one.d_k;
    extra e = { .items = { lanes->queries, lanes->query_sums, lanes->query_products },
                .n = { n_heads * lanes->spec.probe * d, n_heads * d, n_heads * d * d } };

    for (int i = 0; i < 3; i++) {
        e.n[i] = e.items[i] != NULL ? e.n[i] : 0;
        e.n_all += e.n[i];
    }
    return e;
}

/* Whole pages of a lane. */
static lane_tiles pages_of(const quire_lanes *lanes, const lane_tables *tables)
{
    return (lane_tiles){ &tables->main, lanes->page_bytes, 0, lanes->page_bytes };
}

static lane_tiles hot_pages_of(const quire_lanes *lanes, const lane_tables *tables)
{
    return (lane_tiles){ &tables->hot, lanes->hot_bytes, 0, lanes->hot_bytes };
}

static lane_layer *layer_of(const quire_lanes *lanes, uint32_t i)
{
    return &lanes->layers[i / lanes->n_kv_head];
}

/* The first token of a lane that a state of n_text tokens has. */
static uint32_t first_of(const quire_lanes *lanes, uint32_t i, uint32_t n_text)
{
    return lanes->lanes[i].is_windowed ? quire_lane_past(&layer_of(lanes, i)->one, n_text) : 0;
}

/* ---- saving ---- */

static void save_positions(const lane_state *lane, uint32_t first, int32_t *to)
{
    if (lane->is_windowed) {
        for (uint32_t t = first; t < lane->n; t++) {
            to[t - first] = (int32_t)t;
        }
    } else if (lane->n > 0) {
        memcpy(to, lane->positions + 1, lane->n * sizeof *to);
    }
}

static void save_lane(const quire_lanes *lanes, uint32_t index, const quire_block_state *state,
                      quire_block_lane *to)
{
    const lane_state *lane = &lanes->lanes[index];
    const uint32_t first = first_of(lanes, index, lanes->n_text);
    const lane_tables tables = quire_lane_tables(lanes, lane);
    const lane_tiles tiles = pages_of(lanes, &tables), hot_tiles = hot_pages_of(lanes, &tables);
    unsigned char *pages = quire_block_part(state, to->pages);

    to->n_queries = lane->n_queries;
    save_positions(lane, first, quire_block_part(state, to->positions));
    if (lane->worth != NULL && to->worth != NULL) {
        memcpy(quire_block_part(state, to->worth), lane->worth, lane->n * sizeof *lane->worth);
    }
    for (uint32_t i = first / TILE; i < quire_block_n_pages(lane->n); i++) {
        const size_t at = i - first / TILE;

        memcpy(pages + at * lanes->page_bytes, quire_lane_tile_at(lanes, &tiles, LANE_READ, i),
               lanes->page_bytes);
        if (quire_lane_hot_page(lanes, &tables, i) != NULL) {
            unsigned char *to_hot = quire_block_part(state, to->hot_pages);

            memcpy(to_hot + at * lanes->hot_bytes,
                   quire_lane_tile_at(lanes, &hot_tiles, LANE_READ_HOT, i), lanes->hot_bytes);
        }
    }
}

static void save_extra(const quire_lanes *lanes, const quire_block_state *state)
{
    const extra e = extra_of(lanes);
    float *to = quire_block_part(state, state->extra);

    for (int i = 0; i < 3; i++) {
        if (e.n[i] > 0) {
            memcpy(to, e.items[i], e.n[i] * sizeof *to);
            to += e.n[i];
        }
    }
}

int quire_lanes_save(const quire_lanes *lanes, const int32_t *tokens, quire_block_state *state)
{
    uint32_t *n_tokens;
    int rc;

    QUIRE_CHECK(!quire_lanes_repeats(lanes));
    QUIRE_FAIL_IF(lanes->spec.merges, QUIRE_UNSUPP);
    n_tokens = calloc(n_lanes_of(lanes), sizeof *n_tokens);
    QUIRE_FAIL_IF(n_tokens == NULL, QUIRE_NOMEM);
    state->n_layers = lanes->n_layers;
    state->n_kv_head = lanes->n_kv_head;
    state->n_text = lanes->n_text;
    state->n_condensed = lanes->n_condensed;
    state->generations = lanes->generations;
    state->n_repeated = lanes->n_repeated;
    state->has_worth = lanes->spec.policy->worth != QUIRE_RETAIN_WORTH_NONE;
    state->page_bytes = lanes->page_bytes;
    state->hot_bytes = lanes->hot_bytes;
    state->n_extra = extra_of(lanes).n_all;
    for (uint32_t i = 0; i < n_lanes_of(lanes); i++) {
        n_tokens[i] = lanes->lanes[i].n - first_of(lanes, i, lanes->n_text);
    }
    rc = quire_block_state_alloc(state, n_tokens);
    free(n_tokens);
    QUIRE_TRY(rc);
    memcpy(quire_block_part(state, state->tokens), tokens, lanes->n_text * sizeof *tokens);
    quire_lanes_windows_begin(lanes);
    for (uint32_t i = 0; i < n_lanes_of(lanes); i++) {
        save_lane(lanes, i, state, &state->lanes[i]);
    }
    quire_lanes_windows_end(lanes);
    save_extra(lanes, state);
    return quire_lanes_windows_status(lanes);
}

/* ---- loading ---- */

/* Whether the state is of lanes like these. */
static bool fits(const quire_lanes *lanes, const quire_block_state *state)
{
    const bool has_worth = lanes->spec.policy->worth != QUIRE_RETAIN_WORTH_NONE;

    return state->n_layers == lanes->n_layers && state->n_kv_head == lanes->n_kv_head &&
           state->page_bytes == lanes->page_bytes && state->hot_bytes == lanes->hot_bytes &&
           state->has_worth == has_worth && state->n_extra == extra_of(lanes).n_all;
}

/* With a window: pages go as they go while a text is computed. */
static int grow_windowed(quire_lanes *lanes, const lane_layer *layer, lane_state *lane, uint32_t n)
{
    while (lane->n < n) {
        const uint32_t n_now = n - lane->n < TILE ? n - lane->n : TILE;

        QUIRE_TRY(quire_seq_reserve(lanes->cache, lane->seq, n_now));
        QUIRE_TRY(quire_seq_append(lanes->cache, lane->seq, n_now));
        lane->n += n_now;
        quire_lane_give_back(lanes, layer, lane, lane->n);
    }
    return QUIRE_OK;
}

/* With sealed formats condensed tokens are whole tiles, whose hot pages go at once. */
static int grow_lane(quire_lanes *lanes, lane_state *lane, uint32_t n, uint32_t n_condensed)
{
    while (lane->n < n) {
        const uint32_t n_left = n - lane->n;
        const uint32_t n_now = lane->n < n_condensed && n_left > TILE ? TILE : n_left;

        QUIRE_TRY(quire_seq_reserve(lanes->cache, lane->seq, n_now));
        QUIRE_TRY(quire_seq_append(lanes->cache, lane->seq, n_now));
        lane->n += n_now;
        if (lane->n <= n_condensed) {
            quire_lane_cool(lanes, lane, lane->n);
        }
    }
    return QUIRE_OK;
}

/* The tokens of a lane without payload, as many as it has in the text. */
static int load_tokens(quire_lanes *lanes, uint32_t index, const quire_block_state *state,
                       const quire_block_lane *from)
{
    const uint32_t n_full = state->n_text - state->n_condensed;
    lane_state *lane = &lanes->lanes[index];

    if (lane->is_windowed) {
        const uint32_t first = first_of(lanes, index, state->n_text);

        /* Positions ascend up to the text's last one, so none is missing. */
        QUIRE_FAIL_IF(from->n_tokens != state->n_text - first, QUIRE_CORRUPT);
        QUIRE_FAIL_IF(from->n_tokens > 0 && from->positions[0] != (int32_t)first, QUIRE_CORRUPT);
        return grow_windowed(lanes, layer_of(lanes, index), lane, state->n_text);
    }
    QUIRE_FAIL_IF(from->n_tokens < n_full, QUIRE_CORRUPT);
    QUIRE_FAIL_IF(lanes->hot_bytes > 0 && (from->n_tokens - n_full) % TILE != 0, QUIRE_CORRUPT);
    QUIRE_TRY(quire_lane_reserve_lists(lanes, lane, from->n_tokens));
    QUIRE_TRY(
        grow_lane(lanes, lane, from->n_tokens, lanes->hot_bytes > 0 ? from->n_tokens - n_full : 0));
    if (lane->n > 0) {
        memcpy(lane->positions + 1, from->positions, lane->n * sizeof *lane->positions);
    }
    return QUIRE_OK;
}

static int load_lane(quire_lanes *lanes, uint32_t index, const quire_block_state *state)
{
    const quire_block_lane *from = &state->lanes[index];
    const uint32_t first_page = first_of(lanes, index, state->n_text) / TILE;
    lane_state *lane = &lanes->lanes[index];
    lane_tiles tiles, hot_tiles;
    lane_tables tables;

    QUIRE_TRY(load_tokens(lanes, index, state, from));
    tables = quire_lane_tables(lanes, lane);
    tiles = pages_of(lanes, &tables);
    hot_tiles = hot_pages_of(lanes, &tables);
    for (uint32_t i = first_page; i < quire_block_n_pages(lane->n); i++) {
        memcpy(quire_lane_tile_at(lanes, &tiles, LANE_WRITE, i),
               from->pages + (i - first_page) * lanes->page_bytes, lanes->page_bytes);
    }
    for (uint32_t i = first_page; i < quire_block_n_pages(lane->n); i++) {
        if (quire_lane_hot_page(lanes, &tables, i) != NULL) {
            memcpy(quire_lane_tile_at(lanes, &hot_tiles, LANE_WRITE, i),
                   from->hot_pages + (i - first_page) * lanes->hot_bytes, lanes->hot_bytes);
        }
    }
    if (lane->worth != NULL && from->worth != NULL) {
        memcpy(lane->worth, from->worth, lane->n * sizeof *lane->worth);
    }
    lane->n_queries = from->n_queries;
    return QUIRE_OK;
}

/* Bounds of all pages, which the device has by now. */
static int bound_all(quire_lanes *lanes)
{
    quire_lanes_windows_begin(lanes);
    for (uint32_t i = 0; i < n_lanes_of(lanes) && quire_lanes_attends(lanes); i++) {
        quire_lane_bound(lanes, &lanes->lanes[i], 0);
    }
    quire_lanes_windows_end(lanes);
    return quire_lanes_windows_status(lanes);
}

static void load_numbers(quire_lanes *lanes, const quire_block_state *state)
{
    const extra e = extra_of(lanes);
    const float *from = state->extra;

    for (int i = 0; i < 3; i++) {
        if (e.n[i] > 0) {
            memcpy(e.items[i], from, e.n[i] * sizeof *from);
            from += e.n[i];
        }
    }
    lanes->n_text = lanes->probe_end = state->n_text;
    lanes->n_condensed = state->n_condensed;
    lanes->n_chosen = state->n_text; /* a state does not tell: at most these */
    lanes->generations = state->generations;
    lanes->n_repeated = state->n_repeated;
    for (uint32_t l = 0; l < lanes->n_layers; l++) {
        lanes->layers[l].queries_end = lanes->n_text;
        if (lanes->layers[l].is_windowed) {
            quire_layer_given_back(&lanes->layers[l], lanes->n_text);
        }
    }
}

int quire_lanes_load(quire_lanes *lanes, const quire_block_state *state)
{
    int rc = QUIRE_OK;

    QUIRE_FAIL_IF(lanes->spec.merges, QUIRE_UNSUPP);
    QUIRE_CHECK(lanes->n_text == 0);
    QUIRE_FAIL_IF(!fits(lanes, state), QUIRE_INVAL);
    QUIRE_FAIL_IF(state->n_text > lanes->n_text_max - lanes->n_repeat_max, QUIRE_LIMIT);
    quire_lanes_windows_begin(lanes);
    for (uint32_t i = 0; i < n_lanes_of(lanes) && rc == QUIRE_OK; i++) {
        rc = load_lane(lanes, i, state);
    }
    quire_lanes_windows_end(lanes);
    rc = rc == QUIRE_OK ? quire_lanes_windows_status(lanes) : rc;
    rc = rc == QUIRE_OK ? bound_all(lanes) : rc;
    if (rc < 0) {
        for (uint32_t i = 0; i < n_lanes_of(lanes); i++) {
            quire_lane_cut(lanes, &lanes->lanes[i], 0);
        }
        return rc;
    }
    load_numbers(lanes, state);
    return QUIRE_OK;
}
