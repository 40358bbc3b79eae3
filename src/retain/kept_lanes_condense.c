/* kept_lanes_condense.c - dropping tokens: all that can fail comes first and changes nothing.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/check.h"
#include "base/clock.h"
#include "codec/slot_copy.h"
#include "retain/probe.h"

#include <stdlib.h>
#include <string.h>

#define TILE QUIRE_TILE_TOKENS

/* One condensing. Arrays of tokens hold one lane after the other. */
typedef struct condensing {
    quire_lanes *lanes;
    size_t *first; /* [n_lanes] of a lane in the arrays of tokens */
    float *scores;
    bool *is_kept;
    quire_retain_measure *measures; /* [n_lanes] */
    quire_retain_layer *layers;     /* [n_layers] */
    uint64_t *budgets;              /* [n_layers] */
    _Atomic int status;
} condensing;

static size_t n_lanes_of(const quire_lanes *lanes)
{
    return (size_t)lanes->n_layers * lanes->n_kv_head;
}

/* Whether tokens of a layer are to be chosen. */
static bool is_cut(const condensing *c, uint32_t l)
{
    return c->budgets[l] < c->layers[l].n_held;
}

static void in_parallel(condensing *c, void (*fn)(void *ctx, uint32_t thread, uint32_t n_threads))
{
    if (c->lanes->parallel != NULL && c->lanes->n_threads > 1) {
        c->lanes->parallel(c->lanes->n_threads, fn, c);
    } else {
        fn(c, 0, 1);
    }
}

/* ---- scores ---- */

static void read_keys(const quire_lanes *lanes, const quire_attn_layer *one, const lane_state *lane,
                      float *keys)
{
    const quire_seq_table table = quire_lane_table(lanes, lane);

    for (uint32_t i = 0; i < table.n_entries; i++) {
        const uint32_t n = lane->n - i * TILE < TILE ? lane->n - i * TILE : TILE;
        const quire_tile_rows rows = { .d = one->d_k, .n_tokens = n, .stride = one->d_k };

        quire_codec_get()->decode_k(one->k[0].format, &rows, quire_lane_page(lanes, &table, i),
                                    keys + (size_t)i * TILE * one->d_k);
    }
}

/* The queries of the probe window in order of their positions, and these. */
static uint32_t gather_queries(const quire_lanes *lanes, const quire_attn_layer *one, uint32_t lane,
                               float *queries, int32_t *rows_at)
{
    const uint32_t probe = lanes->spec.probe;
    const uint32_t n = lanes->n_text < probe ? lanes->n_text : probe;

    for (uint32_t h = 0; h < lanes->group; h++) {
        const float *head = lanes->queries + ((size_t)lane * lanes->group + h) * probe * one->d_k;

        for (uint32_t i = 0; i < n; i++) {
            const uint32_t position = lanes->n_text - n + i;

            rows_at[i] = (int32_t)position;
            memcpy(queries + ((size_t)h * n + i) * one->d_k,
                   head + (size_t)(position % probe) * one->d_k, one->d_k * sizeof *queries);
        }
    }
    return n;
}

typedef struct lane_scratch {
    float *keys;
    float *attention;
    float *queries;
} lane_scratch;

static void score_lane(condensing *c, uint32_t index, const lane_scratch *scratch)
{
    const quire_lanes *lanes = c->lanes;
    const lane_state *state = &lanes->lanes[index];
    const quire_attn_layer *one = &lanes->layers[index / lanes->n_kv_head].one;
    quire_retain_lane lane = { .n_tokens = state->n,
                               .positions = state->positions + 1,
                               .n_text = lanes->n_text,
                               .keys = scratch->keys,
                               .d = one->d_k,
                               .lane = index };
    int32_t rows_at[QUIRE_RETAIN_PROBE_MAX];

    if (scratch->keys != NULL) {
        read_keys(lanes, one, state, scratch->keys);
    }
    if (scratch->attention != NULL) {
        quire_retain_probe probe = {
            .queries = scratch->queries,
            .rows_at = rows_at,
            .n_heads = lanes->group,
            .scale = one->scale,
            .softcap = one->softcap,
            .window = one->window,
            .sinks = one->sinks != NULL
                         ? one->sinks + (size_t)(index % lanes->n_kv_head) * lanes->group
                         : NULL,
        };

        probe.n_queries = gather_queries(lanes, one, index, scratch->queries, rows_at);
        quire_retain_attend(&probe, &lane, scratch->attention);
        lane.attention = scratch->attention;
        lane.n_rows = lanes->group * probe.n_queries;
        if (lanes->spec.policy->weighs_layers) {
            quire_retain_measure_add(&c->measures[index], &lane, probe.n_queries);
        }
    }
    quire_retain_score(&lanes->spec, &lane, c->scores + c->first[index]);
}

