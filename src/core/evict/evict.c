/* evict.c - candidates, and the choice of victims.
 *
 * SPDX-License-Identifier: MIT */
#include "core/evict/evict.h"

#include "base/check.h"
#include "core/cache/cache_internal.h"
#include "core/evict/evict_bin.h"
#include "core/evict/evict_deadline.h"

#include <string.h>

#define VICTIMS_SHARE 8u /* a choice among n accounts holds for n / 8 victims more */

static void bin_link(quire_evict *evict, quire_evict_bin *bin)
{
    uint32_t slot = bin->number % QUIRE_EVICT_SLOTS;
    quire_evict_bin **first = &evict->regions[slot / QUIRE_RANKS_MAX].bins[slot % QUIRE_RANKS_MAX];

    bin->prev = NULL;
    bin->next = *first;
    if (*first != NULL) {
        (*first)->prev = bin;
    }
    *first = bin;
}

static void bin_unlink(quire_evict *evict, quire_evict_bin *bin)
{
    uint32_t slot = bin->number % QUIRE_EVICT_SLOTS;
    quire_evict_region *region = &evict->regions[slot / QUIRE_RANKS_MAX];
    uint32_t rank = slot % QUIRE_RANKS_MAX;

    if (bin->prev != NULL) {
        bin->prev->next = bin->next;
    } else {
        region->bins[rank] = bin->next;
    }
    if (bin->next != NULL) {
        bin->next->prev = bin->prev;
    }
    if (region->chosen[rank] == bin) {
        region->chosen[rank] = NULL;
    }
}

/* ---- beginning and end ---- */

static void ghost_forgotten(void *ctx, quire_ghost *ghost)
{
    quire_evict *evict = ctx;

    evict->ops->forgotten(evict, ghost);
}

int quire_evict_init(quire_evict *evict, const quire_prefix_opts *opts,
                     const quire_allocator *allocator, quire_prefix_nodes *nodes,
                     quire_ghosts *ghosts)
{
    memset(evict, 0, sizeof(*evict));
    evict->allocator = *allocator;
    evict->nodes = nodes;
    evict->ghosts = ghosts;
    evict->cache = opts->cache;
    evict->ops = quire_evict_ops_of(opts->policy);
    QUIRE_ASSERT(evict->ops->n_heaps <= QUIRE_EVICT_HEAPS_MAX);
    for (uint32_t rank = 0; rank < QUIRE_RANKS_MAX; rank++) {
        evict->ttl_us[rank] = opts->ttl_us;
    }
    evict->low_after_us = opts->low_traffic_after_us;
    evict->low_hits_per_us = opts->low_traffic_hits_per_hour / QUIRE_EVICT_US_PER_HOUR;
    evict->token_us = 1.0;
    evict->seed = opts->seed;
    evict->state = allocator->alloc(allocator->ctx, evict->ops->tree_bytes + 1);
    if (evict->state != NULL) {
        memset(evict->state, 0, evict->ops->tree_bytes);
    }
    if (evict->state == NULL || quire_evict_bins_init(evict) < 0) {
        quire_evict_fini(evict);
        return QUIRE_NOMEM;
    }
    if (evict->ops->forgotten != NULL) {
        ghosts->forgotten = ghost_forgotten;
        ghosts->forgotten_ctx = evict;
    }
    if (evict->ops->start != NULL) {
        evict->ops->start(evict);
    }
    return QUIRE_OK;
}

void quire_evict_fini(quire_evict *evict)
{
    quire_evict_bins_fini(evict);
    if (evict->ops->stop != NULL && evict->state != NULL) {
        evict->ops->stop(evict);
    }
    evict->allocator.free(evict->allocator.ctx, evict->state);
    memset(evict, 0, sizeof(*evict));
}

/* ---- nodes ---- */

void quire_evict_asked(quire_evict *evict, quire_evict_request request, uint32_t node,
                       const quire_ghost *ghost)
{
    evict->request = request;
    if (evict->ops->asked != NULL) {
        evict->ops->asked(evict, &evict->request, node, ghost);
    }
}

static quire_ghost *ghost_of(const quire_evict *evict, const quire_prefix_node *node)
{
    /* The ghost of a full node is found by the node's own path; see prefix_ghost.h. */
    bool is_own = evict->cache == NULL || node->n_tokens == evict->cache->opts.page_tokens;

    return quire_ghosts_find_node(
        evict->ghosts,
        is_own ? quire_ghosts_key_page(node->path_hash)
               : quire_ghosts_key_partial(quire_evict_at(evict, node->parent)->path_hash),
        node->path_hash);
}

