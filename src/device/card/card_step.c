/* card_step.c - a layer on the card: rows there and back, and the kernels.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "codec/sealed.h"
#include "device/card/card.h"

#include <stdatomic.h>
#include <string.h>

#define SHARED_FLOATS   7680u /* of a workgroup of attention, for its lanes */
#define HEADS_MAX       8u    /* of one; a power of two */
#define LANES_MAX       16u   /* heads of all its rows */
#define GROUPS_MAX      65535u
#define PARTIALS_FLOATS (16u << 20) /* of one dispatch, about */
#define PARAMS_BYTES    ((sizeof(quire_card_params) + 63u) / 64u * 64u)

static atomic_uint_fast64_t n_shared;

uint64_t quire_card_shared_splits(void)
{
    return atomic_load(&n_shared);
}

/* ---- tables of levels ---- */

/* The n-th cell has the code of the upper half nearest to n / 2 level units: codec/sealed_body.h.
 */
static void levels_fill(quire_format format, quire_card_levels *to)
{
    const int8_t *levels = quire_sealed_levels(format, QUIRE_SIDE_K);
    const float *starts = quire_sealed_starts(format, &to->n_starts);
    uint32_t code = quire_sealed_n_levels(format) / 2;

    to->n_levels = quire_sealed_n_levels(format);
    for (uint32_t i = 0; i < QUIRE_SEALED_LEVELS_MAX; i++) {
        to->level[i] = levels[i];
    }
    for (uint32_t c = 0; c < 256; c++) {
        while (code + 1 < to->n_levels && levels[code] + levels[code + 1] <= (int)c) {
            code++;
        }
        to->cell[c] = code | (uint32_t)levels[code] << 8;
    }
    QUIRE_CHECK(to->n_starts <= sizeof(to->start) / sizeof(to->start[0]));
    memcpy(to->start, starts, to->n_starts * sizeof(float));
}

int quire_card_levels_make(quire_card *card)
{
    const size_t bytes = QUIRE_CARD_LEVELS * sizeof(quire_card_levels);
    quire_card_levels *tables;

    QUIRE_TRY(quire_card_twin_reserve(card, bytes, &card->levels));
    tables = (void *)card->levels.pinned.host;
    memset(tables, 0, bytes);
    for (uint32_t i = 0; i < QUIRE_CARD_LEVELS; i++) {
        levels_fill((quire_format)(QUIRE_FORMAT_Q6 + i), &tables[i]);
    }
    return quire_card_twin_send(card, &card->levels, bytes);
}

/* ---- params ---- */

static quire_card_lane lane_of(const quire_attn_lane *lane)
{
    return (quire_card_lane){ lane->offset, lane->page_stride, lane->head_stride,
                              lane->tile_stride };
}

/* Second addresses have a table of their own, behind those of the groups (card_plan.c). */
static quire_card_source source_of(const quire_card *card, const quire_attn_source *source)
{
    return (quire_card_source){ .lane = lane_of(&source->lane),
                                .hot_lane = lane_of(&source->hot_lane),
                                .format = (uint32_t)source->format,
                                .rotate = source->rotate,
                                .group = source->is_second ? card->workspace->limits.n_groups
                                                           : source->group,
                                .hot_group = source->hot_group };
}

/* Addresses on the card of a layer's rows and small arrays; 0: the layer has none. */
typedef struct row_addrs {
    uint64_t q[QUIRE_ATTN_SOURCES_MAX];
    uint64_t k_new, v_new;
    uint64_t gate[QUIRE_ATTN_SOURCES_MAX];
    uint64_t sinks;
    uint64_t out, sums;
} row_addrs;

/* The address of a place in an area. */
static uint64_t address_of(const quire_card_area *area, size_t at)
{
    return at != SIZE_MAX
               ? (uint64_t)(uintptr_t)area->twin.own.addr + PARAMS_BYTES + at * sizeof(float)
               : 0;
}

static row_addrs addrs_of(const quire_card_area *area)
{
    row_addrs at = { .k_new = address_of(area, area->rows.k_new),
                     .v_new = address_of(area, area->rows.v_new),
                     .sinks = address_of(area, area->rows.sinks),
                     .out = address_of(area, area->rows.out),
                     .sums = address_of(area, area->rows.sums) };

    for (uint32_t i = 0; i < QUIRE_ATTN_SOURCES_MAX; i++) {
        at.q[i] = address_of(area, area->rows.q[i]);
        at.gate[i] = address_of(area, area->rows.gate[i]);
    }
    return at;
}

