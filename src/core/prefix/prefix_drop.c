/* prefix_drop.c - ends of nodes: by eviction, expiry and invalidation.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_internal.h"

#include <string.h>

/* ---- eviction ---- */

/* Whether ending a node would free a page: not when sequences without a ref hold all its pages. */
static bool frees_pages(const quire_prefix *tree, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);

    for (uint32_t g = 0; g < tree->n_groups; g++) {
        if (node->pages[g] != QUIRE_PAGE_NULL &&
            quire_pool_state(&tree->cache->pool, node->pages[g]) == QUIRE_PAGE_CACHED) {
            return true;
        }
    }
    return false;
}

/* End a node, and the nodes above that are of no use without it: candidates behind which no hit can
 * end. */
static void node_evict(quire_prefix *tree, uint32_t id, quire_prefix_gone why)
{
    uint32_t parent;
    bool is_dead;

    do {
        parent = quire_prefix_at(tree, id)->parent;
        (void)quire_prefix_node_end_now(tree, id, why);
        is_dead = tree->window_tokens != 0 && quire_prefix_at(tree, parent)->n_children == 0 &&
                  quire_prefix_at(tree, parent)->n_refs == 0 && quire_prefix_is_dead(tree, parent);
        if (tree->window_tokens != 0 && !is_dead &&
            quire_prefix_at(tree, parent)->n_children == 0) {
            /* The text ends here from now on; the pages of this end must not go alone. */
            quire_prefix_ends_set(tree, parent, QUIRE_NODE_ENDS_TEXT);
        }
        quire_prefix_node_settle(tree, parent); /* may end a root */
        id = parent;
    } while (is_dead);
}

static uint64_t charged_bytes(const quire_prefix *tree, quire_region_id region)
{
    return quire_counter_get(&tree->cache->regions.items[region].charged_bytes);
}

/* Drop at most n_max expired nodes of all regions. An ended node may make its parent, of another
 * region, a candidate, so the regions take turns until no expired node is left. */
static uint32_t expire(quire_prefix *tree, uint32_t n_max)
{
    uint32_t n = 0;
    uint32_t before;

    do {
        before = n;
        for (uint32_t region = 0; region < QUIRE_REGIONS_MAX; region++) {
            uint32_t id;

            while (n < n_max && (id = quire_evict_expired(&tree->evict, (quire_region_id)region)) !=
                                    QUIRE_NODE_NULL) {
                node_evict(tree, id, QUIRE_PREFIX_GONE_TTL);
                n++;
            }
        }
    } while (n > before);
    return n;
}

/* The charge at which eviction ends; NEVER: when no candidate is left, charged or offloaded. */
#define NEVER UINT64_MAX

static bool goes_on(const quire_prefix *tree, quire_region_id region, uint64_t end_bytes)
{
    return end_bytes == NEVER || charged_bytes(tree, region) > end_bytes;
}

/* Evict until the region's charge is down to end_bytes or no candidate is left. Candidates with
 * only live pages are set aside in a list through their links: evicting them frees nothing. */
static void evict_down_to(quire_prefix *tree, quire_evict_ask ask, uint64_t end_bytes,
                          uint32_t *aside)
{
    quire_prefix_gone why;
    uint32_t id;

    while (goes_on(tree, ask.region, end_bytes) &&
           (id = quire_evict_victim(&tree->evict, ask, &why)) != QUIRE_NODE_NULL) {
        if (frees_pages(tree, id)) {
            node_evict(tree, id, why);
            continue;
        }
        quire_evict_remove(&tree->evict, id);
        quire_prefix_at(tree, id)->links[0].up = *aside;
        *aside = id;
    }
}

uint64_t quire_prefix_evict_ask(quire_prefix *tree, quire_evict_ask ask, uint64_t need_bytes)
{
    uint64_t start_bytes = charged_bytes(tree, ask.region);
    uint64_t end_bytes = start_bytes > need_bytes ? start_bytes - need_bytes : 0;
    uint32_t aside = QUIRE_NODE_NULL;

    end_bytes = need_bytes == UINT64_MAX ? NEVER : end_bytes;
    /* An expired node of another region may be below a node of this region. */
    do {
        quire_prefix_windows_evict(tree, ask, QUIRE_WINDOW_FREE, end_bytes);
        evict_down_to(tree, ask, end_bytes, &aside);
        quire_prefix_windows_evict(tree, ask, QUIRE_WINDOW_KEPT, end_bytes);
    } while (goes_on(tree, ask.region, end_bytes) && expire(tree, UINT32_MAX) > 0);
    while (aside != QUIRE_NODE_NULL) {
        uint32_t next = quire_prefix_at(tree, aside)->links[0].up;

        quire_evict_add(&tree->evict, aside);
        aside = next;
    }
    QUIRE_PREFIX_CHECKED(tree);
    return start_bytes - charged_bytes(tree, ask.region);
}

