/* events.h - what the engine did of its own accord, for people: a bounded ring of the last events.
 *
 * Sizes changed, high classes spilled, pins came and went, thresholds were tuned: each with the
 * reason as a text. Numbers count from 1 without gaps; a reader asks for those behind the last
 * number it has seen, and a gap tells it that the ring has wrapped meanwhile.
 *
 * Thread: any; one lock, held for a copy.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_EVENTS_H
#define QUIRE_ENGINE_EVENTS_H

#include <stdint.h>

#define QUIRE_EVENT_TEXT_MAX 240u /* bytes, the end included */
#define QUIRE_EVENTS_MAX     65536u

/*  X(symbol, value, "name") */
#define QUIRE_EVENT_KIND_MAP(X)                                                                    \
    X(REGION_GROWN, 0, "region_grown")   /* the pinned region took memory */                       \
    X(REGION_SHRUNK, 1, "region_shrunk") /* and gave some back */                                  \
    X(REGION_HELD, 2, "region_held")     /* it should have changed and could not */                \
    X(SPILLED, 3, "spilled")             /* a high class took dynamic memory */                    \
    X(DEGRADED, 4, "degraded")           /* low classes get less than they are used to */          \
    X(RECOVERED, 5, "recovered")         /* and all of it again */                                 \
    X(PIN_CREATED, 6, "pin_created")                                                               \
    X(PIN_RENEWED, 7, "pin_renewed")                                                               \
    X(PIN_EXPIRED, 8, "pin_expired")                                                               \
    X(PIN_DROPPED, 9, "pin_dropped")  /* on request, or its prefix was invalidated */              \
    X(PIN_REFUSED, 10, "pin_refused") /* the budget cannot honour it */                            \
    X(TUNE_SUGGESTED, 11, "tune_suggested")                                                        \
    X(TUNE_APPLIED, 12, "tune_applied")                                                            \
    X(PRECACHE_ON, 13, "precache_on")                                                              \
    X(PRECACHE_OFF, 14, "precache_off")

typedef enum quire_event_kind {
#define X(sym, val, name) QUIRE_EVENT_##sym = (val),
    QUIRE_EVENT_KIND_MAP(X)
#undef X
    QUIRE_EVENT_KIND_COUNT
} quire_event_kind;
/* "region_grown"; "unknown" outside the table. */
const char *quire_event_kind_name(quire_event_kind kind);

typedef struct quire_event {
    uint64_t number;  /* from 1 */
    uint64_t time_us; /* as added; by the engine: since its creation, as stats.uptime_us */
    quire_event_kind kind;
    char text[QUIRE_EVENT_TEXT_MAX]; /* one line for people */
} quire_event;

typedef struct quire_events quire_events;

/* A ring of the last `capacity` events, 1 .. QUIRE_EVENTS_MAX. Errors: QUIRE_INVAL, QUIRE_NOMEM. */
int quire_events_create(quire_events **out, uint32_t capacity);
void quire_events_destroy(quire_events *events);

/* A text that is too long is cut. Returns the event's number. */
__attribute__((format(printf, 4, 5))) uint64_t quire_events_add(quire_events *events,
                                                                uint64_t time_us,
                                                                quire_event_kind kind,
                                                                const char *format, ...);

/* The events with a number above `after` that are still there, oldest first, at most n. Returns how
 * many. after 0 = from the oldest. */
uint32_t quire_events_list(const quire_events *events, uint64_t after, quire_event *out,
                           uint32_t n);

/* How many of each kind there ever were: totals[QUIRE_EVENT_KIND_COUNT]. */
void quire_events_totals(const quire_events *events, uint64_t *totals);

#endif /* QUIRE_ENGINE_EVENTS_H */
