/* kept_lanes_condense.c - dropping tokens: all that can fail comes first and changes nothing.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/kept_lanes_internal.h"

#include "base/check.h"
#include "base/clock.h"
#include "codec/slot_copy.h"
#include "retain/probe.h"

#include <math.h>
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
    uint64_t n_across;              /* tokens that all layers hold that are not whole */
    uint64_t across_budget;         /* sum of these layers' budgets */
    uint32_t edge;                  /* tokens from this position on stay in full */
    _Atomic int status;
} condensing;

static size_t n_lanes_of(const quire_lanes *lanes)
{
    return (size_t)lanes->n_layers * lanes->n_kv_head;
}

/* Whether tokens of a layer are to be chosen. */
static bool is_cut(const condensing *c, uint32_t l)
{
    if (c->layers[l].is_full) {
        return false;
    }
    if (c->lanes->spec.threshold > 0) {
        return true;
    }
    return c->lanes->spec.policy->is_across ? c->across_budget < c->n_across
                                            : c->budgets[l] < c->layers[l].n_held;
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
    float *query_mean;
    float *query_cov;
    float *value_norms;
    float *logits;
} lane_scratch;

static void read_value_norms(const quire_lanes *lanes, const quire_attn_layer *one,
                             const lane_state *lane, float *norms)
{
    const lane_tables tables = quire_lane_tables(lanes, lane);
    float v[1024]; /* QUIRE_HEAD_DIM_MAX */

    for (uint32_t t = 0; t < lane->n; t++) {
        double sum = 0.0;

        quire_lane_rows(lanes, one, &tables, QUIRE_SIDE_V, t / TILE, t % TILE, 1, v);
        for (uint32_t i = 0; i < one->d_v; i++) {
            sum += (double)v[i] * (double)v[i];
        }
        norms[t] = (float)sqrt(sum);
    }
}

