/* condensing_lanes.c - condensing with a policy by lane: scores, budgets of layers, the choice of
 * each lane's tokens, and their rows into packed pages. See condensing.h.
 *
 * In sealed formats kept tokens are gathered in 8 bits, 64 by 64, and sealed once. Tokens that an
 * earlier condensing sealed stay in their tiles, so each condensing chooses among the tokens of its
 * own chunk and keeps the share of these.
 *
 * On a device tiles pass the host's memory through windows (retain/packed_copy.h), one that reads K
 * or V of a lane, one that writes. Between them all kept rows of a lane's side lie in the host's
 * memory.
 *
 * Scores come from the same numbers in the same order as in quire_lanes_condense()
 * (retain/kept_lanes.h), by the same code where pages do not matter (retain/lane_score.h). The
 * choice is the same code, too (retain/lanes_choice.h).
 *
 * SPDX-License-Identifier: MIT */
#include "engine/condensing.h"

#include "base/check.h"
#include "base/num.h"
#include "retain/lane_score.h"
#include "retain/lanes_choice.h"
#include "retain/packed_copy.h"

#include <stdlib.h>
#include <string.h>

#define TILE QUIRE_TILE_TOKENS

/* One condensing. */
typedef struct packing_job {
    const quire_condensing *c;
    const quire_packing *packing;
    const quire_packed_text *text;
    quire_packed_pages from;
    const quire_page_entry *const *from_hot; /* leaves; NULL: no side is sealed */
    quire_packed_pages to;
    uint32_t n_text;
    uint32_t n_lanes;
    quire_lanes_choice choice;
    int32_t **positions;    /* [n_lanes] of their tokens, */
    int32_t *all_positions; /* one lane after the other */
    float **worth;          /* the same; NULL: the policy has none */
    float *all_worth;
    quire_lane_scratch scratch;      /* of the longest lane */
    quire_packed_seal seal;          /* of sealed formats */
    quire_packed_lanes lanes;        /* the places of `to` */
    const quire_page_memory *memory; /* of the pages; NULL: the host's */
    quire_packed_window reads;       /* of a device */
    quire_packed_window writes;
    unsigned char *staged; /* tiles of one side of a lane, on their way between these */
    int status;            /* of the copies of a device */
} packing_job;

static uint32_t n_of(const packing_job *j, uint32_t lane)
{
    return j->choice.n_tokens[lane];
}

/* Of these, tokens that an earlier condensing kept. */
static uint32_t n_packed_of(const packing_job *j, uint32_t lane)
{
    const uint32_t *places = j->text->lanes.first;

    return (places[lane + 1] - places[lane]) * TILE;
}

/* ---- memory ---- */

/* For lanes of up to n_max tokens. Errors: QUIRE_NOMEM. */
static int scratch_init(packing_job *j, size_t n_max)
{
    const quire_attn_layer *layer = &j->packing->layers[0];

    return quire_lane_scratch_init(&j->scratch, &j->c->spec, layer->n_head / layer->n_kv_head,
                                   layer->d_k, quire_condensing_probe(j->c), n_max);
}

/* Arrays for the tokens of all lanes. Errors: QUIRE_NOMEM. */
static int tokens_init(packing_job *j)
{
    size_t n = 0, n_max = 0;

    for (uint32_t i = 0; i < j->n_lanes; i++) {
        const uint32_t n_packed = n_packed_of(j, i);

        j->choice.n_tokens[i] = n_packed + j->c->chunk;
        j->choice.n_before[i] = j->choice.n_apart > 0 ? n_packed : 0;
        n_max = quire_max_u64(n_max, n_of(j, i));
        n += n_of(j, i);
    }
    j->positions = calloc(j->n_lanes, sizeof *j->positions);
    j->all_positions = malloc(n * sizeof *j->all_positions);
    QUIRE_FAIL_IF(j->positions == NULL || j->all_positions == NULL, QUIRE_NOMEM);
    if (j->packing->has_worth) {
        j->worth = calloc(j->n_lanes, sizeof *j->worth);
        j->all_worth = malloc(n * sizeof *j->all_worth);
        QUIRE_FAIL_IF(j->worth == NULL || j->all_worth == NULL, QUIRE_NOMEM);
    }
    n = 0;
    for (uint32_t i = 0; i < j->n_lanes; i++) {
        j->choice.positions[i] = j->positions[i] = j->all_positions + n;
        if (j->worth != NULL) {
            j->worth[i] = j->all_worth + n;
        }
        n += n_of(j, i);
    }
    QUIRE_TRY(quire_lanes_choice_room(&j->choice));
    return scratch_init(j, n_max);
}

