/* graph.h - the ggml graph of one step, and a small cache of graphs by shape.
 *
 *   tokens -> rows of the embedding
 *   per layer:  norm, Q K V (+ bias, qk-norm), rope, gates of the K sources on Q
 *               (which of these a layer has: archs.h; the blocks: graph_attn.c, graph_ffn.c)
 *               append     custom op: stores K and V into the pages      args {K, V}
 *               attention  custom op: Q against the pages                args {Q .., append}
 *               output projection, FFN
 *   rows whose logits are wanted -> output matrix
 *
 * The attention op names the append op among its arguments, so ggml computes the attention later.
 * Both ops read page tables and pages from the attention device. A graph therefore holds only the
 * shape of a step, and can be computed again and again. Behind its append the last layer computes
 * only the rows whose logits are wanted; without such rows it ends there.
 *
 * Layers that only read K and V of other layers have no append. If the last layers of a model are
 * such layers, only the logits read their rows: from the attention of the last layer that stores
 * on, the graph goes on with the wanted rows alone (early exit). Attention is planned again there
 * for these rows, which are the last ones of each sequence that wants logits.
 *
 * A recurrent layer has one operation in place of append and attention (graph_recurrent.c). It
 * reads and writes the states of the step's sequences (recurrent.h) and computes all rows.
 *
 * Of a model whose last layers lie on a device of ggml, the graph is cut into segments that host
 * and device compute in turns (graph_split.h). A shape has two such graphs: in one, append and
 * attention of these layers are the host's; in the other they are queued in the device's turn, with
 * rows in its memory (quire_attn_device.queue).
 *
 * All graphs share one compute buffer, reserved for the largest shape: only one can be computed at
 * a time, and a result lives until the next computation.
 *
 * Thread: owner; the two ops run on all of ggml's threads.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GRAPH_H
#define QUIRE_MODEL_GRAPH_H

#include "model/backend.h"
#include "model/backend_calls.h"
#include "model/weights.h"

#include "model/recurrent.h"
#include "model/runtime_hidden.h"
#include "quire/attn.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#define QUIRE_GRAPHS_MAX 12u

/* The data of a layer's two ops; constant after the runtime was created, except for the times. */
typedef struct quire_graph_op {
    const quire_attn_device *device;
    quire_attn_layer layer; /* constants; the ops fill in the row pointers of their call */
    uint32_t call;
    bool has_append;
    bool pairs_qk; /* the append reads the queries */
    uint32_t layer_index;
    quire_hidden_fn *hidden; /* NULL: the append does not get the layer's normed input */
    void *hidden_ctx;
    uint64_t rows_total; /* rows of attention; written by thread 0 */
    uint64_t append_ns;  /* written by thread 0 */
    uint64_t attn_ns;
} quire_graph_op;

/* The data of a recurrent layer's op; constant after the runtime was created. */
typedef struct quire_graph_recurrent {
    const quire_states *states;
    size_t offset;        /* of the layer in a state, in floats */
    const float *kernel;  /* [conv_taps][conv_width] */
    uint32_t taps, width; /* of the convolution */
    /* Of a delta net: [n_v_heads] each, and [d_head]. */
    const quire_recurrent_desc *shape;
    const float *dt, *decay, *norm;
    float eps;
    /* Of Mamba-2, beside dt and decay: [n_v_heads] and [conv_width]. */
    const float *skip, *bias;
} quire_graph_recurrent;

/* The second plan of a step, at the early exit. */
typedef struct quire_graph_exit {
    const quire_attn_device *device;
    const quire_attn_batch *batch; /* of the wanted rows; the step sets it */
    int status;                    /* of the plan */
} quire_graph_exit;

/* An append or attention, which may be queued. */
typedef struct quire_graph_own {
    struct ggml_tensor *tensor;
    quire_graph_op *op;
    bool is_append;
} quire_graph_own;

/* Work of a side: operations of ggml's, or of a layer on the device append, attention, or both. */
typedef struct quire_graph_work {
    struct ggml_cgraph *cgraph; /* NULL: of a layer, then: */
    bool is_small;              /* the graph: it may be one submission */
    quire_graph_op *op;
    const struct ggml_tensor *append, *attention; /* NULL: none; not both */
} quire_graph_work;

/* The work of host or device in one turn: operations, then copies of their results to the other
 * side's memory. The host's operations are one graph at most. */
typedef struct quire_graph_segment {
    const quire_graph_work *early; /* [n_early] of the device: operations that need nothing of the
                                      host's segment before, and run beside it */
    const quire_graph_work *rest;  /* [n_rest] */
    uint32_t n_early, n_rest;
    uint8_t side;                      /* graph_split.h */
    struct ggml_tensor *const *copies; /* [n_copies], each of its src[0] */
    const int *copies_to;              /* [n_copies]: the sides in whose memory they lie */
    uint32_t n_copies;
} quire_graph_segment;

