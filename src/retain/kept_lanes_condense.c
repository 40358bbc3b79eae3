/* kept_lanes_condense.c - dropping tokens: all that can fail comes first and changes nothing.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/num.h"
#include "codec/slot_copy.h"
#include "retain/lane_score.h"
#include "retain/lanes_choice.h"

#include <stdlib.h>

#define TILE QUIRE_TILE_TOKENS

/* One condensing. Its lanes are those that choose. */
typedef struct condensing {
    quire_lanes *lanes;
    quire_lanes_choice choice;
    uint32_t edge;           /* tokens from this position on stay in full */
    unsigned char *fit_room; /* [n_threads][fit_bytes] */
    size_t fit_bytes;
    _Atomic int status;
} condensing;

static void in_parallel(condensing *c, void (*fn)(void *ctx, uint32_t thread, uint32_t n_threads))
{
    /* A device's windows belong to one thread. */
    if (c->lanes->parallel != NULL && c->lanes->n_threads > 1 && c->lanes->rows == NULL) {
        c->lanes->parallel(c->lanes->n_threads, fn, c);
    } else {
        fn(c, 0, 1);
    }
}

/* ---- scores ---- */

uint32_t quire_lanes_n_queries(const quire_lanes *lanes, uint32_t n_max)
{
    return lanes->probe_end < n_max ? lanes->probe_end : n_max;
}

uint32_t quire_lane_queries(const quire_lanes *lanes, uint32_t chosen, uint32_t n_max,
                            float *queries, int32_t *rows_at)
{
    const quire_attn_layer *one = &lanes->layers[quire_lane_layer(lanes, chosen)].one;
    const uint32_t probe = lanes->spec.probe;
    const uint32_t n = quire_lanes_n_queries(lanes, n_max);

    quire_probe_read(lanes->queries + (size_t)chosen * lanes->group * probe * one->d_k, probe,
                     lanes->group, one->d_k, lanes->probe_end, n, queries, rows_at);
    return n;
}

static void read_value_norms(const quire_lanes *lanes, const quire_attn_layer *one,
                             const lane_state *lane, float *norms)
{
    const lane_tables tables = quire_lane_tables(lanes, lane);
    float v[1024]; /* QUIRE_HEAD_DIM_MAX */

    for (uint32_t t = 0; t < lane->n; t++) {
        quire_lane_rows(lanes, one, &tables, QUIRE_SIDE_V, t / TILE, t % TILE, 1, v);
        norms[t] = quire_row_norm(v, one->d_v);
    }
}

static void expect_queries(const quire_lanes *lanes, uint32_t index,
                           const quire_lane_scratch *scratch, quire_retain_lane *lane)
{
    const uint32_t l = quire_lane_layer(lanes, index);

    quire_lanes_sums_ahead(lanes, l, index % lanes->n_kv_head, scratch->query_mean,
                           scratch->query_cov);
    read_value_norms(lanes, &lanes->layers[l].one, quire_lane_chosen(lanes, index),
                     scratch->value_norms);
    quire_lane_scratch_expect(scratch, lanes->group, lane);
}

static void score_lane(condensing *c, uint32_t index, quire_lane_scratch *scratch)
{
    const quire_lanes *lanes = c->lanes;
    const lane_state *state = quire_lane_chosen(lanes, index);
    const quire_attn_layer *one = &lanes->layers[quire_lane_layer(lanes, index)].one;
    quire_retain_lane lane = { .n_tokens = state->n,
                               .positions = state->positions + 1,
                               .n_text = lanes->n_text,
                               .keys = scratch->keys,
                               .d = one->d_k,
                               .lane = index,
                               .worth = state->worth };

    if (scratch->keys != NULL) {
        quire_lane_keys(lanes, one, state, 0, state->n, scratch->keys);
    }
    if (scratch->query_mean != NULL) {
        expect_queries(lanes, index, scratch, &lane);
    }
    if (scratch->attention != NULL) {
        quire_retain_probe probe = {
            .queries = scratch->queries,
            .rows_at = scratch->rows_at,
            .n_heads = lanes->group,
            .scale = one->scale,
            .softcap = one->softcap,
            .sinks = one->sinks != NULL
                         ? one->sinks + (size_t)(index % lanes->n_kv_head) * lanes->group
                         : NULL,
        };

        probe.n_queries =
            quire_lane_queries(lanes, index, lanes->spec.probe, scratch->queries, scratch->rows_at);
        quire_lane_scratch_attend(scratch, &lanes->spec, &probe, &lane, &c->choice.measures[index]);
    }
    quire_retain_score(&lanes->spec, &lane, c->choice.scores[index]);
}

