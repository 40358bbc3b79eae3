/* prefix_siblings.c - the treap of a node's children; no recursion, no memory of its own.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_siblings.h"

#include <string.h>

/* The finalizer of MurmurHash3 (Appleby): one to one, so all priorities differ. */
static uint32_t priority(const quire_prefix_nodes *nodes, uint32_t id)
{
    id ^= nodes->seed;
    id ^= id >> 16;
    id *= 0x85ebca6bu;
    id ^= id >> 13;
    id *= 0xc2b2ae35u;
    return id ^ id >> 16;
}

static uint32_t common_tokens(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;

    for (; i + 2 <= n && memcmp(a + i, b + i, 2 * sizeof(*a)) == 0; i += 2) {
    }
    while (i < n && a[i] == b[i]) {
        i++;
    }
    return i;
}

/* Compare a text with a node's tokens: < 0, 0, > 0; *n_same gets the number of shared tokens. */
static int compare(const quire_prefix_nodes *nodes, uint32_t id, const int32_t *tokens,
                   uint32_t n_tokens, uint32_t *n_same)
{
    const quire_prefix_node *node = quire_prefix_node_at(nodes, id);
    const int32_t *theirs = quire_prefix_node_tokens_const(nodes, node);
    uint32_t n = node->n_tokens < n_tokens ? node->n_tokens : n_tokens;
    uint32_t same = common_tokens(theirs, tokens, n);

    *n_same = same;
    if (same < n) {
        return tokens[same] < theirs[same] ? -1 : 1;
    }
    return n_tokens == node->n_tokens ? 0 : n_tokens < node->n_tokens ? -1 : 1;
}

quire_prefix_place quire_prefix_siblings_find(const quire_prefix_nodes *nodes, uint32_t parent,
                                              const int32_t *tokens, uint32_t n_tokens)
{
    uint32_t at = quire_prefix_node_at(nodes, parent)->children;
    quire_prefix_place place = { 0, 0, 0, 0 };

    while (at != QUIRE_NODE_NULL) {
        const quire_prefix_node *node = quire_prefix_node_at(nodes, at);
        uint32_t n_same;

        if (compare(nodes, at, tokens, n_tokens, &n_same) <= 0) {
            place.above = at;
            place.n_above = n_same;
            at = node->left;
        } else {
            place.below = at;
            place.n_below = n_same;
            at = node->right;
        }
    }
    return place;
}

/* Split the treap at `at` into the nodes below and above a child. */
static void split(const quire_prefix_nodes *nodes, uint32_t at, quire_prefix_node *child)
{
    const int32_t *tokens = quire_prefix_node_tokens(nodes, child);
    uint32_t *below = &child->left;
    uint32_t *above = &child->right;

    while (at != QUIRE_NODE_NULL) {
        quire_prefix_node *node = quire_prefix_node_at(nodes, at);
        uint32_t n_same;

        if (compare(nodes, at, tokens, child->n_tokens, &n_same) < 0) {
            *above = at;
            above = &node->left;
            at = *above;
        } else {
            *below = at;
            below = &node->right;
            at = *below;
        }
    }
    *below = QUIRE_NODE_NULL;
    *above = QUIRE_NODE_NULL;
}

void quire_prefix_siblings_add(const quire_prefix_nodes *nodes, uint32_t parent, uint32_t child)
{
    quire_prefix_node *above = quire_prefix_node_at(nodes, parent);
    quire_prefix_node *node = quire_prefix_node_at(nodes, child);
    const int32_t *tokens = quire_prefix_node_tokens(nodes, node);
    uint32_t *link = &above->children;

    while (*link != QUIRE_NODE_NULL && priority(nodes, *link) > priority(nodes, child)) {
        quire_prefix_node *at = quire_prefix_node_at(nodes, *link);
        uint32_t n_same;

        link = compare(nodes, *link, tokens, node->n_tokens, &n_same) < 0 ? &at->left : &at->right;
    }
    split(nodes, *link, node);
    *link = child;
    above->n_children++;
}

void quire_prefix_siblings_remove(const quire_prefix_nodes *nodes, uint32_t parent, uint32_t child)
{
    quire_prefix_node *above = quire_prefix_node_at(nodes, parent);
    const quire_prefix_node *node = quire_prefix_node_at(nodes, child);
    const int32_t *tokens = quire_prefix_node_tokens_const(nodes, node);
    uint32_t *link = &above->children;
    uint32_t a = node->left;
    uint32_t b = node->right;

    while (*link != child) {
        quire_prefix_node *at;
        uint32_t n_same;

        QUIRE_CHECK(*link != QUIRE_NODE_NULL);
        at = quire_prefix_node_at(nodes, *link);
        link = compare(nodes, *link, tokens, node->n_tokens, &n_same) < 0 ? &at->left : &at->right;
    }
    while (a != QUIRE_NODE_NULL && b != QUIRE_NODE_NULL) {
        if (priority(nodes, a) > priority(nodes, b)) {
            *link = a;
            link = &quire_prefix_node_at(nodes, a)->right;
            a = *link;
        } else {
            *link = b;
            link = &quire_prefix_node_at(nodes, b)->left;
            b = *link;
        }
    }
    *link = a != QUIRE_NODE_NULL ? a : b;
    above->n_children--;
}

uint32_t quire_prefix_siblings_first(const quire_prefix_nodes *nodes, uint32_t parent)
{
    uint32_t at = quire_prefix_node_at(nodes, parent)->children;

    while (at != QUIRE_NODE_NULL && quire_prefix_node_at(nodes, at)->left != QUIRE_NODE_NULL) {
        at = quire_prefix_node_at(nodes, at)->left;
    }
    return at;
}

uint32_t quire_prefix_siblings_next(const quire_prefix_nodes *nodes, uint32_t child)
{
    const quire_prefix_node *node = quire_prefix_node_at(nodes, child);
    const int32_t *tokens = quire_prefix_node_tokens_const(nodes, node);
    uint32_t at = quire_prefix_node_at(nodes, node->parent)->children;
    uint32_t next = QUIRE_NODE_NULL;

    while (at != QUIRE_NODE_NULL) {
        uint32_t n_same;

        if (compare(nodes, at, tokens, node->n_tokens, &n_same) < 0) {
            next = at;
            at = quire_prefix_node_at(nodes, at)->left;
        } else {
            at = quire_prefix_node_at(nodes, at)->right;
        }
    }
    return next;
}

uint32_t quire_prefix_siblings_validate(const quire_prefix_nodes *nodes, uint32_t parent)
{
    uint32_t n = 0;

    for (uint32_t at = quire_prefix_siblings_first(nodes, parent), next; at != QUIRE_NODE_NULL;
         at = next, n++) {
        quire_prefix_node *node = quire_prefix_node_at(nodes, at);
        uint32_t n_same;

        QUIRE_CHECK(node->parent == parent && node->kind == QUIRE_NODE_PAGE);
        QUIRE_CHECK(node->left == QUIRE_NODE_NULL ||
                    priority(nodes, node->left) < priority(nodes, at));
        QUIRE_CHECK(node->right == QUIRE_NODE_NULL ||
                    priority(nodes, node->right) < priority(nodes, at));
        next = quire_prefix_siblings_next(nodes, at);
        if (next != QUIRE_NODE_NULL) {
            QUIRE_CHECK(compare(nodes, next, quire_prefix_node_tokens(nodes, node), node->n_tokens,
                                &n_same) < 0);
            QUIRE_CHECK(n_same < node->n_tokens);
        }
    }
    QUIRE_CHECK(n == quire_prefix_node_at(nodes, parent)->n_children);
    return n;
}
