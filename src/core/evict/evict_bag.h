/* evict_bag.h - candidates to draw from at random, and the least of those that were drawn.
 *
 * An order by something that changes with age cannot be kept in a heap. A few draws per victim, and
 * a pool of the least that earlier draws saw, find one that is as good: the pool becomes the bottom
 * of the order within some draws, and stays it.
 *
 * Memory: chunks that grow with the number of candidates and are kept. Where there is none a
 * candidate stays outside; who looks for a victim has another way to find it.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_EVICT_BAG_H
#define QUIRE_CORE_EVICT_BAG_H

#include "quire/alloc.h"

#include <stdbool.h>
#include <stdint.h>

#define QUIRE_BAG_POOL 16u

typedef struct quire_bag_item {
    uint32_t node;
    uint32_t used;     /* when, in the units of the policy's clock */
    float worth;       /* of a use: microseconds saved per byte held */
    uint16_t class_id; /* how soon it is expected */
} quire_bag_item;

typedef struct quire_bag_drawn {
    float index;
    quire_bag_item item;
} quire_bag_drawn;

typedef struct quire_bag {
    quire_bag_item **chunks; /* [capacity] */
    uint32_t n_chunks;
    uint32_t capacity;
    uint32_t n;
    uint32_t n_drawn;
    quire_bag_drawn drawn[QUIRE_BAG_POOL]; /* the least first */
} quire_bag;

void quire_bag_fini(quire_bag *bag, const quire_allocator *allocator);

quire_bag_item *quire_bag_at(const quire_bag *bag, uint32_t slot);

/* Put in; *slot is where it is. Errors: QUIRE_NOMEM. */
int quire_bag_add(quire_bag *bag, const quire_allocator *allocator, quire_bag_item item,
                  uint32_t *slot);

/* Take out what is in the slot. Returns the node that is there now, since the last one moves to
 * where it was; 0 = none. */
uint32_t quire_bag_remove(quire_bag *bag, uint32_t slot);

/* Remember one of the bag's, unless it is there already or all that are remembered are less. */
void quire_bag_remember(quire_bag *bag, quire_bag_item item, float index);

#endif /* QUIRE_CORE_EVICT_BAG_H */
