/* graph_split.c - see graph_split.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_split_internal.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* ---- tensors ---- */

/* Whether it is of the graph, and no weight. */
static bool is_of_graph(const graph_split *s, const struct ggml_tensor *t)
{
    const char *begin = ggml_get_mem_buffer(s->graph->ctx), *at = (const char *)t;

    return at >= begin && at < begin + ggml_get_mem_size(s->graph->ctx);
}

static uint8_t memory_of(const graph_split *s, const struct ggml_tensor *t)
{
    t = t->view_src != NULL ? t->view_src : t;
    if (is_of_graph(s, t)) {
        return quire_split_tensor_of(s, t)->memory;
    }
    return quire_weights_side(s->weights, t);
}

static bool is_view(const struct ggml_tensor *t)
{
    return t->op == GGML_OP_VIEW || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_PERMUTE ||
           t->op == GGML_OP_TRANSPOSE;
}

static bool is_weight(const graph_split *s, const struct ggml_tensor *t)
{
    return !is_of_graph(s, t->view_src != NULL ? t->view_src : t);
}

/* Whether an operation reads a weight of the host's, but for the factors of ropes. */
static bool reads_hosts_weight(const graph_split *s, const struct ggml_tensor *node)
{
    for (int j = 0; node->op != GGML_OP_ROPE && j < GGML_MAX_SRC; j++) {
        const struct ggml_tensor *src = node->src[j];

        if (src != NULL && is_weight(s, src) && memory_of(s, src) == QUIRE_GRAPH_HOST) {
            return true;
        }
    }
    return false;
}

/* The device whose weight or results a node reads; of results of several devices that of the
 * newest. QUIRE_GRAPH_HOST: it reads nothing of a device's. */
static uint8_t device_read(const graph_split *s, const struct ggml_tensor *node)
{
    uint8_t side = QUIRE_GRAPH_HOST;
    size_t newest = 0;

    for (int j = 0; j < GGML_MAX_SRC; j++) {
        const struct ggml_tensor *src = node->src[j];
        const uint8_t memory = src != NULL ? memory_of(s, src) : QUIRE_GRAPH_HOST;

        if (memory != QUIRE_GRAPH_HOST && is_weight(s, src)) {
            return memory;
        }
        if (memory != QUIRE_GRAPH_HOST && quire_split_place_of(s, src) >= newest) {
            side = memory;
            newest = quire_split_place_of(s, src);
        }
    }
    return side;
}

/* The weight of a norm: the builders have its product right behind the norm. NULL: no norm, or one
 * without a weight. */
static const struct ggml_tensor *weight_of_norm(const graph_split *s,
                                                const struct ggml_tensor *node, int i)
{
    const struct ggml_tensor *next;

    if ((node->op != GGML_OP_RMS_NORM && node->op != GGML_OP_NORM) ||
        i + 1 >= ggml_graph_n_nodes(s->graph->cgraph)) {
        return NULL;
    }
    next = ggml_graph_node(s->graph->cgraph, i + 1);
    return next->op == GGML_OP_MUL && next->src[0] == node && is_weight(s, next->src[1])
               ? next->src[1]
               : NULL;
}

/* The append or attention that is this operation; NULL: it is none, or the host's. */
static const quire_graph_own *own_of(const graph_split *s, const struct ggml_tensor *node, int i)
{
    const quire_graph *g = s->graph;

    if (i < s->from || node->op != GGML_OP_CUSTOM) {
        return NULL;
    }
    for (uint32_t o = 0; o < g->n_owns; o++) {
        if (g->owns[o].tensor == node) {
            return &g->owns[o];
        }
    }
    return NULL;
}

/* An operation that reads nothing of the device's stays with the host: a residual of streams and
 * the state of a recurrent layer pass several such operations between two of our own. */
