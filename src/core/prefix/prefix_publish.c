/* prefix_publish.c - new nodes from a sequence's computed tokens.
 *
 * At each node of the path there are three cases. If a child already holds all the tokens, the
 * child stays, and the sequence takes the child's full pages in place of its own copies. If a
 * partly filled child holds a prefix of the tokens, the child gets the sequence's pages and tokens;
 * readers of its old pages hold these pages themselves. If the tokens are new, a new node is made.
 * So no node is a prefix of a sibling (P2).
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_internal.h"

/* One call of publish. */
typedef struct publisher {
    quire_prefix *tree;
    quire_prefix_tie *tie;
    quire_seq *seq;
    const int32_t *tokens;
    uint32_t n_tokens;
    uint32_t base; /* last full node of the path */
} publisher;

/* The last full node of a tie's path. The tie may end inside one of its children. */
static uint32_t base_of(const quire_prefix *tree, const quire_prefix_tie *tie)
{
    return tie->n_known % tree->page_tokens == 0 ? tie->node
                                                 : quire_prefix_at(tree, tie->node)->parent;
}

/* Move the tie back to the last node that ends within the first n_tokens, the length to which the
 * sequence was truncated: other tokens may follow there. */
static void rewind_to(publisher *p, uint32_t n_tokens)
{
    uint32_t base = p->base;

    while (quire_prefix_node_end(quire_prefix_at(p->tree, base)) > n_tokens) {
        base = quire_prefix_at(p->tree, base)->parent;
    }
    p->base = base;
    p->tie->n_known = quire_prefix_node_end(quire_prefix_at(p->tree, base));
    quire_prefix_tie_move(p->tree, p->tie, base);
}

/* Collect the sequence's pages behind base, for a node of n tokens that replaces the node
 * `replaced` (0 = none). Returns whether the node can be made. */
static bool fill_get(const publisher *p, uint32_t n, uint32_t replaced, quire_prefix_fill *fill)
{
    const quire_prefix *tree = p->tree;
    uint32_t entry = quire_prefix_node_end(quire_prefix_at(tree, p->base)) / tree->page_tokens;

    for (uint32_t g = 0; g < quire_prefix_seq_groups(tree); g++) {
        quire_page_id page = quire_table_entry(&p->seq->tables[g], entry)->page;

        fill->pages[g] = page;
        if (page == QUIRE_PAGE_NULL) {
            if (g == 0 || n < tree->page_tokens) {
                return false;
            }
            continue;
        }
        /* Another node keeps the page: the caller published other tokens for the page before. */
        if (quire_pool_page(&tree->cache->pool, page)->n_kept > 0 &&
            (replaced == QUIRE_NODE_NULL || quire_prefix_at(tree, replaced)->pages[g] != page)) {
            return false;
        }
    }
    return true;
}

/* Charge of a fill's pages outside a region. */
static uint64_t elsewhere_bytes(const quire_prefix *tree, const quire_prefix_fill *fill,
                                quire_region_id region)
{
    uint64_t sum = 0;

    for (uint32_t g = 0; g < tree->n_groups; g++) {
        if (fill->pages[g] != QUIRE_PAGE_NULL &&
            quire_pool_page(&tree->cache->pool, fill->pages[g])->region != region) {
            sum += quire_pool_memory_bytes(&tree->cache->pool, fill->pages[g]);
        }
    }
    return sum;
}

/* Whether a fill may replace the pages of a pinned node. The charge stays in the node's region: the
 * new pages must fit the bytes that the old pages free, plus the region's free room when the
 * sequence belongs to the region. */
static bool fits_pinned(const publisher *p, const quire_prefix_node *node,
                        const quire_prefix_fill *fill)
{
    const quire_cache *cache = p->tree->cache;
    uint64_t room_bytes = node->region == p->seq->region
                              ? quire_region_headroom_bytes(&cache->regions.items[node->region])
                              : 0;

    for (uint32_t g = 0; g < p->tree->n_groups; g++) {
        quire_page_id page = node->pages[g];

        if (page != QUIRE_PAGE_NULL && fill->pages[g] == QUIRE_PAGE_NULL &&
            !quire_prefix_is_state(p->tree, g)) {
            return false;
        }
        if (page != QUIRE_PAGE_NULL && page != fill->pages[g] &&
            quire_pool_state(&cache->pool, page) == QUIRE_PAGE_CACHED) {
            room_bytes += quire_pool_memory_bytes(&cache->pool, page);
        }
    }
    return elsewhere_bytes(p->tree, fill, node->region) <= room_bytes;
}

/* Choose one region for the charge of all pages of a node: the pages' present region, or, when only
 * some pages spilled, a region with room for the rest. Returns whether there is such a region. */
