/* evict_bag.h - candidates for random draws, and the least of the drawn candidates.
 *
 * A heap cannot keep an order that changes with age. A few random draws per victim, together with a
 * pool of the least candidates of earlier draws, find a victim that is as good: after some draws
 * the pool holds the bottom of the order.
 *
 * Memory: chunks that grow with the number of candidates and are kept. Without memory a candidate
 * stays outside the bag; the policy keeps such candidates elsewhere.
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
    uint32_t used;     /* time of the last use, in units of the policy's clock */
    float worth;       /* microseconds that a use saves, per byte held */
    uint16_t class_id; /* of the expected time to the next use */
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

/* Add an item; *slot gets its slot. Errors: QUIRE_NOMEM. */
int quire_bag_add(quire_bag *bag, const quire_allocator *allocator, quire_bag_item item,
                  uint32_t *slot);

/* Remove the item in the slot. The last item moves to the slot. Returns the moved item's node; 0 =
 * none. */
uint32_t quire_bag_remove(quire_bag *bag, uint32_t slot);

/* Put an item into the pool, unless it is in the pool already or the full pool has only lesser
 * items. */
void quire_bag_remember(quire_bag *bag, quire_bag_item item, float index);

#endif /* QUIRE_CORE_EVICT_BAG_H */
