/* array.h - arrays from an allocator, with their size checked.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_ARRAY_H
#define QUIRE_TRACE_ARRAY_H

#include <stddef.h>

#include "base/ckd.h"
#include "quire/alloc.h"

/* n items (one where n is 0), not initialised; NULL when there is no memory or no such size. */
static inline void *quire_array_alloc(const quire_allocator *allocator, size_t n, size_t item_bytes)
{
    size_t size_bytes;

    return quire_ckd_mul(n > 0 ? n : 1, item_bytes, &size_bytes)
               ? allocator->alloc(allocator->ctx, size_bytes)
               : NULL;
}

static inline void quire_array_free(const quire_allocator *allocator, void *array)
{
    allocator->free(allocator->ctx, array);
}

#endif /* QUIRE_TRACE_ARRAY_H */
