/* prefix_charge.c - the charge of a node's pages: region, account, pins.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_internal.h"

/* ---- one node ---- */

uint64_t quire_prefix_node_charge_bytes(const quire_prefix *tree, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);
    uint64_t sum = 0;

    for (uint32_t g = 0; g < tree->n_groups; g++) {
        sum += node->pages[g] != QUIRE_PAGE_NULL ? tree->cache->opts.charge_bytes[g] : 0;
    }
    return sum;
}

/* The part of these bytes that takes memory. */
static uint64_t memory_bytes(const quire_prefix *tree, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);
    uint64_t sum = 0;

    for (uint32_t g = 0; g < tree->n_groups; g++) {
        sum += node->pages[g] != QUIRE_PAGE_NULL
                   ? quire_pool_memory_bytes(&tree->cache->pool, node->pages[g])
                   : 0;
    }
    return sum;
}

static void list_add(quire_prefix *tree, quire_prefix_node *node, uint32_t id)
{
    uint32_t *head = &tree->region_nodes[node->region];

    node->region_prev = QUIRE_NODE_NULL;
    node->region_next = *head;
    if (*head != QUIRE_NODE_NULL) {
        quire_prefix_at(tree, *head)->region_prev = id;
    }
    *head = id;
    tree->n_region_nodes++;
}

static void list_remove(quire_prefix *tree, quire_prefix_node *node)
{
    tree->n_region_nodes--;
    if (node->region_prev != QUIRE_NODE_NULL) {
        quire_prefix_at(tree, node->region_prev)->region_next = node->region_next;
    } else {
        tree->region_nodes[node->region] = node->region_next;
    }
    if (node->region_next != QUIRE_NODE_NULL) {
        quire_prefix_at(tree, node->region_next)->region_prev = node->region_prev;
    }
}

/* The node's pages are this much less. */
static void bytes_sub(quire_prefix *tree, const quire_prefix_node *node, uint64_t bytes)
{
    quire_accounts_uncharge(&tree->accounts, node->account, node->region, bytes);
    if (node->is_apart) {
        quire_counter_sub(&tree->apart_bytes, bytes);
    }
}

void quire_prefix_node_enter(quire_prefix *tree, uint32_t id)
{
    quire_prefix_node *node = quire_prefix_at(tree, id);
    const uint64_t bytes = quire_prefix_node_charge_bytes(tree, id);

    quire_accounts_charge(&tree->accounts, node->account, node->region, bytes);
    if (node->is_apart) {
        quire_counter_add(&tree->apart_bytes, bytes);
    }
    if (node->region != QUIRE_REGION_DYNAMIC) {
        list_add(tree, node, id);
    }
    quire_prefix_window_enter(tree, id);
}

void quire_prefix_node_leave(quire_prefix *tree, uint32_t id)
{
    quire_prefix_node *node = quire_prefix_at(tree, id);

    bytes_sub(tree, node, quire_prefix_node_charge_bytes(tree, id));
    if (node->region != QUIRE_REGION_DYNAMIC) {
        list_remove(tree, node);
    }
    quire_prefix_window_leave(tree, id);
}

void quire_prefix_node_shrink(quire_prefix *tree, uint32_t id, uint64_t bytes)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);

    quire_prefix_changed(tree);
    bytes_sub(tree, node, bytes);
}

void quire_prefix_node_recharge(quire_prefix *tree, uint32_t id, quire_region_id to)
{
    quire_prefix_node *node = quire_prefix_at(tree, id);

    quire_prefix_changed(tree);
    quire_prefix_node_leave(tree, id);
    for (uint32_t g = 0; g < tree->n_groups; g++) {
        if (node->pages[g] != QUIRE_PAGE_NULL) {
            quire_pool_recharge(&tree->cache->pool, node->pages[g], to);
        }
    }
    quire_evict_move(&tree->evict, id, to, node->rank);
    quire_prefix_node_enter(tree, id);
}