static bool fill_charge(const publisher *p, uint32_t replaced, quire_prefix_fill *fill)
{
    const quire_prefix *tree = p->tree;
    const quire_pool *pool = &tree->cache->pool;
    quire_region_id tries[3] = { quire_pool_page(pool, fill->pages[0])->region, p->seq->region,
                                 QUIRE_REGION_DYNAMIC };

    if (replaced != QUIRE_NODE_NULL && quire_prefix_at(tree, replaced)->n_pins > 0) {
        fill->region = quire_prefix_at(tree, replaced)->region;
        return fits_pinned(p, quire_prefix_at(tree, replaced), fill);
    }
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t bytes = elsewhere_bytes(tree, fill, tries[i]);
        bool is_own = tries[i] == p->seq->region || tries[i] == QUIRE_REGION_DYNAMIC;

        fill->region = tries[i];
        if (bytes == 0 || (is_own && bytes <= quire_region_headroom_bytes(
                                                  &tree->cache->regions.items[tries[i]]))) {
            return true;
        }
    }
    return false;
}

/* Whether a child that shares n_same tokens with a text is a proper prefix of the text. */
static bool is_part(const quire_prefix *tree, uint32_t id, uint32_t n_same)
{
    return id != QUIRE_NODE_NULL && quire_prefix_at(tree, id)->n_tokens == n_same;
}

/* Whether the sequence keeps its pages, although a full node has the same tokens. */
static bool keeps_entry(const publisher *p, uint32_t id)
{
    const quire_page_id page = quire_prefix_at(p->tree, id)->pages[0];

    return p->tie->keeps_pages && quire_pool_page(&p->tree->cache->pool, page)->is_offloaded;
}

/* Give a full node the pages of entry i that it lacks. */
static void windows_fill(const publisher *p, uint32_t id, uint32_t i)
{
    quire_page_id pages[QUIRE_GROUPS_MAX] = { 0 };

    for (uint32_t g = 1; g < quire_prefix_seq_groups(p->tree); g++) {
        pages[g] = quire_table_entry(&p->seq->tables[g], i)->page;
    }
    quire_prefix_window_fill(p->tree, id, pages);
}

/* Publish n tokens, at most a page, behind base. *out gets the child that holds them, 0 when the
 * child cannot be made. */
static int child_put(publisher *p, uint32_t n, uint32_t *out)
{
    quire_prefix *tree = p->tree;
    uint32_t first = quire_prefix_node_end(quire_prefix_at(tree, p->base));
    const int32_t *tokens = p->tokens + first;
    quire_prefix_place place = quire_prefix_siblings_find(&tree->nodes, p->base, tokens, n);
    quire_prefix_user user = { p->tie->owner, p->tie->rank };
    quire_prefix_fill fill = { .user = user };
    uint32_t part;

    *out = QUIRE_NODE_NULL;
    if (place.above != QUIRE_NODE_NULL && place.n_above == n) {
        *out = place.above;
        if (first >= p->tie->n_known) { /* the sequence neither was filled from the node nor made
                                           it */
            quire_prefix_node_share(tree, *out, user);
        } else {
            quire_prefix_node_touch(tree, *out, user);
        }
        if (n == tree->page_tokens) {
            if (!keeps_entry(p, *out)) {
                quire_seq_swap(tree->cache, p->seq, first / n, quire_prefix_at(tree, *out)->pages);
            }
            windows_fill(p, *out, first / n);
        }
        return QUIRE_OK;
    }
    part = is_part(tree, place.below, place.n_below) ? place.below : QUIRE_NODE_NULL;
    if (!fill_get(p, n, part, &fill) || !fill_charge(p, part, &fill)) {
        return QUIRE_OK;
    }
    if (part != QUIRE_NODE_NULL) {
        *out = part;
        quire_counter_add(&tree->published_tokens, n - place.n_below);
        quire_prefix_node_grow(tree, part, tokens, n, &fill);
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_prefix_node_make(tree, p->base, tokens, n, &fill, out));
    quire_counter_add(&tree->published_tokens, n);
    return QUIRE_OK;
}

