/* prefix_validate.c - checks every invariant of the prefix tree.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_internal.h"

#include <string.h>

/* Whether a node's key is the key of its text. */
static bool is_key_right(const quire_prefix *tree, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);
    quire_page_key key;

    quire_prefix_key_add(&quire_prefix_at(tree, node->parent)->key,
                         quire_prefix_tokens_at(tree, id), node->n_tokens, &key);
    return memcmp(&key, &node->key, sizeof(key)) == 0;
}

/* Check P1, P3, P4 and P7 of one node. */
static void page_node_validate(const quire_prefix *tree, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);
    const quire_prefix_node *parent = quire_prefix_at(tree, node->parent);
    bool is_full = node->n_tokens == tree->page_tokens;

    QUIRE_CHECK(node->n_tokens > 0 && node->n_tokens <= tree->page_tokens);
    QUIRE_CHECK(is_full || node->n_children == 0);
    QUIRE_CHECK(parent->kind == QUIRE_NODE_ROOT || parent->n_tokens == tree->page_tokens);
    QUIRE_CHECK(node->first_token == quire_prefix_node_end(parent));
    QUIRE_CHECK(parent->kind == QUIRE_NODE_ROOT || parent->owner == 0 ||
                parent->owner == node->owner);
    QUIRE_CHECK(node->path_hash == quire_prefix_hash_add(parent->path_hash,
                                                         quire_prefix_tokens_at(tree, id),
                                                         node->n_tokens));
    QUIRE_CHECK(is_key_right(tree, id));
    QUIRE_CHECK(!is_full || quire_prefix_child_find(tree, node->parent, node->path_hash,
                                                    quire_prefix_tokens_at(tree, id)) == id);
    for (uint32_t g = 0; g < tree->n_groups; g++) {
        const quire_page *page;

        if (node->pages[g] == QUIRE_PAGE_NULL) {
            QUIRE_CHECK(g > 0 && (is_full || quire_prefix_is_state(tree, g)));
            continue;
        }
        page = quire_pool_page(&tree->cache->pool, node->pages[g]);
        QUIRE_CHECK(page->group == g && page->region == node->region);
        QUIRE_CHECK(page->n_kept == node->n_tokens);
        QUIRE_CHECK(page->is_pinned == (quire_prefix_page_pins(tree, node, g) > 0));
    }
    QUIRE_CHECK(node->account == parent->account && node->rank < QUIRE_RANKS_MAX);
    QUIRE_CHECK(node->is_apart == parent->is_apart);
}

/* Check the refs of a node, P5 and P6. Returns the number of refs. */
static uint32_t node_refs_validate(const quire_prefix *tree, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);
    uint32_t n = 0;

    for (uint32_t number = node->refs_head, prev = 0; number != 0;
         prev = number, number = tree->ties[number - 1].next) {
        const quire_prefix_tie *tie = &tree->ties[number - 1];

        QUIRE_CHECK(number <= tree->n_ties && tie->node == id && tie->prev == prev);
        QUIRE_CHECK((uint32_t)tie->id == number && (!tie->is_pin || tie->seq == QUIRE_SEQ_NULL));
        QUIRE_CHECK(tie->n_known <= quire_prefix_node_end(node));
        QUIRE_CHECK(node->kind == QUIRE_NODE_ROOT || tie->n_known > node->first_token);
        n++;
    }
    QUIRE_CHECK(n == node->n_refs);
    if (node->kind == QUIRE_NODE_PAGE) {
        QUIRE_CHECK(quire_evict_has(&tree->evict, id) ==
                    (node->n_refs == 0 && node->n_children == 0));
    } else {
        QUIRE_CHECK(node->n_refs > 0 || node->n_children > 0);
        QUIRE_CHECK(node->n_tokens == 0 && node->first_token == 0);
    }
    return n;
}

