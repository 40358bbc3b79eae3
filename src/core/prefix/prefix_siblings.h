/* prefix_siblings.h - the children of a node in the order of their tokens.
 *
 * A treap: many children may share their first tokens, and the one that shares most with a given
 * text stands next to where that text would stand. Priorities are hashes of the ids.
 *
 * Invariant (prefix_publish.c sees to it): the tokens of no child begin with those of another.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_PREFIX_SIBLINGS_H
#define QUIRE_CORE_PREFIX_SIBLINGS_H

#include "core/prefix/prefix_node.h"

/* Whom a text stands between, and how many tokens it shares with each. A child that begins with
 * the whole text, or equals it, is `above`; one that the text begins with is `below`. */
typedef struct quire_prefix_place {
    uint32_t below; /* 0 = none */
    uint32_t above;
    uint32_t n_below;
    uint32_t n_above;
} quire_prefix_place;

/* Cost: O(log children) comparisons of tokens. */
quire_prefix_place quire_prefix_siblings_find(const quire_prefix_nodes *nodes, uint32_t parent,
                                              const int32_t *tokens, uint32_t n_tokens);

/* Add, remove a child; its tokens must not change in between. */
void quire_prefix_siblings_add(const quire_prefix_nodes *nodes, uint32_t parent, uint32_t child);
void quire_prefix_siblings_remove(const quire_prefix_nodes *nodes, uint32_t parent, uint32_t child);

/* The first child, the next one after a child; 0 = none. */
uint32_t quire_prefix_siblings_first(const quire_prefix_nodes *nodes, uint32_t parent);
uint32_t quire_prefix_siblings_next(const quire_prefix_nodes *nodes, uint32_t child);

/* Check order and priorities. Returns the number of children. */
uint32_t quire_prefix_siblings_validate(const quire_prefix_nodes *nodes, uint32_t parent);

#endif /* QUIRE_CORE_PREFIX_SIBLINGS_H */
