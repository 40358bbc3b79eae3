/* attn_workspace.c - attention workspaces: limits, memory, and how layers are cut into blocks.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/step/attn_block.h"
#include "base/check.h"
#include "base/ckd.h"

#include <string.h>

#define HEADS_MAX       4096u
#define ROWS_MAX        (1u << 16) /* times heads: items are counted in 32 bits */
#define SEQS_MAX        (1u << 16)
#define THREADS_MAX     1024u
#define LAYERS_MAX      4096u
#define ENTRIES_MAX     (1u << 24)
#define PAGE_TOKENS_MAX 1024u

static bool is_head_dim(uint32_t d)
{
    return quire_tile_bytes(QUIRE_FORMAT_F32, QUIRE_SIDE_K, d) != 0;
}

static bool is_within(uint32_t value, uint32_t max)
{
    return value >= 1 && value <= max;
}

/* Groups that tables may be alike stand before those that are. */
static int check_groups(const quire_attn_workspace_opts *opts)
{
    QUIRE_FAIL_IF(opts->n_groups > QUIRE_GROUPS_MAX, QUIRE_INVAL);
    for (uint32_t g = 0; g < opts->n_groups; g++) {
        const quire_attn_group *group = &opts->groups[g];

        QUIRE_FAIL_IF(group->like > g, QUIRE_INVAL);
        QUIRE_FAIL_IF(opts->groups[group->like].like != group->like, QUIRE_INVAL);
        QUIRE_FAIL_IF(opts->groups[group->like].is_hot, QUIRE_INVAL);
    }
    return QUIRE_OK;
}

static int check_opts(const quire_attn_workspace_opts *opts)
{
    QUIRE_FAIL_IF(opts->struct_bytes != sizeof(*opts), QUIRE_INVAL);
    QUIRE_FAIL_IF(!is_within(opts->n_threads_max, THREADS_MAX), QUIRE_INVAL);
    QUIRE_FAIL_IF(!is_within(opts->n_seqs_max, SEQS_MAX), QUIRE_INVAL);
    QUIRE_FAIL_IF(!is_within(opts->n_rows_max, ROWS_MAX), QUIRE_INVAL);
    QUIRE_FAIL_IF(!is_within(opts->n_head_max, HEADS_MAX), QUIRE_INVAL);
    QUIRE_FAIL_IF(!is_head_dim(opts->head_dim_max), QUIRE_INVAL);
    QUIRE_FAIL_IF(!is_within(opts->n_entries_max, ENTRIES_MAX), QUIRE_INVAL);
    QUIRE_FAIL_IF(!is_within(opts->n_layers_max, LAYERS_MAX), QUIRE_INVAL);
    QUIRE_FAIL_IF(!is_within(opts->page_tokens, PAGE_TOKENS_MAX), QUIRE_INVAL);
    QUIRE_FAIL_IF(opts->page_tokens % QUIRE_TILE_TOKENS != 0, QUIRE_INVAL);
    return check_groups(opts);
}

/* Bytes that one row of a block takes: packed q of all sources (for hot K too, where there is),
 * logits, weights (where there are), bound and rescale, the query, and two states. */
static size_t block_row_bytes(size_t q_bytes, size_t weights_bytes, uint32_t n_v, size_t o_stride)
{
    return q_bytes + QUIRE_TILE_TOKENS * sizeof(float) + weights_bytes + 2 * sizeof(float) +
           sizeof(quire_attn_query) + 2 * (2 + n_v * o_stride) * sizeof(float);
}

static size_t q_bytes_max(const quire_attn_workspace *ws)
{
    size_t q_bytes = 0;

    for (unsigned f = 0; f < QUIRE_FORMAT_COUNT; f++) {
        size_t bytes = ws->kernels->q_bytes((quire_format)f, ws->limits.head_dim_max);

        q_bytes = bytes > q_bytes ? bytes : q_bytes;
    }
    return q_bytes;
}