/* Publish from base on, and move the tie to the last published node. */
static int publish_from(publisher *p)
{
    uint32_t page_tokens = p->tree->page_tokens;
    uint32_t known = quire_prefix_node_end(quire_prefix_at(p->tree, p->base));
    uint32_t end = p->base;
    int rc = QUIRE_OK;

    while (known < p->n_tokens) {
        uint32_t n = p->n_tokens - known < page_tokens ? p->n_tokens - known : page_tokens;
        uint32_t child;

        if (n < page_tokens && p->tree->opts.is_page_exact) {
            break; /* no lookup could use an open page */
        }
        rc = child_put(p, n, &child);
        if (rc < 0 || child == QUIRE_NODE_NULL) {
            break;
        }
        known += n;
        end = child;
        if (known >= p->tie->request.n_tokens && known - n < p->tie->request.n_tokens) {
            quire_prefix_ends_set(p->tree, child, QUIRE_NODE_ENDS_TEXT); /* of the prompt */
        }
        p->base = n == page_tokens ? child : p->base;
    }
    /* Without new tokens the tie stays, maybe inside a child of base. */
    if (known > p->tie->n_known) {
        quire_prefix_tie_move(p->tree, p->tie, end);
        p->tie->n_known = known;
    }
    return rc;
}

/* Release one group's pages where the sequence has holes, from base upwards. */
static void holes_follow_in(publisher *p, uint32_t group, quire_prefix_run run)
{
    quire_prefix *tree = p->tree;
    uint32_t id = p->base;

    for (;;) {
        quire_prefix_node *node = quire_prefix_at(tree, id);
        uint32_t entry = node->first_token / tree->page_tokens;
        quire_page_id page;

        if (node->kind == QUIRE_NODE_ROOT || entry < run.begin) {
            return;
        }
        page = node->pages[group];
        if (entry < run.end && page != QUIRE_PAGE_NULL && node->n_pins == 0 &&
            quire_pool_state(&tree->cache->pool, page) == QUIRE_PAGE_CACHED) {
            (void)quire_pool_evict(&tree->cache->pool, page);
            node->pages[group] = QUIRE_PAGE_NULL;
            quire_prefix_node_shrink(tree, id, tree->cache->opts.charge_bytes[group]);
        }
        id = node->parent;
    }
}

/* Release from the tree the pages that the sequence has released and no other sequence holds. */
static void holes_follow(publisher *p)
{
    for (uint32_t g = 1; g < quire_prefix_seq_groups(p->tree); g++) {
        const quire_table *table = &p->seq->tables[g];
        quire_prefix_run now = { table->holes_begin, table->holes_end };
        quire_prefix_run *done = &p->tie->holes[g];

        if (quire_prefix_window(p->tree, g) != 0) {
            continue; /* pages behind a window stay until memory is short */
        }
        if (now.begin < now.end && (now.begin != done->begin || now.end != done->end)) {
            bool has_grown = now.begin == done->begin && now.end > done->end;

            holes_follow_in(p, g, has_grown ? (quire_prefix_run){ done->end, now.end } : now);
        }
        *done = now;
    }
}

int quire_prefix_publish(quire_prefix *tree, quire_prefix_ref ref, const int32_t *tokens,
                         uint32_t n_tokens, uint64_t now_us)
{
    quire_prefix_tie *tie = quire_prefix_tie_find(tree, ref);
    publisher p;
    quire_seq *seq;
    int rc = QUIRE_OK;

    QUIRE_FAIL_IF(tie == NULL, QUIRE_NOTFOUND);
    seq = quire_seqs_find(&tree->cache->seqs, tie->seq);
    QUIRE_FAIL_IF(seq == NULL || seq->tied_ref != ref || n_tokens > seq->n_tokens, QUIRE_INVAL);
    if (tie->is_private || tie->node == QUIRE_NODE_NULL) {
        return QUIRE_OK;
    }
    quire_prefix_tick(tree, now_us);
    tree->evict.request = tie->request;
    p = (publisher){ .tree = tree,
                     .tie = tie,
                     .seq = seq,
                     .tokens = tokens,
                     .n_tokens = n_tokens,
                     .base = base_of(tree, tie) };
    if (seq->cut_tokens < tie->n_known) {
        rewind_to(&p, seq->cut_tokens);
    }
    seq->cut_tokens = UINT32_MAX;
    if (tie->ban_tokens > 0 && n_tokens >= tie->ban_tokens) {
        if (quire_prefix_hash_add(tree->seed, tokens, tie->ban_tokens) == tie->ban_hash) {
            quire_prefix_tie_move(tree, tie, QUIRE_NODE_NULL);
            QUIRE_PREFIX_CHECKED(tree);
            return QUIRE_OK;
        }
        tie->ban_tokens = 0;
    }
    if (n_tokens > tie->n_known) {
        rc = publish_from(&p);
    }
    holes_follow(&p);
    quire_prefix_quotas_apply(tree);
    quire_prefix_quota_apply(tree, quire_prefix_at(tree, tie->root->node)->account);
    QUIRE_PREFIX_CHECKED(tree);
    return rc;
}
