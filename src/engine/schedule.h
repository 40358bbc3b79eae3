/* schedule.h - who gets how many rows of the next step.
 *
 * Every request in decode gets its one row. What prefill gets then is shared out so that nobody
 * waits behind a long prompt and a long prompt does not wait for ever:
 *
 *   - the request that came first gets at least a quarter;
 *   - the rest goes by priority, then to whoever has least left, then by arrival. Whom another
 * waits for (it computes the same prefix) counts as having no more left than that one waits for.
 *
 * Decode and prefill together fill chunk_tokens exactly while there is enough to compute, so that
 * the shapes of steps repeat; when decode alone takes more than three quarters of them, prefill
 * still gets a quarter.
 *
 * A pure function: no model, no clock.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_SCHEDULE_H
#define QUIRE_ENGINE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct quire_schedule_item {
    void *request; /* the caller's */
    uint64_t arrival;
    int32_t priority;
    uint32_t n_left;  /* prefill: tokens to compute, >= 1 */
    uint32_t n_until; /* prefill: those until somebody who waits for them goes on; else n_left */
    bool is_decode;
    uint32_t n_rows; /* out; 0 = not in this step */
} quire_schedule_item;

typedef struct quire_schedule_limits {
    uint32_t chunk_tokens; /* >= 1 */
    uint32_t rows_max;     /* of a step; at least the number of items */
} quire_schedule_limits;

/* Fill in n_rows and put the items in the order of the step's slices: decode by arrival, then
 * prefill. Returns the number of rows; > 0 when there is an item. */
uint32_t quire_schedule_rows(quire_schedule_item *items, uint32_t n,
                             const quire_schedule_limits *limits);

#endif /* QUIRE_ENGINE_SCHEDULE_H */
