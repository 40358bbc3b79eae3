/* prefix_walk.c - finds the longest cached prefix of a text, and the reason why it is not longer.
 *
 * A tree of a million pages does not fit a processor's caches, so the walk would wait for memory
 * twice per page: for the index, then for the node. The hashes of the following pages do not depend
 * on the tree, so both accesses are prefetched some pages ahead.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_internal.h"

#include <string.h>

#define HASHES_AHEAD 16u /* pages with a prefetched index entry */
#define NODES_AHEAD  8u  /* pages with a prefetched node */

uint32_t quire_prefix_child_find(const quire_prefix *tree, uint32_t parent, uint64_t path_hash,
                                 const int32_t *tokens)
{
    uint32_t tag = quire_prefix_index_tag(path_hash);
    uint32_t at = tag;
    uint32_t id;

    while ((id = quire_prefix_index_next(&tree->index, tag, &at)) != QUIRE_NODE_NULL) {
        const quire_prefix_node *node = quire_prefix_at(tree, id);

        if (node->parent == parent && memcmp(quire_prefix_node_tokens_const(&tree->nodes, node),
                                             tokens, tree->page_tokens * sizeof(*tokens)) == 0) {
            return id;
        }
    }
    return QUIRE_NODE_NULL;
}

static void node_prefetch(const quire_prefix *tree, uint64_t path_hash)
{
    uint32_t tag = quire_prefix_index_tag(path_hash);
    uint32_t at = tag;
    uint32_t id = quire_prefix_index_next(&tree->index, tag, &at);

    if (id != QUIRE_NODE_NULL) {
        const unsigned char *node = (const unsigned char *)quire_prefix_at(tree, id);

        for (size_t i = 0; i < tree->nodes.node_bytes; i += 64) {
            __builtin_prefetch(node + i);
        }
    }
}

/* Follow full pages from the root in walk->base. */
static void walk_pages(const quire_prefix *tree, const int32_t *tokens, uint32_t n_pages,
                       uint32_t *path, quire_prefix_walk *walk)
{
    uint64_t hashes[HASHES_AHEAD];
    uint64_t hash = walk->hash;
    uint32_t page_tokens = tree->page_tokens;
    uint32_t n_hashed = 0;
    uint32_t n_fetched = 0;

    for (uint32_t i = 0; i < n_pages; i++) {
        uint32_t id;

        for (; n_hashed < n_pages && n_hashed < i + HASHES_AHEAD; n_hashed++) {
            hash = quire_prefix_hash_add(hash, tokens + n_hashed * page_tokens, page_tokens);
            hashes[n_hashed % HASHES_AHEAD] = hash;
            quire_prefix_index_prefetch(&tree->index, hash);
        }
        for (; n_fetched < n_hashed && n_fetched < i + NODES_AHEAD; n_fetched++) {
            node_prefetch(tree, hashes[n_fetched % HASHES_AHEAD]);
        }
        id = quire_prefix_child_find(tree, walk->base, hashes[i % HASHES_AHEAD],
                                     tokens + i * page_tokens);
        if (id == QUIRE_NODE_NULL) {
            return;
        }
        walk->base = id;
        walk->hash = hashes[i % HASHES_AHEAD];
        walk->n_full += page_tokens;
        if (path != NULL) {
            path[i] = id;
        }
    }
}

/* Whether a node has more than the n shared tokens. */
static bool goes_on(const quire_prefix *tree, uint32_t id, uint32_t n)
{
    return id != QUIRE_NODE_NULL && quire_prefix_at(tree, id)->n_tokens > n;
}

static void walk_inside(const quire_prefix *tree, const int32_t *tokens, uint32_t n_tokens,
                        quire_prefix_walk *walk)
{
    quire_prefix_place place =
        quire_prefix_siblings_find(&tree->nodes, walk->base, tokens, n_tokens);
    uint32_t n = place.n_above > place.n_below ? place.n_above : place.n_below;
    uint32_t above = place.n_above == n ? place.above : QUIRE_NODE_NULL;
    uint32_t below = place.n_below == n ? place.below : QUIRE_NODE_NULL;

    if (n > 0) {
        walk->inside = above != QUIRE_NODE_NULL ? above : below;
        walk->n_inside = n;
    }
    if (n == n_tokens) {
        return;
    }
    walk->other = goes_on(tree, above, n) ? above : QUIRE_NODE_NULL;
    if (goes_on(tree, below, n) &&
        (walk->other == QUIRE_NODE_NULL ||
         quire_prefix_at(tree, below)->used_tick > quire_prefix_at(tree, above)->used_tick)) {
        walk->other = below;
    }
}

