/* evict_recency.c - policies that order by time alone.
 *
 * lru   the least recently used. A use ends when the sequence lets go, so a node is as recent as
 *       the last call that held it.
 *
 * SPDX-License-Identifier: MIT */
#include "core/evict_policies.h"

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
