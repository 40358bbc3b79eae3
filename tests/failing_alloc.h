/* failing_alloc.h - allocations that fail on request, on the thread that requested it.
 *
 * To be included by one source of a program that wraps malloc, calloc, realloc and aligned_alloc
 * (the link option --wrap).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_FAILING_ALLOC_H
#define QUIRE_TESTS_FAILING_ALLOC_H

#include <stdbool.h>
#include <stddef.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *at, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *at, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);

static _Thread_local unsigned fail_in; /* the allocation that counts it down to 0 fails; 0 = off */
static _Thread_local unsigned fail_realloc_in; /* likewise, of realloc alone */
static _Thread_local size_t fail_calloc_bytes; /* every calloc of so many bytes fails; 0 = off */

static bool fails(unsigned *countdown)
{
    return *countdown > 0 && --*countdown == 0;
}

void *__wrap_malloc(size_t n)
{
    return fails(&fail_in) ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails(&fail_in) || (fail_calloc_bytes > 0 && n * size == fail_calloc_bytes)
               ? NULL
               : __real_calloc(n, size);
}

void *__wrap_realloc(void *at, size_t n)
{
    return fails(&fail_in) || fails(&fail_realloc_in) ? NULL : __real_realloc(at, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return fails(&fail_in) ? NULL : __real_aligned_alloc(align, n);
}

#endif /* QUIRE_TESTS_FAILING_ALLOC_H */
