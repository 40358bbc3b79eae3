/* prefix.c - the prefix tree as a whole: creation, and sequences that begin with a cached prefix.
 *
 * SPDX-License-Identifier: MIT */
#include "quire/prefix.h"

#include "core/prefix/prefix_internal.h"

#include <string.h>

#ifdef QUIRE_TINY
#define PATH_FIRST 1u
#else
#define PATH_FIRST 64u
#endif

static const char *const end_names[] = {
#define X(sym, val, name) [val] = (name),
    QUIRE_PREFIX_END_MAP(X)
#undef X
};

const char *quire_prefix_end_name(quire_prefix_end end)
{
    size_t i = (size_t)end;

    return i < sizeof(end_names) / sizeof(end_names[0]) ? end_names[i] : "unknown";
}

static const char *const cut_names[] = {
#define X(sym, val, name) [val] = (name),
    QUIRE_PREFIX_CUT_MAP(X)
#undef X
};

const char *quire_prefix_cut_name(quire_prefix_cut cut)
{
    size_t i = (size_t)cut;

    return i < sizeof(cut_names) / sizeof(cut_names[0]) ? cut_names[i] : "unknown";
}

static const char *const gone_names[] = {
#define X(sym, val, name) [val] = (name),
    QUIRE_PREFIX_GONE_MAP(X)
#undef X
};

const char *quire_prefix_gone_name(quire_prefix_gone gone)
{
    size_t i = (size_t)gone;

    return i < sizeof(gone_names) / sizeof(gone_names[0]) ? gone_names[i] : "unknown";
}

static int opts_check(const quire_prefix_opts *opts)
{
    QUIRE_FAIL_IF(opts->struct_bytes != sizeof(*opts) || opts->cache == NULL, QUIRE_INVAL);
    QUIRE_FAIL_IF(opts->cache->keeper.evict != NULL, QUIRE_INVAL); /* the cache has another tree */
    QUIRE_FAIL_IF(opts->roots_max == 0 || opts->roots_max > QUIRE_PREFIX_NODES_MAX, QUIRE_INVAL);
    QUIRE_FAIL_IF(opts->refs_max == 0 || opts->refs_max > QUIRE_SEQS_MAX, QUIRE_INVAL);
    QUIRE_FAIL_IF(opts->ghosts_max > QUIRE_PREFIX_GHOSTS_MAX, QUIRE_INVAL);
    QUIRE_FAIL_IF((size_t)opts->policy >= QUIRE_EVICT_POLICY_COUNT, QUIRE_INVAL);
    /* Also false for NaN. */
    QUIRE_FAIL_IF(!(opts->low_traffic_hits_per_hour >= 0.0), QUIRE_INVAL);
    return QUIRE_OK;
}

/* ---- calls from the cache ---- */

static uint64_t keeper_evict(void *ctx, quire_region_id region, uint64_t need_bytes)
{
    return quire_prefix_evict(ctx, region, need_bytes);
}

static void keeper_leave(void *ctx, quire_charge_move *move)
{
    quire_prefix_nodes_leave(ctx, move);
}

static void keeper_give_back(void *ctx, quire_charge_move *move)
{
    quire_prefix_nodes_return(ctx, move);
}

static bool keeper_trade(void *ctx)
{
    return quire_prefix_nodes_trade(ctx);
}

static void keeper_register(quire_prefix *tree)
{
    const quire_cache_keeper keeper = { .evict = keeper_evict,
                                        .leave = keeper_leave,
                                        .give_back = keeper_give_back,
                                        .trade = keeper_trade,
                                        .ctx = tree };

    quire_cache_keeper_set(tree->cache, &keeper);
}

/* ---- creation ---- */

