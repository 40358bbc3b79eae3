/* graph_segments.c - the segments of a graph that host and devices compute; see graph_split.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_split_internal.h"

#include "base/check.h"

#include <stdlib.h>

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
        g->buffer_ids[i] = quire_split_tensor_of(s, s->order[i])->memory;
    }
    return QUIRE_OK;
}

/* The most floating-point operations of products in one submission. Drivers take a card for hung
 * whose submission lasts for seconds. ggml's own limits on slow cards are between 1.5 and 46 GFLOP,
 * and a layer has 1 GFLOP for few rows, and hundreds for those of a prompt. */
#define FLOPS_MAX 16e9

bool quire_split_is_small(struct ggml_tensor *const *ops, uint32_t n)
{
    double flops = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (ops[i]->op == GGML_OP_MUL_MAT || ops[i]->op == GGML_OP_MUL_MAT_ID) {
            flops += 2.0 * (double)ops[i]->src[0]->ne[0] * (double)ggml_nelements(ops[i]);
        }
    }
    return flops <= FLOPS_MAX;
}

/* The works of operations of the order, one behind the other. Without `out` they are only counted,
 * with the memory that their graphs take. */
typedef struct works {
    quire_graph_work *out; /* NULL: none */
    uint32_t n;
    size_t bytes;
    const quire_graph_op *open; /* the last one is the append of this layer; NULL: it is not */
} works;

/* ggml's operations [begin, end), of which some are no views. */
static void work_of_graph(const graph_split *s, works *w, uint32_t begin, uint32_t end)
{
    if (w->out == NULL) {
        w->bytes += ggml_graph_overhead_custom(end - begin, false);
    } else {
        struct ggml_cgraph *part =
            ggml_new_graph_custom(s->graph->segments_ctx, end - begin, false);

        for (uint32_t i = begin; i < end; i++) {
            ggml_graph_add_node(part, s->order[i]);
        }
        w->out[w->n] =
            (quire_graph_work){ .cgraph = part,
                                .is_small = quire_split_is_small(s->order + begin, end - begin) };
    }
    w->n++;
    w->open = NULL;
}

/* Attention is one work with the append of its layer before it, if nothing is between. */
static void work_of_layer(works *w, const quire_graph_own *own)
{
    const bool is_both = w->open == own->op && !own->is_append;

    w->n += is_both ? 0 : 1;
    if (w->out != NULL) {
        quire_graph_work *work = &w->out[w->n - 1];

        *work = is_both ? *work : (quire_graph_work){ .op = own->op };
        *(own->is_append ? &work->append : &work->attention) = own->tensor;
    }
    w->open = own->is_append ? own->op : NULL;
}

static uint32_t works_add(const graph_split *s, works *w, uint32_t begin, uint32_t end)
{
    const uint32_t n = w->n;
    bool has_work = false;

    w->open = NULL;
    for (uint32_t i = begin; i < end; i++) {
        const split_tensor *entry = quire_split_tensor_of(s, s->order[i]);

        if (entry->own == NULL) {
            has_work = has_work || entry->computer != QUIRE_SPLIT_NEITHER;
            continue;
        }
        if (has_work) {
            work_of_graph(s, w, begin, i);
        }
        work_of_layer(w, entry->own);
        has_work = false;
        begin = i + 1;
    }
    if (has_work) {
        work_of_graph(s, w, begin, end);
    }
    return w->n - n;
}

/* Add the works of all segments. */
static void segments_fill(const graph_split *s, works *w, uint32_t n_segments)
{
    uint32_t begin = 0;

    for (uint32_t i = 0; i < n_segments; i++) {
        const split_ends *ends = &s->ends[i];
        const uint32_t first = w->n;
        const uint32_t n_early = works_add(s, w, begin, ends->early);
        const uint32_t n_rest = works_add(s, w, ends->early, ends->rest);

        if (w->out != NULL) {
            s->graph->segments[i] =
                (quire_graph_segment){ .early = w->out + first,
                                       .rest = w->out + first + n_early,
                                       .n_early = n_early,
                                       .n_rest = n_rest,
                                       .side = ends->side,
                                       .copies = s->order + ends->rest,
                                       .copies_to = s->graph->buffer_ids + ends->rest,
                                       .n_copies = ends->copies - ends->rest };
        }
        begin = ends->copies;
    }
}

int quire_split_segments_make(graph_split *s, uint32_t n_segments)
{
    struct ggml_init_params params = { .no_alloc = true };
    quire_graph *g = s->graph;
    works w = { .out = NULL };

    QUIRE_TRY(cgraph_make(s));
    segments_fill(s, &w, n_segments);
    params.mem_size = w.bytes + 1; /* ggml takes 0 for another size */
    g->segments = calloc(n_segments, sizeof *g->segments);
    g->works = calloc(w.n + 1, sizeof *g->works);
    g->segments_ctx = ggml_init(params);
    QUIRE_FAIL_IF(g->segments == NULL || g->works == NULL || g->segments_ctx == NULL, QUIRE_NOMEM);
    w = (works){ .out = g->works };
    segments_fill(s, &w, n_segments);
    g->n_segments = n_segments;
    g->n_works = w.n;
    return QUIRE_OK;
}

/* ---- memory ---- */

/* Whether copies of a device from and to memory of this type need no wait. Of several cards ggml
 * pins memory with the first alone; by CUDA it is pinned for all. */
static bool is_pinned_for(ggml_backend_buffer_type_t type, ggml_backend_dev_t device)
{
    const ggml_backend_dev_t of = ggml_backend_buft_get_device(type);

    return of == device || (of != NULL && quire_backend_device_is_of(of, "CUDA") &&
                            quire_backend_device_is_of(device, "CUDA"));
}

/* Beside a device the host's part is memory that the device pins, where it does: copies of other
 * memory would wait for their end. */
ggml_gallocr_t quire_graph_buffer_new(const quire_weights *weights, bool *has_own)
{
    ggml_backend_buffer_type_t types[QUIRE_GRAPH_SIDES] = { ggml_backend_dev_buffer_type(
        quire_backend_cpu()) };
    const uint32_t n = QUIRE_GRAPH_DEVICE + weights->n_devices;

    for (uint32_t i = 0; i < weights->n_devices; i++) {
        const ggml_backend_dev_t device = weights->devices[i];
        const ggml_backend_buffer_type_t pinned = ggml_backend_dev_host_buffer_type(device);

        types[QUIRE_GRAPH_DEVICE + i] = ggml_backend_dev_buffer_type(device);
        if (pinned != NULL && ggml_backend_buft_is_host(pinned) && is_pinned_for(pinned, device)) {
            types[QUIRE_GRAPH_HOST] = pinned;
        }
    }
    *has_own = true;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < i; j++) {
            *has_own = *has_own && types[i] != types[j];
        }
    }
    return ggml_gallocr_new_n(types, (int)n);
}