static void expect_queries(const quire_lanes *lanes, uint32_t index, const lane_scratch *scratch,
                           quire_retain_lane *lane)
{
    quire_lanes_sums_ahead(lanes, index / lanes->n_kv_head, index % lanes->n_kv_head,
                           scratch->query_mean, scratch->query_cov);
    read_value_norms(lanes, &lanes->layers[index / lanes->n_kv_head].one, &lanes->lanes[index],
                     scratch->value_norms);
    lane->query_mean = scratch->query_mean;
    lane->query_cov = scratch->query_cov;
    lane->n_heads = lanes->group;
    lane->value_norms = scratch->value_norms;
    lane->scratch = scratch->logits;
}

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
                               .lane = index,
                               .worth = state->worth };
    int32_t rows_at[QUIRE_RETAIN_PROBE_MAX];

    if (scratch->keys != NULL) {
        quire_lane_keys(lanes, one, state, 0, state->n, scratch->keys);
    }
    if (scratch->query_mean != NULL) {
        expect_queries(lanes, index, scratch, &lane);
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

/* n_max: tokens of the longest lane of the thread. Errors: QUIRE_NOMEM. */
static int scratch_init(lane_scratch *s, const quire_lanes *lanes, size_t n_max)
{
    const quire_retain_policy *policy = lanes->spec.policy;
    const size_t d = lanes->layers[0].one.d_k;
    const size_t n_rows = (size_t)lanes->group * lanes->spec.probe;

    if (policy->needs_keys || policy->needs_attention) {
        s->keys = malloc(n_max * d * sizeof *s->keys);
        QUIRE_FAIL_IF(s->keys == NULL, QUIRE_NOMEM);
    }
    if (policy->needs_attention) {
        s->attention = malloc(n_max * n_rows * sizeof *s->attention);
        s->queries = malloc(n_rows * d * sizeof *s->queries);
        QUIRE_FAIL_IF(s->attention == NULL || s->queries == NULL, QUIRE_NOMEM);
    }
    if (policy->expects_queries) {
        s->query_mean = malloc(lanes->group * d * sizeof *s->query_mean);
        s->query_cov = malloc(lanes->group * d * d * sizeof *s->query_cov);
        s->value_norms = malloc(n_max * sizeof *s->value_norms);
        s->logits = malloc(n_max * sizeof *s->logits);
        QUIRE_FAIL_IF(s->query_mean == NULL || s->query_cov == NULL || s->value_norms == NULL ||
                          s->logits == NULL,
                      QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

static void scratch_fini(lane_scratch *s)
{
    free(s->logits);
    free(s->value_norms);
    free(s->query_cov);
    free(s->query_mean);
    free(s->queries);
    free(s->attention);
    free(s->keys);
}

static void score_share(void *ctx, uint32_t thread, uint32_t n_threads)
{
    condensing *c = ctx;
    const quire_lanes *lanes = c->lanes;
    lane_scratch scratch = { 0 };
    uint32_t n_max = 1;

    for (size_t i = thread; i < n_lanes_of(lanes); i += n_threads) {
        n_max = lanes->lanes[i].n > n_max ? lanes->lanes[i].n : n_max;
    }
    if (scratch_init(&scratch, lanes, n_max) < 0) {
        atomic_store(&c->status, QUIRE_NOMEM);
    } else {
        for (size_t i = thread; i < n_lanes_of(lanes); i += n_threads) {
            if (!lanes->layers[i / lanes->n_kv_head].is_full) {
                score_lane(c, (uint32_t)i, &scratch);
            }
        }
    }
    scratch_fini(&scratch);
}

/* ---- budgets and choice ---- */

/* With sealed formats condensed tokens stay, as do those from the edge on: the others get what is
 * left of the budget. */
static void leave_sealed(condensing *c, uint32_t l)
{
    const quire_lanes *lanes = c->lanes;
    uint64_t n_new = 0;

    for (uint32_t g = 0; g < lanes->n_kv_head; g++) {
        const lane_state *lane = quire_lane_at(lanes, l, g);

        n_new += lane->n - quire_lane_n_condensed(lanes, lane) - (lanes->n_text - c->edge);
    }
    if (c->layers[l].is_full) {
        c->budgets[l] = n_new;
    } else {
        const uint64_t n_stay = c->layers[l].n_held - n_new;

        c->budgets[l] = c->budgets[l] > n_stay ? c->budgets[l] - n_stay : 0;
    }
    c->layers[l].n_held = n_new;
}

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
    for (uint32_t l = 0; lanes->hot_bytes > 0 && l < lanes->n_layers; l++) {
        leave_sealed(c, l);
    }
    for (uint32_t l = 0; l < lanes->n_layers; l++) {
        c->n_across += c->layers[l].is_full ? 0 : c->layers[l].n_held;
        c->across_budget += c->layers[l].is_full ? 0 : c->budgets[l];
    }
}

/* Choose among the tokens of layers [first, first + n_layers), apart from whole ones. Errors:
 * QUIRE_NOMEM. */
static int choose_layers(condensing *c, uint32_t first, uint32_t n_layers, uint64_t budget)
{
    const quire_lanes *lanes = c->lanes;
    const size_t n_max = (size_t)n_layers * lanes->n_kv_head;
    uint32_t *n_tokens = calloc(n_max, sizeof *n_tokens);
    const int32_t **positions = calloc(n_max, sizeof *positions);
    const float **scores = calloc(n_max, sizeof *scores);
    bool **is_kept = calloc(n_max, sizeof *is_kept);
    quire_retain_choice choice = { .n_tokens = n_tokens,
                                   .positions = positions,
                                   .scores = scores,
                                   .n_text = lanes->n_text,
                                   .budget = budget,
                                   .granule = lanes->hot_bytes > 0 ? TILE : lanes->spec.granule };
    int rc = QUIRE_NOMEM;

    if (n_tokens != NULL && positions != NULL && scores != NULL && is_kept != NULL) {
        for (size_t i = 0; i < n_max; i++) {
            const size_t lane = (size_t)first * lanes->n_kv_head + i;
            const uint32_t n = choice.n_lanes;

            if (!c->layers[lane / lanes->n_kv_head].is_full) {
                const lane_state *state = &lanes->lanes[lane];
                const uint32_t from =
                    lanes->hot_bytes > 0 ? quire_lane_n_condensed(lanes, state) : 0;

                n_tokens[n] = state->n - from - (lanes->n_text - c->edge);
                positions[n] = state->positions + 1 + from;
                scores[n] = c->scores + c->first[lane] + from;
                is_kept[n] = c->is_kept + c->first[lane] + from;
                choice.n_lanes++;
            }
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
    const uint32_t n_layers = c->lanes->n_layers;
    int rc = QUIRE_OK;

    if (c->lanes->spec.policy->is_across) {
        const bool is_wanted =
            c->across_budget < c->n_across || (c->lanes->spec.threshold > 0 && c->n_across > 0);

        if (thread == 0 && is_wanted) {
            rc = choose_layers(c, 0, n_layers, c->across_budget);
        }
    } else {
        for (uint32_t l = thread; l < n_layers && rc == QUIRE_OK; l += n_threads) {
            rc = is_cut(c, l) ? choose_layers(c, l, 1, c->budgets[l]) : QUIRE_OK;
        }
    }
    if (rc < 0) {
        atomic_store(&c->status, QUIRE_NOMEM);
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
    const lane_tables table = quire_lane_tables(lanes, lane);
    uint32_t n = 0;

    for (uint32_t t = 0; t < lane->n; t++) {
        if (is_kept[t] && n != t) {
            const unsigned char *from = quire_lane_page(lanes, &table, t / TILE);
            unsigned char *to = quire_lane_page(lanes, &table, n / TILE);

            quire_tile_slot_copy(&k, from, t % TILE, to, n % TILE);
            quire_tile_slot_copy(&v, from + v_offset, t % TILE, to + v_offset, n % TILE);
            lane->positions[1 + n] = lane->positions[1 + t];
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

    for (size_t i = thread; i < n_lanes_of(lanes); i += n_threads) {
        const uint32_t l = (uint32_t)(i / lanes->n_kv_head);
        const bool *is_kept = c->is_kept + c->first[i];
        lane_state *lane = &lanes->lanes[i];

        if (is_cut(c, l)) {
            lane->n = lanes->hot_bytes > 0 ? quire_lane_seal(lanes, lane, is_kept, c->edge, thread)
                                           : move_lane(lanes, &lanes->layers[l].one, lane, is_kept);
        }
    }
}

/* Hot pages are gone by now. */
static void bound_share(void *ctx, uint32_t thread, uint32_t n_threads)
{
    condensing *c = ctx;

    for (size_t i = thread; i < n_lanes_of(c->lanes); i += n_threads) {
        quire_lane_bound(c->lanes, &c->lanes->lanes[i], 0);
    }
}

/* ---- all of it ---- */

static int condensing_init(condensing *c, quire_lanes *lanes)
{
    const size_t n_lanes = n_lanes_of(lanes);
    size_t n_tokens = 0;

    *c = (condensing){ .lanes = lanes, .edge = quire_lanes_edge(lanes) };
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
    const bool is_wanted = lanes->queries != NULL || quire_lanes_sums(lanes);

    for (uint32_t l = 0; is_wanted && l < lanes->n_layers; l++) {
        if (lanes->layers[l].queries_end != lanes->n_text) {
            return false;
        }
    }
    return lanes->spec.policy->worth != QUIRE_RETAIN_WORTH_REPEATED ||
           lanes->n_repeated == lanes->n_text;
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
        quire_lane_cool(lanes, &lanes->lanes[i], lanes->lanes[i].n - (lanes->n_text - c->edge));
    }
    if (quire_lanes_attends(lanes)) {
        in_parallel(c, bound_share);
    }
    lanes->n_condensed = c->edge;
    lanes->generations++;
    return QUIRE_OK;
}

int quire_lanes_condense(quire_lanes *lanes)
{
    const uint64_t begin_ns = quire_clock_ns();
    condensing c;
    int rc;

    if (quire_lanes_edge(lanes) <= lanes->n_condensed) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(!has_queries(lanes), QUIRE_INVAL);
    rc = condensing_init(&c, lanes);
    rc = rc == QUIRE_OK ? condense(&c) : rc;
    condensing_fini(&c);
    lanes->condense_ns += quire_clock_ns() - begin_ns;
    return rc;
}