static size_t block_row_bytes_max(const quire_attn_workspace *ws)
{
    size_t q_hot_bytes = ws->kernels->q_bytes(QUIRE_FORMAT_HOT, ws->limits.head_dim_max);

    return block_row_bytes(QUIRE_ATTN_SOURCES_MAX * (q_bytes_max(ws) + q_hot_bytes),
                           sizeof(quire_attn_weights), QUIRE_ATTN_SOURCES_MAX,
                           quire_attn_round_up(ws->limits.head_dim_max, 16));
}

/* Whether a source's pages are not those that the layer walks, at the batch's first addresses. */
static bool is_elsewhere(const quire_attn_source *source, const quire_attn_shape *shape)
{
    return source->group != shape->table || source->is_second;
}

/* The place of a source's hot group among the layer's, which it is added to. */
static uint32_t hot_place(const quire_attn_source *source, quire_attn_shape *shape)
{
    if (!quire_format_is_sealed(source->format)) {
        return QUIRE_ATTN_HOT_MAX;
    }
    for (uint32_t i = 0; i < shape->n_hot; i++) {
        if (shape->hot_groups[i] == source->hot_group) {
            return i;
        }
    }
    shape->hot_groups[shape->n_hot] = source->hot_group;
    return shape->n_hot++;
}

/* Set the parts of the shape that follow from each source. Returns the bytes of a row that is
 * packed for all K. */
static size_t shape_sources(const quire_attn_kernels *kernels, const quire_attn_layer *layer,
                            quire_attn_shape *shape)
{
    uint32_t n_bf16 = 0;
    size_t q_bytes = 0;

    for (uint32_t i = 0; i < layer->n_k; i++) {
        quire_attn_source_shape *k = &shape->k[i];

        k->hot = hot_place(&layer->k[i], shape);
        k->q_bytes = kernels->q_bytes(layer->k[i].format, layer->d_k);
        k->q_hot_bytes =
            k->hot < QUIRE_ATTN_HOT_MAX ? kernels->q_bytes(QUIRE_FORMAT_HOT, layer->d_k) : 0;
        q_bytes += k->q_bytes + k->q_hot_bytes;
        shape->has_tables = shape->has_tables || is_elsewhere(&layer->k[i], shape);
    }
    for (uint32_t i = 0; i < layer->n_v; i++) {
        shape->v[i].hot = hot_place(&layer->v[i], shape);
        n_bf16 += layer->v[i].format == QUIRE_FORMAT_BF16;
        shape->has_tables = shape->has_tables || is_elsewhere(&layer->v[i], shape);
        if (shape->v[i].hot < QUIRE_ATTN_HOT_MAX && kernels->weigh != NULL) {
            shape->weights_bytes = sizeof(quire_attn_weights);
        }
    }
    shape->has_mixed_v = kernels->softmax_bf16 != NULL && layer->n_v == 2 && n_bf16 == 1;
    return q_bytes;
}

quire_attn_shape quire_attn_shape_of(const quire_attn_workspace *workspace,
                                     const quire_attn_layer *layer)
{
    quire_attn_shape shape = { .group = layer->n_head / layer->n_kv_head,
                               .n_v = layer->v_prefix_of_k ? 1 : layer->n_v,
                               .table = layer->k[0].group,
                               .o_stride = quire_attn_round_up(layer->d_v, 16) };
    const size_t q_bytes = shape_sources(workspace->kernels, layer, &shape);
    const size_t row_bytes =
        block_row_bytes(q_bytes, shape.weights_bytes, shape.n_v, shape.o_stride);
    size_t rows = QUIRE_ATTN_BLOCK_BYTES_MAX / row_bytes;

    rows = rows < QUIRE_ATTN_BLOCK_ROWS_MAX ? rows : QUIRE_ATTN_BLOCK_ROWS_MAX;
    shape.block_queries = rows > shape.group ? (uint32_t)rows / shape.group : 1;
    shape.block_rows = shape.block_queries * shape.group;
    return shape;
}

