/* degrade.h - limit running requests of low classes while a high class misses its promises.
 *
 * The schedule keeps promises by predicted costs. Predictions can fail: by costs that the formula
 * does not know, by memory bandwidth used by other programs, by a queue in front of the high class.
 * Degradation therefore measures results, in windows of time: per class, the duration of steps
 * against the promised duration, and the number of late first tokens. If a class misses its
 * promises, the limit of the lowest class below it that runs more than one request is set to half
 * of its running requests. If no class misses, each limit grows by a sixteenth of its full size.
 * Like TCP, multiplicative decrease with additive increase finds a sustainable level by itself.
 *
 * Requests above a limit are parked; new ones wait in the queue of the class, and are refused when
 * the queue is full. The limit counts towards the number of accepted requests of the class.
 *
 * Pure. Thread: one at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_DEGRADE_H
#define QUIRE_ENGINE_DEGRADE_H

#include <stdint.h>

#include "engine/classes.h"

#define QUIRE_DEGRADE_WINDOW_US 1000000u
#define QUIRE_DEGRADE_STEPS_MIN 8u   /* fewest steps of a window that is judged */
#define QUIRE_DEGRADE_MARGIN    1.25 /* tolerated factor over the promised time */

typedef struct quire_degrade_class {
    uint8_t rank;
    uint32_t most;  /* running requests when no promise is missed */
    uint32_t limit; /* current limit: 1 .. most */
    /* The current window. */
    double promised_us;
    double taken_us;
    uint32_t n_steps;
    uint32_t n_first;
    uint32_t n_first_late;
} quire_degrade_class;

typedef struct quire_degrade {
    quire_degrade_class classes[QUIRE_CLASSES_MAX]; /* [n], as in the table of classes */
    uint32_t n;
    uint64_t window_us; /* start time */
} quire_degrade;

void quire_degrade_init(quire_degrade *degrade, const quire_classes *classes,
                        uint32_t n_running_max, uint64_t now_us);

/* Record a step with decode rows of the class. promised_us: from quire_schedule_promised_us(); 0 =
 * ignore the step. */
void quire_degrade_step(quire_degrade *degrade, uint32_t index, double promised_us,
                        double taken_us);
/* Record a first token. */
void quire_degrade_first(quire_degrade *degrade, uint32_t index, bool is_late);

/* Evaluate the window if it is over. n_running: by class. Returns the class whose limit was cut, or
 * QUIRE_CLASSES_MAX. */
uint32_t quire_degrade_tick(quire_degrade *degrade, uint64_t now_us, const uint32_t *n_running);

#endif /* QUIRE_ENGINE_DEGRADE_H */