static uint8_t computer_of(const graph_split *s, const struct ggml_tensor *node, int i)
{
    const struct ggml_tensor *weight;
    uint8_t side;

    if (is_view(node)) {
        return QUIRE_SPLIT_NEITHER;
    }
    if (own_of(s, node, i) != NULL) {
        return QUIRE_GRAPH_DEVICE; /* there is one */
    }
    if (i < s->from || node->op == GGML_OP_CUSTOM || reads_hosts_weight(s, node)) {
        return QUIRE_GRAPH_HOST;
    }
    weight = weight_of_norm(s, node, i);
    side = weight != NULL ? memory_of(s, weight) : device_read(s, node);
    return side != QUIRE_GRAPH_HOST &&
                   quire_backend_takes(s->weights->devices[side - QUIRE_GRAPH_DEVICE], node)
               ? side
               : QUIRE_GRAPH_HOST;
}

/* ---- copies ---- */

static void list_add(graph_split *s, struct ggml_tensor *t, uint8_t memory, uint8_t computer)
{
    split_tensor *entry = quire_split_tensor_of(s, t);

    QUIRE_CHECK(s->n < s->n_max);
    s->list[s->n++] = t;
    entry->memory = memory;
    entry->computer = computer;
    entry->waits = true;
}

/* The copy of t on another side, as an operation for the allocator; one of both is the host. Copies
 * have no gaps, and are made from tensors without gaps, in the memory of the graph: the host's
 * there is pinned (graph.c). */
static struct ggml_tensor *copy_make(graph_split *s, struct ggml_tensor *t, uint8_t to)
{
    const uint8_t from = memory_of(s, t);
    struct ggml_context *ctx = s->graph->ctx;
    struct ggml_tensor *copy;

    if (!ggml_is_contiguous(t) || (is_weight(s, t) && from == QUIRE_GRAPH_HOST)) {
        t = ggml_cont(ctx, t);
        list_add(s, t, from, from);
    }
    copy = ggml_dup(ctx, t);
    list_add(s, copy, to, from);
    quire_split_tensor_of(s, copy)->is_copy = true;
    return copy;
}

/* t where `side` reads it. The weights of which a step takes copies are the factors of ropes, which
 * are the same in all layers. */
static struct ggml_tensor *on_side(graph_split *s, struct ggml_tensor *t, uint8_t side)
{
    struct ggml_tensor **copy = s->factors_copies;

    if (memory_of(s, t) == side) {
        return t;
    }
    if (memory_of(s, t) != QUIRE_GRAPH_HOST && side != QUIRE_GRAPH_HOST) {
        return on_side(s, on_side(s, t, QUIRE_GRAPH_HOST), side);
    }
    if (is_of_graph(s, t)) {
        copy = s->copies + quire_split_place_of(s, t) * s->n_sides;
    } else if (s->factors != t) {
        memset(s->factors_copies, 0, sizeof s->factors_copies);
        s->factors = t;
    }
    copy[side] = copy[side] != NULL ? copy[side] : copy_make(s, t, side);
    return copy[side];
}

/* t without gaps: so the attention device reads rows. */
static struct ggml_tensor *dense(graph_split *s, struct ggml_tensor *t)
{
    if (ggml_is_contiguous(t)) {
        return t;
    }
    if (quire_split_tensor_of(s, t)->dense == NULL) {
        struct ggml_tensor *made = ggml_cont(s->graph->ctx, t);

        list_add(s, made, memory_of(s, t), memory_of(s, t));
        quire_split_tensor_of(s, t)->dense = made;
    }
    return quire_split_tensor_of(s, t)->dense;
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
        const quire_graph_own *own = own_of(s, node, i);

        for (int j = 0; computer != QUIRE_SPLIT_NEITHER && j < GGML_MAX_SRC; j++) {
            if (node->src[j] != NULL) {
                node->src[j] = on_side(s, node->src[j], computer);
                node->src[j] = own != NULL ? dense(s, node->src[j]) : node->src[j];
            }
        }
        list_add(s, node, computer != QUIRE_SPLIT_NEITHER ? computer : memory_of(s, node->view_src),
                 computer);
        quire_split_tensor_of(s, node)->own = own;
    }
    s->graph->logits = result_on_host(s, s->graph->logits);
    s->graph->hidden = result_on_host(s, s->graph->hidden);
}

