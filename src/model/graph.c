/* graph.c - see graph.h. The choice and order of operations follow what ggml's CPU backend fuses
 * and repacks (norm directly followed by its weight).
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph.h"

#include "base/check.h"
#include "base/clock.h"
#include "model/backend.h"
#include "model/linear.h"

#define NODES_PER_LAYER 58u
#define NODES_FIXED     32u

typedef struct graph_build {
    const quire_model_desc *desc;
    const quire_weights *weights;
    quire_graph_op *ops;
    quire_graph_exit *exit;
    quire_graph *graph;
    quire_linear *linear;
    /* Of the rows of the layer at hand. */
    uint32_t n_rows;
    struct ggml_tensor *positions;
    /* Layer 0's, for layers that store a sum. */
    struct ggml_tensor *k_first;
    struct ggml_tensor *v_first;
} graph_build;

/* ---- the ops ---- */

/* Every thread works on a copy of the layer, since the row pointers belong to the current graph. */
static void op_append(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    quire_graph_op *op = userdata;
    quire_attn_layer layer = op->layer;
    const struct ggml_tensor *k = dst->src[0], *v = dst->src[1];
    const struct ggml_tensor *q = op->pairs_qk ? dst->src[2] : NULL;
    const struct ggml_tensor *hidden = op->hidden != NULL ? dst->src[op->pairs_qk ? 3 : 2] : NULL;
    uint64_t begin_ns = ith == 0 ? quire_clock_ns() : 0;

    layer.k_new = k->data;
    layer.k_new_stride = k->nb[2] / sizeof(float);
    layer.v_new = v->data;
    layer.v_new_stride = v->nb[2] / sizeof(float);
    if (q != NULL) {
        layer.q[0] = q->data;
        layer.q_stride = q->nb[2] / sizeof(float);
    }
    if (hidden != NULL) {
        op->hidden(op->hidden_ctx, op->layer_index, hidden->data, hidden->nb[1] / sizeof(float));
    }
    op->device->append(op->device->ctx, &layer, (uint32_t)ith, (uint32_t)nth);
    if (ith == 0) {
        op->append_ns += quire_clock_ns() - begin_ns;
    }
}

static void op_attention(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    quire_graph_op *op = userdata;
    quire_attn_layer layer = op->layer;
    const struct ggml_tensor *k;
    uint64_t begin_ns = ith == 0 ? quire_clock_ns() : 0;

    /* The queries, then the append, then K: see attention_op(). */
    for (uint32_t i = 0; i < layer.n_k; i++) {
        layer.q[i] = dst->src[i]->data;
    }
    layer.q_stride = dst->src[0]->nb[2] / sizeof(float);
    k = dst->src[layer.n_k + (op->has_append ? 1 : 0)];
    if (k != NULL) {
        layer.k_new = k->data;
        layer.k_new_stride = k->nb[2] / sizeof(float);
    }
    layer.out = dst->data;
    layer.out_stride = dst->nb[1] / sizeof(float);
    op->device->run(op->device->ctx, &layer, op->call, (uint32_t)ith, (uint32_t)nth);
    if (ith == 0) {
        op->attn_ns += quire_clock_ns() - begin_ns;
        op->rows_total += (uint64_t)dst->ne[1];
    }
}

/* One thread plans; the others wait for the end of the op. */
static void op_exit(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    quire_graph_exit *exit = userdata;

    (void)dst;
    (void)nth;
    if (ith == 0) {
        exit->status = exit->device->plan(exit->device->ctx, exit->batch);
    }
}

/* ---- building ---- */

static struct ggml_tensor *norm(const graph_build *b, struct ggml_tensor *x,
                                struct ggml_tensor *weight)
{
    return ggml_mul(b->graph->ctx, ggml_rms_norm(b->graph->ctx, x, b->desc->rms_eps), weight);
}

static struct ggml_tensor *biased(const graph_build *b, struct ggml_tensor *y,
                                  struct ggml_tensor *bias)
{
    return bias != NULL ? ggml_add(b->graph->ctx, y, bias) : y;
}

