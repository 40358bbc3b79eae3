/* kept_lanes_attend.c - bounds of a text's pages, and the pages that a row reads (page_choice.h).
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/check.h"
#include "base/num.h"

#include <stdlib.h>

#define TILE      QUIRE_TILE_TOKENS
#define ROOM_ROWS 4u /* rows of the largest heads that are decoded together */

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
    lanes->attend_from = UINT32_MAX;
    for (uint32_t g = 0; quire_lanes_attends(lanes) && g < lanes->n_kv_head; g++) {
        lanes->heads[g].ranks = calloc(n_entries, sizeof(quire_page_rank));
        QUIRE_FAIL_IF(lanes->heads[g].ranks == NULL, QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

static uint16_t *bounds_at(const lane_state *lane, uint32_t page, uint32_t d_k)
{
    return lane->bounds + page * (quire_page_bounds_bytes(d_k) / sizeof *lane->bounds);
}

void quire_lanes_attend_from(quire_lanes *lanes, uint32_t position)
{
    lanes->attend_from = position;
}

void quire_lane_bound(const quire_lanes *lanes, lane_state *lane, uint32_t from)
{
    const size_t index = (size_t)(lane - lanes->lanes);
    const quire_attn_layer *one = &lanes->layers[index / lanes->n_kv_head].one;
    const lane_tables tables = quire_lane_tables(lanes, lane);
    float rows[ROOM_ROWS * QUIRE_HEAD_DIM_MAX];
    uint32_t to = lane->n, n;

    if (lanes->rows != NULL) {
        from = quire_min_u32(from, lane->n_bounded) / TILE * TILE;
        to = to / TILE * TILE;
    } else if (lane->n_bounded > from) {
        /* Tokens were cut since: the bounds of the page hold for those that stayed. */
        from = from / TILE * TILE;
    }
    for (uint32_t t = from; lane->bounds != NULL && t < to; t += n) {
        n = quire_min_u32(quire_min_u32(to - t, TILE - t % TILE),
                          ROOM_ROWS * QUIRE_HEAD_DIM_MAX / one->d_k);
        quire_lane_rows(lanes, one, &tables, QUIRE_SIDE_K, t / TILE, t % TILE, n, rows);
        for (uint32_t i = 0; i < n; i++) {
            quire_page_bounds_add(bounds_at(lane, t / TILE, one->d_k), one->d_k,
                                  rows + (size_t)i * one->d_k, (t + i) % TILE == 0);
        }
    }
    lane->n_bounded = lane->n;
}

uint32_t quire_lanes_n_dense(const quire_lanes *lanes, uint32_t layer)
{
    const uint32_t begin = lanes->n_text - lanes->n_rows;

    if (!quire_lanes_attends(lanes) || layer < QUIRE_ATTEND_DENSE ||
        lanes->layers[layer].is_windowed || quire_lanes_repeats(lanes)) {
        return lanes->n_rows;
    }
    return lanes->attend_from > begin ? quire_min_u32(lanes->attend_from - begin, lanes->n_rows)
                                      : 0;
}

bool quire_lanes_chooses(const quire_lanes *lanes, uint32_t layer)
{
    return quire_lanes_n_dense(lanes, layer) < lanes->n_rows;
}

/* The lane's tokens up to row `end` of the step. */
static uint32_t tokens_until(const quire_lanes *lanes, const lane_state *lane, uint32_t end)
{
    return lane->n - (lanes->n_rows - end);
}

/* Entry `at` of head g is the last of so many tokens of a lane. */
static void end_at(quire_lanes *lanes, uint32_t g, uint32_t at, uint32_t n_tokens)
{
    const uint16_t n_last = (uint16_t)((n_tokens - 1) % TILE + 1);
    lane_head *head = &lanes->heads[g];

    head->entries[at].n_tokens = n_last;
    if (lanes->hot_bytes > 0) {
        head->hot_entries[at].n_tokens = n_last;
    }
}

uint32_t quire_lane_entries_until(quire_lanes *lanes, const lane_state *lane, uint32_t g,
                                  uint32_t end)
{
    const uint32_t n_tokens = tokens_until(lanes, lane, end);
    const uint32_t n = (n_tokens + TILE - 1) / TILE;

    (void)quire_lane_entries(lanes, lane, g, 0);
    end_at(lanes, g, n - 1, n_tokens);
    return n;
}

quire_attn_seq quire_lane_seq_of(const quire_lanes *lanes, uint32_t g, const lane_part *part)
{
    quire_attn_seq seq = quire_lane_seq(lanes, g, part->n_entries);

    seq.first_row += part->first;
    seq.n_tokens -= seq.n_rows - part->end;
    seq.n_rows = part->end - part->first;
    return seq;
}

/* Attention of a part's rows on the first entries of head g. */
static int rows_run(quire_lanes *lanes, const quire_attn_layer *one, const lane_state *lane,
                    uint32_t g, const lane_part *part)
{
    const quire_attn_seq seq = quire_lane_seq_of(lanes, g, part);

    QUIRE_TRY(quire_lanes_begin_head(lanes, lane, g, &seq));
    quire_attn_run(lanes->heads[g].workspace, one, 0, 0, 1);
    return QUIRE_OK;
}

uint32_t quire_lane_entries_choose(quire_lanes *lanes, const quire_attn_layer *one,
                                   const lane_state *lane, uint32_t g, uint32_t i)
{
    const lane_tables tables = quire_lane_tables(lanes, lane);
    const uint32_t n_tokens = tokens_until(lanes, lane, i + 1);
    const uint32_t n = (n_tokens + TILE - 1) / TILE;
    const uint32_t n_read = quire_pages_read(lanes->attend_share, n);
    lane_head *head = &lanes->heads[g];

    head->n_pages_held += n;
    head->n_pages_read += n_read;
    for (uint32_t p = 0; p < n; p++) {
        head->ranks[p].bounds = bounds_at(lane, p, one->d_k);
    }
    quire_pages_choose(head->ranks, n, n_read, one, lanes->group,
                       one->q[0] + (lanes->first_row + i) * one->q_stride);
    for (uint32_t p = 0; p < n_read; p++) {
        quire_lane_entry_put(lanes, lane, g, &tables, head->ranks[p].entry, p);
    }
    end_at(lanes, g, n_read - 1, n_tokens); /* the last page is always read */
    return n_read;
}

int quire_lanes_attend_rows(quire_lanes *lanes, const quire_attn_layer *one, uint32_t l, uint32_t g)
{
    const lane_state *lane = quire_lane_at(lanes, l, g);
    const uint32_t n_dense = quire_lanes_n_dense(lanes, l);

    if (n_dense > 0) {
        const lane_part dense = { 0, n_dense, quire_lane_entries_until(lanes, lane, g, n_dense) };

        QUIRE_TRY(rows_run(lanes, one, lane, g, &dense));
    }
    for (uint32_t i = n_dense; i < lanes->n_rows; i++) {
        const lane_part row = { i, i + 1, quire_lane_entries_choose(lanes, one, lane, g, i) };

        QUIRE_TRY(rows_run(lanes, one, lane, g, &row));
    }
    return QUIRE_OK;
}