static void score_share(void *ctx, uint32_t thread, uint32_t n_threads)
{
    condensing *c = ctx;
    const quire_lanes *lanes = c->lanes;
    const quire_retain_policy *policy = lanes->spec.policy;
    const uint32_t d = lanes->layers[0].one.d_k;
    const size_t n_rows = (size_t)lanes->group * lanes->spec.probe;
    lane_scratch scratch = { 0 };
    uint32_t n_max = 1;
    bool is_short = false;

    for (size_t i = thread; i < n_lanes_of(lanes); i += n_threads) {
        n_max = lanes->lanes[i].n > n_max ? lanes->lanes[i].n : n_max;
    }
    if (policy->needs_keys || policy->needs_attention) {
        scratch.keys = malloc(n_max * d * sizeof *scratch.keys);
        is_short = scratch.keys == NULL;
    }
    if (policy->needs_attention) {
        scratch.attention = malloc(n_max * n_rows * sizeof *scratch.attention);
        scratch.queries = malloc(n_rows * d * sizeof *scratch.queries);
        is_short = is_short || scratch.attention == NULL || scratch.queries == NULL;
    }
    for (size_t i = thread; i < n_lanes_of(lanes) && !is_short; i += n_threads) {
        if (!lanes->layers[i / lanes->n_kv_head].is_full) {
            score_lane(c, (uint32_t)i, &scratch);
        }
    }
    if (is_short) {
        atomic_store(&c->status, QUIRE_NOMEM);
    }
    free(scratch.queries);
    free(scratch.attention);
    free(scratch.keys);
}

/* ---- budgets and choice ---- */

static void set_budgets(condensing *c)
{
    const quire_lanes *lanes = c->lanes;

    for (uint32_t l = 0; l < lanes->n_layers; l++) {
        quire_retain_layer *layer = &c->layers[l];

        *layer = (quire_retain_layer){ .n_lanes = lanes->n_kv_head,
                                       .is_full = lanes->layers[l].is_full };
        for (uint32_t g = 0; g < lanes->n_kv_head; g++) {
            const lane_state *lane = quire_lane_at(lanes, l, g);
            const quire_retain_measure *measure = &c->measures[l * lanes->n_kv_head + g];

            layer->n_held += lane->n;
            layer->measure.entropy += measure->entropy;
            layer->measure.variance += measure->variance;
            for (uint32_t t = 0; t < lane->n; t++) {
                layer->n_protected += quire_retain_is_protected(&lanes->spec, lanes->n_text,
                                                                (uint32_t)lane->positions[1 + t]);
            }
        }
    }
    quire_retain_layer_budgets(&lanes->spec, lanes->n_text, c->layers, lanes->n_layers, c->budgets);
}

/* Errors: QUIRE_NOMEM. */
static int choose_layer(condensing *c, uint32_t l)
{
    const quire_lanes *lanes = c->lanes;
    const uint32_t n = lanes->n_kv_head;
    uint32_t *n_tokens = calloc(n, sizeof *n_tokens);
    const int32_t **positions = calloc(n, sizeof *positions);
    const float **scores = calloc(n, sizeof *scores);
    bool **is_kept = calloc(n, sizeof *is_kept);
    int rc = QUIRE_NOMEM;

    if (n_tokens != NULL && positions != NULL && scores != NULL && is_kept != NULL) {
        const quire_retain_choice choice = { .n_lanes = n,
                                             .n_tokens = n_tokens,
                                             .positions = positions,
                                             .scores = scores,
                                             .n_text = lanes->n_text,
                                             .budget = c->budgets[l] };

        for (uint32_t g = 0; g < n; g++) {
            const size_t first = c->first[(size_t)l * n + g];

            n_tokens[g] = quire_lane_at(lanes, l, g)->n;
            positions[g] = quire_lane_at(lanes, l, g)->positions + 1;
            scores[g] = c->scores + first;
            is_kept[g] = c->is_kept + first;
        }
        rc = quire_retain_choose(&lanes->spec, &choice, is_kept);
    }
    free(is_kept);
    free(scores);
    free(positions);
    free(n_tokens);
    return rc;
}

static void choose_share(void *ctx, uint32_t thread, uint32_t n_threads)
{
    condensing *c = ctx;

    for (uint32_t l = thread; l < c->lanes->n_layers; l += n_threads) {
        if (is_cut(c, l) && choose_layer(c, l) < 0) {
            atomic_store(&c->status, QUIRE_NOMEM);
        }
    }
}

