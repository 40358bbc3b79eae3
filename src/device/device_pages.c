/* device_pages.c - a device's memory as that of a cache's pages (quire_page_memory).
 *
 * Bytes to and from the host pass a piece of pinned memory, a part at a time.
 *
 * A copy that fails loses the device: no step could tell which of its pages hold garbage.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "device/device_internal.h"

#include <string.h>

#define STAGE_BYTES ((uint64_t)1 << 20)
#define PIECES_MAX  64u /* of one call to copy() */

/* The extents in order of their addresses, and the pinned memory. */
static int extents_grow(quire_device_extents *e, const quire_allocator *allocator)
{
    const uint32_t max = e->max > 0 ? 2 * e->max : 16;
    quire_device_memory *items;

    if (e->n < e->max) {
        return QUIRE_OK;
    }
    items = allocator->alloc(allocator->ctx, max * sizeof(*items));
    QUIRE_FAIL_IF(items == NULL, QUIRE_NOMEM);
    if (e->n > 0) {
        memcpy(items, e->items, e->n * sizeof(*items));
    }
    allocator->free(allocator->ctx, e->items);
    e->items = items;
    e->max = max;
    return QUIRE_OK;
}

/* How many extents begin at or below an address. */
static uint32_t n_below(const quire_device_extents *e, const unsigned char *addr)
{
    uint32_t low = 0, high = e->n;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if ((uintptr_t)e->items[middle].addr <= (uintptr_t)addr) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void *pages_map(void *ctx, size_t bytes)
{
    quire_device *device = ctx;
    quire_device_extents *e = &device->extents;
    quire_device_memory memory;
    uint32_t at;

    if (extents_grow(e, &device->allocator) < 0 ||
        quire_device_alloc(device, QUIRE_DEVICE_PAGES, bytes, &memory) < 0) {
        return NULL;
    }
    at = n_below(e, memory.addr);
    memmove(e->items + at + 1, e->items + at, (e->n - at) * sizeof(*e->items));
    e->items[at] = memory;
    e->n++;
    return memory.addr;
}

static void pages_unmap(void *ctx, void *base, size_t bytes)
{
    quire_device *device = ctx;
    quire_device_extents *e = &device->extents;
    const uint32_t at = n_below(e, base) - 1;

    QUIRE_CHECK(at < e->n && e->items[at].addr == base && e->items[at].bytes == bytes);
    (void)quire_device_sync(device); /* queued work may use it */
    quire_device_free(device, &e->items[at]);
    e->n--;
    memmove(e->items + at, e->items + at + 1, (e->n - at) * sizeof(*e->items));
}

static const quire_device_memory *extent_of(const quire_device *device, const unsigned char *addr,
                                            uint64_t *offset)
{
    const uint32_t at = n_below(&device->extents, addr) - 1;

    QUIRE_CHECK(at < device->extents.n);
    *offset = (uint64_t)((uintptr_t)addr - (uintptr_t)device->extents.items[at].addr);
    return &device->extents.items[at];
}

static int copy_within(quire_device *device, const quire_page_piece *pieces, uint32_t n)
{
    quire_device_piece queued[PIECES_MAX];
    uint32_t n_queued = 0;

    for (uint32_t i = 0; i < n; i++) {
        quire_device_piece *piece = &queued[n_queued++];

        *piece = (quire_device_piece){ .bytes = pieces[i].bytes };
        piece->to = extent_of(device, pieces[i].to, &piece->to_offset);
        piece->from = extent_of(device, pieces[i].from, &piece->from_offset);
        if (n_queued == PIECES_MAX || i + 1 == n) {
            QUIRE_TRY(quire_device_copy(device, queued, n_queued));
            n_queued = 0;
        }
    }
    return QUIRE_OK;
}

/* Bytes in the pinned memory, and the copies between it and the pages. */
typedef struct stage {
    quire_device *device;
    bool is_in;
    quire_device_piece queued[PIECES_MAX];
    unsigned char *to[PIECES_MAX]; /* of copies out */
    uint32_t n;
    uint64_t bytes;
} stage;

/* Copy what is in the stage, and wait for it. */
static int stage_flush(stage *s)
{
    const unsigned char *from = s->device->stage.host;

    if (s->n == 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_device_copy(s->device, s->queued, s->n));
    QUIRE_TRY(quire_device_sync(s->device));
    for (uint32_t i = 0; i < s->n && !s->is_in; i++) {
        memcpy(s->to[i], from + s->queued[i].to_offset, (size_t)s->queued[i].bytes);
    }
    s->n = 0;
    s->bytes = 0;
    return QUIRE_OK;
}

/* A piece, or as much of it as the stage has room for. Returns the number of its bytes. */
static size_t stage_add(stage *s, const quire_page_piece *piece, size_t done)
{
    const uint64_t room = STAGE_BYTES - s->bytes;
    const size_t bytes = piece->bytes - done < room ? piece->bytes - done : (size_t)room;
    quire_device_piece *q = &s->queued[s->n];

    *q = (quire_device_piece){ .bytes = bytes };
    if (s->is_in) {
        q->to = extent_of(s->device, piece->to + done, &q->to_offset);
        q->from = &s->device->stage;
        q->from_offset = s->bytes;
        memcpy(s->device->stage.host + s->bytes, piece->from + done, bytes);
    } else {
        q->from = extent_of(s->device, piece->from + done, &q->from_offset);
        q->to = &s->device->stage;
        q->to_offset = s->bytes;
        s->to[s->n] = piece->to + done;
    }
    s->n++;
    s->bytes += bytes;
    return bytes;
}

static int copy_staged(quire_device *device, bool is_in, const quire_page_piece *pieces, uint32_t n)
{
    stage s = { .device = device, .is_in = is_in };

    if (device->stage.bytes == 0) {
        QUIRE_TRY(quire_device_alloc(device, QUIRE_DEVICE_PINNED, STAGE_BYTES, &device->stage));
    }
    for (uint32_t i = 0; i < n; i++) {
        for (size_t done = 0; done < pieces[i].bytes;) {
            if (s.n == PIECES_MAX || s.bytes == STAGE_BYTES) {
                QUIRE_TRY(stage_flush(&s));
            }
            done += stage_add(&s, &pieces[i], done);
        }
    }
    return stage_flush(&s);
}

static int pages_copy(void *ctx, quire_page_copy kind, const quire_page_piece *pieces,
                      uint32_t n_pieces)
{
    quire_device *device = ctx;
    const int rc = device->is_lost ? QUIRE_LOST
                   : kind == QUIRE_PAGE_COPY_WITHIN
                       ? copy_within(device, pieces, n_pieces)
                       : copy_staged(device, kind == QUIRE_PAGE_COPY_IN, pieces, n_pieces);

    return rc < 0 && rc != QUIRE_NOMEM ? quire_device_lose(device) : rc;
}

quire_page_memory quire_device_page_memory(quire_device *device)
{
    quire_device_info info;

    quire_device_info_get(device, &info);
    return (quire_page_memory){ .memory = info.memory,
                                .map = pages_map,
                                .unmap = pages_unmap,
                                .copy = pages_copy,
                                .ctx = device };
}

void quire_device_pages_end(quire_device *device)
{
    quire_device_free(device, &device->stage);
    device->allocator.free(device->allocator.ctx, device->extents.items);
    device->extents = (quire_device_extents){ 0 };
}