/* ---- pins ---- */

static void pages_pin(quire_prefix *tree, const quire_prefix_node *node, bool is_pinned)
{
    quire_prefix_changed(tree);
    for (uint32_t g = 0; g < tree->n_groups; g++) {
        if (node->pages[g] == QUIRE_PAGE_NULL || quire_prefix_window(tree, g) != 0) {
            continue;
        }
        if (is_pinned) {
            quire_pool_pin(&tree->cache->pool, node->pages[g]);
        } else {
            quire_pool_unpin(&tree->cache->pool, node->pages[g]);
        }
    }
}

void quire_prefix_path_pin(quire_prefix *tree, const quire_prefix_tie *tie, uint32_t id)
{
    if (tie->pins_window) {
        quire_prefix_window_pin(tree, id, true);
    }
    for (; quire_prefix_at(tree, id)->kind == QUIRE_NODE_PAGE;
         id = quire_prefix_at(tree, id)->parent) {
        quire_prefix_node *node = quire_prefix_at(tree, id);

        if (node->n_pins++ == 0) {
            pages_pin(tree, node, true);
        }
    }
}

void quire_prefix_path_unpin(quire_prefix *tree, const quire_prefix_tie *tie, uint32_t id)
{
    if (tie->pins_window) {
        quire_prefix_window_pin(tree, id, false);
    }
    for (; quire_prefix_at(tree, id)->kind == QUIRE_NODE_PAGE;
         id = quire_prefix_at(tree, id)->parent) {
        quire_prefix_node *node = quire_prefix_at(tree, id);

        QUIRE_CHECK(node->n_pins > 0);
        if (--node->n_pins == 0) {
            pages_pin(tree, node, false);
        }
    }
}

quire_prefix_tie *quire_prefix_tie_hold(quire_prefix *tree, uint32_t node, uint32_t n_tokens,
                                        uint8_t rank)
{
    quire_prefix_tie *tie = quire_prefix_tie_take(tree);
    uint32_t root = node;

    while (quire_prefix_at(tree, root)->kind == QUIRE_NODE_PAGE) {
        root = quire_prefix_at(tree, root)->parent;
    }
    tie->root = quire_prefix_at(tree, root)->root;
    tie->rank = rank;
    tie->is_private = true; /* a pin publishes nothing */
    tie->n_known = n_tokens;
    quire_prefix_tie_move(tree, tie, node);
    return tie;
}

void quire_prefix_tie_pin(quire_prefix *tree, quire_prefix_tie *tie, bool pins_window)
{
    tie->is_pin = true;
    tie->pins_window = pins_window;
    quire_prefix_path_pin(tree, tie, tie->node);
}

void quire_prefix_tie_use(quire_prefix *tree, const quire_prefix_tie *tie)
{
    quire_prefix_user user = { .owner = 0, .rank = tie->rank };

    for (uint32_t id = tie->node; quire_prefix_at(tree, id)->kind == QUIRE_NODE_PAGE;
         id = quire_prefix_at(tree, id)->parent) {
        quire_prefix_node_touch(tree, id, user);
    }
}

/* ---- a sequence finds pages ---- */

/* Whether a sequence of a region takes over the charge of a node. Between pinned regions only the
 * higher rank takes over; otherwise two regions that share a text would take it from each other all
 * the time. */
static bool may_take(const quire_prefix_node *node, quire_region_id region, uint8_t rank)
{
    if (region == QUIRE_REGION_DYNAMIC || node->n_pins > 0) {
        return false;
    }
    return node->region == QUIRE_REGION_DYNAMIC || node->rank < rank;
}

/* Whether a region has candidates of this rank or a lower one. */
static bool has_lower(const quire_prefix *tree, quire_region_id region, uint8_t rank)
{
    const quire_evict_region *found = &tree->evict.regions[region];

    for (uint32_t r = 0; r <= rank; r++) {
        if (found->bins[r] != NULL) {
            return true;
        }
    }
    return false;
}

