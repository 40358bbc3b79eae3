/* degrade.h - fewer requests of low classes at once while a high class misses what it is promised.
 *
 * The schedule keeps promises by what it predicts; where that fails (costs that the formula does
 * not know, memory bandwidth that others take, a queue in front of the high class) this looks at
 * what came out. Time is cut into windows. In each, every class has what its steps took against
 * what was promised, and how many first tokens came too late. If a class missed, the lowest class
 * below it that runs more than one request may from then on run half of what it does; if nobody
 * missed, every limit grows by a sixteenth of its full size. Multiplicative decrease and additive
 * increase, as in TCP and for its reason: it finds a level that holds without being told which.
 *
 * What a limit keeps out is parked, then waits in the class's queue, then is refused when that is
 * full: the limit counts as part of what the class may have accepted.
 *
 * Pure. Thread: one at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_DEGRADE_H
#define QUIRE_ENGINE_DEGRADE_H

#include <stdint.h>

#include "engine/classes.h"

#define QUIRE_DEGRADE_WINDOW_US 1000000u
#define QUIRE_DEGRADE_STEPS_MIN 8u   /* of a window that says something */
#define QUIRE_DEGRADE_MARGIN    1.25 /* over what is promised */

typedef struct quire_degrade_class {
    uint8_t rank;
    uint32_t most;  /* running, when nothing is amiss */
    uint32_t limit; /* now; 1 .. most */
    /* The window at hand. */
    double promised_us;
    double taken_us;
    uint32_t n_steps;
    uint32_t n_first;
    uint32_t n_first_late;
} quire_degrade_class;

typedef struct quire_degrade {
    quire_degrade_class classes[QUIRE_CLASSES_MAX]; /* [n], as in the table of classes */
    uint32_t n;
    uint64_t window_us; /* when it began */
} quire_degrade;

void quire_degrade_init(quire_degrade *degrade, const quire_classes *classes,
                        uint32_t n_running_max, uint64_t now_us);

/* A step with rows of decode of the class took so long. promised_us as by
 * quire_schedule_promised_us(); 0 is ignored. */
void quire_degrade_step(quire_degrade *degrade, uint32_t index, double promised_us,
                        double taken_us);
/* A first token came. */
void quire_degrade_first(quire_degrade *degrade, uint32_t index, bool is_late);

/* Look whether the window is over, and what follows. n_running: by class. Returns the class whose
 * limit was cut, or QUIRE_CLASSES_MAX. */
uint32_t quire_degrade_tick(quire_degrade *degrade, uint64_t now_us, const uint32_t *n_running);

#endif /* QUIRE_ENGINE_DEGRADE_H */
