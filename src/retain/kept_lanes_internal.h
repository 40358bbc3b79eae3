/* kept_lanes_internal.h - the parts of quire_lanes; for src/retain only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_KEPT_LANES_INTERNAL_H
#define QUIRE_RETAIN_KEPT_LANES_INTERNAL_H

#include "core/pool/tile_window.h"
#include "retain/kept_lanes.h"
#include "retain/watch.h"

#include <stdatomic.h>

/* Tokens of a lane. */
typedef struct lane_state {
    quire_seq_id seq;
    bool is_windowed; /* of a layer with a window: the token at position t is in slot t, those
                         before lane_layer.n_past have no page, and there are no lists */
    uint32_t n;
    uint32_t capacity;  /* of positions, in tokens */
    int32_t *positions; /* [1 + capacity] token i's at 1 + i: an entry's list never begins at 0 */
    float *worth;       /* [capacity]; NULL: the policy has none */
    float *biases;      /* [1 + capacity], beside positions; NULL: nothing is fitted */
    uint64_t n_queries; /* in the sums of the lane's query heads */
    uint16_t *bounds;   /* [capacity / TILE + 1] of quire_page_bounds_bytes(): least and greatest;
                           NULL: the layer reads all */
    uint32_t n_bounded; /* tokens that the bounds were made of; above n: some were cut since */
} lane_state;

/* A layer as one head of it is computed, and where its rows begin in a call's arrays. */
typedef struct lane_layer {
    size_t key; /* k_store's place in the runtime's pages: names the layer in a call */
    quire_attn_layer one;
    bool is_full;
    bool is_windowed;     /* it has a window */
    uint32_t number;      /* of a layer that chooses, among these */
    uint32_t n_past;      /* of a layer with a window: tokens whose pages were given back, */
    uint32_t n_cooled;    /* and those whose hot pages were, the sinks apart */
    uint32_t queries_end; /* the position after the last query that was kept */
    /* Of the step: all threads write the same. */
    _Atomic(const float *) hidden;
    _Atomic size_t hidden_stride;
    _Atomic uint32_t next_append; /* heads that threads took */
    _Atomic uint32_t next_run;
    uint32_t n_gathered; /* heads of lanes on a device whose watched keys are there */
} lane_layer;

/* A KV head's workspace, planned for one layer at a time. */
typedef struct lane_head {
    quire_attn_workspace *workspace;
    quire_page_entry *entries; /* [n_entries_max] */
    const quire_page_entry **leaves;
    quire_page_entry *hot_entries; /* [n_entries_max] of sealed formats */
    const quire_page_entry **hot_leaves;
    quire_attn_seq seq;
    quire_page_rank *ranks; /* scratch of a choice of pages, [n_entries_max] */
    uint64_t n_pages_read;
    uint64_t n_pages_held;
    quire_watch_room watched; /* of policies that watch rows */
    quire_watch watch;        /* of the layer at hand: tokens in the room, */
    uint32_t watch_first;     /* and the lane's first token that gets a worth */
} lane_head;

struct lane_rows;
typedef struct lane_windows lane_windows;

struct quire_lanes {
    quire_retain_spec spec;
    uint32_t n_layers;
    uint32_t n_kv_head;
    uint32_t group; /* query heads of a KV head */
    uint32_t n_text_max;
    uint32_t n_threads;
    uint32_t n_members; /* threads of one head */
    quire_lanes_parallel *parallel;
    const quire_codec *codec;
    quire_cache *cache;
    /* Of lanes on a device: */
    quire_page_memory memory;
    quire_attn_device base;
    struct lane_rows *rows; /* NULL: the lanes are in the host's memory */
    lane_windows *windows;
    size_t page_bytes;
    size_t hot_bytes;         /* of a hot page; 0: no format is sealed */
    unsigned char *seal_room; /* [n_threads][seal_bytes] */
    size_t seal_bytes;
    size_t seal_tile_bytes;
    lane_layer *layers;   /* [n_layers] */
    lane_state *lanes;    /* [n_layers][n_kv_head] */
    lane_head *heads;     /* [n_kv_head] */
    uint32_t n_choosing;  /* layers without a window: a policy chooses their tokens */
    uint32_t *choosing;   /* [n_choosing] which these are, ascending */
    float *queries;       /* [n_choosing][n_head][probe][d_k], at position % probe; NULL: not needed
                           */
    double attend_share;  /* below 1: rows choose pages, from */
    uint32_t attend_from; /* this position on */
    /* Of policies that expect queries: sums over the queries since the last condensing
     * (query_sums.h). */
    quire_rotation rotation;
    float *frequencies;
    float *turns;          /* [n_rows_max][d_k] back from the rows of the step */
    float *query_sums;     /* [n_choosing][n_head][d_k] */
    float *query_products; /* [n_choosing][n_head][d_k][d_k] */
    /* Of a worth that is repeated. */
    uint32_t n_repeat_max;
    uint32_t repeat_begin; /* the part that the rows repeat; empty: rows belong to the text */
    uint32_t repeat_end;
    uint32_t repeat_at; /* position of the first row that repeats */
    uint32_t n_repeated;
    const quire_predictor *predictor;
    uint32_t n_hidden;
    uint32_t n_full_max;
    float *hidden; /* [n_choosing][n_full_max][n_hidden] */
    uint32_t n_text;
    uint32_t n_condensed; /* positions that were part of the last condensing */
    uint32_t n_chosen;    /* tokens of the text at the last condensing, which chose by them */
    bool keeps_all;
    uint32_t n_cooled; /* with keeps_all: tokens whose hot pages were given back, the sinks apart */
    uint32_t generations;
    uint64_t budget_bytes;
    uint64_t condense_ns;
    quire_attn_batch batch; /* of the step at hand */
    uint32_t probe_end;     /* the position after the last query that was kept; of a text that is
                               repeated, behind the text */
    uint32_t first_row;
    uint32_t n_rows;
    _Atomic int status; /* of the step */
};

