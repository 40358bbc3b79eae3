/* event_log.h - a bounded ring of the last events (events.h).
 *
 * Thread: any; one lock, held for a copy.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_EVENT_LOG_H
#define QUIRE_ENGINE_EVENT_LOG_H

#include "engine/events.h"

typedef struct quire_events quire_events;

/* A ring of the last `capacity` events, 1 .. QUIRE_EVENTS_MAX. Errors: QUIRE_INVAL, QUIRE_NOMEM. */
int quire_events_create(quire_events **out, uint32_t capacity);
void quire_events_destroy(quire_events *events);

/* Append an event; a text that is too long is cut. Returns the event's number. */
__attribute__((format(printf, 4, 5))) uint64_t quire_events_add(quire_events *events,
                                                                uint64_t time_us,
                                                                quire_event_kind kind,
                                                                const char *format, ...);

/* Copy at most n kept events with a number above `after`, oldest first (after 0 = from the oldest).
 * Returns the number copied. */
uint32_t quire_events_list(const quire_events *events, uint64_t after, quire_event *out,
                           uint32_t n);

/* Number of events of each kind since creation: totals[QUIRE_EVENT_KIND_COUNT]. */
void quire_events_totals(const quire_events *events, uint64_t *totals);

#endif /* QUIRE_ENGINE_EVENT_LOG_H */