void quire_evict_born(quire_evict *evict, uint32_t node)
{
    quire_prefix_node *at = quire_evict_at(evict, node);
    quire_evict_bin *bin;

    at->heaps = 0;
    at->list = 0;
    bin = quire_evict_bin_enter(evict, at);
    if (evict->ops->born != NULL) {
        evict->ops->born(evict, bin, node, evict->ops->has_ghosts ? ghost_of(evict, at) : NULL);
    }
}

void quire_evict_used(quire_evict *evict, uint32_t node)
{
    QUIRE_ASSERT(!quire_evict_has(evict, node));
    if (evict->ops->used != NULL) {
        evict->ops->used(evict, quire_evict_bin_of(evict, node), node);
    }
}

void quire_evict_rested(quire_evict *evict, uint32_t node)
{
    QUIRE_ASSERT(!quire_evict_has(evict, node));
    if (evict->ops->rested != NULL) {
        evict->ops->rested(evict, quire_evict_bin_of(evict, node), node);
    }
}

void quire_evict_gone(quire_evict *evict, uint32_t node, quire_prefix_gone why, quire_ghost *ghost)
{
    const quire_prefix_node *at = quire_evict_at(evict, node);
    quire_evict_bin *bin = quire_evict_bin_of(evict, node);

    QUIRE_ASSERT(!quire_evict_has(evict, node));
    if (evict->ops->gone != NULL) {
        evict->ops->gone(evict, bin, node, why, ghost);
    }
    quire_evict_bin_leave(evict, bin, at);
}

void quire_evict_move(quire_evict *evict, uint32_t node, quire_region_id region, uint8_t rank)
{
    quire_prefix_node *at = quire_evict_at(evict, node);
    bool is_candidate = quire_evict_has(evict, node);

    if (at->region == region && at->rank == rank) {
        return;
    }
    if (is_candidate) {
        quire_evict_remove(evict, node);
    }
    quire_evict_bin_leave(evict, quire_evict_bin_of(evict, node), at);
    at->region = (uint8_t)region;
    at->rank = rank;
    (void)quire_evict_bin_enter(evict, at);
    if (is_candidate) {
        quire_evict_add(evict, node);
    }
}

void quire_evict_list(quire_evict *evict, quire_evict_bin *bin, uint32_t node, uint8_t list)
{
    quire_prefix_node *at = quire_evict_at(evict, node);

    bin->n_listed[at->list]--;
    at->list = list;
    bin->n_listed[list]++;
}

/* ---- candidates ---- */

static quire_evict_heap heap_of(const quire_evict *evict, quire_evict_bin *bin, uint32_t heap)
{
    return (quire_evict_heap){ evict->nodes, QUIRE_EVICT_BY_POLICY, &bin->heaps[heap] };
}

static void place(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    quire_evict_place place = evict->ops->place(evict, bin, node);

    QUIRE_ASSERT(place.heap < evict->ops->n_heaps || place.heap == QUIRE_EVICT_ELSEWHERE);
    quire_evict_at(evict, node)->links[QUIRE_EVICT_BY_POLICY].heap = (uint8_t)place.heap;
    if (place.heap != QUIRE_EVICT_ELSEWHERE) {
        quire_evict_heap_add(heap_of(evict, bin, place.heap), node, place.key);
    }
}

static void displace(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    uint32_t heap = quire_evict_at(evict, node)->links[QUIRE_EVICT_BY_POLICY].heap;

    if (heap != QUIRE_EVICT_ELSEWHERE) {
        quire_evict_heap_remove(heap_of(evict, bin, heap), node);
    }
}

void quire_evict_replace(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    QUIRE_ASSERT(quire_evict_has(evict, node));
    displace(evict, bin, node);
    place(evict, bin, node);
}

void quire_evict_add(quire_evict *evict, uint32_t node)
{
    quire_prefix_node *at = quire_evict_at(evict, node);
    quire_evict_bin *bin = quire_evict_bin_of(evict, node);

    QUIRE_ASSERT(!quire_evict_has(evict, node));
    at->heaps |= QUIRE_EVICT_IS_CANDIDATE;
    place(evict, bin, node);
    if (bin->n_candidates++ == 0) {
        bin_link(evict, bin);
    }
    quire_evict_deadline_add(evict, node);
}

void quire_evict_remove(quire_evict *evict, uint32_t node)
{
    quire_prefix_node *at = quire_evict_at(evict, node);
    quire_evict_bin *bin = quire_evict_bin_of(evict, node);

    QUIRE_CHECK(quire_evict_has(evict, node));
    displace(evict, bin, node);
    quire_evict_deadline_remove(evict, node);
    at->heaps &= (uint8_t)~QUIRE_EVICT_IS_CANDIDATE;
    if (--bin->n_candidates == 0) {
        bin_unlink(evict, bin);
    }
    if (evict->ops->taken != NULL) {
        evict->ops->taken(evict, bin, node);
    }
}

