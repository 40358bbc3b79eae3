/* prefix_tree.c - creation and end of the tree's nodes, roots and refs.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_internal.h"

#include <string.h>

#ifdef QUIRE_TINY
#define TIES_FIRST 1u
#else
#define TIES_FIRST 64u
#endif

/* ---- roots ---- */

static bool is_root_of(const quire_prefix_root *root, const quire_prefix_key *key)
{
    return root->identity[0] == key->identity[0] && root->identity[1] == key->identity[1] &&
           root->salt_bytes == key->salt_bytes &&
           (key->salt_bytes == 0 || memcmp(root->salt, key->salt, key->salt_bytes) == 0);
}

uint32_t quire_prefix_root_find(const quire_prefix *tree, const quire_prefix_key *key,
                                uint64_t key_hash)
{
    uint32_t tag = quire_prefix_index_tag(key_hash);
    uint32_t at = tag;
    uint32_t id;

    while ((id = quire_prefix_index_next(&tree->index, tag, &at)) != QUIRE_NODE_NULL) {
        const quire_prefix_node *node = quire_prefix_at(tree, id);

        if (node->kind == QUIRE_NODE_ROOT && is_root_of(node->root, key)) {
            return id;
        }
    }
    return QUIRE_NODE_NULL;
}

/* Plan one more node of any kind. */
static int node_plan(quire_prefix *tree)
{
    QUIRE_TRY(quire_prefix_nodes_plan(&tree->nodes));
    return quire_prefix_index_plan(&tree->index, tree->nodes.n_used + 1);
}

/* Add a root at the front of the list. */
static void root_link(quire_prefix *tree, quire_prefix_root *root)
{
    root->prev = NULL;
    root->next = tree->roots;
    if (root->next != NULL) {
        root->next->prev = root;
    } else {
        tree->roots_last = root;
    }
    tree->roots = root;
}

static void root_unlink(quire_prefix *tree, quire_prefix_root *root)
{
    if (root->prev != NULL) {
        root->prev->next = root->next;
    } else {
        tree->roots = root->next;
    }
    if (root->next != NULL) {
        root->next->prev = root->prev;
    } else {
        tree->roots_last = root->prev;
    }
}

void quire_prefix_root_use(quire_prefix *tree, uint32_t id)
{
    quire_prefix_root *root = quire_prefix_at(tree, id)->root;

    if (tree->roots != root) {
        root_unlink(tree, root);
        root_link(tree, root);
    }
}

int quire_prefix_root_make(quire_prefix *tree, const quire_prefix_key *key, uint64_t key_hash,
                           const quire_prefix_acquire_opts *opts, uint32_t *out)
{
    quire_prefix_node *node;
    quire_prefix_root *root;

    if (quire_counter_get(&tree->n_roots) >= tree->opts.roots_max) {
        QUIRE_TRY(quire_prefix_root_spare(tree));
    }
    QUIRE_TRY(quire_accounts_plan(&tree->accounts, opts->account));
    QUIRE_TRY(node_plan(tree));
    root = tree->allocator.alloc(tree->allocator.ctx, sizeof(*root) + key->salt_bytes);
    QUIRE_FAIL_IF(root == NULL, QUIRE_NOMEM);
    *out = quire_prefix_nodes_take(&tree->nodes, QUIRE_NODE_ROOT);
    *root = (quire_prefix_root){ .identity = { key->identity[0], key->identity[1] },
                                 .node = *out,
                                 .salt_bytes = key->salt_bytes };
    if (key->salt_bytes > 0) {
        memcpy(root->salt, key->salt, key->salt_bytes);
    }
    root_link(tree, root);
    node = quire_prefix_at(tree, *out);
    node->root = root;
    node->account = opts->account;
    node->is_apart = opts->is_apart;
    node->path_hash = key_hash;
    quire_prefix_key_root(key, &node->key);
    quire_prefix_index_add(&tree->index, key_hash, *out);
    quire_counter_add(&tree->n_roots, 1);
    return QUIRE_OK;
}

static void root_end(quire_prefix *tree, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);
    quire_prefix_root *root = node->root;

    QUIRE_CHECK(root->n_ties == 0);
    root_unlink(tree, root);
    quire_prefix_index_remove(&tree->index, node->path_hash, id);
    quire_prefix_nodes_give(&tree->nodes, id);
    tree->allocator.free(tree->allocator.ctx, root);
    quire_counter_sub(&tree->n_roots, 1);
}

/* ---- nodes ---- */

/* Replace a node's pages. Old pages go first: in a pinned node the new pages take over their
 * charge. */
