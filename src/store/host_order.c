/* host_order.c - see host_order.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/host_order.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/num.h"
#include "store/host_records.h"

#include <stdlib.h>
#include <string.h>

#define ENTRIES_FIRST 1024u

static quire_prefix_node *node_of(const quire_host_order *o, const quire_host_entry *e)
{
    return quire_prefix_node_at(&o->nodes, e->node);
}

/* ---- life ---- */

static uint64_t entry_bytes(const void *ctx, uint32_t node)
{
    const quire_host_order *o = ctx;

    return o->entries[node]->n_bytes;
}

int quire_host_order_init(quire_host_order *o, quire_evict_policy policy)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;
    const quire_allocator *allocator = quire_allocator_default();

    memset(o, 0, sizeof *o);
    opts.policy = policy;
    opts.seed = (uint64_t)(uintptr_t)o * 0x9e3779b97f4a7c15u;
    o->policy = policy;
    quire_prefix_nodes_init(&o->nodes, allocator, 0, 0);
    QUIRE_TRY(quire_ghosts_init(&o->ghosts, allocator, QUIRE_HOST_GHOSTS));
    if (quire_evict_init(&o->evict, &opts, allocator, &o->nodes, &o->ghosts) < 0) {
        quire_ghosts_fini(&o->ghosts);
        return QUIRE_NOMEM;
    }
    quire_accounts_init(&o->accounts, allocator);
    o->evict.tenants = &o->accounts;
    o->evict.node_bytes = entry_bytes;
    o->evict.node_bytes_ctx = o;
    return QUIRE_OK;
}

void quire_host_order_fini(quire_host_order *o)
{
    quire_evict_fini(&o->evict);
    quire_accounts_fini(&o->accounts);
    quire_ghosts_fini(&o->ghosts);
    quire_prefix_nodes_fini(&o->nodes);
    free(o->entries);
}

int quire_host_order_plan(quire_host_order *o)
{
    uint32_t n = o->n_entries > 0 ? o->n_entries : ENTRIES_FIRST;
    quire_host_entry **entries;

    QUIRE_TRY(quire_accounts_plan(&o->accounts, 0));
    QUIRE_TRY(quire_prefix_nodes_plan(&o->nodes));
    if (o->nodes.id_end < o->n_entries) {
        return QUIRE_OK;
    }
    while (n <= o->nodes.id_end) {
        n *= 2;
    }
    entries = realloc(o->entries, n * sizeof(quire_host_entry *));
    QUIRE_FAIL_IF(entries == NULL, QUIRE_NOMEM);
    o->entries = entries;
    o->n_entries = n;
    return QUIRE_OK;
}

/* ---- candidates ---- */

static void settle(quire_host_order *o, uint32_t id)
{
    const quire_prefix_node *node = quire_prefix_node_at(&o->nodes, id);
    const bool is_free = node->n_children == 0 && node->n_refs == 0;

    if (is_free && !quire_evict_has(&o->evict, id)) {
        quire_evict_add(&o->evict, id);
    } else if (!is_free && quire_evict_has(&o->evict, id)) {
        quire_evict_remove(&o->evict, id);
    }
}

static void hold(quire_host_order *o, uint32_t id)
{
    quire_prefix_node_at(&o->nodes, id)->n_refs++;
    settle(o, id);
}

static void let(quire_host_order *o, uint32_t id)
{
    quire_prefix_node_at(&o->nodes, id)->n_refs--;
    settle(o, id);
}

void quire_host_order_hold(quire_host_order *o, const quire_host_entry *e)
{
    hold(o, e->node);
}

void quire_host_order_let(quire_host_order *o, const quire_host_entry *e)
{
    let(o, e->node);
}

void quire_host_order_join(quire_host_order *o, quire_host_entry *e, const quire_host_entry *parent)
{
    quire_prefix_node *node = node_of(o, e);
    const uint32_t before = node->parent;

    node->parent = parent != NULL ? parent->node : QUIRE_NODE_NULL;
    if (node->parent != QUIRE_NODE_NULL) {
        quire_prefix_node_at(&o->nodes, node->parent)->n_children++;
        settle(o, node->parent);
    }
    if (before != QUIRE_NODE_NULL) {
        quire_prefix_node_at(&o->nodes, before)->n_children--;
        settle(o, before);
    }
}

/* ---- bytes ---- */

static void charge(quire_host_order *o, const quire_prefix_node *node, size_t n_bytes)
{
    quire_accounts_charge(&o->accounts, node->account, node->region, n_bytes);
    o->pinned_bytes += node->region == QUIRE_HOST_PINNED ? n_bytes : 0;
}

static void uncharge(quire_host_order *o, const quire_prefix_node *node, size_t n_bytes)
{
    quire_accounts_uncharge(&o->accounts, node->account, node->region, n_bytes);
    o->pinned_bytes -= node->region == QUIRE_HOST_PINNED ? n_bytes : 0;
}

/* The account of a user; account 0 where memory is short. */
static uint16_t account_of(quire_host_order *o, const quire_prefix_standing *s)
{
    const quire_account_opts opts = { .weight = quire_max_u32(s->weight, 1) };

    if (s->account >= QUIRE_ACCOUNTS_MAX || quire_accounts_plan(&o->accounts, s->account) < 0) {
        return 0;
    }
    quire_accounts_set(&o->accounts, s->account, &opts);
    return s->account;
}

/* ---- uses ---- */

static bool is_same(const quire_host_asker *a, const quire_host_asker *b)
{
    return a->request != 0 && a->request == b->request && a->store == b->store;
}