static void params_fill(const quire_card *card, const row_addrs *at, const quire_attn_layer *layer,
                        quire_card_params *p)
{
    *p = (quire_card_params){ .k_new = at->k_new,
                              .v_new = at->v_new,
                              .sinks = at->sinks,
                              .result = at->out,
                              .sums = at->sums,
                              .entries = card->at_entries,
                              .seqs = card->at_seqs,
                              .rows = card->at_rows,
                              .cascades = card->at_cascades,
                              .cascade_rows = card->at_cascade_rows,
                              .positions = card->at_positions,
                              .biases = card->at_biases,
                              .tables = (uint64_t)(uintptr_t)card->levels.own.addr,
                              .k_store = source_of(card, &layer->k_store),
                              .v_store = source_of(card, &layer->v_store),
                              .n_head = layer->n_head,
                              .n_kv_head = layer->n_kv_head,
                              .d_k = layer->d_k,
                              .d_v = layer->d_v,
                              .window = layer->window,
                              .has_chunks = layer->has_chunks,
                              .recent_tiles = layer->recent_tiles,
                              .sink_tiles = layer->sink_tiles,
                              .scale = layer->scale,
                              .softcap = layer->softcap,
                              .is_prefix = layer->v_prefix_of_k,
                              .split_entries = card->workspace->limits.split_entries };
    for (uint32_t i = 0; i < QUIRE_ATTN_SOURCES_MAX; i++) {
        p->q[i] = at->q[i];
        p->gate[i] = at->gate[i];
        p->k[i] = source_of(card, &layer->k[i]);
        p->v[i] = source_of(card, &layer->v[i]);
    }
}

int quire_card_enter(quire_card *card, const quire_attn_layer *layer, quire_attn_layer *own)
{
    quire_card_area *area = &card->areas[++card->area % QUIRE_CARD_AREAS];
    const quire_device_rows rows = quire_device_rows_of(layer, quire_device_n_rows(&card->batch));
    const size_t n_in = rows.out != SIZE_MAX ? rows.out : rows.n_floats;
    row_addrs at;

    QUIRE_TRY(card->calls->wait(card, area->last));
    QUIRE_TRY(
        quire_card_twin_reserve(card, PARAMS_BYTES + rows.n_floats * sizeof(float), &area->twin));
    area->rows = rows;
    at = addrs_of(area);
    quire_device_rows_take(&rows, layer, (float *)(void *)(area->twin.pinned.host + PARAMS_BYTES),
                           own);
    params_fill(card, &at, layer, (quire_card_params *)(void *)area->twin.pinned.host);
    QUIRE_TRY(quire_card_twin_send(card, &area->twin, PARAMS_BYTES + n_in * sizeof(float)));
    area->last = card->n_submitted;
    card->params = (uint64_t)(uintptr_t)area->twin.own.addr;
    return QUIRE_OK;
}

/* ---- kernels ---- */

static quire_card_area *area_of(quire_card *card)
{
    return &card->areas[card->area % QUIRE_CARD_AREAS];
}

/* End a piece of work that reads the area at hand. */
static int work_end(quire_card *card, int status)
{
    const int rc = card->calls->end(card, status);

    area_of(card)->last = card->n_submitted;
    return rc;
}

