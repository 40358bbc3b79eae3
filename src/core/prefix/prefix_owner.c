/* prefix_owner.c - the rings of owners' nodes.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_owner.h"

#include "base/check.h"

/* Owners are consecutive numbers; the index uses the upper half of a hash. */
static uint64_t hash_of(uint64_t owner)
{
    return owner * 0x9e3779b97f4a7c15u;
}

static quire_prefix_node *at(const quire_prefix_owners *owners, uint32_t node)
{
    return quire_prefix_node_at(owners->nodes, node);
}

int quire_prefix_owners_init(quire_prefix_owners *owners, const quire_allocator *allocator,
                             const quire_prefix_nodes *nodes)
{
    owners->nodes = nodes;
    return quire_prefix_index_init(&owners->anchors, allocator);
}

void quire_prefix_owners_fini(quire_prefix_owners *owners)
{
    quire_prefix_index_fini(&owners->anchors);
}

int quire_prefix_owners_plan(quire_prefix_owners *owners)
{
    return quire_prefix_index_plan(&owners->anchors, owners->anchors.n + 1);
}

uint32_t quire_prefix_owners_find(const quire_prefix_owners *owners, uint64_t owner)
{
    uint32_t tag = quire_prefix_index_tag(hash_of(owner));
    uint32_t place = tag;
    uint32_t id;

    do {
        id = quire_prefix_index_next(&owners->anchors, tag, &place);
    } while (id != QUIRE_NODE_NULL && at(owners, id)->owner != owner);
    return id;
}

void quire_prefix_owners_add(quire_prefix_owners *owners, uint32_t id, uint64_t owner)
{
    quire_prefix_node *node = at(owners, id);
    uint32_t anchor;

    QUIRE_ASSERT(node->kind == QUIRE_NODE_PAGE && node->owner == 0);
    if (owner == 0) {
        return;
    }
    anchor = quire_prefix_owners_find(owners, owner);
    node->owner = owner;
    if (anchor == QUIRE_NODE_NULL) {
        node->owner_next = id;
        node->owner_prev = id;
        quire_prefix_index_add(&owners->anchors, hash_of(owner), id);
        return;
    }
    node->owner_prev = anchor;
    node->owner_next = at(owners, anchor)->owner_next;
    at(owners, node->owner_next)->owner_prev = id;
    at(owners, anchor)->owner_next = id;
}

void quire_prefix_owners_remove(quire_prefix_owners *owners, uint32_t id)
{
    quire_prefix_node *node = at(owners, id);

    if (node->owner == 0) {
        return;
    }
    if (quire_prefix_owners_find(owners, node->owner) == id) {
        quire_prefix_index_remove(&owners->anchors, hash_of(node->owner), id);
        if (node->owner_next != id) {
            quire_prefix_index_add(&owners->anchors, hash_of(node->owner), node->owner_next);
        }
    }
    at(owners, node->owner_prev)->owner_next = node->owner_next;
    at(owners, node->owner_next)->owner_prev = node->owner_prev;
    node->owner = 0;
}

void quire_prefix_owners_validate(const quire_prefix_owners *owners, uint64_t n_owned)
{
    uint64_t n = 0;
    uint32_t n_anchors = 0;

    for (uint64_t i = 0; i <= owners->anchors.mask; i++) {
        uint32_t anchor = owners->anchors.entries[i].node;
        uint32_t id = anchor;

        if (anchor == QUIRE_NODE_NULL) {
            continue;
        }
        n_anchors++;
        QUIRE_CHECK(quire_prefix_owners_find(owners, at(owners, anchor)->owner) == anchor);
        do {
            const quire_prefix_node *node = at(owners, id);

            QUIRE_CHECK(node->kind == QUIRE_NODE_PAGE && node->owner != 0);
            QUIRE_CHECK(node->owner == at(owners, anchor)->owner);
            QUIRE_CHECK(at(owners, node->owner_next)->owner_prev == id);
            QUIRE_CHECK(++n <= n_owned);
            id = node->owner_next;
        } while (id != anchor);
    }
    QUIRE_CHECK(n == n_owned && n_anchors == owners->anchors.n);
}
