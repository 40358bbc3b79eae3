/* evict.c - binary heaps of candidates; a node knows its places in them.
 *
 * SPDX-License-Identifier: MIT */
#include "core/evict.h"

#include "base/check.h"

#include <string.h>

#ifdef QUIRE_TINY
#define HEAP_FIRST 1u
#else
#define HEAP_FIRST 256u
#endif

#define HEAPS 2u

void quire_evict_init(quire_evict *evict, const quire_prefix_opts *opts,
                      const quire_allocator *allocator, quire_prefix_nodes *nodes)
{
    memset(evict, 0, sizeof(*evict));
    evict->allocator = *allocator;
    evict->nodes = nodes;
    evict->ttl_us = opts->ttl_us;
    evict->low_after_us = opts->low_traffic_after_us;
    evict->low_hits_per_us = opts->low_traffic_hits_per_hour / 3.6e9;
}

void quire_evict_fini(quire_evict *evict)
{
    for (uint32_t r = 0; r < QUIRE_REGIONS_MAX; r++) {
        for (uint32_t h = 0; h < HEAPS; h++) {
            evict->allocator.free(evict->allocator.ctx, evict->heaps[r][h].entries);
        }
    }
    memset(evict, 0, sizeof(*evict));
}

/* ---- room ---- */

static int heap_reserve(quire_evict *evict, quire_evict_heap *heap, uint32_t n)
{
    uint32_t capacity = heap->capacity > 0 ? heap->capacity : HEAP_FIRST;
    quire_evict_entry *entries;

    if (n <= heap->capacity) {
        return QUIRE_OK;
    }
    while (capacity < n) {
        capacity *= 2;
    }
    entries = evict->allocator.alloc(evict->allocator.ctx, capacity * sizeof(*entries));
    QUIRE_FAIL_IF(entries == NULL, QUIRE_NOMEM);
    if (heap->n > 0) {
        memcpy(entries, heap->entries, heap->n * sizeof(*entries));
    }
    evict->allocator.free(evict->allocator.ctx, heap->entries);
    heap->entries = entries;
    heap->capacity = capacity;
    return QUIRE_OK;
}

int quire_evict_plan(quire_evict *evict, quire_region_id region)
{
    uint32_t n = evict->n_nodes[region] + 1;

    QUIRE_TRY(heap_reserve(evict, &evict->heaps[region][QUIRE_EVICT_USED], n));
    if (evict->low_after_us == 0) {
        return QUIRE_OK;
    }
    return heap_reserve(evict, &evict->heaps[region][QUIRE_EVICT_LOW], n);
}

void quire_evict_count(quire_evict *evict, quire_region_id region)
{
    evict->n_nodes[region]++;
}

void quire_evict_uncount(quire_evict *evict, quire_region_id region)
{
    QUIRE_CHECK(evict->n_nodes[region] > 0);
    evict->n_nodes[region]--;
}

/* ---- heaps ---- */

static void heap_set(quire_evict *evict, uint32_t which, quire_evict_heap *heap, uint32_t at,
                     quire_evict_entry entry)
{
    heap->entries[at] = entry;
    quire_prefix_node_at(evict->nodes, entry.node)->heap_at[which] = at + 1;
}

