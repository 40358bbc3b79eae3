/* lru_stack.c - a stack ordered by use, over a Fenwick tree.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/offline/lru_stack.h"

#include "base/check.h"
#include "trace/array.h"

#include <string.h>

#define NONE        UINT32_MAX
#define ITEMS_MAX   (1u << 30)
#define SLOTS_EXTRA 64u

int quire_lru_stack_init(quire_lru_stack *stack, uint32_t n_items_max,
                         const quire_allocator *allocator)
{
    QUIRE_CHECK(n_items_max <= ITEMS_MAX);
    *stack = (quire_lru_stack){ .allocator = *allocator,
                                .n_items_max = n_items_max,
                                .n_slots = 2 * n_items_max + SLOTS_EXTRA };
    stack->counts =
        quire_array_alloc(allocator, (size_t)stack->n_slots + 1, sizeof(*stack->counts));
    stack->items = quire_array_alloc(allocator, stack->n_slots, sizeof(*stack->items));
    stack->slots = quire_array_alloc(allocator, n_items_max, sizeof(*stack->slots));
    if (stack->counts == NULL || stack->items == NULL || stack->slots == NULL) {
        quire_lru_stack_fini(stack);
        return QUIRE_NOMEM;
    }
    memset(stack->counts, 0, ((size_t)stack->n_slots + 1) * sizeof(*stack->counts));
    memset(stack->items, 0xff, stack->n_slots * sizeof(*stack->items));
    memset(stack->slots, 0xff, n_items_max * sizeof(*stack->slots));
    return QUIRE_OK;
}

void quire_lru_stack_fini(quire_lru_stack *stack)
{
    quire_array_free(&stack->allocator, stack->counts);
    quire_array_free(&stack->allocator, stack->items);
    quire_array_free(&stack->allocator, stack->slots);
    stack->counts = stack->items = stack->slots = NULL;
}

static void count(quire_lru_stack *stack, uint32_t slot, uint32_t change)
{
    for (uint32_t i = slot + 1; i <= stack->n_slots; i += i & (0u - i)) {
        stack->counts[i] += change; /* a change of -1 wraps around, as it should */
    }
}

uint32_t quire_lru_stack_depth(const quire_lru_stack *stack, uint32_t item)
{
    const uint32_t slot = stack->slots[item];
    uint32_t below = 0;

    if (slot == NONE) {
        return 0;
    }
    for (uint32_t i = slot; i > 0; i -= i & (0u - i)) {
        below += stack->counts[i];
    }
    return stack->n_items - below;
}

/* Give the items the first slots, in their order, and count them anew. */
static void renumber(quire_lru_stack *stack)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < stack->n_slots; i++) {
        const uint32_t item = stack->items[i];

        if (item != NONE) {
            stack->items[i] = NONE;
            stack->items[n] = item;
            stack->slots[item] = n++;
        }
    }
    for (uint32_t i = 1; i <= stack->n_slots; i++) {
        stack->counts[i] = i <= n ? 1 : 0;
    }
    for (uint32_t i = 1; i <= stack->n_slots; i++) {
        const uint32_t parent = i + (i & (0u - i));

        if (parent <= stack->n_slots) {
            stack->counts[parent] += stack->counts[i];
        }
    }
    stack->next_slot = n;
}

void quire_lru_stack_remove(quire_lru_stack *stack, uint32_t item)
{
    const uint32_t slot = stack->slots[item];

    if (slot == NONE) {
        return;
    }
    count(stack, slot, UINT32_MAX);
    stack->items[slot] = NONE;
    stack->slots[item] = NONE;
    stack->n_items--;
}

void quire_lru_stack_use(quire_lru_stack *stack, uint32_t item)
{
    quire_lru_stack_remove(stack, item);
    if (stack->next_slot == stack->n_slots) {
        renumber(stack);
    }
    stack->slots[item] = stack->next_slot;
    stack->items[stack->next_slot] = item;
    count(stack, stack->next_slot, 1);
    stack->next_slot++;
    stack->n_items++;
}