static int job_init(packing_job *j)
{
    QUIRE_TRY(quire_packed_window_init(&j->reads, j->packing, j->memory, false, &j->status));
    QUIRE_TRY(quire_packed_window_init(&j->writes, j->packing, j->memory, true, &j->status));
    QUIRE_TRY(quire_packed_list_fetch(j->packing, &j->from, j->memory));
    QUIRE_TRY(quire_lanes_choice_init(&j->choice, &j->c->spec, j->packing->n_layers,
                                      j->packing->n_kv_head, j->n_text));
    if (quire_packing_is_sealed(j->packing)) {
        j->choice.n_apart = j->c->chunk;
        QUIRE_TRY(quire_packed_seal_init(&j->seal, j->packing));
    }
    QUIRE_TRY(quire_condensing_full_layers(&j->c->spec, j->packing, j->choice.is_full, NULL, NULL));
    return tokens_init(j);
}

static void job_fini(packing_job *j)
{
    free(j->staged);
    quire_packed_list_free(&j->to);
    quire_packed_list_free(&j->from);
    quire_tile_window_end(&j->writes.window);
    quire_tile_window_end(&j->reads.window);
    quire_packed_lanes_fini(&j->lanes);
    quire_packed_seal_fini(&j->seal);
    quire_lane_scratch_fini(&j->scratch);
    free(j->all_worth);
    free(j->worth);
    free(j->all_positions);
    free(j->positions);
    quire_lanes_choice_fini(&j->choice);
}

/* ---- scores ---- */

static const quire_page_addr *addr_of(const packing_job *j, const quire_page_entry *const *leaves,
                                      uint32_t i)
{
    const quire_page_id id = leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES].page;

    return id != QUIRE_PAGE_NULL ? &j->from.addrs[id] : NULL;
}

/* A side of a lane is read next. */
static void view_begin(packing_job *j, uint32_t lane, quire_side side)
{
    if (j->memory != NULL) {
        quire_packed_window_put(&j->reads, &j->from, j->from_hot, &j->text->lanes, lane, side,
                                n_of(j, lane) / TILE);
    }
}

/* A side of tile `tile` of a lane of `from`: packed ones first, then those in full pages, which are
 * read in 8 bits where their format is sealed. */
static quire_tile_view view_of(packing_job *j, uint32_t lane, uint32_t tile, quire_side side)
{
    const quire_packed_lanes *lanes = &j->text->lanes;
    const uint32_t n_packed = lanes->first[lane + 1] - lanes->first[lane];
    const uint32_t tiles = j->packing->page_tokens / TILE;
    uint32_t i;

    if (j->memory != NULL) {
        return quire_packed_window_view(&j->reads, tile);
    }
    if (tile < n_packed) {
        return (quire_tile_view){ quire_packing_store(j->packing, lane, side)->format,
                                  quire_packed_tile(j->packing, &j->from, lanes,
                                                    lanes->first[lane] + tile, side) };
    }
    tile -= n_packed;
    i = lanes->n_pages + tile / tiles;
    return quire_full_view(j->packing, addr_of(j, j->from.leaves, i),
                           j->from_hot != NULL ? addr_of(j, j->from_hot, i) : NULL, lane,
                           tile % tiles, side);
}