/* QUIRE_ATTN_ROWS_BEHIND rows: packed queries or weights, whichever rows are larger. */
static size_t behind_bytes(const quire_attn_workspace *ws)
{
    const size_t q_bytes = q_bytes_max(ws);
    const size_t p_bytes = QUIRE_TILE_TOKENS * sizeof(float); /* weights are smaller */

    return QUIRE_ATTN_ROWS_BEHIND * (q_bytes > p_bytes ? q_bytes : p_bytes);
}

/* Scratch of one thread: the f32 tile, one row, and either the arrays of a block, each padded to 64
 * bytes, or another tile; then the bytes that kernels may read behind the rows of a block. */
static size_t thread_scratch_bytes(const quire_attn_workspace *ws)
{
    const size_t tile = quire_attn_scratch_tile_floats(ws) * sizeof(float);
    size_t block = ws->limits.n_head_max * block_row_bytes_max(ws);

    block = block > QUIRE_ATTN_BLOCK_BYTES_MAX ? block : QUIRE_ATTN_BLOCK_BYTES_MAX;
    block = block > tile ? block : tile;
    return quire_attn_round_up(tile + ws->limits.head_dim_max * sizeof(float) + block, 64) +
           16 * 64 + ws->behind_bytes;
}

/* Room for the partials of all heads of two of the longest sequences: sequences are only cut when
 * there are few of them. And for those of cascades, up to a bound: a state by split, at most. */
static size_t partial_floats(const quire_attn_workspace *ws)
{
    const quire_attn_workspace_opts *limits = &ws->limits;
    size_t row = 2 + quire_attn_round_up(limits->head_dim_max, 16);
    size_t n_rows = (size_t)limits->n_seqs_max * QUIRE_ATTN_CASCADE_ROWS_MAX;
    size_t cascade = limits->cascade_bytes_max / sizeof(float);
    size_t floats = 0;

    if (limits->n_threads_max > 1) {
        floats = (size_t)ws->n_splits_max * 2 * (limits->n_head_max + 32u) * row;
    }
    if (limits->n_seqs_max > 1 && !limits->no_cascade) {
        n_rows = n_rows < limits->n_rows_max ? n_rows : limits->n_rows_max;
        n_rows *= limits->n_head_max;
        row += 32; /* padding of a small state */
        floats += n_rows < cascade / row / (ws->n_splits_max + 1u)
                      ? n_rows * row * (ws->n_splits_max + 1u)
                      : cascade;
    }
    return floats;
}

/* The arrays of a workspace, and those of the plan of each group that is not hot. */
enum {
    N_SHARED,
    N_JOINED,
    NEXT_ITEM,
    DONE,
    PARTIALS,
    SCRATCH,
    N_ARRAYS
};

enum {
    SPLIT_POS,
    SEGMENTS,
    ORDER,
    CASCADES,
    N_PLAN_ARRAYS
};

typedef struct array_size {
    size_t n;
    size_t element_bytes;
} array_size;

static void array_sizes(const quire_attn_workspace *ws, array_size sizes[N_ARRAYS])
{
    const quire_attn_workspace_opts *limits = &ws->limits;

    sizes[N_SHARED] = (array_size){ limits->n_seqs_max, sizeof(uint32_t) };
    sizes[N_JOINED] = (array_size){ (size_t)ws->n_splits_max + 1, sizeof(uint32_t) };
    sizes[NEXT_ITEM] = (array_size){ limits->n_layers_max, sizeof(quire_attn_counter) };
    sizes[DONE] = (array_size){ QUIRE_ATTN_SHARED_TASKS_MAX, sizeof(quire_attn_counter) };
    sizes[PARTIALS] = (array_size){ ws->partial_floats, sizeof(float) };
    sizes[SCRATCH] = (array_size){ limits->n_threads_max, ws->scratch_bytes };
}

