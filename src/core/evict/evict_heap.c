/* evict_heap.c - leftist heaps: every operation merges along the right spines.
 *
 * SPDX-License-Identifier: MIT */
#include "core/evict/evict_heap.h"

static quire_evict_link *link_of(quire_evict_heap heap, uint32_t id)
{
    return &quire_prefix_node_at(heap.nodes, id)->links[heap.which];
}

static uint32_t n_path_of(quire_evict_heap heap, uint32_t id)
{
    return id != QUIRE_NODE_NULL ? link_of(heap, id)->n_path : 0;
}

static bool is_before(quire_evict_heap heap, uint32_t a, uint32_t b)
{
    const quire_prefix_node *x = quire_prefix_node_at(heap.nodes, a);
    const quire_prefix_node *y = quire_prefix_node_at(heap.nodes, b);

    if (x->links[heap.which].key != y->links[heap.which].key) {
        return x->links[heap.which].key < y->links[heap.which].key;
    }
    return x->used_tick != y->used_tick ? x->used_tick < y->used_tick : a < b;
}

/* Order a node's children and set n_path. Returns whether n_path changed. */
static bool settle(quire_evict_heap heap, uint32_t id)
{
    quire_evict_link *at = link_of(heap, id);
    uint32_t n_left = n_path_of(heap, at->left);
    uint32_t n_right = n_path_of(heap, at->right);
    uint32_t n = 1 + (n_left < n_right ? n_left : n_right);
    bool is_changed = at->n_path != n;

    if (n_left < n_right) {
        uint32_t left = at->left;

        at->left = at->right;
        at->right = left;
    }
    at->n_path = (uint8_t)n;
    return is_changed;
}

/* Merge two heaps, either of which may be empty. The result's root has no parent. */
static uint32_t merge(quire_evict_heap heap, uint32_t a, uint32_t b)
{
    uint32_t root = QUIRE_NODE_NULL;
    uint32_t last = QUIRE_NODE_NULL;

    for (;;) {
        uint32_t rest = b;

        if (a != QUIRE_NODE_NULL && (b == QUIRE_NODE_NULL || is_before(heap, a, b))) {
            rest = a;
            a = b;
        }
        /* rest comes first and hangs below last; a waits. */
        if (rest != QUIRE_NODE_NULL) {
            link_of(heap, rest)->up = last;
        }
        if (last == QUIRE_NODE_NULL) {
            root = rest;
        } else {
            link_of(heap, last)->right = rest;
        }
        if (a == QUIRE_NODE_NULL) {
            break;
        }
        last = rest;
        b = link_of(heap, rest)->right;
    }
    while (last != QUIRE_NODE_NULL) {
        (void)settle(heap, last);
        last = link_of(heap, last)->up;
    }
    return root;
}

void quire_evict_heap_add(quire_evict_heap heap, uint32_t node, uint64_t key)
{
    quire_evict_link *at = link_of(heap, node);

    at->key = key;
    at->up = QUIRE_NODE_NULL;
    at->left = QUIRE_NODE_NULL;
    at->right = QUIRE_NODE_NULL;
    at->n_path = 1;
    *heap.root = merge(heap, *heap.root, node);
}

/* On the way up each changed n_path is larger by one than the last, so there are at most log2 n
 * steps. */
void quire_evict_heap_remove(quire_evict_heap heap, uint32_t node)
{
    const quire_evict_link at = *link_of(heap, node);
    uint32_t below = merge(heap, at.left, at.right);
    uint32_t up = at.up;

    if (up == QUIRE_NODE_NULL) {
        QUIRE_CHECK(*heap.root == node);
        *heap.root = below;
        return;
    }
    if (below != QUIRE_NODE_NULL) {
        link_of(heap, below)->up = up;
    }
    if (link_of(heap, up)->left == node) {
        link_of(heap, up)->left = below;
    } else {
        QUIRE_CHECK(link_of(heap, up)->right == node);
        link_of(heap, up)->right = below;
    }
    while (up != QUIRE_NODE_NULL && settle(heap, up)) {
        up = link_of(heap, up)->up;
    }
}

uint32_t quire_evict_heap_next(quire_evict_heap heap, uint32_t node)
{
    const quire_evict_link *at;

    if (node == QUIRE_NODE_NULL) {
        return *heap.root;
    }
    at = link_of(heap, node);
    if (at->left != QUIRE_NODE_NULL) {
        return at->left; /* no right child without a left one */
    }
    while (at->up != QUIRE_NODE_NULL) {
        const quire_evict_link *up = link_of(heap, at->up);

        if (up->left == node && up->right != QUIRE_NODE_NULL) {
            return up->right;
        }
        node = at->up;
        at = up;
    }
    return QUIRE_NODE_NULL;
}

uint32_t quire_evict_heap_validate(quire_evict_heap heap)
{
    uint32_t n = 0;

    QUIRE_CHECK(*heap.root == QUIRE_NODE_NULL || link_of(heap, *heap.root)->up == QUIRE_NODE_NULL);
    for (uint32_t id = quire_evict_heap_next(heap, QUIRE_NODE_NULL); id != QUIRE_NODE_NULL;
         id = quire_evict_heap_next(heap, id)) {
        const quire_evict_link *at = link_of(heap, id);
        uint32_t n_right = n_path_of(heap, at->right);

        QUIRE_CHECK(at->n_path == n_right + 1 && n_path_of(heap, at->left) >= n_right);
        QUIRE_CHECK(at->left == QUIRE_NODE_NULL ||
                    (link_of(heap, at->left)->up == id && !is_before(heap, at->left, id)));
        QUIRE_CHECK(at->right == QUIRE_NODE_NULL ||
                    (link_of(heap, at->right)->up == id && !is_before(heap, at->right, id)));
        n++;
    }
    return n;
}
