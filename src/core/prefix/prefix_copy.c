/* prefix_copy.c - marks of nodes that have copies below memory; see quire/prefix.h.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_internal.h"

#include <string.h>

/* Whether a node has its pages of all groups of KV with windows, of which there are some. */
static bool has_windows(const quire_prefix *tree, const quire_prefix_node *node)
{
    bool is_any = false;

    for (uint32_t g = 1; g < quire_prefix_seq_groups(tree); g++) {
        if (quire_prefix_window(tree, g) != 0 && node->pages[g] == QUIRE_PAGE_NULL) {
            return false;
        }
        is_any = is_any || quire_prefix_window(tree, g) != 0;
    }
    return is_any;
}

/* Whether a node has a state. Requests leave states where hits are likely to end, so a copy has
 * the state that its node has. */
static bool has_state(const quire_prefix *tree, const quire_prefix_node *node)
{
    const uint32_t g = quire_prefix_seq_groups(tree);

    return g < tree->n_groups && node->pages[g] != QUIRE_PAGE_NULL;
}

/* Whether the copy of a node shall have these pages: an end or a pin needs them. */
static bool wants_windows(const quire_prefix *tree, const quire_prefix_node *node)
{
    return has_windows(tree, node) &&
           (node->n_ends > 0 || node->n_window_pins > 0 || node->n_tokens < tree->page_tokens);
}

/* pages: [n_groups], for copies without some of the node's pages. */
static quire_prefix_copy copy_of(const quire_prefix *tree, uint32_t id, quire_page_id *pages)
{
    const quire_prefix_node *node = quire_prefix_at(tree, id);
    const quire_prefix_node *parent = quire_prefix_at(tree, node->parent);
    const bool is_wanted = wants_windows(tree, node);
    const bool is_old =
        node->copy == QUIRE_COPY_KEPT &&
        ((is_wanted && !node->copied_windows) || (has_state(tree, node) && !node->copied_state));

    for (uint32_t g = 0; g < tree->n_groups; g++) {
        const bool may_lack = quire_prefix_window(tree, g) != 0 && !quire_prefix_is_state(tree, g);

        pages[g] = is_wanted || !may_lack ? node->pages[g] : QUIRE_PAGE_NULL;
    }
    return (quire_prefix_copy){
        .node = id,
        .mark = is_old ? QUIRE_COPY_NONE : (quire_copy_mark)node->copy,
        .has_windows = is_wanted,
        .has_state = has_state(tree, node),
        .needs_state = tree->n_groups > quire_prefix_seq_groups(tree),
        .parent_mark =
            parent->kind == QUIRE_NODE_ROOT ? QUIRE_COPY_KEPT : (quire_copy_mark)parent->copy,
        .n_groups = tree->n_groups,
        .pages = pages,
        .tokens = quire_prefix_tokens_at(tree, id),
        .n_tokens = node->n_tokens,
        .first_token = node->first_token,
        .is_full = node->n_tokens == tree->page_tokens,
        .hits = node->hits,
        .n_refs = node->n_refs,
        .n_pins = node->n_pins,
        .owner = node->owner,
        .used_us = node->used_us,
        .key = &node->key,
        .parent_key = &parent->key,
    };
}

uint32_t quire_prefix_copies_visit(quire_prefix *tree, uint32_t first, uint32_t n_ids,
                                   void (*visit)(void *ctx, const quire_prefix_copy *copy),
                                   void *ctx)
{
    uint32_t id = first;

    for (; id < tree->nodes.id_end && id - first < n_ids; id++) {
        if (quire_prefix_at(tree, id)->kind == QUIRE_NODE_PAGE) {
            quire_page_id pages[QUIRE_GROUPS_MAX];
            const quire_prefix_copy copy = copy_of(tree, id, pages);

            visit(ctx, &copy);
        }
    }
    return id < tree->nodes.id_end ? id : QUIRE_NODE_NULL;
}

