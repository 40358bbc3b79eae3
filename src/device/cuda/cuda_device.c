/* cuda_device.c - see cuda_device.h.
 *
 * SPDX-License-Identifier: MIT */
#include "device/cuda/cuda_device.h"

#include "base/check.h"
#include "device/cuda/cuda_internal.h"

#include <stdio.h>

#define KERNELS 2u /* another number when kernels round in another way */

static void cuda_info(const quire_card *card, quire_device_info *out)
{
    const quire_cuda_context *c = ((const quire_cuda *)card)->context;
    size_t free_bytes, bytes;

    (void)snprintf(out->name, sizeof(out->name), "cuda%u", c->index);
    (void)snprintf(out->description, sizeof(out->description), "%.127s", c->name);
    out->card = c->place;
    out->isa = "cuda";
    /* The kernels round as IEEE 754 says, alike on all cards (kernels/cuda_machine.h). */
    (void)snprintf(out->rounding, sizeof(out->rounding), "cuda %u", KERNELS);
    (void)snprintf(out->card_rounding, sizeof(out->card_rounding), "%.127s, %d.%d, driver %d",
                   c->name, c->capability[0], c->capability[1], c->driver);
    out->memory = QUIRE_MEMORY_DEVICE;
    out->memory_bytes = c->memory_bytes;
    if (!card->base.is_lost && quire_cuda_context_use(c) == QUIRE_CUDA_SUCCESS &&
        c->calls.MemGetInfo(&free_bytes, &bytes) == QUIRE_CUDA_SUCCESS) {
        out->free_bytes = free_bytes;
    }
}

static const quire_card_calls cuda_calls = {
    .name = "cuda",
    .card_bytes = sizeof(quire_cuda),
    .piece_bytes = sizeof(quire_cuda_piece),
    .info = cuda_info,
    .queue_owner = quire_cuda_queue_owner,
    .queue_share = quire_cuda_queue_share,
    .behind_owner = quire_cuda_behind_owner,
    .before_owner = quire_cuda_before_owner,
    .queue_open = quire_cuda_queue_open,
    .close = quire_cuda_close,
    .piece_make = quire_cuda_piece_make,
    .piece_end = quire_cuda_piece_end,
    .copy = quire_cuda_copy,
    .wait = quire_cuda_wait,
    .copy_beside = quire_cuda_copy_beside,
    .join = quire_cuda_join,
    .wait_beside = quire_cuda_wait_beside,
    .begin = quire_cuda_begin,
    .write = quire_cuda_write,
    .dispatch = quire_cuda_dispatch,
    .barrier = quire_cuda_barrier,
    .end = quire_cuda_end,
};

int quire_cuda_device_open(quire_device **out, uint32_t index, const quire_device_opts *opts,
                           quire_error *err)
{
    quire_cuda init = { .card = { .calls = &cuda_calls } };

    *out = NULL;
    QUIRE_TRY(quire_cuda_context_get(&init.context, index, err));
    return quire_card_open(out, &init.card, index, opts, err);
}
