/* prefix_window.c - pages of groups with windows: where hits can end, and which pages go first.
 *
 * The tree treats all groups with windows alike: an end keeps the pages of the widest window, and a
 * node's pages of all such groups go together.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_internal.h"

#define ENDS_NEWEST                                                                                \
    4u /* ends of texts that a path keeps, the new one included, beside its first                  \
        */

/* ---- where hits can end ---- */

bool quire_prefix_window_uses(const quire_prefix *tree, const quire_prefix_node *node,
                              uint32_t group, uint32_t n_tokens)
{
    const uint32_t w = quire_prefix_window(tree, group);

    if (node->first_token >= n_tokens) {
        return false;
    }
    /* Appends need the rest of a page that is used in part: the last one. */
    return w == 0 || quire_prefix_node_end(node) > quire_window_begin(n_tokens, w) ||
           (n_tokens % tree->page_tokens != 0 && quire_prefix_node_end(node) >= n_tokens);
}

quire_prefix_cut quire_prefix_group_cut(const quire_prefix *tree, uint32_t group)
{
    if (quire_prefix_is_state(tree, group)) {
        return QUIRE_PREFIX_CUT_STATE;
    }
    return quire_prefix_window(tree, group) != 0 ? QUIRE_PREFIX_CUT_WINDOW : QUIRE_PREFIX_CUT_PAGE;
}

uint32_t quire_prefix_window_fit(const quire_prefix *tree, uint32_t id, uint32_t n_tokens,
                                 quire_prefix_cut *cut)
{
    const uint32_t w = tree->window_tokens;

    while (quire_prefix_at(tree, id)->first_token >= n_tokens && n_tokens > 0) {
        id = quire_prefix_at(tree, id)->parent;
    }
    for (; n_tokens > 0; id = quire_prefix_at(tree, id)->parent) {
        const quire_prefix_node *node = quire_prefix_at(tree, id);

        if (node->kind == QUIRE_NODE_ROOT ||
            quire_prefix_node_end(node) <= quire_window_begin(n_tokens, w)) {
            break; /* the rest lies before all windows */
        }
        for (uint32_t g = 1; g < tree->n_groups; g++) {
            /* A state is that of the node's last token. */
            const bool is_elsewhere =
                quire_prefix_is_state(tree, g) && quire_prefix_node_end(node) != n_tokens;

            if (quire_prefix_window(tree, g) != 0 &&
                (node->pages[g] == QUIRE_PAGE_NULL || is_elsewhere) &&
                quire_prefix_window_uses(tree, node, g, n_tokens)) {
                n_tokens = node->first_token;
                *cut = quire_prefix_group_cut(tree, g);
                break;
            }
        }
    }
    return n_tokens;
}

bool quire_prefix_is_dead(const quire_prefix *tree, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);
    const uint32_t end = quire_prefix_node_end(node);
    quire_prefix_cut cut;

    return tree->window_tokens != 0 && node->kind == QUIRE_NODE_PAGE &&
           quire_prefix_window_fit(tree, id, end, &cut) < end;
}

void quire_prefix_window_trim(const quire_prefix *tree, quire_page_id *pages, uint32_t n_tokens)
{
    for (uint32_t g = 1; g < tree->n_groups; g++) {
        const uint32_t w = quire_prefix_window(tree, g);
        const uint32_t n_unused = w != 0 ? quire_window_begin(n_tokens, w) / tree->page_tokens : 0;

        for (uint32_t i = 0; i < n_unused; i++) {
            pages[(size_t)i * tree->n_groups + g] = QUIRE_PAGE_NULL;
        }
    }
}

/* ---- ends ---- */

/* The first token that an end in a node keeps, for hits that end in the node or up to a page before
 * it. Chat templates often write the last tokens of a prompt anew in the next turn. */
static uint32_t reach_begin(const quire_prefix *tree, const quire_prefix_node *node)
{
    return quire_prefix_window_reach(tree, node->first_token);
}

