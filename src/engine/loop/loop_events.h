/* loop_events.h - events that the loop reports to its listener: one table of functions.
 *
 *   admitted ... first_token ... ended      of each request
 *   step                                    after each round, even if nothing ran
 *   idle                                    the loop becomes idle, or is idle no longer
 *   dropped                                 texts, because another machine dropped them
 *
 * The loop does not know its listener. A listener acts through the setters of loop.h.
 *
 * Thread: the engine's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_LOOP_EVENTS_H
#define QUIRE_ENGINE_LOOP_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/classes.h"
#include "engine/loop/request.h"
#include "quire/prefix.h"

/* One round of the loop. */
typedef struct quire_loop_step {
    uint32_t n_rows; /* rows computed; 0 = nothing ran, or the step was given up or failed */
    double us;       /* duration, with sampling and output */
    double promised_us[QUIRE_CLASSES_MAX]; /* by class index: promised step time for classes with
                                              decode rows; 0 = no promise */
} quire_loop_step;

typedef struct quire_loop_idle {
    bool is_over;      /* requests have arrived; else the loop has nothing to do */
    bool is_busy;      /* the loop is still tidying up: do nothing that takes long */
    uint32_t again_ms; /* time until the next call, unless a request arrives */
} quire_loop_idle;

typedef struct quire_loop_events {
    void *ctx;
    /* First admission of a request, with its cache match. */
    void (*admitted)(void *ctx, const quire_request *request, const quire_prefix_match *match);
    void (*first_token)(void *ctx, const quire_request *request);
    void (*step)(void *ctx, const quire_loop_step *step);
    /* A request ends. If it was admitted, it still owns its pages. */
    void (*ended)(void *ctx, const quire_request *request, const quire_ending *ending);
    /* Returns the milliseconds until the next call; 0 = at once. */
    uint32_t (*idle)(void *ctx, const quire_loop_idle *idle);
    /* The device was lost, and the loop has no requests any more. Called more than once. */
    void (*lost)(void *ctx);
    /* Another machine dropped texts of the common store, and the loop has dropped them, too. */
    void (*dropped)(void *ctx, const quire_invalidate *what);
} quire_loop_events;

#endif /* QUIRE_ENGINE_LOOP_EVENTS_H */
