/* vulkan_step.c - a layer on the card: rows there and back, and the kernels.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "codec/sealed.h"
#include "device/vulkan/vulkan_device.h"
#include "device/vulkan/vulkan_internal.h"

#include <stdatomic.h>
#include <string.h>

#define SHARED_FLOATS   7680u /* of attn.comp */
#define HEADS_MAX       8u    /* of one of its workgroups; a power of two */
#define LANES_MAX       16u   /* heads of all its rows */
#define GROUPS_MAX      65535u
#define PARTIALS_FLOATS (16u << 20) /* of one dispatch, about */
#define PARAMS_BYTES    ((sizeof(quire_vulkan_params) + 63u) / 64u * 64u)

static atomic_uint_fast64_t n_shared;

uint64_t quire_vulkan_shared_splits(void)
{
    return atomic_load(&n_shared);
}

/* ---- tables of levels ---- */

/* The n-th cell has the code of the upper half nearest to n / 2 level units: codec/sealed_body.h.
 */
static void levels_fill(quire_format format, quire_vulkan_levels *to)
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

int quire_vulkan_levels_make(quire_vulkan *v)
{
    const size_t bytes = QUIRE_VULKAN_LEVELS * sizeof(quire_vulkan_levels);
    quire_vulkan_levels *tables;

    QUIRE_TRY(quire_vulkan_twin_reserve(v, bytes, &v->levels));
    tables = (void *)v->levels.pinned.host;
    memset(tables, 0, bytes);
    for (uint32_t i = 0; i < QUIRE_VULKAN_LEVELS; i++) {
        levels_fill((quire_format)(QUIRE_FORMAT_Q6 + i), &tables[i]);
    }
    return quire_vulkan_twin_send(v, &v->levels, bytes);
}

/* ---- params ---- */

static quire_vulkan_lane lane_of(const quire_attn_lane *lane)
{
    return (quire_vulkan_lane){ lane->offset, lane->page_stride, lane->head_stride,
                                lane->tile_stride };
}

static quire_vulkan_source source_of(const quire_attn_source *source)
{
    return (quire_vulkan_source){ .lane = lane_of(&source->lane),
                                  .hot_lane = lane_of(&source->hot_lane),
                                  .format = (uint32_t)source->format,
                                  .rotate = source->rotate,
                                  .group = source->group,
                                  .hot_group = source->hot_group };
}

/* The address on the card of a place in the rows; 0: the layer has none. */
static uint64_t address_of(const quire_vulkan_area *area, size_t at)
{
    return at != SIZE_MAX
               ? (uint64_t)(uintptr_t)area->twin.own.addr + PARAMS_BYTES + at * sizeof(float)
               : 0;
}

static void params_fill(const quire_vulkan *v, const quire_vulkan_area *area,
                        const quire_attn_layer *layer, quire_vulkan_params *p)
{
    *p = (quire_vulkan_params){ .k_new = address_of(area, area->rows.k_new),
                                .v_new = address_of(area, area->rows.v_new),
                                .sinks = address_of(area, area->rows.sinks),
                                .result = address_of(area, area->rows.out),
                                .sums = address_of(area, area->rows.sums),
                                .entries = v->at_entries,
                                .seqs = v->at_seqs,
                                .rows = v->at_rows,
                                .cascades = v->at_cascades,
                                .cascade_rows = v->at_cascade_rows,
                                .positions = v->at_positions,
                                .tables = (uint64_t)(uintptr_t)v->levels.own.addr,
                                .k_store = source_of(&layer->k_store),
                                .v_store = source_of(&layer->v_store),
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
                                .split_entries = v->workspace->limits.split_entries };
    for (uint32_t i = 0; i < QUIRE_ATTN_SOURCES_MAX; i++) {
        p->q[i] = address_of(area, area->rows.q[i]);
        p->gate[i] = address_of(area, area->rows.gate[i]);
        p->k[i] = source_of(&layer->k[i]);
        p->v[i] = source_of(&layer->v[i]);
    }
}