static void read_keys(packing_job *j, uint32_t lane)
{
    const quire_attn_layer *layer = &j->packing->layers[lane / j->packing->n_kv_head];
    const quire_tile_rows rows = { .d = layer->d_k, .n_tokens = TILE, .stride = layer->d_k };

    view_begin(j, lane, QUIRE_SIDE_K);
    for (uint32_t t = 0; t * TILE < n_of(j, lane); t++) {
        const quire_tile_view view = view_of(j, lane, t, QUIRE_SIDE_K);

        quire_codec_get()->decode_k(view.format, &rows, view.tile,
                                    j->scratch.keys + (size_t)t * TILE * layer->d_k);
    }
}

static void read_positions(const packing_job *j, uint32_t lane)
{
    const quire_packed_lanes *lanes = &j->text->lanes;
    const uint32_t n_packed = n_packed_of(j, lane);
    int32_t *positions = j->positions[lane];

    if (n_packed > 0) {
        quire_packed_positions(j->packing, &j->from, lanes, lane, positions);
    }
    for (uint32_t t = 0; t < j->c->chunk; t++) {
        positions[n_packed + t] = (int32_t)(j->n_text - j->c->chunk + t);
    }
}

static void read_worth(const packing_job *j, uint32_t lane)
{
    const quire_packed_lanes *lanes = &j->text->lanes;
    const uint32_t n_packed = n_packed_of(j, lane);
    float *worth = j->worth[lane];

    if (j->text->sums.attention != NULL) {
        memcpy(worth, quire_packed_sums_attention(j->text, lane), n_of(j, lane) * sizeof *worth);
        return;
    }
    if (n_packed > 0) {
        quire_packed_worth(j->packing, &j->from, lanes, lane, worth);
    }
    for (uint32_t t = 0; t < j->c->chunk; t++) {
        worth[n_packed + t] = j->text->worth[(size_t)lane * j->text->n_worth +
                                             (j->n_text - j->c->chunk + t) % j->text->n_worth];
    }
}

/* The attention of the probe's queries to a lane's tokens. */
static void attend(packing_job *j, uint32_t lane, quire_retain_lane *scored)
{
    const quire_attn_layer *layer = &j->packing->layers[lane / j->packing->n_kv_head];
    const uint32_t group = layer->n_head / layer->n_kv_head;
    const uint32_t n = quire_condensing_probe(j->c), d = layer->d_k;
    const size_t ring_floats = (size_t)group * j->text->probe * d;
    const quire_retain_probe probe = { .queries = j->scratch.queries,
                                       .rows_at = j->scratch.rows_at,
                                       .n_heads = group,
                                       .n_queries = n,
                                       .scale = layer->scale,
                                       .softcap = layer->softcap };

    quire_probe_read(j->text->queries + lane * ring_floats, j->text->probe, group, d, j->n_text, n,
                     j->scratch.queries, j->scratch.rows_at);
    quire_lane_scratch_attend(&j->scratch, &j->c->spec, &probe, scored, &j->choice.measures[lane]);
}

static void read_value_norms(packing_job *j, uint32_t lane)
{
    const quire_attn_layer *layer = &j->packing->layers[lane / j->packing->n_kv_head];
    const quire_tile_rows rows = { .d = layer->d_v, .n_tokens = 1, .stride = layer->d_v };
    float v[QUIRE_HEAD_DIM_MAX];

    view_begin(j, lane, QUIRE_SIDE_V);
    for (uint32_t t = 0; t < n_of(j, lane); t++) {
        const quire_tile_view view = view_of(j, lane, t / TILE, QUIRE_SIDE_V);
        quire_tile_rows row = rows;

        row.first_slot = t % TILE;
        quire_codec_get()->decode_v(view.format, &row, view.tile, v);
        j->scratch.value_norms[t] = quire_row_norm(v, layer->d_v);
    }
}

/* The queries to come, by the sums over those of the chunk. */
static void expect_queries(packing_job *j, uint32_t lane, quire_retain_lane *scored)
{
    const quire_attn_layer *layer = &j->packing->layers[lane / j->packing->n_kv_head];
    uint64_t n_queries;
    const quire_query_sums sums = quire_packed_sums_queries(j->text, j->packing, lane, &n_queries);

    quire_query_sums_ahead(&sums, layer, n_queries, j->n_text, j->c->spec.future,
                           j->scratch.query_mean, j->scratch.query_cov);
    read_value_norms(j, lane);
    quire_lane_scratch_expect(&j->scratch, sums.group, scored);
}