/* ---- segments ---- */

static bool is_ready(const graph_split *s, const struct ggml_tensor *node)
{
    for (int j = 0; j < GGML_MAX_SRC; j++) {
        const struct ggml_tensor *src = node->src[j];

        if (src != NULL && is_of_graph(s, src) && quire_split_tensor_of(s, src)->waits) {
            return false;
        }
    }
    return true;
}

/* Move all that `side` can compute now from the n_left operations of the list to s->turn. */
static uint32_t turn_take(graph_split *s, uint8_t side, uint32_t n_left, uint32_t *n_turn)
{
    uint32_t kept = 0;

    *n_turn = 0;
    for (uint32_t i = 0; i < n_left; i++) {
        struct ggml_tensor *node = s->list[i];
        split_tensor *entry = quire_split_tensor_of(s, node);

        if ((entry->computer == side || entry->computer == QUIRE_SPLIT_NEITHER) &&
            is_ready(s, node)) {
            entry->waits = false;
            s->turn[(*n_turn)++] = node;
        } else {
            s->list[kept++] = node;
        }
    }
    return kept;
}

static void sources_want(const graph_split *s, const struct ggml_tensor *node)
{
    for (int j = 0; j < GGML_MAX_SRC; j++) {
        if (node->src[j] != NULL && is_of_graph(s, node->src[j])) {
            quire_split_tensor_of(s, node->src[j])->is_wanted = true;
        }
    }
}

/* Mark the operations of a device's turn that copies to the host need, and those that were put off
 * before. Whether there are copies. */
static bool turn_want(const graph_split *s, uint32_t n_turn)
{
    bool has_copies = false;

    for (uint32_t i = n_turn; i-- > 0;) {
        split_tensor *entry = quire_split_tensor_of(s, s->turn[i]);

        has_copies |= entry->is_copy;
        entry->is_wanted |= entry->is_copy || entry->is_early;
        if (entry->is_wanted) {
            sources_want(s, s->turn[i]);
        }
    }
    return has_copies;
}

static bool is_product(const struct ggml_tensor *t)
{
    return t->op == GGML_OP_MUL_MAT || t->op == GGML_OP_MUL_MAT_ID;
}

/* Divide a device's turn into wanted operations, with their views, and the others. *n_turn becomes
 * the number of wanted operations; returns the number of the others. */
static uint32_t turn_divide(graph_split *s, uint32_t *n_turn, bool *has_product)
{
    uint32_t n_off = 0, kept = 0;

    *has_product = false;
    for (uint32_t i = 0; i < *n_turn; i++) {
        struct ggml_tensor *node = s->turn[i];
        split_tensor *entry = quire_split_tensor_of(s, node);

        if (entry->is_wanted || (entry->computer == QUIRE_SPLIT_NEITHER && is_ready(s, node))) {
            s->turn[kept++] = node;
        } else {
            entry->waits = true;
            *has_product |= is_product(node);
            s->off[n_off++] = node;
        }
    }
    *n_turn = kept;
    return n_off;
}

/* Put operations that are not wanted off to the next turn of the device. That turn begins with them
 * while the host computes its own turn. They stand in the list before all operations that read
 * their results. Operations without a product are not worth a call of their own, and stay. */
static uint32_t turn_put_off(graph_split *s, uint32_t n_left, uint32_t *n_turn)
{
    bool has_product;
    const uint32_t n_off = turn_divide(s, n_turn, &has_product);

    for (uint32_t i = 0; i < n_off; i++) {
        split_tensor *entry = quire_split_tensor_of(s, s->off[i]);

        entry->waits = entry->is_early = has_product;
    }
    if (!has_product) {
        memcpy(s->turn + *n_turn, s->off, n_off * sizeof(struct ggml_tensor *));
        *n_turn += n_off;
        return n_left;
    }
    memmove(s->list + n_off, s->list, n_left * sizeof(struct ggml_tensor *));
    memcpy(s->list, s->off, n_off * sizeof(struct ggml_tensor *));
    return n_left + n_off;
}

