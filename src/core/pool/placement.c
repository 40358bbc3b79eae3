/* placement.c - extents, their buckets and their slots.
 *
 * Why buckets: slots are taken from the fullest extent, so that sparse extents drain; this prevents
 * most fragmentation. Eighths are nearly as good as an exact order and cost one comparison per
 * page: an extent is relinked only when its fill crosses an eighth.
 *
 * SPDX-License-Identifier: MIT */
#include "core/pool/placement.h"

#include "base/check.h"
#include "base/ckd.h"

#include <string.h>

#ifdef QUIRE_TINY
#define EXTENTS_CAPACITY_FIRST 1u
#else
#define EXTENTS_CAPACITY_FIRST 64u
#endif
#define EIGHTHS 8u

uint8_t quire_placement_bucket(const quire_extent *extent)
{
    if (extent->n_used == 0) {
        return QUIRE_EXTENT_BUCKET_EMPTY;
    }
    if (extent->n_used == extent->n_slots) {
        return QUIRE_EXTENT_BUCKET_FULL;
    }
    return (uint8_t)(1 + extent->n_used * EIGHTHS / extent->n_slots);
}

/* The range of n_used that stays in the extent's bucket. */
static void extent_set_bounds(quire_extent *extent)
{
    uint32_t n = extent->n_slots;
    uint32_t eighth = extent->bucket - 1u;

    if (extent->bucket == QUIRE_EXTENT_BUCKET_EMPTY) {
        extent->used_min = 0;
        extent->used_end = 1;
    } else if (extent->bucket == QUIRE_EXTENT_BUCKET_FULL) {
        extent->used_min = n;
        extent->used_end = n + 1;
    } else {
        uint32_t first = (eighth * n + EIGHTHS - 1) / EIGHTHS;
        uint32_t end = ((eighth + 1) * n + EIGHTHS - 1) / EIGHTHS;

        extent->used_min = first > 0 ? first : 1;
        extent->used_end = end < n ? end : n;
    }
}

static void extent_link(quire_pool_class *class, quire_extent *extent)
{
    quire_extent **head;

    extent->bucket = quire_placement_bucket(extent);
    extent_set_bounds(extent);
    head = &class->buckets[extent->bucket];
    extent->prev = NULL;
    extent->next = *head;
    if (*head != NULL) {
        (*head)->prev = extent;
    }
    *head = extent;
    if (extent->bucket != QUIRE_EXTENT_BUCKET_FULL) {
        class->bucket_mask |= 1u << extent->bucket;
    }
    if (extent->bucket == QUIRE_EXTENT_BUCKET_EMPTY) {
        quire_counter_add(&class->extents_empty, 1);
        quire_counter_add(&class->free_empty_pages, extent->n_slots);
    }
}

static void extent_unlink(quire_pool_class *class, quire_extent *extent)
{
    if (extent->prev != NULL) {
        extent->prev->next = extent->next;
    } else {
        class->buckets[extent->bucket] = extent->next;
    }
    if (extent->next != NULL) {
        extent->next->prev = extent->prev;
    }
    if (class->buckets[extent->bucket] == NULL) {
        class->bucket_mask &= ~(1u << extent->bucket);
    }
    if (extent->bucket == QUIRE_EXTENT_BUCKET_EMPTY) {
        quire_counter_sub(&class->extents_empty, 1);
        quire_counter_sub(&class->free_empty_pages, extent->n_slots);
    }
}

/* ---- slots ---- */

uint32_t quire_placement_take_in(quire_pool_class *class, quire_extent *extent)
{
    uint32_t slot;

    QUIRE_CHECK(extent->n_used < extent->n_slots);
    if (extent->free_head != QUIRE_SLOT_NONE) {
        slot = extent->free_head;
        extent->free_head = extent->slots[slot] & ~QUIRE_SLOT_FREE;
        class->ready_pages--;
    } else {
        slot = extent->n_fresh++;
        if (slot < extent->n_touched) {
            class->ready_pages--;
        } else {
            extent->n_touched = extent->n_fresh;
        }
    }
    if (++extent->n_used == extent->used_end) {
        extent_unlink(class, extent);
        extent_link(class, extent);
    }
    quire_counter_sub(&class->free_pages, 1);
    return slot;
}