static void score(packing_job *j, uint32_t lane)
{
    quire_retain_lane scored = { .n_tokens = n_of(j, lane),
                                 .positions = j->positions[lane],
                                 .n_text = j->n_text,
                                 .keys = j->scratch.keys,
                                 .d = j->packing->layers[0].d_k,
                                 .lane = lane };

    if (j->scratch.keys != NULL) {
        read_keys(j, lane);
    }
    if (j->scratch.attention != NULL) {
        attend(j, lane, &scored);
    }
    if (j->scratch.query_mean != NULL) {
        expect_queries(j, lane, &scored);
    }
    if (j->worth != NULL) {
        scored.worth = j->worth[lane];
    }
    quire_retain_score(&j->c->spec, &scored, j->choice.scores[lane]);
}

static int choose_all(packing_job *j)
{
    for (uint32_t lane = 0; lane < j->n_lanes; lane++) {
        read_positions(j, lane);
        if (j->worth != NULL) {
            read_worth(j, lane);
        }
        if (!j->choice.is_full[lane / j->packing->n_kv_head]) {
            score(j, lane);
        }
    }
    QUIRE_TRY(j->status);
    quire_lanes_choice_budgets(&j->choice);
    return quire_lanes_choice_share(&j->choice, 0, 1);
}

/* ---- moving ----
 *
 * Rows of packed places are numbered in the order of lanes and tokens (quire_packed_number()),
 * before and after the condensing. So kept rows stay in order. Pages of `to` may be pages of
 * `from`, at the same place in both: there rows with the same number lie in the same slot. Rows
 * whose numbers grow move first, the last one first; then the others, the first one first. So a row
 * is read before another one is written to its slot. The rows of the chunk lie in pages that `to`
 * does not have, and come last. */

/* One side of token t of a lane becomes the lane's token n, in this place. Sealed tokens move in
 * whole tiles. */
static void put_row(packing_job *j, quire_side side, uint32_t lane, uint32_t t, uint32_t n,
                    unsigned char *place)
{
    const bool is_sealed =
        quire_format_is_sealed(quire_packing_store(j->packing, lane, side)->format);
    const size_t tile_bytes = side == QUIRE_SIDE_K ? j->packing->k_bytes : j->packing->v_bytes;
    const quire_tile_view view = view_of(j, lane, t / TILE, side);

    if (!is_sealed || t >= j->choice.n_before[lane]) {
        quire_packed_row_put(j->packing, &j->seal, lane, side, &view, t % TILE, place, n % TILE);
    } else if (t % TILE == 0) {
        memmove(place, view.tile, tile_bytes);
    }
}

/* The same in the host's memory. */
static void move_row(packing_job *j, quire_side side, uint32_t lane, uint32_t t, uint32_t n)
{
    put_row(
        j, side, lane, t, n,
        quire_packed_tile(j->packing, &j->to, &j->lanes, j->lanes.first[lane] + n / TILE, side));
}

/* What is added to the number of a packed row that is the lane's token t and becomes token t. */
static int64_t shift_of(const packing_job *j, uint32_t lane)
{
    const quire_packed_lanes *from = &j->text->lanes;

    return TILE * ((int64_t)quire_packed_number(j->packing, &j->lanes, j->lanes.first[lane]) -
                   (int64_t)quire_packed_number(j->packing, from, from->first[lane]));
}

/* Tokens that a lane keeps of its first n. */
static uint32_t n_kept_of(const packing_job *j, uint32_t lane, uint32_t n)
{
    uint32_t n_kept = 0;

    for (uint32_t t = 0; t < n; t++) {
        n_kept += j->choice.is_kept[lane][t];
    }
    return n_kept;
}

static void move_up(packing_job *j, quire_side side, uint32_t lane)
{
    const int64_t shift = shift_of(j, lane);
    uint32_t n = n_kept_of(j, lane, n_packed_of(j, lane));

    for (uint32_t t = n_packed_of(j, lane); t-- > 0;) {
        if (j->choice.is_kept[lane][t] && shift + --n > (int64_t)t) {
            move_row(j, side, lane, t, n);
        }
    }
}