int quire_vulkan_enter(quire_vulkan *v, const quire_attn_layer *layer, quire_attn_layer *own)
{
    quire_vulkan_area *area = &v->areas[++v->area % QUIRE_VULKAN_AREAS];
    const quire_device_rows rows = quire_device_rows_of(layer, quire_device_n_rows(&v->batch));
    const size_t n_in = rows.out != SIZE_MAX ? rows.out : rows.n_floats;

    QUIRE_TRY(quire_vulkan_wait(v, area->last));
    QUIRE_TRY(
        quire_vulkan_twin_reserve(v, PARAMS_BYTES + rows.n_floats * sizeof(float), &area->twin));
    area->rows = rows;
    quire_device_rows_take(&rows, layer, (float *)(void *)(area->twin.pinned.host + PARAMS_BYTES),
                           own);
    params_fill(v, area, layer, (quire_vulkan_params *)(void *)area->twin.pinned.host);
    QUIRE_TRY(quire_vulkan_twin_send(v, &area->twin, PARAMS_BYTES + n_in * sizeof(float)));
    area->last = v->n_submitted;
    return QUIRE_OK;
}

/* ---- kernels ---- */

static const quire_vulkan_area *area_of(const quire_vulkan *v)
{
    return &v->areas[v->area % QUIRE_VULKAN_AREAS];
}

static int dispatch(quire_vulkan *v, VkCommandBuffer commands, quire_vulkan_shader shader,
                    const uint32_t constants[QUIRE_VULKAN_CONSTANTS_MAX],
                    const quire_vulkan_push *push, const uint32_t groups[3])
{
    quire_vulkan_context *c = v->context;
    VkPipeline pipeline;

    QUIRE_TRY(quire_vulkan_pipeline_get(c, shader, constants, &pipeline));
    c->CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    c->CmdPushConstants(commands, c->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(*push), push);
    c->CmdDispatch(commands, groups[0], groups[1], groups[2]);
    return QUIRE_OK;
}

