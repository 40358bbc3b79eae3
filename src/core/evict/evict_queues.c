/* evict_queues.c - policies with queues that a use does not reorder.
 *
 * s3fifo  J. Yang, Y. Zhang, Z. Qiu, Y. Yue, R. Rashmi, "FIFO queues are all you need for cache
 *         eviction", SOSP 2023. New nodes enter a small queue (10 % of the bin). At its end, a node
 *         used more than once moves to the main queue; any other node is evicted and leaves a
 *         ghost. A node whose ghost is among the latest (90 % of the bin) enters the main queue at
 *         once. At the end of the main queue a used node goes round again, up to three times for
 *         three uses. As in section 4.2 of the paper, a ghost's age is the number of ghosts made
 *         since, including ghosts that were hit.
 * sieve   Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. V. Rashmi, "SIEVE is simpler than LRU: an
 *         efficient turn-key eviction algorithm for web caches", NSDI 2024. One queue, and a hand
 *         that moves from the oldest node to the newest and begins again. The hand spares a node
 *         used since the last pass once, and evicts any other node in place. Here the queue is cut
 *         at the hand into two heaps by number: the nodes ahead of the hand and the nodes behind
 *         it.
 *
 * In a tree a queue also contains nodes that are no candidates. Such nodes keep their numbers: when
 * they become candidates, they have their old places, which the hand may have passed.
 *
 * SPDX-License-Identifier: MIT */
#include "core/evict/evict_policies.h"

#define NUMBER 0u /* words of a node: its place in the queue */
#define USES   1u /* since the last check: s3fifo up to 3, sieve up to 1 */

static uint64_t number_next(quire_evict *evict)
{
    uint64_t *n = evict->state;

    return ++*n;
}

/* ---- s3fifo ---- */

#define USES_MAX 3u

enum {
    SMALL,
    MAIN
};

/* Of a bin. */
typedef struct s3fifo {
    uint64_t n_ghosts; /* made so far */
} s3fifo;

/* Words of a ghost; list 1 = the node left the small queue. */
#define GHOST_NUMBER 0u
#define GHOST_BIN    1u

static bool is_remembered(const quire_evict *evict, const quire_ghost *ghost)
{
    const quire_evict_bin *bin;
    const s3fifo *s;
    uint32_t capacity;

    if (ghost == NULL || ghost->list == 0) {
        return false;
    }
    bin = quire_evict_bin_at(evict, (uint32_t)ghost->words[GHOST_BIN]);
    s = bin->state;
    capacity = quire_evict_capacity(evict, bin);
    return s->n_ghosts - ghost->words[GHOST_NUMBER] < capacity - capacity / 10;
}

static void s3fifo_born(quire_evict *evict, quire_evict_bin *bin, uint32_t node, quire_ghost *ghost)
{
    quire_evict_at(evict, node)->words[NUMBER] = number_next(evict);
    if (is_remembered(evict, ghost)) {
        quire_evict_list(evict, bin, node, MAIN);
    }
}

static void s3fifo_used(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    quire_prefix_node *at = quire_evict_at(evict, node);

    (void)bin;
    at->words[USES] += at->words[USES] < USES_MAX;
}

static quire_evict_place s3fifo_place(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    const quire_prefix_node *at = quire_evict_at(evict, node);

    (void)bin;
    return (quire_evict_place){ at->list, at->words[NUMBER] };
}

/* Move a node to the end of the main queue. */
static void s3fifo_again(quire_evict *evict, quire_evict_bin *bin, uint32_t node, uint64_t uses)
{
    quire_prefix_node *at = quire_evict_at(evict, node);

    at->words[USES] = uses;
    at->words[NUMBER] = number_next(evict);
    quire_evict_list(evict, bin, node, MAIN);
    quire_evict_replace(evict, bin, node);
}

