/* graph_attn.c - the attention block of a layer: projections, norms of Q and K, rope, gates, the
 * two custom ops.
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_build.h"

#include "base/check.h"
#include "base/clock.h"

/* ---- the ops ---- */

/* The rows of a tensor, `shift` bytes behind its data as the host sees it. */
static float *rows_at(const struct ggml_tensor *t, ptrdiff_t shift)
{
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of a device
    return (float *)((uintptr_t)t->data + (uintptr_t)shift);
}

/* The arguments of an append: K, V, the queries, hidden states. Returns how many were read. */
static int append_rows(const quire_graph_op *op, const struct ggml_tensor *append, ptrdiff_t shift,
                       quire_attn_layer *layer)
{
    int n = 1;
    const struct ggml_tensor *k = append->src[0];
    const struct ggml_tensor *v = layer->v_prefix_of_k ? NULL : append->src[n++];
    const struct ggml_tensor *q = op->pairs_qk ? append->src[n++] : NULL;

    layer->k_new = rows_at(k, shift);
    layer->k_new_stride = k->nb[2] / sizeof(float);
    if (v != NULL) {
        layer->v_new = rows_at(v, shift);
        layer->v_new_stride = v->nb[2] / sizeof(float);
    }
    if (q != NULL) {
        layer->q[0] = rows_at(q, shift);
        layer->q_stride = q->nb[2] / sizeof(float);
    }
    return n;
}

/* The arguments of attention: the queries, then the append, then K (quire_graph_attn_op()). */
static void attention_rows(const quire_graph_op *op, const struct ggml_tensor *attention,
                           ptrdiff_t shift, quire_attn_layer *layer)
{
    const struct ggml_tensor *k = attention->src[layer->n_k + (op->has_append ? 1 : 0)];

    for (uint32_t i = 0; i < layer->n_k; i++) {
        layer->q[i] = rows_at(attention->src[i], shift);
    }
    layer->q_stride = attention->src[0]->nb[2] / sizeof(float);
    if (k != NULL) {
        layer->k_new = rows_at(k, shift);
        layer->k_new_stride = k->nb[2] / sizeof(float);
    }
    layer->out = rows_at(attention, shift);
    layer->out_stride = attention->nb[1] / sizeof(float);
}

/* Every thread works on a copy of the layer, since the row pointers belong to the current graph. */
static void op_append(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    quire_graph_op *op = userdata;
    quire_attn_layer layer = op->layer;
    const int n = append_rows(op, dst, 0, &layer);
    const struct ggml_tensor *hidden = op->hidden != NULL ? dst->src[n] : NULL;
    uint64_t begin_ns = ith == 0 ? quire_clock_ns() : 0;

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
    uint64_t begin_ns = ith == 0 ? quire_clock_ns() : 0;

    attention_rows(op, dst, 0, &layer);
    op->device->run(op->device->ctx, &layer, op->call, (uint32_t)ith, (uint32_t)nth);
    if (ith == 0) {
        op->attn_ns += quire_clock_ns() - begin_ns;
        op->rows_total += (uint64_t)dst->ne[1];
    }
}

/* Attention behind an append of the same layer may read what the append reads. */
void quire_graph_work_queue(const quire_graph *graph, const quire_graph_work *work)
{
    quire_graph_op *op = work->op;
    quire_attn_layer layer = op->layer;
    const uint64_t begin_ns = quire_clock_ns();
    unsigned what = 0;

    if (work->append != NULL) {
        (void)append_rows(op, work->append, graph->shift, &layer);
        what |= QUIRE_ATTN_QUEUE_APPEND;
    }
    if (work->attention != NULL) {
        attention_rows(op, work->attention, graph->shift, &layer);
        what |= QUIRE_ATTN_QUEUE_RUN;
        op->rows_total += (uint64_t)work->attention->ne[1];
    }
    op->device->queue(op->device->ctx, &layer, op->call, what);
    *(work->attention != NULL ? &op->attn_ns : &op->append_ns) += quire_clock_ns() - begin_ns;
}

