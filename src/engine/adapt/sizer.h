/* sizer.h - controller for the size of the pinned region.
 *
 * The controller has no side effects. For each sample, about one a second, it returns a decision
 * (grow by one step, shrink by one step, or stay) with the reason. The need of the high classes is
 * the number of bytes that their requests hold or have recently used (working_set.h). The region
 * should hold the 99th percentile of the need over a sliding window, so a burst shorter than a
 * hundredth of the window does not resize it.
 *
 *      floor              need p99                          ceiling
 *        |------------------|===== slack =====|----------------|        budget of the region
 *                      grow <|                 |> shrink
 *
 * The region grows when the need exceeds the budget. It shrinks only when the budget exceeds the
 * need by more than slack_share and a step, and calm_us have passed since the last change. Between
 * these thresholds the size is constant. The controller cannot oscillate: after a step the
 * threshold for the opposite step is out of reach. The last step to a bound may be shorter.
 *
 * Bounds for all samples: the budget of the region is never below its floor, never below the bytes
 * held in it (live or pinned), and never above its ceiling. The dynamic region is never pushed
 * below its own floor or below the bytes held in it. If too many requests belong to high classes,
 * growth stops at these bounds, with the reason.
 *
 * Thread: one at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_SIZER_H
#define QUIRE_ENGINE_SIZER_H

#include <stdbool.h>
#include <stdint.h>

#define QUIRE_SIZER_SLOTS 256u /* of the window */

typedef struct quire_sizer_opts {
    uint64_t floor_bytes;         /* of the pinned region */
    uint64_t ceiling_bytes;       /* >= floor_bytes */
    uint64_t dynamic_floor_bytes; /* least size of the dynamic region */
    uint64_t step_bytes;          /* one extent, >= 1 */
    uint64_t window_us;           /* default 10 minutes */
    uint64_t calm_us;             /* time without shrinking after a change; default 30 seconds */
    double slack_share;           /* kept above the need, as a share of it; default 0.1 */
} quire_sizer_opts;

#define QUIRE_SIZER_OPTS_INIT                                                                      \
    {                                                                                              \
        .step_bytes = (uint64_t)2 << 20, .window_us = (uint64_t)600 * 1000000,                     \
        .calm_us = (uint64_t)30 * 1000000, .slack_share = 0.1                                      \
    }

typedef struct quire_sizer_sample {
    uint64_t now_us;
    uint64_t need_bytes;    /* of the high classes */
    uint64_t budget_bytes;  /* of the pinned region */
    uint64_t held_bytes;    /* of budget_bytes: live or pinned, not evictable */
    uint64_t dynamic_bytes; /* budget of the dynamic region */
    uint64_t dynamic_held_bytes;
} quire_sizer_sample;

/*  X(symbol, value, "why it did so or did not") */
#define QUIRE_SIZER_REASON_MAP(X)                                                                  \
    X(FITS, 0, "the region fits the need")                                                         \
    X(NEED, 1, "the high classes need more")                                                       \
    X(SPARE, 2, "the high classes need less")                                                      \
    X(FLOOR, 3, "it is below its floor")                                                           \
    X(CEILING, 4, "it is above its ceiling")                                                       \
    X(CALM, 5, "it changed a moment ago")                                                          \
    X(AT_CEILING, 6, "more is needed, but it is at its ceiling")                                   \
    X(AT_FLOOR, 7, "less is needed, but it is at its floor")                                       \
    X(HELD, 8, "less is needed, but pinned pages and pages in use stay")                           \
    X(DYNAMIC_FLOOR, 9, "more is needed, but the dynamic region is at its floor")                  \
    X(DYNAMIC_HELD, 10, "more is needed, but the dynamic region is in use")                        \
    X(DYNAMIC_SHORT, 11, "the dynamic region is below its floor")                                  \
    X(REFUSED, 12, "it could not be changed a moment ago")

typedef enum quire_sizer_reason {
#define X(sym, val, text) QUIRE_SIZER_##sym = (val),
    QUIRE_SIZER_REASON_MAP(X)
#undef X
} quire_sizer_reason;
const char *quire_sizer_reason_text(quire_sizer_reason reason);

typedef struct quire_sizer_decision {
    uint64_t budget_bytes; /* new budget of the pinned region */
    uint64_t need_p99_bytes;
    quire_sizer_reason reason;
} quire_sizer_decision;

typedef struct quire_sizer {
    quire_sizer_opts opts;
    uint64_t slots[QUIRE_SIZER_SLOTS];        /* largest need in each part of the window */
    uint64_t slot_numbers[QUIRE_SIZER_SLOTS]; /* number of the part in each slot; 0 = none */
    uint64_t changed_us;
    bool has_changed;
    bool is_refused; /* the last change was undone */
} quire_sizer;

/* Errors: QUIRE_INVAL (ceiling below floor, no step, no window, a negative share). */
int quire_sizer_init(quire_sizer *sizer, const quire_sizer_opts *opts);

/* Take a sample and decide; time must not go back. The decision counts as carried out unless
 * quire_sizer_undo() is called. */
quire_sizer_decision quire_sizer_decide(quire_sizer *sizer, const quire_sizer_sample *sample);

/* The region could not be resized at now_us. No change is tried for calm_us. */
void quire_sizer_undo(quire_sizer *sizer, uint64_t now_us);

#endif /* QUIRE_ENGINE_SIZER_H */
