/* rounds.h - how much of a long test runs in a slow build: one with a sanitizer, one that checks
 * all invariants after each call (QUIRE_DEBUG 2), or one whose programs an emulator runs.
 *
 * A slow build leaves out only these parts of a test: rounds (TEST_ROUNDS, TEST_ROUNDS_ALONE),
 * values of a loop over all values (TEST_STRIDE), and cases of a list (test_takes_case). The debug
 * build leaves out nothing, except on a device that software computes (device/conformance.h) and of
 * the comparisons with libllama on the portable kernels (model/CMakeLists.txt). The library's own
 * full checks are in core/cache/checked.h.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_ROUNDS_H
#define QUIRE_TESTS_ROUNDS_H

#include "base/check.h"
#include "base/sanitized.h"

#include <stdbool.h>
#include <stdint.h>

/* Defined by tests/CMakeLists.txt in cross-compiled builds. */
#ifndef QUIRE_TEST_EMULATED
#define QUIRE_TEST_EMULATED 0
#endif

/* Rounds of a random test. */
#if QUIRE_DEBUG >= 2 || QUIRE_SANITIZED || QUIRE_TEST_EMULATED
#define TEST_ROUNDS(all, slow) (slow)
#else
#define TEST_ROUNDS(all, slow) (all)
#endif

/* The same, of a part that has one thread: one round under the thread sanitizer, which has nothing
 * to find there. */
#if defined(__SANITIZE_THREAD__)
#define TEST_ROUNDS_ALONE(all, slow) 1u
#else
#define TEST_ROUNDS_ALONE(all, slow) TEST_ROUNDS(all, slow)
#endif

/* The step of a loop that otherwise visits every value. */
#if QUIRE_SANITIZED || QUIRE_TEST_EMULATED
#define TEST_STRIDE(slow) (slow)
#else
#define TEST_STRIDE(slow) 1u
#endif

/* Whether the next case of a list runs: each, or one in eleven under a sanitizer or an emulator,
 * one in 41 under the thread sanitizer, where each access to memory is a call. No innermost list of
 * formats or shapes has a multiple of these numbers of cases, so each case occurs. */
#if defined(__SANITIZE_THREAD__)
#define TEST_CASE_STRIDE 41u
#else
#define TEST_CASE_STRIDE TEST_STRIDE(11u)
#endif

static inline bool test_takes_case(void)
{
    static uint32_t n_cases;

    return n_cases++ % TEST_CASE_STRIDE == 0;
}

#endif /* QUIRE_TESTS_ROUNDS_H */
