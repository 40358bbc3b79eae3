/* counter.h - numbers that one thread writes and any thread reads.
 *
 * The owner's updates are a plain load and store (no locked instruction: there is one writer); a
 * reader on another thread sees some recent value, never a torn one.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_COUNTER_H
#define QUIRE_CORE_COUNTER_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint64_t quire_counter;

/* Thread: any. */
static inline uint64_t quire_counter_get(const quire_counter *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Thread: owner, as all that follow. */
static inline void quire_counter_set(quire_counter *counter, uint64_t value)
{
    atomic_store_explicit(counter, value, memory_order_relaxed);
}

static inline void quire_counter_add(quire_counter *counter, uint64_t n)
{
    quire_counter_set(counter, quire_counter_get(counter) + n);
}

static inline void quire_counter_sub(quire_counter *counter, uint64_t n)
{
    quire_counter_set(counter, quire_counter_get(counter) - n);
}

/* Keep the largest value seen. */
static inline void quire_counter_peak(quire_counter *counter, uint64_t value)
{
    if (value > quire_counter_get(counter)) {
        quire_counter_set(counter, value);
    }
}

#endif /* QUIRE_CORE_COUNTER_H */
