/* kept_lanes_step.c - the device: a step's rows into lanes, and attention on them.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define TILE QUIRE_TILE_TOKENS

/* ---- plan ---- */

void quire_lane_cut(quire_lanes *lanes, lane_state *lane, uint32_t n_tokens)
{
    /* Nothing is shared with another sequence, so nothing is copied. */
    int rc = quire_seq_truncate(lanes->cache, lane->seq, n_tokens);

    QUIRE_CHECK(rc == QUIRE_OK);
    lane->n = n_tokens;
}

/* Drop the tokens at the position `begin` and behind it. */
static int cut_back(quire_lanes *lanes, uint32_t begin)
{
    QUIRE_FAIL_IF(begin > lanes->n_text, QUIRE_INVAL);
    QUIRE_FAIL_IF(begin != 0 && begin < lanes->n_condensed, QUIRE_UNSUPP);
    QUIRE_FAIL_IF(begin != 0 && begin < lanes->n_text && quire_lanes_sums(lanes), QUIRE_UNSUPP);
    QUIRE_FAIL_IF(begin < lanes->n_text && quire_lanes_cuttable(lanes, begin) != begin,
                  QUIRE_UNSUPP);
    for (size_t i = 0; i < (size_t)lanes->n_layers * lanes->n_kv_head && begin < lanes->n_text;
         i++) {
        lane_state *lane = &lanes->lanes[i];
        const uint32_t n_behind = lanes->n_text - begin; /* held in full */

        quire_lane_cut(lanes, lane, begin == 0 ? 0 : lane->n - n_behind);
    }
    if (begin == 0) {
        lanes->n_condensed = lanes->n_chosen = 0;
        lanes->generations = 0;
        quire_lanes_sums_clear(lanes);
    }
    lanes->n_repeated = lanes->n_repeated < begin ? lanes->n_repeated : begin;
    lanes->n_cooled = lanes->n_cooled < begin ? lanes->n_cooled : begin;
    quire_lanes_windowed_cut(lanes, begin);
    lanes->n_text = begin;
    return QUIRE_OK;
}

uint32_t quire_lanes_keepable(const quire_lanes *lanes, uint32_t n)
{
    /* Queries of a text that is repeated are those of its repetition. */
    const bool has_queries =
        lanes->queries != NULL && lanes->spec.policy->worth != QUIRE_RETAIN_WORTH_REPEATED;

    if (n >= lanes->n_text) {
        return lanes->n_text;
    }
    n = quire_lanes_sums(lanes) || has_queries ? 0 : quire_lanes_cuttable(lanes, n);
    return n < lanes->n_chosen ? 0 : n;
}

void quire_lanes_truncate(quire_lanes *lanes, uint32_t n)
{
    const int rc = cut_back(lanes, n);

    QUIRE_CHECK(rc == QUIRE_OK);
}

int quire_lane_reserve_lists(const quire_lanes *lanes, lane_state *lane, uint32_t n_tokens)
{
    const bool has_worth = lanes->spec.policy->worth != QUIRE_RETAIN_WORTH_NONE;
    const size_t layer = (size_t)(lane - lanes->lanes) / lanes->n_kv_head;
    const uint32_t d_k = lanes->layers[0].one.d_k;
    int32_t *positions;
    float *worth, *biases;
    uint16_t *bounds;
    uint32_t capacity;

    if (n_tokens <= lane->capacity || lane->is_windowed) {
        return QUIRE_OK;
    }
    capacity = n_tokens + n_tokens / 4;
    positions = realloc(lane->positions, ((size_t)capacity + 1) * sizeof *positions);
    QUIRE_FAIL_IF(positions == NULL, QUIRE_NOMEM);
    lane->positions = positions;
    if (lanes->spec.merges) {
        biases = realloc(lane->biases, ((size_t)capacity + 1) * sizeof *biases);
        QUIRE_FAIL_IF(biases == NULL, QUIRE_NOMEM);
        lane->biases = biases;
    }
    worth = has_worth ? realloc(lane->worth, capacity * sizeof *worth) : NULL;
    QUIRE_FAIL_IF(has_worth && worth == NULL, QUIRE_NOMEM);
    lane->worth = worth;
    if (quire_lanes_attends(lanes) && layer >= QUIRE_ATTEND_DENSE) {
        bounds = realloc(lane->bounds, (capacity / TILE + 1) * quire_page_bounds_bytes(d_k));
        QUIRE_FAIL_IF(bounds == NULL, QUIRE_NOMEM);
        lane->bounds = bounds;
    }
    lane->capacity = capacity;
    return QUIRE_OK;
}

