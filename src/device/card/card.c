/* card.c - a device on a card as quire_device_ops sees it. See card.h.
 *
 * SPDX-License-Identifier: MIT */
#include "device/card/card.h"

#include "base/check.h"

int quire_card_make(quire_card *card, const quire_device_opts *opts)
{
    quire_attn_workspace_opts attn = opts->attn;

    attn.memory = QUIRE_MEMORY_DEVICE;
    attn.n_threads_max = attn.n_threads_max > 1 ? 1 : attn.n_threads_max;
    attn.isa = NULL;
    QUIRE_TRY(quire_attn_workspace_create(&card->workspace, &attn));
    return quire_card_levels_make(card);
}

void quire_card_end(quire_card *card)
{
    if (card->n_submitted > 0) {
        (void)quire_card_wait_all(card);
    }
    while (card->pieces != NULL) {
        quire_device_memory memory = { .ctx = card->pieces };

        quire_card_free(card, &memory);
    }
    quire_attn_workspace_destroy(card->workspace);
}

int quire_card_device_alloc(quire_device *device, quire_device_kind kind, uint64_t bytes,
                            quire_device_memory *out)
{
    return quire_card_alloc((quire_card *)device, kind, bytes, out);
}

void quire_card_device_free(quire_device *device, quire_device_memory *memory)
{
    quire_card_free((quire_card *)device, memory);
}

int quire_card_device_copy(quire_device *device, const quire_device_piece *pieces,
                           uint32_t n_pieces)
{
    quire_card *card = (quire_card *)device;

    return card->calls->copy(card, pieces, n_pieces);
}

int quire_card_device_record(quire_device *device, quire_device_event *out)
{
    *out = ((const quire_card *)device)->n_submitted;
    return QUIRE_OK;
}

static int failure_take(quire_card *card, int rc)
{
    const int failure = card->failure;

    QUIRE_TRY(rc);
    card->failure = QUIRE_OK;
    return failure;
}

int quire_card_device_wait(quire_device *device, quire_device_event event)
{
    quire_card *card = (quire_card *)device;

    return failure_take(card, card->calls->wait(card, event));
}

int quire_card_device_check(const quire_device *device, const quire_attn_layer *layer)
{
    return quire_attn_layer_check(((const quire_card *)device)->workspace, layer);
}

int quire_card_device_plan(quire_device *device, const quire_attn_batch *batch)
{
    return quire_card_plan((quire_card *)device, batch);
}

int quire_card_device_enter(quire_device *device, const quire_attn_layer *layer,
                            quire_attn_layer *own)
{
    return quire_card_enter((quire_card *)device, layer, own);
}

static void failure_note(quire_card *card, int rc)
{
    card->failure = rc < 0 && card->failure == QUIRE_OK ? rc : card->failure;
}

void quire_card_device_append(quire_device *device, const quire_attn_layer *own, uint32_t thread,
                              uint32_t n_threads)
{
    (void)thread;
    (void)n_threads;
    failure_note((quire_card *)device, quire_card_append((quire_card *)device, own));
}

void quire_card_device_attn(quire_device *device, const quire_attn_layer *own, uint32_t call,
                            uint32_t thread, uint32_t n_threads)
{
    (void)call;
    (void)thread;
    (void)n_threads;
    failure_note((quire_card *)device, quire_card_attn((quire_card *)device, own));
}

int quire_card_device_leave(quire_device *device, const quire_attn_layer *layer,
                            const quire_attn_layer *own)
{
    quire_card *card = (quire_card *)device;

    return failure_take(card, quire_card_leave(card, layer, own));
}
