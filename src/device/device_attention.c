/* device_attention.c - a device behind the interface of a model's step.
 *
 * A device with a queue gets its calls from thread 0, which waits for each layer's result: the next
 * operation of the model reads it. The first failure of a step stays until sync(), and the calls
 * after it do nothing. plan() may come twice in a step: rows leave in front of the last layer.
 *
 * A device whose queue is another's, too, takes layers with rows in its own memory. Nobody waits
 * for these before sync().
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "device/device_internal.h"

static int step_check(void *ctx, const quire_attn_layer *layer)
{
    return quire_device_check(ctx, layer);
}

static int step_plan(void *ctx, const quire_attn_batch *batch)
{
    quire_device *device = ctx;

    QUIRE_TRY(device->step_status);
    return quire_device_plan(device, batch);
}

static void step_append(void *ctx, const quire_attn_layer *layer, uint32_t thread,
                        uint32_t n_threads)
{
    quire_device *device = ctx;
    quire_attn_layer given = *layer;
    quire_attn_layer own;

    if (device->ops->is_in_place) {
        device->ops->append(device, layer, thread, n_threads);
        return;
    }
    if (thread != 0 || device->step_status < 0) {
        return;
    }
    given.out = NULL; /* nothing to wait for */
    device->step_status = quire_device_enter(device, &given, &own);
    if (device->step_status == QUIRE_OK) {
        quire_device_append(device, &own, 0, 1);
        device->step_status = quire_device_leave(device, &given, &own);
    }
}

void quire_device_step_queue(quire_device *device, const quire_attn_layer *layer, uint32_t call,
                             quire_attn_layer *own)
{
    if (device->step_status < 0) {
        return;
    }
    device->step_status = quire_device_enter(device, layer, own);
    if (device->step_status == QUIRE_OK) {
        quire_device_attn(device, own, call, 0, 1);
    }
}

void quire_device_step_finish(quire_device *device, const quire_attn_layer *layer,
                              const quire_attn_layer *own)
{
    if (device->step_status == QUIRE_OK) {
        device->step_status = quire_device_leave(device, layer, own);
    }
}

static void step_run(void *ctx, const quire_attn_layer *layer, uint32_t call, uint32_t thread,
                     uint32_t n_threads)
{
    quire_device *device = ctx;
    quire_attn_layer own;

    if (device->ops->is_in_place) {
        device->ops->attn(device, layer, call, thread, n_threads);
    } else if (thread == 0) {
        quire_device_step_queue(device, layer, call, &own);
        quire_device_step_finish(device, layer, &own);
    }
}

static bool step_queues(void *ctx)
{
    const quire_device *device = ctx;

    return device->step_status == QUIRE_OK;
}

static void step_queue(void *ctx, const quire_attn_layer *layer, uint32_t call, unsigned what)
{
    quire_device *device = ctx;

    (void)call;
    if (device->step_status == QUIRE_OK) {
        device->step_status = quire_device_queue(device, layer, what);
    }
}

static int step_sync(void *ctx)
{
    quire_device *device = ctx;
    const int failure = device->step_status;
    const int rc = quire_device_drain_steps(device); /* not for pages that it does not read */

    device->step_status = QUIRE_OK;
    return failure < 0 ? failure : rc;
}

quire_attn_device quire_device_attention(quire_device *device)
{
    const bool is_shared = quire_device_queue_owner(device) != NULL;
    quire_device_info info;

    quire_device_info_get(device, &info);
    return (quire_attn_device){ .name = info.isa,
                                .memory = info.memory,
                                .ctx = device,
                                .check = step_check,
                                .plan = step_plan,
                                .append = step_append,
                                .run = step_run,
                                .sync = step_sync,
                                .queues = is_shared ? step_queues : NULL,
                                .queue = is_shared ? step_queue : NULL };
}