static void sift(quire_evict *evict, uint32_t which, quire_evict_heap *heap, uint32_t at,
                 quire_evict_entry entry)
{
    while (at > 0 && entry.key < heap->entries[(at - 1) / 2].key) {
        heap_set(evict, which, heap, at, heap->entries[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child + 1 < heap->n && heap->entries[child + 1].key < heap->entries[child].key) {
            child++;
        }
        if (child >= heap->n || entry.key <= heap->entries[child].key) {
            break;
        }
        heap_set(evict, which, heap, at, heap->entries[child]);
        at = child;
    }
    heap_set(evict, which, heap, at, entry);
}

static void heap_add(quire_evict *evict, uint32_t region, uint32_t which, quire_evict_entry entry)
{
    quire_evict_heap *heap = &evict->heaps[region][which];

    QUIRE_CHECK(heap->n < heap->capacity);
    heap->n++;
    sift(evict, which, heap, heap->n - 1, entry);
}

static void heap_remove(quire_evict *evict, uint32_t region, uint32_t which, uint32_t id)
{
    quire_evict_heap *heap = &evict->heaps[region][which];
    quire_prefix_node *node = quire_prefix_node_at(evict->nodes, id);
    uint32_t at = node->heap_at[which] - 1;
    quire_evict_entry last;

    QUIRE_CHECK(at < heap->n && heap->entries[at].node == id);
    node->heap_at[which] = 0;
    last = heap->entries[--heap->n];
    if (at < heap->n) {
        sift(evict, which, heap, at, last);
    }
}

/* ---- candidates ---- */

static uint64_t low_since_us(const quire_evict *evict, const quire_prefix_node *node)
{
    uint64_t age_us = evict->low_after_us;
    double enough_us; /* the age up to which its hits are enough */

    if (!(evict->low_hits_per_us > 0.0)) {
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

void quire_evict_add(quire_evict *evict, uint32_t node)
{
    const quire_prefix_node *at = quire_prefix_node_at(evict->nodes, node);

    QUIRE_ASSERT(!quire_evict_has(evict, node));
    heap_add(evict, at->region, QUIRE_EVICT_USED, (quire_evict_entry){ at->used_tick, node });
    if (evict->low_after_us > 0) {
        heap_add(evict, at->region, QUIRE_EVICT_LOW,
                 (quire_evict_entry){ low_since_us(evict, at), node });
    }
}

void quire_evict_remove(quire_evict *evict, uint32_t node)
{
    uint32_t region = quire_prefix_node_at(evict->nodes, node)->region;

    heap_remove(evict, region, QUIRE_EVICT_USED, node);
    if (evict->low_after_us > 0) {
        heap_remove(evict, region, QUIRE_EVICT_LOW, node);
    }
}

bool quire_evict_has(const quire_evict *evict, uint32_t node)
{
    return quire_prefix_node_at(evict->nodes, node)->heap_at[QUIRE_EVICT_USED] != 0;
}

uint32_t quire_evict_expired(const quire_evict *evict, quire_region_id region, uint64_t now_us)
{
    const quire_evict_heap *heap = &evict->heaps[region][QUIRE_EVICT_USED];
    const quire_prefix_node *oldest;

    if (evict->ttl_us == 0 || heap->n == 0) {
        return QUIRE_NODE_NULL;
    }
    oldest = quire_prefix_node_at(evict->nodes, heap->entries[0].node);
    return now_us >= oldest->used_us && now_us - oldest->used_us >= evict->ttl_us
               ? heap->entries[0].node
               : QUIRE_NODE_NULL;
}

uint32_t quire_evict_victim(const quire_evict *evict, quire_region_id region, uint64_t now_us,
                            quire_prefix_gone *why)
{
    const quire_evict_heap *used = &evict->heaps[region][QUIRE_EVICT_USED];
    const quire_evict_heap *low = &evict->heaps[region][QUIRE_EVICT_LOW];
    uint32_t expired = quire_evict_expired(evict, region, now_us);

    if (expired != QUIRE_NODE_NULL) {
        *why = QUIRE_PREFIX_GONE_TTL;
        return expired;
    }
    if (low->n > 0 && low->entries[0].key <= now_us) {
        *why = QUIRE_PREFIX_GONE_LOW_TRAFFIC;
        return low->entries[0].node;
    }
    *why = QUIRE_PREFIX_GONE_MEMORY;
    return used->n > 0 ? used->entries[0].node : QUIRE_NODE_NULL;
}

static void heap_validate(const quire_evict *evict, uint32_t region, uint32_t which)
{
    const quire_evict_heap *heap = &evict->heaps[region][which];

    QUIRE_CHECK(heap->n <= heap->capacity && heap->n <= evict->n_nodes[region]);
    for (uint32_t i = 0; i < heap->n; i++) {
        const quire_prefix_node *node = quire_prefix_node_at(evict->nodes, heap->entries[i].node);

        QUIRE_CHECK(heap->entries[i].key >= heap->entries[i > 0 ? (i - 1) / 2 : 0].key);
        QUIRE_CHECK(node->heap_at[which] == i + 1 && node->region == region);
        QUIRE_CHECK(node->kind == QUIRE_NODE_PAGE && node->n_children == 0 && node->n_refs == 0);
        QUIRE_CHECK(heap->entries[i].key ==
                    (which == QUIRE_EVICT_USED ? node->used_tick : low_since_us(evict, node)));
    }
}

void quire_evict_validate(const quire_evict *evict)
{
    for (uint32_t r = 0; r < QUIRE_REGIONS_MAX; r++) {
        heap_validate(evict, r, QUIRE_EVICT_USED);
        heap_validate(evict, r, QUIRE_EVICT_LOW);
        QUIRE_CHECK(evict->heaps[r][QUIRE_EVICT_LOW].n ==
                    (evict->low_after_us > 0 ? evict->heaps[r][QUIRE_EVICT_USED].n : 0));
    }
}
