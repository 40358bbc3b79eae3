/* kept_lanes_internal.h - the parts of quire_lanes; for src/retain only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_KEPT_LANES_INTERNAL_H
#define QUIRE_RETAIN_KEPT_LANES_INTERNAL_H

#include "retain/kept_lanes.h"

#include <stdatomic.h>

/* Tokens of a lane. */
typedef struct lane_state {
    quire_seq_id seq;
    uint32_t n;
    uint32_t capacity;  /* of positions, in tokens */
    int32_t *positions; /* [1 + capacity] token i's at 1 + i: an entry's list never begins at 0 */
} lane_state;

/* A layer as one head of it is computed, and where its rows begin in a call's arrays. */
typedef struct lane_layer {
    size_t key; /* k_store's place in the runtime's pages: names the layer in a call */
    quire_attn_layer one;
    bool is_full;
    uint32_t queries_end;         /* the position after the last query that was kept */
    _Atomic uint32_t next_append; /* heads that threads took */
    _Atomic uint32_t next_run;
} lane_layer;

/* A KV head's workspace, planned for one layer at a time. */
typedef struct lane_head {
    quire_attn_workspace *workspace;
    quire_page_entry *entries; /* [n_entries_max] */
    const quire_page_entry **leaves;
    quire_attn_seq seq;
} lane_head;

struct quire_lanes {
    quire_retain_spec spec;
    uint32_t n_layers;
    uint32_t n_kv_head;
    uint32_t group; /* query heads of a KV head */
    uint32_t n_text_max;
    uint32_t n_threads;
    uint32_t n_members; /* threads of one head */
    quire_lanes_parallel *parallel;
    quire_cache *cache;
    size_t page_bytes;
    lane_layer *layers; /* [n_layers] */
    lane_state *lanes;  /* [n_layers][n_kv_head] */
    lane_head *heads;   /* [n_kv_head] */
    float *queries;     /* [n_layers][n_head][probe][d_k], at position % probe; NULL: not needed */
    uint32_t n_text;
    uint32_t n_condensed; /* positions that were part of the last condensing */
    uint32_t generations;
    uint64_t budget_bytes;
    uint64_t condense_ns;
    quire_attn_batch batch; /* of the step at hand */
    uint32_t first_row;
    uint32_t n_rows;
    _Atomic int status; /* of the step */
};

static inline lane_state *quire_lane_at(const quire_lanes *lanes, uint32_t layer, uint32_t head)
{
    return &lanes->lanes[(size_t)layer * lanes->n_kv_head + head];
}

/* A lane's page table, and page i of it. Memory: until the next step or condensing. */
quire_seq_table quire_lane_table(const quire_lanes *lanes, const lane_state *lane);
unsigned char *quire_lane_page(const quire_lanes *lanes, const quire_seq_table *table, uint32_t i);

/* Cut a lane to the tokens before a position. */
void quire_lane_cut(quire_lanes *lanes, lane_state *lane, uint32_t n_tokens);

#endif /* QUIRE_RETAIN_KEPT_LANES_INTERNAL_H */