static void pages_replace(quire_prefix *tree, quire_prefix_node *node, uint32_t n_tokens,
                          const quire_prefix_fill *fill)
{
    quire_pool *pool = &tree->cache->pool;

    for (uint32_t g = 0; g < tree->n_groups; g++) {
        quire_page_id page = node->pages[g];

        if (page != fill->pages[g] && page != QUIRE_PAGE_NULL) {
            if (quire_prefix_page_pins(tree, node, g) > 0) {
                quire_pool_unpin(pool, page);
            }
            (void)quire_pool_evict(pool, page);
        }
    }
    for (uint32_t g = 0; g < tree->n_groups; g++) {
        bool is_new = node->pages[g] != fill->pages[g];

        node->pages[g] = fill->pages[g];
        if (node->pages[g] != QUIRE_PAGE_NULL) {
            quire_pool_recharge(pool, node->pages[g], fill->region);
            quire_pool_keep(pool, node->pages[g], n_tokens);
            if (is_new && quire_prefix_page_pins(tree, node, g) > 0) {
                quire_pool_pin(pool, node->pages[g]);
            }
        }
    }
}

static void node_set(quire_prefix *tree, uint32_t id, const int32_t *tokens, uint32_t n_tokens,
                     const quire_prefix_fill *fill)
{
    quire_prefix_node *node = quire_prefix_at(tree, id);

    const quire_prefix_node *parent = quire_prefix_at(tree, node->parent);

    memcpy(quire_prefix_node_tokens(&tree->nodes, node), tokens, n_tokens * sizeof(*tokens));
    node->n_tokens = (uint16_t)n_tokens;
    node->path_hash = quire_prefix_hash_add(parent->path_hash, tokens, n_tokens);
    quire_prefix_key_add(&parent->key, tokens, n_tokens, &node->key);
    pages_replace(tree, node, n_tokens, fill);
    quire_prefix_siblings_add(&tree->nodes, node->parent, id);
    if (n_tokens == tree->page_tokens) {
        quire_prefix_index_add(&tree->index, node->path_hash, id);
    }
}

/* A full node that was here before may have its copy still. */
static void copy_recall(const quire_prefix *tree, quire_prefix_node *node)
{
    const quire_ghost *ghost;

    if (tree->has_copies && node->n_tokens == tree->page_tokens) {
        ghost = quire_ghosts_find_node(&tree->ghosts, quire_ghosts_key_page(node->path_hash),
                                       node->path_hash);
        if (ghost != NULL && ghost->copy == tree->copies_epoch) {
            node->copy = QUIRE_COPY_KEPT;
        }
    }
}

int quire_prefix_node_make(quire_prefix *tree, uint32_t parent, const int32_t *tokens,
                           uint32_t n_tokens, const quire_prefix_fill *fill, uint32_t *out)
{
    quire_prefix_node *node;

    QUIRE_TRY(node_plan(tree));
    QUIRE_TRY(quire_prefix_owners_plan(&tree->owners));
    *out = quire_prefix_nodes_take(&tree->nodes, QUIRE_NODE_PAGE);
    node = quire_prefix_at(tree, *out);
    node->parent = parent;
    node->first_token = quire_prefix_node_end(quire_prefix_at(tree, parent));
    node->rank = fill->user.rank;
    quire_prefix_owners_add(&tree->owners, *out, fill->user.owner);
    node->created_us = tree->now_us;
    node->used_us = tree->now_us;
    node->used_tick = tree->tick;
    node->region = (uint8_t)fill->region;
    node->account = quire_prefix_at(tree, parent)->account;
    node->is_apart = quire_prefix_at(tree, parent)->is_apart;
    node->tip = QUIRE_NODE_TIP_MAX;
    node_set(tree, *out, tokens, n_tokens, fill);
    copy_recall(tree, node);
    quire_prefix_node_enter(tree, *out);
    quire_evict_born(&tree->evict, *out);
    quire_counter_add(&tree->n_page_nodes, 1);
    quire_counter_add(&tree->n_tokens, n_tokens);
    quire_prefix_changed(tree);
    quire_prefix_branch_update(tree, parent);
    quire_prefix_node_settle(tree, parent);
    quire_prefix_tell_stored(tree, *out);
    return QUIRE_OK;
}

void quire_prefix_node_grow(quire_prefix *tree, uint32_t id, const int32_t *tokens,
                            uint32_t n_tokens, const quire_prefix_fill *fill)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);

    QUIRE_ASSERT(node->n_tokens < n_tokens);
    quire_counter_add(&tree->n_tokens, n_tokens - node->n_tokens);
    quire_prefix_siblings_remove(&tree->nodes, node->parent, id);
    quire_prefix_node_leave(tree, id);
    node_set(tree, id, tokens, n_tokens, fill);
    quire_prefix_at(tree, id)->copy = QUIRE_COPY_NONE;
    quire_prefix_at(tree, id)->copied_windows = 0;
    quire_prefix_at(tree, id)->copied_state = 0;
    copy_recall(tree, quire_prefix_at(tree, id));
    if (node->region != fill->region) {
        quire_evict_move(&tree->evict, id, fill->region, node->rank);
    }
    quire_prefix_node_enter(tree, id);
    quire_prefix_node_touch(tree, id, fill->user);
    quire_prefix_changed(tree);
    quire_prefix_tell_stored(tree, id);
}

