/* kept_lanes_attend.c - bounds of a text's pages, and the pages that a row reads (page_choice.h).
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/check.h"

#include <stdlib.h>

#define TILE QUIRE_TILE_TOKENS

uint64_t quire_lanes_attend_bytes(const quire_lanes_opts *o, uint32_t n_entries, uint64_t n_tokens)
{
    if (!quire_attends(o->attend_share)) {
        return 0;
    }
    /* Room for tokens grows by a quarter more than is needed. */
    return o->layers[0].n_kv_head * (uint64_t)n_entries * sizeof(quire_page_rank) +
           (n_tokens + n_tokens / 4) / TILE * quire_page_bounds_bytes(o->layers[0].d_k);
}

int quire_lanes_attend_create(quire_lanes *lanes, const quire_lanes_opts *o, uint32_t n_entries)
{
    lanes->attend_share = o->attend_share;
    for (uint32_t g = 0; quire_lanes_attends(lanes) && g < lanes->n_kv_head; g++) {
        lanes->heads[g].ranks = calloc(n_entries, sizeof(quire_page_rank));
        QUIRE_FAIL_IF(lanes->heads[g].ranks == NULL, QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

static float *bounds_at(const lane_state *lane, uint32_t page, uint32_t d_k)
{
    return lane->bounds + (size_t)page * 2 * d_k;
}

void quire_lane_bound(const quire_lanes *lanes, lane_state *lane, uint32_t from)
{
    const size_t index = (size_t)(lane - lanes->lanes);
    const quire_attn_layer *one = &lanes->layers[index / lanes->n_kv_head].one;
    const lane_tables tables = quire_lane_tables(lanes, lane);
    float row[QUIRE_HEAD_DIM_MAX];

    for (uint32_t t = from; lane->bounds != NULL && t < lane->n; t++) {
        quire_lane_rows(lanes, one, &tables, QUIRE_SIDE_K, t / TILE, t % TILE, 1, row);
        /* A cut page keeps the wider bounds of its former tokens. */
        quire_page_bounds_add(bounds_at(lane, t / TILE, one->d_k), one->d_k, row, t % TILE == 0);
    }
}

bool quire_lanes_chooses(const quire_lanes *lanes, uint32_t layer)
{
    return quire_lanes_attends(lanes) && lanes->n_rows == 1 && layer >= QUIRE_ATTEND_DENSE &&
           !quire_lanes_repeats(lanes);
}

int quire_lanes_choose_pages(quire_lanes *lanes, const quire_attn_layer *one, uint32_t l,
                             uint32_t g)
{
    const lane_state *lane = quire_lane_at(lanes, l, g);
    lane_head *head = &lanes->heads[g];
    const uint32_t n_entries = head->seq.tables[QUIRE_LANES_MAIN].n_entries;
    const uint32_t n = quire_pages_read(lanes->attend_share, n_entries);
    quire_page_rank *ranks = head->ranks;

    head->n_pages_held += n_entries;
    head->n_pages_read += n;
    if (n == n_entries) {
        return QUIRE_OK;
    }
    for (uint32_t i = 0; i < n_entries; i++) {
        ranks[i] = (quire_page_rank){ .bounds = bounds_at(lane, i, one->d_k), .entry = i };
    }
    quire_pages_choose(ranks, n_entries, n, one, lanes->group,
                       one->q[0] + lanes->first_row * one->q_stride);
    for (uint32_t i = 0; i < n; i++) {
        head->entries[i] = head->entries[ranks[i].entry];
        if (lanes->hot_bytes > 0) {
            head->hot_entries[i] = head->hot_entries[ranks[i].entry];
        }
    }
    return quire_lanes_begin_head(lanes, lane, g, n);
}
