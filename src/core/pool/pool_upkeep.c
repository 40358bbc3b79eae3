/* pool_upkeep.c - the pool's work between steps: keeps pages ready ahead of demand, empties extents
 * and returns them.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "core/pool/payload.h"
#include "core/pool/placement.h"

/* The watermark rises at once to the number of pages taken between two calls, then falls by 1/128
 * per call (to a half in 89 calls). A decoding sequence takes a page only every page_tokens steps,
 * so demand must be remembered for longer. */
#define DEMAND_DECAY 128u

/* A call touches at most this number of bytes and one page; the next calls continue. A call runs
 * between two steps, and the next step waits while the system zeroes the memory. The wait is
 * longest where the host of a virtual machine must find the memory (bench/results/engine.md). */
#define TOUCH_BYTES_MAX ((size_t)16 << 20)

#define OS_PAGE_BYTES                                                                              \
    4096u /* the smallest page size of Linux; larger ones are touched repeatedly */

/* ---- watermark ---- */

static uint64_t class_target(quire_pool_class *class)
{
    uint64_t peak_q8 = class->taken_pages << 8;

    class->demand_q8 -= (class->demand_q8 + DEMAND_DECAY - 1) / DEMAND_DECAY;
    if (peak_q8 > class->demand_q8) {
        class->demand_q8 = peak_q8;
    }
    class->taken_pages = 0;
    return (class->demand_q8 + 255) >> 8;
}

/* Target by class; the sum is at most max pages. */
static void targets_get(quire_pool *pool, uint32_t max, uint64_t *targets)
{
    uint64_t wanted = 0;

    for (uint32_t c = 0; c < pool->n_classes; c++) {
        targets[c] = class_target(&pool->classes[c]);
        wanted += targets[c];
    }
    for (uint32_t c = 0; c < pool->n_classes; c++) {
        if (wanted > max) {
            targets[c] = targets[c] * max / wanted;
        }
    }
}

/* Limit the targets to the pages that the budget allows. Charges may differ between the groups of a
 * class; the smallest charge decides. */
static void targets_fit_budget(const quire_pool *pool, uint64_t *targets)
{
    uint64_t left_bytes = 0;

    for (uint32_t r = 0; r < QUIRE_REGIONS_MAX; r++) {
        uint64_t headroom = quire_region_headroom_bytes(&pool->regions->items[r]);

        left_bytes = headroom > UINT64_MAX - left_bytes ? UINT64_MAX : left_bytes + headroom;
    }
    for (uint32_t c = 0; c < pool->n_classes; c++) {
        uint64_t charge_bytes = UINT64_MAX;

        for (uint32_t g = 0; g < pool->n_groups; g++) {
            if (pool->groups[g].class_index == c && pool->groups[g].charge_bytes < charge_bytes) {
                charge_bytes = pool->groups[g].charge_bytes;
            }
        }
        if (targets[c] > left_bytes / charge_bytes) {
            targets[c] = left_bytes / charge_bytes;
        }
        left_bytes -= targets[c] * charge_bytes;
    }
}

/* Have the OS back bytes [begin, end) of an extent; their contents stay. */
static void bytes_touch(const quire_extent *extent, size_t begin, size_t end)
{
    for (size_t at = begin; at < end; at += OS_PAGE_BYTES) {
        volatile unsigned char *byte = extent->base + at;

        *byte = *byte;
    }
}

/* Back the next fresh slot of an extent with memory. */
static void slot_touch(quire_pool_class *class, quire_extent *extent, size_t *left_bytes)
{
    const size_t begin = extent->n_touched * class->page_bytes;

    bytes_touch(extent, begin, begin + class->page_bytes);
    *left_bytes -= class->page_bytes < *left_bytes ? class->page_bytes : *left_bytes;
    extent->n_touched++;
    class->ready_pages++;
}

/* Back at most *left_bytes of an extent of pages in parts. Its slots are ready once the whole
 * extent is touched. Returns the number of touched bytes. */
static size_t parts_touch(quire_pool_class *class, quire_extent *extent, size_t *left_bytes)
{
    const size_t rest = extent->n_slots * class->page_bytes - extent->touched_bytes;
    const size_t n = rest < *left_bytes ? rest : *left_bytes;

    bytes_touch(extent, extent->touched_bytes, extent->touched_bytes + n);
    *left_bytes -= n;
    extent->touched_bytes += n;
    if (n == rest) {
        class->ready_pages += extent->n_slots - extent->n_touched;
        extent->n_touched = extent->n_slots;
    }
    return n;
}

/* Touch slots of the extents that are used next, until target pages are ready. For pages in parts a
 * call touches as many bytes as the missing pages have, at the pace of pages in one piece: an
 * extent is ready after about as many pages were taken as it holds. */
static void class_touch(quire_pool_class *class, uint64_t target, size_t *left_bytes)
{
    const uint64_t missing_bytes = (target - class->ready_pages) * class->page_bytes;
    size_t parts_bytes = missing_bytes < *left_bytes ? (size_t)missing_bytes : *left_bytes;

    for (uint32_t b = QUIRE_EXTENT_BUCKET_FULL; b-- > 0;) {
        for (quire_extent *extent = class->buckets[b]; extent != NULL; extent = extent->next) {
            while (class->ready_pages < target && extent->n_touched < extent->n_slots) {
                if (*left_bytes == 0 || parts_bytes == 0) {
                    return;
                }
                if (class->n_parts == 1) {
                    slot_touch(class, extent, left_bytes);
                } else {
                    *left_bytes -= parts_touch(class, extent, &parts_bytes);
                }
            }
        }
    }
}

