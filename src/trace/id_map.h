/* id_map.h - small dense numbers for 64-bit keys, in order of first appearance.
 *
 * Open addressing; the table doubles as keys are added. Keys chosen to collide slow the map down,
 * and do no other harm: users choose their traces.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_ID_MAP_H
#define QUIRE_TRACE_ID_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "quire/alloc.h"

#define QUIRE_ID_NONE UINT32_MAX

typedef struct quire_id_map {
    quire_allocator allocator;
    uint64_t *keys;   /* [mask + 1] */
    uint32_t *values; /* [mask + 1]; QUIRE_ID_NONE = empty */
    uint32_t mask;
    uint32_t n;
} quire_id_map;

/* Allocates nothing. NULL allocator = C library. */
void quire_id_map_init(quire_id_map *map, const quire_allocator *allocator);
void quire_id_map_fini(quire_id_map *map);

/* Make sure that the next n new keys find room. Errors: QUIRE_NOMEM, QUIRE_LIMIT (2^30 keys). */
int quire_id_map_plan(quire_id_map *map, uint32_t n);

/* The number of a key; a new one gets the next number, map->n (there is room). */
uint32_t quire_id_map_put(quire_id_map *map, uint64_t key);

/* QUIRE_ID_NONE when the key is not there. */
uint32_t quire_id_map_find(const quire_id_map *map, uint64_t key);

/* One key for two numbers: a mixture in which nearly equal pairs lie far apart. */
uint64_t quire_id_pair(uint64_t a, uint64_t b);

#endif /* QUIRE_TRACE_ID_MAP_H */
