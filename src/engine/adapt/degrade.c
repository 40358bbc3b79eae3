/* degrade.c - see degrade.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/adapt/degrade.h"

#include "base/num.h"

#define GROWTH     16u /* windows from 0 to the full size */
#define LATE_SHARE 20u /* one in 20 first tokens may be late */

void quire_degrade_init(quire_degrade *d, const quire_classes *classes, uint32_t n_running_max,
                        uint64_t now_us)
{
    *d = (quire_degrade){ .n = classes->n, .window_us = now_us };
    for (uint32_t i = 0; i < classes->n; i++) {
        const quire_class *c = &classes->items[i];
        const uint32_t most = quire_class_running_max(c, n_running_max);

        d->classes[i] = (quire_degrade_class){ .rank = c->rank, .most = most, .limit = most };
    }
}

void quire_degrade_step(quire_degrade *d, uint32_t index, double promised_us, double taken_us)
{
    quire_degrade_class *c = &d->classes[index];

    if (promised_us > 0.0) {
        c->promised_us += promised_us;
        c->taken_us += taken_us;
        c->n_steps++;
    }
}

void quire_degrade_first(quire_degrade *d, uint32_t index, bool is_late)
{
    d->classes[index].n_first++;
    d->classes[index].n_first_late += is_late;
}

static bool has_missed(const quire_degrade_class *c)
{
    return (c->n_steps >= QUIRE_DEGRADE_STEPS_MIN &&
            c->taken_us > c->promised_us * QUIRE_DEGRADE_MARGIN) ||
           c->n_first_late * LATE_SHARE > c->n_first;
}

/* The lowest class below `rank` whose limit can be cut. */
static uint32_t victim_find(const quire_degrade *d, uint8_t rank, const uint32_t *n_running)
{
    uint32_t victim = QUIRE_CLASSES_MAX;

    for (uint32_t i = 0; i < d->n; i++) {
        const quire_degrade_class *c = &d->classes[i];

        if (c->rank < rank && n_running[i] > 1 && c->limit > 1 &&
            (victim == QUIRE_CLASSES_MAX || c->rank < d->classes[victim].rank)) {
            victim = i;
        }
    }
    return victim;
}

uint32_t quire_degrade_tick(quire_degrade *d, uint64_t now_us, const uint32_t *n_running)
{
    uint32_t victim = QUIRE_CLASSES_MAX;
    bool is_missed = false;
    uint8_t rank = 0; /* highest rank that missed */

    if (now_us - d->window_us < QUIRE_DEGRADE_WINDOW_US) {
        return QUIRE_CLASSES_MAX;
    }
    d->window_us = now_us;
    for (uint32_t i = 0; i < d->n; i++) {
        quire_degrade_class *c = &d->classes[i];

        if (has_missed(c)) {
            is_missed = true;
            rank = c->rank > rank ? c->rank : rank;
        }
        c->promised_us = c->taken_us = 0.0;
        c->n_steps = c->n_first = c->n_first_late = 0;
    }
    if (is_missed) {
        victim = victim_find(d, rank, n_running);
        if (victim != QUIRE_CLASSES_MAX) {
            d->classes[victim].limit =
                quire_min_u32(d->classes[victim].limit, n_running[victim]) / 2;
        }
        return victim;
    }
    for (uint32_t i = 0; i < d->n; i++) {
        quire_degrade_class *c = &d->classes[i];

        c->limit = quire_min_u32(c->most, c->limit + 1 + c->most / GROWTH);
    }
    return QUIRE_CLASSES_MAX;
}