static struct ggml_tensor *linear(const graph_build *b, struct ggml_tensor *weight,
                                  struct ggml_tensor *bias, struct ggml_tensor *x)
{
    return biased(b, quire_linear_build(b->linear, weight, x), bias);
}

static struct ggml_tensor *rope(const graph_build *b, struct ggml_tensor *x)
{
    const quire_rope *r = &b->desc->rope;

    return ggml_rope_ext(b->graph->ctx, x, b->positions, b->weights->rope_freqs, (int)r->n_dims,
                         r->type == QUIRE_ROPE_NEOX ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL,
                         (int)r->ctx_orig, r->freq_base, r->freq_scale, r->ext_factor,
                         r->attn_factor, r->beta_fast, r->beta_slow);
}

/* Heads of rows, from place `first` in a row on: [d][n_heads][n_rows]. */
static struct ggml_tensor *heads(const graph_build *b, struct ggml_tensor *x, uint32_t d,
                                 size_t first, uint32_t n_heads)
{
    return ggml_view_3d(b->graph->ctx, x, d, n_heads, b->n_rows, d * sizeof(float), x->nb[1],
                        first * sizeof(float));
}

/* Some heads of rows of heads. */
static struct ggml_tensor *some_heads(const graph_build *b, struct ggml_tensor *x, uint32_t first,
                                      uint32_t n_heads)
{
    return ggml_view_3d(b->graph->ctx, x, x->ne[0], n_heads, x->ne[2], x->nb[1], x->nb[2],
                        first * x->nb[1]);
}

/* Q, K and V of a layer's rows, rope applied: [d][heads][n_rows] each. */
typedef struct layer_rows {
    struct ggml_tensor *q; /* NULL when nobody reads it */
    struct ggml_tensor *k; /* NULL, and V, in a layer that stores nothing */
    struct ggml_tensor *v;
} layer_rows;

/* Compute them by one product and one rope: Q and K have heads of the same size. */
static layer_rows rows_jointly(const graph_build *b, struct ggml_tensor *x, uint32_t il)
{
    const quire_model_desc *desc = b->desc;
    const uint32_t n_qk = desc->n_head + desc->n_kv_head;
    struct ggml_tensor *y = quire_linear_build_panels(b->linear, b->weights->layers[il].qkv, x);
    struct ggml_tensor *qk = rope(b, heads(b, y, desc->d_k, 0, n_qk));

    ggml_build_forward_expand(b->graph->cgraph, qk);
    return (layer_rows){ .q = some_heads(b, qk, 0, desc->n_head),
                         .k = some_heads(b, qk, desc->n_head, desc->n_kv_head),
                         .v = heads(b, y, desc->d_v, (size_t)n_qk * desc->d_k, desc->n_kv_head) };
}

static layer_rows rows_apart(const graph_build *b, struct ggml_tensor *x, uint32_t il, bool has_q)
{
    const quire_model_desc *desc = b->desc;
    const quire_layer_weights *l = &b->weights->layers[il];
    struct ggml_tensor *q = NULL, *k, *v;

    if (has_q) {
        q = heads(b, linear(b, l->wq, l->bq, x), desc->d_k, 0, desc->n_head);
        q = rope(b, l->q_norm != NULL ? norm(b, q, l->q_norm) : q);
        ggml_build_forward_expand(b->graph->cgraph, q);
    }
    if (l->wk == NULL) {
        return (layer_rows){ .q = q };
    }
    k = heads(b, linear(b, l->wk, l->bk, x), desc->d_k, 0, desc->n_kv_head);
    k = rope(b, l->k_norm != NULL ? norm(b, k, l->k_norm) : k);
    ggml_build_forward_expand(b->graph->cgraph, k);
    v = heads(b, linear(b, l->wv, l->bv, x), desc->d_v, 0, desc->n_kv_head);
    return (layer_rows){ q, k, v };
}

