/* event_log.c - see event_log.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/adapt/event_log.h"

#include "base/check.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct quire_events {
    pthread_mutex_t mutex;
    pthread_mutex_t *lock; /* the same lock, for const readers */
    uint32_t capacity;
    uint64_t n_added; /* number of the last event */
    uint64_t totals[QUIRE_EVENT_KIND_COUNT];
    quire_event ring[]; /* [capacity]: number n is at (n - 1) % capacity */
};

const char *quire_event_kind_name(quire_event_kind kind)
{
    switch (kind) {
#define X(sym, val, name)                                                                          \
    case QUIRE_EVENT_##sym:                                                                        \
        return name;
        QUIRE_EVENT_KIND_MAP(X)
#undef X
    case QUIRE_EVENT_KIND_COUNT:
        break;
    }
    return "unknown";
}

int quire_events_create(quire_events **out, uint32_t capacity)
{
    quire_events *events;

    *out = NULL;
    QUIRE_FAIL_IF(capacity == 0 || capacity > QUIRE_EVENTS_MAX, QUIRE_INVAL);
    events = calloc(1, sizeof *events + capacity * sizeof events->ring[0]);
    QUIRE_FAIL_IF(events == NULL, QUIRE_NOMEM);
    if (pthread_mutex_init(&events->mutex, NULL) != 0) {
        free(events);
        return QUIRE_NOMEM;
    }
    events->lock = &events->mutex;
    events->capacity = capacity;
    *out = events;
    return QUIRE_OK;
}

void quire_events_destroy(quire_events *events)
{
    if (events == NULL) {
        return;
    }
    (void)pthread_mutex_destroy(&events->mutex);
    free(events);
}

uint64_t quire_events_add(quire_events *events, uint64_t time_us, quire_event_kind kind,
                          const char *format, ...)
{
    quire_event event = { .time_us = time_us, .kind = kind };
    va_list args;

    QUIRE_ASSERT(kind < QUIRE_EVENT_KIND_COUNT);
    va_start(args, format);
    (void)vsnprintf(event.text, sizeof event.text, format, args);
    va_end(args);
    (void)pthread_mutex_lock(&events->mutex);
    event.number = ++events->n_added;
    events->totals[kind]++;
    events->ring[(event.number - 1) % events->capacity] = event;
    (void)pthread_mutex_unlock(&events->mutex);
    return event.number;
}

uint32_t quire_events_list(const quire_events *events, uint64_t after, quire_event *out, uint32_t n)
{
    uint64_t oldest;
    uint32_t n_out = 0;

    (void)pthread_mutex_lock(events->lock);
    oldest = events->n_added > events->capacity ? events->n_added - events->capacity : 0;
    for (uint64_t i = after > oldest ? after : oldest; i < events->n_added && n_out < n; i++) {
        out[n_out++] = events->ring[i % events->capacity];
    }
    (void)pthread_mutex_unlock(events->lock);
    return n_out;
}

void quire_events_totals(const quire_events *events, uint64_t *totals)
{
    (void)pthread_mutex_lock(events->lock);
    memcpy(totals, events->totals, sizeof events->totals);
    (void)pthread_mutex_unlock(events->lock);
}
