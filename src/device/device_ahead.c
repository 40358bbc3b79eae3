/* device_ahead.c - see device_ahead.h.
 *
 * SPDX-License-Identifier: MIT */
#include "device/device_ahead.h"

#include "base/check.h"
#include "base/num.h"
#include "device/device_internal.h"

#include <string.h>

#define PIECES_MAX  1024u
#define BYTES_MIN   ((uint64_t)256 << 10) /* less pinned memory is of no use */
#define LIMIT_SHARE 16u                   /* of the owner's limit: one part is pinned memory here */

/* ---- memory ---- */

static int memory_take(quire_device *device)
{
    quire_device_ahead *a = &device->ahead;
    const uint64_t max_bytes = device->memory_bytes_max;
    uint64_t bytes = QUIRE_DEVICE_AHEAD_BYTES;

    if (a->pieces != NULL) {
        return QUIRE_OK;
    }
    if (max_bytes != 0) {
        bytes = quire_min_u64(bytes, (max_bytes - device->used_bytes) / LIMIT_SHARE);
    }
    QUIRE_FAIL_IF(bytes < BYTES_MIN, QUIRE_NOMEM);
    QUIRE_TRY(quire_device_alloc(device, QUIRE_DEVICE_PINNED, bytes, &a->memory));
    a->pieces = device->allocator.alloc(device->allocator.ctx, PIECES_MAX * sizeof(a->pieces[0]));
    if (a->pieces == NULL) {
        quire_device_free(device, &a->memory);
        return QUIRE_NOMEM;
    }
    return QUIRE_OK;
}

/* ---- the queue ---- */

static bool is_waiting(const quire_device_ahead *a)
{
    return a->n_queued < a->n_pieces;
}

static quire_device_ahead_piece *piece_of(const quire_device_ahead *a, uint64_t number)
{
    return &a->pieces[number % PIECES_MAX];
}

bool quire_device_ahead_is_under_way(const quire_device *device)
{
    return device->ahead.n_done < device->ahead.n_queued;
}

/* Pieces below a number are done, and leave their room. */
static void room_make(quire_device_ahead *a, uint64_t number)
{
    for (; a->n_done < number; a->n_done++) {
        a->used_bytes -= piece_of(a, a->n_done)->bytes;
    }
}

/* Queued pieces below a number are in front of all further work. Pages are forgotten when all of
 * their pieces are. */
static int join(quire_device *device, uint64_t number)
{
    quire_device_ahead *a = &device->ahead;

    if (a->n_joined < number) {
        QUIRE_TRY(device->ops->join(device, piece_of(a, number - 1)->event));
        a->n_joined = number;
    }
    if (a->n_joined == a->n_pieces) {
        a->n_pages = 0;
        memset(a->slots, 0, sizeof(a->slots));
        a->has_unknown = false;
    }
    return QUIRE_OK;
}

/* Queue waiting pieces, up to so many bytes but one at least. Errors: as quire_device_copy(). */
static int part_queue(quire_device *device, uint64_t bytes_max)
{
    quire_device_ahead *a = &device->ahead;
    quire_device_piece queued[QUIRE_PAGE_PIECES];
    quire_device_event event;
    uint64_t bytes = 0;
    uint32_t n = 0;

    while (n < QUIRE_PAGE_PIECES && a->n_queued + n < a->n_pieces) {
        const quire_device_ahead_piece *piece = piece_of(a, a->n_queued + n);

        if (n > 0 && bytes + piece->bytes > bytes_max) {
            break;
        }
        queued[n] = (quire_device_piece){ .from = &a->memory,
                                          .from_offset = piece->offset,
                                          .bytes = piece->bytes };
        queued[n].to = quire_device_place(&device->extents, piece->to, &queued[n].to_offset);
        bytes += piece->bytes;
        n++;
    }
    QUIRE_TRY(device->ops->copy_beside(device, queued, n, &event));
    for (uint32_t i = 0; i < n; i++) {
        piece_of(a, a->n_queued++)->event = event;
    }
    return QUIRE_OK;
}