quire_prefix_walk quire_prefix_walk_to(const quire_prefix *tree, const quire_prefix_key *key,
                                       const int32_t *tokens, uint32_t n_tokens, uint32_t *path)
{
    quire_prefix_walk walk = { 0 };
    uint32_t n_rest;

    walk.hash = quire_prefix_hash_key(tree->seed, key->identity, key->salt, key->salt_bytes);
    walk.root = quire_prefix_root_find(tree, key, walk.hash);
    walk.base = walk.root;
    if (walk.root == QUIRE_NODE_NULL) {
        return walk;
    }
    walk_pages(tree, tokens, n_tokens / tree->page_tokens, path, &walk);
    n_rest = n_tokens - walk.n_full;
    if (n_rest > 0) {
        walk_inside(tree, tokens + walk.n_full,
                    n_rest < tree->page_tokens ? n_rest : tree->page_tokens, &walk);
    }
    return walk;
}

/* ---- usable tokens ---- */

/* Why a part of a node cannot be used, so that a sequence may append behind it; NONE: it can. */
static quire_prefix_cut part_cut(const quire_prefix *tree, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);

    if (tree->opts.is_page_exact) {
        return QUIRE_PREFIX_CUT_PAGE;
    }
    for (uint32_t g = 0; g < tree->n_groups; g++) {
        if (node->pages[g] == QUIRE_PAGE_NULL) {
            return quire_prefix_group_cut(tree, g);
        }
        if (quire_pool_page(&tree->cache->pool, node->pages[g])->is_offloaded) {
            return QUIRE_PREFIX_CUT_PAGE;
        }
    }
    return QUIRE_PREFIX_CUT_NONE;
}

/* Tokens of the walk that a hit has, at most tokens_max. *cut gets the reason if the hit ends
 * before them. */
static uint32_t usable(const quire_prefix *tree, const quire_prefix_walk *walk, uint32_t tokens_max,
                       quire_prefix_cut *cut)
{
    uint32_t n = walk->n_full + walk->n_inside;
    uint32_t n_over;
    uint32_t id = walk->inside;

    *cut = QUIRE_PREFIX_CUT_NONE;
    n = n < tokens_max ? n : tokens_max;
    n_over = n % tree->page_tokens;
    if (n < walk->n_full && n_over != 0) {
        for (id = walk->base; quire_prefix_at(tree, id)->first_token > n;) {
            id = quire_prefix_at(tree, id)->parent;
        }
    }
    if (n_over != 0) {
        *cut = part_cut(tree, id);
        n -= *cut != QUIRE_PREFIX_CUT_NONE ? n_over : 0;
    }
    if (tree->window_tokens == 0 || n == 0) {
        return n;
    }
    return quire_prefix_window_fit(
        tree, walk->inside != QUIRE_NODE_NULL ? walk->inside : walk->base, n, cut);
}

/* ---- why ---- */

/* The position up to which ghosts continue the text behind the walk's full pages; *first and *last
 * get the first and the last ghost, NULL = none. */
static uint32_t gone_until(const quire_prefix *tree, const quire_prefix_walk *walk,
                           const int32_t *tokens, uint32_t n_tokens, const quire_ghost **first,
                           const quire_ghost **last)
{
    uint32_t page_tokens = tree->page_tokens;
    uint32_t at = walk->n_full;
    uint64_t hash = walk->hash;
    const quire_ghost *ghost;
    uint32_t n_rest;

    *first = NULL;
    *last = NULL;
    if (tree->ghosts.n == 0) {
        return at;
    }
    for (; n_tokens - at >= page_tokens; at += page_tokens) {
        uint64_t next = quire_prefix_hash_add(hash, tokens + at, page_tokens);

        ghost = quire_ghosts_find(&tree->ghosts, next);
        if (ghost == NULL) {
            break;
        }
        *first = *first != NULL ? *first : ghost;
        *last = ghost;
        hash = next;
    }
    n_rest = n_tokens - at < page_tokens ? n_tokens - at : page_tokens - 1;
    ghost = quire_ghosts_find_partial(&tree->ghosts, hash, tokens + at, n_rest);
    if (ghost != NULL) {
        *first = *first != NULL ? *first : ghost;
        *last = ghost;
        at += ghost->n_tokens;
    }
    return at;
}

static void explain(const quire_prefix *tree, quire_prefix_walk *walk, const int32_t *tokens,
                    uint32_t n_tokens, quire_prefix_match *match)
{
    const quire_ghost *ghost;
    const quire_ghost *last;
    uint32_t n_same = walk->n_full + walk->n_inside;
    uint32_t n_gone;

    *match = (quire_prefix_match){ .n_same_tokens = n_same, .cached_token = -1 };
    if (n_same == n_tokens) {
        match->end = QUIRE_PREFIX_END_WHOLE;
        return;
    }
    n_gone = gone_until(tree, walk, tokens, n_tokens, &ghost, &last);
    if (n_gone > n_same) {
        walk->gone = last;
        match->end = QUIRE_PREFIX_END_EVICTED;
        match->n_gone_tokens = n_gone - n_same;
        match->gone = (quire_prefix_gone)ghost->why;
        match->gone_us = ghost->gone_us;
        match->is_gone_stored = ghost->copy == tree->copies_epoch;
    } else if (walk->other != QUIRE_NODE_NULL) {
        match->end = QUIRE_PREFIX_END_DIVERGED;
        match->cached_token = quire_prefix_tokens_at(tree, walk->other)[walk->n_inside];
    } else {
        match->end = n_same > 0 ? QUIRE_PREFIX_END_ENDED : QUIRE_PREFIX_END_NEW;
    }
}