/* Room for n more tokens in every lane, or in none. */
static int reserve(quire_lanes *lanes, uint32_t n_rows)
{
    const size_t n_lanes = (size_t)lanes->n_layers * lanes->n_kv_head;
    int rc = QUIRE_OK;

    for (size_t i = 0; i < n_lanes && rc == QUIRE_OK; i++) {
        lane_state *lane = &lanes->lanes[i];

        rc = quire_lane_reserve_lists(lanes, lane, lane->n + n_rows);
        rc = rc == QUIRE_OK ? quire_seq_reserve(lanes->cache, lane->seq, n_rows) : rc;
    }
    for (size_t i = 0; i < n_lanes && rc < 0; i++) {
        quire_lane_cut(lanes, &lanes->lanes[i], lanes->lanes[i].n);
    }
    return rc;
}

/* A step's rows in the lists of a lane. */
static void add_rows(lane_state *lane, uint32_t begin, uint32_t n_rows)
{
    for (uint32_t t = 0; t < n_rows; t++) {
        if (lane->worth != NULL) {
            lane->worth[lane->n] = 0.0f;
        }
        if (lane->biases != NULL) {
            lane->biases[1 + lane->n] = 0.0f;
        }
        lane->positions[1 + lane->n++] = (int32_t)(begin + t);
    }
}

static int plan(void *ctx, const quire_attn_batch *batch)
{
    quire_lanes *lanes = ctx;
    const quire_attn_seq *seq = &batch->seqs[0];
    const uint32_t begin = seq->n_tokens - seq->n_rows;

    QUIRE_FAIL_IF(batch->n_seqs != 1, QUIRE_UNSUPP);
    QUIRE_FAIL_IF(seq->n_tokens > lanes->n_text_max, QUIRE_LIMIT);
    QUIRE_TRY(cut_back(lanes, begin));
    quire_lanes_cool(lanes);
    /* Rows that repeat a part go again: the text goes on at its end. */
    quire_lanes_give_back(lanes, quire_lanes_repeats(lanes) ? lanes->repeat_at : begin);
    QUIRE_TRY(reserve(lanes, seq->n_rows));
    for (size_t i = 0; i < (size_t)lanes->n_layers * lanes->n_kv_head; i++) {
        lane_state *lane = &lanes->lanes[i];
        int rc = quire_seq_append(lanes->cache, lane->seq, seq->n_rows);

        QUIRE_CHECK(rc == QUIRE_OK); /* the room is reserved */
        if (lane->is_windowed) {
            lane->n += seq->n_rows;
        } else {
            add_rows(lane, begin, seq->n_rows);
        }
    }
    lanes->n_text = lanes->probe_end = seq->n_tokens;
    lanes->first_row = seq->first_row;
    lanes->n_rows = seq->n_rows;
    quire_lanes_sums_plan(lanes);
    for (uint32_t l = 0; l < lanes->n_layers; l++) {
        atomic_store_explicit(&lanes->layers[l].next_append, 0, memory_order_relaxed);
        atomic_store_explicit(&lanes->layers[l].next_run, 0, memory_order_relaxed);
        lanes->layers[l].n_gathered = 0;
    }
    atomic_store_explicit(&lanes->status, QUIRE_OK, memory_order_relaxed);
    return QUIRE_OK;
}

/* ---- a layer ---- */

static lane_layer *find_layer(const quire_lanes *lanes, const quire_attn_layer *layer, uint32_t *l)
{
    for (*l = 0; *l < lanes->n_layers; ++*l) {
        if (lanes->layers[*l].key == layer->k_store.lane.offset) {
            return &lanes->layers[*l];
        }
    }
    return NULL;
}

