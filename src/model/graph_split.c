/* graph_split.c - see graph_split.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_split.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define NEITHER 2 /* of a view: no side computes it */

/* What is known of a tensor of the graph's context. */
typedef struct split_tensor {
    uint8_t memory;           /* the side in whose memory it lies */
    uint8_t computer;         /* the side that computes it */
    bool waits;               /* it is not in a segment yet */
    struct ggml_tensor *copy; /* on the other side; NULL: there is none */
} split_tensor;

typedef struct graph_split {
    quire_graph *graph;
    const quire_weights *weights;
    int from;
    split_tensor *tensors; /* [n_tensors], by place in the context */
    size_t n_tensors;
    struct ggml_tensor **list; /* [n]: the operations, with copies where they are read first */
    uint32_t n, n_max;
    struct ggml_tensor **order;                 /* [n]: segment by segment */
    uint32_t *ends;                             /* [n_segments] of them: where a segment ends */
    struct ggml_tensor *factors, *factors_copy; /* the weight that was copied last */
} graph_split;

/* ---- the two copies ---- */

static void op_up(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    (void)nth;
    (void)userdata;
    if (ith == 0) {
        ggml_backend_tensor_get(dst->src[0], dst->data, 0, ggml_nbytes(dst));
    }
}

static void op_down(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    (void)nth;
    (void)userdata;
    if (ith == 0) {
        ggml_backend_tensor_set(dst, dst->src[0]->data, 0, ggml_nbytes(dst));
    }
}

/* ---- tensors ---- */

/* Tensors of a context lie one behind the other, at least so far apart. */
static size_t place_of(const graph_split *s, const struct ggml_tensor *t)
{
    const char *begin = ggml_get_mem_buffer(s->graph->ctx);

    return (size_t)((const char *)t - begin) / ggml_tensor_overhead();
}

/* Whether it is of the graph, and no weight. */
static bool is_of_graph(const graph_split *s, const struct ggml_tensor *t)
{
    const char *begin = ggml_get_mem_buffer(s->graph->ctx), *at = (const char *)t;

    return at >= begin && at < begin + ggml_get_mem_size(s->graph->ctx);
}

static split_tensor *tensor_of(const graph_split *s, const struct ggml_tensor *t)
{
    return &s->tensors[place_of(s, t)];
}

static uint8_t memory_of(const graph_split *s, const struct ggml_tensor *t)
{
    t = t->view_src != NULL ? t->view_src : t;
    if (is_of_graph(s, t)) {
        return tensor_of(s, t)->memory;
    }
    return quire_weights_device_holds(s->weights, t) ? QUIRE_GRAPH_DEVICE : QUIRE_GRAPH_HOST;
}

static bool is_view(const struct ggml_tensor *t)
{
    return t->op == GGML_OP_VIEW || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_PERMUTE ||
           t->op == GGML_OP_TRANSPOSE;
}

/* Whether it is a product with a weight of the host's. */
static bool has_hosts_factor(const graph_split *s, const struct ggml_tensor *node)
{
    const struct ggml_tensor *w = node->src[0];

    if (node->op != GGML_OP_MUL_MAT && node->op != GGML_OP_MUL_MAT_ID) {
        return false;
    }
    w = w->view_src != NULL ? w->view_src : w;
    return !is_of_graph(s, w) && memory_of(s, w) == QUIRE_GRAPH_HOST;
}

static uint8_t computer_of(const graph_split *s, const struct ggml_tensor *node, int i)
{
    if (is_view(node)) {
        return NEITHER;
    }
    return i >= s->from && node->op != GGML_OP_CUSTOM && !has_hosts_factor(s, node) &&
                   ggml_backend_dev_supports_op(s->weights->device, node)
               ? QUIRE_GRAPH_DEVICE
               : QUIRE_GRAPH_HOST;
}

/* ---- copies ---- */