quire_extent *quire_placement_take(quire_pool_class *class, uint32_t *slot)
{
    quire_extent *extent;

    QUIRE_CHECK(class->bucket_mask != 0);
    extent = class->buckets[31 - __builtin_clz(class->bucket_mask)];
    *slot = quire_placement_take_in(class, extent);
    return extent;
}

void quire_placement_give(quire_pool_class *class, quire_extent *extent, uint32_t slot)
{
    extent->slots[slot] = QUIRE_SLOT_FREE | extent->free_head;
    extent->free_head = slot;
    if (extent->n_used-- == extent->used_min) {
        extent_unlink(class, extent);
        extent_link(class, extent);
    }
    class->ready_pages++;
    quire_counter_add(&class->free_pages, 1);
}

/* ---- extents ---- */

/* Add an empty extent to a class, or remove it. */
static void class_add(quire_pool *pool, quire_pool_class *class, quire_extent *extent)
{
    size_t payload_bytes = extent->n_slots * class->page_bytes;

    extent->class_index = (uint8_t)(class - pool->classes);
    extent_link(class, extent);
    class->ready_pages += extent->n_touched;
    quire_counter_add(&class->free_pages, extent->n_slots);
    quire_counter_add(&class->tail_bytes, extent->size_bytes - payload_bytes);
}

static void class_remove(quire_pool_class *class, quire_extent *extent)
{
    size_t payload_bytes = extent->n_slots * class->page_bytes;

    extent_unlink(class, extent);
    class->ready_pages -= extent->n_touched;
    quire_counter_sub(&class->free_pages, extent->n_slots);
    quire_counter_sub(&class->tail_bytes, extent->size_bytes - payload_bytes);
}

static quire_extent *extent_alloc(quire_pool *pool, uint32_t n_slots)
{
    quire_extent *extent;
    size_t size_bytes = sizeof(*extent) + n_slots * sizeof(extent->slots[0]);

    extent = pool->allocator.alloc(pool->allocator.ctx, size_bytes);
    if (extent != NULL) {
        memset(extent, 0, sizeof(*extent));
        extent->n_slots = n_slots;
        extent->n_slots_max = n_slots;
        extent->free_head = QUIRE_SLOT_NONE;
    }
    return extent;
}

/* Find an unused extent number; grow the table if needed. */
static int extent_number(quire_pool *pool, uint32_t *number)
{
    uint32_t capacity;
    quire_extent **extents;

    while (pool->extent_hint < pool->extents_capacity && pool->extents[pool->extent_hint] != NULL) {
        pool->extent_hint++;
    }
    if (pool->extent_hint == pool->extents_capacity) {
        capacity = pool->extents_capacity > 0 ? pool->extents_capacity * 2 : EXTENTS_CAPACITY_FIRST;
        extents = pool->allocator.alloc(pool->allocator.ctx, capacity * sizeof(*extents));
        QUIRE_FAIL_IF(extents == NULL, QUIRE_NOMEM);
        memset(extents, 0, capacity * sizeof(*extents));
        if (pool->extents != NULL) {
            memcpy(extents, pool->extents, pool->extents_capacity * sizeof(*extents));
            pool->allocator.free(pool->allocator.ctx, pool->extents);
        }
        pool->extents = extents;
        pool->extents_capacity = capacity;
    }
    *number = pool->extent_hint;
    return QUIRE_OK;
}

static void history_extent(quire_pool *pool, quire_history_kind kind, uint32_t number)
{
    quire_history_event *event = quire_history_next(pool->history);

    if (event != NULL) {
        *event = (quire_history_event){ .number = event->number,
                                        .time_us = event->time_us,
                                        .kind = kind,
                                        .page = number,
                                        .extent = number };
    }
}

static void *memory_take(const quire_pool *pool, const quire_pool_class *class, size_t bytes)
{
    const quire_page_memory *memory = &pool->memory;

    if (class->is_hosts) {
        return pool->source.map(pool->source.ctx, bytes);
    }
    return class->is_own ? memory->map_extent(memory->ctx, class->group, bytes)
                         : memory->map(memory->ctx, bytes);
}

