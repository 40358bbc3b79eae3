/* evict_bin.c - bins and their nodes.
 *
 * SPDX-License-Identifier: MIT */
#include "core/evict/evict_bin.h"

#include "base/check.h"

#include <string.h>

static size_t up_to_16(size_t n)
{
    return (n + 15) / 16 * 16;
}

static void bin_start(const quire_evict *evict, quire_evict_bin *bin, uint32_t number)
{
    memset(bin, 0, evict->bin_bytes);
    bin->number = number;
    bin->state = (unsigned char *)bin + evict->bin_bytes - up_to_16(evict->ops->bin_bytes);
}

static quire_evict_bin *rest_at(const quire_evict *evict, uint32_t slot)
{
    return (quire_evict_bin *)(void *)(evict->rest + slot * evict->bin_bytes);
}

int quire_evict_bins_init(quire_evict *evict)
{
    evict->bin_bytes = up_to_16(sizeof(quire_evict_bin) + evict->ops->n_heaps * sizeof(uint32_t)) +
                       up_to_16(evict->ops->bin_bytes);
    evict->rest =
        evict->allocator.alloc(evict->allocator.ctx, QUIRE_EVICT_SLOTS * evict->bin_bytes);
    QUIRE_FAIL_IF(evict->rest == NULL, QUIRE_NOMEM);
    for (uint32_t slot = 0; slot < QUIRE_EVICT_SLOTS; slot++) {
        bin_start(evict, rest_at(evict, slot), slot);
    }
    return QUIRE_OK;
}

static void bin_stop(quire_evict *evict, quire_evict_bin *bin)
{
    if (bin != NULL && evict->ops->bin_stop != NULL) {
        evict->ops->bin_stop(evict, bin);
    }
}

void quire_evict_bins_fini(quire_evict *evict)
{
    for (uint32_t account = 1; account < QUIRE_ACCOUNTS_MAX; account++) {
        quire_evict_bin **bins = evict->accounts[account];

        for (uint32_t slot = 0; bins != NULL && slot < QUIRE_EVICT_SLOTS; slot++) {
            bin_stop(evict, bins[slot]);
            evict->allocator.free(evict->allocator.ctx, bins[slot]);
        }
        evict->allocator.free(evict->allocator.ctx, bins);
    }
    for (uint32_t slot = 0; evict->rest != NULL && slot < QUIRE_EVICT_SLOTS; slot++) {
        bin_stop(evict, rest_at(evict, slot));
    }
    evict->allocator.free(evict->allocator.ctx, evict->rest);
}

quire_evict_bin *quire_evict_bin_at(const quire_evict *evict, uint32_t number)
{
    uint32_t account = number / QUIRE_EVICT_SLOTS;
    uint32_t slot = number % QUIRE_EVICT_SLOTS;

    if (account == 0) {
        return rest_at(evict, slot);
    }
    return evict->accounts[account] != NULL ? evict->accounts[account][slot] : NULL;
}

static uint32_t slot_of(const quire_prefix_node *node)
{
    return (uint32_t)node->region * QUIRE_RANKS_MAX + node->rank;
}

quire_evict_bin *quire_evict_bin_of(const quire_evict *evict, uint32_t node)
{
    const quire_prefix_node *at = quire_evict_at(evict, node);

    if (at->account == 0 || (at->heaps & QUIRE_EVICT_IN_REST) != 0) {
        return rest_at(evict, slot_of(at));
    }
    return evict->accounts[at->account][slot_of(at)];
}

/* The bin of an account above 0, made if needed; NULL when memory is short. */
static quire_evict_bin *bin_make(quire_evict *evict, uint32_t account, uint32_t slot)
{
    quire_evict_bin **bins = evict->accounts[account];

    if (bins == NULL) {
        bins = evict->allocator.alloc(evict->allocator.ctx, QUIRE_EVICT_SLOTS * sizeof(*bins));
        if (bins == NULL) {
            return NULL;
        }
        memset(bins, 0, QUIRE_EVICT_SLOTS * sizeof(*bins));
        evict->accounts[account] = bins;
    }
    if (bins[slot] == NULL) {
        bins[slot] = evict->allocator.alloc(evict->allocator.ctx, evict->bin_bytes);
        if (bins[slot] != NULL) {
            bin_start(evict, bins[slot], account * QUIRE_EVICT_SLOTS + slot);
        }
    }
    return bins[slot];
}

/* Add a node to the bin of its region, rank and account. */
quire_evict_bin *quire_evict_bin_enter(quire_evict *evict, quire_prefix_node *node)
{
    quire_evict_bin *bin = NULL;

    node->heaps &= (uint8_t)~QUIRE_EVICT_IN_REST;
    if (node->account != 0) {
        bin = bin_make(evict, node->account, slot_of(node));
    }
    if (bin == NULL) {
        bin = rest_at(evict, slot_of(node));
        node->heaps |= node->account != 0 ? QUIRE_EVICT_IN_REST : 0;
    }
    bin->n_nodes++;
    bin->n_listed[node->list]++;
    evict->regions[node->region].n_nodes++;
    return bin;
}

void quire_evict_bin_leave(quire_evict *evict, quire_evict_bin *bin, const quire_prefix_node *node)
{
    QUIRE_CHECK(bin->n_nodes > 0 && bin->n_listed[node->list] > 0);
    bin->n_nodes--;
    bin->n_listed[node->list]--;
    evict->regions[node->region].n_nodes--;
}