/* Append the turn's operations of a kind to the order. */
static uint32_t turn_put(graph_split *s, uint32_t n_turn, bool is_copy, bool is_early, uint32_t at)
{
    for (uint32_t i = 0; i < n_turn; i++) {
        const split_tensor *entry = quire_split_tensor_of(s, s->turn[i]);

        if (entry->is_copy == is_copy && entry->is_early == is_early) {
            s->order[at++] = s->turn[i];
        }
    }
    return at;
}

/* The device that can compute the first operation that can be computed without the host. */
static uint8_t device_next(const graph_split *s, uint32_t n_left)
{
    for (uint32_t i = 0; i < n_left; i++) {
        const uint8_t computer = quire_split_tensor_of(s, s->list[i])->computer;

        if (computer != QUIRE_GRAPH_HOST && computer != QUIRE_SPLIT_NEITHER &&
            is_ready(s, s->list[i])) {
            return computer;
        }
    }
    return QUIRE_GRAPH_DEVICE;
}

/* The order, and the number of segments: host and devices take turns, the host first. The copies of
 * a turn are its last operations: until then the allocator gives their sources' memory to nobody.
 */
static uint32_t order_make(graph_split *s)
{
    uint32_t n_segments = 0, n_left = s->n, n_ordered = 0;

    while (n_left > 0) {
        const uint8_t side = n_segments % 2 == 0 ? QUIRE_GRAPH_HOST : device_next(s, n_left);
        split_ends *ends = &s->ends[n_segments++];
        uint32_t n_turn;

        n_left = turn_take(s, side, n_left, &n_turn);
        ends->side = side;
        if (side != QUIRE_GRAPH_HOST && s->has_early && turn_want(s, n_turn)) {
            n_left = turn_put_off(s, n_left, &n_turn);
        }
        QUIRE_CHECK(n_turn > 0 || side == QUIRE_GRAPH_HOST); /* a cycle, else */
        ends->early = turn_put(s, n_turn, false, true, n_ordered);
        ends->rest = turn_put(s, n_turn, false, false, ends->early);
        ends->copies = n_ordered =
            turn_put(s, n_turn, true, true, turn_put(s, n_turn, true, false, ends->rest));
    }
    return n_segments;
}

size_t quire_graph_split_nodes(size_t n_nodes)
{
    return 2 * n_nodes;
}

int quire_graph_split(quire_graph *graph, const quire_weights *weights, int from, bool has_early)
{
    const size_t n_tensors = ggml_get_mem_size(graph->ctx) / ggml_tensor_overhead() + 1;
    const size_t n_max = quire_graph_split_nodes((size_t)ggml_graph_size(graph->cgraph));
    graph_split s = { .graph = graph,
                      .weights = weights,
                      .from = from,
                      .has_early = has_early,
                      .n_sides = QUIRE_GRAPH_DEVICE + weights->n_devices,
                      .n_tensors = n_tensors,
                      .n_max = (uint32_t)n_max };
    int rc = QUIRE_NOMEM;

    s.tensors = calloc(n_tensors, sizeof *s.tensors);
    s.copies = calloc(n_tensors * s.n_sides, sizeof(struct ggml_tensor *));
    s.list = calloc(n_max, sizeof(struct ggml_tensor *));
    s.turn = calloc(n_max, sizeof(struct ggml_tensor *));
    s.off = calloc(n_max, sizeof(struct ggml_tensor *));
    s.ends = calloc(n_max + 1, sizeof *s.ends);
    s.order = graph->order = calloc(n_max, sizeof(struct ggml_tensor *));
    if (s.tensors != NULL && s.copies != NULL && s.list != NULL && s.order != NULL &&
        s.turn != NULL && s.off != NULL && s.ends != NULL) {
        uint32_t n_segments;

        list_make(&s);
        n_segments = order_make(&s);
        rc = quire_split_segments_make(&s, n_segments);
    }
    free(s.ends);
    free(s.off);
    free(s.turn);
    free(s.list);
    free(s.copies);
    free(s.tensors);
    return rc;
}