/* Queue all waiting pieces, in parts of so many bytes at most. */
static int settle_in_parts(quire_device *device, uint64_t part_bytes)
{
    int rc = QUIRE_OK;

    QUIRE_FAIL_IF(device->is_lost, QUIRE_LOST); /* and the pages may be gone */
    while (rc == QUIRE_OK && is_waiting(&device->ahead)) {
        rc = part_queue(device, part_bytes);
        if (rc == QUIRE_NOMEM) { /* once more when all that was queued is done */
            rc = quire_device_drain(device);
            rc = rc == QUIRE_OK ? part_queue(device, part_bytes) : rc;
        }
    }
    return rc < 0 ? quire_device_lose(device) : QUIRE_OK;
}

int quire_device_ahead_settle(quire_device *device)
{
    QUIRE_TRY(settle_in_parts(device, UINT64_MAX));
    return join(device, device->ahead.n_queued) < 0 ? quire_device_lose(device) : QUIRE_OK;
}

int quire_device_ahead_meet(quire_device *device, const unsigned char *addr, uint64_t n)
{
    const quire_device_ahead *a = &device->ahead;
    const uintptr_t begin = (uintptr_t)addr;

    for (uint64_t i = a->n_joined; i < a->n_pieces; i++) {
        const quire_device_ahead_piece *piece = piece_of(a, i);
        const uintptr_t to = (uintptr_t)piece->to;

        if (to < begin + n && begin < to + piece->bytes) {
            return quire_device_ahead_settle(device);
        }
    }
    return QUIRE_OK;
}

/* ---- new pieces ---- */

/* The bit of a page in `slots`. */
static uint64_t bit_of(uint32_t slot)
{
    return (uint64_t)1 << slot % 64;
}

static uint32_t word_of(uint32_t slot)
{
    return slot / 64 % QUIRE_DEVICE_AHEAD_WORDS;
}

static bool has_page(const quire_device_ahead *a, const unsigned char *extent, uint32_t slot)
{
    const bool may_have = (a->slots[word_of(slot)] & bit_of(slot)) != 0;

    for (uint32_t i = 0; may_have && i < a->n_pages; i++) {
        if (a->pages[i].slot == slot && a->pages[i].extent == extent) {
            return true;
        }
    }
    return false;
}

/* Whether there is room for another piece. */
static bool has_room(const quire_device_ahead *a)
{
    return a->n_pieces - a->n_done < PIECES_MAX && a->used_bytes < a->memory.bytes &&
           a->n_pages < QUIRE_DEVICE_AHEAD_PAGES;
}

/* Wait for the queued pieces below a number, at least, which leave their room. */
static int done_wait(quire_device *device, uint64_t number)
{
    quire_device_ahead *a = &device->ahead;
    const quire_device_event event = piece_of(a, number - 1)->event;

    QUIRE_TRY(quire_device_ahead_status(device, device->ops->wait_beside(device, event)));
    while (number < a->n_queued && piece_of(a, number)->event == event) {
        number++; /* of the same part */
    }
    room_make(a, number);
    /* To wait on the device for what is done costs nothing. */
    return join(device, a->n_done) < 0 ? quire_device_lose(device) : QUIRE_OK;
}

/* Bytes come faster than room: queue all that waits, and wait for the piece in front. */
static int room_wait(quire_device *device)
{
    quire_device_ahead *a = &device->ahead;

    if (!has_room(a)) {
        QUIRE_TRY(settle_in_parts(device, QUIRE_DEVICE_AHEAD_PART));
    }
    if (a->n_pages == QUIRE_DEVICE_AHEAD_PAGES) {
        QUIRE_TRY(quire_device_ahead_settle(device));
    }
    while (!has_room(a)) { /* each wait gives room */
        QUIRE_TRY(done_wait(device, a->n_done + 1));
    }
    return QUIRE_OK;
}

int quire_device_ahead_drain(quire_device *device)
{
    return quire_device_ahead_is_under_way(device) ? done_wait(device, device->ahead.n_queued)
                                                   : QUIRE_OK;
}

