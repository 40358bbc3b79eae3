/* evict_frequency.c - policies that count uses.
 *
 * lfu   Evicts the node with the fewest uses since it entered the cache; of several, the least
 *       recently used. (The count ends with the node: an evicted node begins anew.)
 * gdsf  L. Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching
 *       policy", HP Laboratories report HPL-98-69, 1998, after P. Cao, S. Irani, "Cost-aware WWW
 *       proxy caching algorithms", USENIX Symposium on Internet Technologies and Systems 1997.
 *       Evicts the node with the smallest L + uses * cost / size, with L as it was at the node's
 *       last use. L then becomes this value, so that nodes used later are ahead. cost is the time
 *       to compute the node's tokens at their depth, size the charge of its pages, both with those
 *       of nodes that go along (quire_evict_worth()).
 *
 * SPDX-License-Identifier: MIT */
#include "core/evict/evict_policies.h"

#include <string.h>

#define N_USES 0u /* words of a node */
#define VALUE  1u /* gdsf: a double's bits, which order like the doubles >= 0 */
#define BASE   2u /* gdsf: L at the last use, likewise */

static void count_born(quire_evict *evict, quire_evict_bin *bin, uint32_t node, quire_ghost *ghost)
{
    (void)bin;
    (void)ghost;
    quire_evict_at(evict, node)->words[N_USES] = 1;
}

static void count_used(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    (void)bin;
    quire_evict_at(evict, node)->words[N_USES]++;
}

/* ---- lfu ---- */

#define TICK_BITS 48u /* of a key: centuries; the other bits count uses, up to 65535 */

static quire_evict_place lfu_place(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    const quire_prefix_node *at = quire_evict_at(evict, node);
    uint64_t n_uses = at->words[N_USES] < UINT16_MAX ? at->words[N_USES] : UINT16_MAX;
    uint64_t tick = at->used_tick & ((1ull << TICK_BITS) - 1);

    (void)bin;
    return (quire_evict_place){ 0, n_uses << TICK_BITS | tick };
}

static uint32_t lfu_victim(quire_evict *evict, quire_evict_bin *bin)
{
    (void)evict;
    return quire_evict_first(bin, 0);
}

const quire_evict_ops quire_evict_lfu = {
    .n_heaps = 1,
    .born = count_born,
    .used = count_used,
    .place = lfu_place,
    .victim = lfu_victim,
};

/* ---- gdsf ---- */

/* Of a bin. */
typedef struct gdsf {
    double inflation; /* L */
} gdsf;

/* L at the node's last use. */
static void gdsf_base(quire_evict *evict, const quire_evict_bin *bin, uint32_t node)
{
    const gdsf *g = bin->state;

    memcpy(&quire_evict_at(evict, node)->words[BASE], &g->inflation, sizeof(g->inflation));
}

static void gdsf_born(quire_evict *evict, quire_evict_bin *bin, uint32_t node, quire_ghost *ghost)
{
    count_born(evict, bin, node, ghost);
    gdsf_base(evict, bin, node);
}

static void gdsf_used(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    count_used(evict, bin, node);
    gdsf_base(evict, bin, node);
}

/* The pages of a node, and the nodes that go with it, may have changed since its last use. */
static quire_evict_place gdsf_place(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    quire_prefix_node *at = quire_evict_at(evict, node);
    double value;

    (void)bin;
    memcpy(&value, &at->words[BASE], sizeof(value));
    value += (double)at->words[N_USES] * quire_evict_worth(evict, node);
    memcpy(&at->words[VALUE], &value, sizeof(value));
    return (quire_evict_place){ 0, at->words[VALUE] };
}

static uint32_t gdsf_victim(quire_evict *evict, quire_evict_bin *bin)
{
    gdsf *g = bin->state;
    uint32_t id = quire_evict_first(bin, 0);

    memcpy(&g->inflation, &quire_evict_at(evict, id)->words[VALUE], sizeof(g->inflation));
    return id;
}

const quire_evict_ops quire_evict_gdsf = {
    .n_heaps = 1,
    .bin_bytes = sizeof(gdsf),
    .born = gdsf_born,
    .used = gdsf_used,
    .place = gdsf_place,
    .victim = gdsf_victim,
};