/* Make room for the charge of a hit. Evicts one cached node at a time, and none above the rank of
 * the hit. */
static bool make_headroom(quire_prefix *tree, quire_region_id region, uint8_t rank, uint64_t bytes)
{
    const quire_region *found = &tree->cache->regions.items[region];

    while (quire_region_headroom_bytes(found) < bytes && has_lower(tree, region, rank)) {
        if (quire_cache_evict(tree->cache, region, 1) == 0) {
            break;
        }
    }
    return quire_region_headroom_bytes(found) >= bytes;
}

void quire_prefix_path_charge(quire_prefix *tree, quire_region_id region, uint8_t rank, uint32_t n)
{
    bool is_full = false;

    if (region == QUIRE_REGION_DYNAMIC && tree->n_region_nodes == 0) {
        return; /* all nodes belong to the dynamic region */
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = tree->path[i];
        const quire_prefix_node *node = quire_prefix_at(tree, id);
        uint32_t n_pages = 0;

        if (node->region == region || memory_bytes(tree, id) == 0) {
            continue; /* an offloaded node takes no room in any region */
        }
        if (is_full || !may_take(node, region, rank) ||
            !make_headroom(tree, region, rank, memory_bytes(tree, id))) {
            is_full = is_full || may_take(node, region, rank);
            continue;
        }
        for (uint32_t g = 0; g < tree->n_groups; g++) {
            n_pages += node->pages[g] != QUIRE_PAGE_NULL;
        }
        quire_prefix_node_recharge(tree, id, region);
        quire_counter_add(&tree->cache->regions.items[region].adopted_pages, n_pages);
    }
}

/* ---- under pressure: see charge.h ---- */

static bool is_marked(const quire_prefix *tree, const quire_prefix_node *node)
{
    for (uint32_t g = 0; g < tree->n_groups; g++) {
        if (node->pages[g] != QUIRE_PAGE_NULL &&
            quire_pool_page(&tree->cache->pool, node->pages[g])->is_marked) {
            return true;
        }
    }
    return false;
}

static void node_mark(const quire_prefix *tree, const quire_prefix_node *node, bool is_on)
{
    for (uint32_t g = 0; g < tree->n_groups; g++) {
        if (node->pages[g] != QUIRE_PAGE_NULL) {
            tree->cache->pool.pages[node->pages[g]].is_marked = is_on;
        }
    }
}

static void node_move(quire_prefix *tree, quire_charge_move *move, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);
    uint64_t bytes = memory_bytes(tree, id);

    if (!quire_charge_may_move(move, bytes)) {
        return;
    }
    move->moved_bytes += bytes;
    for (uint32_t g = 0; g < tree->n_groups; g++) {
        move->moved_pages += node->pages[g] != QUIRE_PAGE_NULL;
    }
    if (!move->is_dry) {
        quire_prefix_node_recharge(tree, id, move->to);
    }
}

/* Whether eviction could end a node and free a page. */
static bool is_evictable(const quire_prefix *tree, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);

    for (uint32_t g = 0; g < tree->n_groups && quire_evict_has(&tree->evict, id); g++) {
        if (node->pages[g] != QUIRE_PAGE_NULL &&
            quire_pool_state(&tree->cache->pool, node->pages[g]) == QUIRE_PAGE_CACHED) {
            return true;
        }
    }
    return false;
}

void quire_prefix_nodes_leave(quire_prefix *tree, quire_charge_move *move)
{
    uint32_t next;

    for (uint32_t id = tree->region_nodes[move->from]; id != QUIRE_NODE_NULL; id = next) {
        const quire_prefix_node *node = quire_prefix_at(tree, id);

        next = node->region_next;
        if (node->n_pins == 0 && !is_marked(tree, node) &&
            (move->takes_candidates || !is_evictable(tree, id))) {
            node_move(tree, move, id);
        }
    }
}