int quire_prefix_copies_visit_path(quire_prefix *tree, quire_prefix_ref ref,
                                   void (*visit)(void *ctx, const quire_prefix_copy *copy),
                                   void *ctx)
{
    const quire_prefix_tie *tie = quire_prefix_tie_find(tree, ref);
    uint32_t n = 0;
    uint32_t *path;
    uint32_t at;

    QUIRE_FAIL_IF(tie == NULL || tie->node == QUIRE_NODE_NULL, QUIRE_NOTFOUND);
    quire_prefix_ends_set(tree, tie->node, QUIRE_NODE_ENDS_TEXT);
    for (uint32_t id = tie->node; quire_prefix_at(tree, id)->kind == QUIRE_NODE_PAGE;
         id = quire_prefix_at(tree, id)->parent) {
        n++;
    }
    if (n == 0) {
        return QUIRE_OK;
    }
    path = tree->allocator.alloc(tree->allocator.ctx, n * sizeof *path);
    QUIRE_FAIL_IF(path == NULL, QUIRE_NOMEM);
    at = n;
    for (uint32_t id = tie->node; at > 0; id = quire_prefix_at(tree, id)->parent) {
        path[--at] = id;
    }
    for (; at < n; at++) {
        quire_page_id pages[QUIRE_GROUPS_MAX];
        const quire_prefix_copy copy = copy_of(tree, path[at], pages);

        visit(ctx, &copy);
    }
    tree->allocator.free(tree->allocator.ctx, path);
    return QUIRE_OK;
}

void quire_prefix_copy_root(const quire_prefix *tree, uint32_t node, quire_prefix_key *out)
{
    const quire_prefix_root *root;

    while (quire_prefix_at(tree, node)->kind == QUIRE_NODE_PAGE) {
        node = quire_prefix_at(tree, node)->parent;
    }
    root = quire_prefix_at(tree, node)->root;
    *out = (quire_prefix_key){ .identity = { root->identity[0], root->identity[1] },
                               .salt = root->salt,
                               .salt_bytes = root->salt_bytes };
}

/* A copy has the pages that were wanted when it began. */
static void mark_set(const quire_prefix *tree, quire_prefix_node *node, quire_copy_mark mark)
{
    if (mark == QUIRE_COPY_NONE) {
        node->copied_windows = 0;
        node->copied_state = 0;
    } else if (mark == QUIRE_COPY_ASKED) {
        node->copied_windows = wants_windows(tree, node);
        node->copied_state = has_state(tree, node);
    }
    node->copy = (uint8_t)mark;
}

int quire_prefix_copy_mark_set(quire_prefix *tree, uint32_t node, const quire_page_key *key,
                               quire_copy_mark mark)
{
    quire_prefix_node *at;

    QUIRE_FAIL_IF(node == QUIRE_NODE_NULL || node >= tree->nodes.id_end, QUIRE_NOTFOUND);
    at = quire_prefix_at(tree, node);
    QUIRE_FAIL_IF(at->kind != QUIRE_NODE_PAGE ||
                      memcmp(at->key.bytes, key->bytes, QUIRE_PAGE_KEY_BYTES) != 0,
                  QUIRE_NOTFOUND);
    mark_set(tree, at, mark);
    return QUIRE_OK;
}

void quire_prefix_copies_forget(quire_prefix *tree)
{
    tree->has_copies = false;
    if (tree->copies_epoch < UINT8_MAX) {
        tree->copies_epoch++;
        return;
    }
    for (uint32_t i = 0; i < tree->ghosts.n; i++) {
        tree->ghosts.ring[i].copy = 0;
    }
    tree->copies_epoch = 1;
}

int quire_prefix_copy_mark_ref(quire_prefix *tree, quire_prefix_ref ref, quire_copy_mark mark)
{
    const quire_prefix_tie *tie = quire_prefix_tie_find(tree, ref);
    quire_prefix_node *node;

    QUIRE_FAIL_IF(tie == NULL || tie->node == QUIRE_NODE_NULL ||
                      quire_prefix_at(tree, tie->node)->kind != QUIRE_NODE_PAGE,
                  QUIRE_NOTFOUND);
    node = quire_prefix_at(tree, tie->node);
    mark_set(tree, node, mark);
    node->copied_windows = mark == QUIRE_COPY_KEPT && has_windows(tree, node); /* came from it */
    node->copied_state = mark == QUIRE_COPY_KEPT && has_state(tree, node);
    return QUIRE_OK;
}
