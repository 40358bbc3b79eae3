/* evict_deadline.c - candidates by deadline.
 *
 * SPDX-License-Identifier: MIT */
#include "core/evict/evict_deadline.h"

#include "base/check.h"

static quire_evict_heap deadlines_of(const quire_evict *evict, quire_evict_region *region)
{
    return (quire_evict_heap){ evict->nodes, QUIRE_EVICT_BY_DEADLINE, &region->deadlines };
}

static quire_evict_heap low_of(const quire_evict *evict, quire_evict_region *region)
{
    return (quire_evict_heap){ evict->nodes, QUIRE_EVICT_BY_DEADLINE, &region->low };
}

/* The end of a node's time to live. */
static uint64_t end_us(const quire_evict *evict, const quire_prefix_node *node)
{
    uint64_t ttl_us = evict->ttl_us[node->rank];

    return ttl_us == 0 || ttl_us > UINT64_MAX - node->used_us ? UINT64_MAX : node->used_us + ttl_us;
}

/* The moment from which a node is low traffic. */
static uint64_t low_us(const quire_evict *evict, const quire_prefix_node *node)
{
    uint64_t age_us = evict->low_after_us;
    double enough_us; /* the age up to which the node has enough hits */

    if (age_us == 0 || !(evict->low_hits_per_us > 0.0)) {
        return UINT64_MAX;
    }
    enough_us = node->hits / evict->low_hits_per_us;
    if (enough_us >= 0x1p63) {
        return UINT64_MAX;
    }
    if ((uint64_t)enough_us > age_us) {
        age_us = (uint64_t)enough_us;
    }
    return age_us < UINT64_MAX - node->created_us ? node->created_us + age_us + 1 : UINT64_MAX;
}

void quire_evict_deadline_add(quire_evict *evict, uint32_t id)
{
    quire_prefix_node *node = quire_evict_at(evict, id);
    uint64_t end = end_us(evict, node);
    uint64_t low = low_us(evict, node);
    uint64_t key = end < low ? end : low;

    if (key != UINT64_MAX) {
        node->heaps |= QUIRE_EVICT_HAS_DEADLINE;
        quire_evict_heap_add(deadlines_of(evict, &evict->regions[node->region]), id, key);
    }
}

void quire_evict_deadline_remove(quire_evict *evict, uint32_t id)
{
    quire_prefix_node *node = quire_evict_at(evict, id);
    quire_evict_region *region = &evict->regions[node->region];

    if ((node->heaps & QUIRE_EVICT_HAS_DEADLINE) != 0) {
        quire_evict_heap_remove(deadlines_of(evict, region), id);
    } else if ((node->heaps & QUIRE_EVICT_IS_LOW) != 0) {
        quire_evict_heap_remove(low_of(evict, region), id);
    }
    node->heaps &= (uint8_t) ~(QUIRE_EVICT_HAS_DEADLINE | QUIRE_EVICT_IS_LOW);
}

/* Move candidates that have become low traffic, and have not expired, to the heap `low`. */
static void low_settle(quire_evict *evict, quire_evict_region *region)
{
    uint32_t id;

    while ((id = region->deadlines) != QUIRE_NODE_NULL) {
        quire_prefix_node *node = quire_evict_at(evict, id);

        if (node->links[QUIRE_EVICT_BY_DEADLINE].key > evict->now_us ||
            end_us(evict, node) <= evict->now_us) {
            return;
        }
        quire_evict_deadline_remove(evict, id);
        node->heaps |= QUIRE_EVICT_IS_LOW;
        quire_evict_heap_add(low_of(evict, region), id, end_us(evict, node));
    }
}

uint32_t quire_evict_expired(quire_evict *evict, quire_region_id region)
{
    quire_evict_region *at = &evict->regions[region];

    low_settle(evict, at);
    if (at->deadlines != QUIRE_NODE_NULL &&
        end_us(evict, quire_evict_at(evict, at->deadlines)) <= evict->now_us) {
        return at->deadlines;
    }
    if (at->low != QUIRE_NODE_NULL &&
        end_us(evict, quire_evict_at(evict, at->low)) <= evict->now_us) {
        return at->low;
    }
    return QUIRE_NODE_NULL;
}

void quire_evict_ttl_set(quire_evict *evict, uint8_t rank, uint64_t ttl_us)
{
    if (evict->ttl_us[rank] == ttl_us) {
        return;
    }
    evict->ttl_us[rank] = ttl_us;
    for (uint32_t id = 1; id < evict->nodes->id_end; id++) {
        const quire_prefix_node *node = quire_evict_at(evict, id);

        if (node->kind == QUIRE_NODE_PAGE && node->rank == rank && quire_evict_has(evict, id)) {
            quire_evict_deadline_remove(evict, id);
            quire_evict_deadline_add(evict, id);
        }
    }
}

void quire_evict_low_traffic_set(quire_evict *evict, uint64_t after_us, double hits_per_hour)
{
    evict->low_after_us = after_us;
    evict->low_hits_per_us = hits_per_hour / QUIRE_EVICT_US_PER_HOUR;
    for (uint32_t id = 1; id < evict->nodes->id_end; id++) {
        if (quire_evict_at(evict, id)->kind == QUIRE_NODE_PAGE && quire_evict_has(evict, id)) {
            quire_evict_deadline_remove(evict, id);
            quire_evict_deadline_add(evict, id);
        }
    }
}

void quire_evict_deadline_validate(const quire_evict *evict, uint32_t id)
{
    const quire_prefix_node *node = quire_evict_at(evict, id);
    uint64_t key = node->links[QUIRE_EVICT_BY_DEADLINE].key;
    uint64_t end = end_us(evict, node);
    uint64_t low = low_us(evict, node);

    if ((node->heaps & QUIRE_EVICT_IS_LOW) != 0) {
        QUIRE_CHECK((node->heaps & QUIRE_EVICT_HAS_DEADLINE) == 0 && key == end);
    } else if ((node->heaps & QUIRE_EVICT_HAS_DEADLINE) != 0) {
        QUIRE_CHECK(key == (end < low ? end : low));
    } else {
        QUIRE_CHECK(end == UINT64_MAX && low == UINT64_MAX);
    }
}
