/* clock.h - time that only moves forward, for measuring durations and for waits with an end.
 *
 * A condition variable of quire_cond_init() and the deadlines here go by the same clock. Setting
 * the time of the machine neither shortens nor lengthens such a wait.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_CLOCK_H
#define QUIRE_BASE_CLOCK_H

#include "quire/status.h"

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* Nanoseconds since some fixed moment. Thread: any. */
static inline uint64_t quire_clock_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Nanoseconds of processor time that the calling thread has used. Thread: any. */
static inline uint64_t quire_clock_thread_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A condition variable whose timed waits end by the clock of quire_clock_ns().
 * Errors: QUIRE_NOMEM. Memory: pthread_cond_destroy(). */
static inline int quire_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    int failed;

    if (pthread_condattr_init(&attr) != 0) {
        return QUIRE_NOMEM;
    }
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    failed = pthread_cond_init(cond, &attr);
    (void)pthread_condattr_destroy(&attr);
    return failed != 0 ? QUIRE_NOMEM : QUIRE_OK;
}

/* A moment of quire_clock_ns() as the end of a timed wait. Thread: any. */
static inline struct timespec quire_timespec(uint64_t at_ns)
{
    const uint64_t ns_per_s = 1000000000u;

    return (struct timespec){ .tv_sec = (time_t)(at_ns / ns_per_s),
                              .tv_nsec = (long)(at_ns % ns_per_s) };
}

/* The end of a timed wait: ms milliseconds from now. Thread: any. */
static inline struct timespec quire_deadline(uint32_t ms)
{
    return quire_timespec(quire_clock_ns() + (uint64_t)ms * 1000000u);
}

#endif /* QUIRE_BASE_CLOCK_H */
