/* prefix_node.c - chunks of nodes.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_node.h"

#include "quire/prefix.h"

#include <string.h>

#ifdef QUIRE_TINY
#define CHUNK_BYTES  ((size_t)512)
#define CHUNKS_FIRST 1u
#else
#define CHUNK_BYTES  ((size_t)2 << 20)
#define CHUNKS_FIRST 16u
#endif

void quire_prefix_nodes_init(quire_prefix_nodes *nodes, const quire_allocator *allocator,
                             uint32_t n_groups, uint32_t page_tokens)
{
    size_t bytes =
        sizeof(quire_prefix_node) + n_groups * sizeof(uint32_t) + page_tokens * sizeof(int32_t);

    memset(nodes, 0, sizeof(*nodes));
    nodes->allocator = *allocator;
    nodes->n_groups = n_groups;
    nodes->node_bytes = (bytes + 15) / 16 * 16;
    while ((nodes->node_bytes << (nodes->chunk_bits + 1)) <= CHUNK_BYTES) {
        nodes->chunk_bits++;
    }
    nodes->id_end = 1; /* 0 = none */
    nodes->nodes_max = QUIRE_PREFIX_NODES_MAX;
}

void quire_prefix_nodes_fini(quire_prefix_nodes *nodes)
{
    for (uint32_t i = 0; i < nodes->n_chunks; i++) {
        nodes->allocator.free(nodes->allocator.ctx, nodes->chunks[i]);
    }
    nodes->allocator.free(nodes->allocator.ctx, nodes->chunks);
    memset(nodes, 0, sizeof(*nodes));
}

static int chunks_grow(quire_prefix_nodes *nodes)
{
    uint32_t capacity = nodes->chunks_capacity > 0 ? nodes->chunks_capacity * 2 : CHUNKS_FIRST;
    unsigned char **chunks =
        nodes->allocator.alloc(nodes->allocator.ctx, capacity * sizeof(*chunks));

    QUIRE_FAIL_IF(chunks == NULL, QUIRE_NOMEM);
    if (nodes->n_chunks > 0) {
        memcpy(chunks, nodes->chunks, nodes->n_chunks * sizeof(*chunks));
    }
    nodes->allocator.free(nodes->allocator.ctx, nodes->chunks);
    nodes->chunks = chunks;
    nodes->chunks_capacity = capacity;
    return QUIRE_OK;
}

int quire_prefix_nodes_plan(quire_prefix_nodes *nodes)
{
    unsigned char *chunk;

    QUIRE_FAIL_IF(nodes->n_used >= nodes->nodes_max, QUIRE_LIMIT);
    if (nodes->free_head != QUIRE_NODE_NULL || nodes->id_end < nodes->n_chunks
                                                                   << nodes->chunk_bits) {
        return QUIRE_OK;
    }
    if (nodes->n_chunks == nodes->chunks_capacity) {
        QUIRE_TRY(chunks_grow(nodes));
    }
    chunk = nodes->allocator.alloc(nodes->allocator.ctx, nodes->node_bytes << nodes->chunk_bits);
    QUIRE_FAIL_IF(chunk == NULL, QUIRE_NOMEM);
    nodes->chunks[nodes->n_chunks++] = chunk;
    /* With one node per chunk the first chunk holds only id 0. */
    return nodes->id_end < nodes->n_chunks << nodes->chunk_bits ? QUIRE_OK
                                                                : quire_prefix_nodes_plan(nodes);
}

uint32_t quire_prefix_nodes_take(quire_prefix_nodes *nodes, quire_node_kind kind)
{
    uint32_t id = nodes->free_head;
    quire_prefix_node *node;

    if (id != QUIRE_NODE_NULL) {
        node = quire_prefix_node_at(nodes, id);
        nodes->free_head = node->left;
    } else {
        id = nodes->id_end++;
        QUIRE_CHECK(id < nodes->n_chunks << nodes->chunk_bits);
        node = quire_prefix_node_at(nodes, id);
    }
    memset(node, 0, nodes->node_bytes);
    node->kind = (uint8_t)kind;
    nodes->n_used++;
    return id;
}

void quire_prefix_nodes_give(quire_prefix_nodes *nodes, uint32_t id)
{
    quire_prefix_node *node = quire_prefix_node_at(nodes, id);

    QUIRE_CHECK(node->kind != QUIRE_NODE_FREE);
    node->kind = QUIRE_NODE_FREE;
    node->left = nodes->free_head;
    nodes->free_head = id;
    nodes->n_used--;
}