/* One side of the new rows: into hot or main tiles, then full tiles of sealed formats. */
static int append_side(quire_card *card, const quire_attn_layer *own, quire_side side)
{
    const quire_attn_source *store = side == QUIRE_SIDE_K ? &own->k_store : &own->v_store;
    const uint32_t n_segments = card->workspace->plans[store->group].n_segments;
    const bool pairs = side == QUIRE_SIDE_K && own->q[0] != NULL && quire_attn_pairs_qk(own);
    quire_card_dispatch job = {
        .kernel = QUIRE_CARD_APPEND,
        .constants = { { side == QUIRE_SIDE_V, (uint32_t)store->format, pairs } },
        .push = { .params = card->params, .segments = card->at_segments[store->group] },
        .groups = { n_segments, own->n_kv_head, 1 },
        .shared_floats = 3 * (side == QUIRE_SIDE_K ? own->d_k : own->d_v)
    };

    if (n_segments == 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(card->calls->dispatch(card, &job));
    if (quire_format_is_sealed(store->format)) {
        card->calls->barrier(card);
        job.kernel = QUIRE_CARD_SEAL;
        QUIRE_TRY(card->calls->dispatch(card, &job));
    }
    return QUIRE_OK;
}

static int append_sides(quire_card *card, const quire_attn_layer *own)
{
    if (own->k_new != NULL) {
        QUIRE_TRY(append_side(card, own, QUIRE_SIDE_K));
    }
    if (own->v_new != NULL && !own->v_prefix_of_k) {
        QUIRE_TRY(append_side(card, own, QUIRE_SIDE_V));
    }
    return QUIRE_OK;
}

int quire_card_append(quire_card *card, const quire_attn_layer *own)
{
    QUIRE_TRY(card->calls->begin(card));
    return work_end(card, append_sides(card, own));
}

/* The floats of a lane (a head of a row) in a workgroup's memory: q, o, the logits of a tile, m, l,
 * a factor. */
static uint32_t lane_floats_of(const quire_attn_layer *own)
{
    const uint32_t n_v = own->v_prefix_of_k ? 1 : own->n_v;

    return own->n_k * own->d_k + n_v * own->d_v + QUIRE_TILE_TOKENS + 3;
}

/* The constants of attention: heads of a workgroup, a power of two that its memory holds; no more
 * than half of them are beyond the group. Powers of two, so that there are few pipelines. The last
 * two are left to the caller: the rows of a workgroup, of which so many find room, and floats. */
static uint32_t attn_constants(const quire_attn_layer *own, quire_card_constants *constants)
{
    const uint32_t group = own->n_head / own->n_kv_head;
    const uint32_t lane_floats = lane_floats_of(own);
    uint32_t heads = 1;
    uint32_t n_rows = 1;

    while (heads < HEADS_MAX && heads < group && 2 * heads * lane_floats <= SHARED_FLOATS) {
        heads *= 2;
    }
    while (2 * n_rows * heads <= LANES_MAX && 2 * n_rows * heads * lane_floats <= SHARED_FLOATS) {
        n_rows *= 2;
    }
    constants->at[0] = heads;
    constants->at[1] = own->n_k;
    constants->at[2] = own->v_prefix_of_k ? 1 : own->n_v;
    return n_rows;
}

/* Whether a layer can use the cascades: only layers of group 0 have cascades, and only layers
 * without a window see all earlier tokens. */
static bool cascades_fit(const quire_card *card, const quire_attn_layer *own)
{
    bool fits = card->n_cascades > 0 && own->window == 0;

    for (uint32_t i = 0; i < own->n_k; i++) {
        fits = fits && own->k[i].group == 0;
    }
    for (uint32_t i = 0; i < own->n_v && !own->v_prefix_of_k; i++) {
        fits = fits && own->v[i].group == 0;
    }
    return fits;
}

/* The arguments for dispatching a layer's attention. */
typedef struct attn_job {
    quire_card_push push;
    quire_card_constants constants;
    uint32_t lane_floats;
    uint32_t n_parts;      /* of the heads: workgroups of a row and split */
    uint32_t cascade_rows; /* of a workgroup; 0: no cascades */
} attn_job;

/* Partials of n_groups workgroups with n_rows rows each, of the first n_splits splits. */
static int attn_partials(quire_card *card, const attn_job *job, uint32_t n_rows, uint32_t n_groups,
                         uint32_t n_splits)
{
    quire_card_dispatch attn = { .kernel = QUIRE_CARD_ATTN,
                                 .constants = job->constants,
                                 .push = job->push,
                                 .groups = { n_groups, job->n_parts, n_splits } };

    attn.constants.at[3] = n_rows;
    attn.shared_floats = job->constants.at[0] * n_rows * job->lane_floats;
    attn.constants.at[4] = attn.shared_floats;
    return card->calls->dispatch(card, &attn);
}

/* The splits that rows share, each read once for cascade_rows of them. */
static int attn_cascades(quire_card *card, const attn_job *job)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < card->n_cascades; i++) {
        const quire_card_cascade *c = &card->cascades[i];

        n += (c->n_rows + job->cascade_rows - 1) / job->cascade_rows;
        atomic_fetch_add(&n_shared, c->n_splits);
    }
    return attn_partials(card, job, job->cascade_rows, n, card->n_cascade_splits);
}

