/* doze.h - a pause between two looks at a state that another thread changes.
 *
 * A loop without a pause can take a lock again and again before the other thread gets it, and on a
 * busy machine takes the processor that the other thread needs.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_DOZE_H
#define QUIRE_TESTS_DOZE_H

#include <time.h>

#define TEST_DOZE_NS 100000

static inline void test_doze(void)
{
    const struct timespec pause = { .tv_nsec = TEST_DOZE_NS };

    (void)nanosleep(&pause, NULL);
}

#endif /* QUIRE_TESTS_DOZE_H */
