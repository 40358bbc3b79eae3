/* condensing_lanes.c - condensing with a policy by lane: scores, budgets of layers, the choice of
 * each lane's tokens, and their rows into packed pages. See condensing.h.
 *
 * The arithmetic is that of quire_lanes_condense() (retain/kept_lanes.h) on the same numbers in the
 * same order, so the choice is the same.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/condensing.h"

#include "base/check.h"
#include "retain/probe.h"

#include <stdlib.h>
#include <string.h>

#define TILE QUIRE_TILE_TOKENS

/* One condensing. Arrays of tokens hold one lane after the other. */
typedef struct packing_job {
    const quire_condensing *c;
    const quire_packing *packing;
    const quire_packed_text *text;
    quire_packed_pages from;
    quire_packed_pages to;
    uint32_t n_text;
    uint32_t n_lanes;
    size_t *first; /* [n_lanes + 1] of a lane in the arrays of tokens */
    int32_t *positions;
    float *scores;
    bool *is_kept;
    quire_retain_measure *measures; /* [n_lanes] */
    bool *is_full;                  /* [n_layers] */
    quire_retain_layer *layers;     /* [n_layers] */
    uint64_t *budgets;              /* [n_layers] */
    /* Scratch of the longest lane. */
    float *keys;
    float *attention;
    float *queries;
} packing_job;

static uint32_t n_of(const packing_job *j, uint32_t lane)
{
    return (uint32_t)(j->first[lane + 1] - j->first[lane]);
}

/* ---- memory ---- */