static void plan_array_sizes(const quire_attn_workspace *ws, array_size sizes[N_PLAN_ARRAYS])
{
    const quire_attn_workspace_opts *limits = &ws->limits;

    sizes[SPLIT_POS] =
        (array_size){ (size_t)limits->n_seqs_max * ws->n_splits_max, sizeof(uint32_t) };
    sizes[SEGMENTS] = (array_size){ limits->n_rows_max, sizeof(quire_attn_segment) };
    sizes[ORDER] = (array_size){ limits->n_seqs_max, sizeof(uint32_t) };
    sizes[CASCADES] = (array_size){ limits->n_seqs_max, sizeof(quire_attn_cascade) };
}

static int alloc_array(quire_attn_workspace *ws, const array_size *size, void **out)
{
    size_t bytes;

    if (size->n == 0) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(!quire_ckd_mul(size->n, size->element_bytes, &bytes), QUIRE_NOMEM);
    *out = ws->allocator.alloc(ws->allocator.ctx, bytes);
    return *out != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

/* Errors: QUIRE_NOMEM; then some are there and the others NULL. */
static int alloc_all(quire_attn_workspace *ws, const array_size *sizes, int n, void **arrays)
{
    int rc = QUIRE_OK;

    for (int i = 0; i < n; i++) {
        arrays[i] = NULL;
        rc = rc == QUIRE_OK ? alloc_array(ws, &sizes[i], &arrays[i]) : rc;
    }
    return rc;
}

static int alloc_plan(quire_attn_workspace *ws, quire_attn_plan *plan)
{
    array_size sizes[N_PLAN_ARRAYS];
    void *arrays[N_PLAN_ARRAYS];
    int rc;

    plan_array_sizes(ws, sizes);
    rc = alloc_all(ws, sizes, N_PLAN_ARRAYS, arrays);
    plan->split_pos = arrays[SPLIT_POS];
    plan->segments = arrays[SEGMENTS];
    plan->order = arrays[ORDER];
    plan->cascades = arrays[CASCADES];
    return rc;
}

static int alloc_arrays(quire_attn_workspace *ws)
{
    array_size sizes[N_ARRAYS];
    void *arrays[N_ARRAYS];
    int rc;

    array_sizes(ws, sizes);
    rc = alloc_all(ws, sizes, N_ARRAYS, arrays);
    ws->n_shared = arrays[N_SHARED];
    ws->n_joined = arrays[N_JOINED];
    ws->next_item = arrays[NEXT_ITEM];
    ws->done = arrays[DONE];
    ws->partials = arrays[PARTIALS];
    ws->scratch = arrays[SCRATCH];
    for (uint32_t g = 0; rc == QUIRE_OK && g < ws->limits.n_groups; g++) {
        rc = ws->limits.groups[g].is_hot ? QUIRE_OK : alloc_plan(ws, &ws->plans[g]);
    }
    QUIRE_TRY(rc);
    memset(ws->n_joined, 0, sizes[N_JOINED].n * sizes[N_JOINED].element_bytes);
    for (uint32_t i = 0; i < ws->limits.n_layers_max; i++) {
        atomic_init(&ws->next_item[i].value, 0);
    }
    for (uint32_t i = 0; i < QUIRE_ATTN_SHARED_TASKS_MAX; i++) {
        atomic_init(&ws->done[i].value, 0);
    }
    return QUIRE_OK;
}

/* A workspace without its arrays. */
static int workspace_init(quire_attn_workspace *ws, const quire_attn_workspace_opts *opts)
{
    const quire_attn_kernels *kernels;

    QUIRE_TRY(check_opts(opts));
    kernels = quire_attn_kernels_find(opts->isa);
    QUIRE_FAIL_IF(kernels == NULL, QUIRE_UNSUPP);
    memset(ws, 0, sizeof(*ws));
    ws->allocator = opts->allocator != NULL ? *opts->allocator : *quire_allocator_default();
    ws->limits = *opts;
    ws->kernels = kernels;
    ws->codec = quire_codec_find(kernels->isa);
    QUIRE_CHECK(ws->codec != NULL);
    if (ws->limits.n_groups == 0) {
        ws->limits.n_groups = 1;
        ws->limits.groups[0] = (quire_attn_group){ 0 };
    }
    if (ws->limits.split_entries == 0) {
        ws->limits.split_entries = quire_attn_ceil_div(QUIRE_ATTN_SPLIT_TOKENS, opts->page_tokens);
    }
    if (ws->limits.cascade_bytes_max == 0) {
        ws->limits.cascade_bytes_max = QUIRE_ATTN_CASCADE_BYTES;
    }
    ws->n_splits_max = quire_attn_ceil_div(opts->n_entries_max, ws->limits.split_entries);
    ws->partial_floats = partial_floats(ws);
    ws->behind_bytes = behind_bytes(ws);
    ws->scratch_bytes = thread_scratch_bytes(ws);
    return QUIRE_OK;
}

int quire_attn_workspace_create(quire_attn_workspace **out, const quire_attn_workspace_opts *opts)
{
    quire_attn_workspace init;
    quire_attn_workspace *ws;
    int rc;

    *out = NULL;
    QUIRE_TRY(workspace_init(&init, opts));
    ws = init.allocator.alloc(init.allocator.ctx, sizeof(*ws));
    QUIRE_FAIL_IF(ws == NULL, QUIRE_NOMEM);
    *ws = init;
    rc = alloc_arrays(ws);
    if (rc < 0) {
        quire_attn_workspace_destroy(ws);
        return rc;
    }
    *out = ws;
    return QUIRE_OK;
}

static uint64_t sum_bytes(const array_size *sizes, int n)
{
    uint64_t bytes = 0;

    for (int i = 0; i < n; i++) {
        bytes += (uint64_t)sizes[i].n * sizes[i].element_bytes; /* the limits keep it in 64 bits */
    }
    return bytes;
}

uint64_t quire_attn_workspace_bytes(const quire_attn_workspace_opts *opts)
{
    quire_attn_workspace ws;
    array_size sizes[N_ARRAYS];
    array_size plan_sizes[N_PLAN_ARRAYS];
    uint64_t bytes;

    if (workspace_init(&ws, opts) < 0) {
        return 0;
    }
    array_sizes(&ws, sizes);
    plan_array_sizes(&ws, plan_sizes);
    bytes = sizeof(ws) + sum_bytes(sizes, N_ARRAYS);
    for (uint32_t g = 0; g < ws.limits.n_groups; g++) {
        bytes += ws.limits.groups[g].is_hot ? 0 : sum_bytes(plan_sizes, N_PLAN_ARRAYS);
    }
    return bytes;
}

void quire_attn_workspace_destroy(quire_attn_workspace *workspace)
{
    quire_allocator allocator;

    if (workspace == NULL) {
        return;
    }
    allocator = workspace->allocator;
    for (uint32_t g = 0; g < QUIRE_GROUPS_MAX; g++) {
        allocator.free(allocator.ctx, workspace->plans[g].cascades);
        allocator.free(allocator.ctx, workspace->plans[g].order);
        allocator.free(allocator.ctx, workspace->plans[g].segments);
        allocator.free(allocator.ctx, workspace->plans[g].split_pos);
    }
    allocator.free(allocator.ctx, workspace->scratch);
    allocator.free(allocator.ctx, workspace->partials);
    allocator.free(allocator.ctx, workspace->done);
    allocator.free(allocator.ctx, workspace->next_item);
    allocator.free(allocator.ctx, workspace->n_joined);
    allocator.free(allocator.ctx, workspace->n_shared);
    allocator.free(allocator.ctx, workspace);
}

uint64_t quire_attn_saved_splits(const quire_attn_workspace *workspace)
{
    return workspace->n_saved_splits;
}

const char *quire_attn_workspace_isa(const quire_attn_workspace *workspace)
{
    return workspace->kernels->isa;
}