static void refs_validate(const quire_prefix *tree, uint32_t n_ending)
{
    uint32_t n = 0;
    uint32_t n_dead = 0;
    uint32_t n_free = 0;

    for (uint32_t i = 0; i < tree->n_ties; i++) {
        n += tree->ties[i].id != QUIRE_PREFIX_REF_NULL;
        n_dead += tree->ties[i].id != QUIRE_PREFIX_REF_NULL && tree->ties[i].node == 0;
    }
    for (uint32_t number = tree->ties_free; number != 0; number = tree->ties[number - 1].next) {
        QUIRE_CHECK(tree->ties[number - 1].id == QUIRE_PREFIX_REF_NULL);
        QUIRE_CHECK(++n_free <= tree->n_ties);
    }
    QUIRE_CHECK(n == quire_counter_get(&tree->n_refs) && n == n_dead + n_ending);
    QUIRE_CHECK(n + n_free == tree->n_ties && tree->n_ties <= tree->ties_capacity);
}

/* Check P10 without a walk from every pin: n_pins of a node is the number of pins that end at the
 * node plus n_pins of its children. */
static void pins_validate(const quire_prefix *tree, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);
    uint32_t n = 0;

    for (uint32_t number = node->refs_head; number != 0; number = tree->ties[number - 1].next) {
        n += tree->ties[number - 1].is_pin;
    }
    for (uint32_t child = quire_prefix_siblings_first(&tree->nodes, id); child != QUIRE_NODE_NULL;
         child = quire_prefix_siblings_next(&tree->nodes, child)) {
        n += quire_prefix_at(tree, child)->n_pins;
    }
    QUIRE_CHECK(node->kind == QUIRE_NODE_ROOT || n == node->n_pins);
}

/* Check P9: the lists of pinned regions hold exactly the n_listed nodes. */
static void lists_validate(const quire_prefix *tree, uint32_t n_listed)
{
    uint32_t n = 0;

    for (uint32_t r = 0; r < QUIRE_REGIONS_MAX; r++) {
        uint32_t prev = QUIRE_NODE_NULL;

        for (uint32_t id = tree->region_nodes[r]; id != QUIRE_NODE_NULL;
             prev = id, id = quire_prefix_at(tree, id)->region_next) {
            const quire_prefix_node *node = quire_prefix_at(tree, id);

            QUIRE_CHECK(r != QUIRE_REGION_DYNAMIC && node->region == r);
            QUIRE_CHECK(node->kind == QUIRE_NODE_PAGE && node->region_prev == prev);
            QUIRE_CHECK(++n <= n_listed);
        }
    }
    QUIRE_CHECK(n == n_listed && n == tree->n_region_nodes);
}

/* Check P11. The walk subtracts the bytes of each node from its account; then all accounts must be
 * 0; then the same walk restores the bytes. So the check allocates nothing. */
static void accounts_validate(const quire_prefix *tree)
{
    quire_accounts *accounts = (quire_accounts *)(uintptr_t)&tree->accounts;

    quire_accounts_validate(accounts);
    for (uint32_t id = 1; id < tree->nodes.id_end; id++) {
        const quire_prefix_node *node = quire_prefix_at(tree, id);

        if (node->kind == QUIRE_NODE_PAGE) {
            quire_accounts_uncharge(accounts, node->account, node->region,
                                    quire_prefix_node_charge_bytes(tree, id));
        }
    }
    for (uint32_t a = 0; a < accounts->capacity; a++) {
        QUIRE_CHECK(accounts->items[a].total_bytes == 0);
    }
    for (uint32_t id = 1; id < tree->nodes.id_end; id++) {
        const quire_prefix_node *node = quire_prefix_at(tree, id);

        if (node->kind == QUIRE_NODE_PAGE) {
            quire_accounts_charge(accounts, node->account, node->region,
                                  quire_prefix_node_charge_bytes(tree, id));
        }
    }
}

static void told_validate(const quire_prefix *tree, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);

    if (quire_prefix_is_told(tree, id)) {
        QUIRE_CHECK(node->n_tokens == tree->page_tokens);
        QUIRE_CHECK(quire_prefix_at(tree, node->parent)->kind == QUIRE_NODE_ROOT ||
                    quire_prefix_is_told(tree, node->parent));
    }
}

