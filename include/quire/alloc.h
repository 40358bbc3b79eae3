/* quire/alloc.h - where quire's memory comes from.
 *
 * Every create() takes an allocator in its options; NULL means the C library. An object takes all
 * its metadata from this allocator when it is created or grows. An append within reserved room and
 * an attention call allocate nothing.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ALLOC_H
#define QUIRE_ALLOC_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

typedef struct quire_allocator {
    /* size_bytes > 0; the result is aligned to 64 bytes, or NULL. */
    void *(*alloc)(void *ctx, size_t size_bytes);
    void (*free)(void *ctx, void *ptr); /* must accept NULL */
    void *ctx;
} quire_allocator;

/* The C library's allocator. Memory: static. Thread: any. */
const quire_allocator *quire_allocator_default(void);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* QUIRE_ALLOC_H */
