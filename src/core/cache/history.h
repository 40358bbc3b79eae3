/* history.h - a bounded ring of allocation events: which sequence took or released which page, and
 * when.
 *
 * All memory is taken by init; adding an event never fails and never allocates. In a full ring a
 * new event overwrites the oldest. Event numbers keep counting, so the first number shows how many
 * events were lost.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_HISTORY_H
#define QUIRE_CORE_HISTORY_H

#include "quire/alloc.h"
#include "quire/cache.h"

typedef struct quire_history {
    quire_allocator allocator;
    quire_history_event *events; /* [capacity], NULL when off */
    uint32_t capacity;
    uint32_t at;          /* where the next event goes */
    uint64_t next_number; /* of the next event; also the number of events so far */
    uint64_t (*clock_us)(void *ctx);
    void *clock_ctx;
} quire_history;

/* capacity 0 = off. clock_us may be NULL: then an event's time is its number.
 * Errors: QUIRE_NOMEM. */
int quire_history_init(quire_history *history, const quire_allocator *allocator, uint32_t capacity,
                       uint64_t (*clock_us)(void *ctx), void *clock_ctx);
void quire_history_fini(quire_history *history);

/* Record an event: returns its entry with number and time filled in; NULL when off. The caller
 * assigns all other fields. (Filled in place: on the page path a copy cost more than the event.) */
static inline quire_history_event *quire_history_next(quire_history *history)
{
    quire_history_event *event;

    if (history->capacity == 0) {
        return NULL;
    }
    event = &history->events[history->at];
    event->number = history->next_number;
    event->time_us = history->next_number++;
    if (history->clock_us != NULL) {
        event->time_us = history->clock_us(history->clock_ctx);
    }
    if (++history->at == history->capacity) {
        history->at = 0;
    }
    return event;
}

/* As quire_cache_history_visit(). */
int quire_history_visit(const quire_history *history,
                        int (*visit)(void *ctx, const quire_history_event *event), void *ctx);

void quire_history_validate(const quire_history *history);

#endif /* QUIRE_CORE_HISTORY_H */
