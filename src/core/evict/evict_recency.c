/* evict_recency.c - policies that order by time alone.
 *
 * lru   Evicts the least recently used node. A use ends when the sequence releases its ref, so a
 *       node is as recent as the last call that held it.
 * fifo  Evicts the oldest node.
 * slru  R. Karedla, J. S. Love, B. G. Wherry, "Caching strategies to improve disk system
 *       performance", IEEE Computer 27(3), 1994. Two segments, each in order of use. A node begins
 *       on probation and is protected from its first use on. The protected segment holds up to 80 %
 *       of the bin; its excess nodes go back to probation as the most recent there. Victims come
 *       from probation. In a tree only candidates can go back, so the protected segment may exceed
 *       its share while its oldest nodes are in use.
 *
 * SPDX-License-Identifier: MIT */
#include "core/evict/evict_policies.h"

static uint32_t victim_first(quire_evict *evict, quire_evict_bin *bin)
{
    (void)evict;
    return quire_evict_first(bin, 0);
}

/* ---- lru ---- */

static quire_evict_place lru_place(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    (void)bin;
    return (quire_evict_place){ 0, quire_evict_at(evict, node)->used_tick };
}

const quire_evict_ops quire_evict_lru = {
    .n_heaps = 1,
    .place = lru_place,
    .victim = victim_first,
};

/* ---- fifo ---- */

#define NUMBER 0u /* word of a node: the number of earlier nodes */

static void fifo_born(quire_evict *evict, quire_evict_bin *bin, uint32_t node, quire_ghost *ghost)
{
    uint64_t *n_born = evict->state;

    (void)bin;
    (void)ghost;
    quire_evict_at(evict, node)->words[NUMBER] = (*n_born)++;
}

static quire_evict_place fifo_place(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    (void)bin;
    return (quire_evict_place){ 0, quire_evict_at(evict, node)->words[NUMBER] };
}

const quire_evict_ops quire_evict_fifo = {
    .n_heaps = 1,
    .tree_bytes = sizeof(uint64_t),
    .born = fifo_born,
    .place = fifo_place,
    .victim = victim_first,
};

/* ---- slru ---- */

#define DEMOTED 0u /* word of a node: the tick of its return to probation */

enum {
    PROBATION,
    PROTECTED
};

/* Bring the protected segment down to its share. */
static void slru_settle(quire_evict *evict, quire_evict_bin *bin)
{
    uint32_t n_max = (uint32_t)(quire_evict_capacity(evict, bin) * 4ull / 5);
    uint32_t id;

    while (bin->n_listed[PROTECTED] > n_max &&
           (id = quire_evict_first(bin, PROTECTED)) != QUIRE_NODE_NULL) {
        quire_evict_at(evict, id)->words[DEMOTED] = evict->tick;
        quire_evict_list(evict, bin, id, PROBATION);
        quire_evict_replace(evict, bin, id);
    }
}

static void slru_used(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    quire_evict_list(evict, bin, node, PROTECTED);
    slru_settle(evict, bin);
}

static quire_evict_place slru_place(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    const quire_prefix_node *at = quire_evict_at(evict, node);
    uint64_t key = at->used_tick;

    (void)bin;
    if (at->list == PROBATION && at->words[DEMOTED] > key) {
        key = at->words[DEMOTED];
    }
    return (quire_evict_place){ at->list, key };
}

static uint32_t slru_victim(quire_evict *evict, quire_evict_bin *bin)
{
    uint32_t id;

    slru_settle(evict, bin);
    id = quire_evict_first(bin, PROBATION);
    return id != QUIRE_NODE_NULL ? id : quire_evict_first(bin, PROTECTED);
}

const quire_evict_ops quire_evict_slru = {
    .n_heaps = 2,
    .used = slru_used,
    .place = slru_place,
    .victim = slru_victim,
};
