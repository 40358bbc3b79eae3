/* attend_choice.h - where steps of generated tokens read pages of the host's memory: the device
 * reads copies of the pages, or the CPU reads the pages in place. The measured time decides.
 *
 * The measure of both ways is the time of whole steps per byte of such pages: the other work of a
 * step is the same in both. Each way is taken a few times first. Then steps take the cheaper way,
 * and now and then the other one, since lengths and loads change.
 *
 * Thread: the owner's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_ATTEND_CHOICE_H
#define QUIRE_ENGINE_ATTEND_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#define QUIRE_ATTEND_TRIES 4u  /* of each way before the first choice */
#define QUIRE_ATTEND_AGAIN 64u /* steps until the dearer way is measured again */

typedef enum quire_attend_place {
    QUIRE_ATTEND_DEVICE, /* copied to the device */
    QUIRE_ATTEND_HOST,   /* where they lie */
    QUIRE_ATTEND_PLACES
} quire_attend_place;

typedef struct quire_attend_choice {
    double us_per_byte[QUIRE_ATTEND_PLACES]; /* running means */
    uint32_t n_steps[QUIRE_ATTEND_PLACES];   /* measured */
    uint32_t n_since;                        /* steps since the dearer way was taken */
} quire_attend_choice;

/* The place where the next step attends. */
quire_attend_place quire_attend_choose(const quire_attend_choice *choice);

/* Note that a step took step_us, with bytes > 0 of such pages attended at `place`. */
void quire_attend_measured(quire_attend_choice *choice, quire_attend_place place, uint64_t bytes,
                           uint64_t step_us);

#endif /* QUIRE_ENGINE_ATTEND_CHOICE_H */
