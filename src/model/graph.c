/* graph.c - see graph.h. Layers from their blocks, and the cache of graphs.
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_build.h"

#include "base/check.h"
#include "base/num.h"
#include "model/backend.h"
#include "model/graph_split.h"

#include <limits.h>
#include <stdlib.h>

/* ---- operations that blocks share ---- */

struct ggml_tensor *quire_graph_norm(const quire_graph_build *b, struct ggml_tensor *x,
                                     struct ggml_tensor *weight, struct ggml_tensor *bias)
{
    struct ggml_context *ctx = b->graph->ctx;
    const float eps = b->desc->rms_eps;
    struct ggml_tensor *y =
        b->arch->norm == QUIRE_NORM_RMS ? ggml_rms_norm(ctx, x, eps) : ggml_norm(ctx, x, eps);

    y = ggml_mul(ctx, y, weight);
    return bias != NULL ? ggml_add(ctx, y, bias) : y;
}

struct ggml_tensor *quire_graph_linear(const quire_graph_build *b, struct ggml_tensor *weight,
                                       struct ggml_tensor *bias, struct ggml_tensor *x)
{
    struct ggml_tensor *y = quire_linear_build(b->linear, weight, x);

    return bias != NULL ? ggml_add(b->graph->ctx, y, bias) : y;
}

struct ggml_tensor *quire_graph_scaled(const quire_graph_build *b, struct ggml_tensor *x,
                                       float factor)
{
    return factor != 1.0f ? ggml_scale(b->graph->ctx, x, factor) : x;
}

/* ---- layers ---- */

static void inputs_create(const quire_graph_build *b)
{
    quire_graph *g = b->graph;

    g->tokens = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, g->n_rows);
    ggml_set_input(g->tokens);
    g->positions = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, g->n_rows);
    ggml_set_input(g->positions);
    if (b->desc->attn_temperature != 0.0f) {
        g->q_scales = ggml_new_tensor_3d(g->ctx, GGML_TYPE_F32, 1, 1, g->n_rows);
        ggml_set_input(g->q_scales);
    }
    if (g->n_logits > 0 && g->n_logits < g->n_rows) {
        g->out_rows = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, g->n_logits);
        ggml_set_input(g->out_rows);
    }
    if (g->out_rows != NULL && quire_graph_has_exit(b->desc)) {
        g->out_positions = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, g->n_logits);
        ggml_set_input(g->out_positions);
    }
}

/* The norm of a block's input or result, where the model has it. */
static struct ggml_tensor *normed(const quire_graph_build *b, struct ggml_tensor *x,
                                  struct ggml_tensor *weight, struct ggml_tensor *bias)
{
    return weight != NULL ? quire_graph_norm(b, x, weight, bias) : x;
}

/* The network of a layer, added to the residual stream x. early: x before the layer. */
static struct ggml_tensor *network_add(const quire_graph_build *b, struct ggml_tensor *x,
                                       struct ggml_tensor *early, uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    struct ggml_tensor *y;

    y = b->desc->experts.is_beside
            ? quire_graph_ffn_and_experts(b, x, il)
            : quire_graph_ffn(b, normed(b, x, l->ffn_norm, l->ffn_norm_b), early, il);
    y = quire_graph_scaled(b, normed(b, y, l->ffn_post_norm, NULL), b->desc->residual_scale);
    return ggml_add(b->graph->ctx, y, x);
}

/* The residual stream after a layer. x: before it; h: x as the first block read it; y: the result
 * of the first block, NULL where there is none. */
static struct ggml_tensor *residual_add(const quire_graph_build *b, struct ggml_tensor *x,
                                        struct ggml_tensor *h, struct ggml_tensor *y, uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    struct ggml_tensor *early = x;
    struct ggml_context *ctx = b->graph->ctx;

    if (y == NULL) {
        return ggml_add(ctx, quire_graph_ffn(b, h, early, il), x);
    }
    y = quire_graph_scaled(b, normed(b, y, l->attn_post_norm, NULL), b->desc->residual_scale);
    if (b->arch->is_parallel) {
        ggml_build_forward_expand(b->graph->cgraph, y);
        return ggml_add(ctx, ggml_add(ctx, quire_graph_ffn(b, h, early, il), x), y);
    }
    x = ggml_add(ctx, y, x);
    x = b->arch->has_streams ? quire_graph_laurel_add(b, x, h, il) : x;
    return b->arch->is_single ? x : network_add(b, x, early, il);
}

