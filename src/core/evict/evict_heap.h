/* evict_heap.h - leftist heaps (Crane 1972; Knuth, TAOCP 3, 5.2.3) whose links lie in the nodes.
 *
 * A heap is the id of its first node, 0 = empty. Adding or removing any node takes O(log n) steps
 * in the worst case and no memory, so that moving a node between heaps cannot fail. A node has
 * QUIRE_NODE_LINKS sets of links, each for one heap at a time.
 *
 *   n_path  nodes on the rightmost path down from a node, including the node: at most log2(n + 1)
 *
 * Invariants: no node stands before its parent; n_path of a left child >= n_path of the right
 * child. Order: by key, smallest first; then by used_tick, then by id. None of these may change
 * while a node is in a heap.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_EVICT_HEAP_H
#define QUIRE_CORE_EVICT_HEAP_H

#include "core/prefix/prefix_node.h"

typedef struct quire_evict_heap {
    quire_prefix_nodes *nodes;
    uint32_t which; /* of the nodes' links */
    uint32_t *root;
} quire_evict_heap;

/* Add a node that is in no heap by these links. */
void quire_evict_heap_add(quire_evict_heap heap, uint32_t node, uint64_t key);

/* Remove a node of the heap. */
void quire_evict_heap_remove(quire_evict_heap heap, uint32_t node);

/* Check the order and the links. Returns the number of nodes. */
uint32_t quire_evict_heap_validate(quire_evict_heap heap);

/* Visit the nodes of a heap, each after its parent: quire_evict_heap_next(heap, 0) is the first,
 * 0 = the end. */
uint32_t quire_evict_heap_next(quire_evict_heap heap, uint32_t node);

#endif /* QUIRE_CORE_EVICT_HEAP_H */