/* Q times the gate of a K source, in any of a gate's shapes. The gate belongs to K as it is stored,
 * and q . (gate * K) = (q * gate) . K. */
static struct ggml_tensor *gated(const graph_build *b, struct ggml_tensor *q,
                                 struct ggml_tensor *gate)
{
    struct ggml_context *ctx = b->graph->ctx;
    const int64_t d = q->ne[0], n_head = q->ne[1], n_rows = q->ne[2];
    struct ggml_tensor *y = q;

    if (gate == NULL) {
        return q;
    }
    if (gate->ne[0] < d) { /* both halves of a head have the same gates */
        y = ggml_reshape_4d(ctx, q, d / 2, 2, n_head, n_rows);
    } else if (gate->ne[1] > 1) { /* the query heads of a KV head have the same gates */
        y = ggml_reshape_4d(ctx, q, d, n_head / gate->ne[1], gate->ne[1], n_rows);
        gate = ggml_reshape_3d(ctx, gate, d, 1, gate->ne[1]);
    }
    return ggml_reshape_3d(ctx, ggml_mul(ctx, y, gate), d, n_head, n_rows);
}

/* K or V of a layer that stores a sum: mix[0] * first + mix[1] * own. */
static struct ggml_tensor *mixed(const graph_build *b, struct ggml_tensor *own,
                                 struct ggml_tensor *first, struct ggml_tensor *mix)
{
    struct ggml_context *ctx = b->graph->ctx;

    if (mix == NULL) {
        return own;
    }
    first = ggml_mul(ctx, first, ggml_view_1d(ctx, mix, 1, 0));
    own = ggml_mul(ctx, own, ggml_view_1d(ctx, mix, 1, sizeof(float)));
    return ggml_add(ctx, own, first);
}

/* The inputs of a layer's attention. */
typedef struct attention_inputs {
    struct ggml_tensor *q[QUIRE_ATTN_SOURCES_MAX]; /* gates included */
    struct ggml_tensor *append;                    /* NULL in a layer that stores nothing */
    struct ggml_tensor *k; /* of the rows' own tokens; NULL when attention does not read it */
} attention_inputs;

/* The wanted rows of x, [d][heads][n_rows]. */
static struct ggml_tensor *picked_heads(const graph_build *b, struct ggml_tensor *x)
{
    struct ggml_context *ctx = b->graph->ctx;
    const int64_t d = x->ne[0], n_heads = x->ne[1];

    x = ggml_is_contiguous(x) ? x : ggml_cont(ctx, x);
    x = ggml_get_rows(ctx, ggml_reshape_2d(ctx, x, d * n_heads, x->ne[2]), b->graph->out_rows);
    return ggml_reshape_3d(ctx, x, d, n_heads, b->graph->n_logits);
}

/* From here on the graph computes the wanted rows alone. */
static void exit_early(graph_build *b, attention_inputs *in)
{
    struct ggml_context *ctx = b->graph->ctx;

    for (uint32_t i = 0; i < QUIRE_ATTN_SOURCES_MAX; i++) {
        in->q[i] = in->q[i] != NULL ? picked_heads(b, in->q[i]) : NULL;
    }
    in->k = in->k != NULL ? picked_heads(b, in->k) : NULL;
    in->append =
        ggml_custom_4d(ctx, GGML_TYPE_F32, 1, 1, 1, 1, &in->append, 1, op_exit, 1, b->exit);
    ggml_build_forward_expand(b->graph->cgraph, in->append);
    b->n_rows = b->graph->n_logits;
    b->positions = b->graph->out_positions;
}