static int scratch_init(packing_job *j, size_t n_max)
{
    const quire_attn_layer *layer = &j->packing->layers[0];
    const quire_retain_policy *policy = j->c->spec.policy;
    const size_t n_rows = (size_t)(layer->n_head / layer->n_kv_head) * quire_condensing_probe(j->c);

    if (policy->needs_keys || policy->needs_attention) {
        j->keys = malloc(n_max * layer->d_k * sizeof *j->keys);
        QUIRE_FAIL_IF(j->keys == NULL, QUIRE_NOMEM);
    }
    if (policy->needs_attention) {
        j->attention = malloc(n_max * n_rows * sizeof *j->attention);
        j->queries = malloc(n_rows * layer->d_k * sizeof *j->queries);
        QUIRE_FAIL_IF(j->attention == NULL || j->queries == NULL, QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

static int job_init(packing_job *j)
{
    const uint32_t *places = j->text->lanes.first;
    const uint32_t n_layers = j->packing->n_layers;
    size_t n_max = 0;

    j->first = calloc((size_t)j->n_lanes + 1, sizeof *j->first);
    j->measures = calloc(j->n_lanes, sizeof *j->measures);
    j->is_full = calloc(n_layers, sizeof *j->is_full);
    j->layers = calloc(n_layers, sizeof *j->layers);
    j->budgets = calloc(n_layers, sizeof *j->budgets);
    QUIRE_FAIL_IF(j->first == NULL || j->measures == NULL || j->is_full == NULL ||
                      j->layers == NULL || j->budgets == NULL,
                  QUIRE_NOMEM);
    for (uint32_t i = 0; i < j->n_lanes; i++) {
        const size_t n = (size_t)(places[i + 1] - places[i]) * TILE + j->c->chunk;

        j->first[i + 1] = j->first[i] + n;
        n_max = n > n_max ? n : n_max;
    }
    j->positions = malloc(j->first[j->n_lanes] * sizeof *j->positions);
    j->scores = malloc(j->first[j->n_lanes] * sizeof *j->scores);
    j->is_kept = malloc(j->first[j->n_lanes] * sizeof *j->is_kept);
    QUIRE_FAIL_IF(j->positions == NULL || j->scores == NULL || j->is_kept == NULL, QUIRE_NOMEM);
    return scratch_init(j, n_max);
}

static void job_fini(packing_job *j)
{
    free(j->queries);
    free(j->attention);
    free(j->keys);
    free(j->is_kept);
    free(j->scores);
    free(j->positions);
    free(j->budgets);
    free(j->layers);
    free(j->is_full);
    free(j->measures);
    free(j->first);
}

/* ---- scores ---- */

/* A side of tile `tile` of a lane of `from`: packed ones first, then those in full pages. */
static unsigned char *tile_of(const packing_job *j, uint32_t lane, uint32_t tile, quire_side side)
{
    const quire_packed_lanes *lanes = &j->text->lanes;
    const uint32_t n_packed = lanes->first[lane + 1] - lanes->first[lane];
    const uint32_t tiles = j->packing->page_tokens / TILE;
    uint32_t i;

    if (tile < n_packed) {
        return quire_packed_tile(j->packing, &j->from, lanes, lanes->first[lane] + tile, side);
    }
    tile -= n_packed;
    i = lanes->n_pages + tile / tiles;
    return quire_full_tile(
        j->packing,
        &j->from.addrs[j->from.leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES].page], lane,
        tile % tiles, side);
}

static void read_keys(const packing_job *j, uint32_t lane)
{
    const quire_attn_layer *layer = &j->packing->layers[lane / j->packing->n_kv_head];
    const quire_tile_rows rows = { .d = layer->d_k, .n_tokens = TILE, .stride = layer->d_k };

    for (uint32_t t = 0; t * TILE < n_of(j, lane); t++) {
        quire_codec_get()->decode_k(layer->k_store.format, &rows, tile_of(j, lane, t, QUIRE_SIDE_K),
                                    j->keys + (size_t)t * TILE * layer->d_k);
    }
}

static void read_positions(const packing_job *j, uint32_t lane)
{
    const quire_packed_lanes *lanes = &j->text->lanes;
    const uint32_t n_packed = (lanes->first[lane + 1] - lanes->first[lane]) * TILE;
    int32_t *positions = j->positions + j->first[lane];

    if (n_packed > 0) {
        quire_packed_positions(j->packing, &j->from, lanes, lane, positions);
    }
    for (uint32_t t = 0; t < j->c->chunk; t++) {
        positions[n_packed + t] = (int32_t)(j->n_text - j->c->chunk + t);
    }
}

/* The attention of the probe's queries to a lane's tokens. */
static void attend(packing_job *j, uint32_t lane, quire_retain_lane *scored)
{
    const quire_attn_layer *layer = &j->packing->layers[lane / j->packing->n_kv_head];
    const uint32_t group = layer->n_head / layer->n_kv_head;
    const uint32_t n = quire_condensing_probe(j->c), d = layer->d_k;
    int32_t rows_at[QUIRE_RETAIN_PROBE_MAX];
    const quire_retain_probe probe = { .queries = j->queries,
                                       .rows_at = rows_at,
                                       .n_heads = group,
                                       .n_queries = n,
                                       .scale = layer->scale,
                                       .softcap = layer->softcap };

    for (uint32_t h = 0; h < group; h++) {
        const float *head = j->text->queries + ((size_t)lane * group + h) * j->text->probe * d;

        for (uint32_t i = 0; i < n; i++) {
            const uint32_t position = j->n_text - n + i;

            rows_at[i] = (int32_t)position;
            memcpy(j->queries + ((size_t)h * n + i) * d,
                   head + (size_t)(position % j->text->probe) * d, d * sizeof *j->queries);
        }
    }
    quire_retain_attend(&probe, scored, j->attention);
    scored->attention = j->attention;
    scored->n_rows = group * n;
    if (j->c->spec.policy->weighs_layers) {
        quire_retain_measure_add(&j->measures[lane], scored, n);
    }
}

static void score(packing_job *j, uint32_t lane)
{
    quire_retain_lane scored = { .n_tokens = n_of(j, lane),
                                 .positions = j->positions + j->first[lane],
                                 .n_text = j->n_text,
                                 .keys = j->keys,
                                 .d = j->packing->layers[0].d_k,
                                 .lane = lane };

    if (j->keys != NULL) {
        read_keys(j, lane);
    }
    if (j->attention != NULL) {
        attend(j, lane, &scored);
    }
    quire_retain_score(&j->c->spec, &scored, j->scores + j->first[lane]);
}

/* ---- choice ---- */

static void layer_fill(const packing_job *j, uint32_t l)
{
    quire_retain_layer *layer = &j->layers[l];

    *layer = (quire_retain_layer){ .n_lanes = j->packing->n_kv_head, .is_full = j->is_full[l] };
    for (uint32_t lane = l * layer->n_lanes; lane < (l + 1) * layer->n_lanes; lane++) {
        layer->n_held += n_of(j, lane);
        layer->measure.entropy += j->measures[lane].entropy;
        layer->measure.variance += j->measures[lane].variance;
        for (size_t t = j->first[lane]; t < j->first[lane + 1]; t++) {
            layer->n_protected +=
                quire_retain_is_protected(&j->c->spec, j->n_text, (uint32_t)j->positions[t]);
        }
    }
}

/* Choose among the tokens of a layer. Errors: QUIRE_NOMEM. */
static int choose(const packing_job *j, uint32_t l)
{
    const uint32_t n = j->packing->n_kv_head;
    uint32_t *n_tokens = calloc(n, sizeof *n_tokens);
    const int32_t **positions = calloc(n, sizeof *positions);
    const float **scores = calloc(n, sizeof *scores);
    bool **is_kept = calloc(n, sizeof *is_kept);
    const quire_retain_choice choice = { .n_lanes = n,
                                         .n_tokens = n_tokens,
                                         .positions = positions,
                                         .scores = scores,
                                         .n_text = j->n_text,
                                         .budget = j->budgets[l],
                                         .granule = j->c->spec.granule };
    int rc = QUIRE_NOMEM;

    if (n_tokens != NULL && positions != NULL && scores != NULL && is_kept != NULL) {
        for (uint32_t g = 0; g < n; g++) {
            const size_t first = j->first[l * n + g];

            n_tokens[g] = n_of(j, l * n + g);
            positions[g] = j->positions + first;
            scores[g] = j->scores + first;
            is_kept[g] = j->is_kept + first;
        }
        rc = quire_retain_choose(&j->c->spec, &choice, is_kept);
    }
    free(is_kept);
    free(scores);
    free(positions);
    free(n_tokens);
    return rc;
}

static int choose_all(packing_job *j)
{
    for (uint32_t lane = 0; lane < j->n_lanes; lane++) {
        read_positions(j, lane);
        if (!j->is_full[lane / j->packing->n_kv_head]) {
            score(j, lane);
        }
    }
    for (uint32_t l = 0; l < j->packing->n_layers; l++) {
        layer_fill(j, l);
    }
    quire_retain_layer_budgets(&j->c->spec, j->n_text, j->layers, j->packing->n_layers, j->budgets);
    for (uint32_t l = 0; l < j->packing->n_layers; l++) {
        const size_t begin = j->first[l * j->packing->n_kv_head];
        const size_t end = j->first[(l + 1) * j->packing->n_kv_head];

        if (j->is_full[l] || (j->c->spec.threshold <= 0 && j->budgets[l] >= j->layers[l].n_held)) {
            memset(j->is_kept + begin, true, end - begin);
        } else {
            QUIRE_TRY(choose(j, l));
        }
    }
    return QUIRE_OK;
}

/* ---- moving ---- */

/* Copy the kept rows of a lane to its places, and their positions. */
static void move_lane(const packing_job *j, const quire_packed_lanes *lanes, uint32_t lane)
{
    int32_t *positions = j->positions + j->first[lane];
    const bool *is_kept = j->is_kept + j->first[lane];
    uint32_t n = 0;

    for (uint32_t t = 0; t < n_of(j, lane); t++) {
        if (is_kept[t]) {
            const uint32_t place = lanes->first[lane] + n / TILE;

            for (quire_side side = QUIRE_SIDE_K; side <= QUIRE_SIDE_V; side++) {
                quire_packing_row_copy(
                    j->packing, lane, side, tile_of(j, lane, t / TILE, side), t % TILE,
                    quire_packed_tile(j->packing, &j->to, lanes, place, side), n % TILE);
            }
            positions[n++] = positions[t];
        }
    }
    quire_packed_positions_put(j->packing, &j->to, lanes, lane, positions);
}

/* No byte of the new pages stays as it was before: stores compare and check whole pages. */
static void clear(const packing_job *j)
{
    for (uint32_t i = 0; i < j->to.n; i++) {
        const quire_page_id id = j->to.leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES].page;

        for (uint32_t l = 0; l < j->packing->n_layers; l++) {
            memset(quire_full_tile(j->packing, &j->to.addrs[id], l * j->packing->n_kv_head, 0,
                                   QUIRE_SIDE_K),
                   0, 2 * quire_packing_v_offset(j->packing));
        }
    }
}

static int move_all(packing_job *j)
{
    uint32_t *n_tiles = calloc(j->n_lanes, sizeof *n_tiles);
    quire_packed_lanes lanes = { 0 };
    int rc = n_tiles != NULL ? quire_packed_lanes_init(&lanes, j->packing) : QUIRE_NOMEM;

    for (uint32_t lane = 0; rc == QUIRE_OK && lane < j->n_lanes; lane++) {
        uint32_t n = 0;

        for (size_t t = j->first[lane]; t < j->first[lane + 1]; t++) {
            n += j->is_kept[t];
        }
        QUIRE_CHECK(n % TILE == 0); /* the granule, and all lanes have whole tiles */
        n_tiles[lane] = n / TILE;
    }
    if (rc == QUIRE_OK) {
        clear(j);
        rc = quire_packed_assign(j->packing, &j->to, n_tiles, &lanes);
        QUIRE_CHECK(rc == QUIRE_OK); /* kept(k) has room for the most */
        for (uint32_t lane = 0; lane < j->n_lanes; lane++) {
            move_lane(j, &lanes, lane);
        }
    }
    quire_packed_lanes_fini(&lanes);
    free(n_tiles);
    return rc;
}

static bool has_queries(const packing_job *j)
{
    const uint32_t n = quire_condensing_probe(j->c);

    return n == 0 || (j->text->queries_end == j->n_text && j->text->queries_begin <= j->n_text - n);
}

int quire_condense_lanes(const quire_condensing *c, quire_runtime *runtime, uint32_t k,
                         const quire_packed_text *text, quire_seq_id from, quire_seq_id to)
{
    const quire_cache *cache = quire_runtime_cache(runtime);
    packing_job j = { .c = c,
                      .packing = &c->packing,
                      .text = text,
                      .n_text = k * c->chunk,
                      .n_lanes = quire_packing_n_lanes(&c->packing) };
    quire_seq_table from_table, to_table;
    int rc;

    QUIRE_FAIL_IF(!has_queries(&j), QUIRE_INVAL);
    QUIRE_TRY(quire_seq_table_get(cache, from, 0, &from_table));
    QUIRE_TRY(quire_seq_table_get(cache, to, 0, &to_table));
    j.from = (quire_packed_pages){ from_table.leaves, quire_cache_page_addrs(cache),
                                   text->lanes.n_pages };
    j.to =
        (quire_packed_pages){ to_table.leaves, quire_cache_page_addrs(cache), to_table.n_entries };
    rc = job_init(&j);
    if (rc == QUIRE_OK) {
        rc = quire_retain_full_layers(&c->spec, c->packing.n_layers, j.is_full, NULL);
    }
    rc = rc == QUIRE_OK ? choose_all(&j) : rc;
    rc = rc == QUIRE_OK ? move_all(&j) : rc;
    job_fini(&j);
    return rc;
}