void quire_graph_own_note(const quire_graph_build *b, struct ggml_tensor *tensor, uint32_t il,
                          bool is_append)
{
    quire_graph *g = b->graph;

    if (g->owns != NULL && b->ops[il].hidden == NULL) {
        g->owns[g->n_owns++] =
            (quire_graph_own){ .tensor = tensor, .op = &b->ops[il], .is_append = is_append };
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

/* ---- Q, K and V ---- */

struct ggml_tensor *quire_graph_rope(const quire_graph_build *b, struct ggml_tensor *x, uint32_t il)
{
    const uint8_t which = b->desc->layer_rope[il];
    const bool is_windowed = which == QUIRE_LAYER_ROPE_WINDOW;
    const quire_rope *r = is_windowed ? &b->desc->rope_window : &b->desc->rope;
    struct ggml_tensor *factors = is_windowed && b->arch->has_full_factors ? NULL : b->rope_factors;

    if (which == QUIRE_LAYER_ROPE_NONE) {
        return x;
    }
    return ggml_rope_ext(b->graph->ctx, x, b->positions, factors, (int)r->n_dims,
                         r->type == QUIRE_ROPE_NEOX ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL,
                         (int)r->ctx_orig, r->freq_base, r->freq_scale, r->ext_factor,
                         r->attn_factor, r->beta_fast, r->beta_slow);
}

/* Heads of rows, from place `first` in a row on: [d][n_heads][n_rows]. */
static struct ggml_tensor *heads(const quire_graph_build *b, struct ggml_tensor *x, uint32_t d,
                                 size_t first, uint32_t n_heads)
{
    return ggml_view_3d(b->graph->ctx, x, d, n_heads, b->n_rows, d * sizeof(float), x->nb[1],
                        first * sizeof(float));
}

/* Some heads of rows of heads. */
static struct ggml_tensor *some_heads(const quire_graph_build *b, struct ggml_tensor *x,
                                      uint32_t first, uint32_t n_heads)
{
    return ggml_view_3d(b->graph->ctx, x, x->ne[0], n_heads, x->ne[2], x->nb[1], x->nb[2],
                        first * x->nb[1]);
}

/* Q, K and V of a layer's rows, rope applied: [d][heads][n_rows] each. */
typedef struct layer_rows {
    struct ggml_tensor *q;    /* NULL when nobody reads it */
    struct ggml_tensor *k;    /* NULL, and V, in a layer that stores nothing */
    struct ggml_tensor *v;    /* NULL, too, where V is a part of K */
    struct ggml_tensor *gate; /* of attention's result; NULL: there is none, or nobody reads it */
} layer_rows;

/* Heads of one length, where the model has that behind a rope. */
static struct ggml_tensor *unit(const quire_graph_build *b, struct ggml_tensor *x, uint32_t il)
{
    const bool is_there = b->desc->has_unit_qk && b->desc->layer_rope[il] != QUIRE_LAYER_ROPE_NONE;

    return is_there ? ggml_rms_norm(b->graph->ctx, x, b->desc->rms_eps) : x;
}

/* Compute them by one product and one rope: Q and K have heads of the same size. */
static layer_rows rows_jointly(const quire_graph_build *b, struct ggml_tensor *x, uint32_t il)
{
    const quire_model_desc *desc = b->desc;
    const quire_layer_sizes sizes = quire_layer_sizes_of(desc, il);
    const uint32_t n_qk = desc->n_head + sizes.n_kv_head;
    struct ggml_tensor *y = quire_linear_build_panels(b->linear, b->weights->layers[il].qkv, x);
    struct ggml_tensor *qk = unit(b, quire_graph_rope(b, heads(b, y, sizes.d_k, 0, n_qk), il), il);

    ggml_build_forward_expand(b->graph->cgraph, qk);
    return (layer_rows){ .q = some_heads(b, qk, 0, desc->n_head),
                         .k = some_heads(b, qk, desc->n_head, sizes.n_kv_head),
                         .v = heads(b, y, sizes.d_v, (size_t)n_qk * sizes.d_k, sizes.n_kv_head) };
}

/* The weights of Q or of K. */
typedef struct side_weights {
    struct ggml_tensor *map, *bias, *norm;
    uint32_t n_heads;
    struct ggml_tensor **gate;    /* gets the gate beside each head; NULL: there is none */
    struct ggml_tensor **product; /* gets the product as it is; NULL: nobody reads it */
} side_weights;

/* The gates of rows of which each head of Q is followed by its gate: [n_head * d][n_rows]. */
static struct ggml_tensor *q_gate(const quire_graph_build *b, struct ggml_tensor *y)
{
    const uint32_t d = b->desc->d_k;
    struct ggml_tensor *gate = ggml_view_3d(b->graph->ctx, y, d, b->desc->n_head, b->n_rows,
                                            2 * d * sizeof(float), y->nb[1], d * sizeof(float));

    return ggml_cont_2d(b->graph->ctx, gate, (int64_t)d * b->desc->n_head, b->n_rows);
}

/* Q or K: the product, its norm where the architecture has it, rope. A norm over the whole row
 * comes before the row is seen as heads. */
static struct ggml_tensor *side_rows(const quire_graph_build *b, const side_weights *w,
                                     struct ggml_tensor *x, uint32_t il)
{
    const uint32_t d = quire_layer_sizes_of(b->desc, il).d_k;
    const bool is_roped_first = b->arch->qk_norm == QUIRE_QK_NORM_ROPED;
    struct ggml_tensor *y = quire_graph_linear(b, w->map, w->bias, x);

    if (w->product != NULL) {
        *w->product = y;
    }
    if (w->gate != NULL) {
        *w->gate = q_gate(b, y);
        y = ggml_view_3d(b->graph->ctx, y, d, w->n_heads, b->n_rows, 2 * d * sizeof(float),
                         y->nb[1], 0);
        return quire_graph_rope(b, quire_graph_norm(b, y, w->norm, NULL), il);
    }
    if ((b->desc->parts & QUIRE_PART_QK_NORM_ROW) != 0) {
        y = quire_graph_norm(b, y, w->norm, NULL);
    }
    y = heads(b, y, d, 0, w->n_heads);
    y = is_roped_first ? quire_graph_rope(b, y, il) : y;
    if (w->norm != NULL && (b->desc->parts & QUIRE_PART_QK_NORM_ROW) == 0) {
        y = quire_graph_norm(b, y, w->norm, NULL);
    }
    return is_roped_first ? y : unit(b, quire_graph_rope(b, y, il), il);
}

static layer_rows rows_apart(const quire_graph_build *b, struct ggml_tensor *x, uint32_t il,
                             bool has_q)
{
    const quire_model_desc *desc = b->desc;
    const quire_layer_sizes sizes = quire_layer_sizes_of(desc, il);
    const quire_layer_weights *l = &b->weights->layers[il];
    struct ggml_tensor *q = NULL, *gate = NULL, *k, *v = NULL;
    const side_weights wq = {
        l->wq, l->bq, l->q_norm, desc->n_head, b->arch->has_q_gate ? &gate : NULL, NULL
    };
    const side_weights wk = { l->wk,           l->bk, l->k_norm,
                              sizes.n_kv_head, NULL,  l->wv == NULL ? &v : NULL };

    if (has_q) {
        q = side_rows(b, &wq, x, il);
        ggml_build_forward_expand(b->graph->cgraph, q);
    }
    if (l->wk == NULL) {
        return (layer_rows){ .q = q, .gate = gate };
    }
    k = side_rows(b, &wk, x, il);
    ggml_build_forward_expand(b->graph->cgraph, k);
    v = l->wv != NULL ? quire_graph_linear(b, l->wv, l->bv, x) : v;
    v = heads(b, v, sizes.d_v, 0, sizes.n_kv_head);
    v = b->arch->has_v_norm ? ggml_rms_norm(b->graph->ctx, v, desc->rms_eps) : v;
    return (layer_rows){ q, k, v, gate };
}

/* Q times the gate of a K source, in any of a gate's shapes. The gate belongs to K as it is stored,
 * and q . (gate * K) = (q * gate) . K. */
static struct ggml_tensor *gated(const quire_graph_build *b, struct ggml_tensor *q,
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
static struct ggml_tensor *mixed(const quire_graph_build *b, struct ggml_tensor *own,
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

/* The wanted rows of x, [d][heads][n_rows]. */
static struct ggml_tensor *picked_heads(const quire_graph_build *b, struct ggml_tensor *x)
{
    struct ggml_context *ctx = b->graph->ctx;
    const int64_t d = x->ne[0], n_heads = x->ne[1];

    x = ggml_is_contiguous(x) ? x : ggml_cont(ctx, x);
    x = ggml_get_rows(ctx, ggml_reshape_2d(ctx, x, d * n_heads, x->ne[2]), b->graph->out_rows);
    return ggml_reshape_3d(ctx, x, d, n_heads, b->graph->n_logits);
}

/* From here on the graph computes the wanted rows alone. */
void quire_graph_attn_exit(quire_graph_build *b, quire_graph_attn *in)
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
quire_graph_attn quire_graph_attn_begin(quire_graph_build *b, struct ggml_tensor *x, uint32_t il,
                                        bool is_append_only)
{
    const quire_layer_weights *l = &b->weights->layers[il];
    const quire_kv_map_entry *map = &b->desc->kv_map[il];
    const bool pairs_qk = b->ops[il].has_append && quire_attn_pairs_qk(&b->ops[il].layer);
    const bool has_q = pairs_qk || !is_append_only;
    const bool is_joint = l->qkv != NULL && l->bq == NULL && l->bk == NULL && l->bv == NULL &&
                          l->q_norm == NULL && l->k_norm == NULL && has_q && map->k_gates == 0;
    layer_rows rows = { 0 };
    quire_graph_attn in = { 0 };

    if (b->desc->latent.is_there) {
        quire_graph_latent_rows(b, x, il, has_q ? &rows.q : NULL, &rows.k);
    } else {
        rows = is_joint ? rows_jointly(b, x, il) : rows_apart(b, x, il, has_q);
    }
    if (l->attn_gate != NULL && has_q) {
        rows.gate = quire_graph_linear(b, l->attn_gate, NULL, x);
    }
    if (b->graph->q_scales != NULL && rows.q != NULL &&
        (!b->desc->is_temperature_unroped || b->desc->layer_rope[il] == QUIRE_LAYER_ROPE_NONE)) {
        rows.q = ggml_mul(b->graph->ctx, rows.q, b->graph->q_scales);
    }
    if (il == 0) {
        b->k_first = rows.k;
        b->v_first = rows.v;
    }
    rows.k = mixed(b, rows.k, b->k_first, l->k_mix);
    rows.v = mixed(b, rows.v, b->v_first, l->v_mix);
    in.k = pairs_qk ? rows.k : NULL;
    in.gate = rows.gate;

    for (uint32_t i = 0; has_q && i < map->n_k; i++) {
        in.q[i] = gated(b, rows.q, l->k_gate[i]);
        ggml_build_forward_expand(b->graph->cgraph, in.q[i]);
    }
    /* The append has one float as its result, which no operation reads: ggml orders operations by
     * their results, and attention comes after the append. */
    if (b->ops[il].has_append) {
        struct ggml_tensor *args[4] = { rows.k };
        int n = 1;

        if (rows.v != NULL) {
            args[n++] = rows.v;
        }
        b->ops[il].pairs_qk = pairs_qk;
        if (pairs_qk) {
            args[n++] = in.q[0];
        }
        if (b->ops[il].hidden != NULL) {
            args[n++] = x;
        }
        in.append = ggml_custom_4d(b->graph->ctx, GGML_TYPE_F32, 1, 1, 1, 1, args, n, op_append,
                                   GGML_N_TASKS_MAX, &b->ops[il]);
        quire_graph_own_note(b, in.append, il, true);
        ggml_build_forward_expand(b->graph->cgraph, in.append);
    }
    return in;
}

/* Attention of one layer, output projection not included. */
struct ggml_tensor *quire_graph_attn_op(const quire_graph_build *b, const quire_graph_attn *in,
                                        uint32_t il)
{
    struct ggml_tensor *args[QUIRE_ATTN_SOURCES_MAX + 2], *y;
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
    y = ggml_custom_4d(b->graph->ctx, GGML_TYPE_F32,
                       (int64_t)quire_layer_sizes_of(b->desc, il).d_v * b->desc->n_head, b->n_rows,
                       1, 1, args, n, op_attention, GGML_N_TASKS_MAX, &b->ops[il]);
    quire_graph_own_note(b, y, il, false);
    return y;
}
