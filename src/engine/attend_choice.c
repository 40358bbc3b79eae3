/* attend_choice.c - see attend_choice.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/attend_choice.h"

#define MEAN_STEPS 8.0 /* in a running mean */

static quire_attend_place cheaper(const quire_attend_choice *c)
{
    return c->us_per_byte[QUIRE_ATTEND_HOST] < c->us_per_byte[QUIRE_ATTEND_DEVICE]
               ? QUIRE_ATTEND_HOST
               : QUIRE_ATTEND_DEVICE;
}

quire_attend_place quire_attend_choose(const quire_attend_choice *c)
{
    for (uint32_t place = 0; place < QUIRE_ATTEND_PLACES; place++) {
        if (c->n_steps[place] < QUIRE_ATTEND_TRIES) {
            return (quire_attend_place)place;
        }
    }
    if (c->n_since >= QUIRE_ATTEND_AGAIN) {
        return cheaper(c) == QUIRE_ATTEND_HOST ? QUIRE_ATTEND_DEVICE : QUIRE_ATTEND_HOST;
    }
    return cheaper(c);
}

void quire_attend_measured(quire_attend_choice *c, quire_attend_place place, uint64_t bytes,
                           uint64_t step_us)
{
    const double cost = (double)step_us / (double)bytes;
    const double n = c->n_steps[place] < MEAN_STEPS ? c->n_steps[place] + 1.0 : MEAN_STEPS;

    c->n_since = place == cheaper(c) ? c->n_since + 1 : 0;
    c->us_per_byte[place] += (cost - c->us_per_byte[place]) / n;
    c->n_steps[place] += c->n_steps[place] < UINT32_MAX;
}