/* Whether a node's window reaches the node `above` it. */
static bool reaches(const quire_prefix_node *above, uint32_t begin)
{
    return above->kind == QUIRE_NODE_PAGE && quire_prefix_node_end(above) > begin;
}

bool quire_prefix_window_reaches(const quire_prefix *tree, uint32_t end, uint32_t id,
                                 uint32_t group)
{
    return quire_prefix_window(tree, group) == 0 ||
           reaches(quire_prefix_at(tree, id), reach_begin(tree, quire_prefix_at(tree, end)));
}

/* Count a node with flags in all nodes that its window reaches, itself included. */
static void ends_count(quire_prefix *tree, uint32_t id, bool is_added)
{
    const uint32_t begin = reach_begin(tree, quire_prefix_at(tree, id));

    for (; reaches(quire_prefix_at(tree, id), begin); id = quire_prefix_at(tree, id)->parent) {
        quire_prefix_node *node = quire_prefix_at(tree, id);

        QUIRE_CHECK(is_added || node->n_ends > 0);
        if (node->n_ends == 0 || (node->n_ends == 1 && !is_added)) { /* another list from now on */
            quire_prefix_window_leave(tree, id);
            node->n_ends = is_added ? 1 : 0;
            quire_prefix_window_enter(tree, id);
        } else {
            node->n_ends += is_added ? 1 : UINT32_MAX;
        }
    }
}

void quire_prefix_ends_set(quire_prefix *tree, uint32_t id, uint8_t flags)
{
    quire_prefix_node *node = quire_prefix_at(tree, id);
    const bool is_new = node->ends == 0;

    if (tree->window_tokens == 0 || node->kind != QUIRE_NODE_PAGE) {
        return;
    }
    node->ends = (node->ends | flags) & QUIRE_NODE_ENDS;
    if (is_new) {
        ends_count(tree, id, true);
    }
}

void quire_prefix_ends_clear(quire_prefix *tree, uint32_t id, uint8_t flags)
{
    quire_prefix_node *node = quire_prefix_at(tree, id);
    const bool was_end = node->ends != 0;

    node->ends = node->ends & ~flags & QUIRE_NODE_ENDS;
    if (was_end && node->ends == 0) {
        ends_count(tree, id, false);
    }
}

void quire_prefix_text_ended(quire_prefix *tree, uint32_t id)
{
    uint32_t candidate = QUIRE_NODE_NULL; /* to lose its flag unless it is the first of the path */
    uint32_t n = 0;

    if (tree->window_tokens == 0) {
        return;
    }
    quire_prefix_ends_set(tree, id, QUIRE_NODE_ENDS_TEXT);
    for (; quire_prefix_at(tree, id)->kind == QUIRE_NODE_PAGE;
         id = quire_prefix_at(tree, id)->parent) {
        if ((quire_prefix_at(tree, id)->ends & QUIRE_NODE_ENDS_TEXT) == 0 || ++n <= ENDS_NEWEST) {
            continue;
        }
        if (candidate != QUIRE_NODE_NULL) {
            quire_prefix_ends_clear(tree, candidate, QUIRE_NODE_ENDS_TEXT);
        }
        candidate = id;
    }
}

void quire_prefix_branch_update(quire_prefix *tree, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);

    if (tree->window_tokens == 0 || node->kind != QUIRE_NODE_PAGE) {
        return;
    }
    if (node->n_children > 1) {
        quire_prefix_ends_set(tree, id, QUIRE_NODE_ENDS_BRANCH);
    } else {
        quire_prefix_ends_clear(tree, id, QUIRE_NODE_ENDS_BRANCH);
    }
}

/* ---- lists ---- */

static bool has_window_pages(const quire_prefix *tree, const quire_prefix_node *node)
{
    for (uint32_t g = 1; g < tree->n_groups; g++) {
        if (quire_prefix_window(tree, g) != 0 && node->pages[g] != QUIRE_PAGE_NULL) {
            return true;
        }
    }
    return false;
}

/* The list for a node's pages. A state that takes less memory than a node's KV, and saves at least
 * the computation of a node, goes with its node, as KV does. */