uint64_t quire_prefix_evict(quire_prefix *tree, quire_region_id region, uint64_t need_bytes)
{
    if (region >= QUIRE_REGIONS_MAX) {
        return 0;
    }
    return quire_prefix_evict_ask(tree, (quire_evict_ask){ region, QUIRE_EVICT_ANY }, need_bytes);
}

/* Evict a node and the nodes below, children first, up to one with a ref. Returns whether all are
 * gone; then the caller settles the parent. */
static bool subtree_evict(quire_prefix *tree, uint32_t top)
{
    uint32_t id = top;

    for (;;) {
        const quire_prefix_node *node = quire_prefix_at(tree, id);
        const uint32_t parent = node->parent;

        if (node->n_children > 0) {
            id = node->children;
            continue;
        }
        if (node->n_refs > 0) {
            return false;
        }
        (void)quire_prefix_node_end_now(tree, id, QUIRE_PREFIX_GONE_MEMORY);
        if (id == top) {
            return true;
        }
        id = parent;
    }
}

int quire_prefix_leave(quire_prefix *tree, quire_prefix_ref ref, uint64_t now_us)
{
    const quire_prefix_tie *tie = quire_prefix_tie_find(tree, ref);
    uint32_t id = tie != NULL ? tie->node : QUIRE_NODE_NULL;
    bool is_page = id != QUIRE_NODE_NULL && quire_prefix_at(tree, id)->kind == QUIRE_NODE_PAGE;

    QUIRE_TRY(quire_prefix_release(tree, ref, now_us)); /* may end a root */
    while (is_page) {
        const uint32_t parent = quire_prefix_at(tree, id)->parent;

        is_page = quire_prefix_at(tree, parent)->kind == QUIRE_NODE_PAGE;
        if (!subtree_evict(tree, id)) {
            break;
        }
        quire_prefix_node_settle(tree, parent); /* may end a root */
        id = parent;
    }
    QUIRE_PREFIX_CHECKED(tree);
    return QUIRE_OK;
}

uint32_t quire_prefix_expire(quire_prefix *tree, uint64_t now_us, uint32_t nodes_max)
{
    uint32_t n;

    quire_prefix_tick(tree, now_us);
    n = expire(tree, nodes_max);
    QUIRE_PREFIX_CHECKED(tree);
    return n;
}

/* ---- invalidation ---- */

typedef struct dropper {
    quire_prefix *tree;
    quire_prefix_gone why;
    uint32_t n_tokens; /* number of named tokens with which the dropped texts begin */
    quire_prefix_dropped sum;
} dropper;

/* Detach the refs from a node that ends. A ref that shares fewer tokens than named, because it
 * ended inside the node, continues from the parent. The other refs publish no more. */
static void ties_let_go(dropper *d, uint32_t id)
{
    quire_prefix *tree = d->tree;

    while (quire_prefix_at(tree, id)->refs_head != 0) {
        quire_prefix_tie *tie = &tree->ties[quire_prefix_at(tree, id)->refs_head - 1];
        uint32_t to = QUIRE_NODE_NULL;

        if (tie->n_known < d->n_tokens) {
            to = quire_prefix_at(tree, id)->parent;
            tie->n_known = quire_prefix_node_end(quire_prefix_at(tree, to));
        }
        quire_prefix_tie_move(tree, tie, to);
    }
}

/* Drop all nodes below a node, which stays. */
static void children_drop(dropper *d, uint32_t top)
{
    quire_prefix *tree = d->tree;
    uint32_t id = top;

    for (;;) {
        const quire_prefix_node *node = quire_prefix_at(tree, id);
        uint32_t parent = node->parent;

        if (node->n_children > 0) {
            id = node->children;
            continue;
        }
        if (id == top) {
            return;
        }
        ties_let_go(d, id);
        d->sum.nodes++;
        d->sum.tokens += node->n_tokens;
        d->sum.freed_bytes += quire_prefix_node_end_now(tree, id, d->why);
        id = parent;
    }
}