static int check(void *ctx, const quire_attn_layer *layer)
{
    uint32_t l;

    return find_layer(ctx, layer, &l) != NULL ? QUIRE_OK : QUIRE_UNSUPP;
}

quire_attn_layer quire_lane_call(const quire_attn_layer *constants, const quire_attn_layer *call,
                                 uint32_t group, uint32_t g)
{
    quire_attn_layer one = *constants;
    const size_t q_head = (size_t)g * group;

    one.q[0] = call->q[0] != NULL ? call->q[0] + q_head * one.d_k : NULL;
    one.q_stride = call->q_stride;
    one.out = call->out != NULL ? call->out + q_head * one.d_v : NULL;
    one.out_stride = call->out_stride;
    one.k_new = call->k_new != NULL ? call->k_new + (size_t)g * one.d_k : NULL;
    one.k_new_stride = call->k_new_stride;
    one.v_new = call->v_new != NULL ? call->v_new + (size_t)g * one.d_v : NULL;
    one.v_new_stride = call->v_new_stride;
    one.sinks = call->sinks != NULL ? call->sinks + q_head : NULL;
    one.v_gate[0] = call->v_gate[0] != NULL ? call->v_gate[0] + (size_t)g * one.d_v : NULL;
    return one;
}

quire_attn_seq quire_lane_seq(const quire_lanes *lanes, uint32_t g, uint32_t n_entries)
{
    const lane_head *head = &lanes->heads[g];
    quire_attn_seq seq = { .tables[QUIRE_LANES_MAIN] = { head->leaves, n_entries },
                           .n_tokens = lanes->n_text,
                           .first_row = lanes->first_row,
                           .n_rows = lanes->n_rows };

    if (lanes->hot_bytes > 0) {
        seq.tables[QUIRE_LANES_HOT] = (quire_attn_table){ head->hot_leaves, n_entries };
    }
    return seq;
}

int quire_lanes_begin_head(quire_lanes *lanes, const lane_state *lane, uint32_t g,
                           const quire_attn_seq *seq)
{
    lane_head *head = &lanes->heads[g];
    const quire_attn_batch batch = { .seqs = &head->seq,
                                     .n_seqs = 1,
                                     .page_tokens = TILE,
                                     .page_addr = quire_cache_page_addrs(lanes->cache),
                                     .positions = lane->positions,
                                     .biases = lane->biases };

    head->seq = *seq;
    return quire_attn_begin(head->workspace, &batch);
}

/* Whether one of n tokens has a bias: only entries with a list have biases. */
static bool is_biased(const lane_state *lane, uint32_t first, uint32_t n)
{
    for (uint32_t t = first; lane->biases != NULL && t < first + n; t++) {
        if (lane->biases[1 + t] != 0.0f) {
            return true;
        }
    }
    return false;
}

/* Whether a page of so many tokens of a lane needs no list: their positions follow each other. */
static bool is_dense(const quire_lanes *lanes, const lane_state *lane, uint32_t page, uint32_t n)
{
    const int32_t *list = lane->positions + 1 + (size_t)page * TILE;

    /* Beside hot pages positions without a list begin with a tile of the text. */
    return list[n - 1] - list[0] == (int32_t)n - 1 &&
           (lanes->hot_bytes == 0 || list[0] % (int32_t)TILE == 0) &&
           !is_biased(lane, page * TILE, n);
}

static const quire_page_entry *entry_of(const quire_seq_table *table, uint32_t i)
{
    return &table->leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES];
}

void quire_lane_entry_put(quire_lanes *lanes, const lane_state *lane, uint32_t g,
                          const lane_tables *tables, uint32_t page, uint32_t at)
{
    quire_page_entry *entry = &lanes->heads[g].entries[at];

    *entry = *entry_of(&tables->main, page);
    if (lane->is_windowed) {
        entry->first_pos = (int32_t)(page * TILE);
        entry->positions = 0;
        if (entry->page == QUIRE_PAGE_NULL) { /* no row sees its positions: any page will do */
            entry->page = entry_of(&tables->main, tables->main.n_entries - 1)->page;
        }
    } else if (tables->is_run && lanes->hot_bytes == 0) {
        /* The page's own positions are not looked at. */
        entry->first_pos = lane->positions[1] + (int32_t)(page * TILE);
        entry->positions = 0;
    } else {
        entry->first_pos = lane->positions[1 + (size_t)page * TILE];
        entry->positions = is_dense(lanes, lane, page, entry->n_tokens) ? 0 : 1 + page * TILE;
    }
    if (lanes->hot_bytes > 0) {
        quire_page_entry *hot = &lanes->heads[g].hot_entries[at];

        *hot = *entry;
        hot->page = entry_of(&tables->hot, page)->page;
    }
}

