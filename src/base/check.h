/* check.h - the three ways quire code reacts to something being wrong.
 *
 *   QUIRE_CHECK(x)   a bug in quire or its caller that would corrupt memory. Always on. Aborts.
 *   QUIRE_ASSERT(x)  any other invariant. On when QUIRE_DEBUG >= 1.
 *   QUIRE_TRY / QUIRE_FAIL_IF   operating errors (no memory, bad file, full pool): return values,
 *                    never aborts, never exit().
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_CHECK_H
#define QUIRE_BASE_CHECK_H

#include "quire/status.h"

#ifndef QUIRE_DEBUG
#define QUIRE_DEBUG 0 /* 0 release, 1 asserts, 2 + validate() after each operation */
#endif

_Noreturn void quire_panic(const char *file, int line, const char *what);

#define QUIRE_CHECK(x) ((x) ? (void)0 : quire_panic(__FILE__, __LINE__, #x))

#if QUIRE_DEBUG >= 1
#define QUIRE_ASSERT(x) QUIRE_CHECK(x)
#else
#define QUIRE_ASSERT(x) ((void)sizeof(!(x)))
#endif

/* Forward a failure to the caller. Only while nothing needs cleanup; otherwise set rc, goto out. */
#define QUIRE_TRY(expr)                                                                            \
    do {                                                                                           \
        int quire_try_rc_ = (expr);                                                                \
        if (quire_try_rc_ < 0) {                                                                   \
            return quire_try_rc_;                                                                  \
        }                                                                                          \
    } while (0)

#define QUIRE_FAIL_IF(cond, status)                                                                \
    do {                                                                                           \
        if (cond) {                                                                                \
            return (status);                                                                       \
        }                                                                                          \
    } while (0)

#endif /* QUIRE_BASE_CHECK_H */
