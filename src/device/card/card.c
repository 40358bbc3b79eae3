/* card.c - a device on a card as quire_device_ops sees it. See card.h.
 *
 * SPDX-License-Identifier: MIT */
#include "device/card/card.h"

#include "base/check.h"

#include <string.h>

/* A card has more places for work than a CPU has threads, so its splits are smaller. */
static uint32_t split_entries_of(const quire_attn_workspace_opts *attn)
{
    if (attn->split_entries != 0 || attn->page_tokens == 0) { /* 0 tokens are refused later */
        return attn->split_entries;
    }
    return quire_attn_ceil_div(QUIRE_DEVICE_SPLIT_TOKENS, attn->page_tokens);
}

/* The workspace that plans, and the tables of levels: of a card whose queue is open. */
static int card_make(quire_card *card, const quire_device_opts *opts)
{
    quire_attn_workspace_opts attn = opts->attn;

    attn.memory = QUIRE_MEMORY_DEVICE;
    attn.n_threads_max = attn.n_threads_max > 1 ? 1 : attn.n_threads_max;
    attn.isa = NULL;
    attn.split_entries = split_entries_of(&attn);
    QUIRE_TRY(quire_attn_workspace_create(&card->workspace, &attn));
    return quire_card_levels_make(card);
}

static void card_close(quire_device *device)
{
    quire_card *card = (quire_card *)device;
    const quire_allocator allocator = device->allocator;

    if (card->n_submitted > 0) {
        (void)quire_card_wait_all(card);
    }
    if (card->n_beside > 0) {
        (void)card->calls->wait_beside(card, card->n_beside);
    }
    while (card->pieces != NULL) {
        quire_device_memory memory = { .ctx = card->pieces };

        quire_card_free(card, &memory);
    }
    allocator.free(allocator.ctx, card->queued_host);
    quire_attn_workspace_destroy(card->workspace);
    card->calls->close(card);
    allocator.free(allocator.ctx, card);
}

static void card_info(const quire_device *device, quire_device_info *out)
{
    const quire_card *card = (const quire_card *)device;

    card->calls->info(card, out);
}

static const void *card_queue_owner(const quire_device *device)
{
    const quire_card *card = (const quire_card *)device;

    return card->calls->queue_owner != NULL ? card->calls->queue_owner(card) : NULL;
}

static int card_queue_share(quire_device *device, const void *owner, void *before, void *behind)
{
    quire_card *card = (quire_card *)device;

    QUIRE_FAIL_IF(card->calls->queue_share == NULL, QUIRE_UNSUPP);
    return card->calls->queue_share(card, owner, before, behind);
}

static int card_alloc(quire_device *device, quire_device_kind kind, uint64_t bytes,
                      quire_device_memory *out)
{
    return quire_card_alloc((quire_card *)device, kind, bytes, out);
}

static void card_free(quire_device *device, quire_device_memory *memory)
{
    quire_card_free((quire_card *)device, memory);
}

static int card_copy(quire_device *device, const quire_device_piece *pieces, uint32_t n_pieces)
{
    quire_card *card = (quire_card *)device;

    return card->calls->copy(card, pieces, n_pieces);
}

static int card_record(quire_device *device, quire_device_event *out)
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

static int card_wait(quire_device *device, quire_device_event event)
{
    quire_card *card = (quire_card *)device;

    return failure_take(card, card->calls->wait(card, event));
}

static int card_copy_beside(quire_device *device, const quire_device_piece *pieces,
                            uint32_t n_pieces, quire_device_event *out)
{
    quire_card *card = (quire_card *)device;

    QUIRE_TRY(card->calls->copy_beside(card, pieces, n_pieces));
    *out = card->n_beside;
    return QUIRE_OK;
}

static int card_join(quire_device *device, quire_device_event event)
{
    quire_card *card = (quire_card *)device;

    return card->calls->join(card, event);
}

static int card_wait_beside(quire_device *device, quire_device_event event)
{
    quire_card *card = (quire_card *)device;

    return card->calls->wait_beside(card, event);
}

static int card_check(const quire_device *device, const quire_attn_layer *layer)
{
    return quire_attn_layer_check(((const quire_card *)device)->workspace, layer);
}

static int card_plan(quire_device *device, const quire_attn_batch *batch)
{
    return quire_card_plan((quire_card *)device, batch);
}

static int card_enter(quire_device *device, const quire_attn_layer *layer, quire_attn_layer *own)
{
    return quire_card_enter((quire_card *)device, layer, own);
}

static void failure_note(quire_card *card, int rc)
{
    card->failure = rc < 0 && card->failure == QUIRE_OK ? rc : card->failure;
}

static void card_append(quire_device *device, const quire_attn_layer *own, uint32_t thread,
                        uint32_t n_threads)
{
    (void)thread;
    (void)n_threads;
    failure_note((quire_card *)device, quire_card_append((quire_card *)device, own));
}

static void card_attn(quire_device *device, const quire_attn_layer *own, uint32_t call,
                      uint32_t thread, uint32_t n_threads)
{
    (void)call;
    (void)thread;
    (void)n_threads;
    failure_note((quire_card *)device, quire_card_attn((quire_card *)device, own));
}

static int card_leave(quire_device *device, const quire_attn_layer *layer,
                      const quire_attn_layer *own)
{
    quire_card *card = (quire_card *)device;

    return failure_take(card, quire_card_leave(card, layer, own));
}

static int card_queue(quire_device *device, const quire_attn_layer *layer, unsigned what)
{
    return quire_card_queue((quire_card *)device, layer, what);
}

static const quire_device_ops card_ops = {
    .close = card_close,
    .info = card_info,
    .queue_owner = card_queue_owner,
    .queue_share = card_queue_share,
    .alloc = card_alloc,
    .free = card_free,
    .copy = card_copy,
    .record = card_record,
    .wait = card_wait,
    .copy_beside = card_copy_beside,
    .join = card_join,
    .wait_beside = card_wait_beside,
    .check = card_check,
    .plan = card_plan,
    .enter = card_enter,
    .append = card_append,
    .attn = card_attn,
    .leave = card_leave,
    .queue = card_queue,
};

int quire_card_open(quire_device **out, quire_card *init, uint32_t index,
                    const quire_device_opts *opts, quire_error *err)
{
    const quire_card_calls *calls = init->calls;
    quire_card *card;
    int rc;

    *out = NULL;
    quire_device_init(&init->base, &card_ops, opts);
    card = init->base.allocator.alloc(init->base.allocator.ctx, calls->card_bytes);
    if (card == NULL) {
        calls->close(init);
        return quire_error_set(err, QUIRE_NOMEM, "device %s%u: no memory", calls->name, index);
    }
    memcpy(card, init, calls->card_bytes);
    rc = calls->queue_open(card);
    rc = rc < 0 ? rc : card_make(card, opts);
    if (rc < 0) {
        card_close(&card->base);
        return quire_error_set(err, rc, "device %s%u: attention cannot be set up: %s", calls->name,
                               index, quire_status_text(rc));
    }
    *out = &card->base;
    return QUIRE_OK;
}