static void list_add(graph_split *s, struct ggml_tensor *t, uint8_t memory, uint8_t computer)
{
    split_tensor *entry = tensor_of(s, t);

    QUIRE_CHECK(s->n < s->n_max);
    s->list[s->n++] = t;
    entry->memory = memory;
    entry->computer = computer;
    entry->waits = true;
}

/* The copy of t on the other side. Copies have no gaps, and are made from tensors without gaps. */
static struct ggml_tensor *copy_make(graph_split *s, struct ggml_tensor *t)
{
    const uint8_t from = memory_of(s, t);
    struct ggml_context *ctx = s->graph->ctx;
    struct ggml_tensor *copy;

    if (!ggml_is_contiguous(t)) {
        t = ggml_cont(ctx, t);
        list_add(s, t, from, from);
    }
    copy = ggml_custom_4d(ctx, t->type, t->ne[0], t->ne[1], t->ne[2], t->ne[3], &t, 1,
                          from == QUIRE_GRAPH_DEVICE ? op_up : op_down, 1, NULL);
    list_add(s, copy, from == QUIRE_GRAPH_DEVICE ? QUIRE_GRAPH_HOST : QUIRE_GRAPH_DEVICE,
             QUIRE_GRAPH_HOST);
    return copy;
}

/* t where `side` reads it. The weights of which a step takes copies are the factors of ropes, which
 * are the same in all layers. */
static struct ggml_tensor *on_side(graph_split *s, struct ggml_tensor *t, uint8_t side)
{
    if (memory_of(s, t) == side) {
        return t;
    }
    if (!is_of_graph(s, t)) {
        s->factors_copy = s->factors == t ? s->factors_copy : copy_make(s, t);
        s->factors = t;
        return s->factors_copy;
    }
    if (tensor_of(s, t)->copy == NULL) {
        struct ggml_tensor *copy = copy_make(s, t);

        tensor_of(s, t)->copy = copy;
    }
    return tensor_of(s, t)->copy;
}

static struct ggml_tensor *result_on_host(graph_split *s, struct ggml_tensor *t)
{
    if (t == NULL || memory_of(s, t) == QUIRE_GRAPH_HOST) {
        return t;
    }
    t = on_side(s, t, QUIRE_GRAPH_HOST);
    ggml_set_output(t);
    return t;
}

/* The list: all operations of the graph, with copies. */
static void list_make(graph_split *s)
{
    struct ggml_cgraph *cgraph = s->graph->cgraph;
    const int n = ggml_graph_n_nodes(cgraph);

    for (int i = 0; i < n; i++) {
        struct ggml_tensor *node = ggml_graph_node(cgraph, i);
        const uint8_t computer = computer_of(s, node, i);

        for (int j = 0; computer != NEITHER && j < GGML_MAX_SRC; j++) {
            if (node->src[j] != NULL) {
                node->src[j] = on_side(s, node->src[j], computer);
            }
        }
        list_add(s, node, computer != NEITHER ? computer : memory_of(s, node->view_src), computer);
    }
    s->graph->logits = result_on_host(s, s->graph->logits);
    s->graph->hidden = result_on_host(s, s->graph->hidden);
}

/* ---- segments ---- */

static bool is_ready(const graph_split *s, const struct ggml_tensor *node)
{
    for (int j = 0; j < GGML_MAX_SRC; j++) {
        const struct ggml_tensor *src = node->src[j];

        if (src != NULL && is_of_graph(s, src) && tensor_of(s, src)->waits) {
            return false;
        }
    }
    return true;
}

/* Move all that `side` can compute now to the order, from the n_left operations of the list. */
static uint32_t segment_take(graph_split *s, uint8_t side, uint32_t n_left, uint32_t *n_ordered)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n_left; i++) {
        struct ggml_tensor *node = s->list[i];
        split_tensor *entry = tensor_of(s, node);

        if ((entry->computer == side || entry->computer == NEITHER) && is_ready(s, node)) {
            entry->waits = false;
            s->order[(*n_ordered)++] = node;
        } else {
            s->list[kept++] = node;
        }
    }
    return kept;
}