/* ---- victims ---- */

static double load_of(const quire_evict *evict, const quire_evict_bin *bin)
{
    return quire_accounts_load(evict->tenants, (uint16_t)(bin->number / QUIRE_EVICT_SLOTS),
                               bin->number % QUIRE_EVICT_SLOTS / QUIRE_RANKS_MAX);
}

/* The bin of the account furthest above its share; NULL = none. */
static quire_evict_bin *bin_choose(const quire_evict *evict, quire_evict_region *region,
                                   uint32_t rank)
{
    quire_evict_bin *best = region->bins[rank];
    uint32_t n = 1;
    double most;

    if (best == NULL || best->next == NULL || evict->tenants == NULL) {
        return best;
    }
    if (region->chosen[rank] != NULL && region->n_chosen[rank] > 0) {
        region->n_chosen[rank]--;
        return region->chosen[rank];
    }
    most = load_of(evict, best);
    for (quire_evict_bin *bin = best->next; bin != NULL; bin = bin->next, n++) {
        double load = load_of(evict, bin);

        if (load > most) {
            most = load;
            best = bin;
        }
    }
    region->chosen[rank] = best;
    region->n_chosen[rank] = n / VICTIMS_SHARE;
    return best;
}

static quire_evict_bin *bin_ask(quire_evict *evict, quire_evict_ask ask)
{
    quire_evict_bin *bin = NULL;

    for (uint32_t rank = 0; rank < QUIRE_RANKS_MAX && bin == NULL; rank++) {
        if (ask.account == QUIRE_EVICT_ANY) {
            bin = bin_choose(evict, &evict->regions[ask.region], rank);
            continue;
        }
        bin = quire_evict_bin_at(evict, ask.account * QUIRE_EVICT_SLOTS +
                                            ask.region * QUIRE_RANKS_MAX + rank);
        bin = bin != NULL && bin->n_candidates > 0 ? bin : NULL;
    }
    return bin;
}

uint32_t quire_evict_victim(quire_evict *evict, quire_evict_ask ask, quire_prefix_gone *why)
{
    quire_evict_bin *bin;

    if (ask.account == QUIRE_EVICT_ANY) {
        uint32_t expired = quire_evict_expired(evict, ask.region);

        if (expired != QUIRE_NODE_NULL) {
            *why = QUIRE_PREFIX_GONE_TTL;
            return expired;
        }
        if (evict->regions[ask.region].low != QUIRE_NODE_NULL) {
            *why = QUIRE_PREFIX_GONE_LOW_TRAFFIC;
            return evict->regions[ask.region].low;
        }
    }
    *why = QUIRE_PREFIX_GONE_MEMORY;
    bin = bin_ask(evict, ask);
    if (bin == NULL) {
        return QUIRE_NODE_NULL;
    }
    bin->n_when_full = bin->n_nodes;
    return evict->ops->victim(evict, bin);
}

/* ---- for policies ---- */

