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
#include <stdint.h>

#include "quire/types.h"

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

/* ---- memory for pages that the host does not see ---- */

typedef enum quire_page_copy {
    QUIRE_PAGE_COPY_WITHIN, /* from the memory to the memory */
    QUIRE_PAGE_COPY_IN,     /* from the host's; its bytes may change when copy() returns */
    QUIRE_PAGE_COPY_OUT,    /* to the host's */
    QUIRE_PAGE_COPY_FETCH   /* from pinned memory of the host's, queued */
} quire_page_copy;

#define QUIRE_PAGE_PIECES 64u /* that libquire gives to one copy(), at most */

typedef struct quire_page_piece {
    unsigned char *to;
    const unsigned char *from;
    size_t bytes;
    /* IN: the page, as its quire_page_addr says it; NULL: not known. */
    const unsigned char *extent;
    uint32_t slot;
} quire_page_piece;

/* The memory of a device (quire/device.h). A cache takes extents from it (quire_cache_opts.memory)
 * and moves pages by copies alone: it neither reads nor writes there.
 * Thread: the cache's owner. */
typedef struct quire_page_memory {
    quire_memory memory; /* of its addresses: quire_page_addr.memory */
    /* bytes > 0. The result is aligned to 64 bytes and holds anything; NULL: no memory is left. */
    void *(*map)(void *ctx, size_t bytes);
    /* An extent for pages of this group of the cache; NULL: map() gives it. Where it is not NULL,
     * the group decides in which of several memories a part of a page lies. So an extent serves its
     * own group alone, and map() may be NULL. */
    void *(*map_extent)(void *ctx, quire_group_id group, size_t bytes);
    /* Copies that were queued before may still use the memory. */
    void (*unmap)(void *ctx, void *base, size_t bytes);
    /* Copy pieces, which do not overlap. Copies inside the memory may be queued, in order with all
     * other work on the memory, and fetches are. Copies in may be on their way when the call
     * returns; work that reads or writes their pages comes behind them, and a late failure loses
     * the device. Copies out are done when the call returns.
     * Errors: those of the device; a copy inside the memory that fails also makes the next step
     * fail, and one that cannot be queued loses the device. A queued fetch that fails makes the
     * step at hand fail (QUIRE_IO); its target then holds anything. */
    int (*copy)(void *ctx, quire_page_copy kind, const quire_page_piece *pieces, uint32_t n_pieces);
    /* Pinned memory of the host: copies between it and the pages make no stop on the way. bytes >
     * 0. The result is aligned to 64 bytes; NULL: no memory is left. pin() itself is NULL where
     * there is no such memory, and no fetch. */
    void *(*pin)(void *ctx, size_t bytes);
    void (*unpin)(void *ctx, void *base, size_t bytes); /* as unmap */
    void *ctx;
} quire_page_memory;

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* QUIRE_ALLOC_H */
