/* attn_layer.c - which layers a workspace takes.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_internal.h"
#include "base/check.h"

#include <math.h>

/* A stored K or V as it is to be checked. */
typedef struct source_check {
    const quire_attn_source *source;
    uint32_t d;
    uint32_t table; /* the group whose tables its group's must be alike */
} source_check;

static bool is_rotation(uint32_t block, uint32_t d)
{
    return block == 0 || ((block & (block - 1)) == 0 && d % block == 0);
}

static int check_lane(const quire_attn_lane *lane)
{
    QUIRE_FAIL_IF(lane->offset % 64 != 0 || lane->page_stride % 64 != 0, QUIRE_INVAL);
    QUIRE_FAIL_IF(lane->head_stride % 64 != 0 || lane->tile_stride % 64 != 0, QUIRE_INVAL);
    return QUIRE_OK;
}

/* Whether group `group` is there, hot or not, and its tables are like those of `table`. */
static bool is_group(const quire_attn_workspace_opts *limits, uint32_t group, bool is_hot,
                     uint32_t table)
{
    return group < limits->n_groups && limits->groups[group].is_hot == is_hot &&
           limits->groups[group].like == limits->groups[table].like;
}

static int check_source(const quire_attn_workspace_opts *limits, const source_check *check)
{
    const quire_attn_source *source = check->source;

    QUIRE_FAIL_IF((unsigned)source->format >= QUIRE_FORMAT_COUNT, QUIRE_INVAL);
    QUIRE_FAIL_IF(!is_rotation(source->rotate, check->d), QUIRE_INVAL);
    QUIRE_FAIL_IF(!is_group(limits, source->group, false, check->table), QUIRE_INVAL);
    QUIRE_TRY(check_lane(&source->lane));
    if (quire_format_is_sealed(source->format)) {
        QUIRE_FAIL_IF(!is_group(limits, source->hot_group, true, check->table), QUIRE_INVAL);
        QUIRE_TRY(check_lane(&source->hot_lane));
    }
    return QUIRE_OK;
}

/* Check a source that run() reads. Pages behind its group's widest window may be gone, so the
 * layer's own window must not be wider. */
static int check_read(const quire_attn_workspace_opts *limits, const quire_attn_layer *layer,
                      const quire_attn_source *source, uint32_t d)
{
    const source_check check = { source, d, layer->k[0].group };
    uint32_t window;

    QUIRE_TRY(check_source(limits, &check));
    window = limits->groups[source->group].window;
    QUIRE_FAIL_IF(window != 0 && (layer->window == 0 || layer->window > window), QUIRE_INVAL);
    return QUIRE_OK;
}

static int check_store(const quire_attn_workspace_opts *limits, const quire_attn_source *store,
                       uint32_t d)
{
    const source_check check = { store, d, store->group };

    QUIRE_FAIL_IF(store->group >= limits->n_groups, QUIRE_INVAL);
    return check_source(limits, &check);
}

static int check_sources(const quire_attn_workspace_opts *limits, const quire_attn_layer *layer)
{
    QUIRE_FAIL_IF(layer->n_k < 1 || layer->n_k > QUIRE_ATTN_SOURCES_MAX, QUIRE_INVAL);
    QUIRE_FAIL_IF(layer->n_v > QUIRE_ATTN_SOURCES_MAX, QUIRE_INVAL);
    QUIRE_FAIL_IF((layer->n_v == 0) != layer->v_prefix_of_k, QUIRE_INVAL);
    QUIRE_FAIL_IF(layer->k[0].group >= limits->n_groups, QUIRE_INVAL);
    for (uint32_t i = 0; i < layer->n_k; i++) {
        QUIRE_TRY(check_read(limits, layer, &layer->k[i], layer->d_k));
    }
    for (uint32_t i = 0; i < layer->n_v; i++) {
        QUIRE_TRY(check_read(limits, layer, &layer->v[i], layer->d_v));
    }
    QUIRE_TRY(check_store(limits, &layer->k_store, layer->d_k));
    return layer->v_prefix_of_k ? QUIRE_OK : check_store(limits, &layer->v_store, layer->d_v);
}

/* V of a layer whose V is the first d_v dimensions of K. */
static int check_prefix(const quire_attn_layer *layer)
{
    QUIRE_FAIL_IF(layer->d_v > layer->d_k, QUIRE_INVAL);
    QUIRE_FAIL_IF(!is_rotation(layer->k[0].rotate, layer->d_v), QUIRE_INVAL);
    QUIRE_FAIL_IF(layer->n_k != 1, QUIRE_UNSUPP); /* a prefix of which of the two? */
    return QUIRE_OK;
}

int quire_attn_layer_check(const quire_attn_workspace *workspace, const quire_attn_layer *layer)
{
    const quire_attn_workspace_opts *limits = &workspace->limits;

    QUIRE_FAIL_IF(layer->n_head == 0 || layer->n_kv_head == 0, QUIRE_INVAL);
    QUIRE_FAIL_IF(layer->n_head % layer->n_kv_head != 0, QUIRE_INVAL);
    QUIRE_FAIL_IF(layer->has_chunks && layer->window == 0, QUIRE_INVAL);
    QUIRE_FAIL_IF(quire_tile_bytes(QUIRE_FORMAT_F32, QUIRE_SIDE_K, layer->d_k) == 0, QUIRE_INVAL);
    QUIRE_FAIL_IF(quire_tile_bytes(QUIRE_FORMAT_F32, QUIRE_SIDE_V, layer->d_v) == 0, QUIRE_INVAL);
    QUIRE_FAIL_IF(!isfinite(layer->scale), QUIRE_INVAL);
    QUIRE_FAIL_IF(!isfinite(layer->softcap) || layer->softcap < 0.0f, QUIRE_INVAL);
    QUIRE_TRY(check_sources(limits, layer));
    if (layer->v_prefix_of_k) {
        QUIRE_TRY(check_prefix(layer));
    }
    QUIRE_FAIL_IF(layer->n_head > limits->n_head_max, QUIRE_LIMIT);
    QUIRE_FAIL_IF(layer->d_k > limits->head_dim_max, QUIRE_LIMIT);
    QUIRE_FAIL_IF(layer->d_v > limits->head_dim_max, QUIRE_LIMIT);
    return QUIRE_OK;
}
