/* device_ahead.h - bytes on their way from the host to pages, beside the steps that do not read
 * these pages.
 *
 *   copy() --> pinned memory --> | waiting | --> second queue --> pages
 *                                     |
 *          with each layer: a part of 1 MiB, behind the work of the layer
 *          at once, all of them: a step that has one of the pages, another copy of them, no room
 *
 * The pinned memory is a ring. A piece has its room until somebody has waited for an event behind
 * it. Without room all waiting pieces are queued, in parts of 1 MiB, and copy() waits for the first
 * part alone: so it fills the room of one part while the device copies the others.
 *
 * Waiting pieces are queued in the order of their calls, in the device's second queue, beside all
 * other work. When somebody needs one of them, all waiting pieces are queued, and the first queue
 * is joined: its further work begins when they are done. So a step that has none of their pages
 * waits for none. A step with one of them has all waiting pieces in front of it.
 *
 * A queued piece that fails is noticed by the first call that waits for the device. No page table
 * tells which page holds garbage then, so the device is lost.
 *
 * Thread: the device's owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_DEVICE_AHEAD_H
#define QUIRE_DEVICE_DEVICE_AHEAD_H

#include "quire/device.h"

#define QUIRE_DEVICE_AHEAD_BYTES ((uint64_t)8 << 20) /* of pinned memory, at most */
#define QUIRE_DEVICE_AHEAD_PART  ((uint64_t)1 << 20) /* queued between two layers, at most */
#define QUIRE_DEVICE_AHEAD_PAGES 128u                /* that wait, at most */
#define QUIRE_DEVICE_AHEAD_WORDS 16u

typedef struct quire_device_ahead_piece {
    unsigned char *to;
    uint64_t offset; /* in the pinned memory */
    uint64_t bytes;
    quire_device_event event; /* behind it, when it is queued */
} quire_device_ahead_piece;

typedef struct quire_device_ahead_page {
    const unsigned char *extent;
    uint32_t slot;
} quire_device_ahead_page;

typedef struct quire_device_ahead {
    quire_device_memory memory; /* pinned: a ring */
    uint64_t used_bytes;        /* of pieces that are not done */
    uint64_t at;                /* where the next piece lies */
    /* A ring. Numbers of pieces so far: piece i is known to be done below n_done, in front of all
     * further work of the first queue below n_joined, queued below n_queued, else it waits. */
    quire_device_ahead_piece *pieces;
    uint64_t n_done;
    uint64_t n_joined; /* at least n_done */
    uint64_t n_queued;
    uint64_t n_pieces;
    bool has_rows; /* the step at hand: leave() waits for all work of the first queue */
    /* Of pieces that are not joined. */
    bool has_unknown;                         /* a page is not known */
    uint64_t slots[QUIRE_DEVICE_AHEAD_WORDS]; /* bit s % 1024: a page has slot s */
    quire_device_ahead_page pages[QUIRE_DEVICE_AHEAD_PAGES];
    uint32_t n_pages;
} quire_device_ahead;

/* Take bytes for pages: they wait. Errors: QUIRE_NOMEM (no pinned memory; nothing has changed),
 * QUIRE_LOST. */
int quire_device_ahead_add(quire_device *device, const quire_page_piece *pieces, uint32_t n);

/* Whether there are queued pieces whose copies are not known to be done. */
bool quire_device_ahead_is_under_way(const quire_device *device);

/* Queue all waiting pieces, in front of all further work. A failure loses the device. Errors:
 * QUIRE_LOST. */
int quire_device_ahead_settle(quire_device *device);

/* The same if pieces that are not joined go to one of these n bytes. */
int quire_device_ahead_meet(quire_device *device, const unsigned char *addr, uint64_t n);

/* A plan comes. Until it is made, no step is at hand. */
void quire_device_ahead_begin(quire_device *device);

/* The plan is made: the same if the batch has one of the pages. The host does not wait for them. */
int quire_device_ahead_plan(quire_device *device, const quire_attn_batch *batch);

/* The result of a layer is there, so all work of the first queue is done: queue the next part. */
void quire_device_ahead_next(quire_device *device);
/* A layer is queued, and its result may come later: the same. */
void quire_device_ahead_behind(quire_device *device);

/* Wait for the second queue. Errors: as quire_device_wait(). */
int quire_device_ahead_drain(quire_device *device);

/* The same for a device that is lost for its owner, and may copy all the same. */
void quire_device_ahead_wait(quire_device *device);

/* A call that waited for the device has ended with a status: QUIRE_IO may be the failure of a
 * piece, and the device is lost then. Returns the status for the caller. */
int quire_device_ahead_status(quire_device *device, int status);

/* The device closes: nothing is copied any more. */
void quire_device_ahead_end(quire_device *device);

#endif /* QUIRE_DEVICE_DEVICE_AHEAD_H */
