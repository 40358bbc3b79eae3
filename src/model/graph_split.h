/* graph_split.h - a graph whose last layers are computed on a device of ggml, cut into segments.
 *
 *   host     layers .. K 3, V 3, append, attention 3, the rest of layer 3, [x] down
 *   device   Q, K and V of layer 4
 *   host     [q k v] up, append, attention 4, [result] down
 *   device   the rest of layer 4; Q, K and V of layer 5
 *   host     ...
 *
 * A segment is a list of operations that one side computes by one call. Operations of our own
 * (append, attention, routers) are the host's, also in layers on the device, and so are products
 * with weights that stayed in the host's memory, and operations that the device lacks. All others
 * of these layers are the device's.
 *
 * A tensor that one side makes and the other reads gets a copy there, made by an operation of the
 * host's: "up" reads the device's memory, "down" writes it. Each waits for its end. Copies are
 * shared by all readers of a side. Results (logits, hidden states) are the host's.
 *
 * All operations that can run without the other side are in one segment, in the order in which the
 * graph was built, so a layer on the device costs two changes of sides.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GRAPH_SPLIT_H
#define QUIRE_MODEL_GRAPH_SPLIT_H

#include "model/graph.h"

/* The side that computes a segment, and the buffer of the allocator (ggml_gallocr_new_n()) in which
 * a tensor lies. */
#define QUIRE_GRAPH_HOST   0
#define QUIRE_GRAPH_DEVICE 1

/* Cut a graph that was built as if the host computed all of it. from: its first node of a layer on
 * the device. graph->cgraph, logits and hidden become others. Errors: QUIRE_NOMEM. */
int quire_graph_split(quire_graph *graph, const quire_weights *weights, int from);

/* Tensors of a graph's context, for a graph of n_nodes that is split: those of the copies too. */
size_t quire_graph_split_nodes(size_t n_nodes);

#endif /* QUIRE_MODEL_GRAPH_SPLIT_H */
