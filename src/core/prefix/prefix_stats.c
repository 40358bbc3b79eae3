/* prefix_stats.c - statistics and views of the prefix tree.
 *
 * quire_prefix_stats_get() reads only counters and constants, because the caller may be on any
 * thread.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_internal.h"

#include <string.h>

void quire_prefix_stats_get(const quire_prefix *tree, quire_prefix_stats *out)
{
    memset(out, 0, sizeof(*out));
    out->query_tokens_total = quire_counter_get(&tree->query_tokens);
    out->hit_tokens_total = quire_counter_get(&tree->hit_tokens);
    out->lookups_total = quire_counter_get(&tree->lookups);
    out->hits_total = quire_counter_get(&tree->hits);
    out->published_tokens_total = quire_counter_get(&tree->published_tokens);
    for (uint32_t i = 0; i < QUIRE_PREFIX_GONE_COUNT; i++) {
        out->gone_nodes_total[i] = quire_counter_get(&tree->gone_nodes[i]);
        out->gone_tokens_total[i] = quire_counter_get(&tree->gone_tokens[i]);
    }
    out->regret_tokens_total = quire_counter_get(&tree->regret_tokens);
    out->nodes = quire_counter_get(&tree->n_page_nodes);
    out->tokens = quire_counter_get(&tree->n_tokens);
    for (uint32_t r = 0; r < QUIRE_REGIONS_MAX; r++) {
        out->evictable_bytes += quire_counter_get(&tree->cache->regions.items[r].cached_bytes);
    }
    out->roots = quire_counter_get(&tree->n_roots);
    out->refs = quire_counter_get(&tree->n_refs);
    out->apart_bytes = quire_counter_get(&tree->apart_bytes);
}

/* The next node in an order with parents before children; 0 = none. There is no memory for a stack,
 * so the way up finds the next sibling by tokens. */
static uint32_t next_of(const quire_prefix *tree, uint32_t id)
{
    uint32_t next = quire_prefix_siblings_first(&tree->nodes, id);

    while (next == QUIRE_NODE_NULL && quire_prefix_at(tree, id)->kind == QUIRE_NODE_PAGE) {
        next = quire_prefix_siblings_next(&tree->nodes, id);
        id = quire_prefix_at(tree, id)->parent;
    }
    return next;
}

uint32_t quire_prefix_visit_some(const quire_prefix *tree, uint32_t first, uint32_t n_ids,
                                 void (*visit)(void *ctx, const quire_prefix_page_use *use),
                                 void *ctx)
{
    uint32_t id = first;

    for (; id < tree->nodes.id_end && id - first < n_ids; id++) {
        const quire_prefix_node *node = quire_prefix_at(tree, id);

        if (node->kind == QUIRE_NODE_PAGE) {
            const quire_prefix_page_use use = { node->pages, tree->n_groups, node->owner,
                                                node->used_us };

            visit(ctx, &use);
        }
    }
    return id < tree->nodes.id_end ? id : QUIRE_NODE_NULL;
}

/* Lookups end before an offloaded page of which they would use a part. */
uint64_t quire_prefix_generation(const quire_prefix *tree)
{
    const quire_pool *pool = &tree->cache->pool;

    return tree->generation + quire_counter_get(&pool->offloads_total) +
           quire_counter_get(&pool->onloads_total);
}

int quire_prefix_visit(const quire_prefix *tree,
                       int (*visit)(void *ctx, const quire_prefix_node_info *node), void *ctx)
{
    for (const quire_prefix_root *root = tree->roots; root != NULL; root = root->next) {
        for (uint32_t id = next_of(tree, root->node); id != QUIRE_NODE_NULL;
             id = next_of(tree, id)) {
            const quire_prefix_node *node = quire_prefix_at(tree, id);
            quire_prefix_node_info info = { .pages = node->pages,
                                            .tokens = quire_prefix_tokens_at(tree, id),
                                            .n_tokens = node->n_tokens,
                                            .first_token = node->first_token,
                                            .n_children = node->n_children,
                                            .n_refs = node->n_refs,
                                            .n_pins = node->n_pins,
                                            .region = node->region,
                                            .rank = node->rank,
                                            .account = node->account,
                                            .hits = node->hits,
                                            .owner = node->owner,
                                            .created_us = node->created_us,
                                            .used_us = node->used_us,
                                            .salt = root->salt,
                                            .salt_bytes = root->salt_bytes,
                                            .key = node->key };
            int rc = visit(ctx, &info);

            if (rc != 0) {
                return rc;
            }
        }
    }
    return 0;
}
