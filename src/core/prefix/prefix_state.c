/* prefix_state.c - the states of nodes.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_internal.h"

/* The node on the path of a ref that ends behind n_tokens tokens; 0 = none. The node at which the
 * ref ends may have grown with another text since: only the known tokens are those of the ref. */
static uint32_t node_at(const quire_prefix *tree, quire_prefix_ref ref, uint32_t n_tokens)
{
    const quire_prefix_tie *tie = quire_prefix_tie_find(tree, ref);
    uint32_t id = QUIRE_NODE_NULL;

    if (tie != NULL && tree->cache->opts.state_bytes != 0 && n_tokens <= tie->n_known) {
        id = tie->node;
    }

    while (id != QUIRE_NODE_NULL && quire_prefix_node_end(quire_prefix_at(tree, id)) > n_tokens) {
        id = quire_prefix_at(tree, id)->parent;
    }
    if (id == QUIRE_NODE_NULL || quire_prefix_at(tree, id)->kind != QUIRE_NODE_PAGE ||
        quire_prefix_node_end(quire_prefix_at(tree, id)) != n_tokens) {
        return QUIRE_NODE_NULL;
    }
    return id;
}

quire_page_id quire_prefix_state_get(const quire_prefix *tree, quire_prefix_ref ref,
                                     uint32_t n_tokens)
{
    const uint32_t id = node_at(tree, ref, n_tokens);

    return id != QUIRE_NODE_NULL ? quire_prefix_at(tree, id)->pages[quire_prefix_seq_groups(tree)]
                                 : QUIRE_PAGE_NULL;
}

/* Whether a node may take a page for a state. A page of a pinned node adds to the bytes of pins,
 * which its region must be able to promise. */
static bool may_take(const quire_prefix *tree, const quire_prefix_node *node)
{
    const quire_region *region = &tree->cache->regions.items[node->region];
    const uint64_t state_bytes = tree->cache->opts.charge_bytes[quire_prefix_seq_groups(tree)];

    return node->n_window_pins == 0 || quire_region_promised_bytes(region) + state_bytes <=
                                           quire_counter_get(&region->budget_bytes);
}

/* The node is tied, so that making room evicts other nodes only. */
quire_page_id quire_prefix_state_put(quire_prefix *tree, quire_prefix_ref ref, uint32_t n_tokens)
{
    const uint32_t id = node_at(tree, ref, n_tokens);
    const uint32_t g = quire_prefix_seq_groups(tree);
    quire_pool *pool = &tree->cache->pool;
    quire_prefix_node *node;
    quire_page_id page;
    quire_seq_id seq;

    if (id == QUIRE_NODE_NULL || quire_prefix_at(tree, id)->pages[g] != QUIRE_PAGE_NULL ||
        !may_take(tree, quire_prefix_at(tree, id))) {
        return QUIRE_PAGE_NULL;
    }
    seq = quire_prefix_tie_find(tree, ref)->seq;
    page = quire_cache_state_take(tree->cache, quire_prefix_at(tree, id)->region, seq);
    if (page == QUIRE_PAGE_NULL) {
        return page;
    }
    node = quire_prefix_at(tree, id);
    if (quire_pool_page(pool, page)->region != node->region) { /* it spilled */
        quire_pool_unref(pool, page, seq);
        return QUIRE_PAGE_NULL;
    }
    quire_prefix_node_leave(tree, id);
    node->pages[g] = page;
    node->copied_state = 0;
    quire_pool_fill_set(pool, page, node->n_tokens);
    quire_pool_keep(pool, page, node->n_tokens);
    if (node->n_window_pins > 0) {
        quire_pool_pin(pool, page);
    }
    quire_prefix_node_enter(tree, id);
    quire_pool_unref(pool, page, seq);
    quire_prefix_changed(tree);
    QUIRE_PREFIX_CHECKED(tree);
    return page;
}
