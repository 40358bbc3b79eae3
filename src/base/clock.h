/* clock.h - time that only moves forward, for measuring durations.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_CLOCK_H
#define QUIRE_BASE_CLOCK_H

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

/* Deadline of a wait: ms milliseconds from now, by the monotonic clock. */
static inline struct timespec quire_deadline(uint32_t ms)
{
    const long ns_per_s = 1000000000L;
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(ms / 1000u);
    t.tv_nsec += (long)(ms % 1000u) * 1000000L;
    if (t.tv_nsec >= ns_per_s) {
        t.tv_sec++;
        t.tv_nsec -= ns_per_s;
    }
    return t;
}

#endif /* QUIRE_BASE_CLOCK_H */