/* The result of attention times the sigmoid of its gate, which has a number for each of the
 * result's, or one for each head. */
static struct ggml_tensor *gated(const quire_graph_build *b, struct ggml_tensor *y,
                                 struct ggml_tensor *gate)
{
    struct ggml_context *ctx = b->graph->ctx;
    const int64_t n = y->ne[0], n_rows = y->ne[1];

    if (gate == NULL) {
        return y;
    }
    gate = ggml_sigmoid(ctx, gate);
    if (gate->ne[0] == n) {
        return ggml_mul(ctx, y, gate);
    }
    y = ggml_mul(ctx, ggml_reshape_3d(ctx, y, n / gate->ne[0], gate->ne[0], n_rows),
                 ggml_reshape_3d(ctx, gate, 1, gate->ne[0], n_rows));
    return ggml_reshape_2d(ctx, y, n, n_rows);
}

/* The attention of a layer, of all rows or behind an early exit; NULL where the append is all. */
static struct ggml_tensor *attention_create(quire_graph_build *b, struct ggml_tensor *h,
                                            uint32_t il, bool is_append_only)
{
    quire_graph_attn in = quire_graph_attn_begin(b, h, il, is_append_only);

    if (is_append_only) {
        return NULL;
    }
    if (il == b->desc->last_stored && b->graph->out_positions != NULL) {
        quire_graph_attn_exit(b, &in);
    }
    return gated(b, quire_graph_attn_op(b, &in, il), in.gate);
}

/* The results of a layer's first block, output projections not included: of attention and of a
 * recurrent block; NULL where the layer has none. */
typedef struct layer_results {
    struct ggml_tensor *attention;
    struct ggml_tensor *recurrent;
} layer_results;

/* The wanted rows; NULL stays NULL. */
static struct ggml_tensor *picked(const quire_graph_build *b, struct ggml_tensor *x)
{
    return x != NULL ? ggml_get_rows(b->graph->ctx, x, b->graph->out_rows) : NULL;
}

/* The output projections of a layer's first block, added up; NULL where the layer has none. */
static struct ggml_tensor *projected(const quire_graph_build *b, const layer_results *r,
                                     uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    struct ggml_tensor *attention = r->attention, *recurrent = r->recurrent;

    if (attention != NULL) {
        attention =
            b->desc->latent.is_there ? quire_graph_latent_result(b, attention, il) : attention;
        attention = quire_graph_linear(b, l->wo, l->bo, attention);
    }
    if (recurrent == NULL) {
        return attention;
    }
    recurrent = quire_graph_linear(b, l->mamba_out != NULL ? l->mamba_out : l->wo, NULL, recurrent);
    return attention != NULL ? ggml_add(b->graph->ctx, attention, recurrent) : recurrent;
}

/* Whether a layer reads its normalised input once more behind its first block. */
static bool reads_input_late(const quire_graph_build *b, uint8_t mixer)
{
    return b->arch->is_parallel || b->arch->has_streams || mixer == QUIRE_MIXER_NONE;
}

/* A layer, and its rows that go on: all of them, or behind the append of the last layer that stores
 * the wanted ones. NULL when none goes on. */