int quire_prefix_create(quire_prefix **out, const quire_prefix_opts *opts)
{
    const quire_allocator *allocator;
    quire_prefix *tree;

    *out = NULL;
    QUIRE_TRY(opts_check(opts));
    allocator = opts->allocator != NULL ? opts->allocator : quire_allocator_default();
    tree = allocator->alloc(allocator->ctx, sizeof(*tree));
    QUIRE_FAIL_IF(tree == NULL, QUIRE_NOMEM);

    memset(tree, 0, sizeof(*tree));
    tree->allocator = *allocator;
    tree->opts = *opts;
    tree->opts.allocator = NULL; /* the caller's struct may not outlive this call; the copy does */
    tree->cache = opts->cache;
    tree->generation = 1;
    tree->copies_epoch = 1;
    tree->page_tokens = opts->cache->opts.page_tokens;
    tree->n_groups = quire_cache_node_groups(opts->cache);
    for (uint32_t g = 0; g < tree->n_groups; g++) {
        const uint32_t w = opts->cache->opts.needs_last_tokens[g];

        tree->window_tokens = w > tree->window_tokens ? w : tree->window_tokens;
    }
    quire_prefix_nodes_init(&tree->nodes, allocator, tree->n_groups, tree->page_tokens);
    tree->seed = opts->seed != 0 ? opts->seed : (uint64_t)(uintptr_t)tree * 0x9e3779b97f4a7c15u;
    tree->opts.seed = tree->seed;
    tree->nodes.seed = (uint32_t)(tree->seed >> 32);
    quire_accounts_init(&tree->accounts, allocator);
    if (quire_prefix_index_init(&tree->index, allocator) < 0 ||
        quire_prefix_owners_init(&tree->owners, allocator, &tree->nodes) < 0 ||
        quire_ghosts_init(&tree->ghosts, allocator, opts->ghosts_max) < 0 ||
        quire_evict_init(&tree->evict, &tree->opts, allocator, &tree->nodes, &tree->ghosts) < 0) {
        quire_ghosts_fini(&tree->ghosts);
        quire_prefix_owners_fini(&tree->owners);
        quire_prefix_index_fini(&tree->index);
        allocator->free(allocator->ctx, tree);
        return QUIRE_NOMEM;
    }
    keeper_register(tree);
    tree->evict.tenants = &tree->accounts;
    *out = tree;
    QUIRE_PREFIX_CHECKED(tree);
    return QUIRE_OK;
}

void quire_prefix_destroy(quire_prefix *tree)
{
    quire_allocator allocator;

    if (tree == NULL) {
        return;
    }
    quire_prefix_watch(tree, NULL);
    (void)quire_prefix_drop_all(tree, tree->now_us);
    for (uint32_t i = 0; i < tree->n_ties; i++) {
        if (tree->ties[i].id != QUIRE_PREFIX_REF_NULL) {
            (void)quire_prefix_release(tree, tree->ties[i].id, tree->now_us);
        }
    }
    quire_cache_keeper_set(tree->cache, NULL);
    allocator = tree->allocator;
    quire_prefix_nodes_fini(&tree->nodes);
    quire_prefix_index_fini(&tree->index);
    quire_prefix_owners_fini(&tree->owners);
    quire_accounts_fini(&tree->accounts);
    quire_evict_fini(&tree->evict);
    quire_ghosts_fini(&tree->ghosts);
    allocator.free(allocator.ctx, tree->ties);
    allocator.free(allocator.ctx, tree->path);
    allocator.free(allocator.ctx, tree->pages);
    allocator.free(allocator.ctx, tree);
}

/* ---- acquire ---- */

static int path_plan(quire_prefix *tree, uint32_t n)
{
    uint32_t capacity = tree->path_capacity > 0 ? tree->path_capacity : PATH_FIRST;
    quire_page_id *pages;
    uint32_t *path;

    if (n <= tree->path_capacity) {
        return QUIRE_OK;
    }
    while (capacity < n) {
        capacity *= 2;
    }
    path = tree->allocator.alloc(tree->allocator.ctx, capacity * sizeof(*path));
    pages = tree->allocator.alloc(tree->allocator.ctx,
                                  (size_t)capacity * tree->n_groups * sizeof(*pages));
    if (path == NULL || pages == NULL) {
        tree->allocator.free(tree->allocator.ctx, pages);
        tree->allocator.free(tree->allocator.ctx, path);
        return QUIRE_NOMEM;
    }
    tree->allocator.free(tree->allocator.ctx, tree->path);
    tree->allocator.free(tree->allocator.ctx, tree->pages);
    tree->path = path;
    tree->pages = pages;
    tree->path_capacity = capacity;
    return QUIRE_OK;
}

