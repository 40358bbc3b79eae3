/* evict_bag.c - an array of candidates in chunks.
 *
 * SPDX-License-Identifier: MIT */
#include "core/evict/evict_bag.h"

#include "base/check.h"
#include "quire/status.h"

#include <string.h>

#define CHUNK_ITEMS 256u

void quire_bag_fini(quire_bag *bag, const quire_allocator *allocator)
{
    for (uint32_t i = 0; i < bag->n_chunks; i++) {
        allocator->free(allocator->ctx, bag->chunks[i]);
    }
    allocator->free(allocator->ctx, bag->chunks);
    memset(bag, 0, sizeof(*bag));
}

quire_bag_item *quire_bag_at(const quire_bag *bag, uint32_t slot)
{
    QUIRE_ASSERT(slot < bag->n);
    return &bag->chunks[slot / CHUNK_ITEMS][slot % CHUNK_ITEMS];
}

static int chunk_add(quire_bag *bag, const quire_allocator *allocator)
{
    if (bag->n_chunks == bag->capacity) {
        uint32_t capacity = bag->capacity > 0 ? bag->capacity * 2 : 4;
        quire_bag_item **chunks = allocator->alloc(allocator->ctx, capacity * sizeof(*bag->chunks));

        if (chunks == NULL) {
            return QUIRE_NOMEM;
        }
        if (bag->n_chunks > 0) {
            memcpy(chunks, bag->chunks, bag->n_chunks * sizeof(*chunks));
        }
        allocator->free(allocator->ctx, bag->chunks);
        bag->chunks = chunks;
        bag->capacity = capacity;
    }
    bag->chunks[bag->n_chunks] =
        allocator->alloc(allocator->ctx, CHUNK_ITEMS * sizeof(**bag->chunks));
    if (bag->chunks[bag->n_chunks] == NULL) {
        return QUIRE_NOMEM;
    }
    bag->n_chunks++;
    return QUIRE_OK;
}

int quire_bag_add(quire_bag *bag, const quire_allocator *allocator, quire_bag_item item,
                  uint32_t *slot)
{
    if (bag->n == bag->n_chunks * CHUNK_ITEMS && chunk_add(bag, allocator) < 0) {
        return QUIRE_NOMEM;
    }
    *slot = bag->n++;
    *quire_bag_at(bag, *slot) = item;
    return QUIRE_OK;
}

static void forget(quire_bag *bag, uint32_t node)
{
    for (uint32_t i = 0; i < bag->n_drawn; i++) {
        if (bag->drawn[i].item.node == node) {
            bag->n_drawn--;
            memmove(&bag->drawn[i], &bag->drawn[i + 1], (bag->n_drawn - i) * sizeof(bag->drawn[0]));
            return;
        }
    }
}

uint32_t quire_bag_remove(quire_bag *bag, uint32_t slot)
{
    quire_bag_item *item = quire_bag_at(bag, slot);

    forget(bag, item->node);
    *item = *quire_bag_at(bag, bag->n - 1);
    return --bag->n > slot ? item->node : 0;
}

void quire_bag_remember(quire_bag *bag, quire_bag_item item, float index)
{
    uint32_t at = bag->n_drawn;

    for (uint32_t i = 0; i < bag->n_drawn; i++) {
        if (bag->drawn[i].item.node == item.node) {
            return;
        }
    }
    if (at == QUIRE_BAG_POOL) {
        if (bag->drawn[at - 1].index <= index) {
            return;
        }
        at--;
    } else {
        bag->n_drawn++;
    }
    for (; at > 0 && bag->drawn[at - 1].index > index; at--) {
        bag->drawn[at] = bag->drawn[at - 1];
    }
    bag->drawn[at] = (quire_bag_drawn){ index, item };
}
