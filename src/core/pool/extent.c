/* extent.c - extent sizes, and the operating system as a source of extents.
 *
 * SPDX-License-Identifier: MIT */
#include "core/pool/extent.h"

#include <sys/mman.h>

#define TAIL_PERCENT_MAX 1u

uint32_t quire_extent_slots(size_t size_bytes, size_t page_bytes)
{
    size_t n_slots = size_bytes / page_bytes;
    size_t tail_bytes = size_bytes - n_slots * page_bytes;

    if (n_slots == 0 || n_slots > QUIRE_EXTENT_SLOTS_MAX ||
        tail_bytes * 100 >= size_bytes * TAIL_PERCENT_MAX) {
        return 0;
    }
    return (uint32_t)n_slots;
}

/* Whether an extent of n_slots slots is large enough for the runs; pages in one piece have no
 * minimum. */
static bool has_runs(uint32_t n_slots, size_t page_bytes, uint32_t n_parts)
{
    return n_parts < 2 || n_slots >= QUIRE_EXTENT_SLOTS_ENOUGH ||
           n_slots * page_bytes >= n_parts * QUIRE_EXTENT_RUN_BYTES;
}

quire_extent_shape quire_extent_shape_for(size_t page_bytes, uint32_t n_parts)
{
    quire_extent_shape shape = { 0, QUIRE_EXTENT_META_SLOTS };

    if (page_bytes == 0) {
        return shape;
    }
    /* At most about a hundred rounds, and more for long runs: see the header. */
    shape.size_bytes = (page_bytes + QUIRE_EXTENT_UNIT_BYTES - 1) / QUIRE_EXTENT_UNIT_BYTES *
                       QUIRE_EXTENT_UNIT_BYTES;
    shape.n_slots = quire_extent_slots(shape.size_bytes, page_bytes);
    while (shape.n_slots == 0 || !has_runs(shape.n_slots, page_bytes, n_parts)) {
        shape.size_bytes += QUIRE_EXTENT_UNIT_BYTES;
        shape.n_slots = quire_extent_slots(shape.size_bytes, page_bytes);
    }
    return shape;
}

/* mmap aligns to small pages only: map one more unit, and keep an aligned part. */
static void *os_map(void *ctx, size_t size_bytes)
{
    const size_t unit = QUIRE_EXTENT_UNIT_BYTES;
    size_t mapped_bytes = size_bytes + unit;
    unsigned char *base;
    unsigned char *aligned;
    size_t head_bytes;

    (void)ctx;
    base = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        return NULL;
    }
    head_bytes = (unit - (uintptr_t)base % unit) % unit;
    aligned = base + head_bytes;
    if (head_bytes > 0) {
        (void)munmap(base, head_bytes);
    }
    (void)munmap(aligned + size_bytes, unit - head_bytes);
    /* Failure is harmless: without huge pages everything works, only slower. */
    (void)madvise(aligned, size_bytes, MADV_HUGEPAGE);
    return aligned;
}

static void os_unmap(void *ctx, void *base, size_t size_bytes)
{
    (void)ctx;
    if (munmap(base, size_bytes) != 0) {
        /* The mapping had merged with a neighbour, and the split hit the system's limit on
         * mappings: give the memory back and keep the addresses. */
        (void)madvise(base, size_bytes, MADV_DONTNEED);
    }
}

static bool os_lock(void *ctx, void *base, size_t size_bytes)
{
    (void)ctx;
    return mlock(base, size_bytes) == 0;
}

const quire_extent_source *quire_extent_source_os(void)
{
    static const quire_extent_source source = { os_map, os_unmap, os_lock, NULL };

    return &source;
}