/* Fill the sequence with the first n_tokens of the path. */
static int path_adopt(quire_prefix *tree, quire_seq *seq, uint32_t n_tokens)
{
    uint32_t n_groups = tree->n_groups;
    uint32_t n_entries = n_tokens / tree->page_tokens + (n_tokens % tree->page_tokens != 0);

    if (n_tokens == 0) {
        return QUIRE_OK;
    }
    for (uint32_t i = 0; i < n_entries; i++) {
        memcpy(&tree->pages[(size_t)i * n_groups], quire_prefix_at(tree, tree->path[i])->pages,
               n_groups * sizeof(*tree->pages));
    }
    quire_prefix_window_trim(tree, tree->pages, n_tokens);
    return quire_seq_adopt(tree->cache, seq, tree->pages, n_tokens);
}

/* The node in which a walk's cached prefix ends; 0 = at the root. Ghosts do not count. */
static uint32_t walk_end(const quire_prefix_walk *walk)
{
    if (walk->inside != QUIRE_NODE_NULL) {
        return walk->inside;
    }
    return walk->base != walk->root ? walk->base : QUIRE_NODE_NULL;
}

static quire_evict_request request_of(const quire_prefix *tree, uint32_t n_tokens,
                                      const quire_prefix_match *match)
{
    return (quire_evict_request){ .number = quire_counter_get(&tree->lookups) + 1,
                                  .n_tokens = n_tokens,
                                  .n_known = match->n_same_tokens + match->n_gone_tokens };
}

/* Record that a sequence was filled from the first n nodes of the path. The sequence's tie ends at
 * the last of these nodes. Their charge moves to the sequence's region as far as there is room, and
 * they count as used. */
static void path_use(quire_prefix *tree, quire_prefix_tie *tie, quire_region_id region, uint32_t n)
{
    quire_prefix_user user = { .owner = tie->owner, .rank = tie->rank };

    quire_prefix_tie_move(tree, tie, n > 0 ? tree->path[n - 1] : tie->root->node);
    quire_prefix_path_charge(tree, region, tie->rank, n);
    for (uint32_t i = 0; i < n; i++) {
        quire_prefix_node_hit(tree, tree->path[i], user);
        if (tree->window_tokens != 0) {
            quire_prefix_window_use(tree, tree->path[i]);
        }
    }
}

/* Tie a filled sequence to a root, or to nothing when the sequence is private and there is no
 * root. */
static quire_prefix_ref tie_start(quire_prefix *tree, quire_seq *seq, uint32_t root,
                                  const quire_prefix_acquire_opts *opts)
{
    const uint32_t n_hit = seq->n_tokens;
    quire_prefix_tie *tie = quire_prefix_tie_take(tree);

    tie->seq = seq->id;
    tie->owner = opts->owner;
    tie->rank = opts->rank;
    tie->is_private = opts->is_private;
    tie->keeps_pages = opts->keeps_pages;
    tie->n_known = n_hit;
    tie->request = tree->evict.request;
    seq->tied_ref = tie->id;
    seq->cut_tokens = UINT32_MAX;
    if (root != QUIRE_NODE_NULL) {
        tie->root = quire_prefix_at(tree, root)->root;
        quire_prefix_root_use(tree, root);
        path_use(tree, tie, seq->region,
                 n_hit / tree->page_tokens + (n_hit % tree->page_tokens != 0));
    }
    return tie->id;
}

static void acquire_count(quire_prefix *tree, uint32_t n_tokens, const quire_prefix_match *match)
{
    quire_counter_add(&tree->lookups, 1);
    quire_counter_add(&tree->hits, match->n_tokens > 0);
    quire_counter_add(&tree->query_tokens, n_tokens);
    quire_counter_add(&tree->hit_tokens, match->n_tokens);
    if (match->gone == QUIRE_PREFIX_GONE_MEMORY || match->gone == QUIRE_PREFIX_GONE_LOW_TRAFFIC ||
        match->gone == QUIRE_PREFIX_GONE_TTL) {
        quire_counter_add(&tree->regret_tokens, match->n_gone_tokens);
    }
}