static struct ggml_tensor *layer_create(quire_graph_build *b, struct ggml_tensor *x, uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    const uint8_t mixer = b->desc->mixer[il];
    quire_graph *g = b->graph;
    const bool is_last = il == b->desc->last_stored;
    const bool is_append_only = is_last && g->n_logits == 0;
    struct ggml_tensor *streams = NULL, *h;
    layer_results r = { 0 };

    if (b->arch->has_streams) {
        streams = quire_graph_streams_predict(b, x, il);
        x = quire_graph_streams_active(b, streams);
    }
    h = normed(b, x, l->attn_norm, l->attn_norm_b);
    if (quire_mixer_attends(mixer)) {
        r.attention = attention_create(b, h, il, is_append_only);
    }
    if (quire_mixer_recurs(mixer)) {
        r.recurrent = quire_graph_recurrent_op(b, h, il);
    }
    if (is_append_only) {
        return NULL;
    }
    if (is_last && g->out_rows != NULL) {
        r.attention = g->out_positions != NULL ? r.attention : picked(b, r.attention);
        r.recurrent = picked(b, r.recurrent);
        streams = picked(b, streams);
        x = streams != NULL ? quire_graph_streams_active(b, streams) : picked(b, x);
        h = reads_input_late(b, mixer) ? picked(b, h) : h;
        quire_graph_layer_embd_pick(b);
    }
    x = residual_add(b, x, h, projected(b, &r, il), il);
    x = streams != NULL ? quire_graph_streams_correct(b, streams, x, il)
                        : quire_graph_layer_embd_add(b, x, il);
    x = l->out_scale != NULL ? ggml_mul(g->ctx, x, l->out_scale) : x;
    ggml_build_forward_expand(g->cgraph, x);
    return x;
}

/* The logits of normalised rows. */
static struct ggml_tensor *logits_create(const quire_graph_build *b, struct ggml_tensor *x)
{
    const quire_weights *w = b->weights;
    struct ggml_context *ctx = b->graph->ctx;
    const float cap = b->desc->logit_softcap;
    struct ggml_tensor *y = quire_graph_linear(b, w->output, w->output_b, x);

    y = quire_graph_scaled(b, y, b->desc->logit_scale);
    return cap != 0.0f ? ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, y, 1.0f / cap)), cap) : y;
}

/* From here on: layer il, or with il = n_layer the last norm and the output matrix. */
static void layer_enter(quire_graph_build *b, uint32_t il)
{
    if (il == b->weights->device_from) {
        b->linear->is_plain = true;
        b->device_from_node = ggml_graph_n_nodes(b->graph->cgraph);
    }
}

static void layers_create(quire_graph_build *b)
{
    quire_graph *g = b->graph;
    struct ggml_tensor *x = ggml_get_rows(g->ctx, b->weights->tok_embd, g->tokens);

    x = quire_graph_scaled(b, x, b->desc->embd_scale);
    ggml_build_forward_expand(g->cgraph, x);
    quire_graph_layer_embd_begin(b, x);
    x = b->arch->has_streams ? quire_graph_streams_begin(b, x) : x;
    for (uint32_t il = 0; il < b->desc->n_layer; il++) {
        layer_enter(b, il);
        x = layer_create(b, x, il);
        if (x == NULL) {
            return;
        }
    }
    layer_enter(b, b->desc->n_layer);
    x = b->arch->has_streams ? quire_graph_streams_end(b, x) : x;
    g->hidden = quire_graph_norm(b, x, b->weights->output_norm, b->weights->output_norm_b);
    ggml_set_output(g->hidden);
    g->logits = logits_create(b, g->hidden);
    ggml_set_output(g->logits);
    ggml_build_forward_expand(g->cgraph, g->logits);
}

static void graph_clear(quire_graph *graph)
{
    ggml_free(graph->segments_ctx);
    free(graph->segments);
    free(graph->works);
    free(graph->owns);
    free(graph->order);
    free(graph->buffer_ids);
    ggml_free(graph->ctx);
    *graph = (quire_graph){ 0 };
}