void quire_host_order_ask(quire_host_order *o, const quire_host_asker *asker)
{
    o->evict.now_us = quire_clock_ns() / 1000;
    if (is_same(asker, &o->asker)) {
        return;
    }
    o->asker = *asker;
    o->evict.tick++;
    quire_evict_asked(&o->evict, (quire_evict_request){ .number = o->evict.request.number + 1 },
                      QUIRE_NODE_NULL, NULL);
}

/* The request at hand is done with a node; what the tree above knows about it holds here. */
static void rest(quire_host_order *o, uint32_t id, const quire_page_use *use)
{
    const quire_prefix_standing *s = &use->standing;
    const bool hears = use->is_told && s->has_words && s->policy == o->policy;

    quire_prefix_node_at(&o->nodes, id)->used_us = o->evict.now_us;
    quire_prefix_node_at(&o->nodes, id)->used_tick = o->evict.tick;
    if (use->is_told) {
        quire_prefix_node_at(&o->nodes, id)->tip = s->tip;
    }
    if (hears) {
        o->evict.ops->hear(&o->evict, id, s->words);
    } else {
        quire_evict_rested(&o->evict, id);
    }
}

static void node_fill(quire_host_order *o, uint32_t id, const quire_page_text *text)
{
    quire_prefix_node *node = quire_prefix_node_at(&o->nodes, id);

    node->key = text->key;
    memcpy(&node->path_hash, text->key.bytes, sizeof node->path_hash);
    node->first_token = text->first_token;
    node->n_tokens = (uint16_t)text->n_tokens;
}

void quire_host_order_enter(quire_host_order *o, quire_host_entry *e, const quire_host_user *user,
                            quire_region_id region, uint32_t n_fit)
{
    const uint32_t id = quire_prefix_nodes_take(&o->nodes, QUIRE_NODE_PAGE);
    quire_prefix_node *node = quire_prefix_node_at(&o->nodes, id);
    const quire_prefix_standing *s = &user->use.standing;

    o->evict.n_fit = n_fit;
    e->node = id;
    e->last_user = user->asker;
    o->entries[id] = e;
    node_fill(o, id, &e->record.text);
    node->region = (uint8_t)region;
    node->rank = (uint8_t)quire_min_u32(s->rank, QUIRE_RANKS_MAX - 1);
    node->account = account_of(o, s);
    node->created_us = o->evict.now_us;
    node->tip = QUIRE_NODE_TIP_MAX;
    node->n_refs = 1;
    charge(o, node, e->n_bytes);
    quire_evict_born(&o->evict, id);
    for (uint32_t i = 0; user->use.is_told && i < quire_min_u32(s->hits, QUIRE_HOST_USES_MAX);
         i++) {
        quire_evict_used(&o->evict, id);
    }
    rest(o, id, &user->use);
    let(o, id);
}

void quire_host_order_use(quire_host_order *o, quire_host_entry *e, const quire_host_user *user,
                          bool moves)
{
    const quire_prefix_node *node = node_of(o, e);
    const uint8_t rank = (uint8_t)quire_min_u32(user->use.standing.rank, QUIRE_RANKS_MAX - 1);
    const bool is_moved = moves && node->region != QUIRE_HOST_PINNED;

    hold(o, e->node);
    uncharge(o, node, e->n_bytes);
    quire_evict_move(&o->evict, e->node, is_moved ? QUIRE_HOST_PINNED : node->region,
                     rank > node->rank ? rank : node->rank);
    charge(o, node, e->n_bytes);
    if (!is_same(&user->asker, &e->last_user)) {
        quire_evict_used(&o->evict, e->node);
    }
    e->last_user = user->asker;
    rest(o, e->node, &user->use);
    let(o, e->node);
}

void quire_host_order_pass(quire_host_order *o, quire_host_entry *from, quire_host_entry *to)
{
    to->node = from->node;
    to->last_user = from->last_user;
    uncharge(o, node_of(o, from), from->n_bytes);
    charge(o, node_of(o, to), to->n_bytes);
    hold(o, to->node); /* a candidate's size must not change */
    o->entries[to->node] = to;
    node_fill(o, to->node, &to->record.text);
    let(o, to->node);
}

/* ---- the end ---- */

static quire_ghost *ghost_leave(quire_host_order *o, const quire_prefix_node *node,
                                quire_prefix_gone why)
{
    const quire_ghost ghost = { .key = quire_ghosts_key_page(node->path_hash),
                                .hash = node->path_hash,
                                .gone_us = o->evict.now_us,
                                .n_tokens = node->n_tokens,
                                .tip = node->tip,
                                .why = (uint8_t)why };

    return quire_ghosts_add(&o->ghosts, &ghost);
}

void quire_host_order_leave(quire_host_order *o, quire_host_entry *e, quire_prefix_gone why)
{
    const quire_prefix_node *node = node_of(o, e);

    quire_host_order_join(o, e, NULL);
    uncharge(o, node, e->n_bytes);
    if (quire_evict_has(&o->evict, e->node)) {
        quire_evict_remove(&o->evict, e->node);
    }
    quire_evict_gone(&o->evict, e->node, why, ghost_leave(o, node, why));
    quire_prefix_nodes_give(&o->nodes, e->node);
    e->node = QUIRE_NODE_NULL;
}

quire_host_entry *quire_host_order_victim(quire_host_order *o, quire_region_id region)
{
    const quire_evict_ask any = { .region = region, .account = QUIRE_EVICT_ANY };
    quire_prefix_gone why;
    uint32_t id;

    o->evict.now_us = quire_clock_ns() / 1000;
    id = quire_evict_victim(&o->evict, any, &why);
    return id != QUIRE_NODE_NULL ? o->entries[id] : NULL;
}

void quire_host_order_cost(quire_host_order *o, double token_us, double token_depth_us)
{
    o->evict.token_us = token_us;
    o->evict.token_depth_us = token_depth_us;
}
