/* seed.h - the seed and the length of a random test: QUIRE_SEED and QUIRE_OPS from the environment,
 * or the test's own.
 *
 * The seed is printed each time; ctest shows a test's output when the test fails, so a failure
 * always comes with the seed that reproduces it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_SEED_H
#define QUIRE_TESTS_SEED_H

#include "base/rng.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static inline quire_rng test_rng(uint64_t fallback)
{
    const char *text = getenv("QUIRE_SEED");
    quire_rng rng = { text != NULL ? strtoull(text, NULL, 0) : fallback };

    (void)printf("QUIRE_SEED=%" PRIu64 "\n", rng.state);
    return rng;
}

/* The number of a random test's operations: QUIRE_OPS from the environment, or the test's own. */
static inline uint64_t test_ops(uint64_t fallback)
{
    const char *text = getenv("QUIRE_OPS");

    return text != NULL ? strtoull(text, NULL, 0) : fallback;
}

#endif /* QUIRE_TESTS_SEED_H */