/* Drop a node and all nodes below. The caller settles the parent. */
static void node_drop(dropper *d, uint32_t id)
{
    children_drop(d, id);
    ties_let_go(d, id);
    d->sum.nodes++;
    d->sum.tokens += quire_prefix_at(d->tree, id)->n_tokens;
    d->sum.freed_bytes += quire_prefix_node_end_now(d->tree, id, d->why);
}

static void root_drop(dropper *d, uint32_t root)
{
    children_drop(d, root);
    if (quire_prefix_at(d->tree, root)->n_refs > 0) {
        ties_let_go(d, root); /* the last ref ends the root */
    } else {
        quire_prefix_node_settle(d->tree, root);
    }
}

/* Whether a ref is under a root and its first n tokens, which are in the tree, equal these
 * tokens. */
static bool tie_begins(const quire_prefix *tree, const quire_prefix_tie *tie, uint32_t root,
                       const int32_t *tokens, uint32_t n)
{
    uint32_t id = tie->node;

    for (; quire_prefix_at(tree, id)->kind == QUIRE_NODE_PAGE;
         id = quire_prefix_at(tree, id)->parent) {
        const quire_prefix_node *node = quire_prefix_at(tree, id);
        uint32_t end = n < quire_prefix_node_end(node) ? n : quire_prefix_node_end(node);

        if (end > node->first_token &&
            memcmp(tokens + node->first_token, quire_prefix_tokens_at(tree, id),
                   (end - node->first_token) * sizeof(*tokens)) != 0) {
            return false;
        }
    }
    return id == root;
}

/* A running sequence may begin with the named text although the tree does not contain that text
 * (yet, or any more). Store the text in the sequence's tie; publish checks it. A tie stores one
 * text; with a second, different text the ref dies. */
static void ties_ban(dropper *d, uint32_t root, const int32_t *tokens, uint32_t n_tokens)
{
    quire_prefix *tree = d->tree;
    uint64_t hash = quire_prefix_hash_add(tree->seed, tokens, n_tokens);

    for (uint32_t i = 0; i < tree->n_ties; i++) {
        quire_prefix_tie *tie = &tree->ties[i];
        const quire_seq *seq;
        uint32_t n_known = tie->n_known;

        if (tie->id == QUIRE_PREFIX_REF_NULL || tie->node == QUIRE_NODE_NULL || tie->is_private) {
            continue;
        }
        seq = quire_seqs_find(&tree->cache->seqs, tie->seq);
        n_known = seq != NULL && seq->cut_tokens < n_known ? seq->cut_tokens : n_known;
        if (n_known >= n_tokens || !tie_begins(tree, tie, root, tokens, n_known)) {
            continue;
        }
        if (tie->ban_tokens != 0 && (tie->ban_tokens != n_tokens || tie->ban_hash != hash)) {
            quire_prefix_tie_move(tree, tie, QUIRE_NODE_NULL);
            continue;
        }
        tie->ban_tokens = n_tokens;
        tie->ban_hash = hash;
    }
}

int quire_prefix_root_spare(quire_prefix *tree)
{
    dropper d = { .tree = tree, .why = QUIRE_PREFIX_GONE_MEMORY };

    for (const quire_prefix_root *root = tree->roots_last; root != NULL; root = root->prev) {
        if (root->n_ties == 0) {
            root_drop(&d, root->node);
            return QUIRE_OK;
        }
    }
    return QUIRE_LIMIT;
}

static dropper dropper_start(quire_prefix *tree, quire_prefix_gone why, uint64_t now_us)
{
    quire_prefix_tick(tree, now_us);
    return (dropper){ .tree = tree, .why = why };
}

quire_prefix_dropped quire_prefix_drop_all(quire_prefix *tree, uint64_t now_us)
{
    dropper d = dropper_start(tree, QUIRE_PREFIX_GONE_INVALIDATED, now_us);

    while (tree->roots != NULL) {
        root_drop(&d, tree->roots->node);
    }
    QUIRE_PREFIX_CHECKED(tree);
    return d.sum;
}

