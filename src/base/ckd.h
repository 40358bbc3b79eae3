/* ckd.h - checked arithmetic for sizes that come from files, options or the network.
 *
 * Each returns true on success, false (and leaves *out alone) on overflow.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_CKD_H
#define QUIRE_BASE_CKD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool quire_ckd_mul(size_t a, size_t b, size_t *out)
{
    size_t r;

    if (__builtin_mul_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

static inline bool quire_ckd_add(size_t a, size_t b, size_t *out)
{
    size_t r;

    if (__builtin_add_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

#endif /* QUIRE_BASE_CKD_H */