/* ---- moving ---- */

/* Move the kept tokens of a lane together; returns their number. */
static uint32_t move_lane(const quire_lanes *lanes, const quire_attn_layer *one, lane_state *lane,
                          const bool *is_kept)
{
    const quire_tile_kind k = { one->k[0].format, QUIRE_SIDE_K, one->d_k };
    const quire_tile_kind v = { one->v[0].format, QUIRE_SIDE_V, one->d_v };
    const size_t v_offset = one->v[0].lane.offset;
    const quire_seq_table table = quire_lane_table(lanes, lane);
    uint32_t n = 0;

    for (uint32_t t = 0; t < lane->n; t++) {
        if (is_kept[t] && n != t) {
            const unsigned char *from = quire_lane_page(lanes, &table, t / TILE);
            unsigned char *to = quire_lane_page(lanes, &table, n / TILE);

            quire_tile_slot_copy(&k, from, t % TILE, to, n % TILE);
            quire_tile_slot_copy(&v, from + v_offset, t % TILE, to + v_offset, n % TILE);
            lane->positions[1 + n] = lane->positions[1 + t];
        }
        n += is_kept[t];
    }
    return n;
}

static void move_share(void *ctx, uint32_t thread, uint32_t n_threads)
{
    condensing *c = ctx;
    quire_lanes *lanes = c->lanes;

    for (size_t i = thread; i < n_lanes_of(lanes); i += n_threads) {
        const uint32_t l = (uint32_t)(i / lanes->n_kv_head);

        if (is_cut(c, l)) {
            lanes->lanes[i].n =
                move_lane(lanes, &lanes->layers[l].one, &lanes->lanes[i], c->is_kept + c->first[i]);
        }
    }
}

/* ---- all of it ---- */

static int condensing_init(condensing *c, quire_lanes *lanes)
{
    const size_t n_lanes = n_lanes_of(lanes);
    size_t n_tokens = 0;

    *c = (condensing){ .lanes = lanes };
    c->first = calloc(n_lanes, sizeof *c->first);
    c->measures = calloc(n_lanes, sizeof *c->measures);
    c->layers = calloc(lanes->n_layers, sizeof *c->layers);
    c->budgets = calloc(lanes->n_layers, sizeof *c->budgets);
    QUIRE_FAIL_IF(c->first == NULL || c->measures == NULL || c->layers == NULL ||
                      c->budgets == NULL,
                  QUIRE_NOMEM);
    for (size_t i = 0; i < n_lanes; i++) {
        c->first[i] = n_tokens;
        n_tokens += lanes->lanes[i].n;
    }
    c->scores = malloc(n_tokens * sizeof *c->scores + 1);
    c->is_kept = malloc(n_tokens * sizeof *c->is_kept + 1);
    return c->scores != NULL && c->is_kept != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

static void condensing_fini(condensing *c)
{
    free(c->is_kept);
    free(c->scores);
    free(c->budgets);
    free(c->layers);
    free(c->measures);
    free(c->first);
}

/* Whether the queries of the text's last tokens are there. */
static bool has_queries(const quire_lanes *lanes)
{
    for (uint32_t l = 0; lanes->queries != NULL && l < lanes->n_layers; l++) {
        if (lanes->layers[l].queries_end != lanes->n_text) {
            return false;
        }
    }
    return true;
}

static int condense(condensing *c)
{
    quire_lanes *lanes = c->lanes;

    in_parallel(c, score_share);
    QUIRE_TRY(atomic_load(&c->status));
    set_budgets(c);
    in_parallel(c, choose_share);
    QUIRE_TRY(atomic_load(&c->status));
    in_parallel(c, move_share);
    for (size_t i = 0; i < n_lanes_of(lanes); i++) {
        quire_lane_cut(lanes, &lanes->lanes[i], lanes->lanes[i].n);
    }
    lanes->n_condensed = lanes->n_text;
    lanes->generations++;
    return QUIRE_OK;
}

int quire_lanes_condense(quire_lanes *lanes)
{
    const uint64_t begin_ns = quire_clock_ns();
    condensing c;
    int rc;

    if (lanes->n_text == lanes->n_condensed) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(!has_queries(lanes), QUIRE_INVAL);
    rc = condensing_init(&c, lanes);
    rc = rc == QUIRE_OK ? condense(&c) : rc;
    condensing_fini(&c);
    lanes->condense_ns += quire_clock_ns() - begin_ns;
    return rc;
}
