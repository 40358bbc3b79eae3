/* tier.h - pages below memory: options and figures of the engine's use of a store (store/store.h).
 *
 *   request --> in the tree? --no--> in the store? --no--> computed
 *                                        | yes
 *                                        v
 *                     fetched page by page into the tree, in order; every request may hit them
 *
 *   tree -- pages worth keeping, in idle moments and a share of each step --> store
 *
 * Fetching. A queued request that has a place and room, and whose next full page is not in the
 * tree, asks the store for its pages in order, some at once. Arrived pages are written into a
 * sequence and published, as if they had been computed. The request waits in its queue meanwhile;
 * it blocks nobody. The wait ends with the last page, with the first page that the store does not
 * have, or when a page takes too long (loop/tier_patience.h). Then the request is admitted like any
 * other; it computes the missing tokens. After a wait in vain for a page, no request asks the store
 * for a while (QUIRE_TIER_PAUSE_US, doubled up to QUIRE_TIER_PAUSE_MAX_US while it repeats).
 *
 * Classes. The fetches of high classes come first: their requests are the most urgent ones of the
 * store, their pages are written first, and buffers that become free are theirs. When
 * QUIRE_TIER_FETCHES_MAX requests fetch, one of a higher class takes the place of the last one of
 * the lowest class, which fetches again later. A fetch that a high class waits for as well counts
 * as its.
 *
 * Ahead of time. With prefetch_steps, a request that lacks a place or room fetches already when it
 * should be able to begin within so many steps: when as many running requests as stand before it
 * are due to end by then. Pages fetched ahead are cached pages; others may evict them again.
 *
 * Condensed texts (condensing.h) are found under names of their own: loop/tier_condensed.c.
 *
 * Sessions that are expected to continue soon are fetched in idle time (precache.h).
 *
 * Copying. A page is copied below when it is worth it: it was hit at least once, a session or a pin
 * has it, the eviction policy has learned that pages like it return (QUIRE_TIER_RETURN_CHANCE), or
 * copies_all is set. A request that is preempted leaves copies of its pages, if reading costs less
 * than computing: at once, as far as buffers are free; or with pages on a device by and by, as far
 * as they are not evicted before, since each copy from a device holds up all requests. Open pages
 * are copied when they have rested, and at the end. At the end, all that is not copied yet follows,
 * for at most close_us.
 *
 * Thread: see engine.h.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_TIER_H
#define QUIRE_ENGINE_TIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/histogram.h"
#include "store/store.h"

#define QUIRE_TIER_BUFFER_BYTES 67108864u /* default of buffer_bytes */
#define QUIRE_TIER_WAIT_US      50000u    /* default of wait_us */
#define QUIRE_TIER_WAIT_ALWAYS                                                                     \
    UINT64_MAX /* wait_us: every request waits for its pages, also where computing costs less */
#define QUIRE_TIER_WAIT_LOCAL_US                                                                   \
    1000000u                              /* with the default, and a store of this machine alone:  \
                                             the longest wait (loop/tier_patience.h) */
#define QUIRE_TIER_CLOSE_US      5000000u /* default of close_us */
#define QUIRE_TIER_PAUSE_US      1000000u
#define QUIRE_TIER_PAUSE_MAX_US  60000000u
#define QUIRE_TIER_SHARE         0.03        /* of a step's time, for writing arrived pages */
#define QUIRE_TIER_COPY_SHARE    0.01        /* of a step's time, for copying pages below */
#define QUIRE_TIER_REST_US       1000000u    /* an open page rests so long before it is copied */
#define QUIRE_TIER_RETURN_US     3600000000u /* a page is predicted to return when pages like it */
#define QUIRE_TIER_RETURN_CHANCE 0.5         /* are used within this time with this chance */
#define QUIRE_TIER_FETCHES_MAX   16u         /* requests that fetch at once */
#define QUIRE_TIER_FETCH_SHARE   0.5 /* cost of a fetch : of computing, while one is unknown */

typedef struct quire_tier_opts {
    quire_store
        *store;      /* NULL = none. The engine closes it, once quire_engine_create() succeeded */
    bool copies_all; /* copy every page, not only those worth it */
    uint32_t prefetch_steps; /* a queued request that should begin within so many steps fetches
                                already */
    size_t buffer_bytes;     /* memory for pages on their way; 0 = default; at least 4 pages */
    uint64_t wait_us;        /* a fetch is given up after this time without a page; 0 = default */
    uint64_t close_us;       /* for copying at the end; 0 = default */
} quire_tier_opts;

typedef struct quire_tier_stats {
    bool has_store;
    char name[QUIRE_STORE_NAME_MAX]; /* of the store */
    uint32_t fetching;               /* requests now */
    uint64_t fetches_total;          /* begun */
    uint64_t ahead_total;            /* sessions whose pages were asked for in idle time */
    uint64_t fetched_tokens_total;   /* written into the tree */
    uint64_t fetched_bytes_total;    /* of records, for these tokens */
    uint64_t slow_total;             /* fetches given up: pages came too slowly */
    uint64_t skipped_total; /* fetches not begun: computing costs less, or the store is paused */
    uint64_t short_total;   /* fetches ended for want of pages in memory */
    uint64_t copied_pages_total;  /* put, and taken: by a disk when they are durable, by the host's
                                     memory also when it drops them at once */
    uint64_t refused_pages_total; /* put, and not taken */
    quire_histogram fetch;        /* seconds, from the first question to the last page */
    quire_store_stats store;      /* of all its parts */
    uint32_t n_parts;
    quire_store_part parts[QUIRE_STORE_PARTS_MAX];
} quire_tier_stats;

#endif /* QUIRE_ENGINE_TIER_H */