/* Compute Q, K and V of a layer and store K and V. */
static attention_inputs attention_begin(graph_build *b, struct ggml_tensor *x, uint32_t il,
                                        bool is_append_only)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    const quire_kv_map_entry *map = &b->desc->kv_map[il];
    const bool pairs_qk = b->ops[il].has_append && quire_attn_pairs_qk(&b->ops[il].layer);
    const bool has_q = pairs_qk || !is_append_only;
    const bool is_joint = l->qkv != NULL && l->bq == NULL && l->bk == NULL && l->bv == NULL &&
                          l->q_norm == NULL && l->k_norm == NULL && has_q && map->k_gates == 0;
    layer_rows rows = is_joint ? rows_jointly(b, x, il) : rows_apart(b, x, il, has_q);
    attention_inputs in = { 0 };

    if (il == 0) {
        b->k_first = rows.k;
        b->v_first = rows.v;
    }
    rows.k = mixed(b, rows.k, b->k_first, l->k_mix);
    rows.v = mixed(b, rows.v, b->v_first, l->v_mix);
    in.k = pairs_qk ? rows.k : NULL;

    for (uint32_t i = 0; has_q && i < map->n_k; i++) {
        in.q[i] = gated(b, rows.q, l->k_gate[i]);
        ggml_build_forward_expand(b->graph->cgraph, in.q[i]);
    }
    /* The append has one float as its result, which no operation reads: ggml orders operations by
     * their results, and attention comes after the append. */
    if (b->ops[il].has_append) {
        struct ggml_tensor *args[4] = { rows.k, rows.v };
        int n = 2;

        b->ops[il].pairs_qk = pairs_qk;
        if (pairs_qk) {
            args[n++] = in.q[0];
        }
        if (b->ops[il].hidden != NULL) {
            args[n++] = x;
        }
        in.append = ggml_custom_4d(b->graph->ctx, GGML_TYPE_F32, 1, 1, 1, 1, args, n, op_append,
                                   GGML_N_TASKS_MAX, &b->ops[il]);
        ggml_build_forward_expand(b->graph->cgraph, in.append);
    }
    return in;
}

/* Attention of one layer, output projection not included. */
static struct ggml_tensor *attention_op(const graph_build *b, const attention_inputs *in,
                                        uint32_t il)
{
    struct ggml_tensor *args[QUIRE_ATTN_SOURCES_MAX + 2];
    int n = 0;

    for (uint32_t i = 0; i < b->desc->kv_map[il].n_k; i++) {
        args[n++] = in->q[i];
    }
    if (in->append != NULL) {
        args[n++] = in->append;
    }
    if (in->k != NULL) {
        args[n++] = in->k;
    }
    return ggml_custom_4d(b->graph->ctx, GGML_TYPE_F32, (int64_t)b->desc->d_v * b->desc->n_head,
                          b->n_rows, 1, 1, args, n, op_attention, GGML_N_TASKS_MAX, &b->ops[il]);
}

static struct ggml_tensor *feed_forward(const graph_build *b, struct ggml_tensor *x, uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    struct ggml_tensor *up, *gate, *y;

    x = norm(b, x, l->ffn_norm);
    if (l->gate_up != NULL && l->gate_b == NULL && l->up_b == NULL) {
        y = ggml_swiglu(b->graph->ctx, quire_linear_build_panels(b->linear, l->gate_up, x));
        return linear(b, l->down, l->down_b, y);
    }
    up = linear(b, l->up, l->up_b, x);
    ggml_build_forward_expand(b->graph->cgraph, up);
    gate = linear(b, l->gate, l->gate_b, x);
    y = ggml_swiglu_split(b->graph->ctx, gate, up);
    return linear(b, l->down, l->down_b, y);
}

static void inputs_create(const graph_build *b)
{
    quire_graph *g = b->graph;

    g->tokens = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, g->n_rows);
    ggml_set_input(g->tokens);
    g->positions = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, g->n_rows);
    ggml_set_input(g->positions);
    if (g->n_logits > 0 && g->n_logits < g->n_rows) {
        g->out_rows = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, g->n_logits);
        ggml_set_input(g->out_rows);
    }
    if (g->out_rows != NULL && quire_graph_has_exit(b->desc)) {
        g->out_positions = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, g->n_logits);
        ggml_set_input(g->out_positions);
    }
}

