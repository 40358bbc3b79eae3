/* valkey_map.h - 64-bit values by 64-bit keys: open addressing, no removal of single keys.
 *
 * Keys are results of a keyed hash, so nobody can make them collide. Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_VALKEY_MAP_H
#define QUIRE_STORE_VALKEY_MAP_H

#include <stdbool.h>
#include <stdint.h>

typedef struct quire_u64_map {
    struct quire_u64_slot *slots; /* [mask + 1]; NULL while empty */
    uint32_t mask;
    uint32_t n;
} quire_u64_map;

/* Set a key's value. False: out of memory, the map is as before. */
bool quire_u64_map_set(quire_u64_map *map, uint64_t key, uint64_t value);
/* False: the key is not there. */
bool quire_u64_map_get(const quire_u64_map *map, uint64_t key, uint64_t *out);
/* Forget all keys, and give back the memory. */
void quire_u64_map_fini(quire_u64_map *map);

#endif /* QUIRE_STORE_VALKEY_MAP_H */