/* Rows [push.first_row, + n_rows): partials of all splits, and their merge. */
static int attn_rows(quire_card *card, const quire_attn_layer *own, const attn_job *job)
{
    const quire_card_dispatch merge = { .kernel = QUIRE_CARD_MERGE,
                                        .constants = { { job->constants.at[2] } },
                                        .push = job->push,
                                        .groups = { job->push.n_rows, own->n_head, 1 },
                                        .shared_floats = own->d_v };

    if (job->cascade_rows > 0) {
        QUIRE_TRY(attn_cascades(card, job));
    }
    QUIRE_TRY(attn_partials(card, job, 1, job->push.n_rows, job->push.n_splits_max));
    card->calls->barrier(card);
    QUIRE_TRY(card->calls->dispatch(card, &merge));
    card->calls->barrier(card);
    return QUIRE_OK;
}

/* All rows, rows_max at a time. */
static int attn_all(quire_card *card, const quire_attn_layer *own, attn_job *job, uint32_t rows_max)
{
    quire_card_push *push = &job->push;

    for (; push->first_row < card->n_rows; push->first_row += rows_max) {
        const uint32_t n_left = card->n_rows - push->first_row;

        push->n_rows = n_left < rows_max ? n_left : rows_max;
        QUIRE_TRY(attn_rows(card, own, job));
    }
    return QUIRE_OK;
}

static attn_job job_of(quire_card *card, const quire_attn_layer *own)
{
    attn_job job = { .push = { .params = card->params,
                               .n_splits_max = card->n_splits_max[own->k[0].group] },
                     .lane_floats = lane_floats_of(own) };
    const uint32_t n_rows = attn_constants(own, &job.constants);
    const uint32_t group = own->n_head / own->n_kv_head;
    const uint32_t heads = job.constants.at[0];

    job.n_parts = own->n_kv_head * ((group + heads - 1) / heads);
    if (n_rows > 1 && cascades_fit(card, own)) {
        job.cascade_rows = n_rows;
        job.push.n_cascades = card->n_cascades;
    }
    return job;
}

/* Room for partial results of *rows_max rows at a time. */
static int attn_prepare(quire_card *card, const quire_attn_layer *own, attn_job *job,
                        uint32_t *rows_max)
{
    const uint64_t row_floats =
        (uint64_t)own->n_head * job->push.n_splits_max * (2 + job->constants.at[2] * own->d_v);
    uint64_t max = row_floats > 0 ? PARTIALS_FLOATS / row_floats : 0;

    max = max < 1 ? 1 : max < GROUPS_MAX ? max : GROUPS_MAX;
    if (max > job->cascade_rows && job->cascade_rows > 0) { /* whole workgroups of a cascade */
        max -= max % job->cascade_rows;
    }
    max = max < card->n_rows ? max : card->n_rows;
    QUIRE_TRY(quire_card_reserve(card, QUIRE_DEVICE_PAGES, max * row_floats * sizeof(float),
                                 &card->partials));
    job->push.partials = (uint64_t)(uintptr_t)card->partials.addr;
    *rows_max = (uint32_t)max;
    return QUIRE_OK;
}