/* On failure the caller clears the graph. */
static int graph_build_shape(const quire_graphs *graphs, quire_graph *graph, uint32_t n_rows,
                             uint32_t n_logits, bool is_queued)
{
    const bool has_device = graphs->opts.weights->n_devices > 0;
    const size_t n_nodes = quire_graph_nodes(graphs, n_rows, n_logits);
    const size_t n_split = has_device ? quire_graph_split_nodes(n_nodes) : 0;
    const struct ggml_init_params params = {
        .mem_size = (n_nodes + n_split) * ggml_tensor_overhead() +
                    ggml_graph_overhead_custom(n_nodes, false) +
                    (has_device ? ggml_graph_overhead_custom(n_split, false) : 0),
        .no_alloc = true,
    };
    quire_linear linear = { .block_bytes = graphs->linear_block_bytes };
    quire_graph_build b = { .desc = graphs->opts.desc,
                            .arch = quire_arch_row_get(graphs->opts.desc->arch),
                            .rope_factors = graphs->opts.rope_factors,
                            .weights = graphs->opts.weights,
                            .ops = graphs->opts.ops,
                            .recurrent = graphs->opts.recurrent,
                            .exit = graphs->opts.exit,
                            .graph = graph,
                            .linear = &linear,
                            .experts = graphs->experts,
                            .device_from_node = INT_MAX };

    *graph = (quire_graph){ .n_rows = n_rows, .n_logits = n_logits, .is_queued = is_queued };
    graph->owns = is_queued ? calloc(2 * graphs->opts.desc->n_layer, sizeof *graph->owns) : NULL;
    graph->ctx = ggml_init(params);
    QUIRE_FAIL_IF(graph->ctx == NULL || (is_queued && graph->owns == NULL), QUIRE_NOMEM);
    graph->cgraph = ggml_new_graph_custom(graph->ctx, n_nodes, false);
    linear.ctx = graph->ctx;
    linear.cgraph = graph->cgraph;
    inputs_create(&b);
    b.n_rows = n_rows;
    b.positions = graph->positions;
    layers_create(&b);
    return has_device ? quire_graph_split(graph, graphs->opts.weights, b.device_from_node,
                                          graphs->has_own_memories)
                      : QUIRE_OK;
}

/* ---- the cache ---- */

static void entries_clear(quire_graphs *graphs)
{
    for (size_t i = 0; i < QUIRE_GRAPHS_MAX; i++) {
        graph_clear(&graphs->entries[i]);
    }
}

static bool graph_reserve(const quire_graphs *graphs, const quire_graph *graph)
{
    return quire_backend_reserve(graphs->buffer, graph->cgraph, graph->buffer_ids);
}

/* Room in the buffer for a step of n_rows rows that all want their logits. */
static int buffer_reserve(quire_graphs *graphs, uint32_t n_rows, bool is_queued)
{
    quire_graph graph;
    int rc = graph_build_shape(graphs, &graph, n_rows, n_rows, is_queued);

    if (rc == QUIRE_OK && !graph_reserve(graphs, &graph)) {
        rc = QUIRE_NOMEM;
    }
    graph_clear(&graph);
    return rc;
}

/* The constants of layers with experts. */
static int experts_create(quire_graphs *graphs)
{
    const quire_graphs_opts *o = &graphs->opts;

    if (o->desc->experts.router.n_experts == 0) {
        return QUIRE_OK;
    }
    graphs->experts = calloc(o->desc->n_layer, sizeof *graphs->experts);
    QUIRE_FAIL_IF(graphs->experts == NULL, QUIRE_NOMEM);
    for (uint32_t il = 0; il < o->desc->n_layer; il++) {
        graphs->experts[il] = (quire_graph_experts){
            .router = &o->desc->experts.router,
            .weights = &o->weights->layers[il].experts,
            .act = quire_arch_row_get(o->desc->arch)->act,
            .weighs_input = o->desc->experts.weighs_input,
            .is_averaged = quire_arch_row_get(o->desc->arch)->experts.is_averaged,
        };
    }
    return QUIRE_OK;
}

/* Everything but the memory of the buffer. */
static int graphs_prepare(quire_graphs *graphs, const quire_graphs_opts *opts)
{
    *graphs = (quire_graphs){ .opts = *opts,
                              .linear_block_bytes = quire_linear_block_bytes(opts->n_threads) };
    graphs->buffer = quire_graph_buffer_new(opts->weights, &graphs->has_own_memories);
    return graphs->buffer != NULL ? experts_create(graphs) : QUIRE_NOMEM;
}

/* Whether steps may have appends and attention in the device's turns: one device's. */
static bool can_queue(const quire_graphs_opts *opts)
{
    return opts->weights->n_devices == 1;
}

