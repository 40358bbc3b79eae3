/* valkey_map.c - see valkey_map.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_map.h"

#include <stdlib.h>

#define SLOTS_MIN 16u

struct quire_u64_slot {
    uint64_t key;
    uint64_t value;
    bool is_used;
};

static struct quire_u64_slot *find(struct quire_u64_slot *slots, uint32_t mask, uint64_t key)
{
    uint32_t at = (uint32_t)(key ^ key >> 32) & mask;

    while (slots[at].is_used && slots[at].key != key) {
        at = (at + 1) & mask;
    }
    return &slots[at];
}

/* Room for one more, at most half full. */
static bool grow(quire_u64_map *map)
{
    const uint32_t n_slots = map->slots == NULL ? SLOTS_MIN : 2 * (map->mask + 1);
    struct quire_u64_slot *slots;

    if (map->slots != NULL && 2 * (map->n + 1) <= map->mask + 1) {
        return true;
    }
    slots = calloc(n_slots, sizeof *slots);
    if (slots == NULL) {
        return false;
    }
    for (uint32_t i = 0; map->slots != NULL && i <= map->mask; i++) {
        if (map->slots[i].is_used) {
            *find(slots, n_slots - 1, map->slots[i].key) = map->slots[i];
        }
    }
    free(map->slots);
    map->slots = slots;
    map->mask = n_slots - 1;
    return true;
}

bool quire_u64_map_set(quire_u64_map *map, uint64_t key, uint64_t value)
{
    struct quire_u64_slot *slot;

    if (!grow(map)) {
        return false;
    }
    slot = find(map->slots, map->mask, key);
    map->n += !slot->is_used;
    *slot = (struct quire_u64_slot){ .key = key, .value = value, .is_used = true };
    return true;
}

bool quire_u64_map_get(const quire_u64_map *map, uint64_t key, uint64_t *out)
{
    const struct quire_u64_slot *slot =
        map->slots != NULL ? find(map->slots, map->mask, key) : NULL;

    if (slot == NULL || !slot->is_used) {
        return false;
    }
    *out = slot->value;
    return true;
}

void quire_u64_map_fini(quire_u64_map *map)
{
    free(map->slots);
    *map = (quire_u64_map){ 0 };
}