static quire_window_list list_of(const quire_prefix *tree, const quire_prefix_node *node)
{
    const uint32_t state = quire_prefix_seq_groups(tree);
    const size_t *bytes = tree->cache->opts.charge_bytes;
    const bool is_small =
        state < tree->n_groups && node->pages[state] != QUIRE_PAGE_NULL && bytes[state] < bytes[0];

    return node->n_ends > 0 || is_small ? QUIRE_WINDOW_KEPT : QUIRE_WINDOW_FREE;
}

void quire_prefix_window_enter(quire_prefix *tree, uint32_t id)
{
    quire_prefix_node *node = quire_prefix_at(tree, id);
    quire_window_queue *queue;

    if (tree->window_tokens == 0 || node->n_tokens < tree->page_tokens || node->n_window_pins > 0 ||
        !has_window_pages(tree, node)) {
        return;
    }
    QUIRE_CHECK(node->window_list == QUIRE_WINDOW_NONE);
    node->window_list = list_of(tree, node) & 3u;
    queue = &tree->windows[node->region][node->window_list];
    node->window_prev = queue->last;
    node->window_next = QUIRE_NODE_NULL;
    if (queue->last != QUIRE_NODE_NULL) {
        quire_prefix_at(tree, queue->last)->window_next = id;
    } else {
        queue->first = id;
    }
    queue->last = id;
    queue->n++;
    queue->searched = 0;
}

void quire_prefix_window_leave(quire_prefix *tree, uint32_t id)
{
    quire_prefix_node *node = quire_prefix_at(tree, id);
    quire_window_queue *queue = &tree->windows[node->region][node->window_list];

    if (node->window_list == QUIRE_WINDOW_NONE) {
        return;
    }
    if (node->window_prev != QUIRE_NODE_NULL) {
        quire_prefix_at(tree, node->window_prev)->window_next = node->window_next;
    } else {
        queue->first = node->window_next;
    }
    if (node->window_next != QUIRE_NODE_NULL) {
        quire_prefix_at(tree, node->window_next)->window_prev = node->window_prev;
    } else {
        queue->last = node->window_prev;
    }
    queue->n--;
    node->window_list = QUIRE_WINDOW_NONE;
}

void quire_prefix_window_use(quire_prefix *tree, uint32_t id)
{
    if (quire_prefix_at(tree, id)->window_list != QUIRE_WINDOW_NONE) {
        quire_prefix_window_leave(tree, id);
        quire_prefix_window_enter(tree, id);
    }
}

/* ---- pins ---- */

static void window_pages_pin(quire_prefix *tree, const quire_prefix_node *node, bool is_pinned)
{
    for (uint32_t g = 1; g < tree->n_groups; g++) {
        if (quire_prefix_window(tree, g) == 0 || node->pages[g] == QUIRE_PAGE_NULL) {
            continue;
        }
        if (is_pinned) {
            quire_pool_pin(&tree->cache->pool, node->pages[g]);
        } else {
            quire_pool_unpin(&tree->cache->pool, node->pages[g]);
        }
    }
}

void quire_prefix_window_pin(quire_prefix *tree, uint32_t id, bool is_added)
{
    uint32_t begin;

    if (tree->window_tokens == 0) {
        return;
    }
    begin = reach_begin(tree, quire_prefix_at(tree, id));
    for (; reaches(quire_prefix_at(tree, id), begin); id = quire_prefix_at(tree, id)->parent) {
        quire_prefix_node *node = quire_prefix_at(tree, id);

        QUIRE_CHECK(is_added || node->n_window_pins > 0);
        if (is_added && node->n_window_pins++ == 0) {
            quire_prefix_window_leave(tree, id);
            window_pages_pin(tree, node, true);
        } else if (!is_added && --node->n_window_pins == 0) {
            window_pages_pin(tree, node, false);
            quire_prefix_window_enter(tree, id);
        }
    }
}

/* ---- eviction ---- */