/* The shapes for which the buffer is reserved: the largest step, and before it the largest step
 * whose linear maps also keep a block's result. Returns how many. */
static uint32_t shapes_of(const quire_graphs_opts *opts, uint32_t n_rows[2])
{
    uint32_t n = 0;

    if (opts->n_rows_max > QUIRE_LINEAR_CUT_ROWS_MAX) {
        n_rows[n++] = QUIRE_LINEAR_CUT_ROWS_MAX;
    }
    n_rows[n++] = opts->n_rows_max;
    return n;
}

int quire_graphs_init(quire_graphs *graphs, const quire_graphs_opts *opts)
{
    uint32_t n_rows[2];
    const uint32_t n = shapes_of(opts, n_rows);
    int rc = graphs_prepare(graphs, opts);

    for (uint32_t i = 0; rc == QUIRE_OK && i < n; i++) {
        rc = buffer_reserve(graphs, n_rows[i], false);
        rc = rc == QUIRE_OK && can_queue(opts) ? buffer_reserve(graphs, n_rows[i], true) : rc;
    }
    if (rc < 0) {
        quire_graphs_fini(graphs);
    }
    return rc;
}

void quire_graphs_fini(quire_graphs *graphs)
{
    entries_clear(graphs);
    if (graphs->buffer != NULL) {
        quire_backend_allocator_free(graphs->buffer, graphs->opts.weights->devices,
                                     graphs->opts.weights->n_devices);
    }
    graphs->buffer = NULL;
    free(graphs->experts);
    graphs->experts = NULL;
}

size_t quire_graphs_buffer_bytes(const quire_graphs *graphs)
{
    return ggml_gallocr_get_buffer_size(graphs->buffer, QUIRE_GRAPH_HOST);
}

size_t quire_graphs_device_bytes(const quire_graphs *graphs, uint32_t device)
{
    return device < graphs->opts.weights->n_devices
               ? ggml_gallocr_get_buffer_size(graphs->buffer, QUIRE_GRAPH_DEVICE + (int)device)
               : 0;
}

/* A graph itself, without results. */
static size_t graph_bytes(const quire_graph *graph)
{
    return (graph->ctx != NULL ? ggml_used_mem(graph->ctx) : 0) +
           (graph->segments_ctx != NULL ? ggml_used_mem(graph->segments_ctx) : 0);
}

/* Add the memory that a step of n_rows rows takes, all of which want their logits. */
static int shape_measure(const quire_graphs *graphs, uint32_t n_rows, bool is_queued,
                         quire_graphs_size *size)
{
    size_t sizes[QUIRE_GRAPH_SIDES] = { 0 };
    quire_graph graph;
    int rc = graph_build_shape(graphs, &graph, n_rows, n_rows, is_queued);

    if (rc == QUIRE_OK) {
        ggml_gallocr_reserve_n_size(graphs->buffer, graph.cgraph, graph.buffer_ids, NULL, sizes);
        size->buffer_bytes = quire_max_u64(size->buffer_bytes, sizes[QUIRE_GRAPH_HOST]);
        for (uint32_t i = 0; graphs->has_own_memories && i < QUIRE_MODEL_DEVICES_MAX; i++) {
            size->device_bytes[i] =
                quire_max_u64(size->device_bytes[i], sizes[QUIRE_GRAPH_DEVICE + i]);
        }
        size->work_bytes =
            quire_max_u64(size->work_bytes, quire_backend_work_bytes(graph.cgraph, graph.buffer_ids,
                                                                     graphs->opts.n_threads));
        /* The allocator's table of a graph is about as large as a graph. */
        size->kept_bytes =
            quire_max_u64(size->kept_bytes, (uint64_t)(QUIRE_GRAPHS_MAX + 1) * graph_bytes(&graph));
    }
    graph_clear(&graph);
    return rc;
}

