/* checked.h - when debug level 2 makes a full check: QUIRE_CHECKED(validate, object).
 *
 * A full check follows each call that changes the object. In a build with a sanitizer a full check
 * follows one call in QUIRE_CHECKED_CALLS, because it costs many times more there. The preset tiny
 * makes all of them.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_CHECKED_H
#define QUIRE_CORE_CHECKED_H

#include "base/check.h"
#include "base/sanitized.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    QUIRE_CHECKED_CALLS = 29
};

#if QUIRE_DEBUG >= 2 && QUIRE_SANITIZED
static inline bool quire_check_is_due(void)
{
    static _Thread_local uint32_t n_calls; /* of one source file */

    return n_calls++ % QUIRE_CHECKED_CALLS == 0;
}
#else
static inline bool quire_check_is_due(void)
{
    return QUIRE_DEBUG >= 2;
}
#endif

#define QUIRE_CHECKED(validate, object)                                                            \
    do {                                                                                           \
        if (quire_check_is_due()) {                                                                \
            validate(object);                                                                      \
        }                                                                                          \
    } while (0)

#endif /* QUIRE_CORE_CHECKED_H */