/* Evict the cached pages of a node. Returns whether there were any. */
static bool node_windows_evict(quire_prefix *tree, uint32_t id)
{
    const bool is_candidate = quire_evict_has(&tree->evict, id);
    quire_prefix_node *node = quire_prefix_at(tree, id);
    quire_pool *pool = &tree->cache->pool;
    uint64_t bytes = 0;

    for (uint32_t g = 1; g < tree->n_groups; g++) {
        if (quire_prefix_window(tree, g) != 0 && node->pages[g] != QUIRE_PAGE_NULL &&
            quire_pool_state(pool, node->pages[g]) == QUIRE_PAGE_CACHED) {
            bytes += tree->cache->opts.charge_bytes[g];
        }
    }
    if (bytes == 0) {
        return false;
    }
    if (is_candidate) { /* its keys must not change */
        quire_evict_remove(&tree->evict, id);
    }
    quire_prefix_window_leave(tree, id);
    for (uint32_t g = 1; g < tree->n_groups; g++) {
        if (quire_prefix_window(tree, g) != 0 && node->pages[g] != QUIRE_PAGE_NULL &&
            quire_pool_state(pool, node->pages[g]) == QUIRE_PAGE_CACHED) {
            (void)quire_pool_evict(pool, node->pages[g]);
            node->pages[g] = QUIRE_PAGE_NULL;
        }
    }
    quire_prefix_node_shrink(tree, id, bytes);
    quire_prefix_window_enter(tree, id); /* if live pages are left */
    if (is_candidate) {
        quire_evict_add(&tree->evict, id);
    }
    return true;
}

static uint64_t charged_bytes(const quire_prefix *tree, quire_region_id region)
{
    return quire_counter_get(&tree->cache->regions.items[region].charged_bytes);
}

/* Nodes whose pages are all in use go to the end of the list, so that a later search does not meet
 * them first. After a search that met nothing else the list is left alone until the cache has
 * changed. */
void quire_prefix_windows_evict(quire_prefix *tree, quire_evict_ask ask, quire_window_list list,
                                uint64_t end_bytes)
{
    quire_window_queue *queue = &tree->windows[ask.region][list];
    uint32_t n_left = queue->n;
    uint32_t id = queue->first;
    bool is_any = false;

    if (queue->searched == tree->cache->regions.generation) {
        return;
    }
    for (; n_left > 0; n_left--) {
        const uint32_t next = quire_prefix_at(tree, id)->window_next;

        if (end_bytes != UINT64_MAX && charged_bytes(tree, ask.region) <= end_bytes) {
            return;
        }
        if (ask.account == QUIRE_EVICT_ANY || quire_prefix_at(tree, id)->account == ask.account) {
            if (node_windows_evict(tree, id)) {
                is_any = true;
            } else {
                quire_prefix_window_use(tree, id);
            }
        }
        id = next;
    }
    if (!is_any && ask.account == QUIRE_EVICT_ANY) {
        queue->searched = tree->cache->regions.generation;
    }
}

/* ---- pages come back ---- */

/* Bring a page that a node takes into the node's region. Returns whether it is charged there. */
static bool page_bring(quire_prefix *tree, const quire_prefix_node *node, quire_page_id page)
{
    quire_pool *pool = &tree->cache->pool;

    if (quire_pool_page(pool, page)->region == node->region) {
        return true;
    }
    if (quire_region_headroom_bytes(&tree->cache->regions.items[node->region]) <
        quire_pool_memory_bytes(pool, page)) {
        return false;
    }
    quire_pool_recharge(pool, page, node->region);
    return true;
}

