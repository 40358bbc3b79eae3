/* check.c - the end of the road for bugs.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void quire_panic(const char *file, int line, const char *what)
{
    (void)fprintf(stderr, "quire: bug at %s:%d: %s\n", file, line, what);
    abort();
}