uint32_t quire_evict_capacity(const quire_evict *evict, const quire_evict_bin *bin)
{
    uint32_t region = bin->number % QUIRE_EVICT_SLOTS / QUIRE_RANKS_MAX;
    uint64_t n_others = evict->regions[region].n_nodes - bin->n_nodes;
    uint64_t n = bin->n_when_full;

    if (n == 0 && evict->cache == NULL) {
        n = evict->n_fit > n_others ? evict->n_fit - n_others : 0;
    } else if (n == 0) {
        uint64_t node_bytes = 0;

        for (uint32_t g = 0; g < evict->cache->opts.n_groups; g++) {
            node_bytes += evict->cache->opts.charge_bytes[g];
        }
        n = quire_counter_get(&evict->cache->regions.items[region].budget_bytes) / node_bytes;
        n = n > n_others ? n - n_others : 0;
    }
    n = n > bin->n_nodes ? n : bin->n_nodes;
    return n == 0 ? 1 : n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

static double cost_us(const quire_evict *evict, const quire_prefix_node *at)
{
    double depth = at->first_token + 0.5 * (at->n_tokens - 1.0);

    return at->n_tokens * (evict->token_us + depth * evict->token_depth_us);
}

static uint64_t charge_bytes(const quire_evict *evict, uint32_t node)
{
    const quire_prefix_node *at = quire_evict_at(evict, node);
    uint64_t n = 0;

    if (evict->cache == NULL) {
        return evict->node_bytes != NULL ? evict->node_bytes(evict->node_bytes_ctx, node) : 0;
    }
    for (uint32_t g = 0; g < evict->nodes->n_groups; g++) {
        n += at->pages[g] != QUIRE_PAGE_NULL ? evict->cache->opts.charge_bytes[g] : 0;
    }
    return n;
}

double quire_evict_worth(const quire_evict *evict, uint32_t node)
{
    const quire_prefix_node *at = quire_evict_at(evict, node);
    const bool has_states = evict->cache != NULL && evict->cache->opts.state_bytes != 0;
    const uint32_t state = evict->nodes->n_groups - 1; /* the group of states, if there are any */
    uint64_t bytes = charge_bytes(evict, node);
    double us = cost_us(evict, at);

    if (has_states && at->n_children == 0) {
        for (uint32_t i = 0; i < QUIRE_EVICT_ALONG_MAX; i++) {
            const uint32_t up = at->parent;

            at = quire_evict_at(evict, up);
            if (at->kind != QUIRE_NODE_PAGE || at->n_children > 1 || at->n_refs > 0 ||
                at->pages[state] != QUIRE_PAGE_NULL) {
                break;
            }
            bytes += charge_bytes(evict, up);
            us += cost_us(evict, at);
        }
    }
    return us / (double)(bytes > 0 ? bytes : 1);
}

/* ---- validation ---- */

static void candidate_validate(const quire_evict *evict, const quire_evict_bin *bin, uint32_t id)
{
    const quire_prefix_node *node = quire_evict_at(evict, id);

    QUIRE_CHECK(quire_evict_has(evict, id) && quire_evict_bin_of(evict, id) == bin);
    QUIRE_CHECK(node->kind == QUIRE_NODE_PAGE && node->n_children == 0 && node->n_refs == 0);
    quire_evict_deadline_validate(evict, id);
}

static void bin_validate(const quire_evict *evict, quire_evict_bin *bin)
{
    uint32_t n_listed = 0;
    uint32_t n = 0;

    for (uint32_t list = 0; list < QUIRE_EVICT_LISTS; list++) {
        n_listed += bin->n_listed[list];
    }
    QUIRE_CHECK(n_listed == bin->n_nodes);
    for (uint32_t h = 0; h < evict->ops->n_heaps; h++) {
        quire_evict_heap heap = heap_of(evict, bin, h);

        for (uint32_t id = quire_evict_heap_next(heap, QUIRE_NODE_NULL); id != QUIRE_NODE_NULL;
             id = quire_evict_heap_next(heap, id)) {
            QUIRE_CHECK(quire_evict_at(evict, id)->links[QUIRE_EVICT_BY_POLICY].heap == h);
            candidate_validate(evict, bin, id);
        }
        n += quire_evict_heap_validate(heap);
    }
    n += evict->ops->n_elsewhere != NULL ? evict->ops->n_elsewhere(bin) : 0;
    QUIRE_CHECK(n == bin->n_candidates && n <= bin->n_nodes);
}

static void region_validate(const quire_evict *evict, const quire_evict_region *region)
{
    uint32_t deadlines = region->deadlines;
    uint32_t low = region->low;
    uint32_t n = 0;

    n += quire_evict_heap_validate(
        (quire_evict_heap){ evict->nodes, QUIRE_EVICT_BY_DEADLINE, &deadlines });
    n += quire_evict_heap_validate(
        (quire_evict_heap){ evict->nodes, QUIRE_EVICT_BY_DEADLINE, &low });
    QUIRE_CHECK(n <= region->n_nodes);
    for (uint32_t rank = 0; rank < QUIRE_RANKS_MAX; rank++) {
        for (const quire_evict_bin *bin = region->bins[rank], *prev = NULL; bin != NULL;
             prev = bin, bin = bin->next) {
            QUIRE_CHECK(bin->prev == prev && bin->n_candidates > 0);
            QUIRE_CHECK(bin->number % QUIRE_RANKS_MAX == rank);
        }
    }
}

void quire_evict_validate(const quire_evict *evict)
{
    uint32_t n_nodes[QUIRE_REGIONS_MAX] = { 0 };

    for (uint32_t account = 0; account < QUIRE_ACCOUNTS_MAX; account++) {
        if (account > 0 && evict->accounts[account] == NULL) {
            continue;
        }
        for (uint32_t slot = 0; slot < QUIRE_EVICT_SLOTS; slot++) {
            quire_evict_bin *bin = quire_evict_bin_at(evict, account * QUIRE_EVICT_SLOTS + slot);

            if (bin != NULL) {
                bin_validate(evict, bin);
                n_nodes[slot / QUIRE_RANKS_MAX] += bin->n_nodes;
            }
        }
    }
    for (uint32_t r = 0; r < QUIRE_REGIONS_MAX; r++) {
        QUIRE_CHECK(n_nodes[r] == evict->regions[r].n_nodes);
        region_validate(evict, &evict->regions[r]);
    }
}