/* One side of the new rows: into hot or main tiles, then full tiles of sealed formats. */
static int append_side(quire_vulkan *v, VkCommandBuffer commands, const quire_attn_layer *own,
                       quire_side side)
{
    const quire_attn_source *store = side == QUIRE_SIDE_K ? &own->k_store : &own->v_store;
    const uint32_t n_segments = v->workspace->plans[store->group].n_segments;
    const bool pairs = side == QUIRE_SIDE_K && own->q[0] != NULL && quire_attn_pairs_qk(own);
    const uint32_t constants[QUIRE_VULKAN_CONSTANTS_MAX] = { side == QUIRE_SIDE_V,
                                                             (uint32_t)store->format, pairs };
    const uint32_t groups[3] = { n_segments, own->n_kv_head, 1 };
    const quire_vulkan_push push = { .params = (uint64_t)(uintptr_t)area_of(v)->twin.own.addr,
                                     .segments = v->at_segments[store->group] };

    if (n_segments == 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(dispatch(v, commands, QUIRE_VULKAN_APPEND, constants, &push, groups));
    if (quire_format_is_sealed(store->format)) {
        quire_vulkan_barrier(v, commands);
        QUIRE_TRY(dispatch(v, commands, QUIRE_VULKAN_SEAL, constants, &push, groups));
    }
    return QUIRE_OK;
}

static int append_sides(quire_vulkan *v, VkCommandBuffer commands, const quire_attn_layer *own)
{
    if (own->k_new != NULL) {
        QUIRE_TRY(append_side(v, commands, own, QUIRE_SIDE_K));
    }
    if (own->v_new != NULL && !own->v_prefix_of_k) {
        QUIRE_TRY(append_side(v, commands, own, QUIRE_SIDE_V));
    }
    return QUIRE_OK;
}

int quire_vulkan_append(quire_vulkan *v, const quire_attn_layer *own)
{
    VkCommandBuffer commands;

    QUIRE_TRY(quire_vulkan_begin(v, &commands));
    QUIRE_TRY(quire_vulkan_end(v, commands, append_sides(v, commands, own)));
    v->areas[v->area % QUIRE_VULKAN_AREAS].last = v->n_submitted;
    return QUIRE_OK;
}

/* The constants of attn.comp: heads of a workgroup, a power of two that its memory holds; no more
 * than half of them are beyond the group. Powers of two, so that there are few pipelines. [3] is
 * left to the caller: the rows of a workgroup, of which so many find room. */
static uint32_t attn_constants(const quire_attn_layer *own,
                               uint32_t constants[QUIRE_VULKAN_CONSTANTS_MAX])
{
    const uint32_t group = own->n_head / own->n_kv_head;
    const uint32_t n_v = own->v_prefix_of_k ? 1 : own->n_v;
    const uint32_t head_floats = own->n_k * own->d_k + n_v * own->d_v + QUIRE_TILE_TOKENS + 3;
    uint32_t heads = 1;
    uint32_t n_rows = 1;

    while (heads < HEADS_MAX && heads < group && 2 * heads * head_floats <= SHARED_FLOATS) {
        heads *= 2;
    }
    while (2 * n_rows * heads <= LANES_MAX && 2 * n_rows * heads * head_floats <= SHARED_FLOATS) {
        n_rows *= 2;
    }
    constants[0] = heads;
    constants[1] = own->n_k;
    constants[2] = n_v;
    return n_rows;
}

/* Whether a layer can use the cascades: only layers of group 0 have cascades, and only layers
 * without a window see all earlier tokens. */
static bool cascades_fit(const quire_vulkan *v, const quire_attn_layer *own)
{
    bool fits = v->n_cascades > 0 && own->window == 0;

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
    quire_vulkan_push push;
    uint32_t constants[QUIRE_VULKAN_CONSTANTS_MAX];
    uint32_t n_parts;      /* of the heads: workgroups of a row and split */
    uint32_t cascade_rows; /* of a workgroup; 0: no cascades */
} attn_job;

/* The splits that rows share, each read once for cascade_rows of them. */
static int attn_cascades(quire_vulkan *v, VkCommandBuffer commands, const attn_job *job)
{
    uint32_t constants[QUIRE_VULKAN_CONSTANTS_MAX];
    uint32_t n = 0;

    memcpy(constants, job->constants, sizeof(constants));
    constants[3] = job->cascade_rows;
    for (uint32_t i = 0; i < v->n_cascades; i++) {
        const quire_vulkan_cascade *c = &v->cascades[i];

        n += (c->n_rows + job->cascade_rows - 1) / job->cascade_rows;
        atomic_fetch_add(&n_shared, c->n_splits);
    }
    return dispatch(v, commands, QUIRE_VULKAN_ATTN, constants, &job->push,
                    (uint32_t[3]){ n, job->n_parts, v->n_cascade_splits });
}

/* Rows [push.first_row, + n_rows): partials of all splits, and their merge. */
static int attn_rows(quire_vulkan *v, VkCommandBuffer commands, const quire_attn_layer *own,
                     const attn_job *job)
{
    const uint32_t merge[QUIRE_VULKAN_CONSTANTS_MAX] = { job->constants[2] };
    const uint32_t n_rows = job->push.n_rows;

    if (job->cascade_rows > 0) {
        QUIRE_TRY(attn_cascades(v, commands, job));
    }
    QUIRE_TRY(dispatch(v, commands, QUIRE_VULKAN_ATTN, job->constants, &job->push,
                       (uint32_t[3]){ n_rows, job->n_parts, job->push.n_splits_max }));
    quire_vulkan_barrier(v, commands);
    QUIRE_TRY(dispatch(v, commands, QUIRE_VULKAN_MERGE, merge, &job->push,
                       (uint32_t[3]){ n_rows, own->n_head, 1 }));
    quire_vulkan_barrier(v, commands);
    return QUIRE_OK;
}

/* All rows, rows_max at a time. */
static int attn_all(quire_vulkan *v, VkCommandBuffer commands, const quire_attn_layer *own,
                    attn_job *job, uint32_t rows_max)
{
    quire_vulkan_push *push = &job->push;

    for (; push->first_row < v->n_rows; push->first_row += rows_max) {
        const uint32_t n_left = v->n_rows - push->first_row;

        push->n_rows = n_left < rows_max ? n_left : rows_max;
        QUIRE_TRY(attn_rows(v, commands, own, job));
    }
    return QUIRE_OK;
}

static attn_job job_of(const quire_vulkan *v, const quire_attn_layer *own)
{
    attn_job job = { .push = { .params = (uint64_t)(uintptr_t)area_of(v)->twin.own.addr,
                               .n_splits_max = v->n_splits_max[own->k[0].group] } };
    const uint32_t n_rows = attn_constants(own, job.constants);
    const uint32_t group = own->n_head / own->n_kv_head;

    job.constants[3] = 1;
    job.n_parts = own->n_kv_head * ((group + job.constants[0] - 1) / job.constants[0]);
    if (n_rows > 1 && cascades_fit(v, own)) {
        job.cascade_rows = n_rows;
        job.push.n_cascades = v->n_cascades;
    }
    return job;
}

int quire_vulkan_attn(quire_vulkan *v, const quire_attn_layer *own)
{
    attn_job job = job_of(v, own);
    const uint64_t row_floats =
        (uint64_t)own->n_head * job.push.n_splits_max * (2 + job.constants[2] * own->d_v);
    uint64_t rows_max = row_floats > 0 ? PARTIALS_FLOATS / row_floats : 0;
    VkCommandBuffer commands;

    if (v->n_rows == 0) {
        return QUIRE_OK;
    }
    rows_max = rows_max < 1 ? 1 : rows_max < GROUPS_MAX ? rows_max : GROUPS_MAX;
    rows_max = rows_max < v->n_rows ? rows_max : v->n_rows;
    if (v->partials.bytes < rows_max * row_floats * sizeof(float)) {
        QUIRE_TRY(quire_vulkan_wait(v, v->n_submitted)); /* a kernel may still use it */
        QUIRE_TRY(quire_vulkan_reserve(v, QUIRE_DEVICE_PAGES, rows_max * row_floats * sizeof(float),
                                       &v->partials));
    }
    job.push.partials = (uint64_t)(uintptr_t)v->partials.addr;
    QUIRE_TRY(quire_vulkan_begin(v, &commands));
    QUIRE_TRY(quire_vulkan_end(v, commands, attn_all(v, commands, own, &job, (uint32_t)rows_max)));
    v->areas[v->area % QUIRE_VULKAN_AREAS].last = v->n_submitted;
    return QUIRE_OK;
}

int quire_vulkan_leave(quire_vulkan *v, const quire_attn_layer *layer, const quire_attn_layer *own)
{
    const quire_vulkan_area *area = area_of(v);
    const uint64_t at = PARAMS_BYTES + area->rows.out * sizeof(float);
    quire_device_piece piece = {
        .to = &area->twin.pinned, .to_offset = at, .from = &area->twin.own, .from_offset = at
    };

    if (layer->out == NULL || v->n_rows == 0) {
        return QUIRE_OK;
    }
    piece.bytes = (area->rows.n_floats - area->rows.out) * sizeof(float);
    QUIRE_TRY(quire_vulkan_copy(v, &piece, 1));
    QUIRE_TRY(quire_vulkan_wait(v, v->n_submitted));
    quire_device_rows_give(layer, &v->batch, own);
    return QUIRE_OK;
}
