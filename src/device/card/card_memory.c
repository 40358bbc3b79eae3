/* card_memory.c - pieces of memory that a card's device gave, and memory that grows with a step.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "device/card/card.h"

#include <string.h>

static void piece_end(quire_card *card, quire_card_piece *piece)
{
    card->calls->piece_end(card, piece);
    card->base.allocator.free(card->base.allocator.ctx, piece);
}

int quire_card_alloc(quire_card *card, quire_device_kind kind, uint64_t bytes,
                     quire_device_memory *out)
{
    quire_card_piece *piece =
        card->base.allocator.alloc(card->base.allocator.ctx, card->calls->piece_bytes);
    int rc;

    QUIRE_FAIL_IF(piece == NULL, QUIRE_NOMEM);
    memset(piece, 0, card->calls->piece_bytes);
    rc = card->calls->piece_make(card, kind, bytes, piece, out);
    if (rc < 0) {
        piece_end(card, piece);
        return rc;
    }
    piece->next = card->pieces;
    if (card->pieces != NULL) {
        card->pieces->previous = piece;
    }
    card->pieces = piece;
    out->ctx = piece;
    out->bytes = bytes;
    return QUIRE_OK;
}

void quire_card_free(quire_card *card, quire_device_memory *memory)
{
    quire_card_piece *piece = memory->ctx;

    if (piece == NULL) {
        return;
    }
    if (piece->previous != NULL) {
        piece->previous->next = piece->next;
    } else {
        card->pieces = piece->next;
    }
    if (piece->next != NULL) {
        piece->next->previous = piece->previous;
    }
    piece_end(card, piece);
}

int quire_card_wait_all(quire_card *card)
{
    return card->calls->wait(card, card->n_submitted);
}

int quire_card_reserve(quire_card *card, quire_device_kind kind, uint64_t bytes,
                       quire_device_memory *memory)
{
    if (bytes > memory->bytes) {
        if (memory->bytes > 0) { /* queued work may use it */
            QUIRE_TRY(quire_card_wait_all(card));
        }
        quire_card_free(card, memory);
        *memory = (quire_device_memory){ 0 };
        QUIRE_TRY(quire_card_alloc(card, kind, bytes + bytes / 2, memory));
    }
    return QUIRE_OK;
}

int quire_card_twin_reserve(quire_card *card, uint64_t bytes, quire_card_twin *twin)
{
    QUIRE_TRY(quire_card_reserve(card, QUIRE_DEVICE_PINNED, bytes, &twin->pinned));
    return quire_card_reserve(card, QUIRE_DEVICE_PAGES, bytes, &twin->own);
}

int quire_card_twin_send(quire_card *card, const quire_card_twin *twin, uint64_t bytes)
{
    const quire_device_piece piece = { .to = &twin->own, .from = &twin->pinned, .bytes = bytes };

    return card->calls->copy(card, &piece, 1);
}