void quire_placement_memory_give(const quire_pool *pool, const quire_extent *extent)
{
    if (extent->base == NULL) {
        return;
    }
    if (pool->classes[extent->class_index].is_hosts) {
        pool->source.unmap(pool->source.ctx, extent->base, extent->size_bytes);
    } else {
        pool->memory.unmap(pool->memory.ctx, extent->base, extent->size_bytes);
    }
}

static int extent_map(quire_pool *pool, quire_pool_class *class)
{
    quire_extent *extent;
    uint32_t number;
    int rc;

    rc = extent_number(pool, &number);
    QUIRE_FAIL_IF(rc < 0, rc);
    extent = extent_alloc(pool, class->shape.n_slots);
    QUIRE_FAIL_IF(extent == NULL, QUIRE_NOMEM);
    if (class->shape.size_bytes > 0) {
        extent->size_bytes = class->shape.size_bytes;
        extent->base = memory_take(pool, class, extent->size_bytes);
        if (extent->base == NULL) {
            pool->allocator.free(pool->allocator.ctx, extent);
            return QUIRE_NOMEM;
        }
        extent->is_locked = pool->lock_memory &&
                            pool->source.lock(pool->source.ctx, extent->base, extent->size_bytes);
    }
    if (extent->base == NULL || extent->is_locked || !class->is_hosts) {
        extent->n_touched = extent->n_slots; /* nothing left to touch */
    }
    extent->number = number;
    extent->serial = pool->next_serial++;
    pool->extents[number] = extent;
    class_add(pool, class, extent);
    quire_counter_add(&pool->extents_now, 1);
    quire_counter_add(&pool->extent_bytes, extent->size_bytes);
    quire_counter_peak(&pool->extent_peak_bytes, quire_counter_get(&pool->extent_bytes));
    quire_counter_add(&pool->locked_bytes, extent->is_locked ? extent->size_bytes : 0);
    history_extent(pool, QUIRE_HISTORY_MAP, number);
    return QUIRE_OK;
}

void quire_placement_unmap(quire_pool *pool, quire_extent *extent)
{
    QUIRE_CHECK(extent->n_used == 0);
    class_remove(&pool->classes[extent->class_index], extent);
    quire_counter_sub(&pool->extents_now, 1);
    quire_counter_sub(&pool->extent_bytes, extent->size_bytes);
    quire_counter_sub(&pool->locked_bytes, extent->is_locked ? extent->size_bytes : 0);
    pool->extents[extent->number] = NULL;
    if (extent->number < pool->extent_hint) {
        pool->extent_hint = extent->number;
    }
    history_extent(pool, QUIRE_HISTORY_UNMAP, extent->number);
    quire_placement_memory_give(pool, extent);
    pool->allocator.free(pool->allocator.ctx, extent);
}

/* Whether the plan in progress does not need this empty extent of the class. */
static bool class_can_spare(const quire_pool_class *class, const quire_extent *extent)
{
    return quire_counter_get(&class->free_pages) >= class->plan_pages + extent->n_slots;
}

/* Whether an extent of another class can be cut into pages of this class. With several parts, the
 * distance between parts must be equal in all extents of a class. */
static bool can_recut(const quire_pool_class *class, const quire_extent *extent)
{
    uint32_t n_slots = quire_extent_slots(extent->size_bytes, class->page_bytes);

    return class->n_parts == 1 ? n_slots > 0 : n_slots == class->shape.n_slots;
}

/* The purpose of a search for an extent that no plan needs. */
typedef enum spare_use {
    SPARE_UNMAP,  /* the budget */
    SPARE_MEMORY, /* its memory: that of `except` */
    SPARE_RECUT   /* the same, cut into pages of `except` */
} spare_use;

/* An empty extent of any class but `except` that no plan needs; NULL = none. */
static quire_extent *spare_find(quire_pool *pool, const quire_pool_class *except, spare_use use)
{
    for (uint32_t i = 0; i < pool->n_classes; i++) {
        quire_pool_class *class = &pool->classes[i];

        if (class == except || class->page_bytes == 0 ||
            (use != SPARE_UNMAP && class->is_hosts != except->is_hosts)) {
            continue;
        }
        for (quire_extent *extent = class->buckets[QUIRE_EXTENT_BUCKET_EMPTY]; extent != NULL;
             extent = extent->next) {
            if (class_can_spare(class, extent) &&
                (use != SPARE_RECUT || can_recut(except, extent))) {
                return extent;
            }
        }
    }
    return NULL;
}