/* Check that each root counts the refs under it. */
static void ties_validate(const quire_prefix *tree)
{
    uint32_t n = 0;

    for (const quire_prefix_root *root = tree->roots; root != NULL; root = root->next) {
        n += root->n_ties;
    }
    for (uint32_t i = 0; i < tree->n_ties; i++) {
        const quire_prefix_tie *tie = &tree->ties[i];
        uint32_t id = tie->node;

        if (tie->id == QUIRE_PREFIX_REF_NULL || id == QUIRE_NODE_NULL) {
            continue;
        }
        while (quire_prefix_at(tree, id)->kind == QUIRE_NODE_PAGE) {
            id = quire_prefix_at(tree, id)->parent;
        }
        QUIRE_CHECK(quire_prefix_at(tree, id)->root == tie->root && tie->root->n_ties > 0);
        n--;
    }
    QUIRE_CHECK(n == 0);
}

static void roots_validate(const quire_prefix *tree)
{
    uint32_t n = 0;

    for (const quire_prefix_root *root = tree->roots, *prev = NULL; root != NULL;
         prev = root, root = root->next) {
        QUIRE_CHECK(root->prev == prev && quire_prefix_at(tree, root->node)->root == root);
        QUIRE_CHECK(root->salt_bytes <= QUIRE_PREFIX_SALT_MAX);
        n++;
    }
    QUIRE_CHECK(n == quire_counter_get(&tree->n_roots) && n <= tree->opts.roots_max);
    QUIRE_CHECK(n > 0 ? tree->roots_last->next == NULL : tree->roots_last == NULL);
}

/* Check that the tree knows every kept page. A kept page unknown to the tree would never be
 * freed. */
static void pages_validate(const quire_prefix *tree, uint64_t n_kept)
{
    const quire_pool *pool = &tree->cache->pool;
    uint64_t n = 0;

    for (quire_page_id id = 1; id < pool->id_end; id++) {
        n += pool->pages[id].n_kept > 0;
    }
    QUIRE_CHECK(n == n_kept);
}

void quire_prefix_validate(const quire_prefix *tree)
{
    uint64_t n_tokens = 0;
    uint64_t n_kept = 0;
    uint64_t n_owned = 0;
    uint64_t apart_bytes = 0;
    uint32_t n_pages = 0;
    uint32_t n_roots = 0;
    uint32_t n_full = 0;
    uint32_t n_refs = 0;
    uint32_t n_listed = 0;

    for (uint32_t id = 1; id < tree->nodes.id_end; id++) {
        const quire_prefix_node *node = quire_prefix_at(tree, id);

        if (node->kind == QUIRE_NODE_FREE) {
            continue;
        }
        (void)quire_prefix_siblings_validate(&tree->nodes, id);
        n_refs += node_refs_validate(tree, id);
        n_roots += node->kind == QUIRE_NODE_ROOT;
        if (node->kind == QUIRE_NODE_PAGE) {
            page_node_validate(tree, id);
            pins_validate(tree, id);
            told_validate(tree, id);
            n_pages++;
            n_listed += node->region != QUIRE_REGION_DYNAMIC;
            n_owned += node->owner != 0;
            n_full += node->n_tokens == tree->page_tokens;
            n_tokens += node->n_tokens;
            apart_bytes += node->is_apart ? quire_prefix_node_charge_bytes(tree, id) : 0;
            for (uint32_t g = 0; g < tree->n_groups; g++) {
                n_kept += node->pages[g] != QUIRE_PAGE_NULL;
            }
        }
    }
    QUIRE_CHECK(n_pages + n_roots == tree->nodes.n_used);
    QUIRE_CHECK(n_pages == quire_counter_get(&tree->n_page_nodes));
    QUIRE_CHECK(n_tokens == quire_counter_get(&tree->n_tokens));
    QUIRE_CHECK(apart_bytes == quire_counter_get(&tree->apart_bytes));
    QUIRE_CHECK(n_full + n_roots == tree->index.n);
    roots_validate(tree);
    refs_validate(tree, n_refs);
    ties_validate(tree);
    lists_validate(tree, n_listed);
    accounts_validate(tree);
    quire_prefix_windows_validate(tree);
    pages_validate(tree, n_kept);
    quire_evict_validate(&tree->evict);
    quire_prefix_owners_validate(&tree->owners, n_owned);
    quire_ghosts_validate(&tree->ghosts);
}