void quire_prefix_window_fill(quire_prefix *tree, uint32_t id, const quire_page_id *pages)
{
    const bool is_candidate = quire_evict_has(&tree->evict, id);
    quire_prefix_node *node = quire_prefix_at(tree, id);

    if (tree->window_tokens == 0 || node->n_window_pins > 0) {
        return; /* the bytes of a pin do not grow */
    }
    if (is_candidate) { /* its keys must not change */
        quire_evict_remove(&tree->evict, id);
    }
    for (uint32_t g = 1; g < tree->n_groups; g++) {
        if (quire_prefix_window(tree, g) == 0 || node->pages[g] != QUIRE_PAGE_NULL ||
            pages[g] == QUIRE_PAGE_NULL ||
            quire_pool_page(&tree->cache->pool, pages[g])->n_kept > 0 ||
            !page_bring(tree, node, pages[g])) {
            continue;
        }
        quire_prefix_node_leave(tree, id);
        node->pages[g] = pages[g];
        quire_pool_keep(&tree->cache->pool, pages[g], node->n_tokens);
        quire_prefix_node_enter(tree, id);
        quire_prefix_changed(tree);
    }
    if (is_candidate) {
        quire_evict_add(&tree->evict, id);
    }
}

/* ---- checking ---- */

/* Subtract (or add back) the counts of flags and pins. */
static void counts_walk(quire_prefix *tree, bool is_back)
{
    const uint32_t one = is_back ? 1 : UINT32_MAX;

    for (uint32_t end = 1; end < tree->nodes.id_end; end++) {
        const quire_prefix_node *node = quire_prefix_at(tree, end);
        uint32_t n_pins = 0;

        if (node->kind != QUIRE_NODE_PAGE) {
            continue;
        }
        for (uint32_t number = node->refs_head; number != 0; number = tree->ties[number - 1].next) {
            n_pins += tree->ties[number - 1].pins_window;
        }
        for (uint32_t id = end; reaches(quire_prefix_at(tree, id), reach_begin(tree, node));
             id = quire_prefix_at(tree, id)->parent) {
            quire_prefix_at(tree, id)->n_ends += node->ends != 0 ? one : 0;
            quire_prefix_at(tree, id)->n_window_pins += n_pins * one;
        }
    }
}

static void node_validate(const quire_prefix *tree, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);
    const bool is_listed = node->n_tokens == tree->page_tokens && node->n_window_pins == 0 &&
                           has_window_pages(tree, node);

    QUIRE_CHECK(((node->ends & QUIRE_NODE_ENDS_BRANCH) != 0) == (node->n_children > 1));
    QUIRE_CHECK(node->window_list == (is_listed ? list_of(tree, node) : QUIRE_WINDOW_NONE));
}

void quire_prefix_windows_validate(const quire_prefix *tree)
{
    quire_prefix *scratch = (quire_prefix *)(uintptr_t)tree; /* as it was in the end */

    if (tree->window_tokens == 0) {
        return;
    }
    for (uint32_t id = 1; id < tree->nodes.id_end; id++) {
        if (quire_prefix_at(tree, id)->kind == QUIRE_NODE_PAGE) {
            node_validate(tree, id);
        }
    }
    for (uint32_t r = 0; r < QUIRE_REGIONS_MAX; r++) {
        for (uint32_t l = QUIRE_WINDOW_FREE; l < QUIRE_WINDOW_LISTS; l++) {
            const quire_window_queue *queue = &tree->windows[r][l];
            uint32_t prev = QUIRE_NODE_NULL;
            uint32_t n = 0;

            for (uint32_t id = queue->first; id != QUIRE_NODE_NULL;
                 prev = id, id = quire_prefix_at(tree, id)->window_next) {
                const quire_prefix_node *node = quire_prefix_at(tree, id);

                QUIRE_CHECK(node->window_prev == prev && node->region == r);
                QUIRE_CHECK(node->window_list == l && ++n <= queue->n);
            }
            QUIRE_CHECK(queue->last == prev && n == queue->n);
        }
    }
    counts_walk(scratch, false);
    for (uint32_t id = 1; id < tree->nodes.id_end; id++) {
        const quire_prefix_node *node = quire_prefix_at(tree, id);

        QUIRE_CHECK(node->kind != QUIRE_NODE_PAGE ||
                    (node->n_ends == 0 && node->n_window_pins == 0));
    }
    counts_walk(scratch, true);
}