static void score_share(void *ctx, uint32_t thread, uint32_t n_threads)
{
    condensing *c = ctx;
    const quire_lanes *lanes = c->lanes;
    quire_lane_scratch scratch;
    uint32_t n_max = 1;

    for (size_t i = thread; i < quire_lanes_n_chosen(lanes); i += n_threads) {
        n_max = quire_max_u32(n_max, quire_lane_chosen(lanes, i)->n);
    }
    if (quire_lane_scratch_init(&scratch, &lanes->spec, lanes->group, lanes->layers[0].one.d_k,
                                lanes->spec.probe, n_max) < 0) {
        atomic_store(&c->status, QUIRE_NOMEM);
    } else {
        for (size_t i = thread; i < quire_lanes_n_chosen(lanes); i += n_threads) {
            if (!lanes->layers[quire_lane_layer(lanes, i)].is_full) {
                score_lane(c, (uint32_t)i, &scratch);
            }
        }
    }
    quire_lane_scratch_fini(&scratch);
}

static void choose_share(void *ctx, uint32_t thread, uint32_t n_threads)
{
    condensing *c = ctx;

    if (quire_lanes_choice_share(&c->choice, thread, n_threads) < 0) {
        atomic_store(&c->status, QUIRE_NOMEM);
    }
}

/* ---- moving ---- */

/* Move one side of the kept tokens of a lane together. */
static void move_side(const quire_lanes *lanes, const quire_attn_layer *one, const lane_state *lane,
                      quire_side side, const bool *is_kept)
{
    const bool is_k = side == QUIRE_SIDE_K;
    const quire_tile_kind kind = { is_k ? one->k[0].format : one->v[0].format, side,
                                   is_k ? one->d_k : one->d_v };
    const lane_tables table = quire_lane_tables(lanes, lane);
    const lane_tiles tiles = quire_lane_tiles(lanes, one, &table, side);
    uint32_t first = 0, n;

    while (first < lane->n && is_kept[first]) { /* these stay */
        first++;
    }
    first = first / TILE * TILE; /* windows write whole tiles */
    n = first;
    for (uint32_t t = first; t < lane->n; t++) {
        if (is_kept[t] && (n != t || lanes->rows != NULL)) {
            quire_tile_slot_copy(&kind, quire_lane_tile_at(lanes, &tiles, LANE_READ, t / TILE),
                                 t % TILE, quire_lane_tile_at(lanes, &tiles, LANE_WRITE, n / TILE),
                                 n % TILE);
        }
        n += is_kept[t];
    }
}

/* Move the kept tokens of a lane together; returns their number. */
static uint32_t move_lane(const quire_lanes *lanes, const quire_attn_layer *one, lane_state *lane,
                          const bool *is_kept)
{
    uint32_t n = 0;

    move_side(lanes, one, lane, QUIRE_SIDE_K, is_kept);
    move_side(lanes, one, lane, QUIRE_SIDE_V, is_kept);
    for (uint32_t t = 0; t < lane->n; t++) {
        if (is_kept[t] && n != t) {
            lane->positions[1 + n] = lane->positions[1 + t];
            if (lane->biases != NULL) {
                lane->biases[1 + n] = lane->biases[1 + t];
            }
            if (lane->worth != NULL) {
                lane->worth[n] = lane->worth[t];
            }
        }
        n += is_kept[t];
    }
    return n;
}

static void move_share(void *ctx, uint32_t thread, uint32_t n_threads)
{
    condensing *c = ctx;
    quire_lanes *lanes = c->lanes;

    for (size_t i = thread; i < quire_lanes_n_chosen(lanes); i += n_threads) {
        const uint32_t l = quire_lane_layer(lanes, i);
        const bool *is_kept = c->choice.is_kept[i];
        lane_state *lane = quire_lane_chosen(lanes, i);

        if (quire_lanes_choice_cuts(&c->choice, lanes->layers[l].number)) {
            if (lanes->spec.merges) {
                quire_lane_fit(lanes, (uint32_t)i, is_kept, c->fit_room + thread * c->fit_bytes);
            }
            lane->n = lanes->hot_bytes > 0 ? quire_lane_seal(lanes, lane, is_kept, c->edge, thread)
                                           : move_lane(lanes, &lanes->layers[l].one, lane, is_kept);
        }
    }
}

/* Hot pages are gone by now. */
static void bound_share(void *ctx, uint32_t thread, uint32_t n_threads)
{
    condensing *c = ctx;

    for (size_t i = thread; i < quire_lanes_n_chosen(c->lanes); i += n_threads) {
        quire_lane_bound(c->lanes, quire_lane_chosen(c->lanes, i), 0);
    }
}

/* ---- all of it ---- */