/* A layer, and its rows that go on: all of them, or behind the append of the last layer that stores
 * the wanted ones. NULL when none goes on. */
static struct ggml_tensor *layer_create(graph_build *b, struct ggml_tensor *x, uint32_t il)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    quire_graph *g = b->graph;
    const bool is_last = il == b->desc->last_stored;
    const bool is_append_only = is_last && g->n_logits == 0;
    attention_inputs in = attention_begin(b, norm(b, x, l->attn_norm), il, is_append_only);
    struct ggml_tensor *y;

    if (is_append_only) {
        return NULL;
    }
    if (is_last && g->out_positions != NULL) {
        exit_early(b, &in);
    }
    y = attention_op(b, &in, il);
    if (is_last && g->out_rows != NULL) {
        y = g->out_positions != NULL ? y : ggml_get_rows(g->ctx, y, g->out_rows);
        x = ggml_get_rows(g->ctx, x, g->out_rows);
    }
    x = ggml_add(g->ctx, linear(b, l->wo, l->bo, y), x);
    x = ggml_add(g->ctx, feed_forward(b, x, il), x);
    ggml_build_forward_expand(g->cgraph, x);
    return x;
}

static void layers_create(graph_build *b)
{
    const quire_weights *w = b->weights;
    quire_graph *g = b->graph;
    struct ggml_tensor *x = ggml_get_rows(g->ctx, w->tok_embd, g->tokens);

    ggml_build_forward_expand(g->cgraph, x);
    for (uint32_t il = 0; il < b->desc->n_layer; il++) {
        x = layer_create(b, x, il);
        if (x == NULL) {
            return;
        }
    }
    g->hidden = norm(b, x, w->output_norm);
    ggml_set_output(g->hidden);
    g->logits = linear(b, w->output, w->output_b, g->hidden);
    ggml_set_output(g->logits);
    ggml_build_forward_expand(g->cgraph, g->logits);
}

static void graph_clear(quire_graph *graph)
{
    ggml_free(graph->ctx);
    *graph = (quire_graph){ 0 };
}

/* The most tensors of a graph; the number that linear maps add depends on the number of rows. */
static size_t graph_nodes(const quire_graphs *graphs, uint32_t n_rows, uint32_t n_logits)
{
    const quire_graphs_opts *o = &graphs->opts;
    const size_t block_bytes = graphs->linear_block_bytes;
    size_t n = (size_t)o->desc->n_layer * NODES_PER_LAYER + NODES_FIXED;

    for (uint32_t il = 0; il < o->desc->n_layer; il++) {
        const quire_layer_weights *l = &o->weights->layers[il];
        const struct ggml_tensor *maps[] = { l->wq, l->wk, l->wv, l->wo, l->gate, l->up, l->down };
        const bool is_picked = il >= o->desc->last_stored;

        for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++) {
            if (maps[i] != NULL) {
                n += quire_linear_nodes(maps[i], n_rows, block_bytes);
                n += is_picked ? quire_linear_nodes(maps[i], n_logits, block_bytes) : 0;
            }
        }
    }
    return n + quire_linear_nodes(o->weights->output, n_logits, block_bytes);
}

static int graph_build_shape(const quire_graphs *graphs, quire_graph *graph, uint32_t n_rows,
                             uint32_t n_logits)
{
    const size_t n_nodes = graph_nodes(graphs, n_rows, n_logits);
    const struct ggml_init_params params = {
        .mem_size = n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false),
        .no_alloc = true,
    };
    quire_linear linear = { .block_bytes = graphs->linear_block_bytes };
    graph_build b = { .desc = graphs->opts.desc,
                      .weights = graphs->opts.weights,
                      .ops = graphs->opts.ops,
                      .exit = graphs->opts.exit,
                      .graph = graph,
                      .linear = &linear };

    *graph = (quire_graph){ .n_rows = n_rows, .n_logits = n_logits };
    graph->ctx = ggml_init(params);
    if (graph->ctx == NULL) {
        return QUIRE_NOMEM;
    }
    graph->cgraph = ggml_new_graph_custom(graph->ctx, n_nodes, false);
    linear.ctx = graph->ctx;
    linear.cgraph = graph->cgraph;
    inputs_create(&b);
    b.n_rows = n_rows;
    b.positions = graph->positions;
    layers_create(&b);
    return QUIRE_OK;
}

