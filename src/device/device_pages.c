/* device_pages.c - a device's memory as that of a cache's pages (quire_page_memory).
 *
 * Bytes to the host pass a piece of pinned memory, a part at a time, but for those whose end at the
 * host is pinned by pin(): one copy moves these. Bytes from the host go ahead of the steps that
 * read them (device_ahead.h), or without memory for that by the same piece.
 *
 * A copy that fails loses the device: no step could tell which of its pages hold garbage. So do a
 * copy inside the memory that cannot be queued, and work that failed before memory is given back.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "device/device_internal.h"

#include <string.h>

#define STAGE_BYTES ((uint64_t)1 << 20)

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

static unsigned char *begin_of(const quire_device_extents *e, const quire_device_memory *memory)
{
    return e->kind == QUIRE_DEVICE_PINNED ? memory->host : memory->addr;
}

/* How many pieces begin at or below an address. */
static uint32_t n_below(const quire_device_extents *e, const unsigned char *addr)
{
    uint32_t low = 0, high = e->n;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if ((uintptr_t)begin_of(e, &e->items[middle]) <= (uintptr_t)addr) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static unsigned char *memory_take(quire_device *device, quire_device_extents *e, size_t bytes)
{
    quire_device_memory memory;
    uint32_t at;

    if (extents_grow(e, &device->allocator) < 0 ||
        quire_device_alloc(device, e->kind, bytes, &memory) < 0) {
        return NULL;
    }
    at = n_below(e, begin_of(e, &memory));
    memmove(e->items + at + 1, e->items + at, (e->n - at) * sizeof(*e->items));
    e->items[at] = memory;
    e->n++;
    return begin_of(e, &memory);
}

static void memory_give(quire_device *device, quire_device_extents *e, const void *base,
                        size_t bytes)
{
    const uint32_t at = n_below(e, base) - 1;

    QUIRE_CHECK(at < e->n && begin_of(e, &e->items[at]) == base && e->items[at].bytes == bytes);
    (void)quire_device_ahead_meet(device, base, bytes);
    if (quire_device_drain(device) < 0) { /* queued work may use it */
        (void)quire_device_lose(device);  /* no step is told of copies that failed */
    }
    quire_device_free(device, &e->items[at]);
    e->n--;
    memmove(e->items + at, e->items + at + 1, (e->n - at) * sizeof(*e->items));
}

static void *pages_map(void *ctx, size_t bytes)
{
    quire_device *device = ctx;

    return memory_take(device, &device->extents, bytes);
}

static void pages_unmap(void *ctx, void *base, size_t bytes)
{
    quire_device *device = ctx;

    memory_give(device, &device->extents, base, bytes);
}

static void *pages_pin(void *ctx, size_t bytes)
{
    quire_device *device = ctx;

    device->pinned.kind = QUIRE_DEVICE_PINNED;
    return memory_take(device, &device->pinned, bytes);
}

static void pages_unpin(void *ctx, void *base, size_t bytes)
{
    quire_device *device = ctx;

    memory_give(device, &device->pinned, base, bytes);
}

const quire_device_memory *quire_device_place(const quire_device_extents *e,
                                              const unsigned char *addr, uint64_t *offset)
{
    const uint32_t at = n_below(e, addr) - 1;

    QUIRE_CHECK(at < e->n);
    *offset = (uint64_t)((uintptr_t)addr - (uintptr_t)begin_of(e, &e->items[at]));
    return &e->items[at];
}

static bool is_pinned(const quire_device *device, const unsigned char *addr)
{
    const uint32_t n = n_below(&device->pinned, addr);
    const quire_device_memory *memory = n > 0 ? &device->pinned.items[n - 1] : NULL;

    return memory != NULL && (uintptr_t)addr - (uintptr_t)memory->host < memory->bytes;
}

/* Queue copies without a stop: ends lie in the device's memory, or in pinned memory. */
static int copy_queued(quire_device *device, const quire_device_extents *to,
                       const quire_device_extents *from, const quire_page_piece *pieces, uint32_t n)
{
    quire_device_piece queued[QUIRE_PAGE_PIECES];
    uint32_t n_queued = 0;

    for (uint32_t i = 0; i < n; i++) {
        quire_device_piece *piece = &queued[n_queued++];

        *piece = (quire_device_piece){ .bytes = pieces[i].bytes };
        piece->to = quire_device_place(to, pieces[i].to, &piece->to_offset);
        piece->from = quire_device_place(from, pieces[i].from, &piece->from_offset);
        if (n_queued == QUIRE_PAGE_PIECES || i + 1 == n) {
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
    quire_device_piece queued[QUIRE_PAGE_PIECES];
    unsigned char *to[QUIRE_PAGE_PIECES]; /* of copies out */
    uint32_t n;
    uint64_t bytes;
} stage;

/* Copy the bytes in the stage, and wait for the copies. */
static int stage_flush(stage *s)
{
    const unsigned char *from = s->device->stage.host;

    if (s->n == 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_device_copy(s->device, s->queued, s->n));
    QUIRE_TRY(quire_device_drain(s->device));
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
        q->to = quire_device_place(&s->device->extents, piece->to + done, &q->to_offset);
        q->from = &s->device->stage;
        q->from_offset = s->bytes;
        memcpy(s->device->stage.host + s->bytes, piece->from + done, bytes);
    } else {
        q->from = quire_device_place(&s->device->extents, piece->from + done, &q->from_offset);
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
            if (s.n == QUIRE_PAGE_PIECES || s.bytes == STAGE_BYTES) {
                QUIRE_TRY(stage_flush(&s));
            }
            done += stage_add(&s, &pieces[i], done);
        }
    }
    return stage_flush(&s);
}

/* Without room in the queue: once more when all that waits is done. The caller cannot go on without
 * these copies. */
static int copy_within(quire_device *device, const quire_page_piece *pieces, uint32_t n)
{
    const quire_device_extents *own = &device->extents;
    int rc = copy_queued(device, own, own, pieces, n);

    if (rc == QUIRE_NOMEM) {
        QUIRE_TRY(quire_device_drain(device));
        rc = copy_queued(device, own, own, pieces, n);
    }
    return rc < 0 ? quire_device_lose(device) : rc;
}

/* Without pinned memory the bytes go the way of those to the host. */
static int copy_in(quire_device *device, const quire_page_piece *pieces, uint32_t n)
{
    const int rc =
        device->ops->is_in_place ? QUIRE_NOMEM : quire_device_ahead_add(device, pieces, n);

    return rc == QUIRE_NOMEM ? copy_staged(device, true, pieces, n) : rc;
}

/* Waiting bytes of pages that these copies read or write go first. */
static int ahead_first(quire_device *device, quire_page_copy kind, const quire_page_piece *pieces,
                       uint32_t n)
{
    for (uint32_t i = 0; i < n && kind != QUIRE_PAGE_COPY_IN; i++) {
        if (kind != QUIRE_PAGE_COPY_OUT) {
            QUIRE_TRY(quire_device_ahead_meet(device, pieces[i].to, pieces[i].bytes));
        }
        if (kind != QUIRE_PAGE_COPY_FETCH) {
            QUIRE_TRY(quire_device_ahead_meet(device, pieces[i].from, pieces[i].bytes));
        }
    }
    return QUIRE_OK;
}

static int copy_by_kind(quire_device *device, quire_page_copy kind, const quire_page_piece *pieces,
                        uint32_t n)
{
    const quire_device_extents *own = &device->extents;

    QUIRE_TRY(ahead_first(device, kind, pieces, n));
    switch (kind) {
    case QUIRE_PAGE_COPY_WITHIN:
        return copy_within(device, pieces, n);
    case QUIRE_PAGE_COPY_FETCH:
        return copy_queued(device, own, &device->pinned, pieces, n);
    case QUIRE_PAGE_COPY_OUT:
        if (n > 0 && is_pinned(device, pieces[0].to)) {
            QUIRE_TRY(copy_queued(device, &device->pinned, own, pieces, n));
            return quire_device_drain(device);
        }
        return copy_staged(device, false, pieces, n);
    default:
        return copy_in(device, pieces, n);
    }
}

static int pages_copy(void *ctx, quire_page_copy kind, const quire_page_piece *pieces,
                      uint32_t n_pieces)
{
    quire_device *device = ctx;
    int rc = device->is_lost ? QUIRE_LOST : copy_by_kind(device, kind, pieces, n_pieces);

    /* The caller may use the memory of pieces that were queued before the one without room. */
    if (rc == QUIRE_NOMEM && quire_device_drain(device) < 0) {
        rc = QUIRE_LOST;
    }
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
                                .pin = pages_pin,
                                .unpin = pages_unpin,
                                .ctx = device };
}

void quire_device_pages_end(quire_device *device)
{
    quire_device_ahead_end(device);
    quire_device_free(device, &device->stage);
    device->allocator.free(device->allocator.ctx, device->extents.items);
    device->allocator.free(device->allocator.ctx, device->pinned.items);
    device->extents = (quire_device_extents){ 0 };
    device->pinned = (quire_device_extents){ 0 };
}