/* With sealed formats condensed tokens stay, as do those from the edge on. */
static int condensing_init(condensing *c, quire_lanes *lanes)
{
    const bool is_sealed = lanes->hot_bytes > 0;
    quire_lanes_choice *choice = &c->choice;
    uint32_t n_max = 0;

    *c = (condensing){ .lanes = lanes, .edge = quire_lanes_edge(lanes) };
    QUIRE_TRY(quire_lanes_choice_init(choice, &lanes->spec, lanes->n_choosing, lanes->n_kv_head,
                                      lanes->n_text));
    choice->granule = is_sealed ? TILE : choice->granule;
    choice->n_behind = lanes->n_text - c->edge;
    for (size_t i = 0; i < quire_lanes_n_chosen(lanes); i++) {
        const lane_state *lane = quire_lane_chosen(lanes, i);

        n_max = quire_max_u32(n_max, lane->n);
        choice->n_tokens[i] = lane->n;
        choice->n_before[i] = is_sealed ? quire_lane_n_condensed(lanes, lane) : 0;
        choice->positions[i] = lane->positions + 1;
    }
    for (uint32_t i = 0; i < lanes->n_choosing; i++) {
        choice->is_full[i] = lanes->layers[lanes->choosing[i]].is_full;
    }
    if (lanes->spec.merges) {
        c->fit_bytes =
            quire_lanes_fit_bytes(&lanes->layers[0].one, lanes->group, lanes->spec.probe, n_max);
        c->fit_room = malloc(c->fit_bytes * lanes->n_threads);
        QUIRE_FAIL_IF(c->fit_room == NULL, QUIRE_NOMEM);
    }
    return quire_lanes_choice_room(choice);
}

/* Whether the queries of the text's last tokens are there. */
static bool has_queries(const quire_lanes *lanes)
{
    const bool is_wanted = lanes->queries != NULL || quire_lanes_sums(lanes);

    for (uint32_t i = 0; is_wanted && i < lanes->n_choosing; i++) {
        if (lanes->layers[lanes->choosing[i]].queries_end != lanes->n_text) {
            return false;
        }
    }
    return lanes->spec.policy->worth != QUIRE_RETAIN_WORTH_REPEATED ||
           lanes->n_repeated == lanes->n_text;
}

/* Errors: QUIRE_LOST (of bounds alone). */
static int cut(condensing *c)
{
    quire_lanes *lanes = c->lanes;

    for (size_t i = 0; i < quire_lanes_n_chosen(lanes); i++) {
        lane_state *lane = quire_lane_chosen(lanes, i);

        quire_lane_cut(lanes, lane, lane->n);
        quire_lane_cool(lanes, lane, lane->n - (lanes->n_text - c->edge));
    }
    if (quire_lanes_attends(lanes)) {
        quire_lanes_windows_begin(lanes);
        in_parallel(c, bound_share);
        quire_lanes_windows_end(lanes);
    }
    lanes->n_condensed = c->edge;
    lanes->n_chosen = lanes->n_text;
    lanes->generations++;
    quire_lanes_sums_clear(lanes);
    return quire_lanes_windows_status(lanes);
}

static int choose(condensing *c)
{
    in_parallel(c, score_share);
    QUIRE_TRY(atomic_load(&c->status));
    QUIRE_TRY(quire_lanes_windows_status(c->lanes));
    quire_lanes_choice_budgets(&c->choice);
    in_parallel(c, choose_share);
    return atomic_load(&c->status);
}

static int condense(condensing *c)
{
    bool is_moved = false;
    int rc;

    quire_lanes_windows_begin(c->lanes);
    rc = choose(c);
    if (rc == QUIRE_OK) {
        in_parallel(c, move_share);
        is_moved = true;
    }
    quire_lanes_windows_end(c->lanes);
    rc = rc == QUIRE_OK ? quire_lanes_windows_status(c->lanes) : rc;
    rc = rc == QUIRE_OK ? cut(c) : rc;
    if (rc < 0 && is_moved) {
        quire_lanes_truncate(c->lanes, 0); /* lists and pages differ */
    }
    return rc;
}

bool quire_lanes_condenses(const quire_lanes *lanes)
{
    return !lanes->keeps_all && quire_lanes_edge(lanes) > lanes->n_condensed;
}

int quire_lanes_condense(quire_lanes *lanes)
{
    const uint64_t begin_ns = quire_clock_ns();
    condensing c;
    int rc;

    if (!quire_lanes_condenses(lanes)) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(!has_queries(lanes), QUIRE_INVAL);
    rc = condensing_init(&c, lanes);
    rc = rc == QUIRE_OK ? condense(&c) : rc;
    free(c.fit_room);
    quire_lanes_choice_fini(&c.choice);
    lanes->condense_ns += quire_clock_ns() - begin_ns;
    return rc;
}
