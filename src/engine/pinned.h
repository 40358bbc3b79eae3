/* pinned.h - the engine's pinned region: memory that only the high classes and pins may take.
 *
 * One region beside the dynamic one, shared by all classes that are pinned (classes.h); the engine
 * opens it with opts.pinned_bytes, which come out of the dynamic region's budget. Once a second the
 * engine looks at what the high classes need (working_set.h), asks the controller (sizer.h) and
 * moves one extent of budget this way or that; every move is an event with its reason, and so is
 * every time that it should have moved and could not.
 *
 * Bursts beyond it: the high class takes dynamic memory first, where the lowest classes are evicted
 * (spill), then its requests wait, then its queue is full; each is counted (stats.h), and spilling
 * is an event, too.
 *
 * Thread: the engine's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_PINNED_H
#define QUIRE_ENGINE_PINNED_H

#include <stdbool.h>
#include <stdint.h>

/* How the region may change by itself. Without a ceiling it stays as it is. */
typedef struct quire_pinned_opts {
    uint64_t floor_bytes;   /* never smaller */
    uint64_t ceiling_bytes; /* never larger; 0 = the region stays as it is */
    uint64_t
        dynamic_floor_bytes; /* the dynamic region keeps so much; 0 = a quarter of the budget */
    uint64_t window_us;      /* over which need is looked at; 0 = default, 10 minutes */
    uint64_t recent_us;      /* what was used so lately is needed; 0 = default, 5 minutes */
} quire_pinned_opts;

#endif /* QUIRE_ENGINE_PINNED_H */