/* A piece, or as much of it as there is room for. Returns the number of its bytes. */
static size_t piece_add(quire_device_ahead *a, const quire_page_piece *piece, size_t done)
{
    const uint64_t behind = quire_min_u64(a->memory.bytes - a->at, QUIRE_DEVICE_AHEAD_PART);
    const uint64_t room = quire_min_u64(a->memory.bytes - a->used_bytes, behind);
    const size_t bytes = (size_t)quire_min_u64(piece->bytes - done, room);

    memcpy(a->memory.host + a->at, piece->from + done, bytes);
    *piece_of(a, a->n_pieces++) =
        (quire_device_ahead_piece){ .to = piece->to + done, .offset = a->at, .bytes = bytes };
    a->used_bytes += bytes;
    a->at = (a->at + bytes) % a->memory.bytes;
    if (piece->extent == NULL) {
        a->has_unknown = true;
    } else if (!has_page(a, piece->extent, piece->slot)) {
        a->pages[a->n_pages++] = (quire_device_ahead_page){ piece->extent, piece->slot };
        a->slots[word_of(piece->slot)] |= bit_of(piece->slot);
    }
    return bytes;
}

int quire_device_ahead_add(quire_device *device, const quire_page_piece *pieces, uint32_t n)
{
    quire_device_ahead *a = &device->ahead;

    QUIRE_TRY(memory_take(device));
    for (uint32_t i = 0; i < n; i++) {
        /* Pieces of one copy come in any order. */
        QUIRE_TRY(quire_device_ahead_meet(device, pieces[i].to, pieces[i].bytes));
        for (size_t done = 0; done < pieces[i].bytes;) {
            QUIRE_TRY(room_wait(device));
            done += piece_add(a, &pieces[i], done);
        }
    }
    return QUIRE_OK;
}

void quire_device_ahead_wait(quire_device *device)
{
    const quire_device_ahead *a = &device->ahead;

    if (quire_device_ahead_is_under_way(device)) {
        (void)device->ops->wait_beside(device, piece_of(a, a->n_queued - 1)->event);
    }
}

void quire_device_ahead_end(quire_device *device)
{
    quire_device_ahead *a = &device->ahead;

    quire_device_ahead_wait(device);
    quire_device_free(device, &a->memory);
    device->allocator.free(device->allocator.ctx, a->pieces);
    *a = (quire_device_ahead){ .n_pages = 0 };
}

/* ---- steps ---- */

static bool table_has_page(const quire_device_ahead *a, const quire_attn_table *table,
                           const quire_page_addr *addrs)
{
    for (uint32_t e = 0; e < table->n_entries; e++) {
        const quire_page_id id = table->leaves[e / QUIRE_LEAF_ENTRIES][e % QUIRE_LEAF_ENTRIES].page;

        if (id != QUIRE_PAGE_NULL && has_page(a, addrs[id].extent, addrs[id].slot)) {
            return true;
        }
    }
    return false;
}

/* Cost: O(table entries), for each of them O(waiting pages) if one has a slot like its own. */
static bool batch_has_page(const quire_device *device, const quire_attn_batch *batch)
{
    const quire_device_ahead *a = &device->ahead;

    for (uint32_t q = 0; q < batch->n_seqs; q++) {
        for (uint32_t g = 0; g < device->n_groups; g++) {
            if (table_has_page(a, &batch->seqs[q].tables[g], batch->page_addr)) {
                return true;
            }
        }
    }
    return false;
}

void quire_device_ahead_begin(quire_device *device)
{
    device->ahead.has_rows = false;
}

int quire_device_ahead_plan(quire_device *device, const quire_attn_batch *batch)
{
    quire_device_ahead *a = &device->ahead;

    a->has_rows = batch->n_seqs > 0;
    return a->n_joined < a->n_pieces && (a->has_unknown || batch_has_page(device, batch))
               ? quire_device_ahead_settle(device)
               : QUIRE_OK;
}

void quire_device_ahead_next(quire_device *device)
{
    quire_device_ahead *a = &device->ahead;

    if (a->has_rows) {
        room_make(a, a->n_joined); /* the result was behind them */
        quire_device_ahead_behind(device);
    }
}

void quire_device_ahead_behind(quire_device *device)
{
    quire_device_ahead *a = &device->ahead;

    if (a->has_rows && is_waiting(a)) {
        const int rc = part_queue(device, QUIRE_DEVICE_AHEAD_PART);

        if (rc < 0 && rc != QUIRE_NOMEM) { /* without room in the queue they go on waiting */
            (void)quire_device_lose(device);
        }
    }
}

int quire_device_ahead_status(quire_device *device, int status)
{
    return status == QUIRE_IO && quire_device_ahead_is_under_way(device) ? quire_device_lose(device)
                                                                         : status;
}