void quire_pool_maintain(quire_pool *pool, uint32_t watermark_pages_max)
{
    uint64_t targets[QUIRE_GROUPS_MAX];
    size_t touch_bytes = TOUCH_BYTES_MAX;
    uint64_t sum = 0;

    targets_get(pool, watermark_pages_max, targets);
    targets_fit_budget(pool, targets);
    for (uint32_t c = 0; c < pool->n_classes; c++) {
        pool->classes[c].plan_pages = targets[c]; /* no other class may take these below */
        sum += targets[c];
    }
    quire_counter_set(&pool->watermark_pages, sum);
    for (uint32_t c = 0; c < pool->n_classes; c++) {
        quire_pool_class *class = &pool->classes[c];

        while (quire_counter_get(&class->free_pages) < targets[c]) {
            if (quire_placement_grow(pool, class) < 0) {
                quire_counter_add(&pool->alloc_failures_total, 1);
                break;
            }
        }
        if (class->ready_pages < targets[c]) {
            class_touch(class, targets[c], &touch_bytes);
        }
    }
    for (uint32_t c = 0; c < pool->n_classes; c++) {
        pool->classes[c].plan_pages = 0;
    }
}

/* ---- coalescing ---- */

/* Report possible room: a request that failed at the OS or at extents_max may succeed now. */
static void memory_changed(quire_pool *pool, bool is_so)
{
    if (is_so) {
        quire_region_changed(pool->regions, QUIRE_REGION_DYNAMIC);
    }
}

/* The partly used extent with the fewest pages. */
static quire_extent *sparsest_find(const quire_pool_class *class)
{
    quire_extent *best = NULL;

    for (uint32_t b = 1; b < QUIRE_EXTENT_BUCKET_FULL && best == NULL; b++) {
        for (quire_extent *extent = class->buckets[b]; extent != NULL; extent = extent->next) {
            if (best == NULL || extent->n_used < best->n_used) {
                best = extent;
            }
        }
    }
    return best;
}

/* The fullest extent with a free slot except the given extent; an extent in use must exist. */
static quire_extent *fullest_find(const quire_pool_class *class, const quire_extent *except)
{
    quire_extent *extent = NULL;

    for (uint32_t b = QUIRE_EXTENT_BUCKET_FULL - 1; b > QUIRE_EXTENT_BUCKET_EMPTY && extent == NULL;
         b--) {
        extent = class->buckets[b];
        if (extent == except && extent != NULL) {
            extent = extent->next;
        }
    }
    QUIRE_CHECK(extent != NULL);
    return extent;
}

static void page_move(quire_pool *pool, quire_pool_class *class, quire_page_id id, quire_extent *to)
{
    quire_page *page = &pool->pages[id];
    quire_extent *from = pool->extents[page->extent];
    uint32_t slot = quire_placement_take_in(class, to);

    if (to->base != NULL) {
        quire_page_addr addr = quire_payload_addr(pool, to, slot);

        quire_payload_copy(pool, class, addr, pool->addrs[id]);
        pool->addrs[id] = addr;
    }
    to->slots[slot] = id;
    quire_placement_give(class, from, page->slot);
    page->extent = to->number;
    page->slot = (uint16_t)slot;
    quire_counter_add(&pool->page_moves_total, 1);
    quire_pool_history(pool, QUIRE_HISTORY_MOVE, id, QUIRE_SEQ_NULL);
}

/* Move up to moves_max pages out of an extent. */
static uint32_t extent_drain(quire_pool *pool, quire_extent *extent, uint32_t moves_max)
{
    quire_pool_class *class = &pool->classes[extent->class_index];
    uint32_t moves = 0;

    for (uint32_t s = 0; s < extent->n_fresh && extent->n_used > 0 && moves < moves_max; s++) {
        if ((extent->slots[s] & QUIRE_SLOT_FREE) == 0) {
            page_move(pool, class, extent->slots[s], fullest_find(class, extent));
            moves++;
        }
    }
    return moves;
}

uint32_t quire_pool_coalesce(quire_pool *pool, uint32_t moves_max)
{
    uint32_t moves = 0;

    for (uint32_t c = 0; c < pool->n_classes; c++) {
        quire_pool_class *class = &pool->classes[c];

        while (moves < moves_max) {
            quire_extent *extent = sparsest_find(class);
            uint64_t room;

            if (extent == NULL) {
                break;
            }
            /* Free slots of the other partly used extents. When these cannot take all pages of the
             * sparsest extent, no extent can be emptied. */
            room = quire_counter_get(&class->free_pages) -
                   quire_counter_get(&class->free_empty_pages) - (extent->n_slots - extent->n_used);
            if (extent->n_used > room) {
                break;
            }
            moves += extent_drain(pool, extent, moves_max - moves);
        }
    }
    memory_changed(pool, moves > 0);
    return moves;
}

uint64_t quire_pool_trim(quire_pool *pool, uint64_t keep_bytes)
{
    uint64_t kept_bytes = 0;
    uint64_t released_bytes = 0;

    for (uint32_t c = 0; c < pool->n_classes; c++) {
        quire_extent *extent = pool->classes[c].buckets[QUIRE_EXTENT_BUCKET_EMPTY];

        while (extent != NULL) {
            quire_extent *next = extent->next;

            if (extent->size_bytes > 0 && extent->size_bytes <= keep_bytes - kept_bytes) {
                kept_bytes += extent->size_bytes;
            } else {
                released_bytes += extent->size_bytes;
                quire_placement_unmap(pool, extent);
            }
            extent = next;
        }
    }
    memory_changed(pool, released_bytes > 0);
    return released_bytes;
}