/* Drop the roots whose salts have n_min to n_max bytes and begin with these n_min bytes. */
static quire_prefix_dropped drop_salts(quire_prefix *tree, const void *begin, uint32_t n_min,
                                       uint32_t n_max, uint64_t now_us)
{
    dropper d = dropper_start(tree, QUIRE_PREFIX_GONE_INVALIDATED, now_us);
    quire_prefix_root *next;

    for (quire_prefix_root *root = tree->roots; root != NULL; root = next) {
        next = root->next;
        if (root->salt_bytes >= n_min && root->salt_bytes <= n_max &&
            (n_min == 0 || memcmp(root->salt, begin, n_min) == 0)) {
            root_drop(&d, root->node);
        }
    }
    QUIRE_PREFIX_CHECKED(tree);
    return d.sum;
}

quire_prefix_dropped quire_prefix_drop_salt(quire_prefix *tree, const void *salt,
                                            uint32_t salt_bytes, uint64_t now_us)
{
    return drop_salts(tree, salt, salt_bytes, salt_bytes, now_us);
}

quire_prefix_dropped quire_prefix_drop_salts(quire_prefix *tree, const void *begin,
                                             uint32_t begin_bytes, uint64_t now_us)
{
    return drop_salts(tree, begin, begin_bytes, UINT32_MAX, now_us);
}

quire_prefix_dropped quire_prefix_drop_prefix(quire_prefix *tree, const quire_prefix_key *key,
                                              const int32_t *tokens, uint32_t n_tokens,
                                              uint64_t now_us)
{
    dropper d = dropper_start(tree, QUIRE_PREFIX_GONE_INVALIDATED, now_us);
    uint32_t n_above = n_tokens > 0 ? (n_tokens - 1) / tree->page_tokens * tree->page_tokens : 0;
    uint32_t n_rest = n_tokens - n_above;
    quire_prefix_walk walk = quire_prefix_walk_to(tree, key, tokens, n_above, NULL);

    if (walk.root == QUIRE_NODE_NULL) {
        return d.sum;
    }
    if (walk.n_full < n_above) { /* no part of the named text is cached */
        ties_ban(&d, walk.root, tokens, n_tokens);
        QUIRE_PREFIX_CHECKED(tree);
        return d.sum;
    }
    if (n_tokens == 0) {
        root_drop(&d, walk.root);
        QUIRE_PREFIX_CHECKED(tree);
        return d.sum;
    }
    d.n_tokens = n_tokens;
    for (;;) {
        quire_prefix_place place =
            quire_prefix_siblings_find(&tree->nodes, walk.base, tokens + n_above, n_rest);

        if (place.above == QUIRE_NODE_NULL || place.n_above < n_rest) {
            break;
        }
        node_drop(&d, place.above);
    }
    quire_prefix_node_settle(tree, walk.base);
    ties_ban(&d, walk.root, tokens, n_tokens); /* last, because it may end the root */
    QUIRE_PREFIX_CHECKED(tree);
    return d.sum;
}

static bool is_owned(const quire_prefix *tree, uint32_t id, uint64_t owner)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);

    return node->kind == QUIRE_NODE_PAGE && node->owner == owner;
}

quire_prefix_dropped quire_prefix_drop_owner(quire_prefix *tree, uint64_t owner, uint64_t now_us)
{
    dropper d = dropper_start(tree, QUIRE_PREFIX_GONE_CLOSED, now_us);

    uint32_t id;

    if (owner == 0) {
        return d.sum;
    }
    while ((id = quire_prefix_owners_find(&tree->owners, owner)) != QUIRE_NODE_NULL) {
        uint32_t parent = quire_prefix_at(tree, id)->parent;

        while (is_owned(tree, parent, owner)) {
            id = parent;
            parent = quire_prefix_at(tree, id)->parent;
        }
        node_drop(&d, id); /* nodes below have the same owner (P7) */
        quire_prefix_node_settle(tree, parent);
    }
    for (uint32_t i = 0; i < tree->n_ties; i++) {
        quire_prefix_tie *tie = &tree->ties[i];

        if (tie->id != QUIRE_PREFIX_REF_NULL && tie->owner == owner) {
            quire_prefix_tie_move(tree, tie, QUIRE_NODE_NULL);
        }
    }
    QUIRE_PREFIX_CHECKED(tree);
    return d.sum;
}
