/* graph_split.h - a graph whose last layers are computed on a device of ggml, cut into segments.
 *
 *   host     layers .. K 3, V 3, append, attention 3, the rest of layer 3, copies [x]
 *   device   Q, K and V of layer 4, copies [q k v]
 *   host     append, attention 4, copies [result]
 *   device   the rest of layer 4; Q, K and V of layer 5, copies [q k v]
 *   host     ...
 *
 * Where the graph is queued, append and attention are in the device's turn, between ggml's
 * operations, and their rows are in its memory:
 *
 *   host     layers .. K 3, V 3, append, attention 3, the rest of layer 3, copies [x]
 *   device   Q K V of layer 4 | append, attention 4 | the rest of layer 4; Q K V of layer 5 | ...
 *
 * A segment is a list of operations that one side computes in one turn. Other operations of our own
 * (states, streams) are the host's, also in layers on the device. The host also has operations that
 * read a weight in its memory, operations without an operand on the device, and operations that the
 * device's backend does not support. All other operations of these layers are the device's.
 *
 * A tensor that one side makes and the other reads gets a copy there, which is queued at the end of
 * the segment (graph_run.c). Copies are shared by all readers of a side. Results (logits, hidden
 * states) are the host's.
 *
 * A turn has all operations that can run without the other side, in the order in which the graph
 * was built, so a layer on the device costs two changes of sides. Of the device's turn only those
 * come first that copies to the host need. The others are *early* operations of the device's next
 * turn: it computes them beside the host's, as the network of a layer whose attention and network
 * read the same rows. There are early operations where the sides have a memory each: in a common
 * one the allocator would give them places of the host's operations, which run at the same time.
 *
 * With several devices (layers of several cards), each has segments of its own, behind one of the
 * host's each. A tensor goes from one device to another by way of the host.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GRAPH_SPLIT_H
#define QUIRE_MODEL_GRAPH_SPLIT_H

#include "model/graph.h"

/* The side that computes a segment, and the buffer of the allocator (ggml_gallocr_new_n()) in which
 * a tensor lies. */
#define QUIRE_GRAPH_HOST 0
#define QUIRE_GRAPH_DEVICE                                                                         \
    1 /* the first; device i of the weights is side QUIRE_GRAPH_DEVICE + i                         \
       */
#define QUIRE_GRAPH_SIDES (QUIRE_GRAPH_DEVICE + QUIRE_MODEL_DEVICES_MAX)

/* Cut a graph that was built as if the host computed all of it. from: its first node of a layer on
 * a device; has_early: operations may be early, as all sides have memory of their own.
 * graph->cgraph, logits and hidden become others. Errors: QUIRE_NOMEM. */
int quire_graph_split(quire_graph *graph, const quire_weights *weights, int from, bool has_early);

/* Tensors of a graph's context, for a graph of n_nodes that is split: those of the copies too. */
size_t quire_graph_split_nodes(size_t n_nodes);

/* Whether a device may be given operations in one submission. */
bool quire_split_is_small(struct ggml_tensor *const *ops, uint32_t n);

/* The allocator of graphs, with a buffer for each side. *has_own: each has memory of its own. NULL:
 * no memory. */
ggml_gallocr_t quire_graph_buffer_new(const quire_weights *weights, bool *has_own);

#endif /* QUIRE_MODEL_GRAPH_SPLIT_H */