/* The order, and the number of segments: sides take turns, the host first. */
static uint32_t order_make(graph_split *s)
{
    uint32_t n_segments = 0, n_left = s->n, n_ordered = 0;

    while (n_left > 0) {
        const uint32_t before = n_ordered;

        n_left = segment_take(s, (uint8_t)(n_segments % 2), n_left, &n_ordered);
        QUIRE_CHECK(n_ordered > before || n_segments == 0); /* a cycle, else */
        s->ends[n_segments++] = n_ordered;
    }
    return n_segments;
}

/* The graph that memory is given to, with the buffer of each node. */
static int cgraph_make(graph_split *s)
{
    quire_graph *g = s->graph;

    g->buffer_ids = calloc(s->n, sizeof *g->buffer_ids);
    QUIRE_FAIL_IF(g->buffer_ids == NULL, QUIRE_NOMEM);
    g->cgraph = ggml_new_graph_custom(g->ctx, s->n_max, false);
    for (uint32_t i = 0; i < s->n; i++) {
        ggml_build_forward_expand(g->cgraph, s->order[i]);
        QUIRE_CHECK(ggml_graph_n_nodes(g->cgraph) == (int)i + 1);
        g->buffer_ids[i] = tensor_of(s, s->order[i])->memory;
    }
    return QUIRE_OK;
}

static int segments_make(graph_split *s, uint32_t n_segments)
{
    struct ggml_init_params params = { .no_alloc = true };
    quire_graph *g = s->graph;
    uint32_t begin = 0;

    for (uint32_t i = 0; i < n_segments; i++) {
        params.mem_size += ggml_graph_overhead_custom(s->ends[i] - begin + 1, false);
        begin = s->ends[i];
    }
    g->segments = calloc(n_segments, sizeof(struct ggml_cgraph *));
    g->segments_ctx = ggml_init(params);
    QUIRE_FAIL_IF(g->segments == NULL || g->segments_ctx == NULL, QUIRE_NOMEM);
    begin = 0;
    for (uint32_t i = 0; i < n_segments; i++) {
        const size_t n = s->ends[i] - begin + 1;

        g->segments[i] = ggml_new_graph_custom(g->segments_ctx, n, false);
        for (; begin < s->ends[i]; begin++) {
            ggml_graph_add_node(g->segments[i], s->order[begin]);
        }
    }
    g->n_segments = n_segments;
    return QUIRE_OK;
}

size_t quire_graph_split_nodes(size_t n_nodes)
{
    return 2 * n_nodes;
}

int quire_graph_split(quire_graph *graph, const quire_weights *weights, int from)
{
    const size_t n_tensors = ggml_get_mem_size(graph->ctx) / ggml_tensor_overhead() + 1;
    const size_t n_max = quire_graph_split_nodes((size_t)ggml_graph_size(graph->cgraph));
    graph_split s = { .graph = graph,
                      .weights = weights,
                      .from = from,
                      .n_tensors = n_tensors,
                      .n_max = (uint32_t)n_max };
    int rc = QUIRE_NOMEM;

    s.tensors = calloc(n_tensors, sizeof *s.tensors);
    s.list = calloc(n_max, sizeof(struct ggml_tensor *));
    s.order = calloc(n_max, sizeof(struct ggml_tensor *));
    s.ends = calloc(n_max + 1, sizeof *s.ends);
    if (s.tensors != NULL && s.list != NULL && s.order != NULL && s.ends != NULL) {
        uint32_t n_segments;

        list_make(&s);
        n_segments = order_make(&s);
        rc = cgraph_make(&s);
        rc = rc == QUIRE_OK ? segments_make(&s, n_segments) : rc;
    }
    free(s.ends);
    free(s.order);
    free(s.list);
    free(s.tensors);
    return rc;
}