static void move_down(packing_job *j, quire_side side, uint32_t lane)
{
    const int64_t shift = shift_of(j, lane);
    uint32_t n = 0;

    for (uint32_t t = 0; t < n_packed_of(j, lane); t++) {
        if (!j->choice.is_kept[lane][t]) {
            continue;
        }
        if (shift + n <= (int64_t)t) {
            move_row(j, side, lane, t, n);
        }
        n++;
    }
}

static void add_chunk(packing_job *j, quire_side side, uint32_t lane)
{
    uint32_t n = n_kept_of(j, lane, n_packed_of(j, lane));

    for (uint32_t t = n_packed_of(j, lane); t < n_of(j, lane); t++) {
        if (j->choice.is_kept[lane][t]) {
            move_row(j, side, lane, t, n++);
        }
    }
}

static void move_side(packing_job *j, quire_side side)
{
    for (uint32_t lane = j->n_lanes; lane-- > 0;) {
        move_up(j, side, lane);
    }
    for (uint32_t lane = 0; lane < j->n_lanes; lane++) {
        move_down(j, side, lane);
    }
    for (uint32_t lane = 0; lane < j->n_lanes; lane++) {
        add_chunk(j, side, lane);
    }
}

/* Move one side of a lane of pages on a device. */
static void send_side(packing_job *j, quire_side side, uint32_t lane)
{
    const size_t tile_bytes = side == QUIRE_SIDE_K ? j->packing->k_bytes : j->packing->v_bytes;
    const uint32_t n_tiles = j->lanes.first[lane + 1] - j->lanes.first[lane];
    uint32_t n = 0;

    memset(j->staged, 0, n_tiles * tile_bytes);
    view_begin(j, lane, side);
    for (uint32_t t = 0; t < n_of(j, lane); t++) {
        if (j->choice.is_kept[lane][t]) {
            put_row(j, side, lane, t, n, j->staged + n / TILE * tile_bytes);
            n++;
        }
    }
    quire_packed_window_put(&j->writes, &j->to, NULL, &j->lanes, lane, side, n_tiles);
    for (uint32_t i = 0; i < n_tiles; i++) {
        memcpy(quire_packed_window_at(&j->writes, i), j->staged + i * tile_bytes, tile_bytes);
    }
}

static void send_lane(packing_job *j, uint32_t lane)
{
    send_side(j, QUIRE_SIDE_K, lane);
    send_side(j, QUIRE_SIDE_V, lane);
}

/* Move all lanes of pages on a device, one after the other: a lane is read as a whole before it is
 * written. Lanes whose first number grows move first, the last one first: their new places lie
 * behind those of lanes before them, and before the new ones of lanes behind. Then the others, the
 * first one first. */
static void send_all(packing_job *j)
{
    for (uint32_t lane = j->n_lanes; lane-- > 0;) {
        if (shift_of(j, lane) >= 0) {
            send_lane(j, lane);
        }
    }
    for (uint32_t lane = 0; lane < j->n_lanes; lane++) {
        if (shift_of(j, lane) < 0) {
            send_lane(j, lane);
        }
    }
}

/* The list's part of a lane. */
static void list_lane(const packing_job *j, uint32_t lane)
{
    int32_t *positions = j->positions[lane];
    uint32_t n = 0;

    for (uint32_t t = 0; t < n_of(j, lane); t++) {
        if (j->choice.is_kept[lane][t]) {
            if (j->worth != NULL) {
                j->worth[lane][n] = j->worth[lane][t];
            }
            positions[n++] = positions[t];
        }
    }
    quire_packed_positions_put(j->packing, &j->to, &j->lanes, lane, positions);
    if (j->worth != NULL) {
        quire_packed_worth_put(j->packing, &j->to, &j->lanes, lane, j->worth[lane]);
    }
}

