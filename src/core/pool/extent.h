/* extent.h - memory from the operating system, and the sizes of extents.
 *
 * An extent is the smallest multiple of QUIRE_EXTENT_UNIT_BYTES whose unusable tail is under 1 %
 * for the page size, and in which one part of all pages takes QUIRE_EXTENT_RUN_BYTES on average (or
 * which has QUIRE_EXTENT_SLOTS_ENOUGH pages). The tail behind any number of pages is below one
 * unit. So an extent is never larger than one page plus 100 units (200 MiB), or plus the size for
 * the runs.
 *
 *   base (unit-aligned)                                             base + bytes
 *   | slot 0 | slot 1 | ... | slot n_slots - 1 | tail, < 1 % of bytes |     pages of one part
 *   | part 0 of slot 0, slot 1, ... | part 1 of slot 0, ... | ... | tail |  pages of several
 *
 * A page size of 0 means metadata only: the extent is a range of slots without memory.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CORE_EXTENT_H
#define QUIRE_CORE_EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef QUIRE_TINY
#define QUIRE_EXTENT_UNIT_BYTES ((size_t)4096)
#define QUIRE_EXTENT_META_SLOTS 4u
#define QUIRE_EXTENT_RUN_BYTES  ((size_t)1024)
#else
#define QUIRE_EXTENT_UNIT_BYTES ((size_t)2 << 20) /* one x86-64 / arm64 huge page */
#define QUIRE_EXTENT_META_SLOTS 1024u             /* slots of an extent without memory */
/* Two threads that read 13 KB of every 400 KB have 77 % of the bandwidth of a plain array on a Zen
 * 5 VM, in runs of 107 KB 93 %, of 430 KB 97 %. */
#define QUIRE_EXTENT_RUN_BYTES  ((size_t)384 << 10)
#endif
#define QUIRE_EXTENT_SLOTS_MAX    65536u /* a slot number fits 16 bits */
#define QUIRE_EXTENT_SLOTS_ENOUGH 1024u

/* The source of extents. Tests use a double that fails the Nth call. */
typedef struct quire_extent_source {
    /* size_bytes is a multiple of the unit; the result is unit-aligned and zeroed, or NULL. */
    void *(*map)(void *ctx, size_t size_bytes);
    void (*unmap)(void *ctx, void *base, size_t size_bytes);
    /* Lock the memory in RAM; false when the system refuses. Unmapping unlocks. */
    bool (*lock)(void *ctx, void *base, size_t size_bytes);
    void *ctx;
} quire_extent_source;

/* mmap with huge pages advised, and mlock. Memory: static. Thread: any. */
const quire_extent_source *quire_extent_source_os(void);

typedef struct quire_extent_shape {
    size_t size_bytes;
    uint32_t n_slots;
} quire_extent_shape;

/* The extent for a page size (0, or a multiple of 64 up to QUIRE_PAGE_BYTES_MAX) in n_parts parts
 * (0 counts as 1). */
quire_extent_shape quire_extent_shape_for(size_t page_bytes, uint32_t n_parts);

/* Slots of page_bytes > 0 in memory of a given size; 0 when the tail is 1 % or more. */
uint32_t quire_extent_slots(size_t size_bytes, size_t page_bytes);

#endif /* QUIRE_CORE_EXTENT_H */