uint32_t quire_lane_entries(quire_lanes *lanes, const lane_state *lane, uint32_t g, uint32_t first)
{
    const lane_tables tables = quire_lane_tables(lanes, lane);
    const uint32_t n = tables.main.n_entries;

    for (uint32_t i = first; i < n; i++) {
        quire_lane_entry_put(lanes, lane, g, &tables, i, i - first);
    }
    return n - first;
}

/* Plan head g's workspace for the lane of a layer, and store its rows. Rows that choose pages plan
 * anew: then the pages of the rows are enough. */
static void append_head(quire_lanes *lanes, const quire_attn_layer *call, uint32_t l, uint32_t g)
{
    const lane_state *lane = quire_lane_at(lanes, l, g);
    const quire_attn_layer one = quire_lane_call(&lanes->layers[l].one, call, lanes->group, g);
    const uint32_t first = quire_lanes_chooses(lanes, l) ? (lane->n - lanes->n_rows) / TILE : 0;
    const quire_attn_seq seq = quire_lane_seq(lanes, g, quire_lane_entries(lanes, lane, g, first));
    const int rc = quire_lanes_begin_head(lanes, lane, g, &seq);

    if (rc < 0) {
        atomic_store_explicit(&lanes->status, rc, memory_order_relaxed);
    }
    quire_attn_append(lanes->heads[g].workspace, &one, 0, 1); /* nothing, after a failure */
}

static void append(void *ctx, const quire_attn_layer *call, uint32_t thread, uint32_t n_threads)
{
    quire_lanes *lanes = ctx;
    uint32_t l, g;
    lane_layer *layer = find_layer(lanes, call, &l);

    (void)n_threads;
    if (lanes->rows != NULL && thread == 0) {
        quire_lanes_device_append(lanes, call, l);
    }
    while ((g = atomic_fetch_add_explicit(&layer->next_append, 1, memory_order_relaxed)) <
           lanes->n_kv_head) {
        if (lanes->rows == NULL) {
            append_head(lanes, call, l, g);
        }
        quire_lanes_predict(lanes, l, g);
        if (lanes->rows == NULL) {
            quire_lane_bound(lanes, quire_lane_at(lanes, l, g),
                             quire_lane_at(lanes, l, g)->n - lanes->n_rows);
        }
    }
}

/* Keep the queries of the step's last rows, transformed as K is. */
static void keep_queries(quire_lanes *lanes, const quire_attn_layer *one, uint32_t l, uint32_t g)
{
    const uint32_t probe = lanes->spec.probe;
    const uint32_t n = lanes->n_rows < probe ? lanes->n_rows : probe;

    for (uint32_t i = lanes->n_rows - n; lanes->queries != NULL && i < lanes->n_rows; i++) {
        const uint32_t position = lanes->n_text - lanes->n_rows + i;
        const float *row = one->q[0] + (lanes->first_row + i) * one->q_stride;

        for (uint32_t h = 0; h < lanes->group; h++) {
            const size_t lane = (size_t)lanes->layers[l].number * lanes->n_kv_head + g;
            const size_t head = lane * lanes->group + h;
            float *to = lanes->queries + (head * probe + position % probe) * one->d_k;

            memcpy(to, row + (size_t)h * one->d_k, one->d_k * sizeof *to);
            if (one->k[0].rotate != 0) {
                quire_hadamard(to, one->d_k, one->k[0].rotate);
            }
        }
    }
    if (g == 0) { /* one thread writes it */
        lanes->layers[l].queries_end = lanes->n_text;
    }
}