int quire_graphs_measure(const quire_graphs_opts *opts, quire_graphs_size *out)
{
    quire_graphs graphs;
    uint32_t n_rows[2];
    const uint32_t n = shapes_of(opts, n_rows);
    int rc = graphs_prepare(&graphs, opts);

    *out = (quire_graphs_size){ 0 };
    for (uint32_t i = 0; rc == QUIRE_OK && i < n; i++) {
        rc = shape_measure(&graphs, n_rows[i], false, out);
        rc = rc == QUIRE_OK && can_queue(opts) ? shape_measure(&graphs, n_rows[i], true, out) : rc;
    }
    quire_graphs_fini(&graphs);
    return rc;
}

static size_t all_buffers_bytes(const quire_graphs *graphs)
{
    size_t bytes = quire_graphs_buffer_bytes(graphs);

    for (uint32_t i = 0; i < graphs->opts.weights->n_devices; i++) {
        bytes += quire_graphs_device_bytes(graphs, i);
    }
    return bytes;
}

/* Whether an operation and its arguments lie in a buffer. */
static bool is_in(const struct ggml_tensor *t, ggml_backend_buffer_t buffer)
{
    bool is_there = t == NULL || t->buffer == buffer;

    for (int j = 0; t != NULL && j < GGML_MAX_SRC; j++) {
        is_there = is_there && (t->src[j] == NULL || t->src[j]->buffer == buffer);
    }
    return is_there;
}

/* Find where the rows of layers that are queued lie on the device: all in one buffer. */
static int graph_find(const quire_graphs *graphs, quire_graph *graph)
{
    const struct ggml_tensor *first = NULL;

    for (uint32_t i = 0; i < graph->n_works; i++) {
        const quire_graph_work *w = &graph->works[i];

        if (w->cgraph == NULL) {
            first = first != NULL ? first : w->append != NULL ? w->append : w->attention;
            QUIRE_FAIL_IF(!is_in(w->append, first->buffer) || !is_in(w->attention, first->buffer),
                          QUIRE_UNSUPP);
        }
    }
    return first == NULL || quire_backend_device_shift(graphs->opts.layers, first,
                                                       graph->tokens->data, &graph->shift)
               ? QUIRE_OK
               : QUIRE_UNSUPP;
}

/* Place a new graph's tensors in the shared buffer. Should the buffer have to move (the largest
 * shape was reserved, so only by the allocator's fragmentation), every other graph's addresses are
 * stale and the cache starts again. */
static int graph_place(quire_graphs *graphs, quire_graph *graph)
{
    const size_t before = all_buffers_bytes(graphs);
    const bool is_placed =
        graph_reserve(graphs, graph) && ggml_gallocr_alloc_graph(graphs->buffer, graph->cgraph);

    if (!is_placed || all_buffers_bytes(graphs) != before) {
        entries_clear(graphs);
    }
    QUIRE_FAIL_IF(!is_placed, QUIRE_NOMEM);
    return graph->is_queued ? graph_find(graphs, graph) : QUIRE_OK;
}

int quire_graphs_get(quire_graphs *graphs, uint32_t n_rows, uint32_t n_logits, bool is_queued,
                     quire_graph **out)
{
    quire_graph *oldest = &graphs->entries[0];
    quire_graph graph;
    int rc;

    QUIRE_ASSERT(n_rows > 0 && n_logits <= n_rows);
    *out = NULL;
    for (size_t i = 0; i < QUIRE_GRAPHS_MAX; i++) {
        quire_graph *entry = &graphs->entries[i];

        if (entry->ctx != NULL && entry->n_rows == n_rows && entry->n_logits == n_logits &&
            entry->is_queued == is_queued) {
            entry->used_at = ++graphs->clock;
            graphs->reused_total++;
            *out = entry;
            return QUIRE_OK;
        }
        oldest = entry->used_at < oldest->used_at ? entry : oldest;
    }
    rc = graph_build_shape(graphs, &graph, n_rows, n_logits, is_queued);
    if (rc == QUIRE_OK) {
        rc = graph_place(graphs, &graph);
    }
    if (rc < 0) {
        graph_clear(&graph);
        return rc;
    }
    graph_clear(oldest);
    *oldest = graph;
    oldest->used_at = ++graphs->clock;
    graphs->built_total++;
    *out = oldest;
    return QUIRE_OK;
}
