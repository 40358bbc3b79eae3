/* lru_stack.h - the depth of an item in a stack whose used item moves to the top.
 *
 * Items are numbers below a bound. Each item has the slot of its last use. A Fenwick tree over
 * the slots counts the items above. When no slot is left, all slots are numbered anew, at an
 * amortised cost of O(1) per use.
 *
 * Sources: Mattson and others, IBM Systems Journal 9(2), 1970 (stack distances); Fenwick, Software:
 * Practice and Experience 24(3), 1994.
 *
 * Cost: O(log items) per call; 12 bytes per item. Thread: one at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_LRU_STACK_H
#define QUIRE_TRACE_LRU_STACK_H

#include <stdint.h>

#include "quire/alloc.h"

typedef struct quire_lru_stack {
    quire_allocator allocator;
    uint32_t *counts; /* [n_slots + 1], the Fenwick tree */
    uint32_t *items;  /* [n_slots], by slot */
    uint32_t *slots;  /* [n_items_max], by item */
    uint32_t n_slots; /* twice the items and more */
    uint32_t next_slot;
    uint32_t n_items_max;
    uint32_t n_items; /* on the stack */
} quire_lru_stack;

/* Items are below n_items_max, at most 2^30. Errors: QUIRE_NOMEM. */
int quire_lru_stack_init(quire_lru_stack *stack, uint32_t n_items_max,
                         const quire_allocator *allocator);
void quire_lru_stack_fini(quire_lru_stack *stack);

/* 1 = on top; 0 = not on the stack. */
uint32_t quire_lru_stack_depth(const quire_lru_stack *stack, uint32_t item);
/* The item goes to the top, wherever it was. */
void quire_lru_stack_use(quire_lru_stack *stack, uint32_t item);
void quire_lru_stack_remove(quire_lru_stack *stack, uint32_t item); /* if it is there */

#endif /* QUIRE_TRACE_LRU_STACK_H */
