/* seed.h - the seed of a random test: QUIRE_SEED from the environment, or the test's own.
 *
 * It is printed each time; ctest shows a test's output when the test fails, so a failure always
 * comes with the seed that reproduces it.
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

#endif /* QUIRE_TESTS_SEED_H */