static inline lane_state *quire_lane_at(const quire_lanes *lanes, uint32_t layer, uint32_t head)
{
    return &lanes->lanes[(size_t)layer * lanes->n_kv_head + head];
}

/* Lanes that choose are numbered apart: [n_choosing][n_kv_head]. */
static inline size_t quire_lanes_n_chosen(const quire_lanes *lanes)
{
    return (size_t)lanes->n_choosing * lanes->n_kv_head;
}

static inline uint32_t quire_lane_layer(const quire_lanes *lanes, size_t chosen)
{
    return lanes->choosing[chosen / lanes->n_kv_head];
}

static inline lane_state *quire_lane_chosen(const quire_lanes *lanes, size_t chosen)
{
    return quire_lane_at(lanes, quire_lane_layer(lanes, chosen),
                         (uint32_t)(chosen % lanes->n_kv_head));
}

/* Groups of the lanes' cache. */
#define QUIRE_LANES_MAIN 0u
#define QUIRE_LANES_HOT  1u

/* A lane's page tables, and page i of them. Memory: until the next step or condensing. */
typedef struct lane_tables {
    quire_seq_table main;
    quire_seq_table hot; /* of sealed formats */
    bool is_run;         /* the positions of all tokens follow each other, and none has a bias */
} lane_tables;
lane_tables quire_lane_tables(const quire_lanes *lanes, const lane_state *lane);
unsigned char *quire_lane_page(const quire_lanes *lanes, const lane_tables *tables, uint32_t i);
/* NULL: the tile is sealed, or the formats are not. */
unsigned char *quire_lane_hot_page(const quire_lanes *lanes, const lane_tables *tables, uint32_t i);
/* Page i of either table, whose pages have page_bytes; NULL: a hole. */
unsigned char *quire_lane_page_of(const quire_lanes *lanes, const quire_seq_table *table,
                                  uint32_t i, size_t page_bytes);

/* n_tokens rows of K or V from slot `slot` of page i on, dense, as they are stored. */
void quire_lane_rows(const quire_lanes *lanes, const quire_attn_layer *one,
                     const lane_tables *tables, quire_side side, uint32_t i, uint32_t slot,
                     uint32_t n_tokens, float *rows);

/* Head g of a call's layer, given the layer as one head of `group` query heads is computed. */
quire_attn_layer quire_lane_call(const quire_attn_layer *constants, const quire_attn_layer *call,
                                 uint32_t group, uint32_t g);

/* ---- kept_lanes_bytes.c ---- */

/* Layers without a window. */
uint32_t quire_lanes_n_choosing(const quire_lanes_opts *opts);
/* The longest text, with rows that repeat a part of it; and entries of a lane's table. */
uint32_t quire_lanes_text_max(const quire_lanes_opts *opts);
uint32_t quire_lanes_entries_max(const quire_lanes_opts *opts);
/* Bytes of a page, and of a hot page: 0, if no format is sealed. */
size_t quire_lane_page_bytes(const quire_attn_layer *layer);
size_t quire_lane_hot_bytes(const quire_lanes_opts *opts);
quire_attn_workspace_opts quire_lanes_head_opts(const quire_lanes_opts *opts);
uint64_t quire_lanes_queries_floats(const quire_lanes_opts *opts);

