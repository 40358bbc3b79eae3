/* prefetch.h - lines of memory that will be read soon, brought into a cache beforehand.
 *
 * A prefetch never faults, so lines may lie beyond the end of an object. The best target of a CPU
 * is quire_cpu.prefetch_to_l2; each caller has measured its own distance.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_PREFETCH_H
#define QUIRE_BASE_PREFETCH_H

#include <stddef.h>

#define QUIRE_PREFETCH_LINE ((size_t)64) /* bytes */

typedef enum quire_prefetch {
    QUIRE_PREFETCH_L1,
    QUIRE_PREFETCH_L2,  /* no nearer than the second cache */
    QUIRE_PREFETCH_NONE /* callers test for this value, outside of their loops */
} quire_prefetch;

/* n lines from `at` on. `to` is L1 or L2. Inlined, so that a constant n leaves no loop. */
static inline __attribute__((always_inline)) void quire_prefetch_lines(const void *at, size_t n,
                                                                       quire_prefetch to)
{
    const char *line = at;

    if (to == QUIRE_PREFETCH_L2) {
        for (size_t i = 0; i < n; i++) {
            __builtin_prefetch(line + i * QUIRE_PREFETCH_LINE, 0, 2);
        }
    } else {
        for (size_t i = 0; i < n; i++) {
            __builtin_prefetch(line + i * QUIRE_PREFETCH_LINE, 0, 3);
        }
    }
}

#endif /* QUIRE_BASE_PREFETCH_H */
