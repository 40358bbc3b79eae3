/* loop_events.h - what the loop tells whoever watches it: one table of functions.
 *
 *   admitted ... first_token ... ended      of each request
 *   step                                    after each round, also one in which nothing ran
 *   idle                                    there is nothing to do, or there is again
 *
 * The loop knows nothing of who listens. Listeners answer by the setters of loop.h.
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

/* A round. */
typedef struct quire_loop_step {
    uint32_t n_rows; /* computed; 0 = nothing ran, or the step was given up or failed */
    double us;       /* for so long, what came out of it included */
    double promised_us[QUIRE_CLASSES_MAX]; /* what the step may take by what classes with rows of
                                            * decode are promised, by index; 0 = nothing */
} quire_loop_step;

typedef struct quire_loop_idle {
    bool is_over;      /* requests are there; else there is nothing to do */
    bool is_busy;      /* the loop still tidies up: nothing that takes long, please */
    uint32_t again_ms; /* when it will ask again, unless somebody comes */
} quire_loop_idle;

typedef struct quire_loop_events {
    void *ctx;
    /* For the first time; what it found. */
    void (*admitted)(void *ctx, const quire_request *request, const quire_prefix_match *match);
    void (*first_token)(void *ctx, const quire_request *request);
    void (*step)(void *ctx, const quire_loop_step *step);
    /* A request ends; if it has been admitted, its pages are still its own. */
    void (*ended)(void *ctx, const quire_request *request, const quire_ending *ending);
    /* Returns after how many milliseconds to ask again; 0 = at once. */
    uint32_t (*idle)(void *ctx, const quire_loop_idle *idle);
} quire_loop_events;

#endif /* QUIRE_ENGINE_LOOP_EVENTS_H */
