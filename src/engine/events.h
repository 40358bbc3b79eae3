/* events.h - changes that the engine made by itself, for people.
 *
 * Events report resized regions, spilling of high classes, pins created and removed, and tuned
 * thresholds, each with the reason as a text. Event numbers count from 1 without gaps. A reader
 * asks for events after the last number it has seen; a gap means that the ring has dropped events
 * since then.
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
    X(REGION_HELD, 2, "region_held")     /* it should have been resized but could not */           \
    X(SPILLED, 3, "spilled")             /* a high class took dynamic memory */                    \
    X(DEGRADED, 4, "degraded")           /* limits of low classes were cut */                      \
    X(RECOVERED, 5, "recovered")         /* limits are back at their full size */                  \
    X(PIN_CREATED, 6, "pin_created")                                                               \
    X(PIN_RENEWED, 7, "pin_renewed")                                                               \
    X(PIN_EXPIRED, 8, "pin_expired")                                                               \
    X(PIN_DROPPED, 9, "pin_dropped")  /* on request, or its prefix was invalidated */              \
    X(PIN_REFUSED, 10, "pin_refused") /* the budget cannot honour it */                            \
    X(TUNE_SUGGESTED, 11, "tune_suggested")                                                        \
    X(TUNE_APPLIED, 12, "tune_applied")                                                            \
    X(PRECACHE_ON, 13, "precache_on")                                                              \
    X(PRECACHE_OFF, 14, "precache_off")                                                            \
    X(STORE_DEGRADED, 15, "store_degraded") /* the store below memory takes no pages */            \
    X(STORE_READY, 16, "store_ready")       /* and takes pages again */

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
    uint64_t time_us; /* as passed to add; the engine passes the time since its creation, like
                         stats.uptime_us */
    quire_event_kind kind;
    char text[QUIRE_EVENT_TEXT_MAX]; /* one line for people */
} quire_event;

#endif /* QUIRE_ENGINE_EVENTS_H */