void quire_prefix_walk_match(const quire_prefix *tree, quire_prefix_walk *walk,
                             const int32_t *tokens, uint32_t n_tokens, uint32_t tokens_max,
                             quire_prefix_match *match)
{
    uint32_t seq_tokens_max = tree->cache->opts.seq_tokens_max;

    tokens_max = tokens_max < seq_tokens_max ? tokens_max : seq_tokens_max;
    explain(tree, walk, tokens, n_tokens, match);
    match->n_tokens = usable(tree, walk, tokens_max, &match->cut);
    if (match->end == QUIRE_PREFIX_END_WHOLE && match->cut != QUIRE_PREFIX_CUT_NONE) {
        match->end = QUIRE_PREFIX_END_ROUNDED;
    }
}

void quire_prefix_lookup(const quire_prefix *tree, const quire_prefix_key *key,
                         const int32_t *tokens, uint32_t n_tokens, quire_prefix_match *match)
{
    quire_prefix_walk walk = quire_prefix_walk_to(tree, key, tokens, n_tokens, NULL);

    quire_prefix_walk_match(tree, &walk, tokens, n_tokens, UINT32_MAX, match);
}

/* Add a page of the match to a claim. */
static void claim_page(const quire_prefix *tree, quire_page_id id, quire_prefix_claim *claim)
{
    const quire_page *page = &tree->cache->pool.pages[id];
    const uint64_t bytes = tree->cache->opts.charge_bytes[page->group];

    if (page->is_pinned || page->is_offloaded) {
        return; /* its use takes no memory that could have been evicted */
    }
    if (quire_page_state_of(page) == QUIRE_PAGE_CACHED) {
        claim->cached_bytes[page->region] += bytes;
    } else {
        claim->live_bytes[page->region] += bytes;
    }
}

void quire_prefix_claim_get(const quire_prefix *tree, const quire_prefix_key *key,
                            const int32_t *tokens, uint32_t n_tokens, uint32_t tokens_max,
                            quire_prefix_claim *claim)
{
    quire_prefix_walk walk = quire_prefix_walk_to(tree, key, tokens, n_tokens, NULL);
    uint32_t id = walk.inside != QUIRE_NODE_NULL ? walk.inside : walk.base;
    quire_prefix_cut cut;

    *claim = (quire_prefix_claim){ 0 };
    quire_prefix_walk_match(tree, &walk, tokens, n_tokens, UINT32_MAX, &claim->match);
    claim->n_tokens = claim->match.n_tokens;
    if (tokens_max < claim->n_tokens) {
        claim->n_tokens = usable(tree, &walk, tokens_max, &cut);
    }
    for (; id != QUIRE_NODE_NULL; id = quire_prefix_at(tree, id)->parent) {
        const quire_prefix_node *node = quire_prefix_at(tree, id);

        for (uint32_t g = 0; g < tree->n_groups && node->kind == QUIRE_NODE_PAGE; g++) {
            if (node->pages[g] != QUIRE_PAGE_NULL && !quire_prefix_is_state(tree, g) &&
                quire_prefix_window_uses(tree, node, g, claim->n_tokens)) {
                claim_page(tree, node->pages[g], claim);
            }
        }
    }
}

void quire_prefix_path_bytes(const quire_prefix *tree, const quire_prefix_key *key,
                             const int32_t *tokens, uint32_t n_tokens, uint64_t owner,
                             uint64_t *bytes, uint64_t *own_bytes)
{
    quire_prefix_walk walk = quire_prefix_walk_to(tree, key, tokens, n_tokens, NULL);
    uint32_t id = walk.inside != QUIRE_NODE_NULL ? walk.inside : walk.base;
    uint64_t sum = 0;
    uint64_t own = 0;

    while (id != QUIRE_NODE_NULL) {
        const quire_prefix_node *node = quire_prefix_at(tree, id);

        for (uint32_t g = 0; g < tree->n_groups && node->kind == QUIRE_NODE_PAGE; g++) {
            if (node->pages[g] != QUIRE_PAGE_NULL) {
                sum += tree->cache->opts.charge_bytes[g];
                own += node->owner == owner ? tree->cache->opts.charge_bytes[g] : 0;
            }
        }
        id = node->parent;
    }
    if (bytes != NULL) {
        *bytes = sum;
    }
    if (own_bytes != NULL) {
        *own_bytes = own;
    }
}
