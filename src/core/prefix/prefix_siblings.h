/* prefix_siblings.h - the children of a node in the order of their tokens.
 *
 * A treap, because many children may share their first tokens. The child that shares most tokens
 * with a given text is next to the text's place in the order. Priorities are hashes of the ids.
 *
 * Invariant (kept by prefix_publish.c): no child's tokens are a prefix of another child's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_PREFIX_SIBLINGS_H
#define QUIRE_CORE_PREFIX_SIBLINGS_H

#include "core/prefix/prefix_node.h"

/* The neighbours of a text, and the number of tokens shared with each. A child that begins with the
 * whole text, or equals it, is `above`; a child whose tokens are a prefix of the text is
 * `below`. */
typedef struct quire_prefix_place {
    uint32_t below; /* 0 = none */
    uint32_t above;
    uint32_t n_below;
    uint32_t n_above;
} quire_prefix_place;

/* Cost: O(log children) comparisons of tokens. */
quire_prefix_place quire_prefix_siblings_find(const quire_prefix_nodes *nodes, uint32_t parent,
                                              const int32_t *tokens, uint32_t n_tokens);

/* Add or remove a child. Its tokens must not change in between. */
void quire_prefix_siblings_add(const quire_prefix_nodes *nodes, uint32_t parent, uint32_t child);
void quire_prefix_siblings_remove(const quire_prefix_nodes *nodes, uint32_t parent, uint32_t child);

/* The first child; the next child after a child; 0 = none. */
uint32_t quire_prefix_siblings_first(const quire_prefix_nodes *nodes, uint32_t parent);
uint32_t quire_prefix_siblings_next(const quire_prefix_nodes *nodes, uint32_t child);

/* Check order and priorities. Returns the number of children. */
uint32_t quire_prefix_siblings_validate(const quire_prefix_nodes *nodes, uint32_t parent);

#endif /* QUIRE_CORE_PREFIX_SIBLINGS_H */