typedef struct quire_graph {
    struct ggml_context *ctx; /* NULL: unused entry */
    struct ggml_cgraph *cgraph;
    struct ggml_tensor *tokens;        /* i32 [n_rows] */
    struct ggml_tensor *positions;     /* i32 [n_rows] */
    struct ggml_tensor *q_scales;      /* f32 [1][1][n_rows]; NULL without a temperature */
    struct ggml_tensor *out_rows;      /* i32 [n_logits]; NULL when all rows or none are wanted */
    struct ggml_tensor *out_positions; /* i32 [n_logits]; NULL without an early exit */
    struct ggml_tensor *logits;        /* f32 [n_logits][n_vocab]; NULL when none are wanted */
    struct ggml_tensor *hidden;        /* f32 [n_logits][n_embd]: the input of the output matrix */
    /* Of a model with layers on a device (graph_split.h): the host computes segments 0, 2 .., the
     * device 1, 3 ..; else one graph is all. */
    struct ggml_context *segments_ctx;
    quire_graph_segment *segments; /* [n_segments] */
    quire_graph_work *works;       /* [n_works], of all segments */
    uint32_t n_segments, n_works;
    bool is_queued;        /* appends and attention of layers on the device are in its turns: */
    quire_graph_own *owns; /* [n_owns], these */
    uint32_t n_owns;
    ptrdiff_t shift;            /* from their tensors' data to their addresses on the device */
    struct ggml_tensor **order; /* the graph's nodes, segment by segment */
    int *buffer_ids;            /* of the graph's nodes; NULL = the host's */
    uint32_t n_rows;
    uint32_t n_logits;
    uint64_t used_at;
} quire_graph;

/* desc, weights and ops are borrowed. */
typedef struct quire_graphs_opts {
    const quire_model_desc *desc;
    const quire_weights *weights;
    quire_graph_op *ops;              /* [n_layer] */
    quire_graph_recurrent *recurrent; /* [n_layer]; NULL in a model without recurrent layers */
    quire_graph_exit *exit;
    struct ggml_tensor *rope_factors; /* of the weights, for this context; NULL = none */
    quire_backend_device *layers;     /* of layers on a device; not read to measure */
    uint32_t n_rows_max;
    uint32_t n_threads;
} quire_graphs_opts;

struct quire_graph_experts;

typedef struct quire_graphs {
    quire_graphs_opts opts;
    size_t linear_block_bytes;           /* see linear.h */
    struct quire_graph_experts *experts; /* [n_layer]; NULL in a model without experts */
    ggml_gallocr_t buffer;
    bool has_own_memories; /* host and devices have one each in it */
    quire_graph entries[QUIRE_GRAPHS_MAX];
    uint64_t clock;
    uint64_t built_total;
    uint64_t reused_total;
} quire_graphs;

/* Whether layers above the last one that stores, or is recurrent, run for wanted rows only. */
static inline bool quire_graph_has_exit(const quire_model_desc *desc)
{
    return desc->last_stored + 1 < desc->n_layer;
}

/* Compute a graph whose inputs are written (graph_run.c); devices: [n_devices] of the weights',
 * which nobody else uses meanwhile; not used by a graph without segments. Nothing is queued there
 * afterwards. */
enum ggml_status quire_graph_compute(const quire_graph *graph, const quire_backend *host,
                                     quire_backend_device *devices, uint32_t n_devices);

/* Reserve the compute buffer for n_rows_max rows, logits of all of them included. Errors:
 * QUIRE_NOMEM. Memory: release with quire_graphs_fini(). */
int quire_graphs_init(quire_graphs *graphs, const quire_graphs_opts *opts);
void quire_graphs_fini(quire_graphs *graphs);

/* The graph of a shape, built if it is not in the cache. *out is valid until the next call.
 * is_queued: with layers on a device, the one in which appends and attention are queued there.
 * Errors: QUIRE_NOMEM, QUIRE_UNSUPP (is_queued, and the device does not tell where its tensors
 * are). Cost: no allocation when the shape is in the cache. */
int quire_graphs_get(quire_graphs *graphs, uint32_t n_rows, uint32_t n_logits, bool is_queued,
                     quire_graph **out);

/* The compute buffer in the host's memory, and its part in the device's. */
size_t quire_graphs_buffer_bytes(const quire_graphs *graphs);
size_t quire_graphs_device_bytes(const quire_graphs *graphs, uint32_t device);

/* The memory of graphs. */
typedef struct quire_graphs_size {
    uint64_t buffer_bytes; /* quire_graphs_buffer_bytes() after quire_graphs_init() */
    uint64_t device_bytes[QUIRE_MODEL_DEVICES_MAX]; /* quire_graphs_device_bytes() */
    uint64_t work_bytes; /* quire_backend_work_bytes() of the largest graph */
    uint64_t kept_bytes; /* a full cache of graphs, and the allocator's table of one */
} quire_graphs_size;

/* Compute it without the memory; opts->weights may be an outline (weights_outline.h). Errors:
 * QUIRE_NOMEM. */
int quire_graphs_measure(const quire_graphs_opts *opts, quire_graphs_size *out);

#endif /* QUIRE_MODEL_GRAPH_H */