/* Whether a node's copy stays when the node goes, for this reason. */
static bool is_copy_left(const quire_prefix_node *node, quire_prefix_gone why)
{
    return node->copy == QUIRE_COPY_KEPT &&
           (why == QUIRE_PREFIX_GONE_MEMORY || why == QUIRE_PREFIX_GONE_TTL ||
            why == QUIRE_PREFIX_GONE_LOW_TRAFFIC);
}

static quire_ghost *ghost_leave(quire_prefix *tree, const quire_prefix_node *node,
                                quire_prefix_gone why)
{
    bool is_full = node->n_tokens == tree->page_tokens;
    uint64_t parent_hash = quire_prefix_at(tree, node->parent)->path_hash;
    quire_ghost ghost = { .key = is_full ? quire_ghosts_key_page(node->path_hash)
                                         : quire_ghosts_key_partial(parent_hash),
                          .hash = node->path_hash,
                          .gone_us = tree->now_us,
                          .n_tokens = node->n_tokens,
                          .tip = node->tip,
                          .copy = is_copy_left(node, why) ? tree->copies_epoch : 0,
                          .why = (uint8_t)why };

    tree->has_copies |= ghost.copy != 0;
    return quire_ghosts_add(&tree->ghosts, &ghost);
}

uint64_t quire_prefix_node_end_now(quire_prefix *tree, uint32_t id, quire_prefix_gone why)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);
    uint64_t freed_bytes = 0;

    QUIRE_CHECK(node->kind == QUIRE_NODE_PAGE && node->n_children == 0 && node->n_refs == 0);
    quire_prefix_tell_removed(tree, id);
    if (quire_evict_has(&tree->evict, id)) {
        quire_evict_remove(&tree->evict, id);
    }
    quire_prefix_owners_remove(&tree->owners, id);
    quire_prefix_ends_clear(tree, id, QUIRE_NODE_ENDS);
    quire_prefix_siblings_remove(&tree->nodes, node->parent, id);
    quire_prefix_branch_update(tree, node->parent);
    if (node->n_tokens == tree->page_tokens) {
        quire_prefix_index_remove(&tree->index, node->path_hash, id);
    }
    quire_evict_gone(&tree->evict, id, why, ghost_leave(tree, node, why));
    quire_prefix_node_leave(tree, id);
    for (uint32_t g = 0; g < tree->n_groups; g++) {
        if (node->pages[g] != QUIRE_PAGE_NULL) {
            freed_bytes += quire_pool_evict(&tree->cache->pool, node->pages[g]);
        }
    }
    quire_counter_sub(&tree->n_page_nodes, 1);
    quire_counter_sub(&tree->n_tokens, node->n_tokens);
    quire_counter_add(&tree->gone_nodes[why], 1);
    quire_counter_add(&tree->gone_tokens[why], node->n_tokens);
    quire_prefix_nodes_give(&tree->nodes, id);
    quire_prefix_changed(tree);
    return freed_bytes;
}

void quire_prefix_node_settle(quire_prefix *tree, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);
    bool is_free = node->n_children == 0 && node->n_refs == 0;

    if (node->kind == QUIRE_NODE_ROOT) {
        if (is_free) {
            root_end(tree, id);
        }
        return;
    }
    if (is_free == quire_evict_has(&tree->evict, id)) {
        return;
    }
    if (is_free) {
        quire_evict_add(&tree->evict, id);
    } else {
        quire_evict_remove(&tree->evict, id);
    }
    quire_region_changed(&tree->cache->regions, node->region);
}

typedef enum node_use_kind {
    HOLD,  /* by a request that uses the node already */
    SHARE, /* by one more request */
    HIT    /* by one more request, whose sequence was filled from the node */
} node_use_kind;

static void node_use(quire_prefix *tree, uint32_t id, quire_prefix_user user, node_use_kind kind)
{
    quire_prefix_node *node = quire_prefix_at(tree, id);
    bool is_candidate = quire_evict_has(&tree->evict, id);

    if (is_candidate) { /* a candidate's keys must not change */
        quire_evict_remove(&tree->evict, id);
    }
    node->used_us = tree->now_us;
    node->used_tick = tree->tick;
    node->hits += kind == HIT && node->hits < UINT32_MAX;
    if (node->rank < user.rank) {
        quire_evict_move(&tree->evict, id, node->region, user.rank);
    }
    if (kind != HOLD) {
        quire_evict_used(&tree->evict, id);
    }
    if (node->owner != user.owner) {
        quire_prefix_owners_remove(&tree->owners, id);
    }
    if (is_candidate) {
        quire_evict_add(&tree->evict, id);
    }
}

