/* alloc.c - the default allocator.
 *
 * SPDX-License-Identifier: MIT */
#include "quire/alloc.h"

#include <stdint.h>
#include <stdlib.h>

#define ALIGN_BYTES 64u

static void *libc_alloc(void *ctx, size_t size_bytes)
{
    (void)ctx;
    if (size_bytes > SIZE_MAX - ALIGN_BYTES) {
        return NULL;
    }
    return aligned_alloc(ALIGN_BYTES, (size_bytes + ALIGN_BYTES - 1) & ~(size_t)(ALIGN_BYTES - 1));
}

static void libc_free(void *ctx, void *ptr)
{
    (void)ctx;
    free(ptr);
}

const quire_allocator *quire_allocator_default(void)
{
    static const quire_allocator allocator = { libc_alloc, libc_free, NULL };

    return &allocator;
}