static uint32_t s3fifo_victim(quire_evict *evict, quire_evict_bin *bin)
{
    uint64_t capacity = quire_evict_capacity(evict, bin);

    for (;;) {
        uint32_t small = quire_evict_first(bin, SMALL);
        uint32_t id = quire_evict_first(bin, MAIN);
        uint64_t uses;

        if (small != QUIRE_NODE_NULL &&
            (id == QUIRE_NODE_NULL || bin->n_listed[SMALL] * 10ull >= capacity)) {
            if (quire_evict_at(evict, small)->words[USES] <= 1) {
                return small;
            }
            s3fifo_again(evict, bin, small, 0);
            continue;
        }
        uses = quire_evict_at(evict, id)->words[USES];
        if (uses == 0) {
            return id;
        }
        s3fifo_again(evict, bin, id, uses - 1);
    }
}

static void s3fifo_gone(quire_evict *evict, quire_evict_bin *bin, uint32_t node,
                        quire_prefix_gone why, quire_ghost *ghost)
{
    s3fifo *s = bin->state;

    if (why == QUIRE_PREFIX_GONE_MEMORY && ghost != NULL &&
        quire_evict_at(evict, node)->list == SMALL) {
        ghost->list = 1;
        ghost->words[GHOST_NUMBER] = ++s->n_ghosts;
        ghost->words[GHOST_BIN] = bin->number;
    }
}

const quire_evict_ops quire_evict_s3fifo = {
    .n_heaps = 2,
    .tree_bytes = sizeof(uint64_t),
    .bin_bytes = sizeof(s3fifo),
    .has_ghosts = true,
    .born = s3fifo_born,
    .used = s3fifo_used,
    .place = s3fifo_place,
    .victim = s3fifo_victim,
    .gone = s3fifo_gone,
};

/* ---- sieve ---- */

/* Of a bin. */
typedef struct sieve {
    uint64_t hand;   /* the hand has passed nodes with smaller numbers in this lap */
    uint64_t newest; /* largest number so far */
    uint32_t ahead;  /* the heap of the nodes ahead of the hand */
} sieve;

static void sieve_born(quire_evict *evict, quire_evict_bin *bin, uint32_t node, quire_ghost *ghost)
{
    (void)bin;
    (void)ghost;
    quire_evict_at(evict, node)->words[NUMBER] = number_next(evict);
}

static void sieve_used(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    (void)bin;
    quire_evict_at(evict, node)->words[USES] = 1;
}

static quire_evict_place sieve_place(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    sieve *s = bin->state;
    uint64_t number = quire_evict_at(evict, node)->words[NUMBER];

    s->newest = number > s->newest ? number : s->newest;
    return (quire_evict_place){ number >= s->hand ? s->ahead : 1 - s->ahead, number };
}

/* The hand begins again with the oldest. */
static void sieve_turn(sieve *s)
{
    s->ahead = 1 - s->ahead;
    s->hand = 0;
}

static uint32_t sieve_victim(quire_evict *evict, quire_evict_bin *bin)
{
    sieve *s = bin->state;

    for (;;) {
        uint32_t id = quire_evict_first(bin, s->ahead);
        quire_prefix_node *at;

        if (id == QUIRE_NODE_NULL) {
            sieve_turn(s);
            id = quire_evict_first(bin, s->ahead);
        }
        at = quire_evict_at(evict, id);
        s->hand = at->words[NUMBER] + 1;
        if (at->words[NUMBER] == s->newest) {
            sieve_turn(s);
        }
        if (at->words[USES] == 0) {
            return id;
        }
        at->words[USES] = 0;
        quire_evict_replace(evict, bin, id);
    }
}

const quire_evict_ops quire_evict_sieve = {
    .n_heaps = 2,
    .tree_bytes = sizeof(uint64_t),
    .bin_bytes = sizeof(sieve),
    .born = sieve_born,
    .used = sieve_used,
    .place = sieve_place,
    .victim = sieve_victim,
};