void quire_prefix_node_touch(quire_prefix *tree, uint32_t id, quire_prefix_user user)
{
    node_use(tree, id, user, HOLD);
}

void quire_prefix_node_share(quire_prefix *tree, uint32_t id, quire_prefix_user user)
{
    node_use(tree, id, user, SHARE);
}

void quire_prefix_node_hit(quire_prefix *tree, uint32_t id, quire_prefix_user user)
{
    node_use(tree, id, user, HIT);
}

/* ---- refs ---- */

quire_prefix_tie *quire_prefix_tie_find(const quire_prefix *tree, quire_prefix_ref ref)
{
    uint32_t index = (uint32_t)ref - 1;

    if (ref == QUIRE_PREFIX_REF_NULL || index >= tree->n_ties || tree->ties[index].id != ref) {
        return NULL;
    }
    return &tree->ties[index];
}

int quire_prefix_tie_plan(quire_prefix *tree)
{
    uint32_t capacity = tree->ties_capacity > 0 ? tree->ties_capacity * 2 : TIES_FIRST;
    quire_prefix_tie *ties;

    QUIRE_FAIL_IF(quire_counter_get(&tree->n_refs) >= tree->opts.refs_max, QUIRE_LIMIT);
    if (tree->ties_free != 0 || tree->n_ties < tree->ties_capacity) {
        return QUIRE_OK;
    }
    ties = tree->allocator.alloc(tree->allocator.ctx, capacity * sizeof(*ties));
    QUIRE_FAIL_IF(ties == NULL, QUIRE_NOMEM);
    if (tree->n_ties > 0) {
        memcpy(ties, tree->ties, tree->n_ties * sizeof(*ties));
    }
    tree->allocator.free(tree->allocator.ctx, tree->ties);
    tree->ties = ties;
    tree->ties_capacity = capacity;
    return QUIRE_OK;
}

quire_prefix_tie *quire_prefix_tie_take(quire_prefix *tree)
{
    uint32_t number = tree->ties_free;
    uint32_t generation = 0;
    quire_prefix_tie *tie;

    if (number != 0) {
        tie = &tree->ties[number - 1];
        tree->ties_free = tie->next;
        generation = tie->generation + 1;
    } else {
        QUIRE_CHECK(tree->n_ties < tree->ties_capacity);
        number = ++tree->n_ties;
        tie = &tree->ties[number - 1];
    }
    memset(tie, 0, sizeof(*tie));
    tie->generation = generation;
    tie->id = (uint64_t)generation << 32 | number;
    quire_counter_add(&tree->n_refs, 1);
    return tie;
}

void quire_prefix_tie_give(quire_prefix *tree, quire_prefix_tie *tie)
{
    QUIRE_CHECK(tie->node == QUIRE_NODE_NULL);
    tie->next = tree->ties_free;
    tree->ties_free = (uint32_t)tie->id;
    tie->id = QUIRE_PREFIX_REF_NULL;
    quire_counter_sub(&tree->n_refs, 1);
}

static void tie_unlink(quire_prefix *tree, quire_prefix_tie *tie)
{
    quire_prefix_node *node = quire_prefix_at(tree, tie->node);

    if (tie->prev != 0) {
        tree->ties[tie->prev - 1].next = tie->next;
    } else {
        node->refs_head = tie->next;
    }
    if (tie->next != 0) {
        tree->ties[tie->next - 1].prev = tie->prev;
    }
    node->n_refs--;
}

void quire_prefix_tie_move(quire_prefix *tree, quire_prefix_tie *tie, uint32_t node)
{
    uint32_t from = tie->node;

    if (from == node) {
        return;
    }
    quire_prefix_changed(tree);
    if (from != QUIRE_NODE_NULL) {
        tie_unlink(tree, tie);
    }
    tie->root->n_ties += from == QUIRE_NODE_NULL;
    tie->root->n_ties -= node == QUIRE_NODE_NULL;
    tie->node = node;
    tie->prev = 0;
    tie->next = 0;
    if (node != QUIRE_NODE_NULL) {
        quire_prefix_node *to = quire_prefix_at(tree, node);

        tie->next = to->refs_head;
        if (tie->next != 0) {
            tree->ties[tie->next - 1].prev = (uint32_t)tie->id;
        }
        to->refs_head = (uint32_t)tie->id;
        to->n_refs++;
        if (tie->is_pin) {
            quire_prefix_path_pin(tree, tie, node);
        }
        quire_prefix_node_settle(tree, node);
    }
    if (from != QUIRE_NODE_NULL) { /* last, because it may end a root */
        if (tie->is_pin) {
            quire_prefix_path_unpin(tree, tie, from);
        }
        quire_prefix_node_settle(tree, from);
    }
}
