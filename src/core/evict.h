/* evict.h - which node goes next.
 *
 * The candidates are the nodes that nothing depends on: no children, no refs. The policy is told
 * when a node becomes one and when it ceases to be, and is asked for a victim; between the two
 * nothing that it orders by changes. Another policy is another implementation of this header.
 *
 * This one: what has expired, then what the low-traffic rule names, then the least recently used.
 * Two heaps per region: by last use, which is also the order of expiry, and by the time from which
 * a node counts as low traffic: its age has reached the rule's, and its hits are fewer than its age
 * times the rule's rate, which with the hits as they are is true from some moment on.
 *
 * Cost: O(log candidates) per call, no allocation but in plan.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_EVICT_H
#define QUIRE_CORE_EVICT_H

#include "core/prefix_node.h"
#include "quire/prefix.h"

typedef struct quire_evict_entry {
    uint64_t key; /* smallest first */
    uint32_t node;
} quire_evict_entry;

typedef struct quire_evict_heap {
    quire_evict_entry *entries; /* [capacity] */
    uint32_t n;
    uint32_t capacity;
} quire_evict_heap;

#define QUIRE_EVICT_USED 0u /* key: used_tick */
#define QUIRE_EVICT_LOW  1u /* key: since when it is low traffic, in us */

typedef struct quire_evict {
    quire_allocator allocator;
    quire_prefix_nodes *nodes; /* borrowed */
    uint64_t ttl_us;           /* 0 = never */
    uint64_t low_after_us;     /* 0 = no rule */
    double low_hits_per_us;
    uint32_t n_nodes[QUIRE_REGIONS_MAX]; /* by region: room is kept for all of them */
    quire_evict_heap heaps[QUIRE_REGIONS_MAX][2];
} quire_evict;

void quire_evict_init(quire_evict *evict, const quire_prefix_opts *opts,
                      const quire_allocator *allocator, quire_prefix_nodes *nodes);
void quire_evict_fini(quire_evict *evict);

/* Make room for one node more in a region. Errors: QUIRE_NOMEM. */
int quire_evict_plan(quire_evict *evict, quire_region_id region);
/* A planned node begins to exist, a node ends. */
void quire_evict_count(quire_evict *evict, quire_region_id region);
void quire_evict_uncount(quire_evict *evict, quire_region_id region);

/* A node becomes a candidate, ceases to be one. */
void quire_evict_add(quire_evict *evict, uint32_t node);
void quire_evict_remove(quire_evict *evict, uint32_t node);
bool quire_evict_has(const quire_evict *evict, uint32_t node);

/* The candidate that should go, and why; 0 when there is none. */
uint32_t quire_evict_victim(const quire_evict *evict, quire_region_id region, uint64_t now_us,
                            quire_prefix_gone *why);
/* Only if it has expired. */
uint32_t quire_evict_expired(const quire_evict *evict, quire_region_id region, uint64_t now_us);

void quire_evict_validate(const quire_evict *evict);

#endif /* QUIRE_CORE_EVICT_H */
