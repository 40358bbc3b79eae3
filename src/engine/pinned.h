/* pinned.h - the engine's pinned region: memory reserved for the high classes and for pins.
 *
 * The pinned region lies beside the dynamic region and is shared by all pinned classes (classes.h).
 * The engine opens it with opts.pinned_bytes, taken from the dynamic region's budget. Once a second
 * the engine measures the need of the high classes (working_set.h), asks the controller (sizer.h),
 * and moves at most one extent of budget between the two regions. Each move, and each move that was
 * needed but impossible, is an event with its reason.
 *
 * When the pinned region is full, a high class first takes dynamic memory, evicting the lowest
 * classes (spill); then its requests wait; then its queue fills up. Each stage is counted
 * (stats.h); spilling is also an event.
 *
 * Thread: the engine's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_PINNED_H
#define QUIRE_ENGINE_PINNED_H

#include <stdbool.h>
#include <stdint.h>

/* Bounds for automatic resizing. Without a ceiling the size is constant. */
typedef struct quire_pinned_opts {
    uint64_t floor_bytes;         /* never smaller */
    uint64_t ceiling_bytes;       /* never larger; 0 = constant size */
    uint64_t dynamic_floor_bytes; /* kept for the dynamic region; 0 = a quarter of the budget */
    uint64_t window_us;           /* in which need is measured; 0 = default, 10 minutes */
    uint64_t recent_us; /* memory used within this time counts as needed; 0 = default, 5 minutes */
} quire_pinned_opts;

#endif /* QUIRE_ENGINE_PINNED_H */
