/* ckd.h - a checked product, for sizes that come from files, options or the network.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_CKD_H
#define QUIRE_BASE_CKD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns false, and leaves *out alone, when the product overflows. */
static inline bool quire_ckd_mul(size_t a, size_t b, size_t *out)
{
    size_t r;

    if (__builtin_mul_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

#endif /* QUIRE_BASE_CKD_H */
