/* device_pages.c - a device's memory as that of a cache's pages (quire_page_memory).
 *
 * Bytes to the host pass the stage, a piece of pinned memory in two parts: while the device copies
 * into one, the host takes bytes out of the other. Bytes whose end at the host is pinned by pin()
 * are moved by one copy. Bytes from the host go ahead of the steps that
 * read them (device_ahead.h), or without memory for that by the same piece.
 *
 * A copy that fails loses the device: no step could tell which of its pages hold garbage. So do a
 * copy inside the memory that cannot be queued, and work that failed before memory is given back.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "device/device_internal.h"

#include <string.h>

#define STAGE_PARTS     2u
#define STAGE_BYTES     ((uint64_t)2 << 20) /* of all parts; see DEVICE_COPIES_BYTES, too */
#define STAGE_BYTES_MIN ((uint64_t)1 << 20) /* where the owner's limit leaves no room for more */

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

/* A part of the stage: copies between its bytes and pages. */
typedef struct stage_part {
    uint64_t offset; /* in the stage */
    uint64_t bytes;
    quire_device_piece queued[QUIRE_PAGE_PIECES];
    unsigned char *to[QUIRE_PAGE_PIECES]; /* of copies out */
    uint32_t n;
    quire_device_event event; /* behind the copies */
} stage_part;

typedef struct stage {
    quire_device *device;
    bool is_in;
    uint64_t part_bytes;
    stage_part parts[STAGE_PARTS];
    uint32_t at; /* the part that takes pieces; the next one was queued before all others */
} stage;

/* Wait for a part's copies, and take its bytes out. */
static int stage_finish(const stage *s, stage_part *part)
{
    if (part->n > 0) {
        QUIRE_TRY(quire_device_wait(s->device, part->event));
    }
    for (uint32_t i = 0; i < part->n && !s->is_in; i++) {
        memcpy(part->to[i], s->device->stage.host + part->queued[i].to_offset,
               (size_t)part->queued[i].bytes);
    }
    part->n = 0;
    part->bytes = 0;
    return QUIRE_OK;
}

/* Queue the copies of the part at hand, and make the next one ready. */
static int stage_next(stage *s)
{
    stage_part *part = &s->parts[s->at];

    if (part->n > 0) {
        QUIRE_TRY(quire_device_copy(s->device, part->queued, part->n));
        QUIRE_TRY(quire_device_record(s->device, &part->event));
    }
    s->at = (s->at + 1) % STAGE_PARTS;
    return stage_finish(s, &s->parts[s->at]);
}

/* A piece, or as much of it as the part at hand has room for. Returns the number of its bytes. */
static size_t stage_add(stage *s, const quire_page_piece *piece, size_t done)
{
    stage_part *part = &s->parts[s->at];
    const uint64_t room = s->part_bytes - part->bytes;
    const size_t bytes = piece->bytes - done < room ? piece->bytes - done : (size_t)room;
    const uint64_t offset = part->offset + part->bytes;
    quire_device_piece *q = &part->queued[part->n];

    *q = (quire_device_piece){ .bytes = bytes };
    if (s->is_in) {
        q->to = quire_device_place(&s->device->extents, piece->to + done, &q->to_offset);
        q->from = &s->device->stage;
        q->from_offset = offset;
        memcpy(s->device->stage.host + offset, piece->from + done, bytes);
    } else {
        q->from = quire_device_place(&s->device->extents, piece->from + done, &q->from_offset);
        q->to = &s->device->stage;
        q->to_offset = offset;
        part->to[part->n] = piece->to + done;
    }
    part->n++;
    part->bytes += bytes;
    return bytes;
}

/* The stage's memory; its copies are done. */
static int stage_begin(stage *s)
{
    quire_device_memory *memory = &s->device->stage;
    int rc = QUIRE_OK;

    if (memory->bytes == 0) {
        rc = quire_device_alloc(s->device, QUIRE_DEVICE_PINNED, STAGE_BYTES, memory);
    }
    if (rc == QUIRE_NOMEM) {
        rc = quire_device_alloc(s->device, QUIRE_DEVICE_PINNED, STAGE_BYTES_MIN, memory);
    }
    s->part_bytes = memory->bytes / STAGE_PARTS;
    for (uint32_t i = 0; i < STAGE_PARTS; i++) {
        s->parts[i].offset = i * s->part_bytes;
    }
    return rc;
}

static int copy_staged(quire_device *device, bool is_in, const quire_page_piece *pieces, uint32_t n)
{
    stage s = { .device = device, .is_in = is_in };

    QUIRE_TRY(stage_begin(&s));
    for (uint32_t i = 0; i < n; i++) {
        for (size_t done = 0; done < pieces[i].bytes;) {
            const stage_part *part = &s.parts[s.at];

            if (part->n == QUIRE_PAGE_PIECES || part->bytes == s.part_bytes) {
                QUIRE_TRY(stage_next(&s));
            }
            done += stage_add(&s, &pieces[i], done);
        }
    }
    for (uint32_t i = 0; i < STAGE_PARTS; i++) { /* the last part comes last */
        QUIRE_TRY(stage_next(&s));
    }
    return QUIRE_OK;
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
