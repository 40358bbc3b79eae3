/* doze.h - a pause between two looks at a state that another thread changes.
 *
 * A loop without a pause can take a lock again and again before the other thread gets it, and on a
 * busy machine takes the processor that the other thread needs.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_DOZE_H
#define QUIRE_TESTS_DOZE_H

#include <time.h>

static inline void test_doze_us(long us)
{
    const struct timespec pause = { .tv_nsec = us * 1000 };

    (void)nanosleep(&pause, NULL);
}

static inline void test_doze(void)
{
    test_doze_us(100);
}

/* For loops that count milliseconds. */
static inline void test_doze_ms(void)
{
    test_doze_us(1000);
}

#endif /* QUIRE_TESTS_DOZE_H */