/* ---- kept_lanes_windowed.c: lanes of layers with windows ---- */

/* Tokens before the first tile that a row at a position or behind it sees. */
uint32_t quire_lane_past(const quire_attn_layer *one, uint32_t position);
/* Give back the pages, and hot pages, that rows from a position on do not read: of a lane; then
 * note it, when all lanes of the layer have done so. */
void quire_lane_give_back(const quire_lanes *lanes, const lane_layer *layer, const lane_state *lane,
                          uint32_t position);
void quire_layer_given_back(lane_layer *layer, uint32_t position);
/* Both, of all lanes of layers with windows. */
void quire_lanes_give_back(quire_lanes *lanes, uint32_t position);
/* The text is cut to n tokens. */
void quire_lanes_windowed_cut(quire_lanes *lanes, uint32_t n);
/* The most tokens of the text, n at most, at which these layers have their windows, and the hot
 * page of an open tile. */
uint32_t quire_lanes_windowed_cuttable(const quire_lanes *lanes, uint32_t n);

/* Tokens that a lane holds: the last ones, of a layer with a window. */
static inline uint32_t quire_lane_n_held(const quire_lanes *lanes, const lane_state *lane)
{
    const size_t layer = (size_t)(lane - lanes->lanes) / lanes->n_kv_head;

    return lane->n - lanes->layers[layer].n_past;
}

/* ---- kept_lanes_device.c: lanes on a device ---- */

/* Bytes of the host's memory, for rows of a step and for windows. */
uint64_t quire_lanes_device_bytes(const quire_lanes_opts *opts);
/* The rows of a step; and when the sizes of pages are known, the windows. Errors: QUIRE_NOMEM. */
int quire_lanes_device_create(quire_lanes *lanes, const quire_lanes_opts *opts);
int quire_lanes_windows_create(quire_lanes *lanes);
void quire_lanes_device_destroy(quire_lanes *lanes);
/* A layer of the step at hand; on one thread. */
void quire_lanes_device_append(quire_lanes *lanes, const quire_attn_layer *call, uint32_t l);
void quire_lanes_device_run(quire_lanes *lanes, const quire_attn_layer *call, uint32_t l);
/* Wait until run() has brought the keys that head g watches. Thread: any of a step. */
void quire_lanes_device_keys_wait(const quire_lanes *lanes, uint32_t l, uint32_t g);
int quire_lanes_device_sync(const quire_lanes *lanes);

/* A part of each page of a table. */
typedef struct lane_tiles {
    const quire_seq_table *table;
    size_t page_bytes;
    size_t offset; /* of the part in its page */
    size_t bytes;
} lane_tiles;

typedef enum lane_use {
    LANE_READ,
    LANE_READ_HOT,
    LANE_WRITE,
    N_LANE_USES
} lane_use;

typedef struct lane_window {
    const quire_lanes *lanes;
    quire_tile_window window;
    quire_seq_table table; /* of the run; leaves NULL: none */
    size_t page_bytes;
    size_t offset;
} lane_window;

struct lane_windows {
    lane_window of[N_LANE_USES];
    int status;
};

/* The part in page i, as the host reads or writes it: of a device, between windows_begin() and
 * windows_end(). The rules are those of quire_tile_window_at(), for each use. */
unsigned char *quire_lane_tile_at(const quire_lanes *lanes, const lane_tiles *tiles, lane_use use,
                                  uint32_t i);
/* Nothing in the host's memory. status: of all copies since begin(), behind end() also those of
 * tiles that were written last. */
void quire_lanes_windows_begin(const quire_lanes *lanes);
/* Between: send what was written. What is read next, is read anew. */
void quire_lanes_windows_flush(const quire_lanes *lanes);
void quire_lanes_windows_end(const quire_lanes *lanes);
int quire_lanes_windows_status(const quire_lanes *lanes);

/* The parts of a side's tiles. */
static inline lane_tiles quire_lane_tiles(const quire_lanes *lanes, const quire_attn_layer *one,
                                          const lane_tables *tables, quire_side side)
{
    const bool is_k = side == QUIRE_SIDE_K;
    const quire_attn_source *source = is_k ? &one->k[0] : &one->v[0];

    return (lane_tiles){ &tables->main, lanes->page_bytes, source->lane.offset,
                         quire_tile_bytes(source->format, side, is_k ? one->d_k : one->d_v) };
}

