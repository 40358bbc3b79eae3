/* sizer.h - how large the pinned region should be.
 *
 * A controller without side effects: samples go in, about one a second, and each gets a decision,
 * grow or shrink by one step or leave it, with the reason. It looks at what the high classes need:
 * bytes that their requests hold or have used lately (working_set.h). The 99th percentile of that
 * over a sliding window is what the region should hold, so that a burst of less than a hundredth of
 * the window does not move it.
 *
 *      floor              need p99                          ceiling
 *        |------------------|===== slack =====|----------------|        budget of the region
 *                      grow <|                 |> shrink
 *
 * Between need and need + slack it rests: growing begins above the budget, shrinking only when the
 * budget is more than a step and slack_share too large, and not before calm_us have passed since
 * the last change. So it cannot swing: after a step either way the other way is out of reach. The
 * last step to a bound may be shorter.
 *
 * Never, whatever the samples say: below the floor, or below what is held in the region now (live
 * or pinned); above the ceiling; and never so far that the dynamic region falls under its own floor
 * or under what is held there. Over-locking, as when everybody is in a high class, ends at those
 * bounds, with the reason said.
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
    uint64_t dynamic_floor_bytes; /* what the dynamic region keeps, whatever the need */
    uint64_t step_bytes;          /* one extent, >= 1 */
    uint64_t window_us;           /* default 10 minutes */
    uint64_t calm_us;             /* no shrinking so soon after a change; default 30 seconds */
    double slack_share;           /* of the need, kept above it; default 0.1 */
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
    uint64_t held_bytes;    /* of it, live or pinned: what eviction cannot free */
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
    X(HELD, 8, "less is needed, but what is pinned or in use stays")                               \
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
    uint64_t budget_bytes; /* what the pinned region should have from now on */
    uint64_t need_p99_bytes;
    quire_sizer_reason reason;
} quire_sizer_decision;

typedef struct quire_sizer {
    quire_sizer_opts opts;
    uint64_t slots[QUIRE_SIZER_SLOTS];        /* largest need in each part of the window */
    uint64_t slot_numbers[QUIRE_SIZER_SLOTS]; /* which part it is of; 0 = none */
    uint64_t changed_us;
    bool has_changed;
    bool is_refused; /* the last change was undone */
} quire_sizer;

/* Errors: QUIRE_INVAL (ceiling below floor, no step, no window, a negative share). */
int quire_sizer_init(quire_sizer *sizer, const quire_sizer_opts *opts);

/* Take a sample in and decide; time must not go back. The decision counts as carried out: say so if
 * it was not (quire_sizer_undo()). */
quire_sizer_decision quire_sizer_decide(quire_sizer *sizer, const quire_sizer_sample *sample);

/* The region could not be changed at now_us. Nothing is tried again for calm_us. */
void quire_sizer_undo(quire_sizer *sizer, uint64_t now_us);

#endif /* QUIRE_ENGINE_SIZER_H */
