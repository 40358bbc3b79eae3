/* graph_split_internal.h - the state of cutting a graph; for graph_split.c and graph_segments.c.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GRAPH_SPLIT_INTERNAL_H
#define QUIRE_MODEL_GRAPH_SPLIT_INTERNAL_H

#include "model/graph_split.h"

#define QUIRE_SPLIT_NEITHER UINT8_MAX /* of a view: no side computes it */

/* The state of a tensor of the graph's context. */
typedef struct split_tensor {
    uint8_t memory;             /* the side in whose memory it lies */
    uint8_t computer;           /* the side that computes it, or queues it where it is a copy */
    bool is_copy;               /* to the other side */
    const quire_graph_own *own; /* it is queued in the device's turn; NULL: it is ggml's */
    bool waits;                 /* it is not in a segment yet */
    bool is_wanted;             /* of an operation in the device's turn: the host needs it next */
    bool is_early;              /* it could have been in the device's turn before */
    struct ggml_tensor *dense;  /* without gaps, on the same side; NULL: there is none */
} split_tensor;

/* The places in the order at which the parts of a segment end. */
typedef struct split_ends {
    uint32_t early, rest, copies;
    uint8_t side;
} split_ends;

typedef struct graph_split {
    quire_graph *graph;
    const quire_weights *weights;
    int from;
    bool has_early;
    uint32_t n_sides;
    split_tensor *tensors; /* [n_tensors], by place in the context */
    size_t n_tensors;
    struct ggml_tensor **list; /* [n]: the operations, with copies where they are read first */
    uint32_t n, n_max;
    struct ggml_tensor **order;       /* [n]: segment by segment */
    struct ggml_tensor **turn, **off; /* [n]: of the turn at hand; put off to the next */
    split_ends *ends;                 /* [n_segments] */
    struct ggml_tensor **copies;      /* [n_tensors][n_sides]; NULL: there is none */
    struct ggml_tensor *factors, *factors_copies[QUIRE_GRAPH_SIDES]; /* the weight copied last */
} graph_split;

/* Tensors of a context lie one behind the other, at least so far apart. */
static inline size_t quire_split_place_of(const graph_split *s, const struct ggml_tensor *t)
{
    const char *begin = ggml_get_mem_buffer(s->graph->ctx);

    return (size_t)((const char *)t - begin) / ggml_tensor_overhead();
}

static inline split_tensor *quire_split_tensor_of(const graph_split *s, const struct ggml_tensor *t)
{
    return &s->tensors[quire_split_place_of(s, t)];
}

/* Make the segments from the order and the ends of their parts, and the graph that memory is given
 * to. Errors: QUIRE_NOMEM. */
int quire_split_segments_make(graph_split *s, uint32_t n_segments);

#endif /* QUIRE_MODEL_GRAPH_SPLIT_INTERNAL_H */
