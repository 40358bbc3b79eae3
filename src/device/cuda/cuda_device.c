/* cuda_device.c - see cuda_device.h.
 *
 * SPDX-License-Identifier: MIT */
#include "device/cuda/cuda_device.h"

#include "base/check.h"
#include "device/cuda/cuda_internal.h"

#include <stdio.h>

#define KERNELS 1u /* another number when kernels round in another way */

static void cuda_info(const quire_device *device, quire_device_info *out)
{
    const quire_cuda_context *c = ((const quire_cuda *)device)->context;
    size_t free_bytes, bytes;

    (void)snprintf(out->name, sizeof(out->name), "cuda%u", c->index);
    (void)snprintf(out->description, sizeof(out->description), "%.127s", c->name);
    out->card = c->place;
    out->isa = "cuda";
    /* The kernels round as IEEE 754 says, alike on all cards (kernels/cuda_machine.h). */
    (void)snprintf(out->rounding, sizeof(out->rounding), "cuda %u", KERNELS);
    out->memory = QUIRE_MEMORY_DEVICE;
    out->memory_bytes = c->memory_bytes;
    if (!device->is_lost && quire_cuda_context_use(c) == QUIRE_CUDA_SUCCESS &&
        c->calls.MemGetInfo(&free_bytes, &bytes) == QUIRE_CUDA_SUCCESS) {
        out->free_bytes = free_bytes;
    }
}

static void cuda_end(quire_cuda *cuda)
{
    const quire_allocator allocator = cuda->card.base.allocator;

    quire_card_end(&cuda->card);
    quire_cuda_queue_close(cuda);
    quire_cuda_context_release(cuda->context);
    allocator.free(allocator.ctx, cuda);
}

static void cuda_close(quire_device *device)
{
    cuda_end((quire_cuda *)device);
}

static const quire_device_ops cuda_ops = {
    .close = cuda_close,
    .info = cuda_info,
    .alloc = quire_card_device_alloc,
    .free = quire_card_device_free,
    .copy = quire_card_device_copy,
    .record = quire_card_device_record,
    .wait = quire_card_device_wait,
    .check = quire_card_device_check,
    .plan = quire_card_device_plan,
    .enter = quire_card_device_enter,
    .append = quire_card_device_append,
    .attn = quire_card_device_attn,
    .leave = quire_card_device_leave,
};

static const quire_card_calls cuda_calls = {
    .piece_bytes = sizeof(quire_cuda_piece),
    .piece_make = quire_cuda_piece_make,
    .piece_end = quire_cuda_piece_end,
    .copy = quire_cuda_copy,
    .wait = quire_cuda_wait,
    .begin = quire_cuda_begin,
    .dispatch = quire_cuda_dispatch,
    .barrier = quire_cuda_barrier,
    .end = quire_cuda_end,
};

static int cuda_make(quire_cuda *cuda, const quire_device_opts *opts)
{
    QUIRE_TRY(quire_cuda_queue_open(cuda));
    return quire_card_make(&cuda->card, opts);
}

int quire_cuda_device_open(quire_device **out, uint32_t index, const quire_device_opts *opts,
                           quire_error *err)
{
    quire_cuda init = { .card = { .calls = &cuda_calls } };
    quire_cuda *cuda;
    int rc;

    *out = NULL;
    quire_device_init(&init.card.base, &cuda_ops, opts);
    QUIRE_TRY(quire_cuda_context_get(&init.context, index, err));
    cuda = init.card.base.allocator.alloc(init.card.base.allocator.ctx, sizeof(*cuda));
    if (cuda == NULL) {
        quire_cuda_context_release(init.context);
        return quire_error_set(err, QUIRE_NOMEM, "device cuda%u: no memory", index);
    }
    *cuda = init;
    rc = cuda_make(cuda, opts);
    if (rc < 0) {
        cuda_end(cuda);
        return quire_error_set(err, rc, "device cuda%u: attention cannot be set up: %s", index,
                               quire_status_text(rc));
    }
    *out = &cuda->card.base;
    return QUIRE_OK;
}
