/* belady.c - the upper bound of any cache: eviction with knowledge of the future.
 *
 * After each request the blocks with the latest next use are evicted, down to the capacity. Among
 * blocks with the same next request the deepest is evicted first, so the cache always holds
 * unbroken prefixes. The order matters: with the shallowest first, the remaining children are
 * useless, and the result is no bound. A block without a further use is not kept at all.
 *
 * Source: Belady, "A study of replacement algorithms for a virtual-storage computer", 1966.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/clock.h"
#include "trace/sim/sim.h"
#include "trace/sim/sim_internal.h"

#include <string.h>

#define NEVER UINT32_MAX /* as a next use */

/* Ordered by next use, then depth; the largest on top. Entries of blocks that have been asked for
 * since are stale and are passed over. */
typedef struct entry {
    uint64_t order;
    uint32_t id;
} entry;

typedef struct belady {
    const quire_allocator *allocator;
    uint32_t *next; /* [n_blocks]: by place in the trace, the request that asks for it next */
    uint32_t *kept; /* [n_ids]: next use of a cached block, 0 = not cached */
    entry *heap;    /* [capacity] */
    uint64_t n_heap;
    uint64_t n_kept;
} belady;

static void belady_fini(belady *b)
{
    b->allocator->free(b->allocator->ctx, b->next);
    b->allocator->free(b->allocator->ctx, b->kept);
    b->allocator->free(b->allocator->ctx, b->heap);
}

/* Arrays, and when each block is asked for next, from the end backwards. */
static int belady_init(belady *b, const quire_trace *trace)
{
    uint64_t n_reused = 0;

    *b = (belady){ .allocator = quire_allocator_default() };
    b->next = b->allocator->alloc(b->allocator->ctx, (trace->n_blocks + 1) * sizeof(*b->next));
    b->kept = b->allocator->alloc(b->allocator->ctx, (trace->n_ids + 1u) * sizeof(*b->kept));
    if (b->next == NULL || b->kept == NULL) {
        return QUIRE_NOMEM;
    }
    memset(b->kept, 0xff, trace->n_ids * sizeof(*b->kept));
    for (uint32_t i = trace->n_requests; i-- > 0;) {
        const quire_trace_request *request = &trace->requests[i];

        for (uint32_t k = 0; k < request->n_blocks; k++) {
            uint64_t place = request->first_block + k;
            uint32_t id = trace->block_ids[place];

            b->next[place] = b->kept[id];
            b->kept[id] = i;
            n_reused += b->next[place] != NEVER;
        }
    }
    memset(b->kept, 0, trace->n_ids * sizeof(*b->kept));
    b->heap = b->allocator->alloc(b->allocator->ctx, (n_reused + 1) * sizeof(*b->heap));
    return b->heap != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

static void heap_push(belady *b, entry e)
{
    uint64_t at = b->n_heap++;

    while (at > 0 && b->heap[(at - 1) / 2].order < e.order) {
        b->heap[at] = b->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    b->heap[at] = e;
}

static entry heap_pop(belady *b)
{
    entry top = b->heap[0];
    entry last = b->heap[--b->n_heap];
    uint64_t at = 0;

    for (;;) {
        uint64_t child = 2 * at + 1;

        if (child + 1 < b->n_heap && b->heap[child + 1].order > b->heap[child].order) {
            child++;
        }
        if (child >= b->n_heap || b->heap[child].order <= last.order) {
            break;
        }
        b->heap[at] = b->heap[child];
        at = child;
    }
    b->heap[at] = last;
    return top;
}

static void block_keep(belady *b, uint32_t id, uint32_t next, uint32_t depth)
{
    b->n_kept -= b->kept[id] != 0;
    b->kept[id] = 0;
    if (next != NEVER) {
        b->kept[id] = next; /* > 0: the first request is nobody's next */
        b->n_kept++;
        heap_push(b, (entry){ (uint64_t)next << 32 | depth, id });
    }
}

static void evict(belady *b, uint64_t capacity_blocks, quire_sim_result *out)
{
    while (b->n_kept > capacity_blocks) {
        entry e = heap_pop(b);

        if (b->kept[e.id] == (uint32_t)(e.order >> 32)) {
            b->kept[e.id] = 0;
            b->n_kept--;
            out->evictions++;
        }
    }
}

int quire_belady(const quire_trace *trace, uint64_t capacity_blocks, const quire_sim_cancel *cancel,
                 quire_sim_result *out)
{
    uint64_t begin_ns = quire_clock_ns();
    belady b;
    int rc = belady_init(&b, trace);

    memset(out, 0, sizeof(*out));
    for (uint32_t i = 0; i < trace->n_requests && rc == QUIRE_OK; i++) {
        const quire_trace_request *request = &trace->requests[i];
        const uint32_t *ids = quire_trace_blocks(trace, request);
        uint32_t hit_blocks = 0;

        while (hit_blocks < request->n_blocks && b.kept[ids[hit_blocks]] != 0) {
            hit_blocks++;
        }
        quire_sim_count_hits(out, trace, request, hit_blocks);
        for (uint32_t k = 0; k < request->n_blocks; k++) {
            block_keep(&b, ids[k], b.next[request->first_block + k], k);
        }
        evict(&b, capacity_blocks, out);
        rc = cancel != NULL ? quire_sim_ask(cancel) : QUIRE_OK;
    }
    belady_fini(&b);
    out->wall_s = (double)(quire_clock_ns() - begin_ns) * 1e-9;
    return rc;
}