/* Bytes from an extent's base on that are known to be backed by memory. */
static size_t backed_bytes(const quire_pool_class *class, const quire_extent *extent)
{
    return class->n_parts == 1 || extent->n_touched == extent->n_slots
               ? extent->n_touched * class->page_bytes
               : extent->touched_bytes;
}

/* Set n_touched of an extent newly cut for a class: the first `bytes` are backed, or all bytes of a
 * locked extent and of one that is not in the host's memory. A page in parts is spread over the
 * extent, so all slots are backed or none. */
static void set_backed(const quire_pool_class *class, quire_extent *extent, size_t bytes)
{
    const size_t payload_bytes = extent->n_slots * class->page_bytes;
    const bool is_whole = extent->is_locked || !class->is_hosts || bytes >= payload_bytes;
    const size_t n = is_whole ? payload_bytes : bytes;

    extent->n_touched =
        class->n_parts == 1 || n == payload_bytes ? (uint32_t)(n / class->page_bytes) : 0;
    extent->touched_bytes = class->n_parts == 1 ? 0 : n;
}

/* Cut another class's empty extent into pages of this class. */
static int extent_recut(quire_pool *pool, quire_pool_class *class, quire_extent *extent)
{
    quire_pool_class *from = &pool->classes[extent->class_index];
    uint32_t n_slots = quire_extent_slots(extent->size_bytes, class->page_bytes);
    size_t touched_bytes = backed_bytes(from, extent);

    if (n_slots > extent->n_slots_max) {
        quire_extent *larger = extent_alloc(pool, n_slots);

        QUIRE_FAIL_IF(larger == NULL, QUIRE_NOMEM);
        class_remove(from, extent);
        larger->base = extent->base;
        larger->size_bytes = extent->size_bytes;
        larger->serial = extent->serial;
        larger->number = extent->number;
        larger->is_locked = extent->is_locked;
        pool->extents[extent->number] = larger;
        pool->allocator.free(pool->allocator.ctx, extent);
        extent = larger;
    } else {
        class_remove(from, extent);
        extent->n_slots = n_slots;
        extent->n_fresh = 0;
        extent->free_head = QUIRE_SLOT_NONE;
    }
    set_backed(class, extent, touched_bytes);
    class_add(pool, class, extent);
    return QUIRE_OK;
}

static bool spare_unmap(quire_pool *pool, const quire_pool_class *except, spare_use use)
{
    quire_extent *extent = spare_find(pool, except, use);

    if (extent == NULL) {
        return false;
    }
    quire_placement_unmap(pool, extent);
    return true;
}

static bool is_over(const quire_pool *pool, size_t more_bytes)
{
    uint64_t budget_bytes = quire_regions_budget_bytes(pool->regions);
    uint64_t now_bytes = quire_counter_get(&pool->extent_bytes);

    return quire_counter_get(&pool->extents_now) >= pool->extents_max ||
           more_bytes > budget_bytes || now_bytes > budget_bytes - more_bytes;
}

int quire_placement_grow(quire_pool *pool, quire_pool_class *class)
{
    int rc;

    if (class->page_bytes > 0 && !class->is_own) {
        quire_extent *spare = spare_find(pool, class, SPARE_RECUT);

        if (spare != NULL) {
            return extent_recut(pool, class, spare);
        }
    }
    while (is_over(pool, class->shape.size_bytes) && spare_unmap(pool, class, SPARE_UNMAP)) {
    }
    QUIRE_FAIL_IF(quire_counter_get(&pool->extents_now) >= pool->extents_max, QUIRE_LIMIT);
    rc = extent_map(pool, class);
    if (rc == QUIRE_NOMEM && class->page_bytes > 0) {
        while (rc == QUIRE_NOMEM && spare_unmap(pool, class, SPARE_MEMORY)) {
            rc = extent_map(pool, class);
        }
    }
    return rc;
}