/* ---- the cache ---- */

static void entries_clear(quire_graphs *graphs)
{
    for (size_t i = 0; i < QUIRE_GRAPHS_MAX; i++) {
        graph_clear(&graphs->entries[i]);
    }
}

/* Room in the buffer for a step of n_rows rows that all want their logits. */
static int buffer_reserve(quire_graphs *graphs, uint32_t n_rows)
{
    quire_graph graph;
    int rc = graph_build_shape(graphs, &graph, n_rows, n_rows);

    if (rc == QUIRE_OK && !ggml_gallocr_reserve(graphs->buffer, graph.cgraph)) {
        rc = QUIRE_NOMEM;
    }
    graph_clear(&graph);
    return rc;
}

int quire_graphs_init(quire_graphs *graphs, const quire_graphs_opts *opts)
{
    int rc = QUIRE_OK;

    *graphs = (quire_graphs){ .opts = *opts,
                              .linear_block_bytes = quire_linear_block_bytes(opts->n_threads) };
    graphs->buffer = ggml_gallocr_new(ggml_backend_dev_buffer_type(quire_backend_cpu()));
    if (graphs->buffer == NULL) {
        return QUIRE_NOMEM;
    }
    /* The largest step, and the largest step whose linear maps also keep a block's result. */
    if (opts->n_rows_max > QUIRE_LINEAR_CUT_ROWS_MAX) {
        rc = buffer_reserve(graphs, QUIRE_LINEAR_CUT_ROWS_MAX);
    }
    if (rc == QUIRE_OK) {
        rc = buffer_reserve(graphs, opts->n_rows_max);
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
        ggml_gallocr_free(graphs->buffer);
    }
    graphs->buffer = NULL;
}

size_t quire_graphs_buffer_bytes(const quire_graphs *graphs)
{
    return ggml_gallocr_get_buffer_size(graphs->buffer, 0);
}

/* Place a new graph's tensors in the shared buffer. Should the buffer have to move (the largest
 * shape was reserved, so only by the allocator's fragmentation), every other graph's addresses are
 * stale and the cache starts again. */
static int graph_place(quire_graphs *graphs, quire_graph *graph)
{
    const size_t before = quire_graphs_buffer_bytes(graphs);
    const bool is_placed = ggml_gallocr_reserve(graphs->buffer, graph->cgraph) &&
                           ggml_gallocr_alloc_graph(graphs->buffer, graph->cgraph);

    if (!is_placed || quire_graphs_buffer_bytes(graphs) != before) {
        entries_clear(graphs);
    }
    return is_placed ? QUIRE_OK : QUIRE_NOMEM;
}

int quire_graphs_get(quire_graphs *graphs, uint32_t n_rows, uint32_t n_logits, quire_graph **out)
{
    quire_graph *oldest = &graphs->entries[0];
    quire_graph graph;
    int rc;

    QUIRE_ASSERT(n_rows > 0 && n_logits <= n_rows);
    *out = NULL;
    for (size_t i = 0; i < QUIRE_GRAPHS_MAX; i++) {
        quire_graph *entry = &graphs->entries[i];

        if (entry->ctx != NULL && entry->n_rows == n_rows && entry->n_logits == n_logits) {
            entry->used_at = ++graphs->clock;
            graphs->reused_total++;
            *out = entry;
            return QUIRE_OK;
        }
        oldest = entry->used_at < oldest->used_at ? entry : oldest;
    }
    rc = graph_build_shape(graphs, &graph, n_rows, n_logits);
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
