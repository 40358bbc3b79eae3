/* attn_device.c - this CPU as a device: the workspace behind the interface of a step.
 *
 * append() and run() return when the calling thread has done its share, so there is nothing to wait
 * for in sync() that the barrier between two calls has not waited for.
 *
 * SPDX-License-Identifier: MIT */
#include "quire/attn.h"

static int cpu_check(void *ctx, const quire_attn_layer *layer)
{
    return quire_attn_layer_check(ctx, layer);
}

static int cpu_plan(void *ctx, const quire_attn_batch *batch)
{
    return quire_attn_begin(ctx, batch);
}

static void cpu_append(void *ctx, const quire_attn_layer *layer, uint32_t thread,
                       uint32_t n_threads)
{
    quire_attn_append(ctx, layer, thread, n_threads);
}

static void cpu_run(void *ctx, const quire_attn_layer *layer, uint32_t call, uint32_t thread,
                    uint32_t n_threads)
{
    quire_attn_run(ctx, layer, call, thread, n_threads);
}

static int cpu_sync(void *ctx)
{
    (void)ctx;
    return QUIRE_OK;
}

quire_attn_device quire_attn_device_cpu(quire_attn_workspace *workspace)
{
    return (quire_attn_device){ .name = "cpu",
                                .memory = QUIRE_MEMORY_HOST,
                                .ctx = workspace,
                                .check = cpu_check,
                                .plan = cpu_plan,
                                .append = cpu_append,
                                .run = cpu_run,
                                .sync = cpu_sync };
}