/* What a policy keeps of the rows of head g. */
static void watch_rows(quire_lanes *lanes, const quire_attn_layer *one, uint32_t l, uint32_t g)
{
    if (lanes->layers[l].is_windowed) {
        return;
    }
    keep_queries(lanes, one, l, g);
    quire_lanes_sums_add(lanes, one, l, g);
    if (!quire_lanes_watches(lanes)) {
        return;
    }
    if (lanes->rows == NULL) {
        quire_lanes_watch_gather(lanes, l, g);
    } else {
        quire_lanes_device_keys_wait(lanes, l, g);
    }
    if (atomic_load_explicit(&lanes->status, memory_order_relaxed) == QUIRE_OK) {
        quire_lanes_watch(lanes, one, l, g);
    }
}

static void run(void *ctx, const quire_attn_layer *call, uint32_t index, uint32_t thread,
                uint32_t n_threads)
{
    quire_lanes *lanes = ctx;
    uint32_t l, unit, n_members;
    lane_layer *layer = find_layer(lanes, call, &l);

    (void)index;
    (void)n_threads;
    if (lanes->rows != NULL && thread == 0) {
        quire_lanes_device_run(lanes, call, l);
    }
    n_members = quire_lanes_chooses(lanes, l) || lanes->rows != NULL ? 1 : lanes->n_members;
    while ((unit = atomic_fetch_add_explicit(&layer->next_run, 1, memory_order_relaxed)) <
           lanes->n_kv_head * n_members) {
        const uint32_t g = unit / n_members;
        const uint32_t member = unit % n_members;
        const quire_attn_layer one = quire_lane_call(&layer->one, call, lanes->group, g);
        int rc = QUIRE_OK;

        if (lanes->rows != NULL) {
            rc = QUIRE_OK; /* thread 0 has done it */
        } else if (quire_lanes_chooses(lanes, l)) {
            rc = quire_lanes_attend_rows(lanes, &one, l, g);
        } else {
            quire_attn_run(lanes->heads[g].workspace, &one, 0, member, n_members);
        }
        if (rc < 0) {
            atomic_store_explicit(&lanes->status, rc, memory_order_relaxed);
        }
        if (member == 0) {
            watch_rows(lanes, &one, l, g);
        }
    }
}

static int sync_step(void *ctx)
{
    const quire_lanes *lanes = ctx;
    const int rc = lanes->rows != NULL ? quire_lanes_device_sync(lanes) : QUIRE_OK;

    return rc < 0 ? rc : atomic_load_explicit(&lanes->status, memory_order_relaxed);
}

/* ---- repeating ---- */

void quire_lanes_repeat_begin(quire_lanes *lanes, uint32_t begin, uint32_t end)
{
    QUIRE_CHECK(lanes->n_condensed <= begin && begin < end && end <= lanes->n_text);
    lanes->repeat_begin = begin;
    lanes->repeat_end = end;
    lanes->repeat_at = lanes->n_text;
}

void quire_lanes_repeat_end(quire_lanes *lanes, bool is_done)
{
    const uint32_t n_behind = lanes->n_text - lanes->repeat_at;

    for (size_t i = 0; i < (size_t)lanes->n_layers * lanes->n_kv_head && n_behind > 0; i++) {
        quire_lane_cut(lanes, &lanes->lanes[i], lanes->lanes[i].n - n_behind);
    }
    lanes->n_text = lanes->repeat_at;
    lanes->n_repeated = is_done ? lanes->repeat_end : lanes->n_repeated;
    lanes->repeat_begin = lanes->repeat_end = 0;
    for (uint32_t l = 0; l < lanes->n_layers; l++) {
        lanes->layers[l].queries_end = lanes->n_text;
    }
}

uint32_t quire_lanes_n_repeated(const quire_lanes *lanes)
{
    return lanes->n_repeated;
}

quire_attn_device quire_lanes_device(quire_lanes *lanes)
{
    return (quire_attn_device){ .name = "lanes",
                                .memory = QUIRE_MEMORY_HOST,
                                .ctx = lanes,
                                .check = check,
                                .plan = plan,
                                .append = append,
                                .run = run,
                                .sync = sync_step };
}