static bool is_cached(const quire_prefix *tree, const quire_prefix_node *node)
{
    for (uint32_t g = 0; g < tree->n_groups; g++) {
        if (node->pages[g] != QUIRE_PAGE_NULL &&
            quire_pool_state(&tree->cache->pool, node->pages[g]) != QUIRE_PAGE_CACHED) {
            return false;
        }
    }
    return true;
}

/* The nearest node above a candidate that is cached for the dynamic region; 0 = none. */
static uint32_t above_find(const quire_prefix *tree, uint32_t id)
{
    uint32_t above = quire_prefix_at(tree, id)->parent;

    for (; quire_prefix_at(tree, above)->kind == QUIRE_NODE_PAGE;
         above = quire_prefix_at(tree, above)->parent) {
        const quire_prefix_node *node = quire_prefix_at(tree, above);

        if (node->region == QUIRE_REGION_DYNAMIC && node->n_pins == 0 && is_cached(tree, node)) {
            return above;
        }
    }
    return QUIRE_NODE_NULL;
}

static void trade(quire_prefix *tree, uint32_t id, uint32_t above)
{
    quire_region_id region = quire_prefix_at(tree, id)->region;
    uint32_t parent = quire_prefix_at(tree, id)->parent;
    uint64_t freed_bytes = quire_prefix_node_end_now(tree, id, QUIRE_PREFIX_GONE_MEMORY);

    if (memory_bytes(tree, above) <= freed_bytes) {
        quire_prefix_node_recharge(tree, above, region);
    }
    quire_prefix_node_settle(tree, parent);
}

bool quire_prefix_nodes_trade(quire_prefix *tree)
{
    for (uint32_t r = 1; r < QUIRE_REGIONS_MAX; r++) {
        for (uint32_t id = tree->region_nodes[r]; id != QUIRE_NODE_NULL;
             id = quire_prefix_at(tree, id)->region_next) {
            uint32_t above = QUIRE_NODE_NULL;

            if (quire_evict_has(&tree->evict, id) && is_cached(tree, quire_prefix_at(tree, id))) {
                above = above_find(tree, id);
            }
            if (above != QUIRE_NODE_NULL) {
                trade(tree, id, above);
                return true;
            }
        }
    }
    return false;
}

/* Call visit for each unpinned node that sequences of move->to run on and that is charged to
 * move->from. */
static void running_visit(quire_prefix *tree, quire_charge_move *move,
                          void (*visit)(quire_prefix *tree, quire_charge_move *move, uint32_t id))
{
    for (uint32_t i = 0; i < tree->n_ties; i++) {
        const quire_prefix_tie *tie = &tree->ties[i];
        const quire_seq *seq = quire_seqs_find(&tree->cache->seqs, tie->seq);

        if (tie->id == QUIRE_PREFIX_REF_NULL || tie->node == QUIRE_NODE_NULL || seq == NULL ||
            seq->tied_ref != tie->id || seq->region != move->to) {
            continue;
        }
        for (uint32_t id = tie->node; quire_prefix_at(tree, id)->kind == QUIRE_NODE_PAGE;
             id = quire_prefix_at(tree, id)->parent) {
            const quire_prefix_node *node = quire_prefix_at(tree, id);

            if (node->region == move->from && node->n_pins == 0) {
                visit(tree, move, id);
            }
        }
    }
}

/* In a dry run the marks record the counted nodes. */
static void node_return(quire_prefix *tree, quire_charge_move *move, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);

    if (!is_marked(tree, node)) {
        node_move(tree, move, id);
        node_mark(tree, node, move->is_dry);
    }
}

static void node_unmark(quire_prefix *tree, quire_charge_move *move, uint32_t id)
{
    (void)move;
    node_mark(tree, quire_prefix_at(tree, id), false);
}

void quire_prefix_nodes_return(quire_prefix *tree, quire_charge_move *move)
{
    running_visit(tree, move, node_return);
    if (move->is_dry) {
        running_visit(tree, move, node_unmark);
    }
}
