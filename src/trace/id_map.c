/* id_map.c - open addressing with linear probing, at most half full.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/id_map.h"

#include "base/check.h"

#include <stdbool.h>
#include <string.h>

#define KEYS_MAX (1u << 30)
#ifdef QUIRE_TINY
#define SLOTS_FIRST 4u
#else
#define SLOTS_FIRST 1024u
#endif

void quire_id_map_init(quire_id_map *map, const quire_allocator *allocator)
{
    memset(map, 0, sizeof(*map));
    map->allocator = allocator != NULL ? *allocator : *quire_allocator_default();
}

void quire_id_map_fini(quire_id_map *map)
{
    map->allocator.free(map->allocator.ctx, map->keys);
    map->allocator.free(map->allocator.ctx, map->values);
    map->keys = NULL;
    map->values = NULL;
    map->mask = 0;
    map->n = 0;
}

/* The finalizer of splitmix64 (Steele, Lea, Flood). */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t quire_id_pair(uint64_t a, uint64_t b)
{
    return mix(mix(a + 0x9e3779b97f4a7c15u) ^ b);
}

/* The slot of a key, or the empty slot for it. */
static uint32_t slot_of(const quire_id_map *map, uint64_t key)
{
    uint32_t at = (uint32_t)mix(key) & map->mask;

    while (map->values[at] != QUIRE_ID_NONE && map->keys[at] != key) {
        at = (at + 1) & map->mask;
    }
    return at;
}

static int grow(quire_id_map *map, uint32_t slots)
{
    quire_id_map bigger = *map;

    bigger.keys = map->allocator.alloc(map->allocator.ctx, slots * sizeof(*bigger.keys));
    bigger.values = map->allocator.alloc(map->allocator.ctx, slots * sizeof(*bigger.values));
    bigger.mask = slots - 1;
    if (bigger.keys == NULL || bigger.values == NULL) {
        quire_id_map_fini(&bigger);
        return QUIRE_NOMEM;
    }
    memset(bigger.values, 0xff, slots * sizeof(*bigger.values));
    for (uint32_t i = 0; map->keys != NULL && i <= map->mask; i++) {
        if (map->values[i] != QUIRE_ID_NONE) {
            uint32_t at = slot_of(&bigger, map->keys[i]);

            bigger.keys[at] = map->keys[i];
            bigger.values[at] = map->values[i];
        }
    }
    map->allocator.free(map->allocator.ctx, map->keys);
    map->allocator.free(map->allocator.ctx, map->values);
    *map = bigger;
    return QUIRE_OK;
}

int quire_id_map_plan(quire_id_map *map, uint32_t n)
{
    uint32_t slots = map->keys != NULL ? map->mask + 1 : SLOTS_FIRST;

    QUIRE_FAIL_IF(n > KEYS_MAX || map->n > KEYS_MAX - n, QUIRE_LIMIT);
    while (slots / 2 < map->n + n) {
        slots *= 2;
    }
    return map->keys != NULL && slots == map->mask + 1 ? QUIRE_OK : grow(map, slots);
}

uint32_t quire_id_map_put(quire_id_map *map, uint64_t key)
{
    uint32_t at = slot_of(map, key);

    if (map->values[at] == QUIRE_ID_NONE) {
        QUIRE_CHECK(map->n < map->mask);
        map->keys[at] = key;
        map->values[at] = map->n++;
    }
    return map->values[at];
}

uint32_t quire_id_map_find(const quire_id_map *map, uint64_t key)
{
    return map->keys == NULL ? QUIRE_ID_NONE : map->values[slot_of(map, key)];
}