/* The same of its hot tiles. */
static inline lane_tiles quire_lane_hot_tiles(const quire_lanes *lanes, const quire_attn_layer *one,
                                              const lane_tables *tables, quire_side side)
{
    const bool is_k = side == QUIRE_SIDE_K;
    const quire_attn_source *source = is_k ? &one->k[0] : &one->v[0];

    return (lane_tiles){ &tables->hot, lanes->hot_bytes, source->hot_lane.offset,
                         quire_tile_bytes(QUIRE_FORMAT_HOT, side, is_k ? one->d_k : one->d_v) };
}

/* ---- kept_lanes_sealed.c: lanes of sealed formats ---- */

/* Tokens of a lane that were condensed. The others are the last ones. */
static inline uint32_t quire_lane_n_condensed(const quire_lanes *lanes, const lane_state *lane)
{
    return lane->n - (lanes->n_text - lanes->n_condensed);
}

/* The position up to which a condensing looks: with sealed formats the recent tokens stay in full,
 * and whole tiles are condensed. */
uint32_t quire_lanes_edge(const quire_lanes *lanes);

/* Room of a thread that seals: a hot tile, and its rows. Errors: QUIRE_NOMEM. */
uint64_t quire_lanes_seal_bytes(const quire_lanes_opts *opts);
int quire_lanes_seal_create(quire_lanes *lanes, const quire_lanes_opts *opts);

/* Seal the kept ones of a lane's tokens behind the condensed ones, and put those from position
 * `edge` on behind them. Returns the number of the lane's tokens. */
uint32_t quire_lane_seal(const quire_lanes *lanes, lane_state *lane, const bool *is_kept,
                         uint32_t edge, uint32_t thread);
/* Give back the hot pages of condensed tokens. */
void quire_lane_cool(quire_lanes *lanes, lane_state *lane, uint32_t n_condensed);

/* With keeps_all: give back the hot pages that rows behind the text do not read. */
void quire_lanes_cool(quire_lanes *lanes);
/* The most tokens of the text, n at most, at which no lane lacks the hot page of an open tile or a
 * window. */
uint32_t quire_lanes_cuttable(const quire_lanes *lanes, uint32_t n);

static inline bool quire_lanes_repeats(const quire_lanes *lanes)
{
    return lanes->repeat_end > lanes->repeat_begin;
}

/* Whether sums over the text's rows are kept, which cannot forget a row. */
static inline bool quire_lanes_sums(const quire_lanes *lanes)
{
    return lanes->spec.policy->worth == QUIRE_RETAIN_WORTH_SUM ||
           lanes->spec.policy->expects_queries;
}

/* keys, [to - from][d_k]: K of a lane's tokens [from, to), as they are stored. Of a device only
 * tiles with these tokens are copied. */
void quire_lane_keys(const quire_lanes *lanes, const quire_attn_layer *one, const lane_state *lane,
                     uint32_t from, uint32_t to, float *keys);

/* ---- kept_lanes_attend.c: pages that are read ---- */

static inline bool quire_lanes_attends(const quire_lanes *lanes)
{
    return quire_attends(lanes->attend_share);
}

uint64_t quire_lanes_attend_bytes(const quire_lanes_opts *opts, uint32_t n_entries,
                                  uint64_t n_tokens);
/* Errors: QUIRE_NOMEM. */
int quire_lanes_attend_create(quire_lanes *lanes, const quire_lanes_opts *opts, uint32_t n_entries);

/* Bounds of the pages that hold tokens from `from` on, the first token that is new. On a device of
 * full pages alone, between windows_begin() and windows_end(). */
void quire_lane_bound(const quire_lanes *lanes, lane_state *lane, uint32_t from);

/* The first rows of the step at hand, which read all pages of a layer; whether others choose. */
uint32_t quire_lanes_n_dense(const quire_lanes *lanes, uint32_t layer);
bool quire_lanes_chooses(const quire_lanes *lanes, uint32_t layer);

/* Rows [first, end) of a step, and the number of entries of a head that they read. */
typedef struct lane_part {
    uint32_t first;
    uint32_t end;
    uint32_t n_entries;
} lane_part;

/* The entries of head g for the lane's tokens up to row `end` of the step; returns their number. */
uint32_t quire_lane_entries_until(quire_lanes *lanes, const lane_state *lane, uint32_t g,
                                  uint32_t end);
/* The entries of head g that row i of the step may need most; returns their number. one: the head
 * of the call's layer. */
uint32_t quire_lane_entries_choose(quire_lanes *lanes, const quire_attn_layer *one,
                                   const lane_state *lane, uint32_t g, uint32_t i);
/* A part's rows on the first entries of head g. */
quire_attn_seq quire_lane_seq_of(const quire_lanes *lanes, uint32_t g, const lane_part *part);
/* Attention of head g in such a layer: the rows before attend_from on all pages, then each of the
 * others on the pages that it may need most, as in a step of its own. Errors: quire_attn_begin().
 */
