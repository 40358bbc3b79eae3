/* cuda_internal.h - the object behind cuda_device.h.
 *
 * Steps and their copies are in one stream, which does them in order, and copies beside them in a
 * second one. An event of the driver's is recorded behind each of the last pieces of work of a
 * stream, in turn.
 *
 * Layers with rows on the card come between work of an owner's, which is in a stream of its own in
 * the same context (cuda_shared.c):
 *
 *   owner's stream   Q K V of layer 4, `before`             wait `behind`, the rest of layer 4 ...
 *   line.stream      wait `before`, parameters, append, attention, `behind`
 *
 * A layer's parameters wait for their copy in a ring of pinned memory, since the driver may wait
 * for the stream where it copies other memory.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_CUDA_INTERNAL_H
#define QUIRE_DEVICE_CUDA_INTERNAL_H

#include "device/card/card.h"
#include "device/cuda/cuda_context.h"

#define QUIRE_CUDA_EVENTS 8u

typedef struct quire_cuda_piece {
    quire_card_piece base;
    quire_cuda_addr addr; /* on the card; of a piece of the host's memory, too */
    void *host;           /* NULL: the card's memory */
} quire_cuda_piece;

typedef struct quire_cuda_line {
    quire_cuda_stream stream;
    quire_cuda_event events[QUIRE_CUDA_EVENTS]; /* behind piece of work n: events[n % EVENTS] */
    uint64_t n_done;                            /* pieces of work that are known to be done */
} quire_cuda_line;

#define QUIRE_CUDA_RING_PARTS 4u

typedef struct quire_cuda_ring {
    quire_device_memory memory; /* pinned, in parts of one size */
    uint64_t part_bytes;
    uint64_t last[QUIRE_CUDA_RING_PARTS]; /* the work that reads a part last */
    uint32_t part;                        /* that is being filled */
    uint64_t at;                          /* in it */
} quire_cuda_ring;

typedef struct quire_cuda {
    quire_card card;
    quire_cuda_context *context;
    quire_cuda_line line;
    quire_cuda_line beside;
    const void *owner;               /* NULL: nobody's work is beside */
    quire_cuda_event before, behind; /* the owner's */
    quire_cuda_ring ring;
} quire_cuda;

/* cuda_queue.c: of quire_card_calls. */
int quire_cuda_queue_open(quire_card *card);
void quire_cuda_close(quire_card *card);
int quire_cuda_piece_make(quire_card *card, quire_device_kind kind, uint64_t bytes,
                          quire_card_piece *piece, quire_device_memory *out);
void quire_cuda_piece_end(quire_card *card, quire_card_piece *piece);
int quire_cuda_copy(quire_card *card, const quire_device_piece *pieces, uint32_t n_pieces);
int quire_cuda_wait(quire_card *card, uint64_t value);
int quire_cuda_copy_beside(quire_card *card, const quire_device_piece *pieces, uint32_t n_pieces);
int quire_cuda_join(quire_card *card, uint64_t value);
int quire_cuda_wait_beside(quire_card *card, uint64_t value);
int quire_cuda_begin(quire_card *card);
int quire_cuda_dispatch(quire_card *card, const quire_card_dispatch *dispatch);
void quire_cuda_barrier(quire_card *card);
int quire_cuda_end(quire_card *card, int status);
/* The status for a result; notes the loss of the device. */
int quire_cuda_status(quire_cuda *cuda, quire_cuda_result result);

/* cuda_shared.c: of quire_card_calls. */
const void *quire_cuda_queue_owner(const quire_card *card);
int quire_cuda_queue_share(quire_card *card, const void *owner, void *before, void *behind);
int quire_cuda_behind_owner(quire_card *card);
int quire_cuda_before_owner(quire_card *card);
int quire_cuda_write(quire_card *card, const quire_device_memory *to, const void *from,
                     uint64_t bytes);

#endif /* QUIRE_DEVICE_CUDA_INTERNAL_H */
