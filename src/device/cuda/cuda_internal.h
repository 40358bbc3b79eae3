/* cuda_internal.h - the object behind cuda_device.h.
 *
 * Steps and their copies are in one stream, which does them in order, and copies beside them in a
 * second one. An event of the driver's is recorded behind each of the last pieces of work of a
 * stream, in turn.
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

typedef struct quire_cuda {
    quire_card card;
    quire_cuda_context *context;
    quire_cuda_line line;
    quire_cuda_line beside;
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

#endif /* QUIRE_DEVICE_CUDA_INTERNAL_H */