/* Room for the longest lane on its way to a device: nothing has moved yet. Errors: QUIRE_NOMEM. */
static int staged_init(packing_job *j)
{
    uint32_t n_tiles = 1;

    for (uint32_t lane = 0; lane < j->n_lanes; lane++) {
        n_tiles = quire_max_u32(n_tiles, j->lanes.first[lane + 1] - j->lanes.first[lane]);
    }
    /* Sizes of tiles are multiples of 64. */
    j->staged =
        aligned_alloc(64, n_tiles * quire_max_u64(j->packing->k_bytes, j->packing->v_bytes));
    return j->staged != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

/* Places for the kept tokens. Errors: QUIRE_NOMEM. */
static int places_init(packing_job *j)
{
    uint32_t *n_tiles = calloc(j->n_lanes, sizeof *n_tiles);
    int rc = n_tiles != NULL ? quire_packed_lanes_init(&j->lanes, j->packing) : QUIRE_NOMEM;

    for (uint32_t lane = 0; rc == QUIRE_OK && lane < j->n_lanes; lane++) {
        const uint32_t n = n_kept_of(j, lane, n_of(j, lane));

        QUIRE_CHECK(n % TILE == 0); /* the granule, and all lanes have whole tiles */
        n_tiles[lane] = n / TILE;
    }
    if (rc == QUIRE_OK) {
        rc = quire_packed_assign(j->packing, j->to.n, n_tiles, &j->lanes);
        QUIRE_CHECK(rc == QUIRE_OK); /* kept(k) has room for the most */
        rc = quire_packed_list_make(j->packing, &j->to, j->lanes.first[j->n_lanes], j->memory);
    }
    rc = rc == QUIRE_OK && j->memory != NULL ? staged_init(j) : rc;
    free(n_tiles);
    return rc;
}

/* Errors: of a device. */
static int move_all(packing_job *j)
{
    if (j->memory == NULL) {
        move_side(j, QUIRE_SIDE_K);
        move_side(j, QUIRE_SIDE_V);
    }
    if (j->memory != NULL) {
        send_all(j);
    }
    quire_tile_window_flush(&j->writes.window);
    quire_packed_list_begin(j->packing, &j->to, &j->lanes);
    for (uint32_t lane = 0; lane < j->n_lanes; lane++) {
        list_lane(j, lane);
    }
    return j->status < 0 ? j->status
                         : quire_packed_list_send(j->packing, &j->to, &j->lanes, j->memory);
}

int quire_condense_lanes(const quire_condensing *c, quire_runtime *runtime, uint32_t k,
                         const quire_packed_text *text, quire_seq_id from, quire_seq_id to)
{
    const quire_cache *cache = quire_runtime_cache(runtime);
    packing_job j = { .c = c,
                      .packing = &c->packing,
                      .text = text,
                      .memory = quire_runtime_page_memory(runtime),
                      .n_text = k * c->chunk,
                      .n_lanes = quire_packing_n_lanes(&c->packing) };
    quire_seq_table from_table, hot_table, to_table;
    int rc;

    QUIRE_FAIL_IF(!quire_condensing_has_seen(c, k, text) ||
                      quire_condensing_is_unrepeated(c, k, text),
                  QUIRE_INVAL);
    QUIRE_TRY(quire_seq_table_get(cache, from, 0, &from_table));
    QUIRE_TRY(quire_seq_table_get(cache, to, 0, &to_table));
    if (quire_packing_is_sealed(&c->packing)) {
        QUIRE_TRY(
            quire_seq_table_get(cache, from, (quire_group_id)c->packing.hot_group, &hot_table));
        j.from_hot = hot_table.leaves;
    }
    j.from = (quire_packed_pages){ .leaves = from_table.leaves,
                                   .addrs = quire_cache_page_addrs(cache),
                                   .n = text->lanes.n_pages };
    j.to = (quire_packed_pages){ .leaves = to_table.leaves,
                                 .addrs = quire_cache_page_addrs(cache),
                                 .n = to_table.n_entries };
    rc = job_init(&j);
    rc = rc == QUIRE_OK ? choose_all(&j) : rc;
    rc = rc == QUIRE_OK ? places_init(&j) : rc;
    rc = rc == QUIRE_OK ? move_all(&j) : rc;
    job_fini(&j);
    return rc;
}