int quire_prefix_acquire(quire_prefix *tree, const quire_prefix_key *key, quire_seq_id seq,
                         const int32_t *tokens, uint32_t n_tokens,
                         const quire_prefix_acquire_opts *opts, quire_prefix_match *match,
                         quire_prefix_ref *ref)
{
    quire_seq *found = quire_seqs_find(&tree->cache->seqs, seq);
    uint32_t tokens_max = opts->is_miss ? 0 : opts->tokens_max;
    quire_prefix_walk walk;
    uint32_t root;
    int rc = QUIRE_OK;

    *ref = QUIRE_PREFIX_REF_NULL;
    *match = (quire_prefix_match){ .cached_token = -1 };
    QUIRE_FAIL_IF(found == NULL, QUIRE_NOTFOUND);
    QUIRE_FAIL_IF(found->tied_ref != 0 || !quire_seq_is_blank(found, quire_prefix_seq_groups(tree)),
                  QUIRE_INVAL);
    QUIRE_FAIL_IF(key->salt_bytes > QUIRE_PREFIX_SALT_MAX, QUIRE_INVAL);
    QUIRE_FAIL_IF(opts->rank >= QUIRE_RANKS_MAX || opts->account >= QUIRE_ACCOUNTS_MAX,
                  QUIRE_INVAL);
    QUIRE_TRY(quire_prefix_tie_plan(tree));
    QUIRE_TRY(path_plan(tree, n_tokens / tree->page_tokens + 1));

    walk = quire_prefix_walk_to(tree, key, tokens, n_tokens, tree->path);
    tree->path[walk.n_full / tree->page_tokens] = walk.inside;
    quire_prefix_walk_match(tree, &walk, tokens, n_tokens, tokens_max, match);
    root = walk.root;
    if (root == QUIRE_NODE_NULL && !opts->is_private) {
        rc = quire_prefix_root_make(tree, key, walk.hash, opts, &root);
    }
    if (rc == QUIRE_OK) {
        rc = path_adopt(tree, found, match->n_tokens);
    }
    if (rc < 0) {
        if (root != QUIRE_NODE_NULL) {
            quire_prefix_node_settle(tree, root);
        }
        *match = (quire_prefix_match){ .cached_token = -1 };
        return rc;
    }
    quire_prefix_tick(tree, opts->now_us);
    quire_evict_asked(&tree->evict, request_of(tree, n_tokens, match), walk_end(&walk), walk.gone);
    *ref = tie_start(tree, found, root, opts);
    if (!opts->is_uncounted) {
        acquire_count(tree, n_tokens, match);
    }
    QUIRE_PREFIX_CHECKED(tree);
    return QUIRE_OK;
}

int quire_prefix_release(quire_prefix *tree, quire_prefix_ref ref, uint64_t now_us)
{
    quire_prefix_tie *tie = quire_prefix_tie_find(tree, ref);
    quire_prefix_user user;
    quire_seq *seq;
    uint32_t tip = 0;

    QUIRE_FAIL_IF(tie == NULL, QUIRE_NOTFOUND);
    user = (quire_prefix_user){ tie->owner, tie->rank };
    quire_prefix_tick(tree, now_us);
    tree->evict.request = tie->request;
    for (uint32_t id = tie->node; id != QUIRE_NODE_NULL; id = quire_prefix_at(tree, id)->parent) {
        quire_prefix_node *node = quire_prefix_at(tree, id);

        if (node->kind == QUIRE_NODE_PAGE) {
            quire_prefix_node_touch(tree, id, user);
            node->tip = (uint8_t)tip;
            tip += tip < QUIRE_NODE_TIP_MAX;
            quire_evict_rested(&tree->evict, id);
        }
    }
    if (tie->node != QUIRE_NODE_NULL && (tie->is_pin || !tie->is_private)) {
        quire_prefix_text_ended(tree, tie->node);
    }
    seq = quire_seqs_find(&tree->cache->seqs, tie->seq);
    if (seq != NULL && seq->tied_ref == ref) {
        seq->tied_ref = 0;
    }
    quire_prefix_tie_move(tree, tie, QUIRE_NODE_NULL);
    quire_prefix_tie_give(tree, tie);
    QUIRE_PREFIX_CHECKED(tree);
    return QUIRE_OK;
}
