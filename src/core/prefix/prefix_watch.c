/* prefix_watch.c - telling a watcher which pages of text there are; see quire/prefix.h.
 *
 * A node knows the number of the telling in which it was told. A refused page stays untold, and a
 * pass over the ids tells it later; all untold nodes have ids from the cursor on. A refused removal
 * is a loss: the next telling begins, so all nodes are untold at once. A node is told behind its
 * path.
 *
 * SPDX-License-Identifier: MIT */
#include "core/prefix/prefix_internal.h"

bool quire_prefix_is_told(const quire_prefix *tree, uint32_t id)
{
    return tree->watch.telling != 0 && quire_prefix_at(tree, id)->told == tree->watch.telling;
}

static void lose(quire_prefix *tree)
{
    tree->watch.is_lost = true;
    tree->watch.telling++;
    tree->watch.cursor = QUIRE_NODE_NULL;
}

/* Tell one node whose parent is told. Returns false: refused. */
static bool tell(quire_prefix *tree, uint32_t id)
{
    quire_prefix_node *node = quire_prefix_at(tree, id);
    const quire_prefix_node *parent = quire_prefix_at(tree, node->parent);
    quire_prefix_page page = { .key = &node->key,
                               .parent = &parent->key,
                               .first_token = node->first_token,
                               .n_tokens = node->n_tokens,
                               .tokens = quire_prefix_tokens_at(tree, id) };

    if (parent->kind == QUIRE_NODE_ROOT) {
        page.salt = parent->root->salt;
        page.salt_bytes = parent->root->salt_bytes;
    }
    if (!tree->watch.to.stored(tree->watch.to.ctx, &page)) {
        return false;
    }
    node->told = tree->watch.telling;
    return true;
}

/* Tell a node behind its path, if it is full and untold. Returns false: refused. */
static bool tell_path(quire_prefix *tree, uint32_t id)
{
    uint32_t at = id;
    uint32_t parent;

    if (quire_prefix_at(tree, id)->n_tokens < tree->page_tokens || quire_prefix_is_told(tree, id)) {
        return true;
    }
    quire_prefix_at(tree, id)->down = QUIRE_NODE_NULL;
    while (parent = quire_prefix_at(tree, at)->parent,
           quire_prefix_at(tree, parent)->kind == QUIRE_NODE_PAGE &&
               !quire_prefix_is_told(tree, parent)) {
        quire_prefix_at(tree, parent)->down = at;
        at = parent;
    }
    while (at != QUIRE_NODE_NULL && tell(tree, at)) {
        at = quire_prefix_at(tree, at)->down;
    }
    return at == QUIRE_NODE_NULL;
}

void quire_prefix_tell_stored(quire_prefix *tree, uint32_t id)
{
    quire_prefix_watch_state *watch = &tree->watch;

    if (watch->to.stored != NULL && !watch->is_lost && !tell_path(tree, id) &&
        (watch->cursor == QUIRE_NODE_NULL || watch->cursor > id)) {
        watch->cursor = id;
    }
}

void quire_prefix_tell_removed(quire_prefix *tree, uint32_t id)
{
    if (tree->watch.to.stored == NULL || tree->watch.is_lost || !quire_prefix_is_told(tree, id)) {
        return;
    }
    if (!tree->watch.to.removed(tree->watch.to.ctx, &quire_prefix_at(tree, id)->key)) {
        lose(tree);
    }
}

void quire_prefix_watch(quire_prefix *tree, const quire_prefix_watcher *watcher)
{
    tree->watch.to = watcher != NULL ? *watcher : (quire_prefix_watcher){ 0 };
    lose(tree);
}

bool quire_prefix_watch_some(quire_prefix *tree, uint32_t n_ids)
{
    quire_prefix_watch_state *watch = &tree->watch;

    if (watch->to.stored == NULL) {
        return false;
    }
    if (watch->to.again != NULL && watch->to.again(watch->to.ctx)) {
        lose(tree);
    }
    if (watch->is_lost) {
        if (!watch->to.cleared(watch->to.ctx)) {
            return true;
        }
        watch->is_lost = false;
        watch->cursor = 1;
    }
    for (; watch->cursor != QUIRE_NODE_NULL && n_ids > 0; n_ids--) {
        if (watch->cursor >= tree->nodes.id_end) {
            watch->cursor = QUIRE_NODE_NULL;
            break;
        }
        if (quire_prefix_at(tree, watch->cursor)->kind == QUIRE_NODE_PAGE &&
            !tell_path(tree, watch->cursor)) {
            return true;
        }
        watch->cursor++;
    }
    return watch->cursor != QUIRE_NODE_NULL;
}
