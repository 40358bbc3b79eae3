/* prefix_owner.h - the nodes that one owner published and no other owner has used. So the cost of a
 * session's end depends on the session's nodes, not on the size of the tree.
 *
 * The nodes of an owner form a ring (owner_next, owner_prev). The index maps the owner's number to
 * one node, the anchor; other nodes enter and leave the ring without the index.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_PREFIX_OWNER_H
#define QUIRE_CORE_PREFIX_OWNER_H

#include "core/prefix/prefix_index.h"
#include "core/prefix/prefix_node.h"

typedef struct quire_prefix_owners {
    quire_prefix_index anchors;
    const quire_prefix_nodes *nodes;
} quire_prefix_owners;

/* Errors: QUIRE_NOMEM. */
int quire_prefix_owners_init(quire_prefix_owners *owners, const quire_allocator *allocator,
                             const quire_prefix_nodes *nodes);
void quire_prefix_owners_fini(quire_prefix_owners *owners);

/* Make sure that the next add succeeds. Errors: QUIRE_NOMEM. */
int quire_prefix_owners_plan(quire_prefix_owners *owners);

/* A node of an owner; 0 = none. */
uint32_t quire_prefix_owners_find(const quire_prefix_owners *owners, uint64_t owner);

/* Set the owner of a node without an owner; remove the owner again. Nothing happens for owner 0. */
void quire_prefix_owners_add(quire_prefix_owners *owners, uint32_t node, uint64_t owner);
void quire_prefix_owners_remove(quire_prefix_owners *owners, uint32_t node);

/* Check the rings and that they hold n_owned nodes in all. */
void quire_prefix_owners_validate(const quire_prefix_owners *owners, uint64_t n_owned);

#endif /* QUIRE_CORE_PREFIX_OWNER_H */