int quire_lanes_attend_rows(quire_lanes *lanes, const quire_attn_layer *one, uint32_t l,
                            uint32_t g);

/* kept_lanes_step.c: entry `at` of head g is page `page` of a lane. */
void quire_lane_entry_put(quire_lanes *lanes, const lane_state *lane, uint32_t g,
                          const lane_tables *tables, uint32_t page, uint32_t at);
/* The entries of head g for a lane's pages from `first` on; returns their number. */
uint32_t quire_lane_entries(quire_lanes *lanes, const lane_state *lane, uint32_t g, uint32_t first);
/* The step's rows on the first n of them. */
quire_attn_seq quire_lane_seq(const quire_lanes *lanes, uint32_t g, uint32_t n_entries);
/* Begin a step of head g with these rows. */
int quire_lanes_begin_head(quire_lanes *lanes, const lane_state *lane, uint32_t g,
                           const quire_attn_seq *seq);

/* ---- kept_lanes_worth.c: on the thread that has head g of layer l ---- */

/* Bytes of a head's scratch, and the scratch. Errors: QUIRE_NOMEM. */
uint64_t quire_lanes_watch_bytes(const quire_lanes_opts *opts);
int quire_lanes_watch_create(quire_lanes *lanes, const quire_lanes_opts *opts);
void quire_lanes_watch_destroy(quire_lanes *lanes);

/* The worth of the rows' own tokens, from the hidden states of the step. */
void quire_lanes_predict(quire_lanes *lanes, uint32_t l, uint32_t g);
/* Whether the policy looks at the attention of the step's rows. Then for each head: read the keys
 * that it watches, between windows_begin() and windows_end() of lanes on a device; and add the
 * attention of the rows to the worth of the lane's tokens. */
bool quire_lanes_watches(const quire_lanes *lanes);
void quire_lanes_watch_gather(quire_lanes *lanes, uint32_t l, uint32_t g);
void quire_lanes_watch(quire_lanes *lanes, const quire_attn_layer *one, uint32_t l, uint32_t g);

/* ---- kept_lanes_queries.c ---- */

uint64_t quire_lanes_sums_bytes(const quire_lanes_opts *opts);
/* Errors: QUIRE_INVAL (no rotation), QUIRE_NOMEM. */
int quire_lanes_sums_create(quire_lanes *lanes, const quire_lanes_opts *opts);
void quire_lanes_sums_destroy(quire_lanes *lanes);

/* The turns of the step's rows; once for all heads. */
void quire_lanes_sums_plan(quire_lanes *lanes);
/* Add the queries of the step's rows. */
void quire_lanes_sums_add(quire_lanes *lanes, const quire_attn_layer *one, uint32_t l, uint32_t g);
void quire_lanes_sums_clear(quire_lanes *lanes);
/* Of a layer that chooses. mean, [group][d_k], and cov, [group][d_k][d_k], of a lane's queries at
 * the positions from n_text on, transformed as its keys are. */
void quire_lanes_sums_ahead(const quire_lanes *lanes, uint32_t l, uint32_t g, float *mean,
                            float *cov);

/* ---- kept_lanes_fit.c ---- */

/* Bytes of a thread's room for fitting a lane of n tokens, whose layer has `group` query heads. */
size_t quire_lanes_fit_bytes(const quire_attn_layer *layer, uint32_t group, uint32_t probe,
                             uint32_t n);
/* Fit the kept tokens of a lane that chooses: they stand for the dropped tokens then. room: as
 * above, aligned as doubles. */
void quire_lane_fit(const quire_lanes *lanes, uint32_t chosen, const bool *is_kept, void *room);

/* ---- kept_lanes_condense.c ---- */

/* Queries of a head that are there, n_max at the most. */
uint32_t quire_lanes_n_queries(const quire_lanes *lanes, uint32_t n_max);
/* The last n_max or fewer of a lane that chooses, in order of their positions, and these; returns
 * their number. */
uint32_t quire_lane_queries(const quire_lanes *lanes, uint32_t chosen, uint32_t n_max,
                            float *queries, int32_t *rows_at);

/* Room for the positions, the biases, the worth and the bounds of n tokens. Errors: QUIRE_NOMEM. */
int quire_lane_reserve_lists(const quire_lanes *lanes, lane_state *lane, uint32_t n_tokens);

/* Cut a lane to the tokens before a position. */
void quire_lane_cut(quire_lanes *lanes, lane_state *lane, uint32_t n_tokens);

#endif /* QUIRE_RETAIN_KEPT_LANES_INTERNAL_H */