int quire_card_attn(quire_card *card, const quire_attn_layer *own)
{
    attn_job job = job_of(card, own);
    uint32_t rows_max;

    if (card->n_rows == 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(attn_prepare(card, own, &job, &rows_max));
    QUIRE_TRY(card->calls->begin(card));
    return work_end(card, attn_all(card, own, &job, rows_max));
}

int quire_card_leave(quire_card *card, const quire_attn_layer *layer, const quire_attn_layer *own)
{
    const quire_card_area *area = area_of(card);
    const uint64_t at = PARAMS_BYTES + area->rows.out * sizeof(float);
    quire_device_piece piece = {
        .to = &area->twin.pinned, .to_offset = at, .from = &area->twin.own, .from_offset = at
    };

    if (layer->out == NULL || card->n_rows == 0) {
        return QUIRE_OK;
    }
    piece.bytes = (area->rows.n_floats - area->rows.out) * sizeof(float);
    QUIRE_TRY(card->calls->copy(card, &piece, 1));
    QUIRE_TRY(quire_card_wait_all(card));
    quire_device_rows_give(layer, &card->batch, own);
    return QUIRE_OK;
}

/* ---- layers with rows on the card ---- */

/* The most that a layer's params take, with gates and sinks behind them. */
static uint64_t queued_bytes_max(const quire_card *card)
{
    const quire_attn_workspace_opts *limits = &card->workspace->limits;
    const uint64_t gate = (uint64_t)limits->n_head_max * limits->head_dim_max;

    return PARAMS_BYTES + (QUIRE_ATTN_SOURCES_MAX * gate + limits->n_head_max) * sizeof(float);
}

/* Once: the work of each layer writes there before its kernels read, in the queue's order. */
static int queued_reserve(quire_card *card)
{
    const quire_allocator *allocator = &card->base.allocator;

    if (card->queued_host == NULL) {
        card->queued_host = allocator->alloc(allocator->ctx, queued_bytes_max(card));
        QUIRE_FAIL_IF(card->queued_host == NULL, QUIRE_NOMEM);
    }
    return quire_card_reserve(card, QUIRE_DEVICE_PAGES, queued_bytes_max(card), &card->queued);
}

/* Put an array of the host's behind the params; its address on the card, 0 for NULL. */
static uint64_t queued_put(const quire_card *card, const float *array, size_t n, uint64_t *bytes)
{
    const uint64_t at = *bytes;

    if (array == NULL) {
        return 0;
    }
    memcpy(card->queued_host + at, array, n * sizeof(float));
    *bytes += n * sizeof(float);
    return (uint64_t)(uintptr_t)card->queued.addr + at;
}

static uint64_t queued_fill(quire_card *card, const quire_attn_layer *layer)
{
    uint64_t bytes = PARAMS_BYTES;
    row_addrs at = { .k_new = (uint64_t)(uintptr_t)layer->k_new,
                     .v_new = (uint64_t)(uintptr_t)layer->v_new,
                     .sinks = queued_put(card, layer->sinks, layer->n_head, &bytes),
                     .out = (uint64_t)(uintptr_t)layer->out };

    for (uint32_t i = 0; i < QUIRE_ATTN_SOURCES_MAX; i++) {
        at.q[i] = i < layer->n_k ? (uint64_t)(uintptr_t)layer->q[i] : 0;
        at.gate[i] =
            queued_put(card, layer->v_gate[i], (size_t)layer->n_kv_head * layer->d_v, &bytes);
    }
    params_fill(card, &at, layer, (quire_card_params *)(void *)card->queued_host);
    card->params = (uint64_t)(uintptr_t)card->queued.addr;
    return bytes;
}

static int queued_work(quire_card *card, const quire_attn_layer *layer, unsigned what,
                       attn_job *job, uint32_t rows_max, uint64_t bytes)
{
    const quire_card_calls *calls = card->calls;

    if (calls->behind_owner != NULL) {
        QUIRE_TRY(calls->behind_owner(card));
    }
    QUIRE_TRY(calls->write(card, &card->queued, card->queued_host, bytes));
    calls->barrier(card);
    if ((what & QUIRE_ATTN_QUEUE_APPEND) != 0) {
        QUIRE_TRY(append_sides(card, layer));
        calls->barrier(card);
    }
    return rows_max > 0 ? attn_all(card, layer, job, rows_max) : QUIRE_OK;
}

int quire_card_queue(quire_card *card, const quire_attn_layer *layer, unsigned what)
{
    uint32_t rows_max = 0;
    uint64_t bytes;
    attn_job job;

    QUIRE_TRY(queued_reserve(card));
    bytes = queued_fill(card, layer);
    job = job_of(card, layer);
    if ((what & QUIRE_ATTN_QUEUE_RUN) != 0 && card->n_rows > 0) {
        QUIRE_TRY(attn_prepare(card, layer, &job, &rows_max));
    }
    QUIRE_TRY(card->calls->begin(card));
    QUIRE_TRY(work_end(card, queued_work(card, layer, what, &job, rows_max, bytes)));
    return card->calls->before_owner != NULL ? card->calls->before_owner(card) : QUIRE_OK;
}
